"""Applies the records of metadata/records/groups.py to the SQLite state.

`GroupChanges` works inside a `StateTransaction` and is deterministic: everything follows from the
records and the rows, wherever one transaction ends and the next one begins.

Groups commit all the time, and most of them the same few offsets. So commits are collected over the
whole transaction: however often an offset was committed in it, its row is written once. They touch
no other table than those of the groups, so other records do not make them be written earlier; a
record that deletes does.

What a transaction wants to commit goes with the group, or with the offset that it would replace, as
in Kafka; so nothing of it comes back when the transaction ends.

The row of a group is made by the first record that names it, and its surrogate key is that record's
offset in the metadata log.

An offset's commit time is indexed by *period* only, as that of producers is and for the same reason
(metadata/state/producer_rows.py): a row whose period stays leaves the index alone.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, cast

from metadata.apply.transaction import StateTransaction
from metadata.records import groups
from metadata.state.schema import (
    COMMIT_PERIOD_MS,
    CONSUMER_GROUPS,
    GROUP_OFFSETS,
    PENDING_OFFSETS,
    Row,
)
from wal.errors import CorruptState

_KEYS_PER_QUERY: Final = 1_000
"""Three parameters each; SQLite takes 32,766."""

# Joins from the wanted keys into the table, in this order: see metadata/state/producer_rows.py.
_SELECT_GROUPS: Final = """
    WITH wanted (group_id) AS (VALUES {})
    SELECT found.group_id, found.id, found.kind, found.checksum
    FROM wanted CROSS JOIN consumer_groups AS found ON found.group_id = wanted.group_id
"""
_SELECT_OFFSETS: Final = """
    WITH wanted (group_key, partition, topic_id) AS (VALUES {})
    SELECT found.group_key, found.partition, found.topic_id,
        found.commit_period, found.commit_ms, found.expire_ms, found.checksum
    FROM wanted CROSS JOIN group_offsets AS found ON found.group_key = wanted.group_key
        AND found.partition = wanted.partition AND found.topic_id = wanted.topic_id
"""
_HAS_OFFSETS: Final = "SELECT 1 FROM group_offsets WHERE group_key = ? LIMIT 1"
_PENDING: Final = (
    "SELECT producer_id, partition, group_id, topic_id, commit_ms, checksum FROM pending_offsets"
    " WHERE group_id = ?"
)
_DELETE_PENDING: Final = PENDING_OFFSETS.delete_sql()
_UPDATE_GROUP: Final = CONSUMER_GROUPS.update_sql("kind", "updated_ms", "state")
_DELETE_GROUP: Final = CONSUMER_GROUPS.delete_sql()
_UPSERT_OFFSET: Final = GROUP_OFFSETS.upsert_sql
# Leaves the indexed columns alone, and with them the indexes.
_UPDATE_OFFSET: Final = GROUP_OFFSETS.update_sql(
    "committed_offset", "leader_epoch", "commit_ms", "metadata"
)
_DELETE_OFFSET: Final = GROUP_OFFSETS.delete_sql()

_OffsetKey = tuple[int, int, bytes]
"""The key of a row: the group's surrogate key, partition, topic id."""


class _GroupRow(NamedTuple):
    id: int
    kind: int
    checksum: int


class _OffsetRow(NamedTuple):
    commit_period: int
    commit_ms: int
    expire_ms: int
    checksum: int


