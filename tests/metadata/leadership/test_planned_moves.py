"""Leadership that moves by plan: nothing is lost on the way, and nobody else comes in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import pytest

from metadata.coordinator.following import SUCCESSOR_LOOK_S
from metadata.leadership.ranks import Ranks
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CreateTopic, ListOffsets, RegisteredBroker
from metadata.records.control import NO_BROKER, LeaderChangeRecord
from metadata.records.records import decode_record
from tests.support.coordinators.contender import MOVE_INTERVAL_MS, Contender, until
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    running_coordinator,
)
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, DisklessError, NotCoordinator
from wal.stores.memory_store import MemoryStore

MOVE_S = MOVE_INTERVAL_MS / 1000
IDS = (1, 2, 3)
FOLLOW_MS = 500


class Brokers:
    """Contenders that are all registered; `right` should lead, and after it `second`."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self._path = path
        self._stack = stack
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.registered = {one: RegisteredBroker(one, "h", 1, "", UUID(int=one), "") for one in IDS}
        ranks = Ranks(1, lambda: self.registered)
        self.right = ranks.leader(0)
        assert self.right is not None
        self.second = ranks.leader(0, without=self.right)
        assert self.second is not None
        self.third = next(one for one in IDS if one not in (self.right, self.second))

    async def start(self, broker_id: int | None) -> Contender:
        assert broker_id is not None
        contender = Contender(
            self._path / str(broker_id),
            self.store,
            clock=self.clock,
            broker_id=broker_id,
            registered=lambda: self.registered,
            settings=CoordinatorSettings(state_readers=1, follow_interval_ms=FOLLOW_MS),
        )
        return await self._stack.enter_async_context(contender)

    async def pass_time(self, seconds: float, leader: Contender) -> None:
        """As long as `leader` leads, and keeps its lease; then the clock stands."""
        ends_at = self.clock.monotonic() + seconds
        while self.clock.monotonic() < ends_at:
            for _ in range(10):
                await asyncio.sleep(0)
            coordinator = leader.partition.coordinator
            if coordinator is None or coordinator.pipeline.is_ending:
                return
            self.clock.advance(0.5)
            await until(
                lambda: (
                    leader.partition.coordinator is None
                    or (leader.log.lease_expires_at or 0.0) > self.clock.monotonic()
                ),
                "the leader keeps its lease",
            )


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    async with AsyncExitStack() as stack:
        yield Brokers(tmp_path, stack)


async def leader_changes(contender: Contender) -> list[tuple[int, int]]:
    """(broker, successor) of every LeaderChange, in log order."""
    found: list[tuple[int, int]] = []
    offset = 0
    while offset < contender.log.end_offset:
        for batch in await contender.log.read(offset, 1 << 20):
            offset = batch.next_offset
            for record in map(decode_record, batch.records):
                if isinstance(record, LeaderChangeRecord):
                    found.append((record.broker_id, record.successor_id))
    return found


async def test_a_leader_moves_to_the_broker_that_should_lead(brokers: Brokers) -> None:
    wrong = await brokers.start(brokers.third)
    await (await wrong.leading()).create_topics([CreateTopic(name="t", partition_count=1)])
    right = await brokers.start(brokers.right)
    other = await brokers.start(brokers.second)
    await brokers.pass_time(MOVE_S - 2, wrong)
    assert wrong.partition.coordinator is not None, "it has not been there for long enough"
    await brokers.pass_time(MOVE_S, wrong)
    await right.leading()
    await wrong.following(right)
    await other.following(right)
    assert await leader_changes(right) == [
        (brokers.third, NO_BROKER),
        (NO_BROKER, brokers.right),
        (brokers.right, NO_BROKER),
    ]
    assert set(right.replica.topics()) == {"t"}
    await brokers.pass_time(3 * MOVE_S, right)
    assert right.partition.coordinator is not None, "it stays there"
    assert wrong.replica.state_hash == right.replica.state_hash


async def test_who_stops_names_its_successor(brokers: Brokers) -> None:
    right = await brokers.start(brokers.right)
    await right.leading()
    others = [await brokers.start(brokers.third), await brokers.start(brokers.second)]
    for other in others:
        await other.following(right)
    await right.__aexit__(None, None, None)
    successor = others[1]
    await successor.leading()
    assert await leader_changes(successor) == [
        (brokers.right, NO_BROKER),
        (NO_BROKER, brokers.second),
        (brokers.second, NO_BROKER),
    ]


