"""The lags of segments and of tables behind what was committed, by topic."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import DeleteRecords
from metadata.table_operations import NO_TABLE, CommitTable, ListSegments, table_prefix
from metadata.workers import tier_lag
from metadata.workers.tier_lag import TierLag
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.coordinates import ObjectKey, TopicIdPartition


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    settings = CoordinatorSettings(segment_bytes=800)
    async with running_coordinator(tmp_path, log, settings=settings) as running:
        yield running


async def looked(bench: CoordinatorBench) -> TierLag:
    worker = TierLag(bench.coordinator.replica, coordinator_id=0, clock=bench.clock)
    await worker.pass_once()
    return worker


async def lags(bench: CoordinatorBench) -> dict[str, tuple[float, float]]:
    worker = await looked(bench)
    seconds = worker.seconds_by_topic()
    return {name: (size, seconds[name]) for name, size in worker.bytes_by_topic().items()}


async def test_what_is_planned_and_not_rolled_counts_until_its_segment_is_there(
    bench: CoordinatorBench,
) -> None:
    topic = await bench.topic("flights", partitions=2)
    await bench.topic("weather")
    first, second = (TopicIdPartition(topic.topic_id, index) for index in range(2))
    await bench.commit(batch(first, 10, size=400))
    bench.clock.advance(60)
    await bench.commit(batch(first, 10, size=400), batch(second, 10, size=100))
    bench.clock.advance(5)
    await bench.commit(batch(first, 10, size=30))
    assert await lags(bench) == {"flights": (930, 65), "weather": (0, 0)}
    (plan,) = await bench.coordinator.plan_segments()
    assert (plan.base_offset, plan.last_offset) == (0, 19)
    assert await lags(bench) == {"flights": (930, 65), "weather": (0, 0)}
    await bench.coordinator.commit_segments([rolled(plan)])
    assert await lags(bench) == {"flights": (130, 5), "weather": (0, 0)}
    bench.clock.advance(2.5)
    assert (await lags(bench))["flights"] == (130, 7.5)


async def test_a_topic_that_is_not_tiered_has_no_lag(bench: CoordinatorBench) -> None:
    topic = await bench.topic("flights", tiering_enable="false")
    await bench.commit(batch(TopicIdPartition(topic.topic_id, 0), 10, size=400))
    assert await lags(bench) == {}


async def test_of_many_topics_those_furthest_behind_are_told(
    bench: CoordinatorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_lag, "TOPICS_MAX", 2)
    for name in ("empty", "old", "older"):
        await bench.topic(name)
    for name in ("older", "old"):
        topic = bench.coordinator.replica.topics()[name]
        await bench.commit(batch(TopicIdPartition(topic.topic_id, 0), 1, size=10))
        bench.clock.advance(1)
    assert await lags(bench) == {"older": (10, 2), "old": (10, 1)}


async def test_a_table_is_behind_until_its_pointer_knows_what_came_and_what_left(
    bench: CoordinatorBench,
) -> None:
    topic = await bench.topic("flights", table_enabled="true")
    await bench.topic("plain")
    partition = TopicIdPartition(topic.topic_id, 0)
    location = NO_TABLE

    async def table_lag() -> dict[str, float]:
        return dict((await looked(bench)).table_seconds_by_topic())

    async def registered(number: int) -> None:
        nonlocal location
        (listed,) = await bench.coordinator.replica.list_segments([ListSegments(partition, 0)])
        new = ObjectKey(f"{table_prefix(topic.topic_id)}{number}.metadata.json")
        commit = CommitTable(
            topic_id=topic.topic_id,
            old_location=location,
            new_location=new,
            applied={0: listed.applied_offset},
        )
        (answer,) = await bench.coordinator.catalogue.commit_tables([commit])
        assert answer.is_committed
        location = new

    assert await table_lag() == {"flights": 0}
    for number in range(2):
        await bench.commit(batch(partition, 10, size=900))
        (plan,) = await bench.coordinator.plan_segments()
        await bench.coordinator.commit_segments([rolled(plan)])
        bench.clock.advance(30)
        assert await table_lag() == {"flights": 30}
        bench.clock.advance(30)
        assert await table_lag() == {"flights": 60}
        await registered(number)
        assert await table_lag() == {"flights": 0}
    await bench.coordinator.delete_records([DeleteRecords(partition, 10)])
    bench.clock.advance(7)
    assert await table_lag() == {"flights": 7}
    await registered(2)
    assert await table_lag() == {"flights": 0}
