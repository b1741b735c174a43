"""Calls over a wire client to a server that answers as its script says."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from metadata import operations as ops
from metadata.clients.wire_client import Connect, WireClient, connect_tcp
from tests.support.wire.wire_server import Received, WireServer
from wal.clock import Clock, ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition

PARTITION = TopicIdPartition(UUID(int=1), 0)
READ = [ops.ListOffsets(PARTITION, -1)]
FILE = ops.CommitFile(
    object_key=ObjectKey("wal/00/X"), file_size_bytes=1, uploader_broker_id=1, batches=[]
)
SOON_MS = 50
"""Long enough to connect to this machine, short enough to wait for."""

Script = Callable[[Received], Awaitable[None]]


async def nothing(received: Received) -> None:
    """Never answers."""


async def at_once(received: Received) -> None:
    """Answers with success, and with the timestamp that was asked about as the offset."""
    answers: Sequence[Any] = []
    if received.operation.name == "DisklessListOffsets":
        answers = [ops.ListedOffset(request.timestamp) for request in received.asked]
    elif received.operation.name == "DisklessDeleteRecords":
        answers = [ops.DeletedRecords(request.before_offset) for request in received.asked]
    received.writer.write(received.response(answers))


def client_of(server: WireServer, clock: Clock | None = None, **limits: Any) -> WireClient:
    return WireClient(
        "127.0.0.1", server.port, clock=clock or ManualClock(), rng=random.Random(1), **limits
    )


@asynccontextmanager
async def connected(
    script: Script, clock: Clock | None = None, **limits: Any
) -> AsyncIterator[tuple[WireClient, WireServer]]:
    async with WireServer(script) as server, client_of(server, clock, **limits) as client:
        yield client, server


async def offset_of(client: WireClient, number: int = 7, timeout_ms: int = 60_000) -> int:
    """Ask a question whose right answer is `number`."""
    (answer,) = await client.list_offsets(
        [ops.ListOffsets(PARTITION, number)], timeout_ms=timeout_ms
    )
    return answer.offset


def a_door() -> tuple[asyncio.Event, Connect]:
    """A way to connect that opens when the event is set."""
    opened = asyncio.Event()

    async def slowly(*arguments: Any) -> Any:
        await opened.wait()
        return await connect_tcp(*arguments)

    return opened, slowly
