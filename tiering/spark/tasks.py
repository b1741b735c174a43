"""Plans as rows of a DataFrame, one partition for each, and their results as rows that come back.

A DataFrame is what Spark in this process and Spark Connect both have. Rows lie in the partition of
their number (`repartitionById`, which chance has no part in), so each plan is a task of its own.
For that Spark moves the plans once, some kilobytes each. The road not taken, `parallelize`, does
not exist over Connect, and is no cheaper: a job of 48 tiny plans took 4.2 s of processor time as
rows and 5.0 s as an RDD, which Spark reads with a Python worker before another one maps it.

What a task raises of ours is a row that says so. A task that dies without a word fails the job of
Spark, behind the attempts that Spark makes; `in_halves` finds the plan.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tiering.rounds import Done, Failed, Plan, Written, attempted, describe
from wal import failpoint
from wal.clock import SystemClock
from wal.errors import DisklessError
from wal.stores.blocking_store import BlockingStore, open_blocking_store

ROWS: Final = "number int, data binary"
"""Of what goes in, plans, and of what comes out, results: both pickled."""
ROW_SCHEMA: Final = pa.schema([("number", pa.int32()), ("data", pa.binary())])

SPARK_FAILS: Final = (PySparkException, Py4JError, ConnectionError)
"""A job failed; or Java is gone, and nobody listens any more."""

_NO_REASONS: Final = ("at ", "... ", "Caused by:", "File ", "SQLSTATE:")

_Plan = TypeVar("_Plan", bound=Plan)
_Made = TypeVar("_Made")


def numbered(session: SparkSession, items: Sequence[object]) -> DataFrame:
    """Rows of ROWS, in any partitions."""
    data = [pickle.dumps(item) for item in items]
    columns = [pa.array(range(len(data)), pa.int32()), pa.array(data, pa.binary())]
    return session.createDataFrame(pa.Table.from_arrays(columns, schema=ROW_SCHEMA))


def one_task_each(session: SparkSession, items: Sequence[object]) -> DataFrame:
    """Rows of ROWS; the partition of each is its number, and no other row is there."""
    return numbered(session, items).repartitionById(len(items), "number")


def written_in_tasks(
    session: SparkSession,
    work: Callable[[_Plan, BlockingStore], _Made],
    plans: Sequence[_Plan],
    object_store_url: str,
    failpoints: str,
) -> Sequence[Written[_Plan, _Made] | Failed[_Plan]]:
    """What `work` makes of each plan, by position. Raises: one of SPARK_FAILS."""
    in_tasks = partial(_in_task, work, object_store_url, failpoints)
    rows = one_task_each(session, plans).mapInArrow(in_tasks, ROWS).collect()
    # Of the attempts at a task Spark counts one.
    results = {row["number"]: bytes(row["data"]) for row in rows}
    return [pickle.loads(results[number]) for number in range(len(plans))]


def in_halves(
    attempt: Callable[[Sequence[_Plan], Done], Sequence[Written[_Plan, _Made] | Failed[_Plan]]],
    plans: Sequence[_Plan],
    done: Done,
    is_alive: Callable[[], bool],
) -> Sequence[Written[_Plan, _Made] | Failed[_Plan]]:
    """What `attempt` gives for all plans; of those on which Spark fails, for each half of them.

    When Spark itself is gone, which `is_alive` tells, all of them have failed.
    """
    try:
        return attempt(plans, done)
    except SPARK_FAILS as error:
        if len(plans) == 1 or not is_alive():
            reason = f"its Spark task died: {death_reason(error)}"
            return [Failed(plan, reason) for plan in plans]
    # One of them kills its worker. The first half counts as done when the second is under way.
    middle = len(plans) // 2
    first = in_halves(attempt, plans[:middle], done, is_alive)
    rest = in_halves(attempt, plans[middle:], lambda number: done(middle + number), is_alive)
    return [*first, *rest]


def death_reason(error: BaseException) -> str:
    """What went wrong in the last line of a Python traceback, without what Java says below it."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(_NO_REASONS)]
    return told[-1] if told else type(error).__name__


# --- in the tasks --------------------------------------------------------------------------------


def _in_task(
    work: Callable[[_Plan, BlockingStore], _Made],
    object_store_url: str,
    failpoints: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in a Python worker of Spark: a result row for every row with a plan."""
    arm_in_task(failpoints)
    for batch in batches:
        rows = [
            {
                "number": row["number"],
                "data": pickle.dumps(_attempted(work, pickle.loads(row["data"]), object_store_url)),
            }
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)


def arm_in_task(failpoints: str) -> None:
    """Arm what the driver was told to. Called in a task."""
    context = TaskContext.get()
    # A crash that a test asks for happens once, or no second attempt could ever show anything.
    is_first = context is None or context.attemptNumber() == 0
    failpoint.arm(failpoints if is_first else "")


def _attempted(
    work: Callable[[_Plan, BlockingStore], _Made], plan: _Plan, object_store_url: str
) -> Written[_Plan, _Made] | Failed[_Plan]:
    clock = SystemClock()
    try:
        with open_blocking_store(object_store_url, clock=clock) as store:
            return attempted(work, plan, store, clock)
    except DisklessError as error:
        return Failed(plan, describe(error))
