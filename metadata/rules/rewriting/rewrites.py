"""Plans rewrites of segments and decides their commits.

*Which segments a compaction covers.* Those of a partition from its log start on, as long as they
follow each other without gap and hold no record younger than `min.compaction.lag.ms`. So batches in
WAL objects are never compacted, and neither is what lies behind them. Segments from
`cleaned_end_offset` on are dirty: no compaction has seen them.

*When one is due.* By Kafka's rules: when more than `min.cleanable.dirty.ratio` of the covered bytes
are dirty, or when the first dirty segment has a record older than `max.compaction.lag.ms`. A
segment tells the timestamp of its newest record alone; the oldest one is taken to be `segment.ms`
older, by when a segment is rolled.

Planning is two steps, as it is for segments (metadata/rules/segments.py): the surveys read
committed rows, the decisions are made in the coordinator's turn. What the surveys saw stays right
for a partition without a rewrite, or for the inputs of the one it has, but for what goes with the
log start meanwhile; the decisions look at that again.

*When a plan ends by itself.* A plan fixes its inputs, and with them the keys and the contents of
its outputs. When one of them goes with the log start, the job that asks next gets a new plan of
another generation for the others. Otherwise two attempts could leave different outputs of one
generation that overlap, and a rebuild would not know which of them together are whole.

*What a commit must fulfil.* Its plan is under way. Each output covers whole inputs, one behind the
other, and `record_count + removed_count` are the records of these; a merge removes none. An output
of whose inputs one is gone with the log start is passed over, and what it would have cleaned stays
dirty. The others are not affected. Committing again what was committed is answered as a duplicate.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import Connection

from metadata.metadata_settings import CoordinatorSettings
from metadata.records.records import MetadataRecord
from metadata.records.rewrites import (
    RewriteEndedRecord,
    RewritePlannedRecord,
    SegmentRewrittenRecord,
)
from metadata.records.segment_identity import segment_digest, segment_key
from metadata.rewrites import (
    COMPACTION,
    MERGE,
    NO_REWRITE,
    Rewrite,
    RewriteCommit,
    RewriteInput,
    RewrittenSegment,
)
from metadata.rules.commit import Decision
from metadata.rules.retention import CLEANUP_POLICY_CONFIG
from metadata.state.image import CommittedImage, PartitionState, RewriteState
from metadata.state.queries.batch_queries import FileNames
from metadata.state.queries.segment_queries import segments_from
from metadata.state.speculative import KnownFile, SpeculativeView
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, Rejected, UnknownPartition

_Policy = TypeVar("_Policy")

INPUTS_MAX: Final = 10_000
"""Segments of one rewrite: its commit replaces them in one transaction."""

_INT32_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


class CompactionPolicy(NamedTuple):
    """What a topic's configs say about its compaction."""

    dirty_ratio_min: float
    lag_min_ms: int
    lag_max_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_ms: int


class CompactionCandidate(NamedTuple):
    """A partition with segments that no compaction has seen."""

    partition: TopicIdPartition
    state: PartitionState
    rewrite: RewriteState
    policy: CompactionPolicy


class RewriteProposal(NamedTuple):
    """Neighbouring segments that should be rewritten."""

    partition: TopicIdPartition
    generation: int
    """Of the partition's last rewrite."""
    kind: int
    base_offset: int
    last_offset: int
    delete_retention_ms: int
    target_bytes: int


class UnderWay(NamedTuple):
    """A rewrite that was planned and not committed."""

    partition: TopicIdPartition
    generation: int


# -- planning --------------------------------------------------------------------------------------


def is_compacted(configs: Mapping[str, str], cleanup_policy: str) -> bool:
    """Whether a topic that set `configs` is compacted; `cleanup_policy` is that of other topics."""
    policies = configs.get(CLEANUP_POLICY_CONFIG, cleanup_policy).split(",")
    return "compact" in [policy.strip() for policy in policies]


