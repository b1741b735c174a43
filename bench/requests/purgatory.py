"""Group `purgatory`: what delayed operations cost that only wait.

One event loop, one purgatory with OPERATIONS operations, none of which falls due for a minute: the
processor time that the process uses while nothing happens, as a share of the time that passes. The
same without any is taken off.
"""

import asyncio
import gc
import time
from typing import Final, NamedTuple

import uvloop

from bench.tools.report import Report
from diskless.loop.purgatory import DelayedOperation, Purgatory

OPERATIONS: Final = 100_000
KEYS: Final = 1_000
IDLE_SECONDS: Final = 5.0


class PurgatoryFigures(NamedTuple):
    """Shares of one processor; microseconds."""

    idle_cpu_ratio: float
    watch_us: float
    """To begin and to end one wait."""


class _Wait(DelayedOperation):
    """Ends when it is told to."""

    def is_satisfied(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Nobody waits."""


def run_purgatory(report: Report) -> None:
    """OPERATIONS operations that wait."""
    report.step(f"purgatory: {OPERATIONS:,} operations that wait")
    figures = measure_purgatory(operations=OPERATIONS, seconds=IDLE_SECONDS)
    report.add(
        "purgatory_100k_idle_cpu_ratio",
        figures.idle_cpu_ratio,
        bound="≤ 0.001",
        note=f"of one processor; {figures.watch_us:.1f} µs to begin and end a wait",
    )


def measure_purgatory(*, operations: int, seconds: float) -> PurgatoryFigures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(operations, seconds))


async def _measure(count: int, seconds: float) -> PurgatoryFigures:
    without_s = await _idle_cpu_s(seconds)
    purgatory: Purgatory[int] = Purgatory("bench")
    operations = [_Wait() for _ in range(count)]
    started = time.process_time()
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [number % KEYS], 60 + number % 600)
    begin_s = time.process_time() - started
    with_s = await _idle_cpu_s(seconds)
    started = time.process_time()
    for operation in operations:
        operation.force_complete()
    end_s = time.process_time() - started
    purgatory.expire_all()
    ratio = max(0.0, with_s - without_s) / seconds
    return PurgatoryFigures(ratio, (begin_s + end_s) / count * 1e6)


async def _idle_cpu_s(seconds: float) -> float:
    gc.collect()
    started = time.process_time()
    await asyncio.sleep(seconds)
    return time.process_time() - started
