"""Offsets by timestamp, and the other places that ListOffsets names: in the committed state.

A timestamp walks the rows of its partition; everything else is O(1). The answer names the extent
that holds the record, and who asked looks into that.
"""

from typing import Any, Final

from sqlalchemy import Connection, Select, case, func, select

from metadata import operations as ops
from metadata.state.image import PartitionState
from metadata.state.queries.batch_queries import (
    BatchRow,
    FileNames,
    segment_extent,
    stored_partition,
    wal_extent,
)
from metadata.state.schema import BATCHES, SEGMENTS
from metadata.state.state import checked_row
from wal.coordinates import LOG_APPEND_TIME
from wal.errors import CorruptState, InvalidRequest, UnknownPartition

_BATCH_TIMESTAMP: Final = case(
    (BATCHES.table.c.timestamp_type == LOG_APPEND_TIME, BATCHES.table.c.append_time_ms),
    else_=BATCHES.table.c.max_timestamp_ms,
)


def list_offset(
    connection: Connection, names: FileNames, request: ops.ListOffsets, partition_id: int | None
) -> ops.ListedOffset:
    """One look-up; a timestamp walks the partition's rows, everything else is O(1)."""
    try:
        state = stored_partition(connection, partition_id)
    except CorruptState as error:
        return ops.ListedOffset(error=error)
    if state is None:
        return ops.ListedOffset(error=UnknownPartition(f"no partition {request.partition}"))
    answer = _listed(connection, names, request, state)
    if answer.error is not None:
        return answer
    return answer._replace(last_stable_offset=state.last_stable_offset)


def _listed(
    connection: Connection, names: FileNames, request: ops.ListOffsets, state: PartitionState
) -> ops.ListedOffset:
    log_start = state.log_start_offset
    try:
        match request.timestamp:
            case t if t >= 0:
                extent = _first_extent_since(connection, names, state, t)
                return ops.ListedOffset(extent=extent, log_start_offset=log_start)
            case t if t == ops.LATEST_TIMESTAMP:
                return ops.ListedOffset(state.high_watermark, log_start_offset=log_start)
            case t if t == ops.EARLIEST_TIMESTAMP:
                return ops.ListedOffset(log_start, log_start_offset=log_start)
            case t if t == ops.EARLIEST_LOCAL_TIMESTAMP:
                offset = _earliest_local(connection, state)
                return ops.ListedOffset(offset, log_start_offset=log_start)
            case t if t == ops.LATEST_TIERED_TIMESTAMP:
                offset, timestamp_ms = _latest_tiered(connection, state)
                return ops.ListedOffset(offset, timestamp_ms, log_start_offset=log_start)
            case t if t == ops.MAX_TIMESTAMP:
                extent = _extent_with_greatest_timestamp(connection, names, state)
                return ops.ListedOffset(extent=extent, log_start_offset=log_start)
            case t:
                return ops.ListedOffset(
                    log_start_offset=log_start, error=InvalidRequest(f"timestamp {t}")
                )
    except CorruptState as error:
        return ops.ListedOffset(log_start_offset=log_start, error=error)


def _first_extent_since(
    connection: Connection, names: FileNames, state: PartitionState, timestamp_ms: int
) -> ops.StoredExtent | None:
    return _first_extent(
        connection,
        names,
        _live_segments(state).where(SEGMENTS.table.c.max_timestamp_ms >= timestamp_ms),
        _live_batches(state).where(timestamp_ms <= _BATCH_TIMESTAMP),
    )


def _extent_with_greatest_timestamp(
    connection: Connection, names: FileNames, state: PartitionState
) -> ops.StoredExtent | None:
    segments, batches = _live_segments(state), _live_batches(state)
    greatest = [
        timestamp
        for statement, column in (
            (segments, SEGMENTS.table.c.max_timestamp_ms),
            (batches, _BATCH_TIMESTAMP),
        )
        if (timestamp := connection.execute(statement.with_only_columns(func.max(column))).scalar())
        is not None
    ]
    if not greatest:
        return None
    return _first_extent_since(connection, names, state, max(greatest))


def _first_extent(
    connection: Connection,
    names: FileNames,
    segments: Select[Any],
    batches: Select[Any],
) -> ops.StoredExtent | None:
    """The extent with the lowest offsets that either statement finds."""
    segment = connection.execute(
        segments.order_by(SEGMENTS.table.c.last_offset).limit(1)
    ).one_or_none()
    batch = connection.execute(batches.order_by(BATCHES.table.c.last_offset).limit(1)).one_or_none()
    if segment is not None and (batch is None or segment.last_offset < batch.last_offset):
        return segment_extent(connection, names, checked_row(SEGMENTS, segment))
    if batch is None:
        return None
    row = BatchRow._make(checked_row(BATCHES, batch)[:-1])
    return wal_extent(row, names.get(connection, row.file))


def _live_segments(state: PartitionState) -> Select[Any]:
    columns = SEGMENTS.table.c
    return select(SEGMENTS.table).where(
        columns.partition == state.id, columns.last_offset >= state.log_start_offset
    )


def _live_batches(state: PartitionState) -> Select[Any]:
    """Rows below the log start may wait there for a planned segment; nobody is shown them."""
    columns = BATCHES.table.c
    return select(BATCHES.table).where(
        columns.partition == state.id, columns.last_offset >= state.log_start_offset
    )


def _earliest_local(connection: Connection, state: PartitionState) -> int:
    base_offset = connection.execute(
        _live_batches(state)
        .with_only_columns(BATCHES.table.c.base_offset)
        .order_by(BATCHES.table.c.last_offset)
        .limit(1)
    ).scalar()
    if base_offset is None:
        return state.high_watermark
    return max(int(base_offset), state.log_start_offset)


def _latest_tiered(connection: Connection, state: PartitionState) -> tuple[int, int]:
    row = connection.execute(
        _live_segments(state).order_by(SEGMENTS.table.c.last_offset.desc()).limit(1)
    ).one_or_none()
    if row is None:
        return -1, -1
    values = checked_row(SEGMENTS, row)
    return values[1], values[6]
