"""Bounds the memory of inflated records in a whole broker; those over it wait.

Code that opens batches for a client (checks of produced records, recompression, look-ups of
timestamps) reserves what that takes at most, and gives it back when it is done. The order is that
of asking: a large reservation is not overtaken by small ones that would still fit. One that is
larger than the whole budget is granted when nothing else is out, and then it is alone.

Invariants: what is reserved stays within the limit, except for one reservation that is alone. The
holder of a reservation asks for no second one, so no reservation waits for another that waits. A
waiter that is cancelled leaves nothing behind, and holds up no other.

Used on the event loop alone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from wal.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class InflationSettings:
    """Section of the broker's configuration."""

    max_bytes: int = setting(
        "inflation.max.bytes",
        256 << 20,
        minimum=1 << 20,
        why="memory for records that the broker has to open, over all clients; a batch that takes "
        "more is opened alone; smaller: batches that could be opened at the same time wait for "
        "each other; larger: more memory",
    )


class InflationBudget:
    """`limit_bytes` for everybody who inflates; see the module's text."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.reserved_bytes = 0
        self.reserved_bytes_peak = 0
        """Most that was ever reserved at a time."""

    @property
    def waiting(self) -> int:
        """The number of those that wait for memory."""
        return len(self._waiting)

    @asynccontextmanager
    async def reserve(self, count: int) -> AsyncIterator[None]:
        """Wait until `count` bytes are free, and hold them inside the context."""
        if self._waiting or not self._fits(count):
            await self._wait(count)
        else:
            self._take(count)
        try:
            yield
        finally:
            self.reserved_bytes -= count
            self._grant()

    async def _wait(self, count: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (count, granted)
        self._waiting.append(place)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # Granted in the very turn in which we were cancelled.
                self.reserved_bytes -= count
            else:
                self._waiting.remove(place)
            self._grant()
            raise

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, granted = self._waiting.popleft()
            self._take(count)
            granted.set_result(None)

    def _fits(self, count: int) -> bool:
        return not self.reserved_bytes or self.reserved_bytes + count <= self._limit_bytes

    def _take(self, count: int) -> None:
        self.reserved_bytes += count
        self.reserved_bytes_peak = max(self.reserved_bytes_peak, self.reserved_bytes)
