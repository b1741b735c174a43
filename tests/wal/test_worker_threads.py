import asyncio
import gc
import threading
from functools import partial

import pytest

from wal.worker_threads import WorkerThreads


async def test_a_cancelled_caller_waits_for_work_that_must_be_run_to_its_end() -> None:
    threads = WorkerThreads("test", 1)
    started, gate, abandoned = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert gate.wait(10)
        raise ValueError("nobody is interested any more")

    caller = asyncio.create_task(threads.run_to_end(work, abandoned.set))
    await asyncio.to_thread(started.wait, 10)
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
    assert abandoned.is_set()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await threads.close()


async def test_no_more_threads_run_than_the_limit() -> None:
    threads = WorkerThreads("test", 2)
    lock = threading.Lock()
    running = most = 0
    both = threading.Barrier(2)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(10)
        with lock:
            running -= 1

    await asyncio.gather(*(threads.run(work) for _ in range(6)))
    assert most == 2
    await threads.close()


async def test_a_call_that_nobody_waits_for_keeps_its_thread_and_no_other() -> None:
    threads = WorkerThreads("test", 2)
    started, gate = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        assert gate.wait(60)

    hanging = asyncio.create_task(threads.run(hang))
    await asyncio.to_thread(started.wait, 60)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    async with asyncio.timeout(60):
        assert await threads.run(lambda: 7) == 7
    gate.set()
    await threads.close()


async def test_what_was_cancelled_before_it_began_is_not_called() -> None:
    threads = WorkerThreads("test", 1)
    gate = threading.Event()
    called: list[int] = []
    first = threads.start(lambda: gate.wait(60))
    second = threads.start(lambda: called.append(2))
    third = threads.start(lambda: called.append(3))
    second.cancel()
    gate.set()
    await asyncio.gather(first, third)
    assert called == [3]
    await threads.close()


async def test_an_error_reaches_who_waits_and_the_thread_goes_on() -> None:
    threads = WorkerThreads("test", 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: 2) == 2
    await threads.close()


async def test_what_was_asked_before_the_end_is_done_and_nothing_after_it() -> None:
    threads = WorkerThreads("test", 1)
    done: list[int] = []
    asked = [threads.start(partial(done.append, number)) for number in range(5)]
    await threads.close()
    assert done == [0, 1, 2, 3, 4]
    await asyncio.gather(*asked)
    with pytest.raises(RuntimeError, match="after their end"):
        await threads.run(lambda: None)
    await threads.close()


async def test_threads_end_with_whom_they_work_for() -> None:
    threads = WorkerThreads("forgotten", 1)
    await threads.run(lambda: None)
    (thread,) = threads._threads
    del threads
    gc.collect()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


async def test_a_job_goes_on_when_those_who_wait_are_cancelled() -> None:
    threads = WorkerThreads("test", 1)
    gate = threading.Event()
    told: list[str] = []

    def work() -> int:
        assert gate.wait(10)
        return 7

    job = threads.begin(work, on_end=lambda: told.append("end"))
    queued = threads.begin(lambda: 8)
    waiting = [asyncio.create_task(job.ended()) for _ in range(3)]
    last = asyncio.create_task(job.to_the_end())
    await asyncio.sleep(0)
    waiting[0].cancel()
    for _ in range(3):
        last.cancel()
        await asyncio.sleep(0)
        assert not last.done()
    assert not job.has_ended
    gate.set()
    assert await waiting[1] == await waiting[2] == await last == 7
    assert waiting[0].cancelled()
    assert told == ["end"]
    assert await job.ended() == 7
    assert await queued.ended() == 8
    await threads.close()


async def test_everybody_who_waits_for_a_job_is_told_its_error() -> None:
    threads = WorkerThreads("test", 1)
    gate = threading.Event()

    def work() -> None:
        assert gate.wait(10)
        raise ValueError("no")

    job = threads.begin(work)
    waiting = [asyncio.create_task(wait()) for wait in (job.ended, job.to_the_end)]
    await asyncio.sleep(0)
    gate.set()
    for task in waiting:
        with pytest.raises(ValueError, match="no"):
            await task
    with pytest.raises(ValueError, match="no"):
        await job.ended()
    await threads.close()


async def test_jobs_that_were_begun_before_the_end_are_done_by_then() -> None:
    threads = WorkerThreads("test", 1)
    done: list[int] = []
    for number in range(3):
        threads.begin(partial(done.append, number))
    threads.end()
    with pytest.raises(RuntimeError, match="after their end"):
        threads.begin(lambda: None)
    threads.join()
    assert done == [0, 1, 2]
