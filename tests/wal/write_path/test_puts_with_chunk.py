"""A chunk that one append makes is put from memory, by the thread that writes it.

What both ways of putting an object beside its chunk promise is in
tests/wal/write_path/test_puts_beside.py.
"""

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.chunks.uploader_rig import BATCH, until
from tests.support.chunks.write_path import (
    A0,
    A1,
    SETTINGS,
    FaultyDisk,
    Outcomes,
    batch_bytes,
    object_bytes,
    open_directory,
    pending,
    sealed,
)
from wal.chunks.buffer import BufferPool, FragmentChain
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import FreshObjectBody, WalObjectBody
from wal.clock import SystemClock
from wal.columns import FEW_MAX
from wal.coordinates import ObjectKey
from wal.stores.object_store import ObjectBody
from wal.write_path.early_puts import (
    PUT_AT_ONCE_BYTES_MAX,
    PUT_WITH_CHUNK_BYTES_MAX,
    EarlyPuts,
)
from wal.write_path.write_loop import WriteLoop

OTHER = batch_bytes(b"y" * 200)


class RecordingPuts:
    """Takes puts in a thread and keeps their bodies; `hold` is called once one is written."""

    def __init__(self, hold: Callable[[], object] = lambda: None) -> None:
        self.bodies: list[ObjectBody] = []
        self.threads: list[str] = []
        self.given_up: list[bool] = []
        self._hold = hold

    def put_in_thread(
        self,
        key: ObjectKey,
        body: ObjectBody,
        abandoned: Callable[[], bool],
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        self.bodies.append(body)
        self.threads.append(threading.current_thread().name.partition("_")[0])
        if meanwhile is not None:
            meanwhile()
        self._hold()
        self.given_up.append(abandoned())

    def put_noted(self, length_bytes: int) -> None:
        pass


def write_loop(
    directory: ChunkDirectory,
    puts: RecordingPuts,
    under_way: Callable[[], int],
    outcomes: Outcomes | None = None,
) -> WriteLoop:
    async def take(_: SealedChunk) -> None:
        pass

    return WriteLoop(
        directory,
        settings=replace(SETTINGS, commit_interval_ms=60_000, commit_early=True),
        clock=SystemClock(),
        on_sealed=take,
        on_failed=(outcomes or Outcomes()).failed,
        under_way=under_way,
        puts=EarlyPuts(puts, under_way=under_way),
    )


async def test_only_what_one_append_brought_is_put_from_memory(tmp_path: Path) -> None:
    """What earlier appends brought has been given back."""
    directory = open_directory(tmp_path)
    directory.recover()
    pool, puts, under_way = BufferPool(1 << 20), RecordingPuts(), 0
    loop = write_loop(directory, puts, lambda: under_way)
    running_loop = asyncio.create_task(loop.run())
    for number in range(3):
        loop.append_nowait(pending(pool, A0, BATCH, token=number))
    await loop.flush()
    under_way = 9  # Now nothing is sealed at once.
    loop.append_nowait(pending(pool, A0, BATCH, token=3))
    await until(lambda: loop.statistics().appends == 2)
    under_way = 0
    loop.append_nowait(pending(pool, A0, BATCH, token=4))
    await loop.flush()
    assert [type(body) for body in puts.bodies] == [FreshObjectBody, WalObjectBody]
    assert puts.threads == ["wal-append"] * 2
    loop.close()
    await running_loop
    directory.close()


async def test_the_put_of_a_loop_that_is_cancelled_is_given_up_and_its_chunk_stays(
    tmp_path: Path,
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert go_on.wait(60)

    directory = open_directory(tmp_path)
    directory.recover()
    puts = RecordingPuts(hold)
    loop = write_loop(directory, puts, lambda: 0)
    running_loop = asyncio.create_task(loop.run())
    loop.append_nowait(pending(BufferPool(1 << 20), A0, BATCH))
    assert await asyncio.to_thread(entered.wait, 60)
    running_loop.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([running_loop])
    assert puts.given_up == [True]
    directory.close()
    again = open_directory(tmp_path)
    assert len(again.recover()) == 1
    again.close()


@pytest.mark.parametrize("data", [BATCH, batch_bytes(b"x" * 2_000_000)])
async def test_a_chunk_that_cannot_be_opened_fails_its_batches_and_no_others(
    tmp_path: Path, data: bytes
) -> None:
    """Put by the thread that writes it, or beside it."""
    left = 1

    def refuse_once(call: str, path: str) -> None:
        nonlocal left
        if call == "open" and path.endswith(".idx") and left:
            left -= 1
            raise OSError(errno.EMFILE, "too many open files", path)

    directory = open_directory(tmp_path, disk=FaultyDisk(refuse_once))
    directory.recover()
    puts, outcomes, pool = RecordingPuts(), Outcomes(), BufferPool(1 << 23)
    loop = write_loop(directory, puts, lambda: 0, outcomes)
    running_loop = asyncio.create_task(loop.run())
    for token in range(2):
        loop.append_nowait(pending(pool, A0, data, token=token))
        await loop.flush()
    assert outcomes.of_token == {0: ["StorageFailed"]}
    assert loop.statistics().chunks_sealed == 1
    assert pool.statistics().in_use_bytes == 0
    loop.close()
    await running_loop
    directory.close()


async def test_a_broken_store_ends_the_loop_and_the_chunk_stays(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("a bug in the store")

    directory = open_directory(tmp_path)
    directory.recover()
    outcomes = Outcomes()
    loop = write_loop(directory, RecordingPuts(fail), lambda: 0, outcomes)
    loop.append_nowait(pending(BufferPool(1 << 20), A0, BATCH, token=0))
    with pytest.raises(RuntimeError, match="a bug in the store"):
        await loop.run()
    assert outcomes.of_token == {0: ["CommitOutcomeUnknown"]}
    directory.close()
    again = open_directory(tmp_path)
    assert len(again.recover()) == 1
    again.close()


# --- one put --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_count", "data_bytes", "under_way", "takes"),
    [
        (FEW_MAX, PUT_WITH_CHUNK_BYTES_MAX, 0, True),
        (1000, PUT_AT_ONCE_BYTES_MAX, 0, True),
        (1, PUT_WITH_CHUNK_BYTES_MAX + 1, 0, False),
        (FEW_MAX + 1, PUT_AT_ONCE_BYTES_MAX + 1, 0, False),
        (1, 1, 1, False),
    ],
)
def test_what_is_put_with_its_chunk(
    batch_count: int, data_bytes: int, under_way: int, takes: bool
) -> None:
    early = EarlyPuts(RecordingPuts(), under_way=lambda: under_way)
    assert early.takes_with_chunk(batch_count, data_bytes) == takes
    assert not EarlyPuts(None, under_way=lambda: 0).takes_with_chunk(batch_count, data_bytes)


def cut(pool: BufferPool, data: bytes, *cuts: int) -> FragmentChain:
    """A chain of `data`, in as many fragments as cuts make."""
    chains = [pool.adopt(data[start:end]) for start, end in pairwise([0, *cuts, len(data)])]
    fragments = [chain._check_owned()[0] for chain in chains]
    return FragmentChain(fragments, [view for c in chains for view in c.views()], len(data))


@pytest.mark.parametrize("cuts", [(), (1,), (21,), (7, 30, 61, 200)])
def test_what_is_put_from_memory_is_what_would_be_read_back(
    tmp_path: Path, cuts: Sequence[int]
) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, [(A1, BATCH), (A0, BATCH), (A1, OTHER)])
    pool = BufferPool(1 << 20)
    payloads = [cut(pool, data, *cuts) for data in (BATCH, BATCH, OTHER)]
    fresh = FreshObjectBody(chunk.plan, payloads, chunk.data_path)
    assert object_bytes(fresh) == object_bytes(WalObjectBody(chunk, chunk.plan))
    assert fresh.length_bytes == chunk.plan.object_bytes
    directory.close()
