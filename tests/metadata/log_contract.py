"""What every metadata log must do (L1-L6 of metadata/log.py), as a suite to inherit from.

    class TestLocalLogContract(MetadataLogContract):
        @pytest.fixture
        def storage(self, tmp_path): return LocalStorage(tmp_path)

A storage opens the same log again and again; the suite closes what it opens.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Protocol

import pytest

from metadata.log import MetadataLog, MetadataRecordBatch
from wal.errors import AppendTooLarge, CommitFailed, NotCoordinator, OutOfBounds

NOW_MS = 1_704_067_200_000


class LogStorage(Protocol):
    """Where one metadata log is kept."""

    batch_max_bytes: int
    """No batch of more bytes than this is taken; one of half of it is."""

    async def open(self) -> MetadataLog: ...


async def read_all(log: MetadataLog, max_bytes: int = 1 << 20) -> list[MetadataRecordBatch]:
    """Everything in the log, read as a replay does."""
    offset = log.start_offset
    batches: list[MetadataRecordBatch] = []
    while offset < log.end_offset:
        got = await log.read(offset, max_bytes)
        assert got[0].base_offset == offset
        batches += got
        offset = batches[-1].next_offset
    for before, after in pairwise(batches):
        assert before.next_offset == after.base_offset
    return batches


async def read_records(log: MetadataLog) -> list[list[bytes]]:
    return [list(batch.records) for batch in await read_all(log)]


class MetadataLogContract:
    """Inherit and provide the fixture `storage`."""

    @asynccontextmanager
    async def opened(self, storage: LogStorage) -> AsyncIterator[MetadataLog]:
        log = await storage.open()
        try:
            yield log
        finally:
            await log.close()

    async def test_a_new_log_is_empty_at_offset_zero(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            assert (log.start_offset, log.end_offset) == (0, 0)
            assert list(await log.read(0, 100)) == []

    async def test_records_get_dense_offsets_in_order(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            assert await log.append([[b"a", b"b"], [b"c"]], NOW_MS) == 0
            assert log.end_offset == 3
            assert await log.append([[b"", b"d"]], NOW_MS + 1) == 3
            assert log.end_offset == 5
            assert await read_all(log) == [
                (0, NOW_MS, [b"a", b"b"]),
                (2, NOW_MS, [b"c"]),
                (3, NOW_MS + 1, [b"", b"d"]),
            ]

    async def test_a_read_starts_with_the_whole_batch_around_its_offset(
        self, storage: LogStorage
    ) -> None:
        async with self.opened(storage) as log:
            batches = [[b"x%d" % number] * (1 + number % 4) for number in range(30)]
            await log.append(batches, NOW_MS)
            owners = [number for number, batch in enumerate(batches) for _ in batch]
            for offset in random.Random(1).sample(range(len(owners)), len(owners)):
                got = await log.read(offset, 0)
                assert len(got) == 1
                assert list(got[0].records) == batches[owners[offset]]
                assert got[0].base_offset <= offset < got[0].next_offset

    async def test_a_read_gives_what_fits_but_at_least_one_batch(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            await log.append([[bytes(1000)] for _ in range(20)], NOW_MS)
            assert len(await log.read(0, 1)) == 1
            some = await log.read(0, 5000)
            assert 1 < len(some) <= 5
            assert len(await read_all(log, max_bytes=2500)) == 20

    async def test_a_log_opened_again_is_the_same_and_goes_on(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            await log.append([[b"a", b"b"], [b"c"]], NOW_MS)
            before = await read_all(log)
        async with self.opened(storage) as log:
            assert await read_all(log) == before
            assert await log.append([[b"d"]], NOW_MS) == 3
        async with self.opened(storage) as log:
            assert await read_records(log) == [[b"a", b"b"], [b"c"], [b"d"]]

    async def test_an_offset_outside_the_log_is_refused(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            await log.append([[b"a"]], NOW_MS)
            for offset in (-1, 2):
                with pytest.raises(OutOfBounds, match=r"0 \.\. 1"):
                    await log.read(offset, 100)
            with pytest.raises(OutOfBounds):
                await log.prune(2)

    async def test_appends_under_way_together_are_served_in_the_order_of_the_calls(
        self, storage: LogStorage
    ) -> None:
        async with self.opened(storage) as log:
            appends = [
                asyncio.ensure_future(log.append([[b"%d" % number] * 2], NOW_MS))
                for number in range(20)
            ]
            assert [await append for append in appends] == list(range(0, 40, 2))
            assert await read_records(log) == [[b"%d" % number] * 2 for number in range(20)]

    async def test_an_append_at_another_offset_than_the_end_fails_and_leaves_no_trace(
        self, storage: LogStorage
    ) -> None:
        async with self.opened(storage) as log:
            assert await log.append([[b"a"]], NOW_MS, at_offset=0) == 0
            for offset in (0, 2):
                with pytest.raises(CommitFailed):
                    await log.append([[b"b"]], NOW_MS, at_offset=offset)
            assert await log.append([[b"c"]], NOW_MS, at_offset=1) == 1
            assert await read_records(log) == [[b"a"], [b"c"]]

    async def test_nothing_lands_on_top_of_a_failed_append(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            # The first is refused; those behind it were made in the belief that it would succeed.
            too_large = [[bytes(storage.batch_max_bytes + 1)]]
            appends = [
                asyncio.ensure_future(log.append(batches, NOW_MS, at_offset=offset))
                for offset, batches in enumerate((too_large, [[b"b"]], [[b"c"]]))
            ]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [
                AppendTooLarge,
                CommitFailed,
                CommitFailed,
            ]
            assert log.end_offset == 0

    async def test_a_batch_that_is_too_large_is_refused_and_the_log_is_as_it_was(
        self, storage: LogStorage
    ) -> None:
        async with self.opened(storage) as log:
            await log.append([[b"a"]], NOW_MS)
            with pytest.raises(AppendTooLarge):
                await log.append([[b"b"], [bytes(storage.batch_max_bytes + 1)]], NOW_MS)
            assert await read_records(log) == [[b"a"]]
            large = random.Random(1).randbytes(storage.batch_max_bytes // 2)
            for _ in range(5):
                await log.append([[large, b"and more"]], NOW_MS)
            assert await read_records(log) == [[b"a"], *[[large, b"and more"]] * 5]

    async def test_a_cancelled_append_is_made_all_the_same(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            appends = [
                asyncio.ensure_future(log.append([[b"%d" % number]], NOW_MS, at_offset=number))
                for number in range(4)
            ]
            await asyncio.sleep(0)
            appends[0].cancel()
            appends[2].cancel()
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            assert isinstance(outcomes[0], asyncio.CancelledError)
            assert isinstance(outcomes[2], asyncio.CancelledError)
            assert (outcomes[1], outcomes[3]) == (1, 3)
            assert await read_records(log) == [[b"%d" % number] for number in range(4)]

    async def test_pruning_takes_no_more_than_it_was_told_and_never_the_last_batch(
        self, storage: LogStorage
    ) -> None:
        large = bytes(storage.batch_max_bytes // 2)
        async with self.opened(storage) as log:
            for number in range(12):
                await log.append([[large, b"%d" % number]], NOW_MS)
            everything = await read_all(log)
            assert await log.prune(0) == 0
            start = await log.prune(15)
            assert 0 < start == log.start_offset <= 14
            assert await read_all(log) == everything[start // 2 :]
            with pytest.raises(OutOfBounds):
                await log.read(start - 1, 100)
            assert await log.prune(3) == start
            last = await log.prune(log.end_offset)
            assert start < last <= 22
        async with self.opened(storage) as log:
            assert (log.start_offset, log.end_offset) == (last, 24)
            assert await read_all(log) == everything[last // 2 :]
            assert await log.append([[b"goes on"]], NOW_MS) == 24

    async def test_a_closed_log_refuses_everything(self, storage: LogStorage) -> None:
        log = await storage.open()
        under_way = asyncio.ensure_future(log.append([[b"a"]], NOW_MS))
        await asyncio.sleep(0)
        await log.close()
        assert await under_way == 0
        for call in (log.append([[b"b"]], NOW_MS), log.read(0, 1), log.prune(0)):
            with pytest.raises(NotCoordinator):
                await call
        await log.close()
        async with self.opened(storage) as log:
            assert await read_records(log) == [[b"a"]]

    @pytest.mark.parametrize("seed", range(5))
    async def test_random_use_equals_a_list(self, storage: LogStorage, seed: int) -> None:
        rng = random.Random(seed)
        model: list[Sequence[bytes]] = []
        log = await storage.open()
        try:
            for _ in range(40):
                if rng.random() < 0.15:
                    await log.close()
                    log = await storage.open()
                batches = [
                    [rng.randbytes(rng.randrange(200)) for _ in range(rng.randint(1, 4))]
                    for _ in range(rng.randint(1, 3))
                ]
                end = sum(map(len, model))
                assert await log.append(batches, NOW_MS) == end
                model += batches
                offset = rng.randrange(log.end_offset)
                (first, *_) = await log.read(offset, rng.randrange(2000))
                assert first.base_offset <= offset < first.next_offset
            assert await read_records(log) == model
        finally:
            await log.close()
