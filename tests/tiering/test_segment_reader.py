"""The reader: which bytes it asks for, what it keeps, and that damage is never served."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiering_samples import (
    SampleBatch,
    SampleRecord,
    extent_of,
    file_store,
    plan_of,
    put_wal_object,
    range_reader,
    read_batch,
)

from metadata.operations import SegmentExtent
from tiering.roll import RollSettings, roll
from tiering.segment_reader import SegmentReader, SegmentReaderSettings, TimestampPosition
from tiering.segment_verification import verify_segment
from wal.coordinates import ObjectKey, Offset
from wal.errors import CorruptSegment, ObjectStoreUnavailable
from wal.stores.object_store import BytesBody

RNG = random.Random(3)
# 40 batches of 10 records; timestamps wander, so that the first match is not found by bisection.
BATCHES = [
    SampleBatch(
        [
            SampleRecord(b"k%d" % at, RNG.randbytes(100), 1000 * batch + RNG.randrange(3000))
            for at in range(10)
        ]
    )
    for batch in range(40)
]
TIMES = [record.timestamp_ms for batch in BATCHES for record in batch.records]


class Memory:
    """One segment's bytes behind a range reader that a test can hold up or let fail."""

    def __init__(self, content: bytes, extent: SegmentExtent) -> None:
        self.content = content
        self.extent = extent
        self.calls: list[tuple[int, int]] = []
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    async def read(self, key: ObjectKey, start: int, length: int, object_length: int) -> bytes:
        assert (key, object_length) == (self.extent.object_key, len(self.content))
        self.calls.append((start, length))
        self.asked.set()
        await self.gate.wait()
        if self.failure:
            raise self.failure
        return self.content[start : start + length]


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, SegmentExtent]:
    with file_store(tmp_path_factory.mktemp("store")) as store:
        plan = plan_of(put_wal_object(store, "wal/00/object", [BATCHES]))
        segment = roll(plan, store, settings=RollSettings(row_group_bytes=10_000)).segment
        return store.get(segment.object_key), extent_of(segment)


@pytest.fixture
async def memory(rolled: tuple[bytes, SegmentExtent]) -> Memory:
    return Memory(*rolled)


