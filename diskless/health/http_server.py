"""A small HTTP server in a thread of its own, for health checks and metrics.

One request a connection: GET or HEAD of a known path, or of one below a known tree. Its own thread
and event loop, because it has to answer when the broker's loop does not turn, and because rendering
a page of metrics takes longer than the broker's loop may be held.

Nobody keeps anybody else out: a connection has RECEIVE_TIMEOUT_S for its whole head of at most
HEAD_BYTES_MAX, and SEND_TIMEOUT_S to read its answer; of more than CONNECTIONS_MAX the oldest is
cut, so that a newcomer always gets in. Work that takes long is the routes' to bound.

Answers: 404 for other paths, 405 for other methods, 400 for what is not HTTP, 431 for too large a
head, 500 when a route fails, which is logged.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import structlog

from diskless.addresses import bound_socket

CONNECTIONS_MAX: Final = 64
HEAD_BYTES_MAX: Final = 8 * 1024
RECEIVE_TIMEOUT_S: Final = 5.0
SEND_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 30.0
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
        receive_timeout_s: float = RECEIVE_TIMEOUT_S,
    ) -> None:
        """`listener` is bound and listens. Routes run on this server's own loop.

        `trees` serve all paths that start like their names.
        """
        self._trees = trees
        self._receive_timeout_s = receive_timeout_s
        self.host, self.port = listener.getsockname()[:2]
        self._listener = listener
        self._routes = routes
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._is_serving = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._connections: dict[asyncio.Task[None], None] = {}
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

            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if self._stop.is_set():
                    writer.transport.abort()
                    return
                while len(self._connections) >= CONNECTIONS_MAX:
                    oldest = next(iter(self._connections))
                    del self._connections[oldest]
                    oldest.cancel()
                task = tasks.create_task(self._serve_one(reader, writer))
                self._connections[task] = None
                task.add_done_callback(lambda done: self._ended(done, writer))

            server = await asyncio.start_server(
                connected, sock=self._listener, limit=HEAD_BYTES_MAX
            )
            self._is_serving.set()
            await self._stop.wait()
            server.close()
            for task in self._connections:
                task.cancel()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer, has_body = await self._answer(reader)
            async with asyncio.timeout(SEND_TIMEOUT_S):
                writer.write(_head_of(answer) + (answer.body if has_body else b""))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the client's own affair: it went away, or is too slow
        except Exception:
            log.exception("an HTTP connection failed")

    def _ended(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        """Also of one that was cut before its task had begun."""
        self._connections.pop(task, None)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[HttpAnswer, bool]:
        """The answer to the connection's request, and whether its body is wanted."""
        try:
            async with asyncio.timeout(self._receive_timeout_s):
                head = await reader.readuntil(_END_OF_HEAD)
            request = parse_head(head)
        except asyncio.LimitOverrunError:
            return plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True
        except _BadRequest:
            return plain(HTTPStatus.BAD_REQUEST), True
        has_body = request.method != "HEAD"
        route = self._routes.get(request.path) or self._tree_of(request.path)
        if route is None:
            known = "".join(f"{path}\n" for path in (*self._routes, *self._trees))
            return plain(HTTPStatus.NOT_FOUND, f"not found; there are\n{known}"), has_body
        if request.method not in _METHODS:
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
    hosts = [value for name, value in headers if name == "host"]
    if len(hosts) > 1:
        raise _BadRequest
    return HttpRequest(method, unquote(parts.path), accept, "".join(hosts), target)


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
