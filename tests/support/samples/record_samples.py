"""A record of every type, and its bytes, written out by hand."""

from uuid import UUID

from metadata.access_tokens import AccessToken
from metadata.acls import AclBinding
from metadata.records import acls, control, groups, rewrites, sinks, tables, transactions, users
from metadata.records.file_committed import (
    CommittedBatch,
    FileCommittedRecord,
    RefusedBatch,
)
from metadata.records.records import (
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
)
from metadata.scram.credentials import ScramCredential
from metadata.sink_operations import Sink, SinkRange, StoredShare
from metadata.transaction_operations import TransactionGroup, TransactionPartition
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
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

# A column: count + 1, width, smallest in zigzag, entries.
ENCODED = bytes.fromhex(
    "01 66 01"
    "09 77616c2f30662f4b"
    "01 000000000000012c 00000005"
    "03 00000000 00000002"
    "00000000000003e9"  # CommittedAt
    "000102030405060708090a0b0c0d0e0f"  # RequestDigest
    "02 00112233445566778899aabbccddeeff 02 00"  # one topic, two runs, no tags
    "03 01 06 00 01"  # PartitionIndex 3, 4
    "03 00 02"  # BatchCount 1, 1
    "03 01 00 0a 00"  # FirstOffset 10, 0
    "00000064"  # FirstByte
    "03 01 9003 00 00"  # ByteSize 200, 200: a leading column has entries
    "03 01 8f03 c8 00"  # ByteGap 0, -200
    "03 01 00 02 00"  # RecordSpan 2, 0
    "03 00 00"  # OffsetGap
    "03 00 01"  # AppendTime -1, -1
    "03 00 03"  # MaxTimestamp -2, -2
    "03 00 04"  # Magic
    "03 00 02"  # TimestampType
    "03 00 0e"  # ProducerId
    "03 00 02"  # ProducerEpoch
    "03 00 08"  # BaseSequence
    "03 00 00"  # SequenceGap
    "06"  # six tagged fields
    "e907 05 03 01 01 02 00"  # 1001 Positions: 1 - 0, 0 - 1
    "ec07 05 03 01 04 00 01"  # 1004 RefusedPosition 2, 3
    "ed07 05 03 01 00 2d 00"  # 1005 ErrorCode 45, 0
    "ee07 05 03 01 01 00 0a"  # 1006 DuplicateOffset -1, 9
    "ef07 07 03 02 01 0000 8503"  # 1007 DuplicateAppendTime -1, 900
    "f007 05 03 01 01 00 03"  # 1008 LogStartOffset -1, 2
)

TOPIC_HEX = "00112233445566778899aabbccddeeff"
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
