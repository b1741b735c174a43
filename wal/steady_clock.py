"""A wall clock for deciding what is old enough to be forgotten: it may be late, and never jumps.

A wall clock that an operator, NTP or a hypervisor sets a day ahead, if only for one reading, makes
everything a day older at once: records that retention then deletes, producers whose sequences are
forgotten. That cannot be taken back. So everything that deletes by age takes its time from here.
From the reading at its making on, a steady clock moves no faster than the monotonic clock, whatever
the wall clock says, and where the wall clock is behind, it follows that one. What it is late by
(the machine slept, a clock that was behind was put right) is kept the longer, until it is made
anew, as with every term of a leader.

It cannot know that the wall clock was wrong when it was made. Made by background workers and the
coordinator of a metadata partition, one for each term; used in one event loop.
"""

from typing import Final

from wal.clock import Clock

_BEHIND_MS: Final = 1_000
"""A wall clock that is this much behind was set back. Less is rounding, or it is being slewed."""


class SteadyClock:
    """A `Clock` whose wall time never goes back and is at most the true age of things ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = clock.now_ms()
        self._ahead_ms = self._last_ms - clock.monotonic() * 1000
        """How far wall time may be ahead of monotonic time."""

    def now_ms(self) -> int:
        """Wall clock in milliseconds since the epoch, as far as it can be believed."""
        wall_ms = self._clock.now_ms()
        monotonic_ms = self._clock.monotonic() * 1000
        if wall_ms < monotonic_ms + self._ahead_ms - _BEHIND_MS:
            self._ahead_ms = wall_ms - monotonic_ms
        # One more, because the wall clock's first reading was cut to whole milliseconds.
        self._last_ms = max(self._last_ms, min(wall_ms, int(monotonic_ms + self._ahead_ms) + 1))
        return self._last_ms

    def monotonic(self) -> float:
        """As the clock that it was made of."""
        return self._clock.monotonic()
