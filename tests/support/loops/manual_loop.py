"""As much of an event loop as timers need, whose time is a test's clock."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from wal.clock import ManualClock


class ManualTimer:
    """A call that is to be made at a moment, unless it is cancelled."""

    def __init__(self, at: float, call: Callable[[], Any]) -> None:
        self.call: Callable[[], Any] | None = call
        self._at = at

    def cancel(self) -> None:
        self.call = None

    def when(self) -> float:
        return self._at


class ManualLoop:
    """`advance` moves the clock and makes the calls that fall due, each at its time."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._order = itertools.count()
        self.calls = 0
        """Made so far; what costs nothing while it waits makes none."""

    def time(self) -> float:
        return self._clock.monotonic()

    def call_at(self, when: float, call: Callable[[], Any]) -> ManualTimer:
        timer = ManualTimer(when, call)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        until = self.time() + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                self._clock.advance(max(when - self.time(), 0))
                self.calls += 1
                timer.call()
        self._clock.advance(until - self.time())
