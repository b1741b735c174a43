"""What the state counts beside its rows: bytes per partition, and who owns a file."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import DeleteRecords
from metadata.replica.verify import check_state
from metadata.state.state import STATE_FILE, StateDatabase
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.coordinates import TopicIdPartition


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[CoordinatorBench]:
    settings = CoordinatorSettings(segment_bytes=800)
    async with running_coordinator(tmp_path, MemoryMetadataLog(), settings=settings) as running:
        yield running


async def live_bytes(bench: CoordinatorBench, directory: Path, partition: TopicIdPartition) -> int:
    """As the partition's row has it, after the whole state was checked against itself."""
    async with StateDatabase(directory / STATE_FILE, readers=1) as state:
        await state.open_or_create()
        assert await state.read(check_state) == []
        return int(
            await state.read(
                lambda connection: connection.exec_driver_sql(
                    "SELECT live_bytes FROM partitions JOIN topics ON topics.id = topic "
                    "WHERE topic_id = ? AND partition = ?",
                    (partition.topic_id.bytes, partition.partition),
                ).scalar_one()
            )
        )


async def fill(bench: CoordinatorBench, partition: TopicIdPartition, files: int) -> None:
    """Each file is one row of 10 records and 400 bytes."""
    for _ in range(files):
        await bench.commit(batch(partition, 10, size=400))


async def test_a_partition_counts_the_bytes_that_a_reader_can_reach(
    bench: CoordinatorBench, tmp_path: Path
) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 5)
    assert await live_bytes(bench, tmp_path, partition) == 2_000
    await bench.coordinator.delete_records([DeleteRecords(partition, 15)])
    # The row that was cut in half counts whole.
    assert await live_bytes(bench, tmp_path, partition) == 1_600


async def test_rolling_replaces_the_bytes_of_rows_by_those_of_the_segment(
    bench: CoordinatorBench, tmp_path: Path
) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 5)
    (plan, _) = await bench.coordinator.plan_segments()
    assert await live_bytes(bench, tmp_path, partition) == 2_000
    await bench.coordinator.commit_segments([rolled(plan)])
    assert await live_bytes(bench, tmp_path, partition) == 2_000 - 800 + 500
    await bench.coordinator.delete_records([DeleteRecords(partition, 19)])
    assert await live_bytes(bench, tmp_path, partition) == 2_000 - 800 + 500
    await bench.coordinator.delete_records([DeleteRecords(partition, 20)])
    assert await live_bytes(bench, tmp_path, partition) == 1_200


@pytest.mark.parametrize("start", [5, 10, 15, 20, 25, 40, 45, 50])
async def test_rows_that_wait_below_the_log_start_for_their_segment_are_not_counted(
    bench: CoordinatorBench, tmp_path: Path, start: int
) -> None:
    partition = await bench.partition()
    await fill(bench, partition, 5)
    plans = await bench.coordinator.plan_segments()
    await bench.coordinator.delete_records([DeleteRecords(partition, start)])
    reachable = 5 - start // 10
    assert await live_bytes(bench, tmp_path, partition) == 400 * reachable
    await bench.coordinator.commit_segments([rolled(plan) for plan in plans])
    segments = sum(plan.last_offset >= start for plan in plans)
    tail = 400 if start < 50 else 0
    assert await live_bytes(bench, tmp_path, partition) == 500 * segments + tail


async def test_deleting_a_topic_leaves_no_account(bench: CoordinatorBench, tmp_path: Path) -> None:
    gone, stays = await bench.partition("gone"), await bench.partition("stays")
    await bench.commit(batch(gone, size=400), batch(stays, size=70))
    await bench.coordinator.delete_topics([gone.topic_id])
    assert await live_bytes(bench, tmp_path, stays) == 70


async def test_the_first_owner_of_a_file_owns_it_and_the_others_wait(
    bench: CoordinatorBench,
) -> None:
    """The coordinator under test has the id 0."""
    partition = await bench.partition()
    for owners in ((0,), (0, 2), (2, 0), (2,), ()):
        request = replace(bench.file(batch(partition)), owner_ids=owners)
        await bench.coordinator.commit_file(request)
    await bench.coordinator.delete_records([DeleteRecords(partition, -1)])
    owners = {}
    for is_owner in (True, False):
        files = await bench.coordinator.deletable_files(
            before_ms=2**60, after=(-1, -1), limit=10, is_owner=is_owner
        )
        assert all(file.is_owner is is_owner for _, file in files)
        owners[is_owner] = [file.owner_ids for _, file in files]
    assert owners == {True: [(0,), (0, 2), ()], False: [(2, 0), (2,)]}
