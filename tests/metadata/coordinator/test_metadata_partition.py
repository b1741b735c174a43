"""Who leads a metadata partition: elections, leases, resignations, and leaders that were paused."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import Worker
from metadata.log.log import MetadataRecordBatch
from metadata.log.object_log import ObjectMetadataLog
from metadata.operations import CreateTopic, ListOffsets, RegisteredBroker, TopicDescription
from metadata.records.control import LeaderChangeRecord
from metadata.records.records import decode_record, encode_record
from tests.support.coordinators.contender import LEASE_MS, Contender, until
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.stores.stepped_store import Fate
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, CommitOutcomeUnknown, NotCoordinator, StorageFailed
from wal.stores.memory_store import MemoryStore

LEASE_S = LEASE_MS / 1000


class Bucket:
    """A store and a clock that contenders share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)

    def contender(
        self,
        broker_id: int,
        *,
        past: tuple[UUID, ...] = (),
        workers: Callable[[PartitionCoordinator], Sequence[Worker]] = lambda _: (),
        registered: Callable[[], Mapping[int, RegisteredBroker]] | None = None,
    ) -> Contender:
        return Contender(
            self.path / str(broker_id),
            self.store,
            clock=self.clock,
            broker_id=broker_id,
            past=past,
            workers=workers,
            registered=registered,
        )

    async def pass_time(self, seconds: float, *alive: Contender) -> None:
        """Move the clock in small steps, in each of which everybody alive gets to act."""
        step = LEASE_S / 20
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            seen = [len(contender.steps.made) for contender in alive]
            for contender, before in zip(alive, seen, strict=True):
                if contender.partition.coordinator is None:
                    await until(
                        lambda contender=contender, before=before: (
                            len(contender.steps.made) > before + 1
                            or contender.partition.coordinator is not None
                        ),
                        "a follower looks at the log",
                    )
                else:
                    await until(
                        lambda contender=contender: (
                            contender.partition.coordinator is None
                            or self.lease_left_s(contender) > LEASE_S / 3
                        ),
                        "a leader renews its lease",
                    )

    def lease_left_s(self, contender: Contender) -> float:
        expires_at = contender.log.lease_expires_at
        return 0.0 if expires_at is None else expires_at - self.clock.monotonic()


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


async def create(coordinator: PartitionCoordinator, name: str) -> TopicDescription:
    (topic,) = await coordinator.create_topics([CreateTopic(name=name, partition_count=1)])
    assert isinstance(topic, TopicDescription)
    return topic


async def leader_epochs(contender: Contender) -> list[tuple[int, int]]:
    """(epoch, broker) of every LeaderChange, in log order."""
    found = []
    offset = 0
    while offset < contender.log.end_offset:
        for batch in await contender.log.read(offset, 1 << 20):
            offset = batch.next_offset
            for record in map(decode_record, batch.records):
                if isinstance(record, LeaderChangeRecord):
                    found.append((record.leader_epoch, record.broker_id))
    return found


async def test_the_first_one_leads_and_the_second_follows(bucket: Bucket) -> None:
    async with bucket.contender(1) as first:
        coordinator = await first.leading()
        topic = await create(coordinator, "flights")
        async with bucket.contender(2) as second:
            await second.following(first)
            await second.partition.ready()
            assert second.partition.coordinator is None
            assert second.replica.topics() == {"flights": topic}
            assert second.replica.state_hash == first.replica.state_hash


async def test_a_live_leader_is_not_deposed_however_idle_it_is(bucket: Bucket) -> None:
    async with bucket.contender(1) as leader:
        await leader.leading()
        async with bucket.contender(2) as follower:
            await follower.following(leader)
            await bucket.pass_time(LEASE_S * 5, leader, follower)
            assert leader.partition.coordinator is not None
            assert len(await leader_epochs(leader)) == 1


def registered(*broker_ids: int) -> dict[int, RegisteredBroker]:
    return {
        one: RegisteredBroker(one, f"broker-{one}", 9092, "", UUID(int=one), "")
        for one in broker_ids
    }


async def test_brokers_that_are_cut_off_from_each_other_do_not_take_turns_at_leading(
    bucket: Bucket,
) -> None:
    """Both reach the store. The leader has expelled the other, and goes on appending for it."""
    known = registered(1, 2)
    async with bucket.contender(1, registered=lambda: known) as leader:
        await leader.leading()
        async with bucket.contender(2, registered=lambda: known) as follower:
            await follower.following(leader)
            await bucket.pass_time(LEASE_S, leader, follower)
            del known[2]
            await bucket.pass_time((30 if IS_EXHAUSTIVE else 4) * LEASE_S, leader, follower)
            assert leader.partition.coordinator is not None
            assert len(await leader_epochs(leader)) == 1


