"""What the figures of an S3 store stand on: a server, a slow proxy before it, brokers on it.

The server is MinIO in a process of its own, with its data below build/; where MinIO is missing, it
is moto's, which is there for tests and too slow to be measured (`S3Bed.is_minio`). The proxy
(`bench.tools.slow_s3`) makes it as slow as S3. What is raw goes through the same proxy in the
same run.

Bodies are not signed (`s3.payload.signed=false`, and raw PUTs alike): with TLS, as on AWS, they are
not either. The server and the proxy share the machine with the broker and the clients, so the
report has their processor time beside the figures.
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

from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.slow_s3 import Delays, SlowS3
from demo.broker_process import free_port
from localstack import local_server, minio
from localstack.local_server import Server

BUCKET: Final = "bench"
START_TIMEOUT_S: Final = 60.0


class S3Bed(NamedTuple):
    """A running server with an empty bucket, and the proxy before it."""

    server: Server
    """Which nothing delays."""
    proxy: SlowS3
    is_minio: bool

    def url(self, prefix: str, *, delayed: bool = True) -> str:
        """The object store of a broker, below `prefix` of the bucket."""
        endpoint = self.proxy.endpoint if delayed else self.server.endpoint
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
        values = {
            "object.store.url": self.url(prefix, delayed=delayed),
            "s3.payload.signed": "false",
            **settings,
        }
        return BenchBroker(data, values)

    def client(self, *, delayed: bool = True, connections: int = 8) -> Any:
        """A boto3 client that neither hashes bodies nor tries again."""
        return boto3.client(
            "s3",
            endpoint_url=self.proxy.endpoint if delayed else self.server.endpoint,
            config=Config(
                max_pool_connections=connections,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"total_max_attempts": 1},
                s3={"payload_signing_enabled": False},
            ),
        )

    def server_cpu_s(self) -> float:
        """Processor time that the server has used."""
        times = psutil.Process(self.server.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def s3_bed(delays: Delays | None = None) -> Iterator[S3Bed]:
    """A bed, with delays like S3's unless others are given."""
    with (
        _environment(minio.MINIO.credentials),
        fresh_directory() as directory,
        _server(directory) as (server, is_minio),
        SlowS3(server.endpoint, delays or Delays()) as proxy,
    ):
        bed = S3Bed(server, proxy, is_minio)
        client = bed.client(delayed=False)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield bed


@contextmanager
def _server(directory: Path) -> Iterator[tuple[Server, bool]]:
    """One that runs, and whether it is MinIO."""
    if minio.find() is not None:
        try:
            yield local_server.start(minio.MINIO, directory / "minio", 0, START_TIMEOUT_S), True
        finally:
            local_server.stop(minio.MINIO, directory / "minio")
        return
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    log = directory / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output) as process,
    ):
        server = Server(pid=process.pid, port=port, log=str(log))
        try:
            _wait_until_it_listens(process, server)
            yield server, False
        finally:
            process.kill()


def _wait_until_it_listens(process: subprocess.Popen[bytes], server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", server.port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"moto does not answer; see {server.log}")


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
