import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.caches.block_files import PAGE_BYTES, BlockFiles
from wal.caches.object_cache import ObjectCache, ObjectCacheSettings
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, ObjectStoreUnavailable
from wal.fd_cache import FdCache

KEY = ObjectKey("wal/00/object")
OTHER = ObjectKey("wal/01/other")
BLOCK = 4096


def content_of(key: str, length: int) -> bytes:
    return b"".join((sum(key.encode()) + i).to_bytes(4, "big") for i in range(length // 4 + 1))[
        :length
    ]


class Source:
    """Objects of deterministic content; answers when its gate is open."""

    def __init__(self, length: int = 10 * BLOCK) -> None:
        self.length = length
        self.requests: list[tuple[str, int, int]] = []
        self.failures = 0
        self.cancelled = 0
        self.active = 0
        self.active_max = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Condition()

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        self.requests.append((key, start, length))
        self.active += 1
        self.active_max = max(self.active, self.active_max)
        async with self.arrived:
            self.arrived.notify_all()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.active -= 1
        if self.failures:
            self.failures -= 1
            raise ObjectStoreUnavailable("injected")
        return content_of(key, self.length)[start : start + length]

    async def until_active(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: self.active == count)


def settings(
    blocks: int = 4,
    cold: int = 16,
    hot: int = 8,
    ahead_bytes: int = 4 * BLOCK,
) -> ObjectCacheSettings:
    return ObjectCacheSettings(
        block_bytes=BLOCK,
        memory_bytes=blocks * BLOCK,
        hot_concurrency=hot,
        cold_concurrency=cold,
        ahead_bytes=ahead_bytes,
    )


def on_disk(
    directory: Path, blocks: int = 8, block_bytes: int = BLOCK, files: FdCache | None = None
) -> BlockFiles:
    return BlockFiles(
        str(directory),
        limit_bytes=blocks * block_bytes,
        threads=1,
        fd_cache=files or FdCache(8),
    )


async def read(
    cache: ObjectCache,
    source: Source,
    start: int,
    length: int,
    key: ObjectKey = KEY,
    cold: bool = False,
) -> bytes:
    return b"".join(await cache.read(key, start, length, source.length, cold=cold))


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def spilled(cache: ObjectCache) -> None:
    while cache._spills:
        await asyncio.wait(list(cache._spills))


async def test_one_get_serves_every_read_of_a_block() -> None:
    source = Source()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        for start in (0, 100, BLOCK - 1):
            assert await read(cache, source, start, 1) == content_of(KEY, BLOCK)[start : start + 1]
        assert source.requests == [(KEY, 0, BLOCK)]
        counted = cache.statistics()
        assert (counted.misses, counted.memory_hits, counted.memory_bytes) == (1, 2, BLOCK)


async def test_the_last_block_ends_with_the_object() -> None:
    source = Source(length=BLOCK + 10)
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        assert await read(cache, source, BLOCK, 10) == content_of(KEY, BLOCK + 10)[BLOCK:]
        assert source.requests == [(KEY, BLOCK, 10)]


async def test_views_are_shared_and_cannot_be_written() -> None:
    source = Source()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        (view,) = await cache.read(KEY, 0, 10, source.length)
        (again,) = await cache.read(KEY, 0, 10, source.length)
        assert view.obj is again.obj
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, -1), (90, 11), (101, 0)])
async def test_a_range_outside_of_the_object_is_an_error(start: int, length: int) -> None:
    async with ObjectCache(Source(), clock=ManualClock(), settings=settings()) as cache:
        with pytest.raises(CorruptObject):
            await cache.read(KEY, start, length, 100)
        assert await cache.read(KEY, 100, 0, 100) == []


async def test_readers_of_one_block_share_one_request() -> None:
    source = Source()
    source.gate.clear()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        readers = [asyncio.create_task(read(cache, source, i, 1)) for i in range(10)]
        await source.until_active(1)
        source.gate.set()
        answers = await asyncio.gather(*readers)
        assert b"".join(answers) == content_of(KEY, 10)
        assert len(source.requests) == 1
        assert cache.statistics().joined == 9


