"""kafka-python's administrator: topics, offsets of groups and partitions, members, the cluster.

Configs, partitions, records, log directories and producers are in test_admin_clients.py.
"""

import warnings
from typing import Any, Final

import pytest

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import ConfluentKafka, PythonTopicPartition, Record
from tests.support.groups.group_members import Group, KafkaPythonMember, stop

with warnings.catch_warnings():
    # As in tests/support/clients/stock_clients.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import OffsetSpec
    from kafka.admin import MemberToRemove
    from kafka.errors import TopicAlreadyExistsError
    from kafka.structs import OffsetAndMetadata

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "100",
}
ALL: Final = {0, 1, 2, 3}


@pytest.fixture
def admin(python_admin: Any) -> Any:
    return python_admin


def produce(broker: LiveBroker, topic: str, values: range) -> None:
    """The value is the time as well."""
    for partition in ALL:
        records = [
            Record(value=str(n).encode(), timestamp_ms=1_000 + n)
            for n in values
            if n % 4 == partition
        ]
        ConfluentKafka().produce(broker.bootstrap, topic, records, partition=partition)


def committed(admin: Any, group: str) -> dict[int, int]:
    found = admin.list_group_offsets(group)[group]
    return {place.partition: offset.offset for place, offset in found.items()}


def test_topics_are_created_listed_and_deleted(admin: Any, topic: str) -> None:
    options = {"num_partitions": 3, "configs": {"retention.ms": "5000"}}
    admin.create_topics({topic: options}, wait_for_metadata=True)
    assert topic in admin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({topic: options})
    admin.create_topics({f"{topic}-not": options}, validate_only=True)
    assert f"{topic}-not" not in admin.list_topics()
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


def test_the_cluster_is_described(admin: Any, broker: LiveBroker) -> None:
    described = admin.describe_cluster()
    (node,) = described["brokers"]
    assert (node["host"], node["port"]) == ("127.0.0.1", broker.port)
    assert described["cluster_id"]


def test_offsets_of_partitions_are_listed(admin: Any, broker: LiveBroker, topic: str) -> None:
    produce(broker, topic, range(40))
    place = PythonTopicPartition(topic, 1)
    for spec, expected in (
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 10),
        (OffsetSpec.MAX_TIMESTAMP, 9),
        (1_000 + 18, 5),
    ):
        assert admin.list_partition_offsets({place: spec})[place].offset == expected


def test_offsets_of_groups_are_altered_reset_and_deleted(
    admin: Any, broker: LiveBroker, topic: str, members: Group
) -> None:
    produce(broker, topic, range(40))
    member = KafkaPythonMember(broker.bootstrap, topic, topic)
    members.append(member)
    until(lambda: len(member.read) == 40, "all records")
    assert dict(admin.delete_groups([topic])) == {topic: "NonEmptyGroupError"}
    stop(member)
    places = [PythonTopicPartition(topic, n) for n in range(4)]
    assert committed(admin, topic) == dict.fromkeys(ALL, 10)
    admin.alter_group_offsets(topic, {places[2]: OffsetAndMetadata(5, "", -1)})
    assert committed(admin, topic) == {0: 10, 1: 10, 2: 5, 3: 10}
    admin.reset_group_offsets(topic, {places[0]: OffsetSpec.EARLIEST, places[1]: 7})
    assert committed(admin, topic) == {0: 0, 1: 7, 2: 5, 3: 10}
    admin.delete_group_offsets(topic, [places[3]])
    assert committed(admin, topic) == {0: 0, 1: 7, 2: 5}
    admin.delete_groups([topic])
    assert topic not in {row["group_id"] for row in admin.list_groups()}


def test_groups_are_filtered_by_their_state_and_type(
    admin: Any, broker: LiveBroker, topic: str, members: Group
) -> None:
    produce(broker, topic, range(4))
    member = KafkaPythonMember(broker.bootstrap, topic, topic)
    members.append(member)
    until(lambda: len(member.read) == 4, "all records")

    def listed(**filters: list[str]) -> bool:
        return topic in {row["group_id"] for row in admin.list_groups(**filters)}

    assert listed(states_filter=["Stable"])
    assert not listed(states_filter=["Empty"])
    assert listed(types_filter=["classic"])
    assert not listed(types_filter=["consumer"])
    stop(member)
    assert listed(states_filter=["Empty"])


def test_a_static_member_is_removed_by_its_name(
    admin: Any, broker: LiveBroker, topic: str, members: Group
) -> None:
    produce(broker, topic, range(4))
    for name in ("goes", "stays"):
        members.append(
            KafkaPythonMember(
                broker.bootstrap,
                topic,
                topic,
                group_instance_id=name,
                session_timeout_ms=60_000,
                max_poll_interval_ms=120_000,
            )
        )
    goes, stays = members
    until(lambda: len(goes.assigned) == len(stays.assigned) == 2, "two members to share")
    # It stops without leaving, as static members do; its session would last for a minute.
    stop(goes)
    assert len(stays.assigned) == 2
    removed = admin.remove_group_members(topic, [MemberToRemove(group_instance_id="goes")])
    assert [error.errno for error in removed.values()] == [0]
    until(lambda: stays.assigned == ALL, "the one who stayed to have all partitions")
    stop(stays)
