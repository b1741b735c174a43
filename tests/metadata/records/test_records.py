"""Metadata records: bytes written out by hand, round trips, garbage.

FileCommitted has a file of its own, tests/metadata/records/test_file_committed.py; what control
records do to the state is in test_control_records.py.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metadata.records import groups
from metadata.records.records import (
    RECORD_TYPES,
    FileCommittedRecord,
    MetadataRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    decode_record,
    encode_record,
)
from tests.support.profiles import examples
from tests.support.samples.file_samples import files
from tests.support.samples.record_samples import GOLDEN, PARTITION, TOPIC
from tests.support.samples.typed_samples import values_of
from wal.errors import CorruptLog
from wal.wire.fields import FieldReader, tag_section, uvarint

GOLDEN_IDS = [type(record).__name__ for record, _ in GOLDEN]


@pytest.mark.parametrize(("record", "expected"), GOLDEN, ids=GOLDEN_IDS)
def test_a_record_is_exactly_the_bytes_of_its_schema(record: MetadataRecord, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert encode_record(record) == data
    assert decode_record(data) == record


def test_every_record_type_has_golden_bytes() -> None:
    assert {type(record) for record, _ in GOLDEN} == set(MetadataRecord.__args__)


# --- round trips ---------------------------------------------------------------------------------

records = st.one_of(
    files, *(values_of(kind) for kind in MetadataRecord.__args__ if kind is not FileCommittedRecord)
)


@examples(3)
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
        groups.OffsetsCommittedRecord(
            group_id="g",
            offsets=(groups.CommittedOffset(partition=PARTITION, offset=1 << 63, commit_ms=0),),
        ),
        groups.GroupStoredRecord(group_id="g", kind=128, state=b"", updated_ms=0),
        groups.GroupDeletedRecord(group_id="\ud800"),
    ],
    ids=["int64", "int32", "of an item", "int8", "lone surrogate"],
)
def test_what_does_not_fit_its_field_is_refused_by_name(record: MetadataRecord) -> None:
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


def test_unknown_tagged_fields_of_an_item_are_skipped() -> None:
    record = groups.OffsetsCommittedRecord(
        group_id="g", offsets=(groups.CommittedOffset(partition=PARTITION, offset=1, commit_ms=2),)
    )
    encoded = encode_record(record)
    assert encoded.endswith(b"\x00\x00")
    assert decode_record(with_unknown_tags(encoded[:-1]) + b"\x00") == record


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


@pytest.mark.parametrize(
    ("api_key", "before"),
    [(1004, b""), (1020, b"\x02g"), (1021, b"\x02g" + bytes(8)), (1022, b"\x02g" + bytes(9))],
)
def test_a_count_beyond_the_bytes_is_refused_before_anything_is_allocated(
    api_key: int, before: bytes
) -> None:
    huge = uvarint(1) + uvarint(api_key) + uvarint(0) + before + uvarint(0xFFFFFFFF)
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
    for api_key in RECORD_TYPES:
        decoded_or_refused(uvarint(1) + uvarint(api_key) + uvarint(0) + data)


@examples(3)
@given(records, st.data())
def test_a_damaged_record_is_refused_with_nothing_but_corrupt_log(
    record: MetadataRecord, data: Any
) -> None:
    encoded = bytearray(encode_record(record))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] = data.draw(st.integers(0, 255))
    decoded_or_refused(bytes(encoded))


@examples(3)
@given(records)
def test_a_record_cut_anywhere_is_refused(record: MetadataRecord) -> None:
    encoded = encode_record(record)
    for length in range(len(encoded)):
        with pytest.raises(CorruptLog):
            decode_record(encoded[:length])
