"""A batch of metadata records as a Kafka RecordBatch v2.

One entry of a metadata log is one uncompressed RecordBatch that carries its final offsets, so that
these very bytes can be served to any Kafka client that reads the internal topic. The header is that
of wal/records/record_batch.py with producer fields -1, leader epoch 0 and the codec `none`; each
record is

    varint  length of what follows
    int8    attributes       0
    varint  timestamp delta  0: all records have the batch's timestamp
    varint  offset delta     0, 1, 2, …
    varint  key length       -1
    varint  value length
            value            the metadata record (metadata/records/records.py)
    varint  header count     0

(varint = zigzag, as in Kafka's records.) Called by the implementations of metadata/log/log.py.
Encoding goes record by record in Python, which is what a log of a few large records can afford.
"""

from collections.abc import Sequence
from typing import Final

from metadata.log.log import MetadataRecordBatch
from wal.crc import crc32c
from wal.errors import CorruptBatch, CorruptLog
from wal.records.record_batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_V2,
    parse_header,
    verify_crc,
)
from wal.wire.fields import FieldReader, zigzag

_ATTRIBUTES_AND_TIMESTAMP_DELTA: Final = b"\x00\x00"
_NO_KEY: Final = b"\x01"
_NO_HEADERS: Final = b"\x00"
_RECORD_BYTES_MIN: Final = 7


def encode_batch(base_offset: int, timestamp_ms: int, records: Sequence[bytes]) -> bytes:
    """The RecordBatch that gives `records` (at least one) the offsets from `base_offset` on."""
    count = len(records)
    if not count:
        raise ValueError("a batch has at least one record")
    parts: list[bytes] = []
    for offset_delta, value in enumerate(records):
        front = b"".join(
            (
                _ATTRIBUTES_AND_TIMESTAMP_DELTA,
                zigzag(offset_delta),
                _NO_KEY,
                zigzag(len(value)),
            )
        )
        length = len(front) + len(value) + len(_NO_HEADERS)
        parts += (zigzag(length), front, value, _NO_HEADERS)
    body = b"".join(parts)
    header = HEADER.pack(
        base_offset,
        HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body),
        0,  # leader epoch
        MAGIC_V2,
        0,  # CRC, below
        0,  # attributes
        count - 1,
        timestamp_ms,
        timestamp_ms,
        -1,
        -1,
        -1,
        count,
    )
    crc = crc32c(body, crc32c(memoryview(header)[CRC_START:]))
    return b"".join((header[: CRC_START - 4], crc.to_bytes(4, "big"), header[CRC_START:], body))


def decode_batch(data: bytes) -> MetadataRecordBatch:
    """The batch whose bytes `data` is.

    Raises: CorruptLog when they are not exactly one such batch.
    """
    try:
        header = parse_header(data)
        if header.magic != MAGIC_V2 or header.length_bytes != len(data) or header.attributes:
            raise CorruptLog(
                f"metadata batch of {len(data)} bytes has magic {header.magic}, length"
                f" {header.length_bytes} and attributes {header.attributes}"
            )
        verify_crc(data)
    except CorruptBatch as error:
        raise CorruptLog(f"metadata batch: {error}") from error
    count = header.record_count
    if not 0 < count <= len(data) // _RECORD_BYTES_MIN or header.last_offset_delta != count - 1:
        raise CorruptLog(f"metadata batch at offset {header.base_offset} lies about its {count}")
    reader = FieldReader(data, f"metadata batch at offset {header.base_offset}")
    reader.skip(HEADER_BYTES)
    records = [_decode_record(reader, offset_delta) for offset_delta in range(count)]
    reader.finish()
    return MetadataRecordBatch(header.base_offset, header.base_timestamp_ms, records)


def _decode_record(reader: FieldReader, offset_delta: int) -> bytes:
    length = reader.zigzag()
    start = reader.position
    front = reader.raw(len(_ATTRIBUTES_AND_TIMESTAMP_DELTA))
    found_delta = reader.zigzag()
    key = reader.raw(len(_NO_KEY))
    value_length = reader.zigzag()
    if value_length < 0:
        raise reader.corrupt("no plain record")
    value, headers = reader.raw(value_length), reader.raw(len(_NO_HEADERS))
    if (
        front != _ATTRIBUTES_AND_TIMESTAMP_DELTA
        or found_delta != offset_delta
        or key != _NO_KEY
        or headers != _NO_HEADERS
        or length != reader.position - start
    ):
        raise reader.corrupt("no plain record")
    return value
