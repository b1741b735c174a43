"""Compacted topics through stock clients, against a dictionary; without Spark.

Every record that was acknowledged is in a model. After each compaction what a consumer reads is
held against it: what is there is there unchanged, under its offset; what is gone had to go; and of
what is compacted, each key has its newest record and no other.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from diskless.cli.verify import verify
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients import stock_clients as clients
from tests.support.profiles import seeds
from tests.support.tiers.compacted import LocalCompactor, compact_everything
from tests.support.tiers.rolled import roll_everything

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "1",
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "50",
}
KEYS: Final = [b"", *(b"key %d" % number for number in range(12))]
BASE_MS: Final = 1_700_000_000_000


class Written(NamedTuple):
    """An acknowledged record."""

    offset: int
    record: clients.Record


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("compaction") / "data", SETTINGS) as broker:
        yield broker


class CompactedTopic:
    """A topic of one partition and its model."""

    def __init__(self, broker: LiveBroker, topic: str, seed: int, **configs: str) -> None:
        self.broker = broker
        self.topic = topic
        self._rng = random.Random(seed)
        self.written: list[Written] = []
        self._producers = [
            clients.confluent_producer(broker.bootstrap, enable_idempotence=is_idempotent)
            for is_idempotent in (False, True)
        ]
        clients.create_topic(
            clients.confluent_admin(broker.bootstrap),
            topic,
            cleanup_policy="compact",
            **{"min_cleanable_dirty_ratio": "0", "segment_bytes": "400", **configs},
        )

    def write(self, count: int) -> None:
        records = [
            clients.Record(
                key=self._rng.choice(KEYS),
                value=self._rng.choice([None, b"", self._rng.randbytes(30), b"same" * 9]),
                headers=self._rng.choice([(), (("h", b"1"),)]),
                timestamp_ms=BASE_MS + len(self.written) + at - self._rng.randrange(3),
            )
            for at in range(count)
        ]
        sent = 0
        while sent < count:
            part = records[sent : sent + self._rng.randrange(1, 9)]
            clients.confluent_send(self._rng.choice(self._producers), self.topic, part)
            self.written += [
                Written(len(self.written) + at, record) for at, record in enumerate(part)
            ]
            sent += len(part)

    def read(self) -> list[Written]:
        """All there is, from the beginning to the end of the log."""
        consumer = clients.confluent_consumer(
            self.broker.bootstrap, enable_partition_eof=True, fetch_message_max_bytes=200
        )
        found: list[Written] = []
        try:
            consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(clients.TIMEOUT_S)
                assert message is not None, f"{len(found)} records came"
                error = message.error()
                if error is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    return found
                found.append(Written(*clients.stored(message)))
        finally:
            consumer.close()

    def check(self, found: Sequence[Written], compacted_until: int) -> None:
        """`compacted_until`: what lies below was compacted, with tombstones kept."""
        newest = {one.record.key: one.offset for one in self.written[:compacted_until]}
        expected = [
            one
            for one in self.written
            if one.offset >= compacted_until or newest[one.record.key] == one.offset
        ]
        assert list(found) == expected


@pytest.mark.parametrize("seed", seeds(1))
def test_a_consumer_reads_what_a_dictionary_keeps(broker: LiveBroker, seed: int) -> None:
    topic = CompactedTopic(broker, f"model-{seed}", seed)
    rng = random.Random(seed)
    for _ in range(4):
        topic.write(rng.randrange(20, 60))
        roll_everything(broker)
        end = len(topic.written)
        topic.write(rng.randrange(5))
        report = compact_everything(broker)
        assert report.rewrites
        topic.check(topic.read(), end)
    assert compact_everything(broker).rewrites == [], "nothing is dirty"


def test_a_job_that_drops_a_record_too_many_is_found_out(broker: LiveBroker) -> None:
    """Its counts are right: the record is missing in the output and counted as removed."""
    topic = CompactedTopic(broker, "dropped", 9, segment_bytes="100000")
    topic.write(30)
    roll_everything(broker)
    last = len(topic.written) - 1
    dropping = LocalCompactor(lambda offsets: np.append(offsets, last))
    compact_everything(broker, dropping, "dropped")
    with pytest.raises(AssertionError):
        topic.check(topic.read(), last + 1)


@pytest.mark.parametrize("drops", [False, True])
def test_verify_finds_it_while_what_was_replaced_is_there(tmp_path: Path, drops: bool) -> None:
    with LiveBroker(tmp_path / "data", {"wal.commit.interval.ms": "1"}) as broker:
        topic = CompactedTopic(broker, "dropped", 9, segment_bytes="100000")
        topic.write(30)
        roll_everything(broker)
        last = len(topic.written) - 1
        compact_everything(
            broker, LocalCompactor(lambda found: np.append(found, last) if drops else found)
        )
    report = verify(tmp_path / "data", object_store_url=None, progress=lambda *_: None)
    assert report.checked["compacted segments compared"] == 1
    assert report.checked["removed records compared"] > 10
    found = [line.partition(": ")[2] for line in report.violations]
    problem = "a compaction removed 1 records that have no newer one of their key, the first at"
    assert found == ([f"{problem} offset {last}"] if drops else [])


def test_tombstones_go_with_the_compaction_after_their_time(broker: LiveBroker) -> None:
    topic = CompactedTopic(broker, "tombstones", 5, delete_retention_ms="0")
    dead = [clients.Record(key=b"dead", value=value) for value in (b"1", b"2", None)]
    live = [clients.Record(key=b"live", value=b"%d" % number) for number in range(3)]
    clients.ConfluentKafka().produce(broker.bootstrap, "tombstones", [*dead, *live])
    roll_everything(broker)
    compact_everything(broker)
    assert [one.offset for one in topic.read()] == [2, 5], "seen for the first time, it stays"
    clients.ConfluentKafka().produce(broker.bootstrap, "tombstones", live)
    roll_everything(broker)
    compact_everything(broker)
    assert [one.offset for one in topic.read()] == [8]
    clients.ConfluentKafka().produce(broker.bootstrap, "tombstones", live[:1])
    assert [one.offset for one in topic.read()] == [8, 9]


def test_a_topic_may_end_up_with_nothing_but_a_hole(broker: LiveBroker) -> None:
    topic = CompactedTopic(broker, "hole", 6, delete_retention_ms="0")
    for value in (b"1", None, None):
        clients.ConfluentKafka().produce(
            broker.bootstrap, "hole", [clients.Record(key=b"k", value=value)] * 3
        )
        roll_everything(broker)
        compact_everything(broker)
    assert [one.offset for one in topic.read()] == [8]
    clients.ConfluentKafka().produce(broker.bootstrap, "hole", [clients.Record(key=b"k")])
    roll_everything(broker)
    compact_everything(broker)
    clients.ConfluentKafka().produce(
        broker.bootstrap, "hole", [clients.Record(key=b"k", value=None)]
    )
    for _ in range(2):
        roll_everything(broker)
        compact_everything(broker)
    for reader in clients.STOCK_CLIENTS:
        assert reader.read(broker.bootstrap, "hole", 1, offset=0)[0].offset == 10
