"""One object of the object metadata log: the batches of one append, and its place in the chain.

    header   80 bytes, with a CRC of its own
    batches  RecordBatches v2 (metadata/log/log_batch.py), back to back, as Kafka clients read them

The key is `meta/<metadata partition>/log/<20-digit base offset>`, so that a listing is in the order
of the log. `put_id` is drawn anew for every append: it tells one's own object from a foreign one,
even where both would append the same records at the same offset. `previous_put_id` names the object
that the writer appended to. A chain of offsets alone would not do: an object that a deposed writer
left at an offset whose true object was pruned can have just the length that fits.

The body's CRC is over all bytes behind the header; a RecordBatch's own leaves its first 21 bytes
out. Called by metadata/log/object_log.py and metadata/log/object_log_reader.py. Pure functions over
bytes.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from metadata.log.log import MetadataRecordBatch
from metadata.log.log_batch import decode_batch, encode_batch
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import CorruptBatch, CorruptLog
from wal.records.record_batch import parse_header

MAGIC: Final = b"DLSMETAL"
FORMAT_VERSION: Final = 1
PUT_ID_BYTES: Final = 16
NO_PUT_ID: Final = bytes(PUT_ID_BYTES)
"""What the first object of a log is appended to."""

OBJECT_HEADER: Final = struct.Struct(">8sHHiQQ16s16sIII")
OBJECT_HEADER_CRC: Final = struct.Struct(">I")
HEADER_BYTES: Final = OBJECT_HEADER.size + OBJECT_HEADER_CRC.size
assert HEADER_BYTES == 80

_OFFSET_MAX: Final = 2**63 - 1


class LogObjectHeader(NamedTuple):
    """Which offsets an object holds, whose it is and what it was appended to."""

    base_offset: int
    next_offset: int
    put_id: bytes
    previous_put_id: bytes
    batch_count: int
    body_bytes: int
    body_crc: int


class LogObject(NamedTuple):
    """A whole object whose checks passed."""

    header: LogObjectHeader
    data: bytes
    """All of it, header included."""
    batches: Sequence["BatchPlace"]

    def encoded(self, place: "BatchPlace") -> bytes:
        return self.data[place.start : place.end]

    def decoded(self, place: "BatchPlace") -> MetadataRecordBatch:
        """Raises: CorruptLog (a RecordBatch that holds something else than metadata records)."""
        return decode_batch(self.encoded(place))


class BatchPlace(NamedTuple):
    """Where in its object a batch lies: bytes [start, end), offsets [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    start: int
    end: int


def log_prefix(partition: int) -> str:
    """Returns the start of all keys of one metadata partition's log."""
    return f"meta/{partition}/log/"


def log_key(partition: int, base_offset: int) -> ObjectKey:
    return ObjectKey(f"{log_prefix(partition)}{base_offset:020d}")


def base_offset_of(partition: int, key: str) -> int | None:
    """The base offset that `key` names; None when it names no object of this log."""
    name = key.removeprefix(log_prefix(partition))
    return int(name) if re.fullmatch(r"[0-9]{20}", name) and int(name) <= _OFFSET_MAX else None


def encode_object(
    partition: int,
    base_offset: int,
    batches: Sequence[Sequence[bytes]],
    timestamp_ms: int,
    *,
    put_id: bytes,
    previous_put_id: bytes,
) -> LogObject:
    """The object of one append."""
    encoded = []
    places = []
    next_offset = base_offset
    position = HEADER_BYTES
    body_crc = 0
    for records in batches:
        data = encode_batch(next_offset, timestamp_ms, records)
        encoded.append(data)
        body_crc = crc32c(data, body_crc)
        place = BatchPlace(next_offset, next_offset + len(records), position, position + len(data))
        places.append(place)
        next_offset, position = place.next_offset, place.end
    header = LogObjectHeader(
        base_offset=base_offset,
        next_offset=next_offset,
        put_id=put_id,
        previous_put_id=previous_put_id,
        batch_count=len(places),
        body_bytes=position - HEADER_BYTES,
        body_crc=body_crc,
    )
    front = OBJECT_HEADER.pack(MAGIC, FORMAT_VERSION, HEADER_BYTES, partition, *header)
    return LogObject(
        header, b"".join((front, OBJECT_HEADER_CRC.pack(crc32c(front)), *encoded)), places
    )


def decode_header(partition: int, key: ObjectKey, data: bytes) -> LogObjectHeader:
    """The header of the object under `key`, of which `data` is at least the beginning.

    Raises: CorruptLog, naming the key.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptLog(f"{key}: {len(data)} bytes are no metadata log object")
    magic, version, length, told_partition, *fields = OBJECT_HEADER.unpack_from(data)
    (crc,) = OBJECT_HEADER_CRC.unpack_from(data, OBJECT_HEADER.size)
    if crc != crc32c(memoryview(data)[: OBJECT_HEADER.size]):
        raise CorruptLog(f"{key}: the header's CRC does not match")
    header = LogObjectHeader(*fields)
    if (magic, version, length) != (MAGIC, FORMAT_VERSION, HEADER_BYTES):
        raise CorruptLog(f"{key}: magic {magic!r}, version {version}, header of {length} bytes")
    if (told_partition, header.base_offset) != (partition, base_offset_of(partition, key)):
        raise CorruptLog(
            f"{key}: says that it is offset {header.base_offset} of partition {told_partition}"
        )
    if not header.base_offset < header.next_offset <= _OFFSET_MAX or not header.batch_count:
        raise CorruptLog(f"{key}: ends at {header.next_offset}, {header.batch_count} batches")
    return header


def decode_object(partition: int, key: ObjectKey, data: bytes) -> LogObject:
    """The object under `key`, all of it checked except what is inside its RecordBatches.

    Raises: CorruptLog, naming the key.
    """
    header = decode_header(partition, key, data)
    if len(data) - HEADER_BYTES != header.body_bytes:
        raise CorruptLog(f"{key}: {len(data)} bytes, its header says {header.body_bytes} more")
    if crc32c(memoryview(data)[HEADER_BYTES:]) != header.body_crc:
        raise CorruptLog(f"{key}: the CRC of its batches does not match")
    places = list(_places(key, header, data))
    if len(places) != header.batch_count or places[-1].next_offset != header.next_offset:
        raise CorruptLog(
            f"{key}: {len(places)} batches up to {places[-1].next_offset}, its header says"
            f" {header.batch_count} up to {header.next_offset}"
        )
    return LogObject(header, data, places)


def _places(key: ObjectKey, header: LogObjectHeader, data: bytes) -> Iterator[BatchPlace]:
    """The batches that follow each other in the body, at least one."""
    position, offset = HEADER_BYTES, header.base_offset
    while position < len(data) or position == HEADER_BYTES:
        try:
            batch = parse_header(data, position)
        except CorruptBatch as error:
            raise CorruptLog(f"{key}: batch at byte {position}: {error}") from error
        end = position + batch.length_bytes
        if end > len(data) or batch.base_offset != offset or batch.record_count <= 0:
            raise CorruptLog(
                f"{key}: batch at byte {position} has {batch.length_bytes} bytes and"
                f" {batch.record_count} records from {batch.base_offset}, expected {offset}"
            )
        yield BatchPlace(offset, offset + batch.record_count, position, end)
        position, offset = end, offset + batch.record_count
