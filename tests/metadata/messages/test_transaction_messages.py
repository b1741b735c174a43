"""Lists of transactions over several coordinators, and the errors of single entries."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from metadata.messages.shapes import Addressed
from metadata.messages.transactions import (
    END_TRANSACTION,
    JOIN_TRANSACTIONS,
    LIST_TRANSACTIONS_HERE,
)
from metadata.transaction_operations import (
    EndedTransaction,
    EndTransaction,
    JoinedTransaction,
    JoinTransaction,
    ListedTransactions,
    ListTransactions,
    Transaction,
    TransactionState,
    page_of,
)
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, NotCoordinator

A = Transaction(1, "a", 10, 0, state=TransactionState.ONGOING, groups={"g": 1})
B = Transaction(2, "b", 11, 0, state=TransactionState.EMPTY)
C = Transaction(3, "c", 12, 0, state=TransactionState.ONGOING)


def names(listed: ListedTransactions) -> list[str]:
    return [transaction.transactional_id for transaction in listed.transactions]


def test_the_lists_of_coordinators_are_one_in_the_order_of_names() -> None:
    asked = ListTransactions(limit=2)
    answers = [[page_of([C, A], asked)], [page_of([B], asked)]]
    assert LIST_TRANSACTIONS_HERE.merged is not None
    (first,) = LIST_TRANSACTIONS_HERE.merged(asked, answers)
    assert isinstance(first, ListedTransactions)
    assert names(first) == ["a", "b"]
    assert first.transactions[0].groups == {}
    assert names(page_of([C, A, B], ListTransactions(after="b"))) == ["c"]
    of_state = ListTransactions(states=[TransactionState.ONGOING])
    assert names(page_of([A, B, C], of_state)) == ["a", "c"]
    assert page_of([A, B], ListTransactions(transactional_ids=["a", "x"])).transactions == (A,)


class Deciding:
    """Ends what it is told to, in the order of names; `failures` are raised for others."""

    def __init__(self, **failures: Exception) -> None:
        self.failures = failures
        self.transactions = self
        self.lease = SimpleNamespace(confirm=self.confirm)

    async def end_transaction(self, asked: EndTransaction) -> EndedTransaction:
        if asked.transactional_id in self.failures:
            raise self.failures[asked.transactional_id]
        return EndedTransaction(7, is_completed=True)

    def join(self, asked: JoinTransaction) -> JoinedTransaction:
        return JoinedTransaction(7)

    async def confirm(self) -> None:
        raise NotCoordinator("another one leads")


def ending(*names: str) -> Addressed[EndTransaction]:
    return Addressed(0, [EndTransaction(name, 1, 1, True) for name in names])


async def at(operation: Any, coordinator: Deciding, asked: Any) -> Any:
    return await operation.at(coordinator, asked)


async def test_an_append_that_fails_is_the_error_of_its_entry() -> None:
    first, second = await at(END_TRANSACTION, Deciding(b=CommitFailed("full")), ending("a", "b"))
    assert first == EndedTransaction(7, is_completed=True)
    assert isinstance(second.error, CommitFailed)


async def test_a_call_that_nobody_leads_for_is_asked_elsewhere() -> None:
    deposed = Deciding(a=NotCoordinator("moved"), b=NotCoordinator("moved"))
    with pytest.raises(NotCoordinator):
        await at(END_TRANSACTION, deposed, ending("a", "b"))
    assert (await at(END_TRANSACTION, deposed, ending("a", "c")))[1].number == 7


async def test_who_leads_no_more_tells_no_numbers() -> None:
    asked = Addressed(0, [JoinTransaction("a", 1, 1, [TopicIdPartition(UUID(int=1), 0)])])
    with pytest.raises(NotCoordinator):
        await at(JOIN_TRANSACTIONS, Deciding(), asked)
