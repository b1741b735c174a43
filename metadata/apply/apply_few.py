"""Makes the rows of a committed file of few batches, batch by batch.

metadata/apply/apply_commit.py does the same for many, column by column, and tells the rules. Both
give the same rows, so a record has the same effect whichever way it is applied: the leader, which
has the batches at hand, and whoever reads the record from the log need not go the same way.
"""

from collections.abc import Sequence
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


class _Run:
    """Batches of one partition that follow each other in the file."""

    __slots__ = ("_bytes", "_end", "_name", "_partition")

    def __init__(self, name: TopicIdPartition, partition: PartitionState) -> None:
        self._name = name
        self._partition = partition
        self._end = partition.high_watermark
        self._bytes = 0

    def add(self, batch: CommittedBatch) -> None:
        """Raises CorruptState."""
        if batch.base_offset != self._end or batch.last_offset < batch.base_offset:
            raise CorruptState(
                f"{self._name}: record commits {batch.base_offset}..{batch.last_offset},"
                f" not from {self._end}"
            )
        self._end = batch.last_offset + 1
        self._bytes += batch.byte_size

    def end(self, state: StateTransaction) -> None:
        before = self._partition
        *front, _, planned_end, unplanned_bytes, live_bytes, first_open, last_marker = before
        after = (
            *front,
            self._end,
            planned_end,
            unplanned_bytes + self._bytes,
            live_bytes + self._bytes,
            first_open,
            last_marker,
        )
        state.put_partition(self._name, before, PartitionState._make(after))


def apply_few(state: StateTransaction, file_id: int, record: FileCommittedRecord) -> FewBatches:
    """Append the batches to their partitions. Raises CorruptState: they do not fit the state."""
    rows: list[list[int]] = []
    answers = _refused(record)
    producers: list[ProducerAppend] = []
    opened: list[tuple[TopicIdPartition, OpenTransaction]] = []
    run: _Run | None = None
    name: TopicIdPartition | None = None
    partition_id = log_start = size = 0
    for batch in record.batches:
        is_first = run is None or (batch.partition is not name and batch.partition != name)
        if is_first:
            if run is not None:
                run.end(state)
            name = batch.partition
            partition = state.partition(name)
            partition_id, log_start = partition.id, partition.log_start_offset
            run = _Run(name, partition)
        assert run is not None
        run.add(batch)
        size += batch.byte_size
        if is_first or not _is_coalesced(rows[-1], batch):
            rows.append(_row(partition_id, file_id, batch))
        _answer(record, answers, batch, log_start)
        if batch.producer_id >= 0:
            producers.append(_append(partition_id, batch))
        if batch.transaction_number != NO_TRANSACTION:
            opened.append((batch.partition, _open(partition_id, batch)))
    if run is not None:
        run.end(state)
    packed = pack_answers([answer for answer in answers if answer is not None])
    return FewBatches(state.added_few(BATCHES, rows), size, packed, producers, opened)


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


def _row(partition_id: int, file_id: int, batch: CommittedBatch) -> list[int]:
    """In the order of the columns of `batches`."""
    return [
        partition_id,
        batch.last_offset,
        batch.base_offset,
        file_id,
        batch.byte_offset,
        batch.byte_size,
        1,
        batch.timestamp_type,
        batch.log_append_time_ms,
        batch.max_timestamp_ms,
    ]


def _append(partition_id: int, batch: CommittedBatch) -> ProducerAppend:
    return ProducerAppend(
        partition_id,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        batch.base_offset,
        batch.log_append_time_ms,
    )


def _open(partition_id: int, batch: CommittedBatch) -> OpenTransaction:
    return OpenTransaction(
        partition_id,
        batch.base_offset,
        batch.producer_id,
        batch.producer_epoch,
        batch.transaction_number,
        batch.log_append_time_ms,
    )


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


def _answer(
    record: FileCommittedRecord,
    answers: list[BatchAnswer | None],
    batch: CommittedBatch,
    log_start_offset: int,
) -> None:
    _check_position(record, answers, batch.position)
    answers[batch.position] = BatchAnswer(
        batch.base_offset, batch.log_append_time_ms, log_start_offset
    )


def _check_position(
    record: FileCommittedRecord, answers: Sequence[BatchAnswer | None], position: int
) -> None:
    if not 0 <= position < len(answers) or answers[position] is not None:
        raise CorruptState(
            f"{record.object_key}: not one answer for each of {len(answers)} batches"
        )
