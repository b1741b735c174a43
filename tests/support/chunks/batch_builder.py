"""A plain RecordBatch v2 writer, one record at a time, straight from the format's description.

The tests' own model: it shares no code with wal/, so that a mistake there does not cancel out. It
can also write what no honest producer would.
"""

import struct
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import google_crc32c
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.codec import gzip_decode as kafka_python_gzip_decode
    from kafka.codec import gzip_encode as kafka_python_gzip_encode
    from kafka.partitioner.default import murmur2 as kafka_murmur2
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBatchBuilder

__all__ = [
    "KafkaPythonBatch",
    "KafkaPythonBatchBuilder",
    "Row",
    "blob",
    "build_batch",
    "kafka_murmur2",
    "kafka_python_gzip_decode",
    "kafka_python_gzip_encode",
    "record",
    "seal",
    "varint",
    "wrap64",
]

COMPRESS = {
    0: bytes,
    1: gzip_encode,
    2: snappy_encode,
    3: lz4_encode,
    4: zstd_encode,
}


class Row(NamedTuple):
    """One record: `timestamp` in ms, absolute; headers as (key bytes, value bytes or None)."""

    timestamp: int = 1_700_000_000_000
    key: bytes | None = None
    value: bytes | None = b"value"
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def varint(number: int) -> bytes:
    """Zigzag varint of a signed 64-bit number."""
    raw = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def blob(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def wrap64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def record(row: Row, base_timestamp: int, offset_delta: int, attributes: int = 0) -> bytes:
    body = bytes([attributes]) + varint(wrap64(row.timestamp - base_timestamp))
    body += varint(offset_delta) + blob(row.key) + blob(row.value) + varint(len(row.headers))
    body += b"".join(blob(key) + blob(value) for key, value in row.headers)
    return varint(len(body)) + body


def seal(
    payload: bytes,
    *,
    record_count: int,
    last_offset_delta: int | None = None,
    codec: int = 0,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    base_timestamp: int = 1_700_000_000_000,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compress: bool = True,
) -> bytes:
    """Put a header with a right CRC before `payload`, compressed by `codec` unless told not to."""
    if compress:
        payload = bytes(COMPRESS[codec](payload))
    covered = (
        struct.pack(
            ">hiqqqhii",
            attributes | codec,
            record_count - 1 if last_offset_delta is None else last_offset_delta,
            base_timestamp,
            base_timestamp if max_timestamp is None else max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
        + payload
    )
    length = 9 + len(covered)
    crc = google_crc32c.value(covered)
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, crc) + covered


def build_batch(rows: Sequence[Row], *, record_attributes: int = 0, **header: Any) -> bytes:
    """A whole batch of `rows`; `header` as for `seal`."""
    base = rows[0].timestamp if rows else 0
    payload = b"".join(
        record(row, base, delta, record_attributes) for delta, row in enumerate(rows)
    )
    header.setdefault("record_count", len(rows))
    header.setdefault("base_timestamp", base)
    header.setdefault("max_timestamp", max((row.timestamp for row in rows), default=0))
    return seal(payload, **header)
