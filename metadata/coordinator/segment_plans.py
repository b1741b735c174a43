"""Plans the segments that are due, and answers with all outstanding plans; lists their schemas.

A plan stays outstanding until its segment is committed, so a roller that failed gets it again.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from uuid import UUID

from metadata import operations as ops
from metadata.coordinator.pipeline import Pipeline
from metadata.coordinator.unsettled_batches import UnsettledBatches
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.rules.segments import Candidate, candidates, decide_plans, is_tiered, survey
from metadata.rules.typed import schemas_to_look_after
from metadata.state.queries.batch_queries import segment_plan
from wal.clock import Clock


async def plan_segments(
    pipeline: Pipeline,
    replica: Replica,
    *,
    clock: Clock,
    settings: CoordinatorSettings,
    unsettled: UnsettledBatches,
    asked: ops.PlanSegments,
) -> Sequence[ops.SegmentPlan]:
    """At most `plans_per_call_max` plans are outstanding at any time.

    Those of topics that are not asked for stay as they are. What was planned before its topic was
    set to `tiering.enable=false` is still answered: plans follow each other without gap.
    """
    limit = settings.plans_per_call_max
    room = limit - len(replica.image.plans)
    found: Sequence[Candidate] = ()
    if room > 0:
        await unsettled.settle()
        found = candidates(
            replica.image,
            settings,
            replica.topic_configs,
            unsettled.held_from(),
            asked.wants,
            replica.topic_columns,
        )
    if found:
        proposals = await replica.state.read(
            partial(
                survey,
                partitions=found,
                now_ms=clock.now_ms(),
                include_partial=asked.include_partial,
                proposals_max=room,
            )
        )
        if proposals:
            await pipeline.perform(
                lambda view, now_ms: decide_plans(view, proposals, now_ms, outstanding_max=limit)
            )
    outstanding = []
    for plan in sorted(replica.image.plans.values(), key=lambda plan: plan.object_key):
        partition_id = replica.partition_id(plan.partition)
        topic = replica.topic_by_id(plan.partition.topic_id)
        if partition_id is not None and topic is not None and asked.wants(topic.name):
            outstanding.append((plan, partition_id, topic.name))
    plans = await replica.state.read(
        lambda connection: [
            segment_plan(connection, replica.names, *planned) for planned in outstanding
        ]
    )
    return [plan for plan in plans if plan is not None]


def topic_schemas(replica: Replica, asked: ops.PlanSegments) -> Sequence[ops.TopicSchemas]:
    """Of topics that are asked for and have something unplanned here."""
    topic_ids = {
        partition.topic_id
        for partition, state in replica.image.partitions.items()
        if state.unplanned_bytes > 0 or state.last_marker_offset >= state.planned_end_offset
    }

    def described() -> Iterator[tuple[UUID, str, Mapping[str, str], ops.TopicColumns]]:
        for topic_id in topic_ids:
            configs = replica.topic_configs(topic_id)
            name = replica.image.topics[topic_id].description.name
            if configs and is_tiered(configs) and asked.wants(name):
                yield topic_id, name, configs, replica.topic_columns(topic_id)

    return list(schemas_to_look_after(described()))
