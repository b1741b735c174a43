"""How long the answer to a failed log-in is held back: longer from one time to the next.

By address: the first failure costs `connection.failed.authentication.delay.ms`, each one after it
twice as much, up to five seconds. A success, or a minute without failure, and it begins anew.
At most ADDRESSES_MAX are remembered; those that failed longest ago leave first.
"""

from collections import OrderedDict
from typing import Final, Protocol

from wal.clock import Clock

DELAY_MAX_S: Final = 5.0
FORGOTTEN_AFTER_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000


class Delays(Protocol):
    """Whoever counts failures for all processes of a broker."""

    async def hold_back(self, address: str) -> float:
        """Count a failure; in how many seconds it is answered."""
        ...

    def succeeded(self, address: str) -> None:
        """Begin anew."""
        ...


class FailureDelay:
    """Counts failures by address."""

    def __init__(self, first_ms: int, clock: Clock) -> None:
        self._first_s = first_ms / 1000
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Failures in a row, and when the last one was; the latest at the end."""

    def failed(self, address: str) -> float:
        """Count a failure; in how many seconds it is answered."""
        now = self._clock.monotonic()
        count, last = self._failures.pop(address, (0, now))
        if now - last > FORGOTTEN_AFTER_S:
            count = 0
        self._failures[address] = (count + 1, now)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        return min(self._first_s * float(2 ** min(count, 30)), DELAY_MAX_S)

    async def hold_back(self, address: str) -> float:
        """See `Delays`."""
        return self.failed(address)

    def succeeded(self, address: str) -> None:
        """Begin anew."""
        self._failures.pop(address, None)
