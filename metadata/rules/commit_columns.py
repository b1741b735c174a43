"""Decides about the batches of a file all at once, column by column: the way for many.

One by one go only those of a producer of whose batches one does not simply follow the one before
it. metadata/rules/commit_rows.py has the rule itself, and gives the same.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from metadata.records.file_committed import CommittedBatches, RefusedBatch
from metadata.rules.commit_rows import (
    UNKNOWN_PARTITION,
    DecidedBatches,
    Verdict,
    check_number,
    expiration_of,
    within,
)
from metadata.state.commit_answer import REFUSAL_CODES, Answer, commits_of, pack_answer
from metadata.state.image import PartitionState, ProducerKey
from metadata.state.producer_state import (
    ProducerBatch,
    ProducerBatches,
    ProducerState,
    ProducerWindow,
    States,
    all_follow,
    appended,
    check_sequence,
    grouped_by_producer,
    states_array,
    states_list,
    unpack_window,
    with_batch,
)
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import NO_OFFSET, ClosedKey, OpenTransaction
from wal.batch_extents import BatchExtents
from wal.columns import Int64s, column, tuples
from wal.coordinates import NO_TRANSACTION
from wal.records.record_batch import MAGIC_V2

_UNKNOWN: Final = -1
"""The surrogate key of a partition that does not exist; others are offsets."""
_NO_PARTITION: Final = PartitionState(_UNKNOWN, _UNKNOWN, _UNKNOWN)
_ID, _LOG_START, _HIGH_WATERMARK, _FIRST_OPEN = map(
    PartitionState._fields.index,
    ("id", "log_start_offset", "high_watermark", "first_open_offset"),
)

_Bools = npt.NDArray[np.bool_]


class ProducerGroups(NamedTuple):
    """The batches that have a producer and a partition, by (partition, producer id)."""

    which: Int64s
    """Which batches they are; in request order within a group."""
    starts: Int64s
    """Where in `which` each group starts."""
    keys: Sequence[ProducerKey]
    """Of each group."""


def producers_of_columns(view: SpeculativeView, columns: BatchExtents) -> Sequence[ProducerKey]:
    """The producers whose states deciding these batches needs, each once."""
    if not (columns.producer_id >= 0).any():
        return ()
    states = view.partitions(columns.partitions)
    ids = column(_UNKNOWN if state is None else state.id for state in states)
    return _grouped(columns, ids).keys


def closed_of_columns(view: SpeculativeView, columns: BatchExtents) -> Sequence[ClosedKey]:
    """Under which keys deciding these batches needs what was closed."""
    is_transactional = columns.transaction_number != NO_TRANSACTION
    if not is_transactional.any():
        return ()
    ofs = columns.partition_of[is_transactional].tolist()
    pairs = dict.fromkeys(zip(ofs, columns.producer_id[is_transactional].tolist(), strict=True))
    states = view.partitions(columns.partitions)
    return [
        ClosedKey(state.id, producer_id)
        for place, producer_id in pairs
        if (state := states[place]) is not None
    ]


def _grouped(columns: BatchExtents, partition_ids: Int64s) -> ProducerGroups:
    ids = partition_ids[columns.partition_of]
    which = np.flatnonzero((columns.producer_id >= 0) & (ids != _UNKNOWN))
    order, starts = grouped_by_producer(ids[which], columns.producer_id[which])
    which = which[order]
    firsts = which[starts]
    keys = [*zip(ids[firsts].tolist(), columns.producer_id[firsts].tolist(), strict=True)]
    return ProducerGroups(which, starts, keys)


def decide_columns(
    view: SpeculativeView,
    columns: BatchExtents,
    *,
    now_ms: int,
    steady_ms: int,
    expiration_ms: int,
) -> DecidedBatches:
    """Decide what becomes of the batches; the states of their producers must be known."""
    of = columns.partition_of
    states = [state or _NO_PARTITION for state in view.partitions(columns.partitions)]
    fields = [*zip(*states, strict=True)] or [()] * len(PartitionState._fields)
    partition_ids, log_starts, high_watermarks = (
        column(fields[field]) for field in (_ID, _LOG_START, _HIGH_WATERMARK)
    )
    is_known = (partition_ids != _UNKNOWN)[of]
    answer = Answer.empty(len(of))
    answer.refusal[~is_known] = UNKNOWN_PARTITION

    checked = None
    if (columns.producer_id >= 0).any():
        checked = _check_producers(
            view,
            columns,
            _grouped(columns, partition_ids),
            answer,
            now_ms=now_ms,
            steady_ms=steady_ms,
            expiration_ms=expiration_ms,
        )
    is_accepted = (answer.refusal == 0) & (answer.is_duplicate == 0)
    base_offset, ends = _assign(columns, is_accepted, high_watermarks)
    has_offset = is_known & (answer.refusal == 0)
    answer.log_start_offset[has_offset] = log_starts[of][has_offset]
    answer.base_offset[is_accepted] = base_offset[is_accepted]
    answer.log_append_time_ms[is_accepted] = now_ms
    producers: dict[ProducerKey, ProducerState] = {}
    if checked is not None:
        checked.give_offsets_to_duplicates(answer)
        producers = checked.states_after(is_accepted, base_offset, now_ms)
    opened = []
    if (columns.transaction_number != NO_TRANSACTION).any():
        opened = _opened(view, columns, partition_ids, is_accepted, base_offset, now_ms)
    first_offsets: dict[int, int] = {}
    for one in opened:
        first_offsets.setdefault(one.partition, one.first_offset)
    # Field by field, and not partition by partition: half of the time.
    fields[_HIGH_WATERMARK] = tuple(ends.tolist())
    if first_offsets:
        fields[_FIRST_OPEN] = tuple(
            [
                first_offsets.get(partition_id, NO_OFFSET) if first == NO_OFFSET else first
                for partition_id, first in zip(fields[_ID], fields[_FIRST_OPEN], strict=True)
            ]
        )
    after = tuples(PartitionState, *fields)
    grows = (ends > high_watermarks).tolist()
    return DecidedBatches(
        accepted=_accepted(columns, np.flatnonzero(is_accepted), base_offset, now_ms),
        refused=_refused(answer, np.flatnonzero(~is_accepted)),
        commits=commits_of(answer, columns),
        packed=pack_answer(answer),
        partitions=dict(compress(zip(columns.partitions, after, strict=True), grows)),
        producers=producers,
        opened=opened,
    )


def _opened(
    view: SpeculativeView,
    columns: BatchExtents,
    partition_ids: Int64s,
    is_accepted: _Bools,
    base_offset: Int64s,
    now_ms: int,
) -> list[OpenTransaction]:
    """The transactions that begin, in the order of the file."""
    which = np.flatnonzero(is_accepted & (columns.transaction_number != NO_TRANSACTION))
    partitions = partition_ids[columns.partition_of[which]]
    producers = columns.producer_id[which]
    _, firsts = np.unique(np.stack((partitions, producers)), axis=1, return_index=True)
    firsts.sort()
    first = which[firsts]
    begun = tuples(
        OpenTransaction,
        partitions[firsts].tolist(),
        base_offset[first].tolist(),
        producers[firsts].tolist(),
        columns.producer_epoch[first].tolist(),
        columns.transaction_number[first].tolist(),
        [now_ms] * len(first),
    )
    known = view.transactions.open_transaction
    return [one for one in begun if known((one.partition, one.producer_id)) is None]


def _assign(
    columns: BatchExtents, is_accepted: _Bools, high_watermarks: Int64s
) -> tuple[Int64s, Int64s]:
    """(base offset per batch, where each partition ends); a refused batch takes no offsets."""
    of = columns.partition_of
    if not len(of):
        return of, high_watermarks
    order = np.argsort(of, kind="stable")
    counts = np.where(is_accepted, columns.record_count, 0)[order]
    before = np.cumsum(counts) - counts
    starts = np.searchsorted(of[order], np.arange(len(high_watermarks)))
    base_offset = np.empty_like(before)
    base_offset[order] = before + (high_watermarks - before[starts])[of[order]]
    return base_offset, high_watermarks + np.add.reduceat(counts, starts)


def _accepted(
    columns: BatchExtents, which: Int64s, base_offset: Int64s, now_ms: int
) -> CommittedBatches:
    if len(which) < len(columns):
        columns = columns.take(which)
    starts = columns.run_starts
    base = base_offset[which]
    return CommittedBatches(
        partitions=[columns.partitions[place] for place in columns.partition_of[starts].tolist()],
        run_lengths=np.diff(np.append(starts, len(which))),
        position=which,
        magic=np.full(len(which), MAGIC_V2),
        byte_offset=columns.byte_offset,
        byte_size=columns.length_bytes,
        base_offset=base,
        last_offset=base + columns.record_count - 1,
        log_append_time_ms=np.full(len(which), now_ms),
        max_timestamp_ms=columns.max_timestamp_ms,
        timestamp_type=columns.timestamp_type,
        producer_id=columns.producer_id,
        producer_epoch=columns.producer_epoch,
        base_sequence=columns.base_sequence,
        last_sequence=columns.last_sequence,
        transaction_number=columns.transaction_number,
    )


def _refused(answer: Answer, which: Int64s) -> Sequence[RefusedBatch]:
    numbers = (
        which,
        answer.refusal[which],
        answer.base_offset[which],
        answer.log_append_time_ms[which],
        answer.log_start_offset[which],
    )
    return tuple(map(RefusedBatch._make, zip(*(each.tolist() for each in numbers), strict=True)))


# -- producers ----------------------------------------------------------------------------------


class _CheckedProducers(NamedTuple):
    """The batches that have a producer, after their sequences' check."""

    columns: BatchExtents
    groups: ProducerGroups
    states: States
    of_same_file: Sequence[tuple[int, int]]
    """(duplicate, the batch of the same file that it repeats)."""

    def give_offsets_to_duplicates(self, answer: Answer) -> None:
        """Gives duplicates of batches of this file their offsets, unknown when they were found."""
        for duplicate, first in self.of_same_file:
            answer.base_offset[duplicate] = answer.base_offset[first]
            answer.log_append_time_ms[duplicate] = answer.log_append_time_ms[first]

    def states_after(
        self, is_accepted: _Bools, base_offset: Int64s, now_ms: int
    ) -> dict[ProducerKey, ProducerState]:
        """The states of the producers of which anything was accepted."""
        which, starts, keys = self.groups
        states = self.states
        is_in = is_accepted[which]
        if not is_in.all():
            lengths = np.diff(np.append(starts, len(which)))
            group = np.repeat(np.arange(len(keys)), lengths)
            which, group = which[is_in], group[is_in]
            if not len(which):
                return {}
            starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
            states = states[group[starts]]
            keys = [keys[place] for place in group[starts].tolist()]
        batches = _batches(self.columns, which, starts)
        after = appended(states, batches, base_offset[which], np.full(len(which), now_ms))
        return dict(zip(keys, states_list(after), strict=True))


