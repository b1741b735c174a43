"""confluent-kafka, kafka-python and aiokafka behind one face: send these records, read them back.

Each client does it with its own defaults for whatever a test does not ask for; the differences in
spelling are here and nowhere else. Everything blocks and has a deadline.
"""

import asyncio
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PythonTopicPartition
    from kafka.errors import RebalanceInProgressError
    from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from tests.support.clients.refused_sockets import close_refused_sockets

__all__ = [
    "CODECS",
    "QUIET",
    "STOCK_CLIENTS",
    "TIMEOUT_S",
    "AIOKafkaProducer",
    "AioKafka",
    "ConfluentKafka",
    "Headers",
    "KafkaAdminClient",
    "KafkaConsumer",
    "KafkaProducer",
    "KafkaPython",
    "PythonTopicPartition",
    "RebalanceInProgressError",
    "Record",
    "Sending",
    "StockClient",
    "StoredRecord",
    "broker_api_versions",
    "confluent_admin",
    "confluent_consumer",
    "confluent_producer",
    "create_topic",
    "place_of",
    "stored",
    "value_of",
]

TIMEOUT_S: Final = 60

close_refused_sockets()
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

Headers = tuple[tuple[str, bytes | None], ...]

QUIET: Final = logging.getLogger("tests.stock-clients")
"""librdkafka reports every connection that a stopping broker closes; tests expect those."""
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


class Record(NamedTuple):
    """What is sent, and what must come back."""

    key: bytes | None = None
    value: bytes | None = b"value"
    headers: Headers = ()
    timestamp_ms: int = 1_700_000_000_000


class StoredRecord(NamedTuple):
    """A record where a consumer found it."""

    offset: int
    record: Record


class Sending(NamedTuple):
    """Where records go, and how."""

    partition: int = 0
    codec: str = "none"
    idempotent: bool = False
    acks: int = -1


class StockClient(ABC):
    """One client library."""

    name: str

    @abstractmethod
    def can_send(self, record: Record) -> bool:
        """Whether its interface allows the record; any of them can read all of them."""

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Record], **how: Any
    ) -> list[int]:
        """Send all; the offsets that the acknowledgements named. Without acks they mean nothing.

        `how` has the fields of `Sending`. Raises an exception of the client when a record is
        refused.
        """
        return self.send(bootstrap, topic, records, Sending(**how))

    @abstractmethod
    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], how: Sending
    ) -> list[int]:
        """The same."""

    @abstractmethod
    def read(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[StoredRecord]:
        """`count` records from `offset` on. Fails when they do not come."""


def confluent_send(
    producer: Producer, topic: str, records: Sequence[Record], partition: int = 0
) -> list[int]:
    """Send all by a producer that is there; the offsets that the acknowledgements named."""
    offsets = [-1] * len(records)
    errors: list[KafkaError] = []

    def delivered(number: int) -> Any:
        def store(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            elif (offset := message.offset()) is not None and offset >= 0:
                offsets[number] = offset

        return store

    for number, record in enumerate(records):
        producer.produce(
            topic,
            record.value,
            record.key,
            partition,
            on_delivery=delivered(number),
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors, errors
    return offsets


class ConfluentKafka(StockClient):
    """librdkafka."""

    name = "confluent-kafka"

    def can_send(self, record: Record) -> bool:
        return True

    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], how: Sending
    ) -> list[int]:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": how.codec,
                "enable.idempotence": how.idempotent,
                "acks": how.acks,
                "linger.ms": 5,
                "logger": QUIET,
            }
        )
        return confluent_send(producer, topic, records, how.partition)

    def read(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[StoredRecord]:
        found: list[StoredRecord] = []
        consumer = confluent_consumer(bootstrap)
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            while len(found) < count:
                messages = consumer.consume(count - len(found), timeout=TIMEOUT_S)
                assert messages, f"{len(found)} of {count} records came"
                found += [stored(message) for message in messages]
        finally:
            consumer.close()
        return found


class KafkaPython(StockClient):
    """kafka-python."""

    name = "kafka-python"

    def can_send(self, record: Record) -> bool:
        return _has_key_or_value(record) and all(value is not None for _, value in record.headers)

    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], how: Sending
    ) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if how.codec == "none" else how.codec,
            enable_idempotence=how.idempotent,
            acks="all" if how.acks == -1 else how.acks,
            linger_ms=5,
        )
        try:
            sends = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=how.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            return [send.get(TIMEOUT_S).offset for send in sends]
        finally:
            producer.close()

    def read(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[StoredRecord]:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            consumer_timeout_ms=TIMEOUT_S * 1000,
        )
        try:
            place = PythonTopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            messages = [next(consumer) for _ in range(count)]
        finally:
            consumer.close()
        return [
            StoredRecord(m.offset, Record(m.key, m.value, tuple(m.headers), m.timestamp))
            for m in messages
        ]


