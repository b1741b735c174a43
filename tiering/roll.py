"""Rolls one planned segment: committed batches in WAL objects become one Parquet object.

`roll` is a plain function of a plan and a store, called by a Spark task (tiering/job.py) and by
tests without Spark. It may be killed anywhere, run again, and run twice at once; all attempts
converge on one object, because

- the plan fixes offsets and key, and the same plan gives the same bytes (no time, no host, no
  task number goes into the file);
- the put is put-if-absent, and of two attempts with equal bytes both succeed;
- an attempt that finds a complete, intact segment of this plan under the key takes it as its own
  result, whichever version of this program wrote it. Anything else under the key is an error:
  nothing is ever overwritten.

Nothing is a segment before the coordinator commits it, so an object left by a killed attempt is
never read as data; the next attempt meets it by name.

A batch whose bytes are those that were committed, but that cannot be decoded, is kept as it is: one
bad producer must not keep a segment from being made. tiering/raw_batches.py tells how. Such a batch
shows only when its decoding fails.

    extents --coalesce--> ranged reads, some ahead --walk headers--> batches --decode--> row groups

Memory is bounded whatever the segment's size: `READ_AHEAD_BYTES` of ranges, some
`DECODE_BYTES` as bytes and as Arrow, and what compressed batches inflate to, which is capped. The
file grows on the local disk. Measured: 250 MiB for 128 MiB of batches. A batch kept raw takes 60
bytes for each record that it claims, of which there may be RECORDS_PER_BATCH_MAX.

Failure cases: CorruptObject naming the WAL object and the byte when the bytes there are not the
planned batches; CorruptSegment when something else lies under the segment's key; Rejected for a
plan that contradicts itself; ObjectNotFound, ObjectStoreUnavailable and UploadOutcomeUnknown from
the store. After each of them the same plan may be rolled again.
"""

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from metadata.operations import RolledSegment, SegmentPlan, WalExtent
from tiering.raw_batches import raw_rows
from tiering.segment_columns import segment_table
from tiering.segment_format import SegmentFooter, SegmentIdentity
from tiering.segment_sources import SourceRange
from tiering.segment_verification import object_crc32c, verify_segment
from tiering.segment_writer import FileBody, SegmentWriter, WrittenSegment
from tiering.typed_columns import NO_TYPED_COLUMNS, TypedColumns
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptBatch,
    CorruptObject,
    CorruptSegment,
    ObjectExists,
    ObjectNotFound,
    RecordTooLarge,
    Rejected,
)
from wal.failpoint import failpoint
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RollSettings:
    """How segments are written."""

    row_group_bytes: int = 4 << 20
    """Arrow bytes after which a row group ends, at the next end of a batch. A broker decodes whole
    row groups and keeps one for every partition that a consumer goes through in turn, a megabyte
    each time; every row group costs a kilobyte of footer."""


class Rolled(NamedTuple):
    """A segment that lies in the store, and how many of its batches could not be decoded."""

    segment: RolledSegment
    raw_batch_count: int


def roll(
    plan: SegmentPlan,
    store: BlockingStore,
    *,
    typed: TypedColumns = NO_TYPED_COLUMNS,
    settings: RollSettings | None = None,
    temporary_directory: str | None = None,
) -> Rolled:
    """Write the segment of `plan`, or find it written; returns what lies in the store, exactly.

    Blocks. Failpoints: roll.before_put, roll.after_put.
    """
    _check_plan(plan)
    written = _already_written(plan, store)
    if written is None:
        written = _write(plan, store, typed, settings or RollSettings(), temporary_directory)
    segment = RolledSegment(
        partition=plan.partition,
        object_key=plan.object_key,
        base_offset=plan.base_offset,
        last_offset=plan.last_offset,
        object_bytes=written.object_bytes,
        crc32c=written.crc32c,
        record_count=written.counts.records,
        control_count=written.counts.controls,
        max_timestamp_ms=written.max_timestamp_ms,
    )
    return Rolled(segment, written.raw_batch_count)