def _batches(columns: BatchExtents, which: Int64s, starts: Int64s) -> ProducerBatches:
    return ProducerBatches(
        starts=starts,
        epoch=columns.producer_epoch[which],
        base_sequence=columns.base_sequence[which],
        last_sequence=columns.last_sequence[which],
    )


def _check_producers(
    view: SpeculativeView,
    columns: BatchExtents,
    groups: ProducerGroups,
    answer: Answer,
    *,
    now_ms: int,
    steady_ms: int,
    expiration_ms: int,
) -> _CheckedProducers | None:
    """Mark in `answer` what is refused or a duplicate; None when there is nothing to check."""
    which, starts, keys = groups
    if not keys:
        return None
    states = states_array(view.producers(keys))
    batches = _batches(columns, which, starts)
    of_same_file: list[tuple[int, int]] = []
    ends = batches.ends
    not_in_transaction = _check_numbers(view, columns, groups)
    to_check = ~all_follow(states, batches)
    if not_in_transaction.any():
        to_check |= np.logical_or.reduceat(not_in_transaction[which] != 0, starts)
    for group in np.flatnonzero(to_check).tolist():
        state = view.producer(keys[group])
        _check_one(
            None if state is None else unpack_window(state),
            columns,
            which[starts[group] : ends[group]].tolist(),
            answer,
            of_same_file,
            not_in_transaction,
            view.transactions.open_transaction(keys[group]),
            now_ms=now_ms,
            steady_ms=steady_ms,
            expiration_ms=expiration_of(view, keys[group], expiration_ms),
        )
    return _CheckedProducers(columns, groups, states, of_same_file)


