"""A small HTTP server in a thread of its own, for health checks and metrics.

One request a connection: GET or HEAD of a known path, or of one below a known tree, or POST of a
known path. Its own thread
and event loop, because it has to answer when the broker's loop does not turn, and because rendering
a page of metrics takes longer than the broker's loop may be held.

With `tls` it is https; each connection gets the context that is asked for when it comes, so keys
are replaced without a restart. Handshakes cost milliseconds before anybody is known: no more than
`handshakes_per_s` begin in a second, after a burst of as many; who comes then waits in the queue of
the system.

Nobody keeps anybody else out: a connection counts from when it is accepted. It has
RECEIVE_TIMEOUT_S for a handshake, and again for its whole request, a head of at most HEAD_BYTES_MAX
and BODY_BYTES_MAX behind it, and SEND_TIMEOUT_S to read its answer; of more than CONNECTIONS_MAX
the oldest is cut, so that a newcomer always gets in. Work that takes long is the routes' to bound.

Answers: 404 for other paths, 405 for other methods, 400 for what is not HTTP, 431 for too large a
head, 413 for too large a body, 411 for one without a length, 500 when a route fails, which is
logged.
"""

import asyncio
import functools
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import structlog

from diskless.addresses import bound_socket
from wal.clock import Sleep

CONNECTIONS_MAX: Final = 64
HEAD_BYTES_MAX: Final = 16 * 1024
"""A token of an authorization server may take half of it."""
BODY_BYTES_MAX: Final = 8 * 1024
RECEIVE_TIMEOUT_S: Final = 5.0
SEND_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 30.0
ACCEPT_AGAIN_S: Final = 0.1
HANDSHAKES_PER_S: Final = 300
_HANDSHAKE_BURST_S: Final = 1.0
_TLS_END_S: Final = 1.0
_LENGTH_DIGITS_MAX: Final = 10
_METHODS: Final = ("GET", "HEAD")
_END_OF_HEAD: Final = b"\r\n\r\n"

log = structlog.get_logger(__name__)


class HttpRequest(NamedTuple):
    """What a route may look at."""

    method: str
    path: str
    accept: str
    """The Accept header; empty when there is none."""
    host: str = ""
    """The Host header; empty when there is none."""
    target: str = ""
    """Path and query as they were sent, still encoded."""
    authorization: str = ""
    """The Authorization header; empty when there is none. It is a secret."""
    body_bytes: int | None = None
    """The length that the headers give the body; None where they give none."""
    body: bytes = b""
    peer: str = ""
    """The address of who asks."""
    certificate: bytes | None = None
    """The client's, in DER; None where it showed none."""


