"""Where the metadata logs of a cluster lie: below a directory, or in an object store.

    medium = ObjectLogs(MemoryStore(clock=clock), clock)
    log = await medium.open(0, steps)

Time is the test's; who sleeps wakes up soon and looks at the clock.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from metadata.log.local_log import LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from tests.support.chunks.failing_disk import FailingDisk
from tests.support.stores.stepped_store import Fate, SteppedStore, Steps
from wal.clock import ManualClock
from wal.stores.object_store import ObjectStore

LEASE_MS: Final = 10_000
TICK_S: Final = 0.004


async def sleep_a_little(delay_s: float, /) -> None:
    """Who sleeps looks at the clock again soon: a case may have moved it."""
    await asyncio.sleep(min(delay_s, TICK_S))


class Medium(Protocol):
    """Where the metadata logs of one cluster lie, and how they are disturbed."""

    lease_ms: int
    """0: who has the log open leads, and nobody else can be there at the same time."""

    async def open(self, index: int, steps: Steps) -> MetadataLog: ...

    def refuse_appends(self, steps: Steps) -> Callable[[], None]:
        """Appends fail, certainly without effect, until the result is called."""
        ...


class LocalLogs:
    """`LocalMetadataLog`s below a directory."""

    lease_ms = 0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rng = random.Random(1)
        self._disk = FailingDisk()

    async def open(self, index: int, steps: Steps) -> MetadataLog:
        return await LocalMetadataLog.open(
            self._directory / str(index), rng=random.Random(self._rng.random()), disk=self._disk
        )

    def refuse_appends(self, steps: Steps) -> Callable[[], None]:
        self._disk.failing.add("pwritev")
        return self._disk.failing.clear


class ObjectLogs:
    """`ObjectMetadataLog`s in a store."""

    lease_ms = LEASE_MS

    def __init__(self, store: ObjectStore, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self._rng = random.Random(2)

    async def open(self, index: int, steps: Steps) -> MetadataLog:
        return await ObjectMetadataLog.open(
            SteppedStore(self._store, steps),
            index,
            clock=self._clock,
            rng=random.Random(self._rng.random()),
            settings=ObjectLogSettings(lease_ms=LEASE_MS),
            sleep=sleep_a_little,
        )

    def refuse_appends(self, steps: Steps) -> Callable[[], None]:
        steps.puts.extend([Fate.AWAY] * 1_000)
        return steps.puts.clear
