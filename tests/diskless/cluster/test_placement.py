"""Groups and transactional ids stay at their coordinators when metadata partitions are added."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from diskless.transactions.transaction_router import Producer, TransactionRouter
from metadata.coordinator import end_notes
from metadata.rules.groups import group_coordinator
from metadata.transaction_operations import Constant, EndedTransaction, TransactionState
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import TIMEOUT_S, confluent_consumer, confluent_producer
from tests.support.ports import own_port
from wal.chunks.kept_notes import NOTES_PREFIX, decode_kept_notes
from wal.errors import DisklessError, InvalidSettings

PARTITIONS = "diskless.metadata.topic.num.partitions"
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "wal.commit.interval.ms": "5"}
GROUP = "readers"
PRODUCER = "mover"
ADDED = 4


def test_groups_and_open_transactions_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_notes, "NOTED_EVERY_S", 0.05)
    assert 0 not in (group_coordinator(GROUP, ADDED), group_coordinator(PRODUCER, ADDED))
    port = own_port()
    with LiveBroker(tmp_path, {**SETTINGS, PARTITIONS: "1"}, port=port) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("flights", 1, 1)])["flights"].result(60)
        consumer = confluent_consumer(
            broker.bootstrap,
            group_id=GROUP,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            reconnect_backoff_max_ms=200,
        )
        assigned: list[object] = []
        consumer.subscribe(["flights"], on_assign=lambda _, given: assigned.append(given))
        assert _read_next(broker, consumer) == 0
        producer = broker.run(_begun(broker.broker.coordination.transactions))
    with LiveBroker(tmp_path, {**SETTINGS, PARTITIONS: str(ADDED)}, port=port) as broker:
        coordination = broker.broker.coordination
        constants = coordination.partitions[0].replica.image.transactions.constants
        assert constants[Constant.COORDINATORS] == 1
        assert coordination.transactions.coordinator_of(PRODUCER) == 0
        # Its member is one still, and goes on where the group was.
        assert _read_next(broker, consumer) == 1
        assert len(assigned) == 1, "the group of its member was made anew"
        consumer.close()
        assert broker.run(_ended(coordination.transactions, producer)).error is None
        found = coordination.transactions.describe(PRODUCER)
        assert not isinstance(found, DisklessError)
        assert found.state == TransactionState.COMPLETE_COMMIT
        # And a rebuild would know it.
        notes = tmp_path / "objects" / NOTES_PREFIX
        until(lambda: notes.is_dir() and any(map(_has_end, notes.iterdir())), "the end is noted")


def _read_next(broker: LiveBroker, consumer: Consumer) -> int:
    """Write a record, and have the group read and commit it; returns its offset."""
    writer = confluent_producer(broker.bootstrap)
    writer.produce("flights", b"one more")
    assert writer.flush(TIMEOUT_S) == 0
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None
    consumer.commit(message, asynchronous=False)
    offset = message.offset()
    assert offset is not None
    return offset


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
