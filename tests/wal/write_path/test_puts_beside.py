"""The object of a chunk is put while the chunk is written.

One append that is not large is put by the thread that writes it; large ones by a thread of their
own, while the chunk fills.
"""

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.brokers.live_broker import until
from tests.support.chunks.write_path import (
    A0,
    A1,
    SETTINGS,
    FaultyDisk,
    Outcomes,
    batch_bytes,
    object_bytes,
    pending,
    together,
)
from wal.chunks.buffer import BufferPool, FragmentChain
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.object_notes import CommitJournal, CommitNote, NotedRun
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import WalObjectBody, WalObjectReader
from wal.clock import SystemClock
from wal.columns import FEW_MAX
from wal.errors import ObjectStoreUnavailable
from wal.failpoint import FailpointError, arm
from wal.fd_cache import FdCache
from wal.private_copy import BLOCK_BYTES
from wal.stores.file_store import FileStore
from wal.stores.observed_store import ObservedStore, StoreReach
from wal.ulid import encode_ulid
from wal.write_path.early_puts import (
    PUT_AT_ONCE_BYTES_MAX,
    PUT_WITH_CHUNK_BYTES_MAX,
    EarlyPuts,
    PutBeside,
)
from wal.write_path.uploader import Uploader
from wal.write_path.write_loop import WriteLoop

LARGE = batch_bytes(b"x" * 300_000)
OTHER = batch_bytes(b"y" * 200_000)
HUGE = batch_bytes(b"z" * 3_000_000)
BATCH = batch_bytes()
NOTE = CommitNote(encode_ulid(5), (NotedRun(10, 20),))
TIMEOUT_S = 60


