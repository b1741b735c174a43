"""Metadata records about the coordinators and their cluster: leadership, assignment, ownership,
expiry, brokers, quotas of clients.

They are framed and encoded like all metadata records (metadata/records/records.py) and applied by
metadata/apply/apply_control.py. KIP-1164 needs each of them and defines none.

    1005 LeaderChange        LeaderEpoch int32, BrokerId int32, Host string, Port int32,
                             Incarnation uuid
    1006 PartitionsAssigned  TopicId uuid, Name string, FirstPartition int32, Coordinators []int32
    1007 FileHandedOver      ObjectKey string, ObjectFormat int8, FileSize int64, OwnerIds []int32
    1008 FilesTombstoned     ObjectKeys []string
    1009 ProducersExpired    BeforeMs int64, Limit int32
    1010 NoOp                LeaderEpoch int32
    1011 BrokerRegistered    BrokerId int32, Host string, Port int32, Rack string, Incarnation uuid
    1012 BrokerUnregistered  BrokerId int32
    1013 RowsSwept           Limit int32
    1014 ClientQuotas        Entity [] Type string, IsDefault int8, Name string (by type),
                             Quotas [] Key string, Value float64 (by key)

Encoding raises ValueError or struct.error for a number that its field cannot hold; decoding raises
nothing but CorruptLog.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from metadata.operations import QuotaEntity
from wal.coordinates import ObjectKey
from wal.wire.fields import (
    FLOAT64,
    INT8,
    INT32,
    INT64,
    NO_TAGS,
    FieldReader,
    compact_string,
    uvarint,
)

QUOTA_ENTITY_PARTS_MAX: Final = 8
"""More than there are types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChangeRecord:
    """From here on this broker leads the metadata partition; the first record of every leader.

    `leader_epoch` is one more than the last one. Nothing of an older leader can follow: its append
    would need the offset that this record has taken.
    """

    leader_epoch: int
    broker_id: int
    host: str
    """Where other brokers reach the leader; empty when nobody else can."""
    port: int
    incarnation: UUID
    """Tells two lives of one broker apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAssignedRecord:
    """Partitions `first_partition` .. of a topic live at other coordinators; catalogue only.

    `coordinators` names one coordinator per partition, in partition order. An assignment never
    changes; the partitions that this coordinator keeps itself are PartitionCreated records.
    """

    topic_id: UUID
    name: str
    first_partition: int
    coordinators: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHandedOverRecord:
    """The owner before this coordinator has no live batches left in the file: we decide now."""

    object_key: ObjectKey
    object_format: int
    file_size: int
    owner_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTombstonedRecord:
    """These keys were never committed here and never will be; an orphan scan deletes them."""

    object_keys: Sequence[ObjectKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersExpiredRecord:
    """Forget up to `limit` producers silent since `before_ms`, the longest silent first.

    Which ones follows from the state alone, so every replica forgets the same.
    """

    before_ms: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord:
    """Changes nothing; that it could be appended proves that its writer still leads."""

    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegisteredRecord:
    """A broker is alive and reached there; replaces what was known of the same id."""

    broker_id: int
    host: str
    port: int
    rack: str
    """Empty when it has none."""
    incarnation: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnregisteredRecord:
    """A broker has stopped, or was silent for too long."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSweptRecord:
    """Delete up to `limit` of the rows that deleted topics have left behind.

    A topic is gone with its TopicDeleted record: its partitions are in no table and no image, and
    nobody finds their rows. The rows themselves can be a million, and to delete them all at once
    would hold up every commit for seconds. So TopicDeleted deletes as many as one of these records
    and writes down the partitions that have more; these records delete the rest, step by step.
    Which rows follows from the state alone: the oldest partition first; of a partition first its
    batches, then its segments and its producers, by key. The objects of the rows are released with
    them.
    """

    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotasRecord:
    """An entity has exactly these quotas from here on; none: it has no more any. Catalogue only."""

    entity: QuotaEntity
    quotas: Mapping[str, float]


