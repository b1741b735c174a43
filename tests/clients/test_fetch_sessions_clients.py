"""Consumers that use fetch sessions by themselves, on a broker with and without room for them."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from metadata.operations import CreateTopic, TopicDescription
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import (
    ConfluentKafka,
    KafkaConsumer,
    PythonTopicPartition,
    Record,
)

PARTITIONS = 12


def create(broker: LiveBroker, name: str) -> None:
    (created,) = broker.run(
        broker.broker.coordination.client.create_topics(
            [CreateTopic(name=name, partition_count=PARTITIONS)]
        )
    )
    assert isinstance(created, TopicDescription)


@contextmanager
def consuming(broker: LiveBroker, topic: str) -> Iterator[KafkaConsumer]:
    """kafka-python, which has sessions, on all partitions from their beginning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap, group_id=None, fetch_max_wait_ms=50
        )
    try:
        places = [PythonTopicPartition(topic, partition) for partition in range(PARTITIONS)]
        consumer.assign(places)
        consumer.seek_to_beginning()
        yield consumer
    finally:
        consumer.close()


def values(consumer: KafkaConsumer, count: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []

    def has_enough() -> bool:
        for records in consumer.poll(timeout_ms=100).values():
            found.extend((record.partition, record.value) for record in records)
        return len(found) >= count

    until(has_enough, f"{count} records")
    return found


def produced(broker: LiveBroker, topic: str, text: str, partitions: Sequence[int]) -> None:
    for partition in partitions:
        ConfluentKafka().produce(
            broker.bootstrap, topic, [Record(value=text.encode())], partition=partition
        )


@pytest.mark.parametrize("slots", [10, 0])
def test_a_consumer_reads_all_there_is_with_a_session_and_without(
    tmp_path: Path, slots: int
) -> None:
    settings = {"max.incremental.fetch.session.cache.slots": str(slots)}
    with LiveBroker(tmp_path / "data", settings) as broker:
        create(broker, "t")
        produced(broker, "t", "first", [3, 7])
        with consuming(broker, "t") as consumer:
            assert sorted(values(consumer, 2)) == [(3, b"first"), (7, b"first")]
            until(
                lambda: (
                    not consumer.poll(timeout_ms=20)
                    and len(broker.broker.reads.fetch_sessions) == min(slots, 1)
                ),
                "a session, if there is room for one",
            )
            assert broker.broker.reads.fetch_sessions.row_count == PARTITIONS * min(slots, 1)
            for text in ("second", "third"):
                produced(broker, "t", text, [0, 7, 11])
                expected = [(partition, text.encode()) for partition in (0, 7, 11)]
                assert sorted(values(consumer, 3)) == expected


def test_a_consumer_goes_on_when_its_session_is_gone(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker:
        create(broker, "t")
        with consuming(broker, "t") as consumer:
            produced(broker, "t", "before", [1])
            assert values(consumer, 1) == [(1, b"before")]
            port = broker.port
            broker.stop()
            with LiveBroker(tmp_path / "data", port=port) as again:
                # Its next request names a session that this process never had.
                produced(again, "t", "after", [1, 2])
                assert sorted(values(consumer, 2)) == [(1, b"after"), (2, b"after")]
                assert len(again.broker.reads.fetch_sessions) == 1


def test_a_paused_partition_leaves_the_session_and_comes_back(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker:
        create(broker, "t")
        with consuming(broker, "t") as consumer:
            produced(broker, "t", "one", [4, 5])
            assert len(values(consumer, 2)) == 2
            paused = PythonTopicPartition("t", 4)
            consumer.pause(paused)
            until(
                lambda: (
                    not consumer.poll(timeout_ms=20)
                    and broker.broker.reads.fetch_sessions.row_count == PARTITIONS - 1
                ),
                "the partition to leave",
            )
            produced(broker, "t", "two", [4, 5])
            assert values(consumer, 1) == [(5, b"two")]
            consumer.resume(paused)
            assert values(consumer, 1) == [(4, b"two")]
            assert broker.broker.reads.fetch_sessions.row_count == PARTITIONS
