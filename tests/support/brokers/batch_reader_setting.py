"""A batch reader over a real chunk directory, a real object cache and a store in memory.

Objects here are batches back to back: the reader believes the coordinator about what lies where, so
it needs no header or footer.
"""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from diskless.fetch.read_memory import ReadMemory
from diskless.loop.long_work import LongWork
from diskless.replica.batch_reader import READ_BYTES_MIN, BatchReader, ReadRequest, ReadResult
from diskless.replica.extent_source import ExtentSource
from metadata.operations import Extent, SegmentExtent, WalExtent
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.chunks.write_path import pending
from wal.caches.block_files import BlockFiles
from wal.caches.object_cache import ObjectCache, ObjectCacheSettings
from wal.chunks.buffer import BufferPool
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_settings import WalSettings
from wal.clock import ManualClock
from wal.coordinates import (
    CREATE_TIME,
    ByteOffset,
    ObjectKey,
    Offset,
    TopicIdPartition,
)
from wal.crc import Buffer
from wal.errors import (
    DisklessError,
)
from wal.fd_cache import FdCache
from wal.records.record_batch import iterate_headers, parse_header, verify_crc
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody
from wal.worker_threads import WorkerThreads

PARTITION = TopicIdPartition(UUID(int=1), 0)
OTHER = TopicIdPartition(UUID(int=1), 1)
NOW_MS = 1_704_067_200_000
COLD_AFTER_MS = 60_000
MUCH = 1 << 30


