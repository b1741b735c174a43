"""Workers and heads that are killed, and what is there afterwards: every record, once, in order."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from demo.broker_process import BrokerProcess, run_diskless
from tests.support.brokers.killed_workers import (
    PARTITIONS,
    TOPIC,
    Ledger,
    check,
    children,
    is_alive,
    stored,
    workers_of,
)
from tests.support.brokers.live_broker import until
from tests.support.clients.stock_clients import confluent_consumer, confluent_producer
from tests.support.questions.kafka_raw_client import frame

SETTINGS: Final = {
    "broker.workers": "2",
    "broker.workers.active.min": "2",
    "num.partitions": str(PARTITIONS),
    "wal.commit.interval.ms": "20",
}

pytestmark = pytest.mark.crash


def test_a_worker_that_is_killed_takes_nothing_with_it_but_its_connections(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, tmp_path, SETTINGS) as broker:
        broker.start()
        head, workers = broker.pid, workers_of(broker)
        assert len(workers) == 2
        ledger = Ledger(broker.bootstrap, producers=2, records=1_000)
        for share, victim in zip((0.2, 0.5), workers, strict=True):
            until(lambda share=share: ledger.has(share), "some records to be acknowledged")
            os.kill(victim, signal.SIGKILL)
            until(lambda: len(workers_of(broker)) == 2, "another life of the worker")
        ledger.join()
        assert broker.pid == head
        assert len(set(workers_of(broker)) & set(workers)) == 0
        check(ledger, stored(broker.bootstrap))
        broker.stop()
    log = tmp_path / "verify.log"
    assert run_diskless(["verify", "--data", data], log, 60) == 0, log.read_text()


def test_a_connection_that_a_worker_had_not_taken_when_it_died_is_served_by_another(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data", tmp_path, SETTINGS) as broker, ExitStack() as stack:
        broker.start()
        host, _, port = broker.bootstrap.rpartition(":")
        victim = workers_of(broker)[0]
        os.kill(victim, signal.SIGSTOP)
        clients = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            for _ in range(4)
        ]
        os.kill(victim, signal.SIGKILL)
        for client in clients:
            client.sendall(frame(18, 0, 7, b""))
            assert client.recv(8)[4:] == (7).to_bytes(4)
        broker.stop()


def test_a_head_that_is_killed_takes_all_along_and_the_next_one_serves_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", tmp_path, SETTINGS) as broker:
        broker.start()
        (spawner,) = children(broker.pid)
        processes = [spawner, *workers_of(broker)]
        ledger = Ledger(broker.bootstrap, producers=2, records=800)
        until(lambda: ledger.has(0.3), "some records to be acknowledged")
        broker.kill()
        until(lambda: not any(map(is_alive, processes)), "everybody to be gone")
        broker.start()
        ledger.join()
        check(ledger, stored(broker.bootstrap))
        broker.stop()


def test_a_paused_worker_answers_nobody_once_its_head_is_gone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", tmp_path, SETTINGS) as broker:
        broker.start()
        workers = workers_of(broker)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        os.kill(broker.pid, signal.SIGKILL)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        until(lambda: not any(map(is_alive, workers)), "workers to end with their head")
        broker.wait_for_death()


@pytest.mark.parametrize("workers", [1, 2])
def test_chunks_of_a_worker_that_is_no_more_are_committed(tmp_path: Path, workers: int) -> None:
    data = tmp_path / "data"
    settings = {**SETTINGS, "broker.workers": "3", "broker.workers.active.min": "3"}
    with BrokerProcess(data, tmp_path, settings) as broker:
        broker.start()
        confluent_producer(broker.bootstrap).list_topics(TOPIC, 60)
        broker.stop()
    with BrokerProcess(data, tmp_path, settings) as broker:
        # No worker gets further than its chunk.
        broker.start({"DISKLESS_FAILPOINTS": "chunk.after_append=kill:1"})
        producers = [
            confluent_producer(broker.bootstrap, message_timeout_ms=200_000) for _ in range(9)
        ]
        lanes = data / "wal" / "0"

        def written() -> list[Path]:
            return [path for path in lanes.glob("worker-3/chunk-*.data") if path.stat().st_size]

        while not written():
            for producer in producers:
                producer.produce(TOPIC, b"7", partition=0)
                producer.poll(0.01)
        broker.kill()
        for producer in producers:
            producer.purge()
            producer.flush(10)
    fewer = {**SETTINGS, "broker.workers": str(workers)}
    with BrokerProcess(data, tmp_path, fewer) as broker:
        broker.start()
        with closing(confluent_consumer(broker.bootstrap)) as consumer:
            place = TopicPartition(TOPIC, 0, 0)

            def end() -> int:
                return int(consumer.get_watermark_offsets(place, timeout=60)[1])

            until(lambda: end() > 0, "what was left to be committed")
        until(lambda: "of a worker that is no more" in broker.log_tail(), "the log to tell")
        broker.stop()


def parked(broker: BrokerProcess) -> float:
    import urllib.request

    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "diskless_purgatory_operations" and sample.labels["purgatory"] == "fetch"
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("workers")
    with BrokerProcess(place / "data", place, SETTINGS) as broker:
        broker.start()
        yield broker
        broker.stop()


def test_fetches_at_every_worker_are_woken_by_a_commit_of_any(broker: BrokerProcess) -> None:
    confluent_producer(broker.bootstrap).list_topics(TOPIC, 60)
    consumers: list[Consumer] = []
    try:
        for _ in range(8):
            # Only a commit ends such a wait in time.
            consumer = confluent_consumer(
                broker.bootstrap, fetch_wait_max_ms=200_000, socket_timeout_ms=250_000
            )
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            consumer.poll(0)
            consumers.append(consumer)
        until(lambda: parked(broker) == len(consumers), "all fetches to wait")
        producer = confluent_producer(broker.bootstrap)
        producer.produce(TOPIC, b"1", partition=0)
        assert producer.flush(60) == 0
        for consumer in consumers:
            message = consumer.poll(60)
            assert message is not None
            assert message.value() == b"1"
    finally:
        for consumer in consumers:
            consumer.close()