def _check_numbers(view: SpeculativeView, columns: BatchExtents, groups: ProducerGroups) -> Int64s:
    """How each batch is refused because of its transaction, unless it is a duplicate; 0: it is not.

    Producer by producer, and batch by batch only for those in transactions.
    """
    refusals = np.zeros(len(columns), np.int64)
    numbers = columns.transaction_number
    transactions = view.transactions
    which, starts, keys = groups
    is_transactional = np.logical_or.reduceat(numbers[which] != NO_TRANSACTION, starts)
    if not is_transactional.any() and not transactions.has_open:
        return refusals
    ends = np.append(starts[1:], len(which))
    for group, key in enumerate(keys):
        opened = transactions.open_transaction(key)
        if opened is None and not is_transactional[group]:
            continue
        open_number = NO_TRANSACTION if opened is None else opened.number
        closed = transactions.closed(ClosedKey(*key)) if is_transactional[group] else None
        for place in which[starts[group] : ends[group]].tolist():
            number, epoch = int(numbers[place]), int(columns.producer_epoch[place])
            refusal = check_number(number, epoch, open_number=open_number, closed=closed)
            if refusal is not None:
                refusals[place] = REFUSAL_CODES[refusal]
            elif number != NO_TRANSACTION:
                open_number = number
    return refusals


