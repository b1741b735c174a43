"""A topic as a table: what DuckDB and PyIceberg read through the broker's catalogue.

One broker for the file. The steps of a topic's life come in random order: produce and roll, deleted
records, retention, other schemas, snapshots that expire, merges, a tiering job that dies at each
point. After
each of them both engines, attached to the broker's catalogue, have to give what follows from the
records themselves. Spark does in test_table_spark.py.
"""

import itertools
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Final

import duckdb
import pytest
from confluent_kafka.admin import AdminClient
from pyiceberg.catalog.rest import RestCatalog

from demo.lake import attach, open_duckdb
from tests.support.brokers.live_broker import LiveBroker
from tests.support.profiles import IS_EXHAUSTIVE
from tests.support.tiers.compacted import LOCAL_COMPACTOR, compact_everything
from tests.support.tiers.table_engines import (
    catalogue_url,
    expected_facts,
    get,
    told_by_duckdb,
    told_by_pyiceberg,
)
from tests.support.tiers.topic_table import PARTITIONS, RANGE_MS, START_MS, TopicTable, set_configs

STEPS: Final = 200 if IS_EXHAUSTIVE else 10
TRANSACTIONAL_STEPS: Final = 200 if IS_EXHAUSTIVE else 5
NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    directory = tmp_path_factory.mktemp("tables")
    # Retention by age, which the records' times are due for, would be a step that nobody took.
    settings = {"http.listen": "127.0.0.1:0", "log.retention.check.interval.ms": "3600000"}
    with LiveBroker(directory / "data", settings) as running:
        yield running


@pytest.fixture(scope="module")
def lake() -> duckdb.DuckDBPyConnection:
    return open_duckdb()


@pytest.fixture
def name() -> str:
    """Of a topic: a second try of a test is given another one."""
    return f"steps_{next(NUMBERS)}"


def test_both_engines_see_the_live_segments_after_every_step(
    broker: LiveBroker, lake: duckdb.DuckDBPyConnection, name: str
) -> None:
    rng = random.Random(1)
    topic = TopicTable(broker, name, rng)
    for number in range(STEPS):
        step = topic.steps[number] if number < len(topic.steps) else rng.choice(topic.steps)
        take_and_compare(topic, step, lake)
    assert topic.merged


def test_both_engines_see_what_was_committed_after_every_step(
    broker: LiveBroker, lake: duckdb.DuckDBPyConnection, name: str
) -> None:
    """Three transactions in ten are aborted, and a topic rolls while they are open."""
    rng = random.Random(8)
    topic = TopicTable(broker, name, rng, is_transactional=True)
    for number in range(TRANSACTIONAL_STEPS):
        step = rng.choice(topic.steps) if number else topic.produce_and_roll
        take_and_compare(topic, step, lake)
    assert topic.left_out == topic.aborted > 0


def take_and_compare(
    topic: TopicTable, step: Callable[[], None], lake: duckdb.DuckDBPyConnection
) -> None:
    step()
    topic.run_pass()
    again = topic.run_pass()
    assert not any(table.is_committed for table in again.tables), "a repeated pass"
    cut_ms = START_MS + topic.rng.randrange(RANGE_MS)
    expected = expected_facts(topic, cut_ms)
    assert told_by_duckdb(lake, topic, cut_ms) == expected, step
    assert told_by_pyiceberg(topic, cut_ms) == expected, step


def test_nobody_else_writes(broker: LiveBroker, lake: duckdb.DuckDBPyConnection, name: str) -> None:
    topic = TopicTable(broker, name, random.Random(2))
    topic.produce_and_roll()
    topic.run_pass()
    table = RestCatalog("lake", uri=catalogue_url(broker)).load_table(("topics", topic.name))
    with pytest.raises(NotImplementedError, match="does not support endpoint"):
        table.append(table.scan().to_arrow())
    attach(lake, catalogue_url(broker))
    with pytest.raises(duckdb.Error):
        lake.execute(f'DELETE FROM lake.topics."{topic.name}"')
    path = f"/v1/namespaces/topics/tables/{topic.name}"
    for method in ("POST", "DELETE", "PUT"):
        request = urllib.request.Request(
            f"{catalogue_url(broker)}{path}", data=b"{}", method=method
        )
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request)
    assert told_by_duckdb(lake, topic, 0).count == len(topic.expected())


