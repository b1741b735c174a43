"""One Spark session for all tests of a run that need one on this machine: it starts slowly."""

from collections.abc import Iterator

import pytest

from tiering.spark.roller import SparkRoller


@pytest.fixture(scope="session")
def spark_roller() -> Iterator[SparkRoller]:
    """Its `session` is started by the first test that uses it."""
    with SparkRoller("local[2]") as roller:
        yield roller
