"""Accepts the connections of one listener: limits first, then a transport, then its protocol.

The event loop's own servers call a protocol only once a transport is there, which on a listener
with handshakes is too late to count anybody. Here the limits are asked for each accepted socket
before anything is made for it. Who is one too many is closed at once.

Invariants: a connection that was counted in is counted out once, whether its transport was made or
not. After `stop`, nothing is accepted, and no transport is being made any more.

Failure case: where the process has no descriptor left, accepting pauses for a second; who connects
meanwhile waits in the system's queue.
"""

import asyncio
import functools
import socket
from collections.abc import Callable
from typing import Final

import structlog

from diskless.listeners.connection_limits import ConnectionLimits, plain_address
from wal.clock import Clock

_ACCEPTED_IN_A_ROW_MAX: Final = 32
"""Sockets that are accepted before others on the loop have a turn."""

_PAUSE_S: Final = 1.0

_log = structlog.get_logger(__name__)


class Admission:
    """The place of one connection among those that are counted."""

    __slots__ = ("_limits", "delay_s", "host")

    def __init__(self, limits: ConnectionLimits, host: str, now: float) -> None:
        self._limits: ConnectionLimits | None = limits
        self.host: Final = host
        self.delay_s: Final = limits.opened(host, now)
        """In how many seconds it may be read from."""

    def end(self) -> None:
        """Count it out; the first call counts."""
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.closed(self.host)


class Acceptor:
    """Accepts from `start` to `stop`, on the running event loop."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        backlog: int,
        limits: ConnectionLimits,
        clock: Clock,
        refused: Callable[[str], None],
        make: Callable[[Admission], asyncio.BaseProtocol],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`listener` is bound. `refused` is told the limit that kept somebody out.

        `make` makes the protocol of who was admitted; that ends the admission when its transport is
        gone.
        """
        self._listener = listener
        self._backlog = backlog
        self._limits = limits
        self._clock = clock
        self._refused = refused
        self._make = make
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._resumption: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listener.listen(self._backlog)
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Accept no more, and wait until no transport is being made."""
        self._loop.remove_reader(self._listener)
        if self._resumption is not None:
            self._resumption.cancel()
        self._listener.close()
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_IN_A_ROW_MAX):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("cannot accept connections", error=str(error), again_in_s=_PAUSE_S)
                self._pause(_PAUSE_S)
                return
            self._admit(client, plain_address(str(address[0])))

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._resumption = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._resumption = None
        self._loop.add_reader(self._listener, self._accept)

    def _admit(self, client: socket.socket, host: str) -> None:
        refusal = self._limits.refusal(host)
        if refusal is not None:
            self._refused(refusal)
            client.close()
            return
        client.setblocking(False)
        admission = Admission(self._limits, host, self._clock.monotonic())
        task = self._tasks.create_task(self._connect(client, self._make(admission)))
        self._connecting.add(task)
        # A task that is cancelled before its first step runs nothing of itself.
        task.add_done_callback(functools.partial(self._connected, client, admission))

    async def _connect(self, client: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, client)
        except OSError as error:
            _log.debug("a connection was lost as it was accepted", error=str(error))
            raise asyncio.CancelledError from error

    def _connected(
        self, client: socket.socket, admission: Admission, task: asyncio.Task[None]
    ) -> None:
        self._connecting.discard(task)
        if task.cancelled():
            # There is no transport, or it is closed.
            client.close()
            admission.end()
