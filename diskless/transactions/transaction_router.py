"""Finds the coordinator of a transactional id, and reaches it if it is on this broker.

A transactional id belongs to the metadata partition that it hashes to, as a group does; the broker
that leads that partition is its coordinator. This is what the API layer calls. Where another broker
leads, the answer is NotTransactionCoordinator, whereupon clients ask who does.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from diskless.loop.long_work import each
from diskless.ports import NOTHING_REFUSED, FollowedPartition, ProducerIds
from diskless.transactions.errors import (
    NotTransactionCoordinator,
    TransactionCoordinatorUnavailable,
    as_transaction_error,
)
from diskless.transactions.settings import TransactionSettings
from diskless.transactions.transaction_coordinator import (
    PartitionTransactions,
    TransactionStore,
)
from diskless.transactions.transaction_ends import Tell
from metadata.operations import TopicDescription
from metadata.transaction_operations import (
    EPOCH_MAX,
    AbortTransaction,
    AddToTransaction,
    EndedTransaction,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    Transaction,
    TransactionGroup,
    TransactionPartition,
)
from wal.clock import Clock, Sleep
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, InvalidRequest, InvalidTransactionTimeout, UnknownPartition

OUTCOMES: Final = ("committed", "aborted", "timed_out")


class Producer(NamedTuple):
    """Who asks: a producer as its transactional id knows it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionStatistics(NamedTuple):
    """The first three are as of the last look at all transactional ids."""

    ids: int
    ongoing: int
    oldest_s: float
    """Since the oldest transaction that is not decided began; 0: there is none."""
    ending: int
    """Transactions that are decided, and of which not everybody has heard."""
    ended: Mapping[str, int]
    """Decisions by outcome, since the last time that this broker came to lead."""


