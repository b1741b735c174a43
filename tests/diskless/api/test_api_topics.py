"""Metadata, CreateTopics, DeleteTopics and configs over a real socket, in all their versions."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema

from metadata.operations import CreateTopic, TopicDescription
from tests.support.brokers.kafka_fakes import connected
from tests.support.questions.kafka_raw_client import RawClient
from wal.errors import CommitFailed, DisklessError


def _item(key: int, version: int, field: str, **values: Any) -> Any:
    """One element of an array field of a request."""
    schema = load_request_schema(key, version)
    annotation = schema.__dataclass_fields__[field].type
    array = annotation if hasattr(annotation, "__origin__") else annotation.__args__[0]
    item = array.__args__[0]
    known = {name: value for name, value in values.items() if name in item.__dataclass_fields__}
    return item(**known)


async def _metadata(
    client: RawClient, version: int, names: Sequence[str] | None, **more: Any
) -> Any:
    topics = None
    if names is not None:
        topics = tuple(_item(3, version, "topics", name=name, topic_id=None) for name in names)
    known = load_request_schema(3, version).__dataclass_fields__
    values = {"allow_auto_topic_creation": True, **more}
    return await client.call(
        3, version, topics=topics, **{k: v for k, v in values.items() if k in known}
    )


async def _create(client: RawClient, version: int, *topics: dict[str, Any], **more: Any) -> Any:
    default = {"num_partitions": -1, "replication_factor": -1, "assignments": (), "configs": ()}
    items = tuple(_item(19, version, "topics", **{**default, **topic}) for topic in topics)
    return await client.call(19, version, topics=items, **more)


def _configs(version: int, **values: str | None) -> tuple[Any, ...]:
    kind = load_request_schema(19, version).__dataclass_fields__["topics"].type.__args__[0]
    item = kind.__dataclass_fields__["configs"].type.__args__[0]
    return tuple(item(name=name.replace("_", "."), value=value) for name, value in values.items())


@pytest.mark.parametrize("version", range(14))
async def test_metadata_describes_brokers_and_topics(version):
    async with connected() as (broker, client):
        topic = broker.topics.add("flights", partitions=3)
        found = await _metadata(client, version, ["flights"])
        assert [(b.node_id, b.host, b.port) for b in found.brokers] == [(0, *broker.server.address)]
        if version >= 1:
            assert found.controller_id == 0
            assert found.brokers[0].rack == "rack-a"
        if version >= 2:
            assert found.cluster_id == "a-cluster"
        (described,) = found.topics
        assert (described.error_code, described.name) == (0, "flights")
        if version >= 10:
            assert described.topic_id == topic.topic_id
        assert [p.partition_index for p in described.partitions] == [0, 1, 2]
        for partition in described.partitions:
            assert partition.error_code == 0
            assert partition.leader_id == 0
            assert partition.replica_nodes == partition.isr_nodes == (0,)
            if version >= 7:
                assert partition.leader_epoch == 0


@pytest.mark.parametrize("version", range(14))
async def test_all_and_no_topics_are_asked_for_differently_in_version_0(version):
    async with connected() as (broker, client):
        broker.topics.add("b")
        broker.topics.add("a")
        none = await _metadata(client, version, [])
        if version == 0:
            assert [topic.name for topic in none.topics] == ["a", "b"]
        else:
            assert none.topics == ()
            everything = await _metadata(client, version, None)
            assert [topic.name for topic in everything.topics] == ["a", "b"]


@pytest.mark.parametrize("version", range(14))
async def test_an_unknown_topic_is_created_and_answered_with_its_partitions(version):
    async with connected() as (broker, client):
        broker.topics.default_partition_count = 2
        found = await _metadata(client, version, ["new", "new"])
        (topic,) = found.topics
        assert (topic.error_code, len(topic.partitions)) == (0, 2)
        assert broker.topics.known["new"].partition_count == 2


async def test_topics_are_created_only_when_both_sides_allow_it():
    async with connected() as (broker, client):
        found = await _metadata(client, 12, ["new"], allow_auto_topic_creation=False)
        assert found.topics[0].error_code == 3
        broker.topics.auto_create_enabled = False
        found = await _metadata(client, 12, ["new"])
        assert found.topics[0].error_code == 3
        assert not broker.topics.known


async def test_a_name_that_no_topic_may_have_is_invalid_not_unknown():
    async with connected() as (broker, client):
        broker.topics.add("a.b")
        found = await _metadata(client, 12, ["a/b", "a_b", "fine"])
        assert [t.error_code for t in found.topics] == [17, 17, 0]
        found = await _metadata(client, 12, ["a/b"], allow_auto_topic_creation=False)
        assert found.topics[0].error_code == 17
        assert sorted(broker.topics.known) == ["a.b", "fine"]


async def test_a_failed_creation_is_the_error_of_its_topic_alone():
    async with connected() as (broker, client):
        broker.topics.add("old")
        broker.topics.failure = CommitFailed("no")
        found = await _metadata(client, 12, ["old", "new"])
        assert [t.error_code for t in found.topics] == [0, 56]


async def test_a_topic_is_found_by_its_id_and_an_old_id_is_unknown():
    async with connected() as (broker, client):
        topic = broker.topics.add("flights")
        by_id = [
            _item(3, 12, "topics", name=None, topic_id=topic_id)
            for topic_id in (topic.topic_id, UUID(int=5), None)
        ]
        found = await client.call(3, 12, topics=tuple(by_id))
        assert [(t.error_code, t.name) for t in found.topics] == [
            (0, "flights"),
            (100, None),
            (42, None),
        ]


@pytest.mark.parametrize("version", [10, 11])
async def test_an_unknown_id_has_an_empty_name_where_answers_cannot_say_null(version):
    async with connected() as (_, client):
        unknown = (_item(3, version, "topics", name=None, topic_id=UUID(int=5)),)
        found = await client.call(3, version, topics=unknown)
        assert [(topic.name, topic.error_code) for topic in found.topics] == [("", 100)]


async def test_an_id_goes_before_a_name():
    """Java's admin client sends both; what has an id is not created for the sake of its name."""
    async with connected() as (broker, client):
        topic = broker.topics.add("flights")
        both = [
            _item(3, 12, "topics", name=name, topic_id=topic_id)
            for name, topic_id in (("", topic.topic_id), ("new", UUID(int=5)))
        ]
        found = await client.call(3, 12, topics=tuple(both), allow_auto_topic_creation=True)
        assert [(t.error_code, t.name) for t in found.topics] == [(0, "flights"), (100, None)]
        assert set(broker.topics.topics()) == {"flights"}


