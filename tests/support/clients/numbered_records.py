"""Records that carry their number, from an idempotent producer that knows what was acknowledged.

producer = NumberedProducer(broker.bootstrap)
producer.send(300)
...                                     # whatever goes wrong meanwhile
producer.flush()
assert_each_once(broker.bootstrap, producer)
"""

import time
from contextlib import closing
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tests.support.clients import stock_clients as clients

PARTITIONS: Final = 3

_POLL_S: Final = 0.1
_ASK_AGAIN_S: Final = 5
_WHILE_BROKERS_COME_AND_GO: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._DESTROY_BROKER,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
    }
)


class NumberedProducer:
    """An idempotent producer of "0", "1", ... that keeps what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str = "t", **settings: object) -> None:
        self._topic = topic
        self._producer = clients.confluent_producer(
            bootstrap,
            **{
                "enable_idempotence": True,
                "batch_num_messages": 20,
                "message_timeout_ms": 120_000,
                "retry_backoff_ms": 20,
                "reconnect_backoff_max_ms": 200,
                **settings,
            },
        )
        self._next = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.errors: list[KafkaError] = []

    def send(self, count: int, *, padding: int = 0) -> None:
        """Hand them to the client; acknowledgements come with `poll` and `flush`."""
        for number in range(self._next, self._next + count):
            self._producer.produce(
                self._topic,
                str(number).encode().rjust(padding),
                partition=number % PARTITIONS,
                on_delivery=self._delivered,
            )
        self._next += count

    @property
    def sent(self) -> int:
        """How many were handed to the client; the next one has this number."""
        return self._next

    def poll(self) -> None:
        self._producer.poll(0.005)

    def flush(self) -> None:
        assert self._producer.flush(clients.TIMEOUT_S) == 0, (
            f"{len(self.acknowledged)} acknowledged"
        )
        assert not self.errors, self.errors
        assert len(self.acknowledged) == self._next

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged[int(clients.value_of(message))] = clients.place_of(message)


def everything(bootstrap: str, topic: str = "t") -> dict[tuple[int, int], int]:
    """(partition, offset) -> number of all that is in the topic."""
    found: dict[tuple[int, int], int] = {}
    places = [TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    count = sum(_end_offset(bootstrap, place) for place in places)
    with closing(clients.confluent_consumer(bootstrap)) as consumer:
        consumer.assign(places)
        while len(found) < count:
            messages = consumer.consume(min(count - len(found), 1_000), timeout=clients.TIMEOUT_S)
            assert messages, f"{len(found)} of {count} records came"
            for message in messages:
                place = clients.place_of(message)
                assert place not in found
                found[place] = int(clients.value_of(message))
    return found


def _end_offset(bootstrap: str, place: TopicPartition) -> int:
    """Where a partition ends.

    When a broker comes or goes, librdkafka forgets such a request, or says from then on that there
    is no such partition, while a new client finds it. Whatever timeout this call has, it waits for
    the socket's, a minute by default. So that one is short, and each try has a client of its own.
    """
    deadline = time.monotonic() + clients.TIMEOUT_S
    settings = {"socket_timeout_ms": _ASK_AGAIN_S * 1000}
    while True:
        try:
            with closing(clients.confluent_consumer(bootstrap, **settings)) as consumer:
                end: int = consumer.get_watermark_offsets(place, timeout=_ASK_AGAIN_S)[1]
            return end
        except KafkaException as error:
            if error.args[0].code() not in _WHILE_BROKERS_COME_AND_GO:
                raise
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def assert_each_once(bootstrap: str, producer: NumberedProducer) -> None:
    stored = everything(bootstrap)
    assert {place: number for number, place in producer.acknowledged.items()} == stored
