"""How long a worker pauses between what it does."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from wal.clock import Sleep


async def first_pauses(count: int, run: Callable[[Sleep], Awaitable[object]]) -> list[float]:
    """The first pauses of what `run` runs with a way to sleep; it is cancelled in the last one."""
    pauses: list[float] = []
    done = asyncio.Event()

    async def sleep(delay: float, /) -> None:
        if delay:
            pauses.append(delay)
        if len(pauses) == count:
            done.set()
            await asyncio.Event().wait()

    running = asyncio.ensure_future(run(sleep))
    await done.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return pauses
