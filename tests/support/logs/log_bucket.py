"""A bucket in memory, and any number of metadata logs on it."""

import asyncio
import random

from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from tests.support.logs.log_contract import LEADER, lead, read_records
from tests.support.stores.stepped_store import SteppedStore, Steps
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody

SETTINGS = ObjectLogSettings(lease_ms=2_000, prune_delay_ms=10_000, batch_max_bytes=32 << 10)

LEASE_S = SETTINGS.lease_ms / 1000
PRUNE_S = SETTINGS.prune_delay_ms / 1000
PREFIX = "meta/3/log/"


def key_at(offset: int) -> ObjectKey:
    return ObjectKey(f"{PREFIX}{offset:020d}")


class Bucket:
    """One bucket in memory, one clock, and any number of logs on it, each behind its own steps."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.slept: list[float] = []
        self._logs: list[ObjectMetadataLog] = []

    async def log(self, settings: ObjectLogSettings = SETTINGS) -> tuple[ObjectMetadataLog, Steps]:
        steps = Steps()
        log = await ObjectMetadataLog.open(
            SteppedStore(self.store, steps),
            3,
            clock=self.clock,
            rng=random.Random(len(self._logs)),
            settings=settings,
            sleep=self._sleep,
        )
        self._logs.append(log)
        return log, steps

    async def leader(self, name: bytes = LEADER) -> tuple[ObjectMetadataLog, Steps]:
        log, steps = await self.log()
        await lead(log, name)
        return log, steps

    async def records(self) -> list[list[bytes]]:
        """What somebody reads who comes now."""
        log, _ = await self.log()
        return await read_records(log)

    async def keys(self) -> list[str]:
        return [stat.key async for stat in self.store.list("")]

    async def data(self, offset: int) -> bytes:
        return await self.store.get(key_at(offset))

    async def replace(self, offset: int, data: bytes) -> None:
        await self.store.delete([key_at(offset)])
        await self.store.put(key_at(offset), BytesBody(data))

    async def close(self) -> None:
        for log in self._logs:
            await log.close()

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)
