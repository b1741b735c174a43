"""Reads of a segment what a compaction decides by: offsets, tombstones and keys, not the values.

Values are most of a segment, so the columns are read by themselves: each run of wanted columns that
lie side by side is one ranged read, over a gap only where that is small against what is wanted. The
delete horizon is read of segments that were written anew at least once; nothing else has one.

Parquet's own checksums tell damage here, because ours are over whole row groups. What is removed is
checked once more when the segment is written anew (tiering/compaction/rewriting.py).

Failure cases: CorruptSegment naming the key, ObjectNotFound, ObjectStoreUnavailable.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metadata.rewrites import RewriteInput
from tiering.compaction.losses import KEY_ROWS
from tiering.segment_columns import read_part_of_row_group
from tiering.segment_format import SegmentFooter
from tiering.segment_verification import read_footer_and_sources
from wal.coordinates import ObjectKey
from wal.errors import CorruptSegment
from wal.stores.blocking_store import BlockingStore

_COLUMNS: Final = ("offset", "tombstone", "key")
_HORIZON: Final = "delete_horizon"

_GAP_SHARE: Final = 16
"""A gap of at most a 16th of what is wanted so far is read over."""


class _Range(NamedTuple):
    start: int
    end: int


def key_rows(
    segment: RewriteInput,
    store: BlockingStore,
    *,
    plan_number: int,
    number: int,
    planned_at_ms: int,
) -> Iterator[pa.Table]:
    """Rows of KEY_ROWS for the records with a key in an input, one table per row group.

    A tombstone is expired when its delete horizon is not later than `planned_at_ms`.
    """
    footer, _ = checked_footer(segment, store)
    columns = [*_COLUMNS, *([_HORIZON] if footer.identity.generation else [])]
    for index in range(len(footer.row_groups)):
        rows = read_columns(segment.object_key, store, footer, index, columns)
        rows = rows.filter(rows.column("key").is_valid())
        tombstone = rows.column("tombstone")
        is_new, is_expired = tombstone, pa.repeat(False, rows.num_rows)
        if footer.identity.generation:
            horizon = rows.column(_HORIZON)
            is_new = pc.and_(tombstone, horizon.is_null())
            passed = pc.fill_null(pc.less_equal(horizon, planned_at_ms), False)
            is_expired = pc.and_(tombstone, passed)
        yield pa.Table.from_arrays(
            [
                pa.repeat(pa.scalar(plan_number, pa.int32()), rows.num_rows),
                pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows),
                rows.column("offset"),
                rows.column("key"),
                is_new,
                is_expired,
            ],
            schema=KEY_ROWS,
        )


def checked_footer(segment: RewriteInput, store: BlockingStore) -> tuple[SegmentFooter, bytes]:
    """The footer of an input, which is what the coordinator says, and its sources' bytes.

    Raises: CorruptSegment.
    """
    footer, sources = read_footer_and_sources(store, segment.object_key, segment.object_bytes)
    identity = footer.identity
    found = (identity.base_offset, identity.last_offset, footer.counts.records)
    if found != (segment.base_offset, segment.last_offset, segment.record_count):
        raise CorruptSegment(
            f"{segment.object_key}: holds {found[2]} records of {found[0]}..{found[1]}, "
            f"{segment.record_count} were committed"
        )
    return footer, sources


def read_columns(
    key: ObjectKey, store: BlockingStore, footer: SegmentFooter, index: int, columns: Sequence[str]
) -> pa.Table:
    """Some columns of one row group, and no more of the object than they take."""
    ranges = _joined(_column_ranges(footer, index, columns))
    start = ranges[0].start
    # What is not read is not looked at either.
    data = bytearray(ranges[-1].end - start)
    for wanted in ranges:
        length = wanted.end - wanted.start
        part = store.get_range(key, wanted.start, length)
        data[wanted.start - start : wanted.end - start] = part
    return read_part_of_row_group(key, footer, index, start, data, [*columns])


def _column_ranges(footer: SegmentFooter, index: int, columns: Sequence[str]) -> Sequence[_Range]:
    group = pq.read_metadata(pa.BufferReader(footer.footer_bytes)).row_group(index)
    ranges = []
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema in columns:
            start = column.data_page_offset
            if column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            ranges.append(_Range(start, start + column.total_compressed_size))
    return sorted(ranges)


def _joined(ranges: Sequence[_Range]) -> Sequence[_Range]:
    wanted_bytes = sum(one.end - one.start for one in ranges)
    joined = [ranges[0]]
    for one in ranges[1:]:
        if (one.start - joined[-1].end) * _GAP_SHARE <= wanted_bytes:
            joined[-1] = _Range(joined[-1].start, one.end)
        else:
            joined.append(one)
    return joined
