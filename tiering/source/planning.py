"""Cuts ranges of offsets into shares, one for each Spark task, by the sizes of extents alone.

No byte of an object is read, and of the extents nothing is kept: a plan takes memory for its
shares, which are a few numbers each. A share ends with `SHARE_BYTES` of extents, or `SHARE_EXTENTS`
of them, at an extent whose records are all too old for the query, and with its partition. A segment
that is larger than a share becomes several, cut at offsets as if its records were of one size.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from metadata.operations import Extent, SegmentExtent, WalExtent
from wal.coordinates import LOG_APPEND_TIME
from wal.records.marker_batches import Marker

SHARE_BYTES: Final = 128 << 20
"""As stored. Spark's own default for files (spark.sql.files.maxPartitionBytes)."""

SHARE_EXTENTS: Final = 10_000
"""Of a topic with small batches that nobody rolled yet: what a task looks up in one call."""


class Share(NamedTuple):
    """The records [start, end) of one partition."""

    partition: int
    start: int
    end: int


def shares(
    partition: int,
    start: int,
    end: int,
    extents: Iterable[Extent],
    *,
    timestamp_min_ms: int | None = None,
    share_bytes: int = SHARE_BYTES,
    share_extents: int = SHARE_EXTENTS,
) -> Iterator[Share]:
    """Cut [start, end), whose `extents` are in offset order and gapless."""
    begin = position = start
    size_bytes = count = 0
    for extent in extents:
        first, last = max(extent.base_offset, start), min(extent.last_offset + 1, end)
        if timestamp_min_ms is not None and greatest_timestamp_ms(extent) < timestamp_min_ms:
            if begin < first:
                yield Share(partition, begin, first)
            begin = position = last
            size_bytes = count = 0
            continue
        more_bytes = _bytes_within(extent, first, last)
        if count and (size_bytes + more_bytes > share_bytes or count >= share_extents):
            yield Share(partition, begin, first)
            begin, size_bytes, count = first, 0, 0
        if isinstance(extent, SegmentExtent) and more_bytes > share_bytes:
            pieces = min(-(-more_bytes // share_bytes), last - first)
            for piece in range(1, pieces):
                cut = first + (last - first) * piece // pieces
                yield Share(partition, begin, cut)
                begin = cut
            more_bytes = _bytes_within(extent, begin, last)
        size_bytes += more_bytes
        count += 1
        position = last
    if begin < position:
        yield Share(partition, begin, position)


def bytes_up_to(
    start: int, end: int, extents: Iterable[Extent], limit_bytes: int
) -> tuple[int, int]:
    """Returns how far [start, end) may go for about `limit_bytes` as stored, and what that takes.

    At least one offset further than `start`.
    """
    taken = 0
    for extent in extents:
        first, last = max(extent.base_offset, start), min(extent.last_offset + 1, end)
        more_bytes = _bytes_within(extent, first, last)
        if more_bytes and taken + more_bytes > limit_bytes:
            within = (last - first) * (limit_bytes - taken) // more_bytes
            cut = max(first + within, start + 1)
            return cut, taken + _bytes_within(extent, first, cut)
        taken += more_bytes
    return end, taken


def greatest_timestamp_ms(extent: Extent) -> int:
    """No record of the extent is younger."""
    if isinstance(extent, Marker):
        return extent.timestamp_ms
    if isinstance(extent, WalExtent) and extent.timestamp_type == LOG_APPEND_TIME:
        return extent.log_append_time_ms
    return extent.max_timestamp_ms


def _bytes_within(extent: Extent, first: int, end: int) -> int:
    """About how many stored bytes [first, end) has of an extent: its records as if of one size."""
    if isinstance(extent, Marker):
        return 0
    stored = extent.length_bytes if isinstance(extent, WalExtent) else extent.object_bytes
    return stored * (end - first) // (extent.last_offset + 1 - extent.base_offset)
