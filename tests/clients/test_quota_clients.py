"""Stock clients over their quotas: they are told, they wait, and they lose nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition

from metadata.operations import AlterClientQuotas
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients

pytestmark = pytest.mark.clients

SETTINGS = {"wal.commit.interval.ms": "5", "quota.window.num": "2"}
QUOTA = 400_000
"""Bytes a second; as much may come at once."""
RECORDS = [clients.Record(b"%d" % number, bytes(10_000)) for number in range(100)]
"""Two and a half seconds' worth of the quota."""


@pytest.fixture
def limit(broker: LiveBroker) -> Iterator[Callable[..., None]]:
    """Set quotas of all client ids that have none of their own, until the test ends."""

    def set_default(**changes: float | None) -> None:
        request = AlterClientQuotas(entity=(("client-id", None),), changes=changes)
        errors = broker.run(broker.broker.coordination.client.alter_client_quotas([request]))
        assert errors == [None]

    yield set_default
    set_default(producer_byte_rate=None, consumer_byte_rate=None)


def throttled(broker: LiveBroker, api: str) -> int:
    return broker.broker.coordination.quotas.statistics()[api].requests


def confluent(kind: type[Any], broker: LiveBroker, **settings: Any) -> tuple[Any, list[int]]:
    """A client, and where it collects the waits that it is told, in milliseconds."""
    told: list[int] = []

    def on_throttle(event: ThrottleEvent) -> None:
        assert event.broker_id == broker.broker.base.node_id
        told.append(round(event.throttle_time * 1000))

    client = kind(
        {
            "bootstrap.servers": broker.bootstrap,
            "throttle_cb": on_throttle,
            "logger": clients.QUIET,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    return client, told


@pytest.mark.parametrize("acks", [1, -1])
def test_librdkafkas_producer_is_told_and_loses_nothing(
    broker: LiveBroker, topic: str, limit: Callable[..., None], acks: int
) -> None:
    limit(producer_byte_rate=float(QUOTA))
    producer, told = confluent(
        Producer, broker, client_id=f"producer-{topic}", acks=acks, batch_size=50_000, linger_ms=5
    )
    for record in RECORDS:
        producer.produce(topic, record.value, record.key, timestamp=record.timestamp_ms)
    until(lambda: producer.flush(0.1) == 0, "the acknowledgements", deadline_s=clients.TIMEOUT_S)
    until(lambda: producer.poll(0) >= 0 and max(told, default=0) > 0, "a throttle event")
    assert throttled(broker, "Produce") > 0
    stored = clients.ConfluentKafka().read(broker.bootstrap, topic, len(RECORDS))
    assert [found.record for found in stored] == RECORDS


@pytest.mark.parametrize(
    "client", [clients.KafkaPython(), clients.AioKafka()], ids=lambda client: client.name
)
def test_other_producers_wait_and_lose_nothing(
    broker: LiveBroker, topic: str, limit: Callable[..., None], client: clients.StockClient
) -> None:
    # Every record takes all of a second's quota, so that no machine is too slow to exceed it.
    records = [clients.Record(b"%d" % number, bytes(30_000)) for number in range(4)]
    limit(producer_byte_rate=30_000.0)
    before = throttled(broker, "Produce")
    offsets = client.produce(broker.bootstrap, topic, records)
    assert offsets == list(range(len(records)))
    assert throttled(broker, "Produce") > before
    limit(producer_byte_rate=None)
    stored = client.read(broker.bootstrap, topic, len(records))
    assert [found.record for found in stored] == records


def test_acks_0_is_held_back_by_its_connection_alone(
    broker: LiveBroker, topic: str, limit: Callable[..., None]
) -> None:
    limit(producer_byte_rate=float(QUOTA))
    before = throttled(broker, "Produce")
    clients.ConfluentKafka().produce(broker.bootstrap, topic, RECORDS, acks=0)
    stored = clients.ConfluentKafka().read(broker.bootstrap, topic, len(RECORDS))
    assert [found.record for found in stored] == RECORDS
    assert throttled(broker, "Produce") > before


def test_librdkafkas_consumer_is_told_and_reads_everything(
    broker: LiveBroker, topic: str, limit: Callable[..., None]
) -> None:
    clients.ConfluentKafka().produce(broker.bootstrap, topic, RECORDS)
    limit(consumer_byte_rate=float(QUOTA))
    consumer, told = confluent(
        Consumer, broker, client_id=f"consumer-{topic}", group_id="g", enable_auto_commit=False
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[tuple[bytes, bytes]] = []

        def has_read_all() -> bool:
            messages = consumer.consume(len(RECORDS), timeout=0.2)
            assert not [message.error() for message in messages if message.error()]
            values.extend((message.key(), message.value()) for message in messages)
            return len(values) >= len(RECORDS)

        until(has_read_all, "all records", deadline_s=clients.TIMEOUT_S)
        assert values == [(record.key, record.value) for record in RECORDS]
        assert max(told, default=0) > 0


def test_kafka_pythons_consumer_reads_everything(
    broker: LiveBroker, topic: str, limit: Callable[..., None]
) -> None:
    clients.ConfluentKafka().produce(broker.bootstrap, topic, RECORDS)
    limit(consumer_byte_rate=float(QUOTA))
    before = throttled(broker, "Fetch")
    consumer = clients.KafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    with closing(consumer):
        place = clients.PythonTopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        keys: list[bytes] = []

        def has_read_all() -> bool:
            polled: dict[Any, Sequence[Any]] = consumer.poll(timeout_ms=200)
            keys.extend(message.key for messages in polled.values() for message in messages)
            return len(keys) >= len(RECORDS)

        until(has_read_all, "all records", deadline_s=clients.TIMEOUT_S)
    assert keys == [record.key for record in RECORDS]
    assert throttled(broker, "Fetch") > before


def test_who_has_no_quota_does_not_wait(
    broker: LiveBroker, topic: str, limit: Callable[..., None]
) -> None:
    limit(producer_byte_rate=1.0, consumer_byte_rate=1.0)
    # A quota of its own comes before the default.
    request = AlterClientQuotas(
        entity=(("client-id", "free"),),
        changes={"producer_byte_rate": 1e15, "consumer_byte_rate": 1e15},
    )
    assert broker.run(broker.broker.coordination.client.alter_client_quotas([request])) == [None]
    before = throttled(broker, "Produce")
    producer, told = confluent(Producer, broker, client_id="free")
    for record in RECORDS:
        producer.produce(topic, record.value, record.key)
    assert producer.flush(clients.TIMEOUT_S) == 0
    assert told == []
    assert throttled(broker, "Produce") == before
