"""Batches that need work first: each leaves once, in order, come what may."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from diskless.broker_metrics import broker_metrics
from diskless.parts.broker_parts import BrokerParts
from diskless.produce.batch_lanes import HANDED_ON_AT_ONCE, THREADS, BatchLanes, CheckedBatch
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.chunks.chains import chain_of
from wal.chunks.buffer import BufferPool
from wal.coordinates import CREATE_TIME, TopicIdPartition
from wal.errors import CorruptBatch, DisklessError, KeysMissing, RecordTooLarge, StorageFailed
from wal.inflation_budget import InflationBudget
from wal.records.batch_preparation import (
    SUMMED_AT_ONCE_BYTES,
    BatchWork,
    NeededWork,
    PreparedBatch,
    needed_work,
)
from wal.records.batch_validation import UNBOUNDED_MS, TopicRules
from wal.records.compression import GZIP, LZ4, NONE, ZSTD
from wal.records.recompression import Compression
from wal.records.record_batch import BatchHeader, parse_header, verify_crc

P0, P1 = (TopicIdPartition(UUID(int=1), index) for index in range(2))
DEADLINE_S = 120
BUDGET_BYTES = 64 << 20
RULES = TopicRules(1 << 20, CREATE_TIME, UNBOUNDED_MS, UNBOUNDED_MS, compacted=False)


class Doors:
    """Work that waits in its thread until the door of the batch's producer id is opened."""

    def __init__(self) -> None:
        self.doors: dict[int, threading.Event] = {}
        self.failures: dict[int, Exception] = {}
        self.memory: dict[int, int] = {}
        """What batches say they take, where that is not the truth."""
        self.begun: list[int] = []

    def shut(self, *producers: int) -> None:
        self.doors.update({producer: threading.Event() for producer in producers})

    def open(self, *producers: int) -> None:
        for producer in producers:
            self.doors[producer].set()

    def __call__(
        self, payload: Sequence[memoryview], header: BatchHeader, needed: NeededWork
    ) -> "WorkBehindDoor":
        return WorkBehindDoor(self, header.producer_id, BatchWork(payload, header, needed))


class WorkBehindDoor:
    def __init__(self, doors: Doors, producer: int, work: BatchWork) -> None:
        self.doors = doors
        self.producer = producer
        self.work = work

    def measure(self) -> int:
        measured = self.work.measure()
        return self.doors.memory.get(self.producer, measured)

    def run(self) -> PreparedBatch:
        self.doors.begun.append(self.producer)
        door = self.doors.doors.get(self.producer)
        assert door is None or door.wait(DEADLINE_S)
        if self.producer in self.doors.failures:
            raise self.doors.failures[self.producer]
        return self.work.run()


class Bench:
    """Batches are told apart by their producer id."""

    def __init__(self, doors: Doors, lanes: BatchLanes, pool: BufferPool) -> None:
        self.doors = doors
        self.lanes = lanes
        self.pool = pool
        self.left: list[tuple[int, int]] = []
        """(producer id, codec) of what was handed on."""
        self.refused: list[tuple[int, DisklessError]] = []

    @property
    def left_producers(self) -> list[int]:
        return [producer for producer, _ in self.left]

    def send(
        self,
        producer: int,
        codec: int,
        wanted: Compression | None,
        *,
        partition: TopicIdPartition = P0,
        client: int = 1,
        rules: TopicRules = RULES,
        size: int = 100,
    ) -> bool:
        data = build_batch(
            [Row(5, None, b"x" * size)], codec=codec, producer_id=producer, base_sequence=0
        )
        header = parse_header(data)
        batch = CheckedBatch(partition, header, CREATE_TIME, 0, chain_of(self.pool, data), None)
        taken = self.lanes.takes(
            batch,
            needed_work(header, rules, wanted, now_ms=5),
            client=client,
            hand_on=self._hand_on,
            refuse=self._refuse,
        )
        if not taken:
            self._hand_on(batch)
        return taken

    def _hand_on(self, batch: CheckedBatch) -> None:
        data = b"".join(batch.payload.views())
        assert parse_header(data) == batch.header
        verify_crc(data)
        batch.payload.release()
        self.left.append((batch.header.producer_id, batch.header.codec))

    def _refuse(self, batch: CheckedBatch, error: DisklessError) -> None:
        batch.payload.release()
        self.refused.append((batch.header.producer_id, error))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - a thread has to come first
            await asyncio.sleep(0.001)


@pytest.fixture
def budget() -> InflationBudget:
    return InflationBudget(BUDGET_BYTES)


