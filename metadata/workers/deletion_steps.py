"""Deletes records in bounded steps: a request that deletes a million rows holds up nobody.

Moving a log start offset deletes the rows below it in the same transaction. So a request that
deletes many is carried out as several operations, each of which deletes a bounded number of rows;
between them everybody else has their turn. It is answered when the last one is done. A coordinator
that fails in between leaves the log start where it had come to: some of the records are deleted,
the caller gets the error, and a repeated request goes on.

`-1` stands for the high watermark at the time of the call: what is appended while it is carried out
stays.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from sqlalchemy import Connection, select

from metadata.operations import DeletedRecords, DeleteRecords
from metadata.replica.replica import Replica
from metadata.rules.topics import BEFORE_HIGH_WATERMARK
from metadata.state.schema import BATCHES, MARKERS, SEGMENTS, compiled
from wal.failpoint import failpoint

STEP_ROWS_MAX: Final = 500
"""Rows deleted by one operation."""

PARTITION_ROWS: Final = 15
"""What a partition counts as in a step, in rows: moving its log start takes about as long."""

_ROW_ENDS: Final = [
    compiled(
        select(end).where(table.table.c.partition == 0, end >= 0, end < 0).order_by(end).limit(0)
    )
    for table, end in (
        (BATCHES, BATCHES.table.c.last_offset),
        (SEGMENTS, SEGMENTS.table.c.last_offset),
        (MARKERS, MARKERS.table.c.offset),
    )
]


class DeletingCoordinator(Protocol):
    """What carries out one step, of a deletion or of retention."""

    @property
    def replica(self) -> Replica: ...

    async def delete_records_at_once(
        self, requests: Sequence[DeleteRecords]
    ) -> Sequence[DeletedRecords]: ...


async def delete_records_in_steps(
    coordinator: DeletingCoordinator,
    requests: Sequence[DeleteRecords],
    *,
    rows_max: int = STEP_ROWS_MAX,
) -> Sequence[DeletedRecords]:
    """Answers by position, as if each request were one operation; in their order.

    Raises: CommitFailed, NotCoordinator, CommitOutcomeUnknown; some of it may have happened then.
    """
    answers: list[DeletedRecords] = []
    together: list[DeleteRecords] = []
    left = rows_max
    for request in requests:
        target = _with_offset(coordinator, request)
        ends = await _row_ends(coordinator, target, rows_max)
        while len(ends) == rows_max and ends[-1] + 1 < target.before_offset:
            answers += await _at_once(coordinator, together)
            left = rows_max
            await _at_once(coordinator, [DeleteRecords(target.partition, ends[-1] + 1)])
            failpoint("deletion.after_step")
            ends = await _row_ends(coordinator, target, rows_max)
        if together and len(ends) + PARTITION_ROWS > left:
            answers += await _at_once(coordinator, together)
            left = rows_max
        together.append(target)
        left -= len(ends) + PARTITION_ROWS
    return answers + list(await _at_once(coordinator, together))


async def _at_once(
    coordinator: DeletingCoordinator, together: list[DeleteRecords]
) -> Sequence[DeletedRecords]:
    """Carry out and clear `together`."""
    if not together:
        return ()
    answers = await coordinator.delete_records_at_once(tuple(together))
    together.clear()
    return answers


def _with_offset(coordinator: DeletingCoordinator, request: DeleteRecords) -> DeleteRecords:
    state = coordinator.replica.image.partitions.get(request.partition)
    if state is None or request.before_offset != BEFORE_HIGH_WATERMARK:
        return request
    return request._replace(before_offset=state.high_watermark)


async def _row_ends(
    coordinator: DeletingCoordinator, target: DeleteRecords, rows_max: int
) -> Sequence[int]:
    """Last offsets of the first `rows_max` rows that `target` deletes, ascending.

    Nothing when it is no deletion at all; then deciding it says why.
    """
    state = coordinator.replica.image.partitions.get(target.partition)
    if state is None or not state.log_start_offset < target.before_offset <= state.high_watermark:
        return ()
    bounds = (state.id, state.log_start_offset, target.before_offset, rows_max, 0)

    def read(connection: Connection) -> Sequence[int]:
        found = [
            end
            for statement in _ROW_ENDS
            for end in connection.exec_driver_sql(statement, bounds).scalars()
        ]
        return sorted(found)[:rows_max]

    return await coordinator.replica.state.read(read)