class HttpAnswer(NamedTuple):
    """A whole answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = {}


Route = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class _BadRequest(Exception):
    """Not a request that this server reads."""


class HttpServer:
    """Serves `routes` on `listener` from `with` to its end, and closes the listener."""

    def __init__(
        self,
        listener: socket.socket,
        routes: Mapping[str, Route],
        *,
        trees: Mapping[str, Route] = MappingProxyType({}),
        posts: Mapping[str, Route] = MappingProxyType({}),
        tls: Callable[[], ssl.SSLContext] | None = None,
        handshakes_per_s: float = HANDSHAKES_PER_S,
        receive_timeout_s: float = RECEIVE_TIMEOUT_S,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`listener` is bound and listens. Routes run on this server's own loop, as `sleep` does.

        `trees` serve all paths that start like their names, `posts` the method POST alone.
        """
        self._trees = trees
        self._posts = posts
        self._tls = tls
        self._handshake_interval_s = 1 / handshakes_per_s
        self._next_at = 0.0
        """When the next handshake would be due if they came evenly, by the loop's clock."""
        self._sleep = sleep
        self._receive_timeout_s = receive_timeout_s
        self.host, self.port = listener.getsockname()[:2]
        self._listener = listener
        self._routes = routes
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._is_serving = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        """In the order in which they came."""

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._is_serving.wait(START_TIMEOUT_S):
            raise RuntimeError("the HTTP server's thread does not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            accepting = tasks.create_task(self._accept(tasks))
            self._is_serving.set()
            await self._stop.wait()
            accepting.cancel()
            await asyncio.wait([accepting])
            self._listener.close()
            for task in self._connections:
                task.cancel()

    async def _accept(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._listener)
            except OSError:
                # No descriptor is left, or whoever came is gone again.
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            while len(self._connections) >= CONNECTIONS_MAX:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                oldest.cancel()
            task = tasks.create_task(self._serve_one(client, str(address[0])))
            self._connections[task] = client
            task.add_done_callback(functools.partial(self._ended, client))
            if self._tls is not None:
                self._next_at = max(self._next_at, loop.time()) + self._handshake_interval_s
                early_s = self._next_at - loop.time() - _HANDSHAKE_BURST_S
                if early_s > 0:
                    await self._sleep(early_s)

    def _ended(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        """Also of one that was cut before its task had begun."""
        self._connections.pop(task, None)
        client.close()

    async def _serve_one(self, client: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=HEAD_BYTES_MAX, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport: asyncio.BaseTransport | None = None
        try:
            # A copy: the transport closes the socket that it is given, and when is its own affair.
            transport, _ = await self._connected(client.dup(), protocol)
            assert isinstance(transport, asyncio.Transport)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            answer, has_body = await self._answer(reader, peer, _certificate(transport))
            async with asyncio.timeout(SEND_TIMEOUT_S):
                writer.write(_head_of(answer) + (answer.body if has_body else b""))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the client's own affair: it went away, is too slow, or does not speak TLS
        except Exception:
            log.exception("an HTTP connection failed")
        finally:
            if isinstance(transport, asyncio.Transport):
                transport.abort()

    async def _connected(
        self, client: socket.socket, protocol: asyncio.Protocol
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            return await loop.connect_accepted_socket(lambda: protocol, client)
        return await loop.connect_accepted_socket(
            lambda: protocol,
            client,
            ssl=self._tls(),
            ssl_handshake_timeout=self._receive_timeout_s,
            ssl_shutdown_timeout=_TLS_END_S,
        )

    async def _answer(
        self, reader: asyncio.StreamReader, peer: str, certificate: bytes | None
    ) -> tuple[HttpAnswer, bool]:
        """The answer to the connection's request, and whether its body is wanted."""
        try:
            async with asyncio.timeout(self._receive_timeout_s):
                head = await reader.readuntil(_END_OF_HEAD)
                request = parse_head(head)._replace(peer=peer, certificate=certificate)
                post = self._posts.get(request.path) if request.method == "POST" else None
                if post is not None:
                    if request.body_bytes is None:
                        return plain(HTTPStatus.LENGTH_REQUIRED), True
                    if request.body_bytes > BODY_BYTES_MAX:
                        return plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE), True
                    body = await reader.readexactly(request.body_bytes)
                    request = request._replace(body=body)
        except asyncio.LimitOverrunError:
            return plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True
        except _BadRequest:
            return plain(HTTPStatus.BAD_REQUEST), True
        has_body = request.method != "HEAD"
        route = post or self._routes.get(request.path) or self._tree_of(request.path)
        if route is None:
            known = "".join(f"{path}\n" for path in (*self._routes, *self._trees))
            return plain(HTTPStatus.NOT_FOUND, f"not found; there are\n{known}"), has_body
        if post is None and request.method not in _METHODS:
            refused = plain(HTTPStatus.METHOD_NOT_ALLOWED)
            return refused._replace(headers={"Allow": ", ".join(_METHODS)}), has_body
        try:
            return await route(request), has_body
        except Exception:
            log.exception("an HTTP request failed", path=request.path)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR), has_body

    def _tree_of(self, path: str) -> Route | None:
        return next((of for start, of in self._trees.items() if path.startswith(start)), None)


def bind_http(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises: OSError."""
    bound = bound_socket(host, port)
    try:
        # Listening at once: until one of them does, two sockets may be bound to one port.
        bound.listen(CONNECTIONS_MAX)
    except BaseException:
        bound.close()
        raise
    return bound


def plain(status: HTTPStatus, text: str = "") -> HttpAnswer:
    """An answer of some lines; the status's own words when `text` is empty."""
    return HttpAnswer(status, (text or f"{status.phrase.lower()}\n").encode())


def parse_head(head: bytes) -> HttpRequest:
    """The request line and the headers that count. Raises _BadRequest."""
    try:
        first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = first.split(" ")
        parts = urlsplit(target)
    except ValueError as error:
        raise _BadRequest from error
    if not version.startswith("HTTP/1.") or not method.isalpha() or not target.startswith("/"):
        raise _BadRequest
    split = (line.partition(":") for line in lines)
    headers = [(name.lower(), value.strip()) for name, _, value in split]
    accept = ",".join(value for name, value in headers if name == "accept")
    return HttpRequest(
        method,
        unquote(parts.path),
        accept,
        _only(headers, "host"),
        target,
        _only(headers, "authorization"),
        _length(_only(headers, "content-length")),
    )


def _only(headers: Sequence[tuple[str, str]], wanted: str) -> str:
    """The value of a header that may come once. Raises _BadRequest."""
    values = [value for name, value in headers if name == wanted]
    if len(values) > 1:
        raise _BadRequest
    return "".join(values)


def _length(text: str) -> int | None:
    """Raises _BadRequest."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > _LENGTH_DIGITS_MAX:
        raise _BadRequest
    return int(text)


def _certificate(transport: asyncio.BaseTransport) -> bytes | None:
    tls = transport.get_extra_info("ssl_object")
    certificate: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
    return certificate


def _head_of(answer: HttpAnswer) -> bytes:
    headers = {
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        "Cache-Control": "no-store",
        "Connection": "close",
        **answer.headers,
    }
    status = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
    return (status + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n").encode()
