"""A topic with a table whose life comes in steps, and what the table has to hold after each.

Values are JSON by a schema that changes with every `evolve`: column `n` gets wider once, and the
type of `f` changes each time, so that its column is renamed and a new one gets the name. Some
values are no JSON. Times, sizes and typed values are known to the model, which readers of the table
are compared with (tests/support/tiers/table_engines.py).

With transactions, three in ten of them are aborted, records without a transaction lie between
theirs, and a roll comes while one is open. The model keeps aborted records and markers as rows that
no table has.

Rolls and merges run in this process, through the broker's socket.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from metadata.operations import DeleteRecords, PlanSegments, SegmentPlan
from metadata.rewrites import MERGE, PlanRewrites
from metadata.table_operations import ListTables
from tests.support.brokers.live_broker import LiveBroker
from tests.support.tiers.rolled import merge_all
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rewrites import rewrite_once
from tiering.jobs.rolls import roll_once
from tiering.roll import Rolled
from tiering.rounds import Done, Written
from tiering.tables.passes import TablePasses
from tiering.tables.report import TablesReport
from tiering.types.typed_roll import roll_as_planned
from wal.clock import SystemClock
from wal.coordinates import TopicIdPartition
from wal.failpoint import arm
from wal.stores.blocking_store import open_blocking_store

PARTITIONS: Final = 2
START_MS: Final = 1_370_000_000_000
RANGE_MS: Final = 10**9
"""Times of records are within this from START_MS."""

GREAT: Final = 50
"""What `n` is compared with; it is below 100."""

OUTCOMES: Final = (True,) * 7 + (False,) * 3
"""Whether transactions are committed, of ten of them."""

_POINTS: Final = ("table.before_metadata", "table.before_commit", "table.after_commit")


class ShiftedClock(SystemClock):
    """The machine's clock a month ago, to be put forward: DuckDB passes over what is not yet."""

    def __init__(self) -> None:
        self.ahead_ms = -30 * 24 * 3_600_000

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@dataclass
class Row:
    """A record, as readers of the table should see it."""

    offset: int
    timestamp_ms: int
    size: int
    number: int | None
    """`data.n`; None: the value is no JSON."""
    schema: int
    """Which of the schemas it was rolled with."""
    is_committed: bool = True
    """A marker never is, nor a record before its transaction is committed."""


def roll_typed(
    plans: Sequence[SegmentPlan], object_store_url: str, done: Done
) -> Sequence[Written[SegmentPlan, Rolled]]:
    """Roll in this process, with the columns that are planned."""
    clock = SystemClock()
    with open_blocking_store(object_store_url, sync=False) as store:
        return [Written(plan, roll_as_planned(plan, store, None, clock)) for plan in plans]


def schema_of(version: int) -> Mapping[str, Any]:
    number = {"type": "integer"} if version else {"type": "integer", "format": "int32"}
    changing = {"type": "number" if version % 2 else "string"}
    return {"type": "object", "properties": {"n": number, "f": changing}}


