"""Prints tables for the commands, and bars while something takes long.

A module of its own because it imports rich: commands import it when they run.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from diskless.cli.dumps.stored_dump import Dump

_UNLIMITED_WIDTH: Final = 100_000


def table(*columns: str) -> Table:
    """An empty table with these columns."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_tables(*tables: Table) -> None:
    """Print tables to standard output, one below the other."""
    # Into a pipe or a file, a row is a line, however long: that is what grep and cut want.
    console = Console(width=None if sys.stdout.isatty() else _UNLIMITED_WIDTH)
    for one in tables:
        console.print(one)


def print_dump(dump: Dump) -> None:
    """Print the facts of a dump, a line each, and its table."""
    rows = table(*dump.columns)
    for row in dump.rows:
        rows.add_row(*map(str, row))
    for name, value in dump.facts.items():
        print(f"{name}: {value}")
    print_tables(rows)


@contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Takes (what, done, total): a bar for each what, on a terminal alone, gone with the work."""
    tasks: dict[str, TaskID] = {}
    with Progress(transient=True, disable=not sys.stderr.isatty()) as bar:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield show
