"""Plans merges: small neighbouring segments of a partition become one.

A quiet partition is rolled every `segment.ms`, however little there is, so without merges it would
have small files for ever. A merge keeps every record. Its plan and its commit are decided in
metadata/rules/rewriting/rewrites.py.

*Which segments.* Small ones: below half of the target, `segment.merge.bytes`. A *run* is small ones
that follow each other without gap and within one *span* of time. Retention deletes a segment whole,
by its newest record, so a segment that took in new records for ever would never go: a quarter of
`retention.ms` is a span, by the greatest timestamps of the segments, and a quarter of
`retention.bytes` is the most that a merged segment of the topic has.

*When.* From the oldest segment of a run on,

1. as many as fit the target, when the next one does not and they are half of it: what comes of it
   is not small and is not merged again;
2. a run whose span is over, because something lies behind it: all of it;
3. of a run of RUN_MAX segments at the end, the newest ones, back to the first one that is more than
   CASCADE times as large as all behind it. So a byte is rewritten a few times until its segment is
   full: with each time the segment around it grows to half as much again, or more.

A partition ends with its full segments, one for each span that is over, and fewer than RUN_MAX
small ones. Topics that are compacted are left out, for their compactions put segments together.

A merge has at most INPUTS_MAX inputs; the rest is the next one's. Pure functions, but for the
survey, which reads committed rows as that of compactions does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection

from metadata.metadata_settings import CoordinatorSettings
from metadata.retention_settings import RetentionSettings
from metadata.rewrites import MERGE, NO_REWRITE, RewriteInput
from metadata.rules.retention import retention_policy
from metadata.rules.rewriting.rewrites import (
    RewriteProposal,
    is_compacted,
    partitions_with_policies,
)
from metadata.rules.segments import is_tiered
from metadata.state.image import CommittedImage, PartitionState, RewriteState
from metadata.state.queries.batch_queries import FileNames
from metadata.state.queries.segment_queries import partitions_with_small_segments, segments_from
from wal.coordinates import TopicIdPartition

MERGE_BYTES_CONFIG: Final = "segment.merge.bytes"

RUN_MAX: Final = 8
"""Small segments at the end of a partition that are one too many."""

CASCADE: Final = 2
INPUTS_MAX: Final = 256
"""A task reads the footers of all of them before it writes."""

_SPANS: Final = 4
"""Of how many merged segments retention has the choice, at least."""

_RECORDS_MAX: Final = 2**31 - 1


class MergePolicy(NamedTuple):
    """How the segments of a topic are merged."""

    target_bytes: int
    span_ms: int = 0
    """0: there is no end to a span."""

    def span(self, timestamp_ms: int) -> int:
        return timestamp_ms // self.span_ms if self.span_ms else 0

    def is_small(self, segment: RewriteInput) -> bool:
        return 2 * segment.object_bytes < self.target_bytes


class MergeCandidate(NamedTuple):
    """A partition whose segments may be merged."""

    partition: TopicIdPartition
    state: PartitionState
    generation: int
    policy: MergePolicy


def merge_policy(
    configs: Mapping[str, str], settings: CoordinatorSettings, retention: RetentionSettings
) -> MergePolicy | None:
    """The policy of a topic that set `configs`; None: its segments stay as they are."""
    if not is_tiered(configs) or is_compacted(configs, retention.cleanup_policy):
        return None
    text = configs.get(MERGE_BYTES_CONFIG, "")
    target_bytes = int(text) if text.isdecimal() else settings.segment_merge_bytes
    kept = retention_policy(configs, retention)
    if kept.retention_bytes >= 0:
        target_bytes = min(target_bytes, kept.retention_bytes // _SPANS)
    if target_bytes <= 0:
        return None
    return MergePolicy(target_bytes, max(kept.retention_ms // _SPANS, 0))


def merge_candidates(
    image: CommittedImage,
    policy_of: Callable[[UUID], MergePolicy | None],
    wanted: Callable[[str], bool] = lambda topic_name: True,
) -> Sequence[MergeCandidate]:
    """Partitions with segments and no rewrite under way, from the committed image."""
    found = []
    for partition, state, policy in partitions_with_policies(image, policy_of, wanted):
        if state.log_start_offset >= state.planned_end_offset:
            continue
        rewrite = image.rewrites.get(partition) or RewriteState()
        if rewrite.kind == NO_REWRITE:
            found.append(MergeCandidate(partition, state, rewrite.generation, policy))
    return found


def survey_merges(
    connection: Connection,
    names: FileNames,
    candidates: Sequence[MergeCandidate],
    *,
    proposals_max: int,
) -> Sequence[RewriteProposal]:
    """Proposes what is due, at most `proposals_max`, one for a partition. Raises CorruptState."""
    if not candidates:
        return ()
    largest = max(candidate.policy.target_bytes for candidate in candidates)
    crowded = partitions_with_small_segments(connection, below_bytes=largest // 2)
    proposals: list[RewriteProposal] = []
    for partition, state, generation, policy in candidates:
        if len(proposals) >= proposals_max:
            break
        if state.id not in crowded:
            continue
        inputs = due_for_merge(
            segments_from(connection, names, state.id, state.log_start_offset), policy
        )
        if inputs:
            proposals.append(
                RewriteProposal(
                    partition,
                    generation,
                    MERGE,
                    inputs[0].base_offset,
                    inputs[-1].last_offset,
                    0,
                    policy.target_bytes,
                )
            )
    return proposals


def due_for_merge(segments: Iterable[RewriteInput], policy: MergePolicy) -> Sequence[RewriteInput]:
    """The first neighbours that should become one, or none. `segments` by ascending offsets."""
    run: list[RewriteInput] = []
    for segment in segments:
        if run and segment.base_offset != run[-1].last_offset + 1:
            # What lies between is planned and not rolled yet, and may belong to the run.
            break
        if (
            run
            and policy.is_small(segment)
            and _same_span(segment, run, policy)
            and _fits(segment, run, policy)
        ):
            run.append(segment)
            continue
        # It is over. Of two small ones that do not fit together the first ones are half of it.
        if len(run) > 1:
            return run
        run = [segment] if policy.is_small(segment) else []
    return _newest(run) if len(run) >= RUN_MAX else ()


def _same_span(segment: RewriteInput, run: Sequence[RewriteInput], policy: MergePolicy) -> bool:
    """What has no record, or none with a time, belongs to any."""
    newest_ms = max(one.max_timestamp_ms for one in run)
    return min(newest_ms, segment.max_timestamp_ms) < 0 or (
        policy.span(segment.max_timestamp_ms) == policy.span(newest_ms)
    )


def _fits(segment: RewriteInput, run: Sequence[RewriteInput], policy: MergePolicy) -> bool:
    return (
        len(run) < INPUTS_MAX
        and _size(run) + segment.object_bytes <= policy.target_bytes
        and sum(one.record_count for one in run) + segment.record_count <= _RECORDS_MAX
    )


def _newest(run: Sequence[RewriteInput]) -> Sequence[RewriteInput]:
    """Those at the end that together are not dwarfed by the one before them."""
    start = len(run) - 1
    size = run[start].object_bytes
    while start and run[start - 1].object_bytes <= CASCADE * size:
        start -= 1
        size += run[start].object_bytes
    # One alone has nothing to merge with; with its neighbour it stays below the count.
    return run[min(start, len(run) - 2) :]


def _size(run: Sequence[RewriteInput]) -> int:
    return sum(one.object_bytes for one in run)
