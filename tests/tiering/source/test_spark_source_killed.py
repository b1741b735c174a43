"""A streaming query whose driver is killed, with its JVM, while a producer goes on."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pyarrow.parquet as pq
import pytest

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.tiers.flights import PARTITIONS, TOPIC, consumed_flights, produce_flights
from tests.support.tiers.rolled import roll_everything

KILLS = 20
REPOSITORY = Path(__file__).resolve().parents[3]
QUERY = """
import sys
from tiering.source import register
from tiering.spark.roller import SparkRoller

bootstrap, topic, directory, available = sys.argv[1:]
with SparkRoller("local[2]") as roller:
    register(roller.session)
    query = (
        roller.session.readStream.format("diskless")
        .options(bootstrap=bootstrap, topic=topic, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "50")
        .load()
        .select("partition", "offset", "value")
        .writeStream.format("parquet")
        .option("path", directory + "/out")
        .option("checkpointLocation", directory + "/checkpoint")
    )
    if available == "True":
        query = query.trigger(availableNow=True)
    query.start().awaitTermination()
"""


@contextmanager
def running(broker: LiveBroker, directory: Path, *, available: bool) -> Iterator[subprocess.Popen]:
    """The query in a process group of its own, which is killed at the end."""
    arguments = [broker.bootstrap, TOPIC, str(directory), str(available)]
    with (directory / "query.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", QUERY, *arguments],
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def written(directory: Path, kind: str) -> int:
    """How many micro-batches were begun (`offsets`) or ended (`commits`)."""
    names = (path.name for path in (directory / "checkpoint" / kind).glob("[0-9]*"))
    return max((int(name) + 1 for name in names if name.isdecimal()), default=0)


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.exhaustive
def test_a_killed_driver_goes_on_from_its_checkpoint_and_each_record_is_there_once(
    tmp_path: Path,
) -> None:
    rng = random.Random(3)
    stop = Event()
    produced = 0
    # The records are years old by their timestamps, and this may take minutes.
    settings = {"num.partitions": str(PARTITIONS), "log.retention.ms": "-1"}
    with LiveBroker(tmp_path / "data", settings) as broker:

        def go_on_producing() -> None:
            nonlocal produced
            while not stop.wait(0.3):
                produce_flights(broker, produced, 6)
                produced += 6
                if rng.random() < 0.05:
                    roll_everything(broker)

        producer = Thread(target=go_on_producing)
        producer.start()
        try:
            for number in range(KILLS):
                # In the middle of a micro-batch, or when one has just ended.
                kind = "offsets" if number % 2 else "commits"
                wanted = written(tmp_path, kind) + rng.randint(1, 3)
                with running(broker, tmp_path, available=False) as process:
                    until(
                        lambda kind=kind, wanted=wanted, process=process: (
                            written(tmp_path, kind) >= wanted or process.poll() is not None
                        ),
                        "micro-batches are written",
                    )
                    assert process.poll() is None, (tmp_path / "query.log").read_text()
        finally:
            stop.set()
            producer.join()
        with running(broker, tmp_path, available=True) as process:
            assert process.wait(600) == 0, (tmp_path / "query.log").read_text()
        consumed = consumed_flights(broker, produced)
    # Files of micro-batches that were killed are there too; the sink's log names those that count.
    names = [
        line.split('"path":"')[1].split('"')[0]
        for log in (tmp_path / "out" / "_spark_metadata").glob("[0-9]*")
        for line in log.read_text().splitlines()
        if '"path":"' in line
    ]
    tables = [pq.read_table(Path(name.removeprefix("file:"))) for name in {*names}]
    rows = sorted(
        (row["partition"], row["offset"], row["value"])
        for table in tables
        for row in table.to_pylist()
    )
    assert rows == [
        (flight.partition, flight.offset, flight.value)
        for number in range(PARTITIONS)
        for flight in consumed[number]
    ]
