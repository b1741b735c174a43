"""Turns what a bucket tells into a new metadata log: pure functions.

What a WAL object and a segment must carry so that metadata can be rebuilt, and where it is:

| what | where |
|---|---|
| batches: partition, size, producer and sequence | index of the WAL object |
| name, partitions, configuration of a topic | notes of objects with data of it; name: segments |
| offsets, time of append, refusals of an object's batches | notes of a later object of its broker |
| log start offset of a partition | with those; as of that commit |
| that something is missing | floors in an object's notes: it lies behind these offsets |
| order of one writer's commits | ULIDs, which ascend in that order |
| offsets of rolled records, their batches and producers | segment: footer and batch columns |
| that an object was rolled | sources in the segment's footer |
| which of several segments counts | generation in the segment's footer |
| what of a staged object was committed, where, and by which batch | notes objects alone |
| which transaction a batch belongs to | index of the WAL object |
| how a transaction ended, and where its markers are | notes objects alone |

Topics keep their ids; of several with one name only that with the newest records comes back, for a
name belongs to one topic at a time (metadata/rebuild/topics.py).
metadata/rebuild/placing/placement.py lays out each partition, metadata/rebuild/log_builder.py makes
records of the layouts. What could not be known is the report.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from metadata.rebuild.facts import BucketFacts, ObjectFacts, RebuildOptions, SegmentFacts
from metadata.rebuild.filler import NewObject
from metadata.rebuild.layout import (
    Doubt,
    LeftOut,
    MarkerPiece,
    PartitionLayout,
    Run,
    SegmentPiece,
    WalPiece,
    Why,
)
from metadata.rebuild.log_builder import DRAINED, LogBuilder
from metadata.rebuild.placing.endings import Decisions
from metadata.rebuild.placing.placement import place_partition
from metadata.rebuild.report import (
    InferredEnd,
    InferredRun,
    LeftObject,
    RebuildReport,
    RebuiltPartition,
)
from metadata.rebuild.topics import FoundTopics, find_topics
from metadata.records.records import MetadataRecord
from metadata.records.segment_identity import named_segment
from metadata.rules.acls import everything_denied
from metadata.rules.tables import has_table
from wal.chunks.kept_notes import KeptNotes, NotedEnd
from wal.chunks.object_notes import COMMITTED, BatchOutcome, CommitNote, Floor
from wal.clock import Clock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptObject

_NO_FLOOR: Final = Floor(0, 0)
_CERTAIN: Final = (*DRAINED, Why.NAMELESS, Why.NO_ROOM)
"""What is left out for these reasons was not committed, or is gone for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """What a rebuild will write: first the objects, then the log."""

    records: Sequence[MetadataRecord]
    new_objects: Sequence[NewObject]
    notes: KeptNotes
    """Where everything is that nobody had noted, so that the next rebuild need not infer it."""
    report: RebuildReport


def plan_rebuild(
    facts: BucketFacts, options: RebuildOptions, *, clock: Clock, rng: random.Random
) -> RebuildPlan:
    """Raises: InvalidSettings (a name that was asked for cannot be)."""
    objects = sorted(facts.objects, key=lambda item: item.ulid)
    notes = _notes(facts.kept, objects)
    found = find_topics(objects, facts.segments, facts.kept, notes, options)
    doubts = found.doubts

    def doubt(subject: str, problem: str) -> None:
        doubts.append(Doubt(subject, problem))

    left_out: dict[ObjectKey, dict[int, LeftOut]] = defaultdict(dict)
    decisions = Decisions(
        (end for ends in facts.kept.ends.values() for end in ends),
        commits_unknown=options.commits_open_transactions,
        now_ms=clock.now_ms(),
    )
    layouts = _layouts(facts, objects, notes, found, options, decisions, left_out, doubt)
    builder = LogBuilder(
        objects, left_out, noted=notes.keys(), renamed=found.renamed, doubt=doubt, clock=clock,
        rng=rng,
    )  # fmt: skip
    if found.topics:
        builder.records += everything_denied()
    builder.create(found.topics)
    builder.commit(layouts)
    builder.restore_sinks(facts.kept.sinks)
    builder.restore_generations(_greatest_generations(facts, layouts))
    next_producer_id = builder.allocate_producer_ids(_greatest_producer_id(facts))
    left = _left_objects(left_out, builder.committed, doubt)
    inferred = _inferred(layouts, found)
    ended = _ended(layouts, found)
    for end in ended:
        if not end.is_known:
            how = "committed" if end.is_commit else "aborted"
            doubt(
                f"{end.topic}-{end.partition}",
                f"how transaction {end.number} of producer {end.producer_id} ended is not known;"
                f" it is {how}",
            )
    inferred_objects = sorted({run.object_key for run in inferred})
    minted = {item.object_key: item.minted_ms for item in objects}
    young_ms = max(minted.values(), default=0) - options.max_commit_age_ms
    report = RebuildReport(
        wal_objects=len(objects),
        segments=len(facts.segments),
        batches=sum(len(item.extents) for item in objects),
        topics=[topic.name for topic in found.topics],
        tables=[topic.name for topic in found.topics if has_table(topic.configs)],
        partitions=_partitions(layouts, found),
        doubts=doubts,
        unreadable=facts.unreadable,
        inferred=inferred,
        inferred_objects=inferred_objects,
        ended=ended,
        maybe_uncommitted=[key for key in inferred_objects if minted[ObjectKey(key)] >= young_ms],
        left_out=left,
        unused_segments=[
            segment.object_key for layout in layouts for segment in layout.unused_segments
        ],
        dropped_topics=found.dropped,
        sinks={sink.sink_id: sink.batch_id for sink in facts.kept.sinks},
        uncommitted=facts.uncommitted,
        written_objects=[item.object_key for item in builder.new_objects],
        next_producer_id=next_producer_id,
        metadata_records=len(builder.records),
    )
    return RebuildPlan(
        records=builder.records,
        new_objects=builder.new_objects,
        notes=KeptNotes(
            commits=tuple(builder.new_notes),
            floors=_new_floors(facts, layouts),
            ends=_new_ends(layouts),
            ended_below=next_producer_id,
        ),
        report=report,
    )


