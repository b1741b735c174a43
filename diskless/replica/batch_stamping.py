"""Selects the batches of an extent for an answer, checks them and writes their offsets into them.

An extent may hold fifty thousand batches of a hundred bytes, or one of fifty megabytes. So this is
work in steps (`diskless/loop/long_work.py`), which yields after some batches and within the
checksum of a large one. A few small batches are done within the first step.

Bytes that belong to this answer alone are stamped where they are. Bytes that can only be read are
shared with other readers: of these the answer has stamped copies of the headers, 61 bytes each, and
views of everything else.

Invariants: no byte of a batch leaves here before the batch's CRC is checked. Nothing read-only is
written to.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from diskless.loop.long_work import Steps
from diskless.ports import LEADER_EPOCH, Buffer
from metadata.operations import WalExtent
from wal.coordinates import LOG_APPEND_TIME
from wal.crc import crc32c
from wal.errors import CorruptBatch, CorruptObject, DisklessError
from wal.records.batch_preparation import SUMMED_AT_ONCE_BYTES
from wal.records.record_batch import (
    CRC_START,
    HEADER_BYTES,
    EncodedBatch,
    assign_offsets,
    iterate_headers,
    set_crc,
    set_log_append_time,
)

BATCHES_AT_ONCE: Final = 64
"""Batches between two yields, unless they are large together: a quarter of a millisecond."""


GATHERED_FROM_BYTES: Final = 64 << 10
"""Size of a batch from which on it is not copied out of shared memory. Measured, in core-s/GiB with
sending: 16 KiB 0.54 copied, 0.67 in two parts; 64 KiB 0.39 and 0.37; 1 MiB 0.32 and 0.28."""

RUN_BYTES: Final = 256 << 10
"""Small batches that are copied one behind the other, about."""


NO_END: Final = 2**63 - 1
"""The end of what may be read where that is all there is."""


class Room(NamedTuple):
    """What the answer still wants: from where, how much, and whether one batch must come."""

    offset: int
    limit: int
    one_batch_at_least: bool
    end: int = NO_END
    """Batches from this offset on are not for this reader yet."""


class Span(NamedTuple):
    """What is read of an extent: from a batch on, to anywhere."""

    extent: WalExtent
    start: int
    """Bytes of the extent before it."""
    length_bytes: int
    base_offset: int
    """Of its first batch."""

    @classmethod
    def whole(cls, extent: WalExtent) -> "Span":
        return cls(extent, 0, extent.length_bytes, int(extent.base_offset))

    @property
    def bytes_behind(self) -> int:
        """Bytes of the extent behind it."""
        return self.extent.length_bytes - self.start - self.length_bytes


class Stop(NamedTuple):
    """Where in an extent a batch begins: the first one that was not taken."""

    start: int
    """Bytes of the extent before it."""
    base_offset: int
    batch_bytes: int
    """How large it is at least; 0: not known."""


class Taken(NamedTuple):
    """Batches back to back, whether the next one found no room, and what is wrong with it."""

    buffers: Sequence[Buffer]
    full: bool
    error: DisklessError | None = None
    stop: Stop | None = None
    """Where in the extent the answer ended; None at the end of an extent, and for segments."""
    next_offset: int = 0
    """The one behind the batches."""
    ended: bool = False
    """Whether what comes next is not for this reader yet."""

    @property
    def wants_more(self) -> bool:
        """Whether there is room for more of an extent than what was read of it."""
        is_done = self.full or self.ended or self.error is not None
        return self.stop is not None and not is_done


def take_stamped(span: Span, buffer: memoryview, room: Room) -> Steps[Taken]:
    """Stamp the batches of `buffer` that belong to the answer, up to the limit or to damage.

    `buffer` is what `span` names. Batches that end below the asked offset are skipped.
    """
    extent = span.extent
    gathered = _Gathered(buffer) if buffer.readonly else None
    base_offset = span.base_offset
    start = end = 0
    full = ended = False
    error: DisklessError | None = None
    missing_bytes = 0
    has_append_time = extent.timestamp_type == LOG_APPEND_TIME
    batches_left = BATCHES_AT_ONCE
    bytes_left = SUMMED_AT_ONCE_BYTES
    try:
        for position, header in iterate_headers(buffer, more_bytes=span.bytes_behind):
            if base_offset >= room.end:
                ended = True
                break
            next_offset = base_offset + header.last_offset_delta + 1
            length_bytes = header.length_bytes
            batch_end = position + length_bytes
            is_taken = next_offset > room.offset
            if is_taken and batch_end - start > room.limit:
                is_first = start == position
                if not (is_first and room.one_batch_at_least):
                    full = True
                    break
            if batch_end > len(buffer):
                missing_bytes = length_bytes
                break
            # A skipped batch counts too: what follows gets its offsets from this one's header.
            covered = buffer[position + CRC_START : batch_end]
            is_large = length_bytes > SUMMED_AT_ONCE_BYTES
            actual = (yield from _summed(covered)) if is_large else crc32c(covered)
            if actual != header.crc:
                raise CorruptBatch(
                    f"batch at byte {position} carries CRC {header.crc:#010x}, its bytes have "
                    f"{actual:#010x}"
                )
            if is_taken:
                target: memoryview | bytearray = buffer
                at = position
                if gathered is not None:
                    target, at = gathered.add(position, batch_end)
                assign_offsets(target, at, base_offset, LEADER_EPOCH)
                if has_append_time:
                    set_log_append_time(target, at, extent.log_append_time_ms)
                    crc = crc32c(target[at + CRC_START : at + HEADER_BYTES])
                    rest = buffer[position + HEADER_BYTES : batch_end]
                    crc = (yield from _summed(rest, crc)) if is_large else crc32c(rest, crc)
                    set_crc(target, at, crc)
            else:
                start = batch_end
            end = batch_end
            base_offset = next_offset
            batches_left -= 1
            bytes_left -= length_bytes
            if not batches_left or bytes_left <= 0:
                yield
                batches_left = BATCHES_AT_ONCE
                bytes_left = SUMMED_AT_ONCE_BYTES
        is_at_end = span.start + end == extent.length_bytes
        if is_at_end and base_offset != extent.last_offset + 1:
            raise CorruptBatch(f"the batches end at {base_offset - 1}")
        if not full and not ended and not is_at_end:
            # What was read ends within a batch. That is as good as the limit where it is the limit.
            is_owed = room.one_batch_at_least and start == end
            full = not missing_bytes and len(buffer) - start >= room.limit and not is_owed
            missing_bytes = missing_bytes or HEADER_BYTES
    except CorruptBatch as damage:
        error = corrupt_object(extent, damage)
    if gathered is not None:
        buffers = gathered.buffers
    else:
        buffers = [buffer[start:end]] if end > start else []
    stop = (
        None
        if span.start + end == extent.length_bytes
        else Stop(span.start + end, base_offset, missing_bytes)
    )
    return Taken(buffers, full, error, stop, base_offset, ended)


class _Gathered:
    """Batches of shared memory as an answer has them, written together by the socket.

    A batch is a copy of its header, to be stamped, and a view of the rest. Batches that are small
    are copied whole: a view costs more than that.
    """

    __slots__ = ("_run", "_shared", "buffers")

    def __init__(self, shared: memoryview) -> None:
        self._shared = shared
        self._run: bytearray | None = None
        self.buffers: list[Buffer] = []

    def add(self, start: int, end: int) -> tuple[bytearray, int]:
        """Returns where the header of the next batch is stamped."""
        if end - start < GATHERED_FROM_BYTES:
            run = self._run
            if run is None or len(run) > RUN_BYTES:
                run = self._run = bytearray()
                self.buffers.append(run)
            at = len(run)
            run += self._shared[start:end]
            return run, at
        self._run = None
        header = bytearray(self._shared[start : start + HEADER_BYTES])
        self.buffers += (header, self._shared[start + HEADER_BYTES : end])
        return header, 0


def _summed(covered: memoryview, value: int = 0) -> Steps[int]:
    """The CRC of many bytes, continued from `value`."""
    for start in range(0, len(covered), SUMMED_AT_ONCE_BYTES):
        value = crc32c(covered[start : start + SUMMED_AT_ONCE_BYTES], value)
        yield
    return value


def take_encoded(batches: Sequence[EncodedBatch], room: Room) -> Steps[Taken]:
    """Those of `batches` that belong to the answer, up to the limit."""
    taken: list[Buffer] = []
    size = next_offset = 0
    for number, batch in enumerate(batches, 1):
        if not number % BATCHES_AT_ONCE:
            yield
        if batch.last_offset < room.offset:
            continue
        fits = size + len(batch.data) <= room.limit
        if not fits and not (room.one_batch_at_least and not taken):
            return Taken(taken, full=True, next_offset=next_offset)
        taken.append(batch.data)
        size += len(batch.data)
        next_offset = batch.last_offset + 1
    return Taken(taken, full=False, next_offset=next_offset)


def corrupt_object(extent: WalExtent, damage: CorruptBatch) -> CorruptObject:
    """`damage` with the place it is at."""
    return CorruptObject(
        f"{extent.object_key}, bytes {extent.byte_offset} to "
        f"{extent.byte_offset + extent.length_bytes}, offsets {extent.base_offset} to "
        f"{extent.last_offset}: {damage}"
    )
