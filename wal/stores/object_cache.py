"""Recently read object bytes, in aligned blocks: one GET serves many readers.

Fetch asks for small extents of WAL objects, many consumers for the same ones at the same time. The
cache cuts objects into blocks of `block_bytes` at multiples of that size (the last one is shorter),
by default larger than a usual WAL object, so that one GET brings all of it.

    read -> memory tier -> disk tier -> one ranged GET, shared by all readers of the block

Single flight: the GET of a block belongs to the cache. A reader that is cancelled leaves it to the
others; when the last one leaves, it is cancelled too. All who wait hear of a failed GET, and the
next reader tries again.

At most `fetch.hot.concurrency` blocks are loaded at a time: no LRU counts a block in flight yet.

Cold reads (`cold=True`: catch-up far behind the tail) use the blocks that are there, without making
them look recently used, but admit none; they fetch exactly the bytes they ask for, under a
semaphore of their own. So they neither evict the tail nor take its connections.

The memory tier is an LRU by bytes. Views are read-only and shared: who changes bytes copies first.
A view keeps all of its block alive, evicted or not; answers keep views until their sockets have
taken them, within the limits of what answers may hold. `evicted_bytes` says how much that is.

The disk tier, if there is a directory for it, keeps what memory evicts: one file per block with a
header, an LRU by bytes too. A file whose header or CRC32C is wrong is removed and the block is
fetched. Files are written without fsync and removed at start: it is a cache of this process.

An object is immutable and its key is never used again. `invalidate` is for a reader that finds a
wrong CRC: it has the object read once more before it calls it corrupt.
"""

import asyncio
import os
import struct
import weakref
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, ObjectStoreUnavailable
from wal.settings import setting
from wal.worker_threads import WorkerThreads

_BLOCK_MAGIC: Final = b"DLBLOCK1"
# Magic, CRC32C of everything after this header, key length, block number, content length.
_BLOCK_HEADER: Final = struct.Struct(">8sIIQQ")
assert _BLOCK_HEADER.size == 32
_BLOCK_SUFFIX: Final = ".block"
_SPILLS_PER_THREAD_MAX: Final = 2


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
        why="what memory evicts, if there is a directory for it; 0: none",
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
    evictions: int
    corrupt_blocks: int
    """Files of the disk tier that failed their check or were not there."""
    memory_bytes: int
    evicted_bytes: int
    """Of blocks that left memory and that readers still have views of."""
    disk_bytes: int
    in_flight: int


class RangeSource(Protocol):
    """What the cache needs of an object store; see `ObjectStore.get_range`."""

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes: ...


class BlockId(NamedTuple):
    key: ObjectKey
    number: int


_Content = npt.NDArray[np.uint8]
"""The bytes of a block, as something that can be referred to weakly."""


class _Flight:
    """One fetch of one block and the readers that wait for it."""

    __slots__ = ("task", "waiters", "wanted")

    def __init__(self, task: "asyncio.Task[_Content]") -> None:
        self.task = task
        self.waiters = 0
        self.wanted = True
        """False once the object was invalidated: the result must not be admitted."""


