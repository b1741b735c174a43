"""The five codecs of a RecordBatch, with a hard cap on what they may inflate to.

Everything that opens records calls this: validation of compacted topics, timestamp look-ups,
tiering. The broker does not inflate on produce unless a rule of the topic needs it.

A megabyte of zstd can hold 32 GiB of zeros, and headers inside the stream may lie about the size in
either direction. So nothing a stream says about its size is believed: every codec writes into a
buffer that this module allocated, which starts small, grows fourfold while the codec runs out of
room, and never gets longer than the caller's limit plus one byte. That byte tells "exactly at the
limit" from "beyond". Growing re-reads the input, which costs at most a third more in total.

A caller that has to set memory aside before inflating asks `inflated_bound`. It follows from how
the formats are built, not from what a stream claims: each has a largest ratio, and of zstd, which
has none that is of use, the blocks are counted, none of which holds more than 128 KiB.

Failure cases: RecordTooLarge past the limit, CorruptBatch for anything a codec cannot read,
UnsupportedCompression for an unknown id. No other exception leaves `inflate`.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import cramjam

from wal.crc import Buffer
from wal.errors import CorruptBatch, RecordTooLarge, UnsupportedCompression

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODEC_NAMES: Final = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

_GZIP_RATIO_MAX: Final = 1032
"""Deflate copies at most 258 bytes with two bits."""
_SNAPPY_RATIO_MAX: Final = 22
"""A copy of 64 bytes takes three."""
_LZ4_RATIO_MAX: Final = 255
"""Each byte that makes a match longer adds at most 255."""

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
_ZSTD_BLOCKS_COUNTED_MAX: Final = 8192
"""512 blocks are 64 MiB; who has more of them than this, empty ones included, is not honest."""
_U32: Final = struct.Struct("<I")

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


class Inflated(NamedTuple):
    """Inflated bytes and the zeros behind them, in one buffer."""

    buffer: Buffer
    length: int
    """Of the inflated bytes, with which the buffer begins."""


def inflate(codec: int, data: Buffer, *, limit_bytes: int) -> Buffer:
    """The bytes that `data` holds under `codec`; at most `limit_bytes`, else RecordTooLarge.

    Codec `none` returns `data` itself. Raises: RecordTooLarge, CorruptBatch,
    UnsupportedCompression.
    """
    if codec == NONE:
        _check_length(data, limit_bytes)
        return data
    buffer, length = inflate_padded(codec, data, limit_bytes=limit_bytes, padding_bytes=0)
    return memoryview(buffer)[:length]


def inflate_padded(codec: int, data: Buffer, *, limit_bytes: int, padding_bytes: int) -> Inflated:
    """As `inflate`, always into a new buffer, with at least `padding_bytes` zeros at its end."""
    if codec == NONE:
        _check_length(data, limit_bytes)
        return Inflated(b"".join((data, bytes(padding_bytes))), len(data))
    if codec == SNAPPY:
        return _inflate_snappy(memoryview(data), limit_bytes, padding_bytes)
    decompress_into = _DECOMPRESS_INTO.get(codec)
    if decompress_into is None:
        raise UnsupportedCompression(f"codec id {codec}")
    return _inflate_growing(decompress_into, codec, data, limit_bytes, padding_bytes)


def inflated_bound(codec: int, data: Buffer, *, limit_bytes: int) -> int:
    """Returns what `data` can inflate to at most, or `limit_bytes` when that is less.

    Looks at block headers of zstd alone, at no more than some thousand of them. Of bytes that are
    no valid stream the answer means nothing: they do not inflate. An unknown codec gives the limit.
    """
    if codec == NONE:
        bound = len(data)
    elif codec == GZIP:
        bound = len(data) * _GZIP_RATIO_MAX
    elif codec == SNAPPY:
        bound = len(data) * _SNAPPY_RATIO_MAX
    elif codec == LZ4:
        bound = len(data) * _LZ4_RATIO_MAX
    elif codec == ZSTD:
        return _zstd_bound(memoryview(data), limit_bytes)
    else:
        return limit_bytes
    return min(bound, limit_bytes)


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


_DECOMPRESS_INTO: Final[Mapping[int, Callable[[Buffer, memoryview], int]]] = {
    GZIP: cramjam.gzip.decompress_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}


def _zeros(count: int) -> memoryview:
    # A bytearray is zeroed byte by byte while the interpreter is held, 90 ms for 64 MiB. These
    # pages come zeroed from the system, each when a codec, which lets others run, first writes it.
    # Imported here: NumPy takes longer to load than this package, and most brokers open no batch.
    import numpy as np

    return np.zeros(count, dtype=np.uint8).data


def _check_length(data: Buffer, limit_bytes: int) -> None:
    if len(data) > limit_bytes:
        raise RecordTooLarge(f"{len(data)} bytes of records, {limit_bytes} allowed")


def _inflate_growing(
    decompress_into: Callable[[Buffer, memoryview], int],
    codec: int,
    data: Buffer,
    limit_bytes: int,
    padding_bytes: int,
) -> Inflated:
    name = CODEC_NAMES[codec]
    capacity_max = limit_bytes + 1
    capacity = min(max(len(data) * _FIRST_GUESS_RATIO, _FIRST_GUESS_MIN_BYTES), capacity_max)
    while True:
        output = _zeros(capacity + padding_bytes)
        try:
            length = decompress_into(data, output[:capacity])
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL not in str(error):
                raise CorruptBatch(f"{name} data cannot be read: {error}") from error
            if capacity == capacity_max:
                raise RecordTooLarge(f"{name} data inflates past {limit_bytes} bytes") from error
        else:
            if length > limit_bytes:
                raise RecordTooLarge(f"{name} data inflates past {limit_bytes} bytes")
            return Inflated(output, length)
        del output  # or it would stay until the next one, four times as large, is there
        capacity = min(capacity * _GROWTH, capacity_max)


def _inflate_snappy(data: memoryview, limit_bytes: int, padding_bytes: int) -> Inflated:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _inflate_raw_snappy(data, limit_bytes, padding_bytes)
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
        block = _inflate_raw_snappy(data[position : position + length], left_bytes, 0)
        left_bytes -= block.length
        blocks.append(block.buffer)
        position += length
    return Inflated(b"".join((*blocks, bytes(padding_bytes))), limit_bytes - left_bytes)


def _inflate_raw_snappy(data: memoryview, limit_bytes: int, padding_bytes: int) -> Inflated:
    # Raw snappy starts with its inflated length and fails when it is not met exactly. An input
    # byte yields at most 64/3 output bytes (a copy of 64 takes three), so a length beyond that
    # ratio is a lie, and is refused before anything of that size is allocated.
    try:
        length = cramjam.snappy.decompress_raw_len(data)
        if length > limit_bytes:
            raise RecordTooLarge(f"snappy data inflates past {limit_bytes} bytes")
        if length > len(data) * 64 // 3:
            raise CorruptBatch(f"snappy: {len(data)} bytes cannot inflate to {length}")
        output = _zeros(length + padding_bytes)
        written = cramjam.snappy.decompress_raw_into(data, output[:length])
    except cramjam.DecompressionError as error:
        raise CorruptBatch(str(error)) from error
    return Inflated(output, written)


def _zstd_bound(data: memoryview, limit_bytes: int) -> int:
    """The blocks of all frames, each taken to be as full as it can be (RFC 8878, section 3.1.1)."""
    bound = position = blocks = 0
    try:
        while position < len(data) and bound < limit_bytes:
            (magic,) = _U32.unpack_from(data, position)
            position += _U32.size
            if magic & ~0xF == _ZSTD_SKIPPABLE:
                position += _U32.size + _U32.unpack_from(data, position)[0]
                blocks += 1
                if blocks > _ZSTD_BLOCKS_COUNTED_MAX:
                    return limit_bytes
                continue
            if magic != _ZSTD_MAGIC:
                break  # no stream: the codec says so
            descriptor = data[position]
            is_single_segment = descriptor >> 5 & 1
            content_size_bytes = (is_single_segment, 2, 4, 8)[descriptor >> 6]
            has_checksum = descriptor >> 2 & 1
            position += 1 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
            position += content_size_bytes
            is_last = 0
            while not is_last and bound < limit_bytes:
                blocks += 1
                if blocks > _ZSTD_BLOCKS_COUNTED_MAX:
                    return limit_bytes
                block = int.from_bytes(data[position : position + 3], "little")
                is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
                if position + 3 > len(data):
                    return min(bound, limit_bytes)
                position += 3
                # Raw, run of one byte, compressed; the fourth kind is an error.
                bound += size if kind < 2 else _ZSTD_BLOCK_BYTES_MAX
                position += 1 if kind == 1 else size
            position += 4 * has_checksum
    except (struct.error, IndexError):
        pass  # torn: what is there holds no more than was counted
    return min(bound, limit_bytes)


def _deflate_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    for position in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(data[position : position + _XERIAL_BLOCK_BYTES])
        parts.append(_XERIAL_BLOCK_LENGTH.pack(len(block)))
        parts.append(bytes(block))
    return b"".join(parts)
