"""The uploader: order of commits, retries, back pressure, damage, and one outcome per token."""

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.chunks.uploader_rig import Rig, running, until
from tests.support.chunks.write_path import (
    SETTINGS,
    object_bytes,
    open_directory,
)
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import WalObjectBody, WalObjectReader
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    DisklessError,
    NotCoordinator,
    ObjectExpired,
    ObjectStoreUnavailable,
    StorageFailed,
    UploadOutcomeUnknown,
)
from wal.failpoint import FailpointError, arm
from wal.write_path.uploader import CHUNKS_PER_COMMIT_MAX, Uploader


async def test_a_chunk_is_stored_committed_and_kept_as_cache(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunk = rig.chunk()
        plan = chunk.plan
        expected = object_bytes(WalObjectBody(chunk, plan))
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(10)
        assert await rig.store.get(chunk.object_key) == expected
        assert (await WalObjectReader(rig.store).verify(chunk.object_key)).extents == plan.extents
        assert rig.directory.locate(chunk.object_key) is chunk
        assert chunk.is_committed
        assert (rig.uploader.uploads, rig.uploader.upload_bytes) == (1, len(expected))
    again = open_directory(tmp_path)
    assert again.recover() == []
    again.close()


async def test_chunks_are_under_way_until_they_are_answered_and_each_answer_is_told(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    told: list[tuple[int, ...]] = []
    rig.uploader.listen(lambda *answered: told.append((*answered, rig.uploader.under_way)))
    await rig.uploader.submit(rig.chunk(3))
    assert rig.uploader.under_way == 1
    async with running(rig):
        await until(lambda: len(told) == 1)
        assert told == [(3, 1, 0)]
        rig.outcomes.before_commit = _refuse
        await rig.uploader.submit(rig.chunk(2))
        await until(lambda: len(told) == 2)
        assert told[1:] == [(2, 1, 0)]
    rig.check_each_token_once()


def _refuse(chunk: SealedChunk) -> None:
    raise ObjectExpired("too old")


async def test_commits_keep_seal_order_although_uploads_finish_in_reverse(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunks = [rig.chunk() for _ in range(5)]
        done: dict[ObjectKey, asyncio.Event] = {
            chunk.object_key: asyncio.Event() for chunk in chunks
        }
        finished: list[ObjectKey] = []

        async def wait(key: ObjectKey, attempt: int) -> None:
            await done[key].wait()

        rig.store.before = wait
        rig.store.after = lambda key, attempt: finished.append(key)
        for chunk in chunks:
            await rig.uploader.submit(chunk)
        for chunk in reversed(chunks):
            assert rig.outcomes.committed == []
            done[chunk.object_key].set()
            async with asyncio.timeout(120):
                while chunk.object_key not in finished:  # noqa: ASYNC110 - a put is a few steps
                    await asyncio.sleep(0)
        assert await rig.uploader.drain(10)
        assert finished == [chunk.object_key for chunk in reversed(chunks)]
        assert rig.outcomes.committed == chunks


async def test_uploads_run_in_parallel_up_to_their_limit(tmp_path: Path) -> None:
    settings = replace(SETTINGS, upload_concurrency=3)
    async with running(Rig(tmp_path, settings)) as rig:
        barrier = asyncio.Barrier(3)

        async def meet(key: ObjectKey, attempt: int) -> None:
            await barrier.wait()

        rig.store.before = meet
        for _ in range(6):
            await rig.uploader.submit(rig.chunk())
        assert await rig.uploader.drain(10)
        assert rig.store.running_max == 3


@pytest.mark.parametrize("error", [ObjectStoreUnavailable, UploadOutcomeUnknown, StorageFailed])
async def test_an_upload_that_fails_is_tried_again_under_the_same_key(
    tmp_path: Path, error: type[DisklessError]
) -> None:
    async with running(Rig(tmp_path)) as rig:

        async def fail(key: ObjectKey, attempt: int) -> None:
            if attempt <= 4:
                raise error("not now")

        rig.store.before = fail
        chunk = rig.chunk()
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(10)
        assert rig.store.attempts == {chunk.object_key: 5}
        assert rig.uploader.upload_retries == 4


async def test_a_put_whose_answer_was_lost_is_not_stored_twice(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:

        def lose(key: ObjectKey, attempt: int) -> None:
            if attempt == 1:
                raise UploadOutcomeUnknown("no answer")

        rig.store.after = lose
        chunk = rig.chunk()
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(10)
        assert [stat.key async for stat in rig.store.list("")] == [chunk.object_key]
        assert rig.outcomes.committed == [chunk]


async def test_later_chunks_upload_while_the_first_is_retried_and_wait_for_its_commit(
    tmp_path: Path,
) -> None:
    async with running(Rig(tmp_path)) as rig:
        first, second = rig.chunk(), rig.chunk()
        stored = asyncio.Event()

        async def fail(key: ObjectKey, attempt: int) -> None:
            if key == first.object_key and not stored.is_set():
                raise ObjectStoreUnavailable("not now")

        rig.store.before = fail
        rig.store.after = lambda key, attempt: stored.set() if key == second.object_key else None
        await rig.uploader.submit(first)
        await rig.uploader.submit(second)
        assert await rig.uploader.drain(10)
        assert rig.outcomes.committed == [first, second]


@pytest.mark.parametrize("error", [NotCoordinator, CommitFailed, CommitOutcomeUnknown])
async def test_a_commit_that_fails_is_repeated_in_its_place(
    tmp_path: Path, error: type[DisklessError]
) -> None:
    async with running(Rig(tmp_path)) as rig:
        asked: list[SealedChunk] = []

        def refuse(chunk: SealedChunk) -> None:
            asked.append(chunk)
            if len(asked) <= 3:
                raise error("not now")

        rig.outcomes.before_commit = refuse
        chunks = [rig.chunk(), rig.chunk()]
        for chunk in chunks:
            await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(10)
        assert asked == [chunks[0]] * 4 + [chunks[1]]
        assert rig.uploader.commit_retries == 3


async def test_chunks_that_are_stored_are_committed_together(tmp_path: Path) -> None:
    """Those behind one that is not stored yet wait for it."""
    async with running(Rig(tmp_path)) as rig:
        chunks = [rig.chunk() for _ in range(5)]
        may_go = {chunks[place].object_key: asyncio.Event() for place in (0, 3)}

        async def wait(key: ObjectKey, attempt: int) -> None:
            if key in may_go:
                await may_go[key].wait()

        rig.store.before = wait
        for chunk in chunks:
            await rig.uploader.submit(chunk)
        await until(lambda: len(rig.store.attempts) == 5 and rig.store.running == 2)
        assert rig.outcomes.together == []
        may_go[chunks[0].object_key].set()
        await until(lambda: rig.uploader.waiting_chunks == 2)
        assert rig.outcomes.together == [3]
        may_go[chunks[3].object_key].set()
        assert await rig.uploader.drain(10)
        assert rig.outcomes.together == [3, 2]
        assert rig.outcomes.committed == chunks


async def test_a_commit_takes_a_bounded_number_of_chunks(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunks = [rig.chunk() for _ in range(CHUNKS_PER_COMMIT_MAX + 2)]
        first = asyncio.Event()

        async def wait(key: ObjectKey, attempt: int) -> None:
            if key == chunks[0].object_key:
                await first.wait()

        rig.store.before = wait
        for chunk in chunks:
            await rig.uploader.submit(chunk)
        await until(lambda: rig.store.running == 1 and len(rig.store.attempts) == len(chunks))
        first.set()
        assert await rig.uploader.drain(10)
        assert rig.outcomes.together == [CHUNKS_PER_COMMIT_MAX, 2]
        assert rig.outcomes.committed == chunks


async def test_a_chunk_that_is_refused_leaves_those_committed_with_it(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunks = [rig.chunk() for _ in range(3)]
        first = asyncio.Event()

        async def wait(key: ObjectKey, attempt: int) -> None:
            if key == chunks[0].object_key:
                await first.wait()

        def refuse(chunk: SealedChunk) -> None:
            if chunk is chunks[1]:
                raise ObjectExpired("too old")

        rig.store.before = wait
        rig.outcomes.before_commit = refuse
        for chunk in chunks:
            await rig.uploader.submit(chunk)
        await until(lambda: rig.store.running == 1 and len(rig.store.attempts) == 3)
        first.set()
        assert await rig.uploader.drain(10)
        assert rig.outcomes.together == [3]
        assert rig.outcomes.committed == [chunks[0], chunks[2]]
        assert [chunk for chunk, _ in rig.outcomes.abandoned] == [chunks[1]]
        assert [chunk.is_committed for chunk in chunks] == [True, False, True]


async def test_the_queue_is_bounded_and_always_takes_one_chunk(tmp_path: Path) -> None:
    probe = Rig(tmp_path / "probe")
    charge = probe.chunk().charged_bytes
    probe.directory.close()
    settings = replace(SETTINGS, buffer_max_bytes=2 * charge)
    async with running(Rig(tmp_path / "rig", settings)) as rig:
        outage = asyncio.Event()

        async def wait(key: ObjectKey, attempt: int) -> None:
            await outage.wait()

        rig.store.before = wait
        await rig.uploader.submit(rig.chunk())
        await rig.uploader.submit(rig.chunk())
        third = asyncio.create_task(rig.uploader.submit(rig.chunk()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not third.done()
        rig.clock.advance(30)
        assert rig.uploader.waiting_bytes == 2 * charge
        assert rig.uploader.oldest_waiting_s == 30
        outage.set()
        await third
        assert await rig.uploader.drain(10)
        # Larger than the whole queue, but there is nothing else in it.
        large = rig.chunk(20)
        assert large.charged_bytes > settings.buffer_max_bytes
        await rig.uploader.submit(large)
        assert await rig.uploader.drain(10)


async def test_a_cancelled_submit_queued_nothing(tmp_path: Path) -> None:
    async with running(Rig(tmp_path, replace(SETTINGS, buffer_max_bytes=1))) as rig:
        outage = asyncio.Event()

        async def wait(key: ObjectKey, attempt: int) -> None:
            await outage.wait()

        rig.store.before = wait
        await rig.uploader.submit(rig.chunk())
        blocked = rig.chunk(1)
        submit = asyncio.create_task(rig.uploader.submit(blocked))
        await asyncio.sleep(0)
        submit.cancel()
        await asyncio.wait([submit])
        assert rig.uploader.waiting_chunks == 1
        outage.set()
        assert await rig.uploader.drain(10)
        assert blocked not in rig.outcomes.committed
        # Nobody else answers for it now.
        await rig.outcomes.abandon(blocked, StorageFailed("not queued"))


async def test_drain_gives_up_at_its_deadline_and_nothing_is_lost(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        never = asyncio.Event()

        async def wait(key: ObjectKey, attempt: int) -> None:
            await never.wait()

        rig.store.before = wait
        chunk = rig.chunk()
        await rig.uploader.submit(chunk)
        assert not await rig.uploader.drain(0.001)
    assert rig.outcomes.of_token == {0: ["CommitOutcomeUnknown"], 1: ["CommitOutcomeUnknown"]}
    again = open_directory(tmp_path)
    assert [found.object_key for found in again.recover()] == [chunk.object_key]
    again.close()


async def test_after_its_end_the_uploader_takes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, replace(SETTINGS, buffer_max_bytes=1))
    never = asyncio.Event()

    async def wait(key: ObjectKey, attempt: int) -> None:
        await never.wait()

    rig.store.before = wait
    task = asyncio.create_task(rig.uploader.run())
    await rig.uploader.submit(rig.chunk())
    blocked = asyncio.create_task(rig.uploader.submit(rig.chunk()))
    drained = asyncio.create_task(rig.uploader.drain(10))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task, blocked, drained])
    assert isinstance(blocked.exception(), StorageFailed)
    assert not drained.result()
    with pytest.raises(StorageFailed):
        await rig.uploader.submit(rig.chunk())
    assert rig.outcomes.of_token == {0: ["CommitOutcomeUnknown"], 1: ["CommitOutcomeUnknown"]}
    rig.directory.close()


async def test_cancelling_at_any_step_gives_each_token_one_outcome(tmp_path: Path) -> None:
    for steps in range(1, 70):
        path = tmp_path / str(steps)
        rig = Rig(path)

        async def flaky(key: ObjectKey, attempt: int) -> None:
            await asyncio.sleep(0)
            if attempt == 1 and key.endswith(("0", "2", "4", "6", "8")):
                raise ObjectStoreUnavailable("not now")

        rig.store.before = flaky
        task = asyncio.create_task(rig.uploader.run())
        for _ in range(3):
            await rig.uploader.submit(rig.chunk())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        rig.check_each_token_once()
        committed = {chunk.object_key for chunk in rig.outcomes.committed}
        rig.directory.close()
        # What was not committed is there at the next start; what was, at most once more.
        again = open_directory(path)
        waiting = {chunk.object_key for chunk in again.recover()}
        cached = again.statistics().cached_chunks
        again.close()
        assert len(waiting | committed) == 3
        assert len(waiting) + cached == 3


@pytest.mark.parametrize("point", ["upload.before_put", "upload.after_put"])
async def test_an_uploader_that_dies_leaves_its_chunks_to_the_next_start(
    tmp_path: Path, point: str
) -> None:
    rig = Rig(tmp_path)
    chunk = rig.chunk()
    arm(f"{point}=raise")
    try:
        await rig.uploader.submit(chunk)
        with pytest.raises(ExceptionGroup) as raised:
            await rig.uploader.run()
    finally:
        arm("")
    assert raised.group_contains(FailpointError)
    rig.check_each_token_once()
    rig.directory.close()
    again = Rig(tmp_path)
    again.store = rig.store
    (recovered,) = again.recovered
    uploader = Uploader(
        rig.store,
        again.directory,
        settings=SETTINGS,
        clock=ManualClock(),
        rng=random.Random(1),
        committer=again.outcomes,
    )
    task = asyncio.create_task(uploader.run())
    await uploader.submit(recovered)
    assert await uploader.drain(10)
    task.cancel()
    await asyncio.wait([task])
    # The same key with the same bytes: the second put is the first one.
    assert recovered.object_key == chunk.object_key
    assert again.outcomes.committed == [recovered]
    assert len([stat async for stat in rig.store.list("")]) == 1
    again.directory.close()


async def test_a_committer_that_breaks_stops_the_uploader(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    def broken(chunk: SealedChunk) -> None:
        raise RuntimeError("a bug")

    rig.outcomes.before_commit = broken
    await rig.uploader.submit(rig.chunk())
    with pytest.raises(ExceptionGroup) as raised:
        await rig.uploader.run()
    assert raised.group_contains(RuntimeError)
    rig.check_each_token_once()
    rig.directory.close()


class HeldDirectory:
    """Holds the marking of chunks, in its thread, until it is let go."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        mark = rig.directory.mark_committed

        def held(chunk: SealedChunk) -> None:
            self.begun.set()
            assert self.go_on.wait(60)
            mark(chunk)

        monkeypatch.setattr(rig.directory, "mark_committed", held)


async def test_a_commit_does_not_wait_until_the_files_of_earlier_ones_are_put_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(Rig(tmp_path)) as rig:
        held = HeldDirectory(rig, monkeypatch)
        chunks = [rig.chunk() for _ in range(2)]
        for chunk in chunks:
            await rig.uploader.submit(chunk)
            await until(lambda chunk=chunk: chunk in rig.outcomes.committed)  # type: ignore[misc]
        assert await asyncio.to_thread(held.begun.wait, 60)
        assert (rig.uploader.under_way, rig.uploader.waiting_chunks) == (0, 2)
        assert rig.uploader.waiting_bytes == sum(chunk.charged_bytes for chunk in chunks)
        drained = asyncio.create_task(rig.uploader.drain(60))
        await asyncio.sleep(0)
        assert not drained.done()
        held.go_on.set()
        assert await drained
        assert all(chunk.is_committed for chunk in chunks)
        assert rig.uploader.waiting_bytes == 0


async def test_an_uploader_that_ends_puts_away_what_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    held = HeldDirectory(rig, monkeypatch)
    async with running(rig):
        chunks = [rig.chunk() for _ in range(3)]
        for chunk in chunks:
            await rig.uploader.submit(chunk)
            await until(lambda chunk=chunk: chunk in rig.outcomes.committed)  # type: ignore[misc]
        asyncio.get_running_loop().call_later(0, held.go_on.set)
    assert all(chunk.is_committed for chunk in chunks)
    again = open_directory(tmp_path)
    assert again.recover() == []
    again.close()
