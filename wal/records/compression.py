"""The five codecs of a RecordBatch, with a hard cap on what they may inflate to.

Whoever opens records calls this: validation of compacted topics, timestamp look-ups, tiering. The
broker does not inflate on produce unless a rule of the topic needs it.

A megabyte of zstd can hold 32 GiB of zeros, and headers inside the stream may lie about the size in
either direction. So nothing a stream says about its size is believed: every codec writes into a
buffer that this module allocated, which starts small, grows fourfold while the codec runs out of
room, and never gets longer than the caller's limit plus one byte. That byte tells "exactly at the
limit" from "beyond". Growing re-reads the input, which costs at most a third more in total.

Failure cases: RecordTooLarge past the limit, CorruptBatch for anything a codec cannot read,
UnsupportedCompression for an unknown id. No other exception leaves `inflate`.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from wal.crc import Buffer
from wal.errors import CorruptBatch, RecordTooLarge, UnsupportedCompression

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODEC_NAMES: Final = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

_FIRST_GUESS_RATIO: Final = 4
_FIRST_GUESS_MIN_BYTES: Final = 64 * 1024
_GROWTH: Final = 4

# Java's snappy-java writes its own frame around raw snappy: this magic, two i32 versions, then
# blocks of (i32 length, raw snappy). librdkafka and others write one raw block without a frame.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = struct.Struct(">8sii")
assert _XERIAL_HEADER.size == 16
_XERIAL_VERSION: Final = 1
_XERIAL_BLOCK_LENGTH: Final = struct.Struct(">i")
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

# What Rust's io::Write says when a fixed buffer is full; cramjam passes it on unchanged.
_BUFFER_FULL: Final = "failed to write whole buffer"


def inflate(codec: int, data: Buffer, *, limit_bytes: int) -> Buffer:
    """The bytes that `data` holds under `codec`; at most `limit_bytes`, else RecordTooLarge.

    Codec `none` returns `data` itself. Raises: RecordTooLarge, CorruptBatch,
    UnsupportedCompression.
    """
    if codec == NONE:
        if len(data) > limit_bytes:
            raise RecordTooLarge(f"{len(data)} bytes of records, {limit_bytes} allowed")
        return data
    if codec == GZIP:
        return _inflate_growing(cramjam.gzip.decompress_into, "gzip", data, limit_bytes)
    if codec == SNAPPY:
        return _inflate_snappy(memoryview(data), limit_bytes)
    if codec == LZ4:
        return _inflate_growing(cramjam.lz4.decompress_into, "lz4", data, limit_bytes)
    if codec == ZSTD:
        return _inflate_growing(cramjam.zstd.decompress_into, "zstd", data, limit_bytes)
    raise UnsupportedCompression(f"codec id {codec}")


def deflate(codec: int, data: Buffer, *, level: int | None = None) -> Buffer:
    """Compress as Kafka's clients do: gzip, xerial-framed snappy, lz4 frames of independent blocks.

    `level` as the codec counts them, None for its default; snappy has none.
    Raises: UnsupportedCompression.
    """
    if codec == NONE:
        return data
    if codec == GZIP:
        return zlib.compress(
            data, zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.MAX_WBITS | 16
        )
    if codec == SNAPPY:
        return _deflate_xerial(memoryview(data))
    if codec == LZ4:
        # Kafka's Java reader refuses linked blocks (KIP-57).
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))  # takes nothing else
        return bytes(compressor.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    raise UnsupportedCompression(f"codec id {codec}")


def _inflate_growing(
    decompress_into: Callable[[Buffer, bytearray], int], name: str, data: Buffer, limit_bytes: int
) -> Buffer:
    capacity_max = limit_bytes + 1
    capacity = min(max(len(data) * _FIRST_GUESS_RATIO, _FIRST_GUESS_MIN_BYTES), capacity_max)
    while True:
        output = bytearray(capacity)
        try:
            length = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL not in str(error):
                raise CorruptBatch(f"{name} data cannot be read: {error}") from error
            if capacity == capacity_max:
                raise RecordTooLarge(f"{name} data inflates past {limit_bytes} bytes") from error
        else:
            if length > limit_bytes:
                raise RecordTooLarge(f"{name} data inflates past {limit_bytes} bytes")
            return memoryview(output)[:length]
        capacity = min(capacity * _GROWTH, capacity_max)


def _inflate_snappy(data: memoryview, limit_bytes: int) -> Buffer:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _inflate_raw_snappy(data, limit_bytes)
    if len(data) < _XERIAL_HEADER.size:
        raise CorruptBatch(f"snappy: {len(data)} bytes cannot hold a xerial header")
    blocks: list[Buffer] = []
    left_bytes = limit_bytes
    position = _XERIAL_HEADER.size
    while position < len(data):
        if len(data) - position < _XERIAL_BLOCK_LENGTH.size:
            raise CorruptBatch(f"snappy: torn block length at byte {position}")
        (length,) = _XERIAL_BLOCK_LENGTH.unpack_from(data, position)
        position += _XERIAL_BLOCK_LENGTH.size
        if not 0 <= length <= len(data) - position:
            raise CorruptBatch(f"snappy: block of {length} bytes at byte {position}")
        block = _inflate_raw_snappy(data[position : position + length], left_bytes)
        left_bytes -= len(block)
        blocks.append(block)
        position += length
    return b"".join(blocks)


def _inflate_raw_snappy(data: memoryview, limit_bytes: int) -> Buffer:
    # Raw snappy starts with its inflated length and fails when it is not met exactly. An input
    # byte yields at most 64/3 output bytes (a copy of 64 takes three), so a length beyond that
    # ratio is a lie, and is refused before anything of that size is allocated.
    try:
        length = cramjam.snappy.decompress_raw_len(data)
        if length > limit_bytes:
            raise RecordTooLarge(f"snappy data inflates past {limit_bytes} bytes")
        if length > len(data) * 64 // 3:
            raise CorruptBatch(f"snappy: {len(data)} bytes cannot inflate to {length}")
        output = bytearray(length)
        written = cramjam.snappy.decompress_raw_into(data, output)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(str(error)) from error
    return memoryview(output)[:written]


def _deflate_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    for position in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(data[position : position + _XERIAL_BLOCK_BYTES])
        parts.append(_XERIAL_BLOCK_LENGTH.pack(len(block)))
        parts.append(bytes(block))
    return b"".join(parts)
