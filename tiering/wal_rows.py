"""Turns the batches of WAL extents into Arrow rows, for a roll and for a reader of tables.

    extents --coalesce--> ranged reads, some ahead --walk headers--> batches --decode--> rows

A batch whose bytes are those that were committed, but that cannot be decoded, is kept as it is: one
bad producer must not be in the way of the others' records. tiering/raw_batches.py tells how. Such a
batch shows only when its decoding fails. Control batches become no rows, and neither do those of
aborted transactions: of a producer's transactional batches all from the first offset of an aborted
transaction up to its marker. Their CRC is checked all the same, before their header is believed.

Memory is bounded whatever the extents' size: `READ_AHEAD_BYTES` of ranges, some `DECODE_BYTES` as
bytes and as Arrow, and what compressed batches inflate to, which is capped. A batch kept raw takes
60 bytes for each record that it claims, of which there may be RECORDS_PER_BATCH_MAX.

Failure cases: CorruptObject naming the WAL object and the byte when the bytes there are not the
batches of the extents; ObjectNotFound and ObjectStoreUnavailable from the store.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from metadata.operations import AbortedTransaction, WalExtent
from tiering.raw_batches import raw_rows
from wal.coordinates import NO_PRODUCER_ID, ObjectKey
from wal.errors import CorruptBatch, CorruptObject, RecordTooLarge
from wal.records.batch_validation import RECORDS_PER_BATCH_MAX
from wal.records.compression import NONE
from wal.records.record_batch import HEADER_BYTES, MAGIC_V2, BatchHeader, parse_header, verify_crc
from wal.records.record_columns import INFLATED_BYTES_MAX, LocatedBatch, decode_batches
from wal.stores.blocking_store import BlockingStore

READ_BYTES_MAX: Final = 8 << 20
"""One ranged read; large enough that its latency does not matter, small enough to have several."""

READ_GAP_BYTES_MAX: Final = 256 << 10
"""Bytes of others read along rather than asked around: cheaper than a second request."""

READ_AHEAD_BYTES: Final = 32 << 20
"""Of ranged reads in flight or waiting while earlier ones are encoded."""

READ_AHEAD_RANGES: Final = 32
"""Ranges read at a time. With many partitions a range has some kilobytes, and each read costs the
latency of the store: at 30 ms and 64 KiB, 4 at a time give 7 MB/s, 32 give 58."""

DECODE_BYTES: Final = 8 << 20
"""Arrow bytes decoded at a time. Measured from 2 to 32 MiB: larger leaves the processor's caches,
smaller costs more calls; both take a tenth more."""

GROUP_INFLATED_BYTES_MAX: Final = INFLATED_BYTES_MAX
"""What compressed batches decoded together may inflate to: no more than one alone."""

_FIRST_RATIO: Final = 8.0
"""Expected ratio of Arrow bytes to compressed bytes before the first compressed batch was seen."""


class SourceBatch(NamedTuple):
    """A batch and where it came from."""

    batch: LocatedBatch
    record_count: int
    is_compressed: bool
    is_control: bool
    transactional_producer_id: int
    """-1 when it belongs to no transaction."""
    object_key: ObjectKey
    byte_offset: int

    @property
    def place(self) -> str:
        return f"{self.object_key}: batch at byte {self.byte_offset}"


class Decoded(NamedTuple):
    """The rows of some batches, and how many of them each batch has.

    Columns as RECORD_SCHEMA; of one that could not be decoded `raw_batch` too.
    """

    rows: pa.Table
    batches: Sequence[SourceBatch]
    is_raw: bool = False


@dataclass(slots=True)
class LeftOut:
    """Counts records that become no rows, by the headers of their batches."""

    controls: int = 0
    aborted: int = 0


class AbortedBatches:
    """Tells which batches of one partition belong to aborted transactions."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        # A producer has one transaction at a time: its first offsets and markers rise alike.
        self._of: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first_offset, marker_offset in sorted(transactions):
            firsts, markers = self._of.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            markers.append(marker_offset)

    def has(self, producer_id: int, offset: int) -> bool:
        """Whether the producer's transactional batch with `offset` is one of them."""
        found = self._of.get(producer_id)
        if found is None:
            return False
        firsts, markers = found
        at = bisect_right(firsts, offset) - 1
        return at >= 0 and offset < markers[at]


