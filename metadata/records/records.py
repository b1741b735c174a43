"""Metadata records: what the coordinator writes down, as values and as bytes.

Records hold results, not commands: assigned offsets, timestamps, the answer for every batch. So
applying them is deterministic, two replicas that applied the same records are equal, and a replica
that only replayed can still give a re-sent commit the very answer it got the first time.

The value of every Kafka record in the metadata log is one metadata record. It starts with a frame
as KRaft's metadata records do:

    uvarint  frame version   1
    uvarint  api key         which record
    uvarint  version         0; 1 of FileCommitted
             body            flexible-version encoding (wal/wire/fields.py), tag section last

An unknown tag is skipped. An unknown frame version, api key or version is refused: a replica that
stepped over a record it does not understand would no longer equal the one that wrote it.

Records of KIP-1164, field by field as in its schemas:

    100 PartitionCreated   TopicId uuid, Name string, PartitionIndex int32
    101 TopicDeleted       TopicId uuid
    102 FileCommitted      (version 0; what is written is version 1, metadata/records/file_committed.py)
                           ObjectKey string, ObjectFormat int8, FileSize int64,
                           UploaderBrokerId int32, OwnerIds []int32, Topics []
                             TopicId uuid, Partitions []
                               PartitionIndex int32, Batches [] (61 bytes each)
                                 Magic int8, ByteOffset int32, ByteSize int32,
                                 AssignedBaseOffset int64, AssignedLastOffset int64,
                                 LogAppendTimestamp int64, BatchMaxTimestamp int64,
                                 TimestampType int8, ProducerId int64, ProducerEpoch int16,
                                 BaseSequence int32, LastSequence int32
    103 RecordsDeleted     TopicId uuid, PartitionIndex int32, NewLogStartOffset int64

Tagged fields that we add to FileCommitted (numbered from 1000, away from what the KIP may add):

    tag 1000  CommittedAt  int64       the coordinator's wall clock, ms
    tag 1001  Positions    []int32     per accepted batch, in the order of Topics, its position in
                                       the request; left out when that is 0, 1, 2, …
    tag 1002  Refused      []          the batches of the request that were not appended (31 bytes)
                             Position int32, ErrorCode int16, BaseOffset int64,
                             LogAppendTimestamp int64, LogStartOffset int64
    tag 1003  RequestDigest 16 bytes   tells a re-sent commit from other content under this key

Records of our own, api keys from 1000:

    1000 TopicConfigs          TopicId uuid, Configs [] Name string, Value string (by name)
    1001 ProducerIdsAllocated  NextProducerId int64
    1002 SegmentPlanned        TopicId uuid, PartitionIndex int32, BaseOffset int64,
                               LastOffset int64, ObjectKey string, PlannedAt int64
    1003 SegmentCommitted      TopicId uuid, PartitionIndex int32, BaseOffset int64,
                               LastOffset int64, ObjectKey string, ObjectSize int64,
                               Crc32c uint32, RecordCount int32, MaxTimestamp int64
    1004 FilesDeleted          ObjectKeys []string
    1005 … 1014                metadata/records/control.py
    1020 … 1023                metadata/records/groups.py

Called by the coordinator (encode), its state (decode while replaying) and `metadata dump`. Encoding
raises ValueError for a number that its field cannot hold; decoding raises nothing but CorruptLog.

Source: KIP-1164, "Metadata records"; the frame is KIP-631's.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from metadata.records.control import CONTROL_CODECS, ControlRecord
from metadata.records.file_committed import REQUEST_DIGEST_BYTES as REQUEST_DIGEST_BYTES
from metadata.records.file_committed import CommittedBatch as CommittedBatch
from metadata.records.file_committed import FileCommittedRecord as FileCommittedRecord
from metadata.records.file_committed import RefusedBatch as RefusedBatch
from metadata.records.file_committed import (
    decode_file_committed,
    decode_file_committed_0,
    encode_file_committed,
)
from metadata.records.groups import GROUP_CODECS, GroupRecord
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptLog
from wal.wire.fields import (
    INT32,
    INT64,
    NO_TAGS,
    FieldReader,
    compact_string,
    uvarint,
)

FRAME_VERSION: Final = 1
FILE_COMMITTED: Final = 102


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCreatedRecord:
    """A partition exists from here on; a topic exists from its first partition on."""

    topic_id: UUID
    name: str
    partition: int


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
    """These offsets shall become one segment under this key, whoever rolls it, however often."""

    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    object_key: ObjectKey
    planned_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCommittedRecord:
    """The segment replaced the batches of its offsets."""

    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    object_key: ObjectKey
    object_bytes: int
    crc32c: int
    record_count: int
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
    | TopicConfigsRecord
    | ProducerIdsAllocatedRecord
    | SegmentPlannedRecord
    | SegmentCommittedRecord
    | FilesDeletedRecord
    | ControlRecord
    | GroupRecord
)


class EncodedRecord(bytes):
    """A record's bytes in the hands of whoever encoded it: with the record itself.

    The leader applies what it has just encoded; reading it back would give an equal record, at the
    price of a twentieth of a commit. What comes from a log is plain bytes.
    """

    record: MetadataRecord


def encode_record(record: MetadataRecord) -> EncodedRecord:
    """The bytes of `record`, frame included.

    Raises: ValueError when a number does not fit its field.
    """
    api_key, version, encode = _ENCODERS[type(record)]
    frame = uvarint(FRAME_VERSION) + uvarint(api_key) + uvarint(version)
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
            f"unknown record type: metadata record has api key {api_key}, version {version};"
            " only a newer release can have written it"
        )
    record = decode(frame)
    frame.finish()
    return record


# --- the others --------------------------------------------------------------------------------


def _encode_partition_created(record: PartitionCreatedRecord) -> bytes:
    return b"".join(
        (
            record.topic_id.bytes,
            compact_string(record.name),
            INT32.pack(record.partition),
            NO_TAGS,
        )
    )


def _decode_partition_created(reader: FieldReader) -> PartitionCreatedRecord:
    record = PartitionCreatedRecord(
        topic_id=reader.uuid(), name=reader.compact_string(), partition=reader.int32()
    )
    reader.skip_tags()
    return record


def _encode_topic_deleted(record: TopicDeletedRecord) -> bytes:
    return record.topic_id.bytes + NO_TAGS


def _decode_topic_deleted(reader: FieldReader) -> TopicDeletedRecord:
    record = TopicDeletedRecord(topic_id=reader.uuid())
    reader.skip_tags()
    return record


def _encode_partition(partition: TopicIdPartition) -> bytes:
    return partition.topic_id.bytes + INT32.pack(partition.partition)


def _decode_partition(reader: FieldReader) -> TopicIdPartition:
    return TopicIdPartition(reader.uuid(), reader.int32())


def _encode_records_deleted(record: RecordsDeletedRecord) -> bytes:
    return _encode_partition(record.partition) + INT64.pack(record.new_log_start_offset) + NO_TAGS


def _decode_records_deleted(reader: FieldReader) -> RecordsDeletedRecord:
    record = RecordsDeletedRecord(
        partition=_decode_partition(reader), new_log_start_offset=reader.int64()
    )
    reader.skip_tags()
    return record


def _encode_topic_configs(record: TopicConfigsRecord) -> bytes:
    parts = [record.topic_id.bytes, uvarint(len(record.configs) + 1)]
    # By name, so that equal configs are equal bytes.
    for name, value in sorted(record.configs.items()):
        parts += (compact_string(name), compact_string(value), NO_TAGS)
    return b"".join((*parts, NO_TAGS))


def _decode_topic_configs(reader: FieldReader) -> TopicConfigsRecord:
    topic_id = reader.uuid()
    configs: dict[str, str] = {}
    for _ in range(reader.array_count(3)):
        name = reader.compact_string()
        if name in configs:
            raise reader.corrupt(f"config {name!r} is there twice")
        configs[name] = reader.compact_string()
        reader.skip_tags()
    reader.skip_tags()
    return TopicConfigsRecord(topic_id=topic_id, configs=configs)


def _encode_producer_ids_allocated(record: ProducerIdsAllocatedRecord) -> bytes:
    return INT64.pack(record.next_producer_id) + NO_TAGS


def _decode_producer_ids_allocated(reader: FieldReader) -> ProducerIdsAllocatedRecord:
    record = ProducerIdsAllocatedRecord(next_producer_id=reader.int64())
    reader.skip_tags()
    return record


def _encode_segment_planned(record: SegmentPlannedRecord) -> bytes:
    return b"".join(
        (
            _encode_partition(record.partition),
            INT64.pack(record.base_offset),
            INT64.pack(record.last_offset),
            compact_string(record.object_key),
            INT64.pack(record.planned_at_ms),
            NO_TAGS,
        )
    )


def _decode_segment_planned(reader: FieldReader) -> SegmentPlannedRecord:
    record = SegmentPlannedRecord(
        partition=_decode_partition(reader),
        base_offset=reader.int64(),
        last_offset=reader.int64(),
        object_key=ObjectKey(reader.compact_string()),
        planned_at_ms=reader.int64(),
    )
    reader.skip_tags()
    return record


_SEGMENT_RESULT: Final = struct.Struct(">qIiq")


def _encode_segment_committed(record: SegmentCommittedRecord) -> bytes:
    return b"".join(
        (
            _encode_partition(record.partition),
            INT64.pack(record.base_offset),
            INT64.pack(record.last_offset),
            compact_string(record.object_key),
            _SEGMENT_RESULT.pack(
                record.object_bytes, record.crc32c, record.record_count, record.max_timestamp_ms
            ),
            NO_TAGS,
        )
    )


def _decode_segment_committed(reader: FieldReader) -> SegmentCommittedRecord:
    record = SegmentCommittedRecord(
        partition=_decode_partition(reader),
        base_offset=reader.int64(),
        last_offset=reader.int64(),
        object_key=ObjectKey(reader.compact_string()),
        object_bytes=reader.int64(),
        crc32c=reader.uint32(),
        record_count=reader.int32(),
        max_timestamp_ms=reader.int64(),
    )
    reader.skip_tags()
    return record


def _encode_files_deleted(record: FilesDeletedRecord) -> bytes:
    keys = map(compact_string, record.object_keys)
    return b"".join((uvarint(len(record.object_keys) + 1), *keys, NO_TAGS))


def _decode_files_deleted(reader: FieldReader) -> FilesDeletedRecord:
    keys = tuple(ObjectKey(reader.compact_string()) for _ in range(reader.array_count()))
    reader.skip_tags()
    return FilesDeletedRecord(object_keys=keys)


_CODECS: Final[Sequence[tuple[int, type[Any], Callable[[Any], bytes], Callable[..., Any]]]] = (
    (100, PartitionCreatedRecord, _encode_partition_created, _decode_partition_created),
    (101, TopicDeletedRecord, _encode_topic_deleted, _decode_topic_deleted),
    (103, RecordsDeletedRecord, _encode_records_deleted, _decode_records_deleted),
    (1000, TopicConfigsRecord, _encode_topic_configs, _decode_topic_configs),
    (
        1001,
        ProducerIdsAllocatedRecord,
        _encode_producer_ids_allocated,
        _decode_producer_ids_allocated,
    ),
    (1002, SegmentPlannedRecord, _encode_segment_planned, _decode_segment_planned),
    (1003, SegmentCommittedRecord, _encode_segment_committed, _decode_segment_committed),
    (1004, FilesDeletedRecord, _encode_files_deleted, _decode_files_deleted),
    *CONTROL_CODECS,
    *GROUP_CODECS,
)
RECORD_TYPES: Final[Mapping[int, type[Any]]] = {
    **{api_key: kind for api_key, kind, _, _ in _CODECS},
    FILE_COMMITTED: FileCommittedRecord,
}
"""What each api key stands for."""

_ENCODERS: Final[Mapping[type[Any], tuple[int, int, Callable[[Any], bytes]]]] = {
    **{kind: (api_key, 0, encode) for api_key, kind, encode, _ in _CODECS},
    FileCommittedRecord: (FILE_COMMITTED, 1, encode_file_committed),
}
_DECODERS: Final[Mapping[tuple[int, int], Callable[[FieldReader], MetadataRecord]]] = {
    **{(api_key, 0): decode for api_key, _, _, decode in _CODECS},
    (FILE_COMMITTED, 0): decode_file_committed_0,
    (FILE_COMMITTED, 1): decode_file_committed,
}