async def test_a_leader_whom_nobody_follows_appends_nothing(bucket: Bucket) -> None:
    known = registered(1)
    async with bucket.contender(1, registered=lambda: known) as leader:
        await leader.leading()
        puts = leader.steps.count("put")
        for _ in range(20):
            bucket.clock.advance(LEASE_S / 5)
            await asyncio.sleep(0.01)
        assert leader.steps.count("put") == puts
        known.update(registered(2))
        await until(lambda: leader.steps.count("put") > puts, "it appends for the other one")


async def test_a_dead_leader_is_replaced_after_its_lease_and_nothing_is_lost(
    bucket: Bucket,
) -> None:
    first = bucket.contender(1)
    await first.__aenter__()
    topic = await create(await first.leading(), "flights")
    async with bucket.contender(2) as second:
        await second.following(first)
        await first.die()
        await bucket.pass_time(LEASE_S, second)
        assert second.partition.coordinator is None, "the lease may still hold"
        await bucket.pass_time(LEASE_S, second)
        replacement = await second.leading()
        assert second.replica.topics() == {"flights": topic}
        await create(replacement, "trains")


@pytest.mark.parametrize("resigns", [True, False])
async def test_a_leader_that_let_its_lease_end_is_not_held_to_be_alive(
    bucket: Bucket, resigns: bool
) -> None:
    first = bucket.contender(1)
    await first.__aenter__()
    who = first.candidate
    await (await first.leading()).register_broker(
        RegisteredBroker(who.broker_id, who.host, who.port, "", who.incarnation, "")
    )
    async with bucket.contender(2) as second:
        await second.following(first)
        if resigns:
            await first.__aexit__(None, None, None)
        else:
            await first.die()
            await bucket.pass_time(LEASE_S * 2, second)
        successor = await second.leading()
        assert successor.sessions.silent() == ([] if resigns else [1])


async def test_a_broker_that_is_registered_already_asks_nothing_of_the_log(bucket: Bucket) -> None:
    """Its leader would have to prove that it leads, with a GET for every beat of every broker."""
    async with bucket.contender(1) as first:
        who = first.candidate
        broker = RegisteredBroker(who.broker_id, who.host, who.port, "", who.incarnation, "")
        coordinator = await first.leading()
        await coordinator.register_broker(broker)
        await bucket.pass_time(LEASE_S * 2, first)
        before = bucket.store.statistics()
        await coordinator.register_broker(broker)
        assert bucket.store.statistics() == before


async def test_a_leader_that_stops_resigns_and_the_next_one_need_not_wait(bucket: Bucket) -> None:
    first = bucket.contender(1)
    await first.__aenter__()
    await first.leading()
    async with bucket.contender(2) as second:
        await second.following(first)
        await first.__aexit__(None, None, None)
        await second.leading()


class Unanswered:
    """A worker that hears of the end of what it asked before it hears of its own."""

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise CommitOutcomeUnknown("the coordinator is stopping") from None


async def test_a_leader_stops_and_resigns_though_a_worker_fails_on_the_way(bucket: Bucket) -> None:
    first = bucket.contender(1, workers=lambda _: [Unanswered()])
    await first.__aenter__()
    await first.leading()
    async with bucket.contender(2) as second:
        await second.following(first)
        first.task.cancel()
        await asyncio.wait([first.task], timeout=60)
        assert first.task.cancelled()
        await second.leading()
        await first.__aexit__(None, None, None)


async def test_an_earlier_life_of_the_same_broker_is_not_waited_for(bucket: Bucket) -> None:
    first = bucket.contender(1)
    await first.__aenter__()
    await create(await first.leading(), "flights")
    await first.die()
    async with bucket.contender(2, past=(UUID(int=1),)) as second:
        await second.leading()
        assert list(second.replica.topics()) == ["flights"]


async def test_a_paused_leader_acknowledges_nothing_when_it_wakes(bucket: Bucket) -> None:
    async with bucket.contender(1) as old:
        coordinator = await old.leading()
        topic = await create(coordinator, "flights")
        partition = TopicIdPartition(topic.topic_id, 0)
        async with bucket.contender(2) as new:
            await new.following(old)
            old.stop_the_world()
            writing = asyncio.create_task(create(coordinator, "lost"))
            await until(lambda: bool(old.steps.waiting), "the old leader's put is under way")
            await bucket.pass_time(LEASE_S * 2, new)
            successor = await new.leading()
            await create(successor, "trains")

            reading = asyncio.create_task(coordinator.list_offsets([ListOffsets(partition, -1)]))
            old.go_on()
            with pytest.raises((NotCoordinator, CommitFailed, CommitOutcomeUnknown)):
                await writing
            with pytest.raises((NotCoordinator, CommitFailed, CommitOutcomeUnknown)):
                await reading
            await old.following(new)
            assert sorted(old.replica.topics()) == ["flights", "trains"]
            assert old.replica.state_hash == new.replica.state_hash
            with pytest.raises(NotCoordinator):
                await create(coordinator, "too late")