def _new_floors(
    facts: BucketFacts, layouts: Sequence[PartitionLayout]
) -> Mapping[TopicIdPartition, Floor]:
    """Floors of partitions with segments below their log start, which stay in the bucket.

    The next rebuild finds them, too, and what told this one of the log start may be gone by then.
    """
    lowest: dict[TopicIdPartition, int] = {}
    for segment in facts.segments:
        partition = segment.partition
        lowest[partition] = min(segment.base_offset, lowest.get(partition, segment.base_offset))
    return {
        layout.partition: Floor(layout.high_watermark, layout.log_start_offset)
        for layout in layouts
        if lowest.get(layout.partition, layout.log_start_offset) < layout.log_start_offset
    }


def _new_ends(
    layouts: Sequence[PartitionLayout],
) -> Mapping[TopicIdPartition, Sequence[NotedEnd]]:
    """The ends that nobody had noted."""
    ends = {
        layout.partition: [
            piece.end
            for piece in layout.pieces
            if isinstance(piece, MarkerPiece) and not piece.is_noted
        ]
        for layout in layouts
    }
    return {partition: noted for partition, noted in ends.items() if noted}


def _notes(kept: KeptNotes, objects: Sequence[ObjectFacts]) -> Mapping[str, CommitNote]:
    """What is noted of each object; an answer counts for more than that one was given up."""
    notes: dict[str, CommitNote] = {}
    for commits in (kept.commits, *(item.notes.commits for item in objects)):
        for note in commits:
            known = notes.get(note.ulid)
            if known is None or (known.outcome != COMMITTED and note.outcome == COMMITTED):
                notes[note.ulid] = note
    return notes


def _layouts(
    facts: BucketFacts,
    objects: Sequence[ObjectFacts],
    notes: Mapping[str, CommitNote],
    found: FoundTopics,
    options: RebuildOptions,
    decisions: Decisions,
    left_out: Mapping[ObjectKey, dict[int, LeftOut]],
    doubt: Callable[[str, str], None],
) -> Sequence[PartitionLayout]:
    """One per partition that anything is known of; `left_out` gets what is not served."""
    names = {topic.topic_id: topic.name for topic in found.topics}
    runs: dict[TopicIdPartition, list[Run]] = defaultdict(list)
    for item in objects:
        for partition, run in _runs_of(item, notes.get(item.ulid), doubt):
            if partition.topic_id in names:
                runs[partition].append(run)
                continue
            for position in run.positions:
                left = LeftOut(item.object_key, position, Why.NAMELESS)
                left_out[item.object_key][position] = left
    segments: dict[TopicIdPartition, list[SegmentFacts]] = defaultdict(list)
    for segment in facts.segments:
        if segment.partition.topic_id in names:
            segments[segment.partition].append(segment)
    kept = {
        partition
        for partition in (*facts.kept.floors, *facts.kept.ends)
        if partition.topic_id in names
    }
    layouts = []
    for partition in sorted({*runs, *segments, *kept}):
        layout = place_partition(
            partition,
            segments.get(partition, ()),
            runs.get(partition, ()),
            floor=facts.kept.floors.get(partition, _NO_FLOOR),
            ends=facts.kept.ends.get(partition, ()),
            decisions=decisions,
            include_orphans=options.include_orphans,
        )
        layouts.append(layout)
        for problem in layout.doubts:
            doubt(f"{names[partition.topic_id]}-{partition.partition}", problem)
        for left in layout.left_out:
            left_out[left.object_key][left.position] = left
    return layouts


