"""Notices clients that do not read their answers, and cuts them off.

Not to read is no offence. A consumer whose application works on what it has for minutes leaves an
answer in its socket, and is an ordinary client. It is cut off only when all of these hold:

- it holds more than its share: UNREAD_REQUESTS_SHARE_BYTES of request memory, or
  UNREAD_ANSWERS_SHARE_BYTES of answers;
- the socket has taken nothing, and its peer has acknowledged nothing, for
  `connections.unread.max.ms`: a client that reads slowly is not one that does not read;
- others wait for that very memory: of requests, a connection that reads its answers is not read
  from because of a limit that this one's memory counts in; of answers, within that time a Fetch was
  granted less than it could read (`diskless/server/response_budget.py`).

Of those, the one that holds most goes first, and no more go than it takes to bring what was
exceeded down to three quarters.

The last resort is memory itself: at twice `queued.max.response.bytes` of unsent answers those who
have not read since the last look are cut off until it is the limit again, those that hold most
first, because what one batch takes is not ours to limit, and a broker that is killed for its memory
serves nobody. It takes thousands of clients that do not read, or hundreds that ask for very large
batches.
"""

import array
import asyncio
import fcntl
import termios
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final, Protocol

from diskless.listeners.lingering import LINGER_S
from diskless.server.request_budget import RequestAccount, RequestBudget
from diskless.server.response_budget import ResponseAccount, ResponseBudget

UNREAD_REQUESTS_SHARE_BYTES: Final = 64 << 10
"""Request memory past which a client that does not read is not read from: 32 small requests. Stock
clients have five in flight, or read their answers. Five hundred clients, half of what one address
may connect by default, may hold that much before their address is at its half of 64 MiB."""

UNREAD_ANSWERS_SHARE_BYTES: Final = (1 << 20) + (256 << 10)
"""Answers that a client may leave unread for ever: what stock consumers ask of a partition at a
time (`max.partition.fetch.bytes`) behind what a socket is handed before (`socket.write.buffer.
bytes`), so that a paused one may have a whole answer waiting."""

_LOW_MARK: Final = 0.75
_LAST_RESORT: Final = 2
"""Times the limit of answers."""


class ReadProgress:
    """Since when a client has read nothing of what it was sent."""

    __slots__ = ("_outstanding", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        """On the monotonic clock; None while there is nothing to be read."""
        self._outstanding = 0

    def look(self, outstanding_bytes: int, now: float) -> None:
        """`outstanding_bytes` were sent and are not known to be received."""
        if not outstanding_bytes:
            self.since = None
        elif self.since is None or outstanding_bytes < self._outstanding:
            self.since = now
        self._outstanding = outstanding_bytes

    def is_stuck(self, now: float) -> bool:
        """Whether a connection that ends is not worth waiting for any more."""
        return self.since is not None and now - self.since >= LINGER_S

    def reset(self) -> None:
        """The client has read."""
        self.since = None
        self._outstanding = 0


def unsent_and_unread(transport: asyncio.Transport | None) -> tuple[int, int]:
    """Bytes that the socket has not taken yet, and those that the client has not read."""
    unsent = 0 if transport is None else transport.get_write_buffer_size()
    if not unsent or transport is None:
        return unsent, unsent
    return unsent, unacknowledged_bytes(transport)


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Returns what its peer has not acknowledged; the end of our half of a stream is a byte too."""
    unsent = transport.get_write_buffer_size()
    return unsent + kernel_outstanding_bytes(transport.get_extra_info("socket").fileno())


def kernel_outstanding_bytes(descriptor: int) -> int:
    """Returns what the system took for a socket and its peer has not acknowledged; 0: not known."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, count)
    except OSError:
        return 0
    return count[0]


class Unread(Protocol):
    """A connection, as far as this is concerned."""

    owner: Hashable
    requests: RequestAccount
    responses: ResponseAccount

    @property
    def unread_since(self) -> float | None: ...

    def cut_as_slow_reader(self) -> None:
        """Cuts off a client that does not read: others need the memory."""
        ...


class UnreadCutter:
    """Decides who is cut off."""

    def __init__(self, requests: RequestBudget, responses: ResponseBudget, unread_max_s: float):
        self._requests = requests
        self._responses = responses
        self._unread_max_s = unread_max_s

    def cut(self, connections: Collection[Unread], now: float) -> Iterator[Unread]:
        """Cut off whom the rules name; gives each one after it was.

        `connections` have all been looked at (`ReadProgress.look`).
        """
        unread = [one for one in connections if one.unread_since is not None]
        if not unread:
            return
        slow = [one for one in unread if now - self._since(one) >= self._unread_max_s]
        yield from self._for_requests(slow, {one.requests for one in unread})
        yield from self._for_answers(slow, now)
        if self._responses.unsent_bytes > _LAST_RESORT * self._responses.limit_bytes:
            # One that was written to a moment ago is not slow yet.
            unsent = self._responses.unsent_bytes
            yield from _cut(
                (one for one in unread if self._since(one) < now),
                lambda one: one.responses.unsent_bytes,
                lambda _, freed: unsent - sum(freed.values()) > self._responses.limit_bytes,
            )

    def _for_requests(
        self, slow: Iterable[Unread], unread: Collection[RequestAccount]
    ) -> Iterator[Unread]:
        hogs = [one for one in slow if one.requests.held_bytes > UNREAD_REQUESTS_SHARE_BYTES]
        if not hogs:
            return
        # Others are those who read: the deaf wait for each other at no one's cost.
        waited_for = self._requests.owners_waited_for({one.owner for one in hogs}, unread)
        yield from _cut(
            (one for one in hogs if one.owner in waited_for),
            lambda one: one.requests.held_bytes,
            lambda one, freed: self._requests.is_above(one.owner, _LOW_MARK, freed=freed),
        )

    def _for_answers(self, slow: Iterable[Unread], now: float) -> Iterator[Unread]:
        earliest = now - self._unread_max_s
        yield from _cut(
            (
                one
                for one in slow
                if one.responses.unsent_bytes > UNREAD_ANSWERS_SHARE_BYTES
                and self._responses.short_at(one.owner) >= earliest
            ),
            lambda one: one.responses.unsent_bytes,
            lambda one, freed: self._responses.is_above(one.owner, _LOW_MARK, freed=freed),
        )

    @staticmethod
    def _since(one: Unread) -> float:
        return one.unread_since if one.unread_since is not None else float("inf")


def _cut(
    candidates: Iterable[Unread],
    held_bytes: Callable[[Unread], int],
    is_needed: Callable[[Unread, Mapping[Hashable, int]], bool],
) -> Iterator[Unread]:
    """Who holds most first; whose memory is not needed any more stays.

    `is_needed` is given what those before it will have let go of, by owner: that takes some turns.
    """
    freed: Counter[Hashable] = Counter()
    for held, one in sorted(
        ((held_bytes(one), one) for one in candidates), key=itemgetter(0), reverse=True
    ):
        if is_needed(one, freed):
            one.cut_as_slow_reader()
            freed[one.owner] += held
            yield one
