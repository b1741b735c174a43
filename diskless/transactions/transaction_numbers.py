"""Asks coordinators which transaction a batch or an offset belongs to, and whether it may.

Whatever is written in a transaction carries the transaction's number, and the coordinator of the
transactional id is asked for it each time. A number cannot be kept: the next transaction has
another one, under the same producer id and epoch. Questions share calls (`call_lanes`).

For the produce path and the coordinators of groups.

Failure cases: a coordinator that cannot be asked is the error of each question.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self

from diskless.transactions.call_lanes import CallLanes
from metadata.transaction_operations import JoinedTransaction, JoinTransaction
from wal.errors import DisklessError

_PARTITION_BYTES: Final = 20

Ask = Callable[[int, Sequence[JoinTransaction]], Awaitable[Sequence[JoinedTransaction]]]
"""Asks the leader of one metadata partition."""

Answer = asyncio.Future[JoinedTransaction]


class TransactionNumbers:
    """An async context manager; leaving it answers what is left with an error."""

    def __init__(self, ask: Ask, placed: Callable[[str], int]) -> None:
        """`placed`: the metadata partition of a transactional id."""
        self._placed = placed
        self._lanes = CallLanes(ask, failed=_refused, size=_size_of, name="transaction-numbers")

    async def __aenter__(self) -> Self:
        await self._lanes.__aenter__()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._lanes.__aexit__(error_type, error, traceback)

    def ask(self, asked: JoinTransaction) -> Answer:
        """The answer is never cancelled and never fails: an error is in it."""
        return self._lanes.ask(self._placed(asked.transactional_id), asked)


def _refused(error: DisklessError) -> JoinedTransaction:
    return JoinedTransaction(error=error)


def _size_of(asked: JoinTransaction) -> int:
    named = len(asked.transactional_id) + sum(map(len, asked.groups))
    return named + _PARTITION_BYTES * (1 + len(asked.partitions))
