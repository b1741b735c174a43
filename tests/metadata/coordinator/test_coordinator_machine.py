"""Random operations, crashes, lost states and changes of leader, against a model in plain dicts.

Two machines with the same operations. `LocalMachine` has one process on a log in its directory: it
stops, dies, meets a full disk or a failing sync, and starts with its SQLite state, none, a stale
or a damaged one. `RivalMachine` has three brokers on one object store: leaders resign, die in the
middle of an append, and are paused past their lease and woken; answers of the store are lost, come
late, or say that nothing was done.

After every step:
- every answer was the model's, every partition, topic, file and broker is as the model has it;
- the log is one gapless sequence, leader epochs grow by one (I12), and replaying it batch by batch
  gives the leader's state hash (I11);
- offsets are dense from the log start to the high watermark (I6), nothing that was acknowledged is
  missing, and nothing is there in part.

Now and then, and at the end: followers have that state too, and so has a newcomer who starts from
snapshot and log, or from the log's beginning; rows are compared, and `verify_metadata` finds
nothing.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import rule

from metadata.operations import CommitFile, ListOffsets
from tests.support.coordinators.contender import until
from tests.support.coordinators.coordinator_machine import (
    CoordinatorMachine,
    batches,
    fates,
    numbers,
)
from tests.support.coordinators.coordinator_model import outcomes_of
from tests.support.coordinators.coordinator_worlds import LocalWorld, RivalWorld, StateFate
from tests.support.profiles import examples
from tests.support.stores.stepped_store import Fate
from wal.errors import CommitOutcomeUnknown, DisklessError, NotCoordinator

LOG_ATTEMPTS: Final = 8
"""As many times an append to the object log is tried, by default."""


class LocalMachine(CoordinatorMachine):
    """On a local log."""

    world: LocalWorld

    def make_world(self, directory: Path) -> LocalWorld:
        return LocalWorld(directory)

    def fail_next_append(self) -> None:
        self.world.disk.calls = ("pwritev",)
        self.world.disk.fail_number = self.world.disk.count + 1

    def heal(self) -> None:
        self.world.disk.calls = ()
        self.world.disk.fail_number = 0

    @rule()
    def keep_a_copy(self) -> None:
        self.world.keep_a_copy(self.world.state_directory)

    @rule(fate=fates)
    def a_sync_fails(self, fate: StateFate) -> None:
        """Nobody knows what is durable until the log is opened again; then it is committed once."""
        request = self.file([self.sent((2, 1, 2, 0, 0, False))])
        self.commits.append(request)
        sent_ms = self.now_ms
        self.world.disk.failing = {"fdatasync"}
        answer = self.answer_of(self.world.coordinator.commit_file(request))
        self.world.disk.failing = set()
        assert answer is CommitOutcomeUnknown
        self.run(self.world.restart(fate, is_crash=False))
        self.commit_now(request, [sent_ms])


class RivalMachine(CoordinatorMachine):
    """On an object log."""

    world: RivalWorld

    def make_world(self, directory: Path) -> RivalWorld:
        return RivalWorld(directory)

    def fail_next_append(self) -> None:
        self.world.plan_puts(Fate.AWAY)

    def heal(self) -> None:
        self.world.leading.steps.puts.clear()

    @rule(wanted=batches, fates=st.lists(st.sampled_from([Fate.LOST, Fate.LATE]), max_size=3))
    def lose_answers(
        self, wanted: list[tuple[int, int, int, int, int, bool]], fates: list[Fate]
    ) -> None:
        """Puts are repeated until it is known what became of them."""
        self.world.plan_puts(*fates)
        self.commit(wanted, (0,))
        self.run(self.world.land_zombies())

    @rule(is_landed=st.booleans())
    def the_store_does_not_say(self, is_landed: bool) -> None:
        """An append with an unknown outcome; the same broker leads again and finds out."""
        request = self.file([self.sent((1, 1, 2, 0, 0, False)), self.sent((0, -1, 1, 0, 0, False))])
        self.commits.append(request)
        self.run(self.world.settle())
        sent_ms = self.now_ms
        before = self.world.coordinator
        first = Fate.LOST if is_landed else Fate.LATE
        self.world.plan_puts(first, *[Fate.AWAY] * (LOG_ATTEMPTS - 1))
        answer = self.answer_of(self.world.coordinator.commit_file(request))
        assert answer is CommitOutcomeUnknown
        self.run(
            until(
                lambda: self.world.partition.coordinator not in (before, None),
                "it leads again",
            )
        )
        self.heal()
        self.run(self.world.land_zombies())
        was_there = self.is_committed(request)
        assert was_there == is_landed
        self.commit_now(request, [sent_ms])

    def is_committed(self, request: CommitFile) -> bool:
        (described,) = self.run(self.world.coordinator.describe_files([request.object_key]))
        return described.error is None

    def other(self, number: int) -> int:
        return (self.world.leader + 1 + number % (self.world.BROKERS - 1)) % self.world.BROKERS

    @rule(number=numbers, fate=fates, is_crash=st.booleans())
    def leader_ends(self, number: int, fate: StateFate, is_crash: bool) -> None:
        """It resigns or dies; another leads, and later it is back."""
        old, new = self.world.leader, self.other(number)

        async def change() -> None:
            self.world.may_lead(new)
            await self.world.end(old, is_crash=is_crash)
            await self.world.elect(new)
            await self.world.begin(old, fate)

        self.run(change())

    @rule(number=numbers)
    def keep_a_copy(self, number: int) -> None:
        # Nobody is about to load a snapshot.
        self.run(self.world.observe_followers())
        self.world.keep_a_copy(self.world.state_directory_of(number % self.world.BROKERS))

    @rule(
        number=numbers,
        is_landed=st.booleans(),
        wakes=st.booleans(),
        prunes=st.booleans(),
        fate=fates,
    )
    def pause_in_an_append(
        self, number: int, is_landed: bool, wakes: bool, prunes: bool, fate: StateFate
    ) -> None:
        """The leader stands still past its lease, its append in the store already or on its way."""
        old, new = self.world.leader, self.other(number)
        deposed = self.world.contenders[old]
        coordinator = self.world.coordinator
        request = self.file([self.sent((3, 2, 2, 0, 0, False)), self.sent((0, -1, 1, 0, 0, False))])
        self.commits.append(request)
        sent_ms = self.now_ms
        name = self.partition(number)

        async def pause() -> "asyncio.Task[Any]":
            await self.world.settle()
            if is_landed:
                # The put is applied; all that follows waits, its answer too.
                async def hold(kind: str, _: str) -> None:
                    if kind == "put":
                        deposed.stop_the_world()
                        await gate.wait()

                deposed.steps.before_answer = hold
                committing = asyncio.create_task(coordinator.commit_file(request))
                await until(lambda: deposed.steps.held, "the put has landed")
            else:
                deposed.stop_the_world()
                committing = asyncio.create_task(coordinator.commit_file(request))
                await until(
                    lambda: any(item.kind == "put" for item in deposed.steps.waiting),
                    "the put is on its way",
                )
            await self.world.elect(new)
            return committing

        gate = asyncio.Event()
        committing = self.run(pause())
        landed = is_landed and self.model.commit(request, now_ms=sent_ms, wall_ms=sent_ms)
        self.everything_is_as_the_model_has_it()
        assert self.is_committed(request) == is_landed
        if prunes:
            self.snapshot()
        self.commit([(number, -1, 2, 0, 0, False)], (0,))
        reading = self.loop.create_task(coordinator.list_offsets([ListOffsets(name, -1)]))

        async def go_on() -> None:
            gate.set()
            deposed.steps.before_answer = None
            if wakes:
                deposed.go_on()
                await asyncio.wait([committing, reading])
            else:
                await self.world.end(old, is_crash=True)
                await self.world.begin(old, fate)
                await asyncio.wait([committing, reading])

        self.run(go_on())
        failures = reading.exception(), committing.exception()
        if wakes:
            assert isinstance(failures[0], (NotCoordinator, CommitOutcomeUnknown))
            # What is in the log since it led happened, whether the store or a read answers first.
            if is_landed and failures[1] is None:
                assert outcomes_of(committing.result()) == landed
            else:
                unknown = CommitOutcomeUnknown
                allowed = unknown if is_landed else (NotCoordinator, unknown)
                assert isinstance(failures[1], allowed)
        for work in (
            coordinator.commit_file(request),
            coordinator.list_offsets([ListOffsets(name, -1)]),
            coordinator.allocate_producer_ids(),
        ):
            assert self.error_of(work) is NotCoordinator
        self.commit_now(request, [sent_ms])

    def error_of(self, work: Coroutine[Any, Any, object]) -> type[BaseException] | None:
        async def failing() -> type[BaseException] | None:
            try:
                await work
            except DisklessError as error:
                return type(error)
            return None

        return self.run(failing())

    @rule()
    def followers_have_it_too(self) -> None:
        self.run(self.world.observe_followers())
        for contender in self.world.contenders:
            self.run(self.check(contender.replica))


LocalMachine.TestCase.settings = examples(0.2, steps=30, allow=[HealthCheck.data_too_large])
RivalMachine.TestCase.settings = examples(0.12, steps=30, allow=[HealthCheck.data_too_large])
TestLocalMachine = LocalMachine.TestCase
TestRivalMachine = RivalMachine.TestCase
