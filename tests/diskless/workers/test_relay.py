"""Requests that a worker passes on: for whom, on which connection, and when that ends."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence

import pytest

from diskless.loop.early_end import EarlyEnd
from diskless.ports import ClientInfo
from diskless.server.registry import MustClose, Reply, Request
from diskless.workers.doors import CLIENT, DoorKeeper, Doors, Note
from diskless.workers.relay import Relay, RelayedApi
from tests.support.loops.until import until

LIST_GROUPS = RelayedApi(16, "ListGroups", 0, 4, 3, 0, True)
HOSTILE = b'{"purpose": "client", "user": "admin"}'


class Head:
    """Takes connections; answers when it is told to."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.came: list[tuple[Note, socket.socket]] = []
        self._keeper = DoorKeeper(ours, lambda note, end: self.came.append((note, end)))
        self._worker_end = theirs
        self.relay = Relay(Doors(theirs), asyncio.Event().wait)
        self._api = self.relay.api(LIST_GROUPS)

    def ask(self, client: ClientInfo, body: bytes = b"") -> "asyncio.Task[Reply]":
        request = Request(
            version=0,
            client=client,
            body=body,
            wake=EarlyEnd(),
            reserve=lambda size: size,
            mute=lambda until: None,
        )
        answer = self._api.handler(request)
        return asyncio.ensure_future(answer)  # type: ignore[arg-type]

    async def read(self, number: int) -> bytes:
        loop = asyncio.get_running_loop()
        (length,) = struct.unpack(">i", await loop.sock_recv(self.came[number][1], 4))
        return await loop.sock_recv(self.came[number][1], length)

    async def answer(self, number: int, body: bytes) -> None:
        await self.read(number)
        frame = struct.pack(">ii", 4 + len(body), 0) + body
        await asyncio.get_running_loop().sock_sendall(self.came[number][1], frame)

    async def is_closed(self, number: int) -> bool:
        async with asyncio.timeout(60):
            return await asyncio.get_running_loop().sock_recv(self.came[number][1], 1) == b""

    def close(self) -> None:
        self._keeper.close()
        self._worker_end.close()
        for _, end in self.came:
            end.close()


@pytest.fixture
async def head() -> AsyncIterator[Head]:
    head = Head()
    yield head
    head.close()


def client(number: int, user: str = "ann", client_id: str = "app") -> ClientInfo:
    return ClientInfo(number, client_id, "10.0.0.1", user, "OUTSIDE", request_id=7)


def notes(head: Head) -> Sequence[Note]:
    return [note for note, _ in head.came]


async def test_each_client_has_a_connection_that_says_who_it_is_whatever_it_writes(
    head: Head,
) -> None:
    hostile = client(1, client_id=HOSTILE.decode())
    asked = [head.ask(hostile, HOSTILE), head.ask(client(2, "bob"))]
    await until(lambda: len(head.came) == 2)
    assert notes(head) == [
        Note(CLIENT, "10.0.0.1", "ann", "OUTSIDE", 1),
        Note(CLIENT, "10.0.0.1", "bob", "OUTSIDE", 2),
    ]
    request = await head.read(0)
    # Key, version, correlation id, client id, body: as they came, and nothing else.
    size = len(HOSTILE)
    assert request == struct.pack(">hhih", 16, 0, 7, size) + HOSTILE + HOSTILE
    head.came[0][1].close()
    with pytest.raises(MustClose):
        await asked[0]
    await head.answer(1, b"for bob")
    assert [bytes(part) for part in await asked[1]] == [b"for bob"]


async def test_a_client_that_becomes_somebody_else_gets_another_connection(head: Head) -> None:
    first = head.ask(client(1, "ann"))
    await until(lambda: len(head.came) == 1)
    await head.answer(0, b"")
    await first
    second = head.ask(client(1, "bob"))
    await until(lambda: len(head.came) == 2)
    assert [note.user for note in notes(head)] == ["ann", "bob"]
    assert await head.is_closed(0)
    await head.answer(1, b"")
    await second


async def test_what_a_client_had_ends_with_it_once_its_request_was_answered(head: Head) -> None:
    asked = [head.ask(client(1)), head.ask(client(2))]
    await until(lambda: len(head.came) == 2)
    await head.answer(0, b"")
    await asked[0]
    head.relay.gone(1)
    assert await head.is_closed(0)
    head.relay.gone(2)
    head.relay.gone(3)
    assert not asked[1].done()
    await head.answer(1, b"late")
    assert [bytes(part) for part in await asked[1]] == [b"late"]
    assert await head.is_closed(1)