class Rig:
    """A write loop and its uploader on a store in a directory, as a broker has them."""

    def __init__(
        self,
        path: Path,
        *,
        fail: Callable[[str, str], None] = lambda *_: None,
        seals_early: bool = True,
    ) -> None:
        """Without `seals_early` a chunk is sealed by `settle` alone."""
        self.path = path
        self.disk = FaultyDisk(fail)
        self.journal = CommitJournal()
        clock = SystemClock()
        (path / "chunks").mkdir()
        self.directory = ChunkDirectory(
            path / "chunks",
            settings=SETTINGS,
            clock=clock,
            rng=random.Random(1),
            fd_cache=FdCache(64),
            broker_id=7,
            disk=self.disk,
            commits=self.journal,
        )
        self.directory.recover()
        self.pool = BufferPool(1 << 24)
        self.outcomes = Outcomes()
        self.outcomes.before_commit = self._look
        opened = FileStore(path / "objects", clock=clock, rng=random.Random(2), sync=False)
        self.store = ObservedStore(opened, StoreReach(opened.url, clock=clock))
        self.uploader = Uploader(
            self.store,
            self.directory,
            settings=SETTINGS,
            clock=clock,
            rng=random.Random(3),
            committer=self.outcomes,
            thread_puts=self.store.thread_puts,
        )
        self.loop = WriteLoop(
            self.directory,
            settings=replace(SETTINGS, commit_early=seals_early),
            clock=clock,
            on_sealed=self.uploader.submit,
            on_failed=self.outcomes.failed,
            under_way=lambda: self.uploader.under_way,
            puts=self.uploader.early,
        )
        self.were_early: list[bool] = []
        """Of each chunk that was committed, whether nothing was left to upload."""
        self.stored: list[bytes] = []

    def _look(self, chunk: SealedChunk) -> None:
        """What is in the store when a chunk is committed is what its files say."""
        put = chunk.early_put
        is_beside = isinstance(put, PutBeside) and put._job.result is True
        self.were_early.append(is_beside or chunk.is_stored)
        self.stored.append((self.path / "objects" / chunk.object_key).read_bytes())
        assert self.stored[-1] == object_bytes(WalObjectBody(chunk, chunk.plan))

    def append(self, *contents: bytes, token: int = 0) -> None:
        partitions = [(A1, A0)[place % 2] for place in range(len(contents))]
        batches = [
            pending(self.pool, partition, data, token=(token, place))
            for place, (partition, data) in enumerate(zip(partitions, contents, strict=True))
        ]
        self.loop.append_nowait(together(self.pool, batches))

    async def append_apart(self, *contents: bytes, token: int = 0, in_turn: bool = False) -> None:
        """Each of them in an append of its own; to two partitions, the one or the other first."""
        for place, data in enumerate(contents):
            appends = self.loop.statistics().appends
            partition = (A1, A0)[place % 2 if in_turn else 2 * place // len(contents)]
            self.loop.append_nowait(pending(self.pool, partition, data, token=(token, place)))
            await until_appended(self.loop, appends + 1)

    async def settle(self) -> None:
        """Until all that was appended has its outcome."""
        await self.loop.flush()
        assert await self.uploader.drain(TIMEOUT_S)

    def objects(self) -> list[Path]:
        """The files in the store that have a name."""
        found = (self.path / "objects").rglob("*")
        return [path for path in found if path.is_file() and ".diskless-puts" not in path.parts]

    def draft_bytes(self) -> int:
        drafts = (self.path / "objects/.diskless-puts").rglob("*")
        return sum([path.stat().st_size for path in drafts if path.is_file()])


async def until_appended(loop: WriteLoop, appends: int) -> None:
    await asyncio.to_thread(until, lambda: loop.statistics().appends == appends, "an append")


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    async with rig.store:
        uploading = asyncio.create_task(rig.uploader.run())
        writing = asyncio.create_task(rig.loop.run())
        try:
            yield rig
            assert not uploading.done(), "the uploader died"
            rig.loop.close()
            await writing
        finally:
            for task in (writing, uploading):
                task.cancel()
            await asyncio.wait([writing, uploading])
            rig.directory.close()
    assert all(len(outcomes) == 1 for outcomes in rig.outcomes.of_token.values())
    assert rig.pool.statistics().in_use_bytes == 0
    assert rig.draft_bytes() == 0


async def test_what_is_put_beside_its_chunk_is_what_the_chunk_holds(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        appends = [(BATCH, BATCH, BATCH), (LARGE,), (LARGE, OTHER, OTHER), (HUGE, OTHER)]
        for token, contents in enumerate(appends):
            rig.append(*contents, token=token)
            await rig.settle()
        assert rig.were_early == [True, True, True, True]
        assert len(rig.outcomes.of_token) == 9
        assert {*map(tuple, rig.outcomes.of_token.values())} == {("committed",)}
        statistics = rig.store.statistics()
        size = sum(map(len, rig.stored))
        assert (statistics.puts, statistics.put_bytes) == (4, size)
        assert (rig.uploader.uploads, rig.uploader.upload_bytes) == (4, size)


async def test_what_is_put_while_its_chunk_fills_is_what_the_chunk_holds(tmp_path: Path) -> None:
    async with running(Rig(tmp_path, seals_early=False)) as rig:
        for token, contents in enumerate([[LARGE] * 9, [LARGE, HUGE]]):
            await rig.append_apart(*contents, token=token)
            await rig.settle()
        assert rig.were_early == [True, True]
        assert {*map(tuple, rig.outcomes.of_token.values())} == {("committed",)}
        assert rig.store.statistics().puts == 2
        chunk = rig.outcomes.committed[0]
        extents = (await WalObjectReader(rig.store).verify(chunk.object_key)).extents
        assert [extent.partition for extent in extents] == [A1] * 5 + [A0] * 4


@pytest.mark.parametrize(
    ("contents", "in_turn"), [([LARGE] * 3, True), ([LARGE] * (FEW_MAX + 1), False)]
)
async def test_a_chunk_whose_batches_are_sorted_after_all_is_uploaded(
    tmp_path: Path, contents: Sequence[bytes], in_turn: bool
) -> None:
    async with running(Rig(tmp_path, seals_early=False)) as rig:
        await rig.append_apart(*contents, in_turn=in_turn)
        put = rig.loop._put
        assert put is not None
        await asyncio.to_thread(until, lambda: put.has_ended, "a put that was given up")
        await rig.settle()
        assert rig.were_early == [False]
        assert {*map(tuple, rig.outcomes.of_token.values())} == {("committed",)}
        await rig.append_apart(LARGE, token=1)
        await rig.settle()
        assert rig.were_early == [False, True]


class Files:
    """Calls `then` when a record of the first chunk is about to be written to its index.

    Record 0 is the chunk's header, then come those of appends, then the notes.
    """

    def __init__(self, then: Callable[[str], None], *, record: int = 1) -> None:
        self._then = then
        self._left = record

    def __call__(self, call: str, path: str) -> None:
        if call == "pwritev" and path.endswith(".idx"):
            self._left -= 1
            if self._left == -1:
                self._then(path)


WAYS = pytest.mark.parametrize("data", [BATCH, LARGE, HUGE])
"""One append: by the thread that writes it, small or not, and beside it."""


@pytest.mark.parametrize(
    ("data", "draft_bytes"),
    [(BATCH, len(BATCH)), (LARGE, len(LARGE)), (HUGE, len(HUGE) - BLOCK_BYTES)],
)
async def test_an_object_is_written_beside_its_chunk_and_has_its_name_after_it(
    tmp_path: Path, data: bytes, draft_bytes: int
) -> None:
    seen: list[list[Path]] = []

    def look(_: str) -> None:
        until(lambda: rig.draft_bytes() > draft_bytes, "a draft")
        seen.append(rig.objects())

    rig = Rig(tmp_path, fail=Files(look))
    async with running(rig):
        rig.append(data)
        await rig.settle()
    assert seen == [[]]
    assert len(rig.objects()) == 1
    assert rig.were_early == [True]


@WAYS
async def test_a_chunk_that_the_disk_refuses_has_no_object(tmp_path: Path, data: bytes) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.ENOSPC, "no space left on device", path)

    rig = Rig(tmp_path, fail=Files(refuse))
    rig.journal.add(NOTE)
    async with running(rig):
        rig.append(data)
        await rig.settle()
        assert rig.outcomes.of_token == {(0, 0): ["StorageFailed"]}
        assert rig.objects() == []
        assert os.listdir(tmp_path / "chunks") == ["lock"]
        rig.append(data, token=1)
        await rig.settle()
        assert rig.outcomes.of_token[1, 0] == ["committed"]
        assert await noted(rig) == (NOTE,), "the next object tells what this one could not"


async def test_an_append_that_the_disk_refuses_is_not_in_the_object(tmp_path: Path) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.ENOSPC, "no space left on device", path)

    rig = Rig(tmp_path, fail=Files(refuse, record=2), seals_early=False)
    async with running(rig):
        await rig.append_apart(LARGE)
        rig.append(OTHER, token=1)
        await rig.settle()
        assert rig.outcomes.of_token == {(0, 0): ["committed"], (1, 0): ["StorageFailed"]}
        assert rig.were_early == [False]


