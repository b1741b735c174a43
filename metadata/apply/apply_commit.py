"""Applies FileCommitted records: most of what a coordinator does, so done in bulk.

`FileCommits` turns the columns of a record (metadata/records/file_committed.py) into rows with a
few NumPy operations and collects them over the whole transaction, which usually covers the files of
several brokers; `flush` sends them to SQLite, one statement per table. It is part of
`StateTransaction` and deterministic like it.

Batches that lie back to back in the file and follow each other in their partition become one row,
up to COALESCED_BYTES_MAX. Producer states stay per batch. A file of few batches is applied in a
loop (metadata/apply/apply_few.py), which then costs less, with the same rows.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

import numpy as np
from sqlalchemy import select

from metadata.apply.apply_few import (
    COALESCED_BYTES_MAX,
    ProducerAppend,
    apply_few,
)
from metadata.apply.apply_transactions import open_in_partitions
from metadata.apply.transaction import StateTransaction
from metadata.operations import TOMBSTONE
from metadata.records.file_committed import CommittedBatches, FileCommittedRecord
from metadata.state.commit_answer import Answer, pack_answer
from metadata.state.image import PartitionState, ProducerKey
from metadata.state.producer_rows import load_producers, write_few_producers, write_producers
from metadata.state.producer_state import (
    ProducerBatches,
    ProducerState,
    appended,
    grouped_by_producer,
    state_after,
    states_array,
    states_list,
)
from metadata.state.schema import (
    BATCHES,
    FILE_ANSWERS,
    FILES,
    NOT_DELETABLE,
    Row,
    compiled,
    pack_owners,
)
from metadata.state.state_hash import sum_of
from metadata.transaction_operations import OpenTransaction
from wal.columns import FEW_MAX, Int64s, column, tuples
from wal.coordinates import NO_TRANSACTION, ObjectKey, TopicIdPartition
from wal.errors import CorruptState

APPENDS_IN_LOOP_MAX: Final = 4 * FEW_MAX
"""Batches of producers in one transaction, of files of few batches, that go through a loop."""

_FILE_STANDING: Final = compiled(
    select(FILES.table.c.id, FILES.table.c.object_format, FILE_ANSWERS.table.c.file)
    .join_from(
        FILES.table,
        FILE_ANSWERS.table,
        isouter=True,
        onclause=FILES.table.c.id == FILE_ANSWERS.table.c.file,
    )
    .where(FILES.table.c.object_key == "")
)


_HIGH_WATERMARK, _UNPLANNED_BYTES, _LIVE_BYTES = map(
    PartitionState._fields.index, ("high_watermark", "unplanned_bytes", "live_bytes")
)


class FileCommits:
    """What the FileCommitted records of one transaction add to the state."""

    def __init__(self, state: StateTransaction) -> None:
        self._state = state
        self._files: list[Row] = []
        self._answers: list[Row] = []
        self._batches: list[Row] = []
        self._sequences: list[list[Int64s]] = []
        """The columns of `ProducerAppend` of each file of many batches that has producers."""
        self._appends: list[ProducerAppend] = []
        """Those of files of few batches; when there are any, `_sequences` is empty."""

    def add(self, file_id: int, record: FileCommittedRecord, timestamp_ms: int) -> None:
        """Raises CorruptState: the record does not fit the state."""
        state = self._state
        if isinstance(record.batches, CommittedBatches) or len(record.batches) > FEW_MAX:
            batches = CommittedBatches.of(record.batches)
            partitions = state.partitions(batches.partitions)
            live_rows, live_bytes = self._append_runs(file_id, batches, partitions)
            self._append_to_producers(batches, partitions)
            answer = pack_answer(_answer(record, batches, partitions))
            if (batches.transaction_number != NO_TRANSACTION).any():
                open_in_partitions(state, _opened(batches, partitions))
        else:
            few = apply_few(state, file_id, record)
            live_rows, live_bytes, answer = len(few.rows), few.size_bytes, few.answer
            self._batches += few.rows
            self._append_few(few.producers)
            if few.opened:
                open_in_partitions(state, few.opened)
        owners = record.owner_ids
        is_owner = not owners or owners[0] == state.coordinator_id
        is_owner |= self._was_handed_over(record.object_key)
        self._files.append(
            state.added(
                FILES,
                file_id,
                record.object_format,
                record.file_size,
                record.uploader_broker_id,
                record.committed_at_ms,
                live_rows,
                live_bytes,
                NOT_DELETABLE if live_rows else timestamp_ms,
                int(is_owner),
                record.object_key,
                pack_owners(owners),
            )
        )
        self._answers.append(state.added(FILE_ANSWERS, file_id, record.request_digest, answer))

    def flush(self) -> None:
        """Write what was collected."""
        state = self._state
        driver = state.driver
        for table, rows in (
            (FILES, self._files),
            (FILE_ANSWERS, self._answers),
            (BATCHES, self._batches),
        ):
            if rows:
                driver.executemany(table.insert_sql, rows)
                rows.clear()
        if self._appends:
            self._flush_few_producers(driver)
        if self._sequences:
            self._flush_producers(driver)

    def _was_handed_over(self, key: ObjectKey) -> bool:
        """Whether `key` was handed over before it was committed; the commit replaces that row."""
        row = self._state.driver.execute(_FILE_STANDING, (key,)).fetchone()
        if row is None:
            return False
        file_id, object_format, answered = row
        if object_format == TOMBSTONE or answered is not None:
            raise CorruptState(f"{key} was committed {'twice' if answered else 'after its end'}")
        self._state.delete_where(FILES, FILES.table.c.id == file_id)
        return True

    # -- batches --------------------------------------------------------------------------------

    def _append_runs(
        self, file_id: int, batches: CommittedBatches, partitions: Sequence[PartitionState]
    ) -> tuple[int, int]:
        """Append all runs; returns (rows made, their bytes).

        Together, unless a partition comes twice: its second run starts where the first one ends.
        """
        rows = size = first = 0
        ids = [partition.id for partition in partitions]
        while first < len(ids):
            end = len(ids)
            if len(set(ids[first:])) < end - first:
                end = _first_repeated(ids, first)
            now = partitions
            if first:
                now = self._state.partitions(batches.partitions[first:end])
            made, added = self._append_distinct(file_id, batches, first, end, now[: end - first])
            rows += made
            size += added
            first = end
        return rows, size

    def _append_distinct(
        self,
        file_id: int,
        batches: CommittedBatches,
        first: int,
        end: int,
        partitions: Sequence[PartitionState],
    ) -> tuple[int, int]:
        """Append the runs `first` .. `end`, each of another one of `partitions`."""
        state = self._state
        names = batches.partitions[first:end]
        lengths = batches.run_lengths[first:end]
        run_starts = np.cumsum(lengths) - lengths
        at = int(batches.run_lengths[:first].sum())
        rows = slice(at, at + int(lengths.sum()))
        base, last = batches.base_offset[rows], batches.last_offset[rows]
        byte_offset, size = batches.byte_offset[rows], batches.byte_size[rows]
        kind, append_time = batches.timestamp_type[rows], batches.log_append_time_ms[rows]

        expected = np.empty_like(base)
        expected[1:] = last[:-1] + 1
        expected[run_starts] = [partition.high_watermark for partition in partitions]
        wrong = np.flatnonzero((base != expected) | (last < base))
        if len(wrong):
            place = int(wrong[0])
            name = names[int(np.searchsorted(run_starts, place, "right")) - 1]
            raise CorruptState(
                f"{name}: record commits {base[place]}..{last[place]}, not from {expected[place]}"
            )
        is_start = np.zeros(len(base), np.bool_)
        is_start[1:] = (
            (byte_offset[1:] != byte_offset[:-1] + size[:-1])
            | (kind[1:] != kind[:-1])
            | (append_time[1:] != append_time[:-1])
        )
        is_start[run_starts] = True
        starts = _split(np.flatnonzero(is_start), size)
        ends = np.append(starts[1:], len(base))
        ids = np.repeat(column([partition.id for partition in partitions]), lengths)
        columns = [
            ids[starts],
            last[ends - 1],
            base[starts],
            np.full(len(starts), file_id),
            byte_offset[starts],
            np.add.reduceat(size, starts),
            ends - starts,
            kind[starts],
            append_time[starts],
            np.maximum.reduceat(batches.max_timestamp_ms[rows], starts),
        ]
        checksums = BATCHES.checksums(columns)
        state.add(sum_of(checksums))
        self._batches += zip(*(numbers.tolist() for numbers in (*columns, checksums)), strict=True)
        run_bytes = np.add.reduceat(size, run_starts)
        self._grow(names, partitions, last[run_starts + lengths - 1] + 1, run_bytes)
        return len(starts), int(run_bytes.sum())

    def _grow(
        self,
        names: Sequence[TopicIdPartition],
        partitions: Sequence[PartitionState],
        high_watermarks: Int64s,
        sizes: Int64s,
    ) -> None:
        fields: list[Sequence[int]] = [*zip(*partitions, strict=True)]
        fields[_HIGH_WATERMARK] = high_watermarks.tolist()
        for field in (_UNPLANNED_BYTES, _LIVE_BYTES):
            fields[field] = (column(fields[field]) + sizes).tolist()
        after = tuples(PartitionState, *fields)
        self._state.put_partitions(partitions, dict(zip(names, after, strict=True)))

    # -- producers ------------------------------------------------------------------------------

    def _append_to_producers(
        self, batches: CommittedBatches, partitions: Sequence[PartitionState]
    ) -> None:
        which = np.flatnonzero(batches.producer_id >= 0)
        if len(which):
            self._few_as_columns()
            ids = column([partition.id for partition in partitions])
            self._sequences.append(
                [
                    np.repeat(ids, batches.run_lengths)[which],
                    *(
                        numbers[which]
                        for numbers in (
                            batches.producer_id,
                            batches.producer_epoch,
                            batches.base_sequence,
                            batches.last_sequence,
                            batches.base_offset,
                            batches.log_append_time_ms,
                        )
                    ),
                ]
            )

    def _append_few(self, appends: Sequence[ProducerAppend]) -> None:
        self._appends += appends
        if self._sequences or len(self._appends) > APPENDS_IN_LOOP_MAX:
            self._few_as_columns()

    def _few_as_columns(self) -> None:
        if self._appends:
            self._sequences.append([*map(column, zip(*self._appends, strict=True))])
            self._appends.clear()

    def _flush_few_producers(self, driver: sqlite3.Connection) -> None:
        keys = [*dict.fromkeys([append[:2] for append in self._appends])]
        before = dict(zip(keys, self._states(keys), strict=True))
        states: dict[ProducerKey, ProducerState] = {}
        for append in self._appends:
            key = append[:2]
            states[key] = state_after(states.get(key) or before[key], *append[2:])
        self._appends.clear()
        after, difference = write_few_producers(driver, before, states)
        self._state.add(difference)
        self._state.changes.producers.update(after)

    def _flush_producers(self, driver: sqlite3.Connection) -> None:
        """What all files of the transaction append, in their order."""
        columns = [np.concatenate(numbers) for numbers in zip(*self._sequences, strict=True)]
        self._sequences.clear()
        order, starts = grouped_by_producer(columns[0], columns[1])
        partitions, producers, epoch, base_sequence, last_sequence, base_offset, append_time = (
            numbers[order] for numbers in columns
        )
        partitions, producers = partitions[starts], producers[starts]
        keys = [*zip(partitions.tolist(), producers.tolist(), strict=True)]
        before = states_array(self._states(keys))
        batches = ProducerBatches(
            starts=starts, epoch=epoch, base_sequence=base_sequence, last_sequence=last_sequence
        )
        after = appended(before, batches, base_offset, append_time)
        self._state.add(write_producers(driver, partitions, producers, before, after))
        self._state.changes.producers.update(zip(keys, states_list(after), strict=True))

    def _states(self, keys: Sequence[ProducerKey]) -> Sequence[ProducerState | None]:
        """As of now; SQLite is asked once for all that memory has not."""
        changed, cached = self._state.changes.producers, self._state.image.producers
        if changed:
            states = [changed[key] if key in changed else cached.get(key) for key in keys]
        else:
            states = [*map(cached.get, keys)]
        missing = [
            key
            for key, state in zip(keys, states, strict=True)
            if state is None and key not in changed
        ]
        if missing:
            found = load_producers(self._state.connection, missing)
            states = [
                found.get(key) if state is None else state
                for key, state in zip(keys, states, strict=True)
            ]
        return states


def _opened(
    batches: CommittedBatches, partitions: Sequence[PartitionState]
) -> Sequence[tuple[TopicIdPartition, OpenTransaction]]:
    """The first batch of every (partition, producer, transaction), in their order."""
    which = np.flatnonzero(batches.transaction_number != NO_TRANSACTION)
    runs = np.repeat(np.arange(len(partitions)), batches.run_lengths)[which]
    ids = column([partition.id for partition in partitions])[runs]
    producers, numbers = batches.producer_id[which], batches.transaction_number[which]
    _, firsts = np.unique(np.stack((ids, producers, numbers)), axis=1, return_index=True)
    firsts.sort()
    columns = (
        ids[firsts],
        batches.base_offset[which][firsts],
        producers[firsts],
        batches.producer_epoch[which][firsts],
        numbers[firsts],
        batches.log_append_time_ms[which][firsts],
    )
    opened = tuples(OpenTransaction, *(values.tolist() for values in columns))
    names = [batches.partitions[run] for run in runs[firsts].tolist()]
    return [*zip(names, opened, strict=True)]


def _first_repeated(ids: Sequence[int], first: int) -> int:
    """The place of the first of `ids`, from `first` on, that was there before."""
    seen: set[int] = set()
    for place in range(first, len(ids)):
        if ids[place] in seen:
            return place
        seen.add(ids[place])
    return len(ids)


def _split(starts: Int64s, sizes: Int64s) -> Int64s:
    """Further starts, so that no row has more bytes than COALESCED_BYTES_MAX if it can have fewer.

    A row takes batches as long as they fit.
    """
    row_bytes = np.add.reduceat(sizes, starts)
    if row_bytes.max() <= COALESCED_BYTES_MAX:
        return starts
    ends = np.append(starts[1:], len(sizes))
    running = np.cumsum(sizes)
    more = []
    for number in np.flatnonzero(row_bytes > COALESCED_BYTES_MAX).tolist():
        start, end = int(starts[number]), int(ends[number])
        while True:
            limit = running[start] - sizes[start] + COALESCED_BYTES_MAX
            start = max(int(np.searchsorted(running, limit, "right")), start + 1)
            if start >= end:
                break
            more.append(start)
    return np.sort(np.append(starts, more).astype(np.int64))


def _answer(
    record: FileCommittedRecord, batches: CommittedBatches, partitions: Sequence[PartitionState]
) -> Answer:
    """In the order of the request. Raises CorruptState when a batch has no answer, or two."""
    refused = np.array([*record.refused], np.int64).reshape(len(record.refused), 5)
    count = len(batches) + len(refused)
    places = np.concatenate((batches.position, refused[:, 0]))
    if not np.array_equal(np.sort(places), np.arange(count)):
        raise CorruptState(f"{record.object_key}: not one answer for each of {count} batches")
    answer = Answer.empty(count)
    accepted = batches.position
    answer.base_offset[accepted] = batches.base_offset
    answer.log_append_time_ms[accepted] = batches.log_append_time_ms
    log_starts = column([partition.log_start_offset for partition in partitions])
    answer.log_start_offset[accepted] = np.repeat(log_starts, batches.run_lengths)
    for number, numbers in enumerate(
        (
            answer.refusal,
            answer.base_offset,
            answer.log_append_time_ms,
            answer.log_start_offset,
        ),
        1,
    ):
        numbers[refused[:, 0]] = refused[:, number]
    answer.is_duplicate[refused[:, 0]] = refused[:, 1] == 0
    return answer
