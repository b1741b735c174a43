"""Makes the rows of a committed file of few batches, batch by batch.

metadata/apply/apply_commit.py does the same for many, column by column, and tells the rules. Both
give the same rows, so a record has the same effect whichever way it is applied: the leader, which
has the batches at hand, and whoever reads the record from the log need not go the same way.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from metadata.apply.transaction import StateTransaction
from metadata.records.file_committed import CommittedBatch, FileCommittedRecord
from metadata.state.commit_answer import BatchAnswer, pack_answers
from metadata.state.image import PartitionState
from metadata.state.schema import BATCHES, Row
from metadata.transaction_operations import OpenTransaction
from wal.coordinates import NO_TRANSACTION, TopicIdPartition
from wal.errors import CorruptState

COALESCED_BYTES_MAX: Final = 1 << 20
"""Byte-contiguous batches become one row up to this size; part of STATE_VERSION."""

_PARTITION: Final = itemgetter(CommittedBatch._fields.index("partition"))


class ProducerAppend(NamedTuple):
    """A batch that one producer has appended to one partition."""

    partition: int
    """Its surrogate key."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    append_time_ms: int


class FewBatches(NamedTuple):
    """What a file of few batches adds, beside what it changes in its partitions."""

    rows: Sequence[Row]
    """Of `batches`."""
    size_bytes: int
    answer: bytes
    producers: Sequence[ProducerAppend]
    opened: Sequence[tuple[TopicIdPartition, OpenTransaction]]
    """The batches of transactions, each as if it was the first one of its own."""


def apply_few(state: StateTransaction, file_id: int, record: FileCommittedRecord) -> FewBatches:
    """Append the batches to their partitions. Raises CorruptState: they do not fit the state."""
    rows: list[list[int]] = []
    answers = _refused(record)
    producers: list[ProducerAppend] = []
    opened: list[tuple[TopicIdPartition, OpenTransaction]] = []
    size = 0
    for name, run in groupby(record.batches, _PARTITION):
        before = state.partition(name)
        partition_id, log_start, end = before.id, before.log_start_offset, before.high_watermark
        run_bytes = 0
        row: list[int] | None = None
        for batch in run:
            # Each field once, and without calls: this loop runs for every batch of small objects.
            (
                _,
                position,
                _,
                byte_offset,
                byte_size,
                base_offset,
                last_offset,
                append_time_ms,
                max_timestamp_ms,
                timestamp_type,
                producer_id,
                epoch,
                base_sequence,
                last_sequence,
                number,
            ) = batch
            if base_offset != end or last_offset < base_offset:
                raise CorruptState(
                    f"{name}: record commits {base_offset}..{last_offset}, not from {end}"
                )
            end = last_offset + 1
            run_bytes += byte_size
            if row is None or not _is_coalesced(row, batch):
                # In the order of the columns of `batches`.
                row = [
                    partition_id,
                    last_offset,
                    base_offset,
                    file_id,
                    byte_offset,
                    byte_size,
                    1,
                    timestamp_type,
                    append_time_ms,
                    max_timestamp_ms,
                ]
                rows.append(row)
            _check_position(record, answers, position)
            answers[position] = BatchAnswer(base_offset, append_time_ms, log_start)
            if producer_id >= 0:
                producers.append(
                    ProducerAppend(
                        partition_id,
                        producer_id,
                        epoch,
                        base_sequence,
                        last_sequence,
                        base_offset,
                        append_time_ms,
                    )
                )
            if number != NO_TRANSACTION:
                opened.append(
                    (
                        name,
                        OpenTransaction(
                            partition_id, base_offset, producer_id, epoch, number, append_time_ms
                        ),
                    )
                )
        size += run_bytes
        state.put_partition(name, before, _grown(before, end, run_bytes))
    packed = pack_answers(tuple([answer for answer in answers if answer is not None]))
    return FewBatches(state.added_few(BATCHES, rows), size, packed, producers, opened)


def _grown(before: PartitionState, end: int, size: int) -> PartitionState:
    *front, _, planned_end, unplanned_bytes, live_bytes, first_open, last_marker = before
    return PartitionState._make(
        (
            *front,
            end,
            planned_end,
            unplanned_bytes + size,
            live_bytes + size,
            first_open,
            last_marker,
        )
    )


def _is_coalesced(row: list[int], batch: CommittedBatch) -> bool:
    """Add the batch to the row of the one before it in its run, if it may be."""
    if (
        batch.byte_offset != row[4] + row[5]
        or batch.timestamp_type != row[7]
        or batch.log_append_time_ms != row[8]
        or row[5] + batch.byte_size > COALESCED_BYTES_MAX
    ):
        return False
    row[1] = batch.last_offset
    row[5] += batch.byte_size
    row[6] += 1
    row[9] = max(row[9], batch.max_timestamp_ms)
    return True


# -- the answer ---------------------------------------------------------------------------------


def _refused(record: FileCommittedRecord) -> list[BatchAnswer | None]:
    """The answer as far as it is known without the accepted batches, in the order of the request.

    Raises CorruptState.
    """
    answers: list[BatchAnswer | None] = [None] * (len(record.batches) + len(record.refused))
    for position, code, base_offset, append_time_ms, log_start in record.refused:
        _check_position(record, answers, position)
        answers[position] = BatchAnswer(
            base_offset, append_time_ms, log_start, code, is_duplicate=int(code == 0)
        )
    return answers


def _check_position(
    record: FileCommittedRecord, answers: Sequence[BatchAnswer | None], position: int
) -> None:
    if not 0 <= position < len(answers) or answers[position] is not None:
        raise CorruptState(
            f"{record.object_key}: not one answer for each of {len(answers)} batches"
        )
