"""Metadata records: what the coordinator writes down, as values and as bytes.

Records hold results, not commands: assigned offsets, timestamps, the answer for every batch. So
applying them is deterministic, two replicas that applied the same records are equal, and a replica
that only replayed can still give a re-sent commit the very answer it got the first time.

The value of every Kafka record in the metadata log is one metadata record. It starts with a frame
as KRaft's metadata records do:

    uvarint  frame version   1
    uvarint  api key         which record
    uvarint  version         0; 1 of FileCommitted
             body            flexible-version encoding (wal/wire/fields.py), tag
             section last

An unknown tag is skipped. An unknown frame version, api key or version is refused: a replica that
stepped over a record it does not understand would no longer equal the one that wrote it.

Records of KIP-1164, field by field as in its schemas:

    100 PartitionCreated   TopicId uuid, Name string, PartitionIndex int32
    101 TopicDeleted       TopicId uuid
    103 RecordsDeleted     TopicId uuid, PartitionIndex int32, NewLogStartOffset int64

102 FileCommitted is the KIP's by key and content; its layout is version 1, which is ours:
metadata/records/file_committed.py.

Records of our own, api keys from 1000:

    1000 TopicConfigs          TopicId uuid, Configs [] Name string, Value string (by name)
    1001 ProducerIdsAllocated  NextProducerId int64
    1002 SegmentPlanned        TopicId uuid, PartitionIndex int32, BaseOffset int64,
                               LastOffset int64, ObjectKey string, PlannedAt int64, Columns bytes
    1003 SegmentCommitted      TopicId uuid, PartitionIndex int32, BaseOffset int64,
                               LastOffset int64, ObjectKey string, ObjectSize int64,
                               Crc32c uint32, RecordCount int32, MaxTimestamp int64
    1004 FilesDeleted          ObjectKeys []string
    1005 … 1014                metadata/records/control.py
    1015 … 1018                metadata/records/users.py
    1020 … 1023                metadata/records/groups.py
    1030, 1031                 metadata/records/acls.py
    1040                       metadata/records/tables.py
    1045 TopicColumns          TopicId uuid, Version int64, Basis bytes, Columns bytes
    1050, 1051                 metadata/records/sinks.py
    1060 … 1062                metadata/records/rewrites.py
    1070 … 1077                metadata/records/transactions.py

Called by the coordinator (encode), its state (decode while replaying) and `metadata dump`. Encoding
raises ValueError for a number that its field cannot hold; decoding raises nothing but CorruptLog.

Source: KIP-1164, "Metadata records"; the frame is KIP-631's.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from metadata.records.acls import ACL_RECORDS, AclRecord
from metadata.records.control import CONTROL_RECORDS, ControlRecord
from metadata.records.file_committed import REQUEST_DIGEST_BYTES as REQUEST_DIGEST_BYTES
from metadata.records.file_committed import CommittedBatch as CommittedBatch
from metadata.records.file_committed import FileCommittedRecord as FileCommittedRecord
from metadata.records.file_committed import RefusedBatch as RefusedBatch
from metadata.records.file_committed import decode_file_committed, encode_file_committed
from metadata.records.groups import GROUP_RECORDS, GroupRecord
from metadata.records.rewrites import REWRITE_RECORDS, RewriteRecord
from metadata.records.sinks import SINK_RECORDS, SinkRecord
from metadata.records.tables import TABLE_RECORDS, TableRecord
from metadata.records.transactions import TRANSACTION_RECORDS, TransactionRecord
from metadata.records.users import USER_RECORDS, UserRecord
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptLog
from wal.wire.fields import FieldReader, uvarint
from wal.wire.layouts import CompactBytes, Int32, UInt32, layout

FRAME_VERSION: Final = 1
FILE_COMMITTED: Final = 102


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCreatedRecord:
    """Creates a partition; the first one creates its topic."""

    topic_id: UUID
    name: str
    partition: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletedRecord:
    """The topic, its partitions and all their batches are gone."""

    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDeletedRecord:
    """The log start offset of a partition moved up; batches wholly below it are gone."""

    partition: TopicIdPartition
    new_log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicColumnsRecord:
    """The typed columns of a topic from here on; `version` is one more than that of those before.

    What it says is metadata.operations.TopicColumns. Ids of columns are never used again, so a
    topic that is not typed any more keeps the last ones.
    """

    topic_id: UUID
    version: int
    basis: CompactBytes
    columns: CompactBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigsRecord:
    """All configs that are set on a topic; replaces those set before."""

    topic_id: UUID
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsAllocatedRecord:
    """Producer ids below `next_producer_id` may have been given out and are never given again."""

    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlannedRecord:
    """These offsets become one segment under this key, however often it is rolled."""

    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    object_key: ObjectKey
    planned_at_ms: int
    columns: CompactBytes = b""
    """The typed columns that it gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCommittedRecord:
    """The segment replaced the batches of its offsets."""

    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    object_key: ObjectKey
    object_bytes: int
    crc32c: UInt32
    record_count: Int32
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesDeletedRecord:
    """These objects were physically deleted; nothing remembers them any more."""

    object_keys: Sequence[ObjectKey]