async def test_a_read_starts_with_the_batch_that_holds_the_offset(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        for offset in (0, 9, 10, 205, 399):
            taken = await reader.read(memory.extent, offset, max_bytes=1)
            assert [batch.base_offset for batch in taken] == [offset // 10 * 10]


async def test_a_read_gives_whole_batches_up_to_its_limit(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        everything = await reader.read(memory.extent, 0, max_bytes=1 << 30)
        assert [batch.base_offset for batch in everything] == list(range(0, 400, 10))
        size = sum(len(batch.data) for batch in everything[3:20])
        assert await reader.read(memory.extent, 30, max_bytes=size) == everything[3:20]
        assert await reader.read(memory.extent, 30, max_bytes=size - 1) == everything[3:19]


async def test_a_small_read_asks_for_the_tail_and_one_row_group(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        await reader.read(memory.extent, 200, max_bytes=1)
        await reader.read(memory.extent, 200, max_bytes=1)
        (_, tail_length), (_, group_length) = memory.calls
        assert tail_length <= 64 << 10
        assert group_length < len(memory.content) // 3
        assert reader.statistics().row_groups_decoded == 1
        assert reader.statistics().row_group_hits == 1


async def test_reads_at_the_same_time_share_one_load(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        answers = await asyncio.gather(*(reader.read(memory.extent, 5, 1) for _ in range(20)))
        assert all(answer == answers[0] for answer in answers)
        assert len(memory.calls) == 2


async def test_a_reader_that_goes_on_finds_row_groups_loaded_ahead(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        assert reader.ahead(memory.extent, 0, 1 << 20) is None
        offset = 0
        while offset < 400:
            taken = await reader.read(memory.extent, offset, max_bytes=2000)
            offset = taken[-1].last_offset + 1
            assert reader.ahead(memory.extent, min(offset, 399), 20_000) is not None
            before = len(memory.calls)
        statistics = reader.statistics()
        assert statistics.prefetches == statistics.row_groups_decoded - 1 > 2
        # Nothing was read twice, and the last row groups before they were asked for.
        assert len(memory.calls) == len(set(memory.calls)) == before


async def test_what_is_loaded_ahead_is_bounded_and_says_how_much_the_segment_has(
    memory: Memory,
) -> None:
    async with SegmentReader(memory.read) as reader:
        await reader.read(memory.extent, 0, max_bytes=1)
        assert reader.ahead(memory.extent, 0, 1) == 1
        assert reader.statistics().prefetches == 0
        assert reader.ahead(memory.extent, 0, 1 << 20) == 1 << 20
        assert reader.statistics().prefetches == 3
        rest = reader.ahead(memory.extent, 399, 1 << 20)
        assert rest is not None
        assert 0 < rest < 20_000
        assert reader.ahead(memory.extent._replace(base_offset=Offset(400)), 400, 1) is None


async def test_what_nobody_waits_for_takes_no_room_of_what_is_wanted(memory: Memory) -> None:
    settings = SegmentReaderSettings(cache_bytes=20_000)
    async with SegmentReader(memory.read, settings=settings) as reader:
        await reader.read(memory.extent, 0, max_bytes=1)
        assert reader.ahead(memory.extent, 0, 1 << 20) is None
        assert reader.statistics().prefetches == 1


async def test_what_does_not_fit_the_cache_is_served_and_forgotten(memory: Memory) -> None:
    settings = SegmentReaderSettings(cache_bytes=0)
    async with SegmentReader(memory.read, settings=settings) as reader:
        for _ in range(3):
            assert (await reader.read(memory.extent, 5, max_bytes=1))[0].base_offset == 0
        assert reader.statistics().row_groups_decoded == 3


async def test_partitions_read_in_turn_do_not_throw_each_other_out(
    rolled: tuple[bytes, SegmentExtent],
) -> None:
    content, extent = rolled
    # The cache has room for one row group, of about 10 kB, of each segment and no more.
    extents = [extent._replace(object_key=ObjectKey(f"{at}")) for at in range(8)]

    async def read(key: ObjectKey, start: int, length: int, object_length: int) -> bytes:
        return content[start : start + length]

    async with SegmentReader(read) as reader:
        await reader.read(extent, 0, max_bytes=1 << 30)
        row_groups = reader.statistics().row_groups_decoded
    settings = SegmentReaderSettings(cache_bytes=80_000)
    async with SegmentReader(read, settings=settings) as reader:
        offsets = dict.fromkeys(extents, 0)
        while min(offsets.values()) < 400:
            for one, offset in offsets.items():
                taken = await reader.read(one, offset, max_bytes=1)
                offsets[one] = taken[-1].last_offset + 1
        assert reader.statistics().row_groups_decoded == 8 * row_groups


async def test_a_row_group_that_was_served_to_its_end_goes_before_one_that_was_not(
    rolled: tuple[bytes, SegmentExtent],
) -> None:
    content, first = rolled
    second = first._replace(object_key=ObjectKey("second"))
    reads: list[tuple[ObjectKey, int]] = []

    async def read(key: ObjectKey, start: int, length: int, object_length: int) -> bytes:
        reads.append((key, start))
        return content[start : start + length]

    # Room for two row groups of about 10 kB.
    async with SegmentReader(read, settings=SegmentReaderSettings(cache_bytes=25_000)) as reader:
        await reader.read(second, 0, max_bytes=1)
        offset = 0
        while offset < 150:  # into the second row group
            taken = await reader.read(first, offset, max_bytes=1)
            offset = taken[-1].last_offset + 1
        await reader.read(second, 10, max_bytes=1)
        assert reads.count((second.object_key, 4)) == 1


async def test_a_cancelled_read_leaves_the_load_to_the_others(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        memory.gate.clear()
        first = asyncio.create_task(reader.read(memory.extent, 5, 1))
        second = asyncio.create_task(reader.read(memory.extent, 5, 1))
        await memory.asked.wait()
        first.cancel()
        memory.gate.set()
        assert (await second)[0].base_offset == 0
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_closing_ends_what_is_being_loaded(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        memory.gate.clear()
        waiting = asyncio.create_task(reader.read(memory.extent, 5, 1))
        await memory.asked.wait()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_the_reader_is_imported_without_pyarrow_and_pyspark() -> None:
    heavy = "{'pyarrow', 'pyspark'}"
    script = f"import sys, tiering.segment_reader; print({heavy} & set(sys.modules))"
    imported = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert imported.stdout == "set()\n"


async def test_a_failed_load_is_not_remembered(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        memory.failure = ObjectStoreUnavailable("away")
        with pytest.raises(ObjectStoreUnavailable):
            await reader.read(memory.extent, 5, 1)
        memory.failure = None
        assert (await reader.read(memory.extent, 5, 1))[0].base_offset == 0


async def test_a_timestamp_is_found_to_the_record(memory: Memory) -> None:
    async with SegmentReader(memory.read) as reader:
        wanted = [-1, 0, 1000, max(TIMES), max(TIMES) + 1, *RNG.sample(range(43_000), 20)]
        for time in wanted:
            at = next((at for at, have in enumerate(TIMES) if have >= time), None)
            expected = None if at is None else TimestampPosition(at, TIMES[at])
            assert await reader.find_timestamp(memory.extent, time) == expected
        found = await reader.max_timestamp(memory.extent)
        assert found == TimestampPosition(TIMES.index(max(TIMES)), max(TIMES))


async def test_batches_are_served_under_the_brokers_leader_epoch(memory: Memory) -> None:
    async with SegmentReader(memory.read, leader_epoch=7) as reader:
        (batch,) = await reader.read(memory.extent, 0, max_bytes=1)
        assert int.from_bytes(batch.data[12:16], "big", signed=True) == 7


async def test_an_extent_of_other_offsets_than_the_footers_is_corrupt(memory: Memory) -> None:
    memory.extent = memory.extent._replace(last_offset=Offset(400))
    async with SegmentReader(memory.read) as reader:
        with pytest.raises(CorruptSegment, match=r"holds offsets 0 \.\. 399"):
            await reader.read(memory.extent, 0, max_bytes=1)


async def _read_all(memory: Memory) -> list[Any]:
    async with SegmentReader(memory.read) as reader:
        taken = await reader.read(memory.extent, 0, max_bytes=1 << 30)
        time = await reader.find_timestamp(memory.extent, 20_000)
    return [time, *(read_batch(batch.data) for batch in taken)]


async def test_a_flipped_bit_is_an_error_or_without_effect_never_wrong_bytes(
    rolled: tuple[bytes, SegmentExtent],
) -> None:
    content, extent = rolled
    right = await _read_all(Memory(content, extent))
    footer_start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    rng = random.Random(11)
    positions = [
        *rng.sample(range(4, footer_start), 120),
        *rng.sample(range(footer_start, len(content)), 120),
        *range(len(content) - 8, len(content)),
    ]
    noticed = 0
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 1 << rng.randrange(8)
        try:
            assert await _read_all(Memory(bytes(damaged), extent)) == right
        except CorruptSegment:
            noticed += 1
    # Unnoticed is only the page index, which serves other readers.
    assert noticed > len(positions) * 3 // 4


async def test_verification_notices_every_flipped_bit_and_every_cut(
    rolled: tuple[bytes, SegmentExtent], tmp_path: Path
) -> None:
    content, extent = rolled
    key = extent.object_key
    rng = random.Random(12)
    with file_store(tmp_path) as store:
        store.put(key, BytesBody(content))
        assert verify_segment(store, key).counts.records == 400
        for _ in range(150):
            damaged = bytearray(content)
            if rng.random() < 0.2:
                del damaged[rng.randrange(len(content)) :]
            else:
                damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            store.delete([key])
            store.put(key, BytesBody(bytes(damaged)))
            with pytest.raises(CorruptSegment, match="flights"):
                verify_segment(store, key)


async def test_a_range_that_comes_back_short_is_corrupt(memory: Memory) -> None:
    async def read(key: ObjectKey, start: int, length: int, object_length: int) -> bytes:
        return memory.content[start : start + length - 1]

    async with SegmentReader(read) as reader:
        with pytest.raises(CorruptSegment, match="bytes at byte"):
            await reader.read(memory.extent, 0, 1)


async def test_a_blocking_store_serves_a_reader_through_ranges(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        plan = plan_of(put_wal_object(store, "wal/00/object", [BATCHES]))
        segment = roll(plan, store).segment
        async with SegmentReader(range_reader(store)) as reader:
            taken = await reader.read(extent_of(segment), 0, max_bytes=1 << 30)
    assert [batch.last_offset for batch in taken] == list(range(9, 400, 10))
