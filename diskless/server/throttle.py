"""Until when one connection is muted: nothing of it is read or begun, and answers go out.

A handler mutes the connection of a client that is over its quota (`Request.mute`, KIP-219): its
answer tells the client how long to wait, and leaves first of all. The server mutes a connection
that comes too fast from its first moment on (`diskless/listeners/connection_limits.py`).

The latest time counts. One timer is set while the connection is muted, and it is not moved: one
that fires too early is set again for the rest. No socket is known here.
"""

import asyncio
import math
from collections.abc import Callable

from wal.clock import Clock


class Throttle:
    """Mutes one connection; times are of the monotonic clock."""

    def __init__(self, clock: Clock, ended: Callable[[float], None]) -> None:
        """`ended` is called with the time when the connection is not muted any more."""
        self._clock = clock
        self._ended = ended
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.was_over_quota = False
        """A handler muted it before: its client tends to exceed its quota."""

    @property
    def is_muted(self) -> bool:
        return self._timer is not None

    @property
    def left_ms(self) -> int:
        """How long it is muted yet."""
        if self._timer is None:
            return 0
        return max(math.ceil((self._until - self._clock.monotonic()) * 1000), 0)

    def delay(self, seconds: float) -> None:
        """Mute a connection that is new."""
        self._mute(self._clock.monotonic() + seconds)

    def mute(self, until: float) -> bool:
        """Mute it until a time; whether that is later than before."""
        is_later = until > self._until
        if is_later:
            self.was_over_quota = True
            self._mute(until)
        return is_later

    def cancel(self) -> None:
        """The connection ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _mute(self, until: float) -> None:
        self._until = until
        if self._timer is None:
            self._set_timer(self._clock.monotonic())

    def _set_timer(self, now: float) -> None:
        delay_s = max(self._until - now, 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fired)

    def _fired(self) -> None:
        now = self._clock.monotonic()
        if now < self._until:
            # The time was made longer since, or the loop's clock is not ours.
            self._set_timer(now)
            return
        self._timer = None
        self._until = 0.0
        self._ended(now)
