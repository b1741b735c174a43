"""Turns Arrow columns into RecordBatches: the way back from wal/records/record_columns.py.

The numbers around key, value and headers are packed into byte columns, and one
element-wise join of prefix, key, middle, value, tail and headers yields every record, with all
records of a batch adjacent and room for its header before them. The header is written there, so
what the join made is what is served: batches are slices of it, and each keeps all of it in memory.
Where batches are small they are copied out.

Encoded batches are not compressed; otherwise they decode to the rows that they were made of.

Failure cases: CorruptBatch naming the base offset of the batch whose rows contradict each other.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal.columns import Int64s
from wal.coordinates import LOG_APPEND_TIME
from wal.crc import crc32c
from wal.errors import CorruptBatch
from wal.records.record_batch import (
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_V2,
    TIMESTAMP_TYPE_BIT,
    EncodedBatch,
)
from wal.records.record_columns import RECORD_SCHEMA, SLICE_BYTES
from wal.records.varint_columns import Bools, UInt64s, pack_varints, varint_sizes, zigzag

_CRC_BYTES: Final = 4
"""Of a header, right before what the CRC covers."""

_SLICED_FROM_BYTES: Final = 64 << 10
"""Size from which on batches are left where they were made, on average: as those of objects are, of
which a slice is cheaper than a copy from there on."""

_BATCH_COLUMNS: Final = (
    "batch_base_offset",
    "batch_last_offset",
    "timestamp_type",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "leader_epoch",
    "attributes",
)


def encode_batches(table: pa.Table) -> list[EncodedBatch]:
    """The RecordBatches that the rows of `table` came in, uncompressed, in row order.

    Consecutive rows of equal `batch_base_offset` become one batch. Rows missing from it, because
    the reader asked for a part or because they were compacted away, leave it valid: its first and
    last offset, its base sequence and the offsets of its records stay what they were.
    Raises: CorruptBatch when rows contradict each other or the schema.
    """
    if not table.num_rows:
        return []
    if table.schema != RECORD_SCHEMA:
        try:
            table = table.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise CorruptBatch(f"rows do not fit the record schema: {error}") from error
    base_offsets = table.column("batch_base_offset").to_numpy()
    first_rows = np.flatnonzero(np.diff(base_offsets, prepend=base_offsets[0] + 1))
    encoded: list[EncodedBatch] = []
    for start, end in _slices_of_batches(table, np.append(first_rows, table.num_rows)):
        rows = table.slice(start, end - start).combine_chunks()
        encoded.extend(_encode_slice(rows.to_batches()[0]))
    return encoded


def _slices_of_batches(table: pa.Table, boundaries: Int64s) -> Iterator[tuple[int, int]]:
    """Split [boundaries[0], boundaries[-1]) between batches into ranges of ~SLICE_BYTES."""
    start, end = int(boundaries[0]), int(boundaries[-1])
    if len(boundaries) <= 2 or table.slice(start, end - start).nbytes <= SLICE_BYTES:
        yield start, end
        return
    middle = len(boundaries) // 2
    yield from _slices_of_batches(table, boundaries[: middle + 1])
    yield from _slices_of_batches(table, boundaries[middle:])


def _encode_slice(rows: pa.RecordBatch) -> Iterator[EncodedBatch]:
    offsets = rows.column("offset").to_numpy()
    timestamps = rows.column("timestamp").to_numpy()
    base_offsets = rows.column("batch_base_offset").to_numpy()
    is_first = np.diff(base_offsets, prepend=base_offsets[0] + 1) != 0
    firsts = np.flatnonzero(is_first)
    counts = np.diff(firsts, append=len(offsets))
    offset_deltas = offsets - base_offsets
    _check_rows(rows, is_first, offset_deltas)

    bounds, encoded = _encode_records(
        rows, timestamps - np.repeat(timestamps[firsts], counts), offset_deltas, firsts
    )
    finished = encoded.toreadonly()
    are_small = len(encoded) < _SLICED_FROM_BYTES * len(firsts)
    batch_columns = [rows.column(name).to_numpy()[firsts].tolist() for name in _BATCH_COLUMNS]
    for index, (
        base_offset,
        last_offset,
        timestamp_type,
        producer_id,
        producer_epoch,
        base_sequence,
        leader_epoch,
        attributes,
        count,
        base_timestamp_ms,
        max_timestamp_ms,
    ) in enumerate(
        zip(
            *batch_columns,
            counts.tolist(),
            timestamps[firsts].tolist(),
            np.maximum.reduceat(timestamps, firsts).tolist(),
            strict=True,
        )
    ):
        start, end = bounds[index], bounds[index + 1]
        attributes &= ~(CODEC_MASK | TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT)
        if timestamp_type == LOG_APPEND_TIME:
            attributes |= TIMESTAMP_TYPE_BIT
        fields = (
            attributes,
            last_offset - base_offset,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        length = end - start - LENGTH_PREFIX_BYTES
        header = HEADER.pack(base_offset, length, leader_epoch, MAGIC_V2, 0, *fields)
        encoded[start : start + HEADER_BYTES] = header
        crc = crc32c(finished[start + CRC_START : end])
        encoded[start + CRC_START - _CRC_BYTES : start + CRC_START] = crc.to_bytes(
            _CRC_BYTES, "big"
        )
        data = finished[start:end]
        yield EncodedBatch(base_offset, last_offset, bytes(data) if are_small else data)


def _check_rows(rows: pa.RecordBatch, is_first: Bools, offset_deltas: Int64s) -> None:
    follows = ~is_first[1:]
    last_deltas = (
        rows.column("batch_last_offset").to_numpy() - rows.column("batch_base_offset").to_numpy()
    )
    bad = (offset_deltas < 0) | (offset_deltas > last_deltas) | (last_deltas > 2**31 - 1)
    bad[1:] |= follows & (np.diff(offset_deltas) <= 0)
    for name in _BATCH_COLUMNS[1:]:
        bad[1:] |= follows & (np.diff(rows.column(name).to_numpy()) != 0)
    if bad.any():
        at = int(np.argmax(bad))
        raise CorruptBatch(
            f"batch at offset {rows.column('batch_base_offset')[at]}: the row of offset"
            f" {rows.column('offset')[at]} does not belong to it"
        )


def _encode_records(
    rows: pa.RecordBatch, timestamp_deltas: Int64s, offset_deltas: Int64s, firsts: Int64s
) -> tuple[list[int], memoryview]:
    """The bounds of all batches, and their bytes: each is room for a header and its records.

    `firsts` are the first rows of the batches. The bytes can be written to.
    """
    keys, values = rows.column("key"), rows.column("value")
    key_lengths, value_lengths = _lengths(keys), _lengths(values)
    header_counts, headers = _encode_headers(rows.column("headers"))
    header_lengths = np.diff(np.frombuffer(headers.buffers()[1], dtype=np.int32)).astype(np.int64)

    timestamp_raw = zigzag(timestamp_deltas)
    offset_raw = zigzag(offset_deltas)
    key_raw = zigzag(key_lengths)
    value_raw = zigzag(value_lengths)
    count_raw = zigzag(header_counts)
    body_lengths = 1 + np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + header_lengths
    for raw in (timestamp_raw, offset_raw, key_raw, value_raw, count_raw):
        body_lengths += varint_sizes(raw)
    length_raw = zigzag(body_lengths)
    room_lengths = np.zeros(len(body_lengths), dtype=np.int64)
    room_lengths[firsts] = HEADER_BYTES
    bounds = _bounds(room_lengths + varint_sizes(length_raw) + body_lengths)
    if bounds[-1] > 2**31 - 1:
        raise CorruptBatch(
            f"batch at offset {rows.column('batch_base_offset')[0]}: its rows encode to"
            f" {bounds[-1]} bytes"
        )
    room = pa.py_buffer(bytes(HEADER_BYTES * len(firsts)))
    joined = pc.binary_join_element_wise(
        _byte_strings(_bounds(room_lengths), room),
        _packed([length_raw, b"\x00", timestamp_raw, offset_raw, key_raw]),
        keys,
        _packed([value_raw]),
        values,
        _packed([count_raw]),
        headers,
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    of_batches = bounds[np.append(firsts, len(room_lengths))].tolist()
    return of_batches, np.frombuffer(joined.buffers()[2], np.uint8).data


def _bounds(lengths: Int64s) -> Int64s:
    """Where each of some byte strings begins that lie back to back, and where the last one ends."""
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def _byte_strings(bounds: Int64s | npt.NDArray[np.int32], data: pa.Buffer) -> pa.Array:
    """The byte strings that lie between `bounds` in `data`, fewer than 2 GiB."""
    places = pa.py_buffer(bounds.astype(np.int32, copy=False))
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, places, data])


def _lengths(column: pa.Array) -> Int64s:
    """Length of each byte string, -1 for null."""
    lengths: Int64s = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    return lengths


def _packed(columns: Sequence[UInt64s | bytes]) -> pa.Array:
    bounds, data = pack_varints(columns)
    return _byte_strings(bounds, pa.py_buffer(data))


def _encode_headers(column: pa.Array) -> tuple[Int64s, pa.Array]:
    """Header count of each record, and its headers as one byte string."""
    counts: Int64s = column.value_lengths().to_numpy().astype(np.int64)
    rows = len(counts)
    pairs = column.flatten()
    if not len(pairs):
        return counts, _byte_strings(np.zeros(rows + 1, dtype=np.int32), pa.py_buffer(b""))
    keys, values = pairs.field("key"), pairs.field("value")
    joined = pc.binary_join_element_wise(
        _packed([zigzag(_lengths(keys))]),
        keys,
        _packed([zigzag(_lengths(values))]),
        values,
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    # The headers of a record are adjacent: the same bytes with fewer offsets are its headers.
    _, pair_offsets, data = joined.buffers()
    bounds = np.frombuffer(pair_offsets, dtype=np.int32)[_bounds(counts)]
    return counts, _byte_strings(bounds, data)
