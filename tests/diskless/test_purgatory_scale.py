"""A hundred thousand delayed operations: what waits costs nothing until something happens to it."""

from typing import Any

from diskless.purgatory import DelayedOperation, Purgatory
from tests.support.groups_bench import GroupsBench
from tests.support.manual_loop import ManualLoop
from wal.clock import ManualClock

OPERATIONS = 100_000
KEYS = 10_000


class Wait(DelayedOperation):
    """Counts how often it is asked."""

    asked = 0
    expired = 0

    def is_satisfied(self) -> bool:
        Wait.asked += 1
        return False

    def on_complete(self) -> None:
        """Nobody waits."""

    def on_expiration(self) -> None:
        Wait.expired += 1


def test_what_waits_sets_one_timer_and_wakes_nobody_before_its_time() -> None:
    loop = ManualLoop(ManualClock())
    as_loop: Any = loop
    purgatory: Purgatory[int] = Purgatory("test", as_loop)
    Wait.expired = 0
    operations = [Wait() for _ in range(OPERATIONS)]
    for number, operation in enumerate(operations):
        timeout_s = 600 - number % 540
        purgatory.try_complete_else_watch(operation, [number % KEYS], timeout_s)
    timers = [timer for _, _, timer in loop._timers if timer.call is not None]
    assert len(timers) == 1
    Wait.asked = 0
    loop.advance(60.5)
    assert (loop.calls, Wait.asked, Wait.expired) == (0, 0, 0)

    # A change of one key asks those who wait for it, and no others.
    purgatory.check_and_complete(3)
    assert Wait.asked == OPERATIONS // KEYS

    # All that fall due together are one call, and so are those that were completed before.
    loop.advance(1)
    assert loop.calls == 1
    assert Wait.expired == OPERATIONS // 540
    for operation in operations[: OPERATIONS // 2]:
        operation.force_complete()
    loop.advance(600)
    assert loop.calls <= 540
    assert purgatory.statistics().watched == 0
    assert not purgatory._watchers
    assert all(timer.call is None for _, _, timer in loop._timers)


async def test_heartbeats_of_many_groups_set_no_timers() -> None:
    bench = GroupsBench()
    await bench.start()
    members = [(f"group-{number}", await bench.member(f"group-{number}")) for number in range(300)]
    timers, calls = len(bench.loop._timers), bench.loop.calls
    for _ in range(3):
        for group_id, member in members:
            assert bench.heartbeat(member, group_id) is None
    assert (len(bench.loop._timers), bench.loop.calls) == (timers, calls)
    assert sum(1 for _, _, timer in bench.loop._timers if timer.call is not None) == 1
    await bench.stop()
