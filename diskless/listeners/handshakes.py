"""Limits handshakes: how many run at once, how many of one address, how many begin in a second.

A handshake costs memory and a millisecond of processor time for somebody who is not known yet. Who
is one too many waits, before anything is made for it. Addresses take turns, each its oldest first,
so that one with a thousand connections delays another by one handshake.

Invariants: at most `at_once` turns are held, at most `per_address` of them by one address; a turn
that is held ends once; nobody waits while the limits leave room.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from wal.clock import Clock

BURST_S: Final = 0.25
"""How much of the rate may begin at one instant, after a time in which less began."""


class Handshakes:
    """The turns of one process; all on one event loop."""

    def __init__(self, *, at_once: int, per_address: int, per_s: int, clock: Clock) -> None:
        self._at_once = at_once
        self._per_address = per_address
        self._interval_s = 1 / per_s
        self._clock = clock
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By address, the one whose turn is next in front."""
        self._next_at = clock.monotonic()
        """When the next one would be due if they came evenly at the highest rate."""
        self._later: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        return self._held.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(granted)
        self._grant()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._held[address] -= 1
                if not self._held[address]:
                    del self._held[address]
            else:
                self._forget(address, granted)
            self._grant()

    def _grant(self) -> None:
        """Begin what the limits leave room for."""
        while self.under_way < self._at_once:
            address = next((one for one in self._waiting if self._has_share(one)), None)
            if address is None:
                return
            now = self._clock.monotonic()
            early_s = self._next_at - now - BURST_S
            if early_s > 0:
                self._grant_in(early_s)
                return
            granted = self._waiting[address].popleft()
            self._waiting.move_to_end(address)
            if not self._waiting[address]:
                del self._waiting[address]
            # One that was cancelled a moment ago has not taken itself out yet.
            if not granted.done():
                self._next_at = max(self._next_at, now) + self._interval_s
                self._held[address] += 1
                granted.set_result(None)

    def _has_share(self, address: str) -> bool:
        return self._held[address] < self._per_address

    def _grant_in(self, seconds: float) -> None:
        if self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(seconds, self._grant_again)

    def _grant_again(self) -> None:
        self._later = None
        self._grant()

    def _forget(self, address: str, granted: asyncio.Future[None]) -> None:
        """Somebody who was waiting does not wait any more."""
        waiting = self._waiting.get(address)
        if waiting is not None and granted in waiting:
            waiting.remove(granted)
            if not waiting:
                del self._waiting[address]
