"""docs/formats.md against the code: sizes, fields, magics, versions, records, tables, keys."""

import importlib
import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from diskless.storage.data_directory import DataDirectory
from metadata.access_tokens import AccessToken
from metadata.acls import AclBinding
from metadata.log.local_log import LOG_DIRECTORY
from metadata.log.log_object import log_key
from metadata.records import acls as acl_records
from metadata.records import control, records, users
from metadata.records import groups as group_records
from metadata.records import rewrites as rewrite_records
from metadata.records import sinks as sink_records
from metadata.records import tables as table_records
from metadata.records import transactions as transaction_records
from metadata.records.segment_identity import segment_key
from metadata.scram.credentials import ScramCredential
from metadata.sink_operations import Sink, SinkRange, StoredShare
from metadata.state.schema import APPLIED, STATE_TABLES, STATE_VERSION
from metadata.state.state import STATE_FILE
from metadata.transaction_operations import TransactionGroup, TransactionPartition
from wal.chunks import object_notes
from wal.chunks.kept_notes import (
    HEAD_BYTES,
    KeptNotes,
    NotedEnd,
    NotedSink,
    StagedNote,
    StagedRun,
    encode_kept_notes,
    notes_key,
)
from wal.clock import SystemClock
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.records.marker_batches import Marker
from wal.ulid import encode_ulid, mint_ulid, wal_object_key
from wal.wire.fields import FieldReader

PAGE: Final = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")

# --- byte tables ----------------------------------------------------------------------------------

_STRUCT_CODES: Final = {
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "i8": "b", "i16": "h", "i32": "i", "i64": "q",
}  # fmt: skip

_TITLE: Final = re.compile(
    r"^\*\*(?P<title>.+?)\*\*, (?P<size>\d+) bytes[^(\n]*"
    r"\((?P<structs>`\w+`(?:, `\w+`)*) in `(?P<path>[\w/]+)\.py`\)\n\n"
    r"\| at \| field \| type \| \|\n\|---\|---\|---\|---\|\n(?P<rows>(?:\|.*\n)+)",
    re.MULTILINE,
)


class Row(NamedTuple):
    at: int
    field: str
    type: str
    note: str


class ByteTable(NamedTuple):
    title: str
    size: int
    path: str
    structs: Sequence[str]
    rows: Sequence[Row]

    @property
    def module(self) -> Any:
        return importlib.import_module(self.path.replace("/", "."))


def byte_tables() -> Iterator[ByteTable]:
    for match in _TITLE.finditer(PAGE):
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in match["rows"].splitlines()
        ]
        yield ByteTable(
            match["title"],
            int(match["size"]),
            match["path"],
            re.findall(r"\w+", match["structs"]),
            [Row(int(at), field, kind, note) for at, field, kind, note in rows],
        )


TABLES: Final = list(byte_tables())


def struct_codes(form: str) -> list[str]:
    """`>I16sx` as [`I`, `16s`, `x`]."""
    return re.findall(r"\d+s|[a-zA-Z]", form.removeprefix(">"))


def table_name(table: ByteTable) -> str:
    return f"{table.path}:{'+'.join(table.structs)}"


def test_every_byte_table_of_the_page_is_understood() -> None:
    assert len(TABLES) == PAGE.count("| at | field | type | |")
    assert {table_name(table) for table in TABLES} == {
        "wal/records/record_batch:HEADER",
        "wal/chunks/chunk:CHUNK_HEADER+CHUNK_HEADER_CRC",
        "wal/chunks/chunk:RECORD_CRC+RECORD_HEAD",
        "wal/chunks/chunk_batches:BATCH_ROW",
        "wal/chunks/sealed_chunk:COMMITTED_CONTENT",
        "wal/chunks/wal_object:OBJECT_HEADER+_CRC",
        "wal/chunks/chunk_batches:INDEX_ENTRY",
        "wal/chunks/wal_object:TRAILER+TRAILER_END",
        "wal/chunks/kept_notes:HEAD",
        "wal/segmented_log/log_file_store:FILE_HEADER",
        "wal/segmented_log/log_file_store:RECORD_HEADER",
        "wal/segmented_log/log_file_index:INDEX_ENTRY",
        "metadata/log/log_object:OBJECT_HEADER+OBJECT_HEADER_CRC",
    }


