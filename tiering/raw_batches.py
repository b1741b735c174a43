"""Keeps batches that cannot be decoded in a segment, and gives them back.

Produce checks a batch's header and CRC and does not open its records. So a producer can have a
batch committed whose records contradict its header, or inflate beyond what anybody opens. Such a
batch has offsets, and consumers get its bytes as they were sent. Rolling must neither fail on it
for ever nor change what consumers see, so the segment keeps it *raw*:

- one row for each record that its header counts, so that offsets stay dense, with neither key nor
  value nor headers, and the batch's greatest timestamp (or its append time) as timestamp;
- all bytes of the batch in column `raw_batch` of its first row; that column is null elsewhere.

Readers by SQL see rows without content and can tell them by `raw_batch`; consumers through the
broker get the bytes, with base offset, leader epoch and append time stamped in as on every batch.

Only bytes whose CRC is right are kept raw. A stored batch with a wrong one is damaged, which is an
error and not a producer's doing. The roll calls `raw_rows`, the segment reader `served_batches`,
verification `raw_batches`.

Failure cases: CorruptSegment naming the key when `raw_batch` does not hold what its rows say.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tiering.segment_columns import RAW_BATCH, SEGMENT_SCHEMA, record_table
from wal.coordinates import LOG_APPEND_TIME
from wal.errors import CorruptBatch, CorruptSegment
from wal.records.record_batch import (
    BatchHeader,
    EncodedBatch,
    assign_log_append_time,
    assign_offsets,
    parse_header,
    verify_crc,
)
from wal.records.record_columns import RECORD_SCHEMA, LocatedBatch
from wal.records.record_encoding import encode_batches


class RawBatch(NamedTuple):
    """A raw batch and its rows [first_row, first_row + row_count) in a row group."""

    first_row: int
    row_count: int
    base_offset: int
    data: bytes


def raw_rows(batch: LocatedBatch) -> pa.Table:
    """The rows of RECORD_SCHEMA, and the column `raw_batch`, that keep `batch` raw.

    The batch's header is right and its CRC was checked. Takes some 60 bytes for each record.
    """
    header = parse_header(batch.data)
    count = header.record_count
    timestamp_type, timestamp_ms = header.timestamp_type, header.max_timestamp_ms
    if batch.timestamp_type == LOG_APPEND_TIME:
        timestamp_type, timestamp_ms = LOG_APPEND_TIME, batch.log_append_time_ms
    headers_type = RECORD_SCHEMA.field("headers").type
    no_headers = pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, dtype=np.int32)),
        pa.array([], type=headers_type.value_type),
        type=headers_type,
    )
    first = pa.array([bytes(batch.data)], type=pa.binary())
    columns = {
        "offset": pa.array(batch.base_offset + np.arange(count, dtype=np.int64)),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.nulls(count, pa.binary()),
        "headers": no_headers,
        RAW_BATCH: pa.chunked_array([first, pa.nulls(count - 1, pa.binary())]),
    }
    repeated = {
        "timestamp": timestamp_ms,
        "timestamp_type": timestamp_type,
        "batch_base_offset": batch.base_offset,
        "batch_last_offset": batch.base_offset + header.last_offset_delta,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "leader_epoch": header.partition_leader_epoch,
        "attributes": header.attributes,
    }
    schema = RECORD_SCHEMA.append(SEGMENT_SCHEMA.field(RAW_BATCH))
    for name, value in repeated.items():
        columns[name] = pa.repeat(pa.scalar(value, schema.field(name).type), count)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def raw_batches(key: str, rows: pa.Table) -> Iterator[RawBatch]:
    """The raw batches among the rows of a row group, in order.

    `rows` has the columns `offset`, `batch_base_offset` and `raw_batch`; others are not looked at.
    Raises: CorruptSegment.
    """
    raw = rows.column(RAW_BATCH)
    if raw.null_count == rows.num_rows:
        return
    offsets = rows.column("offset").to_numpy()
    base_offsets = rows.column("batch_base_offset").to_numpy()
    for first_row in np.flatnonzero(raw.is_valid().to_numpy()).tolist():
        base_offset = int(offsets[first_row])
        data = raw[first_row].as_py()
        try:
            row_count = _checked_header(data).record_count
        except CorruptBatch as error:
            raise CorruptSegment(f"{key}: raw batch at offset {base_offset}: {error}") from error
        of_batch = base_offsets[first_row : first_row + row_count] == base_offset
        behind = base_offsets[first_row + row_count : first_row + row_count + 1]
        if not row_count == len(of_batch) == np.count_nonzero(of_batch) or base_offset in behind:
            raise CorruptSegment(
                f"{key}: raw batch at offset {base_offset} has not {row_count} rows, as it says"
            )
        yield RawBatch(first_row, row_count, base_offset, data)


def served_batches(key: str, rows: pa.Table, *, leader_epoch: int) -> list[EncodedBatch]:
    """The RecordBatches of a row group as consumers get them: encoded anew, or raw.

    `rows` has all columns of SEGMENT_SCHEMA. Raises: CorruptSegment, CorruptBatch.
    """
    records = record_table(rows, leader_epoch=leader_epoch)
    is_raw = np.zeros(rows.num_rows, dtype=np.bool_)
    kept: list[EncodedBatch] = []
    for raw in raw_batches(key, rows):
        is_raw[raw.first_row : raw.first_row + raw.row_count] = True
        kept.append(_stamped(raw, records, leader_epoch))
    if not kept:
        return encode_batches(records)
    encoded = encode_batches(records.filter(pa.array(~is_raw)))
    return sorted(kept + encoded, key=lambda batch: batch.base_offset)


def _checked_header(data: bytes) -> BatchHeader:
    header = parse_header(data)
    if header.length_bytes != len(data):
        raise CorruptBatch(f"announces {header.length_bytes} of {len(data)} bytes")
    verify_crc(data)
    return header


def _stamped(raw: RawBatch, records: pa.Table, leader_epoch: int) -> EncodedBatch:
    """What the broker writes into every batch that it serves from a WAL object."""
    data = bytearray(raw.data)
    assign_offsets(data, 0, raw.base_offset, leader_epoch)
    if records.column("timestamp_type")[raw.first_row].as_py() == LOG_APPEND_TIME:
        timestamp_ms = records.column("timestamp")[raw.first_row].as_py()
        assign_log_append_time(data, 0, len(data), timestamp_ms)
    return EncodedBatch(raw.base_offset, raw.base_offset + raw.row_count - 1, bytes(data))
