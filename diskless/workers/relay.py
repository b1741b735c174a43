"""Passes requests on to the head as they came, and their answers back.

A worker serves by itself what moves records. Everything else, groups and transactions above all,
is the head's: a client of the worker gets a connection of its own to the head when its first such
request comes, with a note of who it is (`diskless.workers.doors`). The head serves it like any
connection, so requests of a client take effect in the order in which it sent them, and asks what
that client may do. What has had nothing to do for IDLE_S is closed, and the next request makes
another; so is what belongs to a client that is gone.

A client may be told of something that this worker has not heard of yet: a topic that it has just
made, say. So answers of the APIs in `NEWS_FIRST` are handed on when all news that the head had sent
until then were taken.

Failure cases: where the head hangs up on a request, its client is hung up on. A head that is gone
ends the worker.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from diskless.ports import ClientInfo
from diskless.server.registry import Api, MustClose, Outcome, Reply, Request
from diskless.workers.doors import Doors, Note
from metadata.clients.wire_client import RESPONSE_BYTES_MAX
from wal.wire.fields import NO_TAGS

IDLE_S: Final = 10.0

NEWS_FIRST: Final = frozenset({3, 19, 20, 21, 30, 31, 33, 37, 44, 49, 51, 75})
"""Metadata, CreateTopics, DeleteTopics, DeleteRecords, CreateAcls, DeleteAcls, AlterConfigs,
CreatePartitions, IncrementalAlterConfigs, AlterClientQuotas, AlterUserScramCredentials,
DescribeTopicPartitions."""

_START: Final = struct.Struct(">ihhi")
"""Frame length, API key, version, correlation id."""
_CLIENT_ID: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")
_CORRELATION_BYTES: Final = 4


class RelayedApi(NamedTuple):
    """What a worker has to know of an API that the head serves."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    """-1: none of its versions is flexible."""
    advertised_min_version: int
    is_advertised: bool

    @classmethod
    def of(cls, api: Api) -> "RelayedApi":
        minimum = api.advertised_min_version
        return cls(
            api.key,
            api.name,
            api.min_version,
            api.max_version,
            -1 if api.flexible_from is None else api.flexible_from,
            api.min_version if minimum is None else minimum,
            api.is_advertised,
        )


class _Upstream(asyncio.Protocol):
    """The connection of one client to the head."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self.is_lost = False
        self.used_at = 0.0

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if not _CORRELATION_BYTES <= length <= RESPONSE_BYTES_MAX or not self._waiting:
                self.close()
                return
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            answer = bytes(memoryview(self._received)[_LENGTH.size : end])
            del self._received[:end]
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(MustClose("the head hung up on a request"))

    def send(self, frame: bytes) -> "asyncio.Future[bytes]":
        assert self._transport is not None
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(frame)
        return answer

    def close(self) -> None:
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()


class _Client:
    """One client's way to the head: requests wait here, in their order, until it is there."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.upstream: _Upstream | None = None
        self.user = ""
        self.waiting = 0
        self.is_gone = False


class Relay:
    """All relayed requests of a worker."""

    def __init__(self, doors: Doors, synced: Callable[[], Awaitable[None]]) -> None:
        """`synced` returns when all was taken that the head had told when it was asked."""
        self._doors = doors
        self._synced = synced
        self._clients: dict[int, _Client] = {}

    def api(self, relayed: RelayedApi) -> Api:
        """An API that is the head's."""

        def handle(request: Request) -> Outcome:
            # The task that the connection makes of this runs in the order of arrival.
            return self._answer(relayed, request)

        return Api(
            key=relayed.key,
            name=relayed.name,
            versions=range(relayed.min_version, relayed.max_version + 1),
            flexible_from=None if relayed.flexible_from < 0 else relayed.flexible_from,
            handler=handle,
            advertised_min_version=relayed.advertised_min_version,
            is_advertised=relayed.is_advertised,
        )

    def gone(self, connection_id: int) -> None:
        """The client has no connection any more; what it asked for is done all the same."""
        client = self._clients.get(connection_id)
        if client is not None:
            client.is_gone = True
            self._close_if_gone(connection_id, client)

    def _close_if_gone(self, connection_id: int, client: _Client) -> None:
        if client.is_gone and not client.waiting:
            self._clients.pop(connection_id, None)
            if client.upstream is not None:
                client.upstream.close()

    async def sweep(self) -> None:
        """Close what nobody uses; until cancelled."""
        while True:
            await asyncio.sleep(IDLE_S / 2)
            now = asyncio.get_running_loop().time()
            for connection_id, client in [*self._clients.items()]:
                upstream = client.upstream
                if client.waiting or (upstream is not None and not upstream.is_idle):
                    continue
                if upstream is None or upstream.is_lost or now - upstream.used_at > IDLE_S:
                    del self._clients[connection_id]
                    if upstream is not None:
                        upstream.close()

    async def _answer(self, relayed: RelayedApi, request: Request) -> Reply:
        client = self._clients.setdefault(request.client.connection_id, _Client())
        client.waiting += 1
        try:
            async with client.lock:
                upstream = await self._upstream(client, request.client)
                answer = upstream.send(_frame(relayed, request))
            response = await answer
        except OSError as error:
            raise MustClose(f"no connection to the head: {error}") from error
        finally:
            client.waiting -= 1
            self._close_if_gone(request.client.connection_id, client)
        if relayed.key in NEWS_FIRST:
            await self._synced()
        is_flexible = 0 <= relayed.flexible_from <= request.version
        body_at = _CORRELATION_BYTES + (len(NO_TAGS) if is_flexible else 0)
        return [memoryview(response)[body_at:]]

    async def _upstream(self, client: _Client, who: ClientInfo) -> _Upstream:
        """Raises OSError."""
        upstream = client.upstream
        if upstream is None or upstream.is_lost or client.user != who.user:
            if upstream is not None:
                upstream.close()
            ours = await self._doors.open(Note.of(who))
            _, upstream = await asyncio.get_running_loop().create_unix_connection(
                _Upstream, sock=ours
            )
            client.upstream = upstream
            client.user = who.user
        upstream.used_at = asyncio.get_running_loop().time()
        return upstream


def _frame(relayed: RelayedApi, request: Request) -> bytes:
    """The request as its client sent it; tags of its header are left out, which say nothing."""
    is_flexible = 0 <= relayed.flexible_from <= request.version
    client_id = request.client.client_id.encode()
    rest = b"".join(
        (
            _CLIENT_ID.pack(len(client_id)),
            client_id,
            NO_TAGS if is_flexible else b"",
            request.body,
        )
    )
    length = _START.size - _LENGTH.size + len(rest)
    start = _START.pack(length, relayed.key, request.version, request.client.request_id)
    return start + rest
