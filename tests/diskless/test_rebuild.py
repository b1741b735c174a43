"""`diskless rebuild` end to end: a broker's metadata are deleted, and everything comes back."""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from diskless.cli import main
from tests.support.live_broker import LiveBroker
from tests.support.rolled import roll_everything
from tests.support.stock_clients import CODECS, TIMEOUT_S, confluent_consumer

SETTINGS = {
    "wal.commit.interval.ms": "5",
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "100",
}
TOPICS = {"flights": 3, "radar": 1, "quiet": 2}

Seen = Mapping[tuple[str, int], Sequence[tuple[int, bytes | None, bytes | None]]]
"""(offset, key, value) of every record, by topic and partition."""


def create_topics(broker: LiveBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    created = admin.create_topics(
        [
            NewTopic(name, num_partitions=count, config={"retention.ms": "900000000"})
            for name, count in TOPICS.items()
        ]
    )
    for future in created.values():
        future.result(TIMEOUT_S)


def produce(broker: LiveBroker, seed: int, *, rounds: int = 6) -> None:
    """To several partitions in all codecs, half of it by idempotent producers."""
    rng = random.Random(seed)
    for number in range(rounds):
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": number % 2 == 0,
                "compression.codec": CODECS[number % len(CODECS)],
                "linger.ms": 1,
            }
        )
        for _ in range(40):
            topic = rng.choice(["flights", "radar"])
            producer.produce(
                topic,
                value=rng.randbytes(rng.randrange(200)),
                key=rng.choice([None, b"", b"key"]),
                partition=rng.randrange(TOPICS[topic]),
            )
            if rng.random() < 0.2:
                producer.flush(TIMEOUT_S)
        assert producer.flush(TIMEOUT_S) == 0


def read_all(broker: LiveBroker) -> Seen:
    seen: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]] = {}
    with confluent_consumer(broker.bootstrap) as consumer:
        for topic in ("flights", "radar"):
            for partition in range(TOPICS[topic]):
                place = TopicPartition(topic, partition)
                low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
                found = seen[topic, partition] = []
                consumer.assign([TopicPartition(topic, partition, low)])
                while low < high:
                    for message in consumer.consume(500, timeout=1.0):
                        assert message.error() is None, message.error()
                        low = message.offset() + 1
                        found.append((message.offset(), message.key(), message.value()))
    return seen


def forget_metadata(data: Path) -> None:
    shutil.rmtree(data / "metadata")
    shutil.rmtree(data / "objects" / "meta", ignore_errors=True)


def rebuild(data: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    """The report of a rebuild without doubts."""
    capsys.readouterr()
    status = main(["rebuild", "--data", str(data), "--json", *options])
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    assert report["doubts"] == []
    assert status == 0
    return report


def test_a_broker_without_metadata_gets_everything_back_from_its_bucket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with LiveBroker(data, SETTINGS) as broker:
        create_topics(broker)
        produce(broker, 1)
        roll_everything(broker)
        produce(broker, 2)
        before = read_all(broker)
    forget_metadata(data)
    report = rebuild(data, capsys)
    assert report["segments"]
    with LiveBroker(data, SETTINGS) as broker:
        assert read_all(broker) == before
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = admin.list_topics(timeout=TIMEOUT_S).topics
        # Nothing was ever written to "quiet", so nothing in the bucket knows of it.
        assert {name: len(topics[name].partitions) for name in ("flights", "radar")} == {
            name: TOPICS[name] for name in ("flights", "radar")
        }
        produce(broker, 3)
        after = read_all(broker)
        roll_everything(broker)
        assert read_all(broker) == after
    for place, records in before.items():
        assert list(after[place][: len(records)]) == list(records)
        offsets = [offset for offset, _, _ in after[place]]
        assert offsets == list(range(len(offsets)))
    assert main(["verify", "--data", str(data)]) == 0
