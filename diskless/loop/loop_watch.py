"""The loop watch: how late the event loop serves, and who held it when it did not.

How it works. A thread hands the loop a ping every PING_INTERVAL_S. How long the ping waits is how
late the loop serves everybody. While a ping waits, the thread reads how much processor time the
loop's thread has used since; past `loop.stall.warn.ms` it writes a warning with the handler that is
running and the innermost frames of its stack, which `sys._current_frames` shows while the loop
itself can say nothing.

Processor time, not time: on a busy machine, or in a paused process, the loop is late and nobody's
handler is to blame. (Seastar's stall detector counts the same way.) It is counted from the ping on,
so a stall is noticed for certain when it is longer than the limit and one interval together.

Works with any event loop. uvloop has no `slow_callback_duration`, and asyncio's own needs its debug
mode. Where a thread's clock cannot be read from another thread (macOS), only lateness is measured.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final, NamedTuple, Protocol, Self

import structlog

from diskless.logs import Pace
from wal.clock import Clock
from wal.errors import DisklessError
from wal.settings import setting

PING_INTERVAL_S: Final = 0.025

_FRAMES_SHOWN: Final = 6

_OWN_PACKAGES: Final = ("diskless.", "tiering.", "metadata.", "wal.")
_API_PACKAGE: Final = "diskless.api."
_NO_API: Final = frozenset({"diskless.api.access"})
"""What handlers share: who is found there is not named by it."""

_log = structlog.get_logger("diskless.loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What is done about callbacks that hold the event loop."""

    stall_warn_ms: int = setting(
        "loop.stall.warn.ms",
        100,
        minimum=1,
        maximum=3_600_000,
        why="processor time of one callback past which a warning names it; smaller: warnings about "
        "what nobody notices; larger: clients wait and the log does not say why",
    )
    stall_stop_ms: int = setting(
        "loop.stall.stop.ms",
        0,
        minimum=0,
        maximum=3_600_000,
        why="as loop.stall.warn.ms, but the broker stops with status 1; 0: never; the tests of "
        "Diskless run with 1000",
    )


class EventLoopHeld(DisklessError):
    """A callback held the event loop for longer than `loop.stall.stop.ms`."""


class LoopMetrics(Protocol):
    """Where the figures go; called on the loop, `stalled` in the watching thread."""

    def served_after(self, seconds: float) -> None:
        """The loop served a ping that had waited for so long."""
        ...

    def stalled(self) -> None:
        """A callback was warned about."""
        ...


class Stall(NamedTuple):
    """Who holds the loop."""

    handler: str
    """An API as its file is named, or the innermost of our own functions."""
    task: str | None
    frames: tuple[str, ...]
    """The innermost last."""


class LoopWatch:
    """Watches the loop that it is entered on, until it is left."""

    def __init__(self, settings: LoopSettings, *, clock: Clock, metrics: LoopMetrics) -> None:
        self._warn_s = settings.stall_warn_ms / 1000
        self._stop_s = settings.stall_stop_ms / 1000
        self._clock = clock
        self._metrics = metrics
        self._pace = Pace()
        self._ended = threading.Event()
        self._ping: _Ping | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._cpu_s = _thread_clock(self._thread_id)
        self._held = self._loop.create_future()
        self._watcher = threading.Thread(target=self._watch, name="loop-watch", daemon=True)
        self._watcher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        # It waits for nothing of the loop, so this is over at once.
        self._watcher.join()

    async def run(self) -> None:
        """Returns never. Raises EventLoopHeld when the loop was held past `loop.stall.stop.ms`."""
        await self._held

    # --- in the watching thread

    def _watch(self) -> None:
        while not self._ended.wait(PING_INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Send a ping, or look what keeps the last one."""
        if self._ping is None:
            self._ping = _Ping(self._clock.monotonic(), self._cpu_s())
            self._loop.call_soon_threadsafe(self._served, self._ping)
            return
        ping = self._ping
        held_s = self._cpu_s() - ping.cpu_s
        if held_s > self._warn_s and ping.stall is None:
            ping.stall = stall_of(self._thread_id, self._loop)
            self._metrics.stalled()
            self._warn(ping.stall, held_s)

    def _warn(self, stall: Stall, held_s: float) -> None:
        suppressed = self._pace.take_turn(self._clock.monotonic())
        if suppressed is not None:
            _log.warning(
                "event loop held",
                handler=stall.handler,
                cpu_ms=round(held_s * 1000),
                task=stall.task,
                stack=" > ".join(stall.frames),
                suppressed=suppressed,
            )

    # --- on the loop

    def _served(self, ping: "_Ping") -> None:
        self._ping = None
        self._metrics.served_after(self._clock.monotonic() - ping.sent_at)
        held_s = self._cpu_s() - ping.cpu_s
        if self._stop_s and held_s > self._stop_s and not self._held.done():
            by = f" by {ping.stall}" if ping.stall is not None else ""
            self._held.set_exception(
                EventLoopHeld(f"the event loop was held for {held_s * 1000:.0f} ms{by}")
            )


class _Ping:
    """Something for the loop to serve."""

    __slots__ = ("cpu_s", "sent_at", "stall")

    def __init__(self, sent_at: float, cpu_s: float) -> None:
        self.sent_at = sent_at
        self.cpu_s = cpu_s
        """Processor time that the loop's thread had used."""
        self.stall: Stall | None = None


def stall_of(thread_id: int, loop: asyncio.AbstractEventLoop) -> Stall:
    """Returns what runs in the thread of `loop` at the moment."""
    frames = [*_frames(sys._current_frames().get(thread_id))]
    own = [(module, name) for module, name, _ in frames if module.startswith(_OWN_PACKAGES)]
    apis = [
        module.rpartition(".")[2]
        for module, _ in own
        if module.startswith(_API_PACKAGE) and module not in _NO_API
    ]
    task = asyncio.current_task(loop)
    ours = ".".join(own[0]) if own else "none of ours"
    shown = [f"{module}.{name}:{line}" for module, name, line in frames[:_FRAMES_SHOWN]]
    return Stall(
        apis[0] if apis else ours, None if task is None else task.get_name(), tuple(reversed(shown))
    )


def _frames(frame: FrameType | None) -> Iterator[tuple[str, str, int]]:
    """Module, function and line, the innermost first."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", "?"))
        yield module, frame.f_code.co_qualname, frame.f_lineno or 0
        frame = frame.f_back


def _thread_clock(thread_id: int) -> Callable[[], float]:
    """How many seconds of processor time a thread has used, for others to read."""
    try:
        clock_id = time.pthread_getcpuclockid(thread_id)
    except AttributeError:
        return lambda: 0.0
    return lambda: time.clock_gettime(clock_id)
