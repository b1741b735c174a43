"""Counts what there is now, of any name, in all processes of a broker: connections of an address.

Each process has a table (`cells`) that only it writes, and reads those of the others. Nothing is
locked, so two processes that take one more at the same instant may both stay below a limit that
they exceed together, by as many as there are processes.

Invariant: a process that ended counts nothing any more once the next one of its lane has begun, or
`forget` was called for it.
"""

import mmap
import os

import numpy as np

from diskless.shared.cells import CELLS, cells_of
from diskless.shared.shared_memory import make_memory
from wal.columns import Int64s


def make_counts(lanes: int) -> int:
    """Makes the memory for `lanes` processes; returns its descriptor, to be inherited."""
    return make_memory("diskless-counts", lanes * CELLS * 8)


class SharedCounts:
    """One process's part. All calls are made on one thread."""

    def __init__(self, fd: int, lane: int) -> None:
        """`fd` as `make_counts` made it, and may be closed afterwards."""
        memory = mmap.mmap(fd, os.fstat(fd).st_size)
        counts: Int64s = np.frombuffer(memory, np.int64)
        self._counts: Int64s = counts.reshape(-1, CELLS)
        self._lane = lane
        self.forget(lane)

    def add(self, name: str, amount: int) -> None:
        """This process counts `amount` more of this name; below 0, fewer."""
        self._counts[self._lane, cells_of(name)] += amount

    def elsewhere(self, name: str) -> int:
        """Returns how many there are of this name in other processes."""
        of_lanes = self._counts[:, cells_of(name)]
        return int((of_lanes.sum(axis=0) - of_lanes[self._lane]).min())

    def forget(self, lane: int) -> None:
        """The process of this lane is gone, and whatever it counted."""
        self._counts[lane] = 0
