"""What the figures of an S3 store stand on: a server, a slow proxy before it, brokers on it.

The server is MinIO in a process of its own, with its data below build/; where MinIO is missing, it
is moto's, which is there for tests and too slow to be measured (`S3Bed.is_minio`). The proxy
(`bench.slow_s3`) makes it as slow as S3. What is raw goes through the same proxy in the same run.

The server and the proxy share the machine with the broker and the clients, so the report has their
processor time beside the figures.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import boto3
import psutil
from botocore.config import Config

from bench.broker import BenchBroker, fresh_directory
from bench.slow_s3 import Delays, SlowS3
from demo.broker_process import free_port
from localstack.minio import MINIO
from localstack.minio import find as find_minio

BUCKET: Final = "bench"
CREDENTIALS: Final = MINIO.credentials
"""Those of the server's owner; they are in the environment while a bed is there. boto3 keeps what
it found there first, so a process has one pair."""
START_TIMEOUT_S: Final = 60.0


class S3Bed(NamedTuple):
    """A running server with an empty bucket, and the proxy before it."""

    server_endpoint: str
    """Of the server itself, which nothing delays."""
    server_pid: int
    proxy: SlowS3
    is_minio: bool

    def url(self, prefix: str, *, delayed: bool = True) -> str:
        """The object store of a broker, below `prefix` of the bucket."""
        endpoint = self.proxy.endpoint if delayed else self.server_endpoint
        return f"s3://{BUCKET}/{prefix}?endpoint_url={endpoint}&region=us-east-1"

    def broker(
        self,
        data: Path,
        prefix: str,
        settings: Mapping[str, object],
        *,
        delayed: bool = True,
    ) -> BenchBroker:
        """A broker whose objects are below `prefix`."""
        return BenchBroker(
            data, {"object.store.url": self.url(prefix, delayed=delayed), **settings}
        )

    def client(self, *, delayed: bool = True, connections: int = 8) -> Any:
        """A boto3 client as boto3 makes it."""
        endpoint = self.proxy.endpoint if delayed else self.server_endpoint
        return boto3.client(
            "s3", endpoint_url=endpoint, config=Config(max_pool_connections=connections)
        )

    def server_cpu_s(self) -> float:
        """Processor time that the server has used."""
        times = psutil.Process(self.server_pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def s3_bed(delays: Delays | None = None) -> Iterator[S3Bed]:
    """A bed, with delays like S3's unless others are given."""
    with (
        _environment(CREDENTIALS),
        fresh_directory() as directory,
        _server(directory) as (endpoint, pid, is_minio),
        SlowS3(endpoint, delays or Delays()) as proxy,
    ):
        bed = S3Bed(endpoint, pid, proxy, is_minio)
        client = bed.client(delayed=False)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield bed


@contextmanager
def _server(directory: Path) -> Iterator[tuple[str, int, bool]]:
    """Its URL, its process id, whether it is MinIO."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    minio = find_minio()
    if minio is not None:
        command: list[str | Path] = [minio, "server", "--quiet", "--address", address]
        command += ["--console-address", "127.0.0.1:0", directory / "minio"]
    else:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {
        **os.environ,
        "MINIO_ROOT_USER": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "MINIO_ROOT_PASSWORD": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        "MINIO_UPDATE": "off",
    }
    with (
        (directory / "server.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            _wait_until_it_listens(process, port, directory / "server.log")
            yield f"http://{address}", process.pid, minio is not None
        finally:
            process.kill()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the S3 server does not answer: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
