"""Applies the records about rewrites of segments.

Called by metadata/apply/apply.py, inside its transaction and with its rules. The counts that the
coordinator held against its rows when it decided are held against them again: a segment that does
not stand for exactly the records of those it replaces is CorruptState.
"""

from typing import Final

from sqlalchemy import and_, func, select

from metadata.apply.apply_deletions import RowDeletions
from metadata.apply.apply_segments import insert_segment
from metadata.apply.transaction import StateTransaction
from metadata.records.rewrites import (
    RewriteEndedRecord,
    RewritePlannedRecord,
    RewriteRecord,
    SegmentRewrittenRecord,
)
from metadata.rewrites import NO_REWRITE
from metadata.state.image import RewriteState
from metadata.state.schema import REWRITES, SEGMENTS
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptState

_BEFORE_ANY: Final = RewriteState()


def apply_rewrite(
    transaction: StateTransaction,
    deletions: RowDeletions,
    offset: int,
    record: RewriteRecord,
    timestamp_ms: int,
) -> None:
    match record:
        case RewritePlannedRecord():
            _plan(transaction, record)
        case SegmentRewrittenRecord():
            _replace(transaction, deletions, offset, record, timestamp_ms)
        case RewriteEndedRecord():
            _end(transaction, record)


def _plan(transaction: StateTransaction, record: RewritePlannedRecord) -> None:
    before = transaction.rewrite(record.partition) or _BEFORE_ANY
    if before.kind != NO_REWRITE or record.generation <= before.generation:
        raise CorruptState(
            f"{record.partition}: rewrite {record.generation} was planned during or before "
            f"{before.generation}"
        )
    after = before._replace(
        generation=record.generation,
        kind=record.kind,
        base_offset=record.base_offset,
        last_offset=record.last_offset,
        planned_at_ms=record.planned_at_ms,
        delete_horizon_ms=record.delete_horizon_ms,
        target_bytes=record.target_bytes,
    )
    _put(transaction, record.partition, after)


def _replace(
    transaction: StateTransaction,
    deletions: RowDeletions,
    file_id: int,
    record: SegmentRewrittenRecord,
    timestamp_ms: int,
) -> None:
    """Segments out, segment in; the objects of those are released."""
    state = transaction.partition(record.partition)
    _check_outstanding(transaction, record.partition, record.generation)
    segments = SEGMENTS.table.c
    base, last, count = transaction.connection.execute(
        select(
            func.min(segments.base_offset),
            func.max(segments.last_offset),
            func.sum(segments.record_count),
        ).where(
            and_(
                segments.partition == state.id,
                segments.last_offset.between(record.base_offset, record.last_offset),
            )
        )
    ).one()
    found = (base, last, count)
    expected = record.record_count + record.removed_count
    if found != (record.base_offset, record.last_offset, expected):
        raise CorruptState(
            f"{record.object_key} replaces {expected} records of {record.base_offset}.."
            f"{record.last_offset}, found {count} of {base}..{last}"
        )
    topic_id = record.partition.topic_id
    dropped = deletions.drop_segments(
        state.id, record.base_offset, record.last_offset, timestamp_ms, topic_id
    )
    insert_segment(transaction, file_id, state.id, record, timestamp_ms)
    live_bytes = state.live_bytes - dropped.size_bytes + record.object_bytes
    transaction.put_partition(record.partition, state, state._replace(live_bytes=live_bytes))


def _end(transaction: StateTransaction, record: RewriteEndedRecord) -> None:
    before = _check_outstanding(transaction, record.partition, record.generation)
    after = RewriteState(generation=before.generation, cleaned_end_offset=record.cleaned_end_offset)
    _put(transaction, record.partition, after)


def _check_outstanding(
    transaction: StateTransaction, partition: TopicIdPartition, generation: int
) -> RewriteState:
    rewrite = transaction.rewrite(partition)
    if rewrite is None or rewrite.kind == NO_REWRITE or rewrite.generation != generation:
        raise CorruptState(f"{partition}: rewrite {generation} is not under way")
    return rewrite


def _put(transaction: StateTransaction, partition: TopicIdPartition, after: RewriteState) -> None:
    partition_id = transaction.partition(partition).id
    before = transaction.rewrite(partition)
    if before is None:
        transaction.insert(REWRITES, partition_id, *after)
    else:
        transaction.replace_row(REWRITES, (partition_id, *before), (partition_id, *after))
    transaction.changes.rewrites[partition] = after
