"""A RecordBatch with its records under another codec: what compression.type asks of a broker.

Records are inflated and deflated as the one run of bytes they are; nobody looks into them. So the
batch stays the same but for its codec, its length and its CRC, and who reads it gets the records
that the producer sent, with the same timestamps, offsets and sequence.

Pure, and slow: a megabyte takes some milliseconds, with the highest levels a quarter of a second.
Callers run it in a thread; the codecs let other threads run meanwhile.
"""

from collections.abc import Sequence
from typing import NamedTuple

from wal.crc import crc32c
from wal.errors import RecordTooLarge
from wal.records.compression import deflate, inflate
from wal.records.record_batch import (
    CODEC_MASK,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
)


class Compression(NamedTuple):
    """The codec that a topic's batches shall have."""

    codec: int
    level: int | None = None
    """None: what the codec's library makes the default."""


def recompressed(
    payload: Sequence[memoryview],
    header: BatchHeader,
    wanted: Compression,
    *,
    max_bytes: int,
    inflated_bytes_max: int,
) -> tuple[BatchHeader, bytes]:
    """The batch in `payload`, whose header is `header` and whose CRC is right, under `wanted`.

    Raises: RecordTooLarge (more than `max_bytes` in the end, or than `inflated_bytes_max` on the
    way), CorruptBatch (its codec cannot read it).
    """
    whole = memoryview(b"".join(payload))
    records = inflate(header.codec, whole[HEADER_BYTES:], limit_bytes=inflated_bytes_max)
    body = deflate(wanted.codec, records, level=wanted.level)
    length_bytes = HEADER_BYTES + len(body)
    if length_bytes > max_bytes:
        raise RecordTooLarge(
            f"batch of {length_bytes} bytes under the topic's codec, {max_bytes} allowed"
        )
    attributes = header.attributes & ~CODEC_MASK | wanted.codec
    new = header._replace(length_bytes=length_bytes, attributes=attributes, crc=0)
    batch = bytearray(_packed(new))
    batch += body
    new = new._replace(crc=crc32c(memoryview(batch)[CRC_START:]))
    batch[:HEADER_BYTES] = _packed(new)
    return new, bytes(batch)


def _packed(header: BatchHeader) -> bytes:
    base_offset, length_bytes, *rest = header
    return HEADER.pack(base_offset, length_bytes - LENGTH_PREFIX_BYTES, *rest)
