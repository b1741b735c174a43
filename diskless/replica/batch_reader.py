"""From extents to the bytes a consumer gets.

The replica manager finds out *where* batches lie; this module fetches them and makes them servable.
Bytes come from, in this order:

1. this broker's own chunks, through the FD cache: what was just produced is in the page cache;
2. the object cache, which asks the object store once per block. Data older than
   `fetch.cold.after.ms` is read around the cache's memory, so that a consumer catching up does not
   evict what the readers at the tail share;
3. Parquet segments, turned back into RecordBatches by `tiering.segment_reader`.

An answer is read in waves: as many extents as fit what is still wanted, together. A wave that
brought less than it might have (a segment is charged as if it gave all that was asked of it, an
extent whole although reading may begin in its middle) is followed by another. So what is in memory
is the answer and one extent more, however much lies behind the limit.

Every batch read from a WAL object or a chunk is a private copy. Its CRC is checked, then base
offset and leader epoch are written into it, and the append time where the topic wants it. Cached
bytes are never modified.

Failure cases: a chunk that vanished or is damaged is only a cache, so the object is asked instead.
A damaged batch from the object cache is fetched anew once; if it is still damaged the partition
gets what lies before it, and an error when nothing does. Other partitions are never affected.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import structlog

from diskless.ports import LEADER_EPOCH, Buffer
from metadata.operations import Extent, SegmentExtent, WalExtent
from wal.chunks.chunk_directory import ChunkDirectory, SealedChunk
from wal.clock import Clock
from wal.coordinates import LOG_APPEND_TIME, ObjectKey, TopicIdPartition
from wal.errors import CorruptBatch, CorruptObject, DisklessError, StorageFailed
from wal.records.record_batch import (
    assign_log_append_time,
    assign_offsets,
    iterate_headers,
    verify_crc,
)

log = structlog.get_logger(__name__)

_NOWHERE: Final = TopicIdPartition(UUID(int=0), 0)

CHUNK: Final = "chunk"
OBJECT: Final = "object"
SEGMENT: Final = "segment"
SOURCES: Final = (CHUNK, OBJECT, SEGMENT)


class EncodedBatch(Protocol):
    """A whole RecordBatch with its offsets in place."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def data(self) -> Buffer: ...


class SegmentBatches(Protocol):
    """What is asked of the segment reader."""

    async def read(
        self, extent: SegmentExtent, offset: int, max_bytes: int
    ) -> Sequence[EncodedBatch]:
        """Batches from the one that holds `offset` on; at least one; about `max_bytes`."""
        ...


class BlockReads(Protocol):
    """What is asked of the object cache."""

    async def read(
        self, key: ObjectKey, start: int, length: int, object_length: int, *, cold: bool = False
    ) -> Sequence[memoryview]: ...

    async def invalidate(self, key: ObjectKey) -> None: ...


class ReadRequest(NamedTuple):
    """Where the batches of one partition lie; `extents` in offset order, gapless."""

    partition: TopicIdPartition
    offset: int
    max_bytes: int
    extents: Sequence[Extent]


class ReadResult(NamedTuple):
    """Whole batches, back to back; `error` says why there are not more."""

    records: Sequence[Buffer] = ()
    size_bytes: int = 0
    error: DisklessError | None = None


class ReadStatistics(NamedTuple):
    """Bytes handed out since the start, by source."""

    chunk_bytes: int
    object_bytes: int
    segment_bytes: int
    segment_reads: int


class _Piece(NamedTuple):
    """The bytes of one extent: a private buffer, or batches ready to serve, or an error."""

    extent: Extent
    source: str
    buffer: bytearray = bytearray()
    batches: Sequence[EncodedBatch] = ()
    error: DisklessError | None = None


