"""From what a bucket tells to a new metadata log: pure functions.

What a WAL object and a segment must carry so that metadata can be rebuilt, and where it is:

| what | where |
|---|---|
| batches: partition, size, producer and sequence | index of the WAL object |
| name, partitions, configuration of a topic | notes of objects with data of it; name: segments |
| offsets, time of append, refusals of an object's batches | notes of a later object of its broker |
| log start offset of a partition | with those; as of that commit |
| that something is missing | floors in an object's notes: it lies behind these offsets |
| order of one broker's commits | ULIDs, which ascend in that order |
| offsets of rolled records, their batches and producers | segment: footer and batch columns |
| that an object was rolled | sources in the segment's footer |

metadata/rebuild/placement.py lays out each partition. Here the layouts become records, such as a
coordinator would have written:

- topics and partitions by id; of several topics with one name, only that with the newest records,
  for a name belongs to one topic at a time;
- a log start above 0 is a commit of everything below it, deleted at once;
- a segment is a commit of batches that say the same to the producers' states, and at once the plan
  and the commit of the segment. The object of that commit never existed and waits for its deletion;
- an object is one commit of whatever of it is live. The digest of the request is that which its
  broker would compute, so a broker that recovers its chunk and commits again gets this answer;
- a hole is a filler (metadata/rebuild/filler.py). Between segments, what is not rolled is an
  outstanding plan, because plans of a partition follow each other.

Objects are committed in an order that gives each partition its own. Where no order does (there were
several coordinators), some of an object's batches are committed from a copy.

Everything goes to the coordinator of metadata partition 0.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final
from uuid import UUID

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CATALOGUE, WRITE_AHEAD_MULTI_SEGMENT, CommitFile
from metadata.rebuild.facts import BucketFacts, ObjectFacts, RebuildOptions, SegmentFacts
from metadata.rebuild.filler import NewObject, copied_object, filler_object
from metadata.rebuild.layout import (
    Doubt,
    Hole,
    LeftOut,
    PartitionLayout,
    Piece,
    PlacedBatch,
    Run,
    SegmentPiece,
    WalPiece,
    Why,
)
from metadata.rebuild.placement import place_partition
from metadata.rebuild.report import InferredRun, LeftObject, RebuildReport, RebuiltPartition
from metadata.rebuild.topics import RebuiltTopic, find_topics
from metadata.records.file_committed import CommittedBatch, FileCommittedRecord, RefusedBatch
from metadata.records.records import (
    MetadataRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
    TopicConfigsRecord,
)
from metadata.rules.commit import MAGIC
from metadata.rules.commit_request import check_commit
from metadata.rules.segments import segment_key
from metadata.rules.topics import PRODUCER_ID_BLOCK
from metadata.state.producer_state import WINDOW
from wal.chunks.kept_notes import KeptNotes
from wal.chunks.object_notes import (
    COMMITTED,
    DUPLICATE,
    REFUSED,
    BatchOutcome,
    CommitNote,
    Floor,
    note_commit,
)
from wal.clock import Clock
from wal.coordinates import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchExtent,
    ByteOffset,
    ObjectKey,
    Offset,
    TopicIdPartition,
)
from wal.errors import CorruptObject, Rejected
from wal.ulid import mint_ulid, wal_object_key

PRODUCER_ID_MARGIN: Final = 1_000_000
"""Producer ids left out behind the greatest one seen: they may have been given out and not used, or
used in data that is gone. They cost nothing."""

_NO_FLOOR: Final = Floor(0, 0)
_REFUSED_CODE: Final = 45
"""OutOfOrderSequence; see metadata/state/commit_answer.py."""
_DUPLICATE_CODE: Final = 0

_DRAINED: Final = (Why.ROLLED, Why.DUPLICATE, Why.REFUSED, Why.DELETED)
"""An object of whose batches all are this has nothing that anybody could miss."""
_CERTAIN: Final = (*_DRAINED, Why.NAMELESS, Why.NO_ROOM)
"""What is left out for these reasons was not committed, or is gone for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """What a rebuild will write: first the objects, then the log."""

    records: Sequence[MetadataRecord]
    new_objects: Sequence[NewObject]
    notes: KeptNotes
    """Where everything is that nobody had noted, so that the next rebuild need not infer it."""
    report: RebuildReport


