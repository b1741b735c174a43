"""The 61-byte header: parsed, patched and checked, whole or in fragments."""

import subprocess
import sys
from itertools import pairwise

import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import Row, build_batch, seal
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME
from wal.crc import crc32c, crc32c_of
from wal.errors import CorruptBatch
from wal.records.record_batch import (
    HEADER_BYTES,
    assign_log_append_time,
    assign_offsets,
    header_bytes,
    iterate_headers,
    parse_header,
    verify_crc,
)

BATCH = build_batch(
    [Row(timestamp=1000 + n, key=b"k%d" % n, value=b"v" * 40) for n in range(5)],
    producer_id=2**40,
    producer_epoch=7,
    base_sequence=99,
    leader_epoch=-1,
)


def cut(data: bytes, positions: list[int]) -> list[memoryview]:
    """The fragment chain of `data` cut at `positions`, empty fragments included."""
    bounds = [0, *sorted(min(position, len(data)) for position in positions), len(data)]
    return [memoryview(data)[a:b] for a, b in pairwise(bounds)]


def test_every_header_field_is_read_from_its_place() -> None:
    header = parse_header(
        seal(
            b"payload",
            record_count=3,
            last_offset_delta=8,
            attributes=0x38,
            codec=4,
            base_offset=2**50,
            leader_epoch=12,
            base_timestamp=-5,
            max_timestamp=2**62,
            producer_id=2**41,
            producer_epoch=32767,
            base_sequence=2**31 - 1,
            compress=False,
        )
    )
    assert header._replace(crc=0) == (
        *(2**50, 61 + 7, 12, 2, 0, 0x3C, 8, -5, 2**62, 2**41, 32767, 2**31 - 1, 3),
    )
    assert header.codec == 4
    assert header.timestamp_type == LOG_APPEND_TIME
    assert header.is_transactional
    assert header.is_control
    assert header.last_offset == 2**50 + 8


def test_the_header_is_found_at_any_position_of_a_buffer() -> None:
    for buffer in (b"xxx" + BATCH, bytearray(b"xxx" + BATCH), memoryview(b"xxx" + BATCH)):
        assert parse_header(buffer, 3) == parse_header(BATCH)


def test_a_header_in_fewer_than_61_bytes_is_corrupt() -> None:
    for length in range(HEADER_BYTES):
        with pytest.raises(CorruptBatch, match="cannot hold a batch header"):
            parse_header(BATCH[:length])


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_field_shorter_than_a_header_is_corrupt(length: int) -> None:
    lying = BATCH[:8] + length.to_bytes(4, "big", signed=True) + BATCH[12:]
    with pytest.raises(CorruptBatch, match="gives its length"):
        parse_header(lying)


@given(st.binary(max_size=200))
def test_garbage_parses_or_is_corrupt_and_nothing_else(data: bytes) -> None:
    try:
        positions = [position for position, _ in iterate_headers(data)]
    except CorruptBatch:
        return
    assert positions == ([0] if data else [])  # only 61..200 bytes that are one whole batch pass


def test_batches_back_to_back_are_iterated_in_order() -> None:
    other = build_batch([Row(value=None)], base_offset=5)
    found = list(iterate_headers(memoryview(BATCH + other + BATCH)))
    assert [position for position, _ in found] == [0, len(BATCH), len(BATCH) + len(other)]
    assert [header for _, header in found] == [
        parse_header(BATCH),
        parse_header(other),
        parse_header(BATCH),
    ]


def test_iterating_over_a_torn_batch_yields_those_before_it_and_raises() -> None:
    for torn in (1, 60, 61, len(BATCH) - 1):
        headers = iterate_headers(BATCH + BATCH[:torn])
        assert next(headers)[0] == 0
        with pytest.raises(CorruptBatch):
            next(headers)


def test_iterating_over_another_magic_raises() -> None:
    with pytest.raises(CorruptBatch, match="magic 1"):
        list(iterate_headers(build_batch([Row()], magic=1)))


def test_crc32c_gives_the_check_value_of_its_specification() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6), st.integers(0, 320))
def test_the_crc_of_a_fragment_chain_is_that_of_the_joined_bytes(
    data: bytes, positions: list[int], skip: int
) -> None:
    assert crc32c_of(cut(data, positions), skip) == google_crc32c.value(data[skip:])


@given(st.lists(st.integers(0, len(BATCH)), max_size=8))
def test_header_and_crc_are_read_through_any_fragmentation(positions: list[int]) -> None:
    fragments = cut(BATCH, positions)
    assert parse_header(header_bytes(fragments)) == parse_header(BATCH)
    verify_crc(fragments)


def test_a_header_within_the_first_fragment_is_not_copied() -> None:
    fragments = cut(BATCH, [80])
    assert header_bytes(fragments) is fragments[0]


@given(st.integers(21, len(BATCH) - 1), st.integers(0, 7))
def test_any_flipped_bit_under_the_crc_is_noticed(position: int, bit: int) -> None:
    damaged = bytearray(BATCH)
    damaged[position] ^= 1 << bit
    with pytest.raises(CorruptBatch, match="CRC"):
        verify_crc(damaged)


@pytest.mark.parametrize("view", [bytearray, lambda data: memoryview(bytearray(data))])
def test_assigned_offsets_are_read_by_a_client_and_leave_the_crc_valid(view) -> None:  # type: ignore[no-untyped-def]
    buffer = view(b"-" * 7 + BATCH)
    assign_offsets(buffer, 7, 2**45, leader_epoch=3)
    patched = bytes(buffer)[7:]
    verify_crc(patched)
    assert parse_header(patched).partition_leader_epoch == 3
    assert patched[16:] == BATCH[16:]
    assert [record.offset for record in DefaultRecordBatch(patched)] == [
        2**45 + n for n in range(5)
    ]


def test_log_append_time_is_what_a_client_reads_and_the_crc_fits() -> None:
    buffer = bytearray(b"-" * 7 + BATCH + b"next batch")
    assign_log_append_time(buffer, 7, len(BATCH), 1_700_000_000_123)
    assert buffer.endswith(b"next batch")
    patched = bytes(buffer[7 : 7 + len(BATCH)])
    verify_crc(patched)
    assert parse_header(BATCH).timestamp_type == CREATE_TIME
    assert parse_header(patched).timestamp_type == LOG_APPEND_TIME
    batch = DefaultRecordBatch(patched)
    assert batch.validate_crc()
    assert {(record.timestamp, record.timestamp_type) for record in batch} == {
        (1_700_000_000_123, 1)
    }


def test_header_and_validation_load_without_numpy_and_arrow() -> None:
    code = (
        "import sys;from wal.records import record_batch, batch_validation, compression;"
        "print(sorted({'numpy', 'pyarrow'} & sys.modules.keys()))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (child.stdout, child.stderr) == ("[]\n", "")
