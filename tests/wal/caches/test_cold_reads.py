"""Cold reads over a store of known bytes, whose answers wait for a gate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from wal.caches.cold_reads import GET_BYTES_MIN, IDLE_S, RUN_BYTES, STALE_S, ColdReads
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import ObjectStoreUnavailable

KEY: Final = ObjectKey("wal/00/object")
OTHER: Final = ObjectKey("wal/01/other")
LENGTH: Final = 3000
MUCH: Final = 1 << 30
CONTENT: Final = bytes(at * 7 % 251 for at in range(LENGTH))


class Source:
    """Objects of the same bytes; it answers when its gate is open."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        """Where each GET begins and ends."""
        self.failures = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        self.asked.append((start, start + length))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failures:
            self.failures -= 1
            raise ObjectStoreUnavailable("injected")
        return CONTENT[start : start + length] if start < LENGTH else bytes(length)


class Bed:
    def __init__(self, memory_bytes: int, concurrency: int) -> None:
        self.source = Source()
        self.clock = ManualClock()
        self.memory_bytes = memory_bytes
        self.reads = ColdReads(
            self.source,
            memory_max=lambda: self.memory_bytes,
            concurrency=concurrency,
            clock=self.clock,
        )

    async def read(self, start: int, end: int, useful_to: int = 0) -> bytes:
        views = await self.reads.read(KEY, start, end - start, useful_to)
        assert all(view.readonly for view in views)
        return b"".join(views)

    def begin(self, start: int, end: int) -> "asyncio.Task[bytes]":
        return asyncio.create_task(self.read(start, end))


@asynccontextmanager
async def bed(memory_bytes: int = MUCH, concurrency: int = 16) -> AsyncIterator[Bed]:
    made = Bed(memory_bytes, concurrency)
    try:
        yield made
    finally:
        await made.reads.close()
    assert made.reads.bytes == 0


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


_RANGES: Final = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted)


@given(
    steps=st.lists(st.tuples(st.booleans(), _RANGES, st.integers(0, LENGTH)), max_size=12),
    memory_bytes=st.integers(0, 8000),
)
@examples(0.5)
def test_reads_in_any_order_give_the_bytes_and_what_is_kept_is_bounded(
    steps: list[tuple[bool, list[int], int]], memory_bytes: int
) -> None:
    async def run() -> None:
        async with bed(memory_bytes) as it:
            for is_ahead, (start, end), useful_to in steps:
                if start == end:
                    continue
                if is_ahead:
                    it.reads.ahead(KEY, start, end - start)
                else:
                    assert await it.read(start, end, useful_to) == CONTENT[start:end]
            await turns()
            assert it.reads.bytes <= memory_bytes
            await it.reads.read(OTHER, 0, 10, 0)

    asyncio.run(run())


async def test_one_that_reads_on_and_on_has_each_byte_fetched_once() -> None:
    async with bed() as it:
        for start in range(0, LENGTH - 100, 70):
            assert await it.read(start, start + 100) == CONTENT[start : start + 100]
        fetched = sorted(it.source.asked)
        assert [start for start, _ in fetched[1:]] == [end for _, end in fetched[:-1]]


async def test_what_follows_is_fetched_along_with_little_that_is_asked_for() -> None:
    async with bed() as it:
        await it.read(0, 100, useful_to=2000)
        await it.read(2000, 2100, useful_to=2 * GET_BYTES_MIN)
        assert it.source.asked == [(0, 2000), (2000, 2000 + GET_BYTES_MIN)]


async def test_neighbours_asked_for_together_come_by_one_get() -> None:
    async with bed() as it:
        ranges = [(100, 200), (200, 300), (400, 500), (0, 100), (300, 400)]
        read = await asyncio.gather(*(it.read(*one) for one in ranges))
        assert read == [CONTENT[start:end] for start, end in ranges]
        assert sorted(it.source.asked) == [(0, 400), (400, 500)]


async def test_readers_of_the_same_bytes_share_what_is_under_way() -> None:
    async with bed() as it:
        it.source.gate.clear()
        readers = [it.begin(0, 1000), it.begin(500, 1000), it.begin(900, 1200)]
        await turns()
        late = it.begin(0, 1200)
        it.source.gate.set()
        assert [await reader for reader in readers] == [
            CONTENT[0:1000],
            CONTENT[500:1000],
            CONTENT[900:1200],
        ]
        assert await late == CONTENT[0:1200]
        assert it.source.asked == [(0, 1200)]


async def test_what_was_read_ahead_is_there_when_it_is_asked_for() -> None:
    async with bed() as it:
        assert it.reads.ahead(KEY, 0, LENGTH)
        assert it.reads.ahead(KEY, 1000, 500)
        await turns()
        assert await it.read(0, LENGTH) == CONTENT
        assert it.source.asked == [(0, LENGTH)]


async def test_a_large_range_is_read_ahead_in_runs_by_half_of_the_requests() -> None:
    async with bed(concurrency=4) as it:
        it.source.gate.clear()
        assert not it.reads.ahead(KEY, 0, 3 * RUN_BYTES)
        await turns()
        assert it.source.asked == [(0, RUN_BYTES), (RUN_BYTES, 2 * RUN_BYTES)]
        reader = it.begin(3 * RUN_BYTES, 3 * RUN_BYTES + 10)
        await turns()
        assert len(it.source.asked) == 3
        it.source.gate.set()
        await reader


async def test_reading_ahead_takes_the_room_of_what_was_read_and_of_nothing_wanted() -> None:
    async with bed(memory_bytes=8000) as it:
        await it.read(0, 2000)
        assert it.reads.ahead(KEY, 2000, 1000)
        assert it.reads.ahead(OTHER, 0, 4000)
        await turns()
        assert not it.reads.ahead(OTHER, 4000, 3000)
        it.source.asked.clear()
        await it.read(2000, 3000)
        assert it.source.asked == []
        await it.read(0, 2000)
        assert it.source.asked == [(0, 2000)]


async def test_what_was_read_ahead_for_one_who_left_gives_way() -> None:
    async with bed(memory_bytes=4000) as it:
        assert it.reads.ahead(KEY, 0, 2500)
        await turns()
        assert not it.reads.ahead(OTHER, 0, 2500)
        it.clock.advance(STALE_S)
        assert it.reads.ahead(OTHER, 0, 2500)


async def test_what_nobody_touches_is_dropped_after_a_while() -> None:
    async with bed() as it:
        it.reads.ahead(KEY, 0, 1000)
        await turns()
        await it.read(1000, 2000)
        it.reads.drop_idle()
        assert it.reads.bytes > 2000
        it.clock.advance(IDLE_S / 2)
        await it.read(1000, 1001)
        it.clock.advance(IDLE_S / 2)
        it.reads.drop_idle()
        assert 1000 < it.reads.bytes < 2100
        it.clock.advance(IDLE_S)
        it.reads.drop_idle()
        assert it.reads.bytes == 0


@pytest.mark.parametrize("is_ahead", [False, True])
async def test_a_reader_that_leaves_takes_its_request_along_unless_it_was_ahead(
    is_ahead: bool,
) -> None:
    async with bed() as it:
        it.source.gate.clear()
        if is_ahead:
            it.reads.ahead(KEY, 0, 100)
        readers = [it.begin(0, 100), it.begin(0, 100)]
        await turns()
        readers[0].cancel()
        await turns()
        assert it.source.cancelled == 0
        readers[1].cancel()
        await turns()
        assert it.source.cancelled == (not is_ahead)
        it.source.gate.set()
        assert await it.read(0, 100) == CONTENT[:100]
        assert len(it.source.asked) == (1 if is_ahead else 2)


async def test_a_failure_reaches_all_who_wait_and_is_not_remembered() -> None:
    async with bed() as it:
        it.source.failures = 1
        it.source.gate.clear()
        it.reads.ahead(KEY, 0, 100)
        readers = [it.begin(0, 50), it.begin(20, 100)]
        await turns()
        it.source.gate.set()
        for reader in readers:
            with pytest.raises(ObjectStoreUnavailable):
                await reader
        assert await it.read(0, 100) == CONTENT[:100]


async def test_what_is_forgotten_is_fetched_anew_even_when_it_was_under_way() -> None:
    async with bed() as it:
        it.source.gate.clear()
        early = it.begin(0, 100)
        await turns()
        it.reads.forget(KEY)
        late = it.begin(0, 100)
        await turns()
        it.source.gate.set()
        assert await early == await late == CONTENT[:100]
        assert len(it.source.asked) == 2
        assert await it.read(0, 100) == CONTENT[:100]
        assert len(it.source.asked) == 2


async def test_what_is_dropped_is_counted_while_somebody_has_it() -> None:
    async with bed() as it:
        (view,) = await it.reads.read(KEY, 0, 100, 0)
        it.reads.forget(KEY)
        assert it.reads.evicted.bytes == 100
        assert view == CONTENT[:100]
        view.release()
        del view
        await turns()
        assert it.reads.evicted.bytes == 0
