"""The retention worker: what it deletes, in which steps, and what may come in between."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from metadata.operations import DeletedRecords, DeleteRecords, PlanSegments
from metadata.records.records import RecordsDeletedRecord, decode_record
from metadata.records.segment_identity import segment_key
from metadata.replica.replica import Replica
from metadata.replica.verify import check_state
from metadata.retention_settings import RetentionSettings
from metadata.rewrites import PlanRewrites, Rewrite, RewrittenSegment
from metadata.rules.rewriting.merges import RUN_MAX
from metadata.workers.retention import PARTITION_ROWS, RetentionWorker, rows_from
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from tests.support.coordinators.pauses import first_pauses
from wal.clock import Sleep
from wal.coordinates import LOG_APPEND_TIME, TopicIdPartition
from wal.errors import CommitFailed, UnknownPartition

NOW = 1_704_067_200_000  # when the manual clock starts
DAY_MS = 24 * 3_600_000


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(tmp_path, log) as running:
        yield running
        assert await running.coordinator.replica.state.read(check_state) == []


def worker_of(bench: CoordinatorBench, **settings: int | str) -> RetentionWorker:
    return RetentionWorker(
        bench.coordinator,
        settings=RetentionSettings(**settings),  # type: ignore[arg-type]
        clock=bench.clock,
    )


async def partitions(
    bench: CoordinatorBench, count: int = 1, name: str = "flights", **configs: str
) -> list[TopicIdPartition]:
    topic = await bench.topic(name, count, **configs)
    return [TopicIdPartition(topic.topic_id, index) for index in range(count)]


async def write(
    bench: CoordinatorBench,
    partition: TopicIdPartition,
    *timestamps: int,
    size: int = 100,
    timestamp_type: int = 0,
) -> None:
    """One row of five records per timestamp."""
    for timestamp_ms in timestamps:
        await bench.commit_one(
            partition, 5, size=size, timestamp_ms=timestamp_ms, timestamp_type=timestamp_type
        )


def start(bench: CoordinatorBench, partition: TopicIdPartition) -> int | None:
    return bench.coordinator.replica.log_start_offset(partition)


# -- by size ----------------------------------------------------------------------------------


async def test_by_size_an_empty_partition_is_left_alone(bench: CoordinatorBench) -> None:
    await partitions(bench, retention_bytes="0")
    assert await worker_of(bench).pass_once() == 0


async def test_by_size_nothing_is_deleted_up_to_the_limit(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    (partition,) = await partitions(bench, retention_bytes="300")
    await write(bench, partition, *[NOW] * 3)
    appends = log.append_calls
    assert await worker_of(bench).pass_once() == 0
    assert log.append_calls == appends


@pytest.mark.parametrize(("limit", "first"), [(299, 0), (200, 5), (199, 5), (100, 10), (0, 15)])
async def test_by_size_at_least_the_limit_stays(
    bench: CoordinatorBench, limit: int, first: int
) -> None:
    (partition,) = await partitions(bench, retention_bytes=str(limit))
    await write(bench, partition, *[NOW] * 3)
    assert await worker_of(bench).pass_once() == first // 5
    assert start(bench, partition) == first


async def test_by_size_a_boundary_in_the_middle_of_a_row_counts_the_whole_row(
    bench: CoordinatorBench,
) -> None:
    (partition,) = await partitions(bench, retention_bytes="200")
    await write(bench, partition, *[NOW] * 4)
    await bench.coordinator.delete_records([DeleteRecords(partition, 2)])
    assert await worker_of(bench).pass_once() == 2
    assert start(bench, partition) == 10


async def test_by_size_one_row_per_step_is_as_much_as_any_other(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    (partition,) = await partitions(bench, retention_bytes="100")
    await write(bench, partition, *[NOW] * 6)
    assert await worker_of(bench, step_rows_max=1).pass_once() == 5
    steps = [record for record in log.records() if isinstance(record, RecordsDeletedRecord)]
    assert [record.new_log_start_offset for record in steps] == [5, 10, 15, 20, 25]


async def test_by_size_segments_and_rows_behind_them_count_alike(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_bytes="250", segment_bytes="200")
    await write(bench, partition, *[NOW] * 4)
    plans = await bench.coordinator.plan_segments()
    assert len(plans) == 2
    await bench.coordinator.commit_segments(
        # 500 bytes each
        [rolled(plan, max_timestamp_ms=NOW) for plan in plans]
    )
    await write(bench, partition, *[NOW] * 2)
    worker = worker_of(bench)
    assert await worker.pass_once() == 1
    assert start(bench, partition) == 10
    await write(bench, partition, NOW)
    assert await worker.pass_once() == 1
    assert start(bench, partition) == 20
    assert await worker.pass_once() == 0


# -- by time ----------------------------------------------------------------------------------


async def test_by_time_an_empty_partition_is_left_alone(bench: CoordinatorBench) -> None:
    await partitions(bench, retention_ms="0")
    assert await worker_of(bench).pass_once() == 0


async def test_by_time_nothing_is_deleted_that_is_young_enough(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, NOW - 1_000, NOW)
    assert await worker_of(bench).pass_once() == 0


async def test_by_time_what_is_too_old_goes_when_its_time_comes(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, NOW - 500, NOW)
    worker = worker_of(bench)
    assert await worker.pass_once() == 0
    bench.clock.advance(0.5)
    assert await worker.pass_once() == 0
    bench.clock.advance(0.001)
    assert await worker.pass_once() == 1
    assert start(bench, partition) == 5
    bench.clock.advance(1)
    assert await worker.pass_once() == 1
    assert start(bench, partition) == 10


async def test_by_time_everything_goes_when_everything_is_too_old(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, 1, 2, 3)
    assert await worker_of(bench).pass_once() == 3
    assert start(bench, partition) == 15
    found = await bench.find(partition, 15)
    assert (found.log_start_offset, found.high_watermark, list(found.extents)) == (15, 15, [])


async def test_by_time_a_timestamp_in_the_future_blocks_the_rest(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, NOW + DAY_MS, 1, 2)
    assert await worker_of(bench).pass_once() == 0


async def test_by_time_the_first_that_is_young_enough_stops_it(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, 1, NOW, 2)
    assert await worker_of(bench).pass_once() == 1
    assert start(bench, partition) == 5


async def test_by_time_log_append_time_counts_from_the_commit(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, 1, timestamp_type=LOG_APPEND_TIME)
    worker = worker_of(bench)
    assert await worker.pass_once() == 0
    bench.clock.advance(1.001)
    assert await worker.pass_once() == 1


async def test_by_time_a_clock_that_jumps_ahead_deletes_nothing(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, NOW - 500, NOW)
    worker = worker_of(bench)
    bench.clock.step_wall(86_400)
    assert await worker.pass_once() == 0
    bench.clock.advance(0.501)
    assert await worker.pass_once() == 1
    assert start(bench, partition) == 5


async def test_by_time_a_row_without_timestamps_counts_from_its_commit(
    bench: CoordinatorBench,
) -> None:
    (partition,) = await partitions(bench, retention_ms="1000", segment_bytes="100")
    await write(bench, partition, -1)
    (plan,) = await bench.coordinator.plan_segments()
    await bench.coordinator.commit_segments([rolled(plan, max_timestamp_ms=-1)])
    await write(bench, partition, -1)
    worker = worker_of(bench)
    assert await worker.pass_once() == 0
    bench.clock.advance(1.001)
    assert await worker.pass_once() == 2


async def test_by_time_rows_under_a_plan_wait_for_their_segment(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000", segment_bytes="100")
    await write(bench, partition, 1, 2)
    plans = await bench.coordinator.plan_segments()
    assert await worker_of(bench).pass_once() == 2
    assert start(bench, partition) == 10
    answers = await bench.coordinator.commit_segments([rolled(plan) for plan in plans])
    assert [answer.error for answer in answers] == [None, None]
    assert bench.coordinator.replica.image.partitions[partition].live_bytes == 0


# -- which partitions -------------------------------------------------------------------------


async def test_both_rules_delete_what_either_wants_gone(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="1000", retention_bytes="200")
    await write(bench, partition, 1, NOW, NOW, NOW)
    assert await worker_of(bench).pass_once() == 2
    assert start(bench, partition) == 10


async def test_neither_rule_deletes_nothing(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_ms="-1", retention_bytes="-1")
    await write(bench, partition, 1, 2, 3)
    assert await worker_of(bench).pass_once() == 0


async def test_a_compacted_topic_keeps_everything(bench: CoordinatorBench) -> None:
    kept = await partitions(bench, name="kept", cleanup_policy="compact", retention_ms="1")
    both = await partitions(bench, name="both", cleanup_policy="compact,delete", retention_ms="1")
    await write(bench, kept[0], 1, 2)
    await write(bench, both[0], 1, 2)
    assert await worker_of(bench).pass_once() == 2
    assert (start(bench, kept[0]), start(bench, both[0])) == (0, 10)


async def test_topics_that_set_nothing_follow_the_broker(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench)
    await write(bench, partition, NOW - 8 * DAY_MS, NOW - 6 * DAY_MS)
    assert await worker_of(bench, retention_ms=-1).pass_once() == 0
    assert await worker_of(bench).pass_once() == 1
    assert await worker_of(bench, retention_bytes=0).pass_once() == 1


async def test_many_partitions_take_turns(bench: CoordinatorBench, log: MemoryMetadataLog) -> None:
    many = await partitions(bench, 5, retention_ms="1000")
    for _ in range(4):
        await bench.commit(*[batch(partition, 5, timestamp_ms=1) for partition in many])
    worker = worker_of(bench, step_rows_max=4 + 2 * PARTITION_ROWS)
    assert await worker.pass_once() == 20
    assert [start(bench, partition) for partition in many] == [20] * 5
    deletions = [
        len(stored.records)
        for stored in log.batches
        if isinstance(decode_record(stored.records[0]), RecordsDeletedRecord)
    ]
    assert deletions == [2, 2, 1]


async def test_a_partition_gets_no_more_than_its_share_of_a_round(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    large, small = await partitions(bench, 2, retention_ms="1000")
    await write(bench, large, *[1] * 9)
    await write(bench, small, 1)
    await worker_of(bench, step_rows_max=3).pass_once()
    deleted = [record for record in log.records() if isinstance(record, RecordsDeletedRecord)]
    assert [record.partition for record in deleted].index(small) == 1


async def test_a_partition_that_is_not_due_is_not_read_again(
    bench: CoordinatorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await partitions(bench, retention_ms="100000", retention_bytes="100000")
    await write(bench, partition, NOW)
    worker = worker_of(bench)
    await worker.pass_once()
    state = bench.coordinator.replica.state
    reads = 0
    read = state.read

    async def counting(work: Callable[..., object]) -> object:
        nonlocal reads
        reads += 1
        return await read(work)

    monkeypatch.setattr(state, "read", counting)
    for _ in range(5):
        await worker.pass_once()
    assert reads == 0
    bench.clock.advance(101)
    assert await worker.pass_once() == 1


async def roll_row(
    bench: CoordinatorBench, partition: TopicIdPartition, written_ms: int, rolled_ms: int
) -> None:
    """A row becomes a segment, in which aborted records are left out; -1: nothing is left."""
    await write(bench, partition, written_ms)
    (plan,) = await bench.coordinator.plan_segments(PlanSegments(include_partial=True))
    (answer,) = await bench.coordinator.commit_segments([rolled(plan, max_timestamp_ms=rolled_ms)])
    assert answer.error is None


async def test_by_time_the_oldest_row_is_looked_at_again_when_it_was_merged(
    bench: CoordinatorBench,
) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    # The first is as old as its commit, and keeps those behind it, which are too old.
    await roll_row(bench, partition, NOW - 2_000, -1)
    for _ in range(RUN_MAX - 1):
        await roll_row(bench, partition, NOW - 2_000, NOW - 2_000)
    worker = worker_of(bench)
    assert await worker.pass_once() == 0
    (plan,) = await bench.coordinator.plan_rewrites(PlanRewrites())
    assert await worker.pass_once() == 0
    last_offset = plan.inputs[-1].last_offset
    key = segment_key(plan.topic_name, partition, 0, last_offset, plan.generation)
    records = sum(one.record_count for one in plan.inputs)
    merged = RewrittenSegment(0, last_offset, key, 900, 9, records, 0, NOW - 2_000)
    rewrite = Rewrite(partition=partition, generation=plan.generation, segments=[merged])
    (answer,) = await bench.coordinator.commit_rewrites([rewrite])
    assert answer.error is None
    assert await worker.pass_once() == 1
    assert start(bench, partition) == last_offset + 1


async def test_by_time_a_rolled_row_may_keep_the_time_of_its_aborted_records(
    bench: CoordinatorBench,
) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, NOW)
    worker = worker_of(bench)
    assert await worker.pass_once() == 0
    (plan,) = await bench.coordinator.plan_segments(PlanSegments(include_partial=True))
    await bench.coordinator.commit_segments([rolled(plan, max_timestamp_ms=NOW - 900)])
    bench.clock.advance(0.5)
    assert await worker.pass_once() == 0, "as in Kafka, where aborted records count"
    assert await worker_of(bench).pass_once() == 1, "nobody has seen them, and no record is younger"


# -- interference -----------------------------------------------------------------------------


class InterferedCoordinator:
    """A coordinator to whom something happens between the look and the deletion."""

    def __init__(self, bench: CoordinatorBench, interfere: Callable[[], Awaitable[object]]) -> None:
        self._bench = bench
        self._interfere = interfere
        self.answers: list[DeletedRecords] = []

    @property
    def replica(self) -> Replica:
        return self._bench.coordinator.replica

    async def delete_records_at_once(
        self, requests: Sequence[DeleteRecords]
    ) -> Sequence[DeletedRecords]:
        await self._interfere()
        answers = await self._bench.coordinator.delete_records_at_once(requests)
        self.answers += answers
        return answers


def interfered(
    bench: CoordinatorBench, interfere: Callable[[], Awaitable[object]]
) -> tuple[RetentionWorker, InterferedCoordinator]:
    coordinator = InterferedCoordinator(bench, interfere)
    worker = RetentionWorker(coordinator, settings=RetentionSettings(), clock=bench.clock)
    return worker, coordinator


async def test_a_log_deleted_between_look_and_deletion_is_no_progress_and_no_failure(
    bench: CoordinatorBench,
) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, 1, 2)
    worker, coordinator = interfered(
        bench, lambda: bench.coordinator.delete_topics([partition.topic_id])
    )
    assert await worker.pass_once() == 0
    (answer,) = coordinator.answers
    assert isinstance(answer.error, UnknownPartition)


async def test_a_log_start_moved_between_look_and_deletion_does_not_move_back(
    bench: CoordinatorBench,
) -> None:
    (partition,) = await partitions(bench, retention_bytes="200")
    await write(bench, partition, *[NOW] * 4)
    worker, _ = interfered(
        bench, lambda: bench.coordinator.delete_records([DeleteRecords(partition, 18)])
    )
    await worker.pass_once()
    assert start(bench, partition) == 18


async def test_appends_between_look_and_deletion_are_left_alone(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_bytes="0")
    await write(bench, partition, *[NOW] * 2)
    once = [partial(write, bench, partition, NOW)]

    async def append_once() -> None:
        if once:
            await once.pop()()

    worker, _ = interfered(bench, append_once)
    await worker.step()
    assert start(bench, partition) == 10
    assert bench.coordinator.replica.high_watermark(partition) == 15


async def test_after_a_deletion_by_hand_at_least_the_limit_stays(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, retention_bytes="200")
    await write(bench, partition, *[NOW] * 4)
    await bench.coordinator.delete_records([DeleteRecords(partition, 15)])
    assert await worker_of(bench).pass_once() == 0
    assert start(bench, partition) == 15


async def test_a_failed_deletion_is_tried_again_by_the_next_pass(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    first, second = await partitions(bench, 2, retention_ms="1000")
    await write(bench, first, 1)
    await write(bench, second, 1)
    log.failures.append(CommitFailed("disk full"))
    worker = worker_of(bench)
    with pytest.raises(CommitFailed):
        await worker.pass_once()
    assert await worker.pass_once() == 2
    assert (start(bench, first), start(bench, second)) == (5, 5)


async def test_a_damaged_row_stops_its_partition_and_no_other(tmp_path: Path) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        damaged, sound = await partitions(bench, 2, retention_ms="1000")
        await write(bench, damaged, NOW, 1)
        await write(bench, sound, 1)
        # It claims to be old, and is not.
        await bench.coordinator.replica.state.write(
            lambda connection: connection.exec_driver_sql(
                "UPDATE batches SET max_timestamp_ms = 1 WHERE max_timestamp_ms > 1000"
            )
        )
        assert await worker_of(bench).pass_once() == 1
        assert (start(bench, damaged), start(bench, sound)) == (0, 5)


async def test_it_goes_on_after_failures_and_waits_longer_each_time(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    (partition,) = await partitions(bench, retention_ms="1000")
    await write(bench, partition, 1)
    log.failures += [CommitFailed("disk full")] * 2
    settings = RetentionSettings()

    async def run(sleep: Sleep) -> None:
        await RetentionWorker(
            bench.coordinator, settings=settings, clock=bench.clock, sleep=sleep
        ).run()

    assert await first_pauses(4, run) == [300, 300, 300, 300]
    assert start(bench, partition) == 5


async def test_rows_come_in_offset_order_over_segments_and_batches(bench: CoordinatorBench) -> None:
    (partition,) = await partitions(bench, segment_bytes="100")
    await write(bench, partition, *range(1, 151))
    plans = await bench.coordinator.plan_segments()
    # Segments committed in any order leave rows between them.
    await bench.coordinator.commit_segments([rolled(plan) for plan in plans[::2]])
    state = bench.coordinator.replica.image.partitions[partition]
    found = await bench.coordinator.replica.state.read(
        lambda connection: [row.last_offset for row in rows_from(connection, state, 12)]
    )
    assert found == list(range(14, 750, 5))
