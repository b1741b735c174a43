"""`CoordinatorClient` over a socket: the coordinators that another broker leads.

One connection, made when it is first needed and again after it was lost. Requests are written in
the order of the calls and answered in that order, as Kafka's protocol has it, so any number of
calls may wait at the same time and the answers are told apart by their place; the correlation id
only proves it. There are no tasks: a call writes its request and waits for a future that the
transport's callbacks complete.

What a call raises says whether the operation may have happened:

- CommitFailed, nothing was sent: no connection, the time was up before there was one, or the last
  attempts failed and the next one is not due yet (`RETRY_FIRST_S` .. `RETRY_MAX_S`, doubling).
  Calls in that pause fail at once: the routed client has other brokers to look at.
- CommitOutcomeUnknown, a change was sent and no answer came that could be believed: the connection
  was lost, the time was up, or the bytes were no answer. For what only reads, that is CommitFailed.
- Overloaded: too much is under way already. InvalidRequest: the values do not fit a request.
- LoginRefused: nothing was sent, because the peer does not let us in (`sasl_login`).
  A log-in may become stale. Then calls wait until all that was sent is answered, the connection is
  closed, and they go on with another one, in their order; nothing is lost by that.
- Everything else is what the coordinator said.

The peer answers every request by its TimeoutMs, if only with a time-out. When the oldest one is
overdue by `OVERDUE_S`, the peer is held to be gone: the next call, or the next one whose time is
up, drops the connection. An answer that comes after its call was given up is dropped.

Invariants: a call's future is completed exactly once; nothing is allocated for a frame longer than
`RESPONSE_BYTES_MAX`; leaving the context fails what waits and ends the connection.
"""

import asyncio
import random
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

from metadata.clients.coordinator_client import TIMEOUT_MS, Answer, CoordinatorClient, Request
from metadata.clients.sasl_login import IsStale, LogIn
from metadata.messages.codec import Operation, reading
from wal.clock import Clock
from wal.errors import CommitFailed, InvalidRequest, Overloaded
from wal.security.client_security import ClientSecurity
from wal.wire.fields import NO_TAGS, FieldReader

CONNECT_TIMEOUT_S: Final = 5.0
LOGIN_TIMEOUT_S: Final = 10.0
"""A broker takes up to five seconds to refuse."""
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0
OVERDUE_S: Final = 5.0
"""What an answer may take beyond its TimeoutMs: the way there and back."""

IN_FLIGHT_MAX: Final = 1_000
"""Calls under way; a broker stops reading a connection at 2,000 unanswered requests."""
UNSENT_BYTES_MAX: Final = 64 << 20
"""Requests that the socket has not taken yet."""
REQUEST_BYTES_MAX: Final = 4 << 20
"""The default of socket.control.request.max.bytes: a peer hangs up on more."""
RESPONSE_BYTES_MAX: Final = 64 << 20
"""Plans of segments are the largest answers; a broker stops at a quarter of that."""

_VERSION: Final = 0
_INT32_MAX: Final = 2**31 - 1
_FRAME_LENGTH: Final = struct.Struct(">i")
_REQUEST_START: Final = struct.Struct(">ihhih")
"""Frame length, API key, version, correlation id, length of the client id."""
_RESPONSE_BYTES_MIN: Final = 5
"""Correlation id and an empty tag section."""


class Connect(Protocol):
    """`create_connection` of the running event loop, or a simulation's. Raises OSError."""

    async def __call__(
        self, factory: Callable[[], "Connection"], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, "Connection"]: ...


async def connect_tcp(
    factory: Callable[[], "Connection"], host: str, port: int
) -> tuple[asyncio.BaseTransport, "Connection"]:
    """A TCP connection of the running event loop."""
    return await asyncio.get_running_loop().create_connection(factory, host, port)


def connect_tls(context: Callable[[], ssl.SSLContext]) -> Connect:
    """A way to connect by TLS, each time with what `context` gives then."""

    async def connect(
        factory: Callable[[], "Connection"], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, "Connection"]:
        return await asyncio.get_running_loop().create_connection(
            factory,
            host,
            port,
            ssl=context(),
            server_hostname=host,
            ssl_handshake_timeout=CONNECT_TIMEOUT_S,
            ssl_shutdown_timeout=CONNECT_TIMEOUT_S,
        )

    return connect


def connect_securely(security: ClientSecurity) -> Connect:
    """The way to connect that a client was configured with. Raises InvalidSettings."""
    context = security.context()
    return connect_tcp if context is None else connect_tls(lambda: context)


class _Pending:
    """A request that was sent and is not answered."""

    __slots__ = ("correlation_id", "frame", "overdue_at")

    def __init__(self, correlation_id: int, overdue_at: float) -> None:
        self.correlation_id = correlation_id
        self.overdue_at = overdue_at
        self.frame: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        """What came, without its length; None when the connection was lost."""


