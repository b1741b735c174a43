"""Metadata records: bytes written out by hand, round trips, garbage, and the answer of a commit."""

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metadata.control_records import ControlRecord
from metadata.record_codec import FieldReader, tag_section, uvarint
from metadata.records import (
    COMMITTED_AT_TAG,
    CommittedBatch,
    FileCommittedRecord,
    FilesDeletedRecord,
    MetadataRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    RefusedBatch,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
    TopicConfigsRecord,
    TopicDeletedRecord,
    decode_record,
    encode_record,
)
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import CorruptLog

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
TOPIC_HEX = "00112233445566778899aabbccddeeff"
PARTITION = TopicIdPartition(TOPIC, 3)


def batch(
    partition: TopicIdPartition, position: int, base_offset: int, last_offset: int
) -> CommittedBatch:
    return CommittedBatch(
        partition=partition,
        position=position,
        magic=2,
        byte_offset=ByteOffset(100),
        byte_size=200,
        base_offset=Offset(base_offset),
        last_offset=Offset(last_offset),
        log_append_time_ms=1000,
        max_timestamp_ms=999,
        timestamp_type=1,
        producer_id=7,
        producer_epoch=1,
        base_sequence=4,
        last_sequence=4 + last_offset - base_offset,
    )


FILE_COMMITTED = FileCommittedRecord(
    object_key=ObjectKey("wal/0f/K"),
    object_format=1,
    file_size=300,
    uploader_broker_id=5,
    owner_ids=(0, 2),
    committed_at_ms=1001,
    batches=(batch(PARTITION, 1, 10, 12), batch(TopicIdPartition(TOPIC, 4), 0, 0, 0)),
    refused=(
        RefusedBatch(position=2, error_code=45),
        RefusedBatch(
            position=3, error_code=0, base_offset=9, log_append_time_ms=900, log_start_offset=2
        ),
    ),
    request_digest=bytes(range(16)),
)

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
    (
        FILE_COMMITTED,
        "01 66 00"
        "09 77616c2f30662f4b"  # "wal/0f/K"
        "01"  # object format
        "000000000000012c"  # file size
        "00000005"  # uploader
        "03 00000000 00000002"  # two owners
        "02"  # one topic
        f"{TOPIC_HEX}"
        "03"  # two partitions
        "00000003"
        "02"  # one batch
        "02 00000064 000000c8"  # magic, byte offset, byte size
        "000000000000000a 000000000000000c"  # assigned offsets
        "00000000000003e8 00000000000003e7 01"  # append time, max timestamp, type
        "0000000000000007 0001 00000004 00000006"  # producer
        "00"  # tags of the batch
        "00"  # tags of the partition
        "00000004"
        "02"
        "02 00000064 000000c8"
        "0000000000000000 0000000000000000"
        "00000000000003e8 00000000000003e7 01"
        "0000000000000007 0001 00000004 00000004"
        "00"
        "00"
        "00"  # tags of the topic
        "04"  # four tagged fields
        "e807 08 00000000000003e9"  # 1000 CommittedAt
        "e907 09 03 00000001 00000000"  # 1001 Positions
        "ea07 3f 03"  # 1002 Refused, 63 bytes: two of 31
        "00000002 002d ffffffffffffffff ffffffffffffffff ffffffffffffffff 00"
        "00000003 0000 0000000000000009 0000000000000384 0000000000000002 00"
        "eb07 10 000102030405060708090a0b0c0d0e0f",  # 1003 RequestDigest
    ),
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
    """Those of metadata/control_records.py have theirs in test_control_records.py."""
    others = set(MetadataRecord.__args__) - set(ControlRecord.__args__)
    assert {type(record) for record, _ in GOLDEN} == others


# --- round trips ---------------------------------------------------------------------------------

