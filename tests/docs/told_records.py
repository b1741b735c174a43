"""A record of every type, with the fields that docs/formats.md tells of it."""

from typing import Any, Final
from uuid import UUID

from metadata.access_tokens import AccessToken
from metadata.acls import AclBinding
from metadata.records import acls as acl_records
from metadata.records import control, records, users
from metadata.records import groups as group_records
from metadata.records import rewrites as rewrite_records
from metadata.records import sinks as sink_records
from metadata.records import tables as table_records
from metadata.records import transactions as transaction_records
from metadata.scram.credentials import ScramCredential
from metadata.sink_operations import Sink, SinkRange, StoredShare
from metadata.transaction_operations import TransactionGroup, TransactionPartition
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition

TOPIC: Final = UUID(int=0x1234 << 64 | 7)
PLACE: Final = TopicIdPartition(TOPIC, 3)

FILE_COMMITTED: Final = records.FileCommittedRecord(
    object_key=ObjectKey("wal/00/X"),
    object_format=1,
    file_size=2,
    uploader_broker_id=4,
    owner_ids=(5, 6),
    committed_at_ms=7,
    batches=(
        records.CommittedBatch(
            PLACE, 1, 2, ByteOffset(8), 9, Offset(10), Offset(11), 12, 13, 1, 14, 15, 16, 17
        ),
    ),
    refused=(records.RefusedBatch(0, 45, 18, 19, 20),),
    request_digest=bytes(range(16)),
)

RULE: Final = AclBinding(2, "t", 3, "User:u", "*", 4, 3)
RULE_FIELDS: Final = {
    "ResourceType": 2,
    "ResourceName": "t",
    "PatternType": 3,
    "Principal": "User:u",
    "Host": "*",
    "Operation": 4,
    "Permission": 3,
}

