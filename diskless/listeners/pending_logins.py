"""Limits the connections that nobody has authenticated yet: their number, and their memory.

At most a tenth of all connections may be in the middle of their log-in, and only a few of one
address, so clients that never log in do not keep the others out. Such a connection has a *place*,
which counts as PLACE_BYTES, and as TLS_BYTES more on a server that has TLS listeners: so there are
2,048 places at most, or 409. A token that is larger than PLACE_BYTES is received only when its
length has been reserved in the memory that all places share. A connection without a place, or
without that memory, is not read from until other log-ins are done; none takes longer than
LOGIN_MAX_S (`diskless.sasl.login`).

A place whose log-in has failed is taken until that is answered, though its client may be gone: a
password that is right is answered at once, so who guesses would not wait for more than that.

A broker may be several processes. The limits on numbers then hold for all of them together. The
memory is divided among them evenly: a process cannot wake a connection that waits in another one.

Invariants: a place ends once, and gives back what it has reserved; a connection that waits is woken
when something is given back.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from diskless.listeners.connection_limits import ALONE, OtherCounts

PLACE_BYTES: Final = 16 << 10
"""For the connection itself (6 KiB were measured) and a usual token."""
TLS_BYTES: Final = 64 << 10
"""What OpenSSL and `TlsStream` keep of one that has not logged in.

Measured with OpenSSL 3.0, as growth of the resident set by each of 1,000 connections: 11 KiB before
the first byte, 47 in the middle of the handshake, 18 after it, 31 with a certificate of the client;
and up to 22 for bytes that were received and are not decrypted (`UNKNOWN_BYTES` of `tls_stream`).
"""
SHARED_BYTES: Final = 64 << 20
"""Of all log-ins of a broker together."""

SHARE_OF_CONNECTIONS: Final = 10
"""One connection in this many may be in the middle of its log-in."""
CONNECTIONS_MIN: Final = 10

_ALL, _ADDRESS = "log-ins", "log-ins of "
"""What other processes count, too."""


class PendingLogins:
    """The places of one server."""

    def __init__(
        self,
        *,
        connections_max: int,
        per_ip_max: int,
        others: OtherCounts = ALONE,
        processes: int = 1,
        token_max: int = 0,
        has_tls: bool = False,
    ) -> None:
        """`connections_max`: of all connections, authenticated or not.

        `others`: the counts of the other processes. `processes` share the memory; in each of them
        there is room for a token of `token_max` bytes. `has_tls`: some of them speak TLS.
        """
        share = max(connections_max // SHARE_OF_CONNECTIONS, CONNECTIONS_MIN)
        place_bytes = PLACE_BYTES + (TLS_BYTES if has_tls else 0)
        self._places_max = min(share, SHARED_BYTES // 2 // place_bytes)
        tokens_max = SHARED_BYTES - self._places_max * place_bytes
        self._tokens_max = max(tokens_max // processes, token_max)
        self._others = others
        self._per_ip_max = per_ip_max
        self._per_ip: Counter[str] = Counter()
        self._waiting: dict[Place, Callable[[], None]] = {}
        self.places = 0
        """How many there are."""
        self.token_bytes = 0
        """Reserved beside the places."""

    def refusal(self, address: str) -> str | None:
        """The limit that keeps one more of `address` out."""
        elsewhere = self._others.elsewhere
        if self.places + elsewhere(_ALL) >= self._places_max:
            return "unauthenticated connections"
        if self._per_ip[address] + elsewhere(_ADDRESS + address) >= self._per_ip_max:
            return "max.connections.unauthenticated.per.ip"
        return None

    def begin(self, address: str) -> "Place":
        """Count one in, whatever the limits are."""
        self.places += 1
        self._per_ip[address] += 1
        self._count(address, 1)
        return Place(self, address)

    def _count(self, address: str, amount: int) -> None:
        self._others.add(_ALL, amount)
        self._others.add(_ADDRESS + address, amount)

    def _reserve(self, place: "Place", more_bytes: int, go_on: Callable[[], None]) -> bool:
        if self.token_bytes + more_bytes > self._tokens_max:
            self._waiting[place] = go_on
            return False
        self._waiting.pop(place, None)
        self.token_bytes += more_bytes
        return True

    def _ended(self, place: "Place", address: str, size_bytes: int) -> None:
        self.places -= 1
        self._count(address, -1)
        self._per_ip[address] -= 1
        if not self._per_ip[address]:
            del self._per_ip[address]
        self.token_bytes -= size_bytes - PLACE_BYTES
        self._waiting.pop(place, None)
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting.values():
            go_on()


class Place:
    """The place of one connection."""

    __slots__ = ("_address", "_bytes", "_has_left", "_held", "_pending")

    def __init__(self, pending: PendingLogins, address: str) -> None:
        self._pending: PendingLogins | None = pending
        self._address = address
        self._bytes = PLACE_BYTES
        self._held: asyncio.TimerHandle | None = None
        """Set while it cannot end."""
        self._has_left = False

    def may_hold(self, size_bytes: int, go_on: Callable[[], None]) -> bool:
        """Whether a frame of `size_bytes` may be received now; `go_on` is called where not yet."""
        more_bytes = size_bytes - self._bytes
        if self._pending is None or more_bytes <= 0:
            return True
        if not self._pending._reserve(self, more_bytes, go_on):
            return False
        self._bytes = size_bytes
        return True

    def end_after(self, seconds: float) -> None:
        """It does not end before that."""
        if self._held is None and seconds > 0:
            self._held = asyncio.get_running_loop().call_later(seconds, self._let_go)

    def _let_go(self) -> None:
        self._held = None
        if self._has_left:
            self.end()

    def end(self) -> None:
        """Authenticated, or gone; the first call counts."""
        if self._held is not None:
            self._has_left = True
            return
        pending, self._pending = self._pending, None
        if pending is not None:
            pending._ended(self, self._address, self._bytes)
