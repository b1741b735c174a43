"""Turns of the event loop: who is served when, on a loop that the test turns by hand."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from diskless.loop.turns import (
    BACKLOG_AHEAD_S,
    BACKLOG_SHARE,
    LAG_S,
    OTHERS_S,
    SERVED_S,
    SERVED_TASKS,
    TURN_S,
    TURN_STEPS,
    Turn,
    Turns,
)
from wal.clock import ManualClock


class Loop:
    """Callbacks, run one iteration at a time, and timers that fire by the test's clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ready: list[Callable[[], object]] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.ready.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        self.timers.append((self.clock.monotonic() + delay, callback))
        return self

    def iterate(self) -> None:
        """Sleeps to the next timer where there is nothing else to do."""
        if not self.ready and self.timers:
            timer = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.clock.advance(max(timer[0] - self.clock.monotonic(), 0.0))
            self.ready.append(timer[1])
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.turns = Turns(self.clock, cast(asyncio.AbstractEventLoop, cast(Any, self.loop)))
        self.order: list[str] = []

    def taker(self, name: str, steps: int, *, step_s: float = 0.0, tasks: int = 0) -> "Taker":
        return Taker(self, name, steps, step_s, tasks)

    def backlogged(self, name: str, steps: int, *, step_s: float = 0.0) -> "Taker":
        taker = self.taker(name, steps, step_s=step_s)
        taker.is_backlogged = True
        return taker


class Taker:
    """Has `steps` to do; the first `tasks` of them are started as tasks."""

    def __init__(self, rig: Rig, name: str, steps: int, step_s: float, tasks: int) -> None:
        self.rig = rig
        self.name = name
        self.steps = steps
        self.step_s = step_s
        self.tasks = tasks
        self.done_by_turn: list[int] = []
        self.is_backlogged = False

    def has_backlog(self) -> bool:
        return self.is_backlogged

    def take_turn(self, turn: Turn) -> bool:
        self.rig.order.append(self.name)
        done = 0
        while self.steps and not turn.is_over():
            self.steps -= 1
            done += 1
            self.rig.clock.advance(self.step_s)
            if self.tasks:
                self.tasks -= 1
                turn.task_started()
        self.done_by_turn.append(done)
        return self.steps > 0


def test_a_turn_ends_after_its_steps_or_its_time():
    rig = Rig()
    many = rig.taker("many", 3 * TURN_STEPS)
    slow = rig.taker("slow", 5, step_s=TURN_S)
    for taker in (many, slow):
        rig.turns.enqueue(taker)
    while rig.turns.queued:
        rig.loop.iterate()
    assert many.done_by_turn == [TURN_STEPS] * 3
    assert slow.done_by_turn == [1] * 5


def test_a_small_request_is_served_at_once():
    rig = Rig()
    assert rig.turns.begin(rig.taker("a", 1))
    assert rig.order == ["a"]


def test_who_has_more_is_behind_whoever_comes_new_and_is_not_forgotten():
    rig = Rig()
    rig.turns.begin(rig.taker("busy", 1_000, step_s=TURN_S))
    for number in range(20):
        rig.turns.enqueue(rig.taker(f"fresh {number}", 1))
        rig.turns.enqueue(rig.taker(f"too {number}", 1))
        rig.order.clear()
        rig.loop.iterate()
        assert rig.order[:2] == [f"fresh {number}", f"too {number}"]
        assert "busy" in rig.order


def test_who_says_that_it_has_a_backlog_is_behind_too():
    rig = Rig()
    rig.turns.enqueue(rig.backlogged("many unanswered", 1))
    rig.turns.begin(rig.taker("large", TURN_STEPS + 1))
    rig.turns.enqueue(rig.taker("fresh", 1))
    rig.loop.iterate()
    assert rig.order == ["large", "fresh", "large", "many unanswered"]


def test_those_with_a_backlog_have_their_share_of_the_time_while_others_are_served():
    rig = Rig()
    for number in range(4):
        rig.turns.enqueue(rig.backlogged(f"backlog {number}", 200, step_s=TURN_S))
    client = rig.taker("fresh", 0)
    started = rig.clock.monotonic()
    while rig.turns.queued:
        rig.turns.served(client, rig.clock.monotonic())
        rig.loop.iterate()
        worked_s = sum(name.startswith("backlog") for name in rig.order) * TURN_S
        passed_s = rig.clock.monotonic() - started
        # What they may be ahead, and the last turn or two beyond it.
        assert worked_s <= passed_s * BACKLOG_SHARE + BACKLOG_AHEAD_S + SERVED_S + TURN_S
    assert len(rig.order) == 800


def test_those_with_a_backlog_never_rest_while_they_are_alone():
    rig = Rig()
    one = rig.backlogged("a", 500, step_s=TURN_S)
    other = rig.backlogged("b", 500, step_s=TURN_S)
    for taker in (one, other):
        rig.turns.served(taker, rig.clock.monotonic())
        rig.turns.enqueue(taker)
    while rig.turns.queued:
        rig.loop.iterate()
    assert len(rig.order) == 1_000
    assert not rig.loop.timers


