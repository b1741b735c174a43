"""Read, process, write: each input once in the output, whatever is aborted and whoever wakes late.

Through stock clients: offsets that are read are committed with the transaction that holds what was
made of them. Readers with both isolation levels look at what came of it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import (
    TIMEOUT_S,
    confluent_consumer,
    confluent_producer,
    create_topic,
)

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "group.initial.rebalance.delay.ms": "0",
    "diskless.metadata.topic.num.partitions": "3",
}
INPUTS: Final = 40
PARTITIONS: Final = 2
AT_ONCE: Final = 8


@pytest.fixture
def topics(broker: LiveBroker, admin: AdminClient, topic: str) -> tuple[str, str]:
    """One with INPUTS numbers, and an empty one for what is made of them."""
    made = f"{topic}-made"
    for name in (topic, made):
        create_topic(admin, name, PARTITIONS)
    producer = confluent_producer(broker.bootstrap)
    for number in range(INPUTS):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0
    return topic, made


def read(broker: LiveBroker, topic: str, isolation: str) -> list[str]:
    """Everything that a reader sees, up to the end that it is told."""
    consumer = confluent_consumer(
        broker.bootstrap, isolation_level=isolation, enable_partition_eof=True
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[str] = []
    at_end: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(100, timeout=0.1):
            error = message.error()
            if error is None:
                found.append(message.value().decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(message.partition())
        return len(at_end) == PARTITIONS

    until(is_read, f"the end of {topic}")
    consumer.close()
    return sorted(found)


def made_of(inputs: Sequence[str]) -> list[str]:
    return sorted(f"made of {value}" for value in inputs)


ALL: Final = made_of([str(number) for number in range(INPUTS)])


def positions(consumer: Consumer) -> list[TopicPartition]:
    places = consumer.position(consumer.assignment())
    return [place for place in places if place.offset >= 0]


def test_librdkafka_reads_processes_and_writes_each_record_once(
    broker: LiveBroker, topics: tuple[str, str]
) -> None:
    given, made = topics
    settings = {"auto_offset_reset": "earliest", "group_id": given}
    consumer = confluent_consumer(broker.bootstrap, isolation_level="read_committed", **settings)
    consumer.subscribe([given])
    producer = confluent_producer(broker.bootstrap, transactional_id=given)
    producer.init_transactions(TIMEOUT_S)
    done = rounds = 0
    while done < INPUTS:
        messages = consumer.consume(AT_ONCE, timeout=0.2)
        if not messages:
            continue
        rounds += 1
        producer.begin_transaction()
        for message in messages:
            assert message.error() is None, message.error()
            value = b"made of " + message.value()
            producer.produce(made, value, partition=message.partition())
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(positions(consumer), metadata, TIMEOUT_S)
        if rounds % 3 == 1:
            assert producer.flush(TIMEOUT_S) == 0
            producer.abort_transaction(TIMEOUT_S)
            # Back to what is committed, as a program does that starts again.
            for place in consumer.committed(consumer.assignment(), TIMEOUT_S):
                consumer.seek(TopicPartition(given, place.partition, max(place.offset, 0)))
            continue
        producer.commit_transaction(TIMEOUT_S)
        done += len(messages)
    offsets = consumer.committed(consumer.assignment(), TIMEOUT_S)
    assert sum(place.offset for place in offsets) == INPUTS
    consumer.close()
    assert read(broker, made, "read_committed") == ALL
    uncommitted = read(broker, made, "read_uncommitted")
    assert len(uncommitted) > INPUTS, "what was aborted is there as long as it is not rolled"
    assert {*uncommitted} == {*ALL}


async def test_aiokafka_reads_processes_and_writes_each_record_once(
    broker: LiveBroker, topics: tuple[str, str]
) -> None:
    given, made = topics
    consumer = AIOKafkaConsumer(
        given,
        bootstrap_servers=broker.bootstrap,
        group_id=given,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=given)
    done = rounds = 0
    async with consumer, producer, asyncio.timeout(TIMEOUT_S):
        while done < INPUTS:
            found = await consumer.getmany(timeout_ms=100, max_records=AT_ONCE)
            if not found:
                continue
            rounds += 1
            try:
                async with producer.transaction():
                    for place, messages in found.items():
                        for message in messages:
                            value = b"made of " + message.value
                            await producer.send(made, value, partition=place.partition)
                    offsets = {place: ms[-1].offset + 1 for place, ms in found.items()}
                    await producer.send_offsets_to_transaction(offsets, given)
                    if rounds % 3 == 1:
                        raise _TakenBackError
            except _TakenBackError:
                for place in found:
                    committed = await consumer.committed(place)
                    consumer.seek(place, committed or 0)
                continue
            done += sum(map(len, found.values()))
        places = [AioTopicPartition(given, index) for index in range(PARTITIONS)]
        assert [await consumer.committed(place) for place in places] == [INPUTS // 2] * 2
    assert read(broker, made, "read_committed") == ALL
    assert {*read(broker, made, "read_uncommitted")} == {*ALL}


class _TakenBackError(Exception):
    """The transaction is to be aborted."""


def test_a_producer_that_wakes_after_its_successor_began_is_fenced(
    broker: LiveBroker, topics: tuple[str, str]
) -> None:
    given, made = topics
    paused = confluent_producer(broker.bootstrap, transactional_id=given)
    paused.init_transactions(TIMEOUT_S)
    paused.begin_transaction()
    paused.produce(made, b"of a zombie", partition=0)
    assert paused.flush(TIMEOUT_S) == 0
    successor = confluent_producer(broker.bootstrap, transactional_id=given)
    successor.init_transactions(TIMEOUT_S)
    successor.begin_transaction()
    successor.produce(made, b"of its successor", partition=0)
    paused.produce(made, b"of a zombie, too late", partition=0)
    with pytest.raises(KafkaException) as raised:
        paused.commit_transaction(TIMEOUT_S)
    assert raised.value.args[0].fatal()
    assert raised.value.args[0].code() == KafkaError._FENCED
    successor.commit_transaction(TIMEOUT_S)
    assert read(broker, made, "read_committed") == ["of its successor"]
    assert "of a zombie, too late" not in read(broker, made, "read_uncommitted")
