"""The roll as a job: batches in WAL objects become segments.

The command line calls `roll_once`. Before anything is planned, typed columns of topics follow their
schemas (tiering/jobs/schemas.py); the plans then have them.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from metadata import operations as ops
from tiering import rounds
from tiering.coordinator_client import CoordinatorClient, repeated
from tiering.jobs.schemas import SchemaFollower
from tiering.roll import Rolled
from tiering.types.registry import Registry
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError
from wal.ulid import minted_ms_of_wal_key

PLANS_PER_ROUND: Final = 256
"""Segments between two commits; what a killed driver may have to find again."""

WriteSegments = rounds.Write[ops.SegmentPlan, Rolled]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollReport(rounds.JobReport[ops.SegmentPlan, Rolled]):
    """What a run did."""

    schema_problems: Mapping[str, str] = field(default_factory=dict)
    """Why the schemas of topics give no columns, by `<topic>-key` and `<topic>-value`."""

    @property
    def segments(self) -> Sequence[ops.RolledSegment]:
        return [one.made.segment for one in self.committed]

    @property
    def raw_batch_count(self) -> int:
        """Batches that could not be decoded, which the segments keep as they were sent."""
        return sum(one.made.raw_batch_count for one in self.committed)

    @property
    def aborted_count(self) -> int:
        """Records of aborted transactions, which no segment has."""
        return sum(segment.aborted_count for segment in self.segments)

    @property
    def untyped_count(self) -> int:
        """Keys and values that did not fit their schema."""
        return sum(one.made.untyped_count for one in self.committed)


def roll_once(
    client: CoordinatorClient,
    write: WriteSegments,
    *,
    asked: ops.PlanSegments = ops.WHATEVER_IS_DUE,
    registry: Registry | None = None,
    run: rounds.RunSettings = rounds.USUAL,
) -> RollReport:
    """Roll all that is due of what is `asked` for.

    `registry` has the schemas of topics that say so. Blocks; the rest, and what it raises, is as in
    `run_job`.
    """
    schemas = SchemaFollower(client, registry, run.progress, run.sleep)
    job = _Roll(client, write, asked, schemas, run.sleep)
    if registry is not None:
        # Make columns follow what a registry got since, before anything is planned with them.
        job.follow_schemas()
    return rounds.run_job(job, run, partial(RollReport, schema_problems=schemas.problems))


class _Roll:
    """See `tiering.rounds.Job`."""

    name = "roll"

    def __init__(
        self,
        client: CoordinatorClient,
        write: WriteSegments,
        asked: ops.PlanSegments,
        schemas: SchemaFollower,
        sleep: Callable[[float], None],
    ) -> None:
        self._client = client
        self.write = write
        self._asked = asked
        self._schemas = schemas
        self._sleep = sleep
        self._seen: set[TopicIdPartition] = set()

    def follow_schemas(self) -> None:
        asked = self._asked._replace(schemas_only=True)
        planned = repeated(lambda: self._client.plan_segments(asked), self._sleep)
        self._schemas.look_after(planned.schemas)

    def plan(self, failed: Collection[Hashable]) -> rounds.Planned[ops.SegmentPlan]:
        # Those that failed are planned still, and must not crowd out the others.
        asked = self._asked._replace(max_plans=PLANS_PER_ROUND + len(failed))
        planned = repeated(lambda: self._client.plan_segments(asked), self._sleep)
        while self._schemas.look_after(planned.schemas):
            planned = repeated(lambda: self._client.plan_segments(asked), self._sleep)
        plans = [plan for plan in planned.plans if plan.object_key not in failed]
        # The coordinator gives some plans at a time, so the rests of all partitions may take
        # several rounds. But producers add new rests all the time: when all partitions of a
        # round had their turn before, and none of them has a backlog, what comes is new.
        partitions = {plan.partition for plan in plans}
        if partitions <= self._seen and len(plans) == len(partitions):
            self._asked = self._asked._replace(include_partial=False)
        self._seen |= partitions
        return rounds.Planned(plans, planned.object_store_url)

    def identity(self, plan: ops.SegmentPlan) -> ObjectKey:
        return plan.object_key

    def title(self, plan: ops.SegmentPlan) -> str:
        return plan.object_key

    def commit(self, made: Sequence[Rolled]) -> Sequence[DisklessError | None]:
        answers = self._client.commit_segments([one.segment for one in made])
        return [answer.error for answer in answers]

    def sizes(self, written: rounds.Written[ops.SegmentPlan, Rolled]) -> rounds.Sizes:
        plan, segment = written.plan, written.made.segment
        return rounds.Sizes(
            topic_name=plan.topic_name,
            input_bytes=sum(extent.length_bytes for extent in plan.extents),
            output_bytes=segment.object_bytes,
            record_count=segment.record_count,
            oldest_ms=minted_ms_of_wal_key(plan.extents[0].object_key) if plan.extents else None,
            untyped_count=written.made.untyped_count if plan.columns else None,
        )