RECORDS: Final[dict[str, tuple[records.MetadataRecord, dict[str, Any]]]] = {
    "100 PartitionCreated": (
        records.PartitionCreatedRecord(topic_id=TOPIC, name="flights", partition=3),
        {"TopicId": TOPIC, "Name": "flights", "PartitionIndex": 3},
    ),
    "101 TopicDeleted": (records.TopicDeletedRecord(topic_id=TOPIC), {"TopicId": TOPIC}),
    "102 FileCommitted, version 1": (
        FILE_COMMITTED,
        {
            "ObjectKey": "wal/00/X",
            "ObjectFormat": 1,
            "FileSize": 2,
            "UploaderBrokerId": 4,
            "OwnerIds": [5, 6],
            "CommittedAt": 7,
            "RequestDigest": bytes(range(16)),
            "Topics": [{"TopicId": TOPIC, "RunCount": 1}],
            "PartitionIndex": [3],
            "BatchCount": [1],
            "FirstOffset": [10],
            "FirstByte": 8,
            "ByteSize": [9],
            "ByteGap": [0],
            "RecordSpan": [1],
            "OffsetGap": [0],
            "AppendTime": [5],
            "MaxTimestamp": [6],
            "Magic": [2],
            "TimestampType": [1],
            "ProducerId": [14],
            "ProducerEpoch": [15],
            "BaseSequence": [16],
            "SequenceGap": [0],
            "Positions": [1],
            "RefusedPosition": [0],
            "ErrorCode": [45],
            "DuplicateOffset": [18],
            "DuplicateAppendTime": [19],
            "LogStartOffset": [20],
        },
    ),
    "103 RecordsDeleted": (
        records.RecordsDeletedRecord(partition=PLACE, new_log_start_offset=9),
        {"TopicId": TOPIC, "PartitionIndex": 3, "NewLogStartOffset": 9},
    ),
    "1000 TopicConfigs": (
        records.TopicConfigsRecord(topic_id=TOPIC, configs={"b": "2", "a": "1"}),
        {
            "TopicId": TOPIC,
            "Configs": [{"Name": "a", "Value": "1"}, {"Name": "b", "Value": "2"}],
        },
    ),
    "1001 ProducerIdsAllocated": (
        records.ProducerIdsAllocatedRecord(next_producer_id=1000),
        {"NextProducerId": 1000},
    ),
    "1002 SegmentPlanned": (
        records.SegmentPlannedRecord(
            partition=PLACE,
            base_offset=1,
            last_offset=2,
            object_key=ObjectKey("s"),
            planned_at_ms=4,
            columns=b"c",
        ),
        {
            "TopicId": TOPIC,
            "PartitionIndex": 3,
            "BaseOffset": 1,
            "LastOffset": 2,
            "ObjectKey": "s",
            "PlannedAt": 4,
            "Columns": b"c",
        },
    ),
    "1003 SegmentCommitted": (
        records.SegmentCommittedRecord(
            partition=PLACE,
            base_offset=1,
            last_offset=2,
            object_key=ObjectKey("s"),
            object_bytes=4,
            crc32c=0xFFFFFFFF,
            record_count=6,
            max_timestamp_ms=7,
        ),
        {
            "TopicId": TOPIC,
            "PartitionIndex": 3,
            "BaseOffset": 1,
            "LastOffset": 2,
            "ObjectKey": "s",
            "ObjectSize": 4,
            "Crc32c": 0xFFFFFFFF,
            "RecordCount": 6,
            "MaxTimestamp": 7,
        },
    ),
    "1004 FilesDeleted": (
        records.FilesDeletedRecord(object_keys=(ObjectKey("a"), ObjectKey("b"))),
        {"ObjectKeys": ["a", "b"]},
    ),
    "1005 LeaderChange": (
        control.LeaderChangeRecord(
            leader_epoch=1,
            broker_id=2,
            host="h",
            port=3,
            incarnation=TOPIC,
            successor_id=4,
            metadata_version=1,
        ),
        {
            "LeaderEpoch": 1,
            "BrokerId": 2,
            "Host": "h",
            "Port": 3,
            "Incarnation": TOPIC,
            "SuccessorId": 4,
            "MetadataVersion": 1,
        },
    ),
    "1006 PartitionsAssigned": (
        control.PartitionsAssignedRecord(
            topic_id=TOPIC, name="flights", first_partition=1, coordinators=(2, 3)
        ),
        {"TopicId": TOPIC, "Name": "flights", "FirstPartition": 1, "Coordinators": [2, 3]},
    ),
    "1007 FileHandedOver": (
        control.FileHandedOverRecord(
            object_key=ObjectKey("a"), object_format=1, file_size=2, owner_ids=(3, 4)
        ),
        {"ObjectKey": "a", "ObjectFormat": 1, "FileSize": 2, "OwnerIds": [3, 4]},
    ),
    "1008 FilesTombstoned": (
        control.FilesTombstonedRecord(object_keys=(ObjectKey("a"), ObjectKey("b"))),
        {"ObjectKeys": ["a", "b"]},
    ),
    "1009 ProducersExpired": (
        control.ProducersExpiredRecord(before_ms=1, limit=2),
        {"BeforeMs": 1, "Limit": 2},
    ),
    "1078 ConstantFixed": (
        transaction_records.ConstantFixedRecord(name=1, value=4),
        {"Name": 1, "Value": 4},
    ),
    "1010 NoOp": (control.NoOpRecord(leader_epoch=1), {"LeaderEpoch": 1}),
    "1011 BrokerRegistered": (
        control.BrokerRegisteredRecord(
            broker_id=1,
            host="h",
            port=2,
            rack="r",
            incarnation=TOPIC,
            endpoints="A://h:3",
            may_lead=True,
            metadata_version=1,
        ),
        {
            "BrokerId": 1,
            "Host": "h",
            "Port": 2,
            "Rack": "r",
            "Incarnation": TOPIC,
            "Endpoints": "A://h:3",
            "MayLead": 1,
            "MetadataVersion": 1,
        },
    ),
    "1012 BrokerUnregistered": (control.BrokerUnregisteredRecord(broker_id=1), {"BrokerId": 1}),
    "1013 RowsSwept": (control.RowsSweptRecord(limit=1), {"Limit": 1}),
    "1045 TopicColumns": (
        records.TopicColumnsRecord(topic_id=TOPIC, version=2, basis=b"b", columns=b"c"),
        {"TopicId": TOPIC, "Version": 2, "Basis": b"b", "Columns": b"c"},
    ),
    "1014 ClientQuotas": (
        control.ClientQuotasRecord(
            entity=(("client-id", "c"), ("user", None)), quotas={"b": 2.5, "a": 1}
        ),
        {
            "Entity": [
                {"Type": "client-id", "IsDefault": 0, "Name": "c"},
                {"Type": "user", "IsDefault": 1, "Name": ""},
            ],
            "Quotas": [{"Key": "a", "Value": 1.0}, {"Key": "b", "Value": 2.5}],
        },
    ),
    "1015 ScramCredentialSet": (
        users.ScramCredentialSetRecord(
            user="u",
            mechanism=2,
            credential=ScramCredential(
                iterations=8_192, salt=b"s", stored_key=b"stored", server_key=b""
            ),
        ),
        {
            "User": "u",
            "Mechanism": 2,
            "Iterations": 8_192,
            "Salt": b"s",
            "StoredKey": b"stored",
            "ServerKey": b"",
        },
    ),
    "1016 ScramCredentialRemoved": (
        users.ScramCredentialRemovedRecord(user="u", mechanism=1),
        {"User": "u", "Mechanism": 1},
    ),
    "1017 AccessTokenCreated": (
        users.AccessTokenCreatedRecord(token=AccessToken("t", "u", b"d", 1, 2)),
        {"TokenId": "t", "User": "u", "Digest": b"d", "MadeAt": 1, "EndsAt": 2},
    ),
    "1018 AccessTokensRemoved": (
        users.AccessTokensRemovedRecord(token_ids=["a", "b"]),
        {"TokenIds": ["a", "b"]},
    ),
    "1020 OffsetsCommitted": (
        group_records.OffsetsCommittedRecord(
            group_id="g",
            offsets=[
                group_records.CommittedOffset(
                    partition=PLACE,
                    offset=1,
                    commit_ms=2,
                    leader_epoch=4,
                    metadata="m",
                    expire_ms=5,
                )
            ],
        ),
        {
            "GroupId": "g",
            "Offsets": [
                {
                    "TopicId": TOPIC,
                    "PartitionIndex": 3,
                    "Offset": 1,
                    "LeaderEpoch": 4,
                    "CommitTime": 2,
                    "ExpireTime": 5,
                    "Metadata": "m",
                }
            ],
        },
    ),
    "1021 OffsetsDeleted": (
        group_records.OffsetsDeletedRecord(group_id="g", partitions=[PLACE], committed_until_ms=2),
        {
            "GroupId": "g",
            "CommittedUntil": 2,
            "Partitions": [{"TopicId": TOPIC, "PartitionIndex": 3}],
        },
    ),
    "1022 GroupStored": (
        group_records.GroupStoredRecord(group_id="g", kind=2, state=b"\xff", updated_ms=3),
        {"GroupId": "g", "Kind": 2, "UpdatedAt": 3, "State": b"\xff"},
    ),
    "1023 GroupDeleted": (group_records.GroupDeletedRecord(group_id="g"), {"GroupId": "g"}),
    "1030 AccessControlEntry": (acl_records.AccessControlEntryRecord(rule=RULE), RULE_FIELDS),
    "1031 RemoveAccessControlEntry": (
        acl_records.RemoveAccessControlEntryRecord(rule=RULE),
        RULE_FIELDS,
    ),
    "1050 SinkCommitted": (
        sink_records.SinkCommittedRecord(
            sink=Sink(
                sink_id="s",
                principal="User:u",
                batch_id=1,
                digest=b"d",
                committed_at_ms=2,
                ranges=[SinkRange(PLACE, 4, 5)],
            )
        ),
        {
            "SinkId": "s",
            "Principal": "User:u",
            "BatchId": 1,
            "Digest": b"d",
            "CommittedAt": 2,
            "Ranges": [{"TopicId": TOPIC, "PartitionIndex": 3, "BaseOffset": 4, "LastOffset": 5}],
        },
    ),
    "1051 SinksExpired": (
        sink_records.SinksExpiredRecord(sink_ids=["a", "b"]),
        {"SinkIds": ["a", "b"]},
    ),
    "1052 SinkDecided": (
        sink_records.SinkDecidedRecord(
            sink=Sink(
                sink_id="s",
                principal="User:u",
                batch_id=1,
                digest=b"d",
                committed_at_ms=2,
                ranges=(),
            ),
            shares=[StoredShare(3, [ObjectKey("a"), ObjectKey("b")], b"f")],
        ),
        {
            "SinkId": "s",
            "Principal": "User:u",
            "BatchId": 1,
            "Digest": b"d",
            "CommittedAt": 2,
            "Ranges": [],
            "Shares": [{"CoordinatorId": 3, "ObjectKeys": ["a", "b"], "Files": b"f"}],
        },
    ),
    "1070 TransactionBegan": (
        transaction_records.TransactionBeganRecord(
            transactional_id="t",
            producer_id=1,
            producer_epoch=2,
            last_producer_id=3,
            last_epoch=4,
            timeout_ms=5,
            at_ms=6,
        ),
        {
            "TransactionalId": "t",
            "ProducerId": 1,
            "ProducerEpoch": 2,
            "LastProducerId": 3,
            "LastEpoch": 4,
            "TimeoutMs": 5,
            "AtMs": 6,
        },
    ),
    "1071 TransactionGrew": (
        transaction_records.TransactionGrewRecord(
            transactional_id="t",
            number=1,
            at_ms=2,
            bumps_epoch=True,
            partitions=[TransactionPartition(PLACE, 4)],
            groups=[TransactionGroup("g", 5)],
        ),
        {
            "TransactionalId": "t",
            "Number": 1,
            "AtMs": 2,
            "BumpsEpoch": 1,
            "Partitions": [{"TopicId": TOPIC, "PartitionIndex": 3, "Coordinator": 4}],
            "Groups": [{"GroupId": "g", "Coordinator": 5}],
        },
    ),
    "1072 TransactionDecided": (
        transaction_records.TransactionDecidedRecord(
            transactional_id="t",
            number=1,
            is_commit=True,
            producer_epoch=2,
            last_epoch=3,
            next_producer_id=5,
            at_ms=4,
        ),
        {
            "TransactionalId": "t",
            "Number": 1,
            "IsCommit": 1,
            "ProducerEpoch": 2,
            "LastEpoch": 3,
            "NextProducerId": 5,
            "AtMs": 4,
        },
    ),
    "1073 TransactionEnded": (
        transaction_records.TransactionEndedRecord(
            producer_id=1,
            producer_epoch=2,
            number=3,
            is_commit=False,
            coordinator_epoch=4,
            ended_ms=5,
            partitions=[transaction_records.EndedPartition(PLACE, 8, 6, 9)],
            group_id="g",
        ),
        {
            "ProducerId": 1,
            "ProducerEpoch": 2,
            "Number": 3,
            "IsCommit": 0,
            "CoordinatorEpoch": 4,
            "EndedAt": 5,
            "Partitions": [
                {
                    "TopicId": TOPIC,
                    "PartitionIndex": 3,
                    "MarkerOffset": 8,
                    "FirstOffset": 6,
                    "LastStableOffset": 9,
                }
            ],
            "GroupId": "g",
        },
    ),
    "1074 TransactionCompleted": (
        transaction_records.TransactionCompletedRecord(transactional_id="t", number=1, at_ms=2),
        {"TransactionalId": "t", "Number": 1, "AtMs": 2},
    ),
    "1075 TransactionalIdsExpired": (
        transaction_records.TransactionalIdsExpiredRecord(transactional_ids=["t"]),
        {"TransactionalIds": ["t"]},
    ),
    "1076 TransactionalOffsets": (
        transaction_records.TransactionalOffsetsRecord(
            group_id="g",
            producer_id=1,
            number=2,
            offsets=[group_records.CommittedOffset(PLACE, 4, 5, 6, "m", 7)],
        ),
        {
            "GroupId": "g",
            "ProducerId": 1,
            "Number": 2,
            "Offsets": [
                {
                    "TopicId": TOPIC,
                    "PartitionIndex": 3,
                    "Offset": 4,
                    "LeaderEpoch": 6,
                    "CommitTime": 5,
                    "ExpireTime": 7,
                    "Metadata": "m",
                }
            ],
        },
    ),
    "1077 ClosedTransactionsExpired": (
        transaction_records.ClosedTransactionsExpiredRecord(before_ms=1, limit=2),
        {"BeforeMs": 1, "Limit": 2},
    ),
    "1060 RewritePlanned": (
        rewrite_records.RewritePlannedRecord(
            partition=PLACE,
            generation=4,
            kind=2,
            base_offset=5,
            last_offset=6,
            planned_at_ms=7,
            delete_horizon_ms=8,
            target_bytes=9,
        ),
        {
            "TopicId": TOPIC,
            "PartitionIndex": 3,
            "Generation": 4,
            "Kind": 2,
            "BaseOffset": 5,
            "LastOffset": 6,
            "PlannedAt": 7,
            "DeleteHorizon": 8,
            "TargetBytes": 9,
        },
    ),
    "1061 SegmentRewritten": (
        rewrite_records.SegmentRewrittenRecord(
            partition=PLACE,
            generation=4,
            base_offset=5,
            last_offset=6,
            object_key=ObjectKey("k"),
            object_bytes=7,
            crc32c=2**32 - 1,
            record_count=8,
            removed_count=9,
            max_timestamp_ms=10,
        ),
        {
            "TopicId": TOPIC,
            "PartitionIndex": 3,
            "Generation": 4,
            "BaseOffset": 5,
            "LastOffset": 6,
            "ObjectKey": "k",
            "ObjectSize": 7,
            "Crc32c": 2**32 - 1,
            "RecordCount": 8,
            "RemovedCount": 9,
            "MaxTimestamp": 10,
        },
    ),
    "1062 RewriteEnded": (
        rewrite_records.RewriteEndedRecord(partition=PLACE, generation=4, cleaned_end_offset=5),
        {"TopicId": TOPIC, "PartitionIndex": 3, "Generation": 4, "CleanedEndOffset": 5},
    ),
    "1040 TableCommitted": (
        table_records.TableCommittedRecord(
            topic_id=TOPIC,
            old_location=ObjectKey("a"),
            new_location=ObjectKey("b"),
            applied={1: 5, 0: 7},
            committed_at_ms=2,
            retention_ms=3,
        ),
        {
            "TopicId": TOPIC,
            "OldLocation": "a",
            "NewLocation": "b",
            "Applied": [
                {"CoordinatorId": 0, "Offset": 7},
                {"CoordinatorId": 1, "Offset": 5},
            ],
            "CommittedAt": 2,
            "RetentionMs": 3,
        },
    ),
}