async def test_a_successor_that_is_not_there_is_waited_for_for_two_seconds(
    brokers: Brokers,
) -> None:
    wrong = await brokers.start(brokers.third)
    await wrong.leading()
    other = await brokers.start(brokers.second)
    await other.following(wrong)
    await brokers.pass_time(MOVE_S - 2, wrong)
    await brokers.pass_time(MOVE_S, wrong)
    await until(lambda: wrong.partition.coordinator is None, "it resigned")
    looks = len(other.steps.made)
    assert max(other.pauses_s) == FOLLOW_MS / 1000
    other.pauses_s.clear()
    await until(lambda: len(other.steps.made) > looks + 20, "the other one looks on")
    assert max(other.pauses_s[1:]) <= SUCCESSOR_LOOK_S, "it may come any moment"
    assert other.partition.leader is other.partition.coordinator is None
    brokers.clock.advance(2.5)
    await until(
        lambda: any(one.partition.coordinator is not None for one in (wrong, other)),
        "one of those that are there leads",
    )


async def test_who_is_going_to_stop_hands_over_and_follows(brokers: Brokers) -> None:
    right = await brokers.start(brokers.right)
    await (await right.leading()).create_topics([CreateTopic(name="t", partition_count=1)])
    others = [await brokers.start(brokers.third), await brokers.start(brokers.second)]
    for other in others:
        await other.following(right)
    await right.partition.hand_over()
    successor = others[1]
    await (await successor.leading()).create_topics([CreateTopic(name="u", partition_count=1)])
    await right.following(successor)
    assert set(right.replica.topics()) == {"t", "u"}
    assert await leader_changes(right) == [
        (brokers.right, NO_BROKER),
        (NO_BROKER, brokers.second),
        (brokers.second, NO_BROKER),
    ]
    await right.partition.hand_over()
    assert not right.task.done(), "who follows has nothing to hand over"


async def test_who_has_nobody_to_hand_over_to_leads_on(brokers: Brokers) -> None:
    assert brokers.right is not None
    brokers.registered = {brokers.right: brokers.registered[brokers.right]}
    right = await brokers.start(brokers.right)
    coordinator = await right.leading()
    await right.partition.hand_over()
    await coordinator.create_topics([CreateTopic(name="t", partition_count=1)])
    assert await leader_changes(right) == [(brokers.right, NO_BROKER)]


async def test_a_broker_whose_resignation_does_not_get_through_leads_on(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = await brokers.start(brokers.right)
    coordinator = await right.leading()

    async def refuse(_: LeaderChangeRecord) -> None:
        raise CommitFailed("the store is away")

    monkeypatch.setattr(coordinator.pipeline, "end_with", refuse)
    await right.partition.hand_over()
    await until(lambda: right.partition.coordinator not in (None, coordinator), "it leads again")
    again = await right.leading()
    await again.create_topics([CreateTopic(name="t", partition_count=1)])


async def test_what_was_asked_before_a_resignation_is_answered(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        asked = [ListOffsets(partition, -1)]
        assert (await bench.coordinator.list_offsets(asked))[0].error is None
        log.gate.clear()
        log.entered.clear()
        before = asyncio.create_task(create(bench, "before"))
        await log.entered.wait()
        resigning = asyncio.create_task(bench.coordinator.pipeline.end_with(resignation()))
        await asyncio.sleep(0)
        after = asyncio.create_task(create(bench, "after"))
        reading = asyncio.create_task(bench.coordinator.list_offsets(asked))
        await asyncio.sleep(0)
        assert not bench.coordinator.lease.is_certain()
        log.gate.set()
        await before
        await resigning
        assert set(bench.coordinator.replica.topics()) >= {"before"}
        for _ in range(50):
            await asyncio.sleep(0)
        assert not after.done(), "it waits for the end of this leader"
        assert not reading.done(), "another broker may lead by now"
        await bench.coordinator.stop()
        for refused in (after, reading):
            with pytest.raises(NotCoordinator):
                await refused
        assert "after" not in bench.coordinator.replica.topics()


async def test_after_a_resignation_that_is_refused_it_serves_on(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        log.failures.append(CommitFailed("refused"))
        with pytest.raises(CommitFailed):
            await bench.coordinator.pipeline.end_with(resignation())
        await create(bench, "after")
        (listed,) = await bench.coordinator.list_offsets([ListOffsets(partition, -1)])
        assert listed.error is None


def resignation() -> LeaderChangeRecord:
    return LeaderChangeRecord(
        leader_epoch=2,
        broker_id=NO_BROKER,
        host="h",
        port=1,
        incarnation=UUID(int=1),
        successor_id=2,
    )


async def create(bench: CoordinatorBench, name: str) -> None:
    (topic,) = await bench.coordinator.create_topics([CreateTopic(name=name, partition_count=1)])
    assert not isinstance(topic, DisklessError)
    assert TopicIdPartition(topic.topic_id, 0) in bench.coordinator.replica.image.partitions
