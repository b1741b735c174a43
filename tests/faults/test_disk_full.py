"""The disk under the chunks is full: producers are told to try again, everything else goes on."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.chunks.failing_disk import FailingDisk
from tests.support.clients.stock_clients import (
    TIMEOUT_S,
    ConfluentKafka,
    Record,
    confluent_producer,
)

SETTINGS = {"wal.commit.interval.ms": "5"}


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk(error_number=errno.ENOSPC)


@pytest.fixture
def broker(tmp_path: Path, disk: FailingDisk) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", SETTINGS, disk=disk) as broker:
        ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"before")])
        yield broker
        free(disk)


def fill(disk: FailingDisk) -> None:
    disk.bytes_free = 0
    disk.failing = {"create", "pwritev"}


def free(disk: FailingDisk) -> None:
    disk.bytes_free = None
    disk.failing = set()


def test_a_full_disk_is_a_retriable_error_and_reading_goes_on(
    broker: LiveBroker, disk: FailingDisk
) -> None:
    fill(disk)
    results: list[KafkaError | None] = []
    # Without retries the client shows what the broker answered.
    producer = confluent_producer(broker.bootstrap, retries=0)
    producer.produce("t", b"refused", on_delivery=lambda error, _: results.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert results[0] is not None
    assert results[0].name() == "KAFKA_STORAGE_ERROR"
    assert ConfluentKafka().read(broker.bootstrap, "t", 1)[0].record.value == b"before"
    free(disk)
    assert ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"after")]) == [1]
    read = ConfluentKafka().read(broker.bootstrap, "t", 2)
    assert [record.value for _, record in read] == [b"before", b"after"]


def test_an_idempotent_producer_sits_it_out_and_every_record_is_there_once(
    broker: LiveBroker, disk: FailingDisk
) -> None:
    offsets: list[int | None] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset())

    producer = confluent_producer(
        broker.bootstrap,
        enable_idempotence=True,
        batch_num_messages=10,
        retry_backoff_ms=10,
        message_timeout_ms=60_000,
    )
    for number in range(200):
        producer.produce("t", str(number).encode(), on_delivery=delivered)
        producer.poll(0)
        if number == 100:
            fill(disk)
    # It gives out in the middle of a write, and what is refused is sent again in order.
    refused = broker.broker.writes.write_loop.statistics().batches_failed

    def refused_often() -> bool:
        producer.poll(0.005)
        return broker.broker.writes.write_loop.statistics().batches_failed >= refused + 5

    until(refused_often, "appends that the disk refuses")
    assert not errors
    free(disk)
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors, errors
    assert offsets == list(range(1, 201))
    read = ConfluentKafka().read(broker.bootstrap, "t", 201)
    values = [record.value for _, record in read]
    assert values == [b"before", *(str(number).encode() for number in range(200))]


@pytest.mark.parametrize("bytes_free", [1, 63, 64, 100, 1_000, 5_000])
def test_a_disk_that_fills_up_in_the_middle_of_a_write_keeps_what_was_acknowledged(
    tmp_path: Path, bytes_free: int
) -> None:
    disk = FailingDisk(error_number=errno.ENOSPC)
    with LiveBroker(tmp_path / "data", SETTINGS, disk=disk) as broker:
        results: list[tuple[KafkaError | None, bytes | None]] = []
        producer = confluent_producer(broker.bootstrap, retries=0)

        def send(number: int) -> None:
            producer.produce(
                "t",
                b"%d" % number * 100,
                on_delivery=lambda error, message: results.append((error, message.value())),
            )
            assert producer.flush(TIMEOUT_S) == 0

        send(0)
        disk.bytes_free = bytes_free
        for number in range(1, 20):
            send(number)
        assert any(error for error, _ in results)
        disk.bytes_free = None
        send(20)
        assert results[-1][0] is None
    # The next life finds no torn remains that count, and nothing acknowledged is missing.
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        acknowledged = [value for error, value in results if error is None]
        read = ConfluentKafka().read(broker.bootstrap, "t", len(acknowledged))
        assert [record.value for _, record in read] == acknowledged
        assert ConfluentKafka().produce(broker.bootstrap, "t", [Record()]) == [len(acknowledged)]
        assert not broker.broker.writes.directory.damage
