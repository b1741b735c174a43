import asyncio
import threading

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
