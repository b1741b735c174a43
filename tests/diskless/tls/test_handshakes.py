"""Whose turn it is to shake hands."""

import asyncio
from collections import Counter

import pytest

from diskless.listeners.handshakes import BURST_S, Handshakes
from wal.clock import ManualClock


class Crowd:
    """Clients that want a turn and hold it until they are let go."""

    def __init__(self, handshakes: Handshakes, tasks: asyncio.TaskGroup) -> None:
        self._handshakes = handshakes
        self._tasks = tasks
        self.begun: list[str] = []
        self.holding: list[asyncio.Task[None]] = []
        self.held: Counter[str] = Counter()

    async def come(self, address: str, count: int = 1) -> list[asyncio.Task[None]]:
        came = [self._tasks.create_task(self._hold(address)) for _ in range(count)]
        await settled()
        return came

    async def _hold(self, address: str) -> None:
        async with self._handshakes.turn(address):
            self.begun.append(address)
            self.held[address] += 1
            task = asyncio.current_task()
            assert task is not None
            self.holding.append(task)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.held[address] -= 1

    async def let_go(self, count: int = 1) -> None:
        for task in [self.holding.pop(0) for _ in range(count)]:
            task.cancel()
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def crowded(tasks: asyncio.TaskGroup, clock: ManualClock, **limits: int) -> Crowd:
    wanted = {"at_once": 4, "per_address": 2, "per_s": 1_000, **limits}
    return Crowd(Handshakes(**wanted, clock=clock), tasks)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_no_more_begin_than_may_and_the_others_follow(clock: ManualClock) -> None:
    async with asyncio.TaskGroup() as tasks:
        crowd = crowded(tasks, clock, per_address=4)
        await crowd.come("a", 6)
        assert crowd.held["a"] == 4
        await crowd.let_go(2)
        assert crowd.held["a"] == 4
        await crowd.let_go(4)
        assert crowd.held.total() == crowd._handshakes.under_way == 0


async def test_one_address_has_its_share_and_no_more(clock: ManualClock) -> None:
    async with asyncio.TaskGroup() as tasks:
        crowd = crowded(tasks, clock)
        await crowd.come("a", 100)
        await crowd.come("b")
        assert crowd.begun == ["a", "a", "b"]
        assert crowd._handshakes.waiting == 98
        await crowd.let_go(1)
        assert crowd.begun == ["a", "a", "b", "a"]
        for _ in range(100):
            await crowd.let_go(1)


async def test_addresses_take_turns(clock: ManualClock) -> None:
    async with asyncio.TaskGroup() as tasks:
        crowd = crowded(tasks, clock, at_once=1)
        for address in ("a", "a", "a", "b", "c", "b"):
            await crowd.come(address)
        for _ in range(6):
            await crowd.let_go()
        assert crowd.begun == ["a", "a", "b", "c", "a", "b"]


async def test_who_goes_before_the_turn_takes_none(clock: ManualClock) -> None:
    async with asyncio.TaskGroup() as tasks:
        crowd = crowded(tasks, clock, at_once=1, per_address=1)
        await crowd.come("a")
        first, second = await crowd.come("b", 2)
        first.cancel()
        crowd.holding.pop(0).cancel()
        await settled()
        assert crowd.begun == ["a", "b"]
        assert crowd.held == Counter(b=1)
        await crowd.let_go()
        assert second.cancelled() or second.done()
        assert crowd._handshakes.under_way == crowd._handshakes.waiting == 0


async def test_they_do_not_come_faster_than_the_rate(clock: ManualClock) -> None:
    async with asyncio.TaskGroup() as tasks:
        crowd = crowded(tasks, clock, at_once=1_000, per_address=1_000, per_s=40)
        await crowd.come("a", 100)
        burst = int(BURST_S * 40) + 1
        assert len(crowd.begun) == burst
        clock.advance(0.5)
        await crowd.come("b")
        assert len(crowd.begun) == burst + int(BURST_S * 40)
        assert "b" in crowd.begun
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