def _check_one(
    window: ProducerWindow | None,
    columns: BatchExtents,
    which: Sequence[int],
    answer: Answer,
    of_same_file: list[tuple[int, int]],
    not_in_transaction: Int64s,
    opened: OpenTransaction | None,
    *,
    now_ms: int,
    steady_ms: int,
    expiration_ms: int,
) -> None:
    """The batches of one producer on one partition, one after the other."""
    last_sequences, numbers = columns.last_sequence, columns.transaction_number
    for place in which:
        epoch = int(columns.producer_epoch[place])
        base_sequence = int(columns.base_sequence[place])
        last_sequence = int(last_sequences[place])
        verdict: Verdict = check_sequence(
            window,
            epoch=epoch,
            base_sequence=base_sequence,
            last_sequence=last_sequence,
            now_ms=steady_ms,
            expiration_ms=expiration_ms,
        )
        if isinstance(verdict, ProducerBatch):
            is_within = numbers[place] != NO_TRANSACTION and not not_in_transaction[place]
            if is_within and verdict.base_offset >= 0:
                verdict = within(opened, verdict)
        elif not_in_transaction[place]:
            answer.refusal[place] = not_in_transaction[place]
            continue
        if verdict is None:
            # Its offset is not known yet: it depends on all batches of the partition before it.
            pending = ProducerBatch(base_sequence, last_sequence, -1 - place, now_ms)
            window = with_batch(window, epoch, pending)
        elif isinstance(verdict, ProducerBatch):
            answer.is_duplicate[place] = 1
            if verdict.base_offset < 0:
                of_same_file.append((place, -1 - verdict.base_offset))
            else:
                answer.base_offset[place] = verdict.base_offset
                answer.log_append_time_ms[place] = verdict.append_time_ms
        else:
            answer.refusal[place] = REFUSAL_CODES[verdict]
