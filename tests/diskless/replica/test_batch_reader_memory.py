"""The batch reader: what it copies, what memory its answers keep, and the disk tier."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diskless.fetch.read_memory import KEPT_FROM_BYTES, ReadMemory
from diskless.replica.batch_reader import ReadRequest
from diskless.replica.batch_stamping import GATHERED_FROM_BYTES
from tests.support.brokers.batch_reader_setting import (
    MUCH,
    NOW_MS,
    PARTITION,
    Encoded,
    Setting,
    a_segment,
    batch,
    extent_of,
    in_place,
    offsets_of,
)
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.loops.until import until
from wal.coordinates import (
    CREATE_TIME,
    LOG_APPEND_TIME,
)
from wal.errors import (
    CorruptObject,
)
from wal.records.record_batch import iterate_headers, parse_header


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with in_place(tmp_path) as setting:
        yield setting


LARGE = GATHERED_FROM_BYTES


@pytest.mark.parametrize("timestamp_type", [CREATE_TIME, LOG_APPEND_TIME])
async def test_large_batches_are_served_as_views_of_what_is_cached(
    tmp_path: Path, timestamp_type: int
) -> None:
    async with in_place(tmp_path, block_bytes=8 * LARGE) as setting:
        sent = [batch(bytes([n]) * (100 if n == 2 else LARGE)) for n in range(5)]
        key = await setting.put(*sent)
        extent = extent_of(key, sent, base_offset=7, timestamp_type=timestamp_type, age_ms=9)
        result = await setting.read(extent, offset=7)
        assert result.error is None
        assert offsets_of(result) == [(n, n) for n in range(7, 12)]
        (cached,) = await setting.cache.read(key, 0, extent.length_bytes, extent.length_bytes)
        shared = [
            record for record in result.records
            if isinstance(record, memoryview) and record.obj is cached.obj
        ]  # fmt: skip
        assert sum(map(len, shared)) == sum(len(data) - 61 for data in sent if len(data) > LARGE)
        for data, (_, header) in zip(sent, iterate_headers(b"".join(result.records)), strict=True):
            if timestamp_type == LOG_APPEND_TIME:
                assert (header.timestamp_type, header.max_timestamp_ms) == (1, NOW_MS - 9)
            else:
                assert header.crc == parse_header(data).crc
        assert cached == b"".join(sent), "nobody wrote to it"
        again = await setting.read(extent, offset=7)
        assert b"".join(again.records) == b"".join(result.records)
        skipping = await setting.read(extent, offset=10)
        assert offsets_of(skipping) == [(10, 10), (11, 11)]
        assert len(offsets_of(await setting.read(extent, offset=7, max_bytes=3 * LARGE))) == 3


async def test_an_answer_keeps_no_block_of_which_it_has_little(tmp_path: Path) -> None:
    async with in_place(tmp_path, block_bytes=16 * LARGE, read_bytes_min=1) as setting:
        sent = [batch(bytes([n]) * (LARGE + n)) for n in range(6)]
        key = await setting.put(*sent)
        end = sum(map(len, sent))
        parts = [
            extent_of(key, [data], start=sum(map(len, sent[:n])), object_bytes=end)
            for n, data in enumerate(sent)
        ]

        async def shared_bytes(count: int) -> int:
            requests = [ReadRequest(PARTITION, 0, MUCH, [part]) for part in parts[:count]]
            results = await setting.reader.read(requests, max_bytes=MUCH)
            assert [offsets_of(result) for result in results] == [[(0, 0)]] * count
            (cached,) = await setting.cache.read(key, 0, end, end)
            return sum(
                len(record) for result in results for record in result.records
                if isinstance(record, memoryview) and record.obj is cached.obj
            )  # fmt: skip

        assert await shared_bytes(2) == 0
        assert await shared_bytes(4) > 4 * LARGE - 1_000, "partitions keep it together"


async def test_an_answer_keeps_no_row_group_of_which_it_has_little(setting: Setting) -> None:
    made = [
        build_batch([Row(NOW_MS, None, bytes([n]) * LARGE)], base_offset=n, leader_epoch=0)
        for n in range(8)
    ]
    group, size = memoryview(b"".join(made)), len(made[0])
    segment = a_segment(setting, 0, 7)
    setting.segments.batches = [Encoded(n, n, group[n * size : (n + 1) * size]) for n in range(8)]

    async def shared(count: int) -> int:
        result = await setting.read(segment, offset=1, max_bytes=count * size)
        assert b"".join(result.records) == group[size : (1 + count) * size]
        return sum(
            isinstance(record, memoryview) and record.obj is group.obj for record in result.records
        )

    assert [await shared(count) for count in (1, 3, 4, 7)] == [0, 0, 4, 7]
    # What was made in several pieces of memory is judged piece by piece.
    setting.segments.batches[5:] = [
        Encoded(n, n, memoryview(data)) for n, data in enumerate(made[5:], 5)
    ]
    result = await setting.read(segment, offset=4, max_bytes=3 * size)
    assert b"".join(result.records) == group[4 * size : 7 * size]
    owners = [record.obj for record in result.records if isinstance(record, memoryview)]
    assert owners[1:] == made[5:7]
    assert owners[0] is not group.obj


async def test_damage_of_a_large_batch_is_fetched_anew_and_then_an_error(tmp_path: Path) -> None:
    async with in_place(tmp_path, block_bytes=8 * LARGE) as setting:
        sent = [batch(bytes(LARGE)), batch(bytes(LARGE))]
        extent = extent_of(await setting.put(*sent), sent)
        setting.store.flips_left = 1
        assert offsets_of(await setting.read(extent)) == [(0, 0), (1, 1)]
        assert setting.store.statistics().gets == 2
        setting.store.damage(extent.object_key, len(sent[0]) + 100)
        await setting.cache.invalidate(extent.object_key)
        result = await setting.read(extent)
        assert offsets_of(result) == [(0, 0)]
        assert isinstance(result.error, CorruptObject)


async def test_memory_of_an_answer_is_not_read_into_while_the_answer_is_there(
    setting: Setting,
) -> None:
    sent = [batch(bytes([number]) * KEPT_FROM_BYTES) for number in range(3)]
    reads = []
    for number, data in enumerate(sent):
        chunk = setting.chunk_of(data)
        reads.append(extent_of(chunk.object_key, [data], start=chunk.plan.extents[0].byte_offset,
                               base_offset=number))  # fmt: skip
    first = await setting.read(reads[0])
    slow_reader = memoryview(first.records[0])[100:]
    seen = bytes(slow_reader)
    del first
    for extent in reads[1:]:
        result = await setting.read(extent)
        assert offsets_of(result) == [(extent.base_offset, extent.last_offset)]
        del result
        # The thread that read it may hold it for a moment longer.
        await until(lambda: setting.memory.idle_bytes == 2 * KEPT_FROM_BYTES)
    assert slow_reader == seen
    slow_reader.release()
    assert setting.memory.idle_bytes == 4 * KEPT_FROM_BYTES


async def test_what_the_disk_tier_has_is_read_into_an_answer_and_stamped_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_place(tmp_path, block_bytes=1 << 20, disk_bytes=1 << 20) as setting:
        sent = [batch(bytes([number]) * 9000) for number in range(20)]
        key = await setting.put(*sent)
        extent = extent_of(key, sent, base_offset=7)
        first = await setting.read(extent)
        await until(lambda: setting.cache.statistics().disk_bytes == extent.length_bytes)
        copied: list[int] = []
        lend = setting.memory.lend

        def lend_for_a_copy(_: ReadMemory, length_bytes: int) -> memoryview:
            copied.append(length_bytes)
            return lend(length_bytes)

        # The disk tier has the method from before.
        monkeypatch.setattr(ReadMemory, "lend", lend_for_a_copy)
        (in_cache,) = (tmp_path / "cache").iterdir()
        stored = in_cache.read_bytes()
        for _ in range(2):
            again = await setting.read(extent)
            assert b"".join(again.records) == b"".join(first.records)
            assert offsets_of(again)[0] == (7, 7)
        assert setting.cache.statistics().disk_hits == 2
        assert setting.store.bytes_read == extent.length_bytes
        assert in_cache.read_bytes() == stored
        assert copied == []