def compaction_policy(
    configs: Mapping[str, str], settings: CoordinatorSettings, cleanup_policy: str
) -> CompactionPolicy | None:
    """The policy of a topic that set `configs`; None: it is not compacted.

    `cleanup_policy` is that of topics that set none.
    """
    if not is_compacted(configs, cleanup_policy):
        return None
    return CompactionPolicy(
        dirty_ratio_min=_ratio(configs.get("min.cleanable.dirty.ratio", "0.5")),
        lag_min_ms=_number(configs, "min.compaction.lag.ms", 0),
        lag_max_ms=_number(configs, "max.compaction.lag.ms", _LONG_MAX),
        delete_retention_ms=_number(configs, "delete.retention.ms", 24 * 3_600_000),
        segment_bytes=_number(configs, "segment.bytes", settings.segment_bytes),
        segment_ms=_number(configs, "segment.ms", settings.segment_ms),
    )


def compaction_candidates(
    image: CommittedImage,
    policy_of: Callable[[UUID], CompactionPolicy | None],
    wanted: Callable[[str], bool] = lambda topic_name: True,
) -> Sequence[CompactionCandidate]:
    """Partitions with something dirty and no rewrite under way, from the committed image.

    `policy_of` gives None for topics that are not compacted, or not known yet.
    """
    found = []
    for partition, state, policy in partitions_with_policies(image, policy_of, wanted):
        rewrite = image.rewrites.get(partition) or RewriteState()
        dirty_from = max(rewrite.cleaned_end_offset, state.log_start_offset)
        if rewrite.kind == NO_REWRITE and dirty_from < state.planned_end_offset:
            found.append(CompactionCandidate(partition, state, rewrite, policy))
    return found


def partitions_with_policies(
    image: CommittedImage,
    policy_of: Callable[[UUID], _Policy | None],
    wanted: Callable[[str], bool],
) -> Iterator[tuple[TopicIdPartition, PartitionState, _Policy]]:
    """Those of topics that are wanted and have a policy; it is asked for once a topic."""
    policies: dict[UUID, _Policy | None] = {}
    for partition, state in image.partitions.items():
        topic_id = partition.topic_id
        if topic_id not in policies:
            is_wanted = wanted(image.topics[topic_id].description.name)
            policies[topic_id] = policy_of(topic_id) if is_wanted else None
        policy = policies[topic_id]
        if policy is not None:
            yield partition, state, policy


def survey_compactions(
    connection: Connection,
    names: FileNames,
    candidates: Sequence[CompactionCandidate],
    *,
    now_ms: int,
    proposals_max: int,
) -> Sequence[RewriteProposal]:
    """Proposes what is due, at most `proposals_max`. Raises CorruptState."""
    proposals: list[RewriteProposal] = []
    for partition, state, rewrite, policy in candidates:
        if len(proposals) >= proposals_max:
            break
        segments = segments_from(connection, names, state.id, state.log_start_offset)
        covered = [*_cleanable(segments, state.log_start_offset, policy, now_ms)]
        if is_compaction_due(covered, rewrite.cleaned_end_offset, policy, now_ms):
            proposals.append(
                RewriteProposal(
                    partition,
                    rewrite.generation,
                    COMPACTION,
                    covered[0].base_offset,
                    covered[-1].last_offset,
                    policy.delete_retention_ms,
                    policy.segment_bytes,
                )
            )
    return proposals


def _cleanable(
    segments: Iterator[RewriteInput], log_start: int, policy: CompactionPolicy, now_ms: int
) -> Iterator[RewriteInput]:
    position: int | None = None
    for count, segment in enumerate(segments):
        follows = (
            segment.base_offset <= log_start
            if position is None
            else segment.base_offset == position
        )
        is_young = policy.lag_min_ms > 0 and segment.max_timestamp_ms > now_ms - policy.lag_min_ms
        if not follows or is_young or count == INPUTS_MAX:
            return
        position = segment.last_offset + 1
        yield segment


def is_compaction_due(
    covered: Sequence[RewriteInput], cleaned_end: int, policy: CompactionPolicy, now_ms: int
) -> bool:
    """Whether the segments that a compaction would cover are dirty enough, or dirty for too long.

    `cleaned_end` is where the dirty ones begin.
    """
    dirty = [segment for segment in covered if segment.last_offset >= cleaned_end]
    if not dirty:
        return False
    dirty_bytes = sum(segment.object_bytes for segment in dirty)
    if dirty_bytes > policy.dirty_ratio_min * sum(segment.object_bytes for segment in covered):
        return True
    oldest_ms = dirty[0].max_timestamp_ms - policy.segment_ms
    return oldest_ms < now_ms - policy.lag_max_ms


