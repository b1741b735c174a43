"""Runs a task until the broker stops."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any


def run_until_stop(
    stack: AsyncExitStack, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None], name: str
) -> asyncio.Task[None]:
    """Start `work`; it is ended, and seen to end, when the stack is unwound to here."""
    task = tasks.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])

    stack.push_async_callback(end)
    return task
