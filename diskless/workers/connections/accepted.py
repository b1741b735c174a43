"""Connections that a head has accepted, on their way to a worker.

The head sends the socket of each, with the listener that it came through and the address of its
client, through a socket that both have had since the worker began (SOCK_SEQPACKET, as that of
`diskless.workers.doors`, which goes the other way).

Invariants: a connection is in one process at a time. The worker counts in shared memory what it
has taken, so the head knows what it has not, and counts that as connections of the worker, too. The
head has both ends of the socket: what a worker does not take, the head takes back.

Failure case: a worker has no descriptor left for what was sent to it. The connection is gone then.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

_TAKEN_IN_A_ROW_MAX: Final = 32
_MESSAGE_BYTES_MAX: Final = 256

log = structlog.get_logger(__name__)


class AcceptedConnection(NamedTuple):
    """One that has not been admitted yet."""

    listener: int
    """Its number in the order of the configuration."""
    client: socket.socket
    host: str
    """The client's address."""


class Untaken(Exception):
    """There was a connection, and no descriptor is left for it."""


def hand_over(end: socket.socket, connection: AcceptedConnection) -> bool:
    """Send it to whoever has the other end, and close it here; False: not now."""
    listener, client, host = connection
    try:
        socket.send_fds(end, [bytes((listener,)) + host.encode()], [client.fileno()])
    except OSError:
        return False
    client.close()
    return True


def take(end: socket.socket) -> AcceptedConnection | None:
    """Take the next connection off `end`, or None if none is there. Raises Untaken, EOFError."""
    try:
        message, descriptors, _, _ = socket.recv_fds(end, _MESSAGE_BYTES_MAX, 1)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError as error:
        raise Untaken(str(error)) from error
    if not message:
        raise EOFError
    if not descriptors:
        raise Untaken("no descriptor is left for it")
    client = socket.socket(fileno=descriptors[0])
    client.setblocking(False)
    return AcceptedConnection(message[0], client, message[1:].decode())


class AcceptedConnections:
    """The worker's end; calls `admit` for each."""

    def __init__(
        self,
        end: socket.socket,
        *,
        admit: Callable[[AcceptedConnection], None],
        took: Callable[[int], None],
    ) -> None:
        """`admit` is given each, and `took` then told how many there were."""
        end.setblocking(False)
        self._end = end
        self._admit = admit
        self._took = took
        self._taken = 0
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        self._loop.add_reader(self._end, self._take)

    def close(self) -> None:
        self._loop.remove_reader(self._end)
        self._end.close()

    def _take(self) -> None:
        for _ in range(_TAKEN_IN_A_ROW_MAX):
            try:
                connection = take(self._end)
            except EOFError:
                self._loop.remove_reader(self._end)
                return
            except Untaken as error:
                log.error("a connection was not taken", error=str(error))
            else:
                if connection is None:
                    return
                self._admit(connection)
            # Last: until then the head counts it among those on their way.
            self._taken += 1
            self._took(self._taken)
