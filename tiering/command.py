"""`diskless tier`: roll and merge, with a progress bar and a summary, once or again and again.

Called by the command line alone. On a terminal the bar shows the segments of the current round; in
a log file there is one line per round. When all is rolled, small segments are merged, and compacted
topics compacted, as far as that is due. After that the tables of the topics follow
(tiering/tables). The exit status is 0 when everything that was due was done, else 1. Batches that
could not be decoded are told of and are no failure: their segment is made, and consumers get them
as before. So it is with keys and values that do not fit a schema.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from metadata.operations import WHATEVER_IS_DUE, PlanSegments, RolledSegment, SegmentPlan
from metadata.rewrites import PlanRewrites
from metadata.table_operations import ListTables
from tiering.compaction.job import CompactionReport, Compactor, compact_once
from tiering.coordinator_client import CoordinatorClient
from tiering.job import Progress as JobProgress
from tiering.job import Roller, RollFailure, RollReport, run_once
from tiering.merging.job import Merger, MergeReport, merge_once
from tiering.tables.passes import TablePasses
from tiering.tables.report import TablesReport
from tiering.types.registry import HttpRegistry, RegistrySettings
from wal import failpoint
from wal.clock import Clock, SystemClock
from wal.errors import InvalidSettings, OutcomeUnknown, Retriable
from wal.security.client_security import PLAINTEXT, ClientSecurity


def tier(
    *,
    bootstrap: str,
    security: ClientSecurity = PLAINTEXT,
    master: str | None = None,
    spark_settings: Mapping[str, str] | None = None,
    once: bool = True,
    asked: PlanSegments = WHATEVER_IS_DUE,
    interval_s: float = 60.0,
    object_store_url: str | None = None,
    registry: RegistrySettings | None = None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Roll what is due, merge, compact; without `once`, every `interval_s` seconds again.

    `master` and `spark_settings` win over what Spark is told otherwise, which wins over ours.
    Returns the exit status. Raises InvalidSettings and Rejected, and with `once` what
    `tiering.job.run_once` raises when no broker answers; without it the next pass tries again.
    """
    failpoint.arm_from_environment()
    clock = clock or SystemClock()
    console = Console(highlight=False)

    def one_pass(roller: Roller, merger: Merger, compactor: Compactor, tables: TablePasses) -> bool:
        started = clock.monotonic()
        with ConsoleProgress(console) as progress:
            report = run_once(
                bootstrap,
                security=security,
                roller=roller,
                asked=asked,
                object_store_url=object_store_url,
                # Asked anew in each pass: what it answers for an id is all that it may keep.
                registry=None if registry is None else HttpRegistry(registry, clock),
                progress=progress,
                sleep=sleep,
            )
        print_report(console, report, clock.monotonic() - started)
        wanted = PlanRewrites(topics=asked.topics, excluded_topics=asked.excluded_topics)
        started = clock.monotonic()
        merged = merge_once(
            bootstrap,
            security=security,
            merger=merger,
            asked=wanted,
            object_store_url=object_store_url,
            sleep=sleep,
        )
        print_merges(console, merged, clock.monotonic() - started)
        compacted = compact_once(
            bootstrap,
            security=security,
            compactor=compactor,
            asked=wanted,
            object_store_url=object_store_url,
            sleep=sleep,
        )
        print_compaction(console, compacted)
        written = tables.run_pass()
        print_tables(console, written)
        return not (report.failures or merged.failures or compacted.failures or written.failures)

    passes = TablePasses(
        CoordinatorClient(bootstrap, security),
        ListTables(asked.topics, asked.excluded_topics),
        object_store_url=object_store_url,
        clock=clock,
        rng=random.SystemRandom(),
        sleep=sleep,
    )
    roller_class, merger_class, compactor_class = _spark_classes()
    new_roller = partial(roller_class, spark_settings=spark_settings, registry=registry)
    with new_roller(master) as roller, passes as tables:
        merger, compactor = merger_class(roller), compactor_class(roller)
        if once:
            return 0 if one_pass(roller, merger, compactor, tables) else 1
        while True:
            try:
                one_pass(roller, merger, compactor, tables)
            except (Retriable, OutcomeUnknown) as error:
                line = f"this pass failed, the next one tries again: {error}"
                console.print(line, markup=False, soft_wrap=True)
            sleep(interval_s)


