"""`diskless tier`: passes of rolling, merging and compacting, once or for ever.

Called by the command line alone. On a terminal a bar shows the plans of the current round; in a log
file there is a line per round, and behind each pass that did something a summary. Batches that
could not be decoded are told of and are no failure: their segment is made, and consumers get them
as before. So it is with keys and values that do not fit a schema.

Once, the exit status is 0 when everything that was due was done, else 1. For ever, passes adapt to
what there is to do: behind one that rolled or rewrote something the next begins within a second,
for there may be more; behind each one that had nothing to do the pause doubles, up to the interval.
A pass that cannot reach a broker, or in which something failed, is followed by another one, and
metrics say so. When partial segments are asked for, each pass makes some of whatever came, so the
pause is always the interval.

SIGTERM and SIGINT end both behind the commit that is under way, with status 0; tiering/jobs/
stopping.py has the rules. Without Spark nothing can be done: when it is gone, the status is 1, and
whoever runs the job starts it again.
"""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from rich.console import Console

from metadata.operations import WHATEVER_IS_DUE, PlanSegments
from metadata.table_operations import ListTables
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.console import ConsoleProgress, print_line, print_pass
from tiering.jobs.passes import PassReport, Worker, run_pass
from tiering.jobs.statistics import Listeners, TierStatistics
from tiering.jobs.stopping import Stop, signals_ask
from tiering.rounds import RunSettings
from tiering.tables.passes import TablePasses
from tiering.types.registry import HttpRegistry, RegistrySettings
from wal import failpoint
from wal.clock import Clock, SystemClock
from wal.errors import DisklessError, InvalidSettings, OutcomeUnknown, Retriable
from wal.security.client_security import PLAINTEXT, ClientSecurity

PAUSE_MIN_S: Final = 1.0
"""Between two passes while there is work."""


def tier(
    *,
    bootstrap: str,
    security: ClientSecurity = PLAINTEXT,
    master: str | None = None,
    remote: str | None = None,
    spark_settings: Mapping[str, str] | None = None,
    once: bool = True,
    asked: PlanSegments = WHATEVER_IS_DUE,
    interval_s: float = 60.0,
    object_store_url: str | None = None,
    registry: RegistrySettings | None = None,
    statistics: TierStatistics | None = None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
    stop: Stop | None = None,
) -> int:
    """Roll what is due, merge, compact; without `once`, again and again until `stop`.

    `master` and `spark_settings` win over what Spark is told otherwise, which wins over ours.
    `remote` is a Spark Connect server, in place of a master.
    Returns the exit status. Raises InvalidSettings and Rejected, and with `once` what `run_job`
    raises when no broker answers; without it the next pass tries again.
    """
    failpoint.arm_from_environment()
    clock = clock or SystemClock()
    statistics = statistics or TierStatistics(clock)
    stop = stop or Stop()
    console = Console(highlight=False)
    client = CoordinatorClient(bootstrap, security)

    def one_pass(worker: Worker, tables: TablePasses) -> PassReport:
        with ConsoleProgress(console) as progress:
            run = RunSettings(
                object_store_url, Listeners(progress, statistics), stop.is_asked, sleep
            )
            report = run_pass(
                client,
                worker,
                tables,
                asked=asked,
                # Asked anew in each pass: what it answers for an id is all that it may keep.
                registry=None if registry is None else HttpRegistry(registry, clock),
                run=run,
                statistics=statistics,
            )
        print_pass(console, report, also_nothing=once)
        return report

    passes = TablePasses(
        client,
        ListTables(asked.topics, asked.excluded_topics),
        object_store_url=object_store_url,
        clock=clock,
        rng=random.SystemRandom(),
        sleep=sleep,
    )
    new_worker = partial(
        _worker_class(), remote=remote, spark_settings=spark_settings, registry=registry
    )
    said = partial(print_line, console, "ending behind the commit under way; once more: at once")
    with new_worker(master) as worker, passes as tables, signals_ask(stop, said):
        if once:
            return 1 if one_pass(worker, tables).failure_count else 0
        pauses = Pauses(interval_s, is_steady=asked.include_partial)
        while not stop.is_asked():
            problem = ""
            has_work_done = False
            try:
                report = one_pass(worker, tables)
            except (Retriable, OutcomeUnknown) as error:
                problem = _line_of(error)
                print_line(console, f"this pass failed, the next one tries again: {error}")
            else:
                has_work_done = report.has_work_done
                if report.failure_count:
                    problem = f"{report.failure_count:,} that were due failed"
            pause_s = pauses.after(has_work_done)
            statistics.pass_ended(problem, pause_s)
            if not worker.is_alive:
                print_line(console, "Spark is gone, and so nothing more can be done")
                return 1
            stop.pause(pause_s)
    return 0


class Pauses:
    """How long the job waits between two passes."""

    def __init__(self, interval_s: float, *, is_steady: bool) -> None:
        """`is_steady`: always for the interval."""
        self._interval_s = interval_s
        self._is_steady = is_steady
        self._last_s = PAUSE_MIN_S

    def after(self, has_work_done: bool) -> float:
        """Behind a pass."""
        wanted_s = PAUSE_MIN_S if has_work_done else self._last_s * 2
        self._last_s = min(wanted_s, self._interval_s)
        return self._interval_s if self._is_steady else self._last_s


def _line_of(error: DisklessError) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _worker_class() -> Callable[..., AbstractContextManager[Worker]]:
    """Raises InvalidSettings when PySpark is not installed; it is an extra of this package."""
    try:
        from tiering.jobs.spark_worker import SparkWorker
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "py4j"):
            raise
        raise InvalidSettings("rolling needs PySpark: pip install 'diskless[tiering]'") from error
    return SparkWorker
