"""Several writers on one object log, interleaved at every request to the store, against a model.

Every request of every writer waits until the machine picks it, and then works, works without an
answer, is applied much later, or fails. A listing that waits shows no more than `ObjectStore.list`
promises. Writers lead, append, prune, refresh and are paused at any
request for any time. What the observer (who sees the bucket after every step) has once read must
stay true for everybody:

- the log is one gapless sequence that only grows at its end, whoever reads it (L2, L5)
- an acknowledged append is in it exactly where it was acknowledged, in its writer's own term (L7)
- what failed for certain is not in it, not even when zombies land later (L4)
- when an end is proven, nobody else had led when that was asked for, however long its writer was
  paused meanwhile, and whatever was pruned: strict reads rest on it, and on no lease
- what a leader feeds to a follower is what the store has, however late it arrives, and from whoever
  leads no more without knowing it
- while a lease is valid, nobody else has led, as long as candidates wait for the lease of others,
  which half of the runs do
"""

import asyncio
import itertools
import random
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metadata.log.log import LEASE_MARGIN, MetadataRecordBatch
from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from tests.support.logs.log_contract import NOW_MS
from tests.support.profiles import examples
from tests.support.stores.stepped_store import Fate, SteppedStore, Steps
from wal.clock import ManualClock
from wal.errors import CommitOutcomeUnknown, NotCoordinator, OutOfBounds, Retriable
from wal.stores.memory_store import MemoryStore

WRITERS: Final = 3
CALLS_MAX: Final = 3
SETTINGS: Final = ObjectLogSettings(
    lease_ms=10_000, prune_delay_ms=20_000, attempts_max=2, cache_bytes=0
)
LEASE_S: Final = SETTINGS.lease_ms / 1000
PRUNE_S: Final = SETTINGS.prune_delay_ms / 1000
CACHE_BYTES: Final = 1 << 20
PUT_FATES: Final = [*[Fate.OK] * 4, *Fate]
OTHER_FATES: Final = [*[Fate.OK] * 5, Fate.AWAY]

_Result = TypeVar("_Result")


class Call(NamedTuple):
    """A call of a writer that is under way."""

    kind: str
    task: "asyncio.Task[int]"
    record: bytes
    """What it appends; no record is appended twice."""
    term: bytes
    """The leader's record of the term in which it was called."""
    end: int
    """Where the log ended then."""


