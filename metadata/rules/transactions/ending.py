"""Decides how the transaction of a transactional id ends.

A decision is made once for a number: every later request finds it made. Where everything that
belongs to the transaction lives in this metadata partition, decision, markers, offsets and
completion are one append. Otherwise the decision is alone, others are told of it, and completion
comes when all have answered.

What goes with the decision:

- an end with version 1 of transactions leaves the epoch; one with version 2, and an abort that
  nobody asked for with the producer's own epoch, goes one up;
- where no epoch is left to go up to, a producer that may ask again gets a fresh producer id with
  the completion; another one when it asks (metadata/rules/transactions/producers.py).

A request that is repeated is answered as it was, once the transaction is completed. Until then it
is ConcurrentTransactions, which clients repeat. Source: Kafka's rules for EndTxn, KIP-890.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from metadata.records.records import MetadataRecord
from metadata.records.transactions import (
    TransactionCompletedRecord,
    TransactionDecidedRecord,
    TransactionGrewRecord,
)
from metadata.rules.commit import Decision
from metadata.rules.transactions.parts import end_parts_now
from metadata.rules.transactions.producer_pairs import (
    Pair,
    being_ended,
    is_last_pair,
    next_pair_of,
    producer_error,
)
from metadata.state.speculative import SpeculativeView
from metadata.state.transactions import transitions
from metadata.transaction_operations import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AbortTransaction,
    EndedTransaction,
    EndParts,
    EndTransaction,
    Transaction,
    TransactionState,
)
from wal.errors import (
    DisklessError,
    InvalidRequest,
    InvalidTransactionState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What an open transaction ends with."""

    is_commit: bool
    producer_epoch: int
    """Of the producer afterwards."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """With which it may ask again; -1: it may not."""
    next_producer_id: int = NO_PRODUCER_ID
    now_ms: int
    coordinator_epoch: int


def end_now(
    view: SpeculativeView, transaction: Transaction, ending: Ending
) -> Sequence[MetadataRecord]:
    """End what is open; completed where all of it lives here."""
    name, number, now_ms = transaction.transactional_id, transaction.number, ending.now_ms
    decision = TransactionDecidedRecord(
        transactional_id=name,
        number=number,
        is_commit=ending.is_commit,
        producer_epoch=ending.producer_epoch,
        last_epoch=ending.last_epoch,
        next_producer_id=ending.next_producer_id,
        at_ms=now_ms,
    )
    after = transitions.decided(transaction, decision)
    records: list[MetadataRecord] = [decision]
    coordinators = {*transaction.partitions.values(), *transaction.groups.values()}
    if coordinators <= {view.coordinator_id}:
        parts = EndParts(
            producer_id=after.producer_id,
            producer_epoch=after.producer_epoch,
            number=number,
            is_commit=ending.is_commit,
            coordinator_epoch=ending.coordinator_epoch,
            partitions=tuple(transaction.partitions),
            groups=tuple(transaction.groups),
        )
        # Nobody ends a part before the decision, so none of them was closed before.
        records += end_parts_now(view, parts, now_ms=now_ms)
        completion = TransactionCompletedRecord(transactional_id=name, number=number, at_ms=now_ms)
        after = transitions.completed(after, completion)
        records.append(completion)
    view.transactions.put_transaction(after, view.group)
    return records


def abort_now(
    view: SpeculativeView,
    transaction: Transaction,
    *,
    last_epoch: int = NO_PRODUCER_EPOCH,
    next_producer_id: int = NO_PRODUCER_ID,
    now_ms: int,
    coordinator_epoch: int,
) -> Sequence[MetadataRecord]:
    """Abort what is open, and fence its producer; with `last_epoch` it may go on all the same."""
    ending = Ending(
        is_commit=False,
        producer_epoch=transaction.producer_epoch + 1,
        last_epoch=last_epoch,
        next_producer_id=next_producer_id,
        now_ms=now_ms,
        coordinator_epoch=coordinator_epoch,
    )
    return end_now(view, transaction, ending)


# -- the producer's wish ---------------------------------------------------------------------------


def decide_end(
    view: SpeculativeView, asked: EndTransaction, *, now_ms: int, coordinator_epoch: int
) -> Decision[EndedTransaction]:
    """Commit or abort what is open; a repeated request gets the first answer."""
    known = view.transactions.transaction(asked.transactional_id)
    pair = Pair(asked.producer_id, asked.producer_epoch)
    if known is None:
        return Decision((), EndedTransaction(error=producer_error(known, pair)))
    state = TransactionState(known.state)
    is_repeated = is_last_pair(known, pair) and state not in (
        TransactionState.EMPTY,
        TransactionState.ONGOING,
    )
    if not is_repeated and (refusal := producer_error(known, pair)) is not None:
        return Decision((), EndedTransaction(error=refusal))
    records: list[MetadataRecord] = []
    bumps = asked.bumps_epoch or (known.bumps_epoch and state is TransactionState.ONGOING)
    if state is not TransactionState.ONGOING:
        if is_repeated or not _is_empty_abort(known, asked):
            return Decision((), _ended_before(known, asked, is_repeated=is_repeated))
        # A producer of version 2 need not know whether anything was added: it gets its next epoch.
        nothing = TransactionGrewRecord(
            transactional_id=asked.transactional_id,
            number=known.number + 1,
            at_ms=now_ms,
            bumps_epoch=True,
            partitions=(),
            groups=(),
        )
        known = transitions.grown(known, nothing)
        records.append(nothing)
    next_producer_id = NO_PRODUCER_ID
    if bumps and known.producer_epoch >= EPOCH_MAX:
        next_producer_id = asked.fresh_producer_id
        if next_producer_id == NO_PRODUCER_ID:
            error = InvalidRequest(f"epoch {known.producer_epoch} ends with a fresh producer id")
            return Decision((), EndedTransaction(error=error))
    ending = Ending(
        is_commit=asked.is_commit,
        producer_epoch=known.producer_epoch + bumps,
        last_epoch=known.producer_epoch if bumps else NO_PRODUCER_EPOCH,
        next_producer_id=next_producer_id,
        now_ms=now_ms,
        coordinator_epoch=coordinator_epoch,
    )
    records += end_now(view, known, ending)
    return Decision(records, _ended(view.transactions.transaction(asked.transactional_id)))


def _is_empty_abort(known: Transaction, asked: EndTransaction) -> bool:
    return asked.bumps_epoch and not asked.is_commit and not known.is_open


def _ended_before(
    known: Transaction, asked: EndTransaction, *, is_repeated: bool
) -> EndedTransaction:
    """What is answered when nothing is open. `is_repeated`: asked with the epoch that ended it."""
    state = TransactionState(known.state)
    if state is TransactionState.EMPTY:
        error: DisklessError = InvalidTransactionState("no transaction is open")
    elif state.is_commit is not asked.is_commit:
        done = "committed" if state.is_commit else "aborted"
        error = InvalidTransactionState(f"transaction {known.number} was {done}")
    elif state.is_decided:
        error = being_ended(known)
    elif asked.bumps_epoch and not is_repeated:
        # With the epoch of the next transaction, in which nothing was done.
        error = InvalidTransactionState("no transaction is open")
    else:
        return _ended(known)
    return EndedTransaction(error=error)


def _ended(transaction: Transaction | None) -> EndedTransaction:
    assert transaction is not None
    return EndedTransaction(
        transaction.number,
        not transaction.is_open,
        None,
        *next_pair_of(transaction),
    )


# -- without the producer --------------------------------------------------------------------------


def decide_abort(
    view: SpeculativeView, asked: AbortTransaction, *, now_ms: int, coordinator_epoch: int
) -> Decision[EndedTransaction]:
    """Abort this very transaction, and fence its producer."""
    known = view.transactions.transaction(asked.transactional_id)
    if known is None or known.number != asked.number:
        error: DisklessError = InvalidTransactionState(
            f"the transactional id has no transaction {asked.number} now"
        )
        return Decision((), EndedTransaction(error=error))
    state = TransactionState(known.state)
    if state is TransactionState.ONGOING:
        records = abort_now(view, known, now_ms=now_ms, coordinator_epoch=coordinator_epoch)
        return Decision(records, _ended(view.transactions.transaction(asked.transactional_id)))
    if state is TransactionState.COMPLETE_ABORT:
        return Decision((), _ended(known))
    if state is TransactionState.PREPARE_ABORT:
        error = being_ended(known)
    else:
        error = InvalidTransactionState(f"transaction {asked.number} is {state.name}")
    return Decision((), EndedTransaction(error=error))


def decide_complete(
    view: SpeculativeView, transactional_id: str, number: int, *, now_ms: int
) -> Decision[None]:
    """Everybody has heard how it ended; what was completed before stays so."""
    known = view.transactions.transaction(transactional_id)
    if known is None or known.number != number or not TransactionState(known.state).is_decided:
        return Decision((), None)
    record = TransactionCompletedRecord(
        transactional_id=transactional_id, number=number, at_ms=now_ms
    )
    view.transactions.put_transaction(transitions.completed(known, record), view.group)
    return Decision((record,), None)
