"""Kafka Streams keeps its state in a changelog that is compacted, and restores it from there."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer, TopicPartition

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients
from tests.support.clients.jvm import KAFKA_VERSIONS, JavaProcess, JvmUnavailable, java_program
from tests.support.tiers.compacted import compact_everything
from tests.support.tiers.rolled import roll_everything

pytestmark = [pytest.mark.clients, pytest.mark.jvm, pytest.mark.exhaustive]

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "group.initial.rebalance.delay.ms": "0",
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "100",
}
PARTITIONS: Final = 2
WORDS: Final = [f"word{number}" for number in range(50)]
LINES: Final = 400
WORDS_PER_LINE: Final = 12
CHANGELOG: Final = "wordcount-counts-changelog"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        yield broker


def word_count(broker: LiveBroker, state: Path) -> JavaProcess:
    try:
        return java_program(
            "streams-pom.xml",
            {"kafka.version": KAFKA_VERSIONS[-1]},
            "streams",
            "WordCount",
            *(broker.bootstrap, "lines", "wordcount", str(state)),
        )
    except JvmUnavailable as missing:
        pytest.skip(str(missing))


def counts(app: JavaProcess) -> dict[str, int]:
    app.write("counts\n")
    found: dict[str, int] = json.loads(app.wait_for(lambda line: line.startswith("{")))
    return found


def produce(broker: LiveBroker, rng: random.Random, expected: Counter[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(LINES):
        words = rng.choices(WORDS, k=WORDS_PER_LINE)
        expected.update(words)
        producer.produce("lines", " ".join(words), partition=number % PARTITIONS)
    assert producer.flush(clients.TIMEOUT_S) == 0


def records_of(broker: LiveBroker, topic: str) -> int:
    """How many a consumer finds."""
    found = ended = 0
    consumer = clients.confluent_consumer(broker.bootstrap, enable_partition_eof=True)
    try:
        consumer.assign([TopicPartition(topic, at, OFFSET_BEGINNING) for at in range(PARTITIONS)])
        while ended < PARTITIONS:
            message = consumer.poll(clients.TIMEOUT_S)
            assert message is not None
            error = message.error()
            if error is None:
                found += 1
            else:
                assert error.name() == "_PARTITION_EOF", error
                ended += 1
        return found
    finally:
        consumer.close()


def test_a_changelog_stays_small_and_restores_what_was_counted(
    broker: LiveBroker, tmp_path: Path
) -> None:
    rng = random.Random(1)
    expected: Counter[str] = Counter()
    admin = clients.confluent_admin(broker.bootstrap)
    clients.create_topic(admin, "lines", partitions=PARTITIONS)
    with word_count(broker, tmp_path / "first") as app:
        app.wait_for(lambda line: line == "running")
        produce(broker, rng, expected)
        until(lambda: counts(app) == expected, "all words are counted")
        app.close_input()
        assert app.finish().status == 0
    assert records_of(broker, CHANGELOG) == expected.total()
    roll_everything(broker)
    compact_everything(broker)
    assert records_of(broker, CHANGELOG) <= 2 * len(expected)
    with word_count(broker, tmp_path / "second") as app:
        app.wait_for(lambda line: line == "running")
        until(lambda: counts(app) == expected, "the counts are restored")
        produce(broker, rng, expected)
        until(lambda: counts(app) == expected, "it goes on from there")
        app.close_input()
        assert app.finish().status == 0
