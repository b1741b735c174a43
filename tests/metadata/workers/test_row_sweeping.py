"""Deleted topics are gone at once, and their rows go in steps that every replica takes alike."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.apply.apply_topics import SWEPT_WITH_TOPIC_MAX
from metadata.records import records
from metadata.records.control import RowsSweptRecord
from tests.support.coordinators.applied_state import START_MS, AppliedState, applied_state
from wal.coordinates import ObjectKey, TopicIdPartition

MANY = SWEPT_WITH_TOPIC_MAX * 2 + 300


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[AppliedState]:
    async with applied_state(tmp_path / "state") as applied:
        yield applied


async def fill(
    state: AppliedState, partition: TopicIdPartition, rows: int, *, per_file: int = 100
) -> None:
    for start in range(0, rows, per_file):
        count = min(per_file, rows - start)
        await state.apply(state.file(*[(partition, 2, 50, START_MS)] * count))


async def test_a_small_topic_leaves_nothing_behind(state: AppliedState) -> None:
    first, second = await state.topic(partitions=2)
    await state.apply(state.file((first, 1, 10, START_MS), (second, 1, 10, START_MS), producer=5))
    await state.apply(records.TopicDeletedRecord(topic_id=first.topic_id))
    for table in ("batches", "partitions", "topics", "producer_states", "swept"):
        assert await state.count(table) == 0
    assert await state.violations() == []


async def test_a_large_topic_is_gone_at_once_and_its_rows_go_step_by_step(
    state: AppliedState,
) -> None:
    (doomed,) = await state.topic()
    (other,) = await state.topic()
    await fill(state, doomed, MANY)
    await fill(state, other, 10)
    await state.apply(records.TopicDeletedRecord(topic_id=doomed.topic_id))
    assert doomed not in state.image.partitions
    assert await state.count("partitions") == 1
    left = MANY - SWEPT_WITH_TOPIC_MAX + 10
    assert await state.count("batches") == left
    assert await state.violations() == []
    for step in (300, 300, 150):
        await state.apply(RowsSweptRecord(limit=step))
        left -= step
        assert await state.count("batches") == left
        assert await state.violations() == []
    await state.apply(RowsSweptRecord(limit=1_000))
    assert await state.count("batches") == 10
    assert await state.count("swept") == 0
    await state.apply(RowsSweptRecord(limit=1_000))
    assert await state.count("batches") == 10
    assert await state.violations() == []


async def test_objects_of_a_deleted_topic_are_released_with_their_rows(state: AppliedState) -> None:
    (doomed,) = await state.topic()
    (other,) = await state.topic()
    shared = state.file((doomed, 1, 10, START_MS), (other, 1, 10, START_MS))
    await state.apply(shared)
    await fill(state, doomed, MANY)
    await state.apply(records.TopicDeletedRecord(topic_id=doomed.topic_id))
    while await state.count("swept"):
        await state.apply(RowsSweptRecord(limit=700))
    live = await state.state.read(
        lambda connection: connection.exec_driver_sql(
            "SELECT object_key, live_rows, live_bytes FROM files WHERE deletable_since_ms < 0"
        ).all()
    )
    assert [tuple(row) for row in live] == [(shared.object_key, 1, 10)]


def planned(
    partition: TopicIdPartition, base: int, last: int, key: str
) -> records.SegmentPlannedRecord:
    return records.SegmentPlannedRecord(
        partition=partition,
        base_offset=base,
        last_offset=last,
        object_key=ObjectKey(key),
        planned_at_ms=START_MS,
    )


async def test_segments_and_producers_of_a_deleted_topic_go_as_well(state: AppliedState) -> None:
    (doomed,) = await state.topic()
    await state.apply(state.file((doomed, 5, 10, START_MS), producer=1))
    await state.apply(planned(doomed, 0, 4, "segments/one"))
    await state.apply(
        records.SegmentCommittedRecord(
            partition=doomed,
            base_offset=0,
            last_offset=4,
            object_key=ObjectKey("segments/one"),
            object_bytes=7,
            crc32c=1,
            record_count=5,
            max_timestamp_ms=START_MS,
        )
    )
    for producer in range(2, 30):
        await state.apply(state.file((doomed, 1, 10, START_MS), producer=producer))
    await state.apply(planned(doomed, 5, 9, "segments/two"))
    await fill(state, doomed, SWEPT_WITH_TOPIC_MAX)
    await state.apply(records.TopicDeletedRecord(topic_id=doomed.topic_id))
    assert await state.count("segment_plans") == 0
    assert (await state.count("segments"), await state.count("producer_states")) == (1, 29)
    assert state.image.plans == {}
    assert state.image.producers == {}
    for _ in range(60):
        await state.apply(RowsSweptRecord(limit=3))
        assert await state.violations() == []
    for table in ("batches", "segments", "producer_states", "swept"):
        assert await state.count(table) == 0


async def test_topics_are_swept_in_the_order_of_their_partitions(state: AppliedState) -> None:
    (first,) = await state.topic()
    (second,) = await state.topic()
    await fill(state, first, MANY)
    await fill(state, second, 40)
    await state.apply(records.TopicDeletedRecord(topic_id=first.topic_id))
    # The room that this record has goes to what waits already.
    await state.apply(records.TopicDeletedRecord(topic_id=second.topic_id))
    assert await state.count("swept") == 2
    assert await state.count("batches") == MANY - 2 * SWEPT_WITH_TOPIC_MAX + 40
    await state.apply(RowsSweptRecord(limit=400))
    assert await state.count("swept") == 0
    assert await state.count("batches") == 0


async def test_many_small_partitions_are_swept_a_bounded_number_at_a_time(
    state: AppliedState,
) -> None:
    partitions = await state.topic(partitions=100)
    await state.apply(state.file(*[(partition, 1, 10, START_MS) for partition in partitions]))
    await state.apply(records.TopicDeletedRecord(topic_id=partitions[0].topic_id))
    # Eighty-four partitions of one row count as more than the five hundred rows that go at once.
    assert await state.count("swept") == 16
    await state.apply(RowsSweptRecord(limit=6))
    assert await state.count("swept") == 15
    assert await state.violations() == []


async def test_a_replica_that_replays_ends_up_with_the_same_rows(
    state: AppliedState, tmp_path: Path
) -> None:
    (doomed,) = await state.topic()
    (other,) = await state.topic()
    for _ in range(12):
        await fill(state, doomed, 100)
        await fill(state, other, 10)
    await state.apply(records.TopicDeletedRecord(topic_id=doomed.topic_id))
    await state.apply(RowsSweptRecord(limit=90))
    await state.apply(records.RecordsDeletedRecord(partition=other, new_log_start_offset=30))
    await state.apply(RowsSweptRecord(limit=90))
    async with applied_state(tmp_path / "again") as again:
        for batch in state.batches:
            await again.apply(*[records.decode_record(data) for data in batch.records])
        assert again.image.state_hash == state.image.state_hash
        assert await again.rows() == await state.rows()


async def test_rows_that_belong_to_nobody_are_a_violation(state: AppliedState) -> None:
    (partition,) = await state.topic()
    await fill(state, partition, 3)
    await state.state.write(lambda connection: connection.exec_driver_sql("DELETE FROM partitions"))
    found = await state.violations()
    assert f"partition id {state.partition(partition).id}" in {item.subject for item in found}


def test_the_record_keeps_its_limit() -> None:
    record = RowsSweptRecord(limit=77)
    assert records.decode_record(records.encode_record(record)) == record