@pytest.mark.parametrize("table", TABLES, ids=table_name)
def test_a_byte_table_is_the_struct_it_names(table: ByteTable) -> None:
    structs = [getattr(table.module, name) for name in table.structs]
    coded = [code for item in structs for code in struct_codes(item.format)]
    told = [
        "x" if code == "x" and row.field.startswith("zero") and row.type == "u8"
        else _STRUCT_CODES.get(row.type, row.type)
        for row, code in zip(table.rows, coded, strict=True)
    ]  # fmt: skip
    assert told == coded
    assert table.size == sum(item.size for item in structs)
    starts = [struct.calcsize(">" + "".join(coded[:number])) for number in range(len(coded))]
    assert [row.at for row in table.rows] == starts


def test_magics_and_versions_are_those_of_the_code() -> None:
    told = {
        (table.path, text)
        for table in TABLES
        for row in table.rows
        if row.field == "magic"
        for text in re.findall(r"`(\w+)`", row.note)
    }
    coded = set()
    for path, names in {
        "wal/chunks/chunk": ["MAGIC"],
        "wal/chunks/wal_object": ["MAGIC", "TRAILER_MAGIC"],
        "wal/chunks/kept_notes": ["MAGIC"],
        "wal/segmented_log/log_file_store": ["_STORE_MAGIC"],
        "metadata/log/log_object": ["MAGIC"],
    }.items():
        module = importlib.import_module(path.replace("/", "."))
        coded |= {(path, getattr(module, name).decode()) for name in names}
    index_magic = importlib.import_module("wal.segmented_log.log_file_index")._INDEX_MAGIC.decode()
    assert told == coded | {("wal/segmented_log/log_file_store", index_magic)}

    versions = [
        (table.title, row.note, table.module.FORMAT_VERSION)
        for table in TABLES
        for row in table.rows
        if row.field == "version"
    ]
    assert len(versions) == 6  # chunk, object and its trailer, notes, segmented log, log object
    assert all(note == str(coded_version) for _, note, coded_version in versions)


def test_the_first_table_has_the_versions_of_the_code() -> None:
    told = dict(re.findall(r"^\| \[(.+?)\]\(.+?\) \| (.+?) \|", PAGE, re.MULTILINE))
    modules = {
        "chunk": "wal.chunks.chunk",
        "WAL object": "wal.chunks.wal_object",
        "notes object": "wal.chunks.kept_notes",
        "segmented log": "wal.segmented_log.log_file_store",
        "object of the metadata log": "metadata.log.log_object",
        "segment": "tiering.segment_format",
    }
    versions = {
        name: str(importlib.import_module(module).FORMAT_VERSION)
        for name, module in modules.items()
    }
    snapshots = importlib.import_module("metadata.replica.snapshot_format").FORMAT_VERSION
    versions |= {
        "data directory": importlib.import_module("diskless.storage.data_directory").LAYOUT_VERSION,
        "SQLite state": str(STATE_VERSION),
        "metadata snapshot": f"{snapshots}, and the state's",
    }
    assert {name: told.get(name) for name in versions} == versions


# --- records and messages, by a reader that knows nothing but the page ----------------------------


class Field(NamedTuple):
    name: str
    type: str
    tag: int | None
    children: Sequence["Field"]


_FIELD: Final = re.compile(r"^( *)(?:tag (\d+) )?(\w+) (\S+)$")


def parse_fields(lines: Sequence[str], indent: int) -> list[Field]:
    """The fields that start at `indent`, with what is indented below each."""
    fields: list[Field] = []
    number = 0
    while number < len(lines):
        match = _FIELD.match(lines[number])
        assert match is not None, lines[number]
        assert len(match[1]) == indent, lines[number]
        end = number + 1
        while end < len(lines) and lines[end].startswith(" " * (indent + 2)):
            end += 1
        children = parse_fields(lines[number + 1 : end], indent + 2)
        fields.append(Field(match[3], match[4], int(match[2]) if match[2] else None, children))
        number = end
    return fields


