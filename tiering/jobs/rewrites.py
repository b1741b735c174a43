"""Merge and compaction as jobs: segments become other segments.

The command line calls `rewrite_once` for each kind, behind the roll. The coordinator plans both in
one answer (metadata/rules/rewriting); a run takes those of its kind and leaves the others alone. A
partition has one rewrite at a time, so one with a backlog takes several rounds.

Of a merge's plan there may be less left than two inputs, when records were deleted since it was
made. That is ended without an outcome.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from metadata.rewrites import (
    ALL_REWRITES,
    COMPACTION,
    MERGE,
    PlanRewrites,
    Rewrite,
    RewritePlan,
    RewrittenSegment,
    outcome_of,
)
from tiering import rounds
from tiering.coordinator_client import CoordinatorClient, repeated
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError

PLANS_PER_ROUND: Final = 64
"""Rewrites between two commits; what a killed driver may have to find again."""

NAMES: Final = {MERGE: "merge", COMPACTION: "compact"}

WriteRewrites = rounds.Write[RewritePlan, Rewrite]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteReport(rounds.JobReport[RewritePlan, Rewrite]):
    """What a run did."""

    @property
    def rewrites(self) -> Sequence[Rewrite]:
        return [one.made for one in self.committed]

    @property
    def segments(self) -> Sequence[RewrittenSegment]:
        return [segment for rewrite in self.rewrites for segment in rewrite.segments]

    @property
    def input_count(self) -> int:
        """Segments that were looked at."""
        return sum(len(one.plan.inputs) for one in self.committed if not _is_over(one.plan))

    @property
    def removed_count(self) -> int:
        return sum(segment.removed_count for segment in self.segments)


def rewrite_once(
    client: CoordinatorClient,
    kind: int,
    write: WriteRewrites,
    *,
    asked: PlanRewrites = ALL_REWRITES,
    run: rounds.RunSettings = rounds.USUAL,
) -> RewriteReport:
    """Do all rewrites of a kind that are due of what is `asked` for.

    Blocks; the rest, and what it raises, is as in `run_job`.
    """
    job = _Rewrites(client, kind, write, asked, run.sleep)
    return rounds.run_job(job, run, RewriteReport)


class _Rewrites:
    """See `tiering.rounds.Job`."""

    def __init__(
        self,
        client: CoordinatorClient,
        kind: int,
        write: WriteRewrites,
        asked: PlanRewrites,
        sleep: Callable[[float], None],
    ) -> None:
        self.name = NAMES[kind]
        self._client = client
        self._kind = kind
        self._write = write
        self._asked = asked
        self._sleep = sleep

    def plan(self, failed: Collection[Hashable]) -> rounds.Planned[RewritePlan]:
        planned = repeated(partial(self._client.plan_rewrites, self._asked), self._sleep)
        # Those of other kinds, and those that failed, are under way still; they crowd out nothing.
        plans = [
            plan
            for plan in planned.plans
            if plan.kind == self._kind and plan.partition not in failed
        ]
        return rounds.Planned(plans[:PLANS_PER_ROUND], planned.object_store_url)

    def identity(self, plan: RewritePlan) -> TopicIdPartition:
        return plan.partition

    def title(self, plan: RewritePlan) -> str:
        where = f" at offset {plan.inputs[0].base_offset}" if plan.inputs else ""
        return f"{self.name} {plan.topic_name}-{plan.partition.partition}{where}"

    def write(
        self, plans: Sequence[RewritePlan], object_store_url: str, done: rounds.Done
    ) -> Sequence[rounds.Written[RewritePlan, Rewrite] | rounds.Failed[RewritePlan]]:
        over = [plan for plan in plans if _is_over(plan)]
        due = [plan for plan in plans if not _is_over(plan)]
        written = self._write(due, object_store_url, done) if due else ()
        return [*(rounds.Written(plan, outcome_of(plan, [])) for plan in over), *written]

    def commit(self, made: Sequence[Rewrite]) -> Sequence[DisklessError | None]:
        return [answer.error for answer in self._client.commit_rewrites(made)]

    def sizes(self, written: rounds.Written[RewritePlan, Rewrite]) -> rounds.Sizes:
        plan, segments = written.plan, written.made.segments
        inputs = () if _is_over(plan) else plan.inputs
        return rounds.Sizes(
            topic_name=plan.topic_name,
            input_bytes=sum(segment.object_bytes for segment in inputs),
            output_bytes=sum(segment.object_bytes for segment in segments),
            record_count=sum(segment.record_count for segment in segments),
        )


def _is_over(plan: RewritePlan) -> bool:
    return plan.kind == MERGE and len(plan.inputs) < 2
