"""Read-ahead over a scripted log: which extents it begins, and for whom."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

import pytest

from diskless.fetch.read_ahead import (
    READERS_MAX,
    READING_S,
    WINDOW_MAX_BYTES,
    Answered,
    ReadAhead,
)
from metadata.operations import Extent, FindBatches, FoundBatches, SegmentExtent, WalExtent
from wal.clock import ManualClock
from wal.coordinates import (
    CREATE_TIME,
    ByteOffset,
    ObjectKey,
    Offset,
    TopicIdPartition,
)
from wal.errors import DisklessError, NotCoordinator

PARTITION: Final = TopicIdPartition(UUID(int=1), 0)
OTHER: Final = TopicIdPartition(UUID(int=1), 1)
MIB: Final = 1 << 20
EXTENTS: Final = 200
PER_OBJECT: Final = 4
"""Extents of a MiB and of ten offsets, four in each object."""


def extent(number: int) -> WalExtent:
    return WalExtent(
        ObjectKey(f"wal/{number // PER_OBJECT}"),
        ByteOffset(number % PER_OBJECT * MIB),
        MIB,
        Offset(number * 10),
        Offset(number * 10 + 9),
        0,
        0,
        CREATE_TIME,
        PER_OBJECT * MIB,
    )


class Log:
    """A coordinator and a source of one log that all partitions have."""

    def __init__(self) -> None:
        self.extents: list[Extent] = [extent(number) for number in range(EXTENTS)]
        self.looked_up: list[Sequence[FindBatches]] = []
        self.begun: list[int] = []
        """Base offsets of extents, as they were asked for."""
        self.near: set[str] = set()
        self.room = 1 << 30
        self.segment_bytes = MIB
        """What a segment has as batches."""
        self.error: DisklessError | None = None

    async def find_batches(
        self,
        requests: Sequence[FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        batches_per_partition_max: int = 0,
    ) -> Sequence[FoundBatches]:
        self.looked_up.append(requests)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        answers = []
        for _, offset, limit in requests:
            found: list[Extent] = []
            for one in self.extents:
                if one.last_offset >= offset and limit > 0:
                    found.append(one)
                    limit -= one.bytes_from(offset)
            answers.append(FoundBatches(0, EXTENTS * 10, found[:batches_per_partition_max]))
        return answers

    def is_near(self, extent: Extent) -> bool:
        return extent.object_key in self.near

    def ahead(self, extent: Extent, offset: int, max_bytes: int) -> int | None:
        if self.room <= 0:
            return None
        self.room -= 1
        self.begun.append(extent.base_offset)
        if isinstance(extent, SegmentExtent):
            return min(self.segment_bytes, max_bytes)
        return min(extent.bytes_from(offset), max_bytes)


class Bed:
    def __init__(self, budget_bytes: int) -> None:
        self.log = Log()
        self.clock = ManualClock()
        self.ahead = ReadAhead(self.log, self.log, clock=self.clock, budget_bytes=budget_bytes)

    async def answered(
        self, first: int, count: int = 1, partition: TopicIdPartition = PARTITION
    ) -> list[int]:
        """A Fetch gave `count` extents from the given one on; which extents were begun then."""
        self.log.begun.clear()
        last = first + count
        extents = self.log.extents[first:last]
        self.ahead.follow(
            [Answered(partition, first * 10, last * 10, count * MIB, EXTENTS * 10, extents)]
        )
        for _ in range(5):
            await asyncio.sleep(0)
        return [base // 10 for base in self.log.begun]


@asynccontextmanager
async def bed(budget_bytes: int = 64 * MIB) -> AsyncIterator[Bed]:
    made = Bed(budget_bytes)
    try:
        yield made
    finally:
        await made.ahead.close()


async def test_the_window_grows_with_each_answer_and_nothing_is_begun_twice() -> None:
    async with bed() as it:
        assert await it.answered(0) == [1, 2, 3]
        assert await it.answered(1) == [4, 5, 6, 7]
        assert await it.answered(2) == [8, 9, 10, 11]
        begun = 11
        for number in range(3, 150):
            for one in await it.answered(number):
                begun += 1
                assert one == begun
            assert begun <= number + WINDOW_MAX_BYTES // MIB + PER_OBJECT
        assert begun > 150 + WINDOW_MAX_BYTES // MIB - PER_OBJECT


async def test_where_a_consumer_goes_on_is_looked_up_once_for_many_answers() -> None:
    async with bed() as it:
        for number in range(100):
            await it.answered(number)
        assert len(it.log.looked_up) < 15


async def test_one_that_jumps_begins_anew_where_it_comes_to() -> None:
    async with bed() as it:
        for number in range(10):
            await it.answered(number)
        assert await it.answered(100) == [101, 102, 103]


async def test_of_two_readers_at_one_place_one_is_followed() -> None:
    async with bed() as it:
        await it.answered(0)
        assert await it.answered(0) == []
        begun = [await it.answered(number) for number in (1, 1, 2, 2)]
        assert [begun[1], begun[3]] == [[], []]
        # The one that was followed is gone: the other one takes its place.
        begun = [await it.answered(number) for number in range(3, 30)]
        assert any(begun)


async def test_partitions_share_the_budget() -> None:
    async with bed(budget_bytes=16 * MIB) as it:
        for number in range(20):
            alone = await it.answered(number)
        assert max(alone, default=0) <= 20 + 16 + PER_OBJECT
        for number in range(20):
            for partition in (PARTITION, OTHER):
                both = await it.answered(number + 20, partition=partition)
        assert max(both, default=0) <= 40 + 8 + PER_OBJECT
        it.clock.advance(READING_S)
        latest = [await it.answered(number) for number in range(40, 60)]
        assert max(max(begun, default=0) for begun in latest) > 60 + 8 + PER_OBJECT


@pytest.mark.parametrize("why", ["at its end", "in a chunk", "no budget"])
async def test_nothing_is_looked_up_where_there_is_nothing_to_wait_for(why: str) -> None:
    async with bed(budget_bytes=0 if why == "no budget" else 64 * MIB) as it:
        if why == "in a chunk":
            it.log.near.add("wal/1")
        number = EXTENTS - 1 if why == "at its end" else 4
        assert await it.answered(number) == []
        assert it.log.looked_up == []
        assert len(it.ahead) == 0


async def test_what_found_no_room_is_asked_for_again_by_the_next_answer() -> None:
    async with bed() as it:
        it.log.room = 1
        assert await it.answered(0) == [1]
        it.log.room = 100
        assert (await it.answered(1))[:3] == [2, 3, 4]


async def test_a_lookup_that_fails_is_nothing_to_anybody_and_is_made_again() -> None:
    async with bed() as it:
        it.log.error = NotCoordinator("injected")
        assert await it.answered(0) == []
        it.log.error = None
        assert await it.answered(1) != []


async def test_it_goes_on_from_a_segment_into_objects() -> None:
    async with bed() as it:
        segment = SegmentExtent(ObjectKey("segments/a"), 3 * MIB, Offset(0), Offset(29), 0)
        it.log.extents[:3] = [segment]
        it.log.begun.clear()
        it.ahead.follow([Answered(PARTITION, 0, 10, 4 * MIB, EXTENTS * 10, [segment])])
        for _ in range(5):
            await asyncio.sleep(0)
        assert [base // 10 for base in it.log.begun][:3] == [0, 3, 4]


async def test_small_segments_of_much_are_not_all_read_ahead() -> None:
    async with bed() as it:
        it.log.extents = [
            SegmentExtent(
                ObjectKey(f"segments/{number}"), 1, Offset(number * 10), Offset(number * 10 + 9), 0
            )
            for number in range(EXTENTS)
        ]
        it.log.segment_bytes = 100 * MIB
        assert await it.answered(0) == [1]
        assert await it.answered(1) == [2]


async def test_consumers_that_do_not_come_back_are_forgotten() -> None:
    async with bed() as it:
        for number in range(READERS_MAX + 10):
            extents = it.log.extents[:1]
            answered = Answered(PARTITION, -1, number, 1, EXTENTS * 10_000, extents)
            it.ahead.follow([answered])
        assert len(it.ahead) == READERS_MAX
        it.clock.advance(READING_S)
        await it.answered(0, partition=OTHER)
        assert len(it.ahead) == 1
