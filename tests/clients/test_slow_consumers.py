"""Consumers read slowly from the beginning while segments below them are merged and compacted.

Inputs are deleted at once. Nobody hears of an offset out of range or misses an object; each record
comes once and as it was written, and none is missing that is there in the end. Then the same for
compactions that die.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from confluent_kafka import Consumer, TopicPartition

from diskless.cli.verify import verify
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients import stock_clients as clients
from tests.support.tiers.compacted import compact_everything
from tests.support.tiers.rolled import merge_everything, roll_everything
from wal import failpoint
from wal.failpoint import FailpointError

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "1",
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "20",
}
KEYS: Final = [b"key %d" % number for number in range(5)]
ROUNDS: Final = 4
TAIL: Final = clients.Record(key=b"the end", value=b"")
STEPS: Final = (
    "compact.before_put",
    "compact.after_put",
    "compact.before_commit",
    "compact.after_commit",
)


class Topic:
    """Of one partition and small segments; `records` are all that there ever were."""

    def __init__(self, broker: LiveBroker, name: str, **configs: Any) -> None:
        self.bootstrap = broker.bootstrap
        self.name = name
        self.records: list[clients.StoredRecord] = []
        clients.create_topic(clients.confluent_admin(broker.bootstrap), name, **configs)

    def write(self, records: list[clients.Record]) -> None:
        clients.ConfluentKafka().produce(self.bootstrap, self.name, records)
        start = len(self.records)
        self.records += [
            clients.StoredRecord(start + at, record) for at, record in enumerate(records)
        ]

    def left(self) -> list[clients.StoredRecord]:
        """All that a consumer finds now."""
        end = self.records[-1].offset
        with closing(clients.confluent_consumer(self.bootstrap)) as consumer:
            reader = Steadily(consumer, self.name)
            reader.read_on(end, 0)
            return reader.seen


class Reader(Protocol):
    seen: list[clients.StoredRecord]

    @property
    def position(self) -> int: ...

    def read_one(self) -> None: ...

    def read_on(self, last: int, count: int) -> None:
        """Read up to the offset `last`; `count` records are left there now."""


class Steadily:
    """One consumer that asks for little at a time, and keeps what it was given."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self.seen: list[clients.StoredRecord] = []
        consumer.assign([TopicPartition(topic, 0, 0)])

    @property
    def position(self) -> int:
        return self.seen[-1].offset + 1 if self.seen else 0

    def read_on(self, last: int, count: int) -> None:
        while self.position <= last:
            self.read_one()

    def read_one(self) -> None:
        message = self._consumer.poll(clients.TIMEOUT_S)
        assert message is not None
        assert message.error() is None, message.error()
        self.seen.append(clients.stored(message))


class ByTurns:
    """A consumer that ends after a few records, and another one that goes on where it was."""

    def __init__(self, client: clients.StockClient, topic: Topic) -> None:
        self._client = client
        self._topic = topic
        self.seen: list[clients.StoredRecord] = []

    @property
    def position(self) -> int:
        return self.seen[-1].offset + 1 if self.seen else 0

    def read_one(self) -> None:
        self.read_on(-1, 1)

    def read_on(self, last: int, count: int) -> None:
        topic = self._topic
        self.seen += self._client.read(topic.bootstrap, topic.name, count, offset=self.position)


def some_records(rng: random.Random, count: int) -> list[clients.Record]:
    return [
        clients.Record(rng.choice(KEYS), rng.choice([b"", rng.randbytes(30)]), timestamp_ms=at + 1)
        for at in range(count)
    ]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        yield broker


def test_slow_consumers_notice_neither_merges_nor_compactions(broker: LiveBroker) -> None:
    rng = random.Random(1)
    topics = [
        Topic(broker, "merged", segment_bytes="1"),
        Topic(
            broker,
            "compacted",
            cleanup_policy="compact",
            segment_bytes="500",
            min_cleanable_dirty_ratio="0",
        ),
    ]
    with ExitStack() as stack:
        readers: list[tuple[Topic, Reader]] = []
        for topic in topics:
            steady = clients.confluent_consumer(
                broker.bootstrap,
                fetch_message_max_bytes=100,
                queued_min_messages=1,
                fetch_queue_backoff_ms=1,
            )
            stack.callback(steady.close)
            readers.append((topic, Steadily(steady, topic.name)))
            readers += [(topic, ByTurns(client, topic)) for client in clients.STOCK_CLIENTS[1:]]
        for _ in range(ROUNDS):
            for topic in topics:
                for _ in range(8):
                    topic.write(some_records(rng, 4))
                    roll_everything(broker)
            for step in (merge_everything, compact_everything):
                for _, reader in readers:
                    reader.read_one()
                assert step(broker).segments
        for topic in topics:
            topic.write([TAIL])
        for topic, reader in readers:
            left = topic.left()
            count = sum(one.offset >= reader.position for one in left)
            reader.read_on(topic.records[-1].offset, count)
            offsets = [one.offset for one in reader.seen]
            assert offsets == sorted(set(offsets))
            assert all(topic.records[one.offset] == one for one in reader.seen)
            assert {one.offset for one in left} <= set(offsets)
            assert (left == topic.records) == (topic is topics[0])


@pytest.mark.parametrize("step", STEPS)
def test_a_compaction_that_is_killed_leaves_neither_duplicates_nor_gaps(
    tmp_path: Path, step: str
) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        topic = Topic(broker, "t", cleanup_policy="compact", segment_bytes="500")
        for _ in range(6):
            topic.write(some_records(random.Random(2), 6))
            roll_everything(broker)
        newest = {one.record.key: one for one in topic.records}
        compacted = sorted(newest.values())
        failpoint.arm(f"{step}=raise")
        try:
            with pytest.raises(FailpointError):
                compact_everything(broker)
        finally:
            failpoint.arm("")
        is_done = step == "compact.after_commit"
        assert topic.left() == (compacted if is_done else topic.records)
        assert bool(compact_everything(broker).rewrites) == (not is_done)
        assert topic.left() == compacted
        assert compact_everything(broker).rewrites == []
    report = verify(tmp_path / "data", object_store_url=None, progress=lambda *_: None)
    assert report.violations == []
    assert report.checked["records in segments"] == len(compacted)
