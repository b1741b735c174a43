"""Computes what `/livez` and `/readyz` say.

A broker is *live* while its event loop turns; nothing else counts, because a restart mends nothing
else. It is *ready* when a client that is sent here can be served: started, not stopping, its object
store reached, a leader known for every metadata partition. `problems` names what is missing.

Both are asked from the HTTP server's thread, and answer from what is known: no request to the store
is made, nothing is locked, nobody waits for anything but a turn of the loop.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Final

from diskless.health.health_settings import HealthSettings
from diskless.health.store_watch import store_problem
from wal.stores.observed_store import StoreReach

STARTING: Final = "starting: what an earlier run left is being recovered"
STOPPING: Final = "stopping"


class Health:
    """The broker sets what changes; see the module's text for who asks."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._reach: StoreReach | None = None
        self._leaderless: Callable[[], Sequence[int]] = tuple
        self._has_started = False
        self._is_stopping = False

    def watch_store(self, reach: StoreReach) -> None:
        """From here on the store counts."""
        self._reach = reach

    def started(self, leaderless: Callable[[], Sequence[int]]) -> None:
        """Clients are served now. `leaderless` lists the metadata partitions without a leader."""
        self._leaderless = leaderless
        self._has_started = True

    def stopping(self) -> None:
        """A stop begins with this, so that load balancers send clients elsewhere."""
        self._is_stopping = True

    def problems(self) -> Sequence[str]:
        """Why this broker is not ready, a line each; empty when it is."""
        lines: list[str] = []
        if self._is_stopping:
            lines.append(STOPPING)
        elif not self._has_started:
            lines.append(STARTING)
        if self._reach is not None and (problem := store_problem(self._reach, self._settings)):
            lines.append(problem)
        lines += [
            f"no leader is known for metadata partition {index}" for index in self._leaderless()
        ]
        return lines


class LoopPulse:
    """Asks an event loop of another thread for a sign of life."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: concurrent.futures.Future[None] | None = None

    async def beats(self, timeout_s: float) -> bool:
        """Whether the loop turns within `timeout_s`; all who ask meanwhile share one sign."""
        if self._asked is None or self._asked.done():
            self._asked = concurrent.futures.Future()
            self._loop.call_soon_threadsafe(self._asked.set_result, None)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(asyncio.wrap_future(self._asked))
        except TimeoutError:
            return False
        return True