def _runs_of(
    item: ObjectFacts, note: CommitNote | None, doubt: Callable[[str, str], None]
) -> Sequence[tuple[TopicIdPartition, Run]]:
    outcomes: Sequence[BatchOutcome] | None = None
    if note is not None:
        try:
            outcomes = note.outcomes(item.extents)
        except CorruptObject as error:
            doubt(item.object_key, str(error))
    grouped = [
        (partition, [position for position, _ in group])
        for partition, group in groupby(enumerate(item.extents), lambda entry: entry[1].partition)
    ]
    floors = item.notes.floors
    if len(floors) != len(grouped):
        floors = [None] * len(grouped)
    return [
        (
            partition,
            Run(
                item,
                positions,
                floor or _NO_FLOOR,
                None if outcomes is None else [outcomes[position] for position in positions],
            ),
        )
        for (partition, positions), floor in zip(grouped, floors, strict=True)
    ]


def _greatest_generations(
    facts: BucketFacts, layouts: Sequence[PartitionLayout]
) -> Mapping[TopicIdPartition, int]:
    """By partition, where it is above 0. Objects that nobody can read have a key, too."""
    partitions = {layout.partition for layout in layouts}
    greatest: dict[TopicIdPartition, int] = {}
    keys = [segment.object_key for segment in facts.segments]
    keys += [item.object_key for item in facts.unreadable]
    for named in filter(None, map(named_segment, keys)):
        known = greatest.get(named.partition, 0)
        if named.partition in partitions and named.generation > known:
            greatest[named.partition] = named.generation
    return greatest


def _greatest_producer_id(facts: BucketFacts) -> int:
    return max(
        (
            *(extent.producer_id for item in facts.objects for extent in item.extents),
            *(segment.producer_id_max for segment in facts.segments),
            *(end.marker.producer_id for ends in facts.kept.ends.values() for end in ends),
            facts.kept.ended_below - 1,
        ),
        default=-1,
    )


# -- report ---------------------------------------------------------------------------------------


def _left_objects(
    left_out: Mapping[ObjectKey, Mapping[int, LeftOut]],
    committed: set[ObjectKey],
    doubt: Callable[[str, str], None],
) -> Sequence[LeftObject]:
    """What is in a segment, or was sent twice, is missing nowhere and is not told."""
    left = []
    for key, positions in sorted(left_out.items()):
        reasons = Counter(
            item.why.value
            for item in positions.values()
            if item.why not in (Why.ROLLED, Why.DUPLICATE)
        )
        if reasons:
            left.append(LeftObject(key, dict(reasons), key in committed))
            if any(item.why not in _CERTAIN for item in positions.values()):
                told = ", ".join(f"{count} batches: {why}" for why, count in reasons.items())
                doubt(key, f"left out: {told}")
    return left


def _inferred(layouts: Sequence[PartitionLayout], found: FoundTopics) -> Sequence[InferredRun]:
    names = {topic.topic_id: topic.name for topic in found.topics}
    return [
        InferredRun(
            piece.source.object_key,
            names[layout.partition.topic_id],
            layout.partition.partition,
            piece.base_offset,
            piece.next_offset - piece.base_offset,
            piece.placing.value,
        )
        for layout in layouts
        for piece in layout.pieces
        if isinstance(piece, WalPiece) and not piece.is_noted
    ]


def _ended(layouts: Sequence[PartitionLayout], found: FoundTopics) -> Sequence[InferredEnd]:
    names = {topic.topic_id: topic.name for topic in found.topics}
    return [
        InferredEnd(names[layout.partition.topic_id], layout.partition.partition, *ended)
        for layout in layouts
        for ended in layout.ended
    ]


def _partitions(
    layouts: Sequence[PartitionLayout], found: FoundTopics
) -> Sequence[RebuiltPartition]:
    by_partition = {layout.partition: layout for layout in layouts}
    partitions = []
    for topic in found.topics:
        for index in range(topic.partition_count):
            partition = TopicIdPartition(topic.topic_id, index)
            layout = by_partition.get(partition, PartitionLayout(partition=partition))
            partitions.append(
                RebuiltPartition(
                    topic=topic.name,
                    partition=index,
                    log_start_offset=layout.log_start_offset,
                    exact_end=layout.exact_end,
                    high_watermark=layout.high_watermark,
                    segments=sum(isinstance(piece, SegmentPiece) for piece in layout.pieces),
                    wal_objects=sum(isinstance(piece, WalPiece) for piece in layout.pieces),
                )
            )
    return partitions
