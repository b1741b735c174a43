"""Group `retention`: how long a commit waits while a million rows are deleted.

A coordinator on a local metadata log gets its rows by ordinary commits: files that have one row of
each of many partitions, which is the layout that makes deleting expensive, since the rows of one
partition lie in as many files. Then small files are committed one after the other, first alone,
then while one retention pass deletes all rows of all partitions by age, then while a topic of as
many rows is deleted and its rows are swept.

What counts is the longest of those commits, from the call to the answer. The longest one without
any deletion is shown beside it: what the machine and its disk do to a commit by themselves.
"""

import asyncio
import gc
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.broker import fresh_directory
from bench.report import Report
from metadata.coordinator import PartitionCoordinator
from metadata.local_log import LocalMetadataLog
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile, CreateTopic, TopicDescription
from metadata.replica import Replica
from metadata.retention import RetentionWorker
from metadata.retention_settings import RetentionSettings
from metadata.row_sweeper import RowSweeper
from wal.clock import SystemClock
from wal.coordinates import (
    CREATE_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchExtent,
    ByteOffset,
    TopicIdPartition,
)
from wal.ulid import mint_ulid, wal_object_key

ROWS: Final = 1_000_000
PARTITIONS: Final = 100
ALONE_S: Final = 5.0
BATCH_BYTES: Final = 1_000
OLD_MS: Final = 1_000
"""A timestamp long before any retention."""

_FILLING_AT_ONCE: Final = 16
_CLOCK: Final = SystemClock()


class Waits(NamedTuple):
    """Latencies of commits, in milliseconds."""

    commits: int
    median_ms: float
    longest_ms: float


class RetentionFigures(NamedTuple):
    """What was measured; `pass_s` and `sweep_s` with the commits beside them."""

    rows: int
    alone: Waits
    during_pass: Waits
    pass_s: float
    during_delete: Waits
    sweep_s: float


def run_retention(report: Report) -> None:
    report.step(f"retention: {ROWS:,} rows of {PARTITIONS} partitions, and a topic of as many")
    with fresh_directory() as directory:
        figures = asyncio.run(measure_retention(directory))
    beside = f"alone: median {figures.alone.median_ms:.1f}, longest {figures.alone.longest_ms:.1f}"
    report.add(
        "retention_block_ms",
        figures.during_pass.longest_ms,
        "ms",
        bound="≤ 50",
        note=f"longest of {figures.during_pass.commits} commits, {beside}",
    )
    report.add("retention_commit_ms", figures.during_pass.median_ms, "ms", note="median meanwhile")
    report.add("retention_rows_per_s", figures.rows / figures.pass_s, "/s")
    report.add(
        "delete_topic_block_ms",
        figures.during_delete.longest_ms,
        "ms",
        bound="≤ 50",
        note=f"longest of {figures.during_delete.commits} commits",
    )
    report.add("sweep_rows_per_s", figures.rows / figures.sweep_s, "/s")


async def measure_retention(
    directory: Path, *, rows: int = ROWS, partitions: int = PARTITIONS
) -> RetentionFigures:
    """Measure in an empty `directory`; `rows` is a multiple of `partitions`."""
    async with _coordinator(directory) as coordinator:
        (probe,) = await _topic(coordinator, "probe", 1)
        writer = _Writer(coordinator)
        expiring = await _topic(coordinator, "expiring", partitions)
        await writer.fill(expiring, rows // partitions)
        _settle()
        alone = await writer.commit_while(probe, lambda: asyncio.sleep(ALONE_S))
        worker = RetentionWorker(coordinator, settings=RetentionSettings(), clock=_CLOCK)
        started = time.monotonic()
        during_pass = await writer.commit_while(probe, worker.pass_once)
        pass_s = time.monotonic() - started
        assert worker.rows_deleted >= rows
        doomed = await _topic(coordinator, "doomed", partitions)
        await writer.fill(doomed, rows // partitions)
        _settle()
        sweeper = RowSweeper(coordinator, settings=RetentionSettings())

        async def delete() -> None:
            await coordinator.delete_topics([doomed[0].topic_id])
            await sweeper.pass_once()

        started = time.monotonic()
        during_delete = await writer.commit_while(probe, delete)
        sweep_s = time.monotonic() - started
    return RetentionFigures(rows, alone, during_pass, pass_s, during_delete, sweep_s)


@asynccontextmanager
async def _coordinator(directory: Path) -> AsyncIterator[PartitionCoordinator]:
    rng = random.Random(1)
    log = await LocalMetadataLog.open(directory / "log", rng=rng)
    settings = CoordinatorSettings()
    replica = Replica(directory, settings=settings)
    try:
        await replica.open(log)
        coordinator = PartitionCoordinator(replica, log, clock=_CLOCK, rng=rng, settings=settings)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(coordinator.run())
            try:
                yield coordinator
            finally:
                await coordinator.stop()
                await replica.close()
    finally:
        await log.close()


async def _topic(
    coordinator: PartitionCoordinator, name: str, partitions: int
) -> Sequence[TopicIdPartition]:
    (created,) = await coordinator.create_topics(
        [CreateTopic(name=name, partition_count=partitions)]
    )
    assert isinstance(created, TopicDescription), created
    return [TopicIdPartition(created.topic_id, index) for index in range(partitions)]


def _settle() -> None:
    """As a broker does at its start: what is old is not looked at by the collector again."""
    gc.collect()
    gc.freeze()


class _Writer:
    """Commits files without uploading them: the coordinator never asks for the objects."""

    def __init__(self, coordinator: PartitionCoordinator) -> None:
        self._coordinator = coordinator
        self._rng = random.Random(2)

    def file(self, partitions: Sequence[TopicIdPartition], timestamp_ms: int) -> CommitFile:
        """One batch, and so one row, of each partition."""
        batches = [
            BatchExtent(
                partition=partition,
                byte_offset=ByteOffset(16 + number * BATCH_BYTES),
                length_bytes=BATCH_BYTES,
                record_count=10,
                crc=0,
                max_timestamp_ms=timestamp_ms,
                timestamp_type=CREATE_TIME,
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_PRODUCER_EPOCH,
                base_sequence=NO_SEQUENCE,
                request_id=0,
            )
            for number, partition in enumerate(partitions)
        ]
        return CommitFile(
            object_key=wal_object_key(mint_ulid(_CLOCK, self._rng)),
            file_size_bytes=16 + len(batches) * BATCH_BYTES + 64,
            uploader_broker_id=0,
            batches=batches,
        )

    async def fill(self, partitions: Sequence[TopicIdPartition], files: int) -> None:
        """Old rows: one per file and partition."""
        left = iter(range(files))

        async def commit() -> None:
            for _ in left:
                await self._coordinator.commit_file(self.file(partitions, OLD_MS))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_FILLING_AT_ONCE):
                tasks.create_task(commit())

    async def commit_while(
        self, probe: TopicIdPartition, work: Callable[[], Awaitable[object]]
    ) -> Waits:
        """Commit small, new files one after the other until `work` is done."""
        waits: list[float] = []
        working = asyncio.ensure_future(work())
        while not working.done():
            request = self.file([probe], _CLOCK.now_ms())
            started = time.perf_counter()
            await self._coordinator.commit_file(request)
            waits.append((time.perf_counter() - started) * 1_000)
        await working
        return Waits(len(waits), statistics.median(waits), max(waits))
