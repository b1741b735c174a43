"""Figures with their bounds: the table a person reads and the JSON a machine does.

A figure of several runs is their median. The table shows the range beside it, and the JSON has it
under the figure's key with `_low` and `_high`.
"""

import json
import operator
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

RESULTS: Final = Path("build/bench.json")
BOUNDS: Final = Path("build/bench-bounds.json")
"""The bounds of these figures: some depend on what else was measured in the run."""

_WIDTH_OF_A_FILE: Final = 200
_COMPARE = {"≥": operator.ge, "≤": operator.le}


class Figure(NamedTuple):
    """One result. `bound` like "≥ 0.45", empty where a figure is only reported."""

    key: str
    value: float
    unit: str = ""
    bound: str = ""
    note: str = ""
    range: tuple[float, float] | None = None
    """The lowest and the highest run of several."""

    @property
    def range_text(self) -> str:
        return "" if self.range is None else "{:,.3g} … {:,.3g}".format(*self.range)

    @property
    def verdict(self) -> str:
        if not self.bound:
            return ""
        relation, limit = self.bound.split()
        return "met" if _COMPARE[relation](self.value, float(limit)) else "MISSED"


class Report:
    """Collects figures in the order they are measured, and prints each at once."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
        self._console = Console(soft_wrap=True, width=width)

    def add(
        self, key: str, value: float, unit: str = "", *, bound: str = "", note: str = ""
    ) -> None:
        self._add(Figure(key, value, unit, bound, note))

    def add_runs(
        self, key: str, runs: Sequence[float], unit: str = "", *, bound: str = "", note: str = ""
    ) -> None:
        """Add the median of `runs`, with their range."""
        range_ = (min(runs), max(runs))
        self._add(Figure(key, statistics.median(runs), unit, bound, note, range_))

    def step(self, text: str) -> None:
        self._console.print(f"[bold]{text}[/bold]")

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """A bar while it is entered; what it gives is told how much of how much is done."""
        with Progress(console=self._console, transient=True) as bar:
            task = bar.add_task(text, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print figures side by side, beside the list in which they are too."""
        table = Table(*columns, title=title, header_style="bold", box=None)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def _add(self, figure: Figure) -> None:
        self.figures.append(figure)
        parts = (f"{figure.value:,.3f}", figure.unit, figure.bound, figure.verdict)
        line = " ".join(part for part in (*parts, figure.range_text, figure.note) if part)
        self._console.print(f"  {figure.key} = {line}", markup=False)

    def print(self) -> None:
        table = Table(title="diskless bench", box=None, header_style="bold")
        for column in ("figure", "value", "range", "unit", "bound", "", "how"):
            table.add_column(column, justify="right" if column == "value" else "left")
        for figure in self.figures:
            style = "red" if figure.verdict == "MISSED" else None
            table.add_row(
                figure.key,
                f"{figure.value:,.3f}",
                figure.range_text,
                figure.unit,
                figure.bound,
                figure.verdict,
                figure.note,
                style=style,
            )
        self._console.print(table)

    def write(self) -> None:
        """Merge into the files, so that one group run alone keeps the others' figures."""
        _merge(RESULTS, self.as_mapping())
        _merge(BOUNDS, {figure.key: figure.bound for figure in self.figures if figure.bound})

    def as_mapping(self) -> Mapping[str, float]:
        values: dict[str, float] = {}
        for figure in self.figures:
            values[figure.key] = round(figure.value, 6)
            if figure.range is not None:
                low, high = figure.range
                values[f"{figure.key}_low"] = round(low, 6)
                values[f"{figure.key}_high"] = round(high, 6)
        return values


def _merge(path: Path, values: Mapping[str, float] | Mapping[str, str]) -> None:
    known: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    known.update(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