async def test_authorized_operations_are_told_only_when_asked_for():
    async with connected() as (broker, client):
        broker.topics.add("t")
        found = await _metadata(client, 10, ["t"])
        assert found.cluster_authorized_operations == -(2**31)
        assert found.topics[0].topic_authorized_operations == -(2**31)
        found = await _metadata(
            client,
            10,
            ["t"],
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        assert found.cluster_authorized_operations > 0
        assert found.topics[0].topic_authorized_operations & (1 << 4)


@pytest.mark.parametrize("version", range(2, 8))
async def test_topics_are_created_as_asked(version):
    async with connected() as (broker, client):
        configs = _configs(version, retention_ms="5", segment_ms=None)
        answer = await _create(
            client,
            version,
            {"name": "one", "num_partitions": 3, "replication_factor": 3, "configs": configs},
            {"name": "two"},
        )
        assert [topic.error_code for topic in answer.topics] == [0, 0]
        one = broker.topics.known["one"]
        assert (one.partition_count, one.configs) == (3, {"retention.ms": "5"})
        assert broker.topics.known["two"].partition_count == 1
        if version >= 5:
            assert (answer.topics[0].num_partitions, answer.topics[0].replication_factor) == (3, 1)
            told = {config.name: config for config in answer.topics[0].configs}
            assert (told["retention.ms"].value, told["retention.ms"].config_source) == ("5", 1)
            assert (told["segment.ms"].value, told["segment.ms"].config_source) == ("600000", 5)
        if version >= 7:
            assert answer.topics[0].topic_id == one.topic_id


async def test_validation_alone_creates_nothing():
    async with connected() as (broker, client):
        broker.topics.add("old")
        answer = await _create(client, 7, {"name": "new"}, {"name": "old"}, validate_only=True)
        assert [topic.error_code for topic in answer.topics] == [0, 36]
        assert answer.topics[0].num_partitions == 1
        assert list(broker.topics.known) == ["old"]


async def test_each_bad_topic_is_refused_for_its_own_reason():
    assignment = load_request_schema(19, 7).__dataclass_fields__["topics"].type.__args__[0]
    assignment = assignment.__dataclass_fields__["assignments"].type.__args__[0]
    two = tuple(assignment(partition_index=i, broker_ids=(9,)) for i in (1, 0))
    gap = tuple(assignment(partition_index=i, broker_ids=(9,)) for i in (0, 2))
    async with connected() as (broker, client):
        broker.topics.add("old")
        cases = [
            ({"name": "old"}, 36),
            ({"name": "a b"}, 17),
            ({"name": "old_"}, 0),
            ({"name": "twice"}, 42),
            ({"name": "twice"}, 42),
            ({"name": "none", "num_partitions": 0}, 37),
            ({"name": "many", "num_partitions": 1_001}, 37),
            ({"name": "rf", "replication_factor": 0}, 38),
            ({"name": "cfg", "configs": _configs(7, nonsense="1")}, 40),
            ({"name": "assigned", "assignments": two}, 0),
            ({"name": "gap", "assignments": gap}, 39),
            ({"name": "both", "assignments": two, "num_partitions": 2}, 42),
        ]
        answer = await _create(client, 7, *(topic for topic, _ in cases))
        assert [(t.name, t.error_code) for t in answer.topics] == [
            (topic["name"], code) for topic, code in cases
        ]
        assert all(bool(t.error_message) == bool(t.error_code) for t in answer.topics)
        assert sorted(broker.topics.known) == ["assigned", "old", "old_"]
        assert broker.topics.known["assigned"].partition_count == 2


async def test_a_failed_append_of_the_coordinator_fails_what_was_asked_of_it():
    async with connected() as (broker, client):
        broker.topics.failure = CommitFailed("no")
        answer = await _create(client, 7, {"name": "new"}, {"name": "a b"})
        assert [topic.error_code for topic in answer.topics] == [56, 17]


async def test_a_topic_that_appeared_meanwhile_is_reported_as_existing():
    async with connected() as (broker, client):

        async def somebody_else_was_first(
            topics: Sequence[CreateTopic],
        ) -> Sequence[TopicDescription | DisklessError]:
            broker.topics.add("new")
            return await type(broker.topics).create_topics(broker.topics, topics)

        broker.topics.create_topics = somebody_else_was_first  # type: ignore[method-assign]
        answer = await _create(client, 7, {"name": "new"})
        assert answer.topics[0].error_code == 36
        del broker.topics.known["new"]
        found = await _metadata(client, 12, ["new"])
        assert found.topics[0].error_code == 0


@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_by_name(version):
    async with connected() as (broker, client):
        broker.topics.add("old")
        names = ("old", "unknown")
        if version >= 6:
            asked = {"topics": tuple(_item(20, 6, "topics", name=n, topic_id=None) for n in names)}
        else:
            asked = {"topic_names": names}
        answer = await client.call(20, version, **asked)
        assert [(r.name, r.error_code) for r in answer.responses] == [("old", 0), ("unknown", 3)]
        assert not broker.topics.known


async def test_topics_are_deleted_by_id_once_however_often_they_are_named():
    async with connected() as (broker, client):
        topic = broker.topics.add("old")
        asked = [
            {"name": None, "topic_id": topic.topic_id},
            {"name": "old", "topic_id": None},
            {"name": None, "topic_id": UUID(int=5)},
            {"name": None, "topic_id": None},
            {"name": "old", "topic_id": topic.topic_id},
        ]
        answer = await client.call(
            20, 6, topics=tuple(_item(20, 6, "topics", **item) for item in asked)
        )
        assert [r.error_code for r in answer.responses] == [0, 0, 100, 42, 42]
        assert answer.responses[0].name == "old"
        assert not broker.topics.known


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topics_whole_configuration_is_described(version):
    async with connected() as (broker, client):
        broker.topics.add("t", configs={"cleanup.policy": "compact"})
        resource = _item(
            32, version, "resources", resource_type=2, resource_name="t", configuration_keys=None
        )
        more = {"include_documentation": True} if version >= 3 else {}
        answer = await client.call(
            32, version, resources=(resource,), include_synonyms=True, **more
        )
        (result,) = answer.results
        assert result.error_code == 0
        told = {config.name: config for config in result.configs}
        assert len(told) > 30
        policy = told["cleanup.policy"]
        assert (policy.value, policy.config_source, policy.read_only) == ("compact", 1, False)
        assert [(s.value, s.source) for s in policy.synonyms] == [("compact", 1), ("delete", 5)]
        assert [(s.value, s.source) for s in told["segment.ms"].synonyms] == [("600000", 5)]
        if version >= 3:
            assert policy.config_type == 7
            assert policy.documentation


async def test_a_resource_that_is_asked_for_a_hundred_times_is_described_once():
    async with connected() as (broker, client):
        broker.topics.add("t")
        asked = _item(32, 4, "resources", resource_type=2, resource_name="t",
                      configuration_keys=None)  # fmt: skip
        answer = await client.call(32, 4, resources=(asked,) * 100)
        assert [r.resource_name for r in answer.results] == ["t"]


async def test_the_brokers_own_configuration_is_described_read_only():
    async with connected() as (_, client):
        resources = tuple(
            _item(32, 4, "resources", resource_type=kind, resource_name=name,
                  configuration_keys=keys)
            for kind, name, keys in (
                (4, "0", None), (4, "0", ("num.partitions",)), (4, "", None), (4, "7", None),
                (2, "unknown", None), (2, "a b", None), (8, "0", None), (4, "0", ()),
            )
        )  # fmt: skip
        answer = await client.call(32, 4, resources=resources, include_synonyms=False)
        assert [r.error_code for r in answer.results] == [0, 0, 0, 42, 3, 17, 42, 0]
        assert [len(r.configs) for r in answer.results] == [2, 1, 0, 0, 0, 0, 0, 2]
        (partitions,) = answer.results[1].configs
        assert (partitions.value, partitions.config_source) == ("3", 4)
        assert partitions.read_only
        assert partitions.synonyms == ()
        assert partitions.documentation is None


@pytest.mark.parametrize("version", range(2))
async def test_the_cluster_is_described(version):
    async with connected() as (broker, client):
        answer = await client.call(60, version, **({"endpoint_type": 1} if version else {}))
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "a-cluster", 0)
        assert [(b.broker_id, b.port) for b in answer.brokers] == [(0, broker.server.address[1])]
        if version:
            answer = await client.call(60, 1, endpoint_type=2)
            assert (answer.error_code, answer.brokers) == (115, ())


