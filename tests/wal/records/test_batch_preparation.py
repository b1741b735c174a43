"""What a batch needs before it may be appended, and one pass that does it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import Row, build_batch
from wal.coordinates import CREATE_TIME
from wal.errors import CorruptBatch, InvalidTimestamp, KeysMissing, RecordTooLarge
from wal.records import batch_preparation
from wal.records.batch_preparation import BatchWork, NeededWork, PreparedBatch, needed_work
from wal.records.batch_validation import UNBOUNDED_MS, TopicRules
from wal.records.compression import CODEC_NAMES, GZIP, NONE, ZSTD, deflate, inflate
from wal.records.recompression import Compression
from wal.records.record_batch import HEADER_BYTES, parse_header, verify_crc

NOW = 1_700_000_000_000
PLENTY = 1 << 24
RULES = TopicRules(PLENTY, CREATE_TIME, UNBOUNDED_MS, UNBOUNDED_MS, compacted=False)
COMPACTED = RULES._replace(compacted=True)
BOUNDED = RULES._replace(timestamp_before_max_ms=1_000)


def work(
    batch: bytes,
    rules: TopicRules,
    wanted: Compression | None = None,
    *,
    cuts: tuple[int, ...] = (),
) -> BatchWork:
    header = parse_header(batch)
    needed = needed_work(header, rules, wanted, now_ms=NOW)
    assert needed is not None
    pieces = [memoryview(batch)[a:b] for a, b in pairwise((0, *cuts, len(batch)))]
    return BatchWork(pieces, header, needed)


def done(batch: bytes, rules: TopicRules, wanted: Compression | None = None) -> PreparedBatch:
    prepared = work(batch, rules, wanted)
    prepared.measure()
    return prepared.run()


def test_most_batches_need_nothing() -> None:
    header = parse_header(build_batch([Row(NOW)], codec=ZSTD))
    assert needed_work(header, RULES, None, now_ms=NOW) is None
    assert needed_work(header, RULES, Compression(ZSTD, 19), now_ms=NOW) is None
    assert needed_work(header, COMPACTED, None, now_ms=NOW) == NeededWork(
        COMPACTED, NOW, False, None
    )
    assert needed_work(header, RULES, Compression(GZIP), now_ms=NOW) == NeededWork(
        RULES, NOW, False, Compression(GZIP)
    )
    large = header._replace(length_bytes=PLENTY)
    assert needed_work(large, RULES, None, now_ms=NOW) == NeededWork(RULES, NOW, True, None)


def test_records_are_inflated_once_for_the_checks_and_the_new_codec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = build_batch([Row(NOW, b"key", b"value" * 100)], codec=GZIP)
    inflated = []
    real = inflate

    def counted(codec: int, data: memoryview, *, limit_bytes: int) -> object:
        inflated.append(codec)
        return real(codec, data, limit_bytes=limit_bytes)

    monkeypatch.setattr(batch_preparation, "inflate", counted)
    header, data = done(batch, COMPACTED, Compression(ZSTD))
    assert data is not None
    assert parse_header(data) == header
    assert header.codec == ZSTD
    verify_crc(data)
    assert inflated == []  # the checks inflated it, and that was used again
    assert done(batch, RULES, Compression(ZSTD)) == (header, data)
    assert inflated == [GZIP]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_the_rules_of_the_topic_are_kept(codec: int) -> None:
    good = build_batch([Row(NOW, b"key")], codec=codec)
    for rules in (COMPACTED, BOUNDED):
        assert done(good, rules) == (parse_header(good), None)
    with pytest.raises(KeysMissing):
        done(build_batch([Row(NOW, b"key"), Row(NOW)], codec=codec), COMPACTED)
    with pytest.raises(InvalidTimestamp):
        done(build_batch([Row(NOW), Row(NOW - 2_000)], codec=codec), BOUNDED)


def test_a_batch_that_was_too_large_to_be_summed_before_is_summed_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_preparation, "SUMMED_AT_ONCE_BYTES", 50)
    batch = build_batch([Row(NOW)])
    assert done(batch, RULES) == (parse_header(batch), None)
    for wanted in (None, Compression(ZSTD)):
        with pytest.raises(CorruptBatch, match="CRC"):
            done(batch[:-1] + b"?", RULES, wanted)


def test_what_is_larger_than_a_topic_allows_is_refused() -> None:
    batch = build_batch([Row(NOW, b"key", bytes(100_000))], codec=ZSTD)
    small = RULES._replace(max_message_bytes=1_000)
    with pytest.raises(RecordTooLarge, match="inflates past 64000 bytes"):
        done(batch, small._replace(compacted=True))
    with pytest.raises(RecordTooLarge, match="inflates past 64000 bytes"):
        done(batch, small, Compression(GZIP))
    with pytest.raises(RecordTooLarge, match="under the topic's codec"):
        done(batch, RULES._replace(max_message_bytes=50_000), Compression(NONE))


def test_a_batch_that_its_codec_cannot_read_is_corrupt() -> None:
    batch = bytearray(build_batch([Row(NOW, b"key", b"x" * 100)], codec=NONE))
    batch[22] |= GZIP
    for rules, wanted in ((RULES, Compression(ZSTD)), (COMPACTED, None)):
        with pytest.raises(CorruptBatch):
            done(bytes(batch), rules, wanted)


@given(
    content=st.binary(max_size=2_000),
    codec=st.sampled_from(sorted(CODEC_NAMES)),
    cuts=st.lists(st.integers(0, 60), max_size=3),
)
def test_any_content_survives_however_it_was_received(
    content: bytes, codec: int, cuts: list[int]
) -> None:
    batch = build_batch([Row(5, b"key", content)], codec=codec)
    wanted = Compression(ZSTD if codec != ZSTD else GZIP)
    prepared = work(batch, COMPACTED, wanted, cuts=tuple(sorted(cuts)))
    assert prepared.measure() > len(content)
    header, data = prepared.run()
    assert data is not None
    verify_crc(data)
    records = memoryview(data)[HEADER_BYTES:]
    original = memoryview(batch)[HEADER_BYTES:]
    assert bytes(inflate(header.codec, records, limit_bytes=PLENTY)) == bytes(
        inflate(codec, original, limit_bytes=PLENTY)
    )


def test_what_is_reserved_follows_the_batch_and_not_the_topic() -> None:
    small = work(build_batch([Row(NOW, b"key")], codec=ZSTD), COMPACTED).measure()
    payload = bytes(deflate(ZSTD, bytes(8 << 20)))
    bomb = build_batch([Row(NOW, b"key")], codec=ZSTD)[:HEADER_BYTES] + payload
    large = work(bomb, COMPACTED).measure()
    assert small < 25 << 20
    assert 8 << 20 < large < 80 << 20
