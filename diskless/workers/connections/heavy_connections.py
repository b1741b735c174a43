"""Chooses the connection that a worker gives up, and tells the head how much the worker does.

A connection's part of the load is taken to be its part of what all of them moved in a second. The
one that goes is that whose load comes nearest to half of the difference between this worker and the
one with the least, so that both are even afterwards; none goes that would only carry the
difference to the other side. It is answered what it has asked, then closed; its client connects
again, and the head knows who has least to do.

Failure case: one connection is the whole load. Nothing helps it, and nothing is given up.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from diskless.server.connection import Connection
from diskless.server.server import KafkaServer
from diskless.workers.connections.balance import Load
from wal.clock import Clock, Sleep

TOLD_EVERY_S: Final = 1.0
WATCHED_S: Final = 1.0
"""How long connections are watched for what they move."""
_TOO_LIGHT: Final = 0.02
"""Of the load: a connection with less makes no difference."""
_TOO_HEAVY: Final = 0.9
"""Of the difference: one with more would only carry it to the other side."""
_STEP: Final = 500
"""Connections that are looked at, between which others have a turn."""

_Key = TypeVar("_Key")


def heaviest_to_go(
    moved: Mapping[_Key, int], *, cores: float, difference_cores: float
) -> _Key | None:
    """Which connection to give up; `moved` are the bytes of each, `cores` what all cost."""
    total = sum(moved.values())
    loads = {key: cores * size / total for key, size in moved.items() if size}
    movable = {
        key: load
        for key, load in loads.items()
        if _TOO_LIGHT * cores <= load < _TOO_HEAVY * difference_cores
    }
    return min(movable, key=lambda key: abs(movable[key] - difference_cores / 2), default=None)


class HeavyConnections:
    """Those of one worker, on its event loop."""

    def __init__(
        self,
        server: KafkaServer,
        tell: Callable[[Load], None],
        *,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        processor_time: Callable[[], float] = time.process_time,
    ) -> None:
        """`tell` is called about once a second; `processor_time`: of the whole process, in s."""
        self._server = server
        self._tell = tell
        self._clock = clock
        self._sleep = sleep
        self._processor_time = processor_time
        self._cores = 0.0
        self.given_up = 0
        """Connections, in all."""

    async def tell_loads(self) -> None:
        """For ever."""
        at, taken = self._clock.monotonic(), self._processor_time()
        while True:
            await self._sleep(TOLD_EVERY_S)
            now, taken_now = self._clock.monotonic(), self._processor_time()
            self._cores = (taken_now - taken) / max(now - at, 1e-3)
            at, taken = now, taken_now
            self._tell(Load(self._cores, self._server.is_short_of_memory))

    async def give_up_when_asked(self, wanted: "asyncio.Queue[float]") -> None:
        """For ever: see `give_up`, for each difference that is wanted."""
        while True:
            await self.give_up(await wanted.get())

    async def give_up(self, difference_cores: float) -> None:
        """Watch what connections move, and close one if that helps."""
        before = await self._moved()
        await self._sleep(WATCHED_S)
        after = await self._moved()
        moved = {one: size - before[one] for one, size in after.items() if one in before}
        chosen = heaviest_to_go(moved, cores=self._cores, difference_cores=difference_cores)
        if chosen is not None:
            self.given_up += 1
            chosen.finish()

    async def _moved(self) -> Mapping[Connection, int]:
        found = {}
        for number, connection in enumerate(self._server.connections, start=1):
            found[connection] = connection.requests.moved_bytes
            if not number % _STEP:
                await self._sleep(0)
        return found
