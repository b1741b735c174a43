"""Many delayed operations and many groups: what waits costs nothing until it is concerned."""

from typing import Any

from diskless.loop.purgatory import DelayedOperation, Purgatory
from tests.support.groups.groups_bench import GroupsBench
from tests.support.loops.manual_loop import ManualLoop
from wal.clock import ManualClock

OPERATIONS = 100_000
KEYS = 10_000


class Wait(DelayedOperation):
    """Counts how often it is asked."""

    asked = 0

    def is_satisfied(self) -> bool:
        Wait.asked += 1
        return False

    def on_complete(self) -> None:
        """Nobody waits."""


def test_a_change_asks_those_who_wait_for_it_and_none_of_the_others() -> None:
    loop: Any = ManualLoop(ManualClock())
    purgatory: Purgatory[int] = Purgatory("test", loop)
    waits = [Wait() for _ in range(OPERATIONS)]
    for number, wait in enumerate(waits):
        purgatory.try_complete_else_watch(wait, [number % KEYS], 60 + number % 600)
    Wait.asked = 0
    assert purgatory.check_and_complete(3) == 0
    assert Wait.asked == OPERATIONS // KEYS
    for wait in waits[3::KEYS]:
        wait.force_complete()
    assert purgatory.check_and_complete(3) == 0
    assert Wait.asked == OPERATIONS // KEYS
    assert purgatory.statistics().watched == OPERATIONS - OPERATIONS // KEYS


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
