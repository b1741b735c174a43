"""Turns RecordBatches into Arrow columns, without touching a record in Python.

Tiering decodes the batches of a segment into the table that becomes Parquet; the segment reader
encodes rows of it into RecordBatches for consumers (wal/records/record_encoding.py).
wal/records/record_scan.py looks into single batches without making columns. Per-batch Python is
fine here (a batch is ~16 KiB to 1 MiB), per-record Python is not: fields are read for all records
at once, and the keys and values themselves are only ever moved by Arrow's C++.

Decoding: the batches are inflated and joined into one arena. `follow_chains` finds the records (see
wal/records/varint_columns.py), then each field is one vectorised step. A column of byte strings is
described as an Arrow array over the arena whose offsets alternate (value, gap, value, gap, ...);
taking its even elements copies the values and leaves the rest.

Invariants:
- Null and empty keys, values and header values differ; header order and duplicates stay; header
  keys are bytes, whatever their encoding.
- Offsets rise within a batch and stay inside what its header announces.
- Nothing is allocated from a number in the input before it is checked against the bytes present.

Failure cases: CorruptBatch and RecordTooLarge, naming the base offset of the batch at fault.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal.columns import Int64s
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME
from wal.crc import Buffer
from wal.errors import CorruptBatch, RecordTooLarge, UnsupportedCompression
from wal.records.compression import inflate
from wal.records.record_batch import (
    HEADER_BYTES,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    BatchHeader,
    parse_header,
    verify_crc,
)
from wal.records.record_fields import locate_fields
from wal.records.varint_columns import Arena, Links, MalformedChain, follow_chains

INFLATED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Default cap on what one batch may inflate to."""

SLICE_BYTES: Final = 8 * 1024 * 1024
"""Batches are decoded and encoded in slices of about this size: bounds working memory, and keeps
every byte column below the 2 GiB that Arrow's 32-bit offsets reach."""

