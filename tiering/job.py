"""Drives a tiering job: plans, rolls and commits until nothing more is due.

    coordinator --plans--> Spark tasks --exact results--> one commit for all of them

The command line calls `run_once`. What is committed is what the tasks returned, never what a
listing of the bucket shows, so that an object which a killed task left is no segment. Any step may
die and the whole be run again: plans are durable, a roll finds its object written, a commit is
recognised by its key. Two jobs at once do the work twice and commit it once.

Before it rolls, the job makes the typed columns of topics follow their schemas and offers them to
the coordinator (tiering/types/following.py); then it asks for plans again, which have them. A topic
whose columns are not those of its configs is not planned until then.

A plan that cannot be rolled, because its WAL object is damaged or its task is killed again and
again, is reported and left out for the rest of the run; the others go on. A topic that is deleted
meanwhile takes its segments with it, which is no failure.

This module knows nothing of Spark; tiering/spark_roller.py does, and starts it only when there is
something to roll.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from metadata.operations import (
    WHATEVER_IS_DUE,
    PlanSegments,
    RolledSegment,
    SegmentPlan,
    SetTopicColumns,
    TopicSchemas,
)
from tiering.coordinator_client import CoordinatorClient, repeated
from tiering.types.following import followed
from tiering.types.registry import Registry, RegistryUnavailable
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import (
    DisklessError,
    InvalidSettings,
    UnknownPartition,
    UnknownTopicId,
)
from wal.failpoint import failpoint
from wal.security.client_security import PLAINTEXT, ClientSecurity

PLANS_PER_ROUND: Final = 256
"""Segments between two commits; what a killed driver may have to find again."""

ROUNDS_MAX: Final = 1000
"""A job that producers outrun ends nevertheless, and says so."""


class RollWork(NamedTuple):
    """What one roll took of the store and of time; repeated attempts are not in it."""

    gets: int = 0
    get_bytes: int = 0
    seconds: float = 0.0


class RollResult(NamedTuple):
    """What became of one plan; exactly one of `segment` and `error` is set."""

    plan: SegmentPlan
    segment: RolledSegment | None
    error: str = ""
    raw_batch_count: int = 0
    """Batches of the segment that could not be decoded (tiering/raw_batches.py)."""
    untyped_count: int = 0
    """Keys and values of it that did not fit their schema (tiering/types/typed_rows.py)."""
    work: RollWork = RollWork()


class Roller(Protocol):
    """Rolls many plans at once."""

    def roll(
        self, plans: Sequence[SegmentPlan], object_store_url: str, done: Callable[[int], None]
    ) -> Sequence[RollResult]:
        """A result for every plan, in any order; `done` is told how many are finished so far."""
        ...


class Progress:
    """Hears how the job goes on, and does nothing about it."""

    def planned(self, plans: Sequence[SegmentPlan]) -> None:
        pass

    def rolled(self, done: int) -> None:
        """`done` of the plans of this round are rolled."""

    def committed(self, segments: Sequence[RolledSegment]) -> None:
        pass

    def failed(self, failure: "RollFailure") -> None:
        pass

    def not_typed(self, topic_name: str, side: str, reason: str) -> None:
        """The topic's schema of keys or values gives no columns: they are bytes only."""


class RollFailure(NamedTuple):
    """A segment that was not made, and why."""

    object_key: ObjectKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollReport:
    """What a run did."""

    segments: Sequence[RolledSegment]
    """Committed, in this run or by one that died before it heard so."""
    failures: Sequence[RollFailure]
    withdrawn: Sequence[ObjectKey]
    """Rolled for a topic that was deleted meanwhile."""
    wal_bytes: int
    """Bytes of the batches that the segments replace."""
    raw_batch_count: int
    """Batches that could not be decoded, which the segments keep as they were sent."""
    untyped_count: int
    """Keys and values that did not fit their schema."""
    schema_problems: Mapping[str, str]
    """Why the schemas of topics give no columns, by `<topic>-key` and `<topic>-value`."""
    work: RollWork
    """Of the segments that are committed, added up."""

    @property
    def record_count(self) -> int:
        return sum(segment.record_count for segment in self.segments)

    @property
    def segment_bytes(self) -> int:
        return sum(segment.object_bytes for segment in self.segments)


