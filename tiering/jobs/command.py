"""`diskless tier`: roll and merge, with a progress bar and a summary, once or again and again.

Called by the command line alone. On a terminal the bar shows the segments of the current round; in
a log file there is one line per round. When all is rolled, small segments are merged, and compacted
topics compacted, as far as that is due. After that the tables of the topics follow
(tiering/tables). The exit status is 0 when everything that was due was done, else 1. Batches that
could not be decoded are told of and are no failure: their segment is made, and consumers get them
as before. So it is with keys and values that do not fit a schema.
"""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from rich.console import Console

from metadata.operations import WHATEVER_IS_DUE, PlanSegments
from metadata.rewrites import COMPACTION, MERGE, PlanRewrites
from metadata.table_operations import ListTables
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.console import (
    ConsoleProgress,
    print_compaction,
    print_merges,
    print_roll,
    print_tables,
)
from tiering.jobs.rewrites import WriteRewrites, rewrite_once
from tiering.jobs.rolls import WriteSegments, roll_once
from tiering.tables.passes import TablePasses
from tiering.types.registry import HttpRegistry, RegistrySettings
from wal import failpoint
from wal.clock import Clock, SystemClock
from wal.errors import InvalidSettings, OutcomeUnknown, Retriable
from wal.security.client_security import PLAINTEXT, ClientSecurity


class Worker(Protocol):
    """Writes the plans of all jobs; Spark does."""

    @property
    def roll(self) -> WriteSegments: ...

    @property
    def merge(self) -> WriteRewrites: ...

    @property
    def compact(self) -> WriteRewrites: ...


def tier(
    *,
    bootstrap: str,
    security: ClientSecurity = PLAINTEXT,
    master: str | None = None,
    spark_settings: Mapping[str, str] | None = None,
    once: bool = True,
    asked: PlanSegments = WHATEVER_IS_DUE,
    interval_s: float = 60.0,
    object_store_url: str | None = None,
    registry: RegistrySettings | None = None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Roll what is due, merge, compact; without `once`, every `interval_s` seconds again.

    `master` and `spark_settings` win over what Spark is told otherwise, which wins over ours.
    Returns the exit status. Raises InvalidSettings and Rejected, and with `once` what
    `run_job` raises when no broker answers; without it the next pass tries again.
    """
    failpoint.arm_from_environment()
    clock = clock or SystemClock()
    console = Console(highlight=False)

    client = CoordinatorClient(bootstrap, security)
    rewrites = PlanRewrites(topics=asked.topics, excluded_topics=asked.excluded_topics)

    def one_pass(worker: Worker, tables: TablePasses) -> bool:
        started = clock.monotonic()
        with ConsoleProgress(console) as progress:
            rewrite = partial(
                rewrite_once,
                client,
                asked=rewrites,
                object_store_url=object_store_url,
                progress=progress,
                sleep=sleep,
            )
            rolled = roll_once(
                client,
                worker.roll,
                asked=asked,
                object_store_url=object_store_url,
                # Asked anew in each pass: what it answers for an id is all that it may keep.
                registry=None if registry is None else HttpRegistry(registry, clock),
                progress=progress,
                sleep=sleep,
            )
            print_roll(console, rolled, clock.monotonic() - started)
            started = clock.monotonic()
            merged = rewrite(MERGE, worker.merge)
            print_merges(console, merged, clock.monotonic() - started)
            compacted = rewrite(COMPACTION, worker.compact)
            print_compaction(console, compacted)
        written = tables.run_pass()
        print_tables(console, written)
        return not (rolled.failures or merged.failures or compacted.failures or written.failures)

    passes = TablePasses(
        client,
        ListTables(asked.topics, asked.excluded_topics),
        object_store_url=object_store_url,
        clock=clock,
        rng=random.SystemRandom(),
        sleep=sleep,
    )
    new_worker = partial(_worker_class(), spark_settings=spark_settings, registry=registry)
    with new_worker(master) as worker, passes as tables:
        if once:
            return 0 if one_pass(worker, tables) else 1
        while True:
            try:
                one_pass(worker, tables)
            except (Retriable, OutcomeUnknown) as error:
                line = f"this pass failed, the next one tries again: {error}"
                console.print(line, markup=False, soft_wrap=True)
            sleep(interval_s)


def _worker_class() -> Callable[..., AbstractContextManager[Worker]]:
    """Raises InvalidSettings when PySpark is not installed; it is an extra of this package."""
    try:
        from tiering.jobs.spark_worker import SparkWorker
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "py4j"):
            raise
        raise InvalidSettings("rolling needs PySpark: pip install 'diskless[tiering]'") from error
    return SparkWorker
