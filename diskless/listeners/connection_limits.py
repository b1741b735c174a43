"""Limits on connections: how many at once, how many from one address, how many a second.

The server asks once for each accepted socket, before it reads from it. It closes a connection that
is one too many. From one that comes too fast it reads later: all clients come back in one second
to a broker that starts again, and it must not turn them away, but go on answering those that are
there already. How long a connection waits is known when it comes, so nothing polls.
"""

import ipaddress
from collections import Counter
from collections.abc import Mapping
from typing import Final

from wal.errors import InvalidSettings

CREATION_BURST_S: Final = 1.0
"""How much of the rate may come at one instant, after a time in which less came."""


_IPV4_IN_IPV6: Final = "::ffff:"


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
    ) -> None:
        self._connections_max = connections_max
        self._per_ip_max = per_ip_max
        self._per_ip_overrides = per_ip_overrides
        self._interval_s = 1 / creations_per_s
        self._per_ip: Counter[str] = Counter()
        self._connections = 0
        self._next_at = now
        """When the next one would be due if they came evenly at the highest rate."""

    def refusal(self, address: str) -> str | None:
        """The limit that keeps one more connection from `address` out."""
        if self._connections >= self._connections_max:
            return "max.connections"
        allowed = self._per_ip_overrides.get(address, self._per_ip_max)
        if self._per_ip[address] >= allowed:
            return "max.connections.per.ip"
        return None

    def opened(self, address: str, now: float) -> float:
        """Count it in; in how many seconds it may be read from."""
        self._connections += 1
        self._per_ip[address] += 1
        self._next_at = max(self._next_at, now) + self._interval_s
        return max(0.0, self._next_at - now - CREATION_BURST_S)

    def closed(self, address: str) -> None:
        """Count it out."""
        self._connections -= 1
        self._per_ip[address] -= 1
        if not self._per_ip[address]:
            del self._per_ip[address]
