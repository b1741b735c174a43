"""Which brokers clients are told of, and which of them they are sent to.

A broker reads of another that joins or goes up to a follow interval later than the next broker
does, and a client asks now this one and now that one. librdkafka forgets a broker that an answer
does not list, but not which partitions it was to use it for: from then on it says that there are no
such partitions, and asks nobody. So who joins is listed at once, and is sent clients only when all
others list it too, which takes `settle_s`; who goes is sent none from then on, and is listed until
all others have stopped sending clients there.

Who was registered before this broker began to look is taken for settled.

The caller tells the time, and looks as soon as a change can be read, because it counts from then.

Failure cases: brokers that are further apart than `settle_s` in what they have read, in an outage
of the store say, may list fewer brokers than others send clients to.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from metadata.operations import RegisteredBroker


class _Gone(NamedTuple):
    """A broker that was registered."""

    broker: RegisteredBroker
    listed_until: float


class Presence:
    """Follows the registered brokers; times are seconds of a clock that never goes back."""

    def __init__(self, registered: Mapping[int, RegisteredBroker], *, settle_s: float) -> None:
        self._settle_s: Final = settle_s
        self._registered = dict(registered)
        self._settles_at: dict[int, float] = {}
        self._gone: dict[int, _Gone] = {}

    def look(self, registered: Mapping[int, RegisteredBroker], now: float) -> bool:
        """Take in who is registered by now; returns whether `listed` or `settled` changed."""
        before = self._registered
        is_changed = self._pass_time(now)
        if registered == before:
            return is_changed
        for broker_id in registered.keys() - before.keys():
            self._settles_at[broker_id] = now + self._settle_s
            self._gone.pop(broker_id, None)
        for broker_id in before.keys() - registered.keys():
            self._settles_at.pop(broker_id, None)
            self._gone[broker_id] = _Gone(before[broker_id], now + self._settle_s)
        self._registered = dict(registered)
        return True

    def _pass_time(self, now: float) -> bool:
        settled = [one for one, at in self._settles_at.items() if at <= now]
        unlisted = [one for one, gone in self._gone.items() if gone.listed_until <= now]
        for broker_id in settled:
            del self._settles_at[broker_id]
        for broker_id in unlisted:
            del self._gone[broker_id]
        return bool(settled or unlisted)

    def listed(self) -> Sequence[RegisteredBroker]:
        """Whom clients are told of, as of the last look."""
        return [*self._registered.values(), *(gone.broker for gone in self._gone.values())]

    def settled(self) -> frozenset[int]:
        """Whom clients are sent to, as of the last look: some of those that are listed."""
        return frozenset(self._registered.keys() - self._settles_at.keys())
