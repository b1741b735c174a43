"""Configs altered, partitions created, records deleted, and what else admin tools ask for: raw."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from diskless.ports import ActiveProducer, BrokerConfigEntry
from metadata import operations as ops
from tests.support.kafka_fakes import HIGH_WATERMARK, Broker, FakeLog, connected
from tests.support.kafka_raw_client import RawClient
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, CorruptState, DisklessError, NotCoordinator, UnknownTopicId
from wal.security.secret import Secret

DELETE_RECORDS, LEADER_EPOCHS, DESCRIBE, ALTER, LOG_DIRS, PARTITIONS, INCREMENTAL = (
    21, 23, 32, 33, 35, 37, 44,
)  # fmt: skip
PRODUCERS, CONFIG_RESOURCES, TOPIC_PARTITIONS = 61, 74, 75
TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def add_metadata_topic(broker: Broker) -> None:
    broker.topics.known[ops.METADATA_TOPIC] = ops.TopicDescription(
        topic_id=ops.METADATA_TOPIC_ID, name=ops.METADATA_TOPIC, partition_count=1
    )


# --- configs, altered -----------------------------------------------------------------------------


def resource(name: str, *changes: Mapping[str, Any], kind: int = TOPIC) -> Mapping[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configs": changes}


def change(name: str, value: str | None, operation: int = SET) -> Mapping[str, Any]:
    return {"name": name, "config_operation": operation, "value": value}


async def alter(
    client: RawClient, *changes: Mapping[str, Any], topic: str = "t"
) -> tuple[int, str]:
    """(error code, message) of incremental changes of one topic."""
    answer = await client.ask(
        INCREMENTAL, 1, resources=[resource(topic, *changes)], validate_only=False
    )
    (response,) = answer.responses
    assert (response.resource_type, response.resource_name) == (TOPIC, topic)
    return response.error_code, response.error_message or ""


@pytest.mark.parametrize("version", range(2))
async def test_single_configs_are_set_and_deleted_and_the_others_stay(version):
    async with connected() as (broker, client):
        broker.topics.add("t", configs={"segment.ms": "1", "retention.ms": "2"})
        answer = await client.ask(
            INCREMENTAL,
            version,
            resources=[
                resource(
                    "t",
                    change("segment.ms", None, DELETE),
                    change("segment.bytes", " 3 "),
                    change("preallocate", None, DELETE),
                )
            ],
            validate_only=False,
        )
        assert [r.error_code for r in answer.responses] == [0]
        assert answer.responses[0].error_message is None
        assert broker.topics.known["t"].configs == {"retention.ms": "2", "segment.bytes": "3"}


@pytest.mark.parametrize("version", range(3))
async def test_all_configs_are_replaced_by_the_older_api(version):
    async with connected() as (broker, client):
        broker.topics.add("t", configs={"segment.ms": "1", "retention.ms": "2"})
        resources = [resource("t", {"name": "segment.bytes", "value": "3"})]
        answer = await client.ask(ALTER, version, resources=resources, validate_only=True)
        assert [r.error_code for r in answer.responses] == [0]
        assert broker.topics.known["t"].configs == {"segment.ms": "1", "retention.ms": "2"}
        answer = await client.ask(ALTER, version, resources=resources, validate_only=False)
        assert [r.error_code for r in answer.responses] == [0]
        assert broker.topics.known["t"].configs == {"segment.bytes": "3"}
        nothing = [resource("t", {"name": "segment.bytes", "value": None})]
        answer = await client.ask(ALTER, version, resources=nothing, validate_only=False)
        assert [r.error_code for r in answer.responses] == [42]
        answer = await client.ask(ALTER, version, resources=[resource("t")], validate_only=False)
        assert broker.topics.known["t"].configs == {}


async def test_lists_are_appended_to_and_subtracted_from_as_they_are_in_effect():
    async with connected() as (broker, client):
        broker.topics.add("t")
        cases = [
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact,delete", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
            (SUBTRACT, "delete", "compact"),
            (APPEND, "delete", "compact,delete"),
        ]
        for operation, value, expected in cases:
            assert await alter(client, change("cleanup.policy", value, operation)) == (0, "")
            assert broker.topics.known["t"].configs == {"cleanup.policy": expected}
        code, _ = await alter(client, change("cleanup.policy", "compact,delete", SUBTRACT))
        assert code == 40
        assert broker.topics.known["t"].configs == {"cleanup.policy": "compact,delete"}


async def test_what_is_appended_to_may_be_the_brokers_default():
    policy = BrokerConfigEntry("log.cleanup.policy", "compact", "delete", "what happens")
    async with connected(configs=[policy]) as (broker, client):
        broker.topics.add("t")
        assert await alter(client, change("cleanup.policy", "delete", APPEND)) == (0, "")
        assert broker.topics.known["t"].configs == {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([change("nonsense", "1")], 40, "Unknown topic config name: nonsense"),
        ([change("nonsense", None, DELETE)], 40, "Unknown topic config name: nonsense"),
        (
            [change("retention.ms", "-2")],
            40,
            "Invalid value -2 for configuration retention.ms: Value must be at least -1",
        ),
        (
            [change("retention.ms", "soon")],
            40,
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        (
            [change("preallocate", "yes")],
            40,
            "Invalid value yes for configuration preallocate: Expected value to be either true "
            "or false",
        ),
        (
            [change("compression.type", "brotli")],
            40,
            "Invalid value brotli for configuration compression.type: String must be one of: "
            "uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            [change("segment.ms", "1", APPEND)],
            40,
            "Can't APPEND to key segment.ms because its type is not LIST.",
        ),
        (
            [change("segment.ms", "1", SUBTRACT)],
            40,
            "Can't SUBTRACT to key segment.ms because its type is not LIST.",
        ),
        ([change("segment.ms", None)], 42, "Null value not supported for : segment.ms"),
        ([change("cleanup.policy", None, APPEND)], 42, "Null value not supported for : cleanup"),
        ([change("segment.ms", "1", 9)], 42, "Unknown operation type 9"),
        (
            [change("segment.ms", "1"), change("segment.ms", "2")],
            42,
            "Error due to duplicate config keys",
        ),
        (
            [change("min.compaction.lag.ms", "9"), change("max.compaction.lag.ms", "8")],
            40,
            "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (8)",
        ),
        ([change("segment.bytes", "7"), change("nonsense", "1")], 40, "Unknown topic config"),
    ],
)
async def test_a_bad_change_is_refused_in_kafkas_words_and_changes_nothing(changes, code, message):
    async with connected() as (broker, client):
        broker.topics.add("t", configs={"retention.bytes": "5"})
        refused, told = await alter(client, *changes)
        assert refused == code
        assert told.startswith(message)
        assert broker.topics.known["t"].configs == {"retention.bytes": "5"}


@pytest.mark.parametrize("key", [ALTER, INCREMENTAL])
async def test_resources_are_altered_each_on_its_own(key):
    async with connected() as (broker, client):
        add_metadata_topic(broker)
        for name in ("good", "twice"):
            broker.topics.add(name)
        one = change("segment.ms", "1")
        asked = [
            (resource("good", one), 0, None),
            (resource("unknown", one), 3, "The topic 'unknown' does not exist."),
            (resource("a b", one), 17, "'a b' has characters"),
            (resource("twice", one), 42, "Each resource must appear at most once."),
            (resource("twice", one), 42, "Each resource must appear at most once."),
            (resource(ops.METADATA_TOPIC, one), 17, "__diskless_metadata is the cluster's own"),
            (resource("0", change("num.partitions", "2"), kind=BROKER), 42, "Cannot update these"),
            (resource("", one, kind=BROKER), 42, "Cannot update these configs dynamically: seg"),
            (resource("0", one, kind=8), 42, "there are no configs of broker loggers here"),
            (resource("g", one, kind=GROUP), 42, "Cannot update these configs of one group: seg"),
            (resource("x", one, kind=77), 42, "there are no configs of resource type 77 here"),
        ]
        answer = await client.ask(key, 1, resources=[r for r, _, _ in asked], validate_only=False)
        assert [r.error_code for r in answer.responses] == [code for _, code, _ in asked]
        for response, (wanted, _, message) in zip(answer.responses, asked, strict=True):
            assert response.resource_name == wanted["resource_name"]
            assert response.resource_type == wanted["resource_type"]
            assert (response.error_message or "").startswith(message or "")
        assert broker.topics.known["good"].configs == {"segment.ms": "1"}
        assert broker.topics.known["twice"].configs == {}


async def test_validation_alone_alters_nothing():
    async with connected() as (broker, client):
        broker.topics.add("t")
        answer = await client.ask(
            INCREMENTAL,
            1,
            resources=[
                resource("t", change("segment.ms", "1")),
                resource("unknown", change("segment.ms", "1")),
            ],
            validate_only=True,
        )
        assert [r.error_code for r in answer.responses] == [0, 3]
        answer = await client.ask(
            INCREMENTAL,
            1,
            resources=[resource("t", change("segment.ms", "x"))],
            validate_only=True,
        )
        assert [r.error_code for r in answer.responses] == [40]
        assert broker.topics.known["t"].configs == {}


@pytest.mark.parametrize(
    ("failure", "code"), [(NotCoordinator("moving"), 56), (UnknownTopicId("gone"), 3)]
)
async def test_what_the_coordinator_says_is_the_resources_error(failure, code):
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.topics.failure = failure
        refused, _ = await alter(client, change("segment.ms", "1"))
        assert refused == code


# --- configs, described ---------------------------------------------------------------------------


async def described(client: RawClient, name: str, kind: int = TOPIC) -> Mapping[str, Any]:
    answer = await client.ask(
        DESCRIBE,
        4,
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
        include_synonyms=True,
        include_documentation=True,
    )
    (result,) = answer.results
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


async def test_every_group_has_the_configs_that_the_broker_has_for_groups():
    entries = [
        BrokerConfigEntry("group.consumer.session.timeout.ms", "50000", "45000", "long", int),
        BrokerConfigEntry("group.consumer.heartbeat.interval.ms", "5000", "5000", "short", int),
        BrokerConfigEntry("group.consumer.max.size", "10", "20", "many", int),
    ]
    async with connected(configs=entries) as (_, client):
        told = await described(client, "any", kind=GROUP)
        assert {
            name: (config.value, config.config_source, config.read_only)
            for name, config in told.items()
        } == {
            "consumer.session.timeout.ms": ("50000", 4, True),
            "consumer.heartbeat.interval.ms": ("5000", 5, True),
        }
        unnamed = {"resource_type": GROUP, "resource_name": "", "configuration_keys": None}
        answer = await client.ask(DESCRIBE, 4, resources=[unnamed], include_synonyms=False)
        assert [(result.error_code, result.configs) for result in answer.results] == [(42, ())]


async def test_a_value_comes_from_the_topic_else_from_the_broker_else_it_is_built_in():
    entries = [
        BrokerConfigEntry("log.retention.ms", "99", "604800000", "age", int),
        BrokerConfigEntry("log.retention.bytes", "-1", "-1", "size", int),
        BrokerConfigEntry("segment.bytes", "77", "134217728", "size", int),
    ]
    async with connected(configs=entries) as (broker, client):
        broker.topics.add("t", configs={"segment.bytes": "5"})
        told = await described(client, "t")
        shown = {
            name: [(s.name, s.value, s.source) for s in told[name].synonyms]
            for name in (
                "segment.bytes", "retention.ms", "retention.bytes", "max.message.bytes",
                "remote.storage.enable",
            )
        }  # fmt: skip
        assert shown == {
            "segment.bytes": [
                ("segment.bytes", "5", 1),
                ("segment.bytes", "77", 4),
                ("segment.bytes", "134217728", 5),
            ],
            "retention.ms": [
                ("log.retention.ms", "99", 4),
                ("log.retention.ms", "604800000", 5),
            ],
            "retention.bytes": [("log.retention.bytes", "-1", 5)],
            "max.message.bytes": [("message.max.bytes", "1048588", 5)],
            "remote.storage.enable": [("remote.storage.enable", "false", 5)],
        }
        for config in told.values():
            first = config.synonyms[0]
            assert (config.value, config.config_source) == (first.value, first.source)
            assert not config.read_only
            assert not config.is_sensitive
            assert config.documentation


async def test_the_created_topic_shows_the_brokers_defaults_too():
    entry = BrokerConfigEntry("log.retention.ms", "99", "604800000", "age", int)
    async with connected(configs=[entry]) as (_, client):
        topic = {"name": "t", "num_partitions": -1, "replication_factor": -1}
        answer = await client.ask(
            19, 7, topics=[{**topic, "assignments": [], "configs": []}], validate_only=True
        )
        (created,) = answer.topics
        told = {c.name: (c.value, c.config_source) for c in created.configs}
        assert told["retention.ms"] == ("99", 4)
        assert told["retention.bytes"] == ("-1", 5)


KAFKA_TOPIC_CONFIGS = """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
    follower.replication.throttled.replicas index.interval.bytes
    leader.replication.throttled.replicas local.retention.bytes local.retention.ms
    max.compaction.lag.ms max.message.bytes message.downconversion.enable message.format.version
    message.timestamp.after.max.ms message.timestamp.before.max.ms
    message.timestamp.difference.max.ms message.timestamp.type min.cleanable.dirty.ratio
    min.compaction.lag.ms min.insync.replicas preallocate remote.log.copy.disable
    remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms segment.bytes
    segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""


