"""Spark's own Kafka source and sink, in batches and as a stream, against a whole broker.

Skipped where Java or Maven are missing, or the jars of the connector cannot be had.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.jvm import JvmUnavailable
from tests.support.clients.stock_clients import (
    TIMEOUT_S,
    ConfluentKafka,
    Record,
    confluent_admin,
    create_topic,
)
from tests.support.tiers.spark_kafka import SparkKafka, connector_jars
from tests.support.transactions.committed_values import CommittedValues

pytestmark = [pytest.mark.clients, pytest.mark.spark]

SETTINGS: Final = {"wal.commit.interval.ms": "5"}

_names = itertools.count()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkKafka]:
    try:
        jars = connector_jars()
    except JvmUnavailable as missing:
        pytest.skip(str(missing))
    with SparkKafka(jars) as spark:
        yield spark


@pytest.fixture
def topic(broker: LiveBroker) -> str:
    """A new topic of three partitions."""
    return create(broker, f"topic-{next(_names)}")


def create(broker: LiveBroker, topic: str, partitions: int = 3) -> str:
    admin = confluent_admin(broker.bootstrap)
    create_topic(admin, topic, partitions)
    return topic


def source(broker: LiveBroker, topic: str, **options: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **options,
    }


def sink(broker: LiveBroker, topic: str, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, **options}


def write(broker: LiveBroker, topic: str, first: int, count: int, partitions: int = 3) -> None:
    """Values `first` to `first + count`, dealt out to the partitions."""
    for partition in range(partitions):
        numbers = range(first + partition, first + count, partitions)
        records = [Record(value=b"%d" % number, timestamp_ms=1000 + number) for number in numbers]
        ConfluentKafka().produce(broker.bootstrap, topic, records, partition=partition)


def values(rows: list[list[object]]) -> list[int]:
    return sorted(int(str(row[3])) for row in rows)


def test_a_batch_reads_records_as_they_were_written(
    spark: SparkKafka, broker: LiveBroker, topic: str
) -> None:
    sent = [
        Record(b"k", b"v", (("a", b"1"), ("a", b"2"), ("none", None)), 1_234_567),
        Record(None, b"", (), 2_000_000),
        Record(b"", None, (), 1_500_000),
    ]
    for codec in ("none", "zstd"):
        ConfluentKafka().produce(broker.bootstrap, topic, sent, codec=codec, partition=1)
    headers = [["a", "1"], ["a", "2"], ["none", None]]
    assert spark("read", source(broker, topic)) == [
        row
        for first in (0, 3)
        for row in (
            [1, first, "k", "v", 1_234_567, headers, 0],
            [1, first + 1, None, "", 2_000_000, None, 0],
            [1, first + 2, "", None, 1_500_000, None, 0],
        )
    ]


def test_a_batch_starts_and_ends_at_offsets_and_times(
    spark: SparkKafka, broker: LiveBroker, topic: str
) -> None:
    """Times are a thousand and the value, so that a time names the value it begins with."""
    write(broker, topic, 0, 90)
    offsets = {
        "startingOffsets": f'{{"{topic}": {{"0": 10, "1": -2, "2": 30}}}}',
        "endingOffsets": f'{{"{topic}": {{"0": 12, "1": 3, "2": -1}}}}',
    }
    assert values(spark("read", source(broker, topic, **offsets))) == [1, 4, 7, 30, 33]

    ends = {"startingTimestamp": "1030", "endingTimestamp": "1060"}
    assert values(spark("read", source(broker, topic, **ends))) == list(range(30, 60))

    by_partition = {
        "startingOffsetsByTimestamp": f'{{"{topic}": {{"0": 1087, "1": 1088, "2": 2000}}}}',
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert values(spark("read", source(broker, topic, **by_partition))) == [87, 88]


def test_what_the_sink_wrote_any_client_reads(
    spark: SparkKafka, broker: LiveBroker, topic: str
) -> None:
    assert spark("write", sink(broker, topic), 300) == 300
    read = [
        record
        for partition, count in enumerate(ends(broker, topic))
        for _, record in ConfluentKafka().read(broker.bootstrap, topic, count, partition=partition)
    ]
    found = {(record.key, record.value, record.headers) for record in read}
    assert len(read) == 300
    assert found == {(b"key %d" % n, b"value %d" % n, (("n", b"%d" % n),)) for n in range(300)}


def ends(broker: LiveBroker, topic: str) -> list[int]:
    """The log end offsets of the topic's three partitions."""
    admin = confluent_admin(broker.bootstrap)
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(3)}
    found = admin.list_offsets(asked)
    return [found[place].result(TIMEOUT_S).offset for place in asked]


