"""The batch reader: which batches of chunks, objects and segments it serves, and in what turns."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.loop.long_work import SLICE_S
from diskless.replica.batch_reader import ReadRequest, ReadResult
from diskless.replica.batch_stamping import BATCHES_AT_ONCE
from metadata.operations import WalExtent
from tests.support.brokers.batch_reader_setting import (
    COLD_AFTER_MS,
    MUCH,
    NOW_MS,
    OTHER,
    PARTITION,
    Setting,
    a_segment,
    batch,
    extent_of,
    in_place,
    offsets_of,
)
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.loops.until import until
from tests.support.profiles import examples
from wal.caches.object_cache import ObjectCacheSettings
from wal.coordinates import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    ObjectKey,
)
from wal.errors import (
    CorruptObject,
    CorruptSegment,
    ObjectNotFound,
    ObjectStoreUnavailable,
)
from wal.records.batch_preparation import SUMMED_AT_ONCE_BYTES
from wal.records.record_batch import parse_header


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with in_place(tmp_path) as setting:
        yield setting


# Stamping


async def test_batches_get_their_offsets_and_nothing_else_changes(setting: Setting) -> None:
    sent = [batch(b"a", b"b"), batch(b"c"), batch(b"d", b"e", b"f")]
    extent = extent_of(await setting.put(*sent), sent, base_offset=100)
    result = await setting.read(extent, offset=100)
    assert result.error is None
    assert offsets_of(result) == [(100, 101), (102, 102), (103, 105)]
    served = b"".join(result.records)
    position = 0
    for data in sent:
        # After base offset, length and leader epoch.
        assert served[position + 16 : position + len(data)] == data[16:]
        position += len(data)


async def test_cached_and_stored_bytes_are_never_written_to(setting: Setting) -> None:
    sent = [batch(b"a"), batch(b"b")]
    key = await setting.put(*sent)
    extent = extent_of(key, sent, base_offset=7, timestamp_type=LOG_APPEND_TIME)
    first = await setting.read(extent, offset=7)
    again = await setting.read(extent, offset=7)
    assert b"".join(first.records) == b"".join(again.records)
    # The same bytes under other offsets: had the cached ones been stamped, this would show.
    elsewhere = extent_of(key, sent, base_offset=50)
    assert offsets_of(await setting.read(elsewhere, offset=50)) == [(50, 50), (51, 51)]
    assert parse_header(b"".join((await setting.read(elsewhere)).records)).attributes == 0
    assert await setting.store.get(key) == b"".join(sent)
    assert setting.store.statistics().gets == 2  # the cache's one, and the line above


async def test_append_time_is_stamped_where_the_topic_has_it(setting: Setting) -> None:
    sent = [build_batch([Row(5, b"k", b"v"), Row(9, b"k", b"w")])]
    extent = extent_of(await setting.put(*sent), sent, timestamp_type=LOG_APPEND_TIME, age_ms=1_234)
    result = await setting.read(extent)
    assert offsets_of(result) == [(0, 1)]
    header = parse_header(b"".join(result.records))
    assert (header.timestamp_type, header.max_timestamp_ms) == (LOG_APPEND_TIME, NOW_MS - 1_234)


# Which batches


async def test_reading_begins_with_the_batch_that_holds_the_offset(setting: Setting) -> None:
    sent = [batch(b"a", b"b"), batch(b"c", b"d"), batch(b"e", b"f")]
    extent = extent_of(await setting.put(*sent), sent)
    for offset, expected in [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (5, 4)]:
        assert offsets_of(await setting.read(extent, offset=offset))[0][0] == expected


async def test_a_limit_cuts_between_batches_but_the_first_one_always_comes(
    setting: Setting,
) -> None:
    sent = [batch(), batch(), batch()]
    size = len(sent[0])
    extent = extent_of(await setting.put(*sent), sent)
    for limit, count in [(0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (MUCH, 3)]:
        assert len(offsets_of(await setting.read(extent, max_bytes=limit))) == count, limit


async def test_partitions_share_the_limit_in_the_order_of_the_request(setting: Setting) -> None:
    sent = [batch(), batch()]
    size = len(sent[0])
    extent = extent_of(await setting.put(*sent), sent)

    async def counts(limits: Sequence[int], total: int) -> list[int]:
        requests = [ReadRequest(PARTITION, 0, limit, [extent]) for limit in limits]
        results = await setting.reader.read(requests, max_bytes=total)
        assert all(result.error is None for result in results)
        return [len(offsets_of(result)) for result in results]

    assert await counts([MUCH, MUCH, MUCH], MUCH) == [2, 2, 2]
    assert await counts([MUCH, MUCH, MUCH], 3 * size) == [2, 1, 0]
    assert await counts([size, MUCH, MUCH], 3 * size) == [1, 2, 0]
    assert await counts([0, 0, 0], MUCH) == [1, 0, 0]
    assert await counts([MUCH, MUCH, MUCH], 0) == [1, 0, 0]


async def test_where_the_first_partition_gives_nothing_the_next_gives_its_batch(
    setting: Setting,
) -> None:
    sent = [batch()]
    good = extent_of(await setting.put(*sent), sent)
    missing = extent_of(ObjectKey("wal/00/missing"), sent)
    results = await setting.reader.read(
        [ReadRequest(OTHER, 0, 0, [missing]), ReadRequest(PARTITION, 0, 0, [good])], max_bytes=0
    )
    assert isinstance(results[0].error, ObjectNotFound)
    assert len(offsets_of(results[1])) == 1


async def test_extents_of_several_objects_join_in_offset_order(setting: Setting) -> None:
    extents: list[WalExtent] = []
    for number in range(5):
        sent = [batch(b"%d" % number)]
        key = await setting.put(*sent, key=f"wal/00/{9 - number}")
        extents.append(extent_of(key, sent, base_offset=number))
    result = await setting.read(*extents)
    assert offsets_of(result) == [(n, n) for n in range(5)]


async def test_what_lies_beyond_the_limit_is_not_read(setting: Setting) -> None:
    extents = []
    for number in range(6):
        sent = [batch(b"x" * 100)]
        extents.append(extent_of(await setting.put(*sent, key=f"wal/00/{number}"), sent))
    size = extents[0].length_bytes
    requests = [ReadRequest(PARTITION, 0, MUCH, [extent]) for extent in extents]
    results = await setting.reader.read(requests, max_bytes=2 * size + 1)
    assert [result.size_bytes for result in results] == [size, size, 0, 0, 0, 0]
    assert setting.cache.statistics().misses == 3, "the third one did not fit whole"
    assert all(result.error is None for result in results)


async def test_segments_share_the_limit_in_the_order_of_the_request(setting: Setting) -> None:
    segment = a_segment(setting, 0, 9)
    size = len(setting.segments.batches[0].data)
    requests = [ReadRequest(PARTITION, 0, 4 * size, [segment]) for _ in range(4)]
    results = await setting.reader.read(requests, max_bytes=6 * size)
    assert [len(offsets_of(result)) for result in results] == [4, 2, 0, 0]
    assert setting.segments.asked == [4 * size, 2 * size], "what is decoded is memory as well"
    setting.segments.asked.clear()
    results = await setting.reader.read(requests, max_bytes=0)
    assert [len(offsets_of(result)) for result in results] == [1, 0, 0, 0]
    assert setting.segments.asked == [0]


async def test_what_a_segment_did_not_fill_goes_to_those_behind_it(setting: Setting) -> None:
    segment = a_segment(setting, 0, 1)
    size = len(setting.segments.batches[0].data)
    sent = [batch(b"x" * 100)] * 3
    extent = extent_of(await setting.put(*sent), sent, base_offset=2)
    results = await setting.reader.read(
        [
            ReadRequest(PARTITION, 0, 4 * size, [segment, extent]),
            ReadRequest(OTHER, 2, MUCH, [extent]),
        ],
        max_bytes=MUCH,
    )
    assert offsets_of(results[0])[:2] == [(0, 0), (1, 1)]
    assert results[0].size_bytes <= 4 * size
    assert len(offsets_of(results[1])) == 3


@examples(0.4)
@given(data=st.data())
async def test_any_reading_equals_the_plain_model(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60)), min_size=1))
    batches = [batch(*[b"x" * size] * count) for count, size in sizes]
    cuts = data.draw(st.lists(st.integers(1, len(batches)), max_size=4).map(sorted))
    offset_limit = sum(count for count, _ in sizes)
    offset = data.draw(st.integers(0, offset_limit - 1))
    limit = data.draw(st.integers(0, 3_000))
    total = data.draw(st.integers(0, 3_000))

    expected: list[tuple[int, int]] = []
    at = taken = 0
    for (count, _), content in zip(sizes, batches, strict=True):
        if at + count > offset:
            if expected and taken + len(content) > min(limit, total):
                break
            expected.append((at, at + count - 1))
            taken += len(content)
        at += count

    async with in_place(tmp_path_factory.mktemp("model")) as setting:
        extents: list[WalExtent] = []
        base = 0
        for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(batches)], strict=True)):
            part = batches[start:end]
            if not part:
                continue
            extent = extent_of(await setting.put(*part, key=f"wal/{number}"), part,
                               base_offset=base)  # fmt: skip
            base = extent.last_offset + 1
            if extent.last_offset >= offset:
                extents.append(extent)
        (result,) = await setting.reader.read(
            [ReadRequest(PARTITION, offset, limit, extents)], max_bytes=total
        )
    assert result.error is None
    assert offsets_of(result) == expected


# Parts of extents


@examples(0.4)
@given(data=st.data())
async def test_reading_on_and_on_gives_every_batch_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the limits are, and wherever what is read at a time ends."""
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 300)), min_size=1))
    batches = [batch(*[b"x" * size] * count) for count, size in sizes]
    read_bytes_min = data.draw(st.sampled_from([1, 60, 61, 100, 1_000]))
    limits = data.draw(st.lists(st.integers(0, 2_000), min_size=1))
    cut = data.draw(st.integers(0, len(batches)))
    async with in_place(tmp_path_factory.mktemp("parts"), read_bytes_min=read_bytes_min) as setting:
        extents: list[WalExtent] = []
        base = 0
        for number, part in enumerate([batches[:cut], batches[cut:]]):
            if part:
                key = await setting.put(*part, key=f"wal/{number}")
                extents.append(extent_of(key, part, base_offset=base))
                base = extents[-1].last_offset + 1
        left = batches
        offset = number = 0
        while left:
            limit = limits[number % len(limits)]
            ahead = [extent for extent in extents if extent.last_offset >= offset]
            result = await setting.read(*ahead, offset=offset, max_bytes=limit)
            assert result.error is None
            found = offsets_of(result)
            count = len(found)
            size = sum(map(len, left[:count]))
            assert (found[0][0], result.size_bytes) == (offset, size)
            assert size <= limit or count == 1
            assert count == len(left) or size + len(left[count]) > limit
            offset, left = found[-1][1] + 1, left[count:]
            number += 1
        assert offset == base