ControlRecord = (
    LeaderChangeRecord
    | PartitionsAssignedRecord
    | FileHandedOverRecord
    | FilesTombstonedRecord
    | ProducersExpiredRecord
    | NoOpRecord
    | BrokerRegisteredRecord
    | BrokerUnregisteredRecord
    | RowsSweptRecord
    | ClientQuotasRecord
)


def _encode_numbers(numbers: Sequence[int]) -> bytes:
    return uvarint(len(numbers) + 1) + b"".join([INT32.pack(number) for number in numbers])


def _decode_numbers(reader: FieldReader) -> tuple[int, ...]:
    return tuple([reader.int32() for _ in range(reader.array_count(4))])


def _encode_leader_change(record: LeaderChangeRecord) -> bytes:
    return b"".join(
        (
            INT32.pack(record.leader_epoch),
            INT32.pack(record.broker_id),
            compact_string(record.host),
            INT32.pack(record.port),
            record.incarnation.bytes,
            NO_TAGS,
        )
    )


def _decode_leader_change(reader: FieldReader) -> LeaderChangeRecord:
    record = LeaderChangeRecord(
        leader_epoch=reader.int32(),
        broker_id=reader.int32(),
        host=reader.compact_string(),
        port=reader.int32(),
        incarnation=reader.uuid(),
    )
    reader.skip_tags()
    return record


def _encode_partitions_assigned(record: PartitionsAssignedRecord) -> bytes:
    return b"".join(
        (
            record.topic_id.bytes,
            compact_string(record.name),
            INT32.pack(record.first_partition),
            _encode_numbers(record.coordinators),
            NO_TAGS,
        )
    )


def _decode_partitions_assigned(reader: FieldReader) -> PartitionsAssignedRecord:
    record = PartitionsAssignedRecord(
        topic_id=reader.uuid(),
        name=reader.compact_string(),
        first_partition=reader.int32(),
        coordinators=_decode_numbers(reader),
    )
    reader.skip_tags()
    return record


def _encode_file_handed_over(record: FileHandedOverRecord) -> bytes:
    return b"".join(
        (
            compact_string(record.object_key),
            INT8.pack(record.object_format),
            INT64.pack(record.file_size),
            _encode_numbers(record.owner_ids),
            NO_TAGS,
        )
    )


def _decode_file_handed_over(reader: FieldReader) -> FileHandedOverRecord:
    record = FileHandedOverRecord(
        object_key=ObjectKey(reader.compact_string()),
        object_format=reader.int8(),
        file_size=reader.int64(),
        owner_ids=_decode_numbers(reader),
    )
    reader.skip_tags()
    return record


def _encode_files_tombstoned(record: FilesTombstonedRecord) -> bytes:
    keys = map(compact_string, record.object_keys)
    return b"".join((uvarint(len(record.object_keys) + 1), *keys, NO_TAGS))


def _decode_files_tombstoned(reader: FieldReader) -> FilesTombstonedRecord:
    keys = tuple([ObjectKey(reader.compact_string()) for _ in range(reader.array_count())])
    reader.skip_tags()
    return FilesTombstonedRecord(object_keys=keys)


def _encode_producers_expired(record: ProducersExpiredRecord) -> bytes:
    return INT64.pack(record.before_ms) + INT32.pack(record.limit) + NO_TAGS


def _decode_producers_expired(reader: FieldReader) -> ProducersExpiredRecord:
    record = ProducersExpiredRecord(before_ms=reader.int64(), limit=reader.int32())
    reader.skip_tags()
    return record


def _encode_no_op(record: NoOpRecord) -> bytes:
    return INT32.pack(record.leader_epoch) + NO_TAGS


def _decode_no_op(reader: FieldReader) -> NoOpRecord:
    record = NoOpRecord(leader_epoch=reader.int32())
    reader.skip_tags()
    return record


def _encode_broker_registered(record: BrokerRegisteredRecord) -> bytes:
    return b"".join(
        (
            INT32.pack(record.broker_id),
            compact_string(record.host),
            INT32.pack(record.port),
            compact_string(record.rack),
            record.incarnation.bytes,
            NO_TAGS,
        )
    )