class Writer:
    """One process: its log, and the requests it makes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = Steps()
        self.steps.listings = random.Random(number)
        self.log: ObjectMetadataLog
        self.term = b""
        """The record with which it led last."""
        self.calls: list[Call] = []
        self.seen_end = 0
        self.quiet_since = 0.0
        """When it last saw something new in the log."""


class ObjectLogMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.numbers = itertools.count()
        self.seeds = itertools.count()
        self.history: list[MetadataRecordBatch] = []
        self.acknowledged: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self.writers = [Writer(number) for number in range(WRITERS)]
        self.candidates_wait = True
        self.followed_offset = 0
        self.fed_offset = 0
        self.on_the_way: list[tuple[int, Sequence[bytes]]] = []
        """What leaders have sent to the one that is fed."""
        self.cache_bytes = 0

    @initialize(candidates_wait=st.booleans(), feeds=st.booleans())
    def open(self, candidates_wait: bool, feeds: bool) -> None:
        self.candidates_wait = candidates_wait
        self.cache_bytes = CACHE_BYTES if feeds else 0
        for writer in self.writers:
            writer.log = self.run(self.opened(writer.steps))
        self.observer = self.run(self.opened(Steps()))
        self.follower = self.run(self.opened(Steps()))
        self.fed = self.run(self.opened(Steps()))

    # -- calls ----------------------------------------------------------------------------------

    @rule(number=st.integers(0, WRITERS - 1), at_once=st.booleans())
    def lead(self, number: int, at_once: bool) -> None:
        writer = self.writers[number]
        log = writer.log
        waited_s = self.clock.monotonic() - writer.quiet_since
        if (
            self.candidates_wait
            and log.end_offset
            and not log.is_leading
            and waited_s <= LEASE_MARGIN * LEASE_S
        ):
            return
        record = b"leader %d" % next(self.numbers)
        self.call(
            writer,
            "lead",
            record,
            lambda: log.lead([record], NOW_MS, at_offset=log.end_offset),
            at_once=at_once,
        )

    @rule(number=st.integers(0, WRITERS - 1), records=st.integers(1, 3), at_once=st.booleans())
    def append(self, number: int, records: int, at_once: bool) -> None:
        writer = self.writers[number]
        record = b"record %d" % next(self.numbers)
        batch = [record, *(b"and more" for _ in range(records - 1))]
        self.call(
            writer,
            "append",
            record,
            lambda: writer.log.append([batch], NOW_MS),
            at_once=at_once,
        )

    @rule(number=st.integers(0, WRITERS - 1), at_once=st.booleans())
    def refresh(self, number: int, at_once: bool) -> None:
        writer = self.writers[number]
        self.call(writer, "refresh", b"", writer.log.refresh, at_once=at_once)

    @rule(number=st.integers(0, WRITERS - 1), at_once=st.booleans())
    def prove(self, number: int, at_once: bool) -> None:
        writer = self.writers[number]

        async def proven() -> int:
            await writer.log.prove()
            return 0

        self.call(writer, "prove", b"", proven, at_once=at_once)

    @rule(number=st.integers(0, WRITERS - 1), below_end=st.integers(0, 6), at_once=st.booleans())
    def prune(self, number: int, below_end: int, at_once: bool) -> None:
        writer = self.writers[number]
        before = max(0, writer.log.end_offset - below_end)
        self.call(writer, "prune", b"", lambda: writer.log.prune(before), at_once=at_once)

    @rule(
        number=st.integers(0, WRITERS - 1),
        appends=st.integers(0, 3),
        keep=st.integers(0, 3),
        waits=st.booleans(),
    )
    def take_over(self, number: int, appends: int, keep: int, waits: bool) -> None:
        """A writer does everything that it takes to prune what others may still collide with."""
        writer = self.writers[number]
        if writer.calls:
            return
        self.refresh(number, at_once=True)
        self.take_outcomes()
        self.clock.advance(1.2 * LEASE_S if self.candidates_wait else 0.0)
        self.lead(number, at_once=True)
        for _ in range(appends):
            self.look_and_take_outcomes()
            self.append(number, 1, at_once=True)
        self.clock.advance(1.2 * PRUNE_S if waits else 0.0)
        self.look_and_take_outcomes()
        self.append(number, 1, at_once=True)
        self.look_and_take_outcomes()
        self.prune(number, keep, at_once=True)

    def call(
        self,
        writer: Writer,
        kind: str,
        record: bytes,
        make: Callable[[], Coroutine[Any, Any, int]],
        *,
        at_once: bool,
    ) -> None:
        """Make a call; its requests wait, unless it is to happen at once."""
        if len(writer.calls) >= CALLS_MAX:
            return
        self.run(self.observer.refresh())
        writer.steps.held = not (at_once and not writer.calls)
        task = self.loop.create_task(make())
        writer.calls.append(Call(kind, task, record, writer.term, self.observer.end_offset))
        self.settle()
        writer.steps.held = True

    # -- what happens to requests ---------------------------------------------------------------

    @precondition(lambda self: any(writer.steps.waiting for writer in self.writers))
    @rule(
        choice=st.integers(0, 99),
        put=st.sampled_from(PUT_FATES),
        other=st.sampled_from(OTHER_FATES),
    )
    def answer(self, choice: int, put: Fate, other: Fate) -> None:
        waiting = [item for writer in self.writers for item in writer.steps.waiting]
        chosen = waiting[choice % len(waiting)]
        chosen.decide(put if chosen.kind == "put" else other)
        self.settle()

    @precondition(lambda self: any(writer.steps.zombies for writer in self.writers))
    @rule(choice=st.integers(0, 99))
    def land(self, choice: int) -> None:
        zombies = [(writer, zombie) for writer in self.writers for zombie in writer.steps.zombies]
        writer, zombie = zombies[choice % len(zombies)]
        writer.steps.zombies.remove(zombie)
        self.run(zombie.land())

    @rule(seconds=st.sampled_from([1.0, 9.0, 11.5, 19.5, 30.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # -- what is true ---------------------------------------------------------------------------

    @rule()
    def follow(self) -> None:
        """Somebody who looks now and then, and may have missed what was pruned."""
        self.run(self.follower.refresh())
        self.followed_offset = self.run(self.read_on(self.follower, self.followed_offset))

    @precondition(lambda self: self.cache_bytes)
    @rule(
        number=st.integers(0, WRITERS - 1),
        leads=st.booleans(),
        reads=st.booleans(),
        appends=st.booleans(),
        at_once=st.booleans(),
    )
    def feed(self, number: int, leads: bool, reads: bool, appends: bool, at_once: bool) -> None:
        """Whoever believes that it leads sends what follows, perhaps in the middle of an append."""
        source, tail = self.writers[number].log, self.fed.tail
        if leads and not source.is_leading:
            self.take_over(number, 1, 3, waits=False)
            self.look_and_take_outcomes()
        if not source.is_leading:
            return
        if reads:
            self.judge()
        if appends:
            self.append(number, 1, at_once=False)
        try:
            objects = source.tail.after(tail.end_offset, tail.last_put_id)
        except NotCoordinator:
            return
        if objects:
            self.on_the_way.append((tail.end_offset, objects))
            if at_once:
                self.arrive(len(self.on_the_way) - 1, again=True)

    @precondition(lambda self: self.on_the_way)
    @rule(choice=st.integers(0, 99), again=st.booleans())
    def arrive(self, choice: int, again: bool) -> None:
        """In any order, and perhaps twice."""
        choice %= len(self.on_the_way)
        offset, objects = self.on_the_way[choice]
        if not again:
            del self.on_the_way[choice]
        self.run(self.fed.tail.take(offset, objects))
        self.fed_offset = self.run(self.read_on(self.fed, self.fed_offset))

    @rule()
    def judge(self) -> None:
        """The one that is fed looks at the store."""
        if self.run(self.fed.tail.judge()):
            self.run(self.fed.refresh())
        self.fed_offset = self.run(self.read_on(self.fed, self.fed_offset))

    @invariant()
    def the_log_is_one_growing_sequence(self) -> None:
        if hasattr(self, "observer"):
            self.look_and_take_outcomes()

    def look_and_take_outcomes(self) -> None:
        self.run(self.look())
        self.take_outcomes()

    async def read_on(self, log: ObjectMetadataLog, offset: int) -> int:
        """Read to the end, which is returned, and compare with what was seen."""
        while offset < log.end_offset:
            try:
                batches = await log.read(offset, 150)
            except OutOfBounds:
                assert log.start_offset > offset
                offset = log.start_offset
                continue
            for batch in batches:
                number = bisect_right(self.history, offset, key=lambda seen: seen.base_offset) - 1
                assert batch == self.history[number], f"at {offset}"
                offset = batch.next_offset
        return offset

    def leader_at(self, offset: int) -> bytes:
        """The record of the last leader before `offset`."""
        for batch in reversed(self.history):
            if batch.base_offset < offset and batch.records[0].startswith(b"leader"):
                return batch.records[0]
        return b""

    def take_outcomes(self) -> None:
        end = self.observer.end_offset
        for writer in self.writers:
            for call in [call for call in writer.calls if call.task.done()]:
                writer.calls.remove(call)
                error = call.task.exception()
                if error is not None:
                    assert isinstance(error, (Retriable, CommitOutcomeUnknown)), repr(error)
                    if call.kind == "append" and isinstance(error, Retriable):
                        self.refused.add(call.record)
                    continue
                if call.kind == "prove":
                    assert self.leader_at(call.end) == call.term, "another had led"
                if call.kind not in ("lead", "append"):
                    continue
                offset = call.task.result()
                if call.kind == "lead":
                    writer.term = call.record
                else:
                    assert self.leader_at(offset) == writer.term
                self.acknowledged[call.record] = offset
                (batch,) = (seen for seen in self.history if seen.base_offset == offset)
                assert batch.records[0] == call.record
            if writer.seen_end != writer.log.end_offset:
                writer.seen_end = writer.log.end_offset
                writer.quiet_since = self.clock.monotonic()
            expires = writer.log.lease_expires_at
            if self.candidates_wait and expires is not None and self.clock.monotonic() < expires:
                assert self.leader_at(end) == writer.term, "another leads within the lease"
        in_log = {batch.records[0] for batch in self.history}
        assert not in_log & self.refused

    def teardown(self) -> None:
        try:
            if hasattr(self, "observer"):
                self.run(self.end())
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def end(self) -> None:
        """All requests come to an end, all zombies land, and the log goes on."""
        for writer in self.writers:
            writer.steps.held = False
            for item in list(writer.steps.waiting):
                item.decide(Fate.OK)
        for writer in self.writers:
            for call in writer.calls:
                await asyncio.wait([call.task])
        await self.look()
        self.take_outcomes()
        for writer in self.writers:
            for zombie in writer.steps.zombies:
                await zombie.land()
        await self.look()
        self.candidates_wait = False
        for writer in self.writers:
            end = await writer.log.refresh()
            assert end == (self.history[-1].next_offset if self.history else 0)
            assert await writer.log.lead([b"leader at last"], NOW_MS, at_offset=end) == end
            assert await writer.log.append([[b"works"]], NOW_MS) == end + 1
            await self.look()
        self.take_outcomes()
        records = [batch.records[0] for batch in self.history]
        for record, offset in self.acknowledged.items():
            assert records.count(record) == 1
            assert self.history[records.index(record)].base_offset == offset
        for writer in self.writers:
            await writer.log.close()

    # -- machinery ------------------------------------------------------------------------------

    async def look(self) -> None:
        await self.observer.refresh()
        end = self.history[-1].next_offset if self.history else 0
        while end < self.observer.end_offset:
            batches = await self.observer.read(end, 1 << 20)
            assert batches[0].base_offset == end
            self.history += batches
            end = batches[-1].next_offset
        newcomer = await self.opened(Steps())
        end = await self.read_on(newcomer, newcomer.start_offset)
        assert end == self.observer.end_offset

    async def opened(self, steps: Steps) -> ObjectMetadataLog:
        return await ObjectMetadataLog.open(
            SteppedStore(self.store, steps),
            0,
            clock=self.clock,
            rng=random.Random(next(self.seeds)),
            settings=replace(SETTINGS, cache_bytes=self.cache_bytes),
            sleep=self.sleep,
        )

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self.loop.run_until_complete(work)

    def settle(self) -> None:
        """Let everything run that can."""

        async def rest() -> None:
            for _ in range(40):
                await asyncio.sleep(0)

        self.run(rest())


ObjectLogMachine.TestCase.settings = examples(1.5, steps=50)
TestObjectLogModel = ObjectLogMachine.TestCase
