"""The demo's Spark query against pandas, on Parquet files that hold a segment's columns."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from demo import events, spark_numbers


def write_segment(directory: Path, made: Iterable[events.Event]) -> Path:
    """One file in one partition directory, as far as the query looks at it."""
    partition = directory / "partition=0"
    partition.mkdir(parents=True)
    values = pa.array([event.value for event in made], pa.binary())
    table = pa.table({"offset": pa.array(range(len(values)), pa.int64()), "value": values})
    pyarrow.parquet.write_table(table, partition / "0-1.parquet")
    return directory


@pytest.mark.exhaustive  # the demo in small compares the same numbers
@pytest.mark.spark
def test_spark_finds_the_numbers_that_pandas_finds(tmp_path: Path) -> None:
    flights, weather = events.read_flights(3_000), events.read_weather(500)
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "demo.spark_numbers",
            write_segment(tmp_path / "flights", events.flight_events(flights)),
            write_segment(tmp_path / "weather", events.weather_events(weather)),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    found = spark_numbers.parse_numbers(finished.stdout)
    assert found == events.reference_numbers(flights, weather)