def decoded(
    extents: Sequence[WalExtent],
    store: BlockingStore,
    aborted: Iterable[AbortedTransaction] = (),
    left_out: LeftOut | None = None,
) -> Iterator[Decoded]:
    """All records of extents of one partition, in their order, about `DECODE_BYTES` at a time.

    Control batches and those of `aborted` transactions are left out, and counted in `left_out`.

    What compressed batches inflate to is known afterwards, so it is estimated from the ones before.
    Only the batches and their order decide, so that a repeated roll ends its row groups at the same
    records. Raises: CorruptObject, and what the store raises.
    """
    group: list[SourceBatch] = []
    group_bytes = 0
    ratios = {False: 1.0, True: _FIRST_RATIO}
    sources = _committed(_batches(extents, store), AbortedBatches(aborted), left_out or LeftOut())
    for source in sources:
        if group and group[0].is_compressed != source.is_compressed:
            yield from _decoded_group(group)
            group, group_bytes = [], 0
        group.append(source)
        group_bytes += len(source.batch.data)
        if group_bytes * ratios[source.is_compressed] >= DECODE_BYTES:
            arrow_bytes = 0
            for decoded in _decoded_group(group):
                if decoded.is_raw:
                    group_bytes -= len(decoded.batches[0].batch.data)
                else:
                    arrow_bytes += decoded.rows.nbytes
                yield decoded
            if group_bytes:
                ratios[source.is_compressed] = max(arrow_bytes / group_bytes, 1.0)
            group, group_bytes = [], 0
    if group:
        yield from _decoded_group(group)


def _committed(
    sources: Iterator[SourceBatch], aborted: AbortedBatches, left_out: LeftOut
) -> Iterator[SourceBatch]:
    for source in sources:
        if source.is_control:
            _check_crc(source)
            left_out.controls += source.record_count
        elif source.transactional_producer_id >= 0 and aborted.has(
            source.transactional_producer_id, source.batch.base_offset
        ):
            _check_crc(source)
            left_out.aborted += source.record_count
        else:
            yield source


def _decoded_group(group: Sequence[SourceBatch]) -> Iterator[Decoded]:
    limit = INFLATED_BYTES_MAX
    if group[0].is_compressed and len(group) > 1:
        limit = GROUP_INFLATED_BYTES_MAX // len(group)
    try:
        rows = decode_batches([source.batch for source in group], inflated_bytes_max=limit)
    except (CorruptBatch, RecordTooLarge):
        if len(group) == 1:
            yield _kept_raw(group[0])
            return
    else:
        yield Decoded(rows, group)
        return
    # One cannot be decoded at all, or one is large among small ones: halves have more room.
    middle = len(group) // 2
    yield from _decoded_group(group[:middle])
    yield from _decoded_group(group[middle:])


def _kept_raw(source: SourceBatch) -> Decoded:
    """A batch that cannot be decoded, if that is its producer's doing and not the store's.

    Raises: CorruptObject.
    """
    _check_crc(source)
    if source.record_count > RECORDS_PER_BATCH_MAX:
        # No broker accepts such a batch; its rows would take more memory than there may be.
        raise CorruptObject(
            f"{source.place}: cannot be decoded, and counts {source.record_count} records"
        )
    return Decoded(raw_rows(source.batch), [source], is_raw=True)


def _check_crc(source: SourceBatch) -> None:
    try:
        verify_crc(source.batch.data)
    except CorruptBatch as damage:
        raise CorruptObject(f"{source.place}: {damage}") from damage


# --- extents to batches --------------------------------------------------------------------------


class RangedRead(Protocol):
    """Bytes of one object."""

    @property
    def object_key(self) -> ObjectKey: ...

    @property
    def start(self) -> int: ...

    @property
    def length(self) -> int: ...


class _Range(NamedTuple):
    """One ranged read, and the extents of which it holds bytes."""

    object_key: ObjectKey
    start: int
    length: int
    extents: Sequence[WalExtent]


def _batches(extents: Sequence[WalExtent], store: BlockingStore) -> Iterator[SourceBatch]:
    """The physical batches of all extents in offset order, each with its assigned offset."""
    walk: _ExtentWalk | None = None
    for read, data in read_ahead(_coalesced(extents), store):
        for extent in read.extents:
            if walk is None or walk.extent is not extent:
                walk = _ExtentWalk(extent)
            start = max(extent.byte_offset, read.start)
            end = min(extent.byte_offset + extent.length_bytes, read.start + read.length)
            yield from walk.feed(memoryview(data)[start - read.start : end - read.start])


def _coalesced(extents: Sequence[WalExtent]) -> Iterator[_Range]:
    """Neighbours in one object as one range, and what is too large for one read as several."""
    together: list[WalExtent] = []
    for extent in extents:
        if together and not _fits_behind(together, extent):
            yield _range_over(together)
            together = []
        if extent.length_bytes <= READ_BYTES_MAX:
            together.append(extent)
            continue
        for start in range(0, extent.length_bytes, READ_BYTES_MAX):
            length = min(READ_BYTES_MAX, extent.length_bytes - start)
            yield _Range(extent.object_key, extent.byte_offset + start, length, (extent,))
    if together:
        yield _range_over(together)


