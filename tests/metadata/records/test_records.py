"""Metadata records: bytes written out by hand, round trips, garbage.

FileCommitted has a file of its own, tests/metadata/records/test_file_committed.py.
"""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metadata.records.control import ControlRecord
from metadata.records.groups import GroupRecord
from metadata.records.records import (
    FileCommittedRecord,
    FilesDeletedRecord,
    MetadataRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
    TopicConfigsRecord,
    TopicDeletedRecord,
    decode_record,
    encode_record,
)
from tests.metadata.records.test_file_committed import ENCODED, FILE_COMMITTED, files
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptLog
from wal.wire.fields import FieldReader, tag_section, uvarint

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
TOPIC_HEX = "00112233445566778899aabbccddeeff"
PARTITION = TopicIdPartition(TOPIC, 3)


# One line per field of the schema, in its order.
GOLDEN: list[tuple[MetadataRecord, str]] = [
    (
        PartitionCreatedRecord(topic_id=TOPIC, name="flights", partition=3),
        "01 64 00"  # frame version 1, api key 100, version 0
        f"{TOPIC_HEX}"
        "08 666c6967687473"  # 7 + 1, "flights"
        "00000003"
        "00",  # no tagged fields
    ),
    (TopicDeletedRecord(topic_id=TOPIC), f"01 65 00 {TOPIC_HEX} 00"),
    (FILE_COMMITTED, ENCODED.hex()),
    (
        RecordsDeletedRecord(partition=PARTITION, new_log_start_offset=256),
        f"01 67 00 {TOPIC_HEX} 00000003 0000000000000100 00",
    ),
    (
        TopicConfigsRecord(topic_id=TOPIC, configs={"b": "", "a": "1"}),
        f"01 e807 00 {TOPIC_HEX}"
        "03"  # two configs, by name
        "02 61 02 31 00"
        "02 62 01 00"
        "00",
    ),
    (ProducerIdsAllocatedRecord(next_producer_id=1000), "01 e907 00 00000000000003e8 00"),
    (
        SegmentPlannedRecord(
            partition=PARTITION,
            base_offset=1,
            last_offset=2,
            object_key=ObjectKey("s/é"),
            planned_at_ms=3,
        ),
        f"01 ea07 00 {TOPIC_HEX} 00000003"
        "0000000000000001 0000000000000002"
        "05 732fc3a9"  # "s/é" is four bytes
        "0000000000000003"
        "00",
    ),
    (
        SegmentCommittedRecord(
            partition=PARTITION,
            base_offset=1,
            last_offset=2,
            object_key=ObjectKey("s"),
            object_bytes=4096,
            crc32c=0xFFFFFFFE,
            record_count=2,
            max_timestamp_ms=-1,
        ),
        f"01 eb07 00 {TOPIC_HEX} 00000003"
        "0000000000000001 0000000000000002"
        "02 73"
        "0000000000001000 fffffffe 00000002 ffffffffffffffff"
        "00",
    ),
    (
        FilesDeletedRecord(object_keys=(ObjectKey("a"), ObjectKey("bc"))),
        "01 ec07 00 03 02 61 03 6263 00",
    ),
]
GOLDEN_IDS = [type(record).__name__ for record, _ in GOLDEN]