@WAYS
async def test_notes_that_the_disk_refuses_are_not_in_the_object(
    tmp_path: Path, data: bytes
) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.EIO, "I/O error", path)

    rig = Rig(tmp_path, fail=Files(refuse, record=2))
    rig.journal.add(NOTE)
    async with running(rig):
        rig.append(data)
        await rig.settle()
        assert rig.outcomes.of_token == {(0, 0): ["committed"]}
        assert await noted(rig) == ()
        assert rig.journal.take() == [NOTE]


async def noted(rig: Rig) -> Sequence[CommitNote]:
    """The commits that the last object notes."""
    key = rig.outcomes.committed[-1].object_key
    return tuple((await WalObjectReader(rig.store).verify(key)).notes.commits)


@WAYS
async def test_a_chunk_whose_file_is_deleted_meanwhile_has_no_object(
    tmp_path: Path, data: bytes
) -> None:
    def delete(path: str) -> None:
        Path(path).with_suffix(".data").unlink()

    rig = Rig(tmp_path, fail=Files(delete))
    async with running(rig):
        rig.append(data)
        await rig.settle()
        assert rig.outcomes.of_token == {(0, 0): ["ChunkLost"]}
        assert rig.objects() == []


@WAYS
async def test_what_could_not_be_put_beside_is_uploaded(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ObjectStoreUnavailable("the disk is full")

    monkeypatch.setattr(FileStore, "put_in_thread", refused)
    async with running(Rig(tmp_path)) as rig:
        rig.append(data, OTHER)
        await rig.settle()
        assert {*map(tuple, rig.outcomes.of_token.values())} == {("committed",)}
        assert rig.were_early == [False]
        assert rig.store.statistics().puts == 1


@WAYS
async def test_a_failpoint_before_the_put_ends_the_write_path(tmp_path: Path, data: bytes) -> None:
    rig = Rig(tmp_path)
    async with rig.store:
        uploading = asyncio.create_task(rig.uploader.run())
        writing = asyncio.create_task(rig.loop.run())
        arm("upload.before_put=raise")
        try:
            rig.append(data)
            await asyncio.wait([writing, uploading], return_when=asyncio.FIRST_COMPLETED)
        finally:
            arm("")
        for task in (writing, uploading):
            task.cancel()
        ended = await asyncio.gather(writing, uploading, return_exceptions=True)
        assert any(map(is_of_a_failpoint, ended))
        (outcomes,) = rig.outcomes.of_token.values()
        assert outcomes in (["CommitOutcomeUnknown"], ["StorageFailed"])
        chunks = os.listdir(tmp_path / "chunks")
        assert (outcomes == ["StorageFailed"]) == (chunks == ["lock"]), "what is in no chunk failed"
        assert rig.objects() == []
        assert rig.draft_bytes() == 0
    rig.directory.close()


def is_of_a_failpoint(error: object) -> bool:
    group = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
    return any(isinstance(one, FailpointError) for one in group)


@asynccontextmanager
async def open_chunk_with_a_put(
    path: Path,
) -> AsyncIterator[tuple[Rig, PutBeside, asyncio.Task[None]]]:
    """A put whose chunk has one batch and stays open; nothing of it is stored in the end."""
    rig = Rig(path, seals_early=False)
    async with rig.store:
        writing = asyncio.create_task(rig.loop.run())
        await rig.append_apart(LARGE)
        assert rig.loop._put is not None
        put = rig.loop._put
        yield rig, put, writing
        assert not await put.has_stored()
        assert rig.objects() == []
        assert rig.draft_bytes() == 0
        writing.cancel()
        await asyncio.wait([writing])
    rig.directory.close()


async def test_a_loop_that_is_cancelled_gives_up_the_put_of_its_open_chunk(tmp_path: Path) -> None:
    async with open_chunk_with_a_put(tmp_path) as (rig, _, writing):
        writing.cancel()
        await asyncio.wait([writing])
        assert rig.outcomes.of_token == {(0, 0): ["CommitOutcomeUnknown"]}


async def test_the_end_of_the_uploader_gives_up_a_put(tmp_path: Path) -> None:
    async with open_chunk_with_a_put(tmp_path) as (rig, put, _):
        await rig.uploader.early.close()
        assert put.has_ended
        await rig.append_apart(LARGE, token=1)  # Nobody waits for a put that has ended.


# --- one put --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_count", "data_bytes", "seals", "under_way"),
    [
        (1, PUT_WITH_CHUNK_BYTES_MAX, True, 0),
        (1, PUT_AT_ONCE_BYTES_MAX, False, 0),
        (FEW_MAX + 1, 1 << 30, True, 0),
        (FEW_MAX, 1 << 20, False, 0),
        (1, 1 << 30, True, 1),
    ],
)
async def test_other_chunks_are_not_put_beside(
    tmp_path: Path, batch_count: int, data_bytes: int, seals: bool, under_way: int
) -> None:
    puts = FileStore(tmp_path, clock=SystemClock(), rng=random.Random(1))
    early = EarlyPuts(puts, under_way=lambda: under_way)
    assert early.beside(batch_count, data_bytes, seals=seals) is None
    without = EarlyPuts(None, under_way=lambda: 0)
    assert without.beside(1, 2 << 20, seals=True) is None
    await early.close()
    closed = EarlyPuts(puts, under_way=lambda: 0)
    await closed.close()
    assert closed.beside(1, 2 << 20, seals=True) is None


