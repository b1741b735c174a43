"""The line between a head and one worker: short messages both ways, in order.

    length  u32   of what follows
    kind    u8    see below
    content

The head tells news (`diskless.workers.news`, `diskless.workers.security`), when to look at the
files of keys, to give up a connection and when to stop, and asks for metrics. The worker says how
far it is, how much it does, how log-ins ended and what is to be noted, asks to be synchronised, and
asks for bytes of metadata logs. It takes what has come whenever it is about to rely on news
(`HeadLine.take`), not only when its event loop gets to it: the head writes news of a commit before
anybody hears of the commit.

Invariants: messages arrive in the order in which they were sent; nothing is allocated for one
longer than FRAME_BYTES_MAX. When the line is lost, `lost` is called once, and that is the end of
the worker: it answers nobody any more.

Failure case: a worker that takes nothing has news pile up in the head; beyond UNSENT_BYTES_MAX
it is lost to the head, which ends it.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

FRAME_BYTES_MAX: Final = 256 << 20
UNSENT_BYTES_MAX: Final = 256 << 20
_RECEIVED_AT_ONCE: Final = 256 << 10
_SOCKET_BYTES: Final = 4 << 20
"""What the system is asked to keep of what the other end has not taken."""

HEADER: Final = struct.Struct(">IB")

# From the head.
TOPICS: Final = 1
ENDS: Final = 2
QUOTAS: Final = 3
CLUSTER: Final = 4
LOGS: Final = 5
SYNCED: Final = 6
LOG_READ: Final = 7
STOP: Final = 8
PAGE_WANTED: Final = 9
RULES: Final = 11
USERS: Final = 12
SECRETS: Final = 13
DELAY: Final = 14
LOOK_AT_KEYS: Final = 15
GIVE_UP: Final = 16

# From a worker.
HELLO: Final = 33
READY: Final = 34
FAILED: Final = 35
SYNC: Final = 36
READ_LOG: Final = 37
PAGE: Final = 38
NOTE: Final = 39
LOGIN_FAILED: Final = 40
LOGGED_IN: Final = 41
LOAD: Final = 42

Received = Callable[[int, memoryview], None]


def frame(kind: int, content: bytes = b"") -> bytes:
    """Returns a message as it is sent."""
    return HEADER.pack(len(content) + 1, kind) + content


class BrokenLine(Exception):
    """What came is no message."""


class Frames:
    """Cuts what was received into messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """The messages that are complete now. Raises BrokenLine."""
        self._received += data
        start = 0
        while len(self._received) - start >= HEADER.size:
            length, kind = HEADER.unpack_from(self._received, start)
            if not 1 <= length <= FRAME_BYTES_MAX:
                raise BrokenLine(f"a message of {length} bytes")
            end = start + HEADER.size - 1 + length
            if len(self._received) < end:
                break
            content = bytes(self._received[start + HEADER.size : end])
            start = end
            yield kind, memoryview(content)
        del self._received[:start]


class Line:
    """One end, on the running event loop."""

    def __init__(self, end: socket.socket, received: Received, lost: Callable[[], None]) -> None:
        """`received` gets every message; `lost` is called once when there will be no more."""
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
        self._end = end
        self._received = received
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_lost = False
        self._is_taking = False
        self._loop.add_reader(end, self.take)

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def take(self) -> None:
        """Hand on whatever has come."""
        if self._is_taking or self._is_lost:
            return
        self._is_taking = True
        try:
            while True:
                try:
                    data = self._end.recv(_RECEIVED_AT_ONCE)
                except (BlockingIOError, InterruptedError):
                    return
                except OSError:
                    data = b""
                if not data:
                    self._fail()
                    return
                for kind, content in self._frames.add(data):
                    self._received(kind, content)
                if len(data) < _RECEIVED_AT_ONCE:
                    return
        except BrokenLine:
            self._fail()
        finally:
            self._is_taking = False

    def send(self, message: bytes) -> None:
        """Send at once as much as the socket takes, and the rest when it does."""
        if self._is_lost:
            return
        if self._unsent:
            self._keep(memoryview(message))
            return
        try:
            sent = self._end.send(message)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._fail()
            return
        if sent < len(message):
            self._loop.add_writer(self._end, self._send_rest)
            self._keep(memoryview(message)[sent:])

    def close(self) -> None:
        """End it; `lost` is not called."""
        if not self._is_lost:
            self._is_lost = True
            self._end_it()

    def _keep(self, rest: memoryview) -> None:
        self._unsent.append(rest)
        self._unsent_bytes += len(rest)
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            self._fail()

    def _send_rest(self) -> None:
        try:
            while self._unsent:
                sent = self._end.send(self._unsent[0])
                self._unsent_bytes -= sent
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                else:
                    self._unsent.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._fail()
            return
        self._loop.remove_writer(self._end)

    def _fail(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._end_it()
            self._lost()

    def _end_it(self) -> None:
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._unsent.clear()
        self._end.close()
