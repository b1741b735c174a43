"""The row that stands for a batch, from the Produce request to the index of its WAL object.

The checks of a request make it (diskless/produce/request_batches.py), the chunk's .idx file keeps
it (wal/chunks/chunk.py), and the object is laid out by it (wal/chunks/chunk_batches.py).

    row, 88 bytes, all integers big-endian
     0  as an index entry of the WAL object (wal/chunks/wal_object.py), byte offset in .data
    80  leader epoch  i32  of the batch's header; tells the head of the batch with what is above
    84  zeros         4s
"""

import struct
from typing import Final, NamedTuple

import numpy as np

from wal.columns import FEW_MAX, Rows, row_type
from wal.coordinates import NO_TRANSACTION
from wal.crc import Buffer
from wal.records.record_batch import BatchHeader

INDEX_ENTRY: Final = struct.Struct(">16siQIiIqqihBxqq")
assert INDEX_ENTRY.size == 80
BATCH_ROW: Final = struct.Struct(INDEX_ENTRY.format + "i4s")
assert BATCH_ROW.size == 88
ROW_ZEROS: Final = bytes(4)
PLACE: Final = struct.Struct(">QI")
"""The fields of a row that say where a batch lies in .data, and how long it is."""
PLACE_POSITION: Final = 20
TIMESTAMP_TYPE_POSITION: Final = 62

_ENTRY_FIELDS: Final = (
    "topic_id partition byte_offset length_bytes record_count crc max_timestamp_ms producer_id"
    " base_sequence producer_epoch timestamp_type request_id transaction_number"
)
INDEX_ROW: Final = row_type(INDEX_ENTRY, _ENTRY_FIELDS)
ROW: Final = row_type(BATCH_ROW, f"{_ENTRY_FIELDS} leader_epoch zeros")

_SCANNED_FIELDS: Final = (
    *("partition", "length_bytes", "record_count", "crc", "max_timestamp_ms", "producer_id"),
    *("base_sequence", "producer_epoch", "leader_epoch"),
)

_PARTITION_END, _PRODUCER, _PRODUCER_END = 20, 48, 60
_NAME: Final = [*range(_PARTITION_END), *range(_PRODUCER, _PRODUCER_END)]


def batch_row(
    topic_id: bytes,
    partition: int,
    byte_offset: int,
    header: BatchHeader,
    timestamp_type: int,
    request_id: int,
    transaction_number: int = NO_TRANSACTION,
) -> bytes:
    """The row of a batch with this header."""
    _, length_bytes, leader_epoch, _, crc, _, _, _, max_timestamp_ms, *producer, count = header
    producer_id, producer_epoch, base_sequence = producer
    return BATCH_ROW.pack(
        topic_id,
        partition,
        byte_offset,
        length_bytes,
        count,
        crc,
        max_timestamp_ms,
        producer_id,
        base_sequence,
        producer_epoch,
        timestamp_type,
        request_id,
        transaction_number,
        leader_epoch,
        ROW_ZEROS,
    )


def batch_rows(
    topic_id: bytes, byte_offset: int, scanned: Rows, timestamp_type: int, request_id: int
) -> bytes:
    """The rows of batches of one topic, back to back from `byte_offset` on; of no transaction.

    `scanned` are rows of diskless/protocol/batch_scan.py, or others with the same names.
    """
    rows = np.zeros(len(scanned), ROW)
    for name in _SCANNED_FIELDS:
        rows[name] = scanned[name]
    rows["topic_id"] = np.void(topic_id)
    lengths = scanned["length_bytes"]
    rows["byte_offset"] = lengths.cumsum() - lengths + byte_offset
    rows["timestamp_type"] = timestamp_type
    rows["request_id"] = request_id
    rows["transaction_number"] = NO_TRANSACTION
    return rows.tobytes()


def placed(rows: bytearray, byte_offset: int) -> bytes | bytearray:
    """`rows`, of which the first begins at 0, as they are in a chunk from `byte_offset` on."""
    if not byte_offset:
        return rows
    if len(rows) > FEW_MAX * BATCH_ROW.size:
        moved = np.frombuffer(rows, ROW).copy()
        moved["byte_offset"] += np.uint64(byte_offset)
        return moved.tobytes()
    few = bytearray(rows)
    for position in range(PLACE_POSITION, len(few), BATCH_ROW.size):
        offset, length = PLACE.unpack_from(few, position)
        PLACE.pack_into(few, position, offset + byte_offset, length)
    return few


class BatchRow(NamedTuple):
    """A row, as it is read for one batch."""

    topic_id: bytes
    partition: int
    byte_offset: int
    length_bytes: int
    record_count: int
    crc: int
    max_timestamp_ms: int
    producer_id: int
    base_sequence: int
    producer_epoch: int
    timestamp_type: int
    request_id: int
    transaction_number: int
    leader_epoch: int
    zeros: bytes


def row_of_batch(rows: Buffer, place: int) -> BatchRow:
    """One of some rows."""
    return BatchRow._make(BATCH_ROW.unpack_from(rows, place * BATCH_ROW.size))


def batch_name(row: bytes) -> bytes:
    """What names a batch of an idempotent producer: no other that it sends has the same.

    That is topic id, partition, producer id and first sequence number.
    """
    return row[:_PARTITION_END] + row[_PRODUCER:_PRODUCER_END]


def batch_names(rows: bytes) -> list[bytes]:
    """`batch_name` of many."""
    as_bytes = np.frombuffer(rows, np.uint8).reshape(-1, BATCH_ROW.size)
    names = np.ascontiguousarray(as_bytes[:, _NAME]).view(f"V{len(_NAME)}")
    found: list[bytes] = names[:, 0].tolist()
    return found
