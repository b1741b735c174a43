"""A whole broker whose store is away: who stops whom, and what memory there is meanwhile.

Sealed chunks fill `wal.buffer.max.bytes`; then the write loop waits for the uploader, its queue
keeps the receive buffers, these fill `queued.max.request.bytes`, and connections stop reading.
"""

import asyncio
import random
import struct
from pathlib import Path

import psutil
import pytest

from diskless.broker import running_broker
from diskless.config import load_config
from metadata.operations import CreateTopic
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.questions.kafka_raw_client import RawClient, produce_frame
from wal.clock import Clock, SystemClock
from wal.coordinates import ObjectKey
from wal.errors import ObjectStoreUnavailable
from wal.stores.file_store import FileStoreSettings
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import ObjectBody
from wal.stores.s3_settings import S3Settings

pytestmark = pytest.mark.measures

KIB = 1 << 10
MIB = 1 << 20

LISTEN = {"http.listen": "", "listeners": "PLAINTEXT://127.0.0.1:0"}
LIMITS = {
    "wal.buffer.max.bytes": 4 * MIB,
    "wal.chunk.max.bytes": 512 * KIB,
    "wal.chunk.max.batches": 1000,
    "queued.max.request.bytes": 4 * MIB,
    "socket.request.max.bytes": 1 * MIB,
    "wal.append.queue.max.bytes": 8 * MIB,
    "max.connections": 32,
    "wal.retry.backoff.ms": 1,
    "wal.retry.backoff.max.ms": 5,
}
ONE_ADDRESS = LIMITS["queued.max.request.bytes"] // 2
"""What the clients, all of one address, may hold together."""
CLIENTS = 5
FRAMES = 60
BATCH_BYTES = 100 * KIB
RETRIES = 300
SETTLED_AFTER = 50
"""Failed puts during which nothing moved: what was on its way to the disk has arrived."""
RSS_TOLERANCE = 8 * MIB
"""What an interpreter that does the same thing all the time may move."""


class StoreThatMayBeAway(MemoryStore):
    """Every put fails while `is_away`; each counts."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.is_away = True
        self.failed = 0
        self.changed = asyncio.Condition()

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        if not self.is_away:
            await super().put(key, body)
            return
        self.failed += 1
        async with self.changed:
            self.changed.notify_all()
        raise ObjectStoreUnavailable("the store is away")

    async def until_failed(self, count: int) -> None:
        async with asyncio.timeout(120), self.changed:
            await self.changed.wait_for(lambda: self.failed >= count)


async def test_memory_stays_where_it_was_and_everything_is_answered_afterwards(
    tmp_path: Path,
) -> None:
    stores: list[StoreThatMayBeAway] = []

    def opener(
        url: str,
        *,
        clock: Clock,
        rng: random.Random,
        file_settings: FileStoreSettings,
        s3_settings: S3Settings,
    ) -> StoreThatMayBeAway:
        stores.append(StoreThatMayBeAway(clock))
        return stores[0]

    settings = {key: str(value) for key, value in LIMITS.items()}
    running = running_broker(
        load_config(overrides={**LISTEN, **settings}),
        data=tmp_path / "data",
        clock=SystemClock(),
        rng=random.Random(7),
        opener=opener,
    )
    async with running as broker:
        (store,) = stores
        clients = [
            await RawClient.connect((broker.base.host, broker.base.port)) for _ in range(CLIENTS)
        ]
        await broker.coordination.client.create_topics([CreateTopic(name="t", partition_count=1)])
        batch = build_batch([Row(0, None, random.Random(1).randbytes(BATCH_BYTES))])
        frames = [produce_frame(n, [batch], timeout_ms=60_000) for n in range(FRAMES)]
        sending = [asyncio.create_task(client.send(*frames)) for client in clients]

        def is_full() -> bool:
            """The disk, then the queue, then the budget: nothing moves any more."""
            return (
                broker.writes.uploader.waiting_bytes > LIMITS["wal.buffer.max.bytes"] - MIB
                and broker.writes.write_loop.statistics().queued_bytes > MIB // 2
                and broker.server.statistics().connections_waiting == CLIENTS
            )

        still = 0
        before = None
        async with asyncio.timeout(120):
            while still < SETTLED_AFTER:
                await store.until_failed(store.failed + 1)
                now = (broker.writes.write_loop.statistics(), broker.server.statistics())
                still = still + 1 if now == before and is_full() else 0
                before = now
        process = psutil.Process()
        resident = process.memory_info().rss
        held = []
        for more in range(store.failed, store.failed + RETRIES):
            await store.until_failed(more)
            held.append(broker.server.statistics().request_bytes_held)
        assert min(held) >= ONE_ADDRESS * 3 // 4
        assert max(held) < ONE_ADDRESS + MIB
        assert process.memory_info().rss < resident + RSS_TOLERANCE
        assert broker.server.statistics().connections_waiting == CLIENTS
        assert broker.writes.write_loop.statistics().overloaded == 0

        store.is_away = False
        offsets = []
        for client in clients:
            for number in range(FRAMES):
                answered, body = await client.receive()
                assert answered == number
                error, offset = error_and_offset(body)
                assert error == 0
                offsets.append(offset)
        assert sorted(offsets) == list(range(CLIENTS * FRAMES))
        await asyncio.gather(*sending)
        assert broker.server.statistics().request_bytes_held == 0
        assert broker.storage.pool.in_use_bytes == 0
        assert broker.writes.write_loop.statistics().overloaded == 0
        for client in clients:
            await client.close()


def error_and_offset(body: bytes) -> tuple[int, int]:
    """Of a Produce v9 answer for partition 0 of topic "t"."""
    start = 1 + 1 + 2 + 1  # header tags, topics, name, partitions
    _, error, offset = struct.unpack_from(">ihq", body, start)
    return error, offset
