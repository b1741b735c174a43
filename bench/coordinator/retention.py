"""Part `retention`: how long a commit waits while a million rows are deleted.

The rows are generated (bench/coordinator/state.py): files that have one row of each of many
partitions, which is the layout that makes deleting expensive, since the rows of one partition lie
in as many files. Then small files are committed one after the other, first alone, then while one
retention pass deletes all rows of a topic by age, then while a topic of as many rows is deleted and
its rows are swept.

What counts is the longest of those commits, from the call to the answer. Beside it stand the
longest one without any deletion, and how much of the longest one this process's threads were ready
and had no CPU: what the machine, its disk and its other users do to a commit.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench.coordinator.files import Files
from bench.coordinator.state import FILE_INTERVAL_MS, GeneratedTopic, generate
from bench.tools.broker import fresh_directory
from bench.tools.coordinator_bed import CLOCK, Bed, coordinating, run, settle
from bench.tools.report import Report
from bench.tools.run_queue import waited_s
from metadata.retention_settings import RetentionSettings
from metadata.workers.retention import RetentionWorker
from metadata.workers.row_sweeper import RowSweeper

ROWS: Final = 1_000_000
PARTITIONS: Final = 100
ALONE_S: Final = 5.0
OLD_MS: Final = 1_000
"""A timestamp long before any retention."""


class Waits(NamedTuple):
    """Latencies of commits, in milliseconds."""

    commits: int
    median_ms: float
    longest_ms: float
    queued_ms: float
    """How much of the longest one some thread of this process waited for a CPU, at most."""

    def __str__(self) -> str:
        return f"longest of {self.commits} commits; it had no CPU for up to {self.queued_ms:.0f} ms"


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
    with fresh_directory() as directory, report.progress("generating rows") as progress:
        figures = run(measure_retention(directory, on_progress=progress))
    alone = figures.alone
    report.add(
        "retention_block_ms",
        figures.during_pass.longest_ms,
        "ms",
        bound="≤ 50",
        note=str(figures.during_pass),
    )
    report.add(
        "retention_alone_block_ms",
        alone.longest_ms,
        "ms",
        note=f"without a pass: {alone}; median {alone.median_ms:.1f}",
    )
    report.add("retention_commit_ms", figures.during_pass.median_ms, "ms", note="median meanwhile")
    report.add("retention_rows_per_s", figures.rows / figures.pass_s, "/s")
    report.add(
        "delete_topic_block_ms",
        figures.during_delete.longest_ms,
        "ms",
        bound="≤ 50",
        note=str(figures.during_delete),
    )
    report.add("sweep_rows_per_s", figures.rows / figures.sweep_s, "/s")


async def measure_retention(
    directory: Path,
    *,
    rows: int = ROWS,
    partitions: int = PARTITIONS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> RetentionFigures:
    """Measure in an empty `directory`; `on_progress` hears how many of how many rows are made."""
    done = 0

    def count(made: int) -> None:
        nonlocal done
        done += made
        on_progress(done, 2 * rows)

    now_ms = CLOCK.now_ms()
    expiring = GeneratedTopic("expiring", partitions, rows, OLD_MS)
    doomed = GeneratedTopic(
        "doomed", partitions, rows, now_ms - rows // partitions * FILE_INTERVAL_MS
    )
    await generate(directory, [expiring, doomed], now_ms=now_ms, on_progress=count)
    async with coordinating(directory) as bed:
        files = Files(await bed.topic("probe", 1), 1)
        await _commits_while(bed, files, lambda: asyncio.sleep(1))
        settle()
        alone = await _commits_while(bed, files, lambda: asyncio.sleep(ALONE_S))
        worker = RetentionWorker(bed.coordinator, settings=RetentionSettings(), clock=CLOCK)
        started = time.monotonic()
        during_pass = await _commits_while(bed, files, worker.pass_once)
        pass_s = time.monotonic() - started
        assert worker.rows_deleted >= rows
        sweeper = RowSweeper(bed.coordinator, settings=RetentionSettings())

        async def delete() -> None:
            await bed.client.delete_topics([doomed.topic_id])
            await sweeper.pass_once()

        started = time.monotonic()
        during_delete = await _commits_while(bed, files, delete)
        sweep_s = time.monotonic() - started
    return RetentionFigures(rows, alone, during_pass, pass_s, during_delete, sweep_s)


async def _commits_while(bed: Bed, files: Files, work: Callable[[], Awaitable[object]]) -> Waits:
    """Commit small files one after the other until `work` is done."""
    waits: list[tuple[float, float]] = []
    working = asyncio.ensure_future(work())
    while not working.done():
        file = files.next()
        queued_s = waited_s()
        started = time.perf_counter()
        (answer,) = await bed.client.commit_file(file)
        wait_s = time.perf_counter() - started
        waits.append((wait_s * 1_000, (waited_s() - queued_s) * 1_000))
        if answer.error is not None:
            raise answer.error
    await working
    longest_ms, queued_ms = max(waits)
    return Waits(
        commits=len(waits),
        median_ms=statistics.median(wait_ms for wait_ms, _ in waits),
        longest_ms=longest_ms,
        queued_ms=min(queued_ms, longest_ms),
    )
