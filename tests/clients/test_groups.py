"""Consumer groups through stock clients: sharing, rebalancing, committing, going on where one was.

Members look up their topic within 100 ms of subscribing, and kafka-python may otherwise assign
nothing to anybody, so the first rebalance of a group waits for a little longer.
"""

import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import TIMEOUT_S, confluent_admin, confluent_consumer
from tests.support.groups.group_members import (
    MEMBERS,
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

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient

pytestmark = pytest.mark.clients

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

each_member = pytest.mark.parametrize("member", MEMBERS, ids=lambda kind: kind.__name__)
each_protocol = pytest.mark.parametrize(
    "member", [*MEMBERS, ConsumerProtocolMember], ids=lambda kind: kind.__name__
)


@pytest.fixture(
    params=[
        # The tests on `one_broker` have one coordinator.
        pytest.param("1", id="1 coordinator", marks=pytest.mark.exhaustive),
        pytest.param("3", id="3 coordinators"),
    ]
)
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    return {**SETTINGS, "diskless.metadata.topic.num.partitions": request.param}


@pytest.fixture
def broker(tmp_path: Path, settings: dict[str, str]) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", settings) as broker:
        yield broker


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        yield broker


def shared(first: Member, second: Member) -> bool:
    """Whether two members have all partitions, and each of them two."""
    return (
        len(first.assigned) == len(second.assigned) == 2 and first.assigned | second.assigned == ALL
    )


@pytest.fixture
def admin(one_broker: LiveBroker) -> AdminClient:
    return confluent_admin(one_broker.bootstrap)


# -- sharing


@each_member
def test_two_members_share_the_partitions_and_one_takes_all_when_the_other_leaves(
    broker: LiveBroker, topic: str, member: StartMember, members: Group
) -> None:
    produce(broker, topic, range(4))
    first = members.start(broker, topic, member)
    until(lambda: first.assigned == ALL, "the only member to have all partitions")
    second = members.start(broker, topic, member)
    until(lambda: shared(first, second), "two members to share the partitions")
    stop(first)
    until(lambda: second.assigned == ALL, "the one who stayed to have all partitions")
    stop(second)


def test_members_of_all_clients_share_a_group(
    one_broker: LiveBroker, topic: str, members: Group
) -> None:
    produce(one_broker, topic, range(100))
    group = [
        members.start(one_broker, topic, kind, **more)
        for kind, more in (
            (ConfluentMember, {"partition_assignment_strategy": "range"}),
            (KafkaPythonMember, {}),
            (AioKafkaMember, {"partition_assignment_strategy": (RangePartitionAssignor,)}),
        )
    ]
    until(
        lambda: (
            sorted(p for one in group for p in one.assigned) == [0, 1, 2, 3]
            and all(one.assigned for one in group)
        ),
        "three clients to share four partitions",
    )
    produce(one_broker, topic, range(100, 200))
    until(lambda: set(values(*group)) >= {*range(200)}, "all records to be read")
    stop(*group)


@pytest.mark.parametrize(
    ("heirs_kind", "settings"),
    [
        (ConfluentMember, ["session.timeout.ms=1000", "heartbeat.interval.ms=100"]),
        (ConsumerProtocolMember, ["group.protocol=consumer"]),
    ],
)
def test_a_member_that_is_killed_loses_its_partitions_after_its_session(
    one_broker: LiveBroker,
    topic: str,
    members: Group,
    heirs_kind: StartMember,
    settings: Sequence[str],
) -> None:
    produce(one_broker, topic, range(40))
    script = (
        "import sys\n"
        "from confluent_kafka import Consumer\n"
        "settings = {'bootstrap.servers': sys.argv[1], 'group.id': 'g',\n"
        "    'auto.offset.reset': 'earliest', 'enable.auto.commit': False,\n"
        "    **dict(pair.split('=') for pair in sys.argv[3:])}\n"
        "consumer = Consumer(settings)\n"
        "consumer.subscribe([sys.argv[2]])\n"
        "while True:\n"
        "    message = consumer.poll(0.1)\n"
        "    if message is not None and message.error() is None:\n"
        "        print('reads', flush=True)\n"
    )
    command = [sys.executable, "-c", script, one_broker.bootstrap, topic, *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"reads\n"
        heir = members.start(one_broker, topic, heirs_kind)
        until(lambda: len(heir.assigned) == 2, "the partitions to be shared")
        victim.send_signal(signal.SIGKILL)
    until(lambda: heir.assigned == ALL, "the heir to have all partitions")
    until(lambda: set(values(heir)) == {*range(40)}, "the heir to read everything")
    stop(heir)


@pytest.mark.parametrize(
    "member", [ConfluentMember, CooperativeMember, KafkaPythonMember, ConsumerProtocolMember]
)
def test_a_static_member_comes_back_to_its_partitions_and_the_others_hear_nothing(
    one_broker: LiveBroker, topic: str, member: StartMember, members: Group
) -> None:
    def start(name: str) -> Member:
        return members.start(one_broker, topic, member, group_instance_id=name)

    produce(one_broker, topic, range(4))
    other = start("other")
    first = start("mine")
    until(lambda: shared(other, first), "the partitions to be shared")
    mine, rebalances = set(first.assigned), other.rebalances
    stop(first)
    second = start("mine")
    until(lambda: second.assigned == mine, "the static member to have what it had")
    assert other.rebalances == rebalances
    assert other.assigned == ALL - mine
    stop(other, second)


# -- going on


@each_protocol
def test_a_group_goes_on_where_it_was_after_the_broker_restarted(
    tmp_path: Path, settings: dict[str, str], topic: str, member: StartMember, members: Group
) -> None:
    with LiveBroker(tmp_path / "data", settings) as broker:
        produce(broker, topic, range(100))
        first = members.start(broker, topic, member)
        until(lambda: len(first.read) == 100, "all records")
        stop(first)
    with LiveBroker(tmp_path / "data", settings) as broker:
        produce(broker, topic, range(100, 120))
        second = members.start(broker, topic, member)
        until(lambda: len(second.read) == 20, "the new records")
        stop(second)
    assert values(first) == [*range(100)]
    assert values(second) == [*range(100, 120)]


@each_member
def test_members_go_on_without_a_rebalance_when_the_broker_comes_back(
    tmp_path: Path, topic: str, member: StartMember, members: Group
) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        port = broker.port
        produce(broker, topic, range(20))
        first = members.start(broker, topic, member)
        second = members.start(broker, topic, member)
        until(lambda: shared(first, second), "the partitions to be shared")
        until(lambda: len(first.read) + len(second.read) >= 20, "the first records")
        before = first.rebalances, first.assigned, second.rebalances, second.assigned
    with LiveBroker(tmp_path / "data", SETTINGS, port=port) as broker:
        produce(broker, topic, range(20, 40))
        until(lambda: len(first.read) + len(second.read) >= 40, "the later records")
        after = first.rebalances, first.assigned, second.rebalances, second.assigned
        stop(first, second)
    assert after == before
    assert values(first, second) == [*range(40)]


def test_a_topic_created_again_is_read_from_its_beginning(
    one_broker: LiveBroker, topic: str, admin: AdminClient, members: Group
) -> None:
    produce(one_broker, topic, range(40))
    first = members.start(one_broker, topic, ConfluentMember)
    until(lambda: len(first.read) == 40, "all records")
    stop(first)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    produce(one_broker, topic, range(8))
    second = members.start(one_broker, topic, ConfluentMember)
    until(lambda: len(second.read) == 8, "the records of the new topic")
    stop(second)


# -- committing by hand


def consumer_of(broker: LiveBroker, group: str, **more: Any) -> Consumer:
    return confluent_consumer(broker.bootstrap, **{"group.id": group, **more})


def test_offsets_are_committed_and_read_without_being_in_the_group(
    one_broker: LiveBroker, topic: str
) -> None:
    produce(one_broker, topic, range(4))
    with closing(consumer_of(one_broker, "simple")) as consumer:
        places = [TopicPartition(topic, 0, 1, metadata="a note"), TopicPartition(topic, 1, 7)]
        consumer.commit(offsets=places, asynchronous=False)
        found = consumer.committed([TopicPartition(topic, n) for n in range(3)], TIMEOUT_S)
        assert [one.offset for one in found] == [1, 7, -1001]
        assert found[0].metadata == "a note"


def test_a_member_that_was_replaced_cannot_commit(
    one_broker: LiveBroker, topic: str, members: Group
) -> None:
    produce(one_broker, topic, range(4))
    member = members.start(one_broker, topic, ConfluentMember)
    until(lambda: member.assigned == ALL, "the member to have all partitions")
    with closing(consumer_of(one_broker, "g")) as stranger:
        with pytest.raises(KafkaException) as refused:
            stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    stop(member)


# -- administration


def test_groups_are_listed_described_and_deleted(
    one_broker: LiveBroker, topic: str, admin: AdminClient, members: Group
) -> None:
    produce(one_broker, topic, range(4))
    member = members.start(one_broker, topic, ConfluentMember, client_id="me")
    until(lambda: member.assigned == ALL, "the member to have all partitions")
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    assert [(one.group_id, one.state) for one in listed.valid] == [("g", ConsumerGroupState.STABLE)]
    stable = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(TIMEOUT_S)
    assert stable.valid == []
    described = admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert described.state is ConsumerGroupState.STABLE
    assert described.coordinator.port == one_broker.port
    (one,) = described.members
    assert (one.client_id, one.host) == ("me", "127.0.0.1")
    assert {place.partition for place in one.assignment.topic_partitions} == ALL
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    stop(member)
    admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert admin.list_consumer_groups().result(TIMEOUT_S).valid == []


def test_offsets_are_listed_altered_and_deleted(
    one_broker: LiveBroker, topic: str, admin: AdminClient, members: Group
) -> None:
    produce(one_broker, topic, range(40))
    first = members.start(one_broker, topic, ConfluentMember)
    until(lambda: len(first.read) == 40, "all records")
    stop(first)

    def offsets() -> dict[int, int]:
        asked = [ConsumerGroupTopicPartitions("g")]
        found = admin.list_consumer_group_offsets(asked)["g"].result(TIMEOUT_S)
        return {place.partition: place.offset for place in found.topic_partitions}

    assert offsets() == dict.fromkeys(ALL, 10)
    back = ConsumerGroupTopicPartitions("g", [TopicPartition(topic, 2, 5)])
    admin.alter_consumer_group_offsets([back])["g"].result(TIMEOUT_S)
    assert offsets() == {0: 10, 1: 10, 2: 5, 3: 10}
    second = members.start(one_broker, topic, ConfluentMember)
    until(lambda: len(second.read) == 5, "what was read before, from where it was set back to")
    stop(second)


def test_kafka_pythons_administrator_sees_the_same(
    one_broker: LiveBroker, topic: str, members: Group
) -> None:
    produce(one_broker, topic, range(4))
    member = members.start(one_broker, topic, ConfluentMember)
    until(lambda: len(member.read) == 4, "all records")
    with closing(KafkaAdminClient(bootstrap_servers=one_broker.bootstrap)) as admin:
        assert [group["group_id"] for group in admin.list_groups()] == ["g"]
        described = admin.describe_groups(["g"])["g"]
        assert described["group_state"] == "Stable"
        assert len(described["members"]) == 1
        stop(member)
        offsets = admin.list_group_offsets("g")["g"]
        found = {place.partition: offset.offset for place, offset in offsets.items()}
        assert found == dict.fromkeys(ALL, 1)
        admin.delete_groups(["g"])
        assert admin.list_groups() == []
