"""Load by the stock client: librdkafka through confluent-kafka.

Messages go in through `produce_batch` and come out through `consume`, so that Python's share is one
call per thousands of records; what is measured is librdkafka, the loopback device and the broker.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

TOPIC = "bench"
NO_SETTINGS: Final[Mapping[str, object]] = {}
CHUNK_RECORDS = 2_000
"""Records per produce_batch call."""


class Measured(NamedTuple):
    """One run."""

    records: int
    bytes: int
    seconds: float

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e6

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


def payload(record_bytes: int) -> bytes:
    """Incompressible enough that nobody can cheat: a fixed pseudo-random text."""
    import random

    return random.Random(record_bytes).randbytes(record_bytes)


def producer(bootstrap: str, settings: Mapping[str, object] = NO_SETTINGS) -> Producer:
    """librdkafka as the figures want it; `settings` are its own keys."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.size": 1_000_000,
            "linger.ms": 20,
            "queue.buffering.max.messages": 400_000,
            "queue.buffering.max.kbytes": 96 << 10,
            "message.timeout.ms": 120_000,
            **settings,
        }
    )


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create `topic`; it is there when this returns. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    for created in admin.create_topics([wanted], operation_timeout=60).values():
        created.result()


def produce(
    bootstrap: str,
    *,
    record_bytes: int,
    total_bytes: int,
    partitions: int,
    topic: str = TOPIC,
    settings: Mapping[str, object] = NO_SETTINGS,
    call_records: int = CHUNK_RECORDS,
) -> Measured:
    """Produce about `total_bytes`, all of them acknowledged when this returns.

    `call_records` of them go to one partition, as many to the next partition, and so on. The clock
    starts when a first record, which does not count, is acknowledged: the client is connected then,
    and an idempotent one has its producer id, which librdkafka lets it wait half a second for.
    """
    client = producer(bootstrap, settings)
    failures: list[object] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)

    client.list_topics(topic, timeout=30)
    calls = max(1, total_bytes // (record_bytes * call_records))
    value = payload(record_bytes)
    client.produce(topic, value, partition=0)
    while client.flush(1.0):
        pass
    started = time.perf_counter()
    for call in range(calls):
        messages = [{"value": value}] * call_records
        while True:
            taken = client.produce_batch(topic, messages, partition=call % partitions)
            if taken == len(messages):
                break
            messages = messages[taken:]
            client.poll(0.005)
    while client.flush(1.0):
        pass
    seconds = time.perf_counter() - started
    if failures:
        raise KafkaException(failures[0])
    records = calls * call_records
    return Measured(records, records * record_bytes, seconds)


def consumer(
    bootstrap: str,
    partitions: int,
    topic: str = TOPIC,
    offset: int = 0,
    settings: Mapping[str, object] = NO_SETTINGS,
) -> Consumer:
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 2_000_000,
            "queued.max.messages.kbytes": 128 << 10,
            "fetch.wait.max.ms": 100,
            "check.crcs": False,
            **settings,
        }
    )
    client.assign([TopicPartition(topic, index, offset) for index in range(partitions)])
    return client


def consume(client: Consumer, records: int, record_bytes: int) -> Measured:
    """Read exactly `records` records from an assigned consumer."""
    left = records
    started = time.perf_counter()
    while left > 0:
        messages = client.consume(min(left, 10_000), timeout=30.0)
        if not messages:
            raise TimeoutError(f"{left:,} of {records:,} records did not come")
        for message in messages[:1]:
            if message.error() is not None:
                raise KafkaException(message.error())
        left -= len(messages)
    return Measured(records, records * record_bytes, time.perf_counter() - started)


def best(runs: Sequence[Measured]) -> Measured:
    """The fastest of several: noise on a shared machine only ever slows a run down."""
    return max(runs, key=lambda run: run.bytes / run.seconds)