def layouts() -> dict[str, list[Field]]:
    """`100 PartitionCreated` and its like, with their fields."""
    found = {}
    for block in re.findall(r"```text\n(\d.*?)```", PAGE, re.DOTALL):
        for layout in block.strip("\n").split("\n\n"):
            title, *lines = layout.split("\n")
            found[title] = parse_fields(lines, 2)
    return found


LAYOUTS: Final = layouts()


def read_column_as_told(reader: FieldReader) -> list[int]:
    count, width = reader.uvarint() - 1, reader.raw(1)[0]
    smallest = shift = 0
    while (byte := reader.raw(1)[0]) >= 0x80:
        smallest |= (byte & 0x7F) << shift
        shift += 7
    smallest |= byte << shift
    smallest = smallest >> 1 ^ -(smallest & 1)
    return [smallest + int.from_bytes(reader.raw(width), "little") for _ in range(count)]


_READ: Final[dict[str, Callable[[FieldReader], Any]]] = {
    "int8": FieldReader.int8,
    "int16": FieldReader.int16,
    "int32": FieldReader.int32,
    "int64": FieldReader.int64,
    "uint32": FieldReader.uint32,
    "float64": FieldReader.float64,
    "uuid": FieldReader.uuid,
    "string": FieldReader.compact_string,
    "string?": FieldReader.nullable_string,
    "bytes": lambda reader: reader.raw(reader.uvarint() - 1),
    "16s": lambda reader: reader.raw(16),
    "uvarint": FieldReader.uvarint,
    "column": read_column_as_told,
}


def read_value(reader: FieldReader, field: Field) -> Any:
    if field.type == "[]":
        return [read_structure(reader, field.children) for _ in range(reader.array_count())]
    if field.type.startswith("[]"):
        read = _READ[field.type.removeprefix("[]")]
        return [read(reader) for _ in range(reader.array_count())]
    return _READ[field.type](reader)


def read_structure(reader: FieldReader, fields: Sequence[Field]) -> dict[str, Any]:
    values = {field.name: read_value(reader, field) for field in fields if field.tag is None}
    by_tag = {field.tag: field for field in fields}
    for tag, content in reader.tags():
        field = by_tag[tag]  # A tag that the page does not have is a KeyError.
        values[field.name] = read_value(content, field)
        content.finish()
    return values


def read_as_told(title: str, data: bytes) -> dict[str, Any]:
    reader = FieldReader(data, title)
    values = read_structure(reader, LAYOUTS[title])
    reader.finish()
    return values


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


@pytest.mark.parametrize("title", RECORDS)
def test_a_metadata_record_reads_back_by_the_page_alone(title: str) -> None:
    record, expected = RECORDS[title]
    frame = FieldReader(records.encode_record(record), title)
    version = int(title.endswith(", version 1"))
    assert [frame.uvarint() for _ in range(3)] == [1, int(title.split()[0]), version]
    assert type(record).__name__ == title.split()[1].rstrip(",") + "Record"
    assert read_as_told(title, frame.raw(frame.end - frame.position)) == expected


def test_the_page_has_every_metadata_record() -> None:
    kinds = {type(record) for record, _ in RECORDS.values()}
    assert kinds == set(records.RECORD_TYPES.values())
    titles = {
        f"{key} {kind.__name__.removesuffix('Record')}"
        for key, kind in records.RECORD_TYPES.items()
    }
    assert titles == {title.split(",")[0] for title in RECORDS}
    assert set(RECORDS) <= set(LAYOUTS)


def test_every_layout_of_the_page_is_checked() -> None:
    assert set(LAYOUTS) == set(RECORDS)


NOTES: Final = object_notes.ObjectNotes(
    topics={TOPIC: object_notes.TopicFacts("flights", 6, (("retention.ms", "60000"),))},
    commits=(
        object_notes.CommitNote(
            encode_ulid(5),
            [object_notes.NotedRun(10, 1_700_000_000_000, 4)],
            {1: object_notes.DUPLICATE},
        ),
        object_notes.CommitNote(encode_ulid(6), outcome=object_notes.GIVEN_UP),
    ),
    floors=(object_notes.Floor(20, 4), None),
)


