"""What counts as a hold of the event loop in tests, and what does not."""

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import loop_holds

LIMIT_S = 0.02


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_holds, "_HELD_S_MAX", LIMIT_S)


def held() -> list[str]:
    """What was noted so far; it does not fail the test."""
    noted, loop_holds._holds[:] = list(loop_holds._holds), []
    return noted


def computed() -> None:
    ends_at = time.thread_time() + LIMIT_S * 2
    while time.thread_time() < ends_at:
        pass


def collected() -> None:
    """Use a multiple of the limit, in the collector alone."""
    ends_at = time.thread_time() + LIMIT_S * 2
    while time.thread_time() < ends_at:
        gc.collect()


async def called(work: Callable[[], None], module: str) -> None:
    """Run `work` as a callback of the loop that belongs to `module`."""

    def callback() -> None:
        work()
        done.set()

    callback.__module__ = module
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(callback)
    await done.wait()


async def test_a_callback_of_ours_that_computes_holds_the_loop() -> None:
    await called(computed, "wal.somewhere")
    (hold,) = held()
    assert "of processor time by" in hold


async def test_a_callback_of_a_test_may_compute() -> None:
    await called(computed, "tests.somewhere")
    assert held() == []


async def test_the_collector_may_come_down_on_a_callback_of_ours() -> None:
    await called(collected, "wal.somewhere")
    assert held() == []


async def test_what_the_repository_is_called_makes_a_test_none_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def last_step() -> None:
        computed()

    def moved(path: str) -> None:
        last_step.__code__ = last_step.__code__.replace(co_filename=path)

    monkeypatch.setattr(loop_holds, "_ROOT", Path("/srv/diskless"))
    moved("/srv/diskless/tests/metadata/test_it.py")
    await asyncio.create_task(last_step())
    assert held() == []
    moved("/srv/diskless/metadata/it.py")
    await asyncio.create_task(last_step())
    assert len(held()) == 1
