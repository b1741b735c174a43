"""Segments are merged while consumers read: nobody notices, and nothing is left behind."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from diskless.cli.verify import verify
from metadata.rules.rewriting.merges import RUN_MAX
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients
from tests.support.tiers.rolled import merge_everything, roll_everything
from wal import failpoint
from wal.failpoint import FailpointError

pytestmark = pytest.mark.clients

SETTINGS: Final = {"wal.commit.interval.ms": "1"}
CLEANING: Final = {
    **SETTINGS,
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "50",
}
PER_ROLL: Final = 4
STEPS: Final = ("merge.before_put", "merge.after_put", "merge.before_commit", "merge.after_commit")


class Topic:
    """A quiet topic: a few records, a roll, a few records, a roll."""

    def __init__(self, broker: LiveBroker) -> None:
        self.broker = broker
        self.records: list[clients.Record] = []
        admin = clients.confluent_admin(broker.bootstrap)
        clients.create_topic(admin, "quiet", segment_bytes="1")

    @property
    def expected(self) -> list[clients.StoredRecord]:
        return [clients.StoredRecord(at, record) for at, record in enumerate(self.records)]

    def roll(self, times: int) -> None:
        for _ in range(times):
            start = len(self.records)
            records = [
                clients.Record(key=b"%d" % at, value=b"%d" % at * (at % 50), headers=(("h", b""),))
                for at in range(start, start + PER_ROLL)
            ]
            clients.ConfluentKafka().produce(self.broker.bootstrap, "quiet", records)
            self.records += records
            assert roll_everything(self.broker)


def read(consumer: Consumer, count: int) -> list[clients.StoredRecord]:
    messages = consumer.consume(count, timeout=clients.TIMEOUT_S)
    assert [message.error() for message in messages] == [None] * count
    return [clients.stored(message) for message in messages]


def files(data: Path) -> set[str]:
    return {path.name for path in (data / "objects" / "segments").rglob("*.parquet")}


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        yield Topic(broker)


def test_a_slow_consumer_and_everybody_else_notices_nothing(topic: Topic, tmp_path: Path) -> None:
    bootstrap = topic.broker.bootstrap
    # It asks for little at a time, so that it reads on in segments that are replaced meanwhile.
    with closing(
        clients.confluent_consumer(
            bootstrap, fetch_message_max_bytes=100, queued_min_messages=1, fetch_queue_backoff_ms=1
        )
    ) as slow:
        topic.roll(6)
        slow.assign([TopicPartition("quiet", 0, 0)])
        seen = read(slow, 3)
        for _ in range(3):
            topic.roll(7)
            assert merge_everything(topic.broker).segments
            seen += read(slow, 9)
        assert seen == topic.expected[: len(seen)]
        seen += read(slow, len(topic.records) - len(seen))
    assert seen == topic.expected
    for client in clients.STOCK_CLIENTS:
        assert client.read(bootstrap, "quiet", len(seen)) == topic.expected
        assert client.read(bootstrap, "quiet", 5, offset=17) == topic.expected[17:22]


@pytest.mark.parametrize("step", STEPS)
def test_a_merge_that_is_killed_leaves_neither_duplicates_nor_gaps(
    topic: Topic, tmp_path: Path, step: str
) -> None:
    topic.roll(RUN_MAX)
    failpoint.arm(f"{step}=raise")
    try:
        with pytest.raises(FailpointError):
            merge_everything(topic.broker)
    finally:
        failpoint.arm("")
    reader = clients.ConfluentKafka()
    count = len(topic.records)
    assert reader.read(topic.broker.bootstrap, "quiet", count) == topic.expected
    report = merge_everything(topic.broker)
    assert len(report.segments) == (step != "merge.after_commit")
    assert reader.read(topic.broker.bootstrap, "quiet", count) == topic.expected
    assert merge_everything(topic.broker).segments == []


def test_what_was_merged_is_deleted_and_what_is_left_holds_together(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiveBroker(data, SETTINGS) as broker:
        topic = Topic(broker)
        for _ in range(4):
            topic.roll(RUN_MAX)
            merge_everything(broker)
        before = files(data)
    assert len(before) > 4 * RUN_MAX
    with LiveBroker(data, CLEANING) as broker:
        until(lambda: len(files(data)) < RUN_MAX, "segments that were merged are deleted")
        read = clients.ConfluentKafka().read(broker.bootstrap, "quiet", len(topic.records))
        assert read == topic.expected
    report = verify(data, object_store_url=None, progress=lambda *_: None)
    assert report.violations == []
    assert report.checked["records in segments"] == len(topic.records)
