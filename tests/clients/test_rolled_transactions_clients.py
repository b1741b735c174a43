"""Transactions of stock producers, read by stock consumers and by tasks of Spark while they roll.

Three in ten are aborted. Nothing that is read with read_committed, and nothing that a task of the
Spark source reads, is ever of an aborted transaction; nothing committed is ever missing.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support.brokers.live_broker import LiveBroker
from tests.support.tiers.rolled import merge_everything, roll_everything
from tiering.source.planning import Share
from tiering.source.rows.share_rows import Wanted, share_tables
from tiering.source.topic_log import TopicLog
from wal.coordinates import TopicIdPartition
from wal.stores.blocking_store import open_blocking_store

TOPIC: Final = "transfers"
PARTITIONS: Final = 2
ROUNDS: Final = 2
"""Of transactions, each rolled before the next one."""

Values = Mapping[int, Sequence[bytes]]
"""By partition, in offset order."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    settings = {"num.partitions": str(PARTITIONS), "diskless.file.delete.grace.ms": "0"}
    with LiveBroker(tmp_path / "data", settings) as running:
        yield running


class Writers:
    """Producers with overlapping transactions, one without any, and what should be read of them."""

    def __init__(self, broker: LiveBroker, count: int) -> None:
        self._rng = random.Random(7)
        self._producers = [
            Producer(
                {"bootstrap.servers": broker.bootstrap, "transactional.id": f"writer-{number}"}
            )
            for number in range(count)
        ]
        self._plain = Producer({"bootstrap.servers": broker.bootstrap})
        for producer in self._producers:
            producer.init_transactions(60)
        self._values = 0
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()

    def _write(self, producer: Producer) -> set[bytes]:
        written = set()
        for partition in self._rng.sample(range(PARTITIONS), self._rng.randint(1, PARTITIONS)):
            value = b"%d" % self._values
            self._values += 1
            producer.produce(TOPIC, value, partition=partition)
            written.add(value)
        assert producer.flush(60) == 0
        return written

    def write(self, transactions: int) -> None:
        """So many of each producer; all of a turn are open at the same time."""
        for _ in range(transactions):
            values: list[set[bytes]] = []
            for producer in self._producers:
                producer.begin_transaction()
                values.append(self._write(producer))
            self.committed |= self._write(self._plain)
            order = [*range(len(values))]
            self._rng.shuffle(order)
            for number in order:
                values[number] |= self._write(self._producers[number])
                if self._rng.random() < 0.3:
                    self._producers[number].abort_transaction(60)
                    self.aborted |= values[number]
                else:
                    self._producers[number].commit_transaction(60)
                    self.committed |= values[number]

    def leave_open(self) -> set[bytes]:
        self._producers[0].begin_transaction()
        return self._write(self._producers[0])

    def commit(self, values: set[bytes]) -> None:
        self._producers[0].commit_transaction(60)
        self.committed |= values


def _consumed(broker: LiveBroker, isolation: str) -> Values:
    """All there is to be read up to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    left = set(found)
    while left:
        message = consumer.poll(60)
        assert message is not None, "no end of the partition is told"
        error = message.error()
        if error is None:
            found[message.partition()].append(message.value())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            left.discard(message.partition())
    consumer.close()
    return found


def _read_as_spark(broker: LiveBroker) -> Values:
    log = TopicLog(broker.bootstrap, TOPIC, sleep=lambda _: None)
    topic = log.topic()
    partitions = [TopicIdPartition(topic.topic_id, number) for number in range(PARTITIONS)]
    wanted = Wanted(columns=["offset", "value"])
    with open_blocking_store(topic.object_store_url) as store:
        return {
            number: [
                value.as_py()
                for rows in share_tables(
                    log, partitions[number], Share(number, 0, end), store, wanted
                )
                for value in rows.column("value")
            ]
            for number, end in log.ends(partitions).items()
        }


def _values(found: Values) -> set[bytes]:
    values = [value for some in found.values() for value in some]
    assert len(values) == len(set(values)), "no record comes twice"
    return set(values)


def test_only_what_was_committed_is_read_while_it_rolls(broker: LiveBroker) -> None:
    writers = Writers(broker, 3)
    rolled: set[bytes] = set()
    for _ in range(ROUNDS):
        writers.write(1)
        for _ in range(2):
            found = _consumed(broker, "read_committed")
            assert _values(found) == writers.committed
            assert _read_as_spark(broker) == found, "and in the same order"
            everything = _values(_consumed(broker, "read_uncommitted"))
            assert everything == writers.committed | (writers.aborted - rolled)
            roll_everything(broker)
            rolled = set(writers.aborted)
    merge_everything(broker)
    assert writers.aborted
    waiting = writers.leave_open()
    roll_everything(broker)
    assert _values(_consumed(broker, "read_committed")) == writers.committed
    assert _values(_read_as_spark(broker)) == writers.committed
    assert _values(_consumed(broker, "read_uncommitted")) == writers.committed | waiting
    writers.commit(waiting)
    roll_everything(broker)
    assert _values(_read_as_spark(broker)) == writers.committed