@pytest.mark.parametrize("version", range(7))
async def test_this_broker_coordinates_groups(version):
    async with connected() as (broker, client):
        if version >= 4:
            answer = await client.call(10, version, key_type=0, coordinator_keys=("a", "b"))
            assert [(c.key, c.error_code, c.port) for c in answer.coordinators] == [
                (key, 0, broker.server.address[1]) for key in ("a", "b")
            ]
            answer = await client.call(10, version, key_type=2, coordinator_keys=("a",))
            assert answer.coordinators[0].error_code == 42
        else:
            answer = await client.call(10, version, key="a")
            assert (answer.error_code, answer.port) == (0, broker.server.address[1])


@pytest.mark.parametrize("version", range(6))
async def test_producers_get_fresh_ids(version):
    async with connected() as (broker, client):
        first = await client.call(22, version, transactional_id=None)
        second = await client.call(22, version, transactional_id=None)
        assert (first.error_code, first.producer_epoch) == (0, 0)
        assert second.producer_id > first.producer_id
        broker.topics.failure = CommitFailed("no")
        failed = await client.call(22, version, transactional_id=None)
        assert (failed.error_code, failed.producer_id) == (56, -1)


async def test_apiversions_lists_what_is_served_and_the_protocol_of_transactions():
    async with connected() as (_, client):
        software = {"client_software_name": "raw", "client_software_version": "1.0-x"}
        answer = await client.call(18, 4, **software)
        ranges = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
        assert ranges == {
            0: (0, 13), 1: (4, 18), 2: (1, 9), 3: (0, 13), 8: (2, 9), 9: (1, 9), 10: (0, 6),
            11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1),
            18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5),
            25: (0, 4), 26: (0, 5), 28: (0, 5), 29: (1, 3),
            30: (1, 3), 31: (1, 3), 32: (1, 4), 33: (0, 2), 35: (1, 4), 36: (0, 2), 37: (0, 3),
            42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0),
            48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 57: (0, 2),
            60: (0, 1), 61: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1),
            69: (0, 1), 74: (0, 1), 75: (0, 0),
        }  # fmt: skip
        (supported,), (finalized,) = answer.supported_features, answer.finalized_features
        assert supported.name == finalized.name == "transaction.version"
        assert (supported.min_version, supported.max_version) == (2, 2)
        assert (finalized.min_version_level, finalized.max_version_level) == (2, 2)
        assert answer.finalized_features_epoch == 0
        older = await client.call(18, 3, **software)
        assert (
            older.supported_features[0].name == older.finalized_features[0].name == finalized.name
        )
        for bad in ("", "-x", "x y", "x-"):
            answer = await client.call(18, 3, **{**software, "client_software_name": bad})
            assert answer.error_code == 42


async def test_a_topic_is_created_while_another_creation_hangs():
    async with connected() as (broker, client):
        gate = asyncio.Event()
        original = broker.topics.create_topics

        async def create(
            topics: Sequence[CreateTopic],
        ) -> Sequence[TopicDescription | DisklessError]:
            if topics[0].name == "slow":
                await gate.wait()
            return await original(topics)

        broker.topics.create_topics = create  # type: ignore[method-assign]
        slow = asyncio.ensure_future(_create(client, 7, {"name": "slow"}))
        other = await RawClient.connect(broker.server.address)
        answer = await _create(other, 7, {"name": "quick"})
        assert answer.topics[0].error_code == 0
        assert not slow.done()
        gate.set()
        assert (await slow).topics[0].error_code == 0
        await other.close()
