"""A process's share of one metadata partition, several of which can share one object store.

    clock = ManualClock()
    store = MemoryStore(clock=clock)
    async with Contender(tmp_path / "a", store, clock=clock, broker_id=1) as a:
        coordinator = await a.leading()

Time is the test's: every contender looks at `clock`, which stands still until it is moved, however
long the test takes; sleeping is a short real pause. `stop_the_world` stops a contender's store
requests and its sleeping, as SIGSTOP stops a process, until `go_on`.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition, SharedFeed, Worker
from metadata.feed_operations import FedObjects, FollowLog
from metadata.leadership.candidate import Candidate
from metadata.leadership.leader_moves import MovePace
from metadata.leadership.ranks import Ranks
from metadata.log.log import MetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from metadata.log.shared_tail import SharedTail
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import Leader, RegisteredBroker
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from tests.support.stores.stepped_store import Fate, SteppedStore, Steps
from wal.clock import ManualClock
from wal.errors import CommitFailed, NotCoordinator
from wal.stores.object_store import ObjectStore

LEASE_MS: Final = 10_000
MOVE_INTERVAL_MS: Final = 60_000
DEADLINE_S: Final = 120
_TICK_S: Final = 0.002


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds; fail saying `what` did not happen."""
    for _ in range(round(DEADLINE_S / _TICK_S)):
        if condition():
            return
        await asyncio.sleep(_TICK_S)
    raise AssertionError(f"did not happen: {what}")


