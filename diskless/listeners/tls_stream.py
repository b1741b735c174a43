"""TLS of one accepted connection: it stands between the socket's transport and the protocol.

    TlsStream is the protocol of the socket's transport, and the transport of who speaks through it:
    socket ── transport ── TlsStream ── Connection

It begins with the handshake (`secured`). Who accepted the connection then looks at the certificate
of the client, and lets its protocol begin (`begin`), or closes.

The event loops have such a layer too. This one differs in what a broker is promised of memory, and
in what a client is told:

- What was handed to the socket and is not sent is known to the byte, and counts towards the limits
  of the protocol above. What waits is encrypted when there is room for it, so that answers that
  nobody reads are held once, as they were given, and not as a second copy.
- Received bytes come through one buffer for all connections, since they are decrypted at once; and
  a client that is not read from is not read from on its socket either.
- Of a client that nobody knows yet little is kept: UNKNOWN_BYTES are received at once, and a first
  message that says it is longer than HELLO_BYTES_MAX is refused before OpenSSL makes room for it.
- A client that is refused is sent the alert that says why, before its connection is closed.

Invariants: the protocol is told of its transport once, in `begin`, and of its loss once, after
that; nothing is read from the socket while reading is paused, but for the handshake; bytes leave in
the order in which they were written. All calls are on the event loop of the transport.

Failure cases: a handshake that fails, or a client that leaves in the middle, fails `secured` with
ssl.SSLError or ConnectionError. Bytes that are no TLS later on end the connection.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, Final, cast

from diskless.ports import Buffer

SCRATCH_BYTES: Final = 128 << 10
"""What is received at once; TLS keeps room for as much as it was ever handed."""
UNKNOWN_BYTES: Final = 16 << 10
"""The same during the handshake, and until the client has logged in where it has to."""
HELLO_BYTES_MAX: Final = 32 << 10
"""Of a ClientHello, which has 2 KiB at most in practice. OpenSSL takes 128 KiB, for which it makes
room when it has read the length; a broker in Java takes 32 (`jdk.tls.maxHandshakeMessageSize`)."""
_HELLO_HEAD_BYTES: Final = 9
"""The header of the first record, and of the message in it, which ends with its length."""
_MESSAGE_HEAD_BYTES: Final = 4
_HANDSHAKE_RECORD: Final = 22
_RECORDS_BYTES: Final = 64 << 10
"""What is encrypted at once."""
_SENDING_BYTES_MAX: Final = 128 << 10
"""What is encrypted before the socket has taken what was encrypted before."""
_WRITE_LIMIT_BYTES: Final = 64 << 10

_CAN_READ: Final = (ssl.SSLWantReadError, ssl.SSLSyscallError)


class _State(Enum):
    HANDSHAKE = auto()
    SECURED = auto()
    """The handshake is done, and nobody has begun."""
    OPEN = auto()
    CLOSING = auto()
    """What was written is still sent."""
    CLOSED = auto()


class Scratch:
    """The buffer into which all connections of an event loop receive, one after the other."""

    def __init__(self) -> None:
        self.view: Final = memoryview(bytearray(SCRATCH_BYTES))
        self.little: Final = self.view[:UNKNOWN_BYTES]


def _close(transport: asyncio.Transport) -> None:
    transport.close()


def _nobody_must() -> bool:
    return False


class TlsStream(asyncio.BufferedProtocol, asyncio.Transport):
    """See above."""

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: asyncio.BufferedProtocol,
        scratch: Scratch,
        close: Callable[[asyncio.Transport], None] = _close,
        must_log_in: Callable[[], bool] = _nobody_must,
    ) -> None:
        """`close` closes the socket's transport when the last that was written was sent.

        As long as `must_log_in`, nobody knows who the client is.
        """
        super().__init__()
        self._close = close
        self._must_log_in = must_log_in
        self._protocol = protocol
        self._scratch = scratch
        self._hello_head = b""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._socket: asyncio.Transport | None = None
        self._state = _State.HANDSHAKE
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._high_bytes = _WRITE_LIMIT_BYTES
        self._is_protocol_blocked = False
        self._is_socket_blocked = False
        self._is_read = True
        self._is_reading_again = False
        self._has_begun = False
        self.extra: Final[dict[str, Any]] = {}
        """What `get_extra_info` tells besides what the socket's transport does."""
        self.secured: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handshake is."""

    def certificate(self) -> bytes | None:
        """What the client showed, in DER; it was checked. None: it showed none."""
        return self._tls.getpeercert(binary_form=True)

    def begin(self) -> None:
        """Let the protocol above begin. Raises ConnectionResetError when the client is gone."""
        if self._state is not _State.SECURED:
            raise ConnectionResetError("the client left after the handshake")
        self._state = _State.OPEN
        self._has_begun = True
        self._protocol.connection_made(self)
        self._read_on()

    # --- the socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all the methods of asyncio.Transport, but not the class.
        self._socket = cast(asyncio.Transport, transport)
        # So that it tells when it has sent all it was given.
        self._socket.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        is_known = self._state is _State.OPEN and not self._must_log_in()
        return self._scratch.view if is_known else self._scratch.little

    def buffer_updated(self, nbytes: int) -> None:
        if self._state in (_State.CLOSING, _State.CLOSED):
            return
        received = self._scratch.view[:nbytes]
        if len(self._hello_head) < _HELLO_HEAD_BYTES and self._is_too_long(received):
            self._fail(ssl.SSLError("a ClientHello that is too long"))
            return
        self._incoming.write(received)
        if self._state is _State.HANDSHAKE:
            self._shake_hands()
        elif self._state is _State.OPEN:
            self._read()
        if self._state is _State.SECURED:
            # More than one flight after the handshake is for when somebody reads it.
            self._pause_socket()

    def eof_received(self) -> bool:
        self._incoming.write_eof()
        if self._state is _State.HANDSHAKE:
            self._fail(ConnectionResetError("the client left during the handshake"))
        elif self._state is _State.OPEN:
            self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.CLOSED
        self._unsent.clear()
        self._unsent_bytes = 0
        self._socket = None
        if not self.secured.done():
            self.secured.set_exception(exc or ConnectionResetError("the connection was lost"))
            self.secured.exception()
        if self._has_begun:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_socket_blocked = True

    def resume_writing(self) -> None:
        self._is_socket_blocked = False
        self._send()

    # --- the transport of the protocol above

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in self.extra:
            return self.extra[name]
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._state in (_State.CLOSING, _State.CLOSED)

    def is_reading(self) -> bool:
        return self._is_read

    def pause_reading(self) -> None:
        self._is_read = False
        self._pause_socket()

    def resume_reading(self) -> None:
        self._is_read = True
        self._read_on()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _WRITE_LIMIT_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        sending = 0 if self._socket is None else self._socket.get_write_buffer_size()
        return self._unsent_bytes + sending

    def can_write_eof(self) -> bool:
        """TLS ends both halves with its close_notify; the socket is another matter."""
        return False

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._state is not _State.OPEN:
            return
        for data in list_of_data:
            view = memoryview(data).cast("B")
            if len(view):
                self._unsent.append(view)
                self._unsent_bytes += len(view)
        self._send()

    def close(self) -> None:
        """End it when what was written is sent; nothing more is read."""
        if self._state in (_State.HANDSHAKE, _State.SECURED):
            self.abort()
        elif self._state is _State.OPEN:
            self._state = _State.CLOSING
            self._pause_socket()
            self._send()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    # --- TLS

    def _is_too_long(self, received: memoryview) -> bool:
        """Whether the first message is, as far as its header is there.

        One that is cut into records before its length is, as nobody sends it, counts as too long.
        """
        self._hello_head += bytes(received[: _HELLO_HEAD_BYTES - len(self._hello_head)])
        head = self._hello_head
        if len(head) < _HELLO_HEAD_BYTES or head[0] != _HANDSHAKE_RECORD:
            return False
        record_bytes, message_bytes = int.from_bytes(head[3:5]), int.from_bytes(head[6:9])
        return record_bytes < _MESSAGE_HEAD_BYTES or message_bytes > HELLO_BYTES_MAX

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except _CAN_READ:
            self._flush()
        except (ssl.SSLError, ValueError) as error:
            self._flush()
            self._fail(error)
        else:
            self._flush()
            self._state = _State.SECURED
            if not self.secured.done():
                self.secured.set_result(None)

    def _fail(self, error: Exception) -> None:
        """There is no TLS with this client."""
        if not self.secured.done():
            self.secured.set_exception(error)
            # Who waited may have been cancelled meanwhile.
            self.secured.exception()
        if self._state is not _State.CLOSED and self._socket is not None:
            self._state = _State.CLOSING
            self._socket.close()

    def _read(self) -> None:
        """Hand on what was received, as far as the protocol reads."""
        try:
            while self._is_read and self._state is _State.OPEN and self._has_received():
                if not self._read_once():
                    break
            self._flush()
        except (ssl.SSLError, ValueError) as error:
            self._flush()
            self._fail(error)

    def _has_received(self) -> bool:
        return self._incoming.pending > 0 or self._tls.pending() > 0

    def _read_once(self) -> bool:
        """Fill one buffer of the protocol; whether there may be more. Raises ssl.SSLError."""
        buffer = self._protocol.get_buffer(-1)
        view = memoryview(buffer)
        size, filled = len(view), 0
        is_ended = False
        # One read gives one record, and clients make records of a few hundred bytes: librdkafka one
        # of each piece that it sends. So nothing is asked in between; the end is an exception.
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        try:
            while filled < size:
                count = read(size - filled, view[filled:])
                if not count:
                    is_ended = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_ended = True
        is_full = filled == len(view)
        view.release()
        if filled:
            self._protocol.buffer_updated(filled)
        if is_ended:
            self._protocol.eof_received()
            self.close()
        return is_full and not is_ended

    def _read_on(self) -> None:
        """Read what is left of what was received, in a turn of its own; then the socket."""
        if self._is_reading_again or self._state is not _State.OPEN:
            return
        self._is_reading_again = True
        asyncio.get_running_loop().call_soon(self._read_again)

    def _read_again(self) -> None:
        self._is_reading_again = False
        self._read()
        if self._is_read and self._state is _State.OPEN and self._socket is not None:
            self._socket.resume_reading()

    def _pause_socket(self) -> None:
        if self._socket is not None:
            self._socket.pause_reading()

    def _send(self) -> None:
        """Encrypt what the socket has room for; tell the protocol whether that is enough."""
        while self._unsent and not self._is_socket_blocked and self._socket is not None:
            while self._unsent and self._outgoing.pending < _SENDING_BYTES_MAX:
                self._tls.write(self._next_records())
            self._flush()
        if self._state is _State.CLOSING:
            if not self._unsent:
                self._say_goodbye()
            return
        if self._state is not _State.OPEN:
            return
        waiting = self.get_write_buffer_size()
        if waiting > self._high_bytes and not self._is_protocol_blocked:
            self._is_protocol_blocked = True
            self._protocol.pause_writing()
        elif waiting <= self._high_bytes // 4 and self._is_protocol_blocked:
            self._is_protocol_blocked = False
            self._protocol.resume_writing()

    def _next_records(self) -> Buffer:
        """The next bytes to be encrypted; small pieces are joined."""
        first = self._unsent[0]
        if len(first) > _RECORDS_BYTES:
            self._unsent[0] = first[_RECORDS_BYTES:]
            self._unsent_bytes -= _RECORDS_BYTES
            return first[:_RECORDS_BYTES]
        pieces: list[memoryview] = []
        size = 0
        while self._unsent and size + len(self._unsent[0]) <= _RECORDS_BYTES:
            pieces.append(self._unsent.popleft())
            size += len(pieces[-1])
        self._unsent_bytes -= size
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _flush(self) -> None:
        """Hand to the socket what TLS has made."""
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def _say_goodbye(self) -> None:
        if self._socket is None or self._socket.is_closing():
            return
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            # The client's own goodbye is not waited for.
            pass
        self._flush()
        self._close(self._socket)
