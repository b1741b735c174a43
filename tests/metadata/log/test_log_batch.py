"""Metadata batches as RecordBatches: by hand, through stock Kafka readers, and damaged."""

import warnings

import pytest
from aiokafka.record import MemoryRecords as AiokafkaRecords
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from metadata.log.log import MetadataRecordBatch
from metadata.log.log_batch import decode_batch, encode_batch
from wal.errors import CorruptLog

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords as KafkaPythonRecords

NOW_MS = 1_704_067_200_000

offsets = st.integers(0, (1 << 62))
timestamps = st.integers(0, 1 << 48)
values = st.lists(st.binary(max_size=300), min_size=1, max_size=150)


def test_a_batch_is_exactly_these_bytes() -> None:
    covered = bytes.fromhex(
        "0000"  # attributes
        "00000001"  # last offset delta
        "0000000000000005 0000000000000005"  # base and max timestamp
        "ffffffffffffffff ffff ffffffff"  # no producer
        "00000002"  # two records
        "10 00 00 00 01 04 6162 00"  # 8 bytes: attributes, deltas 0 and 0, no key, "ab", no headers
        "0c 00 00 02 01 00 00"  # 6 bytes: deltas 0 and 1, no key, an empty value, no headers
    )
    head = bytes.fromhex(
        "0000000000000007"  # base offset
        f"{4 + 1 + 4 + len(covered):08x}"  # length of what follows
        "00000000"  # leader epoch
        "02"  # magic
    )
    expected = head + crc32c(covered).to_bytes(4, "big") + covered
    assert encode_batch(7, 5, [b"ab", b""]) == expected
    assert decode_batch(expected) == MetadataRecordBatch(7, 5, [b"ab", b""])


@given(offsets, timestamps, values)
def test_a_batch_comes_back_as_it_was(base_offset: int, now_ms: int, records: list[bytes]) -> None:
    batch = decode_batch(encode_batch(base_offset, now_ms, records))
    assert batch == MetadataRecordBatch(base_offset, now_ms, records)
    assert batch.next_offset == base_offset + len(records)


@given(offsets, timestamps, values)
def test_stock_kafka_readers_read_the_same(
    base_offset: int, now_ms: int, records: list[bytes]
) -> None:
    data = encode_batch(base_offset, now_ms, records)
    for reader in (AiokafkaRecords(data), KafkaPythonRecords(data)):
        read = []
        while reader.has_next():
            batch = reader.next_batch()
            assert batch.validate_crc()
            read += [
                (record.offset, record.timestamp, record.key, record.value, list(record.headers))
                for record in batch
            ]
        assert read == [
            (base_offset + delta, now_ms, None, value, []) for delta, value in enumerate(records)
        ]


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch(0, NOW_MS, [])


@pytest.mark.parametrize("length_change", [-1, 1])
def test_a_batch_of_another_length_than_it_says_is_refused(length_change: int) -> None:
    data = encode_batch(0, NOW_MS, [b"value"])
    wrong = data[:-1] if length_change < 0 else data + b"\0"
    with pytest.raises(CorruptLog):
        decode_batch(wrong)


def test_a_flipped_bit_anywhere_under_the_crc_is_noticed() -> None:
    data = encode_batch(3, NOW_MS, [b"some value", b"another"])
    for position in range(8, len(data)):
        if 12 <= position < 16:
            continue  # the leader epoch belongs to whoever serves the batch, as in Kafka
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptLog):
            decode_batch(bytes(damaged))


def with_valid_crc(data: bytes) -> bytes:
    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


@given(st.data())
def test_a_lie_under_a_valid_crc_is_refused_or_harmless(draw: st.DataObject) -> None:
    data = bytearray(encode_batch(3, NOW_MS, [b"some value", b"another"]))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(21, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        batch = decode_batch(with_valid_crc(bytes(data)))
    except CorruptLog:
        return
    assert [len(value) for value in batch.records] == [10, 7]


@given(st.binary(max_size=200))
def test_garbage_is_refused_with_nothing_but_corrupt_log(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_batch(data)
