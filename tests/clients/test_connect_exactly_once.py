"""Kafka Connect with `exactly.once.source.support`: each line of a file is a record once.

Its workers write the records of a source and its position in one transaction, fence the tasks of
workers that were killed, and read both with read_committed. Here the worker and the broker are
killed while the file grows; and what a worker knows lies in compacted topics, which stay small.
"""

import json
import random
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from demo.broker_process import BrokerProcess
from tests.support.brokers.live_broker import until
from tests.support.clients import stock_clients as clients
from tests.support.clients.jvm import KAFKA_VERSIONS, JavaProcess, JvmUnavailable, java_program
from tests.support.ports import own_port
from tests.support.tiers.compacted import compact_everything
from tests.support.tiers.rolled import roll_everything

pytestmark = [pytest.mark.clients, pytest.mark.jvm, pytest.mark.exhaustive]

SETTINGS: Final = {
    "wal.commit.interval.ms": "10",
    "group.initial.rebalance.delay.ms": "0",
    "diskless.metadata.topic.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
STRINGS: Final = "org.apache.kafka.connect.storage.StringConverter"
WORKER: Final = {
    "group.id": "connect",
    "exactly.once.source.support": "enabled",
    "key.converter": STRINGS,
    "value.converter": STRINGS,
    "plugin.discovery": "only_scan",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "scheduled.rebalance.max.delay.ms": "0",
    "offset.flush.interval.ms": "500",
    **{f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")},
    **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
    "offset.storage.partitions": "2",
    "status.storage.partitions": "1",
}
CONNECTOR: Final = {
    "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
    "tasks.max": "1",
    "topic": "lines",
    "exactly.once.support": "required",
    "producer.override.transaction.timeout.ms": "10000",
}
SECONDS: Final = 60.0
KILL_EVERY_S: Final = 12.0
LINES: Final = 10
"""At a time."""
ROUNDS: Final = 5
OWN_TOPICS: Final = [f"connect-{kind}" for kind in ("config", "offset", "status")]
WRITTEN_WITHIN_S: Final = 240.0


class Worker:
    """One worker, in all its lives."""

    def __init__(self, stack: ExitStack, bootstrap: str, directory: Path) -> None:
        self._stack = stack
        self._url = f"http://127.0.0.1:{own_port()}"
        self._properties = directory / "worker.properties"
        settings = {"bootstrap.servers": bootstrap, "listeners": self._url, **WORKER}
        self._properties.write_text("".join(f"{key}={settings[key]}\n" for key in settings))
        self._process: JavaProcess
        self.start()

    def start(self) -> None:
        try:
            process = java_program(
                "connect-pom.xml",
                {"kafka.version": KAFKA_VERSIONS[-1]},
                None,
                "org.apache.kafka.connect.cli.ConnectDistributed",
                str(self._properties),
            )
        except JvmUnavailable as missing:
            pytest.skip(str(missing))
        self._process = self._stack.enter_context(process)

    def kill(self) -> None:
        self._process.kill()

    def put(self, connector: str, config: dict[str, str]) -> None:
        body = json.dumps(config).encode()
        until(
            lambda: self._ask("PUT", f"/connectors/{connector}/config", body) is not None,
            "the worker to take the connector",
            deadline_s=240.0,
        )

    def states(self, connector: str) -> Sequence[str]:
        """Of the connector and its tasks; none while the worker does not know."""
        told = self._ask("GET", f"/connectors/{connector}/status")
        return () if told is None else [one["state"] for one in (told["connector"], *told["tasks"])]

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path, body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except OSError:
            # It does not run, it rebalances, or nobody has told it of the connector yet.
            return None


class Written:
    """Reads what was committed."""

    def __init__(self, bootstrap: str) -> None:
        self.lines: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "written",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 500,
                "logger": clients.QUIET,
            }
        )
        self._consumer.assign([TopicPartition("lines", 0, OFFSET_BEGINNING)])

    def read(self) -> int:
        """Read on to the end; how many lines there are."""
        while (messages := self._consumer.consume(1_000, 0.5)) and any(
            message.error() is None for message in messages
        ):
            for message in messages:
                error = message.error()
                if error is None:
                    self.lines.append((message.value() or b"").decode())
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
        return len(self.lines)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", tmp_path, SETTINGS) as broker:
        broker.start()
        yield broker


