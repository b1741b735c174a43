"""Kafka's Java admin client, of both lines in use, against a whole broker.

What Kafka's own tools show already is in test_java_tools. Skipped where Java, its compiler or Maven
are missing, or the jars cannot be had.
"""

import json
from typing import Any, Final

import pytest

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.java_client import scenario
from tests.support.clients.jvm import KAFKA_VERSIONS, KafkaTools
from tests.support.clients.stock_clients import (
    ConfluentKafka,
    Record,
    confluent_admin,
    create_topic,
)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.jvm,
    pytest.mark.parametrize("tools", KAFKA_VERSIONS, indirect=True, scope="module"),
]

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "200",
}


def ask(tools: KafkaTools, name: str, broker: LiveBroker, *arguments: str) -> Any:
    return scenario(tools, name, broker.bootstrap, *arguments, main_class="AdminScenarios")


def test_topics_live_by_name_and_by_id(tools: KafkaTools, broker: LiveBroker, topic: str) -> None:
    assert ask(tools, "topics", broker, topic) == {
        "tried": [4, 1],
        "exists after the trial": False,
        "created": [4, 1, "1234567", True],
        "by name": [[number, 0, 1, 1] for number in range(4)],
        "by id has the same name": True,
        "listed under its id": True,
        "after a trial": 4,
        "after more partitions": 5,
        "deleted by name again": "UnknownTopicOrPartitionException",
        "deleted by id again": "UnknownTopicIdException",
        "described by its old id": "UnknownTopicIdException",
        "has another id when it comes back": True,
        "partitions by assignment": 2,
    }


def test_every_mistake_about_a_topic_has_its_exception(
    tools: KafkaTools, broker: LiveBroker, topic: str
) -> None:
    create_topic(confluent_admin(broker.bootstrap), topic, 3)
    assert ask(tools, "refused topics", broker, topic) == {
        "exists": "TopicExistsException",
        "bad name": "InvalidTopicException",
        "long name": "InvalidTopicException",
        "no partitions": "InvalidPartitionsException",
        "no replicas": "InvalidReplicationFactorException",
        "unknown config": "InvalidConfigurationException",
        "bad config": "InvalidConfigurationException",
        "gap in the assignment": "InvalidReplicaAssignmentException",
        "fewer partitions": "InvalidPartitionsException",
        "partitions of nobody": "UnknownTopicOrPartitionException",
        "description of nobody": "UnknownTopicOrPartitionException",
        "configs of nobody": "UnknownTopicOrPartitionException",
        "both": ["TopicExistsException", "done"],
    }


def test_configs_are_set_appended_subtracted_deleted_and_explained(
    tools: KafkaTools, broker: LiveBroker, topic: str
) -> None:
    create_topic(confluent_admin(broker.bootstrap), topic)
    of_policy = {"type": "LIST", "read only": False}
    default = "DEFAULT_CONFIG log.cleanup.policy=delete"
    assert ask(tools, "configs", broker, topic) == {
        "without a type": [],
        "without documentation": [],
        "cleanup.policy": {
            **of_policy,
            "value": "delete",
            "source": "DEFAULT_CONFIG",
            "synonyms": [default],
        },
        "append": "delete,compact",
        "subtract": "compact",
        "set": "4321",
        "delete": "1048588",
        "append to a number": "InvalidConfigurationException",
        "bad value": "InvalidConfigurationException",
        "unknown": "InvalidConfigurationException",
        "of nobody": "UnknownTopicOrPartitionException",
        "of a broker": "InvalidRequestException",
        "after all": {
            **of_policy,
            "value": "compact",
            "source": "DYNAMIC_TOPIC_CONFIG",
            "synonyms": ["DYNAMIC_TOPIC_CONFIG cleanup.policy=compact", default],
        },
        "of the broker": {
            "value": "4",
            "source": "STATIC_BROKER_CONFIG",
            "type": "LONG",
            "read only": True,
            "synonyms": [
                "STATIC_BROKER_CONFIG num.partitions=4",
                "DEFAULT_CONFIG num.partitions=1",
            ],
        },
        "of all brokers": 0,
    }