class Connection(asyncio.Protocol):
    """One life of the connection: frames out, frames in, in order."""

    def __init__(self, on_lost: Callable[["Connection"], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._pending: deque[_Pending] = deque()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed when the transport is gone."""
        self.has_answered = False
        self.is_stale: IsStale | None = None
        """Whether it should be replaced; None: never."""
        self.lost: str | None = None
        """Why it is of no use any more."""
        self._quiet: asyncio.Future[None] | None = None

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all the methods of asyncio.Transport, but not the class.
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.lost is None:
            self._received += data
        while len(self._received) >= _FRAME_LENGTH.size:
            (length,) = _FRAME_LENGTH.unpack_from(self._received)
            if not _RESPONSE_BYTES_MIN <= length <= RESPONSE_BYTES_MAX:
                self.drop(f"an answer of {length} bytes")
                return
            end = _FRAME_LENGTH.size + length
            if len(self._received) < end:
                return
            frame = bytes(memoryview(self._received)[_FRAME_LENGTH.size : end])
            del self._received[:end]
            self._answered(frame)

    def eof_received(self) -> None:
        # The transport closes itself in a moment, and would swallow what is written until then.
        self._fail("the connection was lost: closed by the other end")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost: {error or 'closed'}")
        self.ended.set_result(None)

    # --- called by the client

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def is_overdue(self, now: float) -> bool:
        """Whether the oldest answer should have come long ago."""
        return bool(self._pending) and now > self._pending[0].overdue_at

    def send(self, pending: _Pending, frame: bytes) -> None:
        assert self._transport is not None
        assert self.lost is None
        self._pending.append(pending)
        self._transport.write(frame)

    async def quiet(self) -> None:
        """Wait until everything that was sent is answered, or the connection is lost."""
        while self._pending:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def drop(self, reason: str) -> None:
        """End it at once; what waits is told that it was lost."""
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    def _answered(self, frame: bytes) -> None:
        (correlation_id,) = _FRAME_LENGTH.unpack_from(frame)
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self.drop(f"answer {correlation_id}, which is not the next one")
            return
        self.has_answered = True
        pending = self._pending.popleft()
        # A call that was given up has cancelled its future.
        if not pending.frame.done():
            pending.frame.set_result(frame)
        self._notice_quiet()

    def _notice_quiet(self) -> None:
        if not self._pending and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def _fail(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
            self._on_lost(self)
        self._received.clear()
        while self._pending:
            pending = self._pending.popleft()
            if not pending.frame.done():
                pending.frame.set_result(None)
        self._notice_quiet()


class WireClient(CoordinatorClient):
    """The coordinators of the broker at one address. Enter it; leaving closes the connection."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        clock: Clock,
        rng: random.Random,
        client_id: str = "diskless-broker",
        connect: Connect = connect_tcp,
        log_in: LogIn | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        request_bytes_max: int = REQUEST_BYTES_MAX,
    ) -> None:
        """With `log_in`, `rng` is one that nobody can predict."""
        self.address: Final = f"{host}:{port}"
        self._host = host
        self._port = port
        self._clock = clock
        self._rng = rng
        self._client_id = client_id.encode()
        self._connect = connect
        self._log_in = log_in
        self._in_flight_max = in_flight_max
        self._request_bytes_max = request_bytes_max
        self._connection: Connection | None = None
        self._ending: set[asyncio.Future[None]] = set()
        # Calls that wait for the connection go first when it is there, in their order.
        self._sending = asyncio.Lock()
        self._waiting = 0
        self._correlation_id = 0
        self._failures = 0
        self._retry_at = clock.monotonic()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.drop("this broker closed it")
        if self._ending:
            await asyncio.wait(self._ending)

    # --- one call

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return self._waiting + (self._connection.in_flight if self._connection else 0)

    async def call(
        self,
        operation: Operation[Request, Answer],
        request: Request,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[Answer]:
        """See `CoordinatorClient`."""
        timeout_ms = min(max(timeout_ms, 0), _INT32_MAX)
        body = operation.encode_request(request, timeout_ms)
        if len(body) > self._request_bytes_max:
            raise InvalidRequest(
                f"a {operation.name} request of {len(body)} bytes; {self.address} takes "
                f"{self._request_bytes_max}"
            )
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection, pending = await self._send(operation.key, body, timeout_ms)
                frame = await pending.frame
        except TimeoutError as error:
            text = f"{self.address} did not answer {operation.name} within {timeout_ms} ms"
            if connection is None:
                raise CommitFailed(text) from error
            self._drop_if_overdue(connection)
            raise operation.unanswered(text) from error
        if frame is None:
            raise operation.unanswered(f"{self.address}, {operation.name}: {connection.lost}")
        try:
            answers, call_error = operation.decode_response(request, _response_body(frame))
        except InvalidRequest as error:
            connection.drop(f"no answer to {operation.name}: {error}")
            raise operation.unanswered(f"{self.address}: {error}") from error
        if call_error is not None:
            raise call_error
        return answers

    async def _send(self, key: int, body: bytes, timeout_ms: int) -> tuple[Connection, _Pending]:
        """Write a request behind all earlier ones. Raises: CommitFailed, Overloaded."""
        in_flight = self.in_flight
        if in_flight >= self._in_flight_max:
            raise Overloaded(f"{in_flight} calls of {self.address} are under way")
        self._waiting += 1
        try:
            async with self._sending:
                connection = await self._connected()
                unsent_bytes = connection.unsent_bytes
                if unsent_bytes and unsent_bytes + len(body) > UNSENT_BYTES_MAX:
                    raise Overloaded(f"{self.address} does not take its requests")
                pending = self._next_pending(timeout_ms / 1000)
                connection.send(pending, self._frame(key, _VERSION, NO_TAGS + body))
                return connection, pending
        finally:
            self._waiting -= 1

    def _next_pending(self, timeout_s: float) -> _Pending:
        self._correlation_id = (self._correlation_id + 1) & _INT32_MAX
        return _Pending(self._correlation_id, self._clock.monotonic() + timeout_s + OVERDUE_S)

    def _frame(self, key: int, version: int, rest: bytes) -> bytes:
        """`rest` is what follows the client id: the tags of the header, if it has any, and more."""
        length = _REQUEST_START.size - _FRAME_LENGTH.size + len(self._client_id) + len(rest)
        start = _REQUEST_START.pack(
            length, key, version, self._correlation_id, len(self._client_id)
        )
        return b"".join((start, self._client_id, rest))

    # --- the connection

    async def connect(self) -> None:
        """Connect, and log in, without asking anything. Raises CommitFailed, LoginRefused."""
        async with self._sending:
            await self._connected()

    async def _connected(self) -> Connection:
        """The connection, made if need be. Raises CommitFailed, LoginRefused."""
        if self._connection is not None:
            self._drop_if_overdue(self._connection)
            if self._connection.lost is None:
                is_stale = self._connection.is_stale
                if is_stale is None or not is_stale():
                    return self._connection
                await self._connection.quiet()
                if self._connection.lost is None:
                    self._connection.has_answered = True  # nothing is wrong with the peer
                    self._connection.drop("its log-in is stale")
            self._connection = None
        self._refuse_if_closed()
        wait_s = self._retry_at - self._clock.monotonic()
        if wait_s > 0:
            raise CommitFailed(f"{self.address} does not answer; next attempt in {wait_s:.1f} s")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._connect(self._new_connection, self._host, self._port)
        except (OSError, TimeoutError) as error:
            self._has_failed()
            raise CommitFailed(f"no connection to {self.address}: {error}") from error
        self._ending.add(connection.ended)
        connection.ended.add_done_callback(self._ending.discard)
        if self._is_closed:
            connection.drop("this broker closed it")
            self._refuse_if_closed()
        if connection.lost is not None:
            raise CommitFailed(f"no connection to {self.address}: {connection.lost}")
        if self._log_in is not None:
            await self._logged_in(self._log_in, connection)
        self._connection = connection
        return connection

    async def _logged_in(self, log_in: LogIn, connection: Connection) -> None:
        async def ask(key: int, version: int, rest: bytes) -> bytes:
            if connection.lost is None:
                pending = self._next_pending(LOGIN_TIMEOUT_S)
                connection.send(pending, self._frame(key, version, rest))
                frame = await pending.frame
                if frame is not None:
                    return frame[_FRAME_LENGTH.size :]
            raise CommitFailed(f"{self.address}: no log-in: {connection.lost}")

        is_in = False
        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S):
                connection.is_stale = await log_in(self.address, ask, self._rng)
            is_in = True
        except TimeoutError as error:
            raise CommitFailed(f"{self.address}: no answer to a log-in") from error
        finally:
            # An answer to a log-in does not make a peer one that is of use.
            connection.has_answered = False
            if not is_in:
                connection.drop("there was no log-in")

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise CommitFailed(f"the connection to {self.address} is closed")

    def _new_connection(self) -> Connection:
        return Connection(self._was_lost)

    def _was_lost(self, connection: Connection) -> None:
        """One that was of use is made again at once; else the peer is left alone for a while."""
        if connection.has_answered:
            self._failures = 0
        else:
            self._has_failed()

    def _has_failed(self) -> None:
        pause_s = min(RETRY_FIRST_S * 2 ** min(self._failures, 16), RETRY_MAX_S)
        self._retry_at = self._clock.monotonic() + self._rng.uniform(pause_s / 2, pause_s)
        self._failures += 1

    def _drop_if_overdue(self, connection: Connection) -> None:
        if connection.is_overdue(self._clock.monotonic()):
            connection.drop(f"{self.address} does not answer any more")


def _response_body(frame: bytes) -> bytes:
    """What follows the header. Raises InvalidRequest."""
    header = FieldReader(frame, "response header")
    with reading(header):
        header.skip(_FRAME_LENGTH.size)
        header.skip_tags()
        return header.raw(header.end - header.position)