def set_configs(admin: AdminClient, topic: str, configs: Mapping[str, Any]) -> None:
    """Values that are no text are set as JSON."""
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
    schema: int = 0
    is_typed: bool = True
    is_transactional: bool = False
    is_hiding: bool = False
    log_starts: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    outcomes: list[bool] = field(default_factory=list)
    """Whether the next transactions are committed."""
    aborted: int = 0
    """Records of aborted transactions."""
    left_out: int = 0
    """Those that rolls say they left out."""

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        config = {"table.enabled": "true", "table.commit.interval.ms": "0"}
        if self.is_typed:
            config["value.schema.format"] = "json"
            config["value.schema"] = json.dumps(schema_of(self.schema))
        topics = [NewTopic(self.name, PARTITIONS, config=config)]
        self.admin.create_topics(topics)[self.name].result()
        self.producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        if self.is_transactional:
            settings = {"bootstrap.servers": self.broker.bootstrap, "transactional.id": self.name}
            self.transactions = Producer(settings)
            self.transactions.init_transactions(30)
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

    @property
    def steps(self) -> Sequence[Callable[[], None]]:
        """The kinds of steps; some are taken more often than others."""
        return [
            self.produce_and_roll,
            self.delete_records,
            self.evolve,
            self.hide_or_show,
            self.expire,
            self.die,
            self.produce_and_roll,
            self.retain,
            self.merge,
        ]

    # -- steps

    def produce_and_roll(self) -> None:
        if self.is_transactional:
            for _ in range(self.rng.randint(1, 4)):
                self._run_transaction()
        else:
            self._produce(self.producer, self.rng.randint(2, 60))
        self.roll()

    def _produce(self, producer: Producer, count: int) -> list[tuple[int, Row]]:
        """Records of any partitions; returns them when they are written."""
        written = []
        for _ in range(count):
            partition = self.rng.randrange(PARTITIONS)
            rows = self.rows[partition]
            stamp = START_MS + self.rng.randrange(RANGE_MS)
            number = self.rng.randrange(100) if self.rng.random() < 0.9 else None
            value = self._value(number)
            rows.append(Row(len(rows), stamp, len(value), number, self.schema))
            written.append((partition, rows[-1]))
            producer.produce(self.name, value, key=b"k", partition=partition, timestamp=stamp)
        assert producer.flush(30) == 0
        return written

    def _run_transaction(self) -> None:
        """One transaction, perhaps with other records between its own, or a roll."""
        self.outcomes = self.outcomes or self.rng.sample(OUTCOMES, len(OUTCOMES))
        is_commit = self.outcomes.pop()
        self.transactions.begin_transaction()
        written = []
        for between in self.rng.sample((None, self._produce_alone, self.roll), 2):
            records = self._produce(self.transactions, self.rng.randint(1, 10))
            for _, row in records:
                row.is_committed = False
            written += records
            if between is not None:
                between()
        if is_commit:
            self.transactions.commit_transaction(30)
        else:
            self.transactions.abort_transaction(30)
            self.aborted += len(written)
        for _, row in written:
            row.is_committed = is_commit
        for partition in sorted({partition for partition, _ in written}):
            rows = self.rows[partition]
            rows.append(Row(len(rows), -1, 0, None, self.schema, is_committed=False))

    def _produce_alone(self) -> None:
        self._produce(self.producer, self.rng.randint(1, 10))

    def roll(self) -> None:
        asked = PlanSegments(include_partial=True, topics=(self.name,))
        report = roll_once(CoordinatorClient(self.broker.bootstrap), roll_typed, asked=asked)
        assert not report.failures
        self.left_out += report.aborted_count
        for segment in report.segments:
            where = segment.partition.partition
            self.segments.append((where, segment.base_offset, segment.last_offset))

    def delete_records(self) -> None:
        partition = self.rng.randrange(PARTITIONS)
        self.delete_before(partition, self.rng.randint(0, len(self.rows[partition])))

    def delete_before(self, partition: int, before: int) -> None:
        client = self.broker.broker.coordination.client
        topic_id = client.topics()[self.name].topic_id
        asked = [DeleteRecords(TopicIdPartition(topic_id, partition), before)]
        self.broker.run(client.delete_records(asked))
        before = len(self.rows[partition]) if before < 0 else before
        self.log_starts[partition] = max(self.log_starts[partition], before)
        self.segments = [
            (where, base, last)
            for where, base, last in self.segments
            if where != partition or last >= before
        ]

    def retain(self) -> None:
        """Retention by time: a first segment goes, and what is no younger at either beginning."""
        first = min(self.segments, default=None)
        if first is None:
            return
        oldest_kept_ms = min(self._newest_ms(*first), START_MS + RANGE_MS) + 60_000
        for segment in sorted(self.segments):
            where, base, last = segment
            is_first = base <= self.log_starts[where] <= last
            if is_first and self._newest_ms(*segment) < oldest_kept_ms:
                self.segments.remove(segment)
                self.log_starts[where] = last + 1
        retention_ms = SystemClock().now_ms() - oldest_kept_ms
        set_configs(self.admin, self.name, {"retention.ms": str(retention_ms)})
        coordination = self.broker.broker.coordination
        for workers in coordination.workers_at_work.values():
            self.broker.run(workers.retention.pass_once())
        set_configs(self.admin, self.name, {"retention.ms": "-1"})

    def _newest_ms(self, partition: int, base: int, last: int) -> int:
        """Of the rows that the segment has; one without rows is as old as its commit."""
        rows = self.rows[partition][base : last + 1]
        newest_ms = SystemClock().now_ms()
        return max((row.timestamp_ms for row in rows if row.is_committed), default=newest_ms)

    def hide_or_show(self) -> None:
        """Rows whose records are deleted, among those that are not, are hidden or come back."""
        self.is_hiding = not self.is_hiding
        set_configs(self.admin, self.name, {"table.hide.deleted": str(self.is_hiding).lower()})
        for partition in range(PARTITIONS):
            for _, base, last in [one for one in self.segments if one[0] == partition][-1:]:
                self.delete_before(partition, self.rng.randint(base, last))

    def evolve(self) -> None:
        """Another schema, and records of it."""
        self.schema += 1
        set_configs(self.admin, self.name, {"value.schema": schema_of(self.schema)})
        self.produce_and_roll()

    def expire(self) -> None:
        self.clock.ahead_ms += 2 * 3_600_000

    def die(self) -> None:
        """A pass that is killed somewhere; another job goes on."""
        self.produce_and_roll()
        arm(f"{self.rng.choice(_POINTS)}=raise")
        try:
            (failure,) = self.passes.run_pass().failures
        finally:
            arm("")
        assert "FailpointError" in failure.failure
        self.passes = self.new_passes()

    def merge(self) -> None:
        """Small neighbours become one segment, as soon as there are enough of them."""
        while not self._merge_once():
            self.produce_and_roll()

    def _merge_once(self) -> bool:
        """Which rows there are does not change. Returns whether a merge was due."""
        report = rewrite_once(
            CoordinatorClient(self.broker.bootstrap),
            MERGE,
            merge_all,
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
        return bool(report.segments)

    # -- what should be there

    def expected(self) -> list[tuple[int, Row]]:
        """The rows that the table should have, with their partitions."""
        return [
            (partition, row)
            for partition, base, last in self.segments
            for row in self.rows[partition][base : last + 1]
            if row.is_committed and not (self.is_hiding and row.offset < self.log_starts[partition])
        ]

    def _value(self, number: int | None) -> bytes:
        if number is None:
            return b"no JSON" + b"!" * self.rng.randrange(20)
        changing = 0.5 if self.schema % 2 else "half"
        pad = "p" * self.rng.randrange(20)
        return json.dumps({"n": number, "f": changing, "pad": pad}).encode()
