"""Configs of topics, brokers and groups: altered, replaced, described."""

from collections.abc import Mapping
from typing import Any

import pytest

from diskless.ports import BrokerConfigEntry
from metadata import operations as ops
from tests.support.brokers.kafka_fakes import connected
from tests.support.questions.kafka_raw_client import RawClient
from wal.errors import NotCoordinator, UnknownTopicId
from wal.security.secret import Secret

DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


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
        broker.add_metadata_topic()
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
