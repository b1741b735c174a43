"""Look-ups of timestamps inside of extents: exact, paid for once, within the budget."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from diskless.ports import ListOffsetsResult
from diskless.replica import timestamp_search
from diskless.replica.batch_reader import BatchReader
from diskless.replica.timestamp_search import SEARCHES_MAX, TimestampSearch
from metadata.operations import MAX_TIMESTAMP, ListedOffset, WalExtent
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.chunks.written_records import WrittenRecords
from wal.clock import ManualClock
from wal.coordinates import CREATE_TIME, ByteOffset, ObjectKey, Offset
from wal.errors import CorruptBatch, CorruptObject, ObjectNotFound, StorageFailed
from wal.inflation_budget import InflationBudget
from wal.records.compression import ZSTD
from wal.records.record_scan import scan_bytes
from wal.records.time_index import BatchPlace, TimeIndex
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody
from wal.worker_threads import WorkerThreads

T = 1_700_000_000_000
DEADLINE_S = 120
_numbers = itertools.count()


class Records(WrittenRecords):
    """Counts what is read; reads nothing while its door is shut."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.reads: list[str] = []
        self.door = asyncio.Event()
        self.door.set()

    async def read_extent(self, extent: WalExtent, threads: WorkerThreads) -> memoryview:
        self.reads.append(extent.object_key)
        await self.door.wait()
        return await super().read_extent(extent, threads)


class Bench:
    def __init__(self) -> None:
        self.store = MemoryStore(f"memory://look-{next(_numbers)}", clock=ManualClock(T))
        self.records = Records(self.store)
        self.budget = InflationBudget(1 << 30)
        self.search = TimestampSearch(
            reader=cast(BatchReader, self.records), segments=self.records, budget=self.budget
        )

    async def put(self, *batches: Sequence[int], name: str = "object", **header: int) -> WalExtent:
        """An extent of batches, each of the records with these timestamps after T."""
        rows = [[Row(T + time, b"key", bytes(100)) for time in times] for times in batches]
        data = [
            build_batch(
                each, codec=ZSTD, max_timestamp=max(row.timestamp for row in each), **header
            )
            for each in rows
        ]
        key = ObjectKey(f"wal/00/{name}")
        await self.store.put(key, BytesBody(*data))
        count = sum(map(len, batches))
        times = [time for each in batches for time in each]
        return WalExtent(
            key, ByteOffset(0), sum(map(len, data)), Offset(100), Offset(99 + count), T,
            T + max(times), CREATE_TIME, sum(map(len, data)),
        )  # fmt: skip

    async def look(self, extent: WalExtent, time: int, client: int = 1) -> ListOffsetsResult:
        asked = time if time == MAX_TIMESTAMP else T + time
        listed = ListedOffset(extent.base_offset, extent.max_timestamp_ms, extent=extent)
        async with asyncio.timeout(DEADLINE_S):
            return await self.search.exact(asked, listed, client=client)


def found(offset: int, time: int) -> ListOffsetsResult:
    return ListOffsetsResult(None, offset, T + time)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    async with bench.search:
        yield bench
    assert bench.budget.reserved_bytes == 0


async def test_one_look_answers_for_every_time(bench: Bench) -> None:
    extent = await bench.put([0, 5, 3, 5, 9, 8])
    assert await bench.look(extent, 4) == found(101, 5)
    for time, expected in ((0, (100, 0)), (1, (101, 5)), (5, (101, 5)), (6, (104, 9))):
        assert await bench.look(extent, time) == found(*expected)
    assert await bench.look(extent, MAX_TIMESTAMP) == found(104, 9)
    assert await bench.look(extent, 10) == ListOffsetsResult()
    assert bench.records.reads == [extent.object_key]
    assert bench.search.batches_opened == 1


async def test_only_batches_that_may_hold_the_record_are_opened(bench: Bench) -> None:
    extent = await bench.put([0, 1], [2, 3], [4, 5])
    assert await bench.look(extent, 3) == found(103, 3)
    assert bench.search.batches_opened == 1
    assert await bench.look(extent, MAX_TIMESTAMP) == found(105, 5)
    assert bench.search.batches_opened == 2
    assert await bench.look(extent, 0) == found(100, 0)
    assert bench.search.batches_opened == 3


async def test_looks_at_one_time_share_the_work(bench: Bench) -> None:
    extent = await bench.put([0, 5, 7])
    bench.records.door.clear()
    looks = [asyncio.create_task(bench.look(extent, time % 8, client=time)) for time in range(40)]
    while not bench.records.reads:  # noqa: ASYNC110
        await asyncio.sleep(0)
    looks[0].cancel()  # who asked first; the others still want it
    bench.records.door.set()
    results = await asyncio.gather(*looks[1:])
    expected = {0: found(100, 0)} | dict.fromkeys((1, 2, 3, 4, 5), found(101, 5))
    assert results == [expected.get(time % 8, found(102, 7)) for time in range(1, 40)]
    assert bench.records.reads == [extent.object_key]
    assert bench.search.batches_opened == 1


