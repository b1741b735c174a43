"""Admits the connections of one listener: limits first, then a transport, then its protocol.

The event loop's own servers call a protocol only once a transport is there, which on a listener
with handshakes is too late to count anybody. Here the limits are asked for each accepted socket
before anything is made for it. Who is one too many is closed at once. On a TLS listener the
handshake comes next (`diskless.listeners.tls_listener`), and only then the protocol.

Invariants: a connection that was counted in is counted out once, whether its transport was made or
not. After `stop`, nobody is admitted, and no transport is being made any more: handshakes that are
under way are cancelled.
"""

import asyncio
import functools
import socket
from collections.abc import Callable
from typing import Final

import structlog

from diskless.listeners.connection_limits import ConnectionLimits
from diskless.listeners.pending_logins import Place
from diskless.listeners.tls_listener import Refused, TlsListener
from diskless.logs import Pace
from wal.clock import Clock

COMPLETE: Final = "complete"
"""How a handshake ends that leads to a connection; the others are in `Refused.result`."""

_log = structlog.get_logger(__name__)


class Admission:
    """The place of one connection among those that are counted."""

    __slots__ = ("_limits", "_listener", "_place", "_user", "heard_at", "host")

    def __init__(self, limits: ConnectionLimits, host: str, now: float, listener: str) -> None:
        self._limits: ConnectionLimits | None = limits
        self._listener = listener
        self._user: str | None = None
        self.host: Final = host
        self._place: Place | None = None
        self.heard_at: Final = now + limits.opened(host, now, listener)
        """From when it may be read from."""

    def until_log_in(self, place: Place) -> None:
        """Its client has to log in; `place` ends with the admission if it does not."""
        self._place = place

    def may_hold(self, size_bytes: int, go_on: Callable[[], None]) -> bool:
        """See `Place.may_hold`; whoever need not log in, or has, may hold anything."""
        return self._place is None or self._place.may_hold(size_bytes, go_on)

    @property
    def must_log_in(self) -> bool:
        return self._place is not None

    def held_back(self, seconds: float) -> None:
        """Its log-in has failed, and is answered then; see `Place.end_after`."""
        if self._place is not None:
            self._place.end_after(seconds)

    def belongs_to(self, user: str) -> bool:
        """Its client is known; False: that user has too many connections."""
        self._logged_in()
        if self._limits is None or self._user is not None:
            return True
        if not self._limits.known(user):
            return False
        self._user = user
        return True

    def _logged_in(self) -> None:
        if self._place is not None:
            self._place.end()
            self._place = None

    def end(self) -> None:
        """Count it out; the first call counts."""
        self._logged_in()
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.closed(self.host, self._listener, self._user)


class Acceptor:
    """Admits what `admit` is given until `stop`, on the running event loop."""

    def __init__(
        self,
        *,
        name: str,
        limits: ConnectionLimits,
        clock: Clock,
        refusal: Callable[[str], str | None],
        refused: Callable[[str], None],
        make: Callable[[Admission], asyncio.BufferedProtocol],
        tasks: asyncio.TaskGroup,
        tls: TlsListener | None = None,
        handshaken: Callable[[str], None] = lambda result: None,
    ) -> None:
        """`name` is the listener's. `refusal` gives, by address, a limit of its own that keeps
        somebody out; `refused` is told which it was.

        `make` makes the protocol of who was admitted; that ends the admission when its transport is
        gone. `handshaken` is told how each handshake of `tls` ended.
        """
        self._name = name
        self._limits = limits
        self._clock = clock
        self._refusal = refusal
        self._refused = refused
        self._make = make
        self._tasks = tasks
        self._tls = tls
        self._handshaken = handshaken
        self._refusals = Pace()
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    @property
    def connecting(self) -> int:
        """Sockets that were admitted and have no protocol yet."""
        return len(self._connecting)

    async def stop(self) -> None:
        """Wait until no transport is being made; nobody is admitted from now on."""
        self._is_stopped = True
        for task in self._connecting:
            if self._tls is not None:
                task.cancel()
        if self._connecting:
            await asyncio.wait(self._connecting)

    def admit(self, client: socket.socket, host: str) -> None:
        """Serve an accepted socket, of which the client's address is `host`, or close it."""
        if self._is_stopped:
            client.close()
            return
        refusal = self._limits.refusal(host, self._name) or self._refusal(host)
        if refusal is not None:
            self._refused(refusal)
            client.close()
            return
        admission = Admission(self._limits, host, self._clock.monotonic(), self._name)
        task = self._tasks.create_task(self._connect(client, admission, self._make(admission)))
        self._connecting.add(task)
        # A task that is cancelled before its first step runs nothing of itself.
        task.add_done_callback(functools.partial(self._connected, client, admission))

    async def _connect(
        self, client: socket.socket, admission: Admission, protocol: asyncio.BufferedProtocol
    ) -> None:
        host = admission.host
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: protocol, client)
            else:
                await self._tls.connect(client, host, protocol, lambda: admission.must_log_in)
                self._handshaken(COMPLETE)
        except Refused as refusal:
            self._handshaken(refusal.result)
            self._log_refusal(host, refusal)
            raise asyncio.CancelledError from refusal
        except OSError as error:
            _log.debug("a connection was lost as it was accepted", error=str(error))
            raise asyncio.CancelledError from error

    def _log_refusal(self, host: str, refusal: Refused) -> None:
        suppressed = self._refusals.take_turn(self._clock.monotonic())
        if suppressed is not None:
            _log.warning("handshake failed", reason=str(refusal), host=host, suppressed=suppressed)

    def _connected(
        self, client: socket.socket, admission: Admission, task: asyncio.Task[None]
    ) -> None:
        self._connecting.discard(task)
        if task.cancelled():
            # There is no transport, or it is closed.
            client.close()
            admission.end()
