"""What the records about a transactional id make of it.

Deciding and applying go by the same: metadata/rules/transactions writes the result into the
speculative view, metadata/apply/apply_transactions.py into memory and SQLite.

    EMPTY ──grown──▶ ONGOING ──decided──▶ PREPARE_* ──completed──▶ COMPLETE_*
      ▲                 ▲                                              │ │
      │                 └───────────────── grown ──────────────────────┘ │
      └──────────────────────────────── began ───────────────────────────┘

Raises CorruptState where a record does not fit what is there.
"""

from metadata.records.transactions import (
    TransactionBeganRecord,
    TransactionCompletedRecord,
    TransactionDecidedRecord,
    TransactionGrewRecord,
)
from metadata.transaction_operations import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionState,
)
from wal.errors import CorruptState


def began(before: Transaction | None, offset: int, record: TransactionBeganRecord) -> Transaction:
    """The id with its new producer; `offset` is the record's."""
    if before is not None and before.is_open:
        raise CorruptState(f"a new producer while a transaction is open: {before}")
    after = before or Transaction(offset, record.transactional_id, -1, -1)
    return after._replace(
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        last_producer_id=record.last_producer_id,
        last_epoch=record.last_epoch,
        timeout_ms=record.timeout_ms,
        state=TransactionState.EMPTY,
        changed_ms=record.at_ms,
    )


def grown(before: Transaction | None, record: TransactionGrewRecord) -> Transaction:
    """The transaction with what was added; the next number begins with it."""
    if before is None:
        raise CorruptState(f"a transaction of the unknown id {record.transactional_id!r}")
    is_next = not before.is_open and record.number == before.number + 1
    is_open = before.state == TransactionState.ONGOING and record.number == before.number
    if not is_next and not is_open:
        raise CorruptState(f"transaction {record.number} grew: it is {before}")
    return before._replace(
        number=record.number,
        state=TransactionState.ONGOING,
        began_ms=record.at_ms if is_next else before.began_ms,
        changed_ms=record.at_ms,
        bumps_epoch=record.bumps_epoch or (is_open and before.bumps_epoch),
        partitions={**before.partitions, **dict(record.partitions)},
        groups={**before.groups, **dict(record.groups)},
    )


def decided(before: Transaction | None, record: TransactionDecidedRecord) -> Transaction:
    """The transaction whose end is fixed."""
    known = _of_number(before, record, TransactionState.ONGOING)
    may_ask_again = record.last_epoch != NO_PRODUCER_EPOCH
    return known._replace(
        state=(
            TransactionState.PREPARE_COMMIT if record.is_commit else TransactionState.PREPARE_ABORT
        ),
        producer_epoch=record.producer_epoch,
        last_producer_id=known.producer_id if may_ask_again else NO_PRODUCER_ID,
        last_epoch=record.last_epoch,
        next_producer_id=record.next_producer_id,
        changed_ms=record.at_ms,
    )


def completed(before: Transaction | None, record: TransactionCompletedRecord) -> Transaction:
    """The id when everybody has heard how its transaction ended."""
    known = _of_number(
        before, record, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
    )
    is_commit = known.state == TransactionState.PREPARE_COMMIT
    after = known._replace(
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        changed_ms=record.at_ms,
        partitions={},
        groups={},
    )
    if known.next_producer_id == NO_PRODUCER_ID:
        return after
    return after._replace(
        producer_id=known.next_producer_id, producer_epoch=0, next_producer_id=NO_PRODUCER_ID
    )


def _of_number(
    transaction: Transaction | None,
    record: TransactionDecidedRecord | TransactionCompletedRecord,
    *states: TransactionState,
) -> Transaction:
    if (
        transaction is None
        or transaction.number != record.number
        or transaction.state not in states
    ):
        raise CorruptState(
            f"transaction {record.number} of {record.transactional_id!r}: it is {transaction}"
        )
    return transaction
