"""Deletes rows, and what hangs on them: the part of applying that must be bounded and fast.

Called by metadata/apply/apply.py, inside its transaction and with its rules:
everything follows from records and rows.

Old rows of one partition usually lie in as many files, so deleting a thousand of them means a
thousand accounts of files. All statements here are prepared once and read or write many rows each;
deleting a row and settling its file's account takes some ten microseconds. Who makes the records
sees to it that one of them does not delete more than some hundred rows
(metadata/workers/retention.py, metadata/workers/deletion_steps.py, `RowsSweptRecord`); here nothing
depends on it but the time it takes.

Checksums of deleted rows are summed in SQL, in halves: sum() of full 64-bit numbers overflows.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast
from uuid import UUID

import numpy as np

from metadata.apply.transaction import StateTransaction
from metadata.records.records import RecordsDeletedRecord
from metadata.state import schema
from metadata.state.image import PartitionState
from metadata.state.state_hash import sum_of
from metadata.transaction_operations import NO_OFFSET
from wal.errors import CorruptState

SWEPT_PARTITION_ROWS: Final = 5
"""What finishing a partition counts as, in rows: it takes about as long; part of STATE_VERSION."""

ENDED_ROWS_MAX: Final = 10_000
"""Twice as many as a segment can add; part of STATE_VERSION."""

_LAST: Final = 2**63 - 1

_FILES_PER_QUERY: Final = 1_000

_SUMS: Final = "sum({0}.checksum & 4294967295), sum({0}.checksum >> 32)"
_RANGE: Final = "{0}.partition = ? AND {0}.{1} BETWEEN ? AND ?"

# A partition and a range of last offsets, both ends included, are the parameters of all of these.
_BATCHES_BY_FILE: Final = (
    f"SELECT file, count(*), sum(byte_size), {_SUMS.format('batches')} FROM batches "
    f"WHERE {_RANGE.format('batches', 'last_offset')} GROUP BY file ORDER BY file"
)
_SEGMENTS_BY_FILE: Final = (
    f"SELECT file, count(*), sum(files.object_bytes), {_SUMS.format('segments')} "
    "FROM segments LEFT JOIN files ON files.id = segments.file "
    f"WHERE {_RANGE.format('segments', 'last_offset')} GROUP BY file ORDER BY file"
)
_BATCH_BYTES: Final = (
    "SELECT coalesce(sum(byte_size), 0) FROM batches "
    f"WHERE {_RANGE.format('batches', 'last_offset')}"
)
_FIRST_BASE_OFFSET: Final = (
    "SELECT base_offset FROM batches WHERE partition = ? AND last_offset >= ? "
    "ORDER BY last_offset LIMIT 1"
)
_SELECT_FILES: Final = (
    f"SELECT {', '.join(schema.FILES.columns)} FROM files WHERE id IN"
    " (SELECT value FROM json_each(?))"
)
_UPDATE_FILE: Final = schema.FILES.update_sql("live_rows", "live_bytes", "deletable_since_ms")
_OLDEST_SWEPT: Final = "SELECT partition FROM swept ORDER BY partition LIMIT ?"
_DELETE_SWEPT: Final = schema.SWEPT.delete_sql()


def _delete_range(table: schema.StateTable, key: str) -> str:
    return f"DELETE FROM {table.name} WHERE {_RANGE.format(table.name, key)}"


def _nth_key(table: schema.StateTable, key: str) -> str:
    return (
        f"SELECT {key} FROM {table.name} WHERE partition = ? AND {key} >= 0 "
        f"ORDER BY {key} LIMIT 1 OFFSET ?"
    )


_DELETE_BATCHES: Final = _delete_range(schema.BATCHES, "last_offset")
_DELETE_SEGMENTS: Final = _delete_range(schema.SEGMENTS, "last_offset")
_NTH_BATCH: Final = _nth_key(schema.BATCHES, "last_offset")
_NTH_SEGMENT: Final = _nth_key(schema.SEGMENTS, "last_offset")


class _KeyedRows(NamedTuple):
    """Rows of a table by partition and a number, both ends of a range included."""

    nth: str
    sums: str
    delete: str


def _keyed_rows(table: schema.StateTable, key: str) -> _KeyedRows:
    return _KeyedRows(
        _nth_key(table, key),
        f"SELECT count(*), {_SUMS.format(table.name)} FROM {table.name} "
        f"WHERE {_RANGE.format(table.name, key)}",
        _delete_range(table, key),
    )


_PRODUCERS: Final = _keyed_rows(schema.PRODUCER_STATES, "producer_id")
_MARKERS: Final = _keyed_rows(schema.MARKERS, "offset")
_ABORTED: Final = _keyed_rows(schema.ABORTED_TRANSACTIONS, "marker_offset")
_OF_TRANSACTIONS: Final = (
    _keyed_rows(schema.OPEN_TRANSACTIONS, "first_offset"),
    _keyed_rows(schema.CLOSED_TRANSACTIONS, "producer_id"),
    _MARKERS,
    _ABORTED,
)
_FIRST_PLANNED: Final = "SELECT min(base_offset) FROM segment_plans WHERE partition = ?"


class Dropped(NamedTuple):
    """What was deleted."""

    rows: int = 0
    size_bytes: int = 0


class RowDeletions:
    """Deletes rows of one transaction, releases their files, keeps the state hash."""

    def __init__(self, state: StateTransaction) -> None:
        self._state = state

    @property
    def _driver(self) -> sqlite3.Connection:
        return cast(sqlite3.Connection, self._state.connection.connection.driver_connection)

    # -- records --------------------------------------------------------------------------------

    def delete_records(self, record: RecordsDeletedRecord, timestamp_ms: int) -> None:
        """Planned rows stay until their segment is committed: a task may be reading them."""
        state = self._state.partition(record.partition)
        start, planned = record.new_log_start_offset, state.planned_end_offset
        if not state.log_start_offset <= start <= state.high_watermark:
            raise CorruptState(
                f"{record.partition}: log start {start} outside {state.log_start_offset}.."
                f"{state.high_watermark}"
            )
        waiting = 0
        if state.log_start_offset < planned:
            waiting = self.batch_bytes(state.id, state.log_start_offset, min(start, planned) - 1)
        dropped = Dropped()
        planned_end = planned
        if start > planned:
            dropped = self.drop_batches(state.id, planned, start - 1, timestamp_ms)
            # The first row that stays may begin below the new log start: the delete cut it in half.
            first = self._driver.execute(_FIRST_BASE_OFFSET, (state.id, start)).fetchone()
            planned_end = start if first is None else min(first[0], start)
        topic_id = record.partition.topic_id
        segments = self.drop_segments(state.id, 0, start - 1, timestamp_ms, topic_id)
        after = state._replace(
            log_start_offset=start,
            planned_end_offset=planned_end,
            unplanned_bytes=state.unplanned_bytes - dropped.size_bytes,
            live_bytes=state.live_bytes - waiting - dropped.size_bytes - segments.size_bytes,
        )
        self._state.put_partition(record.partition, state, self.drop_ended(after))

    def leave_behind(self, partition_ids: Sequence[int]) -> None:
        """Write down partitions of a deleted topic whose rows are still there."""
        if partition_ids:
            checksums = schema.SWEPT.checksums([np.array(partition_ids, np.int64)])
            self._state.add(sum_of(checksums))
            self._driver.executemany(
                schema.SWEPT.insert_sql, list(zip(partition_ids, checksums.tolist(), strict=True))
            )

    def sweep(self, limit: int, timestamp_ms: int) -> None:
        """Delete up to `limit` rows of partitions whose topic is gone, the oldest first."""
        left = limit
        swept = self._driver.execute(_OLDEST_SWEPT, (limit // SWEPT_PARTITION_ROWS + 1,))
        for (partition,) in swept.fetchall():
            last = self._nth(_NTH_BATCH, partition, left)
            left -= self.drop_batches(partition, 0, last, timestamp_ms).rows
            if left <= 0:
                return
            last = self._nth(_NTH_SEGMENT, partition, left)
            left -= self.drop_segments(partition, 0, last, timestamp_ms, None).rows
            if left <= 0:
                return
            for rows in (_PRODUCERS, *_OF_TRANSACTIONS):
                left -= self._drop_rows(rows, partition, self._nth(rows.nth, partition, left))
                if left <= 0:
                    return
            self._driver.execute(_DELETE_SWEPT, (partition,))
            self._state.subtract(schema.SWEPT.checksum((partition,)))
            left -= SWEPT_PARTITION_ROWS
            if left <= 0:
                return

    # -- rows -----------------------------------------------------------------------------------

    def batch_bytes(self, partition_id: int, first: int, last: int) -> int:
        """Bytes of the rows whose last offset is within `first` .. `last`."""
        found = self._driver.execute(_BATCH_BYTES, (partition_id, first, last)).fetchone()
        return int(found[0])

    def drop_batches(self, partition_id: int, first: int, last: int, timestamp_ms: int) -> Dropped:
        """Delete rows whose last offset is within `first` .. `last`, and release their files."""
        bounds = (partition_id, first, last)
        by_file = self._driver.execute(_BATCHES_BY_FILE, bounds).fetchall()
        if by_file:
            self._driver.execute(_DELETE_BATCHES, bounds)
        return self._settle(by_file, timestamp_ms)

    def drop_segments(
        self,
        partition_id: int,
        first: int,
        last: int,
        timestamp_ms: int,
        topic_id: UUID | None,
    ) -> Dropped:
        """Delete segments whose last offset is within `first` .. `last`, and release them.

        `topic_id`: whose table may name them still; None when the topic is gone.
        """
        bounds = (partition_id, first, last)
        by_file = self._driver.execute(_SEGMENTS_BY_FILE, bounds).fetchall()
        if by_file:
            self._driver.execute(_DELETE_SEGMENTS, bounds)
            if topic_id is not None:
                self._leave(topic_id, [row[0] for row in by_file])
        return self._settle(by_file, timestamp_ms)

    def drop_ended(self, state: PartitionState) -> PartitionState:
        """Delete markers and aborted transactions that nobody asks for any more.

        What ended is asked for by readers of WAL objects, by plans, and by who notes it for a
        rebuild, as long as there are any WAL objects below its marker: up to the first plan that is
        outstanding, or where planning goes on. Plans are committed in any order, so one that was
        late may leave much; at most ENDED_ROWS_MAX of each go at a time, the others with the
        segments that follow.
        """
        if state.last_marker_offset < 0:
            return state
        (planned,) = self._driver.execute(_FIRST_PLANNED, (state.id,)).fetchone()
        rolled_end = state.planned_end_offset if planned is None else planned
        is_all = state.last_marker_offset < rolled_end
        for rows in (_MARKERS, _ABORTED):
            end = min(self._nth(rows.nth, state.id, ENDED_ROWS_MAX), rolled_end - 1)
            is_all = self._drop_rows(rows, state.id, end) < ENDED_ROWS_MAX and is_all
        return state._replace(last_marker_offset=NO_OFFSET) if is_all else state

    def _leave(self, topic_id: UUID, file_ids: Sequence[int]) -> None:
        """Write down that segments left the live ones in this metadata batch."""
        left_offset = self._state.changes.next_offset
        rows = [
            self._state.added(schema.LEFT_SEGMENTS, file_id, left_offset, topic_id.bytes)
            for file_id in file_ids
        ]
        self._driver.executemany(schema.LEFT_SEGMENTS.insert_sql, rows)

    def _drop_rows(self, rows: _KeyedRows, partition_id: int, last: int) -> int:
        bounds = (partition_id, 0, last)
        count, low, high = self._driver.execute(rows.sums, bounds).fetchone()
        if count:
            self._driver.execute(rows.delete, bounds)
            self._state.subtract((high << 32) + low)
        return int(count)

    def _nth(self, statement: str, partition_id: int, count: int) -> int:
        """The key of the partition's `count`-th row, or one beyond all rows."""
        found = self._driver.execute(statement, (partition_id, count - 1)).fetchone()
        return _LAST if found is None else found[0]

    def _settle(
        self, by_file: Sequence[tuple[int, int, int, int, int]], timestamp_ms: int
    ) -> Dropped:
        """Take (file, rows, bytes, checksums) off the hash and off the files' accounts."""
        rows = size_bytes = 0
        for file_id, file_rows, file_bytes, low, high in by_file:
            if file_bytes is None:
                raise CorruptState(f"rows reference the unknown file {file_id}")
            rows += file_rows
            size_bytes += file_bytes
            self._state.subtract((high << 32) + low)
        for start in range(0, len(by_file), _FILES_PER_QUERY):
            chunk = by_file[start : start + _FILES_PER_QUERY]
            self._release([row[:3] for row in chunk], timestamp_ms)
        return Dropped(rows, size_bytes)

    def _release(self, released: Iterable[tuple[int, int, int]], timestamp_ms: int) -> None:
        """Take (rows, bytes) off each file's account; at zero it waits for its deletion."""
        wanted = {file_id: (rows, size) for file_id, rows, size in released}
        updates = []
        difference = 0
        for before in self._driver.execute(_SELECT_FILES, (json.dumps(list(wanted)),)).fetchall():
            file_id = before[0]
            rows, size = wanted.pop(file_id)
            live_rows, live_bytes = before[5] - rows, before[6] - size
            if live_rows < 0 or live_bytes < 0 or (live_rows == 0) != (live_bytes == 0):
                raise CorruptState(f"file {file_id}: {live_rows} rows, {live_bytes} bytes live")
            deletable = schema.NOT_DELETABLE if live_rows else timestamp_ms
            checksum = schema.FILES.checksum(
                (*before[:5], live_rows, live_bytes, deletable, *before[8:-1])
            )
            difference += checksum - before[-1]
            updates.append((live_rows, live_bytes, deletable, checksum, file_id))
        if wanted:
            raise CorruptState(f"rows reference unknown files, of them {min(wanted)}")
        self._driver.executemany(_UPDATE_FILE, updates)
        self._state.add(difference)
