"""What all tests share: the plugins, and the rule for tests that need Spark."""

import subprocess
from pathlib import Path

import pytest

from demo.broker_process import BrokerProcess
from tests.support.ports import own_port

pytest_plugins = [
    "tests.support.collector",
    "tests.support.exhaustive",
    "tests.support.part_of_a_run",
    "tests.support.unit_tests",
    "tests.support.second_try",
    "tests.support.worker_groups",
    "tests.support.broker_logs",
    "tests.support.loop_holds",
    "tests.support.moto_server",
    "tests.support.s3_servers",
    "tests.support.stores.faulty_s3",
    "tests.support.timeless_hypothesis",
    "tests.support.profiles",
    "tests.support.spark_session",
    "tests.support.warm_commands",
]

REPOSITORY = Path(__file__).resolve().parent.parent

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
