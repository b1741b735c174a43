"""Kafka Streams with `exactly_once_v2`: every word is counted once, whoever is killed meanwhile.

Each count is written to a topic as it changes. So a word that was written N times must be found
there with the counts 1 to N, each once and in this order.
"""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from demo.broker_process import BrokerProcess
from tests.support.brokers.broker_cluster import Cluster
from tests.support.brokers.live_broker import until
from tests.support.clients import stock_clients as clients
from tests.support.clients.jvm import KAFKA_VERSIONS, JavaProcess, JvmUnavailable, java_program

pytestmark = [pytest.mark.clients, pytest.mark.jvm, pytest.mark.exhaustive]

SETTINGS: Final = {
    "wal.commit.interval.ms": "10",
    "group.initial.rebalance.delay.ms": "0",
    "diskless.metadata.topic.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
STREAMS: Final = (
    "processing.guarantee=exactly_once_v2",
    "output=counted",
    "session.timeout.ms=6000",
    "heartbeat.interval.ms=500",
    "commit.interval.ms=100",
    "producer.transaction.timeout.ms=10000",
)
PARTITIONS: Final = 2
INSTANCES: Final = 2
WORDS: Final = [f"word{number}" for number in range(30)]
WORDS_PER_LINE: Final = 8
SECONDS: Final = 40.0
LINES_PER_S: Final = 40
KILL_EVERY_S: Final = 6.0
COUNTED_WITHIN_S: Final = 240.0


@pytest.fixture(params=[1, 3], ids=["one broker", "three brokers"])
def brokers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sequence[BrokerProcess]]:
    if request.param == 1:
        with BrokerProcess(tmp_path / "data", tmp_path, SETTINGS) as broker:
            broker.start()
            yield [broker]
        return
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, f"file://{tmp_path}/bucket", stack)
        settings = {**SETTINGS, "diskless.metadata.topic.num.partitions": "3"}
        yield [cluster.start(number, settings) for number in range(request.param)]


class Application:
    """One instance, in all its lives."""

    def __init__(self, stack: ExitStack, bootstrap: str, state: Path) -> None:
        self._stack = stack
        self._arguments = (bootstrap, "lines", "exactly", str(state), *STREAMS)
        self._process: JavaProcess
        self.start()

    def start(self) -> None:
        try:
            process = java_program(
                "streams-pom.xml",
                {"kafka.version": KAFKA_VERSIONS[-1]},
                "streams",
                "WordCount",
                *self._arguments,
            )
        except JvmUnavailable as missing:
            pytest.skip(str(missing))
        self._process = self._stack.enter_context(process)

    def kill(self) -> None:
        self._process.kill()

    def wait_until_it_runs(self) -> None:
        self._process.wait_for(lambda line: line == "running")


class Counted:
    """Reads what the applications committed."""

    def __init__(self, bootstrap: str) -> None:
        self.counts: dict[str, list[int]] = defaultdict(list)
        """Of each word, in the order in which they were written."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "counted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 500,
                "logger": clients.QUIET,
            }
        )
        self._consumer.assign(
            [TopicPartition("counted", one, OFFSET_BEGINNING) for one in range(PARTITIONS)]
        )

    def read(self) -> int:
        """Read on to the end; how many counts there are."""
        while (messages := self._consumer.consume(1_000, 0.5)) and any(
            message.error() is None for message in messages
        ):
            for message in messages:
                error = message.error()
                if error is None:
                    word = (message.key() or b"").decode()
                    self.counts[word].append(int(message.value() or b""))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
        return sum(map(len, self.counts.values()))

    def close(self) -> None:
        self._consumer.close()


def write(producer: Producer, rng: random.Random, lines: int) -> Sequence[str]:
    """So many lines; their words."""
    written: list[str] = []
    for _ in range(lines):
        words = rng.choices(WORDS, k=WORDS_PER_LINE)
        written += words
        producer.produce("lines", " ".join(words), partition=rng.randrange(PARTITIONS))
    producer.poll(0)
    return written


def test_words_are_counted_once_whoever_is_killed(
    brokers: Sequence[BrokerProcess], tmp_path: Path
) -> None:
    rng = random.Random(7)
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    admin = clients.confluent_admin(bootstrap)
    for topic in ("lines", "counted"):
        clients.create_topic(admin, topic, PARTITIONS)
    expected: Counter[str] = Counter()
    with ExitStack() as stack:
        applications = [
            Application(stack, bootstrap, tmp_path / f"state-{number}")
            for number in range(INSTANCES)
        ]
        for application in applications:
            application.wait_until_it_runs()
        counted = Counted(bootstrap)
        stack.callback(counted.close)
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 500,
                "logger": clients.QUIET,
            }
        )
        ends_at = time.monotonic() + SECONDS
        kills = 0
        kill_at = time.monotonic() + KILL_EVERY_S
        while time.monotonic() < ends_at:
            expected.update(write(producer, rng, LINES_PER_S // 4))
            counted.read()
            if time.monotonic() > kill_at:
                kills += 1
                if kills % 3 == 0:
                    broker = rng.choice(brokers)
                    broker.kill()
                    broker.start()
                else:
                    application = rng.choice(applications)
                    application.kill()
                    application.start()
                kill_at = time.monotonic() + KILL_EVERY_S
        assert producer.flush(clients.TIMEOUT_S) == 0
        assert kills >= 3
        until(
            lambda: counted.read() >= expected.total(),
            "all words to be counted",
            deadline_s=COUNTED_WITHIN_S,
        )
    assert counted.counts == {
        word: list(range(1, count + 1)) for word, count in sorted(expected.items())
    }