class Contender:
    """One broker's `MetadataPartition` on an object log, running."""

    def __init__(
        self,
        directory: Path,
        store: ObjectStore,
        *,
        clock: ManualClock,
        broker_id: int,
        index: int = 0,
        past: Sequence[UUID] = (),
        may_lead: bool = True,
        workers: Callable[[PartitionCoordinator], Sequence[Worker]] = lambda _: (),
        settings: CoordinatorSettings | None = None,
        registered: Callable[[], Mapping[int, RegisteredBroker]] | None = None,
        wires: "FeedWires | None" = None,
        cache_bytes: int = 8 << 20,
    ) -> None:
        """`registered` are the brokers among which leadership is ranked and moves.

        With `wires`, leaders feed followers.
        """
        self.steps = Steps()
        self.clock = clock
        self._store = SteppedStore(store, self.steps)
        self._directory = directory
        self._index = index
        self._rng = random.Random(broker_id)
        self._settings = settings or CoordinatorSettings(state_readers=1, follow_interval_ms=1)
        self._workers = workers
        self._ranks = None if registered is None else Ranks(1, registered)
        self._pace = MovePace(clock=clock, interval_ms=MOVE_INTERVAL_MS)
        self._wires = wires
        self._cache_bytes = cache_bytes
        self._stack = AsyncExitStack()
        self._may_run = asyncio.Event()
        self._may_run.set()
        self.is_dead = False
        self.pauses_s: list[float] = []
        """All that it wanted to sleep."""
        self.candidate = Candidate(
            broker_id=broker_id,
            host=f"broker-{broker_id}",
            port=9092,
            incarnation=UUID(int=broker_id),
            past_incarnations=past,
            may_lead=may_lead,
        )
        self.log: MetadataLog
        self.partition: MetadataPartition
        self.task: asyncio.Task[None]

    @property
    def last_put_id(self) -> bytes:
        """Of the last object that it has read."""
        assert isinstance(self.log, ObjectMetadataLog)
        return self.log.tail.last_put_id

    @property
    def is_stopped(self) -> bool:
        return not self._may_run.is_set()

    @property
    def replica(self) -> Replica:
        return self.partition.replica

    async def _sleep(self, delay_s: float) -> None:
        self.pauses_s.append(delay_s)
        await asyncio.sleep(_TICK_S)
        await self._may_run.wait()

    async def __aenter__(self) -> Self:
        self.log = log = await ObjectMetadataLog.open(
            self._store,
            self._index,
            clock=self.clock,
            rng=self._rng,
            settings=ObjectLogSettings(lease_ms=LEASE_MS, cache_bytes=self._cache_bytes),
            sleep=self._sleep,
        )
        self.partition = MetadataPartition(
            Replica(
                self._directory,
                settings=self._settings,
                coordinator_id=self._index,
                snapshots=SnapshotStore(self._store, partition=self._index, cluster_id="c"),
                sleep=self._sleep,
            ),
            self.log,
            candidate=lambda: self.candidate,
            workers=self._workers,
            clock=self.clock,
            rng=self._rng,
            settings=self._settings,
            lease_ms=LEASE_MS,
            ranks=self._ranks,
            pace=self._pace,
            shared=None if self._wires is None else self._wires.plug_in(self, log.tail),
            sleep=self._sleep,
        )
        await self._stack.enter_async_context(self.partition)
        self.task = asyncio.create_task(self.partition.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """A clean stop: a leader resigns."""
        self.go_on()
        self.task.cancel()
        try:
            await self.task
        except asyncio.CancelledError:
            pass
        finally:
            await self._stack.aclose()

    async def die(self) -> None:
        """As SIGKILL: nothing more reaches the store, so nobody resigns."""
        self.is_dead = True
        self.steps.held = True
        self.task.cancel()
        while not self.task.done():
            self._decide(Fate.AWAY)
            await asyncio.wait([self.task], timeout=_TICK_S)
        await self._stack.aclose()

    def stop_the_world(self) -> None:
        """As SIGSTOP, for all that others can see."""
        self._may_run.clear()
        self.steps.held = True

    def go_on(self) -> None:
        """As SIGCONT: what was under way goes on."""
        self.steps.held = False
        self._decide(Fate.OK)
        self._may_run.set()

    def _decide(self, fate: Fate) -> None:
        for waiting in list(self.steps.waiting):
            if not waiting.fate.done():
                waiting.decide(fate)

    async def leading(self) -> PartitionCoordinator:
        """Its coordinator, when it has come to lead."""
        await until(
            lambda: self.partition.coordinator is not None or self.task.done(),
            f"broker {self.candidate.broker_id} leads",
        )
        if self.task.done():
            self.task.result()
        assert self.partition.coordinator is not None
        return self.partition.coordinator

    async def following(self, leader: "Contender") -> None:
        """Return when it has applied what `leader` has, and knows who leads.

        What is in the store a follower may have applied before the leader has.
        """
        await until(
            lambda: (
                self.replica.applied_offset == leader.replica.applied_offset
                and self.partition.leader is not None
                and self.partition.leader.broker_id == leader.candidate.broker_id
            ),
            "the follower has caught up",
        )


class FeedWires:
    """How contenders ask each other to be fed. What `alter` makes of an answer arrives."""

    def __init__(self) -> None:
        self._plugged: dict[int, Contender] = {}
        self.cut: set[int] = set()
        """Brokers that nobody hears of."""
        self.alter: Callable[[FollowLog, FedObjects], FedObjects] = lambda _, fed: fed
        self.impostor: Callable[[FollowLog], FedObjects] | None = None
        """Answers in the place of every leader."""
        self.answers = 0

    def plug_in(self, contender: Contender, tail: SharedTail) -> SharedFeed:
        self._plugged[contender.candidate.broker_id] = contender
        return SharedFeed(tail, self._ask)

    async def _ask(
        self, leader: Leader, coordinator: int, asked: FollowLog, *, timeout_ms: int
    ) -> FedObjects:
        if self.impostor is not None:
            self.answers += 1
            return self.impostor(asked)
        there = self._plugged.get(leader.broker_id)
        if there is None or there.is_dead or there.is_stopped or leader.broker_id in self.cut:
            raise CommitFailed(f"broker {leader.broker_id} does not answer")
        if there.partition.feeds is None:
            raise NotCoordinator(f"broker {leader.broker_id} does not lead")
        fed = self.alter(asked, await there.partition.feeds.follow(asked))
        self.answers += 1
        return fed
