"""A topic as a table: what DuckDB and PyIceberg read through the broker's catalogue.

One broker for the file. The steps of a topic's life come in random order: produce and roll, deleted
records, snapshots that expire, a tiering job that dies at each point. After each of them both
engines, attached to the broker's catalogue, have to give what follows from the records themselves.
"""

import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual

from metadata.operations import DeleteRecords, PlanSegments, SegmentPlan
from metadata.rewrites import PlanRewrites, RewritePlan
from metadata.table_operations import ListTables
from tests.support.live_broker import LiveBroker
from tests.support.profiles import IS_EXHAUSTIVE
from tests.support.rolled import roll_everything
from tiering.coordinator_client import CoordinatorClient
from tiering.job import RollResult, run_once
from tiering.merging.job import MergeResult, merge_once
from tiering.merging.merge import merge
from tiering.tables.passes import TablePasses
from tiering.tables.report import TablesReport
from tiering.types.typed_roll import roll_as_planned
from wal.clock import SystemClock
from wal.coordinates import TopicIdPartition
from wal.failpoint import arm
from wal.stores.blocking_store import BlockingStore, open_blocking_store

STEPS: Final = 200 if IS_EXHAUSTIVE else 14
PARTITIONS: Final = 2
START_MS: Final = 1_370_000_000_000
POINTS: Final = ("table.before_metadata", "table.before_commit", "table.after_commit")


class ShiftedClock(SystemClock):
    """The machine's clock a month ago, to be put forward: DuckDB passes over what is not yet."""

    def __init__(self) -> None:
        self.ahead_ms = -30 * 24 * 3_600_000

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    directory = tmp_path_factory.mktemp("tables")
    # Retention by age, which the records' times are due for, would be a step that nobody took.
    settings = {"http.listen": "127.0.0.1:0", "log.retention.check.interval.ms": "3600000"}
    with LiveBroker(directory / "data", settings) as running:
        yield running