def run_once(
    bootstrap: str,
    *,
    security: ClientSecurity = PLAINTEXT,
    roller: Roller,
    asked: PlanSegments = WHATEVER_IS_DUE,
    object_store_url: str | None = None,
    registry: Registry | None = None,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> RollReport:
    """Roll and commit all that is due of what is `asked` for, however many plans that takes.

    `object_store_url` replaces the one the broker gives, for tasks that reach the bucket by another
    name. `registry` has the schemas of topics that say so. Blocks. Raises CommitFailed and
    CommitOutcomeUnknown after `ATTEMPTS_MAX` attempts, Rejected when the broker refuses to plan at
    all.
    """
    client = CoordinatorClient(bootstrap, security)
    run = _Run(client, roller, object_store_url, registry, progress or Progress(), sleep)
    if registry is not None:
        run.look_after_schemas(asked)
    seen: set[TopicIdPartition] = set()
    for _ in range(ROUNDS_MAX):
        plans = run.round(asked)
        if not plans:
            break
        # The coordinator gives some plans at a time, so the rests of all partitions may take
        # several rounds. But producers add new rests all the time: when all partitions of a
        # round had their turn before, and none of them has a backlog, what comes is new.
        partitions = {plan.partition for plan in plans}
        if partitions <= seen and len(plans) == len(partitions):
            asked = asked._replace(include_partial=False)
        seen |= partitions
    return run.report()


class _Run:
    """One run of the job."""

    def __init__(
        self,
        client: CoordinatorClient,
        roller: Roller,
        object_store_url: str | None,
        registry: Registry | None,
        progress: Progress,
        sleep: Callable[[float], None],
    ) -> None:
        self._client = client
        self._roller = roller
        self._object_store_url = object_store_url
        self._registry = registry
        self._progress = progress
        self._sleep = sleep
        self._committed: list[RolledSegment] = []
        self._failed: dict[ObjectKey, RollFailure] = {}
        self._withdrawn: list[ObjectKey] = []
        self._wal_bytes = 0
        self._raw_batch_count = 0
        self._untyped_count = 0
        self._schema_problems: dict[str, str] = {}
        self._looked_after: set[UUID] = set()
        self._work: list[RollWork] = []

    def look_after_schemas(self, asked: PlanSegments) -> None:
        """Make columns follow what a registry got since, before anything is planned with them."""
        asked = asked._replace(schemas_only=True)
        planned = repeated(lambda: self._client.plan_segments(asked), self._sleep)
        self._look_after(planned.schemas)

    def round(self, asked: PlanSegments) -> Sequence[SegmentPlan]:
        """One plan, one parallel roll, one commit; returns what was planned, rolled or not."""
        # Those that failed are planned still, and must not crowd out the others.
        asked = asked._replace(max_plans=PLANS_PER_ROUND + len(self._failed))
        planned = repeated(lambda: self._client.plan_segments(asked), self._sleep)
        while self._look_after(planned.schemas):
            planned = repeated(lambda: self._client.plan_segments(asked), self._sleep)
        plans = [plan for plan in planned.plans if plan.object_key not in self._failed]
        if not plans:
            return ()
        url = self._object_store_url or planned.object_store_url
        if not url:
            raise InvalidSettings("the broker names no object store; give its URL")
        self._progress.planned(plans)
        results = self._roller.roll(plans, url, self._progress.rolled)
        self._fail(
            RollFailure(result.plan.object_key, result.error)
            for result in results
            if result.segment is None
        )
        rolled = [(result, result.segment) for result in results if result.segment is not None]
        if rolled:
            self._commit(rolled)
        return plans

    def report(self) -> RollReport:
        return RollReport(
            segments=self._committed,
            failures=list(self._failed.values()),
            withdrawn=self._withdrawn,
            wal_bytes=self._wal_bytes,
            raw_batch_count=self._raw_batch_count,
            untyped_count=self._untyped_count,
            schema_problems=self._schema_problems,
            work=RollWork(*map(sum, zip(*self._work, strict=True))),
        )

    def _look_after(self, schemas: Sequence[TopicSchemas]) -> bool:
        """Make columns follow schemas, of each topic once in a run; returns whether any changed."""
        wanted = [one for one in schemas if one.topic_id not in self._looked_after]
        offered: list[SetTopicColumns] = []
        for topic in wanted:
            self._looked_after.add(topic.topic_id)
            try:
                columns, problems = followed(topic, self._registry)
            except RegistryUnavailable as error:
                # Those that were typed before go on as they are; others wait for the next pass.
                self._not_typed(topic, "value", str(error))
                continue
            for side, problem in problems.items():
                self._not_typed(topic, side, problem)
            if columns != topic.has:
                offered.append(SetTopicColumns(topic.topic_id, *columns))
        if not offered:
            return False
        # Another job may have been first, or the topic be gone: what is planned next shows it.
        repeated(lambda: self._client.set_topic_columns(offered), self._sleep)
        return True

    def _not_typed(self, topic: TopicSchemas, side: str, reason: str) -> None:
        self._schema_problems[f"{topic.name}-{side}"] = reason
        self._progress.not_typed(topic.name, side, reason)

    def _commit(self, rolled: Sequence[tuple[RollResult, RolledSegment]]) -> None:
        failpoint("roll.before_commit")
        segments = [segment for _, segment in rolled]
        answers = repeated(lambda: self._client.commit_segments(segments), self._sleep)
        failpoint("roll.after_commit")
        committed = []
        for (result, segment), answer in zip(rolled, answers, strict=True):
            if answer.error is None:
                committed.append(segment)
                self._wal_bytes += sum(extent.length_bytes for extent in result.plan.extents)
                self._raw_batch_count += result.raw_batch_count
                self._untyped_count += result.untyped_count
                self._work.append(result.work)
            elif isinstance(answer.error, UnknownPartition | UnknownTopicId):
                self._withdrawn.append(segment.object_key)
            else:
                self._fail([RollFailure(segment.object_key, f"not committed: {answer.error}")])
        self._committed += committed
        self._progress.committed(committed)

    def _fail(self, failures: Iterable[RollFailure]) -> None:
        for failure in failures:
            self._failed[failure.object_key] = failure
            self._progress.failed(failure)


def describe(error: DisklessError) -> str:
    """An error of a task as one line of the report."""
    return f"{type(error).__name__}: {error}"
