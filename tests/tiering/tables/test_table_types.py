"""Alternatives as columns of a table: DuckDB and PyIceberg read them, and new ones are added."""

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog.rest import RestCatalog

from demo.lake import open_duckdb
from metadata.operations import PlanSegments
from metadata.table_operations import ListTables
from tests.support.brokers.live_broker import LiveBroker
from tests.support.tiers.table_engines import catalogue_url
from tests.support.tiers.topic_table import ShiftedClock, roll_typed, set_configs
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rolls import roll_once
from tiering.tables.passes import TablePasses

pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")

TREE = ["null", "Node"]


def schema_of(*alternatives: Any) -> Any:
    fields = [{"name": "what", "type": list(alternatives)}, {"name": "next", "type": TREE}]
    return {"type": "record", "name": "Node", "fields": fields}


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", {"http.listen": "127.0.0.1:0"}) as running:
        yield running


def test_alternatives_are_columns_of_the_table_and_more_of_them_are_added(
    broker: LiveBroker,
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    first = schema_of("int", "string")
    config = {
        "table.enabled": "true",
        "table.commit.interval.ms": "0",
        "value.schema.format": "avro",
        "value.schema": json.dumps(first),
    }
    admin.create_topics([NewTopic("nodes", 1, config=config)])["nodes"].result(30)
    client = CoordinatorClient(broker.bootstrap)
    clock, rng = ShiftedClock(), random.Random(1)
    tables = ListTables(topics=("nodes",))
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def send(schema: Any, *values: Any) -> None:
        for value in values:
            producer.produce("nodes", written(schema, value))
        assert producer.flush(30) == 0
        asked = PlanSegments(include_partial=True, topics=("nodes",))
        assert roll_once(client, roll_typed, asked=asked).untyped_count == 0
        with TablePasses(client, tables, object_store_url=None, clock=clock, rng=rng) as passes:
            assert not passes.run_pass().failures

    send(first, {"what": 3, "next": {"what": "x", "next": None}}, {"what": "y", "next": None})
    second = schema_of("string", "boolean", "int")
    set_configs(admin, "nodes", {"value.schema": second})
    send(second, {"what": True, "next": None}, {"what": 4, "next": None})

    query = (
        "select count(*), sum(data.what.int), count(data.what.string), count(data.what.boolean),"
        " min(data.next.what.string) from nodes"
    )
    with open_duckdb() as lake:
        lake.execute(
            f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{catalogue_url(broker)}',"
            " AUTHORIZATION_TYPE 'none')"
        )
        told = lake.execute(query.replace("nodes", "lake.topics.nodes")).fetchall()
        few = "select count(*) from lake.topics.nodes where data.what.int > 3"
        assert lake.execute(few).fetchall() == [(1,)]
    assert told == [(4, 7, 1, 1, "x")]
    table = RestCatalog("lake", uri=catalogue_url(broker)).load_table("topics.nodes")
    assert table.scan(row_filter="data.what.int > 3").to_arrow().num_rows == 1
    found = sorted(
        str({name: value for name, value in row["what"].items() if value is not None})
        for row in table.scan().to_arrow()["data"].to_pylist()
    )
    assert found == ["{'boolean': True}", "{'int': 3}", "{'int': 4}", "{'string': 'y'}"]
