"""kafkajs, which speaks the oldest versions still in wide use: produce, consume, groups, admin.

What it writes and reads of every codec is a part of the matrix of clients.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.kafkajs import (
    KafkaJs,
    KafkaJsError,
    KafkaJsMember,
    NodeProcess,
    node_process,
)
from tests.support.clients.stock_clients import ConfluentKafka, KafkaPython, Record
from tests.support.groups.group_members import ConfluentMember, Group, produce, stop, values

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "100",
}
ALL: Final = {0, 1, 2, 3}
TOPIC_RESOURCE: Final = 2
INVALID_CONFIG: Final = "INVALID_CONFIG"


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with node_process() as process:
        yield process


@pytest.fixture(scope="module")
def kafkajs(node: NodeProcess) -> KafkaJs:
    return KafkaJs(node)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, kafkajs: KafkaJs) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", SETTINGS) as broker:
        yield broker
        kafkajs.forget(broker.bootstrap)


@pytest.fixture
def admin(broker: LiveBroker, kafkajs: KafkaJs) -> Any:
    """Methods of kafkajs's administrator by name."""

    def call(method: str, *arguments: Any) -> Any:
        return kafkajs.admin(broker.bootstrap, method, *arguments)

    return call


# -- producing and consuming


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement_stores_the_records(
    broker: LiveBroker, kafkajs: KafkaJs, topic: str, acks: int
) -> None:
    sent = [Record(value=str(number).encode()) for number in range(50)]
    offsets = kafkajs.produce(broker.bootstrap, topic, sent, acks=acks)
    assert acks == 0 or offsets == list(range(50))
    read = KafkaPython().read(broker.bootstrap, topic, 50)
    assert [stored.record for stored in read] == sent
    assert [stored.record for stored in kafkajs.read(broker.bootstrap, topic, 50)] == sent


def test_an_idempotent_producer_writes_every_record_once(
    broker: LiveBroker, kafkajs: KafkaJs, topic: str
) -> None:
    for start in range(0, 500, 100):
        records = [Record(value=str(n).encode()) for n in range(start, start + 100)]
        offsets = kafkajs.produce(broker.bootstrap, topic, records, idempotent=True)
        assert offsets == list(range(start, start + 100))
    read = kafkajs.read(broker.bootstrap, topic, 500)
    assert [int(stored.record.value or b"") for stored in read] == list(range(500))


def test_a_consumer_begins_where_it_was_set_to(
    broker: LiveBroker, kafkajs: KafkaJs, topic: str
) -> None:
    ConfluentKafka().produce(
        broker.bootstrap, topic, [Record(value=str(n).encode()) for n in range(40)]
    )
    read = kafkajs.read(broker.bootstrap, topic, 15, offset=25)
    assert [stored.offset for stored in read] == list(range(25, 40))


# -- groups


def test_members_share_commit_leave_and_go_on(
    broker: LiveBroker, node: NodeProcess, topic: str, members: Group
) -> None:
    produce(broker, topic, range(40))
    for _ in range(2):
        members.append(KafkaJsMember(node, broker.bootstrap, topic, topic))
    first, second = members
    until(
        lambda: (
            len(first.assigned) == len(second.assigned) == 2
            and first.assigned | second.assigned == ALL
        ),
        "two members to share the partitions",
    )
    until(lambda: {*values(first, second)} == {*range(40)}, "all records")
    first.commit()
    second.commit()
    first.leave()
    until(lambda: second.assigned == ALL, "the one who stayed to have all partitions")
    produce(broker, topic, range(40, 80))
    until(lambda: {*values(second)} >= {*range(40, 80)}, "the later records")
    stop(second)
    produce(broker, topic, range(80, 84))
    heir = KafkaJsMember(node, broker.bootstrap, topic, topic)
    members.append(heir)
    until(lambda: len(heir.read) >= 4, "what nobody has read")
    stop(heir)
    assert values(heir) == [*range(80, 84)]


def test_offsets_that_are_committed_by_time_are_where_the_next_member_begins(
    broker: LiveBroker, node: NodeProcess, topic: str, members: Group, admin: Any
) -> None:
    produce(broker, topic, range(40))
    member = KafkaJsMember(node, broker.bootstrap, topic, topic, auto_commit_ms=50)
    members.append(member)
    until(lambda: len(member.read) == 40, "all records")

    def committed() -> dict[int, int]:
        (found,) = admin("fetchOffsets", {"groupId": topic, "topics": [topic]})
        return {row["partition"]: int(row["offset"]) for row in found["partitions"]}

    # It commits before it hands on the next batch, or at the end.
    member.leave()
    until(lambda: committed() == dict.fromkeys(ALL, 10), "the commits")
    heir = ConfluentMember(broker.bootstrap, topic, topic)
    members.append(heir)
    until(lambda: heir.assigned == ALL, "the heir to have all partitions")
    produce(broker, topic, range(40, 44))
    until(lambda: len(heir.read) >= 4, "the later records")
    stop(heir)
    assert values(heir) == [*range(40, 44)]


