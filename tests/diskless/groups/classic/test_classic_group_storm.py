"""Members that come and leave at random while answers travel: who is alive is never unknown.

The members do what librdkafka's eager ones do: they ask for an id, join with it, sync, send
heartbeats, and commit what they have read before they join again or leave. Requests and answers of
a member take their time and stay in order; heartbeats overtake nothing. Nobody is silent for a
session, so nobody may be put out, and no commit be refused.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from diskless.groups.classic.classic_group import ClassicGroup
from diskless.groups.classic.rebalance import GroupState
from diskless.groups.errors import MemberIdRequired, RebalanceInProgress
from diskless.groups.group_machine import Removed, Reply, Store
from diskless.groups.requests import JoinedGroup
from tests.support.groups.group_requests import CLIENT, join_request, sync_request
from tests.support.profiles import seeds

MEMBERS: Final = 12
LEAVES: Final = 60
BEAT_S: Final = 0.3
DELAY_S: Final = 0.2
STORE_S: Final = 0.1
END_S: Final = 600.0


class World:
    """A group, its members, and what is on its way."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.group = ClassicGroup("group", initial_delay_s=0.3, size_max=10_000)
        self.members: list[Member] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), do))

    def settle(self) -> None:
        while self.group.effects:
            effects = [*self.group.effects]
            self.group.effects.clear()
            for effect in effects:
                assert not isinstance(effect, Removed), effect
                if isinstance(effect, Reply):
                    ticket: Any = effect.ticket
                    ticket(effect.answer)
                elif isinstance(effect, Store):
                    serial = effect.serial
                    self.after(
                        self.rng.random() * STORE_S, lambda serial=serial: self._stored(serial)
                    )

    def _stored(self, serial: int) -> None:
        self.group.stored(serial, None, self.now)

    def new_id(self) -> str:
        return f"m-{next(self._ids)}"

    def join(self) -> None:
        member = Member(self)
        self.members.append(member)
        member.join()

    def leave(self) -> None:
        member = self.rng.choice(self.members)
        self.members.remove(member)
        member.is_leaving = True

    def run(self) -> None:
        for _ in range(MEMBERS):
            self.after(self.rng.random(), self.join)
        for _ in range(LEAVES):
            at = 2 + self.rng.random() * 20
            self.after(at, self.leave)
            self.after(at + self.rng.random(), self.join)
        while self._due and self.now < END_S:
            if self.group.wakes_at <= self._due[0][0]:
                self.now = max(self.now, self.group.wakes_at)
                self.group.tick(self.now)
            else:
                self.now, _, do = heapq.heappop(self._due)
                do()
            self.settle()
            if self.now > 60 and all(member.is_settled for member in self.members):
                return


class Member:
    """A consumer; it has one request under way beside its heartbeats."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.member_id = ""
        self.generation_id = -1
        self.is_leaving = False
        self.is_in = False
        """It has synced, and has not begun to join again."""
        self._sent_at = 0.0
        self._heard_at = 0.0

    @property
    def is_settled(self) -> bool:
        group = self.world.group
        return self.is_in and group.state is GroupState.STABLE and self._is_current()

    def _is_current(self) -> bool:
        return self.generation_id == self.world.group.generation_id

    def _send(self, do: Callable[[], None]) -> None:
        world = self.world
        self._sent_at = max(self._sent_at, world.now + world.rng.random() * DELAY_S)
        world.after(self._sent_at - world.now, do)

    def _answer(self, take: Callable[[Any], None]) -> Callable[[Any], None]:
        def travel(answer: Any) -> None:
            world = self.world
            self._heard_at = max(self._heard_at, world.now + world.rng.random() * DELAY_S)
            world.after(self._heard_at - world.now, lambda: take(answer))

        return travel

    def join(self) -> None:
        world = self.world
        request = join_request(self.member_id, session_timeout_ms=6_000)
        self._send(
            lambda: world.group.join(
                self._answer(self._joined), request, CLIENT, world.now, new_id=world.new_id()
            )
        )

    def _joined(self, answer: JoinedGroup) -> None:
        if isinstance(answer.error, MemberIdRequired):
            self.member_id = answer.member_id
            self.leave() if self.is_leaving else self.join()
            return
        assert answer.error is None, answer.error
        self.generation_id = answer.generation_id
        if self.is_leaving:
            self.leave()
            return
        shares = {one.member_id: b"share" for one in answer.members}
        request = sync_request(self.member_id, self.generation_id, shares)
        world = self.world
        self._send(lambda: world.group.sync(self._answer(self._synced), request, world.now))
        self.world.after(BEAT_S, lambda: self.beat(answer.generation_id))

    def _synced(self, answer: Any) -> None:
        if self.is_leaving:
            self.leave()
        elif isinstance(answer.error, RebalanceInProgress):
            self.join()
        else:
            assert answer.error is None, answer.error
            assert answer.assignment == b"share"
            self.is_in = True

    def beat(self, generation_id: int) -> None:
        if self.generation_id != generation_id:
            return
        if self.is_in and self.is_leaving:
            self.commit_then(self.leave)
            return
        world = self.world

        def ask() -> None:
            error = world.group.heartbeat(generation_id, self.member_id, None, world.now)
            self._answer(lambda answer: self._beaten(generation_id, answer))(error)

        self._send(ask)

    def _beaten(self, generation_id: int, error: Any) -> None:
        if self.generation_id != generation_id or not self.member_id:
            return
        if isinstance(error, RebalanceInProgress) and self.is_in:
            self.commit_then(self.leave if self.is_leaving else self.join)
            return
        assert error is None or isinstance(error, RebalanceInProgress), error
        self.world.after(BEAT_S, lambda: self.beat(generation_id))

    def commit_then(self, go_on: Callable[[], None]) -> None:
        self.is_in = False
        world, generation_id, member_id = self.world, self.generation_id, self.member_id

        def taken(error: Any) -> None:
            assert error is None, f"{member_id}: {error!r}"
            go_on()

        def ask() -> None:
            self._answer(taken)(world.group.check_commit(generation_id, member_id, None, world.now))

        self._send(ask)

    def leave(self) -> None:
        world, member_id = self.world, self.member_id
        self.is_in, self.generation_id, self.member_id = False, -1, ""

        def ask() -> None:
            assert world.group.leave(member_id, None, world.now) is None

        self._send(ask)


@pytest.mark.parametrize("seed", seeds(12))
def test_whoever_is_alive_is_known_to_the_end(seed: int) -> None:
    world = World(seed)
    world.run()
    assert world.group.state is GroupState.STABLE
    assert sorted(world.group.member_ids) == sorted(one.member_id for one in world.members)
    assert all(member.is_settled for member in world.members)
