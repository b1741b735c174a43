"""KIP-848 groups through librdkafka: sharing, patterns, and coming from classic groups.

What they have in common with classic groups is in test_groups.

How often members send heartbeats is the broker's to say; here it is ten times a second.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import TIMEOUT_S, confluent_consumer, create_topic
from tests.support.groups.group_members import (
    AioKafkaMember,
    ConfluentMember,
    ConsumerProtocolMember,
    CooperativeMember,
    Group,
    KafkaPythonMember,
    Member,
    StartMember,
    produce,
    stop,
    values,
)

pytestmark = [
    pytest.mark.clients,
    # kafka-python leaves sockets to the collector: of connections that were refused, always.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestWarning"),
]

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "1",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1",
    "group.consumer.session.timeout.ms": "3000",
}
ALL: Final = {0, 1, 2, 3}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        yield broker


def shared(*members: Member) -> bool:
    """Whether members have all partitions, none of them two and each of them as many."""
    held = [partition for member in members for partition in member.assigned]
    return sorted(held) == sorted(ALL) and all(
        len(member.assigned) >= len(ALL) // len(members) for member in members
    )


# -- sharing


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_two_members_share_the_partitions_and_one_takes_all_when_the_other_leaves(
    broker: LiveBroker, topic: str, members: Group, assignor: str
) -> None:
    produce(broker, topic, range(100))
    first = members.start(broker, topic, group_remote_assignor=assignor)
    until(lambda: first.assigned == ALL, "the only member to have all partitions")
    second = members.start(broker, topic, group_remote_assignor=assignor)
    until(lambda: shared(first, second), "two members to share the partitions")
    stop(first)
    until(lambda: second.assigned == ALL, "the one who stayed to have all partitions")
    produce(broker, topic, range(100, 200))
    until(lambda: {*values(first, second)} == {*range(200)}, "all records to be read")
    stop(second)


def test_members_come_and_go_and_every_partition_is_read_by_one_of_them(
    broker: LiveBroker, topic: str, members: Group
) -> None:
    produce(broker, topic, range(4))
    group = [members.start(broker, topic) for _ in range(4)]
    until(lambda: shared(*group), "four members to share four partitions")
    stop(*group[:3])
    until(lambda: shared(group[3]), "one to have them all")
    more = [members.start(broker, topic) for _ in range(1)]
    until(lambda: shared(group[3], *more), "two to share them")
    stop(group[3], *more)


# -- topics


def test_a_pattern_finds_topics_that_come_later(
    broker: LiveBroker, admin: AdminClient, members: Group
) -> None:
    produce(broker, "events-1", range(4))
    produce(broker, "other", range(100, 104))
    member = members.start(broker, "^events-.*")
    until(lambda: values(member) == [*range(4)], "the first topic to be read")
    admin.create_topics([NewTopic("events-2", 4)])["events-2"].result(TIMEOUT_S)
    produce(broker, "events-2", range(4, 8))
    until(lambda: values(member) == [*range(8)], "the later topic to be read")
    stop(member)


def test_new_partitions_are_read_and_a_topic_that_comes_again_from_its_beginning(
    broker: LiveBroker, topic: str, admin: AdminClient, members: Group
) -> None:
    create_topic(admin, topic, 2)
    member = members.start(broker, topic)
    until(lambda: member.assigned == {0, 1}, "the partitions there are")
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT_S)
    until(lambda: member.assigned == ALL, "the new ones too")
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    until(lambda: member.assigned == set(), "the topic to be given up")
    create_topic(admin, topic, 4)
    until(lambda: member.assigned == ALL, "the topic to be assigned again")
    stop(member)


# -- going on


def test_members_go_on_without_a_rebalance_when_the_broker_comes_back(
    tmp_path: Path, topic: str, members: Group
) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        port = broker.port
        produce(broker, topic, range(20))
        first = members.start(broker, topic)
        second = members.start(broker, topic)
        until(lambda: shared(first, second), "the partitions to be shared")
        until(lambda: {*values(first, second)} == {*range(20)}, "the first records")
        before = first.rebalances, set(first.assigned), second.rebalances, set(second.assigned)
    with LiveBroker(tmp_path / "data", SETTINGS, port=port) as broker:
        produce(broker, topic, range(20, 40))
        until(lambda: {*values(first, second)} == {*range(40)}, "the later records")
        after = first.rebalances, set(first.assigned), second.rebalances, set(second.assigned)
        stop(first, second)
    assert after == before


# -- from one protocol to the other


@pytest.mark.parametrize(
    "kind", [ConfluentMember, CooperativeMember, KafkaPythonMember, AioKafkaMember]
)
def test_members_of_a_classic_group_go_over_to_the_new_protocol_one_by_one(
    broker: LiveBroker,
    topic: str,
    admin: AdminClient,
    members: Group,
    kind: StartMember,
) -> None:
    produce(broker, topic, range(100))
    old = [members.start(broker, topic, kind) for _ in range(2)]
    until(lambda: shared(*old), "two classic members to share the partitions")
    new: list[Member] = []
    while old:
        new.append(members.start(broker, topic))
        until(lambda: shared(*old, *new), "both kinds to share the partitions")
        assert kind_of_group(admin) is ConsumerGroupType.CONSUMER
        stop(old.pop())
        until(lambda: shared(*old, *new), "those who stayed to share the partitions")
    produce(broker, topic, range(100, 200))
    until(lambda: {*range(100, 200)} <= {*values(*new)}, "the new members to read on")
    stop(*new)


def test_a_group_is_classic_again_when_its_last_member_of_the_new_protocol_has_gone(
    broker: LiveBroker, topic: str, admin: AdminClient, members: Group
) -> None:
    produce(broker, topic, range(100))
    new = members.start(broker, topic)
    until(lambda: new.assigned == ALL, "the new member to have all partitions")
    old = members.start(broker, topic, CooperativeMember)
    until(lambda: shared(new, old), "both kinds to share the partitions")
    stop(new)
    until(lambda: old.assigned == ALL, "the classic member to have all partitions")
    until(lambda: kind_of_group(admin) is ConsumerGroupType.CLASSIC, "the group to be classic")
    produce(broker, topic, range(100, 200))
    until(lambda: {*range(100, 200)} <= {*values(old)}, "the classic member to read on")
    stop(old)


def kind_of_group(admin: AdminClient) -> ConsumerGroupType:
    (listed,) = admin.list_consumer_groups().result(TIMEOUT_S).valid
    return listed.type


def test_an_empty_group_is_of_the_kind_of_its_next_member_and_keeps_its_offsets(
    broker: LiveBroker, topic: str, admin: AdminClient, members: Group
) -> None:
    read = 0
    for kind in (ConfluentMember, ConsumerProtocolMember, ConfluentMember):
        produce(broker, topic, range(read, read + 20))
        member = members.start(broker, topic, kind)
        until(lambda: len(member.read) >= 20, "the records that nobody has read")  # noqa: B023
        stop(member)
        assert values(member) == [*range(read, read + 20)]
        read += 20
    assert kind_of_group(admin) is ConsumerGroupType.CLASSIC


# -- offsets and administration


def test_a_stranger_cannot_commit(broker: LiveBroker, topic: str, members: Group) -> None:
    produce(broker, topic, range(4))
    member = members.start(broker, topic)
    until(lambda: member.assigned == ALL, "the member to have all partitions")
    stranger: Consumer
    with closing(confluent_consumer(broker.bootstrap, **{"group.id": "g"})) as stranger:
        with pytest.raises(KafkaException) as refused:
            stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    stop(member)


def test_groups_are_listed_described_and_deleted(
    broker: LiveBroker, topic: str, admin: AdminClient, members: Group
) -> None:
    produce(broker, topic, range(4))
    member = members.start(broker, topic, client_id="me", client_rack="r")
    until(lambda: member.assigned == ALL, "the member to have all partitions")
    listed = admin.list_consumer_groups().result(TIMEOUT_S).valid
    assert [(one.group_id, one.state, one.type) for one in listed] == [
        ("g", ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    ]
    classic = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(TIMEOUT_S)
    assert classic.valid == []
    described = admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert described.state is ConsumerGroupState.STABLE
    assert described.type is ConsumerGroupType.CONSUMER
    assert described.coordinator.port == broker.port
    (one,) = described.members
    assert (one.client_id, one.host) == ("me", "127.0.0.1")
    assert {place.partition for place in one.assignment.topic_partitions} == ALL
    assert {place.partition for place in one.target_assignment.topic_partitions} == ALL
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    stop(member)
    admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert admin.list_consumer_groups().result(TIMEOUT_S).valid == []
