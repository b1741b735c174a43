"""Drives merges: plans, merges and commits until no small neighbours are due.

    coordinator --plans--> one task for each --exact results--> one commit for all of them

The command line calls `merge_once`, behind the roll, with the same guarantees as tiering/job.py:
what is committed is what tasks returned, never what a listing shows; any step may die and the whole
be run again, for plans are durable, a merge finds its object written, a commit is recognised. A
partition has one merge at a time, so one with a backlog takes several rounds.

Of a plan there may be less left than two inputs, when records were deleted since it was made. That
is ended without an outcome. A merge that fails is reported and left out for the rest of the run,
and stays planned; a topic that is deleted meanwhile takes its merges with it, which is no failure.
Rewrites that are no merges are not touched.

This module knows nothing of Spark.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from metadata.rewrites import (
    ALL_REWRITES,
    MERGE,
    PlanRewrites,
    Rewrite,
    RewritePlan,
    RewrittenSegment,
)
from tiering.coordinator_client import CoordinatorClient, repeated
from wal.coordinates import TopicIdPartition
from wal.errors import InvalidSettings, UnknownPartition, UnknownTopicId
from wal.failpoint import failpoint
from wal.security.client_security import PLAINTEXT, ClientSecurity

PLANS_PER_ROUND: Final = 64
"""Merges between two commits; what a killed driver may have to find again."""

ROUNDS_MAX: Final = 1000
"""A job that producers outrun ends nevertheless."""


class MergeWork(NamedTuple):
    """What one merge took of the store and of time; repeated attempts are not in it."""

    gets: int = 0
    get_bytes: int = 0
    seconds: float = 0.0


class MergeResult(NamedTuple):
    """What became of one plan; exactly one of `segment` and `error` is set."""

    plan: RewritePlan
    segment: RewrittenSegment | None
    error: str = ""
    work: MergeWork = MergeWork()


class Merger(Protocol):
    """Does many merges at once."""

    def merge(self, plans: Sequence[RewritePlan], object_store_url: str) -> Sequence[MergeResult]:
        """A result for every plan, in any order."""
        ...


class MergeFailure(NamedTuple):
    """A merge that was not done, and why."""

    topic_name: str
    partition: TopicIdPartition
    base_offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"merge of {self.topic_name}-{self.partition.partition} at offset"
            f" {self.base_offset}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """What a run did."""

    segments: Sequence[RewrittenSegment]
    """Committed, in this run or by one that died before it heard so."""
    failures: Sequence[MergeFailure]
    input_count: int
    """Segments in whose place they are."""
    input_bytes: int
    work: MergeWork
    """Of the merges that are committed, added up."""

    @property
    def record_count(self) -> int:
        return sum(segment.record_count for segment in self.segments)

    @property
    def segment_bytes(self) -> int:
        return sum(segment.object_bytes for segment in self.segments)


def merge_once(
    bootstrap: str,
    *,
    security: ClientSecurity = PLAINTEXT,
    merger: Merger,
    asked: PlanRewrites = ALL_REWRITES,
    object_store_url: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> MergeReport:
    """Merge and commit all that is due of what is `asked` for, however many plans that takes.

    `object_store_url` replaces the one the broker gives. Blocks. Raises CommitFailed and
    CommitOutcomeUnknown after some attempts, Rejected when the broker refuses to plan at all.
    """
    run = _Run(CoordinatorClient(bootstrap, security), merger, object_store_url, sleep)
    for _ in range(ROUNDS_MAX):
        if not run.round(asked):
            break
    return run.report()


class _Run:
    """One run of the job."""

    def __init__(
        self,
        client: CoordinatorClient,
        merger: Merger,
        object_store_url: str | None,
        sleep: Callable[[float], None],
    ) -> None:
        self._client = client
        self._merger = merger
        self._object_store_url = object_store_url
        self._sleep = sleep
        self._committed: list[MergeResult] = []
        self._failed: dict[TopicIdPartition, MergeFailure] = {}

    def round(self, asked: PlanRewrites) -> bool:
        """One plan, one parallel merge, one commit; whether there was anything to do."""
        planned = repeated(lambda: self._client.plan_rewrites(asked), self._sleep)
        # Compactions, and merges that failed, are under way still; they crowd out nothing.
        plans = [
            plan
            for plan in planned.plans
            if plan.kind == MERGE and plan.partition not in self._failed
        ][:PLANS_PER_ROUND]
        if not plans:
            return False
        url = self._object_store_url or planned.object_store_url
        if not url:
            raise InvalidSettings("the broker names no object store; give its URL")
        due = [plan for plan in plans if len(plan.inputs) > 1]
        results = [MergeResult(plan, None) for plan in plans if len(plan.inputs) < 2]
        for result in self._merger.merge(due, url) if due else ():
            if result.error:
                self._fail(result.plan, result.error)
            else:
                results.append(result)
        if results:
            self._commit(results)
        return True

    def report(self) -> MergeReport:
        committed = [one for one in self._committed if one.segment is not None]
        return MergeReport(
            segments=[one.segment for one in committed if one.segment is not None],
            failures=list(self._failed.values()),
            input_count=sum(len(one.plan.inputs) for one in committed),
            input_bytes=sum(read.object_bytes for one in committed for read in one.plan.inputs),
            work=MergeWork(*map(sum, zip(*(one.work for one in committed), strict=True))),
        )

    def _commit(self, results: Sequence[MergeResult]) -> None:
        failpoint("merge.before_commit")
        rewrites = [
            Rewrite(
                partition=result.plan.partition,
                generation=result.plan.generation,
                segments=[] if result.segment is None else [result.segment],
            )
            for result in results
        ]
        answers = repeated(lambda: self._client.commit_rewrites(rewrites), self._sleep)
        failpoint("merge.after_commit")
        for result, answer in zip(results, answers, strict=True):
            if answer.error is None:
                self._committed.append(result)
            elif not isinstance(answer.error, UnknownPartition | UnknownTopicId):
                self._fail(result.plan, f"not committed: {answer.error}")

    def _fail(self, plan: RewritePlan, reason: str) -> None:
        base_offset = plan.inputs[0].base_offset if plan.inputs else -1
        self._failed[plan.partition] = MergeFailure(
            plan.topic_name, plan.partition, base_offset, reason
        )
