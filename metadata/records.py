"""Metadata records: what the coordinator writes down, as values and as bytes.

Records hold results, not commands: assigned offsets, timestamps, the answer for every batch. So
applying them is deterministic, two replicas that applied the same records are equal, and a replica
that only replayed can still give a re-sent commit the very answer it got the first time.

The value of every Kafka record in the metadata log is one metadata record. It starts with a frame
as KRaft's metadata records do:

    uvarint  frame version   1
    uvarint  api key         which record
    uvarint  version         0
             body            flexible-version encoding (metadata/record_codec.py), tag section last

An unknown tag is skipped. An unknown frame version, api key or version is refused: a replica that
stepped over a record it does not understand would no longer equal the one that wrote it.

Records of KIP-1164, field by field as in its schemas:

    100 PartitionCreated   TopicId uuid, Name string, PartitionIndex int32
    101 TopicDeleted       TopicId uuid
    102 FileCommitted      ObjectKey string, ObjectFormat int8, FileSize int64,
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
    1005 … 1013                metadata/control_records.py

Called by the coordinator (encode), its state (decode while replaying) and `metadata dump`. Encoding
raises ValueError for a number that its field cannot hold; decoding raises nothing but CorruptLog.

Source: KIP-1164, "Metadata records"; the frame is KIP-631's.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import UUID

from metadata.control_records import CONTROL_CODECS, ControlRecord
from metadata.record_codec import (
    INT8,
    INT32,
    INT64,
    NO_TAGS,
    FieldReader,
    compact_string,
    tag_section,
    uvarint,
)
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import CorruptLog

FRAME_VERSION: Final = 1
RECORD_VERSION: Final = 0

COMMITTED_AT_TAG: Final = 1000
POSITIONS_TAG: Final = 1001
REFUSED_TAG: Final = 1002
REQUEST_DIGEST_TAG: Final = 1003

REQUEST_DIGEST_BYTES: Final = 16

COMMITTED_BATCH: Final = struct.Struct(">biiqqqqbqhiiB")
"""One accepted batch and its empty tag section."""
assert COMMITTED_BATCH.size == 61

REFUSED_BATCH: Final = struct.Struct(">ihqqqB")
"""One refused batch and its empty tag section."""
assert REFUSED_BATCH.size == 31

_PARTITION_BYTES_MIN: Final = 6
_TOPIC_BYTES_MIN: Final = 18


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


class CommittedBatch(NamedTuple):
    """One batch that was appended to its partition, and the offsets it got.

    The fields from `magic` on are those of the record's bytes, in their order.
    """

    partition: TopicIdPartition
    position: int
    """Which batch of the commit request this is, counted from 0."""
    magic: int
    byte_offset: ByteOffset
    byte_size: int
    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    max_timestamp_ms: int
    timestamp_type: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int


class RefusedBatch(NamedTuple):
    """One batch of a commit request that was not appended, and what its sender was told.

    Error code 0 is a duplicate: `base_offset` and `log_append_time_ms` are those of the first time,
    `log_start_offset` is that of this answer.
    """

    position: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommittedRecord:
    """A WAL object was committed: the answer for each of its batches.

    `batches` come grouped by topic and partition, as they lie in the object; together with
    `refused` their positions are 0 .. n-1 of the request's n batches.
    """

    object_key: ObjectKey
    object_format: int
    file_size: int
    uploader_broker_id: int
    owner_ids: Sequence[int]
    committed_at_ms: int
    batches: Sequence[CommittedBatch]
    refused: Sequence[RefusedBatch] = ()
    request_digest: bytes = bytes(REQUEST_DIGEST_BYTES)


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
)


def encode_record(record: MetadataRecord) -> bytes:
    """The bytes of `record`, frame included.

    Raises: ValueError when a number does not fit its field.
    """
    api_key, encode = _ENCODERS[type(record)]
    frame = uvarint(FRAME_VERSION) + uvarint(api_key) + uvarint(RECORD_VERSION)
    try:
        return frame + encode(record)
    except struct.error as error:
        raise ValueError(f"{type(record).__name__} cannot be encoded: {error}") from error


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
    if api_key not in _DECODERS or version != RECORD_VERSION:
        raise CorruptLog(
            f"unknown record type: metadata record has api key {api_key}, version {version};"
            " only a newer release can have written it"
        )
    record = _DECODERS[api_key](frame)
    frame.finish()
    return record


# --- 102 FileCommitted, the one record whose size and speed matter -----------------------------


def _encode_file_committed(record: FileCommittedRecord) -> bytes:
    parts = [
        compact_string(record.object_key),
        INT8.pack(record.object_format),
        INT64.pack(record.file_size),
        INT32.pack(record.uploader_broker_id),
        uvarint(len(record.owner_ids) + 1),
        *map(INT32.pack, record.owner_ids),
    ]
    topics: list[bytes] = []
    topic_count = 0
    for topic_id, batches_of_topic in groupby(record.batches, _topic_id_of):
        topic_count += 1
        partitions: list[bytes] = []
        partition_count = 0
        for index, group in groupby(batches_of_topic, _partition_index_of):
            partition_count += 1
            batches = [COMMITTED_BATCH.pack(*batch[2:], 0) for batch in group]
            partitions += (INT32.pack(index), uvarint(len(batches) + 1), *batches, NO_TAGS)
        topics += (topic_id.bytes, uvarint(partition_count + 1), *partitions, NO_TAGS)
    parts += (uvarint(topic_count + 1), *topics, _file_committed_tags(record))
    return b"".join(parts)


def _topic_id_of(batch: CommittedBatch) -> UUID:
    return batch[0][0]


def _partition_index_of(batch: CommittedBatch) -> int:
    return batch[0][1]


def _file_committed_tags(record: FileCommittedRecord) -> bytes:
    fields = {COMMITTED_AT_TAG: INT64.pack(record.committed_at_ms)}
    positions = [batch.position for batch in record.batches]
    if positions != list(range(len(positions))):
        count = len(positions)
        fields[POSITIONS_TAG] = uvarint(count + 1) + struct.pack(f">{count}i", *positions)
    if record.refused:
        fields[REFUSED_TAG] = uvarint(len(record.refused) + 1) + b"".join(
            [REFUSED_BATCH.pack(*refused, 0) for refused in record.refused]
        )
    if len(record.request_digest) != REQUEST_DIGEST_BYTES:
        raise ValueError(f"a request digest has {REQUEST_DIGEST_BYTES} bytes")
    fields[REQUEST_DIGEST_TAG] = record.request_digest
    return tag_section(fields)


def _decode_file_committed(reader: FieldReader) -> FileCommittedRecord:
    object_key = ObjectKey(reader.compact_string())
    object_format = reader.int8()
    file_size = reader.int64()
    uploader_broker_id = reader.int32()
    owner_ids = tuple(reader.int32() for _ in range(reader.array_count(4)))
    placed: list[tuple[TopicIdPartition, tuple[Any, ...]]] = []
    for _ in range(reader.array_count(_TOPIC_BYTES_MIN)):
        topic_id = reader.uuid()
        for _ in range(reader.array_count(_PARTITION_BYTES_MIN)):
            partition = TopicIdPartition(topic_id, reader.int32())
            placed += [(partition, fields) for fields in _committed_batch_fields(reader)]
            reader.skip_tags()
        reader.skip_tags()
    committed_at_ms: int | None = None
    positions: Sequence[int] = range(len(placed))
    refused: Sequence[RefusedBatch] = ()
    request_digest = bytes(REQUEST_DIGEST_BYTES)
    for tag, content in reader.tags():
        if tag == COMMITTED_AT_TAG:
            committed_at_ms = content.int64()
        elif tag == POSITIONS_TAG:
            positions = _decode_positions(content, len(placed))
        elif tag == REFUSED_TAG:
            refused = _decode_refused(content)
        elif tag == REQUEST_DIGEST_TAG:
            request_digest = content.raw(REQUEST_DIGEST_BYTES)
        else:
            continue
        content.finish()
    if committed_at_ms is None:
        raise reader.corrupt("a committed file without its time of commit")
    make = CommittedBatch._make
    return FileCommittedRecord(
        object_key=object_key,
        object_format=object_format,
        file_size=file_size,
        uploader_broker_id=uploader_broker_id,
        owner_ids=owner_ids,
        committed_at_ms=committed_at_ms,
        batches=tuple(
            [
                make((partition, position, *fields))
                for position, (partition, fields) in zip(positions, placed, strict=True)
            ]
        ),
        refused=refused,
        request_digest=request_digest,
    )


_NO_TAG_POSITION: Final = COMMITTED_BATCH.size - 1
_COMMITTED_FIELDS: Final = struct.Struct(">biiqqqqbqhiix")
"""COMMITTED_BATCH without its tag section."""


def _committed_batch_fields(reader: FieldReader) -> Sequence[tuple[Any, ...]]:
    """The fields of one partition's batches, from `magic` on."""
    size = COMMITTED_BATCH.size
    count = reader.array_count(size)
    start = reader.position
    end = start + count * size
    # As long as every tag section is empty, batches lie at a fixed stride; that every 61st byte is
    # zero proves it, batch by batch.
    if not any(reader.data[start + _NO_TAG_POSITION : end : size]):
        reader.skip(count * size)
        return list(_COMMITTED_FIELDS.iter_unpack(reader.data[start:end]))
    batches = []
    for _ in range(count):
        at = reader.skip(_NO_TAG_POSITION)
        batches.append(_COMMITTED_FIELDS.unpack(reader.data[at : at + _NO_TAG_POSITION] + NO_TAGS))
        reader.skip_tags()
    return batches


def _decode_positions(reader: FieldReader, count: int) -> Sequence[int]:
    if reader.array_count(4) != count:
        raise reader.corrupt(f"not as many positions as batches, which are {count},")
    start = reader.skip(4 * count)
    return struct.unpack_from(f">{count}i", reader.data, start)


def _decode_refused(reader: FieldReader) -> Sequence[RefusedBatch]:
    refused = []
    for _ in range(reader.array_count(REFUSED_BATCH.size)):
        refused.append(
            RefusedBatch(
                reader.int32(), reader.int16(), reader.int64(), reader.int64(), reader.int64()
            )
        )
        reader.skip_tags()
    return tuple(refused)


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
    (102, FileCommittedRecord, _encode_file_committed, _decode_file_committed),
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
)
_ENCODERS: Final = {kind: (api_key, encode) for api_key, kind, encode, _ in _CODECS}
_DECODERS: Final[Mapping[int, Callable[[FieldReader], MetadataRecord]]] = {
    api_key: decode for api_key, _, _, decode in _CODECS
}
