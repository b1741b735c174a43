"""One Spark session for all tests of a run that need one on this machine: it starts slowly.

Registered as a pytest plugin in `tests/conftest.py`. It also says with which options of Java every
driver starts, of this process and of those that it starts: those of a short run.
"""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.clients.jvm import SHORT_RUN
from tiering.spark.roller import SparkRoller

_VARIABLES: Final = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
"""Spark's own, for a driver and for the JVM that puts its command line together."""


def pytest_configure() -> None:
    for variable in _VARIABLES:
        os.environ.setdefault(variable, " ".join(SHORT_RUN))


@pytest.fixture(scope="session")
def spark_roller() -> Iterator[SparkRoller]:
    """Its `session` is started by the first test that uses it."""
    with SparkRoller("local[2]") as roller:
        yield roller