int8 = st.integers(-(1 << 7), (1 << 7) - 1)
int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
uuids = st.sampled_from([UUID(int=number) for number in (0, 1, 1 << 127)]) | st.uuids()
names = st.text(st.characters(codec="utf-8"), max_size=30)
partitions = st.builds(TopicIdPartition, uuids, int32)
committed_batches = st.builds(
    CommittedBatch,
    partition=st.builds(
        TopicIdPartition,
        st.sampled_from([UUID(int=number) for number in range(3)]),
        st.integers(0, 3),
    ),
    position=int32,
    magic=int8,
    byte_offset=int32,
    byte_size=int32,
    base_offset=int64,
    last_offset=int64,
    log_append_time_ms=int64,
    max_timestamp_ms=int64,
    timestamp_type=int8,
    producer_id=int64,
    producer_epoch=int16,
    base_sequence=int32,
    last_sequence=int32,
)
refused_batches = st.builds(RefusedBatch, int32, int16, int64, int64, int64)
file_committed = st.builds(
    FileCommittedRecord,
    object_key=names,
    object_format=int8,
    file_size=int64,
    uploader_broker_id=int32,
    owner_ids=st.lists(int32, max_size=3).map(tuple),
    committed_at_ms=int64,
    batches=st.lists(committed_batches, max_size=8).map(tuple),
    refused=st.lists(refused_batches, max_size=3).map(tuple),
    request_digest=st.binary(min_size=16, max_size=16),
)
records = st.one_of(
    st.builds(PartitionCreatedRecord, topic_id=uuids, name=names, partition=int32),
    st.builds(TopicDeletedRecord, topic_id=uuids),
    file_committed,
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


def test_batches_in_request_order_store_no_positions() -> None:
    in_order = [batch(PARTITION, number, number, number) for number in range(20)]
    shuffled = [entry._replace(position=19 - entry.position) for entry in in_order]

    def encoded(batches: list[CommittedBatch]) -> bytes:
        return encode_record(
            FileCommittedRecord(
                object_key=ObjectKey("k"),
                object_format=1,
                file_size=1,
                uploader_broker_id=0,
                owner_ids=(0,),
                committed_at_ms=0,
                batches=tuple(batches),
            )
        )

    assert len(encoded(shuffled)) - len(encoded(in_order)) == 3 + 1 + 20 * 4
    decoded = decode_record(encoded(shuffled))
    assert isinstance(decoded, FileCommittedRecord)
    assert [entry.position for entry in decoded.batches] == list(range(19, -1, -1))


def test_a_topic_or_partition_is_named_once_for_all_its_batches() -> None:
    def size(batches: list[CommittedBatch]) -> int:
        return len(
            encode_record(
                FileCommittedRecord(
                    object_key=ObjectKey("k"),
                    object_format=1,
                    file_size=1,
                    uploader_broker_id=0,
                    owner_ids=(0,),
                    committed_at_ms=0,
                    batches=tuple(batches),
                )
            )
        )

    one = size([batch(PARTITION, 0, 0, 0)])
    same_partition = size([batch(PARTITION, number, 0, 0) for number in range(2)])
    same_topic = size([batch(TopicIdPartition(TOPIC, number), number, 0, 0) for number in range(2)])
    assert same_partition - one == 61
    assert same_topic - one == 61 + 4 + 1 + 1


@pytest.mark.parametrize(
    "record",
    [
        RecordsDeletedRecord(partition=PARTITION, new_log_start_offset=1 << 63),
        PartitionCreatedRecord(topic_id=TOPIC, name="n", partition=1 << 31),
        FileCommittedRecord(
            object_key=ObjectKey("k"),
            object_format=1,
            file_size=1,
            uploader_broker_id=0,
            owner_ids=(0,),
            committed_at_ms=0,
            batches=(batch(PARTITION, 0, 0, 0)._replace(byte_offset=ByteOffset(1 << 31)),),
        ),
    ],
    ids=["int64", "int32", "batch"],
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


def test_unknown_tagged_fields_are_skipped_in_every_structure_of_a_committed_file() -> None:
    data = encode_record(FILE_COMMITTED)
    tags = tag_section({3: b"x" * 200})
    first_batch_at = data.index(struct.pack(">bii", 2, 100, 200))
    first_tags = first_batch_at + 60
    second_tags = data.index(struct.pack(">bii", 2, 100, 200), first_tags) + 60
    # Of the first batch and its partition, of the second one, and of the topic.
    assert data[first_tags : first_tags + 2] == data[second_tags : second_tags + 2] == b"\0\0"
    assert data[second_tags + 2] == 0
    extended = b"".join(
        (
            data[:first_tags],
            tags,
            tags,
            data[first_tags + 2 : second_tags],
            tags,
            tags,
            tags,
            data[second_tags + 3 :],
        )
    )
    assert decode_record(extended) == FILE_COMMITTED


def test_a_record_of_unknown_type_or_version_is_refused_and_never_skipped() -> None:
    body = encode_record(ProducerIdsAllocatedRecord(next_producer_id=1))[4:]
    for frame in (
        uvarint(1) + uvarint(99) + uvarint(0),
        uvarint(1) + uvarint(1001) + uvarint(1),
    ):
        with pytest.raises(CorruptLog, match="unknown record type"):
            decode_record(frame + body)
    with pytest.raises(CorruptLog, match="frame version 2"):
        decode_record(uvarint(2) + uvarint(1001) + uvarint(0) + body)


def test_a_committed_file_without_its_time_of_commit_is_refused() -> None:
    record = FileCommittedRecord(
        object_key=ObjectKey("k"),
        object_format=1,
        file_size=1,
        uploader_broker_id=0,
        owner_ids=(),
        committed_at_ms=1 << 40,
        batches=(),
    )
    data = encode_record(record)
    at = data.index(b"\x02" + uvarint(COMMITTED_AT_TAG))
    with pytest.raises(CorruptLog, match="time of commit"):
        decode_record(data[:at] + b"\x00")


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
