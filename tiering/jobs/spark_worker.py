"""What writes the plans of all jobs on Spark: one session, started with the first plan.

Only the command imports this, and then PySpark with it.
"""

from collections.abc import Mapping
from typing import Self

from tiering.compaction.spark_compactor import SparkCompactor
from tiering.spark.roller import SparkRoller
from tiering.types.registry import RegistrySettings


class SparkWorker:
    """A context manager that stops Spark at the end; see `tiering.jobs.passes.Worker`."""

    def __init__(
        self,
        master: str | None,
        *,
        remote: str | None,
        spark_settings: Mapping[str, str] | None,
        registry: RegistrySettings | None,
    ) -> None:
        self._spark = SparkRoller(
            master, remote=remote, spark_settings=spark_settings, registry=registry
        )
        self.roll = self._spark.roll
        self.merge = self._spark.merge
        self.compact = SparkCompactor(self._spark).compact

    @property
    def is_alive(self) -> bool:
        return self._spark.is_alive

    def __enter__(self) -> Self:
        self._spark.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._spark.__exit__(*error)
