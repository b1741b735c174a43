"""What the demo shows: steps with progress bars, one line per comparison, the tables at the end.

On a terminal a step is a moving bar; anywhere else it is one line when it starts and one when it
ends. `Screen.check` is the only way to claim something: the exit status follows from it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

BYTES_PER_MB: Final = 1_000_000


@dataclass(slots=True, kw_only=True)
class Step:
    """One step, filled in as it goes; a row of the final table."""

    title: str
    seconds: float = 0.0
    records: int | None = None
    size_bytes: int | None = None
    remark: str = ""

    @property
    def mb_per_s(self) -> float | None:
        if self.size_bytes is None or self.seconds <= 0:
            return None
        return self.size_bytes / BYTES_PER_MB / self.seconds


@dataclass(slots=True)
class Screen:
    """The console and the record of what was shown on it."""

    console: Console
    steps: list[Step] = field(default_factory=list)
    checks_held: int = 0
    checks_failed: list[str] = field(default_factory=list)

    @contextmanager
    def step(
        self, title: str, total: int | None = None
    ) -> Iterator[tuple[Step, Callable[[int], None]]]:
        """Show one step while the block runs; yields its row and `advance(n)`.

        Without `total` the bar only shows that something is going on.
        """
        step = Step(title=title)
        self.steps.append(step)
        started = time.monotonic()
        if self.console.is_terminal:
            progress = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                *([MofNCompleteColumn()] if total is not None else []),
                TimeElapsedColumn(),
                console=self.console,
            )
            with progress:
                task = progress.add_task(escape(title), total=total)
                yield step, lambda count: progress.advance(task, count)
                progress.update(task, total=total or 1, completed=total or 1)
        else:
            self.console.print(f"[bold]{escape(title)}[/] …")
            yield step, lambda count: None
        step.seconds = time.monotonic() - started
        if not self.console.is_terminal:
            self.console.print(f"  {step.seconds:.1f} s")

    def check(self, claim: str, held: bool, details: Sequence[str] = ()) -> None:
        """Record and show whether `claim` held; `details` say how it did not."""
        if held:
            self.checks_held += 1
            self.console.print(f"  [green]✓[/] {escape(claim)}")
            return
        self.checks_failed.append(claim)
        self.console.print(f"  [bold red]✗[/] {escape(claim)}")
        for detail in details:
            self.console.print(f"    {escape(detail)}")

    def print_steps(self) -> None:
        """The table of steps."""
        table = Table(title="What was done", title_justify="left")
        table.add_column("step")
        for name in ("records", "MB", "s", "MB/s"):
            table.add_column(name, justify="right")
        table.add_column("remark")
        for step in self.steps:
            table.add_row(
                escape(step.title),
                "" if step.records is None else f"{step.records:,}",
                "" if step.size_bytes is None else f"{step.size_bytes / BYTES_PER_MB:,.1f}",
                f"{step.seconds:,.1f}",
                "" if step.mb_per_s is None else f"{step.mb_per_s:,.1f}",
                escape(step.remark),
            )
        self.console.print(table)

    def print_pairs(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """A two-column table."""
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in rows:
            table.add_row(escape(name), escape(value))
        self.console.print(table)
