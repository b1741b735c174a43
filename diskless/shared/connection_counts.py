"""How many connections each process of a broker has, so that they accept in turns.

All workers listen on the same sockets, and the system wakes whoever it likes. Left to that, one
worker has most of the connections. So whoever has more than another one leaves a new connection to
it for a moment, and takes it only if it is still there then.

A number belongs to a process, which alone writes it while it lives. When it is gone its head says
so (`forget`): it has no connections then, and nobody leaves one to it.
"""

import mmap
import os
import struct
from typing import Final

from diskless.shared.shared_memory import make_memory

PATIENCE_S: Final = 0.002
"""How long a connection is left to others."""

_COUNT: Final = struct.Struct("<I")
_GONE: Final = 2**32 - 1
"""The number of who is not there."""


def make_counts(workers: int) -> int:
    """Makes the memory for workers 1 to `workers`; returns its descriptor, to be inherited."""
    return make_memory("diskless-connections", workers * _COUNT.size)


def forget(fd: int, number: int) -> None:
    """The worker of this number is gone; until its next life begins."""
    with mmap.mmap(fd, os.fstat(fd).st_size) as memory:
        _COUNT.pack_into(memory, (number - 1) * _COUNT.size, _GONE)


class ConnectionCounts:
    """The numbers, as one worker has them."""

    def __init__(self, fd: int, number: int) -> None:
        """`fd` as `make_counts` made it, and may be closed afterwards; `number`: from 1 on."""
        self._memory: Final = mmap.mmap(fd, os.fstat(fd).st_size)
        self._at: Final = (number - 1) * _COUNT.size
        self.changed(0)

    def changed(self, connections: int) -> None:
        """This worker has `connections` now."""
        _COUNT.pack_into(self._memory, self._at, connections)

    def elsewhere(self) -> int:
        """Returns how many the others have."""
        return sum(self._others())

    def patience_s(self) -> float:
        """Returns how long to leave the next connection to others."""
        (own,) = _COUNT.unpack_from(self._memory, self._at)
        return PATIENCE_S if own > min(self._others(), default=own) else 0.0

    def _others(self) -> list[int]:
        counts = [count for (count,) in _COUNT.iter_unpack(self._memory[:])]
        del counts[self._at // _COUNT.size]
        return [count for count in counts if count != _GONE]
