"""How many connections each worker of a broker has, and has taken from its head.

A row belongs to a worker, which alone writes it while it lives. When it is gone its head says so
(`forget`): it has no connections then.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from diskless.shared.shared_memory import make_memory

_ROW: Final = struct.Struct("<II")
_COUNT: Final = struct.Struct("<I")
"""A part of a row, which is written alone and so is never seen half."""


class ConnectionCount(NamedTuple):
    """Of one worker."""

    connections: int
    taken: int
    """Of those that the head has accepted, since the worker began."""


class ConnectionCounts:
    """The rows of all workers."""

    def __init__(self, fd: int, own: int = 0) -> None:
        """`fd` as `make` made it, and may be closed afterwards; `own`: the number of the worker
        that has this, 0 for the head.
        """
        self._memory: Final = mmap.mmap(fd, os.fstat(fd).st_size)
        self._own: Final = own
        if own:
            self.forget(own)

    @staticmethod
    def make(workers: int) -> int:
        """Makes the memory for workers 1 to `workers`; returns its descriptor, to be inherited."""
        return make_memory("diskless-connections", workers * _ROW.size)

    def forget(self, number: int) -> None:
        """This worker is gone, or begins."""
        _ROW.pack_into(self._memory, (number - 1) * _ROW.size, 0, 0)

    def changed(self, connections: int) -> None:
        """This worker has `connections` now."""
        _COUNT.pack_into(self._memory, (self._own - 1) * _ROW.size, connections)

    def took(self, taken: int) -> None:
        """This worker has taken `taken` connections since it began."""
        _COUNT.pack_into(self._memory, (self._own - 1) * _ROW.size + _COUNT.size, taken)

    def rows(self) -> Sequence[ConnectionCount]:
        """Of workers 1, 2 and so on."""
        return [ConnectionCount(*row) for row in _ROW.iter_unpack(self._memory[:])]

    def elsewhere(self) -> int:
        """Returns how many connections the others have."""
        counts = [row.connections for row in self.rows()]
        return sum(counts) - (counts[self._own - 1] if self._own else 0)

    def close(self) -> None:
        self._memory.close()