class ConsoleProgress(JobProgress):
    """A bar on a terminal, lines elsewhere; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("rolling segments"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("roll", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, plans: Sequence[SegmentPlan]) -> None:
        self._bar.reset(self._task, total=len(plans))
        records = sum(plan.last_offset - plan.base_offset + 1 for plan in plans)
        self._console.print(f"{len(plans):,} segments are due, {records:,} records")

    def rolled(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    def committed(self, segments: Sequence[RolledSegment]) -> None:
        self._bar.update(self._task, completed=len(segments))
        self._console.print(f"{len(segments):,} segments committed")

    def failed(self, failure: RollFailure) -> None:
        line = f"FAILED {failure.object_key}: {failure.reason}"
        self._console.print(line, markup=False, soft_wrap=True)

    def not_typed(self, topic_name: str, side: str, reason: str) -> None:
        line = f"NOT TYPED {topic_name}: its {side}s are bytes only: {reason}"
        self._console.print(line, markup=False, soft_wrap=True)


def print_report(console: Console, report: RollReport, elapsed_s: float) -> None:
    """The summary of one pass, as a table of two columns."""
    table = Table("rolled", "", show_edge=False)
    table.columns[1].justify = "right"
    table.add_row("segments", f"{len(report.segments):,}")
    table.add_row("records", f"{report.record_count:,}")
    table.add_row("bytes in WAL objects", f"{report.wal_bytes:,}")
    table.add_row("bytes as Parquet", f"{report.segment_bytes:,}")
    table.add_row("seconds, with Spark's start", f"{elapsed_s:.1f}")
    table.add_row("MB/s", f"{report.wal_bytes / 1e6 / max(elapsed_s, 1e-3):.1f}")
    work = report.work
    if work.gets:
        table.add_row("MB/s of a task", f"{report.wal_bytes / 1e6 / max(work.seconds, 1e-3):.1f}")
        table.add_row("GETs", f"{work.gets:,}")
        table.add_row("bytes read ÷ rolled", f"{work.get_bytes / max(report.wal_bytes, 1):.2f}")
    if report.raw_batch_count:
        table.add_row("batches not decodable, kept as sent", f"{report.raw_batch_count:,}")
    if report.untyped_count:
        table.add_row("keys and values that do not fit", f"{report.untyped_count:,}")
    if report.schema_problems:
        table.add_row("schemas without columns", f"{len(report.schema_problems):,}")
    if report.withdrawn:
        table.add_row("of topics deleted meanwhile", f"{len(report.withdrawn):,}")
    table.add_row("failed", f"{len(report.failures):,}")
    console.print(table)


def print_tables(console: Console, report: TablesReport) -> None:
    """A line for each table that changed or failed, and one for those that wait."""
    for table in report.tables:
        if table.new_uuid:
            console.print(f"table {table.topic_name}: made anew, UUID {table.new_uuid}")
        if table.is_committed:
            console.print(
                f"table {table.topic_name}: {table.added:,} files more, {table.removed:,} less, "
                f"{table.file_count:,} in all"
            )
        if table.failure:
            line = f"FAILED table {table.topic_name}: {table.failure}"
            console.print(line, markup=False, soft_wrap=True)
    if report.waiting:
        console.print(f"{report.waiting:,} tables wait for their table.commit.interval.ms")


def print_merges(console: Console, report: MergeReport, elapsed_s: float) -> None:
    """What a pass merged, and what it could not; nothing when there was nothing to do."""
    for failure in report.failures:
        console.print(f"FAILED {failure}", markup=False, soft_wrap=True)
    if not report.segments:
        return
    table = Table("merged", "", show_edge=False)
    table.columns[1].justify = "right"
    table.add_row("segments", f"{report.input_count:,} into {len(report.segments):,}")
    table.add_row("records", f"{report.record_count:,}")
    table.add_row("bytes before", f"{report.input_bytes:,}")
    table.add_row("bytes after", f"{report.segment_bytes:,}")
    table.add_row("seconds", f"{elapsed_s:.1f}")
    table.add_row("failed", f"{len(report.failures):,}")
    console.print(table)


def print_compaction(console: Console, report: CompactionReport) -> None:
    """What was compacted, as a table of two columns, and what could not be; nothing if nothing."""
    if report.rewrites:
        table = Table("compacted", "", show_edge=False)
        table.columns[1].justify = "right"
        table.add_row("partitions", f"{len(report.rewrites):,}")
        table.add_row("records removed", f"{report.removed_count:,}")
        table.add_row("segments written anew", f"{report.segment_count:,}")
        table.add_row("bytes of their segments", f"{report.input_bytes:,}")
        table.add_row("bytes read for keys", f"{report.work.key_bytes:,}")
        table.add_row("MB/s", f"{report.input_bytes / 1e6 / max(report.work.seconds, 1e-3):.1f}")
        console.print(table)
    for topic_name, partition, reason in report.failures:
        line = f"FAILED to compact {topic_name}-{partition.partition}: {reason}"
        console.print(line, markup=False, soft_wrap=True)


def _spark_classes() -> tuple[
    Callable[..., AbstractContextManager[Roller]],
    Callable[[Any], Merger],
    Callable[[Any], Compactor],
]:
    """Raises InvalidSettings when PySpark is not installed; it is an extra of this package."""
    try:
        from tiering.compaction.spark_compactor import SparkCompactor
        from tiering.merging.spark_merger import SparkMerger
        from tiering.spark_roller import SparkRoller
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "py4j"):
            raise
        raise InvalidSettings("rolling needs PySpark: pip install 'diskless[tiering]'") from error
    return SparkRoller, SparkMerger, SparkCompactor
