"""One pass of a tiering job: rolls, then merges, then compactions, then tables.

The command runs passes. Each kind of job contains what fails in it, so the failure of one topic
stops no other; what is raised here ends the pass: no broker answers, or it refuses.
"""

from typing import NamedTuple, Protocol

from metadata.operations import PlanSegments
from metadata.rewrites import COMPACTION, MERGE, PlanRewrites
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rewrites import RewriteReport, WriteRewrites, rewrite_once
from tiering.jobs.rolls import RollReport, WriteSegments, roll_once
from tiering.jobs.statistics import TABLES, TierStatistics
from tiering.rounds import RunSettings
from tiering.tables.passes import TablePasses
from tiering.tables.report import TablesReport
from tiering.types.registry import Registry


class Worker(Protocol):
    """Writes the plans of all jobs; Spark does."""

    @property
    def roll(self) -> WriteSegments: ...

    @property
    def merge(self) -> WriteRewrites: ...

    @property
    def compact(self) -> WriteRewrites: ...

    @property
    def is_alive(self) -> bool:
        """Whether another pass can be done with it."""
        ...


class PassReport(NamedTuple):
    """What a pass did, and how long its parts took."""

    rolled: RollReport
    roll_s: float
    merged: RewriteReport
    merge_s: float
    compacted: RewriteReport
    tables: TablesReport

    @property
    def failure_count(self) -> int:
        """Plans and tables that were due and were not done."""
        jobs = (self.rolled, self.merged, self.compacted, self.tables)
        return sum(len(one.failures) for one in jobs)

    @property
    def has_work_done(self) -> bool:
        """Whether anything was rolled or rewritten, so that more may be due."""
        return any(one.committed for one in (self.rolled, self.merged, self.compacted))


def run_pass(
    client: CoordinatorClient,
    worker: Worker,
    tables: TablePasses,
    *,
    asked: PlanSegments,
    registry: Registry | None,
    run: RunSettings,
    statistics: TierStatistics,
) -> PassReport:
    """Do all that is due; when it is to stop, what is left of the pass is left out."""
    wanted = PlanRewrites(topics=asked.topics, excluded_topics=asked.excluded_topics)
    before = statistics.figures.jobs
    with statistics.timed("roll"):
        rolled = roll_once(client, worker.roll, asked=asked, registry=registry, run=run)
    with statistics.timed("merge"):
        merged = rewrite_once(client, MERGE, worker.merge, asked=wanted, run=run)
    with statistics.timed("compact"):
        compacted = rewrite_once(client, COMPACTION, worker.compact, asked=wanted, run=run)
    written = TablesReport()
    if not run.is_stopping():
        with statistics.timed(TABLES):
            written = tables.run_pass()
        statistics.tables_written(written)
    after = statistics.figures.jobs
    return PassReport(
        rolled,
        after["roll"].seconds - before["roll"].seconds,
        merged,
        after["merge"].seconds - before["merge"].seconds,
        compacted,
        written,
    )
