"""Decisions about one transactional id, in memory: what a coordinator of them is tested with.

tests/diskless/transactions/test_transaction_store.py asks it and the real store the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from metadata.transaction_operations import (
    AbortTransaction,
    AddToTransaction,
    EndedTransaction,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    JoinedTransaction,
    Transaction,
    TransactionState,
)
from wal.errors import ConcurrentTransactions, DisklessError

NAME: Final = "pay"


@dataclass
class MemoryStore:
    """One transactional id; the rules are not what is tested here."""

    known: Transaction | None = None
    failures: list[DisklessError] = field(default_factory=list)
    """Raised by the next calls that write, in turn."""
    inits: list[InitProducer] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    timed_out: list[Transaction] = field(default_factory=list)
    idle: int = 0
    """Ids that nobody has used for long."""
    decided: Callable[[str], None] = print
    """Hears what is decided."""

    def subscribe(self, listener: Callable[[str], None]) -> None:
        self.decided = listener

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    async def init_producer(self, asked: InitProducer) -> InitializedProducer:
        self._fail()
        self.inits.append(asked)
        if self.known is not None and self.known.is_open:
            self.known = self.known._replace(state=TransactionState.PREPARE_ABORT)
            self.decided(asked.transactional_id)
            return InitializedProducer(error=ConcurrentTransactions("being aborted"))
        known = self.known or Transaction(1, asked.transactional_id, -1, -1)
        self.known = known._replace(
            producer_id=asked.fresh_producer_id, producer_epoch=0, state=TransactionState.EMPTY
        )
        return InitializedProducer(asked.fresh_producer_id, 0)

    async def add_to_transaction(self, asked: AddToTransaction) -> JoinedTransaction:
        self._fail()
        known = self.known or Transaction(1, NAME, asked.producer_id, asked.producer_epoch)
        self.known = known._replace(
            number=known.number if known.is_open else known.number + 1,
            state=TransactionState.ONGOING,
            partitions={**known.partitions, **dict(asked.partitions)},
            groups={**known.groups, **dict(asked.groups)},
        )
        return JoinedTransaction(self.known.number)

    async def end_transaction(self, asked: EndTransaction) -> EndedTransaction:
        return self._decide(asked.is_commit)

    async def abort_transaction(self, asked: AbortTransaction) -> EndedTransaction:
        return self._decide(False)

    def _decide(self, is_commit: bool) -> EndedTransaction:
        self._fail()
        assert self.known is not None
        decided = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
        self.known = self.known._replace(state=decided)
        self.decided(self.known.transactional_id)
        return EndedTransaction(self.known.number)

    async def abort_timed_out(self, limit: int) -> Sequence[Transaction]:
        self._fail()
        aborted, self.timed_out = self.timed_out, []
        if aborted:
            self._decide(False)
        return aborted

    async def complete(self, transactional_id: str, number: int) -> None:
        self._fail()
        assert self.known is not None
        self.completed.append(number)
        is_commit = TransactionState(self.known.state).is_commit
        done = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        self.known = self.known._replace(state=done, partitions={}, groups={})

    async def expire_ids(self, limit: int) -> int:
        expired = min(self.idle, limit)
        self.idle -= expired
        return expired

    def transaction(self, transactional_id: str) -> Transaction | None:
        known = self.known
        return known if known is not None and known.transactional_id == transactional_id else None

    def transactions(self) -> Sequence[Transaction]:
        return [] if self.known is None else [self.known]
