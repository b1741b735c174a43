"""No callback of ours may hold an event loop for a second of processor time, in any test.

Loops of a test process are those of asyncio, mostly: there, every callback is measured, and a test
in which one of ours took too long fails. What a test computes itself, in its own coroutines, does
not count. Whole brokers, which run uvloop or a process of their own, are started with
`loop.stall.stop.ms`: such a broker ends with an error that names the handler. It is raised where an
in-process broker is stopped; a process ends with status 1, and its clients find it gone. Ending is
what no test overlooks, while a line in a log is.

The garbage collector's time does not count in the test process, neither for asyncio's callbacks nor
for brokers: it grows with the number of tests that were collected, and it comes down on whatever
callback happens to allocate at that moment.
"""

import asyncio
import functools
import gc
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest

from diskless.loop import loop_watch

LOOP_HELD_MS_MAX: Final = "1000"
_HELD_S_MAX: Final = int(LOOP_HELD_MS_MAX) / 1000
_OURS: Final = ("diskless", "tiering", "metadata", "wal")

_ROOT = Path(__file__).resolve().parents[2]

_MARK_LASTS_S: Final = 0.05
"""To ask for processor time is a system call, and loops run millions of callbacks: so it is asked
this often, and what ran since then counts for the one callback that took long."""

_mark = threading.local()
"""Of each thread: `own_s`, its processor time when last asked for, and `until` when it counts."""
_holds: list[str] = []
_run_callback = asyncio.Handle._run  # type: ignore[attr-defined]
_thread_clock = loop_watch._thread_clock

_collecting_since: dict[int, float] = {}
_collected_s: defaultdict[int, float] = defaultdict(float)
"""Processor time that the collector has used, by the thread that it came down on."""


def pytest_configure() -> None:
    os.environ.setdefault("DISKLESS_LOOP_STALL_STOP_MS", LOOP_HELD_MS_MAX)
    gc.callbacks.append(_note_collection)
    asyncio.Handle._run = _run_measured  # type: ignore[attr-defined]
    loop_watch._thread_clock = _clock_without_collections


def pytest_unconfigure() -> None:
    loop_watch._thread_clock = _thread_clock
    asyncio.Handle._run = _run_callback  # type: ignore[attr-defined]
    gc.callbacks.remove(_note_collection)


def _note_collection(phase: str, _: object) -> None:
    thread, now = threading.get_ident(), time.thread_time()
    if phase == "start":
        _collecting_since[thread] = now
    else:
        _collected_s[thread] += now - _collecting_since.pop(thread, now)


def _clock_without_collections(thread: int) -> Callable[[], float]:
    clock = _thread_clock(thread)
    return lambda: clock() - _collected_s[thread]


def _own_time_s() -> float:
    """Processor time of this thread without that of the collector."""
    return time.thread_time() - _collected_s[threading.get_ident()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    _holds.clear()
    result = yield
    if _holds:
        pytest.fail(f"the event loop was held: {'; '.join(_holds)}", pytrace=False)
    return result


def _run_measured(handle: Any) -> None:
    callback = handle._callback
    began = time.monotonic()
    if began > getattr(_mark, "until", -math.inf):
        _mark.until, _mark.own_s = began + _MARK_LASTS_S, _own_time_s()
    _run_callback(handle)
    if time.monotonic() - began > _HELD_S_MAX:
        held_s = _own_time_s() - _mark.own_s
        if held_s > _HELD_S_MAX and _module(callback).partition(".")[0] in _OURS:
            _holds.append(f"{held_s:.1f} s of processor time by {callback!r}")


def _module(callback: Any) -> str:
    """Whose code it is that a callback of the loop runs."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        frame = getattr(owner.get_coro(), "cr_frame", None)
        # One that has ended with this step has no frame any more; its code says less.
        return str(frame.f_globals["__name__"]) if frame is not None else _of_code(owner)
    if isinstance(owner, asyncio.Transport):
        return type(owner.get_protocol()).__module__
    return str(getattr(callback, "__module__", "") or "")


def _of_code(task: "asyncio.Task[Any]") -> str:
    """In which directory of the repository a task's code lies, whatever that itself is called."""
    code = getattr(task.get_coro(), "cr_code", None)
    path = Path(code.co_filename) if code is not None else Path()
    return path.relative_to(_ROOT).parts[0] if path.is_relative_to(_ROOT) else ""
