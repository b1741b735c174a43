"""Where the bytes of a partition are: its batches from an offset on, and what is due to be rolled.

Below a frontier they are in Parquet segments, above it in WAL objects. A look-up descends once into
each clustered table and walks forward, so it costs what it answers and not what lies before or
behind it. Rows are verified against their checksums; damage is CorruptState for that partition
alone, never other bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, select

from metadata import operations as ops
from metadata.state import schema
from metadata.state.image import PartitionState, PlannedSegment
from metadata.state.queries.transaction_rows import Markers, aborted_within
from metadata.state.schema.state_table import stored_rows
from metadata.state.state import checked_row
from wal.coordinates import LOG_APPEND_TIME, ByteOffset, ObjectKey, Offset
from wal.errors import CorruptState, OffsetOutOfRange, UnknownPartition
from wal.records.marker_batches import Marker

_PAGE_ROWS_MIN: Final = 8
_PAGE_ROWS_MAX: Final = 256
"""Rows fetched at once: few at first, because an answer often is one page of SQLite's or less, then
four times as many each time."""
_FILES_CACHED_MAX: Final = 20_000

_BATCHES_FROM: Final = schema.compiled(
    select(schema.BATCHES.table)
    .where(schema.BATCHES.table.c.partition == 0, schema.BATCHES.table.c.last_offset >= 0)
    .order_by(schema.BATCHES.table.c.last_offset)
    .limit(_PAGE_ROWS_MIN)
)
_SEGMENTS_FROM: Final = schema.compiled(
    select(schema.SEGMENTS.table)
    .where(schema.SEGMENTS.table.c.partition == 0, schema.SEGMENTS.table.c.last_offset >= 0)
    .order_by(schema.SEGMENTS.table.c.last_offset)
    .limit(1)
)
_PARTITION: Final = schema.compiled(
    select(schema.PARTITIONS.table).where(schema.PARTITIONS.table.c.id == 0)
)
_FILE: Final = schema.compiled(select(schema.FILES.table).where(schema.FILES.table.c.id == 0))


class FileName(NamedTuple):
    """What an extent tells of its object."""

    object_key: ObjectKey
    object_bytes: int


class BatchRow(NamedTuple):
    """A row of `batches`, in its column order without the checksum."""

    partition: int
    last_offset: int
    base_offset: int
    file: int
    byte_offset: int
    byte_size: int
    batch_count: int
    timestamp_type: int
    append_time_ms: int
    max_timestamp_ms: int

    @property
    def timestamp_ms(self) -> int:
        """The greatest timestamp a consumer sees in it."""
        if self.timestamp_type == LOG_APPEND_TIME:
            return self.append_time_ms
        return self.max_timestamp_ms


class FileNames:
    """Object keys by file id, cached: they never change, and file ids are never used again."""

    def __init__(self) -> None:
        self._names: dict[int, FileName] = {}

    def get(self, connection: Connection, file_id: int) -> FileName:
        """Raises CorruptState when no sound row of that id exists."""
        name = self._names.get(file_id)
        if name is None:
            rows = stored_rows(connection, _FILE, (file_id,))
            if not rows:
                raise CorruptState(f"rows reference the unknown file {file_id}")
            values = checked_row(schema.FILES, rows[0])
            name = FileName(ObjectKey(values[9]), values[2])
            if len(self._names) >= _FILES_CACHED_MAX:
                # Several reader threads share this; clearing is atomic, and refilling is cheap.
                self._names.clear()
            self._names[file_id] = name
        return name


def find_batches(
    connection: Connection,
    names: FileNames,
    requests: Sequence[tuple[ops.FindBatches, int | None]],
    *,
    max_bytes: int,
    at_least_one: bool,
    rows_per_partition_max: int,
    isolation: int = ops.READ_UNCOMMITTED,
) -> Sequence[ops.FoundBatches]:
    """Answer each (request, partition's surrogate key or None) in order.

    Of the extent that holds the asked offset only what follows counts. A segment counts as much as
    its partition's limit allows: the reader cuts what it needs out of it, so one old segment must
    not starve the partitions behind it.
    """
    found = []
    for request, partition_id in requests:
        answer = _find_one(
            connection,
            names,
            request,
            partition_id,
            limit=min(request.max_bytes, max_bytes),
            at_least_one=at_least_one,
            rows_max=rows_per_partition_max,
            isolation=isolation,
        )
        for extent in answer.extents:
            at_least_one = False
            max_bytes -= min(extent.bytes_from(request.offset), max(request.max_bytes, 0))
        found.append(answer)
    return found


def _find_one(
    connection: Connection,
    names: FileNames,
    request: ops.FindBatches,
    partition_id: int | None,
    *,
    limit: int,
    at_least_one: bool,
    rows_max: int,
    isolation: int,
) -> ops.FoundBatches:
    try:
        state = stored_partition(connection, partition_id)
    except CorruptState as error:
        return ops.FoundBatches(error=error)
    if state is None:
        return ops.FoundBatches(error=UnknownPartition(f"no partition {request.partition}"))
    log_start, high_watermark = state.log_start_offset, state.high_watermark
    if not log_start <= request.offset <= high_watermark:
        return ops.FoundBatches(
            log_start,
            high_watermark,
            error=OffsetOutOfRange(
                f"{request.partition}: offset {request.offset} is not within {log_start}.."
                f"{high_watermark}"
            ),
        )
    is_committed = isolation == ops.READ_COMMITTED
    end = state.last_stable_offset if is_committed else high_watermark
    # A segment has neither aborted records nor markers. So a client that is told of an aborted
    # transaction is not given one: it would drop the producer's records until it met the marker,
    # and those of its next transaction may be there.
    asks_for_aborted = is_committed and state.last_marker_offset >= request.offset
    extents: list[ops.Extent] = []
    aborted: Sequence[ops.AbortedTransaction] = ()
    if rows_max > 0 and (limit > 0 or at_least_one):
        try:
            for extent in _extents_from(connection, names, state, request.offset, end):
                is_segment = isinstance(extent, ops.SegmentExtent)
                if is_segment and extents and asks_for_aborted:
                    break
                extents.append(extent)
                limit -= limit if is_segment else extent.bytes_between(request.offset, end)
                if limit <= 0 or len(extents) == rows_max:
                    break
            if asks_for_aborted and extents and not isinstance(extents[0], ops.SegmentExtent):
                found_end = min(extents[-1].last_offset + 1, end)
                aborted = aborted_within(connection, state, request.offset, found_end)
        except CorruptState as error:
            return ops.FoundBatches(log_start, high_watermark, error=error)
    return ops.FoundBatches(
        log_start, high_watermark, extents, None, state.first_open_offset, aborted
    )


def _extents_from(
    connection: Connection, names: FileNames, state: PartitionState, offset: int, end: int
) -> Iterator[ops.Extent]:
    """Extents from the one that contains `offset` to the one that reaches `end`, lazily, gapless.

    Segments may be committed in any order, so a run of batches can lie between two of them.
    """
    position = offset
    while position < end:
        segment = next(_segments(connection, state.id, position), None)
        if segment is not None and segment[2] <= position:
            yield segment_extent(connection, names, segment)
            position = segment[1] + 1
            continue
        stop = end if segment is None else min(segment[2], end)
        for extent in _unrolled_from(connection, names, state, position):
            yield extent
            position = extent.last_offset + 1
            if position >= stop:
                break
        if position < stop:
            raise CorruptState(f"partition {state.id}: nothing holds offset {position}")


def _unrolled_from(
    connection: Connection, names: FileNames, state: PartitionState, position: int
) -> Iterator[ops.WalExtent | Marker]:
    for row in unrolled_rows(connection, state, position):
        if isinstance(row, Marker):
            yield row
        else:
            yield wal_extent(row, names.get(connection, row.file))


def unrolled_rows(
    connection: Connection, state: PartitionState, position: int
) -> Iterator[BatchRow | Marker]:
    """What is in no segment from the row that holds `position` on, as far as there is no gap."""
    markers = Markers(connection, state)
    for row in batch_rows(connection, state.id, position):
        while row.base_offset > position:
            marker = markers.at(position)
            if marker is None:
                return
            yield marker
            position += 1
        yield row
        position = row.last_offset + 1
    while (marker := markers.at(position)) is not None:
        yield marker
        position += 1


def batch_rows(connection: Connection, partition_id: int, offset: int) -> Iterator[BatchRow]:
    """Rows from the first that ends at or after `offset`, page by page."""
    page_rows = _PAGE_ROWS_MIN
    while True:
        page = stored_rows(connection, _BATCHES_FROM, (partition_id, offset, page_rows, 0))
        for row in page:
            batch = BatchRow._make(checked_row(schema.BATCHES, row)[:-1])
            offset = batch.last_offset + 1
            yield batch
        if len(page) < page_rows:
            return
        page_rows = min(page_rows * 4, _PAGE_ROWS_MAX)


def _segments(connection: Connection, partition_id: int, offset: int) -> Iterator[tuple[Any, ...]]:
    for row in stored_rows(connection, _SEGMENTS_FROM, (partition_id, offset, 1, 0)):
        yield checked_row(schema.SEGMENTS, row)


def stored_partition(connection: Connection, partition_id: int | None) -> PartitionState | None:
    """From the same transaction as the rows, or a commit in between would look like a hole."""
    if partition_id is None:
        return None
    rows = stored_rows(connection, _PARTITION, (partition_id,))
    return PartitionState._make(checked_row(schema.PARTITIONS, rows[0])[:-1]) if rows else None


def wal_extent(row: BatchRow, file: FileName) -> ops.WalExtent:
    return ops.WalExtent(
        object_key=file.object_key,
        byte_offset=ByteOffset(row.byte_offset),
        length_bytes=row.byte_size,
        base_offset=Offset(row.base_offset),
        last_offset=Offset(row.last_offset),
        log_append_time_ms=row.append_time_ms,
        max_timestamp_ms=row.max_timestamp_ms,
        timestamp_type=row.timestamp_type,
        object_bytes=file.object_bytes,
    )


def segment_extent(
    connection: Connection, names: FileNames, row: Sequence[Any]
) -> ops.SegmentExtent:
    _, last_offset, base_offset, file_id, _, _, max_timestamp_ms, _ = row
    file = names.get(connection, file_id)
    return ops.SegmentExtent(
        file.object_key,
        file.object_bytes,
        Offset(base_offset),
        Offset(last_offset),
        max_timestamp_ms,
    )


def segment_plan(
    connection: Connection,
    names: FileNames,
    plan: PlannedSegment,
    partition_id: int,
    topic_name: str,
) -> ops.SegmentPlan | None:
    """The plan with what it covers; None when it is not outstanding any more.

    Asked again it is the same: rows stay until its segment is committed, and so do markers and what
    is told to be aborted (metadata/apply/apply_segments.py); nothing of it was open when it was
    planned.
    """
    state = stored_partition(connection, partition_id)
    if state is None:
        return None
    extents, markers = [], []
    position = plan.base_offset
    for row in unrolled_rows(connection, state, position):
        if row.base_offset != position or row.last_offset > plan.last_offset:
            break
        if isinstance(row, Marker):
            markers.append(row.offset)
        else:
            extents.append(wal_extent(row, names.get(connection, row.file)))
        position = row.last_offset + 1
        if position > plan.last_offset:
            return ops.SegmentPlan(
                partition=plan.partition,
                topic_name=topic_name,
                object_key=plan.object_key,
                base_offset=Offset(plan.base_offset),
                last_offset=Offset(plan.last_offset),
                extents=extents,
                columns=plan.columns,
                markers=markers,
                aborted=aborted_within(connection, state, plan.base_offset, position),
            )
    return None