class BatchReader:
    """Fetches extents, checks them, and stamps their offsets."""

    def __init__(
        self,
        *,
        directory: ChunkDirectory,
        cache: BlockReads,
        segments: SegmentBatches,
        executor: Executor,
        clock: Clock,
        cold_after_ms: int,
    ) -> None:
        self._directory = directory
        self._cache = cache
        self._segments = segments
        self._executor = executor
        self._clock = clock
        self._cold_after_ms = cold_after_ms
        self._bytes = dict.fromkeys(SOURCES, 0)
        self._segment_reads = 0

    def statistics(self) -> ReadStatistics:
        return ReadStatistics(
            self._bytes[CHUNK], self._bytes[OBJECT], self._bytes[SEGMENT], self._segment_reads
        )

    async def read(
        self, requests: Sequence[ReadRequest], *, max_bytes: int, at_least_one: bool = True
    ) -> Sequence[ReadResult]:
        """Read in request order; the first non-empty partition gives at least one whole batch.

        Without `at_least_one` only what fits into the limits.
        """
        answers = [_Answer(request) for request in requests]
        remaining = max_bytes
        nothing_yet = at_least_one
        is_full = False
        while not is_full and (wave := _next_wave(answers, remaining, one_at_least=nothing_yet)):
            for (answer, _, _), piece in zip(wave, await self._fetch(wave), strict=True):
                own_left = answer.request.max_bytes - answer.size
                taken = await self._extend(answer, piece, remaining, at_least_one=nothing_yet)
                # What did not fit the whole answer shows that little is left; smaller batches that
                # were read already may fit, but none are looked for.
                is_full = is_full or (answer.is_full and remaining <= own_left)
                remaining -= taken
                nothing_yet = nothing_yet and taken == 0
        return [ReadResult(answer.records, answer.size, answer.error) for answer in answers]

    async def read_extent(self, extent: WalExtent) -> bytearray:
        """All batches of one extent, checked but not stamped. Raises what reading can raise."""
        answer = _Answer(ReadRequest(_NOWHERE, extent.base_offset, 0, [extent]))
        (piece,) = await self._fetch([_Ask(answer, extent, 0)])
        if piece.error is None:
            damage = _damage_of(extent, piece.buffer)
            if damage is None:
                return piece.buffer
            piece = await self._fetch_anew(extent, damage)
        error = piece.error or _damage_of(extent, piece.buffer)
        if error is not None:
            raise error
        return piece.buffer

    async def _fetch(self, wave: Sequence["_Ask"]) -> list[_Piece]:
        """One piece per ask. Own chunks are read in one trip to a thread, the rest at once."""
        pieces: dict[int, _Piece] = {}
        own: list[tuple[SealedChunk, WalExtent]] = []
        own_places: list[int] = []
        remote: list[Awaitable[_Piece]] = []
        remote_places: list[int] = []
        for place, (answer, extent, max_bytes) in enumerate(wave):
            if isinstance(extent, SegmentExtent):
                remote.append(self._fetch_segment(extent, answer.request.offset, max_bytes))
                remote_places.append(place)
            elif (chunk := self._directory.locate(extent.object_key)) is not None:
                own.append((chunk, extent))
                own_places.append(place)
            else:
                remote.append(self._fetch_object(extent))
                remote_places.append(place)
        if own:
            for place, piece in zip(
                own_places, await self._in_thread(_read_chunks, own), strict=True
            ):
                if piece.error is None:
                    pieces[place] = piece
                else:
                    assert isinstance(piece.extent, WalExtent)
                    log.warning("own chunk unreadable, asking the store", error=str(piece.error))
                    remote.append(self._fetch_object(piece.extent))
                    remote_places.append(place)
        if len(remote) == 1:
            pieces[remote_places[0]] = await remote[0]
        elif remote:
            pieces.update(zip(remote_places, await asyncio.gather(*remote), strict=True))
        return [pieces[place] for place in range(len(wave))]

    async def _fetch_segment(self, extent: SegmentExtent, offset: int, max_bytes: int) -> _Piece:
        try:
            start = max(offset, extent.base_offset)
            batches = await self._segments.read(extent, start, max_bytes)
        except DisklessError as error:
            return _Piece(extent, SEGMENT, error=error)
        self._segment_reads += 1
        return _Piece(extent, SEGMENT, batches=batches)

    async def _fetch_object(self, extent: WalExtent) -> _Piece:
        age_ms = self._clock.now_ms() - extent.log_append_time_ms
        try:
            views = await self._cache.read(
                extent.object_key,
                extent.byte_offset,
                extent.length_bytes,
                extent.object_bytes,
                cold=age_ms > self._cold_after_ms,
            )
        except DisklessError as error:
            return _Piece(extent, OBJECT, error=error)
        buffer = bytearray(extent.length_bytes)
        position = 0
        for view in views:
            buffer[position : position + len(view)] = view
            position += len(view)
        return _Piece(extent, OBJECT, buffer)

    async def _fetch_anew(self, extent: WalExtent, damage: DisklessError) -> _Piece:
        """What the store has, past the chunk or the cached block that turned out damaged."""
        log.warning("damaged batch, asking the store again", error=str(damage))
        await self._cache.invalidate(extent.object_key)
        return await self._fetch_object(extent)

    async def _in_thread(
        self,
        function: "Callable[[Sequence[tuple[SealedChunk, WalExtent]]], list[_Piece]]",
        argument: Sequence[tuple[SealedChunk, WalExtent]],
    ) -> list[_Piece]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, argument)

    async def _extend(
        self, answer: "_Answer", piece: _Piece, remaining: int, *, at_least_one: bool
    ) -> int:
        """Add what fits of a piece to its answer, up to the first thing that is wrong; the bytes.

        An answer that is cut is done: what would come after it is not what was asked for.
        """
        if answer.is_done:
            return 0
        if piece.error is not None:
            answer.error = piece.error
            return 0
        request = answer.request
        limit = min(request.max_bytes - answer.size, remaining)
        taken = await self._take(piece, _Room(request.offset, limit, at_least_one))
        added = sum(map(len, taken.buffers))
        answer.records += taken.buffers
        answer.size += added
        answer.error = taken.error
        answer.is_full = taken.full
        self._bytes[piece.source] += added
        return added

    async def _take(self, piece: _Piece, room: "_Room") -> "_Taken":
        extent = piece.extent
        if isinstance(extent, SegmentExtent):
            return _take_encoded(piece.batches, room)
        taken = _take_stamped(extent, piece.buffer, room)
        if taken.error is None:
            return taken
        fresh = await self._fetch_anew(extent, taken.error)
        if fresh.error is not None:
            # The chunk is damaged and the object out of reach: that is not known damage of the log.
            return taken._replace(error=fresh.error)
        return _take_stamped(extent, fresh.buffer, room)