@dataclass(slots=True, eq=False)
class _Node:
    """Something that is committed at once: pieces of one object, or one piece of another kind."""

    order: str
    """The object's ULID; what belongs to no object comes first."""
    pieces: list[tuple[TopicIdPartition, Piece]]
    source: ObjectFacts | None = None
    is_copy: bool = False
    at_head: int = 0
    """How many of the pieces are what their partition needs next."""


def plan_rebuild(
    facts: BucketFacts, options: RebuildOptions, *, clock: Clock, rng: random.Random
) -> RebuildPlan:
    """Raises: InvalidSettings (a name that was asked for cannot be)."""
    return _Planner(facts, options, clock, rng).plan()


@dataclass(slots=True)
class _Findings:
    doubts: list[Doubt] = field(default_factory=list)
    dropped_topics: list[str] = field(default_factory=list)


class _Planner:
    def __init__(
        self, facts: BucketFacts, options: RebuildOptions, clock: Clock, rng: random.Random
    ) -> None:
        self._objects = sorted(facts.objects, key=lambda item: item.ulid)
        self._segments = facts.segments
        self._kept = facts.kept
        self._unreadable = facts.unreadable
        self._options = options
        self._clock = clock
        self._rng = rng
        self._now_ms = clock.now_ms()
        self._last_ulid: str | None = None
        self._findings = _Findings()
        self._records: list[MetadataRecord] = []
        self._new_objects: list[NewObject] = []
        self._new_notes: list[CommitNote] = []
        self._noted: Mapping[str, CommitNote] = {}
        self._renamed: Collection[UUID] = ()
        self._left_out: dict[ObjectKey, dict[int, LeftOut]] = defaultdict(dict)
        self._limits = CoordinatorSettings(commit_batches_max=1_000_000)

    def plan(self) -> RebuildPlan:
        notes = self._noted = self._notes()
        found = find_topics(self._objects, self._segments, self._kept, notes, self._options)
        self._findings.doubts += found.doubts
        self._findings.dropped_topics += found.dropped
        self._renamed = found.renamed
        topics = found.topics
        layouts = self._layouts({topic.topic_id: topic for topic in topics}, notes)
        self._create(topics)
        for layout in layouts:
            self._start(layout)
        committed = self._commit(layouts)
        for layout in layouts:
            self._move_start(layout)
        next_producer_id = self._allocate_producer_ids()
        report = self._report(topics, layouts, committed, next_producer_id)
        return RebuildPlan(
            records=self._records,
            new_objects=self._new_objects,
            notes=KeptNotes(commits=tuple(self._new_notes)),
            report=report,
        )

    # -- layouts --------------------------------------------------------------------------------

    def _layouts(
        self, topics: Mapping[UUID, RebuiltTopic], notes: Mapping[str, CommitNote]
    ) -> Sequence[PartitionLayout]:
        runs: dict[TopicIdPartition, list[Run]] = defaultdict(list)
        for item in self._objects:
            note = notes.get(item.ulid)
            outcomes = None
            if note is not None:
                try:
                    outcomes = note.outcomes(item.extents)
                except CorruptObject as error:
                    self._doubt(item.object_key, str(error))
            grouped = [
                (partition, [position for position, _ in group])
                for partition, group in groupby(
                    enumerate(item.extents), lambda entry: entry[1].partition
                )
            ]
            floors = item.notes.floors
            if len(floors) != len(grouped):
                floors = [None] * len(grouped)
            for (partition, positions), floor in zip(grouped, floors, strict=True):
                if partition.topic_id not in topics:
                    for position in positions:
                        left = LeftOut(item.object_key, position, Why.NAMELESS)
                        self._left_out[item.object_key][position] = left
                    continue
                part = None if outcomes is None else [outcomes[position] for position in positions]
                runs[partition].append(Run(item, positions, floor or _NO_FLOOR, part))
        segments: dict[TopicIdPartition, list[SegmentFacts]] = defaultdict(list)
        for segment in self._segments:
            if segment.partition.topic_id in topics:
                segments[segment.partition].append(segment)
        has_one_broker = len({item.broker_id for item in self._objects}) <= 1
        layouts = []
        kept = {partition for partition in self._kept.floors if partition.topic_id in topics}
        for partition in sorted({*runs, *segments, *kept}):
            layout = place_partition(
                partition,
                segments.get(partition, ()),
                runs.get(partition, ()),
                floor=self._kept.floors.get(partition, _NO_FLOOR),
                include_orphans=self._options.include_orphans,
                has_one_broker=has_one_broker,
            )
            layouts.append(layout)
            name = f"{topics[partition.topic_id].name}-{partition.partition}"
            for problem in layout.doubts:
                self._doubt(name, problem)
            for left in layout.left_out:
                self._left_out[left.object_key][left.position] = left
        return layouts

    def _notes(self) -> Mapping[str, CommitNote]:
        """What is noted of each object; an answer counts for more than that one was given up."""
        notes: dict[str, CommitNote] = {}
        for commits in (self._kept.commits, *(item.notes.commits for item in self._objects)):
            for note in commits:
                known = notes.get(note.ulid)
                if known is None or (known.outcome != COMMITTED and note.outcome == COMMITTED):
                    notes[note.ulid] = note
        return notes

    # -- records --------------------------------------------------------------------------------

    def _create(self, topics: Sequence[RebuiltTopic]) -> None:
        for topic in topics:
            for index in range(topic.partition_count):
                self._records.append(
                    PartitionCreatedRecord(
                        topic_id=topic.topic_id, name=topic.name, partition=index
                    )
                )
            if topic.configs:
                self._records.append(
                    TopicConfigsRecord(topic_id=topic.topic_id, configs=topic.configs)
                )
        self._topic_names = {topic.topic_id: topic.name for topic in topics}

    def _start(self, layout: PartitionLayout) -> None:
        """Bring the partition's high watermark to where its pieces begin."""
        start = layout.pieces[0].base_offset if layout.pieces else layout.high_watermark
        if start:
            self._commit_nothing(layout.partition, [_plain_batch(layout.partition, 0, start)])
            self._records.append(
                RecordsDeletedRecord(partition=layout.partition, new_log_start_offset=start)
            )

    def _move_start(self, layout: PartitionLayout) -> None:
        """A log start within a piece can be set only when the piece is there."""
        if layout.pieces and layout.log_start_offset > layout.pieces[0].base_offset:
            self._records.append(
                RecordsDeletedRecord(
                    partition=layout.partition, new_log_start_offset=layout.log_start_offset
                )
            )

    def _commit_nothing(
        self, partition: TopicIdPartition, batches: Sequence[CommittedBatch]
    ) -> None:
        """Commit batches of an object that does not exist, because they are replaced at once."""
        self._records.append(
            FileCommittedRecord(
                object_key=wal_object_key(self._mint()),
                object_format=WRITE_AHEAD_MULTI_SEGMENT,
                file_size=len(batches),
                uploader_broker_id=-1,
                owner_ids=(CATALOGUE,),
                committed_at_ms=self._now_ms,
                batches=[
                    batch._replace(position=at, byte_offset=ByteOffset(at))
                    for at, batch in enumerate(batches)
                ],
            )
        )

    def _commit(self, layouts: Sequence[PartitionLayout]) -> set[ObjectKey]:
        """Commit all pieces, each partition's in its order; returns the objects committed."""
        nodes, queues = self._nodes(layouts)
        self._planned_ends = _planned_ends(layouts)
        self._log_starts = {layout.partition: layout.log_start_offset for layout in layouts}
        ready: deque[_Node] = deque()
        remaining = set(nodes)

        def now_first(partition: TopicIdPartition) -> None:
            if queues[partition]:
                node = queues[partition][0]
                node.at_head += 1
                if node.at_head == len(node.pieces):
                    ready.append(node)

        for partition in queues:
            now_first(partition)
        committed: set[ObjectKey] = set()
        while remaining:
            if not ready:
                ready.append(self._untie(remaining, queues))
            node = ready.popleft()
            remaining.discard(node)
            self._emit(node)
            if node.source is not None and not node.is_copy:
                committed.add(node.source.object_key)
            for partition, _ in node.pieces:
                assert queues[partition].popleft() is node
            for partition, _ in node.pieces:
                now_first(partition)
        for item in self._objects:
            if item.object_key not in committed and self._is_drained(item):
                self._emit_object(item, {})
                committed.add(item.object_key)
        return committed

    def _nodes(
        self, layouts: Sequence[PartitionLayout]
    ) -> tuple[Sequence[_Node], dict[TopicIdPartition, deque[_Node]]]:
        by_object: dict[ObjectKey, _Node] = {}
        nodes: list[_Node] = []
        queues: dict[TopicIdPartition, deque[_Node]] = {}
        for layout in layouts:
            queue = queues[layout.partition] = deque()
            own: set[ObjectKey] = set()
            for piece in layout.pieces:
                if not isinstance(piece, WalPiece):
                    node = _Node("", [(layout.partition, piece)])
                    nodes.append(node)
                elif piece.source.object_key in own:
                    # One commit has consecutive offsets of a partition; this one had not.
                    node = _Node(
                        piece.source.ulid, [(layout.partition, piece)], piece.source, is_copy=True
                    )
                    nodes.append(node)
                else:
                    own.add(piece.source.object_key)
                    known = by_object.get(piece.source.object_key)
                    if known is None:
                        known = _Node(piece.source.ulid, [], piece.source)
                        by_object[piece.source.object_key] = known
                        nodes.append(known)
                    known.pieces.append((layout.partition, piece))
                    node = known
                queue.append(node)
        return nodes, queues

    def _untie(
        self, remaining: set[_Node], queues: Mapping[TopicIdPartition, deque[_Node]]
    ) -> _Node:
        """Nothing can be next: let one object's batches that come too early come from a copy."""
        node = min((item for item in remaining if item.at_head), key=lambda item: item.order)
        assert node.source is not None, "what has one piece is ready when that is at the head"
        late = [entry for entry in node.pieces if queues[entry[0]][0] is not node]
        node.pieces = [entry for entry in node.pieces if queues[entry[0]][0] is node]
        copy = _Node(node.order, late, node.source, is_copy=True)
        remaining.add(copy)
        for partition, _ in late:
            queue = queues[partition]
            queue[queue.index(node)] = copy
        return node

    def _emit(self, node: _Node) -> None:
        partition, piece = node.pieces[0]
        if isinstance(piece, SegmentPiece):
            self._emit_segment(partition, piece)
            return
        if isinstance(piece, Hole):
            self._emit_hole(partition, piece)
        else:
            assert node.source is not None
            placed = {
                batch.position: batch
                for _, part in node.pieces
                if isinstance(part, WalPiece)
                for batch in part.batches
            }
            if node.is_copy:
                self._emit_copy(node.source, placed)
            else:
                self._emit_object(node.source, placed)
        for place, part in node.pieces:
            self._plan_rolling(place, part)

    def _emit_segment(self, partition: TopicIdPartition, piece: SegmentPiece) -> None:
        segment = piece.segment
        self._commit_nothing(partition, _batches_of(segment))
        self._records.append(
            SegmentPlannedRecord(
                partition=partition,
                base_offset=segment.base_offset,
                last_offset=segment.last_offset,
                object_key=segment.object_key,
                planned_at_ms=self._now_ms,
            )
        )
        self._records.append(
            SegmentCommittedRecord(
                partition=partition,
                base_offset=segment.base_offset,
                last_offset=segment.last_offset,
                object_key=segment.object_key,
                object_bytes=segment.object_bytes,
                crc32c=segment.crc32c,
                record_count=segment.next_offset - segment.base_offset,
                max_timestamp_ms=segment.max_timestamp_ms,
            )
        )

    def _emit_hole(self, partition: TopicIdPartition, hole: Hole) -> None:
        count = hole.next_offset - hole.base_offset
        item = filler_object(self._mint(), partition, count, self._now_ms)
        offset = hole.base_offset
        placed = []
        for position, extent in enumerate(item.plan.extents):
            placed.append(PlacedBatch(position, extent, offset, self._now_ms))
            offset += extent.record_count
        self._emit_new(item, placed)

    def _emit_copy(self, source: ObjectFacts, placed: Mapping[int, PlacedBatch]) -> None:
        positions = sorted(placed)
        item = copied_object(self._mint(), source, positions, self._now_ms)
        batches = [
            placed[positions[original]]._replace(position=position, extent=extent)
            for position, (original, extent) in enumerate(
                zip(item.plan.positions, item.plan.extents, strict=True)
            )
        ]
        self._emit_new(item, batches)

    def _emit_new(self, item: NewObject, placed: Sequence[PlacedBatch]) -> None:
        self._new_objects.append(item)
        self._note(item.object_key.rpartition("/")[2], item.plan.extents, placed, ())
        self._records.append(
            self._file_record(
                item.object_key, item.plan.object_bytes, -1, item.plan.extents, placed
            )
        )

    def _emit_object(self, source: ObjectFacts, placed: Mapping[int, PlacedBatch]) -> None:
        refused = []
        left_out = self._left_out[source.object_key]
        for position in range(len(source.extents)):
            if position in placed:
                continue
            left = left_out.get(position)
            if left is None or left.why in (Why.ROLLED, Why.DUPLICATE, Why.DELETED):
                # Also what comes from a copy: whoever asks again is told where it is.
                offset, time_ms = (-1, -1) if left is None else left[3:]
                refused.append(RefusedBatch(position, _DUPLICATE_CODE, offset, time_ms, 0))
            else:
                refused.append(RefusedBatch(position, _REFUSED_CODE))
        if source.ulid not in self._noted:
            batches = [placed[position] for position in sorted(placed)]
            self._note(source.ulid, source.extents, batches, refused)
        self._records.append(
            self._file_record(
                source.object_key,
                source.object_bytes,
                source.broker_id,
                source.extents,
                [placed[position] for position in sorted(placed)],
                refused,
            )
        )

    def _note(
        self,
        ulid: str,
        extents: Sequence[BatchExtent],
        placed: Iterable[PlacedBatch],
        refused: Iterable[RefusedBatch],
    ) -> None:
        """Note what became of an object, as its broker would have.

        Not if it has batches of a topic that may have been deleted: a note is proof of a commit,
        and with it the next rebuild would take the other topic of that name for the deleted one.
        """
        if any(extent.partition.topic_id in self._renamed for extent in extents):
            return
        outcomes: dict[int, BatchOutcome] = {
            batch.position: BatchOutcome(
                batch.base_offset,
                batch.append_time_ms,
                min(self._log_starts.get(batch.extent.partition, 0), batch.base_offset),
            )
            for batch in placed
        }
        for batch in refused:
            is_duplicate = batch.error_code == _DUPLICATE_CODE
            outcomes[batch.position] = BatchOutcome(
                exception=DUPLICATE if is_duplicate else REFUSED
            )
        note = note_commit(ulid, extents, [outcomes[number] for number in range(len(extents))])
        if note is not None:
            self._new_notes.append(note)

    def _file_record(
        self,
        key: ObjectKey,
        object_bytes: int,
        broker_id: int,
        extents: Sequence[BatchExtent],
        placed: Sequence[PlacedBatch],
        refused: Sequence[RefusedBatch] = (),
    ) -> FileCommittedRecord:
        request = CommitFile(
            object_key=key,
            file_size_bytes=object_bytes,
            uploader_broker_id=broker_id,
            batches=extents,
            owner_ids=(CATALOGUE,),
        )
        try:
            digest = check_commit(request, self._limits).digest
        except Rejected as error:
            # No coordinator would have taken it either, yet its batches are there.
            self._doubt(key, str(error))
            digest = bytes(16)
        committed_ms = max((batch.append_time_ms for batch in placed), default=self._now_ms)
        return FileCommittedRecord(
            object_key=key,
            object_format=WRITE_AHEAD_MULTI_SEGMENT,
            file_size=object_bytes,
            uploader_broker_id=broker_id,
            owner_ids=(CATALOGUE,),
            committed_at_ms=committed_ms,
            batches=[_committed(batch) for batch in placed],
            refused=refused,
            request_digest=digest,
        )

    def _plan_rolling(self, partition: TopicIdPartition, piece: Piece) -> None:
        """In front of a segment, everything is planned: plans follow each other without gap."""
        if piece.next_offset > self._planned_ends.get(partition, 0):
            return
        last_offset = piece.next_offset - 1
        self._records.append(
            SegmentPlannedRecord(
                partition=partition,
                base_offset=piece.base_offset,
                last_offset=last_offset,
                object_key=segment_key(
                    self._topic_names[partition.topic_id], partition, piece.base_offset, last_offset
                ),
                planned_at_ms=self._now_ms,
            )
        )

    def _allocate_producer_ids(self) -> int:
        greatest = max(
            (
                *(extent.producer_id for item in self._objects for extent in item.extents),
                *(segment.producer_id_max for segment in self._segments),
            ),
            default=-1,
        )
        blocks = (greatest + 1 + PRODUCER_ID_MARGIN) // PRODUCER_ID_BLOCK + 1
        self._records.append(
            ProducerIdsAllocatedRecord(next_producer_id=blocks * PRODUCER_ID_BLOCK)
        )
        return blocks * PRODUCER_ID_BLOCK

    def _is_drained(self, item: ObjectFacts) -> bool:
        left_out = self._left_out[item.object_key]
        return len(left_out) == len(item.extents) and all(
            left.why in _DRAINED for left in left_out.values()
        )

    # -- report ---------------------------------------------------------------------------------

    def _report(
        self,
        topics: Sequence[RebuiltTopic],
        layouts: Sequence[PartitionLayout],
        committed: set[ObjectKey],
        next_producer_id: int,
    ) -> RebuildReport:
        by_partition = {layout.partition: layout for layout in layouts}
        partitions = []
        for topic in topics:
            for index in range(topic.partition_count):
                partition = TopicIdPartition(topic.topic_id, index)
                layout = by_partition.get(partition, PartitionLayout(partition=partition))
                partitions.append(_rebuilt(topic.name, layout))
        left = []
        for key, positions in sorted(self._left_out.items()):
            reasons = Counter(item.why.value for item in positions.values() if _is_told(item))
            if reasons:
                left.append(LeftObject(key, dict(reasons), key in committed))
                if any(item.why not in _CERTAIN for item in positions.values()):
                    told = ", ".join(f"{count} batches: {why}" for why, count in reasons.items())
                    self._doubt(key, f"left out: {told}")
        inferred_runs = self._inferred(layouts)
        inferred = sorted({ObjectKey(run.object_key) for run in inferred_runs})
        newest_ms = max((item.minted_ms for item in self._objects), default=0)
        young_ms = newest_ms - self._options.max_commit_age_ms
        minted = {item.object_key: item.minted_ms for item in self._objects}
        unused = [segment.object_key for layout in layouts for segment in layout.unused_segments]
        return RebuildReport(
            wal_objects=len(self._objects),
            segments=len(self._segments),
            batches=sum(len(item.extents) for item in self._objects),
            topics=[topic.name for topic in topics],
            partitions=partitions,
            doubts=self._findings.doubts,
            unreadable=self._unreadable,
            inferred=inferred_runs,
            inferred_objects=inferred,
            maybe_uncommitted=[key for key in inferred if minted[key] >= young_ms],
            left_out=left,
            unused_segments=unused,
            dropped_topics=self._findings.dropped_topics,
            written_objects=[item.object_key for item in self._new_objects],
            next_producer_id=next_producer_id,
            metadata_records=len(self._records),
        )

    def _inferred(self, layouts: Sequence[PartitionLayout]) -> Sequence[InferredRun]:
        return [
            InferredRun(
                piece.source.object_key,
                self._topic_names[layout.partition.topic_id],
                layout.partition.partition,
                piece.base_offset,
                piece.next_offset - piece.base_offset,
                piece.placing.value,
            )
            for layout in layouts
            for piece in layout.pieces
            if isinstance(piece, WalPiece) and not piece.is_noted
        ]

    def _doubt(self, subject: str, problem: str) -> None:
        self._findings.doubts.append(Doubt(subject, problem))

    def _mint(self) -> str:
        self._last_ulid = mint_ulid(self._clock, self._rng, self._last_ulid)
        return self._last_ulid


