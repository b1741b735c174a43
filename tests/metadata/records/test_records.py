"""Metadata records: bytes written out by hand, round trips, garbage.

FileCommitted has a file of its own, tests/metadata/records/test_file_committed.py; what control
records do to the state is in test_control_records.py.
"""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metadata.access_tokens import AccessToken
from metadata.acls import AclBinding
from metadata.records import acls, control, groups, rewrites, sinks, tables, transactions, users
from metadata.records.records import (
    RECORD_TYPES,
    FileCommittedRecord,
    FilesDeletedRecord,
    MetadataRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
    TopicColumnsRecord,
    TopicConfigsRecord,
    TopicDeletedRecord,
    decode_record,
    encode_record,
)
from metadata.scram.credentials import ScramCredential
from metadata.sink_operations import Sink, SinkRange, StoredShare
from metadata.transaction_operations import TransactionGroup, TransactionPartition
from tests.metadata.records.test_file_committed import ENCODED, FILE_COMMITTED, files
from tests.support.profiles import examples
from tests.support.samples.typed_samples import values_of
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptLog
from wal.wire.fields import FieldReader, tag_section, uvarint

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
TOPIC_HEX = "00112233445566778899aabbccddeeff"
PARTITION = TopicIdPartition(TOPIC, 3)
LIFE = UUID(int=7)
RULE = AclBinding(2, "t", 3, "User:u", "*", 4, 3)
RULE_HEX = "02 02 74 03 07 557365723a75 02 2a 04 03"
LIFE_HEX = "00000000000000000000000000000007"
KEY = ObjectKey("wal/00/K")
KEY_HEX = "09" + b"wal/00/K".hex()


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
    (
        TopicColumnsRecord(topic_id=TOPIC, version=2, basis=b"b", columns=b"cd"),
        f"01 9508 00 {TOPIC_HEX} 0000000000000002 02 62 03 6364 00",
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
        "01"  # no columns
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
    (
        control.LeaderChangeRecord(
            leader_epoch=3,
            broker_id=2,
            host="h",
            port=9092,
            incarnation=LIFE,
            successor_id=-1,
            metadata_version=1,
        ),
        "01 ed07 00 00000003 00000002 0268 00002384" + LIFE_HEX + "ffffffff 00000001 00",
    ),
    (
        control.PartitionsAssignedRecord(
            topic_id=TOPIC, name="t", first_partition=1, coordinators=(1, 2)
        ),
        "01 ee07 00" + TOPIC_HEX + "0274 00000001 03 00000001 00000002 00",
    ),
    (
        control.FileHandedOverRecord(
            object_key=KEY, object_format=1, file_size=500, owner_ids=(1, 0)
        ),
        "01 ef07 00" + KEY_HEX + "01 00000000000001f4 03 00000001 00000000 00",
    ),
    (control.FilesTombstonedRecord(object_keys=(KEY,)), "01 f007 00 02" + KEY_HEX + "00"),
    (
        control.ProducersExpiredRecord(before_ms=9, limit=5),
        "01 f107 00 0000000000000009 00000005 00",
    ),
    (control.NoOpRecord(leader_epoch=4), "01 f207 00 00000004 00"),
    (
        control.BrokerRegisteredRecord(
            broker_id=2,
            host="h",
            port=9092,
            rack="r",
            incarnation=LIFE,
            endpoints="X",
            may_lead=True,
            metadata_version=1,
        ),
        "01 f307 00 00000002 0268 00002384 0272" + LIFE_HEX + "0258 01 00000001 00",
    ),
    (  # an empty string is not none
        control.BrokerRegisteredRecord(
            broker_id=2,
            host="",
            port=0,
            rack="",
            incarnation=LIFE,
            endpoints="",
            may_lead=False,
            metadata_version=1,
        ),
        "01 f307 00 00000002 01 00000000 01" + LIFE_HEX + "01 00 00000001 00",
    ),
    (control.BrokerUnregisteredRecord(broker_id=2), "01 f407 00 00000002 00"),
    (control.RowsSweptRecord(limit=500), "01 f507 00 000001f4 00"),
    (
        control.ClientQuotasRecord(
            entity=(("ip", "a"), ("user", None)), quotas={"r": 2.5, "k": 1.0}
        ),
        "01 f607 00 03 03 6970 00 02 61 00  05 75736572 01 01 00"
        "03 02 6b 3ff0000000000000 00  02 72 4004000000000000 00  00",
    ),
    (
        users.ScramCredentialSetRecord(
            user="ann",
            mechanism=2,
            credential=ScramCredential(
                iterations=4_096, salt=b"\x01\x02", stored_key=b"\x03", server_key=b"\x04"
            ),
        ),
        "01 f707 00 04 616e6e 02 00001000 03 0102 02 03 02 04 00",
    ),
    (
        users.ScramCredentialRemovedRecord(user="ann", mechanism=1),
        "01 f807 00 04 616e6e 01 00",
    ),
    (
        users.AccessTokenCreatedRecord(token=AccessToken("t", "u", b"d", 1, 2)),
        "01 f907 00 02 74 02 75 02 64 0000000000000001 0000000000000002 00",
    ),
    (
        users.AccessTokensRemovedRecord(token_ids=("t",)),
        "01 fa07 00 02 02 74 00",
    ),
    (
        groups.OffsetsCommittedRecord(
            group_id="g",
            offsets=(
                groups.CommittedOffset(
                    partition=PARTITION,
                    offset=9,
                    commit_ms=5,
                    leader_epoch=2,
                    metadata="é",
                    expire_ms=7,
                ),
                groups.CommittedOffset(partition=PARTITION, offset=10, commit_ms=6),
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
        groups.OffsetsDeletedRecord(group_id="g", partitions=(PARTITION,)),
        f"01 fd07 00 02 67 7fffffffffffffff 02 {TOPIC_HEX} 00000003 00 00",
    ),
    (
        groups.GroupStoredRecord(group_id="g", kind=2, state=b"\x00\xff", updated_ms=8),
        "01 fe07 00 02 67 02 0000000000000008 03 00ff 00",
    ),
    (groups.GroupDeletedRecord(group_id="g"), "01 ff07 00 02 67 00"),
    (acls.AccessControlEntryRecord(rule=RULE), f"01 8608 00 {RULE_HEX} 00"),
    (acls.RemoveAccessControlEntryRecord(rule=RULE), f"01 8708 00 {RULE_HEX} 00"),
    (
        rewrites.RewritePlannedRecord(
            partition=PARTITION,
            generation=4,
            kind=2,
            base_offset=5,
            last_offset=6,
            planned_at_ms=7,
            delete_horizon_ms=8,
            target_bytes=9,
        ),
        f"01 a408 00 {TOPIC_HEX} 00000003 00000004 02 0000000000000005 0000000000000006"
        "0000000000000007 0000000000000008 0000000000000009 00",
    ),
    (
        rewrites.SegmentRewrittenRecord(
            partition=PARTITION,
            generation=4,
            base_offset=5,
            last_offset=6,
            object_key=KEY,
            object_bytes=7,
            crc32c=2**32 - 1,
            record_count=8,
            removed_count=9,
            max_timestamp_ms=10,
        ),
        f"01 a508 00 {TOPIC_HEX} 00000003 00000004 0000000000000005 0000000000000006 {KEY_HEX}"
        "0000000000000007 ffffffff 00000008 00000009 000000000000000a 00",
    ),
    (
        rewrites.RewriteEndedRecord(partition=PARTITION, generation=4, cleaned_end_offset=5),
        f"01 a608 00 {TOPIC_HEX} 00000003 00000004 0000000000000005 00",
    ),
    (
        sinks.SinkCommittedRecord(
            sink=Sink(
                sink_id="s",
                principal="p",
                batch_id=1,
                digest=b"d",
                committed_at_ms=2,
                ranges=(SinkRange(PARTITION, 4, 5),),
            )
        ),
        "01 9a08 00 02 73 02 70 0000000000000001 02 64 0000000000000002"
        f"02 {TOPIC_HEX} 00000003 0000000000000004 0000000000000005 00 00",
    ),
    (
        sinks.SinkDecidedRecord(
            sink=Sink(
                sink_id="s",
                principal="p",
                batch_id=7,
                digest=b"d",
                committed_at_ms=9,
                ranges=(),
            ),
            shares=(StoredShare(2, (ObjectKey("a"), ObjectKey("bc")), b"f"),),
        ),
        "01 9c08 00 02 73 02 70 0000000000000007 02 64 0000000000000009 01"
        "02 00000002 03 02 61 03 6263 02 66 00 00",
    ),
    (
        sinks.SinksExpiredRecord(sink_ids=("s",)),
        "01 9b08 00 02 02 73 00",
    ),
    (
        tables.TableCommittedRecord(
            topic_id=TOPIC,
            old_location=ObjectKey("a"),
            new_location=ObjectKey("b"),
            applied={3: 8, 0: 7},
            committed_at_ms=5,
            retention_ms=6,
        ),
        f"01 9008 00 {TOPIC_HEX} 02 61 02 62"
        "03 00000000 0000000000000007 00 00000003 0000000000000008 00"
        "0000000000000005 0000000000000006 00",
    ),
    (
        transactions.TransactionBeganRecord(
            transactional_id="t",
            producer_id=1,
            producer_epoch=2,
            last_producer_id=3,
            last_epoch=4,
            timeout_ms=5,
            at_ms=6,
        ),
        "01 ae08 00 0274000000000000 0001000200000000 0000000300040000 0005000000000000 000600",
    ),
    (
        transactions.TransactionGrewRecord(
            transactional_id="t",
            number=1,
            at_ms=2,
            bumps_epoch=True,
            partitions=(TransactionPartition(PARTITION, 4),),
            groups=(TransactionGroup("g", 5),),
        ),
        f"01 af08 00 0274000000000000 0001000000000000 00020102 {TOPIC_HEX} "
        "0000000300000004 0002026700000005 0000",
    ),
    (
        transactions.TransactionDecidedRecord(
            transactional_id="t",
            number=1,
            is_commit=True,
            producer_epoch=2,
            last_epoch=3,
            next_producer_id=5,
            at_ms=4,
        ),
        "01 b008 00 0274000000000000 0001010002000300 0000000000000500 0000000000000400",
    ),
    (
        transactions.TransactionEndedRecord(
            producer_id=1,
            producer_epoch=2,
            number=3,
            is_commit=False,
            coordinator_epoch=4,
            ended_ms=5,
            partitions=(transactions.EndedPartition(PARTITION, 8, 6, 9),),
            group_id="g",
        ),
        "01 b108 00 0000000000000001 0002000000000000 0003000000000400 0000000000000502 "
        f"{TOPIC_HEX} 0000000300000000 0000000800000000 0000000600000000 "
        "00000009000267 00",
    ),
    (
        transactions.TransactionCompletedRecord(transactional_id="t", number=1, at_ms=2),
        "01 b208 00 0274000000000000 0001000000000000 000200",
    ),
    (
        transactions.TransactionalIdsExpiredRecord(transactional_ids=("t",)),
        "01 b308 00 02027400",
    ),
    (
        transactions.TransactionalOffsetsRecord(
            group_id="g",
            producer_id=1,
            number=2,
            offsets=(groups.CommittedOffset(PARTITION, 4, 5, 6, "m", 7),),
        ),
        f"01 b408 00 0267000000000000 0001000000000000 000202 {TOPIC_HEX} "
        "0000000300000000 0000000400000006 0000000000000005 0000000000000007 026d0000",
    ),
    (
        transactions.ClosedTransactionsExpiredRecord(before_ms=1, limit=2),
        "01 b508 00 0000000000000001 0000000200",
    ),
    (
        transactions.ConstantFixedRecord(name=1, value=4),
        "01 b608 00 00000001 000000000000000400",
    ),
]
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
