"""Stock Kafka clients: confluent-kafka (librdkafka) as anybody would set it up.

`produce` fills a ledger from the delivery reports; `read_all` yields a topic's records from the
beginning. Both call `advance(n)` as they get on, and both give up with StalledError when nothing
moves for a while, so that the demo ends with a message and not with a silence.
"""

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from demo.events import Event, Header
from demo.ledger import Ledger, ReadRecord

STALL_LIMIT_S: Final = 60.0
ADMIN_TIMEOUT_S: Final = 30.0
CONSUME_BATCH_RECORDS: Final = 5_000
PROGRESS_EVERY_RECORDS: Final = 2_000
NO_TIMESTAMP: Final = -1
WRITING_PAUSE_S: Final = 0.5

Advance = Callable[[int], None]


class StalledError(Exception):
    """A client made no progress within STALL_LIMIT_S."""


def create_topic(bootstrap: str, topic: str, partitions: int, schema: Mapping[str, Any]) -> None:
    """Create the topic, as a table with this schema, and wait for the answer.

    Raises KafkaException.
    """
    # Errors only: closing this client would tell of events nobody asked for.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    # The events bear times of many years ago, and would be deleted for their age.
    config = {
        "retention.ms": "-1",
        "table.enabled": "true",
        "value.schema.format": "json",
        "value.schema": json.dumps(schema),
    }
    kept = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    answers = admin.create_topics([kept], operation_timeout=ADMIN_TIMEOUT_S)
    answers[topic].result(timeout=ADMIN_TIMEOUT_S)


def produce(
    bootstrap: str,
    ledger: Ledger,
    *,
    advance: Advance,
    log: logging.Logger,
    outstanding_max: int,
    at_half_way: Callable[[int], None] | None = None,
) -> None:
    """Send every event of the ledger and wait for every acknowledgement.

    At most `outstanding_max` events are unacknowledged at a time. `at_half_way` is called once,
    with the number of unacknowledged events at that moment, when half of all are acknowledged and
    at least half of `outstanding_max` are not: the moment to do something cruel.

    Raises: StalledError. Refused events are in the ledger.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "zstd",
            "linger.ms": 20,
            "queue.buffering.max.messages": max(2 * outstanding_max, 100_000),
            # One dead broker is every broker here: come back as soon as it does.
            "reconnect.backoff.max.ms": 500,
        },
        logger=log,
    )
    told = 0
    moved_at = time.monotonic()

    def poll(timeout_s: float) -> None:
        """Take delivery reports; notice when none come any more."""
        nonlocal told, moved_at
        producer.poll(timeout_s)
        if ledger.delivered_count - told >= PROGRESS_EVERY_RECORDS or (
            ledger.delivered_count > told and timeout_s > 0
        ):
            advance(ledger.delivered_count - told)
            told = ledger.delivered_count
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > STALL_LIMIT_S:
            raise StalledError(
                f"{ledger.topic}: {len(producer)} events unacknowledged, none acknowledged"
                f" for {STALL_LIMIT_S:.0f} s"
            )

    for number, event in enumerate(ledger.events):
        if at_half_way is not None and ledger.delivered_count >= len(ledger.events) // 2:
            poll(0)  # so that what is counted as unacknowledged really is
            if len(producer) >= outstanding_max // 2:
                at_half_way(len(producer))
                at_half_way = None
        while len(producer) >= outstanding_max:
            poll(0.1)
        producer.produce(
            ledger.topic,
            key=event.key,
            value=event.value,
            headers=list(event.headers),
            timestamp=event.timestamp_ms,
            on_delivery=functools.partial(_delivered, ledger, number),
        )
        poll(0)
    while len(producer):
        poll(0.1)
    advance(ledger.delivered_count - told)


@contextmanager
def writing_on(bootstrap: str, topic: str, value: bytes, log: logging.Logger) -> Iterator[None]:
    """Produce `value` again and again while the block runs; the first one is acknowledged before.

    Raises StalledError.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"}, logger=log)
    producer.produce(topic, value)
    if producer.flush(STALL_LIMIT_S):
        raise StalledError(f"{topic}: nothing is acknowledged for {STALL_LIMIT_S:.0f} s")
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(WRITING_PAUSE_S):
            producer.produce(topic, value)
            producer.poll(0)

    thread = threading.Thread(target=write, name=f"writing-{topic}")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        producer.flush(STALL_LIMIT_S)


def read_all(
    bootstrap: str, ledger: Ledger, *, advance: Advance, log: logging.Logger
) -> Iterator[ReadRecord]:
    """Every record of the ledger's topic, from the beginning to the high watermarks of now.

    Raises: KafkaException (an error on a partition), StalledError.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",  # asked for by the library; no group is ever joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
        },
        logger=log,
    )
    try:
        remaining = 0
        for partition in range(ledger.partitions):
            low, high = consumer.get_watermark_offsets(
                TopicPartition(ledger.topic, partition), timeout=ADMIN_TIMEOUT_S
            )
            remaining += high - low
        consumer.assign(
            [
                TopicPartition(ledger.topic, partition, OFFSET_BEGINNING)
                for partition in range(ledger.partitions)
            ]
        )
        moved_at = time.monotonic()
        while remaining > 0:
            messages = consumer.consume(CONSUME_BATCH_RECORDS, timeout=0.2)
            if messages:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > STALL_LIMIT_S:
                raise StalledError(
                    f"{ledger.topic}: {remaining} records to go, none came"
                    f" for {STALL_LIMIT_S:.0f} s"
                )
            for message in messages:
                yield _read_record(message)
            remaining -= len(messages)
            advance(len(messages))
    finally:
        consumer.close()


def _delivered(ledger: Ledger, number: int, error: KafkaError | None, message: Message) -> None:
    partition, offset = message.partition(), message.offset()
    if error is not None:
        ledger.failed(number, str(error))
    elif partition is None or offset is None:
        ledger.failed(number, "acknowledged without a partition or an offset")
    else:
        ledger.delivered(number, partition, offset)


def _read_record(message: Message) -> ReadRecord:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    timestamp_type, timestamp_ms = message.timestamp()
    return ReadRecord(
        partition=partition,
        offset=offset,
        event=Event(
            key=message.key(),
            value=message.value(),
            headers=tuple(cast("list[Header]", message.headers() or [])),
            # The topics keep the producer's timestamps; any other kind shows as a difference.
            timestamp_ms=timestamp_ms if timestamp_type == TIMESTAMP_CREATE_TIME else NO_TIMESTAMP,
        ),
    )
