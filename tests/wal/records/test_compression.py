"""The codecs: what clients write is read, and nothing inflates past its limit."""

import gzip
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import aiokafka.codec
import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import kafka_python_gzip_decode, kafka_python_gzip_encode
from wal.errors import CorruptBatch, RecordTooLarge, UnsupportedCompression
from wal.records.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    deflate,
    inflate,
    inflate_padded,
    inflated_bound,
)

MIB = 1024 * 1024
TEXT = b"".join(b"record %d of a batch; " % n for n in range(20_000))
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def snappy_zeros(length: int, announced: int | None = None) -> bytes:
    """Raw snappy of `length` zeros, at the format's best ratio: 64 bytes per 3-byte copy."""
    raw, prefix = length if announced is None else announced, bytearray()
    while raw > 0x7F:
        prefix.append(raw & 0x7F | 0x80)
        raw >>= 7
    prefix.append(raw)
    literal = b"\xfc" + b"\x3f\x00\x00\x00" + bytes(64)
    return bytes(prefix) + literal + b"\xfe\x01\x00" * (length // 64 - 1)


@pytest.mark.parametrize("codec", CODEC_NAMES)
@given(data=st.binary(max_size=2000), repeat=st.sampled_from([1, 1, 60]))
def test_every_codec_gives_back_what_it_was_given(codec: int, data: bytes, repeat: int) -> None:
    data *= repeat
    assert bytes(inflate(codec, deflate(codec, data), limit_bytes=len(data))) == data


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_the_limit_is_exact_to_the_byte(codec: int) -> None:
    deflated = deflate(codec, TEXT)
    assert bytes(inflate(codec, memoryview(deflated), limit_bytes=len(TEXT))) == TEXT
    for limit in (len(TEXT) - 1, 1, 0):
        with pytest.raises(RecordTooLarge):
            inflate(codec, deflated, limit_bytes=limit)


def test_what_other_clients_compress_is_read() -> None:
    for codec, deflated in [
        (GZIP, aiokafka.codec.gzip_encode(TEXT)),
        (GZIP, kafka_python_gzip_encode(TEXT)),
        (GZIP, gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])),
        (SNAPPY, aiokafka.codec.snappy_encode(TEXT)),
        (SNAPPY, aiokafka.codec.snappy_encode(TEXT, xerial_compatible=False)),
        (LZ4, aiokafka.codec.lz4_encode(TEXT)),
        (ZSTD, aiokafka.codec.zstd_encode(TEXT)),
    ]:
        assert bytes(inflate(codec, deflated, limit_bytes=len(TEXT))) == TEXT


def test_other_clients_read_what_is_compressed_here() -> None:
    assert gzip.decompress(deflate(GZIP, TEXT)) == TEXT
    assert kafka_python_gzip_decode(deflate(GZIP, TEXT)) == TEXT
    assert aiokafka.codec.snappy_decode(deflate(SNAPPY, TEXT)) == TEXT
    assert aiokafka.codec.lz4_decode(deflate(LZ4, TEXT)) == TEXT
    assert aiokafka.codec.zstd_decode(deflate(ZSTD, TEXT)) == TEXT


