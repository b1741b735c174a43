"""Reads rows of a Parquet segment from a blocking store: only the row groups and columns wanted.

    footer (one tail read) -> row groups within offsets and timestamps -> ranged reads, some ahead
        -> rows of the segment's columns

Where the wanted columns are most of the Kafka part of a row group, all of that is read and its
CRC32C checked; else, and where typed columns are wanted, the bytes from the first of them to the
last, which Parquet's own page checksums cover. Neighbouring
row groups are one read of up to `READ_BYTES_MAX`.

Failure cases: CorruptSegment naming the key; ObjectNotFound and ObjectStoreUnavailable from the
store.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from metadata.operations import SegmentExtent
from tiering.merging.typed_union import field_id
from tiering.segment_columns import read_part_of_row_group, read_row_group
from tiering.segment_format import SegmentFooter
from tiering.segment_verification import read_footer
from tiering.source.rows.typed_by_field import with_fields
from tiering.wal_rows import READ_BYTES_MAX, read_ahead
from wal.columns import Int64s
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptObject, CorruptSegment
from wal.stores.blocking_store import BlockingStore

_WHOLE_FROM: Final = 0.75
"""Share of a row group that the wanted columns take, from which on it is read as a whole."""

_GAP_BYTES_MAX: Final = 256 << 10
"""Bytes between two parts that are read along rather than asked around."""


class _Part(NamedTuple):
    """Bytes of one row group, by their place in the object."""

    row_group: int
    start: int
    length: int
    is_whole: bool


class _Read(NamedTuple):
    """One ranged read, and the parts that it has."""

    object_key: ObjectKey
    start: int
    length: int
    parts: Sequence[_Part]


def segment_tables(
    extent: SegmentExtent,
    partition: TopicIdPartition,
    store: BlockingStore,
    columns: Sequence[str],
    start: int,
    end: int,
    *,
    timestamp_min_ms: int | None = None,
    timestamp_max_ms: int | None = None,
    offsets: Int64s | None = None,
    typed: Sequence[pa.Field] = (),
) -> Iterator[pa.Table]:
    """Rows with offsets in [start, end), a table for each row group; `columns` have `offset`.

    Behind them come the `typed` columns, as these fields have them (`typed_by_field`).

    Row groups without a record between the timestamps, or at one of the `offsets`, are left out;
    which records are is not looked at.
    """
    key = extent.object_key
    try:
        footer = read_footer(store, key, extent.object_bytes)
        _check_identity(extent, partition, footer)
        metadata = pq.read_metadata(pa.BufferReader(footer.footer_bytes))
        stored = [*columns, *_stored_names(metadata, typed)]
        parts = [
            _part(metadata, footer, index, stored)
            for index, group in enumerate(footer.row_groups)
            if group.base_offset < end
            and group.last_offset >= start
            and (timestamp_min_ms is None or group.max_timestamp_ms >= timestamp_min_ms)
            and (timestamp_max_ms is None or _begins_by(metadata, index, timestamp_max_ms))
            and (offsets is None or any_between(offsets, group.base_offset, group.last_offset))
        ]
        for read, data in read_ahead(_together(key, parts), store):
            view = memoryview(data)
            for part in read.parts:
                first = part.start - read.start
                piece = view[first : first + part.length]
                rows = _rows(key, footer, part, piece, stored)
                rows = _between(rows, footer, part.row_group, start, end)
                yield with_fields(key, rows, rows, columns, typed) if typed else rows
    except CorruptObject as error:
        raise CorruptSegment(f"{key}: {error}") from error


def _check_identity(
    extent: SegmentExtent, partition: TopicIdPartition, footer: SegmentFooter
) -> None:
    identity = footer.identity
    if (
        identity.partition != partition
        or extent.base_offset < identity.base_offset
        or extent.last_offset > identity.last_offset
    ):
        raise CorruptSegment(
            f"{extent.object_key}: holds offsets {identity.base_offset} .. {identity.last_offset}"
            f" of {identity.partition}, not {extent.base_offset} .. {extent.last_offset} of"
            f" {partition}"
        )


def _part(
    metadata: pq.FileMetaData, footer: SegmentFooter, index: int, columns: Sequence[str]
) -> _Part:
    """What has to be read of a row group."""
    group = footer.row_groups[index]
    start, end = _bytes_of(metadata, index, columns)
    is_ours = end <= group.byte_offset + group.length_bytes
    if is_ours and end - start >= _WHOLE_FROM * group.length_bytes:
        return _Part(index, group.byte_offset, group.length_bytes, is_whole=True)
    return _Part(index, start, end - start, is_whole=False)


def _bytes_of(metadata: pq.FileMetaData, index: int, columns: Sequence[str]) -> tuple[int, int]:
    """From where to where some columns of a row group lie."""
    group = metadata.row_group(index)
    starts, ends = [], []
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema.partition(".")[0] in columns:
            first = column.data_page_offset
            if column.dictionary_page_offset is not None:
                first = min(first, column.dictionary_page_offset)
            starts.append(first)
            ends.append(first + column.total_compressed_size)
    return min(starts), max(ends)


def _stored_names(metadata: pq.FileMetaData, typed: Sequence[pa.Field]) -> Sequence[str]:
    """What the segment calls those of the columns that it has."""
    if not typed:
        return ()
    wanted = {field_id(field) for field in typed}
    schema = metadata.schema.to_arrow_schema()
    return [field.name for field in schema if field_id(field) in wanted]


def _begins_by(metadata: pq.FileMetaData, index: int, timestamp_ms: int) -> bool:
    """Whether a row group may have a record of that time or earlier, by its statistics."""
    group = metadata.row_group(index)
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema != "timestamp":
            continue
        statistics = column.statistics
        if statistics is None or not statistics.has_min_max:
            return True
        return bool(statistics.min_raw <= timestamp_ms * 1_000 + 999)
    return True


def _together(key: ObjectKey, parts: Sequence[_Part]) -> Iterator[_Read]:
    """Neighbours as one read, and each at most READ_BYTES_MAX unless one part is larger."""
    run: list[_Part] = []
    for part in parts:
        if run:
            end = run[-1].start + run[-1].length
            if (
                part.start - end > _GAP_BYTES_MAX
                or part.start + part.length - run[0].start > READ_BYTES_MAX
            ):
                yield _Read(key, run[0].start, end - run[0].start, tuple(run))
                run = []
        run.append(part)
    if run:
        end = run[-1].start + run[-1].length
        yield _Read(key, run[0].start, end - run[0].start, tuple(run))


def _rows(
    key: ObjectKey, footer: SegmentFooter, part: _Part, data: memoryview, columns: Sequence[str]
) -> pa.Table:
    names = list(columns)
    if part.is_whole:
        return read_row_group(key, footer, part.row_group, data, names)
    return read_part_of_row_group(key, footer, part.row_group, part.start, data, names)


def _between(rows: pa.Table, footer: SegmentFooter, index: int, start: int, end: int) -> pa.Table:
    group = footer.row_groups[index]
    if group.base_offset >= start and group.last_offset < end:
        return rows
    return rows_between(rows, start, end)


def any_between(offsets: Int64s, first: int, last: int) -> bool:
    """Whether one of `offsets`, which are in order, is from `first` to `last`."""
    begin, end = np.searchsorted(offsets, (first, last + 1))
    return bool(begin < end)


def rows_between(rows: pa.Table, start: int, end: int) -> pa.Table:
    """The rows with offsets in [start, end), of rows in offset order."""
    offsets = rows.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, (start, end))
    return rows.slice(first, last - first)
