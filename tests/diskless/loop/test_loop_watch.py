"""The loop watch: it measures how late the loop is, and names who holds it."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from diskless.api.access import Access
from diskless.api.groups import list_groups
from diskless.authorization import AllowEverything
from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import Steps, done_at_once
from diskless.loop.loop_watch import EventLoopHeld, LoopSettings, LoopWatch
from diskless.ports import ClientInfo
from diskless.server.registry import Request
from tests.support.brokers.live_broker import DEADLINE_S, LiveBroker, until
from wal.clock import Clock, ManualClock, SystemClock

WARN_MS = 30
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Figures:
    def __init__(self) -> None:
        self.lags: list[float] = []
        self.stalls = 0

    def served_after(self, seconds: float) -> None:
        self.lags.append(seconds)

    def stalled(self) -> None:
        self.stalls += 1


def computed(seconds: float) -> None:
    """Use the processor for so long, whatever the clock on the wall says."""
    ends_at = time.thread_time() + seconds
    while time.thread_time() < ends_at:
        pass


def computed_until_noticed(figures: Figures) -> None:
    """Use the processor until the watch has seen it, however late its thread gets a turn."""
    before = figures.stalls
    ends_at = time.monotonic() + DEADLINE_S
    while figures.stalls == before:
        assert time.monotonic() < ends_at, "the watch does not see it"
        computed(0.001)


class SlowGroups:
    """Groups whose list takes long to make."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def list_groups(self, **_: object) -> Steps[list[object]]:
        computed_until_noticed(self._figures)
        yield
        return []


async def list_the_groups(figures: Figures) -> None:
    api = list_groups.api(SlowGroups(figures), Access(AllowEverything()))  # type: ignore[arg-type]
    client = ClientInfo(1, "", "")
    wake = EarlyEnd()
    request = Request(
        version=0, client=client, body=b"", wake=wake, reserve=lambda n: n, mute=lambda _: None
    )
    done_at_once(api.handler(request))  # type: ignore[arg-type]


async def watched(
    figures: Figures, *steps: Callable[[], None], stop_ms: int = 0, clock: Clock | None = None
) -> None:
    """Watch the loop while it runs `steps`, and until a ping after them was served."""
    settings = LoopSettings(stall_warn_ms=WARN_MS, stall_stop_ms=stop_ms)
    async with (
        LoopWatch(settings, clock=clock or SystemClock(), metrics=figures) as watch,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(watch.run())
        for step in steps:
            step()
            served = len(figures.lags)
            while len(figures.lags) <= served + 1:  # noqa: ASYNC110 - the watch has no event
                await asyncio.sleep(0.001)
        running.cancel()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_callback_that_computes_too_long_is_named_with_its_stack(loop: str) -> None:
    figures = Figures()

    async def run() -> None:
        settings = LoopSettings(stall_warn_ms=WARN_MS)
        async with LoopWatch(settings, clock=SystemClock(), metrics=figures):
            await asyncio.create_task(list_the_groups(figures), name="ListGroups-7")

    with capture_logs() as lines, asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())
    (line,) = [line for line in lines if line["event"] == "event loop held"]
    assert (line["handler"], line["task"]) == ("list_groups", "ListGroups-7")
    assert line["cpu_ms"] >= WARN_MS
    assert "SlowGroups.list_groups" in line["stack"]
    assert figures.stalls == 1


async def test_time_in_which_the_loop_uses_no_processor_is_lag_and_no_stall() -> None:
    figures = Figures()
    settings = LoopSettings(stall_warn_ms=WARN_MS)
    async with LoopWatch(settings, clock=SystemClock(), metrics=figures) as watch:
        watch.look()
        time.sleep(WARN_MS * 3 / 1000)  # noqa: ASYNC251 - the loop has to wait
        watch.look()
        async with asyncio.timeout(DEADLINE_S):
            while max(figures.lags, default=0.0) < WARN_MS / 1000:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    assert figures.stalls == 0


async def test_many_short_callbacks_are_no_stall() -> None:
    figures = Figures()

    async def busy() -> None:
        for _ in range(100):
            computed(0.001)
            await asyncio.sleep(0)

    settings = LoopSettings(stall_warn_ms=WARN_MS)
    async with LoopWatch(settings, clock=SystemClock(), metrics=figures):
        await busy()
    assert figures.stalls == 0


async def test_stalls_write_one_line_a_second_and_all_are_counted() -> None:
    figures = Figures()
    with capture_logs() as lines:
        await watched(figures, *[lambda: computed_until_noticed(figures)] * 3, clock=ManualClock())
    assert figures.stalls == 3
    assert len(lines) == 1


async def test_a_stall_past_the_limit_is_an_error_where_one_is_set() -> None:
    figures = Figures()

    def hold() -> None:
        computed_until_noticed(figures)
        computed(0.2)

    with pytest.raises(ExceptionGroup) as raised:
        await watched(figures, hold, stop_ms=100)
    (error,) = raised.value.exceptions
    assert isinstance(error, EventLoopHeld)
    assert "test_loop_watch" in str(error)


async def test_no_thread_is_left_behind() -> None:
    await watched(Figures())
    assert "loop-watch" not in {thread.name for thread in threading.enumerate()}


def test_a_broker_stops_with_the_error_when_its_loop_was_held(tmp_path: Path) -> None:
    async def hold() -> None:
        computed(0.9)

    broker = LiveBroker(tmp_path / "data", {"loop.stall.stop.ms": "200"})
    with broker:
        broker.run(hold())
        until(lambda: not broker.is_running, "the end of the broker")
        with pytest.raises(ExceptionGroup) as raised:
            broker.stop()
    assert raised.group_contains(EventLoopHeld)