async def test_a_cancelled_reader_leaves_the_request_to_the_others() -> None:
    source = Source()
    source.gate.clear()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        first = asyncio.create_task(read(cache, source, 0, 4))
        await source.until_active(1)
        second = asyncio.create_task(read(cache, source, 4, 4))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        source.gate.set()
        assert await second == content_of(KEY, 8)[4:]
        assert (len(source.requests), source.cancelled) == (1, 0)


async def test_the_request_is_cancelled_with_its_last_reader_and_nothing_is_left() -> None:
    source = Source()
    source.gate.clear()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        readers = [asyncio.create_task(read(cache, source, 0, 4)) for _ in range(3)]
        await source.until_active(1)
        for reader in readers:
            reader.cancel()
        assert all(
            isinstance(outcome, asyncio.CancelledError)
            for outcome in await asyncio.gather(*readers, return_exceptions=True)
        )
        # A reader that comes before the cancelled request has ended starts one of its own.
        source.gate.set()
        assert await read(cache, source, 0, 4) == content_of(KEY, 4)
        assert source.cancelled == 1
        assert cache.statistics().in_flight == 0


async def test_a_failure_reaches_all_who_wait_and_is_not_remembered() -> None:
    source = Source()
    source.failures = 1
    source.gate.clear()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        readers = [asyncio.create_task(read(cache, source, 0, 4)) for _ in range(3)]
        await source.until_active(1)
        source.gate.set()
        outcomes = await asyncio.gather(*readers, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ObjectStoreUnavailable] * 3
        assert await read(cache, source, 0, 4) == content_of(KEY, 4)
        assert len(source.requests) == 2


async def test_memory_keeps_its_bytes_and_evicts_the_least_recently_used() -> None:
    source = Source()
    async with ObjectCache(source, clock=ManualClock(), settings=settings(blocks=2)) as cache:
        for block in (0, 1, 0, 2):
            await read(cache, source, block * BLOCK, 1)
        counted = cache.statistics()
        assert (counted.memory_bytes, counted.evictions) == (2 * BLOCK, 1)
        await read(cache, source, 0, 1)
        assert len(source.requests) == 3
        await read(cache, source, BLOCK, 1)
        assert len(source.requests) == 4


async def test_evicted_bytes_stay_valid_for_who_holds_them() -> None:
    source = Source()
    async with ObjectCache(source, clock=ManualClock(), settings=settings(blocks=1)) as cache:
        (view,) = await cache.read(KEY, 0, 100, source.length)
        for block in range(1, 5):
            await read(cache, source, block * BLOCK, 1)
        assert bytes(view) == content_of(KEY, 100)
        assert cache.statistics().evicted_bytes == BLOCK, "one byte of a view keeps the block"
        part = view[5:6]
        del view
        assert cache.statistics().evicted_bytes == BLOCK
        part.release()
        counted = cache.statistics()
        assert (counted.memory_bytes, counted.evicted_bytes) == (BLOCK, 0)


async def test_cold_reads_fetch_what_they_ask_for_and_evict_nothing() -> None:
    source = Source()
    async with ObjectCache(source, clock=ManualClock(), settings=settings(blocks=1)) as cache:
        await read(cache, source, 0, 1)
        for block in range(1, 9):
            start = block * BLOCK + 7
            cold = await read(cache, source, start, 50, cold=True)
            assert cold == content_of(KEY, source.length)[start : start + 50]
            assert source.requests[-1] == (KEY, start, 50)
        fetched = len(source.requests)
        await read(cache, source, 0, 1)
        await read(cache, source, 0, 1, cold=True)
        assert len(source.requests) == fetched
        assert cache.statistics().cold_reads == 8
        assert cache.statistics().evictions == 0


async def test_cold_reads_are_limited_apart_from_the_others() -> None:
    source = Source()
    source.gate.clear()
    async with ObjectCache(source, clock=ManualClock(), settings=settings(cold=2)) as cache:
        cold = [
            asyncio.create_task(read(cache, source, block * BLOCK, 1, cold=True))
            for block in range(5)
        ]
        await source.until_active(2)
        tail = asyncio.create_task(read(cache, source, 8 * BLOCK, 1))
        await source.until_active(3)
        source.gate.set()
        await asyncio.gather(tail, *cold)
        assert source.active_max == 3