OWN_TOPIC_CONFIGS = """
    key.schema key.schema.format key.schema.source
    segment.merge.bytes
    table.commit.interval.ms table.enabled table.hide.deleted table.namespace
    table.snapshot.retention.ms
    tiering.enable value.schema value.schema.format value.schema.source
"""


async def test_every_topic_config_of_kafka_and_our_own_is_shown():
    async with connected() as (broker, client):
        broker.topics.add("t")
        assert sorted(await described(client, "t")) == sorted(
            [*KAFKA_TOPIC_CONFIGS.split(), *OWN_TOPIC_CONFIGS.split()]
        )


# --- resources with configs -----------------------------------------------------------------------


async def resources(client: RawClient, *types: int, version: int = 1) -> Any:
    return await client.ask(CONFIG_RESOURCES, version, resource_types=types)


async def test_topics_and_brokers_are_what_has_configs():
    async with connected() as (broker, client):
        for name in ("z", "a"):
            broker.topics.add(name)
        brokers, topics = [("0", BROKER)], [("a", TOPIC), ("z", TOPIC)]
        for types, expected in (
            ((), topics + brokers),
            ((BROKER,), brokers),
            ((TOPIC, TOPIC), topics),
            ((8, 16, GROUP), []),
            ((GROUP, BROKER), brokers),
        ):
            answer = await resources(client, *types)
            assert answer.error_code == 0
            found = [(item.resource_name, item.resource_type) for item in answer.config_resources]
            assert found == expected, types


