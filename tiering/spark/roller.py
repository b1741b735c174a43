"""Rolls plans in parallel on Spark: one task per planned segment, through `mapInArrow`.

A plan goes into a task as bytes, the exact result comes out as one row, and `collect` gives the
driver the rows of the attempts that Spark counted, one per plan. Spark itself reads and writes
nothing: tasks use the object store through `wal.stores.blocking_store`, so no jar is needed.

Failures are kept apart. What a roll raises is a row that says so. A task that dies without a word
(killed, out of memory) is started again by Spark, as often as `tiering.spark.drivers` says. When
that does not help the job is split in halves, down to the plan that cannot be rolled, which fails
alone; the others find what they wrote. Merges of segments go the same way, and compactions are
split likewise.

Unless tasks run on this machine alone, the packages that they import are sent along as a zip file.
PyArrow and this project's other dependencies must be installed on the workers.

tiering/compaction/spark_compactor.py works on the driver of a roller.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar

from pyspark.sql import SparkSession

from metadata.operations import SegmentPlan
from metadata.rewrites import Rewrite, RewritePlan, outcome_of
from tiering.merging.merge import merge
from tiering.roll import Rolled
from tiering.rounds import Done, Failed, Plan, Written
from tiering.spark.drivers import Driver, start_driver
from tiering.spark.tasks import in_halves, written_in_tasks
from tiering.types.registry import RegistrySettings
from tiering.types.typed_roll import roll_as_planned
from wal import failpoint
from wal.clock import SystemClock
from wal.stores.blocking_store import BlockingStore

_Plan = TypeVar("_Plan", bound=Plan)
_Made = TypeVar("_Made")


class SparkRoller:
    """A context manager that starts Spark with the first roll and stops it at the end.

    `master` and `spark_settings` win over what Spark is told by spark-submit or
    spark-defaults.conf, which wins over the defaults of `tiering.spark.drivers`. With `remote`, or
    SPARK_REMOTE, Spark is a Spark Connect server, and `spark_settings` are those of a session.
    """

    def __init__(
        self,
        master: str | None = None,
        *,
        remote: str | None = None,
        spark_settings: Mapping[str, str] | None = None,
        registry: RegistrySettings | None = None,
    ) -> None:
        self._start = partial(start_driver, master, remote, dict(spark_settings or {}))
        self._registry = registry
        self._driver: Driver | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._driver is not None:
            self._driver.stop()
        self._driver = None

    @property
    def driver(self) -> Driver:
        """Started when it was not yet. Raises: InvalidSettings (see `start_driver`)."""
        if self._driver is None:
            self._driver = self._start()
        return self._driver

    @property
    def session(self) -> SparkSession:
        """Of the driver. Raises: InvalidSettings."""
        return self.driver.session

    @property
    def is_alive(self) -> bool:
        """Whether Spark runs, or was not needed yet."""
        return self._driver is None or self._driver.is_alive

    def roll(
        self, plans: Sequence[SegmentPlan], object_store_url: str, done: Done
    ) -> Sequence[Written[SegmentPlan, Rolled] | Failed[SegmentPlan]]:
        """See `tiering.rounds.Write`."""
        return self.each(partial(_rolled, self._registry), plans, object_store_url, done)

    def merge(
        self, plans: Sequence[RewritePlan], object_store_url: str, done: Done
    ) -> Sequence[Written[RewritePlan, Rewrite] | Failed[RewritePlan]]:
        """See `tiering.rounds.Write`."""
        return self.each(_merged, plans, object_store_url, done)

    def each(
        self,
        work: Callable[[_Plan, BlockingStore], _Made],
        plans: Sequence[_Plan],
        object_store_url: str,
        done: Done,
    ) -> Sequence[Written[_Plan, _Made] | Failed[_Plan]]:
        """What `work` makes of each plan, with one task for each.

        `work` is a function of a module that tasks can import, and must come to the same result
        when it is repeated. `done` is told how many are finished.
        """
        together = partial(self._together, work, object_store_url)
        return in_halves(together, plans, done, lambda: self.is_alive)

    def _together(
        self,
        work: Callable[[_Plan, BlockingStore], _Made],
        object_store_url: str,
        plans: Sequence[_Plan],
        done: Done,
    ) -> Sequence[Written[_Plan, _Made] | Failed[_Plan]]:
        failpoints = os.environ.get(failpoint.ENVIRONMENT_VARIABLE, "")
        driver = self.driver
        with warnings.catch_warnings(), driver.progress(done):
            # PySpark asks for Pandas on the way to Arrow, and fears its version 3; we use none.
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            return written_in_tasks(driver.session, work, plans, object_store_url, failpoints)


def _rolled(registry: RegistrySettings | None, plan: SegmentPlan, store: BlockingStore) -> Rolled:
    return roll_as_planned(plan, store, registry, SystemClock())


def _merged(plan: RewritePlan, store: BlockingStore) -> Rewrite:
    return outcome_of(plan, [merge(plan, store)])
