"""Applies the records of metadata/records/transactions.py to the SQLite state.

Called by metadata/apply/apply.py, inside its transaction and with its rules. What opens a
transaction in a partition is a batch: `open_transactions` follows from FileCommitted records
(metadata/apply/apply_commit.py calls `open_in_partitions`).

The first offset of what is open in a partition stands in the partition's own row too, so that a
reader of a partition without transactions asks for nothing more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from metadata.apply.apply_groups import GroupChanges
from metadata.apply.transaction import StateTransaction
from metadata.records.groups import OffsetsCommittedRecord
from metadata.records.transactions import (
    ClosedTransactionsExpiredRecord,
    ConstantFixedRecord,
    EndedPartition,
    TransactionalIdsExpiredRecord,
    TransactionalOffsetsRecord,
    TransactionBeganRecord,
    TransactionCompletedRecord,
    TransactionDecidedRecord,
    TransactionEndedRecord,
    TransactionGrewRecord,
    TransactionRecord,
)
from metadata.state.queries.transaction_queries import (
    CLOSED_PERIOD_MS,
    expired_closed,
    pending_offset,
)
from metadata.state.schema import (
    ABORTED_TRANSACTIONS,
    CLOSED_TRANSACTIONS,
    CONSTANTS,
    MARKERS,
    OPEN_TRANSACTIONS,
    PENDING_OFFSETS,
    TRANSACTION_PARTS,
    TRANSACTIONS,
)
from metadata.state.transactions import transitions
from metadata.transaction_operations import (
    GROUP_PARTITION,
    NO_OFFSET,
    ClosedKey,
    ClosedTransaction,
    OpenTransaction,
    Transaction,
)
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptState

_UPSERT_TRANSACTION: Final = TRANSACTIONS.upsert_sql
_UPSERT_CLOSED: Final = CLOSED_TRANSACTIONS.upsert_sql
_UPSERT_PENDING: Final = PENDING_OFFSETS.upsert_sql
_DELETE_OPEN: Final = OPEN_TRANSACTIONS.delete_sql()
_DELETE_CLOSED: Final = CLOSED_TRANSACTIONS.delete_sql()
_FIRST_OPEN: Final = (
    "SELECT first_offset FROM open_transactions WHERE partition = ? ORDER BY first_offset LIMIT 1"
)
_CLOSED_CHECKSUM: Final = (
    "SELECT checksum FROM closed_transactions WHERE partition = ? AND producer_id = ?"
    " AND group_id = ?"
)
_PENDING_CHECKSUM: Final = (
    "SELECT checksum FROM pending_offsets WHERE producer_id = ? AND partition = ? AND group_id = ?"
    " AND topic_id = ?"
)
# An offset that was committed later, outside of the transaction, stays.
_PENDING_OF_GROUP: Final = (
    f"SELECT {', '.join(f'pending.{column}' for column in PENDING_OFFSETS.columns)}"
    " FROM pending_offsets AS pending"
    " LEFT JOIN consumer_groups AS known ON known.group_id = pending.group_id"
    " LEFT JOIN group_offsets AS committed ON committed.group_key = known.id"
    " AND committed.partition = pending.partition AND committed.topic_id = pending.topic_id"
    " WHERE pending.group_id = ? AND pending.producer_id = ?"
    " AND coalesce(committed.commit_ms <= pending.commit_ms, 1)"
    " ORDER BY pending.partition, pending.topic_id"
)


def open_in_partitions(
    state: StateTransaction, batches: Iterable[tuple[TopicIdPartition, OpenTransaction]]
) -> None:
    """Note where transactions begin in partitions; `batches` may be later ones of them, too.

    Raises CorruptState: another transaction of the producer is open there.
    """
    known = state.changes.transactions.open
    rows = []
    for name, batch in batches:
        key = (batch.partition, batch.producer_id)
        before = known[key] if key in known else state.image.transactions.open_transaction(key)
        if before is not None:
            if before.number != batch.number:
                raise CorruptState(f"{batch} begins while {before} is open")
            continue
        known.pop(key, None)  # so that it comes behind the others
        known[key] = batch
        rows.append(state.added(OPEN_TRANSACTIONS, *batch))
        partition = state.partition(name)
        if partition.first_open_offset == NO_OFFSET:
            after = partition._replace(first_open_offset=batch.first_offset)
            state.put_partition(name, partition, after)
    state.driver.executemany(OPEN_TRANSACTIONS.insert_sql, rows)


def apply_transaction(
    state: StateTransaction, groups: GroupChanges, offset: int, record: TransactionRecord
) -> None:
    """Raises CorruptState."""
    match record:
        case TransactionBeganRecord():
            _begin(state, offset, record)
        case TransactionGrewRecord():
            _grow(state, record)
        case TransactionDecidedRecord():
            _decide(state, record)
        case TransactionCompletedRecord():
            _complete(state, record)
        case TransactionEndedRecord():
            _end_partitions(state, record)
            if record.group_id is not None:
                _end_group(state, groups, offset, record, record.group_id)
        case TransactionalOffsetsRecord():
            _keep_offsets(state, record)
        case TransactionalIdsExpiredRecord():
            _expire_ids(state, record)
        case ClosedTransactionsExpiredRecord():
            _expire_closed(state, record)
        case ConstantFixedRecord():
            _fix(state, record)


# -- the transactional id -----------------------------------------------------------------------


def _known(state: StateTransaction, transactional_id: str) -> Transaction | None:
    changed = state.changes.transactions.ids
    if transactional_id in changed:
        return changed[transactional_id]
    return state.image.transactions.ids.get(transactional_id)


def _put(state: StateTransaction, before: Transaction | None, after: Transaction) -> None:
    if before is not None:
        state.subtract(TRANSACTIONS.checksum(_row(before)))
    row = state.added(TRANSACTIONS, *_row(after))
    state.driver.execute(_UPSERT_TRANSACTION, row)
    state.changes.transactions.ids[after.transactional_id] = after


def _row(transaction: Transaction) -> tuple[Any, ...]:
    key, transactional_id, *numbers = transaction[:-2]
    return (key, *map(int, numbers), transactional_id)


def _begin(state: StateTransaction, offset: int, record: TransactionBeganRecord) -> None:
    before = _known(state, record.transactional_id)
    _put(state, before, transitions.began(before, offset, record))


def _grow(state: StateTransaction, record: TransactionGrewRecord) -> None:
    before = _known(state, record.transactional_id)
    after = transitions.grown(before, record)
    state.driver.executemany(
        TRANSACTION_PARTS.insert_sql,
        [
            state.added(TRANSACTION_PARTS, after.id, partition, coordinator, topic_id.bytes, "")
            for (topic_id, partition), coordinator in record.partitions
        ]
        + [
            state.added(TRANSACTION_PARTS, after.id, GROUP_PARTITION, coordinator, b"", group_id)
            for group_id, coordinator in record.groups
        ],
    )
    _put(state, before, after)


def _decide(state: StateTransaction, record: TransactionDecidedRecord) -> None:
    before = _known(state, record.transactional_id)
    _put(state, before, transitions.decided(before, record))


def _complete(state: StateTransaction, record: TransactionCompletedRecord) -> None:
    before = _known(state, record.transactional_id)
    after = transitions.completed(before, record)
    state.delete_where(TRANSACTION_PARTS, TRANSACTION_PARTS.table.c.transaction_key == after.id)
    _put(state, before, after)


def _expire_ids(state: StateTransaction, record: TransactionalIdsExpiredRecord) -> None:
    for transactional_id in record.transactional_ids:
        before = _known(state, transactional_id)
        if before is None or before.is_open:
            raise CorruptState(f"transactional id {transactional_id!r} expired: it is {before}")
        state.delete_where(TRANSACTIONS, TRANSACTIONS.table.c.id == before.id)
        state.changes.transactions.ids[transactional_id] = None


# -- partitions ---------------------------------------------------------------------------------


def _end_partitions(state: StateTransaction, record: TransactionEndedRecord) -> None:
    markers, aborted = [], []
    for ended in record.partitions:
        partition_id = _end_partition(state, record, ended)
        markers.append(
            state.added(
                MARKERS,
                partition_id,
                ended.marker_offset,
                record.producer_id,
                record.producer_epoch,
                int(record.is_commit),
                record.coordinator_epoch,
                record.ended_ms,
                record.number,
            )
        )
        if ended.first_offset != NO_OFFSET and not record.is_commit:
            aborted.append(
                state.added(
                    ABORTED_TRANSACTIONS,
                    partition_id,
                    ended.marker_offset,
                    ended.first_offset,
                    record.producer_id,
                    ended.last_stable_offset,
                )
            )
        _close(state, ClosedKey(partition_id, record.producer_id), record)
    state.driver.executemany(MARKERS.insert_sql, markers)
    state.driver.executemany(ABORTED_TRANSACTIONS.insert_sql, aborted)


def _end_partition(
    state: StateTransaction, record: TransactionEndedRecord, ended: EndedPartition
) -> int:
    """Move the partition over its marker; returns its surrogate key. Raises CorruptState."""
    partition = state.partition(ended.partition)
    key = (partition.id, record.producer_id)
    changed = state.changes.transactions.open
    opened = changed[key] if key in changed else state.image.transactions.open_transaction(key)
    first_offset = NO_OFFSET if opened is None else opened.first_offset
    if first_offset != ended.first_offset or ended.marker_offset != partition.high_watermark:
        raise CorruptState(f"{ended}: {opened} is open, and the partition is {partition}")
    first_open = partition.first_open_offset
    if opened is not None:
        state.driver.execute(_DELETE_OPEN, (partition.id, first_offset))
        state.subtract(OPEN_TRANSACTIONS.checksum(opened))
        changed[key] = None
        if first_open == first_offset:
            row = state.driver.execute(_FIRST_OPEN, (partition.id,)).fetchone()
            first_open = NO_OFFSET if row is None else row[0]
    after = partition._replace(
        high_watermark=ended.marker_offset + 1,
        first_open_offset=first_open,
        last_marker_offset=ended.marker_offset,
    )
    if after.last_stable_offset != ended.last_stable_offset:
        raise CorruptState(f"{ended}: the last stable offset is {after.last_stable_offset}")
    state.put_partition(ended.partition, partition, after)
    return partition.id


def _close(state: StateTransaction, key: ClosedKey, record: TransactionEndedRecord) -> None:
    before = state.driver.execute(_CLOSED_CHECKSUM, key).fetchone()
    if before is not None:
        state.subtract(before[0])
    row = state.added(
        CLOSED_TRANSACTIONS,
        key.partition,
        key.producer_id,
        record.number,
        record.producer_epoch,
        record.ended_ms // CLOSED_PERIOD_MS,
        record.ended_ms,
        key.group_id,
    )
    state.driver.execute(_UPSERT_CLOSED, row)
    state.changes.transactions.closed[key] = ClosedTransaction(record.number, record.producer_epoch)


def _expire_closed(state: StateTransaction, record: ClosedTransactionsExpiredRecord) -> None:
    found = expired_closed(state.connection, record.before_ms, record.limit)
    state.driver.executemany(_DELETE_CLOSED, [key for key, _ in found])
    for key, checksum in found:
        state.subtract(checksum)
        state.changes.transactions.closed[key] = None


def _fix(state: StateTransaction, record: ConstantFixedRecord) -> None:
    constants = state.changes.transactions.constants
    if record.name in constants or record.name in state.image.transactions.constants:
        raise CorruptState(f"a constant is fixed again: {record}")
    state.driver.execute(CONSTANTS.insert_sql, state.added(CONSTANTS, record.name, record.value))
    constants[record.name] = record.value


# -- groups -------------------------------------------------------------------------------------


def _keep_offsets(state: StateTransaction, record: TransactionalOffsetsRecord) -> None:
    rows: dict[tuple[int, bytes], Sequence[Any]] = {}
    for offset in record.offsets:
        topic_id, partition = offset.partition
        rows[partition, topic_id.bytes] = (
            record.producer_id,
            partition,
            record.number,
            offset.offset,
            offset.leader_epoch,
            offset.commit_ms,
            record.group_id,
            topic_id.bytes,
            offset.metadata,
        )
    for partition, topic_id_bytes in rows:
        key = (record.producer_id, partition, record.group_id, topic_id_bytes)
        before = state.driver.execute(_PENDING_CHECKSUM, key).fetchone()
        if before is not None:
            state.subtract(before[0])
    state.driver.executemany(
        _UPSERT_PENDING, [state.added(PENDING_OFFSETS, *row) for row in rows.values()]
    )


def _end_group(
    state: StateTransaction,
    groups: GroupChanges,
    offset: int,
    record: TransactionEndedRecord,
    group_id: str,
) -> None:
    """Commit or drop what waited, and all of the producer's in this group."""
    groups.flush()
    if record.is_commit:
        found = state.driver.execute(_PENDING_OF_GROUP, (group_id, record.producer_id)).fetchall()
        if found:
            offsets = [pending_offset(row) for row in found]
            committed = OffsetsCommittedRecord(group_id=group_id, offsets=offsets)
            groups.apply(offset, committed, record.ended_ms)
            state.changes.transactions.groups.add(group_id)
    pending = PENDING_OFFSETS.table.c
    state.delete_where(
        PENDING_OFFSETS,
        (pending.group_id == group_id) & (pending.producer_id == record.producer_id),
    )
    _close(state, ClosedKey(GROUP_PARTITION, record.producer_id, group_id), record)


def forget_open(state: StateTransaction, partition_ids: Mapping[int, object] | set[int]) -> None:
    """A topic is gone, and with its partitions what was open there."""
    changed = state.changes.transactions.open
    keys = [
        (partition_id, producer_id)
        for partition_id in partition_ids
        for producer_id in state.image.transactions.open_of(partition_id)
    ]
    for key in [*keys, *changed]:
        if key[0] in partition_ids:
            changed[key] = None