def decide_rewrite_plans(
    view: SpeculativeView, proposals: Sequence[RewriteProposal], now_ms: int
) -> Decision[None]:
    """Plan what is still as it was seen; the others will be proposed again."""
    records: list[MetadataRecord] = []
    for proposal in proposals:
        partition = proposal.partition
        if view.partition(partition) is None:
            continue
        before = view.rewrite(partition)
        if before.kind != NO_REWRITE or before.generation != proposal.generation:
            continue
        record = RewritePlannedRecord(
            partition=partition,
            generation=before.generation + 1,
            kind=proposal.kind,
            base_offset=proposal.base_offset,
            last_offset=proposal.last_offset,
            planned_at_ms=now_ms,
            delete_horizon_ms=min(now_ms + proposal.delete_retention_ms, _LONG_MAX),
            target_bytes=proposal.target_bytes,
        )
        view.put_rewrite(
            partition,
            before._replace(
                generation=record.generation,
                kind=record.kind,
                base_offset=record.base_offset,
                last_offset=record.last_offset,
                planned_at_ms=now_ms,
                delete_horizon_ms=record.delete_horizon_ms,
                target_bytes=record.target_bytes,
            ),
        )
        records.append(record)
    return Decision(records, None)


def decide_end_rewrites(view: SpeculativeView, ended: Sequence[UnderWay]) -> Decision[None]:
    """End those that are under way still, without an outcome."""
    records: list[MetadataRecord] = []
    for partition, generation in ended:
        before = view.rewrite(partition)
        if before.kind == NO_REWRITE or before.generation != generation:
            continue
        cleaned_end = before.cleaned_end_offset
        view.put_rewrite(
            partition, RewriteState(generation=generation, cleaned_end_offset=cleaned_end)
        )
        records.append(
            RewriteEndedRecord(
                partition=partition, generation=generation, cleaned_end_offset=cleaned_end
            )
        )
    return Decision(records, None)


# -- commits ---------------------------------------------------------------------------------------


def decide_commit_rewrites(
    view: SpeculativeView,
    rewrites: Sequence[Rewrite],
    inputs: Mapping[TopicIdPartition, Sequence[RewriteInput]],
) -> Decision[Sequence[RewriteCommit]]:
    """Each rewrite that fits its plan and its `inputs` replaces them, and ends.

    `inputs` are the committed segments in the range of the partition's plan.
    """
    records: list[MetadataRecord] = []
    answer: list[RewriteCommit] = []
    for rewrite in rewrites:
        if view.partition(rewrite.partition) is None:
            error: DisklessError = UnknownPartition(f"no partition {rewrite.partition}")
            answer.append(RewriteCommit(error=error))
        elif _is_repeated(view, rewrite):
            answer.append(RewriteCommit(is_duplicate=True))
        else:
            replaced = inputs.get(rewrite.partition, ())
            refused = _refusal(view, rewrite, replaced)
            if refused is None:
                records += _ended(view, rewrite, replaced)
            answer.append(RewriteCommit(error=refused))
    return Decision(records, answer)


def _is_repeated(view: SpeculativeView, rewrite: Rewrite) -> bool:
    """Whether this outcome was committed; some of its segments may be gone again."""
    state = view.rewrite(rewrite.partition)
    if rewrite.generation > state.generation or (
        rewrite.generation == state.generation and state.kind != NO_REWRITE
    ):
        return False
    known = [view.file(segment.object_key) for segment in rewrite.segments]
    return all(
        file is None or file.request_digest == segment_digest(_record(rewrite, segment))
        for file, segment in zip(known, rewrite.segments, strict=True)
    )


