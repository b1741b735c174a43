"""An event loop whose time passes only when nothing is left to do, and then at once.

    seconds = run_in_virtual_time(main())     # how long it took, by the loop's own clock

What sleeps 50 ms takes 50 ms of that, however slow the machine is; so a test can count how many
round trips follow each other. For code without threads and sockets.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _ImpatientSelector(selectors.SelectSelector):
    """Waits for nothing: what the loop would wait passes on its clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left to do, and it has not ended"
        self.now += max(timeout, 0.0)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _ImpatientSelector) -> None:
        super().__init__(selector)
        self._impatient = selector

    def time(self) -> float:
        return self._impatient.now


def run_in_virtual_time(main: Coroutine[Any, Any, object]) -> float:
    """Run `main` to its end; returns the seconds that passed for it."""
    loop = _VirtualLoop(_ImpatientSelector())
    try:
        loop.run_until_complete(main)
        return loop.time()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
