"""Applies the records of metadata/records/control.py and acls.py to the SQLite state.

Called by metadata/apply/apply.py, inside its transaction; like there, everything follows from the
record and the rows, and a record that contradicts the state raises CorruptState.
"""

from typing import Final

from sqlalchemy import and_, select

from metadata.acls import AclBinding
from metadata.apply.apply_deletions import RowDeletions
from metadata.apply.apply_topics import extend_topic
from metadata.apply.transaction import StateTransaction
from metadata.metadata_version import METADATA_VERSION
from metadata.operations import TOMBSTONE, Leader, RegisteredBroker
from metadata.records import control
from metadata.records.acls import (
    AccessControlEntryRecord,
    AclRecord,
    RemoveAccessControlEntryRecord,
)
from metadata.state import schema
from metadata.state.producer_rows import expire_producers
from wal.coordinates import ObjectKey
from wal.errors import CorruptState

_TOMBSTONE_SHIFT: Final = 16
TOMBSTONES_PER_RECORD_MAX: Final = 1 << _TOMBSTONE_SHIFT


def apply_control(
    state: StateTransaction,
    deletions: RowDeletions,
    offset: int,
    record: control.ControlRecord | AclRecord,
    timestamp_ms: int,
) -> None:
    """Raises CorruptState."""
    match record:
        case control.NoOpRecord():
            pass
        case control.LeaderChangeRecord():
            _change_leader(state, record)
        case control.PartitionsAssignedRecord():
            _assign_partitions(state, offset, record)
        case control.FileHandedOverRecord():
            _take_file_over(state, offset, record, timestamp_ms)
        case control.FilesTombstonedRecord():
            _tombstone_files(state, offset, record, timestamp_ms)
        case control.ProducersExpiredRecord():
            _expire_producers(state, record)
        case control.BrokerRegisteredRecord():
            _register_broker(state, record)
        case control.BrokerUnregisteredRecord():
            _unregister_broker(state, record)
        case control.RowsSweptRecord():
            deletions.sweep(record.limit, timestamp_ms)
        case control.ClientQuotasRecord():
            _set_quotas(state, record)
        case AccessControlEntryRecord():
            _add_acl(state, record.rule)
        case RemoveAccessControlEntryRecord():
            _remove_acl(state, record.rule)


def _change_leader(state: StateTransaction, record: control.LeaderChangeRecord) -> None:
    if record.metadata_version > METADATA_VERSION:
        raise CorruptState(
            f"broker {record.broker_id} leads this metadata partition, and writes metadata version "
            f"{record.metadata_version}; this release reads up to {METADATA_VERSION}: install the "
            "other broker's release here"
        )
    before = state.changes.leader or state.image.leader
    if record.leader_epoch <= (0 if before is None else before.leader_epoch):
        raise CorruptState(f"leader epoch {record.leader_epoch} after {before}")
    state.delete_where(schema.LEADERSHIP, schema.LEADERSHIP.table.c.id == 0)
    state.insert(
        schema.LEADERSHIP,
        0,
        record.leader_epoch,
        record.broker_id,
        record.port,
        record.successor_id,
        record.host,
        record.incarnation.bytes,
    )
    state.changes.leader = Leader(
        record.leader_epoch,
        record.broker_id,
        record.host,
        record.port,
        record.incarnation,
        record.successor_id,
    )


def _assign_partitions(
    state: StateTransaction, offset: int, record: control.PartitionsAssignedRecord
) -> None:
    if not record.coordinators or state.coordinator_id in record.coordinators:
        raise CorruptState(f"{record} is not an assignment to other coordinators")
    topic = extend_topic(
        state, offset, record.topic_id, record.name, record.first_partition, record.coordinators
    )
    for partition, coordinator in enumerate(record.coordinators, record.first_partition):
        state.insert(schema.ASSIGNMENTS, topic, partition, coordinator)


def _take_file_over(
    state: StateTransaction, offset: int, record: control.FileHandedOverRecord, timestamp_ms: int
) -> None:
    """Our own account of the file, if there is one, stays; only the right to decide is added.

    A tombstone stays one: it gets an owner list, which tells it from those that are just forgotten.
    """
    files = schema.FILES.table.c
    found = state.connection.execute(
        select(schema.FILES.table).where(files.object_key == record.object_key)
    ).one_or_none()
    if found is None:
        state.insert(
            schema.FILES,
            offset,
            record.object_format,
            record.file_size,
            -1,
            timestamp_ms,
            0,
            0,
            timestamp_ms,
            1,
            record.object_key,
            schema.pack_owners(record.owner_ids),
        )
        return
    file_id, object_format, file_size, *account, is_owner, key, owners = tuple(found)[:-1]
    if object_format == TOMBSTONE and not owners:
        file_size, owners = record.file_size, schema.pack_owners(record.owner_ids)
    elif is_owner:
        return  # it was handed over before; the sender had lost our answer
    state.delete_where(schema.FILES, files.id == file_id)
    state.insert(schema.FILES, file_id, object_format, file_size, *account, 1, key, owners)


