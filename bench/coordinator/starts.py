"""Part `starts`: what a million committed batches weigh, and how soon a broker is up with them.

Real history this time: a broker is started on an empty directory and stopped, then ROWS batches are
committed to its metadata partition, in files that have one batch of each of many partitions, so
that every batch is a row of its own. From that log and state come all figures: their sizes, a
replay from zero into another directory (its state hash must be the same), a snapshot into a
directory of its own, and starts of `diskless serve` on the broker's directory, from the launch of
the process to its `ready` line: after a clean stop, and after SIGKILL, which leaves doubt, so that
every row is checked.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench.coordinator.files import Files
from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.coordinator_bed import CLOCK, CLUSTER_ID, Bed, coordinating, run, settle
from bench.tools.report import Report
from metadata.log.local_log import LOG_DIRECTORY, LocalMetadataLog
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from metadata.state.state import STATE_FILE
from metadata.workers.snapshot_keeper import SnapshotKeeper, SnapshotSettings
from wal.stores.file_store import FileStore

ROWS: Final = 1_000_000
PARTITIONS: Final = 632
STARTS: Final = 3
FILLING_AT_ONCE: Final = 4
"""Commits under way: enough to keep the pipeline full."""

_METADATA: Final = Path("metadata") / "0"
_BYTES_BEFORE_KILL: Final = 2_000_000


class StateFigures(NamedTuple):
    """Of the log and the state after `rows` batches in `records` records of the log."""

    rows: int
    records: int
    fill_s: float
    log_bytes: int
    state_bytes: int
    replay_s: float
    snapshot_s: float
    snapshot_bytes: int


def run_starts(report: Report) -> None:
    report.step(f"starts: {ROWS:,} committed batches of {PARTITIONS} partitions")
    with fresh_directory() as directory:
        empty_s = [
            _start_and_stop_s(BenchBroker(directory / f"empty-{number}" / "data", {}))
            for number in range(STARTS)
        ]
        data = directory / "empty-0" / "data"
        broker = BenchBroker(data, {})
        with report.progress("committing batches") as progress:
            figures = run(measure_state(data / _METADATA, directory, on_progress=progress))
        clean_s = [_start_and_stop_s(broker) for _ in range(STARTS)]
        crash_s = [_start_after_kill_s(broker) for _ in range(STARTS)]
    report.add(
        "start_empty_s",
        statistics.median(empty_s),
        "s",
        bound="≤ 2",
        note=f"`diskless serve` on an empty directory, to its ready line, median of {len(empty_s)}",
    )
    for key, starts, after in (
        ("start_1m_clean_s", clean_s, "a clean stop"),
        ("start_1m_crash_s", crash_s, "SIGKILL"),
    ):
        report.add(
            key,
            statistics.median(starts),
            "s",
            bound="≤ 5",
            note=f"{figures.rows:,} committed batches, after {after}, median of {len(starts)}",
        )
    report.add("sqlite_bytes_per_row", figures.state_bytes / figures.rows, "bytes")
    report.add(
        "log_bytes_per_single_batch",
        figures.log_bytes / figures.rows,
        "bytes",
        note="where a file has one batch per partition",
    )
    report.add(
        "replay_records_per_s",
        figures.records / figures.replay_s,
        "/s",
        note=f"from zero in {figures.replay_s:.1f} s, {PARTITIONS} batches per record",
    )
    report.add("replay_batches_per_s", figures.rows / figures.replay_s, "/s")
    report.add("fill_batches_per_s", figures.rows / figures.fill_s, "/s", note="live commits")
    report.add(
        "snapshot_s",
        figures.snapshot_s,
        "s",
        note=f"{figures.rows:,} rows: copied, stored in {figures.snapshot_bytes / 1e6:.0f} MB, "
        "loaded again, every row checked, published",
    )


async def measure_state(
    metadata: Path,
    scratch: Path,
    *,
    rows: int = ROWS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> StateFigures:
    """Commit to the metadata partition in `metadata`; `scratch` is for copies."""
    files = -(-rows // PARTITIONS)
    async with coordinating(metadata) as bed:
        written = await bed.topic("written", PARTITIONS)
        settle()
        first_offset = bed.partition.log.end_offset
        first_bytes = _size_of(metadata / LOG_DIRECTORY)
        started = time.perf_counter()
        await _fill(bed, Files(written, PARTITIONS), files, on_progress)
        fill_s = time.perf_counter() - started
        records = bed.partition.log.end_offset - first_offset
        log_bytes = _size_of(metadata / LOG_DIRECTORY) - first_bytes
        snapshot_s, snapshot_bytes = await _snapshot(bed, scratch / "snapshots")
        state_hash = bed.partition.replica.state_hash
    return StateFigures(
        rows=files * PARTITIONS,
        records=records,
        fill_s=fill_s,
        log_bytes=log_bytes,
        state_bytes=(metadata / STATE_FILE).stat().st_size,
        replay_s=await _replay_s(metadata / LOG_DIRECTORY, scratch / "replayed", state_hash),
        snapshot_s=snapshot_s,
        snapshot_bytes=snapshot_bytes,
    )


async def _fill(
    bed: Bed, files: Files, count: int, on_progress: Callable[[int, int], None]
) -> None:
    left = iter(range(1, count + 1))

    async def commit() -> None:
        for number in left:
            for answer in await bed.client.commit_file(files.next()):
                if answer.error is not None:
                    raise answer.error
            on_progress(number, count)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(FILLING_AT_ONCE):
            tasks.create_task(commit())


async def _snapshot(bed: Bed, directory: Path) -> tuple[float, int]:
    """Seconds of taking one, and the bytes that it has in the store."""
    rng = random.Random(3)
    async with FileStore(directory, clock=CLOCK, rng=rng) as store:
        keeper = SnapshotKeeper(
            bed.partition.replica.state,
            bed.partition.log,
            SnapshotStore(store, partition=0, cluster_id=CLUSTER_ID),
            settings=SnapshotSettings(),
            clock=CLOCK,
            rng=rng,
        )
        started = time.perf_counter()
        manifest = await keeper.take_once()
        snapshot_s = time.perf_counter() - started
    assert manifest is not None
    assert manifest.applied.state_hash == bed.partition.replica.state_hash
    return snapshot_s, manifest.stored_bytes


async def _replay_s(log_directory: Path, directory: Path, state_hash: int) -> float:
    """Seconds from the whole log to a state that is as good as the one it was written with."""
    log = await LocalMetadataLog.open(log_directory, rng=random.Random(4))
    replica = Replica(directory, settings=CoordinatorSettings())
    try:
        started = time.perf_counter()
        await replica.open(log)
        replay_s = time.perf_counter() - started
        assert replica.state_hash == state_hash
    finally:
        await replica.close()
        await log.close()
    return replay_s


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def _start_s(broker: BenchBroker) -> float:
    started = time.perf_counter()
    broker.start()
    return time.perf_counter() - started


def _start_and_stop_s(broker: BenchBroker) -> float:
    seconds = _start_s(broker)
    broker.stop()
    return seconds


def _start_after_kill_s(broker: BenchBroker) -> float:
    """It is killed when it has just written, so that not all of its state is in a checkpoint."""
    with broker:
        load.produce(
            broker.bootstrap, record_bytes=100, total_bytes=_BYTES_BEFORE_KILL, partitions=1
        )
        broker.kill()
        return _start_s(broker)
