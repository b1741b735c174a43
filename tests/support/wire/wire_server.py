"""The other end of a `WireClient`: a socket server that does what a test says with each request.

    async with WireServer(answer) as server:
        client = WireClient("127.0.0.1", server.port, ...)

`answer` is called with every request in the order of arrival; it answers, or does worse.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from metadata.messages.codec import Operation
from tests.support.samples.coordinator_samples import SAMPLES

OPERATIONS = {samples.operation.key: samples.operation for samples in SAMPLES.values()}


@dataclass
class Received:
    """A request, decoded, and the connection it came from."""

    operation: Operation[Any, Any]
    correlation_id: int
    asked: Any
    timeout_ms: int
    client_id: str
    writer: asyncio.StreamWriter

    def response(self, answers: Any) -> bytes:
        """A whole frame."""
        return self.frame(self.operation.encode_response(self.asked, answers))

    def failure(self, error: Any) -> bytes:
        return self.frame(self.operation.encode_failure(self.asked, error))

    def frame(self, body: bytes, *, correlation_id: int | None = None) -> bytes:
        number = self.correlation_id if correlation_id is None else correlation_id
        return struct.pack(">iiB", len(body) + 5, number, 0) + body

    def hang_up(self) -> None:
        self.writer.transport.abort()


class WireServer:
    """Listens on a free port."""

    def __init__(self, answer: Callable[[Received], Awaitable[None]], *, port: int = 0) -> None:
        self._answer = answer
        self.port = port
        self.connections = 0
        self.received: list[Received] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrival = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        self.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def until_received(self, count: int) -> None:
        """Wait until `count` requests have arrived, over all connections."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.received) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                received = _parse(await reader.readexactly(length), writer)
                self.received.append(received)
                async with self._arrival:
                    self._arrival.notify_all()
                await self._answer(received)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the test is over, or the client gone
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()


def _parse(frame: bytes, writer: asyncio.StreamWriter) -> Received:
    key, version, correlation_id, name_length = struct.unpack_from(">hhih", frame)
    assert version == 0
    client_id = frame[10 : 10 + name_length].decode()
    assert frame[10 + name_length] == 0, "no tagged fields in the header"
    asked, timeout_ms = OPERATIONS[key].decode_request(frame[11 + name_length :])
    return Received(OPERATIONS[key], correlation_id, asked, timeout_ms, client_id, writer)
