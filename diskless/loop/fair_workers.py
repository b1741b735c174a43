"""Runs what clients cause and what takes long, a few jobs at a time, clients in turn.

A client that asks for a thousand things waits for a thousand turns; another one that asks for one
thing waits for one. Within a client the order is that of asking. How many jobs wait is bounded by
the requests that wait for them, whose memory is counted elsewhere.

Used on the event loop. Jobs are coroutines, which go into threads where they need to.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self, TypeVar

_Result = TypeVar("_Result")


class _Job(NamedTuple):
    begin: Callable[[], Awaitable[Any]]
    result: "asyncio.Future[Any]"


class FairWorkers:
    """At most `limit` jobs at a time; an async context manager.

    Leaving it cancels the jobs that run and those that wait, and returns when they have ended.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._waiting: OrderedDict[int, deque[_Job]] = OrderedDict()
        self._count = asyncio.Semaphore(0)
        """Of the jobs that wait."""
        self._workers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._workers = [
            asyncio.create_task(self._work(), name=f"{self._name}-{number}")
            for number in range(self._limit)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.wait(self._workers)
        while self._waiting:
            self._next().result.cancel()

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return sum(map(len, self._waiting.values()))

    def submit(
        self, client: int, begin: Callable[[], Awaitable[_Result]]
    ) -> "asyncio.Future[_Result]":
        """Returns what `begin()` gives in the turn of `client`; cancelled before, it never begins.

        Cancelling the future of a job that runs gives up its result, not the job.
        """
        result: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        if not self._workers:
            raise RuntimeError(f"{self._name}: not entered")
        self._waiting.setdefault(client, deque()).append(_Job(begin, result))
        self._count.release()
        return result

    def _next(self) -> _Job:
        client, jobs = self._waiting.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._waiting[client] = jobs  # behind the others
        return job

    async def _work(self) -> None:
        while True:
            await self._count.acquire()
            begin, result = self._next()
            if result.cancelled():
                continue
            try:
                value = await begin()
            except asyncio.CancelledError:
                result.cancel()
                raise
            except Exception as error:
                if not result.cancelled():
                    result.set_exception(error)
            else:
                if not result.cancelled():
                    result.set_result(value)
