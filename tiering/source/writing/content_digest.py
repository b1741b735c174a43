"""Tells whether two writes of a batch hold the same records, in whatever order and objects.

Spark runs a batch again after a restart. Its rows are then the same, but tasks may divide and order
them otherwise, and staged objects and timestamps are others. So each row is hashed by itself (key,
value, headers, and the partition if the row names one), and the hashes are summed: no order, and
sums of tasks add up. Two sums of 64 bits and the number of rows make a digest of 16 bytes.

It is made against accidents, two queries that share a sink id, and not against somebody who looks
for a collision: a sink belongs to one principal, who could only fool himself.

Everything is vectorised: byte strings are laid into words of 8 bytes, each word is mixed with its
position, and a row's words are summed. The numbers are part of what a coordinator keeps for 30
days, so they never change: a test has them.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from metadata.sink_operations import SINK_DIGEST_BYTES
from wal.columns import Int64s

BYTES_AT_ONCE: Final = 1 << 20

_UInt64s = npt.NDArray[np.uint64]
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
_MASK: Final = (1 << 64) - 1


class ContentSum(NamedTuple):
    """What was written so far, of any rows; sums add up."""

    rows: int = 0
    low: int = 0
    high: int = 0

    def plus(self, other: "ContentSum") -> "ContentSum":
        return ContentSum(
            self.rows + other.rows, (self.low + other.low) & _MASK, (self.high + other.high) & _MASK
        )


def digest_of(topic_id: UUID, sums: Iterable[ContentSum]) -> bytes:
    """The digest of a batch of these parts."""
    total = ContentSum()
    for each in sums:
        total = total.plus(each)
    content = b"".join(number.to_bytes(8, "big") for number in total)
    return blake2b(topic_id.bytes + content, digest_size=SINK_DIGEST_BYTES).digest()


def content_sum(table: pa.Table) -> ContentSum:
    """Of the rows of a table that `record_rows.record_table` gave."""
    total = ContentSum()
    for batch in table.to_batches():
        total = total.plus(_sum_of(batch))
    return total


def _sum_of(rows: pa.RecordBatch) -> ContentSum:
    if not rows.num_rows:
        return ContentSum()
    with np.errstate(over="ignore"):
        hashes = _mixed(_hashes(rows.column("key")) + _GOLDEN)
        hashes = _mixed(hashes + _hashes(rows.column("value")))
        hashes = _mixed(hashes + _header_hashes(rows.column("headers")))
        partitions = pc.fill_null(rows.column("partition"), -1).to_numpy().astype(np.int64)
        hashes = _mixed(hashes + partitions.view(np.uint64))
        low = int(hashes.sum(dtype=np.uint64))
        high = int(_mixed(hashes ^ _NULL).sum(dtype=np.uint64))
    return ContentSum(rows.num_rows, low, high)


def _header_hashes(column: pa.Array) -> _UInt64s:
    lengths = column.value_lengths().to_numpy().astype(np.int64)
    pairs = column.flatten()
    hashes: _UInt64s = np.zeros(len(column), np.uint64)
    if not len(pairs):
        return hashes
    each = _mixed(_hashes(pairs.field("key")) + _GOLDEN)
    each = _mixed(each + _hashes(pairs.field("value")))
    each = _mixed(each + _positions(lengths).astype(np.uint64))
    return _row_sums(each, lengths)


def _hashes(column: pa.Array) -> _UInt64s:
    """Of each byte string; a null one differs from an empty one."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    hashes: _UInt64s = np.empty(len(column), np.uint64)
    ends = np.cumsum(lengths)
    start = 0
    while start < len(column):
        before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, before + BYTES_AT_ONCE, side="right")), start + 1)
        some = column.slice(start, end - start)
        hashes[start:end] = _slice_hashes(some, lengths[start:end])
        start = end
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_null, _NULL, _mixed(hashes + lengths.astype(np.uint64)))


def _slice_hashes(column: pa.Array, lengths: Int64s) -> _UInt64s:
    _, offsets, data = column.buffers()
    if data is None or not lengths.any():
        return np.zeros(len(column), np.uint64)
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    content = np.frombuffer(data, np.uint8)
    words = (lengths + 7) // 8
    within = _positions(lengths)
    padded = np.zeros(int(words.sum()) * 8, np.uint8)
    starts = bounds[:-1].astype(np.int64)
    word_starts = (np.cumsum(words) - words) * 8
    padded[np.repeat(word_starts, lengths) + within] = content[np.repeat(starts, lengths) + within]
    mixed = _mixed(
        padded.view("<u8") + (_positions(words).astype(np.uint64) + np.uint64(1)) * _GOLDEN
    )
    return _row_sums(mixed, words)


def _positions(lengths: Int64s) -> Int64s:
    """0 … length - 1 for each length, one behind the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - lengths, lengths)


def _row_sums(values: _UInt64s, lengths: Int64s) -> _UInt64s:
    sums: _UInt64s = np.zeros(len(lengths), np.uint64)
    has_any = lengths > 0
    if len(values):
        starts = (np.cumsum(lengths) - lengths)[has_any]
        sums[has_any] = np.add.reduceat(values, starts)
    return sums


def _mixed(values: _UInt64s) -> _UInt64s:
    """splitmix64's last steps."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
