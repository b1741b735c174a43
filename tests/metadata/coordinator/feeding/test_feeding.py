"""Followers that are fed by their leader: what they see, whom they believe, and when they stop."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.feeding.feed import JUDGE_INTERVAL_S, RETRY_S
from metadata.feed_operations import FedObjects, FollowLog
from metadata.log.log_object import LogObject, encode_object, log_key
from metadata.operations import CreateTopic, TopicDescription
from metadata.records.control import LeaderChangeRecord
from metadata.records.records import encode_record
from tests.support.coordinators.contender import LEASE_MS, Contender, FeedWires, until
from tests.support.profiles import examples
from tests.support.stores.stepped_store import Fate
from wal.clock import ManualClock
from wal.errors import CommitOutcomeUnknown, CorruptLog, NotCoordinator
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody

LEASE_S = LEASE_MS / 1000
STRANGER = 9


class World:
    """Contenders that share a store, a clock, and wires between them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.wires = FeedWires()

    def contender(self, broker_id: int, *, cache_bytes: int = 8 << 20) -> Contender:
        return Contender(
            self.path / str(broker_id),
            self.store,
            clock=self.clock,
            broker_id=broker_id,
            wires=self.wires,
            cache_bytes=cache_bytes,
        )

    async def answered(self, times: int = 3) -> None:
        """Return when followers were answered, or refused, and have asked again."""
        seen = self.wires.answers
        await until(lambda: self.wires.answers >= seen + times, "followers are answered")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def leader(world: World) -> AsyncIterator[Contender]:
    async with world.contender(1) as first:
        await first.leading()
        yield first


@pytest.fixture
async def follower(world: World, leader: Contender) -> AsyncIterator[Contender]:
    async with world.contender(2) as second:
        await second.following(leader)
        await fed(second)
        yield second


async def fed(follower: Contender) -> None:
    await until(lambda: follower.partition.is_fed, "the leader feeds its follower")


def elected(offset: int, put_id: bytes) -> LogObject:
    """The first object of a leader that nobody is connected to."""
    record = LeaderChangeRecord(
        leader_epoch=100,
        broker_id=STRANGER,
        host="nowhere",
        port=1,
        incarnation=UUID(int=STRANGER),
    )
    return encode_object(
        0, offset, [[encode_record(record)]], 0, put_id=b"9" * 16, previous_put_id=put_id
    )


async def create(coordinator: PartitionCoordinator, name: str) -> TopicDescription:
    (topic,) = await coordinator.create_topics([CreateTopic(name=name, partition_count=1)])
    assert isinstance(topic, TopicDescription)
    return topic


async def lead(contender: Contender, *names: str) -> None:
    coordinator = await contender.leading()
    for name in names:
        await create(coordinator, name)


def assert_equal(one: Contender, other: Contender) -> None:
    assert one.replica.applied_offset == other.replica.applied_offset
    assert one.replica.state_hash == other.replica.state_hash


async def test_a_fed_follower_asks_the_store_for_nothing(
    world: World, leader: Contender, follower: Contender
) -> None:
    before = len(follower.steps.made)
    await lead(leader, "a", "b", "c")
    await follower.following(leader)
    await world.answered()
    assert len(follower.steps.made) == before
    assert_equal(follower, leader)
    assert sorted(follower.replica.topics()) == ["a", "b", "c"]


async def test_all_followers_have_the_state_of_one_that_reads_the_store(
    world: World, leader: Contender, follower: Contender
) -> None:
    async with (
        world.contender(3) as third,
        Contender(
            world.path / "reader", world.store, clock=world.clock, broker_id=4, may_lead=False
        ) as reader,
    ):
        await lead(leader, *map(str, range(20)))
        for one in (follower, third, reader):
            await one.following(leader)
            assert_equal(one, leader)


async def test_a_leader_knows_who_is_fed(
    world: World, leader: Contender, follower: Contender
) -> None:
    feeds = leader.partition.feeds
    assert feeds is not None
    assert feeds.fed_brokers() == {2}
    follower.stop_the_world()
    await until(
        lambda: world.clock.advance(0.1) is None and not feeds.fed_brokers(), "it is missed"
    )
    follower.go_on()
    world.clock.advance(RETRY_S)
    await until(lambda: feeds.fed_brokers() == {2}, "it is back")


