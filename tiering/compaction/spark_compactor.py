"""Compacts partitions on Spark: keys are shuffled once, values never.

    inputs ─mapInArrow─> keys, offsets ─by a hash of the key─> losses ─┬─> numbers: the driver
      (a task each, only the columns that decide)    (a task each)     │   chooses the outputs
                                                                       └─> offsets, by output:
                                                           a task each, which reads whole inputs

A hash of the key chooses the task that looks at it, and nothing else: a task compares whole keys,
so a hash of four bits gives the same outcome as one of sixty-four.

The offsets that go are kept by Spark between the two steps; the driver sees numbers of them alone.
Everything depends on the plans and what lies in their inputs, so a step that Spark runs again, or
twice at once, comes to the same.

A task that cannot read an input says so in a row, and only its plan fails. A task that dies is
started again by Spark; when that does not help, the job is split in halves down to the plan that
cannot be compacted.
"""

import os
import pickle
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from metadata.rewrites import Rewrite, RewritePlan, RewrittenSegment, outcome_of
from tiering.compaction.key_columns import key_rows
from tiering.compaction.losses import KEY_ROWS, LOSSES, Loss, losses_of, offsets_in
from tiering.compaction.outputs import outputs_of
from tiering.compaction.rewriting import OutputTask, rewrite, task_of
from tiering.rounds import Done, Failed, Work, Written, describe
from tiering.spark.drivers import Driver
from tiering.spark.roller import SparkRoller
from tiering.spark.tasks import ROW_SCHEMA, ROWS, arm_in_task, in_halves, numbered, one_task_each
from wal import failpoint
from wal.clock import SystemClock
from wal.errors import DisklessError
from wal.stores.blocking_store import MeteredStore, open_blocking_store

HASH_BITS: Final = 64
BYTES_PER_TASK: Final = 128 << 20
"""Of inputs, whose keys one task compares: some 20 bytes a record, of which it keeps all."""
TASKS_MAX: Final = 2_000

ROWS_PER_BATCH: Final = 50_000
"""Rows that Spark hands to Python at once."""

_FAILED: Final = -1
_READ: Final = -2
"""In place of a segment: the row says why its plan fails, or how many bytes a task has read."""
_KEYS: Final = (
    "plan int, segment int, offset long, key binary, is_new_tombstone boolean, is_expired boolean"
)
_LOSSES: Final = "plan int, segment int, removed long, marked long, offsets binary"

Outcome = Written[RewritePlan, Rewrite] | Failed[RewritePlan]


class _Input(NamedTuple):
    """What one task of the first step reads."""

    plan_number: int
    number: int
    plan: RewritePlan
    """With this input alone."""