class GroupChanges:
    """What the group records of one transaction change."""

    def __init__(self, state: StateTransaction) -> None:
        self._state = state
        self._named: dict[str, tuple[int, int]] = {}
        """Groups to be written: metadata offset and time of the first record that names each."""
        self._stored: dict[str, groups.GroupStoredRecord] = {}
        self._offsets: dict[tuple[str, int, bytes], groups.CommittedOffset] = {}

    def apply(self, offset: int, record: groups.GroupRecord, timestamp_ms: int) -> None:
        """Raises CorruptState."""
        match record:
            case groups.OffsetsCommittedRecord():
                if record.offsets:
                    self._named.setdefault(record.group_id, (offset, timestamp_ms))
                    self._collect(record)
            case groups.GroupStoredRecord():
                if record.kind <= groups.GroupKind.OFFSETS_ONLY:
                    raise CorruptState(f"group {record.group_id!r} is of kind {record.kind}")
                self._named.setdefault(record.group_id, (offset, timestamp_ms))
                self._stored[record.group_id] = record
            case groups.OffsetsDeletedRecord():
                self.flush()
                self._delete_offsets(record)
            case groups.GroupDeletedRecord():
                self.flush()
                self._delete_group(record.group_id)

    def flush(self) -> None:
        """Write what was collected."""
        if self._named:
            ids = self._write_groups()
            if self._offsets:
                self._write_offsets(ids)
            self._named.clear()
            self._stored.clear()
            self._offsets.clear()

    @property
    def _driver(self) -> sqlite3.Connection:
        return cast(sqlite3.Connection, self._state.connection.connection.driver_connection)

    # -- writing --------------------------------------------------------------------------------

    def _collect(self, record: groups.OffsetsCommittedRecord) -> None:
        group_id, offsets = record.group_id, self._offsets
        for offset in record.offsets:
            topic_id, partition = offset.partition
            offsets[group_id, partition, topic_id.bytes] = offset

    def _write_groups(self) -> Mapping[str, int]:
        """Make the rows of groups that have none, store what is to be stored; all their keys."""
        found = self._groups([*self._named])
        ids = {group_id: row.id for group_id, row in found.items()}
        new, updates = [], []
        for group_id, (offset, timestamp_ms) in self._named.items():
            stored = self._stored.get(group_id)
            before = found.get(group_id)
            if before is None:
                ids[group_id] = offset
                values = (
                    (offset, groups.GroupKind.OFFSETS_ONLY.value, timestamp_ms, group_id, b"")
                    if stored is None
                    else (offset, stored.kind, stored.updated_ms, group_id, stored.state)
                )
                new.append(self._state.added(CONSUMER_GROUPS, *values))
            elif stored is not None:
                values = (before.id, stored.kind, stored.updated_ms, group_id, stored.state)
                self._state.subtract(before.checksum)
                checksum = self._state.added(CONSUMER_GROUPS, *values)[-1]
                updates.append((stored.kind, stored.updated_ms, stored.state, checksum, before.id))
        self._driver.executemany(CONSUMER_GROUPS.insert_sql, new)
        self._driver.executemany(_UPDATE_GROUP, updates)
        return ids

    def _write_offsets(self, ids: Mapping[str, int]) -> None:
        keys = [
            (ids[group_id], partition, topic_id) for group_id, partition, topic_id in self._offsets
        ]
        rows = [_unchecked_row(*args) for args in zip(keys, self._offsets.values(), strict=True)]
        checksums = GROUP_OFFSETS.checksums_of(rows).tolist()
        found = self._offset_rows(keys)
        updates, upserts = [], []
        for key, row, checksum in zip(keys, rows, checksums, strict=True):
            _, _, period, value, leader_epoch, commit_ms, expire_ms, _, metadata, _ = row
            before = found.get(key)
            if (
                before is not None
                and before.commit_period == period
                and before.expire_ms == expire_ms
            ):
                updates.append((value, leader_epoch, commit_ms, metadata, checksum, *key))
            else:
                upserts.append((*row[:-1], checksum))
        self._driver.executemany(_UPDATE_OFFSET, updates)
        self._driver.executemany(_UPSERT_OFFSET, upserts)
        self._state.add(sum(checksums) - sum([row.checksum for row in found.values()]))

    # -- deleting -------------------------------------------------------------------------------

    def _delete_offsets(self, record: groups.OffsetsDeletedRecord) -> None:
        self._delete_pending(record)
        group = self._groups([record.group_id]).get(record.group_id)
        if group is None:
            return
        keys = [(group.id, partition, topic_id.bytes) for topic_id, partition in record.partitions]
        gone = {
            key: row.checksum
            for key, row in self._offset_rows(keys).items()
            if row.commit_ms <= record.committed_until_ms
        }
        self._driver.executemany(_DELETE_OFFSET, [*gone])
        self._state.subtract(sum(gone.values()))
        has_offsets = self._driver.execute(_HAS_OFFSETS, (group.id,)).fetchone() is not None
        if group.kind == groups.GroupKind.OFFSETS_ONLY and not has_offsets:
            self._delete_row(group)

    def _delete_pending(self, record: groups.OffsetsDeletedRecord) -> None:
        named = {(partition, topic_id.bytes) for topic_id, partition in record.partitions}
        gone: dict[tuple[int, int, str, bytes], int] = {}
        for *key, commit_ms, checksum in self._driver.execute(_PENDING, (record.group_id,)):
            producer_id, partition, group_id, topic_id = key
            if (partition, topic_id) in named and commit_ms <= record.committed_until_ms:
                gone[producer_id, partition, group_id, topic_id] = checksum
        self._driver.executemany(_DELETE_PENDING, [*gone])
        self._state.subtract(sum(gone.values()))

    def _delete_group(self, group_id: str) -> None:
        self._state.delete_where(PENDING_OFFSETS, PENDING_OFFSETS.table.c.group_id == group_id)
        group = self._groups([group_id]).get(group_id)
        if group is not None:
            self._state.delete_where(GROUP_OFFSETS, GROUP_OFFSETS.table.c.group_key == group.id)
            self._delete_row(group)

    def _delete_row(self, group: _GroupRow) -> None:
        self._driver.execute(_DELETE_GROUP, (group.id,))
        self._state.subtract(group.checksum)

    # -- looking up -----------------------------------------------------------------------------

    def _groups(self, group_ids: Sequence[str]) -> dict[str, _GroupRow]:
        found = {}
        for start in range(0, len(group_ids), _KEYS_PER_QUERY):
            wanted = group_ids[start : start + _KEYS_PER_QUERY]
            statement = _SELECT_GROUPS.format(", ".join(["(?)"] * len(wanted)))
            for group_id, *values in self._driver.execute(statement, wanted):
                found[group_id] = _GroupRow(*values)
        return found

    def _offset_rows(self, keys: Sequence[_OffsetKey]) -> dict[_OffsetKey, _OffsetRow]:
        found = {}
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            wanted = keys[start : start + _KEYS_PER_QUERY]
            statement = _SELECT_OFFSETS.format(", ".join(["(?, ?, ?)"] * len(wanted)))
            for group_key, partition, topic_id, *values in self._driver.execute(
                statement, tuple(chain.from_iterable(wanted))
            ):
                found[group_key, partition, topic_id] = _OffsetRow(*values)
        return found


def _unchecked_row(key: _OffsetKey, offset: groups.CommittedOffset) -> Row:
    """All columns but the checksum, for which there is a 0."""
    group_key, partition, topic_id = key
    _, value, commit_ms, leader_epoch, metadata, expire_ms = offset
    return (
        group_key,
        partition,
        commit_ms // COMMIT_PERIOD_MS,
        value,
        leader_epoch,
        commit_ms,
        expire_ms,
        topic_id,
        metadata,
        0,
    )
