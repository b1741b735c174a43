"""Batches on their way through recompression: each leaves once, in order, come what may."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from uuid import UUID

import pytest

from diskless.replica.batch_lanes import Recompression
from tests.support.batch_builder import Row, build_batch
from wal.chunks.buffer import BufferPool, chain_of
from wal.chunks.chunk import PendingBatch
from wal.coordinates import CREATE_TIME, TopicIdPartition
from wal.errors import CorruptBatch, DisklessError, RecordTooLarge
from wal.records.compression import GZIP, LZ4, NONE, ZSTD
from wal.records.recompression import Compression, recompressed
from wal.records.record_batch import BatchHeader, parse_header, verify_crc

P0, P1 = (TopicIdPartition(UUID(int=1), index) for index in range(2))
DEADLINE_S = 10


class Doors:
    """Recompression that waits until the door of the batch's producer id is opened."""

    def __init__(self) -> None:
        self.doors: dict[int, threading.Event] = {}
        self.failures: dict[int, Exception] = {}

    def shut(self, *producers: int) -> None:
        self.doors.update({producer: threading.Event() for producer in producers})

    def open(self, producer: int) -> None:
        self.doors[producer].set()

    def __call__(
        self,
        payload: Sequence[memoryview],
        header: BatchHeader,
        wanted: Compression,
        *,
        max_bytes: int,
        inflated_bytes_max: int,
    ) -> tuple[BatchHeader, bytes]:
        door = self.doors.get(header.producer_id)
        assert door is None or door.wait(DEADLINE_S)
        if header.producer_id in self.failures:
            raise self.failures[header.producer_id]
        return recompressed(
            payload, header, wanted, max_bytes=max_bytes, inflated_bytes_max=inflated_bytes_max
        )


class Bench:
    """Batches are told apart by their producer id."""

    def __init__(self, doors: Doors, recompression: Recompression, pool: BufferPool) -> None:
        self.doors = doors
        self.recompression = recompression
        self.pool = pool
        self.left: list[tuple[int, int]] = []
        """(producer id, codec) of what was handed on."""
        self.refused: list[tuple[int, DisklessError]] = []

    def send(
        self,
        producer: int,
        codec: int,
        wanted: Compression | None,
        *,
        partition: TopicIdPartition = P0,
        max_bytes: int = 1 << 20,
        size: int = 100,
    ) -> bool:
        data = build_batch([Row(5, None, b"x" * size)], codec=codec, producer_id=producer)
        batch = PendingBatch(
            partition, parse_header(data), CREATE_TIME, 0, chain_of(self.pool, data), None
        )
        taken = self.recompression.takes(
            batch, wanted, max_bytes=max_bytes, hand_on=self._hand_on, refuse=self._refuse
        )
        if not taken:
            self._hand_on(batch)
        return taken

    def _hand_on(self, batch: PendingBatch) -> None:
        data = b"".join(batch.payload.views())
        assert parse_header(data) == batch.header
        verify_crc(data)
        batch.payload.release()
        self.left.append((batch.header.producer_id, batch.header.codec))

    def _refuse(self, batch: PendingBatch, error: DisklessError) -> None:
        batch.payload.release()
        self.refused.append((batch.header.producer_id, error))

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():  # noqa: ASYNC110 - a thread has to come first
                await asyncio.sleep(0.001)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    pool = BufferPool(1 << 20)
    doors = Doors()
    with Recompression(pool, recompress=doors) as recompression:
        bench = Bench(doors, recompression, pool)
        yield bench
        for door in doors.doors.values():
            door.set()
    assert pool.in_use_bytes == 0


async def test_a_batch_that_is_as_wanted_goes_its_way_at_once(bench: Bench) -> None:
    assert not bench.send(1, GZIP, None)
    assert not bench.send(2, GZIP, Compression(GZIP, 9))
    assert not bench.send(3, NONE, Compression(NONE))
    assert bench.left == [(1, GZIP), (2, GZIP), (3, NONE)]


async def test_batches_of_a_partition_leave_in_the_order_in_which_they_came(bench: Bench) -> None:
    bench.doors.shut(1, 3)
    assert bench.send(1, GZIP, Compression(ZSTD))
    # As wanted already, and of a moment when nothing was wanted any more: they wait all the same.
    assert bench.send(2, ZSTD, Compression(ZSTD))
    assert bench.send(3, NONE, Compression(ZSTD))
    assert bench.send(4, LZ4, None)
    assert not bench.send(5, LZ4, None, partition=P1)
    assert bench.left == [(5, LZ4)]
    bench.doors.open(3)
    assert bench.send(6, LZ4, None)
    bench.doors.open(1)
    await bench.until(lambda: len(bench.left) == 6)
    assert bench.left[1:] == [(1, ZSTD), (2, ZSTD), (3, ZSTD), (4, LZ4), (6, LZ4)]
    assert not bench.send(7, LZ4, None)
    assert bench.recompression.batches_recompressed == 2


async def test_partitions_do_not_wait_for_each_other(bench: Bench) -> None:
    bench.doors.shut(1)
    bench.send(1, GZIP, Compression(ZSTD))
    bench.send(2, GZIP, Compression(ZSTD), partition=P1)
    await bench.until(lambda: bench.left == [(2, ZSTD)])
    bench.doors.open(1)
    await bench.until(lambda: bench.left == [(2, ZSTD), (1, ZSTD)])


async def test_a_batch_that_cannot_be_recompressed_is_refused_alone(bench: Bench) -> None:
    bench.doors.shut(1)
    bench.doors.failures = {1: CorruptBatch("bits"), 4: ZeroDivisionError("a bug")}
    bench.send(1, GZIP, Compression(ZSTD))
    bench.send(2, GZIP, Compression(NONE), max_bytes=1_000, size=5_000)
    bench.send(3, GZIP, Compression(ZSTD))
    bench.send(4, GZIP, Compression(ZSTD))
    bench.send(5, GZIP, None)
    bench.doors.open(1)
    await bench.until(lambda: len(bench.left) == 2 and len(bench.refused) == 3)
    assert bench.left == [(3, ZSTD), (5, GZIP)]
    assert [(producer, type(error)) for producer, error in bench.refused] == [
        (1, CorruptBatch), (2, RecordTooLarge), (4, DisklessError),
    ]  # fmt: skip
