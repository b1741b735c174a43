"""What is asked about transactions, and answered.

Three kinds of coordinators have a part in a transaction; all are leaders of metadata partitions,
and often the same one:

- that of the *transactional id*, which counts its transactions, knows what belongs to the open one,
  and decides how it ends;
- those of its *partitions*, which note where it began there, and close it with a marker;
- those of its *groups*, which keep the offsets that it commits until it ends.

Every transaction has a *number*, which its transactional id never uses twice. Batches and offsets
carry it to their coordinators, and these take none of a number that they have closed. So nothing
that comes late can open a transaction again, whatever the epoch it has.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError
from wal.wire.layouts import Int8, Int16, Int32

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_OFFSET: Final = -1

LISTED_AT_ONCE: Final = 1_000
"""Transactional ids in one answer that lists them."""

EPOCH_MAX: Final = 32_766
"""The greatest epoch that a producer is given; the one above it only fences."""

NUMBER_MAX: Final = 2**63 - 1
"""No transaction has a greater number."""

GROUP_PARTITION: Final = -1
"""Stands for a group where others have the surrogate key or the index of a partition."""


class Constant(IntEnum):
    """Numbers that a metadata log fixes once; the values are stored."""

    ENDED_BELOW = 0
    """No producer id below it is in a transaction any more: a rebuild of lost metadata has ended
    them all, and gives no id a second time. What comes late of them is refused."""
    COORDINATORS = 1
    """Over how many metadata partitions groups and transactional ids are spread."""


class TransactionState(IntEnum):
    """Kafka's states of a transactional id; the numbers are stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_decided(self) -> bool:
        """How it ends is fixed, and not everybody has heard of it."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_commit(self) -> bool:
        """The outcome, where it is decided."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


class TransactionPartition(NamedTuple):
    """A partition of a transaction, and the coordinator that the partition lives at."""

    partition: TopicIdPartition
    coordinator: Int32


class TransactionGroup(NamedTuple):
    """A group whose offsets a transaction commits, and the group's coordinator."""

    group_id: str
    coordinator: Int32


class Transaction(NamedTuple):
    """What is known of a transactional id: its producer, and its last transaction."""

    id: int
    """Offset of the metadata record that created it."""
    transactional_id: str
    producer_id: int
    producer_epoch: Int16
    last_producer_id: int = NO_PRODUCER_ID
    last_epoch: Int16 = NO_PRODUCER_EPOCH
    """The producer before this one, if it asked for this one itself: it may ask again."""
    timeout_ms: Int32 = 0
    number: int = 0
    """Of the last transaction that began; 0: there was none."""
    state: Int8 = TransactionState.EMPTY
    """A `TransactionState`."""
    began_ms: int = -1
    """When the last transaction began, by the clock of the metadata log."""
    changed_ms: int = -1
    next_producer_id: int = NO_PRODUCER_ID
    """The producer's from its completion on, with epoch 0; -1: the same one."""
    bumps_epoch: bool = False
    """The last transaction ends with another epoch, so (producer id, epoch) names it alone."""
    partitions: Mapping[TopicIdPartition, Int32] = MappingProxyType({})
    """Those of a transaction that is not completed, with their coordinators."""
    groups: Mapping[str, Int32] = MappingProxyType({})

    @property
    def is_open(self) -> bool:
        """There is a transaction that is not completed."""
        state = TransactionState(self.state)
        return state is TransactionState.ONGOING or state.is_decided


class OpenTransaction(NamedTuple):
    """A transaction that has data in a partition, as the partition's coordinator knows it."""

    partition: int
    """The partition's surrogate key."""
    first_offset: int
    producer_id: int
    producer_epoch: int
    number: int
    opened_ms: int


class ClosedKey(NamedTuple):
    """A producer in a partition, or in a group."""

    partition: int
    """The partition's surrogate key; GROUP_PARTITION for a group."""
    producer_id: int
    group_id: str = ""


class ClosedTransaction(NamedTuple):
    """The last transaction of a producer that was ended in a partition or group."""

    number: int
    producer_epoch: int
    """From which on the producer may write there."""