async def test_cold_reads_have_the_memory_that_no_block_needs_until_one_does() -> None:
    source = Source()
    sizes = settings(blocks=2, ahead_bytes=BLOCK)
    async with ObjectCache(source, clock=ManualClock(), settings=sizes) as cache:
        for block in range(2):
            await read(cache, source, block * BLOCK, BLOCK, cold=True)
        cold_bytes = cache.statistics().cold_bytes
        assert cold_bytes > 2 * BLOCK
        await read(cache, source, 4 * BLOCK, 1)
        assert cache.statistics().cold_bytes < cold_bytes
        await read(cache, source, 5 * BLOCK, 1)
        counted = cache.statistics()
        assert counted.memory_bytes == 2 * BLOCK
        assert counted.cold_bytes <= BLOCK


async def test_blocks_are_read_ahead_by_half_of_the_requests_and_read_later_without_one() -> None:
    source = Source()
    source.gate.clear()
    sizes = settings(blocks=40, hot=4)
    async with ObjectCache(source, clock=ManualClock(), settings=sizes) as cache:
        assert not cache.ahead(KEY, 0, 3 * BLOCK, source.length)
        await source.until_active(2)
        source.gate.set()
        assert await read(cache, source, 0, 2 * BLOCK) == content_of(KEY, 2 * BLOCK)
        assert len(source.requests) == 2


