"""Decides about the batches of a file one after the other: the rule, and the way for a few.

metadata/rules/commit_columns.py does the same for many at once, where operations on columns cost
less than a loop. Both give the same `DecidedBatches`, and leave the view alone.

Source: KIP-1164, DisklessCommitFile; Kafka's ProducerAppendInfo (metadata/state/producer_state.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from metadata.operations import BatchCommit
from metadata.records.file_committed import CommittedBatch, RefusedBatch
from metadata.state.commit_answer import (
    REFUSAL_CODES,
    BatchAnswer,
    commits_of_few,
    pack_answers,
)
from metadata.state.image import PartitionState, ProducerKey
from metadata.state.producer_state import (
    ProducerBatch,
    ProducerState,
    check_sequence,
    plainly_follows,
    state_after,
    unpack_window,
)
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import NO_OFFSET, ClosedKey, ClosedTransaction, OpenTransaction
from wal.coordinates import NO_TRANSACTION, BatchExtent, Offset, TopicIdPartition
from wal.errors import (
    InvalidTransactionState,
    Rejected,
    SequenceGivenAgain,
    StaleProducerEpoch,
    UnknownPartition,
)
from wal.records.record_batch import MAGIC_V2

_NEVER_MS: Final = 1 << 62

Verdict = ProducerBatch | type[Rejected] | None
"""See `check_sequence`."""

UNKNOWN_PARTITION: Final = REFUSAL_CODES[UnknownPartition]


class DecidedBatches(NamedTuple):
    """What becomes of the batches of a file."""

    accepted: Sequence[CommittedBatch]
    refused: Sequence[RefusedBatch]
    commits: Sequence[BatchCommit]
    """The answer to each batch, in the order of the request."""
    packed: bytes
    """The same as it is stored."""
    partitions: Mapping[TopicIdPartition, PartitionState]
    """The partitions that grow, as they are then."""
    producers: Mapping[ProducerKey, ProducerState]
    """The producers of which anything was accepted, as they are then."""
    opened: Sequence[OpenTransaction] = ()
    """The transactions that begin with a batch of the file."""


@dataclass(slots=True)
class _Partition:
    """A partition of the file while its batches are decided."""

    before: PartitionState
    end: int


def producers_of_rows(
    view: SpeculativeView, batches: Sequence[BatchExtent]
) -> Sequence[ProducerKey]:
    """The producers whose states deciding these batches needs, each once."""
    keys: dict[ProducerKey, None] = {}
    for batch in batches:
        if batch.producer_id >= 0:
            state = view.partition(batch.partition)
            if state is not None:
                keys[state.id, batch.producer_id] = None
    return [*keys]


def closed_of_rows(view: SpeculativeView, batches: Sequence[BatchExtent]) -> Sequence[ClosedKey]:
    """Under which keys deciding these batches needs what was closed."""
    keys: dict[ClosedKey, None] = {}
    for batch in batches:
        if batch.transaction_number != NO_TRANSACTION:
            state = view.partition(batch.partition)
            if state is not None:
                keys[ClosedKey(state.id, batch.producer_id)] = None
    return [*keys]


def check_number(
    number: int,
    epoch: int,
    *,
    open_number: int,
    closed: ClosedTransaction | None,
) -> type[Rejected] | None:
    """The error that refuses a batch of transaction `number`; None: the batch is appended.

    `open_number` is that of the transaction that the producer has open in the partition, or
    NO_TRANSACTION; `closed` the last one that was ended there. One that was ended takes nothing any
    more: that is what keeps a batch that comes late from opening a transaction that nobody ends.
    """
    if number == NO_TRANSACTION:
        return None if open_number == NO_TRANSACTION else InvalidTransactionState
    if closed is not None and number <= closed.number:
        return StaleProducerEpoch if epoch < closed.producer_epoch else InvalidTransactionState
    # The next one begins when the last one has ended everywhere; so there is no third case.
    return None if open_number in (NO_TRANSACTION, number) else InvalidTransactionState


def within(opened: OpenTransaction | None, verdict: ProducerBatch) -> Verdict:
    """What becomes of a batch of the open transaction `opened` that seems to repeat another one.

    A producer repeats a batch within its transaction. The same sequence in a later one, under the
    same epoch, is another batch: a client that has aborted what was on its way gives the sequence
    again when it believes that the first was never written. To call that a duplicate would lose it.
    """
    if opened is not None and verdict.base_offset >= opened.first_offset:
        return verdict
    return SequenceGivenAgain


def expiration_of(view: SpeculativeView, key: ProducerKey, expiration_ms: int) -> int:
    """How long a producer may be silent before it is forgotten: not while it has data open."""
    return expiration_ms if view.transactions.open_transaction(key) is None else _NEVER_MS


def decide_rows(
    view: SpeculativeView,
    batches: Sequence[BatchExtent],
    *,
    now_ms: int,
    steady_ms: int,
    expiration_ms: int,
) -> DecidedBatches:
    """Decide what becomes of the batches; the states of their producers must be known."""
    accepted: list[CommittedBatch] = []
    answers: list[BatchAnswer] = []
    partitions: dict[TopicIdPartition, _Partition] = {}
    producers: dict[ProducerKey, ProducerState] = {}
    transactions = _Transactions(view, now_ms)
    name: TopicIdPartition | None = None
    partition: _Partition | None = None
    for position, batch in enumerate(batches):
        if batch.partition is not name:
            name = batch.partition
            partition = partitions.get(name)
            if partition is None and (known := view.partition(name)) is not None:
                partition = partitions[name] = _Partition(known, known.high_watermark)
        if partition is None:
            answers.append(BatchAnswer(refusal=UNKNOWN_PARTITION))
            continue
        base, last_sequence = partition.end, batch.last_sequence
        log_start = partition.before.log_start_offset
        if batch.producer_id >= 0:
            key = (partition.before.id, batch.producer_id)
            state = producers.get(key) or view.producer(key)
            epoch, base_sequence = batch.producer_epoch, batch.base_sequence
            refusal = transactions.check(key, batch)
            if refusal is not None or not plainly_follows(state, epoch, base_sequence):
                verdict = check_sequence(
                    None if state is None else unpack_window(state),
                    epoch=epoch,
                    base_sequence=base_sequence,
                    last_sequence=last_sequence,
                    now_ms=steady_ms,
                    expiration_ms=expiration_of(view, key, expiration_ms),
                )
                if not isinstance(verdict, ProducerBatch):
                    verdict = refusal or verdict
                elif refusal is None and batch.transaction_number != NO_TRANSACTION:
                    verdict = within(transactions.open_of(key), verdict)
                if verdict is not None:
                    answers.append(_refusal(verdict, log_start))
                    continue
            if batch.transaction_number != NO_TRANSACTION:
                transactions.append(key, batch, base)
            producers[key] = state_after(state, epoch, base_sequence, last_sequence, base, now_ms)
        partition.end = base + batch.record_count
        accepted.append(_committed(batch, position, base, last_sequence, now_ms))
        answers.append(BatchAnswer(base, now_ms, log_start))
    return DecidedBatches(
        accepted=tuple(accepted),
        refused=tuple(
            RefusedBatch(position, answer.refusal, *answer[:3])
            for position, answer in enumerate(answers)
            if answer.refusal or answer.is_duplicate
        ),
        commits=commits_of_few(answers, batches),
        packed=pack_answers(tuple(answers)),
        partitions={
            name: with_high_watermark(
                found.before, found.end, transactions.first_offsets.get(found.before.id, NO_OFFSET)
            )
            for name, found in partitions.items()
            if found.end > found.before.high_watermark
        },
        producers=producers,
        opened=[*transactions.opened.values()],
    )


class _Transactions:
    """The transactions of a file while its batches are decided."""

    def __init__(self, view: SpeculativeView, now_ms: int) -> None:
        self._view = view.transactions
        self._has_any = view.transactions.has_open
        self._now_ms = now_ms
        self._numbers: dict[ProducerKey, int] = {}
        """What is open, or begins with a batch of the file that its sequence may refuse still."""
        self.opened: dict[ProducerKey, OpenTransaction] = {}
        self.first_offsets: dict[int, int] = {}
        """Of what begins, by the partition's surrogate key."""

    def check(self, key: ProducerKey, batch: BatchExtent) -> type[Rejected] | None:
        number = batch.transaction_number
        if number == NO_TRANSACTION and not self._has_any:
            return None
        open_number = self._numbers.get(key)
        if open_number is None:
            opened = self._view.open_transaction(key)
            open_number = NO_TRANSACTION if opened is None else opened.number
            self._numbers[key] = open_number
        closed = None if number == NO_TRANSACTION else self._view.closed(ClosedKey(*key))
        refusal = check_number(number, batch.producer_epoch, open_number=open_number, closed=closed)
        if refusal is None and number != NO_TRANSACTION:
            self._has_any = True
            self._numbers[key] = number
        return refusal

    def open_of(self, key: ProducerKey) -> OpenTransaction | None:
        """The open transaction that has a batch in the partition."""
        return self.opened.get(key) or self._view.open_transaction(key)

    def append(self, key: ProducerKey, batch: BatchExtent, base_offset: int) -> None:
        if self.open_of(key) is None:
            self.opened[key] = OpenTransaction(
                key[0],
                base_offset,
                batch.producer_id,
                batch.producer_epoch,
                batch.transaction_number,
                self._now_ms,
            )
            self.first_offsets.setdefault(key[0], base_offset)


