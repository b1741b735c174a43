"""Group `failover`: how long clients wait when a broker dies, is stopped, or hands over and ends.

Three brokers, four metadata partitions, a store as slow as S3 (`bench.tools.s3_bed`), stock
librdkafka with its defaults. In each round the broker that leads most is killed, or stopped, while
nothing else happens. Timed is from the signal until every partition of the topic has had its first
acknowledged idempotent produce and its first strictly consistent answer to ListOffsets, and every
one of some groups its first OffsetFetch. The partitions and groups are spread over all metadata
partitions, so those that the dead one led are among them. Then the broker comes back, and the round
ends when each broker leads something again.

A broker that is stopped keeps its connections open, and clients that wait for it do so until their
own time-outs, as with any Kafka broker. So in that case partitions are left out for which clients
were sent to the stopped broker, whoever coordinates them. Who asks for offsets is a new client each
time, as tools are: librdkafka keeps where a partition was for minutes, unless it consumes it.
"""

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.report import Report
from bench.tools.s3_bed import S3Bed, s3_bed

BROKERS: Final = 3
METADATA_PARTITIONS: Final = 4
PARTITIONS: Final = 8
GROUPS: Final = 8
KILLS: Final = 10
STOPS: Final = 3
MOVES: Final = 5
GATEWAY_KILLS: Final = 5
DEADLINE_S: Final = 60.0
_ATTEMPT_S: Final = 1.0
_RECORD_EVERY_S: Final = 0.02
_LEADING: Final = re.compile(r"^diskless_metadata_leading\{.*\} 1(\.0)?$", re.MULTILINE)


def run_failover(
    report: Report,
    *,
    kills: int = KILLS,
    stops: int = STOPS,
    moves: int = MOVES,
    gateway_kills: int = GATEWAY_KILLS,
) -> None:
    """All figures, on one cluster."""
    with s3_bed() as bed, fresh_directory() as directory, ExitStack() as stack:
        cluster = Cluster(bed, directory, stack)
        report.step(f"failover: {kills} leaders killed, {stops} stopped")
        rounds = [cluster.kill() for _ in range(kills)]
        _add(report, "failover_kill_s", rounds, bound="≤ 3")
        rounds = [cluster.stop() for _ in range(stops)]
        _add(report, "failover_stop_s", rounds, bound="≤ 6")
        report.step(f"failover: {moves} brokers that end and come back")
        rounds = [cluster.move() for _ in range(moves)]
        _add(report, "planned_move_s", rounds, bound="≤ 1")
        report.step(f"failover: {gateway_kills} gateways killed that lead nothing")
        cluster.start_gateway()
        rounds = [cluster.kill_gateway() for _ in range(gateway_kills)]
        _add(report, "gateway_kill_s", rounds, bound="≤ 3")


def _add(report: Report, key: str, rounds: Sequence[Mapping[str, float]], *, bound: str) -> None:
    """The slowest kind of each round counts."""
    slowest = [max(one.values()) for one in rounds]
    report.add_runs(key, slowest, "s", bound=bound, note=_note(rounds))


