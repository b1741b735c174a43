"""Connections from a worker to its head: socket pairs of which the worker hands over one end.

A worker that wants a connection makes a pair of sockets, keeps one, and sends the other through
the socket that both have had since the worker began, with a note of what it is for. So there is no
path to connect to: nobody else can, and nothing is left over when a process is killed.

    calls     KIP-1164's messages and those of brokers, for the head's coordinators
    client    requests of one client of the worker, relayed as they came

The note of a client's connection says who the client is: what the worker found out by itself, from
the socket, the certificate or the log-in. The head believes it, as it believes the whole worker,
and asks for nothing but what this client may do. Nothing that comes later on the connection changes
who it is; a client that becomes somebody else gets another connection.

Failure cases: the head is gone (`ConnectionError`); the head is slow to take what is handed over,
and the worker waits in turns of the event loop. A note that makes no sense is dropped.
"""

import asyncio
import errno
import json
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from diskless.ports import ClientInfo
from metadata.clients.wire_client import Connection

CALLS: Final = "calls"
CLIENT: Final = "client"

NOTE_BYTES_MAX: Final = 32 << 10
"""A name of a certificate's subject may be long; one that is longer than this is not served."""
_ACCEPTED_IN_A_ROW_MAX: Final = 32
_RETRY_S: Final = 0.002

log = structlog.get_logger(__name__)


class BadNote(Exception):
    """A note that makes no sense."""


class Note(NamedTuple):
    """What a connection is for."""

    purpose: str
    host: str = ""
    user: str = ""
    listener: str = ""
    connection: int = 0
    """Its number in the worker, which no other connection of the broker has."""

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Note":
        """Raises BadNote."""
        try:
            found = json.loads(data)
            note = cls(**found)
        except (ValueError, TypeError) as error:
            raise BadNote(str(error)) from error
        kinds = [str, str, str, str, int]
        if not all(map(isinstance, note, kinds)) or note.purpose not in (CALLS, CLIENT):
            raise BadNote("no note of a connection")
        return note

    @classmethod
    def of(cls, client: ClientInfo) -> "Note":
        return cls(CLIENT, client.host, client.user, client.listener, client.connection_id)


class Doors:
    """The worker's end."""

    def __init__(self, handed: socket.socket) -> None:
        """`handed`: what the worker was born with; of type SOCK_SEQPACKET."""
        handed.setblocking(False)
        self._handed = handed

    async def open(self, note: Note) -> socket.socket:
        """A connection to the head. Raises OSError."""
        data = note.encode()
        if len(data) > NOTE_BYTES_MAX:
            raise OSError(errno.EMSGSIZE, "a client with a name that is too long")
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                while True:
                    try:
                        socket.send_fds(self._handed, [data], [theirs.fileno()])
                        break
                    except BlockingIOError:
                        await asyncio.sleep(_RETRY_S)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    async def connect(
        self, factory: Callable[[], Connection], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, Connection]:
        """The way of a `WireClient` to the head. Raises OSError."""
        end = await self.open(Note(CALLS))
        return await asyncio.get_running_loop().create_unix_connection(factory, sock=end)


class DoorKeeper:
    """The head's end of one worker: calls `came` for every connection that is handed over."""

    def __init__(self, handed: socket.socket, came: Callable[[Note, socket.socket], None]) -> None:
        handed.setblocking(False)
        self._handed = handed
        self._came = came
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(handed, self._take)

    def close(self) -> None:
        self._loop.remove_reader(self._handed)
        self._handed.close()

    def _take(self) -> None:
        for _ in range(_ACCEPTED_IN_A_ROW_MAX):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._handed, NOTE_BYTES_MAX, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("a worker's connection was not taken", error=str(error))
                return
            if not data:
                self._loop.remove_reader(self._handed)
                return
            sockets = [socket.socket(fileno=one) for one in descriptors]
            try:
                note = Note.decode(data)
            except BadNote as error:
                log.error("a worker handed over what makes no sense", error=str(error))
                sockets.clear()
                continue
            for one in sockets:
                one.setblocking(False)
                self._came(note, one)