def test_members_go_on_when_the_broker_comes_back(
    tmp_path: Path, node: NodeProcess, topic: str, members: Group
) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        port = broker.port
        produce(broker, topic, range(20))
        for _ in range(2):
            members.append(KafkaJsMember(node, broker.bootstrap, "g", topic, sessionTimeout=20_000))
        until(lambda: {*values(*members)} == {*range(20)}, "the first records")
        until(lambda: all(len(member.assigned) == 2 for member in members), "a fair share")
    with LiveBroker(tmp_path / "data", SETTINGS, port=port) as broker:
        produce(broker, topic, range(20, 40))
        until(lambda: {*values(*members)} == {*range(40)}, "the later records")
        stop(*members)


# -- administration


def test_topics_are_created_grown_listed_and_deleted(admin: Any, topic: str) -> None:
    new = {"topic": topic, "numPartitions": 2, "replicationFactor": 1}
    assert admin("createTopics", {"topics": [new], "waitForLeaders": True}) is True
    assert admin("createTopics", {"topics": [new]}) is False
    assert topic in admin("listTopics")
    admin("createPartitions", {"topicPartitions": [{"topic": topic, "count": 5}]})
    (described,) = admin("fetchTopicMetadata", {"topics": [topic]})["topics"]
    assert {row["partitionId"] for row in described["partitions"]} == set(range(5))
    with pytest.raises(KafkaJsError) as refused:
        admin("createPartitions", {"topicPartitions": [{"topic": topic, "count": 3}]})
    assert "INVALID_PARTITIONS" in {one.type for one in [refused.value, *refused.value.errors]}
    admin("deleteTopics", {"topics": [topic]})
    assert topic not in admin("listTopics")
    with pytest.raises(KafkaJsError) as unknown:
        admin("deleteTopics", {"topics": [topic]})
    assert "does not host this topic" in str(unknown.value)


def test_configs_are_described_altered_and_checked(admin: Any, topic: str) -> None:
    configs = [{"name": "retention.ms", "value": "5000"}]
    admin("createTopics", {"topics": [{"topic": topic, "configEntries": configs}]})

    def shown(name: str) -> str:
        asked = {"resources": [{"type": TOPIC_RESOURCE, "name": topic}], "includeSynonyms": True}
        (resource,) = admin("describeConfigs", asked)["resources"]
        (entry,) = [row for row in resource["configEntries"] if row["configName"] == name]
        return str(entry["configValue"])

    def alter(name: str, value: str) -> None:
        entries = [{"name": name, "value": value}]
        resource = {"type": TOPIC_RESOURCE, "name": topic, "configEntries": entries}
        admin("alterConfigs", {"validateOnly": False, "resources": [resource]})

    assert shown("retention.ms") == "5000"
    alter("segment.bytes", "77")
    assert shown("segment.bytes") == "77"
    # It knows only the API that replaces all configs of a topic.
    assert shown("retention.ms") != "5000"
    with pytest.raises(KafkaJsError) as refused:
        alter("segment.ms", "soon")
    assert refused.value.type == INVALID_CONFIG


def test_offsets_of_topics_are_found_by_time_and_records_are_deleted(
    admin: Any, broker: LiveBroker, topic: str
) -> None:
    admin("createTopics", {"topics": [{"topic": topic, "numPartitions": 1}]})
    ConfluentKafka().produce(
        broker.bootstrap, topic, [Record(timestamp_ms=1_000 + n) for n in range(20)]
    )

    def bounds() -> tuple[str, str]:
        (row,) = admin("fetchTopicOffsets", topic)
        assert row["offset"] == row["high"]
        return row["low"], row["high"]

    assert bounds() == ("0", "20")
    (found,) = admin("fetchTopicOffsetsByTimestamp", topic, 1_007)
    assert found["offset"] == "7"
    deleted = {"topic": topic, "partitions": [{"partition": 0, "offset": "5"}]}
    admin("deleteTopicRecords", deleted)
    assert bounds() == ("5", "20")


def test_groups_are_listed_described_set_back_and_deleted(
    admin: Any, broker: LiveBroker, node: NodeProcess, topic: str, members: Group
) -> None:
    produce(broker, topic, range(40))
    member = KafkaJsMember(node, broker.bootstrap, topic, topic)
    members.append(member)
    until(lambda: len(member.read) == 40, "all records")
    assert topic in {row["groupId"] for row in admin("listGroups")["groups"]}
    (described,) = admin("describeGroups", [topic])["groups"]
    assert (described["state"], described["protocol"]) == ("Stable", "RoundRobinAssigner")
    (one,) = described["members"]
    assert (one["clientId"], one["clientHost"]) == ("kafkajs", "127.0.0.1")
    with pytest.raises(KafkaJsError) as refused:
        admin("deleteGroups", [topic])
    assert [one.type for one in refused.value.errors] == ["NON_EMPTY_GROUP"]
    stop(member)
    partitions = [{"partition": 2, "offset": "5"}]
    admin("setOffsets", {"groupId": topic, "topic": topic, "partitions": partitions})
    (row,) = admin("fetchOffsets", {"groupId": topic, "topics": [topic]})
    offsets = {part["partition"]: part["offset"] for part in row["partitions"]}
    assert offsets == {0: "10", 1: "10", 2: "5", 3: "10"}
    admin("deleteGroups", [topic])
    assert topic not in {row["groupId"] for row in admin("listGroups")["groups"]}


def test_the_cluster_is_described(admin: Any, broker: LiveBroker) -> None:
    described = admin("describeCluster")
    (node,) = described["brokers"]
    assert (node["host"], node["port"]) == ("127.0.0.1", broker.port)
    assert described["controller"] == node["nodeId"]
    assert described["clusterId"]