_INFLATED_BYTES_LIMIT: Final = 1024**3
_HEADER_TYPE: Final = pa.struct(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())]
)
_HEADERS_TYPE: Final = pa.list_(pa.field("element", _HEADER_TYPE, nullable=False))

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),  # ms since the epoch, -1 = none
        pa.field("timestamp_type", pa.int8(), nullable=False),  # CREATE_TIME or LOG_APPEND_TIME
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS_TYPE, nullable=False),
        # The batch that the record came in, repeated for each of its records.
        pa.field("batch_base_offset", pa.int64(), nullable=False),
        pa.field("batch_last_offset", pa.int64(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("base_sequence", pa.int32(), nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("attributes", pa.int16(), nullable=False),  # as the producer sent them
    ]
)


class LocatedBatch(NamedTuple):
    """One committed RecordBatch: its bytes as uploaded and what the coordinator assigned."""

    data: Buffer
    """The whole batch and nothing else; its base offset field is not read."""
    base_offset: int
    timestamp_type: int
    """CREATE_TIME or LOG_APPEND_TIME."""
    log_append_time_ms: int
    """Every record's timestamp under LOG_APPEND_TIME; not read otherwise."""


def decode_batches(
    batches: Sequence[LocatedBatch], *, inflated_bytes_max: int = INFLATED_BYTES_MAX
) -> pa.Table:
    """All records of `batches`, in the order given, as a table of RECORD_SCHEMA.

    `inflated_bytes_max` caps one batch (at most 1 GiB). The table has one chunk per ~8 MiB of
    records. Raises: CorruptBatch, RecordTooLarge.
    """
    tables = [_to_arrow(rows) for rows in _open_slices(batches, inflated_bytes_max)]
    return pa.Table.from_batches(tables, schema=RECORD_SCHEMA)


class _Rows(NamedTuple):
    """The records of a slice of batches: numbers decoded, byte strings located in the arena."""

    arena: Arena
    headers_of_batches: list[BatchHeader]
    batches: list[LocatedBatch]
    batch_of_row: Int64s
    offsets: Int64s
    timestamps: Int64s
    keys: Links
    values: Links
    header_counts: Int64s
    header_starts: Int64s
    ends: Int64s


def _open_slices(batches: Sequence[LocatedBatch], inflated_bytes_max: int) -> Iterator[_Rows]:
    if not 0 <= inflated_bytes_max <= _INFLATED_BYTES_LIMIT:
        raise ValueError(f"inflated_bytes_max {inflated_bytes_max} is not in 0 .. 1 GiB")
    located: list[LocatedBatch] = []
    headers: list[BatchHeader] = []
    payloads: list[Buffer] = []
    size_bytes = 0
    for batch in batches:
        header, payload = _open_batch(batch, inflated_bytes_max)
        located.append(batch)
        headers.append(header)
        payloads.append(payload)
        size_bytes += len(payload)
        if size_bytes >= SLICE_BYTES:
            yield _locate_records(located, headers, payloads)
            located, headers, payloads, size_bytes = [], [], [], 0
    if located:
        yield _locate_records(located, headers, payloads)


def _open_batch(batch: LocatedBatch, inflated_bytes_max: int) -> tuple[BatchHeader, Buffer]:
    """Check the header against the bytes and inflate the records."""
    with naming(batch.base_offset):
        header = checked_header(batch.data)
        payload = inflate(
            header.codec, memoryview(batch.data)[HEADER_BYTES:], limit_bytes=inflated_bytes_max
        )
        check_count(header, len(payload))
    return header, payload


@contextmanager
def naming(base_offset: int) -> Iterator[None]:
    """Let errors of a batch name it; UnsupportedCompression, here too late, is CorruptBatch."""
    try:
        yield
    except (CorruptBatch, UnsupportedCompression) as error:
        raise CorruptBatch(f"batch at offset {base_offset}: {error}") from error
    except RecordTooLarge as error:
        raise RecordTooLarge(f"batch at offset {base_offset}: {error}") from error


def checked_header(data: Buffer) -> BatchHeader:
    """The header of exactly one batch, whose CRC is right. Raises: CorruptBatch."""
    header = parse_header(data)
    if header.magic != MAGIC_V2:
        raise CorruptBatch(f"magic {header.magic}")
    if header.length_bytes != len(data):
        raise CorruptBatch(f"announces {header.length_bytes} of {len(data)} bytes")
    verify_crc(data)
    return header


def check_count(header: BatchHeader, inflated_bytes: int) -> None:
    """Check that the bytes can hold the records. Raises: CorruptBatch."""
    least_bytes = header.record_count * RECORD_BYTES_MIN
    if not 0 <= least_bytes <= inflated_bytes or (header.record_count == 0 and inflated_bytes):
        raise CorruptBatch(f"{header.record_count} records in {inflated_bytes} bytes")


def _locate_records(
    batches: list[LocatedBatch], headers: list[BatchHeader], payloads: list[Buffer]
) -> _Rows:
    arena = Arena(payloads)
    counts = np.array([header.record_count for header in headers], dtype=np.int64)
    payload_ends = np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    payload_starts = np.concatenate((np.zeros(1, dtype=np.int64), payload_ends[:-1]))
    filled = np.flatnonzero(counts)
    try:
        records = follow_chains(
            arena, payload_starts[filled], payload_ends[filled], counts[filled], zero_follows=True
        )
    except MalformedChain as error:
        raise _corrupt(batches[int(filled[error.chain])], "records do not fill it") from None
    batch_of_row = np.repeat(np.arange(len(batches)), counts)
    fields = locate_fields(arena, records)
    offset_deltas, bad = fields.offset_deltas, fields.bad
    is_first = np.diff(batch_of_row, prepend=-1) > 0
    last_deltas = np.array([header.last_offset_delta for header in headers], dtype=np.int64)
    bad |= np.where(
        is_first, offset_deltas < 0, np.diff(offset_deltas, prepend=offset_deltas[:1]) <= 0
    )
    # Differences of 64-bit numbers may wrap.
    bad |= (offset_deltas < 0) | (offset_deltas > last_deltas[batch_of_row])
    if bad.any():
        raise _corrupt(batches[int(batch_of_row[np.argmax(bad)])], "a record's fields do not fit")

    base_offsets = np.array([batch.base_offset for batch in batches], dtype=np.int64)
    return _Rows(
        arena=arena,
        headers_of_batches=headers,
        batches=batches,
        batch_of_row=batch_of_row,
        offsets=base_offsets[batch_of_row] + offset_deltas,
        timestamps=_timestamps(batches, headers, batch_of_row, fields.timestamp_deltas),
        keys=fields.keys,
        values=fields.values,
        header_counts=fields.header_counts,
        header_starts=fields.header_starts,
        ends=fields.ends,
    )


def _timestamps(
    batches: list[LocatedBatch],
    headers: list[BatchHeader],
    batch_of_row: Int64s,
    deltas: Int64s,
) -> Int64s:
    append_times = [append_time_of(*pair) for pair in zip(batches, headers, strict=True)]
    bases = [
        header.base_timestamp_ms if append_time is None else append_time
        for append_time, header in zip(append_times, headers, strict=True)
    ]
    keeps_deltas = np.array([append_time is None for append_time in append_times], dtype=np.int64)
    # Kafka's clients add in 64 bits and let it wrap, and so does NumPy.
    timestamps: Int64s = np.array(bases, dtype=np.int64)[batch_of_row]
    timestamps += deltas * keeps_deltas[batch_of_row]
    return timestamps


def append_time_of(batch: LocatedBatch, header: BatchHeader) -> int | None:
    """The one timestamp of all records, or None when each has its own."""
    if batch.timestamp_type == LOG_APPEND_TIME:
        return batch.log_append_time_ms
    return header.max_timestamp_ms if header.timestamp_type == LOG_APPEND_TIME else None


def _to_arrow(rows: _Rows) -> pa.RecordBatch:
    def repeated(values: list[int], dtype: npt.DTypeLike) -> pa.Array:
        return pa.array(np.array(values, dtype=dtype)[rows.batch_of_row])

    headers = rows.headers_of_batches
    timestamp_types = [
        CREATE_TIME if append_time_of(batch, header) is None else LOG_APPEND_TIME
        for batch, header in zip(rows.batches, headers, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(rows.offsets),
            pa.array(rows.timestamps),
            repeated(timestamp_types, np.int8),
            _byte_column(rows.arena, rows.keys),
            _byte_column(rows.arena, rows.values),
            _headers_column(rows),
            repeated([batch.base_offset for batch in rows.batches], np.int64),
            repeated(
                [
                    batch.base_offset + header.last_offset_delta
                    for batch, header in zip(rows.batches, headers, strict=True)
                ],
                np.int64,
            ),
            repeated([header.producer_id for header in headers], np.int64),
            repeated([header.producer_epoch for header in headers], np.int16),
            repeated([header.base_sequence for header in headers], np.int32),
            repeated([header.partition_leader_epoch for header in headers], np.int32),
            repeated([header.attributes for header in headers], np.int16),
        ],
        schema=RECORD_SCHEMA,
    )


def _byte_column(arena: Arena, blobs: Links) -> pa.Array:
    """The blobs, which lie in ascending order, copied out of the arena; length -1 gives null."""
    count = len(blobs.starts)
    if not count:
        return pa.array([], type=pa.binary())
    # The arena stays far below 2 GiB (SLICE_BYTES plus one batch), so 32-bit offsets reach.
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = blobs.starts
    bounds[1::2] = blobs.starts + np.maximum(blobs.lengths, 0)
    with_gaps = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(arena.data)]
    )
    is_null = blobs.lengths < 0
    even = pa.array(
        np.arange(0, 2 * count, 2, dtype=np.int32), mask=is_null if is_null.any() else None
    )
    return with_gaps.take(even)