async def test_clients_take_turns(bench: Bench) -> None:
    extents = [await bench.put([0], name=f"of-one-{number}") for number in range(6)]
    other = await bench.put([0], name="of-another")
    bench.records.door.clear()
    looks = [asyncio.create_task(bench.look(extent, 0)) for extent in extents]
    while len(bench.records.reads) < SEARCHES_MAX:  # noqa: ASYNC110
        await asyncio.sleep(0)
    looks.append(asyncio.create_task(bench.look(other, 0, client=2)))
    await asyncio.sleep(0)
    assert len(bench.records.reads) == SEARCHES_MAX
    bench.records.door.set()
    await asyncio.gather(*looks)
    assert bench.records.reads.index(other.object_key) <= SEARCHES_MAX + 1


async def test_what_is_opened_is_reserved_before(bench: Bench) -> None:
    extents = [await bench.put(range(2_000), name=f"object-{number}") for number in range(4)]
    await asyncio.gather(*(bench.look(extent, 1_500) for extent in extents))
    one = scan_bytes(2_000 * 110, 2_000)
    assert one // 2 < bench.budget.reserved_bytes_peak <= SEARCHES_MAX * 2 * one


async def test_the_budget_is_waited_for(bench: Bench) -> None:
    extent = await bench.put([0, 5])
    async with bench.budget.reserve(1 << 30):
        looking = asyncio.create_task(bench.look(extent, 5))
        while not bench.budget.waiting:  # noqa: ASYNC110 - a thread has to come first
            await asyncio.sleep(0.001)
        assert bench.search.batches_opened == 0
    assert await looking == found(101, 5)


async def test_the_least_recently_used_go_when_too_much_is_known(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timestamp_search, "KNOWN_BYTES_MAX", 3_500)
    extents = [await bench.put([0, 5], name=str(number)) for number in range(4)]
    for extent in (*extents[:3], extents[0], extents[3], extents[0]):
        assert await bench.look(extent, 5) == found(101, 5)
    assert len(bench.records.reads) == 4
    await bench.look(extents[1], 5)
    assert len(bench.records.reads) == 5


async def test_a_header_that_lies_leads_on_to_the_next_batch(bench: Bench) -> None:
    extent = await bench.put([0, 1], [2, 8])
    lying = build_batch([Row(T), Row(T + 1)], max_timestamp=T + 8)
    honest = build_batch([Row(T + 2), Row(T + 8)], max_timestamp=T + 8)
    await bench.store.put(ObjectKey("wal/00/lies"), BytesBody(lying, honest))
    extent = extent._replace(
        object_key=ObjectKey("wal/00/lies"), length_bytes=len(lying) + len(honest)
    )
    assert await bench.look(extent, 7) == found(103, 8)
    assert await bench.look(extent, 7) == found(103, 8)
    assert bench.search.batches_opened == 2


async def test_errors_are_the_answer_and_nothing_is_remembered(bench: Bench) -> None:
    extent = await bench.put([0, 5])
    missing = extent._replace(object_key=ObjectKey("wal/00/missing"))
    assert isinstance((await bench.look(missing, 0)).error, ObjectNotFound)
    odd = extent._replace(last_offset=Offset(500))
    assert isinstance((await bench.look(odd, 0)).error, CorruptObject)
    data = build_batch([Row(T + 5)], codec=ZSTD, record_count=3, max_timestamp=T + 5)
    await bench.store.put(ObjectKey("wal/00/bad"), BytesBody(data))
    bad = extent._replace(
        object_key=ObjectKey("wal/00/bad"), length_bytes=len(data), last_offset=Offset(102)
    )
    for _ in range(2):
        result = await bench.look(bad, 5)
        assert isinstance(result.error, CorruptBatch)
    assert bench.search.batches_opened == 2


async def test_at_the_end_nobody_is_left_waiting() -> None:
    bench = Bench()
    async with bench.search:
        extent = await bench.put([0, 5])
        bench.records.door.clear()
        looking = asyncio.create_task(bench.look(extent, 5))
        while not bench.records.reads:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert isinstance((await looking).error, StorageFailed)


def test_control_batches_have_no_time() -> None:
    rows = [[Row(T + time)] for time in (1, 9, 3)]
    attributes = (0, 0x20, 0)
    data = b"".join(
        build_batch(each, attributes=bits) for each, bits in zip(rows, attributes, strict=True)
    )
    index = TimeIndex.of(data, base_offset=10, last_offset=12)
    for time, number in ((0, 0), (2, 2), (3, 2)):
        place = index.first_at_or_after(T + time)
        assert isinstance(place, BatchPlace)
        assert (place.number, place.base_offset) == (number, 10 + number)
    assert index.first_at_or_after(T + 4) is None
    assert index.largest(T + 9) is None
