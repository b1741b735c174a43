"""Applying metadata records to the SQLite state: the one code path for live operation and replay.

`StateTransaction` turns records into rows inside one SQLite transaction, and keeps the state hash
up to date row by row. It is deterministic: it reads records and rows, never a clock, a setting or a
random number. Rules that would have to consult those were applied when the operation was decided;
the record holds the result.

A record that contradicts the state (a batch that does not start at the high watermark, a plan
nobody made) raises CorruptState: one of the two is damaged, and going on would hide which.

What `FileCommitted` records write is collected over the whole transaction and sent in bulk
(metadata/apply/apply_commit.py); every other record first flushes it. Those about consumer groups have
tables of their own and are collected beside it (metadata/apply/apply_groups.py).
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select

from metadata.apply.apply_commit import FileCommits, partition_columns
from metadata.apply.apply_control import apply_control
from metadata.apply.apply_deletions import SWEPT_WITH_TOPIC_MAX, RowDeletions
from metadata.apply.apply_groups import GroupChanges
from metadata.log.log import MetadataRecordBatch
from metadata.operations import (
    CATALOGUE,
    PARQUET_SEGMENT,
    TopicDescription,
)
from metadata.records.groups import GroupRecord
from metadata.records.records import (
    FileCommittedRecord,
    FilesDeletedRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
    TopicConfigsRecord,
    TopicDeletedRecord,
    record_of,
)
from metadata.records.segment_identity import segment_digest
from metadata.state.image import (
    Changes,
    CommittedImage,
    PartitionState,
    PlannedSegment,
    StoredTopic,
)
from metadata.state.schema import (
    APPLIED,
    APPLIED_CHECKSUM,
    ASSIGNMENTS,
    FILE_ANSWERS,
    FILES,
    NOT_DELETABLE,
    PARTITIONS,
    PRODUCER_IDS,
    SEGMENT_PLANS,
    SEGMENTS,
    STATE_VERSION,
    TOPIC_CONFIGS,
    TOPICS,
    Row,
    StateTable,
    compiled,
    pack_owners,
)
from metadata.state.state_hash import HASH_MODULUS, sum_of, to_signed
from wal.coordinates import TopicIdPartition
from wal.crc import crc32c
from wal.errors import CorruptState
from wal.ulid import minted_ms

_UPDATE_PARTITION: Final = PARTITIONS.update_sql(
    "log_start_offset", "high_watermark", "planned_end_offset", "unplanned_bytes", "live_bytes"
)
_UPSERT_PRODUCER_IDS: Final = PRODUCER_IDS.upsert_sql()
_ALL_BITS: Final = 0xFFFFFFFF
_UNCHANGED: Final = PartitionState(-1, -1, -1)


class StateTransaction:
    """Applies metadata batches to `connection`, on which a write transaction was begun.

    Use: `apply` for each batch in log order, then `finish` once, then commit the transaction, then
    merge the returned changes into the image. Runs in the writer thread; only reads the image.
    """

    def __init__(self, connection: Connection, image: CommittedImage) -> None:
        self.connection = connection
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
        self._last_record = b""
        self._commits = FileCommits(self)
        self._groups = GroupChanges(self)
        self.deletions = RowDeletions(self)
        self._written_partitions: dict[int, PartitionState] = {}
        self._partitions_before: dict[int, PartitionState] = {}

    def apply(self, batch: MetadataRecordBatch) -> None:
        """Raises CorruptState (the batch does not fit the state), CorruptLog (not records)."""
        if batch.base_offset != self.changes.next_offset:
            raise CorruptState(
                f"metadata batch at offset {batch.base_offset}, expected {self.changes.next_offset}"
            )
        if not batch.base_offset:
            self.changes.began_ms = batch.timestamp_ms
        for offset, data in enumerate(batch.records, batch.base_offset):
            record = record_of(data)
            if isinstance(record, FileCommittedRecord):
                self._commits.add(offset, record, batch.timestamp_ms)
                continue
            if isinstance(record, GroupRecord):
                self._groups.apply(offset, record, batch.timestamp_ms)
                continue
            self._flush()
            match record:
                case PartitionCreatedRecord():
                    self._create_partition(offset, record)
                case TopicConfigsRecord():
                    self._set_configs(record)
                case TopicDeletedRecord():
                    self._delete_topic(record, batch.timestamp_ms)
                case RecordsDeletedRecord():
                    self.deletions.delete_records(record, batch.timestamp_ms)
                case ProducerIdsAllocatedRecord():
                    self._allocate_producer_ids(record)
                case SegmentPlannedRecord():
                    self._plan_segment(record)
                case SegmentCommittedRecord():
                    self._commit_segment(offset, record, batch.timestamp_ms)
                case FilesDeletedRecord():
                    self._forget_files(record)
                case _:
                    apply_control(self, offset, record, batch.timestamp_ms)
        self._last_record = batch.records[-1]
        self.changes.next_offset = batch.next_offset
        self.changes.timestamp_ms = max(self.changes.timestamp_ms, batch.timestamp_ms)

    def finish(self) -> Changes:
        """Write what was collected, the applied offset and the state hash; nothing is committed."""
        self._flush()
        self._groups.flush()
        changes = self.changes
        changes.state_hash = self._hash % HASH_MODULUS
        write_applied(self.connection, changes, last_record_crc=crc32c(self._last_record))
        return changes

    # -- topics ---------------------------------------------------------------------------------

    def _create_partition(self, offset: int, record: PartitionCreatedRecord) -> None:
        topic_row_id = self.extend_topic(offset, record.topic_id, record.name, record.partition, ())
        state = PartitionState(offset, topic_row_id, record.partition)
        self.insert(PARTITIONS, *state)
        self.changes.partitions[TopicIdPartition(record.topic_id, record.partition)] = state

    def extend_topic(
        self, offset: int, topic_id: UUID, name: str, first: int, coordinators: Sequence[int]
    ) -> int:
        """Count partitions from `first` on to a topic, which begins with its first ones.

        One partition that lives here, or as many as there are other `coordinators` they live at.
        The catalogue knows of every partition, so there are no gaps there; another coordinator
        has those that were assigned to it. Returns the topic's surrogate key.
        """
        topic = self._topic(topic_id)
        end = first + max(len(coordinators), 1)
        assignments = dict(enumerate(coordinators, first))
        if topic is None:
            row_id, count, configs = offset, 0, {}
            self.insert(TOPICS, offset, end, topic_id.bytes, name)
        else:
            row_id, description = topic
            count, configs = description.partition_count, dict(description.configs)
            assignments = {**description.assignments, **assignments}
            if name != description.name:
                raise CorruptState(f"topic {topic_id} is {description.name}, not {name}")
            self._replace_row(
                TOPICS,
                (row_id, count, topic_id.bytes, name),
                (row_id, end, topic_id.bytes, name),
            )
        if first < count or (first > count and self.coordinator_id == CATALOGUE):
            raise CorruptState(f"topic {name}: partition {first} after {count}")
        self.changes.topics[topic_id] = StoredTopic(
            row_id,
            TopicDescription(
                topic_id=topic_id,
                name=name,
                partition_count=end,
                configs=configs,
                assignments=assignments,
            ),
        )
        return row_id

    def _set_configs(self, record: TopicConfigsRecord) -> None:
        topic = self._topic(record.topic_id)
        if topic is None:
            raise CorruptState(f"configs of the unknown topic {record.topic_id}")
        self.delete_where(TOPIC_CONFIGS, TOPIC_CONFIGS.table.c.topic == topic.id)
        for name, value in sorted(record.configs.items()):
            self.insert(TOPIC_CONFIGS, topic.id, name, value)
        old = topic.description
        self.changes.topics[record.topic_id] = StoredTopic(
            topic.id,
            TopicDescription(
                topic_id=old.topic_id,
                name=old.name,
                partition_count=old.partition_count,
                configs=dict(record.configs),
                assignments=old.assignments,
            ),
        )

    def _delete_topic(self, record: TopicDeletedRecord, timestamp_ms: int) -> None:
        topic = self._topic(record.topic_id)
        if topic is None:
            raise CorruptState(f"the unknown topic {record.topic_id} was deleted")
        partition_ids: set[int] = set()
        left_behind: list[int] = []
        for index in range(topic.description.partition_count):
            if index in topic.description.assignments:
                continue
            partition = TopicIdPartition(record.topic_id, index)
            state = self._partition_or_none(partition)
            if state is None:
                continue  # a coordinator beside the catalogue has only some of a topic's partitions
            if state.high_watermark:
                left_behind.append(state.id)
            partition_ids.add(state.id)
            self.changes.partitions[partition] = None
        partitions = PARTITIONS.table.c
        self.delete_where(
            SEGMENT_PLANS,
            SEGMENT_PLANS.table.c.partition.in_(
                select(partitions.id).where(partitions.topic == topic.id)
            ),
        )
        self.delete_where(PARTITIONS, partitions.topic == topic.id)
        self.deletions.leave_behind(left_behind)
        self.delete_where(TOPIC_CONFIGS, TOPIC_CONFIGS.table.c.topic == topic.id)
        self.delete_where(ASSIGNMENTS, ASSIGNMENTS.table.c.topic == topic.id)
        self.delete_where(TOPICS, TOPICS.table.c.id == topic.id)
        self.changes.topics[record.topic_id] = None
        for key in [*self.image.producers, *self.changes.producers]:
            if key[0] in partition_ids:
                self.changes.producers[key] = None
        for plan in self._plans():
            if plan.partition.topic_id == record.topic_id:
                self.changes.plans[plan.object_key] = None
        self.deletions.sweep(SWEPT_WITH_TOPIC_MAX, timestamp_ms)

    # -- data -----------------------------------------------------------------------------------

    def _allocate_producer_ids(self, record: ProducerIdsAllocatedRecord) -> None:
        before = self.changes.next_producer_id
        if record.next_producer_id < before:
            raise CorruptState(f"producer ids went back from {before}")
        if before:
            self._hash -= PRODUCER_IDS.checksum((0, before))
        row = self.added(PRODUCER_IDS, 0, record.next_producer_id)
        self.connection.exec_driver_sql(_UPSERT_PRODUCER_IDS, row)
        self.changes.next_producer_id = record.next_producer_id

    # -- segments -------------------------------------------------------------------------------

    def _plan_segment(self, record: SegmentPlannedRecord) -> None:
        state = self.partition(record.partition)
        if record.base_offset != state.planned_end_offset:
            raise CorruptState(
                f"{record.object_key} starts at {record.base_offset}, not at "
                f"{state.planned_end_offset}"
            )
        size = self.deletions.batch_bytes(state.id, record.base_offset, record.last_offset)
        self.insert(
            SEGMENT_PLANS,
            state.id,
            record.last_offset,
            record.base_offset,
            record.planned_at_ms,
            record.object_key,
        )
        self.changes.plans[record.object_key] = PlannedSegment(
            record.partition,
            record.base_offset,
            record.last_offset,
            record.object_key,
            record.planned_at_ms,
        )
        self.put_partition(
            record.partition,
            state,
            state._replace(
                planned_end_offset=record.last_offset + 1,
                unplanned_bytes=state.unplanned_bytes - size,
            ),
        )

    def _commit_segment(
        self, file_id: int, record: SegmentCommittedRecord, timestamp_ms: int
    ) -> None:
        """Batches out, segment in; the objects of the batches are released."""
        state = self.partition(record.partition)
        plans = SEGMENT_PLANS.table.c
        planned = self.delete_where(
            SEGMENT_PLANS,
            and_(
                plans.partition == state.id,
                plans.last_offset == record.last_offset,
                plans.base_offset == record.base_offset,
            ),
        )
        if planned != 1:
            raise CorruptState(f"the segment {record.object_key} was committed but not planned")
        self.changes.plans[record.object_key] = None
        live_bytes = state.live_bytes - self.deletions.batch_bytes(
            state.id, max(record.base_offset, state.log_start_offset), record.last_offset
        )
        self.deletions.drop_batches(state.id, record.base_offset, record.last_offset, timestamp_ms)
        is_live = record.last_offset >= state.log_start_offset
        self.insert(
            FILES,
            file_id,
            PARQUET_SEGMENT,
            record.object_bytes,
            -1,
            timestamp_ms,
            1 if is_live else 0,
            record.object_bytes if is_live else 0,
            NOT_DELETABLE if is_live else timestamp_ms,
            1,
            record.object_key,
            pack_owners(()),
        )
        self.insert(FILE_ANSWERS, file_id, segment_digest(record), b"")
        if is_live:
            live_bytes += record.object_bytes
            self.insert(
                SEGMENTS,
                state.id,
                record.last_offset,
                record.base_offset,
                file_id,
                record.record_count,
                record.crc32c,
                record.max_timestamp_ms,
            )
        if live_bytes != state.live_bytes:
            self.put_partition(record.partition, state, state._replace(live_bytes=live_bytes))

    # -- files ----------------------------------------------------------------------------------

    def _forget_files(self, record: FilesDeletedRecord) -> None:
        files = FILES.table.c
        for key in record.object_keys:
            row = self.connection.execute(
                select(files.id, files.live_rows, files.object_format).where(
                    files.object_key == key
                )
            ).one_or_none()
            if row is None or row.live_rows:
                raise CorruptState(
                    f"{key} was deleted but is {'unknown' if row is None else 'live'}"
                )
            self.delete_where(FILES, files.id == row.id)
            self.delete_where(FILE_ANSWERS, FILE_ANSWERS.table.c.file == row.id)
            if row.object_format != PARQUET_SEGMENT:
                self.changes.forgotten_until_ms = max(
                    self.changes.forgotten_until_ms, minted_ms(key)
                )

    # -- rows -----------------------------------------------------------------------------------

    def _topic(self, topic_id: Any) -> StoredTopic | None:
        if topic_id in self.changes.topics:
            return self.changes.topics[topic_id]
        return self.image.topics.get(topic_id)

    def _partition_or_none(self, partition: TopicIdPartition) -> PartitionState | None:
        # One look-up per dictionary: hashing a UUID is Python code.
        changed = self.changes.partitions
        state = changed.get(partition, _UNCHANGED) if changed else _UNCHANGED
        return self.image.partitions.get(partition) if state is _UNCHANGED else state

    def partition(self, partition: TopicIdPartition) -> PartitionState:
        state = self._partition_or_none(partition)
        if state is None:
            raise CorruptState(f"a record names the unknown partition {partition}")
        return state

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

    def _plans(self) -> list[PlannedSegment]:
        merged = {**self.image.plans, **self.changes.plans}
        return [plan for plan in merged.values() if plan is not None]

    def added(self, table: StateTable, *values: Any) -> Row:
        row = table.row(*values)
        self._hash += row[-1]
        return row

    def add(self, difference: int) -> None:
        """Change the state hash by what rows that somebody else wrote make of it."""
        self._hash += difference

    def subtract(self, checksum: int) -> None:
        """Take a row that somebody else deleted out of the state hash."""
        self._hash -= checksum

    def insert(self, table: StateTable, *values: Any) -> None:
        self.connection.exec_driver_sql(table.insert_sql, self.added(table, *values))

    def _replace_row(self, table: StateTable, before: Row, after: Row) -> None:
        """Replace the row whose first column is its key."""
        self._hash -= table.checksum(before)
        self.connection.exec_driver_sql(table.upsert_sql(), self.added(table, *after))

    def delete_where(self, table: StateTable, which: ColumnElement[bool]) -> int:
        """Delete rows and take their checksums out of the hash; returns how many they were.

        The checksums are summed in halves: SQLite's sum() of full 64-bit numbers overflows.
        """
        checksum = table.table.c.checksum
        count, low, high = self.connection.execute(
            select(
                func.count(),
                func.coalesce(func.sum(checksum.op("&")(_ALL_BITS)), 0),
                func.coalesce(func.sum(checksum.op(">>")(32)), 0),
            )
            .select_from(table.table)
            .where(which)
        ).one()
        if count:
            self._hash -= (high << 32) + low
            self.connection.execute(delete(table.table).where(which))
        return int(count)

    def _flush(self) -> None:
        self._commits.flush()
        if self._written_partitions:
            self._flush_partitions()

    def _flush_partitions(self) -> None:
        before = partition_columns(self._partitions_before.values())
        after = partition_columns(self._written_partitions.values())
        checksums = PARTITIONS.checksums([*after])
        self._hash += sum_of(checksums) - sum_of(PARTITIONS.checksums([*before]))
        updates = [*after[3:], checksums, after[0]]
        driver = cast(sqlite3.Connection, self.connection.connection.driver_connection)
        driver.executemany(
            _UPDATE_PARTITION, [*zip(*(numbers.tolist() for numbers in updates), strict=True)]
        )
        self._written_partitions.clear()
        self._partitions_before.clear()


def write_applied(connection: Connection, changes: Changes, *, last_record_crc: int) -> None:
    """Say in the same transaction how far the metadata log was applied."""
    values = (
        0,
        STATE_VERSION,
        changes.next_offset,
        last_record_crc,
        changes.timestamp_ms,
        changes.forgotten_until_ms,
        changes.began_ms,
        to_signed(changes.state_hash),
    )
    connection.exec_driver_sql(_UPSERT_APPLIED, (*values, APPLIED_CHECKSUM(values)))


_UPSERT_APPLIED: Final = compiled(APPLIED.insert().prefix_with("OR REPLACE"))
