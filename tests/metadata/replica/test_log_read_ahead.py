"""A replay of a log in a slow store waits for the store as seldom as it can."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from metadata.log.log import MetadataRecordBatch
from metadata.log.object_log import ObjectMetadataLog
from metadata.replica.read_ahead import read_ahead
from tests.support.coordinators.coordinator_bench import MemoryMetadataLog
from tests.support.logs.log_contract import NOW_MS, lead
from tests.support.loops.virtual_loop import run_in_virtual_time
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import StorageFailed
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import ObjectStat

ROUND_TRIP_S = 0.05
OBJECTS = 900


class SlowStore(MemoryStore):
    """Every request takes one round trip, from when it is told to."""

    round_trip_s = 0.0

    async def get(self, key: ObjectKey) -> bytes:
        await asyncio.sleep(self.round_trip_s)
        return await super().get(key)

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        await asyncio.sleep(self.round_trip_s)
        return await super().get_range(key, start, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        await asyncio.sleep(self.round_trip_s)
        async for stat in super().list(prefix, start_after):
            yield stat


async def opened(store: SlowStore, seed: int) -> ObjectMetadataLog:
    return await ObjectMetadataLog.open(store, 0, clock=ManualClock(), rng=random.Random(seed))


def test_a_start_with_an_empty_disk_waits_for_a_few_round_trips() -> None:
    store = SlowStore(clock=ManualClock())

    async def fill() -> None:
        log = await opened(store, 1)
        await lead(log)
        for number in range(1, OBJECTS):
            await log.append([[b"%d" % number]], NOW_MS)

    async def start() -> None:
        log = await opened(store, 2)
        records = 0
        async with aclosing(read_ahead(log, 0, 4 << 20)) as replayed:
            async for batches in replayed:
                await asyncio.sleep(ROUND_TRIP_S)  # applying takes as long
                records += len(batches)
        assert records == OBJECTS

    run_in_virtual_time(fill())
    store.round_trip_s = ROUND_TRIP_S
    assert run_in_virtual_time(start()) <= 25 * ROUND_TRIP_S


class GatedLog(MemoryMetadataLog):
    """A log in memory whose reads begin in the order of `read_from`, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.read_from: list[int] = []
        self.fails_at = -1

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        self.read_from.append(offset)
        if offset == self.fails_at:
            raise StorageFailed("away")
        return await super().read(offset, max_bytes)


@pytest.fixture
async def log() -> GatedLog:
    made = GatedLog()
    for number in range(5):
        await made.append([[b"%d" % number]], NOW_MS)
    return made


async def test_what_follows_is_being_read_while_the_last_is_applied(log: GatedLog) -> None:
    seen: list[int] = []
    async with aclosing(read_ahead(log, 0, 1)) as replayed:
        async for batches in replayed:
            await asyncio.sleep(0)
            seen += [batch.base_offset for batch in batches]
            assert log.read_from[-1] == min(seen[-1] + 1, 4)
    assert seen == [0, 1, 2, 3, 4]
    assert log.read_from == [0, 1, 2, 3, 4]


async def test_a_read_that_fails_does_so_after_what_was_read_before_it(log: GatedLog) -> None:
    log.fails_at = 2
    async with aclosing(read_ahead(log, 0, 1)) as replayed:
        for base_offset in (0, 1):
            (batch,) = await anext(replayed)
            assert batch.base_offset == base_offset
            await asyncio.sleep(0)
        with pytest.raises(StorageFailed):
            await anext(replayed)


async def test_who_stops_early_leaves_no_task_and_no_error(log: GatedLog) -> None:
    log.fails_at = 1
    before = asyncio.all_tasks()
    async with aclosing(read_ahead(log, 0, 1)) as replayed:
        await anext(replayed)
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_what_is_appended_meanwhile_is_read_too(log: GatedLog) -> None:
    seen: list[int] = []
    async with aclosing(read_ahead(log, 3, 1)) as replayed:
        async for batches in replayed:
            seen += [batch.base_offset for batch in batches]
            if seen == [3, 4]:
                await log.append([[b"5"]], NOW_MS)
    assert seen == [3, 4, 5]