def _partition_of(extent: BatchExtent) -> TopicIdPartition:
    return extent.partition


def _is_told(item: LeftOut) -> bool:
    """What is in a segment, or was sent twice, is missing nowhere."""
    return item.why not in (Why.ROLLED, Why.DUPLICATE)


def _planned_ends(layouts: Sequence[PartitionLayout]) -> Mapping[TopicIdPartition, int]:
    """Where the last segment of each partition begins; what lies before is rolled or planned."""
    return {
        layout.partition: piece.base_offset
        for layout in layouts
        for piece in layout.pieces
        if isinstance(piece, SegmentPiece)
    }


def _rebuilt(topic: str, layout: PartitionLayout) -> RebuiltPartition:
    return RebuiltPartition(
        topic=topic,
        partition=layout.partition.partition,
        log_start_offset=layout.log_start_offset,
        exact_end=layout.exact_end,
        high_watermark=layout.high_watermark,
        segments=sum(isinstance(piece, SegmentPiece) for piece in layout.pieces),
        wal_objects=sum(isinstance(piece, WalPiece) for piece in layout.pieces),
    )


def _committed(batch: PlacedBatch) -> CommittedBatch:
    extent = batch.extent
    return CommittedBatch(
        extent.partition,
        batch.position,
        MAGIC,
        extent.byte_offset,
        extent.length_bytes,
        Offset(batch.base_offset),
        Offset(batch.base_offset + extent.record_count - 1),
        batch.append_time_ms,
        extent.max_timestamp_ms,
        extent.timestamp_type,
        extent.producer_id,
        extent.producer_epoch,
        extent.base_sequence,
        extent.last_sequence,
    )