async def test_the_first_version_asks_for_client_metrics_of_which_there_are_none():
    async with connected() as (broker, client):
        broker.topics.add("t")
        answer = await resources(client, version=0)
        assert (answer.error_code, answer.config_resources) == (0, ())


@pytest.mark.parametrize("unknown", [0, 3, 127, -1])
async def test_resources_of_a_type_that_is_not_known_cannot_be_listed(unknown):
    async with connected() as (_, client):
        answer = await resources(client, BROKER, unknown)
        assert (answer.error_code, answer.config_resources) == (35, ())


# --- partitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_topics_grow_and_each_bad_request_is_refused_for_its_own_reason(version):
    async with connected() as (broker, client):
        add_metadata_topic(broker)
        broker.topics.max_partition_count = 10
        for name in ("grown", "assigned", "same", "fewer", "many", "twice", "short"):
            broker.topics.add(name, partitions=3)
        two = [{"broker_ids": [7]}, {"broker_ids": [8, 9]}]
        cases = [
            ("grown", 5, None, 0, ""),
            ("assigned", 5, two, 0, ""),
            ("same", 3, None, 37, "Topic already has 3 partition(s)."),
            ("fewer", 2, None, 37, "The topic fewer currently has 3 partition(s); 2 would not be"),
            ("many", 11, None, 37, "11 partitions"),
            ("twice", 4, None, 42, "Duplicate topic name."),
            ("twice", 5, None, 42, "Duplicate topic name."),
            ("short", 6, two, 39, "Attempted to add 3 additional partition(s), but only 2"),
            ("unknown", 2, None, 3, "The topic 'unknown' does not exist."),
            (ops.METADATA_TOPIC, 2, None, 17, "__diskless_metadata is the cluster's own"),
        ]
        asked = [
            {"name": name, "count": count, "assignments": assignments}
            for name, count, assignments, _, _ in cases
        ]
        for validate_only in (True, False):
            answer = await client.ask(
                PARTITIONS, version, topics=asked, validate_only=validate_only
            )
            for result, (name, _, _, code, message) in zip(answer.results, cases, strict=True):
                assert (result.name, result.error_code) == (name, code)
                assert (result.error_message or "").startswith(message)
            counts = {name: topic.partition_count for name, topic in broker.topics.known.items()}
            expected = 3 if validate_only else 5
            assert (counts["grown"], counts["assigned"]) == (expected, expected)
            assert {counts[name] for name in ("same", "fewer", "many", "twice", "short")} == {3}