async def test_without_an_answer_the_store_is_read_and_the_leader_asked_again_later(
    world: World, leader: Contender, follower: Contender
) -> None:
    world.wires.cut.add(1)
    await lead(leader, "by the store")
    await follower.following(leader)
    assert not follower.partition.is_fed
    world.wires.cut.clear()
    world.clock.advance(RETRY_S)
    await fed(follower)
    before = len(follower.steps.made)
    await lead(leader, "by the feed")
    await follower.following(leader)
    assert len(follower.steps.made) == before
    assert_equal(follower, leader)


async def test_what_the_leader_has_not_in_memory_is_read_from_the_store(world: World) -> None:
    async with world.contender(1, cache_bytes=0) as forgetful, world.contender(2) as follower:
        await lead(forgetful, "a", "b")
        await follower.following(forgetful)
        await fed(follower)
        await lead(forgetful, "c")
        await follower.following(forgetful)
        assert_equal(follower, forgetful)
        assert follower.partition.is_fed, "it is told that there is more"


# -- lies ------------------------------------------------------------------------------------------


def another_link(asked: FollowLog, objects: Sequence[bytes]) -> Sequence[bytes]:
    """An object that was appended to another one than the follower has."""
    made = encode_object(
        0, asked.offset, [[b"x"]], 0, put_id=b"lie" + bytes(13), previous_put_id=b"?" * 16
    )
    return [made.data]


def a_gap(asked: FollowLog, objects: Sequence[bytes]) -> Sequence[bytes]:
    """An object that begins later."""
    made = encode_object(
        0, asked.offset + 1, [[b"x"]], 0, put_id=b"lie" + bytes(13), previous_put_id=asked.put_id
    )
    return [made.data]


def of_another_partition(asked: FollowLog, objects: Sequence[bytes]) -> Sequence[bytes]:
    made = encode_object(
        7, asked.offset, [[b"x"]], 0, put_id=b"lie" + bytes(13), previous_put_id=asked.put_id
    )
    return [made.data]


