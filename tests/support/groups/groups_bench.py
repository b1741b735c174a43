"""A broker's groups over a store in memory, on a clock and a loop that only move when told to."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from diskless.groups import requests
from diskless.groups.group_coordinator import PartitionGroups
from diskless.groups.group_router import GroupRouter
from diskless.groups.offsets import TopicsWith
from diskless.groups.settings import GroupSettings
from diskless.loop.purgatory import Purgatory
from metadata.operations import Leader, TopicDescription
from metadata.rules.groups import group_coordinator
from tests.support.groups.group_requests import CLIENT, join_request, sync_request
from tests.support.groups.memory_group_store import MemoryGroupStore
from tests.support.loops.manual_loop import ManualLoop
from tests.support.transactions.held_numbers import HeldNumbers
from wal.clock import ManualClock
from wal.errors import DisklessError

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
LEADER = Leader(1, 7, "broker-7", 9092, UUID(int=7))


@dataclass
class Topics:
    """`KnownTopics` in a dictionary."""

    known: dict[str, TopicDescription] = field(default_factory=dict)
    made: int = 0
    on_changed: list[Callable[[], None]] = field(default_factory=list)

    def topics(self) -> Mapping[str, TopicDescription]:
        return self.known

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        return next((one for one in self.known.values() if one.topic_id == topic_id), None)

    def create(self, name: str, partitions: int = 4) -> None:
        self.made += 1
        self.known[name] = TopicDescription(
            topic_id=UUID(int=self.made), name=name, partition_count=partitions
        )
        self._changed()

    def grow(self, name: str, partitions: int) -> None:
        self.known[name] = replace(self.known[name], partition_count=partitions)
        self._changed()

    def delete(self, name: str) -> None:
        del self.known[name]
        self._changed()

    def _changed(self) -> None:
        for listener in self.on_changed:
            listener()


@dataclass
class Partition:
    """A metadata partition as the router sees it."""

    leader: Leader | None = LEADER


class GroupsBench:
    """One broker that leads the only metadata partition, unless told otherwise."""

    def __init__(
        self,
        settings: GroupSettings = SETTINGS,
        *,
        partitions: int = 1,
        store: MemoryGroupStore | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.loop = ManualLoop(self.clock)
        self.store = store or MemoryGroupStore(self.clock)
        self.topics = Topics()
        self.topics.create("topic")
        self.partitions = [Partition() for _ in range(partitions)]
        self.numbers = HeldNumbers()
        self.pauses = 0
        self.may_go_on = asyncio.Event()
        """What sleeps in the background goes on when this is set."""
        loop: Any = self.loop
        internal = TopicDescription(topic_id=UUID(int=999), name="internal", partition_count=1)
        self.known_topics = TopicsWith(self.topics, [internal])
        self.topics.on_changed.append(self.known_topics.changed)
        self.router = GroupRouter(
            self.partitions,
            self.known_topics,
            settings=settings,
            clock=self.clock,
            rng=random.Random(1),
            numbers=self.numbers,
            placed=lambda group_id: group_coordinator(group_id, partitions),
            purgatory=Purgatory("group", loop),
            sleep=self._sleep,
        )
        self.led: PartitionGroups
        self._task: asyncio.Task[None] | None = None

    async def _sleep(self, delay: float) -> None:
        self.pauses += 1
        await self.may_go_on.wait()
        self.may_go_on.clear()

    def lead(self, index: int = 0) -> "asyncio.Task[None]":
        """Come to lead a metadata partition; what is stored is being read when it returns."""
        self.led = self.router.led(index, self.store)
        self._task = asyncio.create_task(self.led.run())
        return self._task

    async def start(self) -> None:
        """Come to lead, and be ready."""
        self.lead()
        await self.settled()
        assert self.led.refusal() is None

    async def stop(self) -> None:
        """Do not lead any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
            self._task = None

    async def restarted(self, **settings: Any) -> "GroupsBench":
        """Another broker that goes on with what this one stored."""
        await self.stop()
        bench = GroupsBench(replace(SETTINGS, **settings), store=self.store, clock=self.clock)
        bench.topics = self.topics
        bench.known_topics._known = self.topics
        self.topics.on_changed.append(bench.known_topics.changed)
        await bench.start()
        return bench

    async def settled(self) -> None:
        """Whatever can happen without time passing has happened."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        self.loop.advance(seconds)
        await self.settled()

    # -- members

    async def join(
        self, member_id: str = "", group_id: str = "group", **fields: Any
    ) -> requests.JoinedGroup:
        fields.setdefault("needs_member_id", False)
        return await self.router.join(join_request(member_id, group_id=group_id, **fields), CLIENT)

    async def sync(
        self, joined: requests.JoinedGroup, group_id: str = "group", **assignments: bytes
    ) -> requests.SyncedGroup:
        """Of the member that was answered `joined`; it assigns itself what nobody else gets."""
        given = {joined.member_id: assignments.pop("own", b"")} | assignments
        return await self.router.sync(
            sync_request(joined.member_id, joined.generation_id, given, group_id=group_id)
        )

    async def member(
        self, group_id: str = "group", *, assignment: bytes = b"all", **fields: Any
    ) -> requests.JoinedGroup:
        """The only member of a group, with an assignment."""
        joined = await self.join(group_id=group_id, **fields)
        assert joined.error is None
        synced = await self.sync(joined, group_id, own=assignment)
        assert (synced.error, synced.assignment) == (None, assignment)
        return joined

    def heartbeat(
        self, joined: requests.JoinedGroup, group_id: str = "group"
    ) -> DisklessError | Awaitable[DisklessError | None] | None:
        return self.router.heartbeat(
            requests.GroupHeartbeat(group_id, joined.generation_id, joined.member_id, None)
        )

    # -- offsets

    async def commit(
        self,
        *offsets: tuple[str, int, int],
        group_id: str = "group",
        joined: requests.JoinedGroup | None = None,
        metadata: str = "",
        leader_epoch: int = 0,
        retention_ms: int = -1,
        generation_id: int = -1,
        knows_member_epochs: bool = False,
    ) -> Sequence[DisklessError | None]:
        """(topic, partition, offset) each, by the member that was answered `joined`, if any."""
        return await self.router.commit_offsets(
            requests.CommitOffsets(
                group_id,
                generation_id if joined is None else joined.generation_id,
                "" if joined is None else joined.member_id,
                None,
                retention_ms,
                knows_member_epochs,
                [requests.CommitOffset(*offset, leader_epoch, metadata) for offset in offsets],
            )
        )

    async def fetch(
        self, *partitions: tuple[str, int], group_id: str = "group"
    ) -> requests.FetchedOffsets:
        """Without partitions: all."""
        return await self.router.fetch_offsets(
            requests.FetchOffsets(group_id, None, -1, partitions or None, False)
        )

    async def fetched(self, group_id: str = "group") -> dict[tuple[str, int], int]:
        """All offsets of a group."""
        found = await self.fetch(group_id=group_id)
        assert found.error is None
        return {(one.topic_name, one.partition): one.offset for one in found.offsets}
