"""Decides how often and how fast to try again: bounded in attempts and in time, jittered.

Plain decisions; the caller does the waiting, with `asyncio.sleep` in the broker and `time.sleep` in
a Spark task:

    retries = Retries(settings, clock=clock, rng=rng)
    while True:
        try:
            return await attempt()
        except ThatMayWorkLater as error:
            delay_s = retries.next_delay_s()
            if delay_s is None:
                raise ObjectStoreUnavailable(...) from error
            await asyncio.sleep(delay_s)

Delays double from the first to the largest; each is drawn between half of that and all of it, so
that brokers which failed together do not come back together, and none comes back at once.
"""

import random
from dataclasses import dataclass

from wal.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """When one operation gives up, and how it waits until then."""

    attempts_max: int
    first_delay_ms: int
    delay_max_ms: int
    deadline_ms: int
    """From the start of the first attempt; no attempt starts after it."""


def backed_off_s(interval_s: float, failures: int, max_s: float, rng: random.Random) -> float:
    """How long a worker that is repeated for ever waits: its interval, doubled by each failure in
    a row up to `max_s` (or the interval, if that is longer), and jittered as above."""
    full_s = min(interval_s * 2 ** min(failures, 32), max(max_s, interval_s))
    return rng.uniform(full_s / 2, full_s)


class Retries:
    """The attempts of one operation; the first one has started when this is made."""

    def __init__(self, limits: RetryLimits, *, clock: Clock, rng: random.Random) -> None:
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._deadline = clock.monotonic() + limits.deadline_ms / 1000
        self._attempts = 1

    @property
    def attempts(self) -> int:
        """The number of attempts that were allowed so far."""
        return self._attempts

    def remaining_s(self) -> float:
        """Seconds until the deadline, not negative: no attempt should take longer."""
        return max(0.0, self._deadline - self._clock.monotonic())

    def next_delay_s(self) -> float | None:
        """Seconds to wait before the next attempt; None when there must not be one."""
        limits = self._limits
        if self._attempts >= limits.attempts_max:
            return None
        doublings = min(self._attempts - 1, 32)
        full_ms = min(limits.first_delay_ms << doublings, limits.delay_max_ms)
        delay_s = self._rng.uniform(full_ms / 2, full_ms) / 1000
        if delay_s >= self.remaining_s():
            return None
        self._attempts += 1
        return delay_s
