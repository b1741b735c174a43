"""Planning rewrites of segments, and swapping segments for what a rewrite made of them."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from metadata import operations as ops
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.segment_identity import segment_key
from metadata.replica.verify import check_state
from metadata.rewrites import (
    COMPACTION,
    PlanRewrites,
    Rewrite,
    RewriteCommit,
    RewriteInput,
    RewritePlan,
    RewrittenSegment,
)
from metadata.rules.rewriting.rewrites import CompactionPolicy, is_compaction_due
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.coordinates import ObjectKey, Offset, TopicIdPartition
from wal.errors import Rejected, UnknownPartition

EVERYTHING = ops.PlanSegments(include_partial=True)
ALL = PlanRewrites()


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(
        tmp_path, log, settings=CoordinatorSettings(segment_bytes=1)
    ) as running:
        yield running


async def segments(bench: CoordinatorBench, partition: TopicIdPartition, count: int) -> None:
    """Roll `count` segments of ten records; the newest record of each is as old as the clock."""
    for _ in range(count):
        now_ms = bench.clock.now_ms()
        await bench.commit(batch(partition, 10, timestamp_ms=now_ms))
        plans = await bench.coordinator.plan_segments(EVERYTHING)
        made = [rolled(plan, max_timestamp_ms=now_ms) for plan in plans]
        answers = await bench.coordinator.commit_segments(made)
        assert not any(answer.error for answer in answers)


async def compacted(bench: CoordinatorBench, **configs: str) -> TopicIdPartition:
    topic = await bench.topic(cleanup_policy="compact", **configs)
    return TopicIdPartition(topic.topic_id, 0)


async def plans(bench: CoordinatorBench, asked: PlanRewrites = ALL) -> Sequence[RewritePlan]:
    return await bench.coordinator.plan_rewrites(asked)


async def the_plan(bench: CoordinatorBench) -> RewritePlan:
    (plan,) = await plans(bench)
    return plan


async def commit(bench: CoordinatorBench, rewrite: Rewrite) -> RewriteCommit:
    (answer,) = await bench.coordinator.commit_rewrites([rewrite])
    return answer


def spans(plan: RewritePlan) -> list[tuple[int, int]]:
    return [(one.base_offset, one.last_offset) for one in plan.inputs]


def rewritten(plan: RewritePlan, first: int, last: int, removed: int) -> RewrittenSegment:
    """An output in place of the inputs at `first` .. `last`."""
    inputs = plan.inputs[first : last + 1]
    base, end = inputs[0].base_offset, inputs[-1].last_offset
    return RewrittenSegment(
        base,
        end,
        segment_key(plan.topic_name, plan.partition, base, end, plan.generation),
        300,
        9,
        sum(one.record_count for one in inputs) - removed,
        removed,
        1_000,
    )


def outcome(plan: RewritePlan, *made: RewrittenSegment) -> Rewrite:
    return Rewrite(partition=plan.partition, generation=plan.generation, segments=made)


async def live(bench: CoordinatorBench, partition: TopicIdPartition) -> list[ops.Extent]:
    """All extents; the state that they are of is sound."""
    violations = await bench.coordinator.replica.state.read(check_state)
    assert violations == []
    found: list[ops.Extent] = []
    start = bench.coordinator.replica.image.partitions[partition]
    offset = start.log_start_offset
    while offset < start.high_watermark:
        answer = await bench.find(partition, offset)
        assert answer.error is None
        found += answer.extents
        offset = answer.extents[-1].last_offset + 1
    return found


async def live_spans(bench: CoordinatorBench, partition: TopicIdPartition) -> list[tuple[int, int]]:
    return [(one.base_offset, one.last_offset) for one in await live(bench, partition)]


async def test_segments_of_compacted_topics_are_planned_and_others_are_not(
    bench: CoordinatorBench,
) -> None:
    partition = await compacted(bench)
    await segments(bench, partition, 3)
    await segments(bench, await bench.partition("deleted"), 3)
    await bench.commit(batch(partition, 10))
    plan = await the_plan(bench)
    assert (plan.partition, plan.kind, plan.generation) == (partition, COMPACTION, 1)
    assert spans(plan) == [(0, 9), (10, 19), (20, 29)]
    assert plan.delete_horizon_ms == plan.planned_at_ms + 24 * 3_600_000
    assert [one.record_count for one in plan.inputs] == [10, 10, 10]
    assert await plans(bench, PlanRewrites(topics=["other*"])) == []
    assert await plans(bench, PlanRewrites(excluded_topics=["fl*"])) == []


async def test_a_rewrite_is_the_same_until_it_is_committed_also_after_a_rebuild(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path, log) as bench:
        partition = await compacted(bench)
        await segments(bench, partition, 2)
        plan = await the_plan(bench)
        await segments(bench, partition, 2)
        bench.clock.advance(10)
        assert await plans(bench) == [plan]
    for _ in range(2):
        async with running_coordinator(tmp_path, log) as bench:
            assert await plans(bench) == [plan]
        (tmp_path / "state.sqlite").unlink()


async def test_outputs_take_the_place_of_their_inputs(bench: CoordinatorBench) -> None:
    partition = await compacted(bench)
    await segments(bench, partition, 4)
    await bench.commit(batch(partition, 10))
    plan = await the_plan(bench)
    made = (rewritten(plan, 0, 0, 3), rewritten(plan, 2, 3, 20))
    before = {one.object_key for one in await live(bench, partition)}
    assert await commit(bench, outcome(plan, *made)) == RewriteCommit()
    assert await live_spans(bench, partition) == [(0, 9), (10, 19), (20, 39), (40, 49)]
    after = {one.object_key for one in await live(bench, partition)}
    assert after - before == {one.object_key for one in made}
    files = await bench.coordinator.deletable_files(
        before_ms=2**60, after=(-1, -1), limit=100, is_owner=True
    )
    gone = {file.object_key for _, file in files}
    assert {plan.inputs[at].object_key for at in (0, 2, 3)} <= gone
    assert plan.inputs[1].object_key not in gone
    assert await plans(bench) == [], "what was compacted is clean"
    await segments(bench, partition, 5)
    again = await the_plan(bench)
    assert again.generation == 2
    assert again.inputs[0].record_count == 7


async def test_an_outcome_is_committed_once(bench: CoordinatorBench) -> None:
    partition = await compacted(bench)
    await segments(bench, partition, 2)
    plan = await the_plan(bench)
    done = outcome(plan, rewritten(plan, 0, 1, 5))
    assert await commit(bench, done) == RewriteCommit()
    count = bench.coordinator.replica.image.next_offset
    assert await commit(bench, done) == RewriteCommit(is_duplicate=True)
    assert bench.coordinator.replica.image.next_offset == count
    other = outcome(plan, rewritten(plan, 0, 1, 6))
    assert isinstance((await commit(bench, other)).error, Rejected)


async def test_a_rewrite_that_removes_nothing_ends_it(bench: CoordinatorBench) -> None:
    partition = await compacted(bench)
    await segments(bench, partition, 2)
    plan = await the_plan(bench)
    assert await commit(bench, outcome(plan)) == RewriteCommit()
    assert await commit(bench, outcome(plan)) == RewriteCommit(is_duplicate=True)
    assert await plans(bench) == []
    assert await live_spans(bench, partition) == [(0, 9), (10, 19)]


async def test_what_does_not_fit_its_plan_is_refused(bench: CoordinatorBench) -> None:
    partition = await compacted(bench)
    await segments(bench, partition, 4)
    plan = await the_plan(bench)
    right = rewritten(plan, 0, 1, 5)
    whole = rewritten(plan, 0, 3, 5)
    wrong = [
        outcome(plan, right._replace(record_count=14)),
        outcome(plan, right._replace(removed_count=6)),
        outcome(plan, right._replace(object_bytes=0)),
        outcome(plan, right._replace(object_key=ObjectKey("elsewhere"))),
        outcome(plan, right, right),
        outcome(plan, right, rewritten(plan, 1, 2, 5)),
        outcome(plan, _spanning(plan, right, 0, 14)),
        outcome(plan, _spanning(plan, right, 5, 19)),
        outcome(plan, _spanning(plan, whole, 0, 49)),
        replace(outcome(plan, right), generation=2),
    ]
    for rewrite in wrong:
        answer = await commit(bench, rewrite)
        assert isinstance(answer.error, Rejected), rewrite
    nowhere = TopicIdPartition(partition.topic_id, 5)
    answer = await commit(bench, replace(outcome(plan, right), partition=nowhere))
    assert isinstance(answer.error, UnknownPartition)
    assert await plans(bench) == [plan]
    assert await commit(bench, outcome(plan, right)) == RewriteCommit()


def _spanning(
    plan: RewritePlan, segment: RewrittenSegment, base: int, last: int
) -> RewrittenSegment:
    return segment._replace(
        base_offset=Offset(base),
        last_offset=Offset(last),
        object_key=segment_key(plan.topic_name, plan.partition, base, last, plan.generation),
    )


async def test_inputs_that_went_with_the_log_start_are_passed_over(
    bench: CoordinatorBench,
) -> None:
    partition = await compacted(bench)
    await segments(bench, partition, 5)
    plan = await the_plan(bench)
    done = outcome(plan, rewritten(plan, 0, 1, 5), rewritten(plan, 2, 2, 5))
    await bench.coordinator.delete_records([ops.DeleteRecords(partition, 15)])
    assert await commit(bench, done) == RewriteCommit()
    extents = await live(bench, partition)
    assert [one.object_key for one in extents] == [
        plan.inputs[1].object_key,
        done.segments[1].object_key,
        plan.inputs[3].object_key,
        plan.inputs[4].object_key,
    ]
    again = await the_plan(bench)
    assert (again.generation, spans(again)) == (2, spans(plan)[1:])


async def test_an_input_that_the_log_start_is_in_is_replaced(bench: CoordinatorBench) -> None:
    partition = await compacted(bench)
    await segments(bench, partition, 2)
    plan = await the_plan(bench)
    await bench.coordinator.delete_records([ops.DeleteRecords(partition, 5)])
    done = outcome(plan, rewritten(plan, 0, 1, 5))
    assert await commit(bench, done) == RewriteCommit()
    assert [one.object_key for one in await live(bench, partition)] == [done.segments[0].object_key]


async def test_a_deleted_topic_takes_its_rewrite_along(bench: CoordinatorBench) -> None:
    partition = await compacted(bench)
    await segments(bench, partition, 2)
    plan = await the_plan(bench)
    await bench.coordinator.delete_topics([partition.topic_id])
    assert await plans(bench) == []
    answer = await commit(bench, outcome(plan, rewritten(plan, 0, 1, 5)))
    assert isinstance(answer.error, UnknownPartition)
    assert await bench.coordinator.replica.state.read(check_state) == []


async def test_records_stay_uncompacted_for_the_lag(bench: CoordinatorBench) -> None:
    partition = await compacted(bench, min_compaction_lag_ms="60000")
    await segments(bench, partition, 2)
    assert await plans(bench) == []
    bench.clock.advance(61)
    await segments(bench, partition, 1)
    assert spans(await the_plan(bench)) == [(0, 9), (10, 19)]


POLICY = CompactionPolicy(
    dirty_ratio_min=0.5,
    lag_min_ms=0,
    lag_max_ms=2**63 - 1,
    delete_retention_ms=0,
    segment_bytes=1,
    segment_ms=100,
)


def inputs(*described: tuple[int, int]) -> list[RewriteInput]:
    """(bytes, timestamp) each; ten offsets a segment."""
    return [
        RewriteInput(ObjectKey(str(at)), size, Offset(10 * at), Offset(10 * at + 9), 10, time)
        for at, (size, time) in enumerate(described)
    ]


def test_a_partition_is_compacted_when_more_than_the_ratio_is_dirty() -> None:
    found = inputs((100, 0), (100, 0))
    assert is_compaction_due(found, 0, POLICY, 1)
    assert not is_compaction_due(found, 10, POLICY, 1), "half of it is not more than half"
    assert not is_compaction_due(found, 20, POLICY, 1)
    assert not is_compaction_due([], 0, POLICY, 1)
    assert is_compaction_due(inputs((100, 0), (101, 0)), 10, POLICY, 1)
    assert is_compaction_due(found, 10, POLICY._replace(dirty_ratio_min=0.4), 1)


def test_a_partition_is_compacted_when_a_record_is_dirty_for_too_long() -> None:
    found = inputs((100, 0), (10, 1_000))
    policy = POLICY._replace(lag_max_ms=500)
    assert not is_compaction_due(found, 10, policy, 1_400)
    assert is_compaction_due(found, 10, policy, 1_401), "its oldest record may be 100 ms older"
