"""Fetches the bytes of extents, from the nearest place that has them.

1. This broker's own chunks, through the FD cache: what was just produced is in the page cache. They
   are read into memory that earlier answers left behind, which belongs to this answer alone. Those
   of other processes of the broker come after those of this one.
2. The object cache, which asks the object store once per block. Data older than
   `fetch.cold.after.ms` is read around the cache's memory, so that a consumer catching up does not
   evict what the readers at the tail share. What it gives out of memory is shared with other
   readers, and read-only. It is handed on without a copy where its batches are large and the answer
   takes at least half of the block that it keeps in memory: who does not read an answer keeps at
   most twice as much as it is charged for. Else a copy is handed on. What comes from the cache's
   disk tier was read for this answer alone.
3. Parquet segments, turned back into RecordBatches by `tiering.segment_reader`, which keeps those
   of a row group in one piece of memory. They are handed on or copied by the same rule.

The marker of a transaction is read nowhere: its batch is made.

Large copies are made in threads.

Failure cases: a chunk that vanished or cannot be read is only a cache, so the object is asked
instead. What else goes wrong is an error of its piece, never of the others.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from diskless.fetch.read_memory import ReadMemory
from diskless.ports import LEADER_EPOCH
from diskless.replica.batch_stamping import GATHERED_FROM_BYTES, Span
from metadata.operations import Extent, SegmentExtent, WalExtent
from wal.caches.cold_reads import RUN_BYTES
from wal.caches.object_cache import ObjectCache
from wal.chunks.chunk_directory import ChunkDirectory
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, StorageFailed
from wal.private_copy import copy_into
from wal.records.marker_batches import Marker, marker_batch
from wal.records.record_batch import EncodedBatch
from wal.worker_threads import WorkerThreads

log = structlog.get_logger(__name__)

CHUNK: Final = "chunk"
OBJECT: Final = "object"
SEGMENT: Final = "segment"
MARKER: Final = "marker"
SOURCES: Final = (CHUNK, OBJECT, SEGMENT, MARKER)

COPIED_AT_ONCE_BYTES: Final = 256 << 10
"""Bytes that are copied on the event loop; more are copied in a thread."""

_LENGTH: Final = struct.Struct(">8xi")
"""Of a batch, in its header."""

_PINNED_PER_READ: Final = 2
"""How many bytes of shared memory an answer may keep for each that it has of it."""


class SegmentBatches(Protocol):
    """The part of the segment reader that answers use."""

    async def read(
        self, extent: SegmentExtent, offset: int, max_bytes: int
    ) -> Sequence[EncodedBatch]:
        """Batches from the one that holds `offset` on; at least one; about `max_bytes`."""
        ...

    def ahead(self, extent: SegmentExtent, offset: int, max_bytes: int) -> int | None:
        """Have batches made; returns their bytes, or None when some could not begin."""
        ...


class ChunkBytes(Protocol):
    """The part of a chunk that answers use."""

    def read_object_range(self, start: int, content: memoryview) -> None:
        """See `wal.chunks.sealed_chunk.SealedChunk`."""
        ...


class OtherChunks(Protocol):
    """Finds chunks that are not of this process, and may be gone."""

    def locate(self, object_key: ObjectKey, object_bytes: int) -> ChunkBytes | None: ...

    def forget(self, object_key: ObjectKey) -> None: ...


class Want(NamedTuple):
    """A part of a WAL object, or of a segment about `max_bytes` from `offset` on, or a marker."""

    span: Span | SegmentExtent | Marker
    offset: int = 0
    max_bytes: int = 0


class Piece(NamedTuple):
    """What was read: bytes of an object, or batches ready to serve, or an error.

    The bytes belong to the caller alone if they can be written to, and else to everybody.
    """

    source: str
    buffer: memoryview = memoryview(b"")
    batches: Sequence[EncodedBatch] = ()
    error: DisklessError | None = None
    is_last_try: bool = False
    """Whether it is not fetched once more when it is damaged."""


class _Shared(NamedTuple):
    """Bytes of an object as the cache gave them; more than one view where blocks meet.

    Those that can be written to are this answer's own, the others are everybody's.
    """

    views: Sequence[memoryview]


class ExtentSource:
    """Reads chunks, objects and segments."""

    def __init__(
        self,
        *,
        directory: ChunkDirectory,
        cache: ObjectCache,
        memory: ReadMemory,
        segments: SegmentBatches,
        threads: WorkerThreads,
        clock: Clock,
        cold_after_ms: int,
        siblings: OtherChunks | None = None,
    ) -> None:
        self._directory = directory
        self._siblings = siblings
        self._cache = cache
        self._memory = memory
        self._segments = segments
        self.segment_ahead = segments.ahead
        self._threads = threads
        self._clock = clock
        self._cold_after_ms = cold_after_ms
        self.segment_reads = 0
        """Since the start."""

    async def fetch(self, wants: Sequence[Want]) -> list[Piece]:
        """One piece per want. Chunks are read in one trip to a thread, the rest at once."""
        pieces: dict[int, Piece | _Shared] = {}
        own: list[tuple[ChunkBytes, Span]] = []
        own_places: list[int] = []
        remote: list[Awaitable[Piece | _Shared]] = []
        remote_places: list[int] = []
        for place, want in enumerate(wants):
            span = want.span
            if isinstance(span, Marker):
                batch = marker_batch(span, leader_epoch=LEADER_EPOCH)
                pieces[place] = Piece(MARKER, batches=(batch,))
            elif isinstance(span, SegmentExtent):
                remote.append(self._fetch_segment(span, want.offset, want.max_bytes))
                remote_places.append(place)
            elif (chunk := self._chunk_of(span.extent)) is not None:
                own.append((chunk, span))
                own_places.append(place)
            else:
                remote.append(self._fetch_object(span))
                remote_places.append(place)
        if own:
            read = await self._threads.run(partial(_read_chunks, own, self._memory))
            for place, (_, span), piece in zip(own_places, own, read, strict=True):
                if piece.error is None:
                    pieces[place] = piece
                else:
                    self._failed(span.extent.object_key, piece.error)
                    remote.append(self._fetch_object(span))
                    remote_places.append(place)
        if len(remote) == 1:
            pieces[remote_places[0]] = await remote[0]
        elif remote:
            pieces.update(zip(remote_places, await asyncio.gather(*remote), strict=True))
        return await self._settled([pieces[place] for place in range(len(wants))])

    def is_near(self, extent: Extent) -> bool:
        """Whether this broker has a chunk with its bytes."""
        return isinstance(extent, WalExtent) and self._chunk_of(extent) is not None

    def _chunk_of(self, extent: WalExtent) -> ChunkBytes | None:
        own = self._directory.locate(extent.object_key)
        if own is not None or self._siblings is None:
            return own
        return self._siblings.locate(extent.object_key, extent.object_bytes)

    def _failed(self, object_key: ObjectKey, error: DisklessError) -> None:
        if self._siblings is not None and self._directory.locate(object_key) is None:
            # Its process keeps it only as long as it wants to.
            self._siblings.forget(object_key)
        else:
            log.warning("own chunk unreadable, asking the store", error=str(error))

    def ahead(self, extent: WalExtent, start: int, max_bytes: int) -> bool:
        """Have `max_bytes` of an extent, or more, fetched before anybody asks for them.

        Reads up to multiples of RUN_BYTES, so that a window that moves on in small steps asks for
        whole runs. False: not all of it, for now.
        """
        end = min(-(-(start + max_bytes) // RUN_BYTES) * RUN_BYTES, extent.length_bytes)
        return self.is_near(extent) or self._cache.ahead(
            extent.object_key,
            extent.byte_offset + start,
            end - start,
            extent.object_bytes,
            cold=self._is_cold(extent),
        )

    async def fetch_anew(self, span: Span, damage: DisklessError) -> Piece:
        """What the store has, past the chunk or the cached block that turned out damaged."""
        log.warning("damaged batch, asking the store again", error=str(damage))
        await self._cache.invalidate(span.extent.object_key)
        (piece,) = await self._settled([await self._fetch_object(span)])
        return piece

    async def _fetch_segment(self, extent: SegmentExtent, offset: int, max_bytes: int) -> Piece:
        try:
            start = max(offset, extent.base_offset)
            batches = await self._segments.read(extent, start, max_bytes)
        except DisklessError as error:
            return Piece(SEGMENT, error=error)
        self.segment_reads += 1
        kept = _kept_for_little(batches)
        if kept:
            copy = partial(_copied_out, batches, kept, self._memory)
            is_much = sum(len(batch.data) for batch in batches) > COPIED_AT_ONCE_BYTES
            batches = await self._threads.run(copy) if is_much else copy()
        return Piece(SEGMENT, batches=batches)

    async def _fetch_object(self, span: Span) -> Piece | _Shared:
        extent = span.extent
        try:
            return _Shared(
                await self._cache.read(
                    extent.object_key,
                    extent.byte_offset + span.start,
                    span.length_bytes,
                    extent.object_bytes,
                    cold=self._is_cold(extent),
                    useful_to=extent.byte_offset + extent.length_bytes,
                )
            )
        except DisklessError as error:
            return Piece(OBJECT, error=error)

    def _is_cold(self, extent: WalExtent) -> bool:
        return self._clock.now_ms() - extent.log_append_time_ms > self._cold_after_ms

    async def _settled(self, found: Sequence[Piece | _Shared]) -> list[Piece]:
        """Decide for shared bytes whether they are handed on or copied."""
        used_bytes: Counter[int] = Counter()
        for one in found:
            if isinstance(one, _Shared):
                for view in one.views:
                    used_bytes[id(view.obj)] += len(view)
        copied: list[_Shared] = []
        pieces: list[Piece] = []
        places: list[int] = []
        for place, one in enumerate(found):
            if isinstance(one, Piece):
                pieces.append(one)
                continue
            views = one.views
            if len(views) == 1 and _may_hand_on(views[0], used_bytes[id(views[0].obj)]):
                pieces.append(Piece(OBJECT, views[0]))
            else:
                copied.append(one)
                places.append(place)
                pieces.append(_NOTHING_YET)
        if copied:
            copy = partial(_copies, copied, self._memory)
            is_much = sum(len(view) for one in copied for view in one.views) > COPIED_AT_ONCE_BYTES
            buffers = await self._threads.run(copy) if is_much else copy()
            for place, buffer in zip(places, buffers, strict=True):
                pieces[place] = Piece(OBJECT, buffer)
        return pieces


_NOTHING_YET: Final = Piece(OBJECT)


def _may_hand_on(view: memoryview, used_bytes: int) -> bool:
    """Whether a view is this answer's own, or worth sharing: by its first batch.

    Of the block that a shared one lies in the answer takes `used_bytes`. What the header of the
    batch says is not checked yet, and need not be right.
    """
    if not view.readonly:
        return True
    if len(view) < GATHERED_FROM_BYTES:
        return False
    (length_bytes,) = _LENGTH.unpack_from(view)
    if length_bytes < GATHERED_FROM_BYTES:
        return False
    with memoryview(view.obj) as whole:
        return whole.nbytes <= _PINNED_PER_READ * used_bytes


def _kept_for_little(batches: Sequence[EncodedBatch]) -> frozenset[int]:
    """Which memory (by its id) these batches keep without having half of it."""
    used_bytes: Counter[int] = Counter()
    whole_bytes: dict[int, int] = {}
    for batch in batches:
        data = batch.data
        if isinstance(data, memoryview):
            memory = id(data.obj)
            used_bytes[memory] += len(data)
            if memory not in whole_bytes:
                with memoryview(data.obj) as whole:
                    whole_bytes[memory] = whole.nbytes
    return frozenset(
        memory
        for memory, length_bytes in whole_bytes.items()
        if length_bytes > _PINNED_PER_READ * used_bytes[memory]
    )


def _copied_out(
    batches: Sequence[EncodedBatch], kept: frozenset[int], memory: ReadMemory
) -> Sequence[EncodedBatch]:
    """The batches, and those in `kept` in memory of the caller's own."""
    copied = [
        batch.data
        for batch in batches
        if isinstance(batch.data, memoryview) and id(batch.data.obj) in kept
    ]
    region = memory.lend(sum(map(len, copied)))
    copy_into(region, copied)
    settled = []
    end = 0
    for batch in batches:
        if isinstance(batch.data, memoryview) and id(batch.data.obj) in kept:
            start, end = end, end + len(batch.data)
            batch = batch._replace(data=region[start:end])
        settled.append(batch)
    return settled


def _read_chunks(jobs: Sequence[tuple[ChunkBytes, Span]], memory: ReadMemory) -> list[Piece]:
    """Runs in a thread: every span from the chunk that its object was uploaded from."""
    pieces = []
    region = memory.lend(sum(span.length_bytes for _, span in jobs))
    end = 0
    for chunk, span in jobs:
        start, end = end, end + span.length_bytes
        buffer = region[start:end]
        key, byte_offset = span.extent[:2]
        try:
            chunk.read_object_range(byte_offset + span.start, buffer)
            pieces.append(Piece(CHUNK, buffer))
        except OSError as error:
            failed = StorageFailed(f"chunk of {key}: {error}")
            pieces.append(Piece(CHUNK, error=failed))
        except DisklessError as error:
            pieces.append(Piece(CHUNK, error=error))
    return pieces


def _copies(shared: Sequence[_Shared], memory: ReadMemory) -> list[memoryview]:
    """The bytes of each, back to back, in memory of the caller's own."""
    region = memory.lend(sum(len(view) for one in shared for view in one.views))
    copies = []
    end = 0
    for one in shared:
        start, end = end, end + sum(map(len, one.views))
        copies.append(region[start:end])
        copy_into(copies[-1], one.views)
    return copies
