"""What all tests share: one LocalStack S3 per session, and the rule for tests that need Spark."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.client import BaseClient

from demo.broker_process import BrokerProcess
from tests.support.ports import own_port

pytest_plugins = [
    "tests.support.exhaustive",
    "tests.support.unit_tests",
    "tests.support.second_try",
    "tests.support.worker_groups",
    "tests.support.loop_holds",
    "tests.support.moto_server",
    "tests.support.faulty_s3",
    "tests.support.timeless_hypothesis",
    "tests.support.profiles",
]

REPOSITORY = Path(__file__).resolve().parent.parent

_bucket_numbers = itertools.count()

# A broker that is killed comes back where it was, and meanwhile nobody else may get the port.
BrokerProcess.new_port = staticmethod(own_port)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Spark where there is no Java, and say so: the broker itself needs none."""
    spark_tests = [item for item in items if item.get_closest_marker("spark")]
    if not spark_tests:
        return
    java = subprocess.run(
        [REPOSITORY / "scripts" / "need-java"], check=False, capture_output=True, text=True
    )
    if java.returncode != 0:
        for item in spark_tests:
            item.add_marker(pytest.mark.skip(reason=java.stderr.splitlines()[0]))


@pytest.fixture(scope="session")
def localstack_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running LocalStack: the one LOCALSTACK_ENDPOINT names, or one of our own.

    Our own gets a free port and a state directory of its own, so that a test run neither meets nor
    stops the server a developer started. Also sets the credentials it takes in the environment,
    where boto3, the broker and Spark's tasks look for them.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        if endpoint := os.environ.get("LOCALSTACK_ENDPOINT"):
            yield endpoint
            return
        state = tmp_path_factory.mktemp("localstack")
        started = _localstack("start", state)
        try:
            (line,) = (line for line in started.splitlines() if "AWS_ENDPOINT_URL=" in line)
            yield line.partition("=")[2]
        finally:
            _localstack("stop", state)


@pytest.fixture
def localstack_s3(localstack_endpoint: str) -> Iterator[BaseClient]:
    """A plain boto3 client of that server; it repeats nothing, so that tests see every answer."""
    configuration = boto3.session.Config(retries={"total_max_attempts": 1})
    client = boto3.client("s3", endpoint_url=localstack_endpoint, config=configuration)
    yield client
    client.close()


@pytest.fixture
def localstack_bucket(localstack_s3: BaseClient) -> str:
    """A new, empty bucket for one test."""
    bucket = f"test-{os.getpid()}-{next(_bucket_numbers)}"
    localstack_s3.create_bucket(Bucket=bucket)
    return bucket


def _localstack(command: str, state: Path) -> str:
    """Run localstack/start or localstack/stop; its own message is the failure's."""
    finished = subprocess.run(
        [REPOSITORY / "localstack" / command, "--state", state],
        check=False,
        capture_output=True,
        text=True,
    )
    if finished.returncode != 0:
        pytest.fail(f"localstack/{command}: {finished.stderr}", pytrace=False)
    return finished.stdout
