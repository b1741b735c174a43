"""Rebuilding compacted topics: no removed record comes back, no record is there twice.

Histories of producing, rolling, compacting, and compacting without the commit, which is what a job
leaves that is killed. Then the metadata are lost; afterwards everything goes on. Here brokers and
the command are whole; far more histories are in tests/tiering/test_tiered_histories.py.
"""

import random
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from test_rebuild import SETTINGS, forget_metadata, rebuild

from metadata.rewrites import PlanRewrites
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients import stock_clients as clients
from tests.support.profiles import seeds
from tests.support.tiers.compacted import compact_everything, compacted
from tests.support.tiers.rolled import roll_everything
from tiering.coordinator_client import CoordinatorClient
from wal.stores.blocking_store import open_blocking_store

KEYS = [b"key %d" % number for number in range(6)]


class Seen(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


def write(broker: LiveBroker, rng: random.Random, written: list[Seen]) -> None:
    for _ in range(rng.randrange(2, 6)):
        records = [
            clients.Record(rng.choice(KEYS), rng.choice([None, rng.randbytes(20)]))
            for _ in range(rng.randrange(1, 6))
        ]
        clients.ConfluentKafka().produce(
            broker.bootstrap, "t", records, idempotent=rng.random() < 0.5
        )
        written += [
            Seen(len(written) + at, record.key or b"", record.value)
            for at, record in enumerate(records)
        ]


def killed_compaction(broker: LiveBroker) -> None:
    """Writes the outputs of what is due, and commits nothing."""
    planned = CoordinatorClient(broker.bootstrap).plan_rewrites(PlanRewrites())
    with open_blocking_store(planned.object_store_url, sync=False) as store:
        for plan in planned.plans:
            compacted(plan, store)


def read(broker: LiveBroker) -> list[Seen]:
    consumer = clients.confluent_consumer(broker.bootstrap, enable_partition_eof=True)
    found: list[Seen] = []
    try:
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(clients.TIMEOUT_S)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                return found
            offset, key = message.offset(), message.key()
            assert offset is not None
            assert isinstance(key, bytes)
            value = message.value()
            assert value is None or isinstance(value, bytes)
            found.append(Seen(offset, key, value))
    finally:
        consumer.close()


def check(found: list[Seen], written: list[Seen]) -> None:
    """Each record is there once, as it was written, and each key has its newest value."""
    assert [one.offset for one in found] == sorted({one.offset for one in found})
    assert set(found) <= set(written)
    newest = {one.key: one for one in written}
    values = {one.key: one for one in found}
    for key, one in newest.items():
        if one.value is not None:
            assert values[key] == one
        else:
            assert key not in values or values[key] == one


@pytest.mark.exhaustive  # random histories without clients: tests/tiering/
@pytest.mark.parametrize("seed", seeds(1))
def test_no_removed_record_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    rng = random.Random(seed)
    data = tmp_path / "data"
    grace_ms = rng.choice(["0", "3600000"])
    settings = {**SETTINGS, "diskless.file.delete.grace.ms": grace_ms}
    written: list[Seen] = []
    with LiveBroker(data, settings) as broker:
        clients.create_topic(
            clients.confluent_admin(broker.bootstrap),
            "t",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0",
            segment_bytes="300",
            delete_retention_ms="0",
        )
        for _ in range(5):
            write(broker, rng, written)
            roll_everything(broker)
            if rng.random() < 0.4:
                killed_compaction(broker)
            if rng.random() < 0.7:
                compact_everything(broker)
        killed_compaction(broker)
        write(broker, rng, written)
        before = read(broker)
        check(before, written)
    removed = set(written) - set(before)
    forget_metadata(data)
    rebuild(data, capsys)
    with LiveBroker(data, settings) as broker:
        after = read(broker)
        check(after, written)
        assert not removed & set(after)
        removed |= set(written) - set(after)
        for _ in range(2):
            write(broker, rng, written)
            roll_everything(broker)
            compact_everything(broker)
        finally_found = read(broker)
        check(finally_found, written)
        assert not removed & set(finally_found)
