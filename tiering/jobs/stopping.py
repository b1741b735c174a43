"""Ends a job at a signal, behind the commit that is under way.

The first SIGTERM or SIGINT asks: no round begins any more, and the pause between two passes is over
at once. The second one ends the process as such a signal does by default. Nothing is lost by that
either, only work that has to be done again.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether the job is asked to end."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """Ask for the end. Any thread may, and a signal's handler."""
        self._asked.set()

    def is_asked(self) -> bool:
        return self._asked.is_set()

    def pause(self, seconds: float) -> None:
        """Wait so long, or until the end is asked for."""
        self._asked.wait(seconds)


@contextmanager
def signals_ask(stop: Stop, said: Callable[[], None]) -> Iterator[None]:
    """Within the block signals ask `stop`; `said` tells of the first one.

    Does nothing outside of the main thread, which alone may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_asked():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        stop.ask()
        said()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
