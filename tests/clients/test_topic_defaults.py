"""What topics have that set nothing themselves is what the broker was configured with."""

import pytest
from confluent_kafka.admin import AlterConfigOpType as Operation
from confluent_kafka.admin import ConfigEntry, ConfigResource, NewTopic, ResourceType

from diskless.config import load_config
from diskless.topics.topic_defaults import topic_defaults
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients import stock_clients as clients

pytestmark = pytest.mark.clients

SETTINGS = {
    "message.max.bytes": "20000",
    "log.message.timestamp.type": "LogAppendTime",
    "log.cleanup.policy": "compact",
    "compression.type": "zstd",
    "wal.commit.interval.ms": "10",
}


def test_only_what_differs_is_told() -> None:
    assert topic_defaults(load_config().values()) == {}
    assert topic_defaults(load_config(overrides=SETTINGS).values()) == {
        "max.message.bytes": "20000",
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "compact",
        "compression.type": "zstd",
    }


def test_batches_are_judged_by_the_brokers_defaults(broker: LiveBroker) -> None:
    client = clients.ConfluentKafka()
    assert client.produce(broker.bootstrap, "t", [clients.Record(key=b"k", timestamp_ms=5)]) == [0]
    (stored,) = clients.KafkaPython().read(broker.bootstrap, "t", 1)
    assert stored.record.timestamp_ms > 1_700_000_000_000
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        client.produce(broker.bootstrap, "t", [clients.Record(key=b"k", value=b"x" * 30_000)])
    with pytest.raises(AssertionError, match="INVALID_RECORD"):
        client.produce(broker.bootstrap, "t", [clients.Record(key=None)])


def test_what_a_topic_sets_wins_over_the_brokers_default(broker: LiveBroker) -> None:
    admin = clients.confluent_admin(broker.bootstrap)
    own = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
    admin.create_topics([NewTopic("own", 1, config=own)])["own"].result(clients.TIMEOUT_S)
    client = clients.ConfluentKafka()
    client.produce(broker.bootstrap, "own", [clients.Record(key=None, timestamp_ms=1_000)])
    resource = ConfigResource(ResourceType.TOPIC, "own")
    shown = admin.describe_configs([resource])[resource].result(clients.TIMEOUT_S)
    assert shown["max.message.bytes"].value == "20000"
    assert shown["max.message.bytes"].synonyms.keys() == {"message.max.bytes"}
    raised = ConfigEntry("max.message.bytes", "50000", incremental_operation=Operation.SET)
    resource = ConfigResource(ResourceType.TOPIC, "own", incremental_configs=[raised])
    admin.incremental_alter_configs([resource])[resource].result(clients.TIMEOUT_S)
    client.produce(
        broker.bootstrap, "own", [clients.Record(value=b"x" * 30_000, timestamp_ms=1_000)]
    )
    first, second = clients.KafkaPython().read(broker.bootstrap, "own", 2)
    assert (first.record.timestamp_ms, second.record.timestamp_ms) == (1_000, 1_000)
