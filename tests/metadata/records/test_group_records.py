"""Records about consumer groups: bytes written out by hand, round trips, garbage."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.records.groups import (
    CommittedOffset,
    GroupDeletedRecord,
    GroupRecord,
    GroupStoredRecord,
    OffsetsCommittedRecord,
    OffsetsDeletedRecord,
)
from metadata.records.records import (
    MetadataRecord,
    RecordsDeletedRecord,
    decode_record,
    encode_record,
)
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptLog
from wal.wire.fields import tag_section, uvarint

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
TOPIC_HEX = "00112233445566778899aabbccddeeff"
PARTITION = TopicIdPartition(TOPIC, 3)

GOLDEN: list[tuple[GroupRecord, str]] = [
    (
        OffsetsCommittedRecord(
            group_id="g",
            offsets=(
                CommittedOffset(
                    partition=PARTITION,
                    offset=9,
                    commit_ms=5,
                    leader_epoch=2,
                    metadata="é",
                    expire_ms=7,
                ),
                CommittedOffset(partition=PARTITION, offset=10, commit_ms=6),
            ),
        ),
        "01 fc07 00"  # frame version 1, api key 1020, version 0
        "02 67"
        "03"  # two offsets
        f"{TOPIC_HEX} 00000003 0000000000000009 00000002 0000000000000005 0000000000000007"
        "03 c3a9 00"
        f"{TOPIC_HEX} 00000003 000000000000000a ffffffff 0000000000000006 ffffffffffffffff"
        "01 00"
        "00",
    ),
    (
        OffsetsDeletedRecord(group_id="g", partitions=(PARTITION,)),
        f"01 fd07 00 02 67 7fffffffffffffff 02 {TOPIC_HEX} 00000003 00 00",
    ),
    (
        GroupStoredRecord(group_id="g", kind=2, state=b"\x00\xff", updated_ms=8),
        "01 fe07 00 02 67 02 0000000000000008 03 00ff 00",
    ),
    (GroupDeletedRecord(group_id="g"), "01 ff07 00 02 67 00"),
]


@pytest.mark.parametrize(("record", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_a_group_record_is_exactly_these_bytes(record: GroupRecord, data: str) -> None:
    assert encode_record(record).hex() == data.replace(" ", "")
    assert decode_record(bytes.fromhex(data)) == record


def test_every_group_record_has_golden_bytes() -> None:
    assert {type(record) for record, _ in GOLDEN} == set(GroupRecord.__args__)


int8 = st.integers(-(1 << 7), (1 << 7) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
names = st.text(st.characters(codec="utf-8"), max_size=20)
partitions = st.builds(TopicIdPartition, st.uuids(), int32)
offsets = st.builds(
    CommittedOffset,
    partition=partitions,
    offset=int64,
    commit_ms=int64,
    leader_epoch=int32,
    metadata=names,
    expire_ms=int64,
)
records = st.one_of(
    st.builds(
        OffsetsCommittedRecord, group_id=names, offsets=st.lists(offsets, max_size=4).map(tuple)
    ),
    st.builds(
        OffsetsDeletedRecord,
        group_id=names,
        partitions=st.lists(partitions, max_size=4).map(tuple),
        committed_until_ms=int64,
    ),
    st.builds(
        GroupStoredRecord,
        group_id=names,
        kind=int8,
        state=st.binary(max_size=300),
        updated_ms=int64,
    ),
    st.builds(GroupDeletedRecord, group_id=names),
)


@given(records)
def test_every_group_record_comes_back_as_it_was(record: GroupRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(records)
def test_a_group_record_cut_anywhere_is_refused(record: GroupRecord) -> None:
    encoded = encode_record(record)
    for length in range(len(encoded)):
        with pytest.raises(CorruptLog):
            decode_record(encoded[:length])


@pytest.mark.parametrize("record", [record for record, _ in GOLDEN])
def test_unknown_tagged_fields_of_a_group_record_are_skipped(record: GroupRecord) -> None:
    encoded = encode_record(record)
    tags = tag_section({5: b"", 77: b"from the future"})
    assert decode_record(encoded[:-1] + tags) == record


def test_unknown_tagged_fields_of_an_offset_are_skipped() -> None:
    record = OffsetsCommittedRecord(
        group_id="g", offsets=(CommittedOffset(partition=PARTITION, offset=1, commit_ms=2),)
    )
    encoded = encode_record(record)
    assert encoded.endswith(b"\x00\x00")
    assert decode_record(encoded[:-2] + tag_section({3: b"new"}) + b"\x00") == record


@pytest.mark.parametrize(
    "record",
    [
        OffsetsCommittedRecord(
            group_id="g",
            offsets=(CommittedOffset(partition=PARTITION, offset=1 << 63, commit_ms=0),),
        ),
        GroupStoredRecord(group_id="g", kind=128, state=b"", updated_ms=0),
        GroupDeletedRecord(group_id="\ud800"),
    ],
    ids=["offset", "kind", "lone surrogate"],
)
def test_what_does_not_fit_its_field_is_refused_by_name(record: GroupRecord) -> None:
    with pytest.raises(ValueError, match=type(record).__name__):
        encode_record(record)


def decoded_or_refused(data: bytes) -> MetadataRecord:
    try:
        return decode_record(data)
    except CorruptLog:
        return RecordsDeletedRecord(partition=PARTITION, new_log_start_offset=0)


@given(st.binary(max_size=300))
def test_garbage_is_refused_with_nothing_but_corrupt_log(data: bytes) -> None:
    for api_key in (1020, 1021, 1022, 1023):
        decoded_or_refused(uvarint(1) + uvarint(api_key) + uvarint(0) + data)


@given(records, st.data())
def test_a_damaged_group_record_is_refused_with_nothing_but_corrupt_log(
    record: GroupRecord, data: Any
) -> None:
    encoded = bytearray(encode_record(record))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] = data.draw(st.integers(0, 255))
    decoded_or_refused(bytes(encoded))


def test_a_count_beyond_the_bytes_is_refused_before_anything_is_allocated() -> None:
    for api_key, before in (
        (1020, b"\x02g"),
        (1021, b"\x02g" + bytes(8)),
        (1022, b"\x02g" + bytes(9)),
    ):
        huge = uvarint(1) + uvarint(api_key) + uvarint(0) + before + uvarint(0xFFFFFFFF)
        with pytest.raises(CorruptLog, match="an array of 4294967294 elements in 0 bytes"):
            decode_record(huge)
