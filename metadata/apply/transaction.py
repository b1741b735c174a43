"""One SQLite transaction on the state: rows, the changes of the image, the state hash.

The appliers (metadata/apply/apply.py and its parts) read and write through a `StateTransaction`,
which adds the checksum of each new row to the state hash and takes out that of each deleted row. A
row of `partitions` is usually written by several records: those rows are collected, and `flush`
writes each once.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final, cast
from uuid import UUID

import numpy as np
from sqlalchemy import ColumnElement, Connection, Select, delete, func, select

from metadata.acls import AclBinding
from metadata.state import schema
from metadata.state.image import (
    Changes,
    CommittedImage,
    PartitionState,
    PlannedSegment,
    RewriteState,
    StoredTopic,
)
from metadata.state.state_hash import HASH_MODULUS, sum_of, to_signed
from wal.columns import FEW_MAX, Int64s
from wal.coordinates import TopicIdPartition
from wal.crc import crc32c
from wal.errors import CorruptState

_UPDATE_PARTITION: Final = schema.PARTITIONS.update_sql(
    "log_start_offset",
    "high_watermark",
    "planned_end_offset",
    "unplanned_bytes",
    "live_bytes",
    "first_open_offset",
    "last_marker_offset",
)
_UPSERT_APPLIED: Final = schema.compiled(schema.APPLIED.insert().prefix_with("OR REPLACE"))
_ALL_BITS: Final = 0xFFFFFFFF
_UNCHANGED: Final = PartitionState(-1, -1, -1)


class StateTransaction:
    """Reads of rows and image, writes of rows, on `connection`, where a write transaction began.

    Runs in the writer thread; only reads the image. `finish` ends what is written; the caller then
    commits, and merges the returned changes into the image.
    """

    def __init__(self, connection: Connection, image: CommittedImage) -> None:
        self.connection = connection
        self.driver: Final = cast(sqlite3.Connection, connection.connection.driver_connection)
        """For what runs in every commit: going through SQLAlchemy costs more than SQLite does."""
        self.image = image
        self.coordinator_id: Final = image.coordinator_id
        self._hash = image.state_hash
        self.changes = Changes(
            next_offset=image.next_offset,
            timestamp_ms=image.timestamp_ms,
            state_hash=image.state_hash,
            next_producer_id=image.next_producer_id,
            forgotten_until_ms=image.forgotten_until_ms,
            began_ms=image.began_ms,
        )
        self._written_partitions: dict[int, PartitionState] = {}
        self._partitions_before: dict[int, PartitionState] = {}

    def finish(self, last_record: bytes) -> Changes:
        """Write the applied offset and the state hash; nothing is committed."""
        changes = self.changes
        changes.state_hash = self._hash % HASH_MODULUS
        write_applied(self.driver, changes, last_record_crc=crc32c(last_record))
        return changes

    # -- what is there ----------------------------------------------------------------------------

    def topic(self, topic_id: UUID) -> StoredTopic | None:
        if topic_id in self.changes.topics:
            return self.changes.topics[topic_id]
        return self.image.topics.get(topic_id)

    def partition_or_none(self, partition: TopicIdPartition) -> PartitionState | None:
        # One look-up per dictionary: hashing a UUID is Python code.
        changed = self.changes.partitions
        state = changed.get(partition, _UNCHANGED) if changed else _UNCHANGED
        return self.image.partitions.get(partition) if state is _UNCHANGED else state

    def partition(self, partition: TopicIdPartition) -> PartitionState:
        state = self.partition_or_none(partition)
        if state is None:
            raise CorruptState(f"a record names the unknown partition {partition}")
        return state

    def partitions(self, partitions: Sequence[TopicIdPartition]) -> Sequence[PartitionState]:
        """`partition` for many."""
        if not self.changes.partitions:
            states = [*map(self.image.partitions.get, partitions)]
            if all(states):
                return cast(Sequence[PartitionState], states)
        return [*map(self.partition, partitions)]

    def has_acl(self, rule: AclBinding) -> bool:
        changed = self.changes.acls.get(rule)
        return rule in self.image.acls if changed is None else changed

    def rewrite(self, partition: TopicIdPartition) -> RewriteState | None:
        if partition in self.changes.rewrites:
            return self.changes.rewrites[partition]
        return self.image.rewrites.get(partition)

    def plans(self) -> list[PlannedSegment]:
        merged = {**self.image.plans, **self.changes.plans}
        return [plan for plan in merged.values() if plan is not None]

    # -- partitions -------------------------------------------------------------------------------

    def put_partition(
        self, partition: TopicIdPartition, before: PartitionState, after: PartitionState
    ) -> None:
        """Collected: a partition is usually written by several files of one transaction."""
        self._partitions_before.setdefault(before.id, before)
        self._written_partitions[after.id] = after
        self.changes.partitions[partition] = after

    def put_partitions(
        self, before: Sequence[PartitionState], after: Mapping[TopicIdPartition, PartitionState]
    ) -> None:
        """`put_partition` for many."""
        for state in before:
            self._partitions_before.setdefault(state.id, state)
        self._written_partitions.update((state.id, state) for state in after.values())
        self.changes.partitions.update(after)

    def flush(self) -> None:
        """Write the rows of `partitions` that were put."""
        if not self._written_partitions:
            return
        if len(self._written_partitions) <= FEW_MAX:
            updates = self._few_updates()
        else:
            before = partition_columns(self._partitions_before.values())
            after = partition_columns(self._written_partitions.values())
            checksums = schema.PARTITIONS.checksums([*after])
            self._hash += sum_of(checksums) - sum_of(schema.PARTITIONS.checksums([*before]))
            columns = [*after[3:], checksums, after[0]]
            updates = [*zip(*(numbers.tolist() for numbers in columns), strict=True)]
        self.driver.executemany(_UPDATE_PARTITION, updates)
        self._written_partitions.clear()
        self._partitions_before.clear()

    def _few_updates(self) -> list[schema.Row]:
        checksums_of = schema.PARTITIONS.row_checksum.each
        written = self._written_partitions.values()
        checksums = checksums_of(written)
        self._hash += sum(checksums) - sum(checksums_of(self._partitions_before.values()))
        return [
            (*partition[3:], checksum, partition[0])
            for partition, checksum in zip(written, checksums, strict=True)
        ]

    # -- rows -------------------------------------------------------------------------------------

    def added(self, table: schema.StateTable, *values: Any) -> schema.Row:
        row = table.row(*values)
        self._hash += row[-1]
        return row

    def added_few(
        self, table: schema.StateTable, rows: Sequence[Sequence[int]]
    ) -> list[schema.Row]:
        """`added` for a few rows of integers."""
        checksums = table.row_checksum.each(rows)
        self._hash += sum(checksums)
        return [(*row, checksum) for row, checksum in zip(rows, checksums, strict=True)]

    def add(self, difference: int) -> None:
        """Change the state hash by what rows that somebody else wrote make of it."""
        self._hash += difference

    def subtract(self, checksum: int) -> None:
        """Take a row that somebody else deleted out of the state hash."""
        self._hash -= checksum

    def insert(self, table: schema.StateTable, *values: Any) -> None:
        self.connection.exec_driver_sql(table.insert_sql, self.added(table, *values))

    def replace_row(self, table: schema.StateTable, before: schema.Row, after: schema.Row) -> None:
        """Replace the row whose first column is its key."""
        self._hash -= table.checksum(before)
        self.connection.exec_driver_sql(table.upsert_sql, self.added(table, *after))

    def delete_where(self, table: schema.StateTable, which: ColumnElement[bool]) -> int:
        """Delete rows and take their checksums out of the hash; returns how many they were."""
        count, low, high = self.connection.execute(_counted(table).where(which)).one()
        if count:
            self._hash -= (high << 32) + low
            self.connection.execute(delete(table.table).where(which))
        return int(count)


@cache
def _counted(table: schema.StateTable) -> Select[int, int, int]:
    """How many rows there are, and the sums of the lower and upper halves of their checksums.

    In halves, because SQLite's sum() of full 64-bit numbers overflows. Built once for each table:
    that takes longer than to look for a few rows.
    """
    checksum = table.table.c.checksum
    return select(
        func.count(),
        func.coalesce(func.sum(checksum.op("&")(_ALL_BITS)), 0),
        func.coalesce(func.sum(checksum.op(">>")(32)), 0),
    ).select_from(table.table)


def partition_columns(partitions: Collection[PartitionState]) -> Int64s:
    """One row per field of PartitionState."""
    numbers = np.fromiter(chain.from_iterable(partitions), np.int64)
    return numbers.reshape(len(partitions), len(PartitionState._fields)).T.copy()


def write_applied(driver: sqlite3.Connection, changes: Changes, *, last_record_crc: int) -> None:
    """Say in the same transaction how far the metadata log was applied."""
    values = (
        0,
        schema.STATE_VERSION,
        changes.next_offset,
        last_record_crc,
        changes.timestamp_ms,
        changes.forgotten_until_ms,
        changes.began_ms,
        to_signed(changes.state_hash),
    )
    driver.execute(_UPSERT_APPLIED, (*values, schema.APPLIED_CHECKSUM(values)))
