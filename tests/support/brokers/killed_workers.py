"""Processes of a broker of workers, and a ledger of what is acknowledged while some are killed."""

import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from confluent_kafka import Message, Producer, TopicPartition

from demo.broker_process import BrokerProcess
from tests.support.clients.stock_clients import confluent_consumer

TOPIC: Final = "flights"
PARTITIONS: Final = 3


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def workers_of(broker: BrokerProcess) -> list[int]:
    return [worker for spawner in children(broker.pid) for worker in children(spawner)]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


class Ledger:
    """Idempotent producers in threads, and what was acknowledged to them."""

    def __init__(self, bootstrap: str, *, producers: int, records: int, **security: str) -> None:
        """`security`: settings of librdkafka, with `_` for `.`."""
        self._security = {key.replace("_", "."): value for key, value in security.items()}
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failed: list[object] = []
        self.records = producers * records
        self._threads = [
            threading.Thread(target=self._produce, args=(bootstrap, number * records, records))
            for number in range(producers)
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self, bootstrap: str, first: int, count: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 20,
                "message.timeout.ms": 110_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **self._security,
            }
        )
        for value in range(first, first + count):
            producer.produce(
                TOPIC, b"%d" % value, partition=value % PARTITIONS, on_delivery=self._delivered
            )
            producer.poll(0.001)
        producer.flush(115)

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.acknowledged[int(value)] = (partition, offset)

    def has(self, share: float) -> bool:
        return len(self.acknowledged) >= share * self.records

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self.failed
        assert len(self.acknowledged) == self.records


def stored(bootstrap: str) -> Mapping[tuple[int, int], int]:
    """Every record of the topic, by its place."""
    with closing(confluent_consumer(bootstrap)) as consumer:
        places = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
        consumer.assign(places)
        left = sum(consumer.get_watermark_offsets(place, timeout=120)[1] for place in places)
        found: dict[tuple[int, int], int] = {}
        while len(found) < left:
            for message in consumer.consume(left - len(found), timeout=120):
                assert message.error() is None
                value, partition, offset = message.value(), message.partition(), message.offset()
                assert value is not None
                assert partition is not None
                assert offset is not None
                found[partition, offset] = int(value)
        return found


def check(ledger: Ledger, found: Mapping[tuple[int, int], int]) -> None:
    """Nothing lost, doubled or reordered."""
    assert len(found) == ledger.records
    assert {value: place for place, value in found.items()} == ledger.acknowledged
    per_producer = ledger.records // 2
    for partition in range(PARTITIONS):
        values = [value for (there, _), value in sorted(found.items()) if there == partition]
        for producer in range(2):
            own = [value for value in values if value // per_producer == producer]
            assert own == sorted(own)
