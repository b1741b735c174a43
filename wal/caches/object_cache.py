"""Recently read object bytes, in aligned blocks: one GET serves many readers.

Fetch asks for small extents of WAL objects, many consumers for the same ones at the same time. The
cache cuts objects into blocks of `block_bytes` at multiples of that size (the last one is shorter),
by default larger than a usual WAL object, so that one GET brings all of it.

    read -> memory tier -> bytes of the disk tier -> one ranged GET of the block, shared by all
            its readers

Single flight: the GET of a block belongs to the cache. A reader that is cancelled leaves it to the
others; when the last one leaves, it is cancelled too. All who wait hear of a failed GET, and the
next reader tries again.

At most `fetch.hot.concurrency` blocks are loaded at a time: no LRU counts a block in flight yet.

Cold reads (`cold=True`: catch-up far behind the tail) use the blocks that are there, without making
them look recently used, but admit none; what is missing they get from `wal/caches/cold_reads.py`,
which has memory and GETs of its own. So they neither evict the tail nor take its connections.
Memory that no block needs is theirs as well, until one does.

`ahead` has bytes fetched that nobody waits for yet: cold, or as blocks, by half of the GETs. Blocks
that nobody has read take at most a quarter of the memory: more would evict what readers come back
to, and have it fetched twice.

The memory tier is an LRU by bytes. Views are read-only and shared: who changes bytes copies first.
A view keeps all of its block alive, evicted or not; answers keep views until their sockets have
taken them, within the limits of what answers may hold. `evicted_bytes` says how much that is.

The disk tier (`wal/caches/block_files.py`), if there is one, keeps what memory evicts, an LRU by
bytes too. Of a block that is there a reader gets what it asks for, in memory of its own, and memory
does not get the block back: what is read a little here and a little there would else throw out
blocks that others read, and be read whole each time.

An object is immutable and its key is never used again. `invalidate` is for a reader that finds a
wrong CRC: it has the object read once more before it calls it corrupt.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Self

import numpy as np

from wal.caches.block_files import BlockFiles, BlockId
from wal.caches.cold_reads import ColdReads, Content, Evicted, RangeSource
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject
from wal.settings import setting

_SPILLS_PER_THREAD_MAX: Final = 2

_UNREAD_SHARE: Final = 0.25
"""Of memory_bytes, for blocks that were loaded ahead and that nobody has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCacheSettings:
    """Sizes of the object cache."""

    block_bytes: int = setting(
        "object.cache.block.bytes",
        16 << 20,
        minimum=4 << 10,
        maximum=1 << 30,
        why="smaller: more GETs per object; larger: more bytes fetched for a small read",
    )
    memory_bytes: int = setting(
        "object.cache.memory.bytes",
        128 << 20,
        minimum=0,
        maximum=1 << 40,
        why="smaller: more GETs; larger: more memory, and a block is only as old as it is useful",
    )
    disk_bytes: int = setting(
        "object.cache.disk.bytes",
        0,
        minimum=0,
        maximum=1 << 50,
        why="what memory evicts; 0: none",
    )
    hot_concurrency: int = setting(
        "fetch.hot.concurrency",
        8,
        minimum=1,
        maximum=1024,
        why="blocks loaded at a time; fewer: the tail waits for the store's latency; more: each "
        "is object.cache.block.bytes of memory beyond object.cache.memory.bytes",
    )
    cold_concurrency: int = setting(
        "fetch.cold.concurrency",
        16,
        minimum=1,
        maximum=1024,
        why="fewer: catch-up is slower; more: it takes connections from the tail",
    )
    ahead_bytes: int = setting(
        "fetch.read.ahead.max.bytes",
        64 << 20,
        minimum=0,
        maximum=1 << 40,
        why="old data that was read ahead or is kept for the readers behind, of all consumers "
        "together; smaller: catch-up waits for the store, and readers of the same data have it "
        "fetched more often; larger: more memory",
    )
    disk_threads: int = setting(
        "object.cache.disk.threads",
        2,
        minimum=1,
        maximum=64,
        why="fewer: reads of the disk tier wait for each other; each is a thread",
    )


class ObjectCacheStatistics(NamedTuple):
    """Counters since the cache was made, and its sizes now. Hits and misses count blocks."""

    memory_hits: int
    disk_hits: int
    joined: int
    """Blocks somebody else was already fetching."""
    misses: int
    """Blocks fetched from the store, one GET each."""
    cold_reads: int
    """Ranged GETs that went past the cache."""
    cold_bytes: int
    """What is kept of them, or on its way."""
    ahead_bytes: int
    """Of what was asked of the store before anybody waited for it."""
    evictions: int
    corrupt_blocks: int
    """Files of the disk tier that failed their check or were not there."""
    memory_bytes: int
    evicted_bytes: int
    """Of blocks that left memory and that readers still have views of."""
    disk_bytes: int
    in_flight: int


