"""The purgatory's promises: exactly one completion, no lost wake-up, nothing left behind."""

import asyncio
import random

import uvloop

from diskless.loop.purgatory import DelayedOperation, Purgatory


class Wait(DelayedOperation):
    """Satisfied once `ready` was set; counts what happened to it."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.completions = 0
        self.expirations = 0

    def is_satisfied(self) -> bool:
        return self.ready

    def on_complete(self) -> None:
        self.completions += 1

    def on_expiration(self) -> None:
        self.expirations += 1


async def test_a_satisfied_operation_completes_without_being_watched() -> None:
    purgatory: Purgatory[str] = Purgatory("test")
    operation = Wait()
    operation.ready = True
    assert purgatory.try_complete_else_watch(operation, ["a"], 10)
    assert operation.completions == 1
    assert purgatory.statistics() == (0, 1, 0)


async def test_a_change_between_the_first_try_and_the_watch_is_not_missed() -> None:
    class ChangesWhileAsked(Wait):
        def is_satisfied(self) -> bool:
            answer = self.ready
            self.ready = True
            return answer

    purgatory: Purgatory[str] = Purgatory("test")
    operation = ChangesWhileAsked()
    assert purgatory.try_complete_else_watch(operation, ["a"], 10)
    assert operation.completions == 1
    assert purgatory.statistics().watched == 0


async def test_only_the_watchers_of_a_changed_key_are_asked() -> None:
    purgatory: Purgatory[str] = Purgatory("test")
    first, second = Wait(), Wait()
    purgatory.try_complete_else_watch(first, ["a", "b"], 10)
    purgatory.try_complete_else_watch(second, ["c"], 10)
    first.ready = second.ready = True
    assert purgatory.check_and_complete("b") == 1
    assert (first.completions, second.completions) == (1, 0)
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.check_and_complete("c") == 1


async def test_a_key_that_is_there_twice_is_watched_once_and_forgotten() -> None:
    purgatory: Purgatory[str] = Purgatory("test")
    operation = Wait()
    purgatory.try_complete_else_watch(operation, ["a", "b", "a"], 10)
    assert operation.force_complete()
    assert purgatory.statistics() == (0, 1, 0)
    assert purgatory.check_and_complete("a") == 0


def test_a_deadline_that_is_less_than_a_millisecond_away_expires_on_uvloop_too() -> None:
    async def work() -> None:
        purgatory: Purgatory[str] = Purgatory("test")
        operations = [Wait() for _ in range(3)]
        last = asyncio.Event()
        operations[2].on_complete = last.set  # type: ignore[method-assign]
        for operation, timeout_s in zip(operations, (0.0001, 0.0002, 0.01), strict=True):
            assert not purgatory.try_complete_else_watch(operation, ["a"], timeout_s)
        async with asyncio.timeout(120):
            await last.wait()
        assert [operation.expirations for operation in operations] == [1, 1, 1]
        assert purgatory.statistics() == (0, 3, 3)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


async def test_a_deadline_expires_an_operation_once() -> None:
    purgatory: Purgatory[str] = Purgatory("test")
    operation = Wait()
    done = asyncio.Event()
    operation.on_complete = done.set  # type: ignore[method-assign]
    assert not purgatory.try_complete_else_watch(operation, ["a"], 0.01)
    async with asyncio.timeout(120):
        await done.wait()
    assert operation.expirations == 1
    operation.ready = True
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.statistics() == (0, 1, 1)


async def test_a_clean_stop_also_expires_what_watches_no_key() -> None:
    purgatory: Purgatory[str] = Purgatory("test")
    watching, keyless, done = Wait(), Wait(), Wait()
    purgatory.try_complete_else_watch(watching, ["a"], 10)
    purgatory.try_complete_else_watch(keyless, [], 10)
    purgatory.try_complete_else_watch(done, [], 10)
    done.force_complete()
    purgatory.expire_all()
    purgatory.expire_all()
    assert [op.completions for op in (watching, keyless, done)] == [1, 1, 1]
    assert [op.expirations for op in (watching, keyless, done)] == [1, 1, 0]
    assert purgatory.statistics() == (0, 3, 2)


async def test_no_time_left_expires_at_once() -> None:
    purgatory: Purgatory[str] = Purgatory("test")
    operation = Wait()
    assert purgatory.try_complete_else_watch(operation, ["a"], 0)
    assert (operation.expirations, operation.completions) == (1, 1)
    assert purgatory.statistics() == (0, 1, 1)


async def test_an_earlier_deadline_that_comes_later_is_not_delayed_by_a_longer_one() -> None:
    purgatory: Purgatory[str] = Purgatory("test")
    slow, fast = Wait(), Wait()
    done = asyncio.Event()
    fast.on_complete = done.set  # type: ignore[method-assign]
    purgatory.try_complete_else_watch(slow, ["a"], 3600)
    purgatory.try_complete_else_watch(fast, ["a"], 0.01)
    async with asyncio.timeout(120):
        await done.wait()
    assert not slow.completed
    purgatory.expire_all()
    assert slow.completed


async def test_random_operations_complete_exactly_once_and_leave_nothing() -> None:
    rng = random.Random(7)
    purgatory: Purgatory[int] = Purgatory("test")
    operations = []
    for _ in range(5_000):
        operation = Wait()
        operations.append(operation)
        purgatory.try_complete_else_watch(operation, rng.sample(range(20), 3), rng.choice([0, 60]))
        if rng.random() < 0.6:
            rng.choice(operations).ready = True
        purgatory.check_and_complete(rng.randrange(20))
        if rng.random() < 0.1:
            rng.choice(operations).force_complete()
    purgatory.expire_all()
    assert [operation.completions for operation in operations] == [1] * len(operations)
    assert purgatory.statistics().watched == 0
    assert purgatory.statistics().completed == len(operations)
    assert not purgatory._watchers
    assert len(purgatory._timers) <= 2048, "entries of completed operations are swept"
