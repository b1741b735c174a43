"""Transactional ids in a dictionary, for what stands above them; they have few rules."""

import asyncio
from collections import Counter
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
from tests.support.loops.until import until
from wal.clock import ManualClock
from wal.errors import (
    ConcurrentTransactions,
    DisklessError,
    InvalidProducerIdMapping,
    InvalidTransactionState,
)

COORDINATORS: Final = 3


@dataclass
class MemoryTransactions:
    """`diskless.transactions.transaction_coordinator.TransactionStore`, of all partitions.

    tests/diskless/transactions/test_transaction_store.py asks it and the real store the same.
    """

    known: dict[str, Transaction] = field(default_factory=dict)
    is_alone: bool = True
    """All that takes part lives here, so a decision is completed at once."""
    error: DisklessError | None = None
    """In every answer from now on."""
    failures: list[DisklessError] = field(default_factory=list)
    """Raised by the next calls that write, in turn."""
    asked: list[Any] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    timed_out: list[str] = field(default_factory=list)
    """Ids whose transactions are open for too long."""
    idle: set[str] = field(default_factory=set)
    """Ids that nobody has used for long."""
    ended: Counter[str] = field(default_factory=Counter)
    listeners: list[Callable[[str], None]] = field(default_factory=list)

    # -- as the coordinators that questions about numbers go to ---------------------------------

    async def join(
        self, coordinator: int, asked: Sequence[JoinTransaction]
    ) -> Sequence[JoinedTransaction]:
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

    async def add(
        self, coordinator: int, asked: Sequence[AddToTransaction]
    ) -> Sequence[JoinedTransaction]:
        """The same, for producers that add by writing."""
        return [await self.add_to_transaction(one) for one in asked]

    # -- the store ------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[str], None]) -> None:
        self.listeners.append(listener)

    def transaction(self, transactional_id: str) -> Transaction | None:
        return self.known.get(transactional_id)

    def transactions(self) -> Sequence[Transaction]:
        return [*self.known.values()]

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    async def init_producer(self, asked: InitProducer) -> InitializedProducer:
        self._fail()
        self.asked.append(asked)
        if self.error is not None:
            return InitializedProducer(error=self.error)
        name = asked.transactional_id
        known = self.known.get(name) or Transaction(1, name, asked.fresh_producer_id, -1)
        if known.state == TransactionState.ONGOING:
            known = self._decide(known, "aborted", epoch=known.producer_epoch + 1)
        if TransactionState(known.state).is_decided:
            return InitializedProducer(error=ConcurrentTransactions("being aborted"))
        self.known[name] = known = known._replace(
            producer_epoch=known.producer_epoch + 1,
            timeout_ms=asked.timeout_ms,
            state=TransactionState.EMPTY,
        )
        return InitializedProducer(known.producer_id, known.producer_epoch)

    async def add_to_transaction(self, asked: AddToTransaction) -> JoinedTransaction:
        self._fail()
        self.asked.append(asked)
        known = self.known.get(asked.transactional_id)
        error = self.error
        if known is None:
            error = error or InvalidProducerIdMapping("no")
        elif TransactionState(known.state).is_decided:
            error = error or ConcurrentTransactions("being ended")
        if error is not None or known is None:
            return JoinedTransaction(error=error)
        number = known.number if known.is_open else known.number + 1
        self.known[asked.transactional_id] = known._replace(
            number=number,
            state=TransactionState.ONGOING,
            began_ms=known.began_ms if known.is_open else 1_000,
            partitions={**known.partitions, **dict(asked.partitions)},
            groups={**known.groups, **dict(asked.groups)},
        )
        return JoinedTransaction(number)

    async def end_transaction(self, asked: EndTransaction) -> EndedTransaction:
        self._fail()
        self.asked.append(asked)
        if self.error is not None:
            return EndedTransaction(error=self.error)
        known = self.known[asked.transactional_id]
        after = self._decide(known, "committed" if asked.is_commit else "aborted")
        return EndedTransaction(after.number, not after.is_open)

    async def abort_transaction(self, asked: AbortTransaction) -> EndedTransaction:
        self._fail()
        known = self.known.get(asked.transactional_id)
        if known is None or (known.number, known.state) != (
            asked.number,
            TransactionState.ONGOING,
        ):
            return EndedTransaction(error=InvalidTransactionState("not open"))
        after = self._decide(known, "aborted", epoch=known.producer_epoch + 1)
        return EndedTransaction(after.number, not after.is_open)

    async def abort_timed_out(self, limit: int) -> Sequence[Transaction]:
        self._fail()
        due, self.timed_out = self.timed_out[:limit], self.timed_out[limit:]
        return [self._decide(self.known[name], "timed_out") for name in due]

    def _decide(self, known: Transaction, outcome: str, *, epoch: int | None = None) -> Transaction:
        is_commit = outcome == "committed"
        state = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
        after = known._replace(
            state=state, producer_epoch=known.producer_epoch if epoch is None else epoch
        )
        self.ended[outcome] += 1
        self.known[known.transactional_id] = after
        if self.is_alone:
            return self._complete(after)
        for listener in self.listeners:
            listener(known.transactional_id)
        return after

    def _complete(self, known: Transaction) -> Transaction:
        is_commit = TransactionState(known.state).is_commit
        done = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        after = known._replace(state=done, partitions={}, groups={})
        self.known[known.transactional_id] = after
        return after

    async def complete(self, transactional_id: str, number: int) -> None:
        self._fail()
        self.completed.append(number)
        self._complete(self.known[transactional_id])

    async def expire_ids(self) -> int:
        self._fail()
        idle, self.idle = self.idle, set()
        for name in idle:
            del self.known[name]
        return len(idle)


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