@pytest.fixture(scope="module")
def lake(broker: LiveBroker) -> duckdb.DuckDBPyConnection:
    """DuckDB with its extensions from their wheels: nothing is downloaded."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    packages = Path(duckdb.__file__).parent.parent
    for name in ("avro", "httpfs", "iceberg"):
        (extension,) = (packages / f"duckdb_extension_{name}").rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def catalogue_url(broker: LiveBroker) -> str:
    assert broker.broker.base.http is not None
    return f"http://127.0.0.1:{broker.broker.base.http.port}"


def attach(lake: duckdb.DuckDBPyConnection, broker: LiveBroker) -> None:
    """Anew: within one attachment DuckDB keeps what it has loaded."""
    lake.execute("DETACH DATABASE IF EXISTS lake")
    lake.execute(
        f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{catalogue_url(broker)}', "
        "AUTHORIZATION_TYPE 'none')"
    )


def get(broker: LiveBroker, path: str) -> Any:
    with urllib.request.urlopen(f"{catalogue_url(broker)}{path}") as answer:
        return json.loads(answer.read())


@dataclass
class PlainMerger:
    """Merges in this process."""

    store: BlockingStore

    def merge(self, plans: Sequence[RewritePlan], object_store_url: str) -> Sequence[MergeResult]:
        return [MergeResult(plan, merge(plan, self.store)) for plan in plans]


@dataclass
class Row:
    offset: int
    timestamp_ms: int
    size: int


@dataclass
class TopicTable:
    """A topic, what was produced to it, and which segments should be live."""

    broker: LiveBroker
    name: str
    rng: random.Random
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    rows: dict[int, list[Row]] = field(
        default_factory=lambda: {partition: [] for partition in range(PARTITIONS)}
    )
    segments: list[tuple[int, int, int]] = field(default_factory=list)
    merged: int = 0

    def __post_init__(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        config = {"table.enabled": "true", "table.commit.interval.ms": "0"}
        topics = [NewTopic(self.name, PARTITIONS, config=config)]
        admin.create_topics(topics)[self.name].result()
        self.producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        self.passes = self.new_passes()

    def new_passes(self) -> TablePasses:
        return TablePasses(
            CoordinatorClient(self.broker.bootstrap),
            ListTables(topics=(self.name,)),
            object_store_url=None,
            clock=self.clock,
            rng=random.Random(self.rng.random()),
        )

    def run_pass(self) -> TablesReport:
        report = self.passes.run_pass()
        assert not report.failures
        return report

    # -- steps

    def produce_and_roll(self) -> None:
        for _ in range(self.rng.randint(1, 60)):
            partition = self.rng.randrange(PARTITIONS)
            rows = self.rows[partition]
            stamp = START_MS + self.rng.randrange(10**9)
            row = Row(len(rows), stamp, self.rng.randrange(40))
            rows.append(row)
            self.producer.produce(
                self.name, b"v" * row.size, key=b"k", partition=partition, timestamp=stamp
            )
        assert self.producer.flush(30) == 0
        for segment in roll_everything(self.broker):
            where = segment.partition.partition
            self.segments.append((where, segment.base_offset, segment.last_offset))

    def delete_records(self) -> None:
        partition = self.rng.randrange(PARTITIONS)
        before = self.rng.randint(0, len(self.rows[partition]))
        client = self.broker.broker.coordination.client
        topic_id = client.topics()[self.name].topic_id
        asked = [DeleteRecords(TopicIdPartition(topic_id, partition), before)]
        self.broker.run(client.delete_records(asked))
        self.segments = [
            (where, base, last)
            for where, base, last in self.segments
            if where != partition or last >= before
        ]

    def expire(self) -> None:
        self.clock.ahead_ms += 2 * 3_600_000

    def die(self) -> None:
        """A pass that is killed somewhere; another job goes on."""
        self.produce_and_roll()
        arm(f"{self.rng.choice(POINTS)}=raise")
        try:
            (failure,) = self.passes.run_pass().failures
        finally:
            arm("")
        assert "FailpointError" in failure.failure
        self.passes = self.new_passes()

    def merge(self) -> None:
        """Small neighbours become one segment; which rows there are does not change."""
        listed = CoordinatorClient(self.broker.bootstrap).list_tables(ListTables())
        with open_blocking_store(listed.object_store_url, sync=False) as store:
            report = merge_once(
                self.broker.bootstrap,
                merger=PlainMerger(store),
                asked=PlanRewrites(topics=(self.name,)),
            )
        assert not report.failures
        self.merged += len(report.segments)
        for segment in report.segments:
            # From here on its records go together.
            where = int(segment.object_key.rpartition("/partition=")[2].partition("/")[0])
            base, last = segment.base_offset, segment.last_offset
            kept = [one for one in self.segments if one[0] != where or not base <= one[1] <= last]
            self.segments = [*kept, (where, base, last)]

    # -- what should be there

    def expected(self) -> list[tuple[int, Row]]:
        return [
            (partition, row)
            for partition, base, last in self.segments
            for row in self.rows[partition][base : last + 1]
        ]


Facts = tuple[int, int, int, int, int, int, int]
"""Count, sum of offsets, sum of sizes, least and greatest timestamp, and of one condition on the
time, and one on partition and offset, the counts."""


def facts_of(rows: list[tuple[int, Row]], cut_ms: int) -> Facts:
    stamps = [row.timestamp_ms for _, row in rows] or [0]
    return (
        len(rows),
        sum(row.offset for _, row in rows),
        sum(row.size for _, row in rows),
        min(stamps),
        max(stamps),
        sum(row.timestamp_ms >= cut_ms for _, row in rows),
        sum(partition == 1 and row.offset >= 20 for partition, row in rows),
    )


def told_by_duckdb(
    lake: duckdb.DuckDBPyConnection, broker: LiveBroker, name: str, cut_ms: int
) -> Facts:
    attach(lake, broker)
    table = f'lake.topics."{name}"'
    row = lake.execute(
        'SELECT count(*), coalesce(sum("offset"), 0), coalesce(sum(octet_length(value)), 0), '
        "coalesce(epoch_ms(min(timestamp)), 0), coalesce(epoch_ms(max(timestamp)), 0) "
        f"FROM {table}"
    ).fetchone()
    by_time = lake.execute(
        f"SELECT count(*) FROM {table} WHERE timestamp >= ?",
        [datetime.fromtimestamp(cut_ms / 1000, UTC)],
    ).fetchone()
    by_place = lake.execute(
        f'SELECT count(*) FROM {table} WHERE partition = 1 AND "offset" >= 20'
    ).fetchone()
    assert row is not None
    assert by_time is not None
    assert by_place is not None
    return (*map(int, row), by_time[0], by_place[0])  # type: ignore[return-value]


def told_by_pyiceberg(broker: LiveBroker, name: str, cut_ms: int) -> Facts:
    table = RestCatalog("lake", uri=catalogue_url(broker)).load_table(("topics", name))
    rows = table.scan().to_arrow()
    cut = datetime.fromtimestamp(cut_ms / 1000, UTC).isoformat()
    stamps = [int(stamp.timestamp() * 1000 + 0.5) for stamp in rows["timestamp"].to_pylist()] or [0]
    by_time = table.scan(row_filter=GreaterThanOrEqual("timestamp", cut)).to_arrow()
    place = And(EqualTo("partition", 1), GreaterThanOrEqual("offset", 20))
    return (
        rows.num_rows,
        sum(rows["offset"].to_pylist()),
        sum(len(value) for value in rows["value"].to_pylist()),
        min(stamps),
        max(stamps),
        by_time.num_rows,
        table.scan(row_filter=place).to_arrow().num_rows,
    )


def test_both_engines_see_the_live_segments_after_every_step(
    broker: LiveBroker, lake: duckdb.DuckDBPyConnection
) -> None:
    rng = random.Random(1)
    topic = TopicTable(broker, "steps", rng)
    steps: list[Callable[[], None]] = [
        topic.produce_and_roll,
        topic.delete_records,
        topic.expire,
        topic.die,
        topic.produce_and_roll,
        topic.merge,
    ]
    for number in range(STEPS):
        step = steps[number] if number < len(steps) else rng.choice(steps)
        step()
        topic.run_pass()
        again = topic.run_pass()
        assert not any(table.is_committed for table in again.tables), "a repeated pass"
        cut_ms = START_MS + rng.randrange(10**9)
        expected = facts_of(topic.expected(), cut_ms)
        assert told_by_duckdb(lake, broker, topic.name, cut_ms) == expected, (number, step)
        assert told_by_pyiceberg(broker, topic.name, cut_ms) == expected, (number, step)
    assert topic.merged


def test_nobody_else_writes(broker: LiveBroker, lake: duckdb.DuckDBPyConnection) -> None:
    topic = TopicTable(broker, "foreign", random.Random(2))
    topic.produce_and_roll()
    topic.run_pass()
    table = RestCatalog("lake", uri=catalogue_url(broker)).load_table(("topics", topic.name))
    with pytest.raises(NotImplementedError, match="does not support endpoint"):
        table.append(table.scan().to_arrow())
    attach(lake, broker)
    with pytest.raises(duckdb.Error):
        lake.execute(f'DELETE FROM lake.topics."{topic.name}"')
    path = f"/v1/namespaces/topics/tables/{topic.name}"
    for method in ("POST", "DELETE", "PUT"):
        request = urllib.request.Request(
            f"{catalogue_url(broker)}{path}", data=b"{}", method=method
        )
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request)
    assert told_by_duckdb(lake, broker, topic.name, 0)[0] == len(topic.expected())


def test_a_snapshot_tells_how_far_the_metadata_were_applied(broker: LiveBroker) -> None:
    topic = TopicTable(broker, "told", random.Random(3))
    topic.produce_and_roll()
    topic.run_pass()
    loaded = get(broker, "/v1/namespaces/topics/tables/told")
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
    broker: LiveBroker, lake: duckdb.DuckDBPyConnection
) -> None:
    topic = TopicTable(broker, "travel", random.Random(4))
    topic.produce_and_roll()
    topic.run_pass()
    count = len(topic.expected())
    rows = get(broker, "/v1/namespaces/topics/tables/travel")["metadata"]["snapshots"]
    client = broker.broker.coordination.client
    topic_id = client.topics()[topic.name].topic_id
    asked = [DeleteRecords(TopicIdPartition(topic_id, at), -1) for at in range(PARTITIONS)]
    broker.run(client.delete_records(asked))
    topic.run_pass()
    attach(lake, broker)
    table = f'lake.topics."{topic.name}"'
    assert lake.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    before = f"{table} AT (VERSION => {rows[0]['snapshot-id']})"
    assert lake.execute(f"SELECT count(*) FROM {before}").fetchone() == (count,)


def test_a_deleted_topic_is_not_in_the_catalogue(broker: LiveBroker) -> None:
    topic = TopicTable(broker, "gone", random.Random(5))
    topic.produce_and_roll()
    topic.run_pass()
    names = RestCatalog("lake", uri=catalogue_url(broker)).list_tables("topics")
    assert ("topics", "gone") in names
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["gone"])["gone"].result()
    names = RestCatalog("lake", uri=catalogue_url(broker)).list_tables("topics")
    assert ("topics", "gone") not in names
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(broker, "/v1/namespaces/topics/tables/gone")


@dataclass
class TypedRoller:
    """Rolls in this process, with the columns that are planned."""

    store: BlockingStore

    def roll(
        self, plans: Sequence[SegmentPlan], object_store_url: str, done: Callable[[int], None]
    ) -> Sequence[RollResult]:
        clock = SystemClock()
        return [
            RollResult(plan, roll_as_planned(plan, self.store, None, clock).segment)
            for plan in plans
        ]


def test_typed_columns_are_columns_of_the_table_and_old_files_have_null(
    broker: LiveBroker, lake: duckdb.DuckDBPyConnection
) -> None:
    topic = TopicTable(broker, "typed", random.Random(6))
    topic.produce_and_roll()
    topic.run_pass()
    untyped = len(topic.expected())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    coordinator = CoordinatorClient(broker.bootstrap)
    for properties in ({"a": "integer"}, {"a": "integer", "b": "string"}):
        schema = {
            "type": "object",
            "properties": {name: {"type": kind} for name, kind in properties.items()},
        }
        set_configs(admin, topic.name, {"value.schema.format": "json", "value.schema": schema})
        for number in range(10):
            value = json.dumps({"a": number, "b": "x"})
            topic.producer.produce(topic.name, value, partition=0)
        assert topic.producer.flush(30) == 0
        with open_blocking_store(coordinator.list_tables(ListTables()).object_store_url) as store:
            asked = PlanSegments(include_partial=True, topics=(topic.name,))
            report = run_once(broker.bootstrap, roller=TypedRoller(store), asked=asked)
        assert not report.failures
        topic.run_pass()
    attach(lake, broker)
    found = lake.execute(
        "SELECT count(*), count(data), sum(data.a), count(data.b) "
        f'FROM lake.topics."{topic.name}" WHERE data IS NULL OR data.a >= 5'
    ).fetchone()
    assert found == (untyped + 10, 10, 70, 5)


def set_configs(admin: AdminClient, topic: str, configs: dict[str, Any]) -> None:
    changes = [
        ConfigEntry(
            name,
            value if isinstance(value, str) else json.dumps(value),
            incremental_operation=AlterConfigOpType.SET,
        )
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result()
