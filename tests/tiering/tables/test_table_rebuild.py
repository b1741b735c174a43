"""A table whose pointer was lost with the metadata."""

import json
import random
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog.rest import RestCatalog

from diskless.cli.cli import main
from metadata.table_operations import ListTables
from tests.support.brokers.live_broker import LiveBroker
from tests.support.tiers.rolled import roll_everything
from tiering.coordinator_client import CoordinatorClient
from tiering.tables.passes import TablePasses
from tiering.tables.report import TableResult
from wal.clock import SystemClock

SETTINGS = {"http.listen": "127.0.0.1:0"}
ROWS = 50


def written(broker: LiveBroker) -> TableResult:
    passes = TablePasses(
        CoordinatorClient(broker.bootstrap),
        ListTables(),
        object_store_url=None,
        clock=SystemClock(),
        rng=random.Random(),
    )
    with passes:
        (table,) = passes.run_pass().tables
    assert not table.failure
    return table


def test_a_rebuild_names_tables_and_the_next_pass_makes_them_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with LiveBroker(data, SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic("flights", 2, config={"table.enabled": "true"}), NewTopic("plain", 1)]
        for made in admin.create_topics(topics).values():
            made.result()
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(ROWS):
            producer.produce("flights", b"value", partition=number % 2)
            producer.produce("plain", b"value")
        assert producer.flush(30) == 0
        roll_everything(broker)
        before = written(broker)
    shutil.rmtree(data / "metadata")
    shutil.rmtree(data / "objects" / "meta", ignore_errors=True)
    capsys.readouterr()
    assert main(["rebuild", "--data", str(data), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tables"] == ["flights"]
    with LiveBroker(data, SETTINGS) as broker:
        after = written(broker)
        assert after.new_uuid not in ("", before.new_uuid)
        assert after.file_count == before.file_count
        http = broker.broker.base.http
        assert http is not None
        lake = RestCatalog("lake", uri=f"http://127.0.0.1:{http.port}")
        table = lake.load_table(("topics", "flights"))
        assert str(table.metadata.table_uuid) == after.new_uuid
        assert table.scan().to_arrow().num_rows == ROWS
