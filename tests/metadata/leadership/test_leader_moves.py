"""When a leader resigns to the broker that should lead."""

import asyncio
from uuid import UUID

import pytest

from metadata.leadership.leader_moves import PATIENCE_MAX, LeaderMoves, MovePace
from metadata.leadership.ranks import Ranks
from metadata.operations import Leader, RegisteredBroker
from tests.support.coordinators.contender import until
from wal.clock import ManualClock
from wal.errors import CommitFailed, NotCoordinator

INTERVAL_S = 60.0


class World:
    """Two brokers, of which the other one should lead `partition`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pace = MovePace(clock=self.clock, interval_ms=int(INTERVAL_S * 1000))
        self.brokers: dict[int, RegisteredBroker] = {}
        self.come(1)
        self.come(2)
        self.ranks = Ranks(4, lambda: self.brokers)
        self.others = [one for one in range(4) if self.ranks.leader(one) == 2]
        self.resigned: list[int] = []
        self.epoch = 1
        self.fails = False

    def come(self, broker_id: int, life: int = 0) -> None:
        self.brokers[broker_id] = RegisteredBroker(broker_id, "h", 1, "", UUID(int=life), "")

    async def _resign(self, successor: int) -> None:
        if self.fails:
            raise CommitFailed("refused")
        self.resigned.append(successor)
        self.epoch += 1

    def moves(self, partition: int) -> LeaderMoves:
        return LeaderMoves(
            partition,
            self.ranks,
            self.pace,
            broker_id=1,
            leader=lambda: Leader(self.epoch, 1, "h", 1, UUID(int=0)),
            resign=self._resign,
            clock=self.clock,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    async def seconds_until_it_resigns(self, moves: LeaderMoves) -> float:
        began = self.clock.monotonic()
        with pytest.raises(NotCoordinator, match="broker 2"):
            await moves.run()
        return self.clock.monotonic() - began


@pytest.fixture
def world() -> World:
    return World()


def test_a_leader_that_should_lead_stays(world: World) -> None:
    mine = next(one for one in range(4) if world.ranks.leader(one) == 1)
    moves = world.moves(mine)
    assert moves.successor() is None
    world.clock.advance(10 * INTERVAL_S)
    assert moves.successor() is None


def test_the_other_one_must_have_been_there_in_one_life(world: World) -> None:
    moves = world.moves(world.others[0])
    assert moves.successor() is None
    world.clock.advance(INTERVAL_S - 1)
    assert moves.successor() is None
    world.come(2, life=1)
    world.clock.advance(2)
    assert moves.successor() is None
    world.clock.advance(INTERVAL_S)
    assert moves.successor() == 2
    del world.brokers[2]
    assert moves.successor() is None
    world.come(2, life=1)
    assert moves.successor() is None, "it was away"


async def test_a_broker_makes_one_move_in_an_interval(world: World) -> None:
    first, second = map(world.moves, world.others[:2])
    assert first.successor() is second.successor() is None
    world.clock.advance(INTERVAL_S)
    assert second.successor() == 2
    await world.seconds_until_it_resigns(first)
    assert world.resigned == [2]
    assert second.successor() is None
    world.clock.advance(INTERVAL_S)
    assert second.successor() == 2


async def test_a_successor_that_never_comes_is_tried_ever_more_rarely(world: World) -> None:
    partition = world.others[0]
    waits = []
    for _ in range(9):
        waits.append(await world.seconds_until_it_resigns(world.moves(partition)))
        world.epoch += 1  # it leads again, and nobody did in between
    assert [round(wait / INTERVAL_S) for wait in waits] == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert PATIENCE_MAX == 64
    await world.seconds_until_it_resigns(world.moves(partition))
    world.epoch += 3  # another broker led
    assert round(await world.seconds_until_it_resigns(world.moves(partition)) / INTERVAL_S) == 1


async def test_a_resignation_that_is_refused_leaves_it_leading(world: World) -> None:
    world.fails = True
    moves = world.moves(world.others[0])
    running = asyncio.create_task(moves.run())
    await until(lambda: world.clock.monotonic() > 3 * INTERVAL_S, "it was refused for a while")
    assert not running.done()
    world.fails = False
    with pytest.raises(NotCoordinator):
        await running
    assert world.resigned == [2]
