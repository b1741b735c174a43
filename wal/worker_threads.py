"""Runs the blocking work of one component in a few threads of its own.

`asyncio.to_thread` shares one pool among everybody: a directory whose fsync hangs would hold up
every other store, chunk and database. So each store owns a `WorkerThreads` with a named limit.

They take a third less processor time for a call than those of `concurrent.futures`, whose every
call makes a future with a lock of its own beside asyncio's; a WAL object takes several.

A thread cannot be cancelled. `run` lets a cancelled caller go at once, which is right for reads;
`run_to_end` keeps it until the thread is done, which is right when the thread reads buffers that
the caller will use again.

A `Job` is work that happens whatever becomes of those who wait for it. On its way back it takes two
turns of the event loop; a shielded future takes three.
"""

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

_Result = TypeVar("_Result")


class _Work:
    """A call on its way to a thread, and its outcome on the way back."""

    __slots__ = ("call", "error", "future", "loop", "result", "settle")

    def __init__(
        self,
        call: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
        settle: Callable[["_Work | Job[Any]"], None],
    ) -> None:
        self.call = call
        self.loop = loop
        self.settle = settle
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def is_unwanted(self) -> bool:
        return self.future.cancelled()

    def end(self) -> None:
        """A thread is done with it; on the event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Job(Generic[_Result]):
    """Work that `WorkerThreads.begin` has begun; belongs to the event loop."""

    __slots__ = ("_on_end", "_waiting", "call", "error", "has_ended", "loop", "result", "settle")

    is_unwanted: Final = False

    def __init__(
        self,
        call: Callable[[], _Result],
        loop: asyncio.AbstractEventLoop,
        settle: Callable[["_Work | Job[Any]"], None],
        on_end: Callable[[], None] | None,
    ) -> None:
        self.call = call
        self.loop = loop
        self.settle = settle
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = False
        self._on_end = on_end
        self._waiting: list[asyncio.Future[None]] = []

    async def ended(self) -> _Result:
        """What the work returns, or raises. A cancelled caller leaves it running."""
        if not self.has_ended:
            waiting: asyncio.Future[None] = self.loop.create_future()
            self._waiting.append(waiting)
            await waiting
        if self.error is not None:
            raise self.error
        result: _Result = self.result
        return result

    async def to_the_end(self) -> _Result:
        """The same, for a caller who was cancelled: a cancellation that arrives is dropped."""
        while not self.has_ended:
            with suppress(asyncio.CancelledError):
                await self.ended()
        return await self.ended()

    def end(self) -> None:
        """A thread is done with it; on the event loop."""
        self.has_ended = True
        if self._on_end is not None:
            self._on_end()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)


class RunInThread(Protocol):
    """Runs something that blocks or computes in a thread, a few at a time: `WorkerThreads.run`."""

    def __call__(self, work: Callable[[], _Result], /) -> Awaitable[_Result]: ...


_Queue = SimpleQueue[_Work | Job[Any] | None]


class WorkerThreads:
    """At most `limit` threads; further work waits in order. Closed by its owner.

    Used on one event loop. A thread is started when all others are busy.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._queue: Final[_Queue] = SimpleQueue()
        self._threads: Final[list[threading.Thread]] = []
        self._unfinished = 0
        """Calls that no thread is done with, whether or not somebody waits for them."""
        self._is_closed = False
        # Who forgets to close it leaves no threads behind.
        self._end = weakref.finalize(self, _end, self._queue, self._threads)

    def start(self, call: Callable[[], _Result]) -> "asyncio.Future[_Result]":
        """Have a thread call it; cancelling the future leaves it running, if it was begun."""
        work = _Work(call, asyncio.get_running_loop(), self._settle)
        self._put(work)
        return work.future

    def begin(
        self, call: Callable[[], _Result], *, on_end: Callable[[], None] | None = None
    ) -> Job[_Result]:
        """Have a thread call it, whoever waits for it.

        `on_end` is called in the event loop, before whoever waits goes on.
        """
        job: Job[_Result] = Job(call, asyncio.get_running_loop(), self._settle, on_end)
        self._put(job)
        return job

    def _put(self, work: _Work | Job[Any]) -> None:
        if self._is_closed:
            raise RuntimeError(f"work for the threads {self._name} after their end")
        self._unfinished += 1
        if self._unfinished > len(self._threads) and len(self._threads) < self._limit:
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=_serve, args=(self._queue,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._queue.put(work)

    def _settle(self, work: _Work | Job[Any]) -> None:
        """A thread is done with it; back on the event loop."""
        self._unfinished -= 1
        work.end()

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work()`; a cancelled caller leaves it running."""
        return await self.start(work)

    async def run_to_end(
        self, work: Callable[[], _Result], abandon: Callable[[], None] | None = None
    ) -> _Result:
        """The result of `work()`; a cancelled caller calls `abandon` and waits for the end of it.

        Whatever the abandoned work returns or raises is dropped in favour of the cancellation.
        """
        job = self.begin(work)
        try:
            return await job.ended()
        except asyncio.CancelledError:
            if abandon is not None:
                abandon()
            with suppress(BaseException):
                await job.to_the_end()
            raise

    def end(self) -> None:
        """Take no more; the threads end when they have done what was asked before."""
        self._is_closed = True
        self._end()

    def join(self) -> None:
        """Wait for the end of the threads; blocks, after `end`."""
        for thread in self._threads:
            thread.join()

    async def close(self) -> None:
        """Wait for what is running, and end the threads."""
        self.end()
        if self._threads:
            await asyncio.to_thread(self.join)


def _serve(queue: _Queue) -> None:
    """What each thread does."""
    while (work := queue.get()) is not None:
        if not work.is_unwanted:
            try:
                work.result = work.call()
            except BaseException as error:
                work.error = error
        try:
            work.loop.call_soon_threadsafe(work.settle, work)
        except RuntimeError:
            pass  # The loop is closed, and nobody waits any more.
        # Nothing is kept while there is nothing to do.
        del work


def _end(queue: _Queue, threads: list[threading.Thread]) -> None:
    for _ in threads:
        queue.put(None)


async def wait_ended(running: "asyncio.Future[_Result]") -> None:
    """Wait until `running` is done, whatever comes of it and however often we are cancelled.

    For clean-up on the way out of a cancelled or failed operation: a cancellation that arrives
    meanwhile is dropped, because the caller is about to raise one or has its own error to raise.
    """
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError:
            continue
    if not running.cancelled():
        running.exception()  # retrieved, or asyncio would report it as lost