async def test_a_growth_that_fails_is_the_error_of_what_was_asked_of_the_coordinator():
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.topics.failure = CommitFailed("no")
        asked = [{"name": name, "count": 2, "assignments": None} for name in ("t", "unknown")]
        answer = await client.ask(PARTITIONS, 3, topics=asked, validate_only=False)
        assert [r.error_code for r in answer.results] == [56, 3]


async def test_a_topic_that_is_deleted_while_it_should_grow_is_unknown():
    async with connected() as (broker, client):
        broker.topics.add("t")

        async def create_partitions(
            topics: Sequence[ops.CreatePartitions],
        ) -> Sequence[DisklessError]:
            return [UnknownTopicId("deleted")]

        broker.topics.create_partitions = create_partitions  # type: ignore[method-assign]
        asked = [{"name": "t", "count": 2, "assignments": None}]
        answer = await client.ask(PARTITIONS, 3, topics=asked, validate_only=False)
        (result,) = answer.results
        assert (result.error_code, result.error_message) == (3, "The topic 't' does not exist.")


# --- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_up_to_an_offset_partition_by_partition(version):
    async with connected() as (broker, client):
        add_metadata_topic(broker)
        topic = broker.topics.add("t", partitions=4)
        broker.topics.add("compacted", configs={"cleanup.policy": "compact"})
        broker.topics.add("both", configs={"cleanup.policy": "compact,delete"})
        cases = {
            "t": [(0, 3, 3, 0), (1, -1, HIGH_WATERMARK, 0), (2, 8, -1, 1), (3, -2, -1, 1),
                  (4, 0, -1, 3), (-1, 0, -1, 3)],
            "unknown": [(0, 0, -1, 3)],
            "compacted": [(0, 0, -1, 44)],
            "both": [(0, 1, 1, 0)],
            ops.METADATA_TOPIC: [(0, 0, -1, 17)],
            "a b": [(0, 0, -1, 17)],
        }  # fmt: skip
        asked = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "offset": at} for index, at, _, _ in rows
                ],
            }
            for name, rows in cases.items()
        ]
        answer = await client.ask(DELETE_RECORDS, version, topics=asked)
        assert {
            topic.name: [
                (p.partition_index, p.low_watermark, p.error_code) for p in topic.partitions
            ]
            for topic in answer.topics
        } == {
            name: [(index, low, code) for index, _, low, code in rows]
            for name, rows in cases.items()
        }
        assert broker.topics.deletions[:2] == [
            ops.DeleteRecords(TopicIdPartition(topic.topic_id, 0), 3),
            ops.DeleteRecords(TopicIdPartition(topic.topic_id, 1), -1),
        ]


