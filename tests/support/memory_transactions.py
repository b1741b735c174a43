"""Transactional ids in a dictionary, for the APIs above them; they have few rules."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

from diskless.ports import ProducerIds, TopicAdmin
from diskless.transactions.settings import TransactionSettings
from diskless.transactions.transaction_router import TransactionRouter
from metadata.operations import Leader
from metadata.rules.groups import group_coordinator
from metadata.transaction_operations import (
    AbortTransaction,
    AddToTransaction,
    EndedTransaction,
    EndParts,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    JoinedTransaction,
    JoinTransaction,
    Transaction,
    TransactionState,
)
from tests.support.until import until
from wal.clock import ManualClock
from wal.errors import DisklessError, InvalidProducerIdMapping, InvalidTransactionState

COORDINATORS: Final = 3


@dataclass
class MemoryTransactions:
    """`diskless.transactions.transaction_coordinator.TransactionStore`, of all partitions."""

    known: dict[str, Transaction] = field(default_factory=dict)
    error: DisklessError | None = None
    """In every answer from now on."""
    asked: list[Any] = field(default_factory=list)

    async def join(
        self, coordinator: int, asked: Sequence[JoinTransaction]
    ) -> Sequence[JoinedTransaction]:
        """As the coordinators that questions about numbers go to."""
        answers = []
        for one in asked:
            known = self.known.get(one.transactional_id)
            if known is None or one.producer_id != known.producer_id:
                answers.append(JoinedTransaction(error=InvalidProducerIdMapping("no")))
            elif {*one.partitions} <= {*known.partitions}:
                answers.append(JoinedTransaction(known.number))
            else:
                answers.append(JoinedTransaction(error=InvalidTransactionState("not in it")))
        return answers

    def transaction(self, transactional_id: str) -> Transaction | None:
        return self.known.get(transactional_id)

    def transactions(self) -> Sequence[Transaction]:
        return [*self.known.values()]

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Nobody else decides anything."""

    async def init_producer(self, asked: InitProducer) -> InitializedProducer:
        self.asked.append(asked)
        if self.error is not None:
            return InitializedProducer(error=self.error)
        name = asked.transactional_id
        before = self.known.get(name)
        now = before or Transaction(1, name, asked.fresh_producer_id, -1)
        now = now._replace(producer_epoch=now.producer_epoch + 1, timeout_ms=asked.timeout_ms)
        self.known[name] = now
        return InitializedProducer(now.producer_id, now.producer_epoch)

    async def add(
        self, coordinator: int, asked: Sequence[AddToTransaction]
    ) -> Sequence[JoinedTransaction]:
        """The same, for producers that add by writing."""
        return [await self.add_to_transaction(one) for one in asked]

    async def add_to_transaction(self, asked: AddToTransaction) -> JoinedTransaction:
        self.asked.append(asked)
        if self.error is not None:
            return JoinedTransaction(error=self.error)
        before = self.known[asked.transactional_id]
        self.known[asked.transactional_id] = before._replace(
            number=before.number if before.is_open else before.number + 1,
            state=TransactionState.ONGOING,
            began_ms=before.began_ms if before.is_open else 1_000,
            partitions={**before.partitions, **dict(asked.partitions)},
            groups={**before.groups, **dict(asked.groups)},
        )
        return JoinedTransaction(self.known[asked.transactional_id].number)

    async def end_transaction(self, asked: EndTransaction) -> EndedTransaction:
        self.asked.append(asked)
        if self.error is not None:
            return EndedTransaction(error=self.error)
        before = self.known[asked.transactional_id]
        ended = TransactionState.COMPLETE_COMMIT
        if not asked.is_commit:
            ended = TransactionState.COMPLETE_ABORT
        after = before._replace(state=ended, partitions={}, groups={})
        self.known[asked.transactional_id] = after
        return EndedTransaction(after.number, is_completed=True)

    async def abort_transaction(self, asked: AbortTransaction) -> EndedTransaction:
        raise NotImplementedError

    async def abort_timed_out(self, limit: int) -> Sequence[Transaction]:
        return ()

    async def complete(self, transactional_id: str, number: int) -> None:
        raise NotImplementedError

    async def expire_ids(self, limit: int) -> int:
        return 0


class Led:
    """All metadata partitions, as long as somebody leads them."""

    leader: Leader | None = Leader(5, 0, "host", 1, UUID(int=1))


async def _nobody(coordinator: int, part: EndParts) -> DisklessError | None:
    raise NotImplementedError


def transactions_elsewhere(producer_ids: ProducerIds, topics: TopicAdmin) -> TransactionRouter:
    """Transactional ids of a broker that coordinates none."""
    return TransactionRouter(
        [Led()] * COORDINATORS,
        producer_ids,
        topics.topics,
        _nobody,
        settings=TransactionSettings(),
        timeout_max_ms=900_000,
        placed=partial(group_coordinator, coordinators=COORDINATORS),
        clock=ManualClock(),
        sleep=_for_ever,
    )


@asynccontextmanager
async def leading(router: TransactionRouter, store: MemoryTransactions) -> AsyncIterator[None]:
    """The broker coordinates all transactional ids; they are those of `store`."""
    # Else each partition would list all of them.
    workers = [
        router.led(index, store if index == 0 else _Others(store), lambda: 5)
        for index in range(COORDINATORS)
    ]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(worker.run()) for worker in workers]
        await until(lambda: all(worker.serves for worker in workers))
        yield
        for task in running:
            task.cancel()


async def _for_ever(seconds: float) -> None:
    await asyncio.Event().wait()


class _Others:
    """The store of another partition: it lists nothing."""

    def __init__(self, store: MemoryTransactions) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transactions(self) -> Sequence[Transaction]:
        return ()
