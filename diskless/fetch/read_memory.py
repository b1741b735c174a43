"""Memory that answers are read into, used again and again.

A Fetch reads megabytes. Memory of that size goes back to the system when it is let go of, and the
system clears and maps each of its pages anew for the next Fetch. That takes longer than reading the
bytes. So the next answer is read into the memory that an earlier one left behind, the latest first:
that may still be in the processor's cache.

Nobody has to say that an answer was sent. Memory is lent as a view, every slice of a view keeps it
alive, and the memory comes back when the last slice is gone, in whatever thread that happens.

Invariants: memory is never lent while a view of it from before exists. What is kept for later is at
most `idle_max_bytes`, in at most REGIONS_MAX regions. What is small, or larger than all of that,
comes from the allocator each time.
"""

import weakref
from collections import deque
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

KEPT_FROM_BYTES: Final = 64 << 10
"""For less than that the allocator has pages at hand."""

REGIONS_MAX: Final = 64

_WASTE_MAX: Final = 4
"""How many times larger than asked for a region may be."""

_Region = npt.NDArray[np.uint8]


class ReadMemory:
    """Lends memory; any thread may ask for it, and let go of it."""

    def __init__(self, idle_max_bytes: int) -> None:
        self._idle_max_bytes = idle_max_bytes
        # Without a lock, and changed by single atomic calls: memory can come back in the middle of
        # any line here, because dropping the last view of it is what brings it back.
        self._idle: deque[_Region] = deque()

    @property
    def idle_bytes(self) -> int:
        """What is kept for later."""
        return sum(map(len, tuple(self._idle)))

    def lend(self, length_bytes: int) -> memoryview:
        """Writable memory with anything in it; the caller fills all of it or drops it."""
        # A power of two, so that a region fits later answers as well.
        region_bytes = 1 << max(length_bytes - 1, 0).bit_length()
        if not KEPT_FROM_BYTES <= region_bytes <= self._idle_max_bytes:
            return np.empty(length_bytes, np.uint8).data
        region = self._idle_for(length_bytes)
        if region is None:
            region = np.empty(region_bytes, np.uint8)
        lent = region[:length_bytes]
        weakref.finalize(lent, self._take_back, region).atexit = False
        return lent.data

    def _idle_for(self, length_bytes: int) -> _Region | None:
        """The latest region that is large enough and not far too large."""
        with suppress(IndexError):  # another thread took the last one
            for _ in range(len(self._idle)):
                region = self._idle.pop()
                if length_bytes <= len(region) <= _WASTE_MAX * length_bytes:
                    return region
                self._idle.appendleft(region)
        return None

    def _take_back(self, region: _Region) -> None:
        self._idle.append(region)
        with suppress(IndexError):
            while len(self._idle) > REGIONS_MAX or self.idle_bytes > self._idle_max_bytes:
                self._idle.popleft()
