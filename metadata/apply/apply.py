"""Applies metadata records to the SQLite state: the one code path for live operation and replay.

`RecordApplier` turns records into rows inside one SQLite transaction
(metadata/apply/transaction.py). It is deterministic: it reads records and rows, never a clock, a
setting or a random number. Rules that would have to consult those were applied when the operation
was decided; the record holds the result.

A record that contradicts the state (a batch that does not start at the high watermark, a plan
nobody made) raises CorruptState: one of the two is damaged, and going on would hide which.

What `FileCommitted` records write is collected over the whole transaction and sent in bulk
(metadata/apply/apply_commit.py); every other record first flushes it. Those about consumer groups
have tables of their own and are collected beside it (metadata/apply/apply_groups.py).
"""

from typing import Final

from sqlalchemy import Connection

from metadata.apply.apply_commit import FileCommits
from metadata.apply.apply_control import apply_control
from metadata.apply.apply_deletions import RowDeletions
from metadata.apply.apply_groups import GroupChanges
from metadata.apply.apply_rewrites import apply_rewrite
from metadata.apply.apply_segments import commit_segment, forget_files, plan_segment
from metadata.apply.apply_sinks import apply_sink
from metadata.apply.apply_tables import commit_table
from metadata.apply.apply_topics import (
    create_partition,
    delete_topic,
    set_columns,
    set_configs,
)
from metadata.apply.apply_transactions import apply_transaction
from metadata.apply.apply_users import apply_user
from metadata.apply.transaction import StateTransaction
from metadata.log.log import MetadataRecordBatch
from metadata.records.groups import GroupRecord
from metadata.records.records import (
    FileCommittedRecord,
    FilesDeletedRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
    TopicColumnsRecord,
    TopicConfigsRecord,
    TopicDeletedRecord,
    record_of,
)
from metadata.records.rewrites import (
    RewriteEndedRecord,
    RewritePlannedRecord,
    SegmentRewrittenRecord,
)
from metadata.records.sinks import SinkRecord
from metadata.records.tables import TableCommittedRecord
from metadata.records.transactions import TransactionRecord
from metadata.records.users import UserRecord
from metadata.state.image import Changes, CommittedImage
from metadata.state.schema import PRODUCER_IDS
from wal.errors import CorruptLog, CorruptState

_UPSERT_PRODUCER_IDS: Final = PRODUCER_IDS.upsert_sql


class RecordApplier:
    """Applies metadata batches to `connection`, on which a write transaction was begun.

    Use: `apply` for each batch in log order, then `finish` once, then commit the transaction, then
    merge the returned changes into the image. Runs in the writer thread; only reads the image.
    """

    def __init__(self, connection: Connection, image: CommittedImage) -> None:
        self._transaction = StateTransaction(connection, image)
        self._last_record = b""
        self._commits = FileCommits(self._transaction)
        self._groups = GroupChanges(self._transaction)
        self._deletions = RowDeletions(self._transaction)

    def apply(self, batch: MetadataRecordBatch) -> None:
        """Raises CorruptState (the batch does not fit the state), CorruptLog (not records)."""
        changes = self._transaction.changes
        if batch.base_offset != changes.next_offset:
            raise CorruptState(
                f"metadata batch at offset {batch.base_offset}, expected {changes.next_offset}"
            )
        if not batch.base_offset:
            changes.began_ms = batch.timestamp_ms
        for offset, data in enumerate(batch.records, batch.base_offset):
            self._apply(offset, data, batch.timestamp_ms)
        self._last_record = batch.records[-1]
        changes.next_offset = batch.next_offset
        changes.timestamp_ms = max(changes.timestamp_ms, batch.timestamp_ms)

    def finish(self) -> Changes:
        """Write what was collected, the applied offset and the state hash; nothing is committed."""
        self._flush()
        self._groups.flush()
        return self._transaction.finish(self._last_record)

    def _apply(self, offset: int, data: bytes, timestamp_ms: int) -> None:
        try:
            record = record_of(data)
        except CorruptLog as error:
            raise CorruptLog(f"metadata record at offset {offset}: {error}") from error
        if isinstance(record, FileCommittedRecord):
            self._commits.add(offset, record, timestamp_ms)
            return
        if isinstance(record, GroupRecord):
            self._groups.apply(offset, record, timestamp_ms)
            return
        self._flush()
        transaction, deletions = self._transaction, self._deletions
        match record:
            case PartitionCreatedRecord():
                create_partition(transaction, offset, record)
            case TopicColumnsRecord():
                set_columns(transaction, record)
            case TopicConfigsRecord():
                set_configs(transaction, record)
            case TopicDeletedRecord():
                delete_topic(transaction, deletions, record, timestamp_ms)
            case RecordsDeletedRecord():
                deletions.delete_records(record, timestamp_ms)
            case ProducerIdsAllocatedRecord():
                _allocate_producer_ids(transaction, record)
            case SegmentPlannedRecord():
                plan_segment(transaction, deletions, record)
            case SegmentCommittedRecord():
                commit_segment(transaction, deletions, offset, record, timestamp_ms)
            case FilesDeletedRecord():
                forget_files(transaction, record)
            case TableCommittedRecord():
                commit_table(transaction, record)
            case _ if isinstance(record, UserRecord):
                apply_user(transaction, record)
            case _ if isinstance(record, SinkRecord):
                apply_sink(transaction, record)
            case _ if isinstance(record, TransactionRecord):
                apply_transaction(transaction, self._groups, offset, record)
            case RewritePlannedRecord() | SegmentRewrittenRecord() | RewriteEndedRecord():
                apply_rewrite(transaction, deletions, offset, record, timestamp_ms)
            case _:
                apply_control(transaction, deletions, offset, record, timestamp_ms)

    def _flush(self) -> None:
        self._commits.flush()
        self._transaction.flush()


def _allocate_producer_ids(
    transaction: StateTransaction, record: ProducerIdsAllocatedRecord
) -> None:
    before = transaction.changes.next_producer_id
    if record.next_producer_id < before:
        raise CorruptState(f"producer ids went back from {before}")
    if before:
        transaction.subtract(PRODUCER_IDS.checksum((0, before)))
    row = transaction.added(PRODUCER_IDS, 0, record.next_producer_id)
    transaction.connection.exec_driver_sql(_UPSERT_PRODUCER_IDS, row)
    transaction.changes.next_producer_id = record.next_producer_id
