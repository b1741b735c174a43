"""What every metadata log must do (L1-L8 of metadata/log/log.py), as a suite to inherit from.

    class TestLocalLogContract(MetadataLogContract):
        @pytest.fixture
        def storage(self, tmp_path): return LocalStorage(tmp_path)

A storage opens the same log again and again; the suite closes what it opens. Whatever appends leads
first, with one batch of one record: `FIRST` of them are in a log that was opened once.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Protocol

import pytest

from metadata.log.log import MetadataLog, MetadataRecordBatch
from metadata.log.log_batch import decode_batch
from tests.support.profiles import seeds
from wal.errors import AppendTooLarge, CommitFailed, NotCoordinator, OutOfBounds

NOW_MS = 1_704_067_200_000


LEADER = b"a leader begins"
FIRST = [LEADER]


class LogStorage(Protocol):
    """Where one metadata log is kept."""

    batch_max_bytes: int
    """No batch of more bytes than this is taken; one of half of it is."""

    def let_leases_end(self) -> None:
        """Let as much time pass as `prune` may wait for."""
        ...

    async def open(self) -> MetadataLog: ...


async def lead(log: MetadataLog, record: bytes = LEADER) -> int:
    """Lead from the end of the log on; returns the offset of the leader's record."""
    return await log.lead([record], NOW_MS, at_offset=await log.refresh())


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

    @asynccontextmanager
    async def led(self, storage: LogStorage) -> AsyncIterator[MetadataLog]:
        async with self.opened(storage) as log:
            await lead(log)
            yield log

    async def test_a_new_log_is_empty_at_offset_zero(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            assert (log.start_offset, log.end_offset) == (0, 0)
            assert await log.refresh() == 0
            assert list(await log.read(0, 100)) == []
            assert list(await log.read_encoded(0, 100)) == []

    async def test_records_get_dense_offsets_in_order(self, storage: LogStorage) -> None:
        async with self.opened(storage) as log:
            assert await log.lead([b"l"], NOW_MS - 1, at_offset=0) == 0
            assert await log.append([[b"a", b"b"], [b"c"]], NOW_MS) == 1
            assert log.end_offset == 4
            assert await log.append([[b"", b"d"]], NOW_MS + 1) == 4
            assert log.end_offset == 6
            assert await read_all(log) == [
                (0, NOW_MS - 1, [b"l"]),
                (1, NOW_MS, [b"a", b"b"]),
                (3, NOW_MS, [b"c"]),
                (4, NOW_MS + 1, [b"", b"d"]),
            ]

    async def test_leading_needs_the_very_end_of_the_log(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            with pytest.raises(NotCoordinator):
                await log.lead([b"late"], NOW_MS, at_offset=0)
            with pytest.raises(CommitFailed):
                await log.lead([b"early"], NOW_MS, at_offset=2)
            assert await log.lead([b"b", b"c"], NOW_MS, at_offset=1) == 1
            assert await read_records(log) == [FIRST, [b"b", b"c"]]

    async def test_a_leader_has_a_lease_until_it_is_closed(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            assert log.lease_expires_at is not None
            assert log.lease_expires_at > 0
        assert log.lease_expires_at is None

    async def test_nothing_follows_what_the_only_writer_appended(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            assert not await log.peek()
            await log.append([[b"a"], [b"b"]], NOW_MS)
            assert not await log.peek()

    async def test_encoded_batches_are_what_reading_decodes(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            await log.append([[b"%d" % number] * 3 for number in range(9)], NOW_MS)
            for offset, max_bytes in ((0, 1 << 20), (5, 200), (6, 1), (28, 100)):
                encoded = await log.read_encoded(offset, max_bytes)
                read = await log.read(offset, max_bytes)
                assert [decode_batch(data) for data in encoded] == read
                assert len(encoded) == 1 or sum(map(len, encoded)) <= max_bytes

    async def test_a_read_starts_with_the_whole_batch_around_its_offset(
        self, storage: LogStorage
    ) -> None:
        async with self.led(storage) as log:
            batches = [[b"x%d" % number] * (1 + number % 4) for number in range(30)]
            await log.append(batches, NOW_MS)
            owners = [number for number, batch in enumerate(batches) for _ in batch]
            for offset in random.Random(1).sample(range(len(owners)), len(owners)):
                got = await log.read(offset + 1, 0)
                assert len(got) == 1
                assert list(got[0].records) == batches[owners[offset]]
                assert got[0].base_offset <= offset + 1 < got[0].next_offset

    async def test_a_read_gives_what_fits_but_at_least_one_batch(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            await log.append([[bytes(1000)] for _ in range(20)], NOW_MS)
            assert len(await log.read(1, 1)) == 1
            some = await log.read(1, 5000)
            assert 1 < len(some) <= 5
            assert len(await read_all(log, max_bytes=2500)) == 21

    async def test_a_log_opened_again_is_the_same_and_goes_on(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            await log.append([[b"a", b"b"], [b"c"]], NOW_MS)
            before = await read_all(log)
        async with self.opened(storage) as log:
            assert await read_all(log) == before
            assert await lead(log) == 4
            assert await log.append([[b"d"]], NOW_MS) == 5
        async with self.opened(storage) as log:
            assert await read_records(log) == [FIRST, [b"a", b"b"], [b"c"], FIRST, [b"d"]]

    async def test_an_offset_outside_the_log_is_refused(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            for offset in (-1, 2):
                with pytest.raises(OutOfBounds, match=r"0 \.\. 1"):
                    await log.read(offset, 100)
            with pytest.raises(OutOfBounds):
                await log.prune(2)

    async def test_appends_under_way_together_are_served_in_the_order_of_the_calls(
        self, storage: LogStorage
    ) -> None:
        async with self.led(storage) as log:
            appends = [
                asyncio.ensure_future(log.append([[b"%d" % number] * 2], NOW_MS))
                for number in range(20)
            ]
            assert [await append for append in appends] == list(range(1, 41, 2))
            assert await read_records(log) == [FIRST, *([b"%d" % n] * 2 for n in range(20))]

    async def test_an_append_at_another_offset_than_the_end_fails_and_leaves_no_trace(
        self, storage: LogStorage
    ) -> None:
        async with self.led(storage) as log:
            assert await log.append([[b"a"]], NOW_MS, at_offset=1) == 1
            for offset in (0, 1, 3):
                with pytest.raises(CommitFailed):
                    await log.append([[b"b"]], NOW_MS, at_offset=offset)
            assert await log.append([[b"c"]], NOW_MS, at_offset=2) == 2
            assert await read_records(log) == [FIRST, [b"a"], [b"c"]]

    async def test_nothing_lands_on_top_of_a_failed_append(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            # The first is refused; those behind it were made in the belief that it would succeed.
            too_large = [[bytes(storage.batch_max_bytes + 1)]]
            appends = [
                asyncio.ensure_future(log.append(batches, NOW_MS, at_offset=offset))
                for offset, batches in enumerate((too_large, [[b"b"]], [[b"c"]]), 1)
            ]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [
                AppendTooLarge,
                CommitFailed,
                CommitFailed,
            ]
            assert log.end_offset == 1

    async def test_a_batch_that_is_too_large_is_refused_and_the_log_is_as_it_was(
        self, storage: LogStorage
    ) -> None:
        async with self.led(storage) as log:
            too_large = bytes(storage.batch_max_bytes + 1)
            with pytest.raises(AppendTooLarge):
                await log.append([[b"b"], [too_large]], NOW_MS)
            with pytest.raises(AppendTooLarge):
                await log.lead([too_large], NOW_MS, at_offset=1)
            assert await read_records(log) == [FIRST]
            large = random.Random(1).randbytes(storage.batch_max_bytes // 2)
            for _ in range(5):
                await log.append([[large, b"and more"]], NOW_MS)
            assert await read_records(log) == [FIRST, *[[large, b"and more"]] * 5]

    async def test_a_cancelled_append_is_made_all_the_same(self, storage: LogStorage) -> None:
        async with self.led(storage) as log:
            appends = [
                asyncio.ensure_future(log.append([[b"%d" % number]], NOW_MS, at_offset=1 + number))
                for number in range(4)
            ]
            await asyncio.sleep(0)
            appends[0].cancel()
            appends[2].cancel()
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            assert isinstance(outcomes[0], asyncio.CancelledError)
            assert isinstance(outcomes[2], asyncio.CancelledError)
            assert (outcomes[1], outcomes[3]) == (2, 4)
            assert await read_records(log) == [FIRST, *([b"%d" % n] for n in range(4))]

    async def test_pruning_takes_no_more_than_it_was_told_and_never_the_last_batch(
        self, storage: LogStorage
    ) -> None:
        large = bytes(storage.batch_max_bytes // 2)
        async with self.led(storage) as log:
            for number in range(12):
                await log.append([[large, b"%d" % number]], NOW_MS)
            everything = await read_all(log)
            storage.let_leases_end()
            assert await log.prune(0) == 0
            start = await log.prune(16)
            assert 0 < start == log.start_offset <= 15
            kept = [batch for batch in everything if batch.base_offset >= start]
            assert await read_all(log) == kept
            with pytest.raises(OutOfBounds):
                await log.read(start - 1, 100)
            assert await log.prune(3) == start
            last = await log.prune(log.end_offset)
            assert start < last <= 23
        async with self.opened(storage) as log:
            assert (log.start_offset, log.end_offset) == (last, 25)
            assert await read_all(log) == [b for b in everything if b.base_offset >= last]
            assert await lead(log) == 25
            assert await log.append([[b"goes on"]], NOW_MS) == 26

    async def test_a_closed_log_refuses_everything(self, storage: LogStorage) -> None:
        log = await storage.open()
        await lead(log)
        under_way = asyncio.ensure_future(log.append([[b"a"]], NOW_MS))
        await asyncio.sleep(0)
        await log.close()
        assert await under_way == 1
        for call in (
            log.append([[b"b"]], NOW_MS),
            log.lead([b"b"], NOW_MS, at_offset=2),
            log.refresh(),
            log.read(0, 1),
            log.read_encoded(0, 1),
            log.prune(0),
        ):
            with pytest.raises(NotCoordinator):
                await call
        await log.close()
        async with self.opened(storage) as log:
            assert await read_records(log) == [FIRST, [b"a"]]

    @pytest.mark.parametrize("seed", seeds(5))
    async def test_random_use_equals_a_list(self, storage: LogStorage, seed: int) -> None:
        rng = random.Random(seed)
        model: list[Sequence[bytes]] = [FIRST]
        log = await storage.open()
        try:
            await lead(log)
            for _ in range(40):
                if rng.random() < 0.15:
                    await log.close()
                    log = await storage.open()
                    await lead(log)
                    model.append(FIRST)
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
