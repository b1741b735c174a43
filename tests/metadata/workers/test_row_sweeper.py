"""Sweeping what deleted topics left behind, by a worker that retries."""

from pathlib import Path

from metadata.apply.apply_topics import SWEPT_WITH_TOPIC_MAX
from metadata.records.control import RowsSweptRecord
from metadata.replica.verify import check_state
from metadata.retention_settings import RetentionSettings
from metadata.workers.row_sweeper import RowSweeper
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from tests.support.coordinators.pauses import first_pauses
from wal.clock import Sleep
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, UnknownPartition

FILES = 17
ROWS = SWEPT_WITH_TOPIC_MAX + 1_200
assert ROWS % FILES == 0

NOT_COALESCED = 600_000
"""Bytes of a batch of which no two make one row."""


async def count(bench: CoordinatorBench, table: str) -> int:
    return await bench.coordinator.replica.state.read(
        lambda connection: connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
    )


async def deleted_topic(bench: CoordinatorBench) -> TopicIdPartition:
    """A topic of ROWS rows, whose files have a batch of another topic; it was deleted."""
    doomed, other = await bench.partition("doomed"), await bench.partition("other")
    for _ in range(FILES):
        many = [batch(doomed, size=NOT_COALESCED)] * (ROWS // FILES)
        await bench.commit(*many, batch(other))
    await bench.coordinator.delete_topics([doomed.topic_id])
    return doomed


async def test_the_topic_is_gone_at_once_and_its_rows_when_they_were_swept(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    doomed = await deleted_topic(bench)
    assert isinstance((await bench.find(doomed, 0)).error, UnknownPartition)
    assert bench.coordinator.replica.high_watermark(doomed) is None
    assert await count(bench, "batches") == ROWS - SWEPT_WITH_TOPIC_MAX + FILES
    sweeper = RowSweeper(bench.coordinator, settings=RetentionSettings(step_rows_max=500))
    assert await sweeper.pass_once() == 3
    assert await count(bench, "batches") == FILES
    assert await bench.coordinator.replica.state.read(check_state) == []
    assert sum(isinstance(record, RowsSweptRecord) for record in log.records()) == 3
    assert await sweeper.pass_once() == 0


async def test_a_topic_of_the_same_name_can_be_made_before_the_rows_are_gone(
    bench: CoordinatorBench,
) -> None:
    await deleted_topic(bench)
    again = await bench.partition("doomed")
    await bench.commit_one(again, 3)
    await RowSweeper(bench.coordinator, settings=RetentionSettings()).pass_once()
    assert bench.coordinator.replica.high_watermark(again) == 3
    found = await bench.find(again, 0)
    assert [extent.last_offset for extent in found.extents] == [2]


async def test_sweeping_goes_on_after_a_restart(tmp_path: Path, log: MemoryMetadataLog) -> None:
    async with running_coordinator(tmp_path, log) as bench:
        await deleted_topic(bench)
        await bench.coordinator.sweep_rows(100)
        before = bench.coordinator.replica.state_hash
    (tmp_path / "state.sqlite").unlink()
    async with running_coordinator(tmp_path, log) as bench:
        assert bench.coordinator.replica.state_hash == before
        await RowSweeper(bench.coordinator, settings=RetentionSettings()).pass_once()
        assert await count(bench, "batches") == FILES
        assert await bench.coordinator.replica.state.read(check_state) == []


async def test_it_tries_again_after_a_failure(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    await deleted_topic(bench)
    log.failures.append(CommitFailed("disk full"))
    settings = RetentionSettings(sweep_interval_ms=1_000)

    async def run(sleep: Sleep) -> None:
        await RowSweeper(bench.coordinator, settings=settings, sleep=sleep).run()

    assert await first_pauses(3, run) == [1, 2, 1]
    assert await count(bench, "swept") == 0
