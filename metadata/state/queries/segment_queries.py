"""The committed segments of a partition: for plans of rewrites, and for tables that name them."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final
from uuid import UUID

from sqlalchemy import BindParameter, Connection, Select, bindparam, func, select, union_all

from metadata.rewrites import RewriteInput
from metadata.state import schema
from metadata.state.queries.batch_queries import FileNames, stored_partition
from metadata.state.schema.state_table import stored_rows
from metadata.state.state import checked_row, read_applied
from metadata.table_operations import (
    SEGMENTS_PER_ANSWER_MAX,
    ListedSegments,
    ListSegments,
    LiveSegment,
)
from wal.coordinates import Offset
from wal.errors import CorruptState, UnknownPartition

_PAGE_ROWS: Final = 256

_SEGMENTS_FROM: Final = schema.compiled(
    select(schema.SEGMENTS.table)
    .where(schema.SEGMENTS.table.c.partition == 0, schema.SEGMENTS.table.c.last_offset >= 0)
    .order_by(schema.SEGMENTS.table.c.last_offset)
    .limit(_PAGE_ROWS)
)
_LAST_LEFT: Final = schema.compiled(
    select(func.max(schema.LEFT_SEGMENTS.table.c.left_offset)).where(
        schema.LEFT_SEGMENTS.table.c.topic_id == b""
    )
)


def segments_from(
    connection: Connection, names: FileNames, partition_id: int, offset: int
) -> Iterator[RewriteInput]:
    """Segments by ascending offsets, from the one that ends at `offset` or behind it, lazily.

    There may be batches in WAL objects between two of them. Raises CorruptState.
    """
    while True:
        page = stored_rows(connection, _SEGMENTS_FROM, (partition_id, offset, _PAGE_ROWS, 0))
        for row in page:
            _, last, base, file_id, record_count, _, max_timestamp_ms, _ = checked_row(
                schema.SEGMENTS, row
            )
            file = names.get(connection, file_id)
            offset = last + 1
            yield RewriteInput(
                file.object_key,
                file.object_bytes,
                Offset(base),
                Offset(last),
                record_count,
                max_timestamp_ms,
            )
        if len(page) < _PAGE_ROWS:
            return


def partitions_with_small_segments(connection: Connection, *, below_bytes: int) -> Set[int]:
    """Partitions that have several segments of fewer bytes. Reads all rows of segments once."""
    segments, files = schema.SEGMENTS.table.c, schema.FILES.table.c
    small = (
        select(segments.partition)
        .join_from(schema.SEGMENTS.table, schema.FILES.table, segments.file == files.id)
        .where(files.object_bytes < below_bytes)
        .group_by(segments.partition)
        .having(func.count() > 1)
    )
    return set(connection.scalars(small))


def neighbours_within(
    connection: Connection, names: FileNames, partition_id: int, base: int, last: int
) -> list[RewriteInput]:
    """The segments that lie in `base` .. `last`, as long as they follow each other without gap."""
    found: list[RewriteInput] = []
    for segment in segments_from(connection, names, partition_id, base):
        if segment.last_offset > last or (
            found and segment.base_offset != found[-1].last_offset + 1
        ):
            break
        found.append(segment)
    return found


def changes_since(
    connection: Connection, *, applied: Mapping[UUID, int]
) -> Mapping[UUID, int | None]:
    """When the first segment of each of these topics came or left, from its offset of the log on.

    None where nothing did. One that left and is not stored any more is passed over.
    """
    return {
        topic_id: connection.execute(
            _CHANGED_SINCE, {"topic_id": topic_id.bytes, "applied": offset}
        ).scalar_one()
        for topic_id, offset in applied.items()
    }


def _changed_since() -> Select[Any]:
    topic_id: BindParameter[bytes] = bindparam("topic_id")
    applied: BindParameter[int] = bindparam("applied")
    files, segments = schema.FILES.table.c, schema.SEGMENTS.table.c
    left, partitions = schema.LEFT_SEGMENTS.table.c, schema.PARTITIONS.table.c
    # The id of a segment's file is the offset of the record that committed it.
    came = (
        select(files.committed_at_ms.label("changed_ms"))
        .select_from(schema.TOPICS.table)
        .join(schema.PARTITIONS.table, partitions.topic == schema.TOPICS.table.c.id)
        .join(schema.SEGMENTS.table, segments.partition == partitions.id)
        .join(schema.FILES.table, files.id == segments.file)
        .where(schema.TOPICS.table.c.topic_id == topic_id, segments.file >= applied)
    )
    went = (
        select(files.deletable_since_ms.label("changed_ms"))
        .select_from(schema.LEFT_SEGMENTS.table)
        .join(schema.FILES.table, files.id == left.file)
        .where(left.topic_id == topic_id, left.left_offset >= applied)
    )
    changes = union_all(came, went).subquery()
    return select(func.min(changes.c.changed_ms))


_CHANGED_SINCE: Final = _changed_since()


def list_segments(
    connection: Connection,
    names: FileNames,
    requests: Sequence[tuple[ListSegments, int | None]],
    *,
    coordinator_id: int,
) -> Sequence[ListedSegments]:
    """Answer each (request, partition's surrogate key or None) in order, all as of one moment."""
    applied = read_applied(connection)
    applied_offset = 0 if applied is None else applied.next_offset
    left: dict[UUID, int] = {}
    answers = []
    for request, partition_id in requests:
        try:
            state = stored_partition(connection, partition_id)
            if state is None:
                raise UnknownPartition(f"no partition {request.partition}")
            rows = stored_rows(
                connection,
                _SEGMENTS_FROM,
                (state.id, request.from_offset, SEGMENTS_PER_ANSWER_MAX, 0),
            )
            segments = [
                _live_segment(connection, names, checked_row(schema.SEGMENTS, row)) for row in rows
            ]
        except (CorruptState, UnknownPartition) as error:
            answers.append(ListedSegments(error=error))
            continue
        topic_id = request.partition.topic_id
        if topic_id not in left:
            ((last,),) = stored_rows(connection, _LAST_LEFT, (topic_id.bytes,))
            left[topic_id] = -1 if last is None else last
        answers.append(
            ListedSegments(
                segments,
                coordinator_id,
                applied_offset,
                left[topic_id],
                log_start_offset=state.log_start_offset,
            )
        )
    return answers


def _live_segment(connection: Connection, names: FileNames, row: Sequence[Any]) -> LiveSegment:
    _, last_offset, base_offset, file_id, record_count, _, _, _ = row
    file = names.get(connection, file_id)
    return LiveSegment(
        file.object_key,
        file.object_bytes,
        Offset(base_offset),
        Offset(last_offset),
        record_count,
    )