async def test_a_strict_read_asks_the_log_and_appends_nothing(bucket: Bucket) -> None:
    async with bucket.contender(1) as only:
        coordinator = await only.leading()
        topic = await create(coordinator, "flights")
        asked = [ListOffsets(TopicIdPartition(topic.topic_id, 0), -1)]
        end = only.log.end_offset
        gets = only.steps.count("get")
        await coordinator.list_offsets(asked)
        assert only.steps.count("get") == gets + 1
        assert only.log.end_offset == end


async def test_a_leader_learns_from_a_strict_read_that_it_was_deposed(bucket: Bucket) -> None:
    """Nothing else would tell it: it has nothing to append."""
    async with bucket.contender(1) as old:
        coordinator = await old.leading()
        topic = await create(coordinator, "flights")
        asked = [ListOffsets(TopicIdPartition(topic.topic_id, 0), -1)]
        other = await ObjectMetadataLog.open(
            bucket.store, 0, clock=bucket.clock, rng=random.Random(7)
        )
        record = LeaderChangeRecord(
            leader_epoch=2, broker_id=7, host="h", port=1, incarnation=UUID(int=7)
        )
        end = other.end_offset
        assert (
            await other.lead([encode_record(record)], bucket.clock.now_ms(), at_offset=end) == end
        )
        assert old.partition.coordinator is coordinator
        with pytest.raises(NotCoordinator):
            await coordinator.list_offsets(asked)
        await until(lambda: old.partition.coordinator is None, "it follows")
        await until(
            lambda: (leader := old.partition.leader) is not None and leader.broker_id == 7,
            "it has read who leads",
        )
        await other.close()


async def test_who_may_not_lead_does_not(bucket: Bucket) -> None:
    async with Contender(
        bucket.path / "9", bucket.store, clock=bucket.clock, broker_id=9, may_lead=False
    ) as observer:
        await bucket.pass_time(LEASE_S * 3, observer)
        assert observer.partition.coordinator is None
        async with bucket.contender(1) as first:
            await first.leading()
            await observer.following(first)
        await bucket.pass_time(LEASE_S * 3, observer)
        assert observer.partition.coordinator is None
        assert observer.partition.leader is None, "it resigned, and nobody took its place"


async def test_leader_epochs_grow_by_one_with_every_leader(bucket: Bucket) -> None:
    for broker_id in (1, 2, 3):
        async with bucket.contender(broker_id) as leader:
            await leader.leading()
    async with bucket.contender(4) as last:
        await last.leading()
        epochs = await leader_epochs(last)
    assert [epoch for epoch, _ in epochs] == list(range(1, len(epochs) + 1))
    assert [broker for _, broker in epochs] == [1, -1, 2, -1, 3, -1, 4]


async def test_a_follower_outlives_a_store_that_refuses_reads_now_and_then(bucket: Bucket) -> None:
    async with bucket.contender(1) as leader, bucket.contender(2) as follower:
        coordinator = await leader.leading()
        await follower.following(leader)
        for number in range(10):
            follower.stop_the_world()
            for name in range(6):
                await create(coordinator, f"topic-{number}-{name}")
            # Of what it has to read in one go, one request fails, whichever it is.
            follower.steps.others.extend([*[Fate.OK] * number, Fate.AWAY])
            follower.go_on()
            await follower.following(leader)
            follower.steps.others.clear()
        assert not follower.task.done()
        assert follower.replica.state_hash == leader.replica.state_hash


async def test_a_new_leader_outlives_a_store_that_refuses_reads(bucket: Bucket) -> None:
    """It won, and cannot read yet what made it the leader."""
    leader = await bucket.contender(1).__aenter__()
    async with bucket.contender(2) as candidate:
        await create(await leader.leading(), "a")
        await candidate.following(leader)
        read = candidate.log.read
        failures = [StorageFailed("away"), StorageFailed("still away")]

        async def failing(offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
            if failures:
                raise failures.pop()
            return await read(offset, max_bytes)

        candidate.log.read = failing  # type: ignore[method-assign]
        await leader.die()
        await bucket.pass_time(1.5 * LEASE_S, candidate)
        coordinator = await candidate.leading()
        assert not failures
        assert set(coordinator.replica.topics()) == {"a"}
