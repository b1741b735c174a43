"""A batch under another codec is the same batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import Row, build_batch
from wal.errors import RecordTooLarge
from wal.records.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD, inflate
from wal.records.recompression import Compression, recompressed
from wal.records.record_batch import (
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
    verify_crc,
)

PLENTY = 1 << 24
LEVELS = {NONE: [None], GZIP: [None, -1, 1, 9], SNAPPY: [None], LZ4: [None, 1, 9, 17],
          ZSTD: [None, -5, 3, 19]}  # fmt: skip
WANTED = [Compression(codec, level) for codec, levels in LEVELS.items() for level in levels]


def records_of(batch: bytes) -> bytes:
    codec = parse_header(batch).codec
    return bytes(inflate(codec, memoryview(batch)[HEADER_BYTES:], limit_bytes=PLENTY))


def under(batch: bytes, wanted: Compression, **limits: int) -> tuple[BatchHeader, bytes]:
    records = inflate(
        parse_header(batch).codec, memoryview(batch)[HEADER_BYTES:], limit_bytes=PLENTY
    )
    return recompressed(parse_header(batch), records, wanted, **{"max_bytes": PLENTY, **limits})


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_everything_but_codec_length_and_crc_stays(codec: int, wanted: Compression) -> None:
    rows = [Row(1_000 + n, b"key-%d" % n, b"value " * n) for n in range(50)]
    batch = build_batch(rows, codec=codec, producer_id=7, producer_epoch=2, base_sequence=2**31 - 3)
    header, changed = under(batch, wanted)
    verify_crc(changed)
    assert parse_header(changed) == header
    assert header.length_bytes == len(changed)
    assert header.codec == wanted.codec
    assert records_of(changed) == records_of(batch)
    before = parse_header(batch)
    assert header == before._replace(
        length_bytes=header.length_bytes, crc=header.crc, attributes=wanted.codec
    )


@given(st.binary(max_size=2_000), st.sampled_from(sorted(CODEC_NAMES)), st.sampled_from(WANTED))
def test_any_content_survives(content: bytes, codec: int, wanted: Compression) -> None:
    batch = build_batch([Row(5, None, content)], codec=codec)
    _, changed = under(batch, wanted)
    verify_crc(changed)
    assert records_of(changed) == records_of(batch)


def test_the_other_attributes_stay() -> None:
    batch = build_batch([Row(5)], codec=GZIP)
    header = parse_header(batch)
    header = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT)
    changed, _ = recompressed(header, records_of(batch), Compression(ZSTD), max_bytes=PLENTY)
    assert changed.attributes == ZSTD | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT


def test_a_batch_that_gets_too_large_is_refused() -> None:
    batch = build_batch([Row(5, None, b"x" * 10_000)], codec=ZSTD)
    with pytest.raises(RecordTooLarge):
        under(batch, Compression(NONE), max_bytes=10_000)
    header, _ = under(batch, Compression(NONE))
    assert under(batch, Compression(NONE), max_bytes=header.length_bytes)[0] == header
