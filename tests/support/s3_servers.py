"""Real S3 servers on free ports of 127.0.0.1, one of each kind for the session.

Registered as a pytest plugin in `tests/conftest.py`. LocalStack keeps nothing and checks no
signatures; MinIO does both, and starts within a second. A test asks for what it needs:

- `localstack_endpoint`, `localstack_bucket`, `localstack_s3`: the URL, a new empty bucket, and a
  plain boto3 client that repeats nothing; `minio_endpoint` and so on likewise
- `s3_server`: either, for a test that is `on_every_server` or `on_one_server`; it can go `away`

Tests that ask for MinIO are skipped, and say how to get it, where there is none.

The credentials that both take are in the environment while a server runs, where boto3, the broker
and Spark's tasks look for them.
"""

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import boto3
import pytest
from botocore.client import BaseClient

from localstack import local_server, minio
from localstack.local_s3 import LOCALSTACK
from localstack.local_server import LocalServerError, Program
from localstack.minio import MINIO
from tests.support.ports import own_port

START_TIMEOUT_S: Final = 120.0

_bucket_numbers = itertools.count()


@dataclass(slots=True, kw_only=True)
class LocalServer:
    """A server through its lives; use it as a context manager, which ends the last one."""

    program: Program
    state: Path
    port: int
    pid: int = 0

    @property
    def endpoint(self) -> str:
        """The same in every life."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on what it has kept of an earlier life."""
        try:
            server = local_server.start(self.program, self.state, self.port, START_TIMEOUT_S)
        except LocalServerError as error:
            pytest.fail(f"{self.program.name}: {error}", pytrace=False)
        self.port, self.pid = server.port, server.pid

    def stop(self) -> None:
        local_server.stop(self.program, self.state)

    def __enter__(self) -> "LocalServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running server and a new bucket on it, as a test looks at them past the broker."""

    server: LocalServer
    bucket: str
    s3: BaseClient

    @property
    def endpoint(self) -> str:
        return self.server.endpoint

    @property
    def is_localstack(self) -> bool:
        return self.server.program is LOCALSTACK

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody answers meanwhile; what was confirmed before is there afterwards.

        MinIO ends and comes back; LocalStack, which would come back empty, stands still.
        """
        if not self.is_localstack:
            self.server.stop()
            try:
                yield
            finally:
                self.server.start()
            return
        os.kill(self.server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server.pid, signal.SIGCONT)

    def url(self, prefix: str) -> str:
        """The object store below that prefix of the bucket, for `--object-store`."""
        return f"s3://{self.bucket}/{prefix}?endpoint_url={self.endpoint}"

    def keys(self, prefix: str) -> list[str]:
        """The names of the objects that start with `prefix`, in order."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def s3_client(endpoint: str) -> BaseClient:
    """A plain boto3 client; it repeats nothing, so that tests see every answer."""
    configuration = boto3.session.Config(
        retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}
    )
    return boto3.client("s3", endpoint_url=endpoint, config=configuration)


def new_bucket(s3: BaseClient) -> str:
    bucket = f"test-{os.getpid()}-{next(_bucket_numbers)}"
    s3.create_bucket(Bucket=bucket)
    return bucket


def _running(program: Program, state: Path) -> Iterator[LocalServer]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in program.credentials.items():
            environment.setenv(name, value)
        # A port of its own, since the server may come back at it.
        with LocalServer(program=program, state=state, port=own_port()) as server:
            yield server


def _client(endpoint: str) -> Iterator[BaseClient]:
    client = s3_client(endpoint)
    yield client
    client.close()


@pytest.fixture(scope="session")
def localstack_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The session's LocalStack."""
    yield from _running(LOCALSTACK, tmp_path_factory.mktemp("localstack"))


@pytest.fixture(scope="session")
def localstack_endpoint(localstack_server: LocalServer) -> str:
    return localstack_server.endpoint


@pytest.fixture(scope="session")
def localstack_s3(localstack_endpoint: str) -> Iterator[BaseClient]:
    yield from _client(localstack_endpoint)


@pytest.fixture
def localstack_bucket(localstack_s3: BaseClient) -> str:
    return new_bucket(localstack_s3)


@pytest.fixture(scope="session")
def minio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The session's MinIO."""
    if minio.find() is None:
        pytest.skip(minio.HOW_TO_GET)
    yield from _running(MINIO, tmp_path_factory.mktemp("minio"))


@pytest.fixture(scope="session")
def minio_endpoint(minio_server: LocalServer) -> str:
    return minio_server.endpoint


@pytest.fixture(scope="session")
def minio_s3(minio_endpoint: str) -> Iterator[BaseClient]:
    yield from _client(minio_endpoint)


@pytest.fixture
def minio_bucket(minio_s3: BaseClient) -> str:
    return new_bucket(minio_s3)


_MINIO: Final = pytest.param("minio", marks=pytest.mark.minio)

on_every_server: Final = pytest.mark.parametrize(
    "s3_server", [pytest.param("localstack", marks=pytest.mark.localstack), _MINIO], indirect=True
)
on_one_server: Final = pytest.mark.parametrize(
    "s3_server",
    [
        pytest.param(
            "localstack",
            marks=[pytest.mark.localstack, *([pytest.mark.exhaustive] if minio.find() else [])],
        ),
        _MINIO,
    ],
    indirect=True,
)
"""On MinIO where there is one, which is faster, else on LocalStack; `make test-all` has both."""


@pytest.fixture
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """See `on_every_server` and `on_one_server`."""
    return S3Server(
        server=request.getfixturevalue(f"{request.param}_server"),
        bucket=request.getfixturevalue(f"{request.param}_bucket"),
        s3=request.getfixturevalue(f"{request.param}_s3"),
    )