class ObjectCache:
    """Blocks of immutable objects; see the module's text. Enter it to use it, once.

    `disk_directory` belongs to this cache alone and is emptied of block files at start.
    """

    def __init__(
        self,
        store: RangeSource,
        *,
        settings: ObjectCacheSettings | None = None,
        disk_directory: str | None = None,
    ) -> None:
        self._store = store
        self._settings = settings or ObjectCacheSettings()
        self._block_bytes = self._settings.block_bytes
        self._memory: OrderedDict[BlockId, _Content] = OrderedDict()
        self._memory_bytes = 0
        self._evicted: list[weakref.ref[_Content]] = []
        self._flights: dict[BlockId, _Flight] = {}
        self._hot = asyncio.Semaphore(self._settings.hot_concurrency)
        self._cold = asyncio.Semaphore(self._settings.cold_concurrency)
        self._disk: _DiskTier | None = None
        if disk_directory is not None and self._settings.disk_bytes:
            self._disk = _DiskTier(
                disk_directory, self._settings.disk_bytes, self._settings.disk_threads
            )
        self._spills: dict[asyncio.Task[None], BlockId] = {}
        self._memory_hits = 0
        self._disk_hits = 0
        self._joined = 0
        self._misses = 0
        self._cold_reads = 0
        self._evictions = 0

    async def read(
        self, key: ObjectKey, start: int, length: int, object_length: int, *, cold: bool = False
    ) -> list[memoryview]:
        """Bytes [start, start + length) of the object, as read-only views in order.

        One view, unless the range crosses blocks. `object_length` must be the object's true length:
        it says where the last block ends.
        Raises: ObjectNotFound, CorruptObject (also when the range is not within the object),
        ObjectStoreUnavailable.
        """
        if start < 0 or length < 0 or start + length > object_length:
            raise CorruptObject(
                f"{key}: no bytes [{start}, {start + length}) in {object_length} of them"
            )
        if length == 0:
            return []
        first = start // self._block_bytes
        last = (start + length - 1) // self._block_bytes
        views = []  # one by one: if the reader fails or leaves, the second GET is never made
        for number in range(first, last + 1):
            block_start = number * self._block_bytes
            piece_start = max(start, block_start)
            piece_end = min(start + length, block_start + self._block_bytes)
            views.append(
                await self._read_within(
                    BlockId(key, number), piece_start, piece_end - piece_start, object_length, cold
                )
            )
        return views

    async def invalidate(self, key: ObjectKey) -> None:
        """Forget every block of the object, in both tiers and in flight."""
        for block in [block for block in self._memory if block.key == key]:
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
            cold_reads=self._cold_reads,
            evictions=self._evictions,
            corrupt_blocks=disk.corrupt_blocks if disk is not None else 0,
            memory_bytes=self._memory_bytes,
            evicted_bytes=sum(len(one) for ref in self._evicted if (one := ref()) is not None),
            disk_bytes=disk.total_bytes if disk is not None else 0,
            in_flight=len(self._flights),
        )

    async def __aenter__(self) -> Self:
        if self._disk is not None:
            await self._disk.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what is in flight; readers that still wait are cancelled with it."""
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
        self, block: BlockId, start: int, length: int, object_length: int, cold: bool
    ) -> memoryview:
        """Bytes [start, start + length) of the object, which lie in one block."""
        content = self._memory.get(block)
        if content is not None:
            self._memory_hits += 1
            if not cold:
                self._memory.move_to_end(block)
        elif cold and block not in self._flights:
            async with self._cold:
                content = await self._read_disk(block)
                if content is None:
                    self._cold_reads += 1
                    return memoryview(await self._store.get_range(block.key, start, length))
        else:
            content = await self._join(block, object_length)
        offset = start - block.number * self._block_bytes
        view = content.data[offset : offset + length]
        if len(view) != length:
            raise CorruptObject(
                f"{block.key}: block {block.number} has {len(content)} bytes,"
                f" bytes [{offset}, {offset + length}) of it were asked for"
            )
        return view

    async def _read_disk(self, block: BlockId) -> _Content | None:
        content = None if self._disk is None else await self._disk.read(block)
        if content is None:
            return None
        self._disk_hits += 1
        return np.frombuffer(content, np.uint8)

    async def _join(self, block: BlockId, object_length: int) -> _Content:
        """Wait for the block, together with everybody else who does."""
        flight = self._flights.get(block)
        if flight is None:
            task = asyncio.create_task(
                self._load(block, object_length), name=f"fetch-{block.key}-{block.number}"
            )
            flight = self._flights[block] = _Flight(task)
            task.add_done_callback(partial(self._land, block, flight))
        else:
            self._joined += 1
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                # Not joinable any more: a reader that comes before the cancelled task has ended
                # must not be cancelled with it.
                if self._flights.get(block) is flight:
                    del self._flights[block]
                flight.task.cancel()

    async def _load(self, block: BlockId, object_length: int) -> _Content:
        async with self._hot:
            content = await self._read_disk(block)
            if content is not None:
                return content
            self._misses += 1
            start = block.number * self._block_bytes
            length = min(self._block_bytes, object_length - start)
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

    def _admit(self, block: BlockId, content: _Content) -> None:
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
            self._evictions += 1
            self._spill(evicted, evicted_content)
            self._evict(evicted_content)

    def _evict(self, content: _Content) -> None:
        """What was in memory is not any more, but for readers that have views of it."""
        self._memory_bytes -= len(content)
        self._evicted = [ref for ref in self._evicted if ref() is not None]
        self._evicted.append(weakref.ref(content))

    def _spill(self, block: BlockId, content: _Content) -> None:
        if self._disk is None or self._disk.has(block) or block in self._spills.values():
            return
        # What waits to be written is memory too: a slow disk must not pile it up.
        if len(self._spills) >= self._settings.disk_threads * _SPILLS_PER_THREAD_MAX:
            return
        task = asyncio.create_task(self._disk.write(block, content.data), name="spill-block")
        self._spills[task] = block
        task.add_done_callback(self._spills.pop)


class _DiskTier:
    """Block files in a directory: an LRU by bytes, of this process only.

    Sizes and order are kept in memory and changed on the event loop; files are read, written and
    removed in threads. A file is written under a temporary name and renamed, so that a reader sees
    all of it, and whatever a reader finds wrong counts as absent.
    """

    def __init__(self, directory: str, limit_bytes: int, threads: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._files: OrderedDict[BlockId, int] = OrderedDict()
        self._threads = WorkerThreads("object-cache-disk", threads)
        self.total_bytes = 0
        self.corrupt_blocks = 0

    async def open(self) -> None:
        """Make the directory; remove the block files of an earlier process.

        Raises: ObjectStoreUnavailable when it cannot be used.
        """

        def prepare() -> None:
            os.makedirs(self._directory, exist_ok=True)
            for name in os.listdir(self._directory):
                if name.endswith((_BLOCK_SUFFIX, _BLOCK_SUFFIX + ".tmp")):
                    os.unlink(f"{self._directory}/{name}")

        try:
            await self._threads.run(prepare)
        except OSError as error:
            raise ObjectStoreUnavailable(f"object cache: {error}") from error

    async def close(self) -> None:
        await self._threads.close()

    def has(self, block: BlockId) -> bool:
        return block in self._files

    async def read(self, block: BlockId) -> bytes | None:
        """The block's content; None when it is not here or its file is damaged."""
        if block not in self._files:
            return None
        self._files.move_to_end(block)
        path = self._path(block)
        content = await self._threads.run(lambda: _read_block_file(path, block))
        if content is None and block in self._files:
            self.corrupt_blocks += 1
            await self._remove([block])
        return content

    async def write(self, block: BlockId, content: memoryview) -> None:
        """Keep a block; a disk that refuses it costs a GET later, nothing else."""
        size = _BLOCK_HEADER.size + len(block.key.encode()) + len(content)
        if size > self._limit_bytes:
            return
        path = self._path(block)
        if not await self._threads.run(lambda: _write_block_file(path, block, content)):
            return
        self.total_bytes += size - self._files.pop(block, 0)
        self._files[block] = size
        for oldest in [*self._files]:
            if self.total_bytes <= self._limit_bytes:
                break
            await self._remove([oldest])

    async def forget(self, key: ObjectKey) -> None:
        await self._remove([block for block in self._files if block.key == key])

    async def _remove(self, blocks: list[BlockId]) -> None:
        for block in blocks:
            self.total_bytes -= self._files.pop(block, 0)
        paths = [self._path(block) for block in blocks]
        await self._threads.run(lambda: _unlink_all(paths))

    def _path(self, block: BlockId) -> str:
        name = blake2b(block.key.encode(), digest_size=16).hexdigest()
        return f"{self._directory}/{name}-{block.number}{_BLOCK_SUFFIX}"


