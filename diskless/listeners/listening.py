"""Takes connections from one listening socket, a few at a time, and passes each on.

Whoever they are passed to decides what becomes of them (`diskless.listeners.acceptor`; in the head
of several processes, `diskless.workers.connections.assigner`).

Failure case: where the process has no descriptor left, accepting pauses for a second; who connects
meanwhile waits in the system's queue.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import structlog

from diskless.listeners.connection_limits import plain_address

_ACCEPTED_IN_A_ROW_MAX: Final = 32
"""Sockets that are accepted before others on the loop have a turn."""

_PAUSE_S: Final = 1.0

_NOT_SENT_BYTES_MAX: Final = 128 << 10
"""What the system takes for a socket ahead of what it can send. Left to itself it takes 4 MB, which
nobody counts: of each client that does not read, and in one call that holds the loop."""

_log = structlog.get_logger(__name__)


class Listening:
    """Listens from `start` to `stop`, on the running event loop."""

    def __init__(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket, str], None],
        *,
        backlog: int,
        pause_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`listener` is bound, and closed by `stop`. `accepted` is given each socket and the
        address of its client. `pause_s` says, before each, how long to leave it to the system's
        queue because nobody could serve it; 0 for not at all.
        """
        self._listener = listener
        self._accepted = accepted
        self._backlog = backlog
        self._pause_s = pause_s
        self._loop = asyncio.get_running_loop()
        self._resumption: asyncio.TimerHandle | None = None

    def start(self) -> None:
        # What is accepted has the same.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOT_SENT_BYTES_MAX)
        self._listener.listen(self._backlog)
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._resumption is not None:
            self._resumption.cancel()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_IN_A_ROW_MAX):
            pause_s = self._pause_s()
            if pause_s:
                self._pause(pause_s)
                return
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("cannot accept connections", error=str(error), again_in_s=_PAUSE_S)
                self._pause(_PAUSE_S)
                return
            client.setblocking(False)
            self._accepted(client, plain_address(str(address[0])))

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._resumption = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._resumption = None
        self._loop.add_reader(self._listener, self._accept)
