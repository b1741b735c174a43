"""A Produce request of very many partitions: answered like any other, and holds up nobody."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from diskless.protocol.produce import PARTITIONS_AT_ONCE
from tests.support.brokers.kafka_fakes import Broker, running_broker
from tests.support.questions.kafka_raw_client import RawClient, a_batch, frame, produce_frame
from wal.errors import CorruptBatch

COUNT = 200 * PARTITIONS_AT_ONCE
LARGE, SMALL = a_batch(fill=1), a_batch(fill=2)
ROW = struct.Struct(">ihqqq")


def large_frame(correlation_id: int, *, acks: int = -1) -> bytes:
    """One batch for one partition, again and again."""
    partition = struct.pack(">ii", 0, len(LARGE)) + LARGE
    body = struct.pack(">hhi", -1, acks, 30_000)
    body += struct.pack(">ih1si", 1, 1, b"t", COUNT) + partition * COUNT
    return frame(0, 5, correlation_id, body)


def rows_of(answer: bytes) -> list[tuple[int, ...]]:
    rows = answer[struct.calcsize(">ih1si") : -4]
    return [*ROW.iter_unpack(rows)]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Broker, RawClient]]:
    async with running_broker(control_request_max_bytes=4 << 20) as broker:
        broker.topics.add("t", partitions=3)
        client = await RawClient.connect(broker.server.address)
        yield broker, client
        await client.close()


async def turns_until(broker: Broker, count: int) -> int:
    """Turns of the event loop until `count` batches were appended."""
    turns = 0
    async with asyncio.timeout(120):
        while len(broker.manager.appended) < count:
            await asyncio.sleep(0)
            turns += 1
    return turns


async def test_every_partition_has_its_answer_in_order() -> None:
    async with serving() as (_, client):
        await client.send(large_frame(1))
        correlation_id, answer = await client.receive()
        assert correlation_id == 1
        assert [(row[1], row[2]) for row in rows_of(answer)] == [(0, n) for n in range(COUNT)]


async def test_others_have_their_turns_while_it_is_decoded() -> None:
    async with serving() as (broker, client):
        begun = asyncio.Event()
        produced = broker.metrics.request_received

        def request_received(api: str, size_bytes: int) -> None:
            produced(api, size_bytes)
            begun.set()

        broker.metrics.request_received = request_received  # type: ignore[method-assign]
        await client.send(large_frame(1))
        await begun.wait()
        assert not broker.manager.appended
        assert await turns_until(broker, COUNT) > 1


@pytest.mark.parametrize("acks", [0, 1])
async def test_what_follows_on_its_connection_comes_behind_it(acks: int) -> None:
    async with serving() as (broker, client):
        last = produce_frame(3, [SMALL], version=5, acks=1)
        await client.send(large_frame(1, acks=acks), large_frame(2, acks=acks), last)
        for number in (3,) if acks == 0 else (1, 2, 3):
            assert (await client.receive())[0] == number
        assert broker.manager.appended == [LARGE] * (2 * COUNT) + [SMALL]


async def test_another_connection_is_not_behind_it() -> None:
    async with serving() as (broker, client):
        other = await RawClient.connect(broker.server.address)
        broker.manager.hold = True
        await client.send(large_frame(1))
        await turns_until(broker, COUNT)
        broker.manager.hold = False
        await other.send(produce_frame(5, [SMALL], version=5))
        assert (await other.receive())[0] == 5
        broker.manager.release_held()
        assert len(rows_of((await client.receive())[1])) == COUNT
        await other.close()


async def test_a_refusal_is_its_answer() -> None:
    async with serving() as (broker, client):
        broker.manager.raises = CorruptBatch("all of it")
        await client.send(large_frame(1))
        rows = rows_of((await client.receive())[1])
        assert [row[1] for row in rows] == [2] * COUNT
        await client.send(large_frame(1, acks=7))
        rows = rows_of((await client.receive())[1])
        assert [row[1] for row in rows] == [21] * COUNT


async def test_a_large_request_that_ends_in_garbage_closes_its_connection_alone() -> None:
    async with serving() as (broker, client):
        body = large_frame(1)[4:-1]
        await client.send(struct.pack(">i", len(body)) + body)
        await client.is_closed_by_server()
        assert broker.manager.appended == []
        other = await RawClient.connect(broker.server.address)
        await other.send(produce_frame(5, [SMALL], version=5))
        assert (await other.receive())[0] == 5
        await other.close()