def test_snappy_is_framed_in_blocks_of_32_kib_as_java_does() -> None:
    framed = bytes(deflate(SNAPPY, TEXT))
    assert framed.startswith(XERIAL)
    position, lengths = len(XERIAL), []
    while position < len(framed):
        (length,) = struct.unpack_from(">i", framed, position)
        block = framed[position + 4 : position + 4 + length]
        lengths.append(len(bytes(cramjam.snappy.decompress_raw(block))))
        position += 4 + length
    assert lengths == [32768] * (len(TEXT) // 32768) + [len(TEXT) % 32768]


def test_lz4_frames_hold_independent_blocks() -> None:
    flags = bytes(deflate(LZ4, TEXT))[4]
    assert flags & 0x20


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_named(codec: int) -> None:
    with pytest.raises(UnsupportedCompression, match=f"codec id {codec}"):
        inflate(codec, b"", limit_bytes=10)
    with pytest.raises(UnsupportedCompression, match=f"codec id {codec}"):
        deflate(codec, b"")


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_truncated_data_is_corrupt(codec: int) -> None:
    deflated = bytes(deflate(codec, TEXT))
    for length in (0, 1, 7, 15, len(deflated) // 2, len(deflated) - 1):
        with pytest.raises(CorruptBatch):
            inflate(codec, deflated[:length], limit_bytes=len(TEXT))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@given(data=st.binary(max_size=300))
def test_garbage_is_corrupt_or_within_the_limit(codec: int, data: bytes) -> None:
    starts = [b"", XERIAL, b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x1f\x8b\x08\x00"]
    for start in starts:
        try:
            assert len(inflate(codec, start + data, limit_bytes=5000)) <= 5000
        except (CorruptBatch, RecordTooLarge):
            pass


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@given(position=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_changed_byte_gives_an_error_or_bounded_bytes(
    codec: int, position: int, byte: int
) -> None:
    deflated = bytearray(deflate(codec, TEXT[:5000]))
    deflated[position % len(deflated)] = byte
    try:
        assert len(inflate(codec, deflated, limit_bytes=6000)) <= 6000
    except (CorruptBatch, RecordTooLarge):
        pass


@pytest.mark.parametrize(
    "data",
    [
        XERIAL[:-1],
        XERIAL + b"\x00\x00",
        XERIAL + struct.pack(">i", -1) + b"\x00",
        XERIAL + struct.pack(">i", 2**31 - 1) + b"\x00",
    ],
    ids=["torn header", "torn block length", "negative block", "block past the end"],
)
def test_a_broken_xerial_frame_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        inflate(SNAPPY, data, limit_bytes=MIB)


def gigabyte_bombs() -> dict[str, tuple[int, bytes]]:
    """Name -> (codec, data): a gigabyte of zeros, or the claim of one."""
    chunk = bytes(16 * MIB)
    zstd = cramjam.zstd.Compressor()
    lz4 = cramjam.lz4.Compressor()
    for _ in range(64):
        zstd.compress(chunk)
        lz4.compress(chunk)
    # After a full flush the deflate state starts afresh, so that the same bytes can be repeated.
    deflater = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    head = deflater.compress(chunk) + deflater.flush(zlib.Z_FULL_FLUSH)
    again = deflater.compress(chunk) + deflater.flush(zlib.Z_FULL_FLUSH)
    block = snappy_zeros(16 * MIB)
    return {
        "zstd": (ZSTD, bytes(zstd.finish())),
        "lz4": (LZ4, bytes(lz4.finish())),
        "gzip": (GZIP, head + again * 63),
        "snappy": (SNAPPY, snappy_zeros(1024 * MIB)),
        "xerial": (SNAPPY, XERIAL + (struct.pack(">i", len(block)) + block) * 64),
        "lying snappy": (SNAPPY, snappy_zeros(4096, announced=1024 * MIB)),
        "lying snappy within the limit": (SNAPPY, snappy_zeros(4096, announced=8 * MIB)),
        "lying zstd": (ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + bytes(50)),
        "wide zstd window": (ZSTD, b"\x28\xb5\x2f\xfd\x00\xf8" + bytes(50)),
    }


def test_bombs_are_refused_without_allocating_what_they_hold(tmp_path: Path) -> None:
    names = []
    for number, (name, (codec, data)) in enumerate(gigabyte_bombs().items()):
        (tmp_path / f"{number:02}-{codec}").write_bytes(data)
        names.append(name)
    code = """
import pathlib, resource, sys
from wal.records.compression import inflate
from wal.errors import CorruptBatch, RecordTooLarge
def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    data = path.read_bytes()
    before = peak_kib()
    try:
        inflate(int(path.name[3:]), data, limit_bytes=8 << 20)
        outcome = "inflated"
    except (CorruptBatch, RecordTooLarge) as error:
        outcome = type(error).__name__
    print(outcome, peak_kib() - before)
"""
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    outcomes = [line.split() for line in child.stdout.splitlines()]
    refused = dict(zip(names, [outcome for outcome, _ in outcomes], strict=True))
    assert refused == {
        "zstd": "RecordTooLarge",
        "lz4": "RecordTooLarge",
        "gzip": "RecordTooLarge",
        "snappy": "RecordTooLarge",
        "xerial": "RecordTooLarge",
        "lying snappy": "RecordTooLarge",
        "lying snappy within the limit": "CorruptBatch",
        "lying zstd": "CorruptBatch",
        "wide zstd window": "CorruptBatch",
    }
    for name, (_, grown_kib) in zip(names, outcomes, strict=True):
        assert int(grown_kib) < 40 * 1024, name


def test_incompressible_data_is_read_and_uncompressed_data_is_not_copied() -> None:
    data = os.urandom(MIB)
    assert inflate(NONE, data, limit_bytes=MIB) is data
    assert bytes(inflate(ZSTD, deflate(ZSTD, data), limit_bytes=2 * MIB)) == data


def test_nothing_inflates_to_more_than_its_bound() -> None:
    random_bytes = random.Random(3).randbytes(300_000)
    for data in (b"", b"x", bytes(3 * MIB), random_bytes, TEXT * 50):
        for codec in CODEC_NAMES:
            deflated = deflate(codec, data)
            assert inflated_bound(codec, deflated, limit_bytes=1 << 40) >= len(data)
            assert inflated_bound(codec, deflated, limit_bytes=5) <= 5


def test_the_bound_of_zstd_counts_the_blocks_of_all_frames() -> None:
    zeros = bytes(cramjam.zstd.compress(bytes(8 * MIB), level=19))
    assert len(zeros) < 1_000
    skippable = b"\x53\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    frames = skippable + zeros + skippable + zeros
    for data, held in ((zeros, 8 * MIB), (frames, 16 * MIB)):
        assert held <= inflated_bound(ZSTD, data, limit_bytes=1 << 40) <= held + 2 * 128 * 1024
        assert len(inflate(ZSTD, data, limit_bytes=held)) == held
    small = bytes(cramjam.zstd.compress(b"small " * 100))
    assert inflated_bound(ZSTD, small, limit_bytes=1 << 40) <= 128 * 1024
    raw = bytes(cramjam.zstd.compress(random.Random(3).randbytes(100_000)))
    assert inflated_bound(ZSTD, raw, limit_bytes=1 << 40) == 100_000


def test_a_bound_is_found_in_bounded_time_and_of_any_bytes() -> None:
    header = b"\x28\xb5\x2f\xfd\x00\x58"
    empty_blocks = header + b"\x00\x00\x00" * 1_000_000
    assert inflated_bound(ZSTD, empty_blocks, limit_bytes=MIB) == MIB
    skippable = (b"\x50\x2a\x4d\x18" + bytes(4)) * 100_000
    assert inflated_bound(ZSTD, skippable, limit_bytes=MIB) == MIB
    assert inflated_bound(7, b"?", limit_bytes=MIB) == MIB
    rng = random.Random(4)
    for start in (b"", header, header[:4]):
        for size in range(40):
            data = start + rng.randbytes(size)
            assert 0 <= inflated_bound(ZSTD, data, limit_bytes=MIB) <= MIB


def test_padding_is_zeros_behind_what_was_inflated() -> None:
    for codec in CODEC_NAMES:
        buffer, length = inflate_padded(
            codec, deflate(codec, TEXT), limit_bytes=len(TEXT), padding_bytes=24
        )
        assert bytes(memoryview(buffer)[:length]) == TEXT
        assert bytes(memoryview(buffer)[length : length + 24]) == bytes(24)
