"""A small chunk is put by the thread that sealed it, and uploaded like any other if that fails.

One that is put while it is written: tests/wal/write_path/test_puts_with_chunk.py and
tests/wal/write_path/test_puts_beside.py.
"""

import asyncio
import random
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.chunks.uploader_rig import BATCH, Rig, running, until
from tests.support.chunks.write_path import (
    A0,
    SETTINGS,
    Outcomes,
    object_bytes,
    open_directory,
    pending,
)
from wal.chunks.buffer import BufferPool
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import FreshObjectBody, WalObjectBody
from wal.clock import SystemClock
from wal.coordinates import ObjectKey
from wal.errors import CorruptChunk, ObjectStoreUnavailable
from wal.failpoint import FailpointError, arm
from wal.stores.file_store import FileStore
from wal.stores.observed_store import ObservedStore, StoreReach
from wal.write_path.early_puts import PUT_AT_ONCE_BYTES_MAX, EarlyPuts
from wal.write_path.uploader import Uploader
from wal.write_path.write_loop import WriteLoop


def never() -> bool:
    return False


class AtOnce(EarlyPuts):
    """Early puts that call `put` for each chunk that the write loop's thread sealed."""

    def __init__(self, put: Callable[[SealedChunk, Callable[[], bool]], None]) -> None:
        super().__init__(None, under_way=lambda: 0)
        self._put = put

    def at_once(self, chunk: SealedChunk, abandoned: Callable[[], bool]) -> None:
        self._put(chunk, abandoned)


