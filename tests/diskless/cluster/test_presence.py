"""Who joins is listed before clients are sent there; who goes, is for a while after."""

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from diskless.cluster.membership import SETTLE_FOLLOWS
from diskless.cluster.presence import Presence
from metadata.operations import CreateTopic, RegisteredBroker, TopicDescription
from tests.support.brokers.live_broker import ForwardClock, LiveBroker, until
from tests.support.questions.kafka_raw_client import RawClient

SETTLE_S: Final = 5.0
PARTITIONS: Final = 24
METADATA: Final = 3
FOLLOW_MS: Final = 1_000


def brokers(*ids: int, life: int = 1) -> Mapping[int, RegisteredBroker]:
    return {one: RegisteredBroker(one, "host", one, "", UUID(int=life), "") for one in ids}


def seen(presence: Presence) -> tuple[set[int], set[int]]:
    return {one.broker_id for one in presence.listed()}, set(presence.settled())


def test_those_that_were_there_before_are_settled() -> None:
    assert seen(Presence(brokers(1, 2), settle_s=SETTLE_S)) == ({1, 2}, {1, 2})


def test_a_broker_is_listed_at_once_and_settles_later() -> None:
    presence = Presence(brokers(1), settle_s=SETTLE_S)
    assert presence.look(brokers(1, 2), 100.0)
    assert seen(presence) == ({1, 2}, {1})
    assert not presence.look(brokers(1, 2), 104.9)
    assert seen(presence) == ({1, 2}, {1})
    assert presence.look(brokers(1, 2), 105.0)
    assert seen(presence) == ({1, 2}, {1, 2})
    assert not presence.look(brokers(1, 2), 200.0)


def test_one_that_goes_is_no_more_settled_and_listed_for_a_while() -> None:
    presence = Presence(brokers(1, 2), settle_s=SETTLE_S)
    assert presence.look(brokers(1), 100.0)
    assert seen(presence) == ({1, 2}, {1})
    assert not presence.look(brokers(1), 104.9)
    assert presence.look(brokers(1), 105.0)
    assert seen(presence) == ({1}, {1})


def test_one_that_comes_back_is_listed_all_the_while_and_settles_anew() -> None:
    presence = Presence(brokers(1, 2), settle_s=SETTLE_S)
    presence.look(brokers(1), 100.0)
    presence.look(brokers(1, 2, life=2), 101.0)
    assert [one.incarnation.int for one in presence.listed()] == [2, 2]
    presence.look(brokers(1, 2, life=2), 105.5)
    assert seen(presence) == ({1, 2}, {1})
    presence.look(brokers(1, 2, life=2), 106.0)
    assert seen(presence) == ({1, 2}, {1, 2})


def test_one_that_was_quick_to_go_again_never_settles() -> None:
    presence = Presence(brokers(1), settle_s=SETTLE_S)
    presence.look(brokers(1, 2), 100.0)
    presence.look(brokers(1), 101.0)
    presence.look(brokers(1), 105.0)
    assert seen(presence) == ({1, 2}, {1})
    presence.look(brokers(1), 106.0)
    assert seen(presence) == ({1}, {1})


def test_another_life_of_a_broker_is_told_of_at_once() -> None:
    presence = Presence(brokers(1), settle_s=SETTLE_S)
    assert presence.look(brokers(1, life=2), 100.0)
    assert seen(presence) == ({1}, {1})


async def _metadata(port: int) -> Any:
    client = await RawClient.connect(("127.0.0.1", port))
    try:
        return await client.ask(METADATA, 8, topics=None)
    finally:
        await client.close()


def told(broker: LiveBroker) -> tuple[set[int], set[int]]:
    """Whom a broker lists, and whom it names as leaders."""
    answer = asyncio.run(_metadata(broker.port))
    topics = {topic.name: topic for topic in answer.topics}
    leaders = {part.leader_id for part in topics["t"].partitions}
    return {one.node_id for one in answer.brokers}, leaders


def test_no_broker_sends_clients_to_one_that_another_broker_does_not_list(tmp_path: Path) -> None:
    shared = {
        "diskless.metadata.log": "object",
        "diskless.metadata.follow.interval.ms": str(FOLLOW_MS),
        "diskless.coordinator.lease.ms": "600000",
        "broker.session.timeout.ms": "600000",
        "object.store.url": f"file://{tmp_path / 'objects'}",
    }
    clocks = [ForwardClock(), ForwardClock()]

    def settle() -> None:
        for clock in clocks:
            clock.advance(SETTLE_FOLLOWS * FOLLOW_MS / 1000)

    with ExitStack() as stack:
        leader = stack.enter_context(
            LiveBroker(tmp_path / "one", {**shared, "node.id": "1"}, clock=clocks[0])
        )
        creation = [CreateTopic(name="t", partition_count=PARTITIONS)]
        (created,) = leader.run(leader.broker.coordination.client.create_topics(creation))
        assert isinstance(created, TopicDescription)
        follower = stack.enter_context(
            LiveBroker(tmp_path / "two", {**shared, "node.id": "2"}, clock=clocks[1])
        )
        # The follower has not read that it is registered; the leader knows.
        until(lambda: told(leader)[0] == {1, 2}, "the leader to list both")
        assert told(leader)[1] == {1}
        assert told(follower) == ({1, 2}, {1})
        replica = follower.broker.coordination.partitions[0].replica
        until(lambda: len(replica.brokers()) == 2, "the follower to read that it is registered")
        settle()
        assert told(leader) == told(follower) == ({1, 2}, {1, 2})
        follower.stop()
        until(lambda: told(leader)[1] == {1}, "the other one to be gone")
        assert told(leader)[0] == {1, 2}
        settle()
        assert told(leader)[0] == {1}
