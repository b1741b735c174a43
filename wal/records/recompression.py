"""Packs the records of a RecordBatch with another codec, as compression.type asks.

Records are deflated as the one run of bytes they are; nobody looks into them. So the batch stays
the same but for its codec, its length and its CRC, and a reader gets the records that the producer
sent, with the same timestamps, offsets and sequence.

Pure, and slow: a megabyte takes some milliseconds, with the highest levels a quarter of a second.
Callers run it in a thread; the codecs let other threads run meanwhile.
"""

from typing import NamedTuple

from wal.crc import Buffer, crc32c
from wal.errors import RecordTooLarge
from wal.records.compression import deflate
from wal.records.record_batch import (
    CODEC_MASK,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
)


class Compression(NamedTuple):
    """The codec that a topic wants its batches to have."""

    codec: int
    level: int | None = None
    """None: what the codec's library makes the default."""


def recompressed(
    header: BatchHeader, records: Buffer, wanted: Compression, *, max_bytes: int
) -> tuple[BatchHeader, bytes]:
    """The batch of `header`, whose inflated records are `records`, under the codec `wanted`.

    Raises: RecordTooLarge (more than `max_bytes` in the end).
    """
    body = deflate(wanted.codec, records, level=wanted.level)
    length_bytes = HEADER_BYTES + len(body)
    if length_bytes > max_bytes:
        raise RecordTooLarge(
            f"batch of {length_bytes} bytes under the topic's codec, {max_bytes} allowed"
        )
    attributes = header.attributes & ~CODEC_MASK | wanted.codec
    new = header._replace(length_bytes=length_bytes, attributes=attributes, crc=0)
    new = new._replace(crc=crc32c(body, crc32c(_packed(new)[CRC_START:])))
    return new, b"".join((_packed(new), body))


def _packed(header: BatchHeader) -> bytes:
    base_offset, length_bytes, *rest = header
    return HEADER.pack(base_offset, length_bytes - LENGTH_PREFIX_BYTES, *rest)
