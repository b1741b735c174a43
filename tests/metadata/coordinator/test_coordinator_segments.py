"""Planning segments, committing them, and reading across them."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from metadata import operations as ops
from metadata.metadata_settings import CoordinatorSettings
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import Rejected, UnknownPartition

EVERYTHING = ops.PlanSegments(include_partial=True)


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    settings = CoordinatorSettings(segment_bytes=1_000)
    async with running_coordinator(tmp_path, log, settings=settings) as running:
        yield running


def spans(plans: Sequence[ops.SegmentPlan | ops.SegmentExtent]) -> list[tuple[int, int]]:
    return [(plan.base_offset, plan.last_offset) for plan in plans]


async def fill(bench: CoordinatorBench, partition: TopicIdPartition, files: int) -> None:
    """Each file is one row of 10 records and 400 bytes."""
    for _ in range(files):
        await bench.commit(batch(partition, 10, size=400))


async def deletable(bench: CoordinatorBench) -> list[ObjectKey]:
    files = await bench.coordinator.deletable_files(
        before_ms=2**60, after=(-1, -1), limit=100, is_owner=True
    )
    return [file.object_key for _, file in files]


async def test_whole_rows_are_planned_until_segment_bytes_is_reached(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 8)
    plans = await bench.coordinator.plan_segments()
    assert spans(plans) == [(0, 29), (30, 59)]
    assert [len(plan.extents) for plan in plans] == [3, 3]
    name = f"segments/topic=flights/id={partition.topic_id}/partition=0"
    assert plans[0].object_key == f"{name}/{0:020d}-{29:020d}.parquet"
    assert plans[0].topic_name == "flights"


async def test_a_segment_is_made_of_so_many_rows_at_most(
    bench: CoordinatorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.rules.segments.SEGMENT_ROWS_MAX", 2)
    partition = await bench.partition()
    await fill(bench, partition, 5)
    assert spans(await bench.coordinator.plan_segments()) == [(0, 19), (20, 39)]


async def test_little_data_is_planned_when_it_is_old_or_asked_for(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 1)
    assert await bench.coordinator.plan_segments() == []
    bench.clock.advance(10 * 60)
    await fill(bench, partition, 1)
    assert spans(await bench.coordinator.plan_segments()) == [(0, 19)]
    await fill(bench, partition, 1)
    assert spans(await bench.coordinator.plan_segments(EVERYTHING)) == [
        (0, 19),
        (20, 29),
    ]


async def test_topic_configs_override_the_limits(bench: CoordinatorBench) -> None:
    topic = await bench.topic(segment_bytes="400", segment_ms="1000")
    partition = TopicIdPartition(topic.topic_id, 0)
    await fill(bench, partition, 2)
    assert spans(await bench.coordinator.plan_segments()) == [(0, 9), (10, 19)]
    await bench.commit(batch(partition, 1, size=10))
    bench.clock.advance(1)
    assert len(await bench.coordinator.plan_segments()) == 3


async def test_a_topic_that_is_not_tiered_is_not_planned(bench: CoordinatorBench) -> None:
    topic = await bench.topic(tiering_enable="false", segment_bytes="400")
    partition = TopicIdPartition(topic.topic_id, 0)
    await fill(bench, partition, 2)
    assert await bench.coordinator.plan_segments(EVERYTHING) == []
    tiered, not_tiered = {"segment.bytes": "400"}, topic.configs
    for before, after in ((not_tiered, tiered), (tiered, not_tiered)):
        change = ops.AlterTopicConfigs(topic_id=topic.topic_id, before=before, configs=after)
        await bench.coordinator.catalogue.alter_topic_configs([change])
        # What was planned while it was tiered is rolled: plans follow each other without gap.
        assert spans(await bench.coordinator.plan_segments(EVERYTHING)) == [(0, 9), (10, 19)]
        await fill(bench, partition, 2)
    assert len(await bench.coordinator.plan_segments(EVERYTHING)) == 2


async def test_topics_are_chosen_and_left_out_by_name_and_pattern(bench: CoordinatorBench) -> None:
    for name in ("flights", "flights.eu", "weather"):
        await fill(bench, await bench.partition(name), 3)

    async def topics(wanted: Sequence[str] = (), excluded: Sequence[str] = ()) -> list[str]:
        asked = ops.PlanSegments(topics=wanted, excluded_topics=excluded)
        plans = await bench.coordinator.plan_segments(asked)
        return sorted(plan.topic_name for plan in plans)

    assert await topics(["weather", "gates"]) == ["weather"]
    assert len(bench.coordinator.replica.image.plans) == 1, "others are not planned either"
    assert await topics(["fl*"], ["*.eu"]) == ["flights"]
    assert await topics(excluded=["flights"]) == ["flights.eu", "weather"]
    assert await topics() == ["flights", "flights.eu", "weather"]


async def test_a_plan_is_the_same_until_it_is_committed_also_after_a_rebuild(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        await fill(bench, partition, 3)
        plans = await bench.coordinator.plan_segments(EVERYTHING)
        await fill(bench, partition, 3)
        assert await bench.coordinator.plan_segments() == plans
    for _ in range(2):
        async with running_coordinator(tmp_path, log) as bench:
            assert await bench.coordinator.plan_segments() == plans
        (tmp_path / "state.sqlite").unlink()


async def test_outstanding_plans_are_capped(tmp_path: Path, log: MemoryMetadataLog) -> None:
    settings = CoordinatorSettings(segment_bytes=400, plans_per_call_max=3)
    async with running_coordinator(tmp_path, log, settings=settings) as bench:
        partition = await bench.partition()
        await fill(bench, partition, 5)
        plans = await bench.coordinator.plan_segments()
        assert spans(plans) == [(0, 9), (10, 19), (20, 29)]
        await bench.coordinator.commit_segments([rolled(plans[0])])
        plans = await bench.coordinator.plan_segments()
        assert spans(plans) == [(10, 19), (20, 29), (30, 39)]


async def test_a_committed_segment_replaces_its_batches_and_frees_their_files(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 4)
    (plan,) = await bench.coordinator.plan_segments()
    assert await deletable(bench) == []
    (answer,) = await bench.coordinator.commit_segments([rolled(plan)])
    assert answer == (False, None)
    assert await deletable(bench) == [extent.object_key for extent in plan.extents]
    found = await bench.find(partition, 5)
    assert found.extents[0] == ops.SegmentExtent(
        plan.object_key, 500, plan.base_offset, plan.last_offset, 1_000
    )
    assert [extent.base_offset for extent in (await bench.find(partition, 30)).extents] == [30]
    assert await bench.coordinator.plan_segments() == []


async def test_reading_walks_through_segments_committed_in_any_order(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 10)
    plans = await bench.coordinator.plan_segments()
    assert spans(plans) == [(0, 29), (30, 59), (60, 89)]
    await bench.coordinator.commit_segments([rolled(plans[1])])
    offset, seen = 0, []
    while offset < 100:
        found = await bench.find(partition, offset)
        assert found.error is None
        for extent in found.extents:
            assert extent.base_offset == offset
            offset = extent.last_offset + 1
            seen.append(isinstance(extent, ops.SegmentExtent))
    assert seen == [False] * 3 + [True] + [False] * 4


async def test_committing_a_segment_again_changes_nothing(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        await fill(bench, partition, 2)
        (plan,) = await bench.coordinator.plan_segments(EVERYTHING)
        segment = rolled(plan)
        answers = await bench.coordinator.commit_segments([segment, segment])
        assert [answer.is_duplicate for answer in answers] == [False, True]
        state_hash = bench.coordinator.replica.state_hash
    async with running_coordinator(tmp_path, log) as bench:
        (answer,) = await bench.coordinator.commit_segments([segment])
        assert answer.is_duplicate
        (answer,) = await bench.coordinator.commit_segments([replace(segment, crc32c=8)])
        assert isinstance(answer.error, Rejected)
        assert bench.coordinator.replica.state_hash == state_hash


@pytest.mark.parametrize(
    "change",
    [
        {"last_offset": 18},
        {"base_offset": 1},
        {"record_count": 19},
        {"object_bytes": 0},
        {"crc32c": 1 << 32},
        {"object_key": "segments/other"},
    ],
)
async def test_a_segment_that_is_not_as_planned_is_rejected_alone(
    bench: CoordinatorBench, change: dict[str, object]
) -> None:
    first, second = await bench.partition("a"), await bench.partition("b")
    await fill(bench, first, 2)
    await fill(bench, second, 2)
    plans = await bench.coordinator.plan_segments(EVERYTHING)
    broken = replace(rolled(plans[0]), **change)  # type: ignore[arg-type]
    answers = await bench.coordinator.commit_segments([broken, rolled(plans[1])])
    assert isinstance(answers[0].error, Rejected)
    assert answers[1].error is None
    assert await bench.coordinator.plan_segments() == [plans[0]]


async def test_a_plan_dies_with_its_topic(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 3)
    (plan,) = await bench.coordinator.plan_segments()
    await bench.coordinator.delete_topics([partition.topic_id])
    (answer,) = await bench.coordinator.commit_segments([rolled(plan)])
    assert isinstance(answer.error, UnknownPartition)
    assert await bench.coordinator.plan_segments() == []


async def test_records_deleted_inside_a_planned_segment_stay_deleted(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 4)
    (plan,) = await bench.coordinator.plan_segments()
    await bench.coordinator.delete_records([ops.DeleteRecords(partition, 15)])
    assert await bench.coordinator.plan_segments() == [plan]
    (answer,) = await bench.coordinator.commit_segments([rolled(plan)])
    assert answer.error is None
    found = await bench.find(partition, 15)
    assert found.log_start_offset == 15
    assert [extent.base_offset for extent in found.extents] == [0]


async def test_a_segment_wholly_below_the_log_start_is_committed_and_deletable(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 5)
    (plan,) = await bench.coordinator.plan_segments()
    await bench.coordinator.delete_records([ops.DeleteRecords(partition, 45)])
    assert await bench.coordinator.plan_segments() == [plan]
    (answer,) = await bench.coordinator.commit_segments([rolled(plan)])
    assert answer.error is None
    assert plan.object_key in await deletable(bench)
    found = await bench.find(partition, 45)
    assert [extent.base_offset for extent in found.extents] == [40]
    assert spans(await bench.coordinator.plan_segments(EVERYTHING)) == [(40, 49)]


async def test_segments_below_the_log_start_go(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 6)
    plans = await bench.coordinator.plan_segments()
    await bench.coordinator.commit_segments([rolled(plan) for plan in plans])
    await bench.coordinator.delete_records([ops.DeleteRecords(partition, 30)])
    assert plans[0].object_key in await deletable(bench)
    assert plans[1].object_key not in await deletable(bench)
    await bench.coordinator.delete_topics([partition.topic_id])
    assert plans[1].object_key in await deletable(bench)


async def test_list_offsets_sees_both_tiers(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    for timestamp_ms in (100, 900, 200, 300):
        await bench.commit(batch(partition, 10, size=400, timestamp_ms=timestamp_ms))
    (plan,) = await bench.coordinator.plan_segments()
    await bench.coordinator.commit_segments([rolled(plan, max_timestamp_ms=900)])
    asked = [ops.LATEST_TIERED_TIMESTAMP, ops.EARLIEST_LOCAL_TIMESTAMP, ops.MAX_TIMESTAMP, 150, 901]
    tiered, local, greatest, at_150, after = await bench.coordinator.list_offsets(
        [ops.ListOffsets(partition, timestamp) for timestamp in asked]
    )
    assert (tiered.offset, tiered.timestamp_ms) == (29, 900)
    assert local.offset == 30
    assert isinstance(greatest.extent, ops.SegmentExtent)
    assert isinstance(at_150.extent, ops.SegmentExtent)
    assert after.extent is None
