"""moto's S3 server on a free port of 127.0.0.1, for tests that talk to S3.

Registered as a pytest plugin in `tests/conftest.py`. `moto_endpoint` is one server for the whole
session, in threads of the test process; `moto_bucket` is a new empty bucket for one test.
Credentials are in the environment while the server runs, where boto3, the broker and Spark's tasks
look for them: moto takes any, and these are those of the real servers (`tests.support.s3_servers`).
"""

import functools
import itertools
from collections.abc import Iterator

import boto3
import pytest
from botocore.client import BaseClient
from botocore.config import Config

_bucket_numbers = itertools.count()


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """The URL of a running moto server."""
    # Imported here: it takes seconds, and most test runs need no S3.
    from moto import backends
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as environment:
        # For each request moto looks which of its own directories there are.
        modules = tuple(backends.list_of_moto_modules())
        environment.setattr(backends, "list_of_moto_modules", lambda: modules)
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        try:
            yield f"http://{host}:{port}"
        finally:
            if _client.cache_info().currsize:
                _client(f"http://{host}:{port}").close()
                _client.cache_clear()
            server.stop()


@pytest.fixture
def moto_bucket(moto_endpoint: str) -> str:
    """A new, empty bucket for one test."""
    return new_bucket(moto_endpoint)


def new_bucket(endpoint: str) -> str:
    """A new, empty bucket of the moto server at `endpoint`."""
    bucket = f"bucket-{next(_bucket_numbers)}"
    _client(endpoint).create_bucket(Bucket=bucket)
    return bucket


@functools.cache
def _client(endpoint: str) -> BaseClient:
    """One for all buckets of the server: to make a client takes longer than to make a bucket."""
    return boto3.client(
        "s3", endpoint_url=endpoint, config=Config(retries={"total_max_attempts": 1})
    )
