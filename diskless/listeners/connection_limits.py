"""Limits on connections: at once, of one address, of one user, of one listener, and a second.

The server asks once for each accepted socket, before it reads from it. It closes a connection that
is one too many. From one that comes too fast it reads later: all clients come back in one second
to a broker that starts again, and it must not turn them away, but go on answering those that are
there already. How long a connection waits is known when it comes, so nothing polls.

A listener has limits of its own beside those of all. Who a client is becomes known later; a user
who has too many connections then loses the new one.

Where a broker is several processes, the limits on how many there are hold for all of them together;
connections a second are each process's share.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from wal.errors import InvalidSettings

CREATION_BURST_S: Final = 1.0
"""How much of the rate may come at one instant, after a time in which less came."""


_IPV4_IN_IPV6: Final = "::ffff:"

_ADDRESS, _USER, _LISTENER = "address ", "user ", "listener "
"""What other processes count, too."""


def plain_address(address: str) -> str:
    """An IPv4 client's address without the prefix that it has on an IPv6 listener."""
    if address.startswith(_IPV4_IN_IPV6) and "." in address:
        return address.removeprefix(_IPV4_IN_IPV6)
    return address


def parse_ip_overrides(text: str) -> Mapping[str, int]:
    """`max.connections.per.ip.overrides`: ADDRESS:COUNT, separated by commas.

    Raises: InvalidSettings.
    """
    overrides: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = entry.rpartition(":")
        try:
            # As the socket writes it, whichever way it was written here.
            known = ipaddress.ip_address(address.strip().strip("[]"))
            if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is not None:
                known = known.ipv4_mapped
            overrides[str(known)] = int(count)
            if int(count) < 0:
                raise ValueError("negative")
        except ValueError as error:
            raise InvalidSettings(
                f"max.connections.per.ip.overrides: {entry!r} is not ADDRESS:COUNT"
            ) from error
    return overrides


class ListenerLimits(NamedTuple):
    """Of one listener."""

    connections_max: int
    creations_per_s: int


class _Pace:
    """Connections of one kind, spread so that no more than a number come in a second."""

    __slots__ = ("_interval_s", "_next_at")

    def __init__(self, creations_per_s: int, now: float) -> None:
        self._interval_s = 1 / creations_per_s
        self._next_at = now
        """When the next one would be due if they came evenly at the highest rate."""

    def opened(self, now: float) -> float:
        """Count one; in how many seconds it may be read from."""
        self._next_at = max(self._next_at, now) + self._interval_s
        return max(0.0, self._next_at - now - CREATION_BURST_S)


class OtherCounts(Protocol):
    """What other processes of the broker have, by names that are the same in all of them."""

    def add(self, name: str, amount: int) -> None:
        """Add `amount`, which may be negative, to what this process has under `name`."""
        ...

    def elsewhere(self, name: str) -> int:
        """Returns how many there are in the others."""
        ...


class _Alone:
    """There are no others."""

    def add(self, name: str, amount: int) -> None:
        pass

    def elsewhere(self, name: str) -> int:
        return 0


ALONE: Final = _Alone()


class ConnectionLimits:
    """Counts the connections of one server. Times are of a monotonic clock."""

    def __init__(
        self,
        *,
        connections_max: int,
        per_ip_max: int,
        per_ip_overrides: Mapping[str, int],
        creations_per_s: int,
        now: float,
        per_user_max: int = 0,
        listeners: Mapping[str, ListenerLimits] = MappingProxyType({}),
        quota: Callable[[str], float] = lambda address: 0.0,
        changed: Callable[[int], None] = lambda connections: None,
        elsewhere: Callable[[], int] = lambda: 0,
        others: OtherCounts = ALONE,
    ) -> None:
        """`quota` counts a connection of an address, and says until when it is not read from.

        `per_user_max`: 0 for no limit. `listeners` are those with limits of their own. `changed` is
        told how many connections there are; `elsewhere` says how many other processes have, which
        count for `connections_max`.
        """
        self._connections_max = connections_max
        self._per_ip_max = per_ip_max
        self._per_ip_overrides = per_ip_overrides
        self._per_user_max = per_user_max
        self._listeners = listeners
        self._quota = quota
        self._changed = changed
        self._elsewhere = elsewhere
        self._others = others
        self._pace = _Pace(creations_per_s, now)
        self._paces = {
            name: _Pace(limits.creations_per_s, now) for name, limits in listeners.items()
        }
        self._per_ip: Counter[str] = Counter()
        self._per_user: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._connections = 0

    def refusal(self, address: str, listener: str = "") -> str | None:
        """The limit that keeps one more connection from `address` out."""
        elsewhere = self._others.elsewhere
        if self._connections + self._elsewhere() >= self._connections_max:
            return "max.connections"
        own = self._listeners.get(listener)
        if own is not None:
            there = self._per_listener[listener] + elsewhere(_LISTENER + listener)
            if there >= own.connections_max:
                return f"listener.name.{listener.lower()}.max.connections"
        allowed = self._per_ip_overrides.get(address, self._per_ip_max)
        if self._per_ip[address] + elsewhere(_ADDRESS + address) >= allowed:
            return "max.connections.per.ip"
        return None

    def opened(self, address: str, now: float, listener: str = "") -> float:
        """Count it in; in how many seconds it may be read from."""
        self._connections += 1
        self._changed(self._connections)
        self._per_ip[address] += 1
        self._others.add(_ADDRESS + address, 1)
        delay_s = max(self._pace.opened(now), self._quota(address) - now)
        if listener in self._listeners:
            self._per_listener[listener] += 1
            self._others.add(_LISTENER + listener, 1)
            delay_s = max(delay_s, self._paces[listener].opened(now))
        return max(delay_s, 0.0)

    def known(self, user: str) -> bool:
        """Count one of a user in; False, and nothing is counted, where it is one too many."""
        if self._per_user_max:
            there = self._per_user[user] + self._others.elsewhere(_USER + user)
            if there >= self._per_user_max:
                return False
        self._per_user[user] += 1
        self._others.add(_USER + user, 1)
        return True

    def closed(self, address: str, listener: str = "", user: str | None = None) -> None:
        """Count it out."""
        self._connections -= 1
        self._changed(self._connections)
        if listener in self._listeners:
            self._per_listener[listener] -= 1
            self._others.add(_LISTENER + listener, -1)
        counts = ((self._per_ip, _ADDRESS, address), (self._per_user, _USER, user))
        for counted, kind, name in counts:
            if name is not None:
                self._others.add(kind + name, -1)
                counted[name] -= 1
                if not counted[name]:
                    del counted[name]
