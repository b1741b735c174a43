"""A topic with records of every kind, as the tests of the Spark source produce and consume it."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.brokers.live_broker import LiveBroker

TOPIC: Final = "flights"
PARTITIONS: Final = 2
TIME_MS: Final = 1_700_000_000_000

Headers = tuple[tuple[str, bytes | None], ...]


class Flight(NamedTuple):
    """A record as a consumer sees it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def produce_flights(broker: LiveBroker, first: int, count: int) -> None:
    """Records number `first` and on, a millisecond apart, by turns to each partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "zstd"})
    for number in range(first, first + count):
        producer.produce(
            TOPIC,
            key=None if number % 3 == 0 else b"%d" % number,
            value=None if number % 7 == 0 else b"value of %d" % number,
            headers=[("n", b"%d" % number), ("n", None)] if number % 2 else None,
            partition=number % PARTITIONS,
            timestamp=TIME_MS + number,
        )
    assert producer.flush(60) == 0


def consumed_flights(broker: LiveBroker, count: int) -> Mapping[int, Sequence[Flight]]:
    """All records, by partition, as librdkafka reads them."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test"})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: dict[int, list[Flight]] = {number: [] for number in range(PARTITIONS)}
    while (missing := count - sum(map(len, found.values()))) > 0:
        # It waits for as many as it is asked for, or to the end of its time.
        for message in consumer.consume(min(missing, 1_000), 10):
            assert message.error() is None
            _, timestamp_ms = message.timestamp()
            headers = tuple(message.headers() or ())
            number, offset = message.partition(), message.offset()
            flight = Flight(number, offset, timestamp_ms, message.key(), message.value(), headers)
            found[number].append(flight)
    consumer.close()
    return found
