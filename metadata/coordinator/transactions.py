"""What a coordinator does for transactions: of transactional ids, partitions and groups.

metadata/rules/transactions decides. What was answered is durable and applied. Who has to be told of
a decision that others have a part in is told by a worker beside the leader
(diskless/transactions/transaction_coordinator.py); `subscribe` says when there is one.

A transaction is open for too long when its timeout has passed since it began: by the time of the
log, as far as that can be believed (wal/steady_clock.py), or by the monotonic clock of this leader,
whichever comes first. So a wall clock that jumps ahead aborts nothing, one that stands still holds
nothing open, and a new leader goes on with the time that has passed. One that was open when this
leader's term began gets NEW_LEADER_GRACE_S at least: its producer may have found nobody to end it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from metadata.coordinator.pipeline import Pipeline
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.groups import CommittedOffset
from metadata.records.transactions import (
    ClosedTransactionsExpiredRecord,
    TransactionDecidedRecord,
)
from metadata.replica.replica import Replica
from metadata.rules.commit import Decision
from metadata.rules.groups import offsets_in_steps
from metadata.rules.transactions.ending import decide_abort, decide_complete, decide_end
from metadata.rules.transactions.growing import decide_add, joined
from metadata.rules.transactions.parts import (
    closed_of_group,
    closed_of_parts,
    closed_retention_ms,
    decide_end_parts,
    decide_keep_offsets,
)
from metadata.rules.transactions.producers import decide_expire_ids, decide_init_producer
from metadata.state.queries.transaction_queries import has_expired_closed
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import (
    LISTED_AT_ONCE,
    AbortTransaction,
    AddToTransaction,
    EndedTransaction,
    EndParts,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    JoinedTransaction,
    JoinTransaction,
    ListedTransactions,
    ListTransactions,
    Transaction,
    TransactionState,
    page_of,
    wanted_of,
)
from wal.errors import DisklessError, InvalidTransactionState
from wal.failpoint import failpoint
from wal.steady_clock import SteadyClock

NEW_LEADER_GRACE_S: Final = 10.0
_LOOKED_AT_ONCE: Final = 500
"""Transactional ids, before others have a turn."""
_EXPIRED_AT_ONCE: Final = 1_000
_EXPIRED_BYTES: Final = 1 << 20
"""Of transactional ids, in one record."""
_NAME: Final = attrgetter("transactional_id")

Listener = Callable[[str], None]
_Answer = TypeVar("_Answer")


class Transactions:
    """The transactions of one coordinator, for one term. Every call may raise as appends do:
    CommitFailed, CommitOutcomeUnknown, NotCoordinator, AppendTooLarge.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        replica: Replica,
        *,
        clock: SteadyClock,
        settings: CoordinatorSettings,
    ) -> None:
        self._perform = pipeline.perform
        self._replica = replica
        self._clock = clock
        self._settings = settings
        self._listeners: list[Listener] = []
        self.ended: Final[Counter[str]] = Counter()
        """Decisions of this term by outcome (committed, aborted, timed_out), whoever asked."""
        self._began_s = clock.monotonic()
        self._began_ms = max(clock.now_ms(), replica.image.timestamp_ms)
        """By the log's clock: what began before was open when the term began."""
        self._seen: dict[str, tuple[int, float]] = {}
        """Number and monotonic time of what was open when it was looked at first."""

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with the id of a transaction that is decided, and not completed."""
        self._listeners.append(listener)

    @property
    def _coordinator_epoch(self) -> int:
        leader = self._replica.leader
        return 0 if leader is None else leader.leader_epoch

    # -- transactional ids ----------------------------------------------------------------------

    async def init_producer(self, asked: InitProducer) -> InitializedProducer:
        """A producer of the id, which fences the last one; ConcurrentTransactions: ask again."""
        answer = await self._counted(
            "aborted",
            asked.transactional_id,
            lambda view, now_ms: decide_init_producer(
                view, asked, now_ms=now_ms, coordinator_epoch=self._coordinator_epoch
            ),
        )
        if answer.error is not None:
            self._tell_decided(asked.transactional_id)
        return answer

    async def add_to_transaction(self, asked: AddToTransaction) -> JoinedTransaction:
        """All of it, or nothing; the first addition begins the transaction."""
        return await self._perform(
            lambda view, now_ms: decide_add(view, asked, now_ms=now_ms),
            row_count=len(asked.partitions) + len(asked.groups),
        )

    def join(self, asked: JoinTransaction) -> JoinedTransaction:
        """From memory; whoever asks for a strict answer asks the log afterwards."""
        return joined(self.transaction(asked.transactional_id), asked)

    async def end_transaction(self, asked: EndTransaction) -> EndedTransaction:
        """The decision is durable, and completed where everything lives here."""
        ended = await self._counted(
            "committed" if asked.is_commit else "aborted",
            asked.transactional_id,
            lambda view, now_ms: decide_end(
                view, asked, now_ms=now_ms, coordinator_epoch=self._coordinator_epoch
            ),
        )
        return self._decided(asked.transactional_id, ended)

    async def abort_transaction(self, asked: AbortTransaction) -> EndedTransaction:
        """The same without the producer, which is fenced."""
        return await self._abort(asked, "aborted")

    async def _abort(self, asked: AbortTransaction, outcome: str) -> EndedTransaction:
        ended = await self._counted(
            outcome,
            asked.transactional_id,
            lambda view, now_ms: decide_abort(
                view, asked, now_ms=now_ms, coordinator_epoch=self._coordinator_epoch
            ),
        )
        return self._decided(asked.transactional_id, ended)

    async def _counted(
        self,
        outcome: str,
        transactional_id: str,
        decide: Callable[[SpeculativeView, int], Decision[_Answer]],
    ) -> _Answer:
        """Perform it; what it decides about a transaction has this outcome."""
        decision: Decision[Any] = Decision((), None)

        def noted(view: SpeculativeView, now_ms: int) -> Decision[_Answer]:
            nonlocal decision
            decision = decided = decide(view, now_ms)
            return decided

        answer = await self._perform(noted, row_count=self._part_count(transactional_id))
        self.ended[outcome] += sum(
            isinstance(record, TransactionDecidedRecord) for record in decision.records
        )
        return answer

    def _part_count(self, transactional_id: str) -> int:
        known = self.transaction(transactional_id)
        return 0 if known is None else len(known.partitions) + len(known.groups)

    def _decided(self, transactional_id: str, ended: EndedTransaction) -> EndedTransaction:
        if ended.error is None and not ended.is_completed:
            self._tell_decided(transactional_id)
        return ended

    def _tell_decided(self, transactional_id: str) -> None:
        known = self.transaction(transactional_id)
        if known is not None and TransactionState(known.state).is_decided:
            failpoint("txn.after_decision")
            for listener in self._listeners:
                listener(transactional_id)

    async def complete(self, transactional_id: str, number: int) -> None:
        """Everybody has heard how the transaction ended."""
        await self._perform(
            lambda view, now_ms: decide_complete(view, transactional_id, number, now_ms=now_ms),
            row_count=self._part_count(transactional_id),
        )

    async def abort_timed_out(self, limit: int) -> Sequence[Transaction]:
        """Abort up to `limit` of those that are open for too long; returns them as they are then.

        The others fail or go on by themselves when one raises.
        """
        due = (await self._timed_out())[:limit]
        ended = await asyncio.gather(
            *(self._abort(AbortTransaction(*transaction), "timed_out") for transaction in due)
        )
        aborted = [
            self.transaction(name)
            for (name, _), answer in zip(due, ended, strict=True)
            if answer.error is None
        ]
        return [transaction for transaction in aborted if transaction is not None]

    async def _timed_out(self) -> Sequence[tuple[str, int]]:
        """(transactional id, number), the longest open first. Others have their turn meanwhile."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        is_new_leader = now_s - self._began_s < NEW_LEADER_GRACE_S
        seen: dict[str, tuple[int, float]] = {}
        found = []
        for count, transaction in enumerate(self.transactions(), 1):
            if count % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if transaction.state != TransactionState.ONGOING:
                continue
            name, number = transaction.transactional_id, transaction.number
            known = self._seen.get(name)
            seen[name] = known if known is not None and known[0] == number else (number, now_s)
            if is_new_leader and transaction.began_ms <= self._began_ms:
                continue
            open_ms = max(now_ms - transaction.began_ms, (now_s - seen[name][1]) * 1000)
            if open_ms >= transaction.timeout_ms:
                found.append((transaction.began_ms, name, number))
        self._seen = seen
        return [(name, number) for _, name, number in sorted(found)]

    async def expire_ids(self) -> int:
        """Forget the ids that nobody used for too long; returns how many they were.

        Others have their turn meanwhile.
        """
        before_ms = self._clock.now_ms() - self._settings.transactional_id_expiration_ms
        found, size, expired = list[str](), 0, 0
        for count, transaction in enumerate(self.transactions(), 1):
            if transaction.changed_ms < before_ms and not transaction.is_open:
                found.append(transaction.transactional_id)
                size += len(transaction.transactional_id)
            if len(found) == _EXPIRED_AT_ONCE or size > _EXPIRED_BYTES:
                expired += await self._expire_ids(found, before_ms)
                found, size = [], 0
            elif count % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return expired + (await self._expire_ids(found, before_ms) if found else 0)

    async def _expire_ids(self, names: Sequence[str], before_ms: int) -> int:
        return await self._perform(
            lambda view, _: decide_expire_ids(view, names, before_ms=before_ms),
            row_count=len(names),
        )

    def transaction(self, transactional_id: str) -> Transaction | None:
        """Its last transaction, with its producer; None: the id is not known."""
        return self._replica.image.transactions.ids.get(transactional_id)

    def transactions(self) -> Sequence[Transaction]:
        """All of them."""
        return [*self._replica.image.transactions.ids.values()]

    async def listed(self, asked: ListTransactions) -> ListedTransactions:
        """A page of them, in the order of their ids. Others have their turn meanwhile."""
        known, found = self.transactions(), list[Transaction]()
        for start in range(0, len(known), _LOOKED_AT_ONCE):
            found += wanted_of(known[start : start + _LOOKED_AT_ONCE], asked)
            found.sort(key=_NAME)
            del found[LISTED_AT_ONCE:]
            await asyncio.sleep(0)
        return page_of(found, asked)

    # -- partitions and groups ------------------------------------------------------------------

    async def end_parts(self, asked: Sequence[EndParts]) -> Sequence[DisklessError | None]:
        """End transactions in partitions and groups of this coordinator; what has ended stays so.

        An entry is None or InvalidTransactionState.
        """
        answers = await asyncio.gather(*map(self._end_parts, asked))
        failpoint("txn.after_end")
        return answers

    async def _end_parts(self, parts: EndParts) -> InvalidTransactionState | None:
        try:
            await self._perform(
                lambda view, now_ms: decide_end_parts(view, parts, now_ms=now_ms),
                closed=lambda view: closed_of_parts(view, parts),
                row_count=len(parts.partitions) + len(parts.groups),
            )
        except InvalidTransactionState as error:
            return error
        return None

    async def expire_closed(self, limit: int) -> bool:
        """Forget up to `limit` numbers that nothing can come late for any more; False: there are
        none.
        """
        before_ms = self._clock.now_ms() - closed_retention_ms(self._settings)
        if not await self._replica.state.read(partial(has_expired_closed, before_ms=before_ms)):
            return False
        record = ClosedTransactionsExpiredRecord(before_ms=before_ms, limit=limit)
        await self._perform(lambda view, _: Decision((record,), None))
        return True

    async def commit_offsets(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        number: int,
        offsets: Sequence[CommittedOffset],
    ) -> None:
        """Keep offsets that the group commits if the transaction is committed.

        Raises: InvalidTransactionState, StaleProducerEpoch (it has ended), and as the group's own
        `commit_offsets`.
        """
        for some in offsets_in_steps(group_id, offsets):
            await self._perform(
                partial(
                    decide_keep_offsets,
                    group_id=group_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    number=number,
                    offsets=some,
                ),
                closed=lambda _: closed_of_group(group_id, producer_id),
                row_count=len(some),
            )
        failpoint("txn.after_offsets")
