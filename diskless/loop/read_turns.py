"""Lets few clients with a backlog read at a time, so that they keep nobody else waiting.

A Fetch is read for in many small pieces of work: look-ups in SQLite, reads of files in threads,
headers and checksums on the event loop. Each piece queues behind those of all other Fetches that
are being read for. Stock consumers have one or two Fetches under way. A client that has more
requests unanswered than that has a backlog, and gains nothing when its next answer is read at the
same time as those of a hundred others like it; but everybody else waits behind all of them.

So clients with a backlog take turns for reading: READS_MAX of them read at a time, first come,
first served. Clients without one read at once. A Fetch that waits for data holds no turn.

While others are served (`Turns.are_others_served`), a turn is followed by a rest of RESTS times its
length, at most REST_MAX_S: most of a read is work of the event loop and of threads in pieces that
no clock of `diskless.loop.turns` sees, and all turns together are to leave as much time as they
take.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from wal.clock import Clock

READS_MAX: Final = 2

RESTS: Final = 2 * READS_MAX - 1

REST_MAX_S: Final = 0.1
"""A read that takes long waits for the object store, and keeps nobody from anything meanwhile."""


class ReadTurns:
    """The turns of one server; used on its event loop alone."""

    def __init__(self, clock: Clock, are_others_served: Callable[[], bool]) -> None:
        """Asked at the end of each turn: whether somebody without a backlog is served."""
        self._clock = clock
        self._are_others_served = are_others_served
        self._free = asyncio.Semaphore(READS_MAX)

    def of(self, has_backlog: Callable[[], bool]) -> "ReadTurn":
        """The turns of one request, whose client is asked for its backlog each time."""
        return ReadTurn(self, has_backlog)

    async def begin(self) -> float:
        """Wait for a turn; when it began, for `end`."""
        await self._free.acquire()
        return self._clock.monotonic()

    def end(self, began_at: float) -> None:
        """The turn goes to the next, who waits while others are served."""
        if self._are_others_served():
            rest_s = min(RESTS * (self._clock.monotonic() - began_at), REST_MAX_S)
            asyncio.get_running_loop().call_later(rest_s, self._free.release)
        else:
            self._free.release()


class ReadTurn:
    """An `async with` around reading, as often as there is something to be read."""

    __slots__ = ("_began_at", "_has_backlog", "_turns")

    def __init__(self, turns: ReadTurns, has_backlog: Callable[[], bool]) -> None:
        self._turns = turns
        self._has_backlog = has_backlog
        self._began_at: float | None = None
        """Of the turn that is taken."""

    async def __aenter__(self) -> None:
        if self._has_backlog():
            self._began_at = await self._turns.begin()

    async def __aexit__(self, *_: object) -> None:
        if self._began_at is not None:
            began_at, self._began_at = self._began_at, None
            self._turns.end(began_at)
