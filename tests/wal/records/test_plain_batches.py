"""Batches checked as columns: no batch passes that would be refused by itself, and most pass."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.profiles import examples
from wal.columns import row_type
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME
from wal.crc import crc32c
from wal.errors import BatchRejected
from wal.records.batch_validation import UNBOUNDED_MS, TopicRules, check_contents, check_header
from wal.records.plain_batches import are_plain
from wal.records.record_batch import CRC_START, HEADER, BatchHeader, set_crc, unchecked_header

NOW = 1_700_000_000_000
HOUR = 3_600_000
RULES = TopicRules(
    max_message_bytes=1000,
    timestamp_type=CREATE_TIME,
    timestamp_before_max_ms=UNBOUNDED_MS,
    timestamp_after_max_ms=HOUR,
    compacted=False,
)
SCANNED = struct.Struct("=iIBqqibIhiqqqhii")
SCANNED_ROW = row_type(
    SCANNED,
    "size actual_crc is_summed base_offset length_bytes leader_epoch magic crc attributes"
    " last_offset_delta base_timestamp_ms max_timestamp_ms producer_id producer_epoch"
    " base_sequence record_count",
)
GOOD = build_batch([Row(NOW - n, value=b"value %d" % n) for n in range(9)])


def are_plain_one_by_one(batches: list[bytes], rules: TopicRules, version: int) -> list[bool]:
    found = []
    for data in batches:
        header = unchecked_header([memoryview(data)])
        try:
            check_header(header, size=len(data), rules=rules, produce_version=version)
            check_contents(header, crc32c(data[CRC_START:]), rules=rules, now_ms=NOW)
        except BatchRejected:
            found.append(False)
        else:
            found.append(True)
    return found


def as_columns(batches: list[bytes], rules: TopicRules, version: int) -> list[bool]:
    rows = b"".join(
        SCANNED.pack(len(data), crc32c(data[CRC_START:]), 1, *unchecked_header([memoryview(data)]))
        for data in batches
    )
    scanned = np.frombuffer(rows, SCANNED_ROW)
    plain = are_plain(scanned, rules=rules, produce_version=version, now_ms=NOW)
    return list(map(bool, plain.tolist()))


EDGES = {
    "base_offset": [1, -1],
    "length_bytes": [0, 60, len(GOOD) - 1, len(GOOD) + 1, 2**31 - 1],
    "magic": [0, 1, 3],
    "crc": [0, 1],
    "attributes": [1, 2, 3, 4, 5, 7, 8, 16, 32, 64, -1],
    "last_offset_delta": [-1, 0, 9, 2**31 - 1],
    "base_timestamp_ms": [-1, NOW + HOUR, NOW + HOUR + 1, 2**63 - 1, -(2**63)],
    "max_timestamp_ms": [-1, NOW + HOUR, NOW + HOUR + 1, 2**63 - 1, -(2**63)],
    "producer_id": [0, 7, 2**63 - 1],
    "base_sequence": [0, 2**31 - 1, -2],
    "record_count": [-1, 0, 1, 10, 2**31 - 1],
}
changes = st.dictionaries(
    st.sampled_from(sorted(EDGES)), st.integers(0, 99), min_size=1, max_size=3
).map(lambda chosen: {name: EDGES[name][at % len(EDGES[name])] for name, at in chosen.items()})


def changed(fields: dict[str, int], is_sealed: bool) -> bytes:
    """The batch with other fields, whose CRC is right again if it is sealed."""
    header = unchecked_header([memoryview(GOOD)])._replace(**fields)
    data = bytearray(GOOD)
    HEADER.pack_into(data, 0, header.base_offset, header.length_bytes - 12, *header[2:])
    if is_sealed:
        set_crc(data, 0, crc32c(data[CRC_START:]))
    return bytes(data)


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize(
    "rules",
    [
        RULES,
        RULES._replace(timestamp_type=LOG_APPEND_TIME),
        RULES._replace(max_message_bytes=len(GOOD) - 1),
        RULES._replace(timestamp_before_max_ms=HOUR),
    ],
)
@examples(1)
@given(fields=st.lists(st.tuples(changes, st.booleans()), min_size=1, max_size=9))
def test_nothing_passes_that_would_be_refused_by_itself(
    rules: TopicRules, version: int, fields: list[tuple[dict[str, int], bool]]
) -> None:
    batches = [changed(each, is_sealed) for each, is_sealed in fields]
    alone = are_plain_one_by_one(batches, rules, version)
    together = as_columns(batches, rules, version)
    assert all(by_itself for by_itself, plain in zip(alone, together, strict=True) if plain)


@pytest.mark.parametrize("size", [0, 1, 16, 17, 60, 61])
def test_what_is_too_short_is_not_plain(size: int) -> None:
    assert as_columns([GOOD[:size], GOOD], RULES, 9) == [False, True]


def test_what_was_not_summed_is_not_plain() -> None:
    header = unchecked_header([memoryview(GOOD)])
    rows = SCANNED.pack(len(GOOD), header.crc, 0, *header)
    scanned = np.frombuffer(rows, SCANNED_ROW)
    assert not are_plain(scanned, rules=RULES, produce_version=9, now_ms=NOW).any()


@pytest.mark.parametrize("codec", range(5))
def test_batches_of_producers_are_plain(codec: int) -> None:
    batches = [
        build_batch([Row(NOW, value=bytes(200))], codec=codec),
        build_batch(
            [Row(NOW, value=b"%d" % n) for n in range(3)],
            codec=codec,
            producer_id=5,
            producer_epoch=0,
            base_sequence=2**31 - 1,
        ),
    ]
    assert are_plain_one_by_one(batches, RULES, 9) == [True, True]
    assert as_columns(batches, RULES, 9) == [True, True]


def test_the_fields_are_those_of_a_header() -> None:
    assert set(BatchHeader._fields) - set(SCANNED_ROW.names or ()) == {"partition_leader_epoch"}