def test_records_are_found_and_deleted(tools: KafkaTools, broker: LiveBroker, topic: str) -> None:
    create_topic(confluent_admin(broker.bootstrap), topic)
    sent = [Record(timestamp_ms=time) for time in (1000, 3000, 2000, 5000, 4000)]
    ConfluentKafka().produce(broker.bootstrap, topic, sent, idempotent=True)
    finished = tools.run("AdminScenarios", "records", broker.bootstrap, topic)
    assert finished.status == 0, finished.stderr
    found = json.loads(finished.lines[-1])
    assert found.pop("size") > 0
    assert found == {
        "earliest": [0, -1],
        "latest": [5, -1],
        "max timestamp": [3, 5000],
        "at 2001": [1, 3000],
        "at 5001": [-1, -1],
        "earliest local": [0, -1],
        "latest tiered": [-1, -1],
        "producers": [[0, 4, -1]],
        "delete two": 2,
        "delete one again": 2,
        "delete too many": "OffsetOutOfRangeException",
        "delete everything": 5,
    }


def test_the_cluster_is_described(tools: KafkaTools, broker: LiveBroker) -> None:
    found = ask(tools, "cluster", broker)
    assert found.pop("id")
    assert found == {
        "controller": 0,
        "nodes": [broker.bootstrap],
        "operations": sorted(
            [
                *("ALTER", "ALTER_CONFIGS", "CLUSTER_ACTION", "CREATE"),
                *("DESCRIBE", "DESCRIBE_CONFIGS", "IDEMPOTENT_WRITE"),
            ]
        ),
        "features": ["transaction.version"],
    }


def test_groups_are_listed_described_altered_and_deleted(
    tools: KafkaTools, broker: LiveBroker, topic: str
) -> None:
    create_topic(confluent_admin(broker.bootstrap), topic, 4)
    assert ask(tools, "groups", broker, f"group-{topic}", topic) == {
        "nobody": "GroupIdNotFoundException" if tools.is_4 else "Dead",
        "offsets of nobody": 0,
        "altered without members": "done",
        "known to a member": 3,
        "listed": ["Stable", "Classic", False],
        "among the stable": True,
        "among the empty": False,
        "among the classic": True,
        "among the new": False,
        "described": {
            "state": "Stable",
            "assignor": "range",
            "coordinator": 0,
            "operations": ["ALTER_CONFIGS", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ"],
            "members": {
                "one": ["client-one", "127.0.0.1", [0, 1]],
                "two": ["client-two", "127.0.0.1", [2, 3]],
            },
        },
        "altered with members": "UnknownMemberIdException",
        "offsets deleted under a member": "GroupSubscribedToTopicException",
        "deleted with members": "GroupNotEmptyException",
        "unknown member removed": "UnknownMemberIdException",
        "member removed": "done",
        "all removed": "done",
        "state then": "Empty",
        "altered": "done",
        "altered of nobody's topic": "UnknownTopicOrPartitionException",
        "offsets": {"0": [1, "one"], "1": [2, ""]},
        "offset deleted": "done",
        "offsets left": {"1": [2, ""]},
        "deleted": "done",
        "deleted again": "GroupIdNotFoundException",
        "offsets after it": {},
    }


def test_quotas_are_set_found_by_every_filter_and_removed(
    tools: KafkaTools, broker: LiveBroker
) -> None:
    def rates(producer: float) -> dict[str, float]:
        return {"producer_byte_rate": producer, "consumer_byte_rate": producer * 2}

    assert ask(tools, "quotas", broker, "a-client", "a-user") == {
        "of the client": {"{client-id=a-client}": rates(1_500_000)},
        "with the client": {
            "{client-id=a-client}": rates(1_500_000),
            "{client-id=a-client, user=a-user}": rates(2_500_000),
        },
        "of all others": {"{client-id=null}": rates(3_000_000)},
        "unknown key": "InvalidRequestException",
        "bad value": "InvalidRequestException",
        "at the end": {},
    }


def test_what_is_not_served_is_refused_by_name(tools: KafkaTools, broker: LiveBroker) -> None:
    found = ask(tools, "unserved", broker)
    assert set(found) == {"acls", "quorum", "tokens"}
    # Rules are served where there is an authorizer (tests/clients/test_acl_clients.py).
    assert found.pop("acls") == "SecurityDisabledException"
    assert set(found.values()) == {"UnsupportedVersionException"}