class _Answer:
    """What one partition gave so far."""

    __slots__ = ("error", "is_full", "position", "records", "request", "size")

    def __init__(self, request: ReadRequest) -> None:
        self.request = request
        self.records: list[Buffer] = []
        self.size = 0
        self.error: DisklessError | None = None
        self.is_full = False
        """The next batch did not fit."""
        self.position = 0
        """How many extents were asked for."""

    @property
    def is_done(self) -> bool:
        return self.is_full or self.error is not None


class _Ask(NamedTuple):
    """An extent to read; of a segment about `max_bytes`, of a WAL object all of it."""

    answer: _Answer
    extent: Extent
    max_bytes: int


def _next_wave(answers: Sequence[_Answer], left: int, *, one_at_least: bool) -> list[_Ask]:
    """The extents that come next and fit into `left` bytes and their partitions' limits, in order.

    One that begins within the limit may end beyond it. Empty when there is nothing more to be read.
    """
    wave: list[_Ask] = []
    for answer in answers:
        if answer.is_done:
            continue
        extents = answer.request.extents
        own_left = answer.request.max_bytes - answer.size
        while answer.position < len(extents):
            may_read_on = own_left > 0 and left > 0
            if not may_read_on and (wave or not one_at_least):
                break
            extent = extents[answer.position]
            answer.position += 1
            wanted = max(min(own_left, left), 0)
            wave.append(_Ask(answer, extent, wanted))
            charged = wanted if isinstance(extent, SegmentExtent) else extent.length_bytes
            own_left -= charged
            left -= charged
        if left <= 0 and (wave or not one_at_least):
            break
    return wave


