"""Slow readers of a topic from its beginning, whose segments are replaced and deleted meanwhile.

Replaced objects are deleted at once here (`diskless.file.delete.grace.ms` is 0), so whoever holds
on to where records were is sure to miss them. A stock consumer and a task of the Spark source read
a few records between each two rewrites.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients
from tests.support.tiers.compacted import compact_everything
from tests.support.tiers.rolled import merge_everything, roll_everything
from tiering.source.planning import Share
from tiering.source.rows.share_rows import Wanted, share_tables
from tiering.source.topic_log import TopicLog
from wal.coordinates import TopicIdPartition
from wal.stores.blocking_store import open_blocking_store

pytestmark = pytest.mark.clients

TOPIC: Final = "rewritten"
PER_ROLL: Final = 4
ROLLS: Final = 8
ROUNDS: Final = 3
KEYS: Final = 5
SETTINGS: Final = {
    "wal.commit.interval.ms": "1",
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "50",
    "log.retention.ms": "-1",
}
CONFIGS: Final = {
    "merged": {"segment_bytes": "1"},
    "compacted": {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"},
}


class Topic:
    """One partition; `kind` is what happens to its segments."""

    def __init__(self, broker: LiveBroker, data: Path, kind: str) -> None:
        self.broker = broker
        self.kind = kind
        self._data = data
        self.records: list[clients.Record] = []
        clients.create_topic(clients.confluent_admin(broker.bootstrap), TOPIC, **CONFIGS[kind])

    def roll(self, times: int) -> None:
        for _ in range(times):
            start = len(self.records)
            records = [
                clients.Record(key=b"%d" % (at % KEYS), value=b"%d" % at * 20, headers=())
                for at in range(start, start + PER_ROLL)
            ]
            clients.ConfluentKafka().produce(self.broker.bootstrap, TOPIC, records)
            self.records += records
            assert roll_everything(self.broker)

    def rewrite(self) -> None:
        """Replace segments, and return when those that were replaced are gone."""
        before = self._files()
        if self.kind == "merged":
            assert merge_everything(self.broker).segments
        else:
            assert compact_everything(self.broker).rewrites
        until(lambda: len(self._files() & before) <= 1, "what was replaced is deleted")

    def _files(self) -> set[str]:
        return {path.name for path in (self._data / "objects" / "segments").rglob("*.parquet")}

    def check(self, offsets: Sequence[int], end: int) -> None:
        """What was read below `end`: all that is there still, and nothing twice."""
        assert [*offsets] == sorted(set(offsets))
        kept = range(end) if self.kind == "merged" else self._newest()
        assert {at for at in kept if at < end} <= set(offsets)

    def _newest(self) -> Sequence[int]:
        return range(len(self.records) - KEYS, len(self.records))


def consumed(consumer: Consumer, count: int, topic: Topic) -> Iterator[int]:
    """The offsets of the next records, up to the newest; each is as it was produced."""
    for _ in range(count):
        message = consumer.poll(clients.TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        stored = clients.stored(message)
        assert stored.record == topic.records[stored.offset]
        yield stored.offset
        if stored.offset == len(topic.records) - 1:
            return


def rows(tables: Iterator[pa.Table], topic: Topic) -> Iterator[int]:
    """The offsets of the next table; each record is as it was produced."""
    for table in tables:
        for row in table.to_pylist():
            record = topic.records[row["offset"]]
            assert (row["key"], row["value"]) == (record.key, record.value)
            yield row["offset"]
        return


@pytest.mark.parametrize("kind", CONFIGS)
def test_readers_miss_nothing_that_is_there(tmp_path: Path, kind: str) -> None:
    with LiveBroker(tmp_path, SETTINGS) as broker:
        topic = Topic(broker, tmp_path, kind)
        topic.roll(ROLLS)
        log = TopicLog(broker.bootstrap, TOPIC, sleep=time.sleep)
        partition = TopicIdPartition(log.topic().topic_id, 0)
        end = len(topic.records)
        slow = clients.confluent_consumer(
            broker.bootstrap,
            fetch_message_max_bytes=100,
            queued_min_messages=1,
            fetch_queue_backoff_ms=1,
        )
        wanted = Wanted(columns=["offset", "key", "value"])
        with closing(slow), open_blocking_store(log.topic().object_store_url) as store:
            slow.assign([TopicPartition(TOPIC, 0, 0)])
            tables: Any = share_tables(log, partition, Share(0, 0, end), store, wanted)
            seen, found = [*consumed(slow, 3, topic)], [*rows(tables, topic)]
            for _ in range(ROUNDS):
                topic.rewrite()
                seen += consumed(slow, 1, topic)
                found += rows(tables, topic)
                topic.roll(ROLLS)
            while seen[-1] < len(topic.records) - 1:
                seen += consumed(slow, len(topic.records), topic)
            for _ in range(end):
                found += rows(tables, topic)
    assert found[0] == seen[0] == 0
    topic.check(seen, len(topic.records))
    topic.check(found, end)
