"""Plans the rewrites that are due, answers with all that are under way, and commits them.

A rewrite stays under way until its outcome is committed, so a job that failed gets it again, unless
inputs have gone with the log start. Rules: metadata/rules/rewriting/rewrites.py.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from metadata.coordinator.pipeline import Pipeline
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.retention_settings import RetentionSettings
from metadata.rewrites import (
    NO_REWRITE,
    PlanRewrites,
    Rewrite,
    RewriteCommit,
    RewriteInput,
    RewritePlan,
)
from metadata.rules.rewriting.merges import (
    MergePolicy,
    merge_candidates,
    merge_policy,
    survey_merges,
)
from metadata.rules.rewriting.rewrites import (
    CompactionPolicy,
    RewriteProposal,
    UnderWay,
    compaction_candidates,
    compaction_policy,
    decide_commit_rewrites,
    decide_end_rewrites,
    decide_rewrite_plans,
    survey_compactions,
)
from metadata.state.image import RewriteState
from metadata.state.queries.segment_queries import neighbours_within
from wal.clock import Clock
from wal.coordinates import TopicIdPartition


async def plan_rewrites(
    pipeline: Pipeline,
    replica: Replica,
    *,
    clock: Clock,
    settings: CoordinatorSettings,
    retention: RetentionSettings,
    asked: PlanRewrites,
) -> Sequence[RewritePlan]:
    """At most `plans_per_call_max` are under way at any time, one for a partition."""
    await _end_outdated(pipeline, replica)
    image = replica.image
    limit = settings.plans_per_call_max
    room = limit - sum(state.kind != NO_REWRITE for state in image.rewrites.values())
    if room > 0:
        proposals = await _due(
            replica, clock=clock, settings=settings, retention=retention, asked=asked, room=room
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


async def _end_outdated(pipeline: Pipeline, replica: Replica) -> None:
    """Rewrites of which inputs have gone with the log start end; the rest will be planned anew."""
    image = replica.image
    suspects = [
        UnderWay(partition, state.generation)
        for partition, state in image.rewrites.items()
        if state.kind != NO_REWRITE
        and image.partitions[partition].log_start_offset > state.base_offset
    ]
    if not suspects:
        return
    bases = {one.partition: image.rewrites[one.partition].base_offset for one in suspects}
    inputs = await _inputs(replica, [*bases])
    outdated = [
        one
        for one in suspects
        if not (left := inputs[one.partition]) or left[0].base_offset > bases[one.partition]
    ]
    if outdated:
        await pipeline.perform(lambda view, _: decide_end_rewrites(view, outdated))


async def _due(
    replica: Replica,
    *,
    clock: Clock,
    settings: CoordinatorSettings,
    retention: RetentionSettings,
    asked: PlanRewrites,
    room: int,
) -> Sequence[RewriteProposal]:
    """Compactions first, then merges; a topic has the one or the other. At most `room`."""

    def compaction_of(topic_id: UUID) -> CompactionPolicy | None:
        configs = replica.topic_configs(topic_id)
        if configs is None:
            return None
        return compaction_policy(configs, settings, retention.cleanup_policy)

    def merge_of(topic_id: UUID) -> MergePolicy | None:
        configs = replica.topic_configs(topic_id)
        return None if configs is None else merge_policy(configs, settings, retention)

    compactions = compaction_candidates(replica.image, compaction_of, asked.wants)
    merges = merge_candidates(replica.image, merge_of, asked.wants)

    def survey(connection: Connection) -> Sequence[RewriteProposal]:
        found = survey_compactions(
            connection, replica.names, compactions, now_ms=clock.now_ms(), proposals_max=room
        )
        left = room - len(found)
        return [*found, *survey_merges(connection, replica.names, merges, proposals_max=left)]

    return await replica.state.read(survey) if compactions or merges else ()


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
