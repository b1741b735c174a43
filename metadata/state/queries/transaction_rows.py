"""What readers are shown of ended transactions: markers, and what is aborted of a range.

And what is noted of them in the bucket (metadata/coordinator/end_notes.py).

Both are asked in the read transaction that gives the rows of batches, so an answer never combines
two states. A partition that never saw a transaction is not asked about: its row says so.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, select

from metadata.operations import AbortedTransaction
from metadata.state import schema
from metadata.state.image import PartitionState
from metadata.state.schema.state_table import stored_rows
from metadata.state.state import checked_row
from wal.chunks.kept_notes import NotedEnd
from wal.records.marker_batches import Marker

_PAGE_ROWS: Final = 64

_MARKERS_FROM: Final = schema.compiled(
    select(schema.MARKERS.table)
    .where(schema.MARKERS.table.c.partition == 0, schema.MARKERS.table.c.offset >= 0)
    .order_by(schema.MARKERS.table.c.offset)
    .limit(_PAGE_ROWS)
)
_ABORTED_FROM: Final = schema.compiled(
    select(schema.ABORTED_TRANSACTIONS.table)
    .where(
        schema.ABORTED_TRANSACTIONS.table.c.partition == 0,
        schema.ABORTED_TRANSACTIONS.table.c.marker_offset >= 0,
    )
    .order_by(schema.ABORTED_TRANSACTIONS.table.c.marker_offset)
    .limit(_PAGE_ROWS)
)
_ENDS_FROM: Final = schema.compiled(
    select(schema.MARKERS.table)
    .where(
        schema.MARKERS.table.c.partition == 0,
        schema.MARKERS.table.c.offset >= 0,
        schema.MARKERS.table.c.offset <= 0,
    )
    .order_by(schema.MARKERS.table.c.offset)
    .limit(_PAGE_ROWS)
)


class Markers:
    """The markers of a partition, asked for by ascending offsets."""

    def __init__(self, connection: Connection, state: PartitionState) -> None:
        self._connection = connection
        self._state = state
        self._page: deque[Marker] = deque()
        self._known_to = -1
        """No other marker lies below it than what is in the page, or was."""

    def at(self, offset: int) -> Marker | None:
        """The marker with just this offset. Raises CorruptState."""
        page = self._page
        while page and page[0].offset < offset:
            page.popleft()
        if not page and self._known_to <= offset <= self._state.last_marker_offset:
            rows = stored_rows(
                self._connection, _MARKERS_FROM, (self._state.id, offset, _PAGE_ROWS, 0)
            )
            page.extend(map(_marker, rows))
            is_all = len(rows) < _PAGE_ROWS
            self._known_to = self._state.last_marker_offset + 1 if is_all else page[-1].offset + 1
        return page[0] if page and page[0].offset == offset else None


def markers_from(connection: Connection, state: PartitionState, offset: int) -> Iterator[Marker]:
    """The markers of a partition from `offset` on, by page. Raises CorruptState."""
    while offset <= state.last_marker_offset:
        rows = stored_rows(connection, _MARKERS_FROM, (state.id, offset, _PAGE_ROWS, 0))
        for marker in map(_marker, rows):
            yield marker
            offset = marker.offset + 1
        if len(rows) < _PAGE_ROWS:
            return


def _marker(row: Sequence[Any]) -> Marker:
    values = checked_row(schema.MARKERS, row)
    _, offset, producer_id, epoch, is_commit, coordinator_epoch, timestamp_ms = values[:7]
    return Marker(offset, producer_id, epoch, is_commit == 1, coordinator_epoch, timestamp_ms)


def ends_from(
    connection: Connection, partition_id: int, first: int, last: int, limit: int
) -> Sequence[NotedEnd]:
    """The first `limit` ends with markers within `first` .. `last`. Raises CorruptState."""
    return [
        NotedEnd(_marker(row), row[7])
        for row in stored_rows(connection, _ENDS_FROM, (partition_id, first, last, limit, 0))
    ]


def aborted_within(
    connection: Connection, state: PartitionState, first: int, end: int
) -> Sequence[AbortedTransaction]:
    """Aborted transactions with records in [first, end), by marker. Raises CorruptState.

    Reads on from `first` until everything below `end` was stable, as Kafka does: transactions that
    were ended later began later.
    """
    if state.last_marker_offset < first:
        return ()
    found = []
    for _, marker_offset, first_offset, producer_id, last_stable_offset in _aborted_rows(
        connection, state.id, first
    ):
        if first_offset < end:
            found.append(AbortedTransaction(producer_id, first_offset, marker_offset))
        if last_stable_offset >= end:
            break
    return found


def _aborted_rows(
    connection: Connection, partition_id: int, offset: int
) -> Iterator[Sequence[int]]:
    while True:
        page = stored_rows(connection, _ABORTED_FROM, (partition_id, offset, _PAGE_ROWS, 0))
        for row in page:
            values = checked_row(schema.ABORTED_TRANSACTIONS, row)[:5]
            yield values
            offset = values[1] + 1
        if len(page) < _PAGE_ROWS:
            return