class InitProducer(NamedTuple):
    """Asks for a producer id and epoch; what an earlier one left open is aborted."""

    transactional_id: str
    timeout_ms: Int32
    fresh_producer_id: int
    """Never given to anybody; used where a new one is needed."""
    producer_id: int = NO_PRODUCER_ID
    """The asking producer's own, when it goes on after an error (KIP-360)."""
    producer_epoch: Int16 = NO_PRODUCER_EPOCH


class InitializedProducer(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: Int16 = NO_PRODUCER_EPOCH
    error: DisklessError | None = None


class AddToTransaction(NamedTuple):
    """Adds all of these to the open transaction, which begins with the first; or none of them."""

    transactional_id: str
    producer_id: int
    producer_epoch: Int16
    partitions: Sequence[TransactionPartition] = ()
    groups: Sequence[TransactionGroup] = ()
    bumps_epoch: bool = False
    """The transaction is to end with another epoch, whoever ends it: its number may be kept under
    (producer id, epoch). Version 2 of transactions."""


class JoinTransaction(NamedTuple):
    """Asks whether all of these are in the open transaction; changes nothing."""

    transactional_id: str
    producer_id: int
    producer_epoch: Int16
    partitions: Sequence[TopicIdPartition] = ()
    groups: Sequence[str] = ()


class JoinedTransaction(NamedTuple):
    """The number that batches and offsets of the transaction carry."""

    number: int = -1
    error: DisklessError | None = None


class EndTransaction(NamedTuple):
    """Commits or aborts the open transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: Int16
    is_commit: bool
    bumps_epoch: bool = False
    """The producer goes on with the epoch that is answered; version 2 of transactions."""
    fresh_producer_id: int = NO_PRODUCER_ID
    """Never given to anybody; needed where the epoch is EPOCH_MAX and is to be bumped."""


class AbortTransaction(NamedTuple):
    """Aborts this very transaction if it is still open, and fences its producer."""

    transactional_id: str
    number: int


class EndedTransaction(NamedTuple):
    """What became of it. Not completed: it is decided, and its coordinators have to be told."""

    number: int = -1
    is_completed: bool = False
    error: DisklessError | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: Int16 = NO_PRODUCER_EPOCH
    """With which the producer goes on."""


class EndParts(NamedTuple):
    """Tells a coordinator of partitions and groups how a transaction ends there."""

    producer_id: int
    producer_epoch: Int16
    """From which on the producer may write."""
    number: int
    is_commit: bool
    coordinator_epoch: Int32
    """Leader epoch of who decided; markers show it."""
    partitions: Sequence[TopicIdPartition] = ()
    groups: Sequence[str] = ()


class ListTransactions(NamedTuple):
    """Asks for transactional ids behind `after`, in the order of their names."""

    after: str = ""
    limit: Int32 = LISTED_AT_ONCE
    states: Sequence[Int8] = ()
    """Of `TransactionState`; none: whatever the state."""
    transactional_ids: Sequence[str] = ()
    """These alone, with all that belongs to their transactions; none: all, without it."""


class ListedTransactions(NamedTuple):
    transactions: Sequence[Transaction] = ()


def wanted_of(known: Iterable[Transaction], asked: ListTransactions) -> list[Transaction]:
    """Returns those of `known` that were asked for, whether they are of the next page or not."""
    wanted, states = frozenset(asked.transactional_ids), frozenset(asked.states)
    return [
        transaction
        for transaction in known
        if transaction.transactional_id > asked.after
        and (not wanted or transaction.transactional_id in wanted)
        and (not states or transaction.state in states)
    ]


def page_of(known: Iterable[Transaction], asked: ListTransactions) -> ListedTransactions:
    """Returns what was asked for of all that is known."""
    found = sorted(
        wanted_of(known, asked),
        key=lambda transaction: transaction.transactional_id,
    )[: max(min(asked.limit, LISTED_AT_ONCE), 0)]
    if not asked.transactional_ids:
        found = [transaction._replace(partitions={}, groups={}) for transaction in found]
    return ListedTransactions(tuple(found))