def _headers_column(rows: _Rows) -> pa.Array:
    with_headers = np.flatnonzero(rows.header_counts)
    try:
        links = follow_chains(
            rows.arena,
            rows.header_starts[with_headers],
            rows.ends[with_headers],
            2 * rows.header_counts[with_headers],
            zero_follows=False,
        )
    except MalformedChain as error:
        row = with_headers[error.chain]
        raise _corrupt(rows.batches[int(rows.batch_of_row[row])], "malformed headers") from None
    keys = Links(links.starts[0::2], links.lengths[0::2])
    values = Links(links.starts[1::2], links.lengths[1::2])
    null_key = np.flatnonzero(keys.lengths < 0)
    if len(null_key):
        row = with_headers[
            np.searchsorted(np.cumsum(rows.header_counts[with_headers]), null_key[0], side="right")
        ]
        raise _corrupt(rows.batches[int(rows.batch_of_row[row])], "a header without a key")
    offsets = np.zeros(len(rows.header_counts) + 1, dtype=np.int32)
    np.cumsum(rows.header_counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays(
        [_byte_column(rows.arena, keys), _byte_column(rows.arena, values)],
        fields=list(_HEADER_TYPE),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=_HEADERS_TYPE)


def _corrupt(batch: LocatedBatch, what: str) -> CorruptBatch:
    return CorruptBatch(f"batch at offset {batch.base_offset}: {what}")
