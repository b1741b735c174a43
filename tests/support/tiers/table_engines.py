"""What engines read in a topic's table, through the broker's catalogue, as the same few facts.

Each of them counts and adds up, and counts again under a condition on the time, on partition and
offset, and on a typed column: engines leave out files and row groups by statistics, each in its own
way, and statistics that are wrong show only there.
"""

import json
import urllib.request
from datetime import UTC, datetime
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual

from demo.lake import attach
from tests.support.brokers.live_broker import LiveBroker
from tests.support.tiers.spark_tables import SparkTables
from tests.support.tiers.topic_table import GREAT, TopicTable


class Facts(NamedTuple):
    """About all rows of a table; what there is none of is 0."""

    count: int
    offset_sum: int
    size_sum: int
    min_ms: int
    max_ms: int
    since: int
    """Rows at a time or later."""
    placed: int
    """Of partition 1, from offset 20 on."""
    number_sum: int
    """Of `data.n`; so are the next three."""
    number_min: int
    number_max: int
    great: int
    """From GREAT on."""
    newest: int
    """Rows that have `data.f` of the newest schema."""
    poison: int
    """Rows with `data_error`."""


def expected_facts(topic: TopicTable, cut_ms: int) -> Facts:
    rows = topic.expected()
    stamps = [row.timestamp_ms for _, row in rows] or [0]
    numbers = [row.number for _, row in rows if row.number is not None] or [0]
    return Facts(
        count=len(rows),
        offset_sum=sum(row.offset for _, row in rows),
        size_sum=sum(row.size for _, row in rows),
        min_ms=min(stamps),
        max_ms=max(stamps),
        since=sum(row.timestamp_ms >= cut_ms for _, row in rows),
        placed=sum(partition == 1 and row.offset >= 20 for partition, row in rows),
        number_sum=sum(numbers),
        number_min=min(numbers),
        number_max=max(numbers),
        great=sum(number >= GREAT for number in numbers),
        newest=sum(row.number is not None and row.schema == topic.schema for _, row in rows),
        poison=sum(row.number is None for _, row in rows),
    )


def catalogue_url(broker: LiveBroker) -> str:
    assert broker.broker.base.http is not None
    return f"http://127.0.0.1:{broker.broker.base.http.port}"


def get(broker: LiveBroker, path: str) -> Any:
    """What the catalogue answers."""
    with urllib.request.urlopen(f"{catalogue_url(broker)}{path}") as answer:
        return json.loads(answer.read())


# DuckDB


def told_by_duckdb(lake: duckdb.DuckDBPyConnection, topic: TopicTable, cut_ms: int) -> Facts:
    attach(lake, catalogue_url(topic.broker))
    table = f'lake.topics."{topic.name}"'

    def row_of(columns: str, condition: str = "true") -> tuple[int, ...]:
        row = lake.execute(f"SELECT {columns} FROM {table} WHERE {condition}").fetchone()
        assert row is not None
        return tuple(int(value or 0) for value in row)

    whole = row_of(
        'count(*), sum("offset"), sum(octet_length(value)), '
        "epoch_ms(min(timestamp)), epoch_ms(max(timestamp)), "
        "sum(data.n), min(data.n), max(data.n), count(data.f), count(data_error)"
    )
    filtered = [
        row_of("count(*)", condition)[0]
        for condition in (
            f"timestamp >= TIMESTAMPTZ '{_time(cut_ms)}'",
            'partition = 1 AND "offset" >= 20',
            f"data.n >= {GREAT}",
        )
    ]
    return Facts(*whole[:5], *filtered[:2], *whole[5:8], filtered[2], *whole[8:])


# PyIceberg


def told_by_pyiceberg(topic: TopicTable, cut_ms: int) -> Facts:
    table = RestCatalog("lake", uri=catalogue_url(topic.broker)).load_table(("topics", topic.name))
    rows = table.scan().to_arrow()

    def count(condition: BooleanExpression) -> int:
        return table.scan(row_filter=condition).to_arrow().num_rows

    stamps = rows["timestamp"].cast(pa.int64())
    data = rows["data"]
    numbers = pc.struct_field(data, "n")
    numbers = pc.drop_null(numbers)
    return Facts(
        count=rows.num_rows,
        offset_sum=_number(pc.sum(rows["offset"])),
        size_sum=_number(pc.sum(pc.binary_length(rows["value"]))),
        min_ms=_number(pc.min(stamps)) // 1000,
        max_ms=_number(pc.max(stamps)) // 1000,
        since=count(GreaterThanOrEqual("timestamp", _time(cut_ms))),
        placed=count(And(EqualTo("partition", 1), GreaterThanOrEqual("offset", 20))),
        number_sum=_number(pc.sum(numbers)),
        number_min=_number(pc.min(numbers)),
        number_max=_number(pc.max(numbers)),
        great=count(GreaterThanOrEqual("data.n", GREAT)),
        newest=_number(pc.count(pc.struct_field(data, "f"))),
        poison=_number(pc.count(rows["data_error"])),
    )


# Spark


def told_by_spark(spark: SparkTables, topic: TopicTable, cut_ms: int) -> Facts:
    """One statement; each condition is a scan of its own, so that each leaves out what it may."""
    table = f"lake.topics.`{topic.name}`"
    (row,) = spark.sql(
        f"""
        select
          count(*) as count, sum(offset) as offset_sum, sum(length(value)) as size_sum,
          unix_millis(min(timestamp)) as min_ms, unix_millis(max(timestamp)) as max_ms,
          (select count(*) from {table} where timestamp >= timestamp '{_time(cut_ms)}') as since,
          (select count(*) from {table} where partition = 1 and offset >= 20) as placed,
          sum(data.n) as number_sum, min(data.n) as number_min, max(data.n) as number_max,
          (select count(*) from {table} where data.n >= {GREAT}) as great,
          count(data.f) as newest, count(data_error) as poison
        from {table}
        """
    )
    return Facts(**{name: int(row.get(name, 0)) for name in Facts._fields})


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _number(scalar: "pa.Scalar[Any]") -> int:
    return int(scalar.as_py() or 0)