KEPT_NOTES: Final = KeptNotes(
    topics={TOPIC: object_notes.TopicFacts("flights", 6)},
    commits=NOTES.commits[1:],
    floors={TopicIdPartition(TOPIC, 3): object_notes.Floor(20, 20)},
    staged=[
        StagedNote(
            "s",
            encode_ulid(5),
            [StagedRun(TopicIdPartition(TOPIC, 3), 64, 300, 20, 7, 0, 1_700_000_000_000, 5, 2)],
        )
    ],
    sinks=[
        NotedSink(
            "s", "User:u", 4, bytes(16), 1_700_000_000_000, [(TopicIdPartition(TOPIC, 3), 20, 26)]
        )
    ],
    ends={
        TopicIdPartition(TOPIC, 3): [
            NotedEnd(Marker(27, 1_000, 2, True, 3, 1_700_000_000_000), 5),
        ]
    },
    ended_below=2_000,
    schemas=["{}"],
)


@pytest.mark.parametrize(
    ("title", "written"),
    [
        ("notes", object_notes.encode_notes(NOTES)),
        ("kept notes", encode_kept_notes(KEPT_NOTES)[HEAD_BYTES:]),
    ],
)
def test_the_example_of_notes_is_what_the_code_writes(title: str, written: bytes) -> None:
    (example,) = re.findall(rf"```text\n{title}, for example\n(.*?)```", PAGE, re.DOTALL)
    told = [re.match(r"  ((?:(?:[0-9a-f]{2})+ )*)", line + " ") for line in example.splitlines()]
    assert bytes.fromhex("".join(match[1] for match in told if match)) == written


# --- tables, keys, directories --------------------------------------------------------------------


def test_the_state_tables_have_these_columns() -> None:
    section = PAGE.split("## SQLite state")[1].split("\n## ")[0]
    told = {
        name: re.findall(r"`(\w+)`", columns)
        for name, columns in re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    }
    coded = {table.name: list(table.columns) for table in STATE_TABLES}
    coded["applied"] = list(APPLIED.columns.keys())
    assert all(columns[-1] == "checksum" for columns in coded.values())
    assert told == {name: columns[:-1] for name, columns in coded.items()}
    assert f"`state_version` (now {STATE_VERSION})" in section


_KEY_PARTS: Final = {
    "<2 hex>": r"[0-9a-f]{2}",
    "<metadata partition>": r"\d+",
    "<ULID>": r"[0-9A-HJKMNP-TV-Z]{26}",
    "<topic>": r"[\w.-]+",
    "<topic id>": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "<n>": r"\d+",
    "<base offset>": r"\d{20}",
    "<last offset>": r"\d{20}",
}


def key_pattern(prefix: str) -> re.Pattern[str]:
    (key,) = re.findall(rf"^\| `({prefix}/.+?)` \|", PAGE, re.MULTILINE)
    parts = re.split(r"(<.+?>)", key)
    return re.compile("".join(_KEY_PARTS.get(part, re.escape(part)) for part in parts))


def test_objects_are_named_as_the_page_says() -> None:
    ulid = mint_ulid(SystemClock(), random.Random(1))
    assert key_pattern("wal").fullmatch(wal_object_key(ulid))
    partition = TopicIdPartition(TOPIC, 12)
    assert key_pattern("meta/<metadata partition>/log").fullmatch(log_key(11, 12345))
    assert key_pattern("notes").fullmatch(notes_key(ulid))
    assert key_pattern("segments").fullmatch(segment_key("a.b-c_d", partition, 3, 4))


def test_the_data_directory_is_laid_out_as_the_page_says(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, node_id=7, rng=random.Random(1))
    directory.begin_life(random.Random(1))
    told = re.findall(r"^DIR/(.+?)  ", PAGE, re.MULTILINE)
    names = {"<node id>": "7", "<k>": "3", "<n>": "2"}
    assert [tmp_path / re.sub(r"<.+?>", lambda match: names[match[0]], name) for name in told] == [
        tmp_path / "meta.properties",
        tmp_path / "incarnation",
        directory.metadata_partition(3) / LOG_DIRECTORY,
        directory.metadata_partition(3) / STATE_FILE,
        directory.chunks,
        directory.chunks_of(2),
        directory.cache,
        directory.objects,
    ]
    assert (tmp_path / "meta.properties").is_file()
    assert (tmp_path / "incarnation").is_file()
