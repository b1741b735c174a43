"""Metadata records about the coordinators and their cluster: leadership, assignment, ownership,
expiry, brokers, quotas of clients.

They are framed and encoded like all metadata records (metadata/records/records.py) and applied by
metadata/apply/apply_control.py. KIP-1164 needs each of them and defines none.

    1005 LeaderChange        LeaderEpoch int32, BrokerId int32, Host string, Port int32,
                             Incarnation uuid, SuccessorId int32, MetadataVersion int32
    1006 PartitionsAssigned  TopicId uuid, Name string, FirstPartition int32, Coordinators []int32
    1007 FileHandedOver      ObjectKey string, ObjectFormat int8, FileSize int64, OwnerIds []int32
    1008 FilesTombstoned     ObjectKeys []string
    1009 ProducersExpired    BeforeMs int64, Limit int32
    1010 NoOp                LeaderEpoch int32
    1011 BrokerRegistered    BrokerId int32, Host string, Port int32, Rack string, Incarnation uuid,
                             Endpoints string, MayLead int8, MetadataVersion int32
    1012 BrokerUnregistered  BrokerId int32
    1013 RowsSwept           Limit int32
    1014 ClientQuotas        Entity [] Type string, IsDefault int8, Name string (by type),
                             Quotas [] Key string, Value float64 (by key)

Encoding raises ValueError or struct.error for a number that its field cannot hold; decoding raises
nothing but CorruptLog.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

from metadata.metadata_version import METADATA_VERSION
from metadata.operations import QuotaEntity
from wal.coordinates import ObjectKey
from wal.wire.fields import INT8, NO_TAGS, FieldReader, compact_string, uvarint
from wal.wire.layouts import Field, Int8, Int32

NO_BROKER: Final = -1
"""In the place of a broker id: nobody. As a leader: the last one has resigned."""

QUOTA_ENTITY_PARTS_MAX: Final = 8
"""More than there are types."""


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


QuotaEntityField = Annotated[QuotaEntity, Field(encode_quota_entity, decode_quota_entity)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChangeRecord:
    """From here on this broker leads the metadata partition; the first record of every leader.

    `leader_epoch` is one more than the last one. Nothing of an older leader can follow: its append
    would need the offset that this record has taken.
    """

    leader_epoch: Int32
    broker_id: Int32
    host: str
    """Where other brokers reach the leader; empty when nobody else can."""
    port: Int32
    incarnation: UUID
    """Tells two lives of one broker apart."""
    successor_id: Int32 = NO_BROKER
    """Of a leader that resigns: the broker that leads next, if it can; -1: nobody is named."""
    metadata_version: Int32 = METADATA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAssignedRecord:
    """Partitions `first_partition` .. of a topic live at other coordinators; catalogue only.

    `coordinators` names one coordinator per partition, in partition order. An assignment never
    changes; the partitions that this coordinator keeps itself are PartitionCreated records.
    """

    topic_id: UUID
    name: str
    first_partition: Int32
    coordinators: Sequence[Int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHandedOverRecord:
    """The owner before this coordinator has no live batches left in the file: we decide now."""

    object_key: ObjectKey
    object_format: Int8
    file_size: int
    owner_ids: Sequence[Int32]


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
    limit: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord:
    """Changes nothing; that it could be appended proves that its writer still leads."""

    leader_epoch: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegisteredRecord:
    """A broker is alive and reached there; replaces what was known of the same id."""

    broker_id: Int32
    host: str
    port: Int32
    rack: str
    """Empty when it has none."""
    incarnation: UUID
    endpoints: str
    """Where clients reach it: `NAME://host:port` of each listener, separated by commas."""
    may_lead: bool
    """Whether it stands for the leadership of metadata partitions."""
    metadata_version: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnregisteredRecord:
    """A broker has stopped, or was silent for too long."""

    broker_id: Int32


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

    limit: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotasRecord:
    """An entity has exactly these quotas from here on, or none at all. Catalogue only."""

    entity: QuotaEntityField
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

CONTROL_RECORDS: Final[Mapping[int, type[Any]]] = {
    1005: LeaderChangeRecord,
    1006: PartitionsAssignedRecord,
    1007: FileHandedOverRecord,
    1008: FilesTombstonedRecord,
    1009: ProducersExpiredRecord,
    1010: NoOpRecord,
    1011: BrokerRegisteredRecord,
    1012: BrokerUnregisteredRecord,
    1013: RowsSweptRecord,
    1014: ClientQuotasRecord,
}
