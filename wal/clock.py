"""Clocks: time is an argument everywhere, so tests decide what it is.

Everything that needs the time takes a `Clock`, and what waits takes a `Sleep`, so that a test or a
simulation can own both. Wall time orders nothing: offsets come from the metadata log, leases and
deadlines from `monotonic`.
"""

import time
from typing import Final, Protocol


class Clock(Protocol):
    """The two times there are."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds since the epoch; may step backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never steps backwards, and goes on in a suspension."""
        ...


class Sleep(Protocol):
    """`asyncio.sleep`, or a simulation's."""

    async def __call__(self, delay: float, /) -> None: ...


_COUNTS_SUSPENSION: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux stops CLOCK_MONOTONIC while the machine sleeps; macOS has no other and does not."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.clock_gettime(_COUNTS_SUSPENSION)


class ManualClock:
    """A clock that moves only when told to; starts at 2024-01-01T00:00:00Z."""

    def __init__(self, now_ms: int = 1_704_067_200_000) -> None:
        self._now_ms = float(now_ms)
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        self._now_ms += seconds * 1000
        self._monotonic += seconds

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock alone, as an operator or NTP would; may be negative."""
        self._now_ms += seconds * 1000