def _note(rounds: Sequence[Mapping[str, float]]) -> str:
    medians = {kind: sorted(one[kind] for one in rounds)[len(rounds) // 2] for kind in rounds[0]}
    return "medians: " + ", ".join(f"{kind} {value:.2f}" for kind, value in medians.items())


class Cluster:
    """Brokers of one bucket prefix, and clients that have used them."""

    def __init__(self, bed: S3Bed, directory: Path, stack: ExitStack) -> None:
        self._bed = bed
        self._directory = directory
        self._stack = stack
        self._brokers = [self._start(node_id) for node_id in range(1, BROKERS + 1)]
        self._gateway: BenchBroker | None = None
        load.create_topic(self._brokers[0].bootstrap, load.TOPIC, PARTITIONS)

    def _start(self, node_id: int, *, may_lead: bool = True) -> BenchBroker:
        return self._stack.enter_context(
            self._bed.broker(
                self._directory / f"{node_id}" / "data",
                f"failover-{os.getpid()}",
                {
                    "node.id": node_id,
                    "diskless.metadata.log": "object",
                    "diskless.metadata.topic.num.partitions": METADATA_PARTITIONS,
                    "diskless.metadata.leader.rebalance.interval.ms": 1_000,
                    "diskless.coordinator.candidate": str(may_lead).lower(),
                },
            )
        )

    def kill(self) -> Mapping[str, float]:
        """Kill the broker that leads most; seconds by kind of request. It runs again after."""
        victim = self._settled()
        with ExitStack() as stack:
            clients = Clients(self._bootstrap(), stack)
            began = time.monotonic()
            victim.kill()
            waits = clients.first_answers(began)
        victim.start()
        return waits

    def stop(self) -> Mapping[str, float]:
        """The same with a broker that is stopped, and goes on after."""
        victim = self._settled()
        others = ",".join(one.bootstrap for one in self._brokers if one is not victim)
        with ExitStack() as stack:
            clients = Clients(others, stack, avoided=int(victim.bootstrap.rpartition(":")[2]))
            began = time.monotonic()
            os.kill(victim.pid, signal.SIGSTOP)
            try:
                return clients.first_answers(began)
            finally:
                os.kill(victim.pid, signal.SIGCONT)

    def move(self) -> Mapping[str, float]:
        """End the broker that leads most and start it again; the longest waits of records.

        `away`: until others lead what it led. `back`: until each broker leads something again.
        """
        moved = self._settled()
        waits = {}
        with SteadyProducer(self._bootstrap()) as producer:
            moved.stop()
            waits["away"] = producer.longest_wait_s()
            moved.start()
            self._settled()
            waits["back"] = producer.longest_wait_s()
        return waits

    def start_gateway(self) -> None:
        """A broker more, which leads nothing."""
        self._gateway = self._start(BROKERS + 1, may_lead=False)

    def kill_gateway(self) -> Mapping[str, float]:
        """Kill it when clients are sent to it; seconds by kind of request. It runs again after."""
        gateway = self._gateway
        assert gateway is not None
        self._settled()
        with ExitStack() as stack:
            clients = self._clients_of(gateway, stack)
            began = time.monotonic()
            gateway.kill()
            waits = clients.first_answers(began)
        gateway.start()
        return waits

    def _clients_of(self, gateway: BenchBroker, stack: ExitStack) -> "Clients":
        """Clients of all brokers, some of which write through `gateway`."""
        port = int(gateway.bootstrap.rpartition(":")[2])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            clients = Clients(self._bootstrap(), stack)
            if port in clients.ports:
                return clients
            time.sleep(0.2)
        raise RuntimeError(f"no client is sent to the gateway within {DEADLINE_S} s")

    def _bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self._brokers)

    def _settled(self) -> BenchBroker:
        """Wait until each broker leads something; the one that leads most."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            led = [len(_LEADING.findall(_metrics(one))) for one in self._brokers]
            if min(led) > 0 and sum(led) == METADATA_PARTITIONS:
                return self._brokers[led.index(max(led))]
            if time.monotonic() > deadline:
                raise RuntimeError(f"leadership has not spread within {DEADLINE_S} s: {led}")
            time.sleep(0.2)


def _metrics(broker: BenchBroker) -> str:
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=5) as page:
        return bytes(page.read()).decode()


class Clients:
    """Stock clients, each of which has had an answer of the kind that it waits for."""

    def __init__(self, bootstrap: str, stack: ExitStack, *, avoided: int | None = None) -> None:
        """`avoided` is the port of a broker that is going to be stopped."""
        self._bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        stack.callback(self._producer.flush, 0)
        metadata = self._producer.list_topics(load.TOPIC, timeout=DEADLINE_S)
        led_by = {
            index: metadata.brokers[one.leader].port
            for index, one in metadata.topics[load.TOPIC].partitions.items()
        }
        self.ports: Final = frozenset(led_by.values())
        """Of the brokers that the producer is sent to."""
        self._partitions = [index for index, port in led_by.items() if port != avoided]
        self.first_answers(time.monotonic())

    def first_answers(self, began: float) -> Mapping[str, float]:
        """Seconds from `began` until the last of the first answers, by kind of request."""
        waits: dict[str, float] = {}
        threads = [
            threading.Thread(target=self._produce, args=(began, waits)),
            *(
                threading.Thread(
                    target=_retried,
                    args=(f"list_offsets {index}", began, waits, self._list_offsets(index)),
                )
                for index in self._partitions
            ),
            *(
                threading.Thread(
                    target=_retried,
                    args=(f"offset_fetch {number}", began, waits, self._offset_fetch(number)),
                )
                for number in range(GROUPS)
            ),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kinds = {name.split()[0] for name in waits}
        return {
            kind: max(value for name, value in waits.items() if name.split()[0] == kind)
            for kind in sorted(kinds)
        }

    def _produce(self, began: float, waits: dict[str, float]) -> None:
        left = set(self._partitions)

        def delivered(error: object, message: object) -> None:
            if error is not None:
                raise RuntimeError(f"a record was not delivered: {error}")
            left.discard(message.partition())  # type: ignore[attr-defined]

        for index in self._partitions:
            self._producer.produce(load.TOPIC, b"v", partition=index, on_delivery=delivered)
        while left:
            self._producer.poll(0.01)
        waits["produce"] = time.monotonic() - began

    def _list_offsets(self, index: int) -> Callable[[], None]:
        def ask() -> None:
            with self._consumer("group") as reader:
                reader.get_watermark_offsets(TopicPartition(load.TOPIC, index), timeout=_ATTEMPT_S)

        return ask

    def _offset_fetch(self, number: int) -> Callable[[], None]:
        def ask() -> None:
            with self._consumer(f"group-{number}") as reader:
                (found,) = reader.committed([TopicPartition(load.TOPIC, 0)], timeout=_ATTEMPT_S)
            if found.error is not None:
                raise KafkaException(found.error)

        return ask

    @contextmanager
    def _consumer(self, group: str) -> Iterator[Consumer]:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            yield consumer
        finally:
            consumer.close()


class SteadyProducer:
    """Writes to every partition all the time it is entered, and times acknowledgements."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._round = 0
        self._acknowledged = dict.fromkeys(range(PARTITIONS), -1)
        """The last round of records, by partition."""
        self._longest_s = 0.0
        self._failed: list[object] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.longest_wait_s()  # connections are made, and the producer id is there
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(DEADLINE_S)

    def longest_wait_s(self) -> float:
        """The longest wait since this was asked last, of all that was written by now."""
        written = self._round
        deadline = time.monotonic() + DEADLINE_S
        while min(self._acknowledged.values()) < written:
            if self._failed or time.monotonic() > deadline:
                raise RuntimeError(f"not all records are acknowledged: {self._failed}")
            time.sleep(_RECORD_EVERY_S)
        longest, self._longest_s = self._longest_s, 0.0
        return longest

    def _run(self) -> None:
        while not self._stop.wait(_RECORD_EVERY_S):
            self._round += 1
            for index in self._acknowledged:
                report = partial(self._delivered, self._round, time.monotonic())
                self._producer.produce(load.TOPIC, b"v", partition=index, on_delivery=report)
            self._producer.poll(0)

    def _delivered(self, number: int, sent_at: float, error: object, message: Message) -> None:
        if error is not None:
            self._failed.append(error)
            return
        self._acknowledged[message.partition() or 0] = number
        self._longest_s = max(self._longest_s, time.monotonic() - sent_at)


def _retried(name: str, began: float, waits: dict[str, float], ask: Callable[[], None]) -> None:
    while True:
        try:
            ask()
        except KafkaException:
            if time.monotonic() - began > DEADLINE_S:
                raise
            time.sleep(0.02)
        else:
            waits[name] = time.monotonic() - began
            return
