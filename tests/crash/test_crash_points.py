"""SIGKILL at every named point of the write path, under a stock idempotent producer.

The producer keeps running, as a real one does: it reconnects to the restarted broker and finishes.
Afterwards `diskless verify` finds nothing broken, and every record is there exactly once, at the
offset that its acknowledgement named.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from demo.broker_process import BrokerProcess, run_diskless

TOPIC = "crash"


class Load(NamedTuple):
    """What a producer sends, in batches of up to 20 records."""

    partitions: int
    records: int
    value_bytes: int


SMALL = Load(partitions=3, records=3_000, value_bytes=8)
LARGE = Load(partitions=4, records=1_200, value_bytes=20_000)
"""Its chunks have few large batches, and their objects are put while they fill."""

CRASH_POINTS = {
    "chunk.after_append": 4,
    "chunk.after_seal": 4,
    "upload.before_put": 4,
    "upload.after_put": 4,
    "commit.after_log": 5,
    "commit.after_apply": 5,
    "commit.after_answer": 4,
}
"""Point -> which time it is reached kills the broker. Topic creation reaches the commit points."""
POINTS_BESIDE = ("chunk.after_append", "upload.before_put")
"""Where one thread writes a chunk and another its object."""

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("point", "load"),
    [
        *[pytest.param(point, SMALL, id=point) for point in CRASH_POINTS],
        *[pytest.param(point, LARGE, id=f"{point}, beside") for point in POINTS_BESIDE],
    ],
)
def test_a_broker_killed_there_loses_and_repeats_nothing(
    point: str, load: Load, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    settings = {"num.partitions": str(load.partitions), "wal.commit.interval.ms": "20"}
    with BrokerProcess(data, tmp_path, settings) as broker:
        broker.start({"DISKLESS_FAILPOINTS": f"{point}=kill:{CRASH_POINTS[point]}"})
        acknowledged: dict[int, tuple[int, int]] = {}
        failed: list[object] = []
        producer = _producer(broker.bootstrap)
        sending = threading.Thread(target=_produce, args=(producer, load, acknowledged, failed))
        sending.start()
        assert broker.wait_for_death() == -9
        broker.start()
        sending.join()
        assert not failed
        assert len(acknowledged) == load.records
        broker.stop()

        assert run_diskless(["verify", "--data", data], tmp_path / "verify.log", 60) == 0, (
            tmp_path / "verify.log"
        ).read_text()

        broker.start()
        stored = _consume(broker.bootstrap, load)
        broker.stop()
    by_value: dict[int, list[tuple[int, int]]] = {}
    for place, value in stored.items():
        by_value.setdefault(value, []).append(place)
    assert all(len(places) == 1 for places in by_value.values()), "a record is there twice"
    assert {value: places[0] for value, places in by_value.items()} == acknowledged


def _producer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.num.messages": 20,
            "message.timeout.ms": 60_000,
            "reconnect.backoff.max.ms": 500,
            "logger": _quiet(),
        }
    )


def _quiet() -> object:
    """librdkafka reports the broken connection; that is the point, not worth a line."""
    import logging

    logger = logging.getLogger("crash-client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _produce(
    producer: Producer,
    load: Load,
    acknowledged: dict[int, tuple[int, int]],
    failed: list[object],
) -> None:
    def delivered(error: object, message: Message) -> None:
        if error is not None:
            failed.append(error)
            return
        value = message.value()
        partition, offset = message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        acknowledged[int(value)] = (partition, offset)

    for number in range(load.records):
        value = b"%*d" % (load.value_bytes, number)
        producer.produce(TOPIC, value, partition=number % load.partitions, on_delivery=delivered)
        producer.poll(0.001 if number % 20 == 0 else 0)
    producer.flush(90)


def _consume(bootstrap: str, load: Load) -> Mapping[tuple[int, int], int]:
    """(partition, offset) -> value of everything in the topic."""
    partitions, count = range(load.partitions), load.records
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "crash", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in partitions])
        ends = sum(
            consumer.get_watermark_offsets(TopicPartition(TOPIC, index), timeout=120)[1]
            for index in partitions
        )
        assert ends == count, f"{ends} records are in the topic, {count} were produced"
        found: dict[tuple[int, int], int] = {}
        while len(found) < count:
            messages = consumer.consume(count, timeout=120)
            assert messages, f"{count - len(found)} records did not come"
            for message in messages:
                assert message.error() is None
                found[message.partition(), message.offset()] = int(message.value())
        return found
    finally:
        consumer.close()
