"""Decides what belongs to the open transaction of a transactional id.

A transaction begins with the first partition or group that is added, and gets the number after the
last one. What is added is durable before anybody may write there; so whoever ends the transaction
knows everybody that has to hear of it.
"""

from typing import Final

from metadata.records.transactions import TransactionGrewRecord
from metadata.rules.commit import Decision
from metadata.rules.transactions.producer_pairs import Pair, being_ended, producer_error
from metadata.state.speculative import SpeculativeView
from metadata.state.transactions import transitions
from metadata.transaction_operations import (
    AddToTransaction,
    JoinedTransaction,
    JoinTransaction,
    Transaction,
    TransactionState,
)
from wal.errors import (
    InvalidRequest,
    InvalidTransactionState,
)

PARTS_MAX: Final = 50_000
"""Partitions and groups of one transaction: its end is one record at each of their coordinators."""


def decide_add(
    view: SpeculativeView, asked: AddToTransaction, *, now_ms: int
) -> Decision[JoinedTransaction]:
    """All of it belongs to the transaction then, or nothing was added."""
    known = view.transactions.transaction(asked.transactional_id)
    error = producer_error(known, Pair(asked.producer_id, asked.producer_epoch))
    if error is not None or known is None:
        return Decision((), JoinedTransaction(error=error))
    state = TransactionState(known.state)
    if state.is_decided:
        return Decision((), JoinedTransaction(error=being_ended(known)))
    if not asked.partitions and not asked.groups:
        return Decision((), JoinedTransaction(error=InvalidRequest("nothing to be added")))
    # Each once, as it came first.
    partitions = {part.partition: part for part in reversed(asked.partitions)}
    groups = {part.group_id: part for part in reversed(asked.groups)}
    added = [part for name, part in partitions.items() if name not in known.partitions]
    added_groups = [part for name, part in groups.items() if name not in known.groups]
    is_open = state is TransactionState.ONGOING
    is_as_asked = is_open and (known.bumps_epoch or not asked.bumps_epoch)
    if is_as_asked and not added and not added_groups:
        return Decision((), JoinedTransaction(known.number))
    count = len(known.partitions) + len(known.groups) + len(added) + len(added_groups)
    if count > PARTS_MAX:
        error = InvalidRequest(f"{count} partitions and groups, allowed are {PARTS_MAX}")
        return Decision((), JoinedTransaction(error=error))
    record = TransactionGrewRecord(
        transactional_id=asked.transactional_id,
        number=known.number if is_open else known.number + 1,
        at_ms=now_ms,
        bumps_epoch=asked.bumps_epoch,
        partitions=added,
        groups=added_groups,
    )
    view.transactions.put_transaction(transitions.grown(known, record), view.group)
    return Decision((record,), JoinedTransaction(record.number))


def joined(known: Transaction | None, asked: JoinTransaction) -> JoinedTransaction:
    """The number of the open transaction, if all that is asked about belongs to it."""
    error = producer_error(known, Pair(asked.producer_id, asked.producer_epoch))
    if error is not None or known is None:
        return JoinedTransaction(error=error)
    state = TransactionState(known.state)
    if state.is_decided:
        return JoinedTransaction(error=being_ended(known))
    if state is not TransactionState.ONGOING:
        return JoinedTransaction(error=InvalidTransactionState("no transaction is open"))
    for part, members in ((asked.partitions, known.partitions), (asked.groups, known.groups)):
        for name in part:
            if name not in members:
                return JoinedTransaction(
                    error=InvalidTransactionState(f"{name} does not belong to the transaction")
                )
    return JoinedTransaction(known.number)
