"""Group `hour`: what an hour of 1 MB/s leaves behind, and what everything takes that walks over it.

The hour is produced at full speed. Small batches that go round the partitions, and chunks of
128 KiB, make small objects with a few rows each. Then the same directory is restarted, verified,
scanned for orphans and rolled.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench.speed.consuming import tier
from bench.speed.puts import written_at
from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.fixed_interval import fixed_interval
from bench.tools.report import Report
from demo.broker_process import run_diskless
from metadata.state.schema import BATCHES
from metadata.state.state import STATE_FILE

HOUR_BYTES: Final = 3_600_000_000
CHUNK_BYTES: Final = 128 << 10
BATCH_RECORDS: Final = 15
RECORD_BYTES: Final = 1024
PARTITIONS: Final = 12
VERIFY_S: Final = 600.0
SCAN_S: Final = 120.0
_GIB: Final = 1 << 30
_SEEN: Final = 'diskless_orphan_scan_objects_total{partition="0",result="seen"}'
_POLL_S: Final = 0.1

SCAN_SETTINGS: Final = {
    "diskless.coordinator.max.commit.age.ms": 1_000,
    "diskless.coordinator.clock.skew.max.ms": 0,
    "diskless.coordinator.orphan.scan.grace.period.ms": 0,
    "diskless.coordinator.orphan.scan.interval.ms": 1_000,
}
"""Every object is old enough to be looked at, and a round has no long pauses."""


class HourFigures(NamedTuple):
    """Seconds, unless the name says otherwise."""

    produced_gib: float
    produce_mb_per_s: float
    objects: int
    rows: int
    log_bytes: int
    state_bytes: int
    restart_after_kill_s: float
    restart_s: float
    verify_s: float
    orphan_scan_s: float
    orphan_scan_cpu_s: float
    roll_s: float


def run_hour(report: Report) -> None:
    """All of it, per GiB where it grows with the bytes."""
    report.step(f"hour: {HOUR_BYTES / 1e9:.1f} GB in objects of {CHUNK_BYTES >> 10} KiB")
    with report.progress("hour") as progress:
        figures = measure_hour(progress=progress)
    gib = figures.produced_gib
    report.add("hour_produce_mb_per_s", figures.produce_mb_per_s, "MB/s", note="plain")
    report.add("hour_objects_per_gib", figures.objects / gib, "/GiB")
    report.add("hour_rows_per_gib", figures.rows / gib, "/GiB", note="runs of batches in SQLite")
    for name, size in (("log", figures.log_bytes), ("state", figures.state_bytes)):
        report.add(f"hour_metadata_{name}_mb_per_gib", size / 1e6 / gib, "MB/GiB")
    report.add("hour_restart_s", figures.restart_s, "s", bound="≤ 2", note="after a clean stop")
    report.add("hour_restart_after_kill_s", figures.restart_after_kill_s, "s", bound="≤ 2")
    report.add("hour_verify_s", figures.verify_s, "s")
    report.add("hour_orphan_scan_s", figures.orphan_scan_s, "s", note="one round, from the start")
    report.add("hour_orphan_scan_cpu_s", figures.orphan_scan_cpu_s, "core-s", note="the broker's")
    report.add("hour_roll_s", figures.roll_s, "s", note="with Spark's start")


def measure_hour(
    *,
    total_bytes: int = HOUR_BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> HourFigures:
    """Produce `total_bytes`, then do to them what is done to an hour. Raises RuntimeError."""
    settings = {
        "num.partitions": PARTITIONS,
        "wal.chunk.max.bytes": CHUNK_BYTES,
        **fixed_interval(250),
    }
    steps = iter(range(1, 6))

    def done() -> None:
        progress(next(steps), 5)

    with fresh_directory() as directory:
        data = directory / "data"
        broker = BenchBroker(data, settings)
        with broker:
            produced = load.produce(
                broker.bootstrap,
                record_bytes=RECORD_BYTES,
                total_bytes=total_bytes,
                partitions=PARTITIONS,
                settings={
                    "enable.idempotence": False,
                    "batch.num.messages": BATCH_RECORDS,
                    "linger.ms": 5,
                },
                call_records=BATCH_RECORDS,
            )
            done()
            broker.kill()
            started = time.perf_counter()
            broker.start()
            restart_after_kill_s = time.perf_counter() - started
        started = time.perf_counter()
        with broker:
            restart_s = time.perf_counter() - started
        done()
        rows, log_bytes, state_bytes = _metadata(data)
        objects = len(written_at(data))
        verify_s = _verified(data, directory / "verify.log")
        done()
        orphan_scan_s, orphan_scan_cpu_s = _scanned(data, objects)
        done()
        with BenchBroker(data, {}) as broker:
            started = time.perf_counter()
            tier(broker.bootstrap)
            roll_s = time.perf_counter() - started
        done()
    return HourFigures(
        produced_gib=produced.bytes / _GIB,
        produce_mb_per_s=produced.mb_per_s,
        objects=objects,
        rows=rows,
        log_bytes=log_bytes,
        state_bytes=state_bytes,
        restart_after_kill_s=restart_after_kill_s,
        restart_s=restart_s,
        verify_s=verify_s,
        orphan_scan_s=orphan_scan_s,
        orphan_scan_cpu_s=orphan_scan_cpu_s,
        roll_s=roll_s,
    )


def _metadata(data: Path) -> tuple[int, int, int]:
    """Rows of batches, bytes of the metadata log, bytes of SQLite's files, of a stopped broker."""
    directory = data / "metadata" / "0"
    with contextlib.closing(sqlite3.connect(directory / STATE_FILE)) as state:
        ((rows,),) = state.execute(f"SELECT count(*) FROM {BATCHES.table.name}")
    state_files = list(directory.glob(f"{STATE_FILE}*"))
    log_files = [path for path in (directory / "log").rglob("*") if path.is_file()]
    return int(rows), _size(log_files), _size(state_files)


def _size(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _verified(data: Path, log: Path) -> float:
    """Seconds of `diskless verify`. Raises RuntimeError when it finds something."""
    started = time.perf_counter()
    status = run_diskless(["verify", "--data", data], log, VERIFY_S)
    if status:
        raise RuntimeError(f"diskless verify ended with {status}: {log.read_text()[-2000:]}")
    return time.perf_counter() - started


def _scanned(data: Path, objects: int) -> tuple[float, float]:
    """Seconds and processor time until a broker that just started has seen all `objects`."""
    with BenchBroker(data, SCAN_SETTINGS) as broker:
        used_s = broker.cpu_s()
        started = time.perf_counter()
        while broker.metrics().get(_SEEN, 0) < objects:
            if time.perf_counter() - started > SCAN_S:
                raise RuntimeError("the orphan scan did not see all objects")
            time.sleep(_POLL_S)
        return time.perf_counter() - started, broker.cpu_s() - used_s