async def test_an_extent_that_takes_many_answers_is_read_once(tmp_path: Path) -> None:
    async with in_place(tmp_path, read_bytes_min=1) as setting:
        sent = [batch(b"x" * 500) for _ in range(100)]
        extent = extent_of(await setting.put(*sent), sent, age_ms=2 * COLD_AFTER_MS)
        size = len(sent[0])
        for offset in range(0, 100, 5):
            result = await setting.read(extent, offset=offset, max_bytes=5 * size + size // 2)
            assert len(offsets_of(result)) == 5
        # What is read of the batch that does not fit is read again with the next answer.
        assert extent.length_bytes <= setting.store.bytes_read <= extent.length_bytes * 1.1


async def test_a_reader_that_comes_from_elsewhere_walks_the_extent(tmp_path: Path) -> None:
    async with in_place(tmp_path, read_bytes_min=1) as setting:
        sent = [batch(b"x", b"y") for _ in range(50)]
        extent = extent_of(await setting.put(*sent), sent, base_offset=1_000)
        for offset in (1_033, 1_032, 1_099, 1_000, 1_034):
            result = await setting.read(extent, offset=offset, max_bytes=2 * len(sent[0]))
            assert offsets_of(result)[0][0] == offset - offset % 2


async def test_a_batch_larger_than_what_was_read_still_comes_first(tmp_path: Path) -> None:
    async with in_place(tmp_path, read_bytes_min=100) as setting:
        large, small = [batch(b"x" * 5_000)], [batch(b"s")]
        first = extent_of(await setting.put(*large, key="wal/1"), large)
        second = extent_of(await setting.put(*small, key="wal/2"), small)
        requests = [
            ReadRequest(PARTITION, 0, 200, [first]),
            ReadRequest(OTHER, 0, 200, [second]),
        ]
        results = await setting.reader.read(requests, max_bytes=400)
        assert [result.size_bytes for result in results] == [len(large[0]), 0]
        assert offsets_of(results[0]) == [(0, 0)]
        results = await setting.reader.read(requests, max_bytes=400, at_least_one=False)
        assert [result.size_bytes for result in results] == [0, len(small[0])]


async def test_damage_behind_what_was_read_is_found_when_it_is_read(tmp_path: Path) -> None:
    async with in_place(tmp_path, read_bytes_min=1) as setting:
        sent = [batch(b"x" * 500) for _ in range(4)]
        extent = extent_of(await setting.put(*sent), sent, age_ms=2 * COLD_AFTER_MS)
        size = len(sent[0])
        setting.store.damage(extent.object_key, 3 * size + 9)  # in the length of the last one
        first = await setting.read(extent, max_bytes=2 * size)
        assert (first.error, offsets_of(first)) == (None, [(0, 0), (1, 1)])
        second = await setting.read(extent, offset=2, max_bytes=2 * size)
        assert offsets_of(second) == [(2, 2)]
        third = await setting.read(extent, offset=3, max_bytes=2 * size)
        assert (third.size_bytes, type(third.error)) == (0, CorruptObject)


# Long work


class Turns:
    """A monotonic clock on which every look takes a slice, and a count of the loop's turns."""

    def __init__(self) -> None:
        self.count = 0
        self._now = 0.0

    def seconds(self) -> float:
        self._now += SLICE_S
        return self._now

    async def taken(self, work: Coroutine[Any, Any, ReadResult]) -> tuple[ReadResult, int]:
        """What `work` gives, and how many turns others had meanwhile."""
        counting = asyncio.create_task(self._count())
        before = self.count
        try:
            return await work, self.count - before
        finally:
            counting.cancel()

    async def _count(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


async def test_thousands_of_tiny_batches_leave_the_loop_turns_in_between(tmp_path: Path) -> None:
    turns = Turns()
    async with in_place(tmp_path, turns.seconds) as setting:
        sent = [batch(b"x")] * 3_000
        extent = extent_of(await setting.put(*sent), sent)
        await setting.read(extent)
        result, count = await turns.taken(setting.read(extent))
        assert offsets_of(result) == [(n, n) for n in range(3_000)]
        assert count >= 3_000 // BATCHES_AT_ONCE
        skipped, count = await turns.taken(setting.read(extent, offset=2_999))
        assert offsets_of(skipped) == [(2_999, 2_999)]
        assert count >= 3_000 // BATCHES_AT_ONCE


@pytest.mark.parametrize("timestamp_type", [CREATE_TIME, LOG_APPEND_TIME])
async def test_a_very_large_batch_is_summed_in_pieces(tmp_path: Path, timestamp_type: int) -> None:
    turns = Turns()
    async with in_place(tmp_path, turns.seconds) as setting:
        sent = [batch(bytes(3 * SUMMED_AT_ONCE_BYTES)), batch(b"behind it")]
        extent = extent_of(await setting.put(*sent), sent, timestamp_type=timestamp_type)
        result, count = await turns.taken(setting.read(extent))
        assert result.error is None
        assert offsets_of(result) == [(0, 0), (1, 1)]
        assert count >= 4
        setting.store.damage(extent.object_key, 2 * SUMMED_AT_ONCE_BYTES)
        await setting.cache.invalidate(extent.object_key)
        assert isinstance((await setting.read(extent)).error, CorruptObject)


async def test_a_few_small_batches_are_served_in_the_turn_they_are_asked_for(
    setting: Setting,
) -> None:
    sent = [batch(b"a"), batch(b"b")]
    extent = extent_of(await setting.put(*sent), sent)
    await setting.read(extent)
    reading = setting.read(extent)
    with pytest.raises(StopIteration) as end:
        reading.send(None)
    assert offsets_of(end.value.value) == [(0, 0), (1, 1)]


# Old data


async def test_old_data_is_read_past_the_cache(setting: Setting) -> None:
    sent = [batch()]
    key = await setting.put(*sent)
    old = extent_of(key, sent, age_ms=COLD_AFTER_MS + 1)
    await setting.read(old)
    assert setting.cache.statistics().cold_reads == 1
    assert setting.cache.statistics().memory_bytes == 0
    young = extent_of(key, sent, age_ms=COLD_AFTER_MS)
    await setting.read(young)
    assert setting.cache.statistics().cold_reads == 1
    assert setting.cache.statistics().memory_bytes > 0


async def test_any_number_of_readers_of_old_data_hold_up_no_reader_of_young(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [batch(bytes(20_000))]
    old_keys = [await setting.put(*sent, key=f"wal/00/old-{n}") for n in range(30)]
    young = extent_of(await setting.put(*sent, key="wal/00/young"), sent)
    chunk = setting.chunk_of(*sent)
    near = extent_of(chunk.object_key, sent, start=chunk.plan.extents[0].byte_offset)
    get_range = setting.store.get_range
    answers, waiting = asyncio.Event(), 0

    async def get_when_it_answers(key: ObjectKey, start: int, length: int) -> bytes:
        nonlocal waiting
        if key in old_keys:
            waiting += 1
            await answers.wait()
        return await get_range(key, start, length)

    monkeypatch.setattr(setting.store, "get_range", get_when_it_answers)
    readers = [
        asyncio.create_task(setting.read(extent_of(key, sent, age_ms=COLD_AFTER_MS + 1)))
        for key in old_keys
    ]
    await until(lambda: waiting == ObjectCacheSettings().cold_concurrency)
    for extent in (near, young):
        assert offsets_of(await setting.read(extent)) == [(0, 0)]
    assert not any(reader.done() for reader in readers)
    answers.set()
    assert [offsets_of(result) for result in await asyncio.gather(*readers)] == [[(0, 0)]] * 30


@pytest.mark.parametrize("age_ms", [0, COLD_AFTER_MS + 1])
async def test_what_is_read_ahead_is_not_asked_of_the_store_again(
    tmp_path: Path, age_ms: int
) -> None:
    async with in_place(tmp_path, block_bytes=1 << 20) as setting:
        sent = [batch(bytes(64 << 10)) for _ in range(4)]
        key = await setting.put(*sent)
        extent = extent_of(key, sent, age_ms=age_ms)
        first = await setting.read(extent, max_bytes=len(sent[0]) + 5)
        assert offsets_of(first) == [(0, 0)]
        assert setting.reader.ahead(extent, first.next_offset, 1) is not None
        await until(lambda: setting.store.bytes_read >= extent.length_bytes)
        setting.store.read_error = ObjectStoreUnavailable("injected")
        rest = await setting.read(extent, offset=first.next_offset)
        assert len(offsets_of(rest)) == 3
        assert setting.store.bytes_read == extent.length_bytes


async def test_an_answer_says_where_it_ended(setting: Setting) -> None:
    sent = [batch(b"a", b"b"), batch(b"c"), batch(b"d")]
    key = await setting.put(*sent)
    extent = extent_of(key, sent)
    assert (await setting.read(extent)).next_offset == extent.last_offset + 1
    cut = await setting.read(extent, max_bytes=len(sent[0]) + len(sent[1]))
    assert cut.next_offset == 3
    segment = a_segment(setting, 0, 9)
    assert (await setting.read(segment)).next_offset == 10


async def test_segments_and_objects_are_read_as_one(setting: Setting) -> None:
    sent = [batch(b"a"), batch(b"b")]
    segment = a_segment(setting, 0, 4)
    extent = extent_of(await setting.put(*sent), sent, base_offset=5)
    result = await setting.read(segment, extent, offset=2)
    assert offsets_of(result) == [(n, n) for n in range(2, 7)]
    size = len(setting.segments.batches[0].data)
    limited = await setting.read(segment, extent, offset=2, max_bytes=2 * size + 1)
    assert offsets_of(limited) == [(2, 2), (3, 3)]
    assert offsets_of(await setting.read(segment, offset=3, max_bytes=0)) == [(3, 3)]


async def test_a_damaged_segment_is_an_error_of_its_partition(setting: Setting) -> None:
    sent = [batch()]
    segment = a_segment(setting, 0, 4)
    extent = extent_of(await setting.put(*sent), sent)
    setting.segments.error = CorruptSegment("segments/s: row group 0")
    results = await setting.reader.read(
        [ReadRequest(PARTITION, 0, MUCH, [segment]), ReadRequest(OTHER, 0, MUCH, [extent])],
        max_bytes=MUCH,
    )
    assert (results[0].error, results[0].size_bytes) == (setting.segments.error, 0)
    assert results[1].error is None
