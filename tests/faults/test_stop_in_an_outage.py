"""A stop while the store is away: what was not acknowledged waits for the next start."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.brokers.live_broker import LiveBroker, until, until_nothing_waits
from tests.support.clients.stock_clients import ConfluentKafka, Record, confluent_producer
from tests.support.stores.faulty_store import StoreFaults
from wal.errors import CorruptObject

SETTINGS = {
    "wal.commit.interval.ms": "5",
    "wal.retry.backoff.ms": "5",
    "wal.retry.backoff.max.ms": "20",
    "server.stop.timeout.ms": "100",
}


def test_what_a_stop_leaves_behind_is_one_warning_and_is_committed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskless.parts.write_path._DRAIN_TIMEOUT_S", 0.05)
    faults = StoreFaults()
    with (
        capture_logs() as logs,
        LiveBroker(tmp_path / "data", SETTINGS, opener=faults.opener) as broker,
    ):
        ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"before")])
        until_nothing_waits(broker)
        faults.outage()
        producer = confluent_producer(broker.bootstrap, retries=0)
        producer.produce("t", b"waits")
        producer.poll(0)
        until(lambda: broker.broker.writes.uploader.waiting_chunks == 1, "a sealed chunk")
    left = [row for row in logs if "next start" in row["event"]]
    assert [(row["log_level"], row["chunks"], row["batches"]) for row in left] == [
        ("warning", 1, 1)
    ]
    assert not [row for row in logs if row["log_level"] == "error"]
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        read = ConfluentKafka().read(broker.bootstrap, "t", 2)
    assert [record.value for _, record in read] == [b"before", b"waits"]


def test_a_chunk_that_is_really_dropped_is_an_error_with_its_records(tmp_path: Path) -> None:
    faults = StoreFaults()
    with (
        capture_logs() as logs,
        LiveBroker(tmp_path / "data", SETTINGS, opener=faults.opener) as broker,
    ):
        ConfluentKafka().produce(broker.bootstrap, "t", [Record(value=b"before")])
        faults.put_error = CorruptObject("refused for good")
        producer = confluent_producer(broker.bootstrap, retries=0)
        producer.produce("t", b"dropped")
        until(lambda: producer.flush(0.01) == 0, "an answer")
        faults.heal()
    (dropped,) = (row for row in logs if row["event"].startswith("chunk dropped"))
    assert (dropped["log_level"], dropped["batches"]) == ("error", 1)
    assert "refused for good" in dropped["error"]
