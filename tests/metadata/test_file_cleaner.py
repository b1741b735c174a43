"""Deleting objects: after the grace, only confirmed ones, for ever, and answers are kept."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from metadata.file_cleaner import FileCleaner
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import DeleteRecords
from metadata.records import FilesDeletedRecord
from tests.support.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.coordinates import ObjectKey
from wal.errors import ObjectExpired, ObjectStoreUnavailable

SETTINGS = CoordinatorSettings(file_cleaner_batch_max=3, file_cleaner_interval_ms=1_000)


class DeletingStore:
    """As much of an object store as the cleaner needs."""

    def __init__(self) -> None:
        self.deleted: list[ObjectKey] = []
        self.stubborn: set[ObjectKey] = set()
        self.is_away = False

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        if self.is_away:
            raise ObjectStoreUnavailable("away")
        confirmed = [key for key in keys if key not in self.stubborn]
        self.deleted += confirmed
        return confirmed


@pytest.fixture
def store() -> DeletingStore:
    return DeletingStore()


@pytest.fixture
def log() -> MemoryMetadataLog:
    return MemoryMetadataLog()


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(tmp_path, log, settings=SETTINGS) as running:
        yield running


def cleaner_of(bench: CoordinatorBench, store: DeletingStore) -> FileCleaner:
    return FileCleaner(
        bench.coordinator,
        store,  # type: ignore[arg-type]
        settings=SETTINGS,
        clock=bench.clock,
    )


def forgotten(log: MemoryMetadataLog) -> list[ObjectKey]:
    return [
        key
        for record in log.records()
        if isinstance(record, FilesDeletedRecord)
        for key in record.object_keys
    ]


async def dead_file(bench: CoordinatorBench) -> ObjectKey:
    """A file whose only batch is for a partition that does not exist."""
    request = bench.file()
    await bench.coordinator.commit_file(request)
    return request.object_key


async def test_an_object_is_deleted_after_the_grace_and_not_before(
    bench: CoordinatorBench, store: DeletingStore
) -> None:
    partition = await bench.partition()
    request = bench.file(batch(partition, 5))
    await bench.coordinator.commit_file(request)
    cleaner = cleaner_of(bench, store)
    bench.clock.advance(100)
    await cleaner.clean_once()
    await bench.coordinator.delete_records([DeleteRecords(partition, -1)])
    bench.clock.advance(60)
    await cleaner.clean_once()
    assert store.deleted == []
    bench.clock.advance(0.001)
    await cleaner.clean_once()
    assert store.deleted == [request.object_key]
    await cleaner.clean_once()
    assert store.deleted == [request.object_key]


async def test_the_answer_outlives_the_object_until_its_key_is_too_old(
    bench: CoordinatorBench, store: DeletingStore, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    request = bench.file(batch(partition, 5))
    first = await bench.coordinator.commit_file(request)
    await bench.coordinator.delete_records([DeleteRecords(partition, -1)])
    cleaner = cleaner_of(bench, store)
    bench.clock.advance(61)
    await cleaner.clean_once()
    assert store.deleted == [request.object_key]
    assert forgotten(log) == []
    assert await bench.coordinator.commit_file(request) == first
    bench.clock.advance(15 * 60)
    await cleaner.clean_once()
    # Once more: a chunk that was recovered meanwhile may have uploaded it again.
    assert store.deleted == [request.object_key] * 2
    assert forgotten(log) == [request.object_key]
    bench.clock.step_wall(-15 * 60)
    with pytest.raises(ObjectExpired):
        await bench.coordinator.commit_file(request)
    assert bench.coordinator.replica.high_watermark(partition) == 5


async def test_a_segment_is_forgotten_at_once(
    bench: CoordinatorBench, store: DeletingStore, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    await bench.commit(batch(partition, 5))
    (plan,) = await bench.coordinator.plan_segments(include_partial=True)
    await bench.coordinator.commit_segments([rolled(plan)])
    await bench.coordinator.delete_topics([partition.topic_id])
    bench.clock.advance(61)
    await cleaner_of(bench, store).clean_once()
    assert plan.object_key in store.deleted
    assert forgotten(log) == [plan.object_key]


async def test_what_the_store_does_not_confirm_is_neither_forgotten_nor_in_the_way(
    bench: CoordinatorBench, store: DeletingStore, log: MemoryMetadataLog
) -> None:
    keys = [await dead_file(bench) for _ in range(8)]
    store.stubborn = set(keys[:3])  # a whole pass of them
    bench.clock.advance(20 * 60)
    cleaner = cleaner_of(bench, store)
    assert [await cleaner.clean_once() for _ in range(3)] == [3, 3, 2]
    assert sorted(forgotten(log)) == sorted(keys[3:])
    store.stubborn = set()
    await cleaner.clean_once()
    assert sorted(forgotten(log)) == sorted(keys)
    files = await bench.coordinator.deletable_files(before_ms=2**60, after=(-1, -1), limit=10)
    assert files == []


async def test_it_goes_on_after_an_outage_of_the_store(
    bench: CoordinatorBench, store: DeletingStore, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [await dead_file(bench) for _ in range(5)]
    bench.clock.advance(61)
    pauses: list[float] = []
    store.is_away = True

    async def sleep(delay: float) -> None:
        pauses.append(delay)
        if len(pauses) == 4:
            store.is_away = False
        if len(pauses) == 6:
            raise asyncio.CancelledError

    cleaner = FileCleaner(
        bench.coordinator,
        store,  # type: ignore[arg-type]
        settings=SETTINGS,
        clock=bench.clock,
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        await cleaner.run()
    assert pauses == [1, 2, 4, 8, 1, 1]
    assert sorted(store.deleted) == sorted(keys)
    assert cleaner.objects_deleted == 5


async def test_a_restarted_cleaner_finishes_what_was_begun(
    tmp_path: Path, store: DeletingStore, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path, log, settings=SETTINGS) as bench:
        key = await dead_file(bench)
        bench.clock.advance(61)
        await cleaner_of(bench, store).clean_once()
        clock = bench.clock
    clock.advance(15 * 60)
    async with running_coordinator(tmp_path, log, settings=SETTINGS, clock=clock) as bench:
        await cleaner_of(bench, store).clean_once()
    assert forgotten(log) == [key]
