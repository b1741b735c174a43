"""A listener with coordinators that note what they are asked, and answer what a test says."""

import asyncio
import random
import re
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from diskless.api import RunningOperations, coordinator_apis
from diskless.authorization import AllowEverything, Authorizer
from diskless.ports import ListOffsetsResult
from diskless.server.registry import ApiRegistry
from metadata import operations as ops
from metadata.clients.coordinator_client import TIMEOUT_MS, CoordinatorClient
from metadata.clients.wire_client import WireClient
from metadata.messages.codec import Operation
from tests.support.brokers.kafka_fakes import running_broker
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.wire.kip_1164_schemas import SCHEMAS, Field, decode, encode
from wal.clock import SystemClock
from wal.coordinates import ByteOffset, ObjectKey, Offset
from wal.errors import (
    CorruptObject,
)

A, B = UUID(int=0xA), UUID(int=0xB)
KEY = ObjectKey("wal/00/X")
EXTENT = ops.WalExtent(KEY, ByteOffset(0), 9, Offset(5), Offset(9), 1, 50, 0, 100)


class Coordinators(CoordinatorClient):
    """Answers each operation with what a test put there, or fails, or waits until it is let go."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, int]] = []
        self.answers: dict[str, Any] = {}
        self.usual: Any = None
        self.error: BaseException | None = None
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.finished: list[str] = []

    async def call(
        self, operation: Operation[Any, Any], request: Any, *, timeout_ms: int = TIMEOUT_MS
    ) -> Any:
        plain = operation.name.removeprefix("Diskless").removeprefix("Coordinator")
        name = re.sub(r"(?<=.)(?=[A-Z])", "_", plain).lower()
        self.calls.append((name, request, timeout_ms))
        await self.let_go.wait()
        self.finished.append(name)
        if self.error is not None:
            raise self.error
        return self.answers.get(name, self.usual)


class Search:
    """Finds what is asked of it ten offsets into the extent."""

    async def exact(self, timestamp: int, listed: ops.ListedOffset) -> ListOffsetsResult:
        assert listed.extent is not None
        if timestamp == 666:
            return ListOffsetsResult(error=CorruptObject("damaged"))
        return ListOffsetsResult(None, listed.extent.base_offset + 10, timestamp + 1)


class Serving:
    def __init__(
        self,
        client: WireClient,
        coordinators: Coordinators,
        running: RunningOperations,
        address: tuple[str, int],
        bootstrap: str,
        apis: ApiRegistry,
    ) -> None:
        self.client = client
        self.coordinators = coordinators
        self.running = running
        self.address = address
        self.bootstrap = bootstrap
        self.apis = apis


@asynccontextmanager
async def serving(authorizer: Authorizer | None = None) -> AsyncIterator[Serving]:
    coordinators: Any = Coordinators()
    async with RunningOperations() as running:
        allowed = authorizer or AllowEverything()
        apis = ApiRegistry(coordinator_apis(coordinators, Search(), running, allowed))
        async with running_broker(apis=apis) as broker:
            host, port = broker.server.address
            clock = SystemClock()
            async with WireClient(host, port, clock=clock, rng=random.Random(1)) as client:
                at = (host, port)
                yield Serving(client, coordinators, running, at, broker.bootstrap, apis)


def schema(key: int, kind: str) -> Sequence[Field]:
    (title,) = [title for title in SCHEMAS if title.startswith(f"{key} ") and title.endswith(kind)]
    return SCHEMAS[title]


async def ask(address: tuple[str, int], key: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """A request by somebody who knows the KIP's schemas and nothing else of ours."""
    raw = await RawClient.connect(address)
    header = struct.pack(">hhih", key, 0, 9, 3) + b"kip" + b"\x00"
    body = encode(schema(key, "request"), values)
    await raw.send(struct.pack(">i", len(header) + len(body)) + header + body)
    correlation_id, rest = await raw.receive()
    await raw.close()
    assert (correlation_id, rest[:1]) == (9, b"\x00")
    return decode(schema(key, "response"), rest[1:], skips_tags=True)


def batch_fields(**fields: Any) -> dict[str, Any]:
    return {
        "Magic": 2, "RequestId": 1, "TopicId": A, "PartitionIndex": 0, "ByteOffset": 0, "Size": 70,
        "BaseOffset": 0, "LastOffset": 0, "BatchMaxTimestamp": 5, "TimestampType": 0,
        "ProducerId": -1, "ProducerEpoch": -1, "BaseSequence": -1, "LastSequence": -1, **fields,
    }  # fmt: skip


def codes_of(values: Any) -> Any:
    """Every ErrorCode in a response, in order."""
    if isinstance(values, list):
        for value in values:
            yield from codes_of(value)
    elif isinstance(values, dict):
        if "ErrorCode" in values:
            yield values["ErrorCode"]
        for value in values.values():
            yield from codes_of(value)