async def test_a_deletion_that_fails_is_the_error_of_its_partitions():
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.topics.failure = CommitFailed("no")
        partitions = [{"partition_index": index, "offset": 0} for index in (0, 9)]
        answer = await client.ask(
            DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": partitions}]
        )
        assert [p.error_code for p in answer.topics[0].partitions] == [56, 3]


# --- leader epochs --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 5))
async def test_the_one_leader_epoch_ends_where_the_log_does(version):
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.manager.logs["t", 0] = FakeLog(next_offset=42)
        cases = [(0, 0, 0, 42), (0, 1, -1, -1), (0, -1, -1, -1)]
        for partition, epoch, expected_epoch, end_offset in cases:
            item = {"partition": partition, "current_leader_epoch": 0, "leader_epoch": epoch}
            topics = [
                {"topic": "t", "partitions": [item]},
                {"topic": "unknown", "partitions": [item]},
            ]
            answer = await client.ask(LEADER_EPOCHS, version, replica_id=-1, topics=topics)
            told = [
                (t.topic, p.partition, p.error_code, p.leader_epoch, p.end_offset)
                for t in answer.topics
                for p in t.partitions
            ]
            assert told == [("t", 0, 0, expected_epoch, end_offset), ("unknown", 0, 3, -1, -1)]