def _decode_broker_registered(reader: FieldReader) -> BrokerRegisteredRecord:
    record = BrokerRegisteredRecord(
        broker_id=reader.int32(),
        host=reader.compact_string(),
        port=reader.int32(),
        rack=reader.compact_string(),
        incarnation=reader.uuid(),
    )
    reader.skip_tags()
    return record


def _encode_broker_unregistered(record: BrokerUnregisteredRecord) -> bytes:
    return INT32.pack(record.broker_id) + NO_TAGS


def _decode_broker_unregistered(reader: FieldReader) -> BrokerUnregisteredRecord:
    record = BrokerUnregisteredRecord(broker_id=reader.int32())
    reader.skip_tags()
    return record


def _encode_rows_swept(record: RowsSweptRecord) -> bytes:
    return INT32.pack(record.limit) + NO_TAGS


def _decode_rows_swept(reader: FieldReader) -> RowsSweptRecord:
    record = RowsSweptRecord(limit=reader.int32())
    reader.skip_tags()
    return record


def encode_quota_entity(entity: QuotaEntity) -> bytes:
    """The entity as the compact array that it is in records, messages and rows."""
    parts = [uvarint(len(entity) + 1)]
    for kind, name in entity:
        parts += (compact_string(kind), INT8.pack(name is None), compact_string(name or ""))
        parts.append(NO_TAGS)
    return b"".join(parts)


def decode_quota_entity(reader: FieldReader) -> QuotaEntity:
    """Raises CorruptLog, also for what no encoder writes."""
    entity: list[tuple[str, str | None]] = []
    count = reader.array_count(4)
    if count > QUOTA_ENTITY_PARTS_MAX:
        raise reader.corrupt(f"an entity of {count} parts")
    for _ in range(count):
        kind, is_default, name = reader.compact_string(), reader.int8(), reader.compact_string()
        reader.skip_tags()
        if entity and kind <= entity[-1][0]:
            raise reader.corrupt(f"the entity type {kind!r} after {entity[-1][0]!r}")
        if is_default not in (0, 1) or (is_default and name):
            raise reader.corrupt(f"a default {kind} with the name {name!r}")
        entity.append((kind, None if is_default else name))
    return tuple(entity)


def _encode_client_quotas(record: ClientQuotasRecord) -> bytes:
    parts = [encode_quota_entity(record.entity), uvarint(len(record.quotas) + 1)]
    for key, value in sorted(record.quotas.items()):
        parts += (compact_string(key), FLOAT64.pack(value), NO_TAGS)
    parts.append(NO_TAGS)
    return b"".join(parts)


def _decode_client_quotas(reader: FieldReader) -> ClientQuotasRecord:
    entity = decode_quota_entity(reader)
    quotas: dict[str, float] = {}
    for _ in range(reader.array_count(10)):
        key = reader.compact_string()
        if key in quotas:
            raise reader.corrupt(f"the quota {key!r} is there twice")
        quotas[key] = reader.float64()
        reader.skip_tags()
    reader.skip_tags()
    return ClientQuotasRecord(entity=entity, quotas=quotas)


CONTROL_CODECS: Final[
    Sequence[tuple[int, type[Any], Callable[[Any], bytes], Callable[..., Any]]]
] = (
    (1005, LeaderChangeRecord, _encode_leader_change, _decode_leader_change),
    (1006, PartitionsAssignedRecord, _encode_partitions_assigned, _decode_partitions_assigned),
    (1007, FileHandedOverRecord, _encode_file_handed_over, _decode_file_handed_over),
    (1008, FilesTombstonedRecord, _encode_files_tombstoned, _decode_files_tombstoned),
    (1009, ProducersExpiredRecord, _encode_producers_expired, _decode_producers_expired),
    (1010, NoOpRecord, _encode_no_op, _decode_no_op),
    (1011, BrokerRegisteredRecord, _encode_broker_registered, _decode_broker_registered),
    (1012, BrokerUnregisteredRecord, _encode_broker_unregistered, _decode_broker_unregistered),
    (1013, RowsSweptRecord, _encode_rows_swept, _decode_rows_swept),
    (1014, ClientQuotasRecord, _encode_client_quotas, _decode_client_quotas),
)