@pytest.fixture
async def bench(budget: InflationBudget) -> AsyncIterator[Bench]:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    pool = BufferPool(1 << 20)
    doors = Doors()
    async with BatchLanes(pool, budget, begin=doors) as lanes:
        bench = Bench(doors, lanes, pool)
        yield bench
        doors.open(*doors.doors)
    assert pool.in_use_bytes == 0
    assert budget.reserved_bytes == 0
    assert complaints == []


async def test_a_batch_that_needs_nothing_goes_its_way_at_once(bench: Bench) -> None:
    assert not bench.send(1, GZIP, None)
    assert not bench.send(2, GZIP, Compression(GZIP, 9))
    assert not bench.send(3, NONE, Compression(NONE))
    assert bench.left == [(1, GZIP), (2, GZIP), (3, NONE)]
    assert bench.doors.begun == []


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
    await until(lambda: len(bench.left) == 6)
    assert bench.left[1:] == [(1, ZSTD), (2, ZSTD), (3, ZSTD), (4, LZ4), (6, LZ4)]
    assert not bench.send(7, LZ4, None)
    assert bench.lanes.batches_prepared == 2


async def test_neither_partitions_nor_connections_wait_for_each_other(bench: Bench) -> None:
    bench.doors.shut(1)
    bench.send(1, GZIP, Compression(ZSTD))
    bench.send(2, GZIP, Compression(ZSTD), partition=P1)
    await until(lambda: bench.left_producers == [2])
    bench.send(3, GZIP, Compression(ZSTD), client=2)
    await until(lambda: bench.left_producers == [2, 3])
    assert not bench.send(4, LZ4, None, client=2)
    bench.doors.open(1)
    await until(lambda: bench.left_producers == [2, 3, 4, 1])


async def test_batches_that_are_ready_in_one_turn_leave_together(bench: Bench) -> None:
    bench.doors.shut(1, 2)
    bench.send(1, GZIP, Compression(ZSTD))
    bench.send(2, GZIP, Compression(ZSTD))
    await until(lambda: sorted(bench.doors.begun) == [1, 2])
    bench.doors.open(1, 2)
    # The event loop stands still until both are done, so it hears of both at once.
    threads = bench.lanes._threads
    threads._end()
    for thread in threads._threads:
        thread.join()
    await until(lambda: len(bench.left) == 2)
    assert bench.left == [(1, ZSTD), (2, ZSTD)]


async def test_a_late_call_for_an_emptied_lane_leaves_the_next_one_alone(bench: Bench) -> None:
    bench.doors.shut(1, 2)
    bench.send(1, GZIP, Compression(ZSTD))
    (emptied,) = bench.lanes._lanes.values()
    bench.doors.open(1)
    await until(lambda: bench.left_producers == [1])
    bench.send(2, GZIP, Compression(ZSTD))
    # As when two batches are done before the call for the first, and a request comes before the
    # call for the second.
    bench.lanes._let_leave(emptied)
    assert bench.send(3, GZIP, None)
    bench.doors.open(2)
    await until(lambda: bench.left_producers == [1, 2, 3])


async def test_a_batch_that_turns_out_wrong_is_refused_alone(bench: Bench) -> None:
    bench.doors.shut(1)
    bench.doors.failures = {1: CorruptBatch("bits"), 4: ZeroDivisionError("a bug")}
    small = RULES._replace(max_message_bytes=1_000)
    bench.send(1, GZIP, Compression(ZSTD))
    bench.send(2, GZIP, Compression(NONE), rules=small, size=5_000)
    bench.send(3, GZIP, Compression(ZSTD))
    bench.send(4, GZIP, Compression(ZSTD))
    bench.send(5, GZIP, None)
    bench.send(6, GZIP, None, rules=RULES._replace(compacted=True))
    bench.doors.open(1)
    await until(lambda: len(bench.left) == 2 and len(bench.refused) == 4)
    assert bench.left == [(3, ZSTD), (5, GZIP)]
    assert [(producer, type(error)) for producer, error in bench.refused] == [
        (1, CorruptBatch), (2, RecordTooLarge), (4, DisklessError), (6, KeysMissing),
    ]  # fmt: skip


async def test_a_refusal_keeps_nothing_of_what_the_batch_inflated_to(bench: Bench) -> None:
    bench.send(1, GZIP, None, rules=RULES._replace(compacted=True))
    await until(lambda: len(bench.refused) == 1)
    _, error = bench.refused[0]
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


async def test_a_very_large_batch_is_summed_in_a_thread(bench: Bench) -> None:
    rules = RULES._replace(max_message_bytes=1 << 30)
    assert not bench.send(1, NONE, None, rules=rules, size=SUMMED_AT_ONCE_BYTES - 1_000)
    assert bench.send(2, NONE, None, rules=rules, size=SUMMED_AT_ONCE_BYTES)
    await until(lambda: bench.left_producers == [1, 2])