class FaultyStore(MemoryStore):
    """A memory store whose reads fail or lie as told."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.read_error: DisklessError | None = None
        self.flips_left = 0
        """How many of the next reads have a bit flipped in their last byte."""
        self.bytes_read = 0

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        if self.read_error is not None:
            raise self.read_error
        data = await super().get_range(key, start, length)
        self.bytes_read += len(data)
        if self.flips_left:
            self.flips_left -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        return data

    def damage(self, key: ObjectKey, position: int) -> None:
        """Flip a bit of what is stored, for ever."""
        stored = self._bucket.objects[key]
        data = bytearray(stored.data)
        data[position] ^= 4
        self._bucket.objects[key] = stored._replace(data=bytes(data))


class Encoded(NamedTuple):
    """A batch as a segment gives it."""

    base_offset: int
    last_offset: int
    data: Buffer


class FakeSegments:
    """Segments as lists of encoded batches."""

    def __init__(self) -> None:
        self.batches: list[Encoded] = []
        self.error: DisklessError | None = None
        self.asked: list[int] = []
        self.begun: list[tuple[int, int]] = []

    async def read(self, extent: SegmentExtent, offset: int, max_bytes: int) -> Sequence[Encoded]:
        self.asked.append(max_bytes)
        if self.error is not None:
            raise self.error
        assert extent.base_offset <= offset <= extent.last_offset
        found: list[Encoded] = []
        for batch in self.batches:
            if batch.last_offset >= offset and (not found or max_bytes > 0):
                found.append(batch)
                max_bytes -= len(batch.data)
        return found

    def ahead(self, extent: SegmentExtent, offset: int, max_bytes: int) -> int | None:
        self.begun.append((offset, max_bytes))
        return max_bytes


class Setting(NamedTuple):
    reader: BatchReader
    store: FaultyStore
    cache: ObjectCache
    memory: ReadMemory
    segments: FakeSegments
    directory: ChunkDirectory
    clock: ManualClock

    async def read(
        self,
        *extents: Extent,
        offset: int = 0,
        max_bytes: int = MUCH,
        partition: TopicIdPartition = PARTITION,
    ) -> ReadResult:
        request = ReadRequest(partition, offset, max_bytes, extents)
        (result,) = await self.reader.read([request], max_bytes=max_bytes)
        return result

    async def read_extent(self, extent: WalExtent) -> memoryview:
        threads = WorkerThreads("look", 1)
        try:
            return await self.reader.read_extent(extent, threads)
        finally:
            await threads.close()

    def chunk_of(self, *batches: bytes) -> SealedChunk:
        """Batches in a sealed chunk of this broker, all of one partition."""
        pool = BufferPool(1 << 20)
        writer = self.directory.open_chunk()
        writer.append([pending(pool, PARTITION, data) for data in batches])
        chunk = self.directory.seal(writer, ())
        assert chunk is not None
        return chunk

    async def put(self, *batches: bytes, key: str = "wal/00/object") -> ObjectKey:
        await self.store.put(ObjectKey(key), BytesBody(*batches))
        return ObjectKey(key)


@asynccontextmanager
async def in_place(
    tmp_path: Path,
    seconds: Callable[[], float] | None = None,
    read_bytes_min: int = READ_BYTES_MIN,
    block_bytes: int = 4096,
    disk_bytes: int = 0,
) -> AsyncIterator[Setting]:
    """With `disk_bytes` the cache has its blocks in files, and none in memory."""
    clock = ManualClock(NOW_MS)
    store = FaultyStore()
    fd_cache = FdCache(8)
    directory = ChunkDirectory(
        tmp_path / "chunks",
        settings=WalSettings(),
        clock=clock,
        rng=random.Random(1),
        fd_cache=fd_cache,
        broker_id=0,
    )
    directory.recover()
    segments = FakeSegments()
    memory = ReadMemory(1 << 20)
    threads = WorkerThreads("read", 1)
    cache_settings = ObjectCacheSettings(block_bytes=block_bytes)
    disk = None
    if disk_bytes:
        cache_settings = replace(cache_settings, memory_bytes=0)
        disk = BlockFiles(
            str(tmp_path / "cache"),
            limit_bytes=disk_bytes,
            threads=1,
            fd_cache=fd_cache,
            lend=memory.lend,
        )
    async with ObjectCache(store, clock=clock, settings=cache_settings, disk=disk) as cache:
        source = ExtentSource(
            directory=directory,
            cache=cache,
            memory=memory,
            segments=segments,
            threads=threads,
            clock=clock,
            cold_after_ms=COLD_AFTER_MS,
        )
        reader = BatchReader(
            source=source,
            long_work=LongWork(seconds or clock.monotonic),
            read_bytes_min=read_bytes_min,
        )
        yield Setting(reader, store, cache, memory, segments, directory, clock)
    await threads.close()
    directory.close()


def batch(*values: bytes) -> bytes:
    return build_batch([Row(NOW_MS, None, value) for value in values or (b"x" * 50,)])


def extent_of(
    key: ObjectKey,
    batches: Sequence[bytes],
    *,
    base_offset: int = 0,
    start: int = 0,
    object_bytes: int | None = None,
    timestamp_type: int = CREATE_TIME,
    age_ms: int = 0,
) -> WalExtent:
    """One coalesced row over `batches`, which begin at byte `start` of the object."""
    length = sum(map(len, batches))
    records = sum(parse_header(data).record_count for data in batches)
    return WalExtent(
        object_key=key,
        byte_offset=ByteOffset(start),
        length_bytes=length,
        base_offset=Offset(base_offset),
        last_offset=Offset(base_offset + records - 1),
        log_append_time_ms=NOW_MS - age_ms,
        max_timestamp_ms=NOW_MS,
        timestamp_type=timestamp_type,
        object_bytes=start + length if object_bytes is None else object_bytes,
    )


def offsets_of(result: ReadResult) -> list[tuple[int, int]]:
    """(base, last offset) of every batch, each with its CRC and leader epoch checked."""
    data = b"".join(result.records)
    assert len(data) == result.size_bytes
    found = []
    for position, header in iterate_headers(data):
        verify_crc(data[position : position + header.length_bytes])
        assert header.partition_leader_epoch == 0
        found.append((header.base_offset, header.last_offset))
    return found


def a_segment(setting: Setting, base: int, last: int) -> SegmentExtent:
    setting.segments.batches = [
        Encoded(offset, offset, build_batch([Row()], base_offset=offset, leader_epoch=0))
        for offset in range(base, last + 1)
    ]
    return SegmentExtent(ObjectKey("segments/s"), 5_000, Offset(base), Offset(last), NOW_MS)
