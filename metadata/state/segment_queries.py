"""The committed segments of a partition, as rows of the state: for planning rewrites of them."""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, select

from metadata.rewrites import RewriteInput
from metadata.state import schema
from metadata.state.queries import FileNames, stored_rows
from metadata.state.state import checked_row
from wal.coordinates import Offset

_PAGE_ROWS: Final = 256

_SEGMENTS_FROM: Final = schema.compiled(
    select(schema.SEGMENTS.table)
    .where(schema.SEGMENTS.table.c.partition == 0, schema.SEGMENTS.table.c.last_offset >= 0)
    .order_by(schema.SEGMENTS.table.c.last_offset)
    .limit(_PAGE_ROWS)
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
