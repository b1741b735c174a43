"""The write loop: order, rotation, back pressure, and exactly one outcome per batch."""

import asyncio
import errno
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.chunks.write_loop_rig import BATCH, Rig, running
from tests.support.chunks.write_path import (
    A0,
    SETTINGS,
    FaultyDisk,
    open_directory,
    pending,
)
from wal.chunks.buffer import BufferPool
from wal.chunks.sealed_chunk import BATCH_OVERHEAD_BYTES
from wal.clock import ManualClock
from wal.errors import AppendTooLarge, CorruptBatch, DisklessError, Overloaded, StorageFailed
from wal.failpoint import FailpointError, arm
from wal.write_path.write_loop import PendingBatches


async def test_batches_keep_the_order_of_the_calls(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        for size in (1, 3, 2, 1):
            rig.loop.append_nowait(rig.batches(size))
            await asyncio.sleep(0)
        await rig.loop.flush()
        assert rig.sealed_tokens() == [[0, 1, 2, 3, 4, 5, 6]]
        assert rig.appended == [0, 1, 2, 3, 4, 5, 6]
    scanned = [entry.length_bytes for entry in rig.sealed[0].batches]
    assert scanned == [500] * 7


async def test_buffers_are_released_by_the_append_not_by_the_upload(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        rig.gate.clear()
        rig.loop.append_nowait(rig.batches(5))
        flush = asyncio.create_task(rig.loop.flush())
        await rig.wait_appended(5)
        assert rig.pool.statistics().in_use_bytes == 0
        rig.gate.set()
        await flush


async def test_a_chunk_ends_when_its_bytes_are_full(tmp_path: Path) -> None:
    settings = replace(SETTINGS, chunk_max_bytes=1000)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        for _ in range(5):
            rig.loop.append_nowait(rig.batches(1))
        await rig.wait_sealed(2)
        assert rig.sealed_tokens() == [[0, 1], [2, 3]]
    assert rig.sealed_tokens() == [[0, 1], [2, 3], [4]]


async def test_a_chunk_ends_when_it_has_enough_batches(tmp_path: Path) -> None:
    settings = replace(SETTINGS, chunk_max_batches=3)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        for size in (2, 2, 1, 3):
            rig.loop.append_nowait(rig.batches(size))
        await rig.wait_sealed(3)
        assert rig.sealed_tokens() == [[0, 1], [2, 3, 4], [5, 6, 7]]


async def test_no_chunk_ends_for_its_age_while_the_uploader_is_behind(tmp_path: Path) -> None:
    rig = Rig(tmp_path, settings=replace(SETTINGS, commit_interval_ms=1))
    rig.is_behind = True
    async with running(rig):
        for number in range(5):
            looks = rig.looks
            rig.loop.append_nowait(rig.batches(1))
            await rig.wait_appended(number + 1)
            await rig.wait_looked(looks + 2)
        assert rig.sealed == []
        rig.is_behind = False
        rig.loop.look_again()
        await rig.wait_sealed(1)
    assert rig.sealed_tokens() == [[0, 1, 2, 3, 4]]


EARLY = replace(SETTINGS, commit_early=True, commit_early_bytes=1)


async def test_a_batch_is_sealed_as_it_comes_when_nothing_is_under_way(tmp_path: Path) -> None:
    async with running(Rig(tmp_path, settings=EARLY)) as rig:
        for number in range(3):
            rig.loop.append_nowait(rig.batches(1))
            await rig.wait_sealed(number + 1)
    assert rig.sealed_tokens() == [[0], [1], [2]]


async def test_what_arrives_during_the_last_append_is_in_the_chunk_that_it_lets_be_sealed(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, settings=EARLY, clock=ManualClock())

    def last_of_the_round() -> None:
        rig.after_append = lambda: None
        rig.loop.append_nowait(rig.batches(1))

    async with running(rig):
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_sealed(1)
        # The producers of four batches are answered, and awaited as long as the clock stands.
        rig.loop.look_again(4, 1)
        rig.after_append = last_of_the_round
        rig.loop.append_nowait(rig.batches(3))
        await rig.wait_sealed(2)
    assert rig.sealed_tokens() == [[0], [1, 2, 3, 4]]


async def test_what_arrives_while_chunks_are_under_way_is_sealed_when_one_is_answered(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, settings=EARLY)
    rig.under_way = 2
    # Somebody sends all the time, so that no pause ends the chunk.
    rig.arrivals.unfinished, rig.arrivals.last_at = 1, math.inf
    async with running(rig):
        for number in range(3):
            rig.loop.append_nowait(rig.batches(1))
            await rig.wait_appended(number + 1)
        looks = rig.looks
        rig.loop.look_again()
        await rig.wait_looked(looks + 1)
        assert rig.sealed == []
        rig.under_way = 0
        rig.arrivals.unfinished = 0
        rig.loop.look_again()
        await rig.wait_sealed(1)
    assert rig.sealed_tokens() == [[0, 1, 2]]


async def test_a_pause_of_all_senders_ends_a_chunk_although_others_are_under_way(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, settings=EARLY)
    rig.under_way = 3
    async with running(rig):
        rig.loop.append_nowait(rig.batches(2))
        await rig.wait_sealed(1)
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_sealed(2)
    assert rig.sealed_tokens() == [[0, 1], [2]]


async def test_a_full_chunk_without_a_put_left_grows_and_then_makes_the_queue_wait(
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, puts_per_second_max=1, chunk_max_bytes=500)
    clock = ManualClock()
    async with running(Rig(tmp_path, settings=settings, clock=clock)) as rig:
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_sealed(1)
        # The put of this second is spent: the next chunk takes four times as much, and no more.
        for _ in range(6):
            rig.loop.append_nowait(rig.batches(1))
        await rig.wait_appended(5)
        assert rig.loop.statistics().queued_batches == 2
        clock.advance(1.0)
        rig.loop.look_again()
        await rig.wait_sealed(2)
    assert rig.sealed_tokens() == [[0], [1, 2, 3, 4], [5, 6]]


async def test_large_chunks_need_no_put_and_take_none_from_small_ones(tmp_path: Path) -> None:
    settings = replace(EARLY, puts_per_second_max=1, puts_large_bytes=1000)
    async with running(Rig(tmp_path, settings=settings, clock=ManualClock())) as rig:
        for number, count in enumerate((3, 2, 1)):
            rig.loop.append_nowait(rig.batches(count))
            await rig.wait_sealed(number + 1)
        # The only put is spent: a small one waits until it is large.
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_appended(7)
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_sealed(4)
    assert rig.sealed_tokens() == [[0, 1, 2], [3, 4], [5], [6, 7]]


async def test_a_chunk_ends_with_the_commit_interval_although_nothing_else_comes(
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, commit_interval_ms=5)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_sealed(1)
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_sealed(2)


async def test_an_idle_loop_makes_no_chunk(tmp_path: Path) -> None:
    settings = replace(SETTINGS, commit_interval_ms=1)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        await rig.loop.flush()
        rig.loop.append_nowait(rig.batches(0))
        await rig.loop.flush()
        assert rig.sealed == []
    assert [name for name in os.listdir(tmp_path) if name != "lock"] == []


async def test_the_batches_of_one_call_share_a_chunk_however_large(tmp_path: Path) -> None:
    settings = replace(SETTINGS, chunk_max_bytes=1000)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        rig.loop.append_nowait(rig.batches(1))
        rig.loop.append_nowait(rig.batches(7))
        rig.loop.append_nowait(rig.batches(1))
        await rig.loop.flush()
        assert rig.sealed_tokens() == [[0], [1, 2, 3, 4, 5, 6, 7], [8]]


async def test_a_call_beyond_the_overflow_is_refused_and_stays_with_its_caller(
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, chunk_max_bytes=1000, chunk_overflow_bytes=999)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        rig.loop.append_nowait(rig.batches(3))
        refused = rig.batches(4)
        with pytest.raises(AppendTooLarge):
            rig.loop.append_nowait(refused)
        assert b"".join(refused.payload.views()) == BATCH * 4
        refused.payload.release()
        for token in refused.token:
            rig.tokens.remove(token)


@pytest.mark.parametrize(
    ("payload", "error"), [(BATCH + b"!", AppendTooLarge), (BATCH[:-1], CorruptBatch)]
)
async def test_a_payload_that_is_not_what_its_header_says_is_refused(
    tmp_path: Path, payload: bytes, error: type[DisklessError]
) -> None:
    async with running(Rig(tmp_path)) as rig:
        rows = pending(BufferPool(1 << 20), A0, BATCH).rows
        item = pending(rig.pool, A0, payload)._replace(rows=rows)
        with pytest.raises(error):
            rig.loop.append_nowait(item)
        item.payload.release()


async def test_a_full_queue_refuses_until_it_is_drained(tmp_path: Path) -> None:
    charge = len(BATCH) + BATCH_OVERHEAD_BYTES
    settings = replace(SETTINGS, append_queue_max_bytes=8 * charge, chunk_max_batches=1)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        # Nothing is drained as long as this test does not wait.
        for _ in range(8):
            rig.loop.append_nowait(rig.batches(1))
        refused = rig.batches(1)
        with pytest.raises(Overloaded):
            rig.loop.append_nowait(refused)
        refused.payload.release()
        rig.tokens.pop()
        assert rig.loop.statistics().overloaded == 1
        assert rig.loop.statistics().queued_bytes == 8 * charge
        await rig.loop.flush()
        rig.loop.append_nowait(rig.batches(1))
        await rig.loop.flush()


async def test_a_batch_that_waited_too_long_for_a_chunk_fails_and_others_go_on(
    tmp_path: Path,
) -> None:
    async with running(Rig(tmp_path)) as rig:
        rig.loop.append_nowait(rig.batches(1)._replace(number_asked_ms=0))
        await rig.loop.flush()
        rig.loop.append_nowait(rig.batches(1))
        await rig.loop.flush()
        assert rig.outcomes.of_token == {0: ["Overloaded"], 1: ["sealed"]}


async def test_a_call_of_more_batches_than_a_commit_may_hold_is_refused(tmp_path: Path) -> None:
    settings = replace(SETTINGS, chunk_max_batches=3)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        refused = rig.batches(4)
        with pytest.raises(AppendTooLarge):
            rig.loop.append_nowait(refused)
        refused.payload.release()
        rig.tokens.clear()
        rig.loop.append_nowait(rig.batches(3))
        await rig.loop.flush()


async def test_a_call_larger_than_the_queue_is_taken_when_the_queue_is_empty(
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, append_queue_max_bytes=1)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        rig.loop.append_nowait(rig.batches(3))
        await rig.loop.flush()


async def test_appends_are_accepted_while_the_uploader_is_full(tmp_path: Path) -> None:
    charge = len(BATCH) + BATCH_OVERHEAD_BYTES
    settings = replace(SETTINGS, append_queue_max_bytes=4 * charge, chunk_max_batches=1)
    async with running(Rig(tmp_path, settings=settings)) as rig:
        rig.gate.clear()
        accepted = 0
        async with asyncio.timeout(120):
            while True:
                batch = rig.batches(1)
                try:
                    rig.loop.append_nowait(batch)
                except Overloaded:
                    batch.payload.release()
                    rig.tokens.pop()
                    if len(rig.appended) == 1:
                        break
                else:
                    accepted += 1
                await asyncio.sleep(0)
        # One batch is in the chunk that the uploader does not take, the others are queued.
        assert accepted == 5
        assert rig.pool.statistics().in_use_bytes > 0
        rig.gate.set()
        await rig.loop.flush()
        assert rig.sealed_tokens() == [[token] for token in rig.tokens]


async def test_a_flush_waits_for_what_was_queued_before_it(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        rig.loop.append_nowait(rig.batches(2))
        first = asyncio.create_task(rig.loop.flush())
        await asyncio.sleep(0)
        rig.loop.append_nowait(rig.batches(1))
        second = asyncio.create_task(rig.loop.flush())
        await first
        assert {0, 1} <= {token for tokens in rig.sealed_tokens() for token in tokens}
        await second
        assert {0, 1, 2} == {token for tokens in rig.sealed_tokens() for token in tokens}


async def test_a_flush_ends_although_appends_never_do(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        flush = asyncio.create_task(rig.loop.flush())

        def append_again(batches: Sequence[PendingBatches]) -> None:
            if not flush.done():
                rig.loop.append_nowait(rig.batches(1))

        rig.loop._on_appended = append_again
        rig.loop.append_nowait(rig.batches(1))
        async with asyncio.timeout(120):
            await flush
        assert rig.sealed


async def test_closing_seals_what_is_queued_and_takes_no_more(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.loop.append_nowait(rig.batches(3))
    async with running(rig):
        rig.loop.close()
        late = pending(rig.pool)
        with pytest.raises(StorageFailed):
            rig.loop.append_nowait(late)
        late.payload.release()
    assert rig.sealed_tokens() == [[0, 1, 2]]
    with pytest.raises(StorageFailed):
        await rig.loop.flush()


async def test_a_full_disk_fails_batches_once_and_heals_when_space_returns(
    tmp_path: Path,
) -> None:
    async with running(Rig(tmp_path)) as rig:
        rig.loop.append_nowait(rig.batches(2))
        await rig.loop.flush()
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_appended(3)
        rig.disk.space = 100
        rig.loop.append_nowait(rig.batches(2))
        await rig.loop.flush()
        # No new chunk can be opened either.
        rig.loop.append_nowait(rig.batches(1))
        await rig.loop.flush()
        rig.disk.space = None
        rig.loop.append_nowait(rig.batches(1))
        await rig.loop.flush()
        assert rig.sealed_tokens() == [[0, 1], [2], [6]]
        for token in (3, 4, 5):
            assert rig.outcomes.of_token[token] == ["StorageFailed"]
        assert rig.loop.statistics().batches_failed == 3
    again = open_directory(tmp_path)
    assert [len(chunk.batches) for chunk in again.recover()] == [2, 1, 1]
    again.close()


async def test_an_fsync_error_fails_the_batches_it_was_for_and_nothing_before(
    tmp_path: Path,
) -> None:
    async with running(Rig(tmp_path, settings=replace(SETTINGS, chunk_sync=True))) as rig:
        rig.loop.append_nowait(rig.batches(1))
        await rig.wait_appended(1)

        def fail(call: str, path: str) -> None:
            if call == "fdatasync":
                rig.disk.fail = lambda call, path: None
                raise OSError(errno.EIO, "input/output error")

        rig.disk.fail = fail
        rig.loop.append_nowait(rig.batches(1))
        rig.loop.append_nowait(rig.batches(1))
        await rig.loop.flush()
        rig.loop.append_nowait(rig.batches(1))
        await rig.loop.flush()
        assert rig.sealed_tokens() == [[0], [3]]
        assert rig.outcomes.of_token[1] == rig.outcomes.of_token[2] == ["StorageFailed"]


async def test_cancelling_at_any_step_gives_every_batch_one_outcome_and_leaks_nothing(
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, chunk_max_batches=2)
    for steps in range(1, 60):
        path = tmp_path / str(steps)
        rig = Rig(path, settings=settings)
        task = asyncio.create_task(rig.loop.run())
        for size in (1, 2, 1, 1):
            rig.loop.append_nowait(rig.batches(size))
        flush = asyncio.create_task(rig.loop.flush())
        if steps % 3 == 0:
            rig.gate.clear()
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task, flush])
        assert task.cancelled()
        assert flush.exception() is None or isinstance(flush.exception(), StorageFailed)
        rig.check_each_token_once()
        with pytest.raises(StorageFailed):
            rig.loop.append_nowait(rig.batches(0))
        # Whatever may have happened is there at the next start; what definitely failed is not.
        maybe = sum(
            outcome in (["sealed"], ["CommitOutcomeUnknown"])
            for outcome in rig.outcomes.of_token.values()
        )
        rig.directory.close()
        again = open_directory(path)
        recovered = sum(len(chunk.batches) for chunk in again.recover())
        again.close()
        assert recovered == maybe


async def test_cancelling_during_a_write_waits_for_the_thread_before_buffers_go_back(
    tmp_path: Path,
) -> None:
    entered = threading.Event()
    proceed = threading.Event()
    seen: list[bytes] = []

    class SlowDisk(FaultyDisk):
        def pwritev(self, fd: int, buffers: "list[memoryview]", offset: int) -> int:  # type: ignore[override]
            if not entered.is_set() and len(buffers) == 2:
                entered.set()
                assert proceed.wait(10)
                seen.append(b"".join(buffers))
            return super().pwritev(fd, buffers, offset)

    rig = Rig(tmp_path, disk=SlowDisk())
    task = asyncio.create_task(rig.loop.run())
    rig.loop.append_nowait(rig.batches(2))
    assert await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
        task.cancel()
    assert not task.done()
    in_use = rig.pool.statistics().in_use_bytes
    assert in_use > 0
    # Another connection receives now; it must not get the buffers that are being written.
    intruder = rig.pool.get(500)
    intruder.view[:] = b"!" * len(intruder.view)
    proceed.set()
    await asyncio.wait([task])
    intruder.release()
    assert seen == [BATCH + BATCH]
    rig.check_each_token_once()
    assert rig.outcomes.of_token == {0: ["CommitOutcomeUnknown"], 1: ["CommitOutcomeUnknown"]}
    rig.directory.close()


@pytest.mark.parametrize("point", ["chunk.after_append", "chunk.after_seal"])
async def test_a_loop_that_dies_at_a_failpoint_gives_every_batch_one_outcome(
    tmp_path: Path, point: str
) -> None:
    rig = Rig(tmp_path, settings=replace(SETTINGS, chunk_max_batches=2))
    arm(f"{point}=raise")
    try:
        for _ in range(5):
            rig.loop.append_nowait(rig.batches(1))
        with pytest.raises(FailpointError):
            await rig.loop.run()
    finally:
        arm("")
    rig.check_each_token_once()
    rig.directory.close()
