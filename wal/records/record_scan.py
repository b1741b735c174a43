"""Looks into the records of one batch without making columns of them.

Checks of produced records and look-ups of timestamps do this because a client asks for it, so how
much memory it takes is known before: the inflated records once, and some numbers for each record.
Fields are read for `RECORDS_AT_ONCE` records at a time (`wal/records/record_fields.py`), and what
is not asked for is dropped with them. `scan_bytes` is the promise; callers reserve that much.

All of it is slow (a second for the worst that 64 MiB can hold) and runs in threads.

Failure cases: CorruptBatch and RecordTooLarge, naming the base offset of the batch.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from wal.columns import Int64s
from wal.coordinates import NO_TIMESTAMP
from wal.crc import Buffer
from wal.errors import CorruptBatch
from wal.records.compression import Inflated, inflate_padded
from wal.records.record_batch import HEADER_BYTES, BatchHeader
from wal.records.record_columns import (
    INFLATED_BYTES_MAX,
    LocatedBatch,
    append_time_of,
    check_count,
    checked_header,
    naming,
)
from wal.records.record_fields import RecordFields, locate_fields
from wal.records.varint_columns import PADDING_BYTES, Arena, Links, MalformedChain, follow_chains

RECORDS_AT_ONCE: Final = 16_384
WINDOW_BYTES: Final = 128 << 10
"""Positions looked at together, fewer than tiering does: while NumPy works on them, others wait."""
NULL_KEYS_NAMED_MAX: Final = 1_000
"""Positions that are told of records without key; a batch may hold a million."""

_SCAN_BYTES: Final = 1 << 20
_RECORD_BYTES: Final = 80
"""A record takes this much while its chain is followed, its result included."""
_FIELDS_BYTES: Final = 400
"""All fields of a record and what is needed to find them; for RECORDS_AT_ONCE at a time."""
_WINDOW_BYTES: Final = 130
"""What the windows of `follow_chains` take for each of their bytes when all could be records."""


def scan_bytes(inflated_bytes: int, record_count: int) -> int:
    """Memory for opening and scanning a batch that inflates to `inflated_bytes` at most.

    The records are counted twice: a codec may keep a window as large as what it has written.
    """
    records = max(min(record_count, inflated_bytes), 0)
    return (
        _SCAN_BYTES
        + 2 * inflated_bytes
        + _RECORD_BYTES * records
        + _FIELDS_BYTES * min(records, RECORDS_AT_ONCE)
        + _WINDOW_BYTES * min(inflated_bytes, WINDOW_BYTES)
    )


class OpenedBatch(NamedTuple):
    """A batch whose header was checked and whose records are inflated."""

    batch: LocatedBatch
    header: BatchHeader
    records: Inflated
    """With PADDING_BYTES behind them."""


class RecordFacts(NamedTuple):
    """What validation may have to know of the records of one batch."""

    record_count: int
    null_key_count: int
    null_key_positions: Sequence[int]
    """Of records without key, ascending from 0; the first NULL_KEYS_NAMED_MAX of them."""
    timestamp_min_ms: int
    timestamp_max_ms: int


class RisingTimestamps(NamedTuple):
    """The records whose timestamp is larger than those of all records before them, in order.

    The first record at or after a time is always one of these, so they answer for every time.
    """

    offsets: Int64s
    timestamps: Int64s


def open_batch(batch: LocatedBatch, *, inflated_bytes_max: int = INFLATED_BYTES_MAX) -> OpenedBatch:
    """Check a batch against its header and its CRC, and inflate it.

    Raises: CorruptBatch, RecordTooLarge (more than `inflated_bytes_max`).
    """
    with naming(batch.base_offset):
        header = checked_header(batch.data)
        records = inflate_records(header, batch.data, inflated_bytes_max)
    return OpenedBatch(batch, header, records)


def inflate_records(header: BatchHeader, data: Buffer, inflated_bytes_max: int) -> Inflated:
    """The records of the batch `data`, padded for a scan.

    Raises: CorruptBatch, RecordTooLarge, UnsupportedCompression.
    """
    return inflate_padded(
        header.codec,
        memoryview(data)[HEADER_BYTES:],
        limit_bytes=inflated_bytes_max,
        padding_bytes=PADDING_BYTES,
    )


def inspect_records(opened: OpenedBatch) -> RecordFacts:
    """Look at keys and timestamps.

    The timestamps are the extremes of those that records carry, NO_TIMESTAMP when none does.
    Raises: CorruptBatch.
    """
    null_keys: list[int] = []
    null_key_count = first = 0
    lows: list[int] = []
    highs: list[int] = []
    for fields in _scan(opened):
        without_key = np.flatnonzero(fields.keys.lengths < 0)
        null_key_count += len(without_key)
        named = without_key[: NULL_KEYS_NAMED_MAX - len(null_keys)]
        null_keys += (named + first).tolist()
        first += len(fields.offset_deltas)
        timestamps = _timestamps(opened, fields)
        timestamps = timestamps[timestamps != NO_TIMESTAMP]
        if len(timestamps):
            lows.append(int(timestamps.min()))
            highs.append(int(timestamps.max()))
    return RecordFacts(
        first,
        null_key_count,
        null_keys,
        min(lows, default=NO_TIMESTAMP),
        max(highs, default=NO_TIMESTAMP),
    )


def rising_timestamps(opened: OpenedBatch) -> RisingTimestamps:
    """The records at which the largest timestamp so far changes. Raises: CorruptBatch."""
    offsets: list[Int64s] = []
    timestamps: list[Int64s] = []
    largest: int | None = None
    for fields in _scan(opened):
        here = _timestamps(opened, fields)
        so_far = np.maximum.accumulate(here)
        rises = np.empty(len(here), dtype=np.bool_)
        rises[0] = largest is None or here[0] > largest
        rises[1:] = here[1:] > so_far[:-1]
        if largest is not None:
            rises &= here > largest
        largest = int(so_far[-1]) if largest is None else max(largest, int(so_far[-1]))
        offsets.append(fields.offset_deltas[rises] + opened.batch.base_offset)
        timestamps.append(here[rises])
    if not offsets:
        nothing = np.empty(0, dtype=np.int64)
        return RisingTimestamps(nothing, nothing)
    return RisingTimestamps(np.concatenate(offsets), np.concatenate(timestamps))


def _scan(opened: OpenedBatch) -> Iterator[RecordFields]:
    """The fields of all records, RECORDS_AT_ONCE at a time; none of a batch without records."""
    batch, header, (padded, length) = opened
    with naming(batch.base_offset):
        check_count(header, length)
        if not header.record_count:
            return
        arena = Arena.over(padded, length)
        try:
            records = follow_chains(
                arena,
                np.zeros(1, dtype=np.int64),
                np.array([length], dtype=np.int64),
                np.array([header.record_count], dtype=np.int64),
                zero_follows=True,
                window_bytes=WINDOW_BYTES,
            )
        except MalformedChain:
            raise CorruptBatch("records do not fill it") from None
    last = -1
    for first in range(0, header.record_count, RECORDS_AT_ONCE):
        here = slice(first, first + RECORDS_AT_ONCE)
        fields = locate_fields(arena, Links(records.starts[here], records.lengths[here]))
        deltas = fields.offset_deltas
        bad = fields.bad | (np.diff(deltas, prepend=last) <= 0)
        bad |= (deltas < 0) | (deltas > header.last_offset_delta)  # differences may wrap
        if bad.any():
            raise CorruptBatch(f"batch at offset {batch.base_offset}: a record's fields do not fit")
        last = int(deltas[-1])
        yield fields


def _timestamps(opened: OpenedBatch, fields: RecordFields) -> Int64s:
    append_time = append_time_of(opened.batch, opened.header)
    if append_time is not None:
        return np.full(len(fields.offset_deltas), append_time, dtype=np.int64)
    # Kafka's clients add in 64 bits and let it wrap, and so does NumPy.
    return np.int64(opened.header.base_timestamp_ms) + fields.timestamp_deltas
