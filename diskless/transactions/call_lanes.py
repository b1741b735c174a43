"""Calls of coordinators, one at a time to each: questions that come meanwhile go together.

    ask ─▶ waiting questions of the coordinator ─▶ one call ─▶ answers

So many questions share a request and, where something is written, an append. A coordinator that
does not answer holds up only its own questions. Questions to one coordinator are answered in
any order.

Invariants: an answer never fails, an error is in it; nobody cancels it but who asked.

Failure cases: a call that fails is the error of each of its questions. Leaving the context answers
what is left with an error.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, Self, TypeVar

from wal.errors import DisklessError, StorageFailed

ASKED_AT_ONCE: Final = 1_000
"""Questions in one call."""
BYTES_AT_ONCE: Final = 1 << 20
"""About what the questions of one call take on the wire, if there are several."""

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class _Waiting(NamedTuple, Generic[Question, Answer]):
    question: Question
    answer: "asyncio.Future[Answer]"


class CallLanes(Generic[Question, Answer]):
    """An async context manager."""

    def __init__(
        self,
        call: Callable[[int, Sequence[Question]], Awaitable[Sequence[Answer]]],
        *,
        failed: Callable[[DisklessError], Answer],
        size: Callable[[Question], int],
        name: str,
    ) -> None:
        """`call` asks one coordinator; `size` is about how many bytes a question takes."""
        self._call = call
        self._failed = failed
        self._size = size
        self._name = name
        self._waiting: dict[int, deque[_Waiting[Question, Answer]]] = {}
        self._calling: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        calling = [*self._calling.values()]
        for task in calling:
            task.cancel()
        if calling:
            await asyncio.wait(calling)

    @property
    def waiting(self) -> int:
        """Questions that are not in a call yet."""
        return sum(map(len, self._waiting.values()))

    def ask(self, coordinator: int, question: Question) -> "asyncio.Future[Answer]":
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            answer.set_result(self._failed(StorageFailed("the broker is stopping")))
            return answer
        self._waiting.setdefault(coordinator, deque()).append(_Waiting(question, answer))
        if coordinator not in self._calling:
            self._calling[coordinator] = asyncio.create_task(
                self._ask_all(coordinator), name=f"{self._name}-{coordinator}"
            )
        return answer

    async def _ask_all(self, coordinator: int) -> None:
        """Ask until there is nothing more to ask."""
        some: Sequence[_Waiting[Question, Answer]] = ()
        try:
            while waiting := self._waiting.get(coordinator):
                some = self._next_of(waiting)
                try:
                    answers = await self._call(coordinator, [one.question for one in some])
                except DisklessError as error:
                    answers = [self._failed(error)] * len(some)
                for one, answer in zip(some, answers, strict=True):
                    _tell(one, answer)
                some = ()
        finally:
            del self._calling[coordinator]
            stopped = self._failed(StorageFailed("the broker is stopping"))
            for one in (*some, *self._waiting.pop(coordinator, ())):
                _tell(one, stopped)

    def _next_of(
        self, waiting: deque[_Waiting[Question, Answer]]
    ) -> Sequence[_Waiting[Question, Answer]]:
        some = [waiting.popleft()]
        size = self._size(some[0].question)
        while waiting and len(some) < ASKED_AT_ONCE:
            size += self._size(waiting[0].question)
            if size > BYTES_AT_ONCE:
                break
            some.append(waiting.popleft())
        return some


def _tell(one: _Waiting[Question, Answer], answer: Answer) -> None:
    """Unless whoever asked does not wait any more."""
    if not one.answer.done():
        one.answer.set_result(answer)
