"""Measures the processor time that one connection's requests take, where there are quotas of it.

A connection's turns are measured from their begin to their end, and so is each slice of what
handlers do in slices. It counts with the next answer, which can tell how long to wait; so a
connection that waits is not muted anew by being looked at. What is measured is the event loop's;
threads work for many clients at once, and count for nobody.

Where nobody has such a quota, a turn costs one question.
"""

from collections.abc import Callable
from typing import Protocol

from diskless.ports import ClientInfo


class ClientLimits(Protocol):
    """What the server asks of quotas. Times are of the monotonic clock, 0.0: no need to wait."""

    @property
    def measures_requests(self) -> bool:
        """Whether `used` is to be told anything."""
        ...

    def used(self, client: ClientInfo, seconds: float) -> float:
        """Requests of a client took this much processor time; until when to mute it."""
        ...

    def changed(self, client: ClientInfo, changes: int, partitions: int) -> float:
        """A request changes metadata; likewise."""
        ...

    def connected(self, address: str) -> float:
        """An address has connected; likewise."""
        ...


class NoLimits:
    """Nobody is limited."""

    @property
    def measures_requests(self) -> bool:
        return False

    def used(self, client: ClientInfo, seconds: float) -> float:
        return 0.0

    def changed(self, client: ClientInfo, changes: int, partitions: int) -> float:
        return 0.0

    def connected(self, address: str) -> float:
        return 0.0


class RequestMeter:
    """Of one connection."""

    __slots__ = (
        "_client",
        "_limits",
        "_mute",
        "_processor_time",
        "_since",
        "_spent_s",
        "has_muted",
    )

    def __init__(
        self,
        limits: ClientLimits,
        processor_time: Callable[[], float],
        client: Callable[[], ClientInfo],
        mute: Callable[[float], None],
    ) -> None:
        self._limits = limits
        self._processor_time = processor_time
        self._client = client
        self._mute = mute
        self._since: float | None = None
        self._spent_s = 0.0
        self.has_muted = False
        """Whether answers tell for how long it is mute; byte quotas tell it in their own."""

    def begin(self) -> None:
        """What comes now is work for this connection."""
        self._since = self._processor_time() if self._limits.measures_requests else None

    def answered(self) -> None:
        """An answer is there: count what was done until now; mute who is over the quota."""
        if self._since is None:
            return
        self._lap(self._since)
        spent_s, self._spent_s = self._spent_s, 0.0
        self._mute_until(self._limits.used(self._client(), spent_s))

    def changed(self, changes: int, partitions: int) -> None:
        """A request changes metadata; mute who is over the quota."""
        self._mute_until(self._limits.changed(self._client(), changes, partitions))

    def end(self) -> None:
        """What comes next is not for this connection."""
        if self._since is not None:
            self._lap(self._since)
        self._since = None

    def _lap(self, since: float) -> None:
        self._since = now = self._processor_time()
        self._spent_s += now - since

    def _mute_until(self, until: float) -> None:
        if until:
            self.has_muted = True
            self._mute(until)
