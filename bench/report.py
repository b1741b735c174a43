"""Figures with their bounds: the table a person reads and the JSON a machine does."""

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

_COMPARE = {"≥": operator.ge, "≤": operator.le}


class Figure(NamedTuple):
    """One result. `bound` like "≥ 0.45", empty where a figure is only reported."""

    key: str
    value: float
    unit: str = ""
    bound: str = ""
    note: str = ""

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
        self._console = Console(soft_wrap=True)

    def add(
        self, key: str, value: float, unit: str = "", *, bound: str = "", note: str = ""
    ) -> None:
        figure = Figure(key, value, unit, bound, note)
        self.figures.append(figure)
        self._console.print(f"  {key} = {value:,.3f} {unit} {bound} {figure.verdict} {note}")

    def step(self, text: str) -> None:
        self._console.print(f"[bold]{text}[/bold]")

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """A bar while it is entered; what it gives is told how much of how much is done."""
        with Progress(console=self._console, transient=True) as bar:
            task = bar.add_task(text, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def print(self) -> None:
        table = Table(title="diskless bench", box=None, header_style="bold")
        for column in ("figure", "value", "unit", "bound", "", "how"):
            table.add_column(column, justify="right" if column == "value" else "left")
        for figure in self.figures:
            style = "red" if figure.verdict == "MISSED" else None
            table.add_row(
                figure.key,
                f"{figure.value:,.3f}",
                figure.unit,
                figure.bound,
                figure.verdict,
                figure.note,
                style=style,
            )
        self._console.print(table)

    def write(self, path: Path) -> None:
        """Merge into `path`, so that one group run alone keeps the others' figures."""
        known: dict[str, float] = {}
        if path.exists():
            known = json.loads(path.read_text())
        known.update(self.as_mapping())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")

    def as_mapping(self) -> Mapping[str, float]:
        return {figure.key: round(figure.value, 6) for figure in self.figures}