def test_a_query_goes_on_at_its_checkpoint_and_loses_and_doubles_nothing(
    spark: SparkKafka, broker: LiveBroker, topic: str, tmp_path: Path
) -> None:
    copy = create(broker, f"{topic}-copy")
    arguments = (
        source(broker, topic, maxOffsetsPerTrigger="40"),
        sink(broker, copy),
        str(tmp_path / "checkpoint"),
    )
    write(broker, topic, 0, 100)
    first = spark("copy_available", *arguments)
    assert sum(first) == 100
    assert len([rows for rows in first if rows]) >= 3
    write(broker, topic, 100, 50)
    assert sum(spark("copy_available", *arguments)) == 50
    assert sum(spark("copy_available", *arguments)) == 0
    assert values(spark("read", source(broker, copy))) == list(range(150))


def test_a_running_query_is_stopped_and_started_while_records_come(
    spark: SparkKafka, broker: LiveBroker, topic: str, tmp_path: Path
) -> None:
    copy = create(broker, f"{topic}-copy")
    arguments = (source(broker, topic), sink(broker, copy), str(tmp_path / "checkpoint"))
    for life in range(3):
        spark("start_copying", *arguments)
        write(broker, topic, life * 200, 100)
        last = spark("process_all")
        assert sum(last[topic].values()) == life * 200 + 100
        spark("stop_copying")
        write(broker, topic, life * 200 + 100, 100)
    spark("copy_available", *arguments)
    assert values(spark("read", source(broker, copy))) == list(range(600))


def test_a_query_finds_new_partitions_and_topics(
    spark: SparkKafka, broker: LiveBroker, topic: str, tmp_path: Path
) -> None:
    copy = create(broker, f"copy-{next(_names)}")  # the pattern must not find it
    pattern = source(broker, topic)
    del pattern["subscribe"]
    pattern["subscribePattern"] = f"{topic}(-.*)?"
    arguments = (pattern, sink(broker, copy), str(tmp_path / "checkpoint"))
    write(broker, topic, 0, 30)
    assert sum(spark("copy_available", *arguments)) == 30
    write(broker, create(broker, f"{topic}-more"), 30, 30)
    assert sum(spark("copy_available", *arguments)) == 30
    assert values(spark("read", source(broker, copy))) == list(range(60))


COMMITTED: Final = {"kafka.isolation.level": "read_committed"}


def test_a_batch_has_what_was_committed(spark: SparkKafka, broker: LiveBroker, topic: str) -> None:
    writer = CommittedValues(broker.bootstrap, topic, 3, random.Random(7))
    writer.write(4)
    writer.begin()
    assert values(spark("read", source(broker, topic, **COMMITTED))) == writer.committed
    writer.end(is_commit=True)


@pytest.mark.exhaustive
def test_a_running_query_copies_what_is_committed(
    spark: SparkKafka, broker: LiveBroker, topic: str, tmp_path: Path
) -> None:
    copy = create(broker, f"{topic}-copy")
    writer = CommittedValues(broker.bootstrap, topic, 3, random.Random(7))
    checkpoint = str(tmp_path / "checkpoint")
    arguments = (source(broker, topic, **COMMITTED), sink(broker, copy), checkpoint)
    for _ in range(3):
        spark("start_copying", *arguments)
        writer.write(20)
        writer.begin()
        spark("process_all")
        assert values(spark("read", source(broker, copy))) == writer.committed
        writer.end(is_commit=True)
        spark("stop_copying")
        writer.write(10)
    spark("copy_available", *arguments)
    assert values(spark("read", source(broker, copy))) == writer.committed