async def test_a_leader_epoch_is_not_answered_when_the_end_of_the_log_cannot_be_known():
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.manager.raises = NotCoordinator("nobody leads")
        item = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        topics = [{"topic": "t", "partitions": [item]}]
        answer = await client.ask(LEADER_EPOCHS, 4, replica_id=-1, topics=topics)
        (told,) = answer.topics[0].partitions
        assert (told.error_code, told.leader_epoch, told.end_offset) == (56, -1, -1)


# --- log directories and producers ----------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_object_store_is_the_one_log_directory(version):
    async with connected() as (broker, client):
        add_metadata_topic(broker)
        topic = broker.topics.add("t", partitions=3)
        broker.topics.add("not.heard.of")
        for index, size in enumerate((5, 0, 7)):
            broker.stored.sizes[TopicIdPartition(topic.topic_id, index)] = size
        for asked, expected in (
            (None, {"t": {0: 5, 1: 0, 2: 7}}),
            ([], {}),
            (
                [
                    {"topic": "t", "partitions": [2, 3, -1]},
                    {"topic": "unknown", "partitions": [0]},
                ],
                {"t": {2: 7}},
            ),
        ):
            answer = await client.ask(LOG_DIRS, version, topics=asked)
            (directory,) = answer.results
            assert (directory.error_code, directory.log_dir) == (0, "memory://fake")
            if version >= 3:
                assert answer.error_code == 0
            if version >= 4:
                assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)
            assert {
                t.name: {p.partition_index: p.partition_size for p in t.partitions}
                for t in directory.topics
            } == expected
            assert not any(
                p.offset_lag or p.is_future_key for t in directory.topics for p in t.partitions
            )


async def test_a_partition_is_in_the_directory_of_the_broker_that_metadata_names():
    async with connected() as (broker, client):
        topic = broker.topics.add("t", partitions=4)
        for index in range(4):
            broker.stored.sizes[TopicIdPartition(topic.topic_id, index)] = 1
        broker.cluster.leader_of = lambda topic_id, partition, client: partition % 2  # type: ignore[method-assign]
        answer = await client.ask(LOG_DIRS, 4, topics=None)
        (described,) = answer.results[0].topics
        assert [p.partition_index for p in described.partitions] == [0, 2]


async def test_the_producers_of_partitions_are_described():
    async with connected() as (broker, client):
        topic = broker.topics.add("t", partitions=2)
        broker.stored.active[TopicIdPartition(topic.topic_id, 0)] = [
            ActiveProducer(1_000, 3, 8, 123_456),
            ActiveProducer(1_001, 3, 8, 123_456, 6, 77),
        ]
        asked = [
            {"name": "t", "partition_indexes": [0, 1, 2]},
            {"name": "unknown", "partition_indexes": [0]},
        ]
        answer = await client.ask(PRODUCERS, 0, topics=asked)
        codes = [[p.error_code for p in t.partitions] for t in answer.topics]
        assert codes == [[0, 0, 3], [3]]
        producer, transactional = answer.topics[0].partitions[0].active_producers
        assert (transactional.coordinator_epoch, transactional.current_txn_start_offset) == (6, 77)
        assert (
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
        ) == (1_000, 3, 8, 123_456, -1, -1)
        assert answer.topics[0].partitions[1].active_producers == ()


async def test_damaged_producer_rows_are_the_error_of_their_partition():
    async with connected() as (broker, client):
        broker.topics.add("t")

        async def producers(partition: TopicIdPartition, *, limit: int) -> Sequence[ActiveProducer]:
            raise CorruptState("bits")

        broker.stored.producers = producers  # type: ignore[method-assign]
        answer = await client.ask(PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0]}])
        assert answer.topics[0].partitions[0].error_code == 2