def _plain_batch(
    partition: TopicIdPartition, base_offset: int, next_offset: int, time_ms: int = 0
) -> CommittedBatch:
    """A batch of one byte and no producer."""
    return CommittedBatch(
        partition, 0, MAGIC, ByteOffset(0), 1, Offset(base_offset), Offset(next_offset - 1),
        time_ms, time_ms, 0, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_SEQUENCE,
    )  # fmt: skip


def _batches_of(segment: SegmentFacts) -> Sequence[CommittedBatch]:
    """Batches that leave the producers as the segment's did: of each of them the last few."""
    kept: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=WINDOW))
    for number, batch in enumerate(segment.batches):
        kept[batch.producer_id].append(number)
    found: list[CommittedBatch] = []
    offset = segment.base_offset
    for number in sorted(number for numbers in kept.values() for number in numbers):
        batch = segment.batches[number]
        if batch.base_offset > offset:
            found.append(
                _plain_batch(segment.partition, offset, batch.base_offset, segment.stored_ms)
            )
        found.append(
            _plain_batch(
                segment.partition, batch.base_offset, batch.last_offset + 1, segment.stored_ms
            )._replace(
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                last_sequence=batch.last_sequence,
            )
        )
        offset = batch.last_offset + 1
    if offset < segment.next_offset:
        found.append(
            _plain_batch(segment.partition, offset, segment.next_offset, segment.stored_ms)
        )
    return found
