"""Somebody deletes a broker's directories while it runs: nothing acknowledged is lost.

The chunk directory is a buffer and a cache, so it is made anew. What cannot be made anew ends the
broker: going on would acknowledge into files that have no name any more.
"""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from tests.support.brokers.live_broker import LiveBroker, until, until_nothing_waits
from tests.support.clients.stock_clients import (
    TIMEOUT_S,
    ConfluentKafka,
    Record,
    confluent_producer,
)
from tests.support.stores.faulty_store import StoreFaults
from wal.errors import CommitOutcomeUnknown, DirectoryLost, ObjectStoreUnavailable
from wal.segmented_log.log_directory import DirectoryLock

SETTINGS = {
    "wal.commit.interval.ms": "5",
    "wal.retry.backoff.ms": "5",
    "wal.retry.backoff.max.ms": "20",
}


def values(broker: LiveBroker, count: int) -> list[bytes | None]:
    return [record.value for _, record in ConfluentKafka().read(broker.bootstrap, "t", count)]


def leaves(failure: BaseException | None) -> list[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        return [leaf for one in failure.exceptions for leaf in leaves(one)]
    return [] if failure is None else [failure]


def until_it_ends(broker: LiveBroker) -> list[BaseException]:
    """What the broker died of."""
    until(lambda: bool(leaves(broker._failure)), "the end of the broker")
    return leaves(broker._failure)


def test_a_deleted_chunk_directory_is_made_anew_and_everything_acknowledged_is_read(
    tmp_path: Path,
) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker, capture_logs() as logs:
        ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"before")])
        chunks = broker.broker.base.data.chunks
        until(
            lambda: broker.broker.writes.directory.statistics().cached_chunks == 1, "a cached chunk"
        )
        shutil.rmtree(chunks.parent)
        assert ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"after")]) == [1]
        assert values(broker, 2) == [b"before", b"after"]
        assert [row for row in logs if "made anew" in row["event"]]
        # Nobody else can take the new one.
        with pytest.raises(BlockingIOError):
            DirectoryLock(chunks)
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        assert values(broker, 2) == [b"before", b"after"]


def test_what_was_not_uploaded_yet_is_a_retriable_error_and_is_sent_again(tmp_path: Path) -> None:
    faults = StoreFaults()
    results: list[KafkaError | None] = []
    with LiveBroker(tmp_path / "data", SETTINGS, opener=faults.opener) as broker:
        ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"before")])
        until_nothing_waits(broker)
        faults.put_error = ObjectStoreUnavailable("away")
        producer = confluent_producer(broker.bootstrap, retries=0)
        producer.produce("t", b"waits", on_delivery=lambda error, _: results.append(error))
        producer.poll(0)
        until(lambda: broker.broker.writes.uploader.waiting_chunks == 1, "a sealed chunk")
        shutil.rmtree(broker.broker.base.data.chunks)
        faults.heal()
        assert producer.flush(TIMEOUT_S) == 0
        (error,) = results
        assert error is not None
        assert error.name() == "KAFKA_STORAGE_ERROR"
        assert ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"waits")]) == [1]
        assert values(broker, 2) == [b"before", b"waits"]
        assert not broker.broker.writes.directory.damage


def test_a_chunk_that_is_deleted_while_it_is_open_fails_before_it_is_uploaded(
    tmp_path: Path,
) -> None:
    results: list[KafkaError | None] = []
    settings = {**SETTINGS, "wal.commit.interval.ms": "2000", "wal.commit.early": "false"}
    with LiveBroker(tmp_path / "data", settings) as broker:
        ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"before")])
        producer = confluent_producer(broker.bootstrap, retries=0)
        appended = broker.broker.writes.write_loop.statistics().batches
        producer.produce("t", b"open", on_delivery=lambda error, _: results.append(error))
        producer.poll(0)
        until(
            lambda: broker.broker.writes.write_loop.statistics().batches > appended,
            "an appended batch",
        )
        shutil.rmtree(broker.broker.base.data.chunks)
        assert producer.flush(TIMEOUT_S) == 0
        (error,) = results
        assert error is not None
        assert error.name() == "KAFKA_STORAGE_ERROR"
        assert ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"after")]) == [1]
        assert values(broker, 2) == [b"before", b"after"]


def test_a_chunk_directory_that_cannot_be_made_anew_ends_the_broker(tmp_path: Path) -> None:
    broker = LiveBroker(tmp_path / "data", SETTINGS)
    broker.__enter__()
    ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"before")])
    shutil.rmtree(broker.broker.base.data.chunks)
    broker.broker.base.data.chunks.write_text("in the way")
    producer = confluent_producer(broker.bootstrap, message_timeout_ms=60_000)
    producer.produce("t", b"after")
    producer.poll(0)
    (error,) = until_it_ends(broker)
    assert isinstance(error, DirectoryLost)
    assert str(broker.broker.base.data.chunks) in str(error)


def test_nothing_is_acknowledged_into_a_deleted_metadata_log(tmp_path: Path) -> None:
    results: list[KafkaError | None] = []
    settings = {**SETTINGS, "object.store.url": f"file://{tmp_path}/bucket"}
    broker = LiveBroker(tmp_path / "data", settings)
    broker.__enter__()
    ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"before")])
    shutil.rmtree(broker.broker.base.data.metadata_log)
    producer = confluent_producer(broker.bootstrap, retries=0, message_timeout_ms=60_000)
    producer.produce("t", b"after", on_delivery=lambda error, _: results.append(error))
    producer.poll(0)
    died_of = until_it_ends(broker)
    assert any(
        isinstance(error, CommitOutcomeUnknown) and "deleted" in str(error) for error in died_of
    )
    until(lambda: producer.poll(0.01) > 0 or bool(results), "an answer")
    assert results[0] is not None


def test_a_deleted_data_directory_ends_an_idle_broker(tmp_path: Path) -> None:
    settings = {**SETTINGS, "object.store.url": f"file://{tmp_path}/bucket"}
    broker = LiveBroker(tmp_path / "data", settings)
    broker.__enter__()
    # What a first start appends last, beside its first clients.
    catalogue = broker.broker.coordination.partitions[0].replica
    until(lambda: bool(catalogue.image.transactions.constants), "the place of groups")
    shutil.rmtree(tmp_path / "data")
    (error,) = until_it_ends(broker)
    assert isinstance(error, DirectoryLost)
    assert str(tmp_path / "data") in str(error)
    assert not (tmp_path / "data").exists()