def _write_block_file(path: str, block: BlockId, content: memoryview) -> bool:
    """Write and rename; False when the disk refuses."""
    key = block.key.encode()
    checksum = crc32c(content, crc32c(key))
    header = _BLOCK_HEADER.pack(_BLOCK_MAGIC, checksum, len(key), block.number, len(content))
    draft = f"{path}.tmp"
    try:
        with open(draft, "wb") as file:
            file.writelines((header, key, content))
        os.rename(draft, path)
    except OSError:
        # A full or broken cache disk: reads go to the store instead. What was written so far
        # is overwritten by the next try or removed at the next start.
        _unlink_all([draft])
        return False
    return True


def _read_block_file(path: str, block: BlockId) -> bytes | None:
    """The content, or None when anything about the file is not as it was written."""
    try:
        with open(path, "rb") as file:
            header = file.read(_BLOCK_HEADER.size)
            if len(header) != _BLOCK_HEADER.size:
                return None
            magic, checksum, key_length, number, length = _BLOCK_HEADER.unpack(header)
            key = block.key.encode()
            if (magic, key_length, number) != (_BLOCK_MAGIC, len(key), block.number):
                return None
            if file.read(len(key)) != key or os.fstat(file.fileno()).st_size != (
                _BLOCK_HEADER.size + len(key) + length
            ):
                return None
            content = file.read()
    except OSError:
        return None
    return content if crc32c(content, crc32c(key)) == checksum else None


def _unlink_all(paths: list[str]) -> None:
    for path in paths:
        with suppress(OSError):  # not there, or removed at the next start
            os.unlink(path)
