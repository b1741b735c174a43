"""How long the answer to a failed log-in is held back: longer from one time to the next.

By address: the first failure costs `connection.failed.authentication.delay.ms`, each one after it
twice as much, up to five seconds. A success, or a minute without failure, and it begins anew.
At most ADDRESSES_MAX are remembered; those that failed longest ago leave first.

A delay alone bounds nobody who goes away instead of waiting: what is right is answered at once. So
no more than HELD_MAX failures of an address are held back at a time (`is_at_limit`), whoever waits
for their answers. On listeners of Kafka's protocol, places do that (diskless/listeners).
"""

from collections import OrderedDict, deque
from typing import Final, Protocol

from wal.clock import Clock

DELAY_MAX_S: Final = 5.0
FORGOTTEN_AFTER_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000
HELD_MAX: Final = 20


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
        self._held: OrderedDict[str, deque[float]] = OrderedDict()
        """Until when the last ones of each are held back; as many addresses."""

    def failed(self, address: str) -> float:
        """Count a failure; in how many seconds it is answered."""
        now = self._clock.monotonic()
        count, last = self._failures.pop(address, (0, now))
        if now - last > FORGOTTEN_AFTER_S:
            count = 0
        self._failures[address] = (count + 1, now)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        delay_s = min(self._first_s * float(2 ** min(count, 30)), DELAY_MAX_S)
        held = self._held.setdefault(address, deque(maxlen=HELD_MAX))
        held.append(now + delay_s)
        self._held.move_to_end(address)
        if len(self._held) > ADDRESSES_MAX:
            self._held.popitem(last=False)
        return delay_s

    def is_at_limit(self, address: str) -> bool:
        """Whether the address has HELD_MAX failures that are still held back."""
        held = self._held.get(address, ())
        return len(held) == HELD_MAX and min(held) > self._clock.monotonic()

    async def hold_back(self, address: str) -> float:
        """See `Delays`."""
        return self.failed(address)

    def succeeded(self, address: str) -> None:
        """Begin anew."""
        self._failures.pop(address, None)
