"""Counts what clients did lately in all processes of a broker, for their quotas.

Time is cut into windows, the same for all processes: the monotonic clock is one for the whole
machine. Each process has a table (`cells`) for each of the last windows, and adds to the present
one what its clients did; it reads those of the others. Nothing is locked: a table has one writer.

Invariant: what a process has added is seen by the others at once, and no longer when
`window_count` windows have begun since. So a client that moves from one process to another is
measured as if it had stayed.

Failure case: a process that was started anew finds the tables of the one before it, which go on to
count until they are too old.
"""

import mmap
import os
from collections.abc import Callable
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from diskless.shared.cells import CELLS, Cells, cells_of
from diskless.shared.shared_memory import make_memory

_NONE: Final = -1
"""The stamp of a table that is being emptied."""


WINDOWS_MAX: Final = 30
"""Of more, some are taken together, and what is older counts for a little longer."""


class _Windows(NamedTuple):
    together: int
    """How many of a quota's windows one table is for."""
    counting: int
    """How many tables count."""

    @classmethod
    def of(cls, window_count: int) -> Self:
        together = -(-window_count // WINDOWS_MAX)
        return cls(together, -(-window_count // together))

    @property
    def tables(self) -> int:
        """One more, so that none is emptied while it counts."""
        return self.counting + 1


def make_rates(lanes: int, window_count: int) -> int:
    """Makes the memory for `lanes` processes; returns its descriptor, to be inherited."""
    tables = _Windows.of(window_count).tables
    return make_memory("diskless-rates", lanes * tables * (1 + CELLS) * 8)


class SharedRates:
    """One process's part. All calls are made on one thread."""

    def __init__(
        self, fd: int, lane: int, *, window_s: float, window_count: int, now: Callable[[], float]
    ) -> None:
        """`fd` as `make_rates` made it, and may be closed afterwards. `now`: monotonic seconds."""
        windows = _Windows.of(window_count)
        tables = windows.tables
        memory = mmap.mmap(fd, os.fstat(fd).st_size)
        lanes = len(memory) // (tables * (1 + CELLS) * 8)
        stamps = lanes * tables
        self._stamps: npt.NDArray[np.int64] = np.frombuffer(memory, np.int64, stamps)
        self._stamps = self._stamps.reshape(lanes, tables)
        """The number of the window that a table is of, and one; 0: it was never used."""
        sums: npt.NDArray[np.float64] = np.frombuffer(memory, np.float64, offset=stamps * 8)
        self._sums: npt.NDArray[np.float64] = sums.reshape(lanes, tables, CELLS)
        self._lane = lane
        self._others: Final = [other for other in range(lanes) if other != lane]
        self._window_s = window_s * windows.together
        self._counting = windows.counting
        self._now = now

    def of(self, name: str) -> "SharedRate":
        """What whoever has this name does; it has the same name in every process."""
        return SharedRate(self, cells_of(name))

    def add(self, cells: Cells, amount: float) -> None:
        """The client of these cells did something here."""
        stamp = self._stamp()
        table = stamp % self._stamps.shape[1]
        stamps, sums = self._stamps[self._lane], self._sums[self._lane]
        if stamps[table] != stamp:
            stamps[table] = _NONE
            sums[table] = 0.0
            stamps[table] = stamp
        sums[table, cells] += amount

    def elsewhere(self, cells: Cells) -> float:
        """Returns what the client did lately in the other processes."""
        oldest = self._stamp() - self._counting
        found = np.zeros(len(cells))
        for lane in self._others:
            tables = np.flatnonzero(self._stamps[lane] > max(oldest, 0))
            if len(tables):
                found += self._sums[lane][tables[:, None], cells].sum(axis=0)
        return float(found.min())

    def _stamp(self) -> int:
        return int(self._now() / self._window_s) + 1


class SharedRate:
    """What one client, or all that share a quota, do in all processes."""

    __slots__ = ("_cells", "_rates")

    def __init__(self, rates: SharedRates, cells: Cells) -> None:
        self._rates = rates
        self._cells = cells

    def add(self, amount: float) -> None:
        """It was done here."""
        self._rates.add(self._cells, amount)

    def elsewhere(self) -> float:
        """Returns the sum of what was done lately in other processes."""
        return self._rates.elsewhere(self._cells)
