"""The clients of the matrix: each with the ways it has to read many topics at once.

`as_old_as` makes a running broker as old as a release of Kafka: APIs and versions that the release
did not have are neither served nor advertised, so that every client falls back to what it would say
to that release.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import TopicPartition

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients import stock_clients as clients
from tests.support.clients.java_client import JavaKafka
from tests.support.clients.kafkajs import KafkaJs, grouped
from tests.support.clients.kcat import Kcat

__all__ = [
    "CONSUMER_GROUP_HEARTBEAT",
    "OWN",
    "RELEASES",
    "Reader",
    "as_old_as",
    "readers",
    "serves",
]

Counts = Mapping[str, int]
Found = dict[str, list[clients.StoredRecord]]

OWN: Final = "own"
RELEASES: Final = {"0.11": (0, 11), "2.1": (2, 1), "2.8": (2, 8), OWN: None}
"""Without zstd and idempotence; with both; with flexible versions; what we serve."""
API_VERSIONS: Final = 18
CONSUMER_GROUP_HEARTBEAT: Final = 68

_groups = itertools.count()


@contextmanager
def as_old_as(broker: LiveBroker, release: str) -> Iterator[None]:
    """For as long as it lasts; connections made before or after should not be used within."""
    number = RELEASES[release]
    registry = broker.broker.server._shared.apis
    served = registry._apis
    if number is not None:
        known = clients.broker_api_versions(number)
        registry._apis = {
            # ApiVersions itself stays as it is: it answers any version, and must be readable.
            key: (
                api
                if key == API_VERSIONS
                else replace(
                    api, versions=range(api.min_version, min(api.max_version, known[key]) + 1)
                )
            )
            for key, api in served.items()
            if key in known and known[key] >= api.min_version
        }
    try:
        yield
    finally:
        registry._apis = served


def serves(broker: LiveBroker, key: int) -> bool:
    """Whether clients are told of this API now."""
    api = broker.broker.server._shared.apis.find(key)
    return api is not None and api.is_advertised


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One way in which one client reads."""

    client: str
    protocol: str
    """"assign" for none, else that of the group."""
    read_all: Callable[[str, Counts], Found]
    """(bootstrap, how many records of partition 0 of which topics)"""
    shows: Callable[[clients.Record], clients.Record] = lambda record: record
    """What the client's interface tells of a record."""


def readers(kafkajs: KafkaJs | None, kcat: Kcat | None, java: Sequence[JavaKafka]) -> list[Reader]:
    """All ways of all clients that are there."""
    found = [
        Reader(client="confluent-kafka", protocol=protocol, read_all=_confluent(protocol))
        for protocol in ("assign", "classic", "consumer")
    ]
    for protocol in ("assign", "classic"):
        found.append(
            Reader(client="kafka-python", protocol=protocol, read_all=_kafka_python(protocol))
        )
        found.append(Reader(client="aiokafka", protocol=protocol, read_all=_aiokafka(protocol)))
    found += [
        Reader(client=one.name, protocol=protocol, read_all=_java(one, protocol))
        for one in java
        for protocol in ("assign", "classic", "consumer")
    ]
    if kafkajs is not None:
        found.append(
            Reader(
                client=kafkajs.name,
                protocol="classic",
                read_all=kafkajs.read_all,
                shows=lambda record: record._replace(headers=grouped(record.headers)),
            )
        )
    if kcat is not None:
        found.append(Reader(client=kcat.name, protocol="assign", read_all=kcat.read_all))
        found.append(
            Reader(
                client=kcat.name,
                protocol="classic",
                read_all=lambda bootstrap, counts: kcat.read_in_group(
                    bootstrap, counts, _group("kcat")
                ),
            )
        )
    return found


def _group(client: str) -> str:
    return f"{client}-{next(_groups)}"


class _Collected:
    """What was read so far, and how much is missing."""

    def __init__(self, counts: Counts) -> None:
        self.found: Found = {topic: [] for topic in counts}
        self._missing = sum(counts.values())
        self._ends_at = time.monotonic() + clients.TIMEOUT_S

    def add(self, topic: str, record: clients.StoredRecord) -> None:
        self.found[topic].append(record)
        self._missing -= 1

    def is_whole(self) -> bool:
        """Fails when it takes too long."""
        assert time.monotonic() < self._ends_at, f"{self._missing} records did not come"
        return self._missing <= 0


def _confluent(protocol: str) -> Callable[[str, Counts], Found]:
    def read_all(bootstrap: str, counts: Counts) -> Found:
        settings: dict[str, Any] = {} if protocol == "assign" else {"group.protocol": protocol}
        consumer = clients.confluent_consumer(
            bootstrap,
            **{"group.id": _group("confluent"), "auto.offset.reset": "earliest", **settings},
        )
        collected = _Collected(counts)
        with closing(consumer):
            if protocol == "assign":
                consumer.assign([TopicPartition(topic, 0, 0) for topic in counts])
            else:
                consumer.subscribe(list(counts))
            while not collected.is_whole():
                for message in consumer.consume(1_000, timeout=0.1):
                    record = clients.stored(message)
                    collected.add(str(message.topic()), record)
        return collected.found

    return read_all


def _kafka_python(protocol: str) -> Callable[[str, Counts], Found]:
    def read_all(bootstrap: str, counts: Counts) -> Found:
        consumer = clients.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None if protocol == "assign" else _group("kafka-python"),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        collected = _Collected(counts)
        try:
            if protocol == "assign":
                consumer.assign([clients.PythonTopicPartition(topic, 0) for topic in counts])
            else:
                consumer.subscribe(list(counts))
            while not collected.is_whole():
                for place, messages in consumer.poll(timeout_ms=100, max_records=1_000).items():
                    for message in messages:
                        collected.add(place.topic, _of_python(message))
        finally:
            consumer.close()
        return collected.found

    return read_all


def _aiokafka(protocol: str) -> Callable[[str, Counts], Found]:
    async def read_all(bootstrap: str, counts: Counts) -> Found:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None if protocol == "assign" else _group("aiokafka"),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        collected = _Collected(counts)
        async with consumer:
            if protocol == "assign":
                consumer.assign([AioTopicPartition(topic, 0) for topic in counts])
            else:
                consumer.subscribe(list(counts))
            while not collected.is_whole():
                for place, messages in (await consumer.getmany(timeout_ms=100)).items():
                    for message in messages:
                        collected.add(place.topic, _of_python(message))
        return collected.found

    return lambda bootstrap, counts: asyncio.run(read_all(bootstrap, counts))


def _java(client: JavaKafka, protocol: str) -> Callable[[str, Counts], Found]:
    def read_all(bootstrap: str, counts: Counts) -> Found:
        if protocol == "assign":
            return client.read_all(bootstrap, counts)
        member = {"group_id": _group(client.name), "group_protocol": protocol}
        return client.read_all(bootstrap, counts, **member)

    return read_all


def _of_python(message: Any) -> clients.StoredRecord:
    """A record of kafka-python or aiokafka, which name the fields alike."""
    headers: Sequence[tuple[str, bytes | None]] = message.headers
    return clients.StoredRecord(
        message.offset,
        clients.Record(message.key, message.value, tuple(headers), message.timestamp),
    )