def _refusal(
    view: SpeculativeView, rewrite: Rewrite, inputs: Sequence[RewriteInput]
) -> DisklessError | None:
    state = view.rewrite(rewrite.partition)
    place = f"{rewrite.partition}: rewrite {rewrite.generation}"
    if state.kind == NO_REWRITE or state.generation != rewrite.generation:
        return Rejected(f"{place} is not under way")
    topic = view.topic_by_id(rewrite.partition.topic_id)
    assert topic is not None, "a partition has a topic"
    end = state.base_offset
    for segment in rewrite.segments:
        base, last = segment.base_offset, segment.last_offset
        if base < end or last < base or last > state.last_offset:
            return Rejected(f"{place}: {base}..{last} does not follow {end}")
        end = last + 1
        key = segment_key(topic.name, rewrite.partition, base, last, rewrite.generation)
        if segment.object_key != key:
            return Rejected(f"{place}: {segment.object_key} should be {key}")
        if (
            segment.object_bytes <= 0
            or not 0 <= segment.crc32c <= 0xFFFFFFFF
            or not 0 <= segment.record_count <= _INT32_MAX
            or not 0 <= segment.removed_count <= _INT32_MAX
            or (state.kind == MERGE and segment.removed_count)
        ):
            return Rejected(f"{place}: {segment} is not a segment")
        if _is_gone(view, rewrite, segment, inputs):
            continue
        replaced = [one for one in inputs if base <= one.base_offset and one.last_offset <= last]
        count = sum(one.record_count for one in replaced)
        is_whole = (
            bool(replaced)
            and replaced[0].base_offset == base
            and replaced[-1].last_offset == last
            and all(one.base_offset == before.last_offset + 1 for before, one in pairwise(replaced))
        )
        if not is_whole or segment.record_count + segment.removed_count != count:
            return Rejected(
                f"{place}: {key} has {segment.record_count} records and leaves out "
                f"{segment.removed_count}, of {count} in {len(replaced)} segments"
            )
    return None


def _is_gone(
    view: SpeculativeView,
    rewrite: Rewrite,
    segment: RewrittenSegment,
    inputs: Sequence[RewriteInput],
) -> bool:
    """Whether inputs of it have gone with the log start: its first one goes first."""
    state = view.partition(rewrite.partition)
    assert state is not None, "the caller has looked"
    first = next((one for one in inputs if one.base_offset == segment.base_offset), None)
    return state.log_start_offset > (segment.base_offset if first is None else first.last_offset)


def _ended(
    view: SpeculativeView, rewrite: Rewrite, inputs: Sequence[RewriteInput]
) -> Sequence[MetadataRecord]:
    before = view.rewrite(rewrite.partition)
    records: list[MetadataRecord] = []
    is_complete = True
    for segment in rewrite.segments:
        if _is_gone(view, rewrite, segment, inputs):
            is_complete = False
            continue
        record = _record(rewrite, segment)
        view.put_file(segment.object_key, KnownFile(segment_digest(record), b""))
        records.append(record)
    cleaned_end = before.cleaned_end_offset
    if before.kind == COMPACTION and is_complete:
        cleaned_end = before.last_offset + 1
    ended = RewriteEndedRecord(
        partition=rewrite.partition, generation=rewrite.generation, cleaned_end_offset=cleaned_end
    )
    view.put_rewrite(
        rewrite.partition,
        RewriteState(generation=rewrite.generation, cleaned_end_offset=cleaned_end),
    )
    return [*records, ended]


def _record(rewrite: Rewrite, segment: RewrittenSegment) -> SegmentRewrittenRecord:
    return SegmentRewrittenRecord(
        partition=rewrite.partition,
        generation=rewrite.generation,
        base_offset=segment.base_offset,
        last_offset=segment.last_offset,
        object_key=segment.object_key,
        object_bytes=segment.object_bytes,
        crc32c=segment.crc32c,
        record_count=segment.record_count,
        removed_count=segment.removed_count,
        max_timestamp_ms=segment.max_timestamp_ms,
    )


def _number(configs: Mapping[str, str], name: str, default: int) -> int:
    """Values were validated when they were set; what was not is as if it were not set."""
    text = configs.get(name, "")
    return int(text) if text.isdecimal() else default


def _ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.5
