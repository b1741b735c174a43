"""Asks coordinators which transaction a batch or an offset belongs to, and whether it may.

Whatever is written in a transaction carries the transaction's number, and the coordinator of the
transactional id is asked for it each time. A number cannot be kept: the next transaction has
another one, under the same producer id and epoch. A coordinator gets one call at a time; questions
that come meanwhile go together in the next call.

For the produce path and the coordinators of groups, of which neither calls it yet.
Questions of one caller are answered in any order.

Failure cases: a coordinator that cannot be asked is the error of each question.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from metadata.rules.groups import group_coordinator
from metadata.transaction_operations import JoinedTransaction, JoinTransaction
from wal.errors import DisklessError, StorageFailed

ASKED_AT_ONCE: Final = 1_000
"""Questions in one call."""

Ask = Callable[[int, Sequence[JoinTransaction]], Awaitable[Sequence[JoinedTransaction]]]
"""Asks the leader of one metadata partition."""

Answer = asyncio.Future[JoinedTransaction]


class _Question(NamedTuple):
    asked: JoinTransaction
    answer: Answer


class TransactionNumbers:
    """An async context manager; leaving it answers what is left with an error."""

    def __init__(self, ask: Ask, coordinators: int) -> None:
        """`coordinators`: how many metadata partitions there are."""
        self._ask = ask
        self._coordinators = coordinators
        self._waiting: dict[int, list[_Question]] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closed = True
        asking = [*self._asking.values()]
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    def ask(self, asked: JoinTransaction) -> Answer:
        """The answer is never cancelled and never fails: an error is in it."""
        answer: Answer = asyncio.get_running_loop().create_future()
        if self._is_closed:
            answer.set_result(JoinedTransaction(error=StorageFailed("the broker is stopping")))
            return answer
        coordinator = group_coordinator(asked.transactional_id, self._coordinators)
        self._waiting.setdefault(coordinator, []).append(_Question(asked, answer))
        if coordinator not in self._asking:
            task = asyncio.create_task(
                self._ask_all(coordinator), name=f"transaction-numbers-{coordinator}"
            )
            self._asking[coordinator] = task
        return answer

    async def _ask_all(self, coordinator: int) -> None:
        """Ask until there is nothing more to ask."""
        some: Sequence[_Question] = ()
        try:
            while waiting := self._waiting.get(coordinator):
                some, self._waiting[coordinator] = waiting[:ASKED_AT_ONCE], waiting[ASKED_AT_ONCE:]
                try:
                    answers = await self._ask(coordinator, [question.asked for question in some])
                except DisklessError as error:
                    answers = [JoinedTransaction(error=error)] * len(some)
                for question, answer in zip(some, answers, strict=True):
                    question.answer.set_result(answer)
                some = ()
        finally:
            del self._asking[coordinator]
            stopped = JoinedTransaction(error=StorageFailed("the broker is stopping"))
            for question in (*some, *self._waiting.pop(coordinator, ())):
                if not question.answer.done():
                    question.answer.set_result(stopped)
