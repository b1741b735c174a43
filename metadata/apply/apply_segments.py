"""Applies the records about segments and the files of the store.

Called by metadata/apply/apply.py, inside its transaction and with its rules.
"""

from sqlalchemy import and_, select

from metadata.apply.apply_deletions import RowDeletions
from metadata.apply.transaction import StateTransaction
from metadata.operations import PARQUET_SEGMENT
from metadata.records.records import (
    FilesDeletedRecord,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
)
from metadata.records.rewrites import SegmentRewrittenRecord
from metadata.records.segment_identity import segment_digest
from metadata.state import schema
from metadata.state.image import PlannedSegment
from wal.errors import CorruptState
from wal.staging.staged_keys import is_staged
from wal.ulid import minted_ms


def plan_segment(
    transaction: StateTransaction, deletions: RowDeletions, record: SegmentPlannedRecord
) -> None:
    state = transaction.partition(record.partition)
    if record.base_offset != state.planned_end_offset:
        raise CorruptState(
            f"{record.object_key} starts at {record.base_offset}, not at {state.planned_end_offset}"
        )
    size = deletions.batch_bytes(state.id, record.base_offset, record.last_offset)
    transaction.insert(
        schema.SEGMENT_PLANS,
        state.id,
        record.last_offset,
        record.base_offset,
        record.planned_at_ms,
        record.object_key,
        record.columns,
    )
    transaction.changes.plans[record.object_key] = PlannedSegment(
        record.partition,
        record.base_offset,
        record.last_offset,
        record.object_key,
        record.planned_at_ms,
        record.columns,
    )
    transaction.put_partition(
        record.partition,
        state,
        state._replace(
            planned_end_offset=record.last_offset + 1,
            unplanned_bytes=state.unplanned_bytes - size,
        ),
    )


def commit_segment(
    transaction: StateTransaction,
    deletions: RowDeletions,
    file_id: int,
    record: SegmentCommittedRecord,
    timestamp_ms: int,
) -> None:
    """Batches out, segment in; the objects of the batches are released.

    Markers of its offsets may stay for what lies before them and is in no segment yet.
    """
    state = transaction.partition(record.partition)
    plans = schema.SEGMENT_PLANS.table.c
    planned = transaction.delete_where(
        schema.SEGMENT_PLANS,
        and_(
            plans.partition == state.id,
            plans.last_offset == record.last_offset,
            plans.base_offset == record.base_offset,
        ),
    )
    if planned != 1:
        raise CorruptState(f"the segment {record.object_key} was committed but not planned")
    transaction.changes.plans[record.object_key] = None
    live_bytes = state.live_bytes - deletions.batch_bytes(
        state.id, max(record.base_offset, state.log_start_offset), record.last_offset
    )
    deletions.drop_batches(state.id, record.base_offset, record.last_offset, timestamp_ms)
    is_live = record.last_offset >= state.log_start_offset
    insert_segment(transaction, file_id, state.id, record, timestamp_ms, is_live=is_live)
    if is_live:
        live_bytes += record.object_bytes
    after = deletions.drop_ended(state)._replace(live_bytes=live_bytes)
    if after != state:
        transaction.put_partition(record.partition, state, after)


def insert_segment(
    transaction: StateTransaction,
    file_id: int,
    partition_id: int,
    record: SegmentCommittedRecord | SegmentRewrittenRecord,
    timestamp_ms: int,
    *,
    is_live: bool = True,
) -> None:
    """Insert its file and its answer; and the segment, unless all of its records are deleted."""
    transaction.insert(
        schema.FILES,
        file_id,
        PARQUET_SEGMENT,
        record.object_bytes,
        -1,
        timestamp_ms,
        1 if is_live else 0,
        record.object_bytes if is_live else 0,
        schema.NOT_DELETABLE if is_live else timestamp_ms,
        1,
        record.object_key,
        schema.pack_owners(()),
    )
    transaction.insert(schema.FILE_ANSWERS, file_id, segment_digest(record), b"")
    if is_live:
        transaction.insert(
            schema.SEGMENTS,
            partition_id,
            record.last_offset,
            record.base_offset,
            file_id,
            record.record_count,
            record.crc32c,
            record.max_timestamp_ms,
        )


def forget_files(transaction: StateTransaction, record: FilesDeletedRecord) -> None:
    files = schema.FILES.table.c
    for key in record.object_keys:
        row = transaction.connection.execute(
            select(files.id, files.live_rows, files.object_format).where(files.object_key == key)
        ).one_or_none()
        if row is None or row.live_rows:
            raise CorruptState(f"{key} was deleted but is {'unknown' if row is None else 'live'}")
        transaction.delete_where(schema.FILES, files.id == row.id)
        transaction.delete_where(schema.FILE_ANSWERS, schema.FILE_ANSWERS.table.c.file == row.id)
        if row.object_format == PARQUET_SEGMENT:
            transaction.delete_where(
                schema.LEFT_SEGMENTS, schema.LEFT_SEGMENTS.table.c.file == row.id
            )
            continue
        if is_staged(key):
            continue  # its age alone decides: see metadata/rules/sinks/commit_sink.py
        transaction.changes.forgotten_until_ms = max(
            transaction.changes.forgotten_until_ms, minted_ms(key)
        )
