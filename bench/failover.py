"""Group `failover`: how long clients wait when a leader of metadata partitions dies or is stopped.

Three brokers, four metadata partitions, a store as slow as S3 (`bench.s3_bed`), stock librdkafka
with its defaults. In each round the broker that leads most is killed, or stopped, while nothing
else happens. Timed is from the signal until every partition of the topic has had its first
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
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench import load
from bench.broker import BenchBroker, fresh_directory
from bench.report import Report
from bench.s3_bed import S3Bed, s3_bed

BROKERS: Final = 3
METADATA_PARTITIONS: Final = 4
PARTITIONS: Final = 8
GROUPS: Final = 8
KILLS: Final = 10
STOPS: Final = 3
DEADLINE_S: Final = 60.0
_ATTEMPT_S: Final = 1.0
_LEADING: Final = re.compile(r"^diskless_metadata_leading\{.*\} 1(\.0)?$", re.MULTILINE)


def run_failover(report: Report, *, kills: int = KILLS, stops: int = STOPS) -> None:
    """Both figures, on one cluster."""
    with s3_bed() as bed, fresh_directory() as directory, ExitStack() as stack:
        cluster = Cluster(bed, directory, stack)
        report.step(f"failover: {kills} leaders killed, {stops} stopped")
        rounds = [cluster.kill() for _ in range(kills)]
        report.add_runs(
            "failover_kill_s",
            [max(one.values()) for one in rounds],
            "s",
            bound="≤ 3",
            note=_note(rounds),
        )
        rounds = [cluster.stop() for _ in range(stops)]
        report.add_runs(
            "failover_stop_s",
            [max(one.values()) for one in rounds],
            "s",
            bound="≤ 6",
            note=_note(rounds),
        )


def _note(rounds: Sequence[Mapping[str, float]]) -> str:
    medians = {kind: sorted(one[kind] for one in rounds)[len(rounds) // 2] for kind in rounds[0]}
    return "medians: " + ", ".join(f"{kind} {value:.1f}" for kind, value in medians.items())


class Cluster:
    """Brokers of one bucket prefix, and clients that have used them."""

    def __init__(self, bed: S3Bed, directory: Path, stack: ExitStack) -> None:
        self._stack = stack
        self._brokers = [
            stack.enter_context(
                bed.broker(
                    directory / f"{node_id}" / "data",
                    f"failover-{os.getpid()}",
                    {
                        "node.id": node_id,
                        "diskless.metadata.log": "object",
                        "diskless.metadata.topic.num.partitions": METADATA_PARTITIONS,
                        "diskless.metadata.leader.rebalance.interval.ms": 1_000,
                    },
                )
            )
            for node_id in range(1, BROKERS + 1)
        ]
        load.create_topic(self._brokers[0].bootstrap, load.TOPIC, PARTITIONS)

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
