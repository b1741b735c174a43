"""What a partition accepts on produce: one rule at a time, their order, any fragmentation."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import Row, build_batch, seal
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP
from wal.crc import crc32c_of
from wal.errors import (
    BatchRejected,
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    KeysMissing,
    RecordTooLarge,
    TransactionalIdMissing,
    UnsupportedCompression,
)
from wal.records.batch_validation import (
    UNBOUNDED_MS,
    TopicRules,
    check_contents,
    check_header,
    check_records,
    inflated_bytes_max,
    opens_records,
)
from wal.records.record_batch import CRC_START, BatchHeader, parse_header, unchecked_header
from wal.records.record_scan import inflate_records

NOW = 1_700_000_000_000
HOUR = 3_600_000
DEFAULTS = TopicRules(
    max_message_bytes=1_048_588,
    timestamp_type=CREATE_TIME,
    timestamp_before_max_ms=UNBOUNDED_MS,
    timestamp_after_max_ms=HOUR,
    compacted=False,
)
ROWS = [Row(timestamp=NOW - 10 + n, key=b"key", value=b"value %d" % n) for n in range(4)]
GOOD = build_batch(ROWS, producer_id=5, producer_epoch=0, base_sequence=0)


def validate(
    payload: bytes,
    rules: TopicRules = DEFAULTS,
    produce_version: int = 9,
    has_transactional_id: bool = False,
    **changed: Any,
) -> BatchHeader:
    fragments = [memoryview(payload)] if payload else []
    rules = rules._replace(**changed)
    return validate_fragments(fragments, rules, produce_version, has_transactional_id)


def validate_fragments(
    fragments: Sequence[memoryview],
    rules: TopicRules,
    produce_version: int = 9,
    has_transactional_id: bool = False,
) -> BatchHeader:
    """All three steps, one after the other."""
    header = unchecked_header(fragments)
    size = sum(map(len, fragments))
    check_header(header, size=size, rules=rules, produce_version=produce_version)
    check_contents(
        header,
        crc32c_of(fragments, CRC_START),
        rules=rules,
        now_ms=NOW,
        has_transactional_id=has_transactional_id,
    )
    if opens_records(rules):
        data = b"".join(fragments)
        records = inflate_records(header, data, inflated_bytes_max(rules))
        check_records(header, data, records, rules=rules, now_ms=NOW)
    return header


@pytest.mark.parametrize("codec", range(5))
def test_a_producers_batch_is_accepted_and_its_header_returned(codec: int) -> None:
    batch = build_batch(ROWS, codec=codec, producer_id=5, producer_epoch=1, base_sequence=9)
    assert validate(batch) == parse_header(batch)
    assert validate(batch, compacted=True, timestamp_before_max_ms=HOUR) == parse_header(batch)


@given(st.lists(st.integers(0, len(GOOD)), max_size=8), st.booleans())
def test_a_batch_is_judged_alike_however_it_is_fragmented(
    positions: list[int], compacted: bool
) -> None:
    bounds = [0, *sorted(positions), len(GOOD)]
    fragments = [memoryview(GOOD)[a:b] for a, b in pairwise(bounds)]
    header = validate_fragments(fragments, DEFAULTS._replace(compacted=compacted))
    assert header == parse_header(GOOD)


def test_nothing_is_no_batch() -> None:
    with pytest.raises(InvalidRecord, match="0 bytes hold no record batch"):
        validate(b"")


def test_two_batches_are_one_too_many() -> None:
    with pytest.raises(InvalidRecord, match="only one may be sent"):
        validate(GOOD + GOOD)


def test_bytes_after_the_batch_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="1 bytes after the batch"):
        validate(GOOD + b"\0")


def test_a_truncated_batch_is_refused_at_every_length() -> None:
    for length in range(len(GOOD)):
        with pytest.raises(InvalidRecord):
            validate(GOOD[:length])


@pytest.mark.parametrize("length", [-(2**31), -13, 0, 48])
def test_a_length_shorter_than_a_header_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptBatch):
        validate(GOOD[:8] + length.to_bytes(4, "big", signed=True) + GOOD[12:])


@pytest.mark.parametrize("magic", [0, 1, 3, 127, -1])
def test_only_magic_2_is_accepted(magic: int) -> None:
    with pytest.raises(InvalidRecord, match="magic"):
        validate(build_batch(ROWS, magic=magic))


def test_an_old_message_shorter_than_a_v2_header_is_named_by_its_magic() -> None:
    old = bytes(8) + (14).to_bytes(4, "big") + bytes(4) + b"\x01" + bytes(9)
    with pytest.raises(InvalidRecord, match="magic 1"):
        validate(old)


def test_zstd_needs_produce_version_7() -> None:
    batch = build_batch(ROWS, codec=4)
    with pytest.raises(UnsupportedCompression):
        validate(batch, produce_version=6)
    assert validate(batch, produce_version=7).codec == 4
    assert validate(build_batch(ROWS, codec=3), produce_version=3).codec == 3


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(UnsupportedCompression):
        validate(seal(b"?" * 40, record_count=1, codec=codec, compress=False))


def test_the_size_limit_counts_the_whole_batch() -> None:
    assert validate(GOOD, max_message_bytes=len(GOOD))
    with pytest.raises(RecordTooLarge):
        validate(GOOD, max_message_bytes=len(GOOD) - 1)


@pytest.mark.parametrize("position", [17, 20, 21, 61, len(GOOD) - 1])
def test_a_changed_byte_in_or_under_the_crc_is_corrupt(position: int) -> None:
    damaged = bytearray(GOOD)
    damaged[position] ^= 0x40
    with pytest.raises(CorruptBatch):
        validate(bytes(damaged))


@pytest.mark.parametrize(
    ("count", "last_delta"), [(0, -1), (-1, -2), (0, 0), (4, 4), (4, 2), (4, -1), (-(2**31), 3)]
)
def test_lying_counts_are_refused(count: int, last_delta: int) -> None:
    with pytest.raises(InvalidRecord, match="last offset delta"):
        validate(build_batch(ROWS, record_count=count, last_offset_delta=last_delta))


@pytest.mark.parametrize("bit", [0x20, 0x40, 0x30, 0x50])
@pytest.mark.parametrize("has_transactional_id", [False, True])
def test_control_and_cleaned_batches_are_refused(bit: int, has_transactional_id: bool) -> None:
    with pytest.raises(InvalidRecord):
        validate(
            build_batch(ROWS, attributes=bit, producer_id=1, base_sequence=0),
            has_transactional_id=has_transactional_id,
        )


def test_a_batch_of_a_transaction_needs_a_transactional_id_and_a_producer() -> None:
    batch = build_batch(ROWS, attributes=0x10, producer_id=1, base_sequence=0)
    with pytest.raises(TransactionalIdMissing):
        validate(batch)
    assert validate(batch, has_transactional_id=True).is_transactional
    nobodys = build_batch(ROWS, attributes=0x10, producer_id=-1, base_sequence=-1)
    with pytest.raises(InvalidRecord, match="without a producer id"):
        validate(nobodys, has_transactional_id=True)


def test_an_idempotent_batch_needs_a_sequence() -> None:
    with pytest.raises(InvalidRecord, match="base sequence -1"):
        validate(build_batch(ROWS, producer_id=0, producer_epoch=0))
    assert validate(build_batch(ROWS, producer_id=-1, base_sequence=-1)).producer_id == -1


@pytest.mark.parametrize("topic_type", [CREATE_TIME, LOG_APPEND_TIME])
def test_clients_may_not_claim_log_append_time(topic_type: int) -> None:
    with pytest.raises(InvalidTimestamp, match="LogAppendTime"):
        validate(build_batch(ROWS, attributes=0x08), timestamp_type=topic_type)


def test_timestamps_may_lie_an_hour_ahead_and_not_a_millisecond_more() -> None:
    assert validate(build_batch([Row(timestamp=NOW + HOUR)]))
    with pytest.raises(InvalidTimestamp, match="after now"):
        validate(build_batch([Row(timestamp=NOW), Row(timestamp=NOW + HOUR + 1)]))


def test_the_age_bound_finds_the_oldest_record_inside_the_batch() -> None:
    rows = [Row(timestamp=NOW), Row(timestamp=NOW - HOUR), Row(timestamp=NOW - 5)]
    assert validate(build_batch(rows), timestamp_before_max_ms=HOUR)
    for codec in range(5):
        batch = build_batch(rows, codec=codec)
        with pytest.raises(InvalidTimestamp, match="before now"):
            validate(batch, timestamp_before_max_ms=HOUR - 1)


def test_a_record_without_timestamp_does_not_hide_an_old_one() -> None:
    rows = [Row(timestamp=NOW), Row(timestamp=NO_TIMESTAMP), Row(timestamp=0)]
    with pytest.raises(InvalidTimestamp, match="before now"):
        validate(build_batch(rows), timestamp_before_max_ms=HOUR)
    assert validate(build_batch(rows[:2]), timestamp_before_max_ms=HOUR)


def test_the_timestamp_that_a_batch_has_is_checked_when_it_has_no_other() -> None:
    assert validate(build_batch([Row(timestamp=NO_TIMESTAMP)]), timestamp_before_max_ms=HOUR)
    for base, last, problem in (
        (NO_TIMESTAMP, NOW + HOUR + 1, "after now"),
        (NOW - HOUR - 1, NO_TIMESTAMP, "before now"),
    ):
        batch = build_batch([Row(timestamp=NOW)], base_timestamp=base, max_timestamp=last)
        with pytest.raises(InvalidTimestamp, match=problem):
            validate(batch, timestamp_before_max_ms=HOUR)


def test_timestamp_bounds_do_not_apply_under_log_append_time() -> None:
    batch = build_batch([Row(timestamp=0), Row(timestamp=2**62)])
    assert validate(batch, timestamp_type=LOG_APPEND_TIME, timestamp_before_max_ms=1)


@pytest.mark.parametrize("codec", range(5))
def test_compacted_topics_need_a_key_in_every_record(codec: int) -> None:
    rows = [Row(timestamp=NOW, key=b""), Row(timestamp=NOW, key=None), Row(timestamp=NOW, key=b"k")]
    batch = build_batch(rows, codec=codec)
    assert validate(batch)
    with pytest.raises(KeysMissing, match="1 of 3 records have no key") as refused:
        validate(batch, compacted=True)
    assert refused.value.positions == [1]
    assert validate(build_batch(rows[:1], codec=codec), compacted=True)


def test_a_bomb_sent_to_a_compacted_topic_is_too_large() -> None:
    bomb = build_batch([Row(timestamp=NOW, key=b"k", value=bytes(8 << 20))], codec=4)
    assert validate(bomb)
    with pytest.raises(RecordTooLarge):
        validate(bomb, compacted=True, max_message_bytes=100_000)


def test_records_that_contradict_their_header_are_corrupt_where_they_are_opened() -> None:
    batch = seal(b"\xff" * 50, record_count=2, base_timestamp=NOW)
    with pytest.raises(CorruptBatch):
        validate(batch, compacted=True)


MINIMAL = [Row(timestamp=NOW, key=None, value=None)] * 64  # 7 bytes each


@pytest.mark.parametrize("count", [1, 2, 64])
def test_uncompressed_records_take_seven_bytes_each(count: int) -> None:
    batch = build_batch(MINIMAL[:count])
    assert len(batch) == 61 + 7 * count
    assert validate(batch).record_count == count
    with pytest.raises(InvalidRecord, match=f"{count + 1} records in {7 * count} bytes of none"):
        validate(build_batch(MINIMAL[:count], record_count=count + 1))


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_compressed_count_is_bounded_by_the_compressed_bytes(codec: int) -> None:
    payload = build_batch(MINIMAL, codec=codec)[61:]
    for count, is_plausible in ((8 * len(payload), True), (8 * len(payload) + 1, False)):
        lying = seal(payload, codec=codec, compress=False, record_count=count, base_timestamp=NOW)
        if is_plausible:
            assert validate(lying).record_count == count
        else:
            with pytest.raises(InvalidRecord, match=f"{count} records in {len(payload)} bytes"):
                validate(lying)


@pytest.mark.parametrize("codec", range(1, 5))
def test_the_most_compressible_records_are_far_from_implausible(codec: int) -> None:
    batch = build_batch([MINIMAL[0]] * 20_000, codec=codec)
    assert validate(batch).record_count == 20_000
    assert 20_000 / (len(batch) - 61) < 8 / 4


@pytest.mark.parametrize("codec", range(5))
def test_a_million_records_are_as_many_as_a_batch_may_have(codec: int) -> None:
    payload = bytes(7_000_007)
    rules = DEFAULTS._replace(max_message_bytes=8_000_000)
    for count in (1_000_000, 1_000_001):
        batch = seal(payload, codec=codec, compress=False, record_count=count, base_timestamp=NOW)
        if count == 1_000_000:
            assert validate(batch, rules).record_count == count
        else:
            # Kafka's producers answer this error by splitting the batch.
            with pytest.raises(RecordTooLarge, match="1000001 records, 1000000 allowed"):
                validate(batch, rules)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [2**31 - 1, 2**28 // 7 + 1])
def test_a_count_that_no_reader_could_inflate_is_refused(codec: int, count: int) -> None:
    with pytest.raises(InvalidRecord, match=f"{count} records in "):
        validate(build_batch(ROWS, codec=codec, record_count=count))


def test_a_batch_that_breaks_two_rules_gets_kafkas_earlier_error() -> None:
    broken = [
        ({"magic": 1}, InvalidRecord, "magic"),
        ({"codec": 4}, UnsupportedCompression, "zstd"),
        ({"base_offset": 1}, InvalidRecord, "base offset"),
        ({"size": 1}, RecordTooLarge, "allowed"),
        ({"crc": 1}, CorruptBatch, "CRC"),
        ({"record_count": 9}, InvalidRecord, "records with a last"),
        ({"attributes": 0x20}, InvalidRecord, "control"),
        ({"producer_id": 3}, InvalidRecord, "sequence"),
        ({"max_timestamp": NOW + 2 * HOUR}, InvalidTimestamp, "after now"),
        ({"crowd": 1}, InvalidRecord, "bytes of none data"),
        ({"keyless": 1}, InvalidRecord, "no key"),
    ]
    for (earlier, error, words), (later, _, _) in combinations(broken, 2):
        fields = {"last_offset_delta": len(ROWS) - 1, **earlier, **later}
        names = ("size", "crc", "keyless", "crowd")
        size, crc, keyless, crowd = (fields.pop(name, 0) for name in names)
        if crowd:
            fields = {"record_count": 1000, **fields, "last_offset_delta": 999}
        rows = [row._replace(key=None) for row in ROWS] if keyless else ROWS
        batch = bytearray(build_batch(rows, **fields))
        batch[20] ^= crc
        limit = len(batch) - size
        with pytest.raises(error, match=words):
            validate(bytes(batch), produce_version=6, compacted=True, max_message_bytes=limit)


@given(st.binary(max_size=150), st.booleans())
def test_garbage_is_rejected_as_a_batch_and_nothing_else(data: bytes, as_magic_2: bool) -> None:
    if as_magic_2:
        data = data[:16] + b"\x02" + data[17:]
    with pytest.raises(BatchRejected):
        validate(data, compacted=True)
