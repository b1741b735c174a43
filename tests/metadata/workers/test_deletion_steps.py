"""DeleteRecords: what it answers, and that a large one is carried out in bounded steps."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.operations import DeletedRecords, DeleteRecords
from metadata.records.records import RecordsDeletedRecord
from metadata.replica.verify import check_state
from metadata.workers.deletion_steps import STEP_ROWS_MAX, delete_records_in_steps
from tests.support.coordinators.coordinator_bench import (
    UNKNOWN_PARTITION,
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, OffsetOutOfRange, UnknownPartition


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(tmp_path, log) as running:
        yield running
        assert await running.coordinator.replica.state.read(check_state) == []


async def write(bench: CoordinatorBench, partition: TopicIdPartition, rows: int) -> None:
    """Rows of five records each."""
    for _ in range(rows):
        await bench.commit_one(partition, 5)


async def delete(
    bench: CoordinatorBench, partition: TopicIdPartition, before: int, *, rows_max: int = 2
) -> DeletedRecords:
    (answer,) = await delete_records_in_steps(
        bench.coordinator, [DeleteRecords(partition, before)], rows_max=rows_max
    )
    return answer


def steps(log: MemoryMetadataLog) -> list[int]:
    return [
        record.new_log_start_offset
        for record in log.records()
        if isinstance(record, RecordsDeletedRecord)
    ]


async def test_minus_one_is_the_high_watermark(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    await write(bench, partition, 5)
    assert await delete(bench, partition, -1) == DeletedRecords(25)
    assert steps(log) == [10, 20, 25]


async def test_minus_one_leaves_what_is_appended_meanwhile(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await write(bench, partition, 6)
    deletion = asyncio.create_task(delete(bench, partition, -1, rows_max=1))
    await write(bench, partition, 3)
    answer = await deletion
    assert answer.error is None
    assert answer.log_start_offset == bench.coordinator.replica.log_start_offset(partition)
    assert 30 <= answer.log_start_offset < 45


@pytest.mark.parametrize("before", [-2, 26, 2**62])
async def test_what_lies_outside_is_out_of_range(bench: CoordinatorBench, before: int) -> None:
    partition = await bench.partition()
    await write(bench, partition, 5)
    answer = await delete(bench, partition, before)
    assert isinstance(answer.error, OffsetOutOfRange)
    assert bench.coordinator.replica.log_start_offset(partition) == 0


@pytest.mark.parametrize("before", [0, 3, 12])
async def test_up_to_the_log_start_or_below_it_changes_nothing(
    bench: CoordinatorBench, log: MemoryMetadataLog, before: int
) -> None:
    partition = await bench.partition()
    await write(bench, partition, 5)
    await delete(bench, partition, 12)
    appends = log.append_calls
    assert await delete(bench, partition, before) == DeletedRecords(12)
    assert log.append_calls == appends


async def test_the_middle_of_a_row_keeps_the_row_and_moves_the_start(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await write(bench, partition, 4)
    assert await delete(bench, partition, 18) == DeletedRecords(18)
    found = await bench.find(partition, 18)
    assert [(extent.base_offset, extent.last_offset) for extent in found.extents] == [(15, 19)]
    assert isinstance((await bench.find(partition, 17)).error, OffsetOutOfRange)


async def test_errors_belong_to_their_entry_and_answers_keep_their_order(
    bench: CoordinatorBench,
) -> None:
    first = await bench.partition("first")
    second = await bench.partition("second")
    await write(bench, first, 9)
    await write(bench, second, 3)
    answers = await delete_records_in_steps(
        bench.coordinator,
        [
            DeleteRecords(second, 5),
            DeleteRecords(UNKNOWN_PARTITION, -1),
            DeleteRecords(first, -1),
            DeleteRecords(second, 99),
            DeleteRecords(second, 10),
            DeleteRecords(first, 3),
        ],
        rows_max=2,
    )
    assert [answer.log_start_offset for answer in answers] == [5, -1, 45, 5, 10, 45]
    assert [type(answer.error) for answer in answers] == [
        type(None),
        UnknownPartition,
        type(None),
        OffsetOutOfRange,
        type(None),
        type(None),
    ]


async def test_segments_count_as_rows_and_planned_rows_wait(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    topic = await bench.topic(segment_bytes="100")
    partition = TopicIdPartition(topic.topic_id, 0)
    await write(bench, partition, 6)
    plans = await bench.coordinator.plan_segments()
    await bench.coordinator.commit_segments([rolled(plan) for plan in plans[:3]])
    await write(bench, partition, 2)
    assert await delete(bench, partition, -1) == DeletedRecords(40)
    assert steps(log) == [10, 20, 30, 40]
    answers = await bench.coordinator.commit_segments([rolled(plan) for plan in plans[3:]])
    assert [answer.error for answer in answers] == [None] * 3


async def test_the_coordinator_deletes_many_rows_in_steps(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition, other = await bench.partition(), await bench.partition("other")
    await bench.commit_one(other, 20)
    for _ in range(15):
        # Of this size no two become one row.
        await bench.commit(*[batch(partition, size=600_000)] * (STEP_ROWS_MAX // 5))
    answers = await bench.coordinator.delete_records(
        [DeleteRecords(partition, -1), DeleteRecords(other, 10)]
    )
    assert [answer.log_start_offset for answer in answers] == [3 * STEP_ROWS_MAX, 10]
    assert steps(log) == [500, 1000, 1500, 10]


async def test_small_deletions_share_operations(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    topic = await bench.topic(partitions=45)
    partitions = [TopicIdPartition(topic.topic_id, index) for index in range(45)]
    await bench.commit(*[batch(partition, 5) for partition in partitions])
    appends = log.append_calls
    answers = await bench.coordinator.delete_records(
        [DeleteRecords(partition, -1) for partition in partitions]
    )
    assert [answer.log_start_offset for answer in answers] == [5] * 45
    assert log.append_calls - appends == 2


async def test_a_failure_on_the_way_leaves_the_log_start_where_it_had_come_to(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    await write(bench, partition, 6)
    await delete(bench, partition, 5)
    log.failures.append(CommitFailed("disk full"))
    with pytest.raises(CommitFailed):
        await delete(bench, partition, -1)
    assert bench.coordinator.replica.log_start_offset(partition) == 5
    assert await delete(bench, partition, -1) == DeletedRecords(30)


async def test_a_partition_that_is_deleted_on_the_way_is_unknown(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await write(bench, partition, 20)
    deletion = asyncio.create_task(delete(bench, partition, -1, rows_max=1))
    await bench.coordinator.delete_topics([partition.topic_id])
    assert isinstance((await deletion).error, UnknownPartition)
