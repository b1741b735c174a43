"""What waiting costs: wake-ups of the event loop, counted, with as many operations as a broker has.

The loop's time is a test's clock, so that hours pass at once.
"""

import asyncio
from typing import cast

from diskless.loop.purgatory import DelayedOperation, Purgatory
from tests.support.loops.manual_loop import ManualLoop
from wal.clock import ManualClock

MANY = 100_000
HOUR_S = 3_600.0


class Waiting(DelayedOperation):
    """Never satisfied; counts its end."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        super().__init__()
        self.ended = 0

    def is_satisfied(self) -> bool:
        return False

    def on_complete(self) -> None:
        self.ended += 1


def a_purgatory() -> tuple[ManualLoop, Purgatory[int]]:
    loop = ManualLoop(ManualClock())
    return loop, Purgatory("test", cast(asyncio.AbstractEventLoop, loop))


def test_100_000_operations_that_wait_wake_nobody() -> None:
    loop, purgatory = a_purgatory()
    operations = [Waiting() for _ in range(MANY)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, (number,), HOUR_S)
    loop.advance(HOUR_S - 1)
    assert loop.calls == 0
    loop.advance(1)
    assert loop.calls == 1, "one alarm for all that are due"
    assert {operation.ended for operation in operations} == {1}
    assert purgatory.statistics() == (0, MANY, MANY)
    loop.advance(HOUR_S)
    assert loop.calls == 1


def test_operations_that_end_in_time_wake_nobody_either() -> None:
    """As sessions do whose members send heartbeats: each ends one wait and begins another."""
    loop, purgatory = a_purgatory()
    timeout_s, heartbeat_s, members = 45.0, 3.0, 1_000
    waiting = [Waiting() for _ in range(members)]
    for operation in waiting:
        purgatory.try_complete_else_watch(operation, (), timeout_s)
    beats = 100
    for _ in range(beats):
        loop.advance(heartbeat_s)
        for number, operation in enumerate(waiting):
            operation.force_complete()
            waiting[number] = Waiting()
            purgatory.try_complete_else_watch(waiting[number], (), timeout_s)
    assert purgatory.statistics() == (members, beats * members, 0)
    # The alarm is that of an operation that has ended, once in a timeout at most.
    assert loop.calls <= beats * heartbeat_s / timeout_s + 1
    assert len(purgatory._timers) <= 3 * members + 1_024, "what ended is swept out"