def _tombstone_files(
    state: StateTransaction, offset: int, record: control.FilesTombstonedRecord, timestamp_ms: int
) -> None:
    """One row per key. Their surrogate keys are negative: every other one is an offset.

    A file that was handed over and never committed here keeps its row, and with it its owners.
    """
    if len(record.object_keys) > TOMBSTONES_PER_RECORD_MAX:
        raise CorruptState(f"{len(record.object_keys)} tombstones in one record")
    for position, key in enumerate(record.object_keys):
        if _seal_handed_over(state, key):
            continue
        state.insert(
            schema.FILES,
            -(offset << _TOMBSTONE_SHIFT) - position - 1,
            TOMBSTONE,
            0,
            -1,
            timestamp_ms,
            0,
            0,
            timestamp_ms,
            1,
            key,
            schema.pack_owners(()),
        )


def _seal_handed_over(state: StateTransaction, key: ObjectKey) -> bool:
    files, answers = schema.FILES.table.c, schema.FILE_ANSWERS.table.c
    found = state.connection.execute(
        select(schema.FILES.table).where(files.object_key == key)
    ).one_or_none()
    if found is None:
        return False
    file_id, object_format, *account = tuple(found)[:-1]
    answer = state.connection.execute(select(answers.file).where(answers.file == file_id)).first()
    if object_format == TOMBSTONE or answer is not None:
        raise CorruptState(
            f"{key} was tombstoned and is {'committed' if answer else 'a tombstone'}"
        )
    state.delete_where(schema.FILES, files.id == file_id)
    state.insert(schema.FILES, file_id, TOMBSTONE, *account)
    return True


def _expire_producers(state: StateTransaction, record: control.ProducersExpiredRecord) -> None:
    for key, checksum in expire_producers(state.connection, record.before_ms, record.limit):
        state.subtract(checksum)
        state.changes.producers[key] = None


def _register_broker(state: StateTransaction, record: control.BrokerRegisteredRecord) -> None:
    state.delete_where(schema.BROKERS, schema.BROKERS.table.c.broker_id == record.broker_id)
    state.insert(
        schema.BROKERS,
        record.broker_id,
        record.port,
        record.may_lead,
        record.metadata_version,
        record.host,
        record.rack,
        record.endpoints,
        record.incarnation.bytes,
    )
    state.changes.brokers[record.broker_id] = RegisteredBroker(
        record.broker_id,
        record.host,
        record.port,
        record.rack,
        record.incarnation,
        record.endpoints,
        record.may_lead,
        record.metadata_version,
    )


def _unregister_broker(state: StateTransaction, record: control.BrokerUnregisteredRecord) -> None:
    gone = state.delete_where(
        schema.BROKERS, and_(schema.BROKERS.table.c.broker_id == record.broker_id)
    )
    if gone != 1:
        raise CorruptState(f"broker {record.broker_id} was unregistered and is not registered")
    state.changes.brokers[record.broker_id] = None


def _set_quotas(state: StateTransaction, record: control.ClientQuotasRecord) -> None:
    entity = control.encode_quota_entity(record.entity)
    gone = state.delete_where(schema.CLIENT_QUOTAS, schema.CLIENT_QUOTAS.table.c.entity == entity)
    if not gone and not record.quotas:
        raise CorruptState(f"{record.entity} lost its quotas and had none")
    for key, value in sorted(record.quotas.items()):
        state.insert(schema.CLIENT_QUOTAS, schema.float_bits(value), entity, key)
    state.changes.quotas[record.entity] = dict(record.quotas) or None


def _add_acl(state: StateTransaction, rule: AclBinding) -> None:
    if state.has_acl(rule):
        raise CorruptState(f"{rule} was added and was there")
    state.insert(schema.ACLS, *schema.acl_row(rule))
    state.changes.acls[rule] = True


def _remove_acl(state: StateTransaction, rule: AclBinding) -> None:
    columns = schema.ACLS.table.columns.values()
    is_it = [column == value for column, value in zip(columns, schema.acl_row(rule), strict=False)]
    if state.delete_where(schema.ACLS, and_(*is_it)) != 1:
        raise CorruptState(f"{rule} was removed and was not there")
    state.changes.acls[rule] = False