class TransactionRouter:
    """Transactional ids, each at the broker that leads the id's metadata partition.

    Nothing is raised: whatever goes wrong is an error in the answer. Answers about what was changed
    come when it is durable.
    """

    def __init__(
        self,
        partitions: Sequence[FollowedPartition],
        producer_ids: ProducerIds,
        topics: Callable[[], Mapping[str, TopicDescription]],
        tell: Tell,
        *,
        settings: TransactionSettings,
        timeout_max_ms: int,
        placed: Callable[[str], int],
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`partitions` are all metadata partitions, by index.

        `timeout_max_ms`: producers that ask for a longer time are refused. `placed`: the index of
        the metadata partition of a transactional id, or a group.
        """
        self._placed = placed
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._topics = topics
        self._tell = tell
        self._settings = settings
        self._timeout_max_ms = timeout_max_ms
        self._clock = clock
        self._sleep = sleep
        self._led: dict[int, PartitionTransactions] = {}

    def led(
        self, index: int, store: TransactionStore, leader_epoch: Callable[[], int]
    ) -> PartitionTransactions:
        """The worker for the metadata partition `index`, which this broker has come to lead."""
        transactions = PartitionTransactions(
            store,
            self._tell,
            leader_epoch=leader_epoch,
            settings=self._settings,
            clock=self._clock,
            sleep=self._sleep,
        )
        self._led[index] = transactions
        return transactions

    def statistics(self) -> TransactionStatistics:
        """Of the coordinators that are led here, and what was decided by those that were."""
        led = tuple(self._led.values())
        leading = [transactions for transactions in led if transactions.serves]
        began = [
            transactions.counts.oldest_began_ms
            for transactions in leading
            if transactions.counts.oldest_began_ms is not None
        ]
        return TransactionStatistics(
            ids=sum(transactions.counts.ids for transactions in leading),
            ongoing=sum(transactions.counts.ongoing for transactions in leading),
            oldest_s=max(self._clock.now_ms() - min(began), 0) / 1000 if began else 0.0,
            ending=sum(transactions.ending for transactions in leading),
            ended={
                outcome: sum(transactions.ended[outcome] for transactions in led)
                for outcome in OUTCOMES
            },
        )

    # -- the way --------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> int | DisklessError:
        """Returns the node id of the broker to go to, as far as this one knows."""
        leader = self._partitions[self.coordinator_of(transactional_id)].leader
        if leader is None:
            return TransactionCoordinatorUnavailable("nobody leads the id's metadata partition now")
        return leader.broker_id

    def coordinator_of(self, transactional_id: str) -> int:
        """The metadata partition that the id belongs to; so for groups."""
        return self._placed(transactional_id)

    def _transactions(self, transactional_id: str) -> PartitionTransactions | DisklessError:
        if not transactional_id:
            return InvalidRequest("an empty transactional id")
        transactions = self._led.get(self.coordinator_of(transactional_id))
        if transactions is None:
            return NotTransactionCoordinator("another broker coordinates the transactional id")
        return transactions.refusal() or transactions

    # -- producers ------------------------------------------------------------------------------

    async def init_producer(self, producer: Producer, timeout_ms: int) -> InitializedProducer:
        """A producer id and epoch; what the id's last producer left open is aborted.

        `producer` has the id and epoch that it had before, or -1.
        """
        transactions = self._transactions(producer.transactional_id)
        if isinstance(transactions, DisklessError):
            return InitializedProducer(error=transactions)
        if not 0 < timeout_ms <= self._timeout_max_ms:
            return InitializedProducer(
                error=InvalidTransactionTimeout(
                    f"{timeout_ms} ms, allowed are {self._timeout_max_ms}"
                )
            )
        try:
            fresh = await self._producer_ids.allocate_producer_id()
        except DisklessError as error:
            return InitializedProducer(error=as_transaction_error(error))
        return await transactions.init_producer(
            InitProducer(
                transactional_id=producer.transactional_id,
                timeout_ms=timeout_ms,
                fresh_producer_id=fresh,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
            )
        )

    async def located(
        self,
        partitions: Sequence[tuple[str, int]],
        refused: Mapping[Any, DisklessError] = NOTHING_REFUSED,
    ) -> Sequence[TransactionPartition | DisklessError]:
        """Each with its coordinator; an error for what is not there, or is of a `refused` topic."""
        topics = self._topics()

        def find(named: tuple[str, int]) -> TransactionPartition | DisklessError:
            name, index = named
            if name in refused:
                return refused[name]
            topic = topics.get(name)
            if topic is None or not 0 <= index < topic.partition_count:
                return UnknownPartition(f"{name}-{index}")
            partition = TopicIdPartition(topic.topic_id, index)
            return TransactionPartition(partition, topic.coordinator_of(index))

        return await each(find, partitions)

    async def add_partitions(
        self,
        producer: Producer,
        partitions: Sequence[tuple[str, int]],
        *,
        refused: Mapping[Any, DisklessError] = NOTHING_REFUSED,
    ) -> DisklessError | Sequence[DisklessError | None]:
        """The error of all, or those of partitions that cannot be added; then none was added.

        `refused`: topics by name that nothing is added of, though the others are looked for.
        """
        transactions = self._transactions(producer.transactional_id)
        if isinstance(transactions, DisklessError):
            return transactions
        located = await self.located(partitions, refused)
        errors = [one if isinstance(one, DisklessError) else None for one in located]
        found = [one for one in located if isinstance(one, TransactionPartition)]
        if len(found) < len(errors):
            return errors
        error = await transactions.add(AddToTransaction(*producer, partitions=found))
        return errors if error is None else error

    async def add_group(self, producer: Producer, group_id: str) -> DisklessError | None:
        """Offsets of the group may be committed with the transaction from then on."""
        transactions = self._transactions(producer.transactional_id)
        if isinstance(transactions, DisklessError):
            return transactions
        group = TransactionGroup(group_id, self.coordinator_of(group_id))
        return await transactions.add(AddToTransaction(*producer, groups=[group]))

    async def end(
        self, producer: Producer, *, is_commit: bool, bumps_epoch: bool = False
    ) -> EndedTransaction:
        """Answered when the outcome is durable; it is nearly always visible then, too.

        `bumps_epoch`: the producer goes on with the producer id and epoch of the answer.
        """
        transactions = self._transactions(producer.transactional_id)
        if isinstance(transactions, DisklessError):
            return EndedTransaction(error=transactions)
        asked = EndTransaction(*producer, is_commit=is_commit, bumps_epoch=bumps_epoch)
        if producer.producer_epoch >= EPOCH_MAX:
            try:
                fresh = await self._producer_ids.allocate_producer_id()
            except DisklessError as error:
                return EndedTransaction(error=as_transaction_error(error))
            asked = asked._replace(fresh_producer_id=fresh)
        return await transactions.end(asked)

    # -- administration -------------------------------------------------------------------------

    async def abort(self, transactional_id: str, number: int) -> DisklessError | None:
        """Abort this very transaction, if it is open, and fence its producer."""
        transactions = self._transactions(transactional_id)
        if isinstance(transactions, DisklessError):
            return transactions
        return await transactions.abort(AbortTransaction(transactional_id, number))

    def describe(self, transactional_id: str) -> Transaction | DisklessError:
        transactions = self._transactions(transactional_id)
        if isinstance(transactions, DisklessError):
            return transactions
        return transactions.describe(transactional_id)

    def list(self) -> Iterator[Sequence[Transaction]]:
        """The transactional ids this broker coordinates, of one partition after the other."""
        for transactions in tuple(self._led.values()):
            if transactions.serves:
                yield transactions.list()
