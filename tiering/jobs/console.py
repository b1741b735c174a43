"""What `diskless tier` prints: a progress bar or lines, and summaries of what a pass did."""

from collections.abc import Sequence
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from tiering.jobs.passes import PassReport
from tiering.jobs.rewrites import RewriteReport
from tiering.jobs.rolls import RollReport
from tiering.rounds import Failure, Progress, Sizes
from tiering.tables.report import TablesReport

_DOES: Final = {"roll": "rolling", "merge": "merging", "compact": "compacting"}


class ConsoleProgress(Progress):
    """A bar on a terminal, lines elsewhere; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("planning", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, job: str, count: int) -> None:
        self._bar.reset(self._task, total=count, description=_DOES[job])
        self._console.print(f"{_DOES[job]}: {count:,} due")

    def written(self, done: int) -> None:
        self._bar.update(self._task, completed=done)

    def committed(self, job: str, sizes: Sequence[Sizes]) -> None:
        self._console.print(f"{_DOES[job]}: {len(sizes):,} committed")

    def failed(self, job: str, failure: Failure) -> None:
        print_line(self._console, f"FAILED {failure}")

    def not_typed(self, topic_name: str, side: str, reason: str) -> None:
        line = f"NOT TYPED {topic_name}: its {side}s are bytes only: {reason}"
        print_line(self._console, line)


def print_pass(console: Console, report: PassReport, *, also_nothing: bool) -> None:
    """What a pass did; of a roll without anything to do only if `also_nothing`."""
    if also_nothing or report.rolled.committed or report.rolled.failures:
        print_roll(console, report.rolled, report.roll_s)
    print_merges(console, report.merged, report.merge_s)
    print_compaction(console, report.compacted)
    print_tables(console, report.tables)


def print_line(console: Console, line: str) -> None:
    """A line as it is, with whatever names are in it."""
    console.print(line, markup=False, soft_wrap=True)


def print_roll(console: Console, report: RollReport, elapsed_s: float) -> None:
    """The summary of a roll."""
    work = report.work
    rows = [
        ("segments", f"{len(report.segments):,}"),
        ("records", f"{report.record_count:,}"),
        ("bytes in WAL objects", f"{report.input_bytes:,}"),
        ("bytes as Parquet", f"{report.output_bytes:,}"),
        ("seconds, with Spark's start", f"{elapsed_s:.1f}"),
        ("MB/s", _rate(report.input_bytes, elapsed_s)),
    ]
    if work.gets:
        rows += [
            ("MB/s of a task", _rate(report.input_bytes, work.seconds)),
            ("GETs", f"{work.gets:,}"),
            ("bytes read ÷ rolled", f"{work.get_bytes / max(report.input_bytes, 1):.2f}"),
        ]
    seldom = {
        "records of aborted transactions, left out": report.aborted_count,
        "batches not decodable, kept as sent": report.raw_batch_count,
        "keys and values that do not fit": report.untyped_count,
        "schemas without columns": len(report.schema_problems),
        "of topics deleted meanwhile": len(report.withdrawn),
    }
    rows += [(name, f"{count:,}") for name, count in seldom.items() if count]
    _print(console, "rolled", [*rows, ("failed", f"{len(report.failures):,}")])


def print_merges(console: Console, report: RewriteReport, elapsed_s: float) -> None:
    """What a pass merged; nothing when there was nothing to do."""
    if report.segments:
        rows = [
            ("segments", f"{report.input_count:,} into {len(report.segments):,}"),
            ("records", f"{report.record_count:,}"),
            ("bytes before", f"{report.input_bytes:,}"),
            ("bytes after", f"{report.output_bytes:,}"),
            ("seconds", f"{elapsed_s:.1f}"),
            ("failed", f"{len(report.failures):,}"),
        ]
        _print(console, "merged", rows)


def print_compaction(console: Console, report: RewriteReport) -> None:
    """What was compacted; nothing when there was nothing to do."""
    if report.rewrites:
        rows = [
            ("partitions", f"{len(report.rewrites):,}"),
            ("records removed", f"{report.removed_count:,}"),
            ("segments written anew", f"{len(report.segments):,}"),
            ("bytes of their segments", f"{report.input_bytes:,}"),
            ("bytes read for keys", f"{report.work.key_bytes:,}"),
            ("MB/s", _rate(report.input_bytes, report.work.seconds)),
        ]
        _print(console, "compacted", rows)


def print_tables(console: Console, report: TablesReport) -> None:
    """A line for each table that changed or failed, and one for those that wait."""
    for table in report.tables:
        if table.new_uuid:
            console.print(f"table {table.topic_name}: made, UUID {table.new_uuid}")
        if table.is_committed:
            console.print(
                f"table {table.topic_name}: files: {table.added:,} more, {table.removed:,} less, "
                f"{table.file_count:,} in all"
            )
        if table.failure:
            print_line(console, f"FAILED table {table.topic_name}: {table.failure}")
    if report.waiting:
        console.print(f"{report.waiting:,} tables wait for their table.commit.interval.ms")


def _print(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A table of two columns."""
    table = Table(title, "", show_edge=False)
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _rate(size_bytes: int, seconds: float) -> str:
    return f"{size_bytes / 1e6 / max(seconds, 1e-3):.1f}"