async def test_there_is_one_put_beside_at_a_time(tmp_path: Path) -> None:
    """They have the same buffers."""
    early = EarlyPuts(
        FileStore(tmp_path, clock=SystemClock(), rng=random.Random(1)), under_way=lambda: 0
    )
    first = early.beside(1, 2 << 20, seals=True)
    assert first is not None
    assert early.beside(1, 2 << 20, seals=True) is None
    first.give_up()
    assert not await first.has_stored()
    second = early.beside(1, 2 << 20, seals=True)
    assert second is not None
    await early.close()
    assert second.has_ended


async def test_a_put_for_which_no_chunk_was_begun_ends_with_nothing_stored(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        put = rig.uploader.early.beside(1, len(LARGE), seals=False)
        assert put is not None
        put.finish(None)
        assert not await put.has_stored()
        assert rig.objects() == []


@pytest.mark.parametrize("place", [0, 16, 21, len(LARGE) - 1])
async def test_memory_that_was_written_over_is_not_put(tmp_path: Path, place: int) -> None:
    async with running(Rig(tmp_path)) as rig:
        batches, other = (pending(rig.pool, A0, LARGE) for _ in range(2))
        writer = rig.directory.open_chunk()
        placed = writer.place([batches])
        put = rig.uploader.early.beside(1, len(LARGE), seals=False)
        assert put is not None
        flip(other.payload, place)
        put.add(writer, placed.batches(), placed._replace(data=other.payload.views()))
        writer.write(placed)
        chunk = rig.directory.seal(writer, ())
        assert chunk is not None
        put.finish(chunk.plan)
        batches.payload.release()
        other.payload.release()
        chunk.early_put = put
        assert not await put.has_stored()
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(TIMEOUT_S)
        assert rig.outcomes.committed == [chunk]


def flip(payload: FragmentChain, place: int) -> None:
    for view in payload.views():
        if place < len(view):
            view[place] ^= 1
            return
        place -= len(view)