def test_a_snapshot_tells_how_far_the_metadata_were_applied(broker: LiveBroker, name: str) -> None:
    topic = TopicTable(broker, name, random.Random(3))
    topic.produce_and_roll()
    topic.run_pass()
    loaded = get(broker, f"/v1/namespaces/topics/tables/{name}")
    metadata = loaded["metadata"]
    (snapshot,) = metadata["snapshots"]
    applied = json.loads(snapshot["summary"]["diskless.metadata.offsets"])
    assert 0 < applied["0"] <= broker.broker.coordination.partitions[0].replica.applied_offset
    assert metadata["format-version"] == 2
    assert metadata["properties"]["gc.enabled"] == "false"
    (spec,) = metadata["partition-specs"]
    assert [(one["name"], one["transform"]) for one in spec["fields"]] == [
        ("partition", "identity")
    ]
    assert loaded["config"] == {}


def test_time_travel_reads_what_a_deletion_took_away(
    broker: LiveBroker, lake: duckdb.DuckDBPyConnection, name: str
) -> None:
    topic = TopicTable(broker, name, random.Random(4))
    topic.produce_and_roll()
    topic.run_pass()
    count = len(topic.expected())
    rows = get(broker, f"/v1/namespaces/topics/tables/{name}")["metadata"]["snapshots"]
    for partition in range(PARTITIONS):
        topic.delete_before(partition, -1)
    topic.run_pass()
    attach(lake, catalogue_url(broker))
    table = f'lake.topics."{topic.name}"'
    assert lake.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    before = f"{table} AT (VERSION => {rows[0]['snapshot-id']})"
    assert lake.execute(f"SELECT count(*) FROM {before}").fetchone() == (count,)


def test_a_deleted_topic_is_not_in_the_catalogue(broker: LiveBroker, name: str) -> None:
    topic = TopicTable(broker, name, random.Random(5))
    topic.produce_and_roll()
    topic.run_pass()
    names = RestCatalog("lake", uri=catalogue_url(broker)).list_tables("topics")
    assert ("topics", name) in names
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result()
    names = RestCatalog("lake", uri=catalogue_url(broker)).list_tables("topics")
    assert ("topics", name) not in names
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(broker, f"/v1/namespaces/topics/tables/{name}")


def test_typed_columns_are_columns_of_the_table_and_old_files_have_null(
    broker: LiveBroker, lake: duckdb.DuckDBPyConnection, name: str
) -> None:
    topic = TopicTable(broker, name, random.Random(6), is_typed=False)
    topic.produce_and_roll()
    topic.run_pass()
    untyped = len(topic.expected())
    for properties in ({"a": "integer"}, {"a": "integer", "b": "string"}):
        schema = {
            "type": "object",
            "properties": {name: {"type": kind} for name, kind in properties.items()},
        }
        configs = {"value.schema.format": "json", "value.schema": schema}
        set_configs(topic.admin, topic.name, configs)
        for number in range(10):
            value = json.dumps({"a": number, "b": "x"})
            topic.producer.produce(topic.name, value, partition=0)
        assert topic.producer.flush(30) == 0
        topic.roll()
        topic.run_pass()
    attach(lake, catalogue_url(broker))
    found = lake.execute(
        "SELECT count(*), count(data), sum(data.a), count(data.b) "
        f'FROM lake.topics."{topic.name}" WHERE data IS NULL OR data.a >= 5'
    ).fetchone()
    assert found == (untyped + 10, 10, 70, 5)


def test_deleted_records_of_a_compacted_topic_are_hidden(
    broker: LiveBroker, lake: duckdb.DuckDBPyConnection, name: str
) -> None:
    topic = TopicTable(broker, name, random.Random(7), is_typed=False)
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "table.hide.deleted": "true",
    }
    set_configs(topic.admin, topic.name, configs)
    for number in range(90):
        key = str(number % 2 if number < 40 else number)
        topic.producer.produce(topic.name, b"v", key=key, partition=0)
    assert topic.producer.flush(30) == 0
    topic.roll()
    assert compact_everything(broker, LOCAL_COMPACTOR, topic.name).rewrites
    table = RestCatalog("lake", uri=catalogue_url(broker))
    attach(lake, catalogue_url(broker))
    kept = [38, 39, *range(40, 90)]
    for before in (0, 37, 39, 50):
        topic.delete_before(0, before)
        topic.run_pass()
        expected = [offset for offset in kept if offset >= before]
        assert lake.execute(
            f'SELECT list("offset" ORDER BY "offset"), count(*) FROM lake.topics."{topic.name}"'
        ).fetchone() == (expected, len(expected))
        read = table.load_table(("topics", topic.name)).scan().to_arrow()
        assert sorted(read["offset"].to_pylist()) == expected