class AioKafka(StockClient):
    """aiokafka."""

    name = "aiokafka"

    def can_send(self, record: Record) -> bool:
        return _has_key_or_value(record)

    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], how: Sending
    ) -> list[int]:
        async def work() -> list[int]:
            async with (
                asyncio.timeout(TIMEOUT_S),
                AIOKafkaProducer(
                    bootstrap_servers=bootstrap,
                    compression_type=None if how.codec == "none" else how.codec,
                    enable_idempotence=how.idempotent,
                    acks="all" if how.acks == -1 else how.acks,
                    linger_ms=5,
                ) as producer,
            ):
                sends = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        how.partition,
                        record.timestamp_ms,
                        list(record.headers),
                    )
                    for record in records
                ]
                return [result.offset if (result := await send) else -1 for send in sends]

        return asyncio.run(work())

    def read(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[StoredRecord]:
        async def work() -> list[StoredRecord]:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
            async with asyncio.timeout(TIMEOUT_S), consumer:
                place = AioTopicPartition(topic, partition)
                consumer.assign([place])
                consumer.seek(place, offset)
                messages = [await consumer.getone() for _ in range(count)]
            return [
                StoredRecord(m.offset, Record(m.key, m.value, tuple(m.headers), m.timestamp))
                for m in messages
            ]

        return asyncio.run(work())


STOCK_CLIENTS: Final[Sequence[StockClient]] = (ConfluentKafka(), KafkaPython(), AioKafka())


def _has_key_or_value(record: Record) -> bool:
    return record.key is not None or record.value is not None


def confluent_consumer(bootstrap: str, **settings: Any) -> Consumer:
    """A librdkafka consumer without a group; `settings` with `_` for `.`."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "logger": QUIET,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def confluent_producer(bootstrap: str, **settings: Any) -> Producer:
    """A librdkafka producer; `settings` with `_` for `.`."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 2,
            "logger": QUIET,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def confluent_admin(bootstrap: str) -> AdminClient:
    """A librdkafka administrator."""
    return AdminClient({"bootstrap.servers": bootstrap}, logger=QUIET)


def create_topic(admin: AdminClient, topic: str, partitions: int = 1, **configs: str) -> None:
    """`configs` with `_` for `.`."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create_topics([NewTopic(topic, partitions, config=named)])[topic].result(TIMEOUT_S)


def broker_api_versions(release: tuple[int, ...]) -> dict[int, int]:
    """The greatest version of every API of a release of Kafka, as kafka-python knows them."""
    return {int(key): greatest for key, (_, greatest) in BROKER_API_VERSIONS[release].items()}


def place_of(message: Message) -> tuple[int, int]:
    """(partition, offset) of what a librdkafka consumer got. Fails when that is an error."""
    assert message.error() is None, message.error()
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def value_of(message: Message) -> bytes:
    """The value of a record that has one."""
    value = message.value()
    assert value is not None
    return value


def stored(message: Message) -> StoredRecord:
    """What a librdkafka consumer got. Fails when that is an error."""
    return StoredRecord(
        place_of(message)[1],
        Record(
            message.key(),
            message.value(),
            tuple(message.headers() or ()),  # type: ignore[arg-type]
            message.timestamp()[1],
        ),
    )