def _identity(plan: SegmentPlan) -> SegmentIdentity:
    return SegmentIdentity(plan.topic_name, plan.partition, plan.base_offset, plan.last_offset)


def _check_plan(plan: SegmentPlan) -> None:
    offset: int = plan.base_offset
    for extent in plan.extents:
        if extent.base_offset != offset or extent.last_offset < offset or extent.length_bytes <= 0:
            raise Rejected(f"{plan.object_key}: planned extents do not follow at offset {offset}")
        offset = extent.last_offset + 1
    if offset != plan.last_offset + 1 or not plan.extents:
        raise Rejected(f"{plan.object_key}: planned extents end before offset {offset}")


def _already_written(plan: SegmentPlan, store: BlockingStore) -> WrittenSegment | None:
    """The segment that an earlier or a concurrent attempt left, after reading and checking all."""
    try:
        object_bytes = store.head(plan.object_key).length_bytes
    except ObjectNotFound:
        return None
    footer: SegmentFooter = verify_segment(store, plan.object_key)
    if footer.identity != _identity(plan):
        raise CorruptSegment(f"{plan.object_key}: holds {footer.identity}, not what was planned")
    return WrittenSegment(
        object_bytes=object_bytes,
        crc32c=object_crc32c(store, plan.object_key, object_bytes),
        counts=footer.counts,
        max_timestamp_ms=footer.max_timestamp_ms,
        raw_batch_count=footer.raw_batch_count,
    )


def _write(
    plan: SegmentPlan,
    store: BlockingStore,
    typed: TypedColumns,
    settings: RollSettings,
    temporary_directory: str | None,
) -> WrittenSegment:
    with tempfile.TemporaryFile(prefix="diskless-roll-", dir=temporary_directory) as file:
        with SegmentWriter(file, _identity(plan), sources(plan), typed=typed.fields) as writer:
            for table in row_groups(plan, store, settings.row_group_bytes):
                rows = segment_table(table)
                writer.write_row_group(rows, typed.columns(rows))
            written = writer.finish()
        failpoint("roll.before_put")
        try:
            store.put(plan.object_key, FileBody(file, written.object_bytes))
        except ObjectExists:
            # Another version of this program was faster. It wrote the same records.
            existing = _already_written(plan, store)
            if existing is None:
                raise
            return existing
        failpoint("roll.after_put")
        return written


def sources(plan: SegmentPlan) -> Sequence[SourceRange]:
    """Returns where the plan's records come from: its extents, neighbours in one object as one."""
    found: list[SourceRange] = []
    for extent in plan.extents:
        if found:
            key, start, length = found[-1]
            if key == extent.object_key and start + length == extent.byte_offset:
                found[-1] = SourceRange(key, start, length + extent.length_bytes)
                continue
        found.append(SourceRange(extent.object_key, extent.byte_offset, extent.length_bytes))
    return found


# --- batches to row groups -----------------------------------------------------------------------


class _SourceBatch(NamedTuple):
    """A batch and where it came from."""

    batch: LocatedBatch
    record_count: int
    is_compressed: bool
    object_key: ObjectKey
    byte_offset: int


class _Decoded(NamedTuple):
    """The rows of some batches, and how many of them each batch has."""

    rows: pa.Table
    batches: Sequence[_SourceBatch]
    is_raw: bool = False


