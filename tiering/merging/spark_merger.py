"""Merges on Spark: one task per plan, with the session and the failure handling of a roll.

Only the job's command imports this, with PySpark. Failure cases are those of tiering/spark_roller.
"""

import pickle
from collections.abc import Sequence

from metadata.rewrites import RewritePlan, RewrittenSegment
from tiering.job import describe
from tiering.merging.job import MergeResult, MergeWork
from tiering.merging.merge import merge
from tiering.spark_roller import SparkRoller
from wal.clock import SystemClock
from wal.errors import DisklessError
from wal.stores.blocking_store import MeteredStore, open_blocking_store


class SparkMerger:
    """Merges in the Spark session of a roller."""

    def __init__(self, spark: SparkRoller) -> None:
        self._spark = spark

    def merge(self, plans: Sequence[RewritePlan], object_store_url: str) -> Sequence[MergeResult]:
        """See `tiering.merging.job.Merger`."""
        outcomes = self._spark.outcomes(_merged, plans, object_store_url, lambda done: None)
        return [
            MergeResult(plan, None, outcome) if isinstance(outcome, str) else _result(plan, outcome)
            for plan, outcome in zip(plans, outcomes, strict=True)
        ]


def _merged(object_store_url: str, plan: bytes) -> bytes:
    """Runs in a task: what became of a plan, or the error as a line; and what it took."""
    clock = SystemClock()
    started = clock.monotonic()
    work = MergeWork()
    try:
        with MeteredStore(open_blocking_store(object_store_url, clock=clock)) as store:
            result: RewrittenSegment | str = merge(pickle.loads(plan), store)
        work = MergeWork(store.gets, store.get_bytes, clock.monotonic() - started)
    except DisklessError as error:
        result = describe(error)
    return pickle.dumps((result, work))


def _result(plan: RewritePlan, data: bytes) -> MergeResult:
    result: RewrittenSegment | str
    work: MergeWork
    result, work = pickle.loads(data)
    if isinstance(result, str):
        return MergeResult(plan, None, result)
    return MergeResult(plan, result, "", work)
