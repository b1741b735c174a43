"""Merges from plan to commit: small segments of quiet partitions become one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata import operations as ops
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.segment_identity import segment_key
from metadata.replica.verify import check_state
from metadata.rewrites import MERGE, PlanRewrites, Rewrite, RewritePlan, RewrittenSegment
from metadata.rules.rewriting.merges import RUN_MAX
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.coordinates import TopicIdPartition
from wal.errors import Rejected

EVERYTHING = ops.PlanSegments(include_partial=True)


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    settings = CoordinatorSettings(segment_bytes=1)
    async with running_coordinator(tmp_path, log, settings=settings) as running:
        yield running


async def rolls(bench: CoordinatorBench, partition: TopicIdPartition, count: int) -> None:
    """`count` segments of ten records, as old as the clock."""
    for _ in range(count):
        now_ms = bench.clock.now_ms()
        await bench.commit(batch(partition, 10, timestamp_ms=now_ms))
        plans = await bench.coordinator.plan_segments(EVERYTHING)
        made = [rolled(plan, max_timestamp_ms=now_ms) for plan in plans]
        assert not any(one.error for one in await bench.coordinator.commit_segments(made))


def merged(plan: RewritePlan, *, records: int = 0, removed: int = 0) -> Rewrite:
    base, last = plan.inputs[0].base_offset, plan.inputs[-1].last_offset
    segment = RewrittenSegment(
        base,
        last,
        segment_key(plan.topic_name, plan.partition, base, last, plan.generation),
        sum(one.object_bytes for one in plan.inputs),
        9,
        records or sum(one.record_count for one in plan.inputs),
        removed,
        max(one.max_timestamp_ms for one in plan.inputs),
    )
    return Rewrite(partition=plan.partition, generation=plan.generation, segments=[segment])


async def plans(bench: CoordinatorBench) -> list[RewritePlan]:
    return list(await bench.coordinator.plan_rewrites(PlanRewrites()))


async def live(bench: CoordinatorBench, partition: TopicIdPartition) -> list[tuple[int, int, str]]:
    assert await bench.coordinator.replica.state.read(check_state) == []
    state = bench.coordinator.replica.image.partitions[partition]
    offset, found = state.log_start_offset, []
    while offset < state.high_watermark:
        answer = await bench.find(partition, offset)
        found += [(one.base_offset, one.last_offset, one.object_key) for one in answer.extents]
        offset = found[-1][1] + 1
    return found


async def test_small_neighbours_are_merged_and_readers_find_the_one_in_their_place(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await rolls(bench, partition, RUN_MAX - 1)
    assert await plans(bench) == []
    await rolls(bench, partition, 1)
    (plan,) = await plans(bench)
    assert (plan.partition, plan.kind, plan.generation) == (partition, MERGE, 1)
    assert [one.base_offset for one in plan.inputs] == list(range(0, 10 * RUN_MAX, 10))
    assert plan.target_bytes == 512 << 20
    await bench.commit(batch(partition, 10))
    rewrite = merged(plan)
    (answer,) = await bench.coordinator.commit_rewrites([rewrite])
    assert answer.error is None
    first, tail = await live(bench, partition)
    assert first == (0, 10 * RUN_MAX - 1, rewrite.segments[0].object_key)
    assert tail[:2] == (10 * RUN_MAX, 10 * RUN_MAX + 9)
    (answer,) = await bench.coordinator.commit_rewrites([rewrite])
    assert answer.is_duplicate
    assert await plans(bench) == []


async def test_a_merge_that_lost_or_removed_a_record_is_refused(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await rolls(bench, partition, RUN_MAX)
    (plan,) = await plans(bench)
    count = 10 * RUN_MAX
    for wrong in (
        merged(plan, records=count - 1),
        merged(plan, records=count + 1),
        merged(plan, records=count - 1, removed=1),
    ):
        (answer,) = await bench.coordinator.commit_rewrites([wrong])
        assert isinstance(answer.error, Rejected)
    assert len(await live(bench, partition)) == RUN_MAX
    assert await plans(bench) == [plan]


async def test_inputs_that_went_with_the_log_start_are_not_merged(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await rolls(bench, partition, RUN_MAX + 2)
    (plan,) = await plans(bench)
    await bench.coordinator.delete_records([ops.DeleteRecords(partition, 25)])
    (left,) = await plans(bench)
    assert (left.generation, left.inputs) == (plan.generation + 1, plan.inputs[2:])
    (answer,) = await bench.coordinator.commit_rewrites([merged(left)])
    assert answer.error is None
    assert [one[:2] for one in await live(bench, partition)] == [(20, 10 * RUN_MAX + 19)]


async def test_a_merge_whose_inputs_are_all_gone_ends(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await rolls(bench, partition, RUN_MAX)
    (plan,) = await plans(bench)
    await bench.coordinator.delete_records([ops.DeleteRecords(partition, 10 * RUN_MAX)])
    ended = Rewrite(partition=partition, generation=plan.generation, segments=[])
    (answer,) = await bench.coordinator.commit_rewrites([ended])
    assert answer.error is None
    assert await plans(bench) == []


async def test_a_merge_whose_inputs_are_all_gone_is_not_planned_any_more(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await rolls(bench, partition, RUN_MAX)
    assert len(await plans(bench)) == 1
    await bench.coordinator.delete_records([ops.DeleteRecords(partition, 10 * RUN_MAX)])
    assert await plans(bench) == []


async def test_topics_set_how_far_they_are_merged_and_whether(bench: CoordinatorBench) -> None:
    topics = [
        await bench.topic("never", segment_merge_bytes="0"),
        await bench.topic("compacted", cleanup_policy="compact"),
        await bench.topic("little", segment_merge_bytes="2500", retention_ms="-1"),
    ]
    never, compacted, little = (TopicIdPartition(topic.topic_id, 0) for topic in topics)
    for partition in (never, compacted, little):
        await rolls(bench, partition, 6)
    found = {plan.partition: plan for plan in await plans(bench)}
    assert never not in found
    assert found[compacted].kind != MERGE
    size = found[little].inputs[0].object_bytes
    assert [one.object_bytes for one in found[little].inputs] == [size] * (2500 // size)


async def test_each_partition_ends_with_few_segments(bench: CoordinatorBench) -> None:
    topic = await bench.topic(partitions=2)
    partitions = [TopicIdPartition(topic.topic_id, at) for at in range(2)]
    for _ in range(3 * RUN_MAX):
        for partition in partitions:
            await rolls(bench, partition, 1)
        for plan in await plans(bench):
            (answer,) = await bench.coordinator.commit_rewrites([merged(plan)])
            assert answer.error is None
    for partition in partitions:
        found = await live(bench, partition)
        assert len(found) < RUN_MAX
        assert found[0][0] == 0
        assert found[-1][1] == 30 * RUN_MAX - 1
