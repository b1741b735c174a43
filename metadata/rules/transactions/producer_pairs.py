"""Who may go on with a transactional id: the pair of producer id and epoch that it has now."""

from typing import Final, NamedTuple

from metadata.transaction_operations import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Transaction
from wal.errors import (
    ConcurrentTransactions,
    DisklessError,
    InvalidProducerIdMapping,
    ProducerFenced,
)


class Pair(NamedTuple):
    """A producer as it names itself."""

    producer_id: int
    producer_epoch: int


NOBODY: Final = Pair(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def pair_of(transaction: Transaction) -> Pair:
    """The producer that may go on."""
    return Pair(transaction.producer_id, transaction.producer_epoch)


def next_pair_of(transaction: Transaction) -> Pair:
    """The producer that may go on when its transaction is completed."""
    if transaction.next_producer_id == NO_PRODUCER_ID:
        return pair_of(transaction)
    return Pair(transaction.next_producer_id, 0)


def is_last_pair(transaction: Transaction, pair: Pair) -> bool:
    """Whether `pair` led to the producer that there is, and may ask for it again."""
    return pair.producer_epoch >= 0 and pair == (
        transaction.last_producer_id,
        transaction.last_epoch,
    )


def being_ended(transaction: Transaction) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"transaction {transaction.number} of the transactional id is being ended"
    )


def fenced() -> ProducerFenced:
    """What a producer is told that is not the id's any more."""
    return ProducerFenced(
        "the transactional id has another producer epoch: its transaction was aborted, or another "
        "producer has the id"
    )


def producer_error(transaction: Transaction | None, pair: Pair) -> DisklessError | None:
    """Why `pair` may not go on with the transactional id; None: it may."""
    if transaction is None:
        return InvalidProducerIdMapping("no producer has this transactional id")
    if pair == pair_of(transaction):
        return None
    if pair == next_pair_of(transaction):
        return being_ended(transaction)
    if pair.producer_id != transaction.producer_id:
        return InvalidProducerIdMapping("the transactional id has another producer id")
    return fenced()