def row_groups(plan: SegmentPlan, store: BlockingStore, row_group_bytes: int) -> Iterator[pa.Table]:
    """All records of the plan as tables of RECORD_SCHEMA, each of whole batches, in offset order.

    A table with raw batches has the column `raw_batch` too. A table is of about `row_group_bytes`,
    the last one smaller. Raises: CorruptObject, and what the store raises.
    """
    tables: list[pa.Table] = []
    size_bytes = 0.0
    for rows, batches, _ in _decoded(plan, store):
        # A batch is as large in Arrow as its share of the bytes says: close enough, and cheap.
        ratio = rows.nbytes / sum(len(source.batch.data) for source in batches)
        start = end = 0
        for source in batches:
            more_bytes = len(source.batch.data) * ratio
            # Ending a little early beats a row group of half a target more.
            if size_bytes and size_bytes + more_bytes > row_group_bytes * 1.25:
                yield _together([*tables, rows.slice(start, end - start)])
                tables, size_bytes, start = [], 0.0, end
            end += source.record_count
            size_bytes += more_bytes
            if size_bytes >= row_group_bytes:
                yield _together([*tables, rows.slice(start, end - start)])
                tables, size_bytes, start = [], 0.0, end
        if start < end:
            tables.append(rows.slice(start, end - start))
    if tables:
        yield _together(tables)


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of all rows; where some have the column `raw_batch` it is null for the others."""
    return pa.concat_tables(tables, promote_options="default")


def _decoded(plan: SegmentPlan, store: BlockingStore) -> Iterator[_Decoded]:
    """Batches decoded in groups that come to about `DECODE_BYTES` of Arrow.

    What compressed batches inflate to is known afterwards, so it is estimated from the ones before.
    Only the batches and their order decide, so that a repeated roll ends its row groups at the same
    records.
    """
    group: list[_SourceBatch] = []
    group_bytes = 0
    ratios = {False: 1.0, True: _FIRST_RATIO}
    for source in _batches(plan, store):
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


def _decoded_group(group: Sequence[_SourceBatch]) -> Iterator[_Decoded]:
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
        yield _Decoded(rows, group)
        return
    # One cannot be decoded at all, or one is large among small ones: halves have more room.
    middle = len(group) // 2
    yield from _decoded_group(group[:middle])
    yield from _decoded_group(group[middle:])


def _kept_raw(source: _SourceBatch) -> _Decoded:
    """A batch that cannot be decoded, if that is its producer's doing and not the store's.

    Raises: CorruptObject.
    """
    place = f"{source.object_key}: batch at byte {source.byte_offset}"
    try:
        verify_crc(source.batch.data)
    except CorruptBatch as damage:
        raise CorruptObject(f"{place}: {damage}") from damage
    if source.record_count > RECORDS_PER_BATCH_MAX:
        # No broker accepts such a batch; its rows would take more memory than there may be.
        raise CorruptObject(f"{place}: cannot be decoded, and counts {source.record_count} records")
    return _Decoded(raw_rows(source.batch), [source], is_raw=True)


# --- extents to batches --------------------------------------------------------------------------


class _Range(NamedTuple):
    """One ranged read, and the extents of which it holds bytes."""

    object_key: ObjectKey
    start: int
    length: int
    extents: Sequence[WalExtent]


def _batches(plan: SegmentPlan, store: BlockingStore) -> Iterator[_SourceBatch]:
    """The physical batches of all extents in offset order, each with its assigned offset."""
    walk: _ExtentWalk | None = None
    for read, data in _read_ahead(_coalesced(plan.extents), store):
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


def _read_ahead(ranges: Iterator[_Range], store: BlockingStore) -> Iterator[tuple[_Range, bytes]]:
    """The ranges with their bytes, in order; later ones are read while the caller works."""
    waiting: deque[tuple[_Range, Future[bytes]]] = deque()
    waiting_bytes = 0
    with ThreadPoolExecutor(READ_AHEAD_RANGES, thread_name_prefix="roll-read") as readers:
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

    def feed(self, piece: memoryview) -> Iterator[_SourceBatch]:
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

    def _located(self, header: BatchHeader, data: memoryview) -> _SourceBatch:
        batch = LocatedBatch(
            data, self._offset, self.extent.timestamp_type, self.extent.log_append_time_ms
        )
        return _SourceBatch(
            batch,
            header.record_count,
            header.codec != NONE,
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