async def test_who_has_much_work_waits_for_it_himself(bench: Bench) -> None:
    heavy = range(10, 16)
    bench.doors.shut(*heavy)
    for number, producer in enumerate(heavy):
        partition = TopicIdPartition(UUID(int=2), number)
        bench.send(producer, GZIP, Compression(ZSTD), partition=partition, client=1)
    await until(lambda: len(bench.doors.begun) == THREADS)
    bench.send(20, GZIP, Compression(ZSTD), client=2)
    bench.send(30, GZIP, Compression(ZSTD), client=3)
    # Twelve was next when the others came; then each of them has a turn.
    bench.doors.open(10, 12)
    await until(lambda: bench.left_producers == [10, 12, 20, 30])
    await until(lambda: bench.doors.begun == [10, 11, 12, 20, 30, 13])


async def test_what_batches_inflate_to_stays_within_the_budget(
    bench: Bench, budget: InflationBudget
) -> None:
    bench.doors.memory = {1: BUDGET_BYTES * 3 // 4, 2: BUDGET_BYTES * 3 // 4, 3: BUDGET_BYTES * 5}
    bench.doors.shut(1, 2, 3)
    for producer in (1, 2, 3):
        bench.send(producer, GZIP, Compression(ZSTD))
    await until(lambda: bench.doors.begun == [1] and budget.waiting == 1)
    bench.doors.open(1)
    await until(lambda: bench.doors.begun == [1, 2] and budget.waiting == 1)
    assert budget.reserved_bytes_peak == BUDGET_BYTES * 3 // 4
    bench.doors.open(2)
    # Larger than all of the budget: alone.
    await until(lambda: bench.doors.begun == [1, 2, 3])
    assert budget.reserved_bytes == BUDGET_BYTES * 5
    bench.doors.open(3)
    await until(lambda: bench.left_producers == [1, 2, 3])


async def test_the_metrics_show_what_waits_and_for_what(
    bench: Bench, budget: InflationBudget
) -> None:
    parts = cast(
        BrokerParts, SimpleNamespace(reads=SimpleNamespace(lanes=bench.lanes, inflation=budget))
    )
    sources = {source.name: source for source in broker_metrics(parts)}

    def shown() -> list[float]:
        return [
            sources[f"diskless_{name}"].read()[()]
            for name in (
                "inflation_bytes",
                "inflation_waiting",
                "batches_waiting_for_preparation",
                "batches_prepared",
            )
        ]

    bench.doors.memory = dict.fromkeys((1, 2, 3), BUDGET_BYTES * 3 // 4)
    bench.doors.shut(1)
    for producer in (1, 2, 3):
        bench.send(producer, GZIP, Compression(ZSTD))
    await until(lambda: budget.waiting == 1)
    assert shown() == [BUDGET_BYTES * 3 // 4, 1, 1, 0]
    bench.doors.open(1)
    await until(lambda: bench.left_producers == [1, 2, 3])
    assert shown() == [0, 0, 0, 3]


async def test_a_long_lane_leaves_in_several_turns(bench: Bench) -> None:
    count = 5 * HANDED_ON_AT_ONCE
    bench.doors.shut(1)
    bench.send(1, GZIP, Compression(ZSTD))
    for number in range(count):
        bench.send(2 + number, GZIP, None)
    bench.doors.open(1)
    seen: set[int] = set()
    async with asyncio.timeout(DEADLINE_S):
        while len(bench.left) < count + 1:
            seen.add(len(bench.left))
            await asyncio.sleep(0)
    assert bench.left_producers == list(range(1, count + 2))
    assert len(seen) >= count // HANDED_ON_AT_ONCE  # others had their turns in between


async def test_what_is_left_at_the_end_is_refused(budget: InflationBudget) -> None:
    pool = BufferPool(1 << 20)
    doors = Doors()
    async with BatchLanes(pool, budget, begin=doors) as lanes:
        bench = Bench(doors, lanes, pool)
        doors.shut(1, 2, 3)
        for producer in (1, 2, 3):
            bench.send(producer, GZIP, Compression(ZSTD))
        bench.send(4, GZIP, None)
        await until(lambda: len(doors.begun) == THREADS)
        asyncio.get_running_loop().call_later(0, doors.open, 1, 2, 3)
    assert bench.left == []
    assert [(producer, type(error)) for producer, error in bench.refused] == [
        (producer, StorageFailed) for producer in (1, 2, 3, 4)
    ]
    assert pool.in_use_bytes == 0
    assert budget.reserved_bytes == 0
