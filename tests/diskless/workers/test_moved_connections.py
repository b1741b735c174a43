"""A worker that has too much to do gives up connections, whose clients go on with another one."""

import itertools
import re
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final, Self

import pytest
from confluent_kafka import Message, TopicPartition

from demo.broker_process import BrokerProcess
from tests.support.brokers.live_broker import until
from tests.support.clients.stock_clients import confluent_consumer, confluent_producer

pytestmark = pytest.mark.clients

TOPIC: Final = "flights"
SETTINGS: Final[Mapping[str, str]] = {
    "broker.workers": "2",
    # Whatever else the machine has to do, two producers are more than that.
    "broker.workers.full.percent": "2",
    "num.partitions": "2",
    "wal.commit.interval.ms": "5",
}


def number(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))


class Producers:
    """Two that produce from `with` to its end; what was acknowledged to whom, in order."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self.acknowledged: list[list[bytes]] = [[], []]
        self.failed: list[object] = []
        self._threads = [threading.Thread(target=self._produce, args=(one,)) for one in range(2)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, partition: int) -> None:
        producer = confluent_producer(self._bootstrap, **{"enable.idempotence": True})
        for value in itertools.count():
            if self._is_over.is_set():
                break
            producer.produce(TOPIC, b"%d" % value, partition=partition, on_delivery=self._delivered)
            producer.poll(0.005)
        producer.flush(60)

    def _delivered(self, error: object, message: Message) -> None:
        partition, value = message.partition(), message.value()
        if error is not None or partition is None or value is None:
            self.failed.append(error)
        else:
            self.acknowledged[partition].append(value)


def test_a_full_worker_gives_up_connections_to_one_that_is_idle(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", tmp_path, SETTINGS) as broker:
        broker.start()
        assert number(broker, "diskless_workers_active") == 1
        with Producers(broker.bootstrap) as producers:
            until(
                lambda: number(broker, "diskless_connections_given_up_total") > 0,
                "a connection to be given up",
            )
            assert number(broker, "diskless_workers_active") == 2
        assert producers.failed == []
        with closing(confluent_consumer(broker.bootstrap)) as consumer:
            for partition, acknowledged in enumerate(producers.acknowledged):
                consumer.assign([TopicPartition(TOPIC, partition, 0)])
                found: list[bytes | None] = []
                while len(found) < len(acknowledged):
                    found += [one.value() for one in consumer.consume(10_000, timeout=1)]
                assert found == acknowledged
        broker.stop()
