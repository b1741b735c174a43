"""Drives compaction: plans, compacts and commits until nothing more is due.

    coordinator --plans--> Spark --exact results--> one commit for each partition

The command line calls `compact_once`, behind the roll. As for the roll (tiering/job.py), what is
committed is what tasks returned, never what a listing shows, and any step may die: plans are
durable, an output is found written, a commit is recognised. A plan that fails is reported and left
out for the rest of the run, and stays under way. Rewrites that are no compaction are not touched.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from metadata.rewrites import COMPACTION, PlanRewrites, Rewrite, RewritePlan
from tiering.coordinator_client import CoordinatorClient, repeated
from wal.coordinates import TopicIdPartition
from wal.errors import InvalidSettings, UnknownPartition, UnknownTopicId
from wal.failpoint import failpoint
from wal.security.client_security import PLAINTEXT, ClientSecurity

PLANS_PER_ROUND: Final = 64
"""Partitions between two commits."""

ROUNDS_MAX: Final = 100

WHATEVER_IS_DUE: Final = PlanRewrites()


class CompactionWork(NamedTuple):
    """What compactions took of the store and of time."""

    key_bytes: int = 0
    """Read to decide which records go."""
    get_bytes: int = 0
    """Read in all."""
    seconds: float = 0.0


class CompactionResult(NamedTuple):
    """What became of one plan; exactly one of `rewrite` and `error` is set."""

    plan: RewritePlan
    rewrite: Rewrite | None
    error: str = ""
    work: CompactionWork = CompactionWork()


class Compactor(Protocol):
    """Compacts many partitions at once."""

    def compact(
        self, plans: Sequence[RewritePlan], object_store_url: str
    ) -> Sequence[CompactionResult]:
        """A result for every plan, in any order."""
        ...


class CompactionFailure(NamedTuple):
    """A partition that was not compacted, and why."""

    topic_name: str
    partition: TopicIdPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What a run did."""

    rewrites: Sequence[Rewrite]
    failures: Sequence[CompactionFailure]
    input_bytes: int
    """Of the segments that were looked at."""
    work: CompactionWork

    @property
    def removed_count(self) -> int:
        return sum(one.removed_count for rewrite in self.rewrites for one in rewrite.segments)

    @property
    def segment_count(self) -> int:
        """Segments that were written."""
        return sum(len(rewrite.segments) for rewrite in self.rewrites)


def compact_once(
    bootstrap: str,
    *,
    security: ClientSecurity = PLAINTEXT,
    compactor: Compactor,
    asked: PlanRewrites = WHATEVER_IS_DUE,
    object_store_url: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> CompactionReport:
    """Compact all that is due of what is `asked` for.

    `object_store_url` replaces the one the broker gives. Blocks. Raises CommitFailed and
    CommitOutcomeUnknown after some attempts, Rejected when the broker refuses to plan at all.
    """
    client = CoordinatorClient(bootstrap, security)
    rewrites: list[Rewrite] = []
    failures: dict[TopicIdPartition, CompactionFailure] = {}
    work: list[CompactionWork] = [CompactionWork()]
    input_bytes = 0
    for _ in range(ROUNDS_MAX):
        planned = repeated(partial(client.plan_rewrites, asked), sleep)
        # Those that failed, and merges, are under way still: they must not crowd out the others.
        plans = [
            plan
            for plan in planned.plans
            if plan.kind == COMPACTION and plan.partition not in failures
        ][:PLANS_PER_ROUND]
        if not plans:
            break
        url = object_store_url or planned.object_store_url
        if not url:
            raise InvalidSettings("the broker names no object store; give its URL")
        for result in compactor.compact(plans, url):
            work.append(result.work)
            input_bytes += sum(segment.object_bytes for segment in result.plan.inputs)
            error = result.error
            if result.rewrite is not None:
                error = _commit(client, result.rewrite, rewrites, sleep)
            if error:
                name, partition = result.plan.topic_name, result.plan.partition
                failures[partition] = CompactionFailure(name, partition, error)
    return CompactionReport(
        rewrites=rewrites,
        failures=[*failures.values()],
        input_bytes=input_bytes,
        work=CompactionWork(*map(sum, zip(*work, strict=True))),
    )


def _commit(
    client: CoordinatorClient,
    rewrite: Rewrite,
    committed: list[Rewrite],
    sleep: Callable[[float], None],
) -> str:
    """Why it was refused; nothing when it counts, or its topic was deleted meanwhile."""
    failpoint("compact.before_commit")
    (answer,) = repeated(partial(client.commit_rewrites, [rewrite]), sleep)
    failpoint("compact.after_commit")
    if answer.error is None:
        committed.append(rewrite)
    elif not isinstance(answer.error, UnknownPartition | UnknownTopicId):
        return f"not committed: {answer.error}"
    return ""
