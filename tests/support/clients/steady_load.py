"""A producer that goes on until it is told to stop, and the reading back of what it delivered.

with SteadyLoad(client, "topic") as load:
    load.more()      # wait until so many more were delivered
assert sorted(read_back(client, "topic", len(load.delivered))) == sorted(load.delivered)
"""

import threading
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.support.brokers.live_broker import until

TIMEOUT_S: Final = 120.0


class SteadyLoad:
    """`client` has librdkafka's properties; the producer is idempotent."""

    def __init__(self, client: Mapping[str, Any], topic: str) -> None:
        self._producer = Producer({**client, "enable.idempotence": True, "linger.ms": 5})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.delivered: list[bytes] = []
        self.failed: list[KafkaError] = []

    def __enter__(self) -> "SteadyLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT_S) == 0

    def more(self, count: int = 25) -> None:
        """Wait until so many more were delivered, or one failed."""
        wanted = len(self.delivered) + count
        until(lambda: len(self.delivered) >= wanted or bool(self.failed), "deliveries")

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.005):
            self._producer.produce(self._topic, b"%d" % number, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.delivered.append(message.value() or b"")


def read_back(client: Mapping[str, Any], topic: str, count: int) -> list[bytes]:
    """The values of so many records, by a consumer of a group."""
    consumer = Consumer({**client, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    try:
        while len(values) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    finally:
        consumer.close()
    return values