@pytest.mark.parametrize(("record", "expected"), GOLDEN, ids=GOLDEN_IDS)
def test_a_record_is_exactly_the_bytes_of_its_schema(record: MetadataRecord, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert encode_record(record) == data
    assert decode_record(data) == record


def test_every_record_type_has_golden_bytes() -> None:
    """Others have theirs in test_control_records.py and test_group_records.py."""
    others = set(MetadataRecord.__args__) - set(ControlRecord.__args__)
    others -= set(GroupRecord.__args__)
    assert {type(record) for record, _ in GOLDEN} == others


# --- round trips ---------------------------------------------------------------------------------

int8 = st.integers(-(1 << 7), (1 << 7) - 1)
int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
uuids = st.sampled_from([UUID(int=number) for number in (0, 1, 1 << 127)]) | st.uuids()
names = st.text(st.characters(codec="utf-8"), max_size=30)
partitions = st.builds(TopicIdPartition, uuids, int32)
records = st.one_of(
    st.builds(PartitionCreatedRecord, topic_id=uuids, name=names, partition=int32),
    st.builds(TopicDeletedRecord, topic_id=uuids),
    files,
    st.builds(RecordsDeletedRecord, partition=partitions, new_log_start_offset=int64),
    st.builds(
        TopicConfigsRecord, topic_id=uuids, configs=st.dictionaries(names, names, max_size=4)
    ),
    st.builds(ProducerIdsAllocatedRecord, next_producer_id=int64),
    st.builds(
        SegmentPlannedRecord,
        partition=partitions,
        base_offset=int64,
        last_offset=int64,
        object_key=names,
        planned_at_ms=int64,
    ),
    st.builds(
        SegmentCommittedRecord,
        partition=partitions,
        base_offset=int64,
        last_offset=int64,
        object_key=names,
        object_bytes=int64,
        crc32c=st.integers(0, (1 << 32) - 1),
        record_count=int32,
        max_timestamp_ms=int64,
    ),
    st.builds(FilesDeletedRecord, object_keys=st.lists(names, max_size=4).map(tuple)),
)


@given(records)
def test_every_record_comes_back_as_it_was(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(st.integers(0, (1 << 32) - 1))
@example(127)
@example(128)
@example((1 << 32) - 1)
def test_an_unsigned_varint_comes_back_as_it_was(value: int) -> None:
    reader = FieldReader(uvarint(value), "test")
    assert reader.uvarint() == value
    reader.finish()


@pytest.mark.parametrize(
    "record",
    [
        RecordsDeletedRecord(partition=PARTITION, new_log_start_offset=1 << 63),
        PartitionCreatedRecord(topic_id=TOPIC, name="n", partition=1 << 31),
    ],
    ids=["int64", "int32"],
)
def test_a_number_that_does_not_fit_is_refused_by_name(record: MetadataRecord) -> None:
    with pytest.raises(ValueError, match=type(record).__name__):
        encode_record(record)


# --- what a newer release may write, and what nobody may ------------------------------------------


def with_unknown_tags(data: bytes) -> bytes:
    """`data`, which ends with an empty tag section, with one that holds two unknown fields."""
    assert data[-1] == 0
    return data[:-1] + tag_section({5: b"", 77: b"from the future"})


@pytest.mark.parametrize(
    "record", [record for record, _ in GOLDEN if not isinstance(record, FileCommittedRecord)]
)
def test_unknown_tagged_fields_are_skipped(record: MetadataRecord) -> None:
    assert decode_record(with_unknown_tags(encode_record(record))) == record


def test_a_record_of_unknown_type_or_version_is_refused_and_never_skipped() -> None:
    body = encode_record(ProducerIdsAllocatedRecord(next_producer_id=1))[4:]
    for api_key, version in ((99, 0), (1001, 1), (102, 0), (102, 2)):
        with pytest.raises(CorruptLog, match=f"api key {api_key}, version {version}"):
            decode_record(uvarint(1) + uvarint(api_key) + uvarint(version) + body)
    with pytest.raises(CorruptLog, match="frame version 2"):
        decode_record(uvarint(2) + uvarint(1001) + uvarint(0) + body)


@pytest.mark.parametrize("data", [bytes.fromhex("01 e907 00 00000000000003e8 00 00"), b""])
def test_a_record_must_end_where_its_bytes_end(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_record(data)


def test_a_count_beyond_the_bytes_is_refused_before_anything_is_allocated() -> None:
    huge = uvarint(1) + uvarint(1004) + uvarint(0) + uvarint(0xFFFFFFFF)
    with pytest.raises(CorruptLog, match="an array of 4294967294 elements in 0 bytes"):
        decode_record(huge)


def decoded_or_refused(data: bytes) -> None:
    try:
        decode_record(data)
    except CorruptLog:
        return


@given(st.binary(max_size=300))
def test_garbage_is_refused_with_nothing_but_corrupt_log(data: bytes) -> None:
    decoded_or_refused(data)
    for api_key in (100, 101, 102, 103, 1000, 1001, 1002, 1003, 1004):
        decoded_or_refused(uvarint(1) + uvarint(api_key) + uvarint(0) + data)


@given(records, st.data())
def test_a_damaged_record_is_refused_with_nothing_but_corrupt_log(
    record: MetadataRecord, data: Any
) -> None:
    encoded = bytearray(encode_record(record))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] = data.draw(st.integers(0, 255))
    decoded_or_refused(bytes(encoded))


@given(records)
def test_a_record_cut_anywhere_is_refused(record: MetadataRecord) -> None:
    encoded = encode_record(record)
    for length in range(len(encoded)):
        with pytest.raises(CorruptLog):
            decode_record(encoded[:length])
