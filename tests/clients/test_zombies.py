"""Producers that come too late: whose successor has begun, whose transaction has ended.

They speak the classic protocol, in which an epoch is not the name of one transaction. What it
cannot tell is shown by the last test.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import QUIET, TIMEOUT_S, create_topic
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.questions.raw_producer import RawProducer, find_coordinator

pytestmark = pytest.mark.clients

SETTINGS: Final = {"wal.commit.interval.ms": "5"}
PARTITIONS: Final = 2
FENCED: Final = {47, 90}
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED."""
INVALID_TXN_STATE: Final = 48
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45


@pytest.fixture
async def client(broker: LiveBroker, topic: str, admin: AdminClient) -> AsyncIterator[RawClient]:
    create_topic(admin, topic, PARTITIONS)
    host, _, port = broker.bootstrap.rpartition(":")
    client = await RawClient.connect((host, int(port)))
    await find_coordinator(client, topic)
    yield client
    await client.close()


def committed(broker: LiveBroker, topic: str, partition: int = 0) -> Sequence[bytes | None]:
    """What a reader of committed records finds there, to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "logger": QUIET,
        }
    )
    found: list[bytes | None] = []
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            error = message.error()
            if error is None:
                found.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()


async def test_a_producer_whose_successor_began_is_fenced_at_every_api(
    broker: LiveBroker, client: RawClient, topic: str
) -> None:
    zombie = await RawProducer.init(client, topic)
    assert await zombie.add(topic) == 0
    assert await zombie.produce(topic, 0, b"of the zombie") == 0
    assert await zombie.add_group("g") == 0
    successor = await RawProducer.init(client, topic)
    assert await successor.add(topic) == 0
    assert await zombie.produce(topic, 1) in FENCED
    assert await zombie.produce(topic, 0, partition=1) in FENCED
    assert await zombie.add(topic) in FENCED
    assert await zombie.add(topic, 1) in FENCED
    assert await zombie.add_group("g") in FENCED
    assert await zombie.commit_offset("g", topic, 1) in FENCED
    assert await zombie.end(is_commit=True) in FENCED
    assert await zombie.end(is_commit=False) in FENCED
    assert await zombie.init_again() in FENCED
    assert await successor.produce(topic, 0, b"of its successor") == 0
    assert await successor.end(is_commit=True) == 0
    assert committed(broker, topic) == [b"of its successor"]
    assert committed(broker, topic, 1) == []


async def test_a_batch_that_comes_after_its_transaction_ended_opens_nothing(
    broker: LiveBroker, client: RawClient, topic: str
) -> None:
    producer = await RawProducer.init(client, topic)
    for is_commit in (True, False):
        first = 0 if is_commit else 1
        assert await producer.add(topic) == 0
        assert await producer.produce(topic, first, b"%d" % first) == 0
        assert await producer.end(is_commit=is_commit) == 0
        assert await producer.produce(topic, first + 1, b"late") == INVALID_TXN_STATE
    assert committed(broker, topic) == [b"0"]


async def test_a_late_batch_does_not_land_where_the_next_transaction_is_not(
    broker: LiveBroker, client: RawClient, topic: str
) -> None:
    producer = await RawProducer.init(client, topic)
    assert await producer.add(topic) == 0
    assert await producer.produce(topic, 0, b"first") == 0
    assert await producer.end(is_commit=True) == 0
    assert await producer.add(topic, 1) == 0
    assert await producer.produce(topic, 1, b"late") == INVALID_TXN_STATE
    assert await producer.produce(topic, 0, b"second", partition=1) == 0
    assert await producer.end(is_commit=True) == 0
    assert committed(broker, topic) == [b"first"]
    assert committed(broker, topic, 1) == [b"second"]


async def test_a_late_batch_does_not_land_in_the_next_transaction_out_of_its_turn(
    broker: LiveBroker, client: RawClient, topic: str
) -> None:
    """It was never answered; the producer has begun anew, and used its sequence for another."""
    producer = await RawProducer.init(client, topic)
    assert await producer.add(topic) == 0
    assert await producer.produce(topic, 0, b"first") == 0
    assert await producer.end(is_commit=True) == 0
    assert await producer.add(topic) == 0
    assert await producer.produce(topic, 3, b"late") == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await producer.produce(topic, 1, b"second") == 0
    await producer.produce(topic, 1, b"late")
    assert await producer.end(is_commit=True) == 0
    assert committed(broker, topic) == [b"first", b"second"]


async def test_only_its_sequence_tells_a_late_batch_from_one_of_the_next_transaction(
    broker: LiveBroker, client: RawClient, topic: str
) -> None:
    """As in Kafka: the batch says its epoch and its sequence, and both are right."""
    producer = await RawProducer.init(client, topic)
    assert await producer.add(topic) == 0
    assert await producer.produce(topic, 0, b"first") == 0
    assert await producer.end(is_commit=True) == 0
    assert await producer.add(topic) == 0
    assert await producer.produce(topic, 1, b"late") == 0
    assert await producer.end(is_commit=True) == 0
    assert committed(broker, topic) == [b"first", b"late"]


async def test_librdkafka_begins_again_where_it_gives_a_sequence_of_an_earlier_transaction(
    broker: LiveBroker, client: RawClient, topic: str
) -> None:
    """It does so behind an abort that did not wait for a batch on its way; here a twin sends that.

    To be told of a duplicate would be a commit of a record that nobody ever sees.
    """
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "logger": QUIET}
    producer = Producer(settings)
    producer.init_transactions(TIMEOUT_S)

    def send(value: bytes, partition: int) -> None:
        producer.begin_transaction()
        producer.produce(topic, value, partition=partition)
        producer.commit_transaction(TIMEOUT_S)

    await asyncio.to_thread(send, b"before", 1)
    listed = await client.ask(66, 0, state_filters=[], producer_id_filters=[])
    (producer_id,) = (
        one.producer_id for one in listed.transaction_states if one.transactional_id == topic
    )
    twin = RawProducer(client, topic, producer_id, producer_epoch=0)
    assert await twin.add(topic) == 0
    assert await twin.produce(topic, 0, b"on its way") == 0
    assert await twin.end(is_commit=False) == 0
    with pytest.raises(KafkaException) as refused:
        await asyncio.to_thread(send, b"refused", 0)
    assert refused.value.args[0].txn_requires_abort()
    await asyncio.to_thread(producer.abort_transaction, TIMEOUT_S)
    await asyncio.to_thread(send, b"again", 0)
    assert committed(broker, topic) == [b"again"]


async def test_a_late_end_is_that_of_the_next_transaction(
    broker: LiveBroker, client: RawClient, topic: str
) -> None:
    """As in Kafka: nothing in the request says which one it was sent for."""
    producer = await RawProducer.init(client, topic)
    assert await producer.add(topic) == 0
    assert await producer.produce(topic, 0, b"first") == 0
    assert await producer.end(is_commit=True) == 0
    assert await producer.end(is_commit=True) == 0
    assert await producer.end(is_commit=False) == INVALID_TXN_STATE
    assert await producer.add(topic) == 0
    assert await producer.produce(topic, 1, b"second") == 0
    assert await producer.end(is_commit=False) == 0
    assert await producer.end(is_commit=True) == INVALID_TXN_STATE
    assert committed(broker, topic) == [b"first"]