def _committed(
    batch: BatchExtent, position: int, base_offset: int, last_sequence: int, now_ms: int
) -> CommittedBatch:
    return CommittedBatch(
        batch.partition,
        position,
        MAGIC_V2,
        batch.byte_offset,
        batch.length_bytes,
        Offset(base_offset),
        Offset(base_offset + batch.record_count - 1),
        now_ms,
        batch.max_timestamp_ms,
        batch.timestamp_type,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        last_sequence,
        batch.transaction_number,
    )


def _refusal(verdict: ProducerBatch | type[Rejected], log_start_offset: int) -> BatchAnswer:
    if isinstance(verdict, ProducerBatch):
        return BatchAnswer(
            verdict.base_offset, verdict.append_time_ms, log_start_offset, is_duplicate=1
        )
    return BatchAnswer(refusal=REFUSAL_CODES[verdict])


def with_high_watermark(
    state: PartitionState, high_watermark: int, opened_at: int = NO_OFFSET
) -> PartitionState:
    """`state`, grown; `opened_at`: where the first transaction begins in what was appended."""
    # A third of what _replace takes.
    grown = PartitionState._make((*state[:4], high_watermark, *state[5:]))
    if opened_at != NO_OFFSET and state.first_open_offset == NO_OFFSET:
        return grown._replace(first_open_offset=opened_at)
    return grown