class SparkCompactor:
    """Compacts on the session of a roller, which it starts with the first plan."""

    def __init__(self, roller: SparkRoller, *, hash_bits: int = HASH_BITS) -> None:
        self._roller = roller
        self._hash_bits = hash_bits

    def compact(
        self, plans: Sequence[RewritePlan], object_store_url: str, done: Done
    ) -> Sequence[Outcome]:
        """See `tiering.rounds.Write`."""
        together = partial(self._together, object_store_url)
        return in_halves(together, plans, done, lambda: self._roller.is_alive)

    def _together(self, url: str, plans: Sequence[RewritePlan], done: Done) -> Sequence[Outcome]:
        driver = self._roller.driver
        with _settings(driver), warnings.catch_warnings():
            # PySpark asks for Pandas on the way to Arrow; we use none.
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support")
            outcomes = self._compact(driver, plans, url)
        done(len(plans))
        return outcomes

    def _compact(self, driver: Driver, plans: Sequence[RewritePlan], url: str) -> Sequence[Outcome]:
        started = SystemClock().monotonic()
        failpoints = os.environ.get(failpoint.ENVIRONMENT_VARIABLE, "")
        losses = self._losses(driver, plans, url, failpoints).persist()
        try:
            found = _numbers(losses)
            tasks: list[OutputTask] = []
            places: list[tuple[int, int, int]] = []
            owners: list[int] = []
            for number, plan in enumerate(plans):
                if number in found.failures:
                    continue
                for output in outputs_of(plan, found.losses[number]):
                    segments = range(output.first, output.last + 1)
                    places += [(number, segment, len(tasks)) for segment in segments]
                    tasks.append(task_of(plan, output))
                    owners.append(number)
            session = driver.session
            written = _written(session, losses, tasks, places, url, failpoints) if tasks else {}
        finally:
            losses.unpersist()
        seconds = SystemClock().monotonic() - started
        results: list[Outcome] = []
        for number, plan in enumerate(plans):
            mine = [written[at] for at, owner in enumerate(owners) if owner == number]
            errors = [outcome for outcome, _ in mine if isinstance(outcome, str)]
            if error := next(iter(errors), found.failures.get(number, "")):
                results.append(Failed(plan, error))
                continue
            outputs = [outcome for outcome, _ in mine if not isinstance(outcome, str)]
            key_bytes = found.key_bytes[number]
            work = Work(
                get_bytes=key_bytes + sum(read for _, read in mine),
                seconds=seconds / len(plans),
                key_bytes=key_bytes,
            )
            results.append(Written(plan, outcome_of(plan, outputs), work))
        return results

    def _losses(
        self, driver: Driver, plans: Sequence[RewritePlan], url: str, failpoints: str
    ) -> DataFrame:
        """Rows of LOSSES, and those that tell of failures and of what was read."""
        inputs = [
            _Input(number, at, replace(plan, inputs=[segment]))
            for number, plan in enumerate(plans)
            for at, segment in enumerate(plan.inputs)
        ]
        size = sum(one.plan.inputs[0].object_bytes for one in inputs)
        tasks = min(max(size // BYTES_PER_TASK + 1, driver.parallelism), TASKS_MAX)
        keys = one_task_each(driver.session, inputs).mapInArrow(
            partial(_read_keys, url, failpoints), _KEYS
        )
        mask = F.lit((1 << self._hash_bits) - 1 if self._hash_bits < HASH_BITS else -1)
        chosen = F.xxhash64("key").bitwiseAND(mask)
        return keys.repartition(tasks, "plan", chosen).mapInArrow(_find_losses, _LOSSES)


class _Numbers(NamedTuple):
    losses: Mapping[int, Mapping[int, Loss]]
    """By plan and position of the input."""
    failures: Mapping[int, str]
    key_bytes: Mapping[int, int]


def _numbers(losses: DataFrame) -> _Numbers:
    """Runs the first step; its outcome in numbers."""
    found: dict[int, dict[int, Loss]] = defaultdict(dict)
    failures: dict[int, str] = {}
    key_bytes: dict[int, int] = defaultdict(int)
    text = F.when(F.col("segment") < 0, F.col("offsets"))
    summed = losses.groupBy("plan", "segment").agg(
        F.sum("removed").alias("removed"),
        F.sum("marked").alias("marked"),
        F.max(text).alias("text"),
    )
    for row in summed.collect():
        if row["segment"] == _FAILED:
            failures[row["plan"]] = bytes(row["text"]).decode()
        elif row["segment"] == _READ:
            key_bytes[row["plan"]] = row["removed"]
        else:
            found[row["plan"]][row["segment"]] = Loss(row["removed"], row["marked"])
    return _Numbers(found, failures, key_bytes)


def _written(
    session: SparkSession,
    losses: DataFrame,
    tasks: Sequence[OutputTask],
    places: Sequence[tuple[int, int, int]],
    url: str,
    failpoints: str,
) -> Mapping[int, tuple[RewrittenSegment | str, int]]:
    """Runs the second step: each output, or why it failed, and the bytes that it read."""
    nothing = F.lit(None).cast("binary")
    outputs = numbered(session, tasks).withColumn("offsets", nothing)
    chosen = session.createDataFrame(list(places), "plan int, segment int, number int")
    gone = losses.join(F.broadcast(chosen), ["plan", "segment"]).select(
        "number", nothing.alias("data"), "offsets"
    )
    parts = outputs.unionByName(gone).repartition(min(len(tasks), TASKS_MAX), "number")
    rows = parts.mapInArrow(partial(_rewrite_outputs, url, failpoints), ROWS).collect()
    return {row["number"]: pickle.loads(bytes(row["data"])) for row in rows}


@contextmanager
def _settings(driver: Driver) -> Iterator[None]:
    """Large batches, and as many tasks as are asked for; as it was afterwards."""
    wanted = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_BATCH),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(driver.parallelism),
    }
    session = driver.session
    before = {name: session.conf.get(name) or "" for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


# --- in the tasks ---------------------------------------------------------------------------------


def _read_keys(
    url: str, failpoints: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rows of KEY_ROWS for each input."""
    arm_in_task(failpoints)
    for batch in batches:
        for data in batch.column("data").to_pylist():
            one: _Input = pickle.loads(data)
            with MeteredStore(open_blocking_store(url, clock=SystemClock())) as store:
                try:
                    for rows in key_rows(
                        one.plan.inputs[0],
                        store,
                        plan_number=one.plan_number,
                        number=one.number,
                        planned_at_ms=one.plan.planned_at_ms,
                    ):
                        yield from rows.to_batches(max_chunksize=ROWS_PER_BATCH)
                except DisklessError as error:
                    yield _told(one.plan_number, _FAILED, 0, describe(error).encode())
                yield _told(one.plan_number, _READ, store.get_bytes, b"")


def _told(plan_number: int, what: int, number: int, text: bytes) -> pa.RecordBatch:
    row = {
        "plan": plan_number,
        "segment": what,
        "offset": number,
        "key": text,
        "is_new_tombstone": False,
        "is_expired": False,
    }
    return pa.RecordBatch.from_pylist([row], schema=KEY_ROWS)


def _find_losses(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of LOSSES for all rows of some keys."""
    rows = pa.Table.from_batches([batch.cast(KEY_ROWS) for batch in batches], schema=KEY_ROWS)
    is_record = pc.greater_equal(rows.column("segment"), 0)
    yield from losses_of(rows.filter(is_record)).to_batches()
    told = rows.filter(pc.invert(is_record)).to_pylist()
    passed_on = [
        {
            "plan": row["plan"],
            "segment": row["segment"],
            "removed": row["offset"],
            "marked": 0,
            "offsets": row["key"],
        }
        for row in told
    ]
    yield pa.RecordBatch.from_pylist(passed_on, schema=LOSSES)


def _rewrite_outputs(
    url: str, failpoints: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The outputs whose parts are here, one after the other."""
    arm_in_task(failpoints)
    tasks: dict[int, OutputTask] = {}
    offsets: dict[int, list[bytes]] = defaultdict(list)
    for batch in batches:
        for row in batch.to_pylist():
            if row["data"] is not None:
                tasks[row["number"]] = pickle.loads(row["data"])
            else:
                offsets[row["number"]].append(row["offsets"])
    for number, task in tasks.items():
        with MeteredStore(open_blocking_store(url, clock=SystemClock())) as store:
            outcome: RewrittenSegment | str
            try:
                outcome = rewrite(task, offsets_in(offsets.pop(number, ())), store)
            except DisklessError as error:
                outcome = describe(error)
            data = pickle.dumps((outcome, store.get_bytes))
        yield pa.RecordBatch.from_pylist([{"number": number, "data": data}], schema=ROW_SCHEMA)