MetadataRecord = (
    PartitionCreatedRecord
    | TopicDeletedRecord
    | FileCommittedRecord
    | RecordsDeletedRecord
    | TopicColumnsRecord
    | TopicConfigsRecord
    | ProducerIdsAllocatedRecord
    | SegmentPlannedRecord
    | SegmentCommittedRecord
    | FilesDeletedRecord
    | ControlRecord
    | GroupRecord
    | AclRecord
    | UserRecord
    | RewriteRecord
    | SinkRecord
    | TableRecord
    | TransactionRecord
)


class EncodedRecord(bytes):
    """A record's bytes in the hands of the encoder: with the record itself.

    The leader applies what it has just encoded; reading it back would give an equal record, at the
    price of a twentieth of a commit. What comes from a log is plain bytes.
    """

    record: MetadataRecord


def encode_record(record: MetadataRecord) -> EncodedRecord:
    """The bytes of `record`, frame included.

    Raises: ValueError when a number does not fit its field.
    """
    frame, encode = _ENCODERS[type(record)]
    try:
        encoded = EncodedRecord(frame + encode(record))
    except (struct.error, ValueError) as error:
        raise ValueError(f"{type(record).__name__} cannot be encoded: {error}") from error
    encoded.record = record
    return encoded


def record_of(data: bytes) -> MetadataRecord:
    """The record whose bytes `data` is; without decoding it when it was encoded here.

    Raises: CorruptLog as `decode_record`.
    """
    return data.record if isinstance(data, EncodedRecord) else decode_record(data)


def decode_record(data: bytes) -> MetadataRecord:
    """The record whose bytes `data` is.

    Raises: CorruptLog when they are not exactly one record of a known type and version.
    """
    frame = FieldReader(data, "metadata record")
    frame_version = frame.uvarint()
    if frame_version != FRAME_VERSION:
        raise CorruptLog(f"metadata record has frame version {frame_version}, not {FRAME_VERSION}")
    api_key = frame.uvarint()
    version = frame.uvarint()
    decode = _DECODERS.get((api_key, version))
    if decode is None:
        raise CorruptLog(
            f"unknown record type: api key {api_key}, version {version},"
            " which this release does not read"
        )
    record = decode(frame)
    frame.finish()
    return record


_KINDS: Final[Mapping[int, type[Any]]] = {
    100: PartitionCreatedRecord,
    101: TopicDeletedRecord,
    103: RecordsDeletedRecord,
    1000: TopicConfigsRecord,
    1001: ProducerIdsAllocatedRecord,
    1002: SegmentPlannedRecord,
    1003: SegmentCommittedRecord,
    1004: FilesDeletedRecord,
    **CONTROL_RECORDS,
    **GROUP_RECORDS,
    **ACL_RECORDS,
    **USER_RECORDS,
    **REWRITE_RECORDS,
    **SINK_RECORDS,
    **TABLE_RECORDS,
    **TRANSACTION_RECORDS,
    1045: TopicColumnsRecord,
}
_LAYOUTS: Final = {api_key: layout(kind) for api_key, kind in _KINDS.items()}

RECORD_TYPES: Final[Mapping[int, type[Any]]] = {
    **_KINDS,
    FILE_COMMITTED: FileCommittedRecord,
}
"""What each api key stands for."""


def _frame(api_key: int, version: int) -> bytes:
    """What stands before the fields of a record."""
    return uvarint(FRAME_VERSION) + uvarint(api_key) + uvarint(version)


_ENCODERS: Final[Mapping[type[Any], tuple[bytes, Callable[[Any], bytes]]]] = {
    **{kind: (_frame(api_key, 0), _LAYOUTS[api_key].write) for api_key, kind in _KINDS.items()},
    FileCommittedRecord: (_frame(FILE_COMMITTED, 1), encode_file_committed),
}
_DECODERS: Final[Mapping[tuple[int, int], Callable[[FieldReader], MetadataRecord]]] = {
    **{(api_key, 0): of.read for api_key, of in _LAYOUTS.items()},
    (FILE_COMMITTED, 1): decode_file_committed,
}