class _Room(NamedTuple):
    """What the answer still wants: from where, how much, and whether one batch must come."""

    offset: int
    limit: int
    one_batch_at_least: bool


class _Taken(NamedTuple):
    buffers: Sequence[Buffer]
    full: bool
    error: DisklessError | None = None


def _read_chunks(jobs: Sequence[tuple[SealedChunk, WalExtent]]) -> list[_Piece]:
    """Runs in a thread: every extent from the chunk it was uploaded from."""
    pieces = []
    for chunk, extent in jobs:
        try:
            buffer = chunk.read_object_range(extent.byte_offset, extent.length_bytes)
            pieces.append(_Piece(extent, CHUNK, buffer))
        except OSError as error:
            failed = StorageFailed(f"chunk of {extent.object_key}: {error}")
            pieces.append(_Piece(extent, CHUNK, error=failed))
        except DisklessError as error:
            pieces.append(_Piece(extent, CHUNK, error=error))
    return pieces


def _take_stamped(extent: WalExtent, buffer: bytearray, room: _Room) -> _Taken:
    """Stamp the batches of `buffer` that belong to the answer, up to the limit or to damage.

    Batches that end below the asked offset are skipped.
    """
    view = memoryview(buffer)
    base_offset = int(extent.base_offset)
    start = end = 0
    full = False
    error: DisklessError | None = None
    try:
        for position, header in iterate_headers(buffer):
            next_offset = base_offset + header.last_offset_delta + 1
            batch_end = position + header.length_bytes
            if next_offset <= room.offset:
                # A skipped batch counts too: what follows gets its offsets from this one's header.
                verify_crc(view[position:batch_end])
                start = end = batch_end
                base_offset = next_offset
                continue
            first = start == position
            if batch_end - start > room.limit and not (first and room.one_batch_at_least):
                full = True
                break
            verify_crc(view[position:batch_end])
            assign_offsets(view, position, base_offset, LEADER_EPOCH)
            if extent.timestamp_type == LOG_APPEND_TIME:
                assign_log_append_time(
                    view, position, header.length_bytes, extent.log_append_time_ms
                )
            end = batch_end
            base_offset = next_offset
        if not full and base_offset != extent.last_offset + 1:
            raise CorruptBatch(f"the batches end at {base_offset - 1}")
    except CorruptBatch as damage:
        error = _corrupt(extent, damage)
    return _Taken([view[start:end]] if end > start else [], full, error)


def _damage_of(extent: WalExtent, buffer: bytearray) -> CorruptObject | None:
    try:
        for position, header in iterate_headers(buffer):
            verify_crc(memoryview(buffer)[position : position + header.length_bytes])
    except CorruptBatch as damage:
        return _corrupt(extent, damage)
    return None


def _corrupt(extent: WalExtent, damage: CorruptBatch) -> CorruptObject:
    return CorruptObject(
        f"{extent.object_key}, bytes {extent.byte_offset} to "
        f"{extent.byte_offset + extent.length_bytes}, offsets {extent.base_offset} to "
        f"{extent.last_offset}: {damage}"
    )


def _take_encoded(batches: Sequence[EncodedBatch], room: _Room) -> _Taken:
    taken: list[Buffer] = []
    size = 0
    for batch in batches:
        if batch.last_offset < room.offset:
            continue
        fits = size + len(batch.data) <= room.limit
        if not fits and not (room.one_batch_at_least and not taken):
            return _Taken(taken, full=True)
        taken.append(batch.data)
        size += len(batch.data)
    return _Taken(taken, full=False)