async def test_blocks_that_nobody_has_read_take_a_quarter_of_the_memory() -> None:
    source = Source()
    async with ObjectCache(source, clock=ManualClock(), settings=settings(blocks=8)) as cache:
        assert not cache.ahead(KEY, 0, 5 * BLOCK, source.length)
        await read(cache, source, BLOCK, 1)
        assert len(source.requests) == 2
        assert not cache.ahead(KEY, 0, 5 * BLOCK, source.length)
        await read(cache, source, 0, 3 * BLOCK)
        assert cache.ahead(KEY, 0, 5 * BLOCK, source.length)
        await read(cache, source, 0, 5 * BLOCK)
        assert [start // BLOCK for _, start, _ in source.requests] == [0, 1, 2, 3, 4]


async def test_a_block_that_could_not_be_read_ahead_is_not_counted_as_unread() -> None:
    source = Source()
    source.failures = 2
    async with ObjectCache(source, clock=ManualClock(), settings=settings(blocks=8)) as cache:
        assert not cache.ahead(KEY, 0, 3 * BLOCK, source.length)
        for _ in range(5):
            await asyncio.sleep(0)
        assert cache.ahead(KEY, 0, 2 * BLOCK, source.length)
        await read(cache, source, 0, 2 * BLOCK)
        assert len(source.requests) == 4


async def test_what_is_a_block_already_is_not_read_ahead_cold() -> None:
    source = Source()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        await read(cache, source, 0, 1)
        assert cache.ahead(KEY, 0, BLOCK, source.length, cold=True)
        assert cache.ahead(KEY, BLOCK, BLOCK, source.length, cold=True)
        await read(cache, source, BLOCK, BLOCK, cold=True)
        assert source.requests == [(KEY, 0, BLOCK), (KEY, BLOCK, BLOCK)]
        assert cache.ahead(KEY, 0, source.length + 1, source.length, cold=True)
        assert len(source.requests) == 2


async def test_no_more_blocks_are_in_flight_than_allowed_and_a_reader_that_leaves_makes_room() -> (
    None
):
    source = Source()
    source.gate.clear()
    async with ObjectCache(
        source, clock=ManualClock(), settings=settings(blocks=10, hot=2)
    ) as cache:
        readers = [asyncio.create_task(read(cache, source, block * BLOCK, 1)) for block in range(8)]
        await source.until_active(2)
        for leaving in (readers[0], readers[5]):
            leaving.cancel()
        await asyncio.wait((readers[0], readers[5]))
        source.gate.set()
        stayed = [reader for reader in readers if not reader.cancelled()]
        assert len(await asyncio.gather(*stayed)) == 6
        assert source.active_max == 2
        assert cache.statistics().misses == 7, "who left the queue was never asked for"


async def test_an_invalidated_object_is_fetched_again_even_when_it_was_in_flight() -> None:
    source = Source()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        await read(cache, source, 0, 1)
        await read(cache, source, 0, 1, key=OTHER)
        source.gate.clear()
        waiting = asyncio.create_task(read(cache, source, BLOCK, 4))
        await source.until_active(1)
        await cache.invalidate(KEY)
        source.gate.set()
        assert await waiting == content_of(KEY, 2 * BLOCK)[BLOCK : BLOCK + 4]
        before = len(source.requests)
        await read(cache, source, 0, 1)
        await read(cache, source, BLOCK, 1)
        await read(cache, source, 0, 1, key=OTHER)
        assert len(source.requests) == before + 2


async def test_closing_the_cache_cancels_what_is_in_flight() -> None:
    source = Source()
    source.gate.clear()
    async with ObjectCache(source, clock=ManualClock(), settings=settings()) as cache:
        reader = asyncio.create_task(read(cache, source, 0, 1))
        await source.until_active(1)
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert source.active == 0


async def test_what_memory_evicts_is_read_from_disk(tmp_path: Path) -> None:
    source = Source()
    async with ObjectCache(
        source,
        clock=ManualClock(),
        settings=settings(blocks=1),
        disk=on_disk(tmp_path),
    ) as cache:
        for block in range(4):
            await read(cache, source, block * BLOCK, 1)
            await spilled(cache)
        assert len(source.requests) == 4
        for block in range(4):
            start = block * BLOCK
            assert await read(cache, source, start, 9) == content_of(KEY, 4 * BLOCK)[start:][:9]
            await spilled(cache)
        assert len(source.requests) == 4
        assert (cache.statistics().disk_hits, cache.statistics().memory_hits) == (3, 1)


async def test_the_disk_tier_keeps_its_bytes(tmp_path: Path) -> None:
    source = Source()
    async with ObjectCache(
        source,
        clock=ManualClock(),
        settings=settings(blocks=1),
        disk=on_disk(tmp_path, blocks=2),
    ) as cache:
        for block in range(8):
            await read(cache, source, block * BLOCK, 1)
            await spilled(cache)
        kept = sum(path.stat().st_size for path in files_in(tmp_path))
        assert kept == cache.statistics().disk_bytes <= 2 * BLOCK
        assert len(files_in(tmp_path)) == 2


async def test_of_a_block_on_disk_each_reader_has_its_own_pages_in_memory_of_its_own(
    tmp_path: Path,
) -> None:
    block_bytes = 4 * PAGE_BYTES
    source = Source(length=2 * block_bytes)
    sizes = ObjectCacheSettings(block_bytes=block_bytes, memory_bytes=block_bytes)
    files = FdCache(8)
    disk = on_disk(tmp_path, block_bytes=block_bytes, files=files)
    async with ObjectCache(source, clock=ManualClock(), settings=sizes, disk=disk) as cache:
        for start in (0, block_bytes):
            await read(cache, source, start, 1)
        await spilled(cache)
        (path,) = files_in(tmp_path)
        damaged = bytearray(path.read_bytes())
        damaged[3 * PAGE_BYTES] ^= 1
        path.write_bytes(damaged)
        expected = content_of(KEY, block_bytes)
        opened = files.statistics()
        for cold in (False, True):
            start, length = PAGE_BYTES - 10, 2 * PAGE_BYTES
            (view,) = await cache.read(KEY, start, length, source.length, cold=cold)
            assert view == expected[start : start + length]
            view[:] = bytes(length)
        assert files.statistics().hits + files.statistics().misses - sum(opened[:2]) == 2
        assert files.statistics().open == 1
        assert (len(source.requests), cache.statistics().disk_hits) == (2, 2)
        assert cache.statistics().memory_bytes == block_bytes, "nothing comes back to memory"
        start = 3 * PAGE_BYTES - 1
        assert await read(cache, source, start, 2) == expected[start : start + 2]
        assert (len(source.requests), cache.statistics().corrupt_blocks) == (3, 1)
        assert files.statistics().open == 0


async def test_readers_that_find_a_block_file_damaged_share_one_request(tmp_path: Path) -> None:
    source = Source()
    async with ObjectCache(
        source,
        clock=ManualClock(),
        settings=settings(blocks=1),
        disk=on_disk(tmp_path),
    ) as cache:
        for block in range(2):
            await read(cache, source, block * BLOCK, 1)
        await spilled(cache)
        (file,) = files_in(tmp_path)
        file.write_bytes(b"something else")
        readers = [read(cache, source, place, 1) for place in range(5)]
        assert b"".join(await asyncio.gather(*readers)) == content_of(KEY, 5)
        assert (len(source.requests), cache.statistics().corrupt_blocks) == (3, 1)


@pytest.mark.parametrize("position", [0, 10, BLOCK // 2, -1])
async def test_a_damaged_block_file_is_dropped_and_the_block_fetched(
    tmp_path: Path, position: int
) -> None:
    source = Source()
    async with ObjectCache(
        source,
        clock=ManualClock(),
        settings=settings(blocks=1),
        disk=on_disk(tmp_path),
    ) as cache:
        await read(cache, source, 0, 1)
        await read(cache, source, BLOCK, 1)
        await spilled(cache)
        (file,) = files_in(tmp_path)
        damaged = bytearray(file.read_bytes())
        damaged[position] ^= 4
        file.write_bytes(damaged)
        assert await read(cache, source, 0, BLOCK) == content_of(KEY, BLOCK)
        assert len(source.requests) == 3
        assert cache.statistics().corrupt_blocks == 1
        await cache.invalidate(KEY)
        assert files_in(tmp_path) == []


@pytest.mark.parametrize("keep", [0, 1, BLOCK - 1])
async def test_a_truncated_block_file_is_dropped_and_the_block_fetched(
    tmp_path: Path, keep: int
) -> None:
    source = Source()
    async with ObjectCache(
        source,
        clock=ManualClock(),
        settings=settings(blocks=1),
        disk=on_disk(tmp_path),
    ) as cache:
        await read(cache, source, 0, 1)
        await read(cache, source, BLOCK, 1)
        await spilled(cache)
        (file,) = files_in(tmp_path)
        file.write_bytes(file.read_bytes()[:keep])
        assert await read(cache, source, 0, BLOCK) == content_of(KEY, BLOCK)
        assert len(source.requests) == 3


async def test_a_disk_that_refuses_writes_costs_requests_and_nothing_else(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    source = Source()
    async with ObjectCache(
        source,
        clock=ManualClock(),
        settings=settings(blocks=1),
        disk=on_disk(directory),
    ) as cache:
        directory.rmdir()
        for block in (0, 1, 0):
            start = block * BLOCK
            answer = await read(cache, source, start, 4)
            assert answer == content_of(KEY, source.length)[start : start + 4]
            await spilled(cache)
        assert len(source.requests) == 3
        assert cache.statistics().disk_bytes == 0


async def test_block_files_of_an_earlier_process_are_removed_at_start(tmp_path: Path) -> None:
    (tmp_path / "0123-0.block").write_bytes(b"old")
    (tmp_path / "0123-1.block.tmp").write_bytes(b"old")
    (tmp_path / "precious").write_bytes(b"not ours")
    async with ObjectCache(
        Source(),
        clock=ManualClock(),
        settings=settings(),
        disk=on_disk(tmp_path),
    ):
        assert [path.name for path in files_in(tmp_path)] == ["precious"]


@given(
    length=st.integers(1, 5 * BLOCK),
    ranges=st.lists(
        st.tuples(st.integers(0, 5 * BLOCK), st.integers(0, 3 * BLOCK), st.booleans()), max_size=12
    ),
)
def test_any_range_is_read_as_from_the_object_itself(
    length: int, ranges: list[tuple[int, int, bool]]
) -> None:
    async def check() -> None:
        source = Source(length)
        async with ObjectCache(source, clock=ManualClock(), settings=settings(blocks=2)) as cache:
            for start, size, cold in ranges:
                start = min(start, length)
                size = min(size, length - start)
                expected = content_of(KEY, length)[start : start + size]
                assert await read(cache, source, start, size, cold=cold) == expected
                assert cache.statistics().memory_bytes <= 2 * BLOCK

    asyncio.run(check())
