"""Batch reads of a Spark session that take long, while segments are merged or compacted.

A read is planned, and half of its tasks begin: each has begun to give rows when whoever takes them
stops. Then all segments are replaced, and those that were there are deleted at once
(`diskless.file.delete.grace.ms` is 0). What those tasks have not read yet, and all that the other
half reads, lies in other objects than when the read was planned.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients
from tests.support.tiers.compacted import compact_everything
from tests.support.tiers.rolled import merge_everything, roll_everything
from tiering.source import register
from tiering.spark.roller import SparkRoller

pytestmark = [pytest.mark.spark, pytest.mark.exhaustive]

TOPIC: Final = "slow"
PARTITIONS: Final = 4
"""Two for each task that the session runs at a time."""
ROLLS: Final = 8
PER_ROLL: Final = 10
VALUE_BYTES: Final = 100_000
"""So many that they do not fit into what lies between a reader and whoever takes its rows."""
KEYS: Final = 7
DEADLINE_S: Final = 120
SETTINGS: Final = {
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "50",
    "log.retention.ms": "-1",
}
CONFIGS: Final[dict[str, dict[str, str]]] = {
    "merged": {},
    "compacted": {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"},
}


def value_of(partition: int, offset: int) -> bytes:
    """Bytes that nobody can compress."""
    return random.Random(PARTITIONS * offset + partition).randbytes(VALUE_BYTES)


def write(broker: LiveBroker, kind: str) -> None:
    """Segments, as many in each partition as there are rolls."""
    admin = clients.confluent_admin(broker.bootstrap)
    clients.create_topic(admin, TOPIC, PARTITIONS, **CONFIGS[kind])
    producer = clients.confluent_producer(broker.bootstrap)
    for roll in range(ROLLS):
        for offset in range(roll * PER_ROLL, (roll + 1) * PER_ROLL):
            for partition in range(PARTITIONS):
                value = value_of(partition, offset)
                producer.produce(TOPIC, value, b"%d" % (offset % KEYS), partition=partition)
        assert producer.flush(60) == 0
        assert len(roll_everything(broker)) == PARTITIONS


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_read_that_was_planned_before_has_each_record_once(
    spark_roller: SparkRoller, tmp_path: Path, kind: str
) -> None:
    spark: SparkSession = spark_roller.session
    register(spark)
    data, signs = tmp_path / "data", tmp_path / "signs"
    signs.mkdir()

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes rows on, but none behind the first before it may."""
        import time

        for number, batch in enumerate(batches):
            if number == 0 and batch.num_rows:
                (signs / f"began-{batch.column('partition')[0].as_py()}").touch()
                deadline = time.monotonic() + DEADLINE_S
                while not (signs / "go").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            yield batch

    def segments() -> set[str]:
        return {path.name for path in (data / "objects" / "segments").rglob("*.parquet")}

    with LiveBroker(data, SETTINGS) as broker, ThreadPoolExecutor(1) as reader:
        write(broker, kind)
        rows = (
            spark.read.format("diskless")
            .options(bootstrap=broker.bootstrap, topic=TOPIC)
            .option("columns", "partition,offset,key,value")
            .load()
            .mapInArrow(slowly, "partition int, offset bigint, key binary, value binary")
            .selectExpr("partition", "offset", "key", "md5(value) as digest")
        )
        read = reader.submit(rows.collect)
        until(lambda: len([*signs.iterdir()]) >= 2 or read.done(), "half of the tasks have begun")
        began = {int(path.name.removeprefix("began-")) for path in signs.iterdir()}
        assert len(began) < PARTITIONS, "all have begun before anything was replaced"
        before = segments()
        report: Any = merge_everything(broker) if kind == "merged" else compact_everything(broker)
        assert report.rewrites
        until(lambda: not segments() & before, "what was replaced is deleted")
        (signs / "go").touch()
        found: list[Row] = read.result(DEADLINE_S)
    check(found, kind)


def check(found: list[Row], kind: str) -> None:
    places = [(row.partition, row.offset) for row in found]
    assert len(places) == len(set(places))
    end = ROLLS * PER_ROLL
    kept = range(end) if kind == "merged" else range(end - KEYS, end)
    assert {(number, at) for number in range(PARTITIONS) for at in kept} <= set(places)
    assert all(at < end for _, at in places)
    for row in found:
        assert bytes(row.key) == b"%d" % (row.offset % KEYS)
        assert row.digest == md5(value_of(row.partition, row.offset)).hexdigest()
