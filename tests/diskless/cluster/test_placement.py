"""Groups and transactional ids stay at their coordinators when metadata partitions are added."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from diskless.transactions.transaction_router import Producer, TransactionRouter
from metadata.coordinator import end_notes
from metadata.rules.groups import group_coordinator
from metadata.transaction_operations import Constant, EndedTransaction, TransactionState
from tests.support.brokers.live_broker import LiveBroker, until
from wal.chunks.kept_notes import NOTES_PREFIX, decode_kept_notes
from wal.errors import DisklessError, InvalidSettings

PARTITIONS = "diskless.metadata.topic.num.partitions"
GROUP = "readers"
PRODUCER = "mover"
ADDED = 4


def test_groups_and_open_transactions_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_notes, "NOTED_EVERY_S", 0.05)
    assert 0 not in (group_coordinator(GROUP, ADDED), group_coordinator(PRODUCER, ADDED))
    with LiveBroker(tmp_path, {PARTITIONS: "1"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("flights", 1, 1)])["flights"].result(60)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
        consumer.commit(offsets=[TopicPartition("flights", 0, 7)], asynchronous=False)
        consumer.close()
        producer = broker.run(_begun(broker.broker.coordination.transactions))
    with LiveBroker(tmp_path, {PARTITIONS: str(ADDED)}) as broker:
        coordination = broker.broker.coordination
        constants = coordination.partitions[0].replica.image.transactions.constants
        assert constants[Constant.COORDINATORS] == 1
        assert coordination.transactions.coordinator_of(PRODUCER) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
        (committed,) = consumer.committed([TopicPartition("flights", 0)], 60)
        assert committed.offset == 7
        consumer.close()
        assert broker.run(_ended(coordination.transactions, producer)).error is None
        found = coordination.transactions.describe(PRODUCER)
        assert not isinstance(found, DisklessError)
        assert found.state == TransactionState.COMPLETE_COMMIT
        # And a rebuild would know it.
        notes = tmp_path / "objects" / NOTES_PREFIX
        until(lambda: notes.is_dir() and any(map(_has_end, notes.iterdir())), "the end is noted")


def _has_end(notes: Path) -> bool:
    return bool(decode_kept_notes(notes.read_bytes(), notes.name).ends)


async def _begun(transactions: TransactionRouter) -> Producer:
    initialized = await transactions.init_producer(Producer(PRODUCER, -1, -1), 60_000)
    assert initialized.error is None
    producer = Producer(PRODUCER, initialized.producer_id, initialized.producer_epoch)
    assert await transactions.add_partitions(producer, [("flights", 0)]) == [None]
    return producer


async def _ended(transactions: TransactionRouter, producer: Producer) -> EndedTransaction:
    return await transactions.end(producer, is_commit=True)


def test_a_broker_with_fewer_metadata_partitions_than_groups_have_does_not_start(
    tmp_path: Path,
) -> None:
    with LiveBroker(tmp_path, {PARTITIONS: "2"}):
        pass
    with pytest.raises(ExceptionGroup) as raised, LiveBroker(tmp_path, {PARTITIONS: "1"}):
        pass
    assert raised.group_contains(InvalidSettings, match="can only be raised")
