"""Stock clients against the server: librdkafka and kafka-python with flexible versions, aiokafka
with the old ones."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.support.brokers.kafka_fakes import Broker, running_broker

pytestmark = pytest.mark.clients


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker on a uvloop of its own thread, so that blocking clients can be used plainly."""
    started: list[Broker] = []
    is_started = threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(stopping.set))
        async with running_broker() as broker:
            started.append(broker)
            is_started.set()
            await stopping.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="broker")
    thread.start()
    assert is_started.wait(10)
    yield started[0]
    stop[0]()
    thread.join(10)
    assert not thread.is_alive()


def test_librdkafka_creates_produces_consumes_describes_and_deletes(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    created = admin.create_topics([NewTopic("flights", 3, 3, config={"retention.ms": "1000"})])
    created["flights"].result(10)
    refused = admin.create_topics([NewTopic("flights", 3, 3)])["flights"]
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        refused.result(10)

    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
        }
    )
    sent = [f"flight {number}".encode() for number in range(3_000)]
    for number, value in enumerate(sent):
        producer.produce(
            "flights",
            value,
            partition=number % 3,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(10) == 0
    assert not failures

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition("flights", partition, 0) for partition in range(3)])
    received: list[bytes] = []
    while len(received) < len(sent):
        messages = consumer.consume(1_000, timeout=120)
        assert messages, f"only {len(received)} of {len(sent)} records came"
        assert all(message.error() is None for message in messages)
        received += [message.value() for message in messages]
    assert sorted(received) == sorted(sent)
    assert consumer.get_watermark_offsets(TopicPartition("flights", 0), timeout=120) == (0, 1_000)
    consumer.close()

    resource = ConfigResource(ConfigResource.Type.TOPIC, "flights")
    (described,) = admin.describe_configs([resource]).values()
    assert described.result(10)["retention.ms"].value == "1000"
    assert admin.describe_cluster().result(10).cluster_id == "a-cluster"
    admin.delete_topics(["flights"])["flights"].result(10)
    assert "flights" not in admin.list_topics(timeout=120).topics


def test_librdkafka_without_acks_stores_too(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": 0, "linger.ms": 0})
    broker.topics.add("t")
    for number in range(100):
        producer.produce("t", str(number))
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition("t", 0, 0)])
    received: list[object] = []
    while len(received) < 100:
        messages = consumer.consume(100, timeout=120)
        assert messages
        received += messages
    consumer.close()


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
def test_kafka_python_produces_and_consumes_a_topic_made_for_it(broker):
    # Importing it warns as well, so that it has to happen under the filter.
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PythonTopicPartition

    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    futures = [producer.send("made", str(number).encode()) for number in range(500)]
    producer.flush(10)
    assert [future.get(10).offset for future in futures] == list(range(500))
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=10_000)
    partition = PythonTopicPartition("made", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    received = [next(consumer).value for _ in range(500)]
    assert received == [str(number).encode() for number in range(500)]
    assert consumer.end_offsets([partition]) == {partition: 500}
    consumer.close()
    producer.close()


async def test_aiokafka_produces_and_consumes_with_the_old_encodings(broker):
    broker.topics.add("t", partitions=2)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=1) as producer:
        sends = [await producer.send("t", str(n).encode(), partition=n % 2) for n in range(200)]
        for number, send in enumerate(sends):
            assert (await send).offset == number // 2
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    async with consumer:
        partitions = [AioTopicPartition("t", number) for number in range(2)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        received = [(await consumer.getone()).value for _ in range(200)]
        assert sorted(received) == sorted(str(number).encode() for number in range(200))
        assert await consumer.end_offsets(partitions) == dict.fromkeys(partitions, 100)
