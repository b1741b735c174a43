"""The transactional ids of one metadata partition, at the broker that leads it.

    TransactionRouter ── PartitionTransactions ── TransactionStore: the partition's log and state
                                  │
                                  └── tells the coordinators of partitions and groups how it ended

It is a worker of the metadata partition's leader. What is asked is decided and durable in one
append to the log (metadata/rules/transactions); where everything that takes part lives in this log,
that append ends a transaction. Otherwise it holds the decision, and then:

    decided ── tell each other coordinator, until it has answered ── completed

Invariants:

- A decision is told from the log only, so all are told the same, however often and by whomever.
- What is decided is told until everybody has answered, whoever decided it: a producer's request, a
  timeout, another broker. A new leader goes on where the last one was. A coordinator that does not
  answer holds up its own transactions alone.
- A producer is answered when its transaction is completed, or ANSWERED_AFTER_S after the decision,
  which cannot change any more; the next transaction may have to wait for the rest.

Failure cases: an append that fails is the error of its request; its producer repeats it. One that
fails while somebody is told is tried again, with back-off, until this broker leads no more.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from diskless.transactions.errors import (
    NotTransactionCoordinator,
    as_transaction_error,
)
from diskless.transactions.settings import TransactionSettings
from diskless.transactions.transaction_ends import Tell, parts_of
from metadata.transaction_operations import (
    AbortTransaction,
    AddToTransaction,
    EndedTransaction,
    EndParts,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    JoinedTransaction,
    Transaction,
    TransactionState,
)
from wal import errors
from wal.clock import Clock, Sleep

ANSWERED_AFTER_S: Final = 0.25
ABORTED_AT_ONCE: Final = 100
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0
_LOOKED_AT_ONCE: Final = 5_000
"""Before others have a turn."""

log = structlog.get_logger(__name__)


class TransactionCounts(NamedTuple):
    """The transactions of a coordinator when it looked at all of them the last time."""

    ids: int = 0
    ongoing: int = 0
    oldest_began_ms: int | None = None


class TransactionStore(Protocol):
    """`metadata.coordinator.transactions.Transactions`: decides, and writes down."""

    @property
    def ended(self) -> Counter[str]:
        """Decisions of its term by outcome."""
        ...

    async def init_producer(self, asked: InitProducer) -> InitializedProducer: ...

    async def add_to_transaction(self, asked: AddToTransaction) -> JoinedTransaction: ...

    async def end_transaction(self, asked: EndTransaction) -> EndedTransaction: ...

    async def abort_transaction(self, asked: AbortTransaction) -> EndedTransaction: ...

    async def abort_timed_out(self, limit: int) -> Sequence[Transaction]: ...

    async def complete(self, transactional_id: str, number: int) -> None: ...

    async def expire_ids(self) -> int: ...

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """`listener` hears the transactional id of what is decided and not completed."""
        ...

    def transaction(self, transactional_id: str) -> Transaction | None: ...

    def transactions(self) -> Sequence[Transaction]: ...


class PartitionTransactions:
    """All transactional ids of the metadata partition that `store` belongs to; run `run` while it
    is led.
    """

    def __init__(
        self,
        store: TransactionStore,
        tell: Tell,
        *,
        leader_epoch: Callable[[], int],
        settings: TransactionSettings,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`leader_epoch` is this leader's, which markers show."""
        self._store = store
        self._tell = tell
        self._leader_epoch = leader_epoch
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._tasks: asyncio.TaskGroup | None = None
        self._telling: dict[str, asyncio.Task[None]] = {}
        self.counts = TransactionCounts()

    # -- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Go on with what is decided, and look for what is open too long, until cancelled."""
        settings = self._settings
        next_expiry = self._clock.monotonic() + settings.expire_interval_ms / 1000
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._store.subscribe(self._look)
                while True:
                    await self._look_at_all()
                    await self._sleep(settings.abort_interval_ms / 1000)
                    await self._retried("abort", self._abort_timed_out())
                    if self._clock.monotonic() >= next_expiry:
                        next_expiry = self._clock.monotonic() + settings.expire_interval_ms / 1000
                        await self._retried("expire", self._store.expire_ids())
        finally:
            self.close()

    @property
    def ended(self) -> Counter[str]:
        """By outcome, what was decided while this broker leads; whichever way it was asked for."""
        return self._store.ended

    def close(self) -> None:
        """Serve no more. `run` does it at its end."""
        self._tasks = None

    @property
    def serves(self) -> bool:
        """Whether this broker leads here."""
        return self._tasks is not None

    def refusal(self) -> errors.DisklessError | None:
        """Why nothing can be asked about now."""
        if self._tasks is None:
            return NotTransactionCoordinator("another broker coordinates the transactional id")
        return None

    async def _look_at_all(self) -> None:
        """Count them, and go on with those that are decided."""
        ongoing = number = 0
        oldest_ms: int | None = None
        for number, transaction in enumerate(self._store.transactions(), 1):
            if transaction.state == TransactionState.ONGOING:
                ongoing += 1
                began_ms = transaction.began_ms
                oldest_ms = began_ms if oldest_ms is None else min(oldest_ms, began_ms)
            elif transaction.is_open:
                self._see_to_the_end(transaction)
            if number % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self.counts = TransactionCounts(number, ongoing, oldest_ms)

    @property
    def ending(self) -> int:
        """Transactions that are decided, and of which not everybody has heard."""
        return len(self._telling)

    async def _retried(self, what: str, action: Awaitable[object]) -> None:
        try:
            await action
        except (errors.Retriable, errors.OutcomeUnknown, errors.Rejected) as error:
            log.warning("transactions are looked at later", what=what, error=str(error))

    async def _abort_timed_out(self) -> None:
        while aborted := await self._store.abort_timed_out(ABORTED_AT_ONCE):
            for transaction in aborted:
                log.info(
                    "transaction timed out",
                    transactional_id=transaction.transactional_id,
                    number=transaction.number,
                )
                self._look(transaction.transactional_id)
            if len(aborted) < ABORTED_AT_ONCE:
                return

    # -- producers ------------------------------------------------------------------------------

    async def init_producer(self, asked: InitProducer) -> InitializedProducer:
        """See `TransactionRouter`; so for all that follow."""
        try:
            answer = await self._store.init_producer(asked)
        except errors.DisklessError as error:
            return InitializedProducer(error=as_transaction_error(error))
        if isinstance(answer.error, errors.ConcurrentTransactions):
            # Perhaps it has just been decided, by this very request.
            self._look(asked.transactional_id)
        return answer

    async def add(self, asked: AddToTransaction) -> errors.DisklessError | None:
        try:
            return (await self._store.add_to_transaction(asked)).error
        except errors.DisklessError as error:
            return as_transaction_error(error)

    async def end(self, asked: EndTransaction) -> EndedTransaction:
        return await self._ended(asked.transactional_id, self._store.end_transaction(asked))

    async def abort(self, asked: AbortTransaction) -> errors.DisklessError | None:
        decision = self._store.abort_transaction(asked)
        return (await self._ended(asked.transactional_id, decision)).error

    async def _ended(
        self, transactional_id: str, decision: Awaitable[EndedTransaction]
    ) -> EndedTransaction:
        try:
            ended = await decision
        except errors.DisklessError as error:
            return EndedTransaction(error=as_transaction_error(error))
        if ended.error is None and not ended.is_completed:
            self._look(transactional_id)
            telling = self._telling.get(transactional_id)
            if telling is not None:
                await asyncio.wait([telling], timeout=ANSWERED_AFTER_S)
        return ended

    # -- administration -------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction | errors.DisklessError:
        found = self._store.transaction(transactional_id)
        if found is None:
            return errors.TransactionalIdNotFound("no producer has this transactional id")
        return found

    def list(self) -> Sequence[Transaction]:
        return self._store.transactions()

    # -- the end --------------------------------------------------------------------------------

    def _look(self, transactional_id: str) -> None:
        transaction = self._store.transaction(transactional_id)
        if transaction is not None:
            self._see_to_the_end(transaction)

    def _see_to_the_end(self, transaction: Transaction) -> None:
        """Tell how it ends, if it is decided, in a task.

        There is one for a transactional id: its next transaction waits for this one.
        """
        if self._tasks is None or not TransactionState(transaction.state).is_decided:
            return
        name = transaction.transactional_id
        if name not in self._telling:
            telling = self._tasks.create_task(self._bring_to_an_end(transaction))
            self._telling[name] = telling
            telling.add_done_callback(lambda _: self._telling.pop(name, None))

    async def _bring_to_an_end(self, transaction: Transaction) -> None:
        """Returns when it is completed, or when this broker leads no more."""
        async with asyncio.TaskGroup() as tasks:
            for coordinator, part in parts_of(transaction, self._leader_epoch()):
                tasks.create_task(self._until_heard(coordinator, part))
        await self._until_completed(transaction)

    async def _until_heard(self, coordinator: int, part: EndParts) -> None:
        pause_s = _RETRY_S
        while (error := await self._tell(coordinator, part)) is not None:
            if pause_s == _RETRY_S:
                log.warning(
                    "the end of a transaction was not heard, telling it again and again",
                    coordinator=coordinator,
                    producer_id=part.producer_id,
                    number=part.number,
                    error=str(error),
                )
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MAX_S)

    async def _until_completed(self, transaction: Transaction) -> None:
        while True:
            try:
                await self._store.complete(transaction.transactional_id, transaction.number)
                return
            except (errors.NotCoordinator, errors.Rejected):
                # Refused: it is completed, by a call whose answer was lost.
                return
            except (errors.Retriable, errors.OutcomeUnknown) as error:
                log.warning("the end of a transaction was not noted", error=str(error))
            await self._sleep(_RETRY_S)