def test_each_line_is_written_once_whoever_is_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    rng = random.Random(7)
    clients.create_topic(clients.confluent_admin(broker.bootstrap), "lines", 1)
    source = tmp_path / "lines.txt"
    source.touch()
    expected: list[str] = []
    with ExitStack() as stack:
        worker = Worker(stack, broker.bootstrap, tmp_path)
        worker.put("source", {**CONNECTOR, "file": str(source)})
        until(lambda: worker.states("source") == ["RUNNING"] * 2, "a task", deadline_s=240.0)
        written = Written(broker.bootstrap)
        stack.callback(written.close)
        ends_at = time.monotonic() + SECONDS
        kill_at = time.monotonic() + KILL_EVERY_S
        kills = 0
        while time.monotonic() < ends_at:
            lines = [f"line {len(expected) + number}" for number in range(rng.randint(1, LINES))]
            with source.open("a") as growing:
                growing.write("".join(f"{line}\n" for line in lines))
            expected += lines
            written.read()
            if time.monotonic() > kill_at:
                kills += 1
                killed = broker if kills % 3 == 0 else worker
                killed.kill()
                killed.start()
                kill_at = time.monotonic() + KILL_EVERY_S
        assert kills >= 3
        until(
            lambda: written.read() >= len(expected),
            "all lines to be written",
            deadline_s=WRITTEN_WITHIN_S,
        )
        assert worker.states("source") == ["RUNNING"] * 2
    assert written.lines == expected


def kept_by(bootstrap: str) -> dict[str, list[tuple[int, bytes | None, bytes | None]]]:
    """The committed records of Connect's own topics, (partition, key, value) in order."""
    consumer = clients.confluent_consumer(
        bootstrap, isolation_level="read_committed", enable_partition_eof=True
    )
    found: dict[str, list[tuple[int, bytes | None, bytes | None]]] = {}
    with closing(consumer):
        for topic in OWN_TOPICS:
            partitions = consumer.list_topics(topic, timeout=clients.TIMEOUT_S).topics[topic]
            found[topic] = []
            for partition in sorted(partitions.partitions):
                consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
                while (message := consumer.poll(clients.TIMEOUT_S)) is not None:
                    if (error := message.error()) is not None:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        break
                    found[topic].append((partition, message.key(), message.value()))
    return found


def test_what_a_worker_knows_is_compacted_and_it_goes_on_from_there(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    clients.create_topic(clients.confluent_admin(broker.bootstrap), "lines", 1)
    source = tmp_path / "lines.txt"
    source.touch()
    expected: list[str] = []
    with ExitStack() as stack:
        worker = Worker(stack, broker.bootstrap, tmp_path)
        worker.put("source", {**CONNECTOR, "file": str(source)})
        written = Written(broker.bootstrap)
        stack.callback(written.close)

        def write_more() -> None:
            lines = [f"line {len(expected) + number}" for number in range(LINES)]
            with source.open("a") as growing:
                growing.write("".join(f"{line}\n" for line in lines))
            expected.extend(lines)
            until(
                lambda: written.read() >= len(expected),
                "all lines to be written",
                deadline_s=WRITTEN_WITHIN_S,
            )

        for _ in range(ROUNDS):
            write_more()
        worker.kill()
        before = kept_by(broker.bootstrap)
        roll_everything(broker)
        assert compact_everything(broker).segments
        after = kept_by(broker.bootstrap)
        for topic, records in before.items():
            newest = {record[:2]: at for at, record in enumerate(records)}
            assert after[topic] == [records[at] for at in sorted(newest.values())], topic
        assert len(before["connect-offset"]) >= ROUNDS
        assert len(after["connect-offset"]) == 1
        worker.start()
        write_more()
    assert written.lines == expected