def _fits_behind(together: Sequence[WalExtent], extent: WalExtent) -> bool:
    first, last = together[0], together[-1]
    gap = extent.byte_offset - (last.byte_offset + last.length_bytes)
    total = extent.byte_offset + extent.length_bytes - first.byte_offset
    return (
        extent.object_key == first.object_key
        and 0 <= gap <= READ_GAP_BYTES_MAX
        and total <= READ_BYTES_MAX
    )


def _range_over(extents: Sequence[WalExtent]) -> _Range:
    start = extents[0].byte_offset
    length = extents[-1].byte_offset + extents[-1].length_bytes - start
    return _Range(extents[0].object_key, start, length, tuple(extents))


_Reading = TypeVar("_Reading", bound=RangedRead)


def read_ahead(
    ranges: Iterator[_Reading], store: BlockingStore
) -> Iterator[tuple[_Reading, bytes]]:
    """The ranges with their bytes, in order; later ones are read while the caller works."""
    waiting: deque[tuple[_Reading, Future[bytes]]] = deque()
    waiting_bytes = 0
    with ThreadPoolExecutor(READ_AHEAD_RANGES, thread_name_prefix="range-read") as readers:
        try:
            for read in ranges:
                while waiting and (
                    waiting_bytes + read.length > READ_AHEAD_BYTES
                    or len(waiting) >= READ_AHEAD_RANGES
                ):
                    first, future = waiting.popleft()
                    waiting_bytes -= first.length
                    yield first, future.result()
                future = readers.submit(store.get_range, read.object_key, read.start, read.length)
                waiting.append((read, future))
                waiting_bytes += read.length
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


class _ExtentWalk:
    """Cuts the bytes of one extent, given piece by piece, into batches and counts their offsets."""

    def __init__(self, extent: WalExtent) -> None:
        self.extent = extent
        self._offset: int = extent.base_offset
        self._position: int = extent.byte_offset  # of `_rest` in the object
        self._rest: bytes | memoryview = b""

    def feed(self, piece: memoryview) -> Iterator[SourceBatch]:
        """The batches that are complete now. Raises: CorruptObject."""
        data = memoryview(b"".join((self._rest, piece))) if len(self._rest) else piece
        extent_end = self.extent.byte_offset + self.extent.length_bytes
        start = 0
        while len(data) - start >= HEADER_BYTES:
            header = self._header(data, start)
            if self._position + header.length_bytes > extent_end:
                raise self._corrupt(f"announces {header.length_bytes} bytes, past its extent")
            if header.length_bytes > len(data) - start:
                break
            yield self._located(header, data[start : start + header.length_bytes])
            self._offset = self._offset + header.record_count
            self._position += header.length_bytes
            start += header.length_bytes
        self._rest = bytes(data[start:])
        if self._position + len(self._rest) == extent_end:
            self._check_end()

    def _header(self, data: memoryview, start: int) -> BatchHeader:
        try:
            header = parse_header(data, start)
        except CorruptBatch as error:
            raise self._corrupt(str(error)) from error
        if header.magic != MAGIC_V2:
            raise self._corrupt(f"has magic {header.magic}")
        # Offsets are dense: the coordinator assigned one to each record and to nothing else.
        if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
            raise self._corrupt(
                f"has {header.record_count} records, last offset delta {header.last_offset_delta}"
            )
        return header

    def _located(self, header: BatchHeader, data: memoryview) -> SourceBatch:
        batch = LocatedBatch(
            data, self._offset, self.extent.timestamp_type, self.extent.log_append_time_ms
        )
        return SourceBatch(
            batch,
            header.record_count,
            header.codec != NONE,
            header.is_control,
            header.producer_id if header.is_transactional else NO_PRODUCER_ID,
            self.extent.object_key,
            self._position,
        )

    def _check_end(self) -> None:
        if len(self._rest):
            raise self._corrupt(f"is cut off after {len(self._rest)} bytes by its extent's end")
        if self._offset != self.extent.last_offset + 1:
            raise self._corrupt(
                f"would start at offset {self._offset}, its extent ends before"
                f" {self.extent.last_offset + 1}"
            )

    def _corrupt(self, what: str) -> CorruptObject:
        return CorruptObject(f"{self.extent.object_key}: batch at byte {self._position} {what}")