# --- topics, a page at a time ---------------------------------------------------------------------


async def pages(
    client: RawClient, names: Sequence[str], limit: int, cursor: Mapping[str, Any] | None = None
) -> list[list[tuple[str, int, list[int]]]]:
    """(name, error code, partitions) per topic, per page."""
    found = []
    while True:
        answer = await client.ask(
            TOPIC_PARTITIONS,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append(
            [
                (t.name, t.error_code, [p.partition_index for p in t.partitions])
                for t in answer.topics
            ]
        )
        if answer.next_cursor is None:
            return found
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }


async def test_topics_are_described_page_by_page():
    async with connected() as (broker, client):
        for name, count in (("c", 1), ("a", 3), ("b", 2)):
            broker.topics.add(name, partitions=count)
        whole = [("a", 0, [0, 1, 2]), ("b", 0, [0, 1]), ("c", 0, [0])]
        assert await pages(client, [], 100) == [whole]
        assert await pages(client, ["c", "a", "b", "a"], 6) == [whole]
        assert await pages(client, [], 2) == [
            [("a", 0, [0, 1])],
            [("a", 0, [2]), ("b", 0, [0])],
            [("b", 0, [1]), ("c", 0, [0])],
        ]
        assert await pages(client, [], 3) == [whole[:1], whole[1:]]
        assert len(await pages(client, [], 0)) == 6
        assert await pages(client, ["a", "aa"], 100) == [[whole[0], ("aa", 3, [])]]


async def test_a_page_begins_where_the_cursor_says_whatever_became_of_the_topic():
    async with connected() as (broker, client):
        for name in ("a", "c"):
            broker.topics.add(name, partitions=2)
        at = {"topic_name": "b", "partition_index": 7}
        assert await pages(client, [], 9, at) == [[("c", 0, [0, 1])]]
        at = {"topic_name": "a", "partition_index": 5}
        assert await pages(client, [], 9, at) == [[("a", 0, []), ("c", 0, [0, 1])]]
        at = {"topic_name": "a", "partition_index": -1}
        assert await pages(client, ["a"], 9, at) == [[("a", 42, [])]]


async def test_a_described_topic_is_as_in_metadata():
    async with connected() as (broker, client):
        add_metadata_topic(broker)
        topic = broker.topics.add("t")
        answer = await client.ask(
            TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=10, cursor=None
        )
        internal, described = answer.topics
        assert (internal.name, internal.is_internal) == (ops.METADATA_TOPIC, True)
        assert (described.topic_id, described.is_internal) == (topic.topic_id, False)
        assert described.topic_authorized_operations & (1 << 4)
        (partition,) = described.partitions
        assert (partition.leader_id, partition.leader_epoch, partition.error_code) == (0, 0, 0)
        assert partition.replica_nodes == partition.isr_nodes == (0,)
        assert partition.offline_replicas == partition.eligible_leader_replicas == ()


async def test_a_secret_is_marked_and_not_told():
    entry = BrokerConfigEntry("ssl.key.password", "***", "", "of the key", Secret)
    async with connected(configs=[entry]) as (broker, client):
        told = await described(client, str(broker.cluster.node_id), kind=BROKER)
    config = told["ssl.key.password"]
    assert (config.value, config.is_sensitive, config.config_type) == (None, True, 9)
    assert [(s.value, s.source) for s in config.synonyms] == [(None, 4), (None, 5)]


async def test_what_a_listener_has_for_itself_stands_before_what_all_have():
    of_all = BrokerConfigEntry("ssl.client.auth", "requested", "none", "who is asked")
    own = of_all._replace(
        name="listener.name.outside.ssl.client.auth", value="required", of_all=of_all
    )
    async with connected(configs=[of_all, own]) as (broker, client):
        told = await described(client, str(broker.cluster.node_id), kind=BROKER)
    config = told[own.name]
    assert (config.value, config.config_source) == ("required", 4)
    assert [(one.name, one.value, one.source) for one in config.synonyms] == [
        ("listener.name.outside.ssl.client.auth", "required", 4),
        ("ssl.client.auth", "requested", 4),
        ("ssl.client.auth", "none", 5),
    ]