class DirectoryRig(Rig):
    """The uploader of `Rig` on a store in a directory, as a broker has it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / "chunks")
        opened = FileStore(path / "objects", clock=self.clock, rng=random.Random(2), sync=False)
        self.reach = StoreReach(opened.url, clock=self.clock)
        self.observed = ObservedStore(opened, self.reach)
        self.uploader = Uploader(
            self.observed,
            self.directory,
            settings=SETTINGS,
            clock=self.clock,
            rng=random.Random(1),
            committer=self.outcomes,
            thread_puts=self.observed.thread_puts,
        )

    async def put_at_once(self, chunk: SealedChunk) -> None:
        await asyncio.to_thread(self.uploader.early.at_once, chunk, never)


@asynccontextmanager
async def running_rig(path: Path) -> AsyncIterator[DirectoryRig]:
    (path / "chunks").mkdir()
    rig = DirectoryRig(path)
    async with rig.observed, running(rig):
        yield rig


async def test_a_chunk_is_stored_before_it_is_submitted_and_put_no_second_time(
    tmp_path: Path,
) -> None:
    async with running_rig(tmp_path) as rig:
        chunk = rig.chunk()
        await rig.put_at_once(chunk)
        assert chunk.is_stored
        assert (await rig.observed.head(chunk.object_key)).length_bytes == chunk.plan.object_bytes
        size = chunk.plan.object_bytes
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(60)
        assert (rig.uploader.uploads, rig.uploader.upload_bytes) == (1, size)
        statistics = rig.observed.statistics()
        assert (statistics.puts, statistics.put_bytes) == (1, size)
        assert rig.reach.write_outcomes == 1
        assert chunk.is_committed


async def test_nothing_is_put_at_once_behind_another_chunk(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        first, second = rig.chunk(), rig.chunk()
        await rig.uploader.submit(first)
        rig.uploader.early.at_once(second, never)  # No turn of the loop since: the first is there.
        assert not second.is_stored
        await rig.uploader.submit(second)
        assert await rig.uploader.drain(60)
        assert rig.outcomes.committed == [first, second]


async def test_a_large_chunk_is_not_put_at_once(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        chunk = rig.chunk(PUT_AT_ONCE_BYTES_MAX // len(BATCH) + 1)
        await rig.put_at_once(chunk)
        assert not chunk.is_stored
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(60)


async def test_a_store_that_wants_the_event_loop_is_not_asked(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert ObservedStore(rig.store, StoreReach("", clock=rig.clock)).thread_puts is None
    async with running(rig):
        chunk = rig.chunk()
        rig.uploader.early.at_once(chunk, never)
        assert not chunk.is_stored
        await rig.uploader.submit(chunk)
        await until(lambda: chunk.is_committed)


async def test_what_could_not_be_put_at_once_is_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ObjectStoreUnavailable("the disk is full")

    async with running_rig(tmp_path) as rig:
        monkeypatch.setattr(FileStore, "put_in_thread", refused)
        chunk = rig.chunk()
        await rig.put_at_once(chunk)
        assert not chunk.is_stored
        assert rig.observed.statistics().puts == 0
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(60)
        assert chunk.is_committed
        assert rig.observed.statistics().puts == 1


async def test_a_put_that_nobody_waits_for_any_more_stores_nothing(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        chunk = rig.chunk()
        await asyncio.to_thread(rig.uploader.early.at_once, chunk, lambda: True)
        assert not chunk.is_stored
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(60)


async def test_a_failpoint_before_the_put_is_not_taken_for_the_stores_failure(
    tmp_path: Path,
) -> None:
    async with running_rig(tmp_path) as rig:
        chunk = rig.chunk()
        arm("upload.before_put=raise")
        try:
            with pytest.raises(FailpointError):
                await rig.put_at_once(chunk)
        finally:
            arm("")
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(60)


@pytest.mark.parametrize("place", [0, 8, 12, 16, 20, 21, len(BATCH) - 1])
async def test_memory_that_was_written_over_is_not_put(tmp_path: Path, place: int) -> None:
    async with running_rig(tmp_path) as rig:
        chunk = rig.chunk(2)
        data = bytearray(BATCH)
        data[place] ^= 1
        pool = BufferPool(1 << 20)
        payloads = [pool.adopt(BATCH), pool.adopt(bytes(data))]
        body = FreshObjectBody(chunk.plan, payloads, chunk.data_path)
        with pytest.raises(CorruptChunk, match=re.escape(chunk.data_path)):
            body.fragments()
        written: list[None] = []
        early = rig.uploader.early
        assert not await asyncio.to_thread(
            early.with_chunk, body, never, lambda: written.append(None)
        )
        assert not written, "who calls writes the chunk then"
        expected = object_bytes(WalObjectBody(chunk, chunk.plan))
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(60)
        assert await rig.observed.get(chunk.object_key) == expected


async def test_the_write_loop_puts_in_its_thread_and_hands_over_afterwards(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    pool, outcomes = BufferPool(1 << 20), Outcomes()
    told: list[tuple[str, ObjectKey]] = []
    entered, asked = threading.Event(), threading.Event()
    held = False

    def put(chunk: SealedChunk, abandoned: Callable[[], bool]) -> None:
        told.append((threading.current_thread().name.partition("_")[0], chunk.object_key))
        if held:
            entered.set()
            while not abandoned():
                assert not asked.wait(0.001)

    async def take(chunk: SealedChunk) -> None:
        told.append(("submit", chunk.object_key))

    loop = WriteLoop(
        directory,
        settings=replace(SETTINGS, commit_interval_ms=60_000),
        clock=SystemClock(),
        on_sealed=take,
        on_failed=outcomes.failed,
        puts=AtOnce(put),
    )
    running_loop = asyncio.create_task(loop.run())
    loop.append_nowait(pending(pool, A0, BATCH, token=0))
    await loop.flush()
    (first, key), second = told
    assert (first, second) == ("wal-append", ("submit", key))
    # One who is cancelled waits for the thread, whose put is given up.
    held = True
    loop.append_nowait(pending(pool, A0, BATCH, token=1))
    flush = asyncio.ensure_future(loop.flush())
    assert await asyncio.to_thread(entered.wait, 60)
    running_loop.cancel()
    await asyncio.gather(running_loop, flush, return_exceptions=True)
    assert told[-1][0] == "wal-append", "it was not handed over"
    assert 1 in outcomes.of_token
    directory.close()
