"""Runs the blocking work of one component in a few threads of its own.

`asyncio.to_thread` shares one pool among everybody: a directory whose fsync hangs would hold up
every other store, chunk and database. So each store owns a `WorkerThreads` with a named limit.

A thread cannot be cancelled. `run` lets a cancelled caller go at once, which is right for reads;
`run_to_end` keeps it until the thread is done, which is right when the thread reads buffers that
the caller will use again.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


class WorkerThreads:
    """At most `limit` threads; further work waits in order. Closed by its owner."""

    def __init__(self, name: str, limit: int) -> None:
        self._executor = ThreadPoolExecutor(limit, name)

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work()`; a cancelled caller leaves it running."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def run_to_end(
        self, work: Callable[[], _Result], abandon: Callable[[], None] | None = None
    ) -> _Result:
        """The result of `work()`; a cancelled caller calls `abandon` and waits for the end of it.

        Whatever the abandoned work returns or raises is dropped in favour of the cancellation.
        """
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if abandon is not None:
                abandon()
            await wait_ended(running)
            raise

    async def close(self) -> None:
        """Wait for what is running, and end the threads."""
        await asyncio.to_thread(self._executor.shutdown)


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