LIES: dict[str, Callable[[FollowLog, Sequence[bytes]], Sequence[bytes]]] = {
    "another link": another_link,
    "a gap": a_gap,
    "another partition": of_another_partition,
    "twice": lambda _, objects: [*objects, *objects],
    "without the first": lambda _, objects: objects[1:],
    "backwards": lambda _, objects: objects[::-1],
    "cut off": lambda _, objects: [data[:-1] for data in objects],
    "a flipped bit": lambda _, objects: [data[:-1] + bytes([data[-1] ^ 1]) for data in objects],
    "nothing of it": lambda _, objects: [b""],
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_what_does_not_link_is_not_believed(
    world: World,
    leader: Contender,
    follower: Contender,
    lie: Callable[[FollowLog, Sequence[bytes]], Sequence[bytes]],
) -> None:
    def lying(asked: FollowLog, fed: FedObjects) -> FedObjects:
        return fed._replace(objects=lie(asked, fed.objects)) if fed.objects else fed

    world.wires.alter = lying
    follower.stop_the_world()
    await lead(leader, "a", "b", "c")
    follower.go_on()
    world.clock.advance(RETRY_S)
    await follower.following(leader)
    assert_equal(follower, leader)
    assert not follower.task.done()


@given(seed=st.integers(0, 2**32))
@examples(0.1)
async def test_whatever_is_sent_a_follower_comes_to_the_state_of_the_store(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    world = World(tmp_path_factory.mktemp("feeding"))
    lies = [*LIES.values(), lambda _, objects: objects]
    old: list[bytes] = []

    def lying(asked: FollowLog, fed: FedObjects) -> FedObjects:
        if not fed.objects:
            return fed._replace(objects=rng.sample(old, k=min(1, len(old)))) if old else fed
        old.extend(fed.objects)
        return fed._replace(objects=rng.choice(lies)(asked, fed.objects))

    async with world.contender(1) as leader, world.contender(2) as follower:
        coordinator = await leader.leading()
        await follower.following(leader)
        world.wires.alter = lying
        for number in range(6):
            await create(coordinator, f"topic-{number}")
            if rng.random() < 0.5:
                world.clock.advance(RETRY_S)
        await follower.following(leader)
        assert_equal(follower, leader)


# -- leaders that end ------------------------------------------------------------------------------


async def test_a_put_of_unknown_outcome_is_not_fed(
    world: World, leader: Contender, follower: Contender
) -> None:
    coordinator = await leader.leading()
    leader.steps.puts.extend([Fate.LATE] * 100)
    end_offset = leader.replica.applied_offset
    with pytest.raises((CommitOutcomeUnknown, NotCoordinator)):
        await create(coordinator, "lost")
    assert follower.replica.applied_offset == end_offset
    leader.steps.puts.clear()
    old = leader.replica.leader
    await until(
        lambda: (
            world.clock.advance(0.1) is None
            and any(
                one.partition.coordinator is not None and one.replica.leader != old
                for one in (leader, follower)
            )
        ),
        "somebody leads anew",
    )
    winner, other = leader, follower
    if winner.partition.coordinator is None:
        winner, other = other, winner
    for zombie in leader.steps.zombies:
        await zombie.land()
    await lead(winner, "kept")
    await other.following(winner)
    assert list(other.replica.topics()) == ["kept"]
    assert_equal(other, winner)


async def test_a_dead_leader_is_replaced_after_its_lease(
    world: World, leader: Contender, follower: Contender
) -> None:
    await lead(leader, "a")
    await follower.following(leader)
    await leader.die()
    await until(lambda: not follower.partition.is_fed, "it is missed")
    world.clock.advance(LEASE_S / 2)
    seen = len(follower.steps.made)
    await until(lambda: len(follower.steps.made) > seen + 2, "the store is read")
    assert follower.partition.coordinator is None
    world.clock.advance(LEASE_S)
    assert list((await follower.leading()).replica.topics()) == ["a"]


async def test_who_is_fed_does_not_stand(
    world: World, leader: Contender, follower: Contender
) -> None:
    for _ in range(10):
        world.clock.advance(LEASE_S / 2)
        await world.answered()
    assert follower.partition.coordinator is None
    assert leader.partition.coordinator is not None


async def test_a_leader_that_stops_tells_its_followers_by_the_feed(
    world: World, leader: Contender, follower: Contender
) -> None:
    follower.steps.others.extend([Fate.AWAY] * 10_000)
    leader.task.cancel()
    await until(lambda: follower.partition.leader is None or bool(follower.steps.puts), "it hears")
    follower.steps.others.clear()
    await follower.leading()


async def test_a_leader_that_does_not_reach_the_store_feeds_nobody(
    world: World, leader: Contender, follower: Contender
) -> None:
    leader.steps.held = True
    await until(
        lambda: world.clock.advance(0.1) is None and follower.partition.coordinator is not None,
        "the follower leads",
    )
    leader.steps.held = False
    leader.go_on()
    await leader.following(follower)
    assert_equal(leader, follower)


async def test_a_leader_that_was_deposed_without_knowing_is_found_out_by_a_look_at_the_store(
    world: World, leader: Contender, follower: Contender
) -> None:
    await lead(leader, "a")
    await follower.following(leader)
    await until(lambda: world.wires.answers > 0, "it is fed")
    offset, put_id = leader.log.end_offset, follower.last_put_id
    world.wires.impostor = lambda asked: FedObjects(end_offset=asked.offset)
    await leader.die()
    # Somebody whom the impostor does not hear of.
    stranger = elected(offset, put_id)
    await world.store.put(log_key(0, offset), BytesBody(stranger.data))
    await world.answered()
    assert follower.replica.applied_offset == offset
    world.clock.advance(JUDGE_INTERVAL_S)
    await until(lambda: follower.replica.applied_offset > offset, "the follower finds out")
    assert follower.partition.leader is not None
    assert follower.partition.leader.broker_id == STRANGER


async def test_a_store_that_has_something_else_than_was_fed_is_believed_after_a_restart(
    world: World, leader: Contender
) -> None:
    await lead(leader, "a")
    offset = leader.replica.applied_offset
    forged: list[LogObject] = []

    def forging(asked: FollowLog, fed: FedObjects) -> FedObjects:
        if forged or asked.offset != offset:
            return fed
        forged.append(elected(offset, asked.put_id))
        return FedObjects(end_offset=offset + 1, objects=[forged[0].data])

    follower = await world.contender(2).__aenter__()
    await follower.following(leader)
    world.wires.alter = forging
    await until(lambda: follower.replica.applied_offset > offset, "it is deceived")
    await until(follower.task.done, "the follower ends")
    await lead(leader, "b")
    with pytest.raises(CorruptLog):
        await follower.__aexit__(None, None, None)
    async with world.contender(2) as healed:
        await healed.following(leader)
        assert_equal(healed, leader)
