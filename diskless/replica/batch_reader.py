"""Reads the bytes that a consumer gets from the extents that hold them.

The replica manager finds out *where* batches lie; `extent_source` fetches their bytes; this module
decides what is read and makes it servable.

An answer is read in waves: as many extents as fit what is still wanted, together. A wave that
brought less than it might have (a segment is charged as if it gave all that was asked of it, an
extent that is read from its beginning as if all of it belonged to the answer) is followed by
another. So what is in memory is the answer and one extent more, however much lies behind the limit.

Of an extent in which an answer ended before, only what the next answer takes is read
(diskless/fetch/read_positions.py); else it is walked from its beginning, because only the headers
of its batches say where they lie. A batch that is larger than what was read is read once more.

A marker has no bytes anywhere; its batch is made here, where its offset is read. What a reader of
committed records may not see yet ends an answer like a limit.

The CRC of every batch is checked, then it gets its base offset and leader epoch, and the append
time where the topic wants it (`diskless/replica/batch_stamping.py`). Cached bytes are never
modified.

Nothing here holds the event loop for long: whatever grows with the number of extents or batches
runs in slices. A read of a few small batches takes no thread and no turn of the loop more than
fetching their bytes does.

Failure cases: a damaged batch from a chunk or the object cache is fetched anew once; if it is still
damaged the partition gets what lies before it, and an error when nothing does. Other partitions are
never affected.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import structlog

from diskless.fetch.read_positions import ReadPositions
from diskless.loop.long_work import LongWork, Steps
from diskless.ports import Buffer
from diskless.replica.batch_stamping import (
    NO_END,
    Room,
    Span,
    Stop,
    Taken,
    corrupt_object,
    take_encoded,
    take_stamped,
)
from diskless.replica.extent_source import (
    CHUNK,
    MARKER,
    OBJECT,
    SEGMENT,
    SOURCES,
    ExtentSource,
    Piece,
    Want,
)
from metadata.operations import Extent, SegmentExtent, WalExtent
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptBatch, CorruptObject, DisklessError
from wal.records.marker_batches import MARKER_BYTES, Marker
from wal.records.record_batch import check_crc, iterate_headers
from wal.worker_threads import WorkerThreads

log = structlog.get_logger(__name__)

_Result = TypeVar("_Result")

POSITIONS_MAX: Final = 10_000
"""Places in extents that are remembered, half a KiB each: one for each partition of a reader."""

READ_BYTES_MIN: Final = 64 << 10
"""What is read of an extent at least: less is not worth reading again what does not fit."""


class ReadRequest(NamedTuple):
    """Where the batches of one partition lie; `extents` in offset order, gapless."""

    partition: TopicIdPartition
    offset: int
    max_bytes: int
    extents: Sequence[Extent]
    end: int = NO_END
    """Batches from this offset on are left out; the last extent may reach beyond."""


class ReadResult(NamedTuple):
    """Whole batches, back to back; `error` says why there are not more."""

    records: Sequence[Buffer] = ()
    size_bytes: int = 0
    error: DisklessError | None = None
    next_offset: int = 0
    """The one behind the records, if there are any."""


class ReadStatistics(NamedTuple):
    """Bytes handed out since the start, by source."""

    chunk_bytes: int
    object_bytes: int
    segment_bytes: int
    marker_bytes: int
    segment_reads: int


class BatchReader:
    """Fetches extents, checks them, and stamps their offsets."""

    def __init__(
        self,
        *,
        source: ExtentSource,
        long_work: LongWork,
        read_bytes_min: int = READ_BYTES_MIN,
    ) -> None:
        self._source = source
        self._positions = ReadPositions(POSITIONS_MAX)
        self._long_work = long_work
        self._read_bytes_min = read_bytes_min
        self._bytes = dict.fromkeys(SOURCES, 0)

    def statistics(self) -> ReadStatistics:
        return ReadStatistics(
            self._bytes[CHUNK],
            self._bytes[OBJECT],
            self._bytes[SEGMENT],
            self._bytes[MARKER],
            self._source.segment_reads,
        )

    async def read(
        self, requests: Sequence[ReadRequest], *, max_bytes: int, at_least_one: bool = True
    ) -> Sequence[ReadResult]:
        """Read in request order; the first non-empty partition gives at least one whole batch.

        Without `at_least_one` only what fits into the limits.
        """
        answers = [_Answer(request) for request in requests]
        whole = _Whole(max_bytes, nothing_yet=at_least_one)
        while not whole.is_full:
            wave = await self._long_work.run(self._next_wave(answers, whole))
            if not wave:
                break
            wants = [ask.want for ask in wave]
            await self._extend_answers(wave, await self._source.fetch(wants), whole)
        return [
            ReadResult(answer.records, answer.size, answer.error, answer.next_offset)
            for answer in answers
        ]

    def is_near(self, extent: Extent) -> bool:
        """Whether this broker has a chunk with its bytes."""
        return self._source.is_near(extent)

    def ahead(self, extent: Extent, offset: int, max_bytes: int) -> int | None:
        """Have about `max_bytes` of it fetched before anybody asks for them.

        They begin at `offset`, where an answer ended or the extent begins. Returns how many of
        these bytes the extent has, or None when the read of some of them could not begin yet.
        """
        if isinstance(extent, SegmentExtent):
            return self._source.segment_ahead(extent, offset, max_bytes)
        if isinstance(extent, Marker):
            return 0
        start = 0 if offset <= extent.base_offset else self._positions.find(extent, offset)
        if start is not None and not self._source.ahead(extent, start, max_bytes):
            return None
        return min(extent.bytes_from(offset), max_bytes)

    async def read_extent(self, extent: WalExtent, threads: WorkerThreads) -> memoryview:
        """All batches of one extent, not stamped, checked in one of `threads`.

        Raises what reading can raise.
        """
        span = Span.whole(extent)
        (piece,) = await self._source.fetch([Want(span)])
        if piece.error is None:
            damage = await threads.run(partial(_damage_of, extent, piece.buffer))
            if damage is None:
                return piece.buffer
            piece = await self._source.fetch_anew(span, damage)
        error = piece.error or await threads.run(partial(_damage_of, extent, piece.buffer))
        if error is not None:
            raise error
        return piece.buffer

    def _next_wave(self, answers: Sequence["_Answer"], whole: "_Whole") -> Steps[list["_Ask"]]:
        """What comes next and fits the whole and its partitions' limits, in order.

        What begins within the limit may end beyond it. Empty when there is nothing more to be read.
        """
        wave: list[_Ask] = []
        left = whole.remaining
        for answer in answers:
            if answer.is_done:
                continue
            extents = answer.request.extents
            own_left = answer.request.max_bytes - answer.size
            while answer.position < len(extents):
                may_read_on = own_left > 0 and left > 0
                if not may_read_on and (wave or not whole.nothing_yet):
                    break
                extent = extents[answer.position]
                answer.position += 1
                wanted = max(min(own_left, left), 0)
                if isinstance(extent, Marker):
                    wave.append(_Ask(answer, Want(extent)))
                    charged = MARKER_BYTES
                elif isinstance(extent, SegmentExtent):
                    wave.append(_Ask(answer, Want(extent, answer.request.offset, wanted)))
                    charged = wanted
                else:
                    span = self._first_span(extent, answer.request.offset, wanted)
                    wave.append(_Ask(answer, Want(span)))
                    charged = span.length_bytes
                own_left -= charged
                left -= charged
                yield
            if left <= 0 and (wave or not whole.nothing_yet):
                break
        return wave

    def _first_span(self, extent: WalExtent, offset: int, wanted: int) -> Span:
        """What to read of an extent for `wanted` bytes from `offset` on.

        All of it, if it is not known where in it that is.
        """
        if offset <= extent.base_offset:
            return self._span(extent, Stop(0, int(extent.base_offset), 0), wanted)
        start = self._positions.find(extent, offset)
        if start is None:
            return Span.whole(extent)
        return self._span(extent, Stop(start, offset, 0), wanted)

    def _span(self, extent: WalExtent, first: Stop, wanted: int) -> Span:
        """From a batch on: what is wanted, or the batch if that is more."""
        length = max(wanted, first.batch_bytes, self._read_bytes_min)
        length = min(length, extent.length_bytes - first.start)
        return Span(extent, first.start, length, first.base_offset)

    async def _extend_answers(
        self, wave: list["_Ask"], pieces: list[Piece], whole: "_Whole"
    ) -> None:
        """Add what fits of the pieces to their answers, in order.

        A damaged piece is fetched once more on the way, and the rest of one that was not enough.
        """
        place = 0
        while True:
            stopped = await self._long_work.run(self._extend_some(wave, pieces, place, whole))
            if stopped is None:
                break
            place, taken = stopped
            ask, piece = wave[place], pieces[place]
            span = ask.want.span
            assert isinstance(span, Span)
            if taken.error is None:
                assert taken.stop is not None
                self._extend(ask, piece.source, taken, whole)
                limit = whole.room_for(ask.answer).limit
                want = Want(self._span(span.extent, taken.stop, limit))
                wave[place] = _Ask(ask.answer, want)
                (pieces[place],) = await self._source.fetch([want])
                continue
            fresh = await self._source.fetch_anew(span, taken.error)
            if fresh.error is None:
                pieces[place] = fresh._replace(is_last_try=True)
            else:
                # The chunk is damaged and the object out of reach: that is not known damage of the
                # log.
                self._extend(ask, piece.source, taken._replace(error=fresh.error), whole)
                place += 1

    def _extend_some(
        self, wave: Sequence["_Ask"], pieces: Sequence[Piece], start: int, whole: "_Whole"
    ) -> "Steps[tuple[int, Taken] | None]":
        """As `_extend_answers` from place `start` on, up to a piece that something is wrong with.

        The result is its place and what it gives as it is: an error, or no error and less than
        there is room for. None at the end of the wave.
        """
        for place in range(start, len(wave)):
            ask = wave[place]
            piece = pieces[place]
            # An answer that is cut is done: what would come after it is not what was asked for.
            if ask.answer.is_done:
                continue
            if piece.error is not None:
                ask.answer.error = piece.error
                continue
            room = whole.room_for(ask.answer)
            span = ask.want.span
            if isinstance(span, SegmentExtent | Marker):
                taken = yield from take_encoded(piece.batches, room)
            else:
                taken = yield from take_stamped(span, piece.buffer, room)
                if taken.error is not None and not piece.is_last_try:
                    return place, taken
                if taken.wants_more:
                    return place, taken
            self._extend(ask, piece.source, taken, whole)
            yield
        return None

    def _extend(self, ask: "_Ask", source: str, taken: Taken, whole: "_Whole") -> None:
        self._bytes[source] += whole.extend(ask.answer, taken)
        if (taken.full or taken.ended) and taken.stop is not None:
            assert isinstance(ask.want.span, Span)
            extent = ask.want.span.extent
            self._positions.learn(extent, taken.stop.base_offset, taken.stop.start)


class _Answer:
    """What one partition gave so far."""

    __slots__ = ("error", "is_full", "next_offset", "position", "records", "request", "size")

    def __init__(self, request: ReadRequest) -> None:
        self.request = request
        self.records: list[Buffer] = []
        self.size = 0
        self.next_offset = 0
        self.error: DisklessError | None = None
        self.is_full = False
        """The next batch did not fit, or is not for this reader yet."""
        self.position = 0
        """How many extents were asked for."""

    @property
    def is_done(self) -> bool:
        return self.is_full or self.error is not None


class _Whole:
    """What all partitions together may still get."""

    __slots__ = ("is_full", "nothing_yet", "remaining")

    def __init__(self, max_bytes: int, *, nothing_yet: bool) -> None:
        self.remaining = max_bytes
        self.nothing_yet = nothing_yet
        """Whether one whole batch is owed, be it too large."""
        self.is_full = False

    def room_for(self, answer: _Answer) -> Room:
        limit = min(answer.request.max_bytes - answer.size, self.remaining)
        return Room(answer.request.offset, limit, self.nothing_yet, answer.request.end)

    def extend(self, answer: _Answer, taken: Taken) -> int:
        """Add what was taken for `answer` to it; how many bytes that is."""
        own_left = answer.request.max_bytes - answer.size
        added = sum(map(len, taken.buffers))
        answer.records += taken.buffers
        answer.size += added
        if added:
            answer.next_offset = taken.next_offset
        answer.error = taken.error
        answer.is_full = taken.full or taken.ended
        # What did not fit the whole answer shows that little is left; smaller batches that were
        # read already may fit, but none are looked for.
        self.is_full = self.is_full or (taken.full and self.remaining <= own_left)
        self.remaining -= added
        self.nothing_yet = self.nothing_yet and not added
        return added


class _Ask(NamedTuple):
    """What is read for which answer."""

    answer: _Answer
    want: Want


def _damage_of(extent: WalExtent, buffer: memoryview) -> CorruptObject | None:
    try:
        for position, header in iterate_headers(buffer):
            check_crc((buffer[position : position + header.length_bytes],), header.crc)
    except CorruptBatch as damage:
        return corrupt_object(extent, damage)
    return None
