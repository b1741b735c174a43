"""Plans the rewrites that are due, answers with all that are under way, and commits them.

A rewrite stays under way until its outcome is committed, so a job that failed gets it again. Rules:
metadata/rules/rewrites.py.
"""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from sqlalchemy import Connection

from metadata.coordinator.pipeline import Pipeline
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.rewrites import (
    NO_REWRITE,
    PlanRewrites,
    Rewrite,
    RewriteCommit,
    RewriteInput,
    RewritePlan,
)
from metadata.rules.rewrites import (
    CompactionPolicy,
    compaction_candidates,
    compaction_policy,
    decide_commit_rewrites,
    decide_rewrite_plans,
    survey_compactions,
)
from metadata.state.image import RewriteState
from metadata.state.segment_queries import neighbours_within
from wal.clock import Clock
from wal.coordinates import TopicIdPartition


async def plan_rewrites(
    pipeline: Pipeline,
    replica: Replica,
    *,
    clock: Clock,
    settings: CoordinatorSettings,
    cleanup_policy: str,
    asked: PlanRewrites,
) -> Sequence[RewritePlan]:
    """At most `plans_per_call_max` are under way at any time, one for a partition."""

    def policy_of(topic_id: UUID) -> CompactionPolicy | None:
        configs = replica.topic_configs(topic_id)
        return None if configs is None else compaction_policy(configs, settings, cleanup_policy)

    image = replica.image
    limit = settings.plans_per_call_max
    room = limit - sum(state.kind != NO_REWRITE for state in image.rewrites.values())
    candidates = compaction_candidates(image, policy_of, asked.wants) if room > 0 else ()
    if candidates:
        proposals = await replica.state.read(
            partial(
                survey_compactions,
                names=replica.names,
                candidates=candidates,
                now_ms=clock.now_ms(),
                proposals_max=room,
            )
        )
        if proposals:
            await pipeline.perform(
                lambda view, now_ms: decide_rewrite_plans(view, proposals, now_ms)
            )
    found: list[tuple[TopicIdPartition, RewriteState, str]] = []
    for partition, state in image.rewrites.items():
        topic = replica.topic_by_id(partition.topic_id)
        if state.kind != NO_REWRITE and topic is not None and asked.wants(topic.name):
            found.append((partition, state, topic.name))
    found = found[: asked.max_plans]
    inputs = await _inputs(replica, [partition for partition, _, _ in found])
    return [
        RewritePlan(
            topic_name=name,
            partition=partition,
            kind=state.kind,
            generation=state.generation,
            planned_at_ms=state.planned_at_ms,
            delete_horizon_ms=state.delete_horizon_ms,
            producers_since_ms=state.planned_at_ms - settings.producer_expiration_ms,
            target_bytes=state.target_bytes,
            inputs=inputs[partition],
        )
        for partition, state, name in found
    ]


async def commit_rewrites(
    pipeline: Pipeline, replica: Replica, rewrites: Sequence[Rewrite]
) -> Sequence[RewriteCommit]:
    """An entry is empty, a duplicate, UnknownPartition or Rejected (it does not fit its plan)."""
    inputs = await _inputs(replica, [rewrite.partition for rewrite in rewrites])
    return await pipeline.perform(
        lambda view, _: decide_commit_rewrites(view, rewrites, inputs),
        object_keys=[segment.object_key for rewrite in rewrites for segment in rewrite.segments],
    )


async def _inputs(
    replica: Replica, partitions: Sequence[TopicIdPartition]
) -> dict[TopicIdPartition, Sequence[RewriteInput]]:
    """The segments in the ranges of what is under way."""
    ranges: dict[TopicIdPartition, tuple[int, int, int]] = {}
    for partition in partitions:
        partition_id = replica.partition_id(partition)
        state = replica.image.rewrites.get(partition)
        if partition_id is not None and state is not None and state.kind != NO_REWRITE:
            ranges[partition] = (partition_id, state.base_offset, state.last_offset)

    def read(connection: Connection) -> dict[TopicIdPartition, Sequence[RewriteInput]]:
        return {
            partition: neighbours_within(connection, replica.names, *place)
            for partition, place in ranges.items()
        }

    found = await replica.state.read(read) if ranges else {}
    return {partition: found.get(partition, ()) for partition in partitions}