class _Flight:
    """One fetch of one block and the readers that wait for it."""

    __slots__ = ("is_ahead", "task", "waiters", "wanted")

    def __init__(self, task: "asyncio.Task[Content]") -> None:
        self.task = task
        self.waiters = 0
        self.wanted = True
        """False once the object was invalidated: the result must not be admitted."""
        self.is_ahead = False
        """Whether it goes on when nobody waits for it."""


class ObjectCache:
    """Blocks of immutable objects; see the module's text. Enter it to use it, once.

    It opens and closes `disk`, which nobody else uses.
    """

    def __init__(
        self,
        store: RangeSource,
        *,
        clock: Clock,
        settings: ObjectCacheSettings | None = None,
        disk: BlockFiles | None = None,
    ) -> None:
        self._store = store
        self._settings = settings or ObjectCacheSettings()
        self._block_bytes = self._settings.block_bytes
        self._memory: OrderedDict[BlockId, Content] = OrderedDict()
        self._memory_bytes = 0
        self._evicted = Evicted()
        self._flights: dict[BlockId, _Flight] = {}
        self._unread: dict[BlockId, int] = {}
        """Blocks that were loaded ahead, and their lengths."""
        self._hot = asyncio.Semaphore(self._settings.hot_concurrency)
        self._cold = ColdReads(
            store,
            memory_max=self._cold_memory_max,
            concurrency=self._settings.cold_concurrency,
            clock=clock,
        )
        self._disk = disk
        self._spills: dict[asyncio.Task[None], BlockId] = {}
        self._memory_hits = 0
        self._disk_hits = 0
        self._joined = 0
        self._misses = 0
        self._ahead_bytes = 0
        self._evictions = 0

    async def read(
        self,
        key: ObjectKey,
        start: int,
        length: int,
        object_length: int,
        *,
        cold: bool = False,
        useful_to: int = 0,
    ) -> list[memoryview]:
        """Bytes [start, start + length) of the object, as views in order.

        They are read-only, or memory of the caller's own where they come from the disk tier. One
        view, unless the range crosses blocks. `object_length` must be the object's true length: it
        says where the last block ends. A cold reader comes for what follows up to `useful_to`.
        Raises: ObjectNotFound, CorruptObject (also when the range is not within the object),
        ObjectStoreUnavailable.
        """
        if not _is_within(start, length, object_length):
            raise CorruptObject(
                f"{key}: no bytes [{start}, {start + length}) in {object_length} of them"
            )
        views: list[memoryview] = []
        # One by one: if the reader fails or leaves, the second GET is never made.
        for block, start_in, length_in in self._parts(key, start, length):
            views += await self._read_within(
                block, start_in, length_in, object_length, cold, useful_to
            )
        return views

    def ahead(
        self, key: ObjectKey, start: int, length: int, object_length: int, *, cold: bool = False
    ) -> bool:
        """Have these bytes fetched before anybody asks for them; False: not all, for now."""
        if not _is_within(start, length, object_length):
            return True  # it is an error to who reads it
        for block, start_in, length_in in self._parts(key, start, length):
            is_known = block in self._memory or block in self._flights
            if is_known or (self._disk is not None and self._disk.has(block)):
                continue
            if cold:
                if not self._cold.ahead(key, start_in, length_in):
                    return False
            elif not self._may_load_ahead(block, object_length):
                return False
            else:
                self._ahead_bytes += length_in
                self._unread[block] = self._length(block, object_length)
                self._depart(block, object_length).is_ahead = True
        return True

    def _may_load_ahead(self, block: BlockId, object_length: int) -> bool:
        unread_bytes = sum(self._unread.values()) + self._length(block, object_length)
        return (
            2 * len(self._flights) < self._settings.hot_concurrency
            and unread_bytes <= self._settings.memory_bytes * _UNREAD_SHARE
        )

    def _length(self, block: BlockId, object_length: int) -> int:
        return min(self._block_bytes, object_length - block.number * self._block_bytes)

    def _parts(self, key: ObjectKey, start: int, length: int) -> Iterator[tuple[BlockId, int, int]]:
        """The blocks that the range lies in; where it begins there, and how much of it is there."""
        end = start + length
        while start < end:
            number = start // self._block_bytes
            part_end = min(end, (number + 1) * self._block_bytes)
            yield BlockId(key, number), start, part_end - start
            start = part_end

    async def invalidate(self, key: ObjectKey) -> None:
        """Forget every block of the object, in both tiers and in flight."""
        self._cold.forget(key)
        for block in [block for block in self._memory if block.key == key]:
            self._unread.pop(block, None)
            self._evict(self._memory.pop(block))
        for block in [block for block in self._flights if block.key == key]:
            # Who waits for it gets what was fetched; who comes from now on starts a new fetch.
            self._flights.pop(block).wanted = False
        if self._disk is not None:
            writing = [task for task, block in self._spills.items() if block.key == key]
            if writing:
                await asyncio.wait(writing)
            await self._disk.forget(key)

    def statistics(self) -> ObjectCacheStatistics:
        disk = self._disk
        return ObjectCacheStatistics(
            memory_hits=self._memory_hits,
            disk_hits=self._disk_hits,
            joined=self._joined,
            misses=self._misses,
            cold_reads=self._cold.gets,
            cold_bytes=self._cold.bytes,
            ahead_bytes=self._ahead_bytes + self._cold.ahead_bytes,
            evictions=self._evictions,
            corrupt_blocks=disk.corrupt_blocks if disk is not None else 0,
            memory_bytes=self._memory_bytes,
            evicted_bytes=self._evicted.bytes + self._cold.evicted.bytes,
            disk_bytes=disk.total_bytes if disk is not None else 0,
            in_flight=len(self._flights),
        )

    async def __aenter__(self) -> Self:
        if self._disk is not None:
            await self._disk.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what is in flight; readers that still wait are cancelled with it."""
        await self._cold.close()
        tasks = [*(flight.task for flight in self._flights.values()), *self._spills]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._flights.clear()
        self._memory.clear()
        self._memory_bytes = 0
        if self._disk is not None:
            await self._disk.close()

    async def _read_within(
        self,
        block: BlockId,
        start: int,
        length: int,
        object_length: int,
        cold: bool,
        useful_to: int,
    ) -> Sequence[memoryview]:
        """Bytes [start, start + length) of the object, which lie in one block."""
        self._unread.pop(block, None)
        offset = start - block.number * self._block_bytes
        if self._disk is not None and block not in self._memory and block not in self._flights:
            view = await self._disk.read(block, offset, length)
            if view is not None:
                self._disk_hits += 1
                return (view,)
        content = self._memory.get(block)
        if content is not None:
            self._memory_hits += 1
            if not cold:
                self._memory.move_to_end(block)
        elif cold and block not in self._flights:
            useful_to = min(useful_to, (block.number + 1) * self._block_bytes)
            return await self._cold.read(block.key, start, length, useful_to)
        else:
            content = await self._join(block, object_length)
        view = content.data[offset : offset + length]
        if len(view) != length:
            raise CorruptObject(
                f"{block.key}: block {block.number} has {len(content)} bytes,"
                f" bytes [{offset}, {offset + length}) of it were asked for"
            )
        return (view,)

    async def _join(self, block: BlockId, object_length: int) -> Content:
        """Wait for the block, together with everybody else who does."""
        flight = self._flights.get(block)
        if flight is None:
            flight = self._depart(block, object_length)
        else:
            self._joined += 1
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.is_ahead and not flight.task.done():
                # Not joinable any more: a reader that comes before the cancelled task has ended
                # must not be cancelled with it.
                if self._flights.get(block) is flight:
                    del self._flights[block]
                flight.task.cancel()

    def _depart(self, block: BlockId, object_length: int) -> _Flight:
        task = asyncio.create_task(
            self._load(block, object_length), name=f"fetch-{block.key}-{block.number}"
        )
        flight = self._flights[block] = _Flight(task)
        task.add_done_callback(partial(self._land, block, flight))
        return flight

    async def _load(self, block: BlockId, object_length: int) -> Content:
        async with self._hot:
            self._misses += 1
            start = block.number * self._block_bytes
            length = self._length(block, object_length)
            return np.frombuffer(await self._store.get_range(block.key, start, length), np.uint8)

    def _land(self, block: BlockId, flight: _Flight, _: object) -> None:
        """A fetch has ended: its result becomes a block unless it failed or is unwanted."""
        if self._flights.get(block) is flight:
            del self._flights[block]
        if flight.task.cancelled():
            return
        # Also marks the exception as seen when every reader has left.
        if flight.task.exception() is None and flight.wanted:
            self._admit(block, flight.task.result())
        if block not in self._memory:
            self._unread.pop(block, None)

    def _admit(self, block: BlockId, content: Content) -> None:
        if len(content) > self._settings.memory_bytes:
            self._spill(block, content)
            return
        previous = self._memory.pop(block, None)
        if previous is not None:
            self._evict(previous)
        self._memory[block] = content
        self._memory_bytes += len(content)
        while self._memory_bytes > self._settings.memory_bytes:
            evicted, evicted_content = self._memory.popitem(last=False)
            self._unread.pop(evicted, None)
            self._evictions += 1
            self._spill(evicted, evicted_content)
            self._evict(evicted_content)
        self._cold.shrink()

    def _cold_memory_max(self) -> int:
        return self._settings.ahead_bytes + self._settings.memory_bytes - self._memory_bytes

    def _evict(self, content: Content) -> None:
        """What was in memory is not any more, but for readers that have views of it."""
        self._memory_bytes -= len(content)
        self._evicted.add(content)

    def _spill(self, block: BlockId, content: Content) -> None:
        if self._disk is None or self._disk.has(block) or block in self._spills.values():
            return
        # What waits to be written is memory too: a slow disk must not pile it up.
        if len(self._spills) >= self._settings.disk_threads * _SPILLS_PER_THREAD_MAX:
            return
        task = asyncio.create_task(self._disk.write(block, content.data), name="spill-block")
        self._spills[task] = block
        task.add_done_callback(self._spills.pop)


def _is_within(start: int, length: int, object_length: int) -> bool:
    return start >= 0 and length >= 0 and start + length <= object_length