def test_who_has_a_backlog_is_served_at_once_unless_it_has_to_rest_or_another_waits():
    rig = Rig()
    one, other = rig.backlogged("one", 2), rig.backlogged("other", 2)
    assert rig.turns.begin(one)
    rig.turns.enqueue(other)
    one.steps = 1
    assert not rig.turns.begin(one)
    while rig.turns.queued:
        rig.loop.iterate()
    assert rig.order == ["one", "other", "one"]
    rig.turns.served(rig.taker("fresh", 1), rig.clock.monotonic())
    one.steps, one.step_s = 1, BACKLOG_AHEAD_S
    assert rig.turns.begin(one)
    one.steps = 1
    assert not rig.turns.begin(one)
    assert one.steps == 1
    while rig.turns.queued:
        rig.loop.iterate()
    assert one.steps == 0


def test_a_new_request_is_served_while_those_with_a_backlog_rest():
    rig = Rig()
    client = rig.taker("fresh", 1)
    rig.turns.served(client, rig.clock.monotonic())
    rig.turns.enqueue(rig.backlogged("backlog", 100, step_s=10 * TURN_S))
    rig.loop.iterate()
    assert not rig.loop.ready
    rested_until = rig.loop.timers[0][0]
    rig.order.clear()
    rig.turns.enqueue(client)
    rig.loop.iterate()
    assert rig.order == ["fresh"]
    assert rig.clock.monotonic() < rested_until
    while rig.order == ["fresh"]:
        rig.loop.iterate()
    assert rig.order == ["fresh", "backlog"]
    assert rig.clock.monotonic() >= rested_until


def test_a_client_is_an_other_for_a_while_and_not_once_it_has_a_backlog_or_goes():
    rig = Rig()
    clients = [rig.taker(str(number), 1) for number in range(3)]
    for client in clients:
        rig.turns.served(client, rig.clock.monotonic())
    clients[0].is_backlogged = True
    rig.turns.served(clients[0], rig.clock.monotonic())
    rig.turns.forget(clients[1])
    rig.clock.advance(OTHERS_S / 2)
    assert rig.turns.are_others_served
    rig.clock.advance(OTHERS_S)
    assert not rig.turns.are_others_served


def test_the_busy_go_round():
    rig = Rig()
    for name in "abc":
        rig.turns.enqueue(rig.taker(name, 3 * TURN_STEPS))
    while rig.turns.queued:
        rig.loop.iterate()
    assert rig.order == list("abcabcabc")


def test_an_iteration_is_short_however_many_want_a_turn():
    rig = Rig()
    takers = [rig.taker(str(number), 10, step_s=TURN_S) for number in range(1_000)]
    started = rig.clock.monotonic()
    for taker in takers:
        rig.turns.begin(taker)
    assert rig.clock.monotonic() - started < SERVED_S + 2 * TURN_S
    while rig.turns.queued:
        started = rig.clock.monotonic()
        rig.loop.iterate()
        # The fresh, one of the busy, and what the last of each needed beyond its time.
        assert rig.clock.monotonic() - started < SERVED_S + 4 * TURN_S
    assert not any(taker.steps for taker in takers)


def test_few_tasks_are_started_in_an_iteration_and_fewer_where_their_work_takes_long():
    rig = Rig()
    takers = [rig.taker(str(number), 50, tasks=50) for number in range(20)]
    left = 1_000
    for taker in takers:
        rig.turns.enqueue(taker)
    started = []
    for _ in range(8):
        rig.loop.iterate()
        now_left = sum(taker.tasks for taker in takers)
        started.append(left - now_left)
        left = now_left
        rig.clock.advance(LAG_S * 2)  # the tasks at work
    assert max(started) <= SERVED_TASKS + 4
    assert started[-1] <= 2
    while rig.turns.queued:
        rig.loop.iterate()
    assert not any(taker.steps for taker in takers)


def test_work_that_comes_up_in_a_turn_is_not_forgotten():
    rig = Rig()
    taker = rig.taker("a", 1)
    taken = taker.take_turn

    def take_turn(turn: Turn) -> bool:
        if len(taker.done_by_turn) < 3:
            rig.turns.enqueue(taker)
        return taken(turn)

    taker.take_turn = take_turn  # type: ignore[method-assign]
    rig.turns.enqueue(taker)
    while rig.turns.queued:
        rig.loop.iterate()
    assert rig.order == ["a"] * 4


async def test_the_queues_can_be_waited_for():
    rig = Rig()
    await rig.turns.empty()
    rig.turns.enqueue(rig.taker("a", 1))
    waiting = asyncio.create_task(rig.turns.empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    rig.loop.iterate()
    await waiting
