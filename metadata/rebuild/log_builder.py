"""The records of a rebuilt metadata log, such as a coordinator would have written them.

- a log start above 0 is a commit of everything below it, deleted at once;
- a segment is a commit of batches that say the same to the producers' states, and at once the plan
  and the commit of the segment. The object of that commit never existed and waits for its deletion;
- an object is one commit of whatever of it is live. The digest of the request is that which its
  broker would compute, so a broker that recovers its chunk and commits again gets this answer;
- a marker is the end of a transaction, and a segment that has the marker of one that is open before
  it is committed in two parts, around it;
- a hole is a filler (metadata/rebuild/filler.py). Between segments, what is not rolled is an
  outstanding plan, because plans of a partition follow each other.

The order of the commits is that of metadata/rebuild/commit_order.py.

Everything goes to the coordinator of metadata partition 0. Used by metadata/rebuild/plan.py.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CATALOGUE, WRITE_AHEAD_MULTI_SEGMENT, CommitFile
from metadata.rebuild.commit_order import CommitStep, in_commit_order
from metadata.rebuild.committed_batches import (
    batches_between,
    batches_of_segment,
    placed_batch,
    plain_batch,
)
from metadata.rebuild.facts import ObjectFacts
from metadata.rebuild.filler import NewObject, copied_object, filler_object
from metadata.rebuild.layout import (
    Hole,
    LeftOut,
    MarkerPiece,
    PartitionLayout,
    Piece,
    PlacedBatch,
    SegmentPiece,
    WalPiece,
    Why,
)
from metadata.rebuild.topics import RebuiltTopic
from metadata.records import records
from metadata.records.file_committed import CommittedBatch, FileCommittedRecord, RefusedBatch
from metadata.records.rewrites import RewriteEndedRecord, RewritePlannedRecord
from metadata.records.segment_identity import segment_key
from metadata.records.sinks import SinkCommittedRecord
from metadata.records.transactions import (
    ConstantFixedRecord,
    EndedPartition,
    TransactionEndedRecord,
)
from metadata.rewrites import MERGE
from metadata.rules.commit_request import check_commit
from metadata.rules.topics import PRODUCER_ID_BLOCK
from metadata.sink_operations import Sink, SinkRange
from metadata.state.commit_answer import REFUSAL_CODES
from metadata.transaction_operations import NO_OFFSET, Constant
from wal.chunks.kept_notes import NotedEnd, NotedSink
from wal.chunks.object_notes import DUPLICATE, REFUSED, BatchOutcome, CommitNote, note_commit
from wal.clock import Clock
from wal.coordinates import (
    NO_TRANSACTION,
    BatchExtent,
    ByteOffset,
    ObjectKey,
    TopicIdPartition,
)
from wal.errors import OutOfOrderSequence, Rejected
from wal.staging.staged_keys import sink_of
from wal.ulid import mint_ulid, wal_object_key

PRODUCER_ID_MARGIN: Final = 1_000_000
"""Producer ids left out behind the greatest one seen: they may have been given out and not used, or
used in data that is gone. They cost nothing."""

_REFUSED_CODE: Final = REFUSAL_CODES[OutOfOrderSequence]
_DUPLICATE_CODE: Final = 0

DRAINED: Final = (Why.ROLLED, Why.DUPLICATE, Why.REFUSED, Why.DELETED)
"""An object of whose batches all are this has nothing that anybody could miss."""


class LogBuilder:
    """Collects the records, the objects that they need, and notes of where everything is."""

    def __init__(
        self,
        objects: Sequence[ObjectFacts],
        left_out: Mapping[ObjectKey, Mapping[int, LeftOut]],
        *,
        noted: Collection[str],
        renamed: Collection[UUID],
        doubt: Callable[[str, str], None],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`left_out`: the batches that are not served from their objects, by position.

        `noted` are the ULIDs of the objects whose commit is noted already, `renamed` the topics
        that may have been deleted. `doubt` gets (subject, problem).
        """
        self.records: list[records.MetadataRecord] = []
        self.new_objects: list[NewObject] = []
        self.new_notes: list[CommitNote] = []
        self.committed: set[ObjectKey] = set()
        """The objects of the bucket that the records know."""
        self._objects = objects
        self._left_out = left_out
        self._noted = noted
        self._renamed = renamed
        self._doubt = doubt
        self._clock = clock
        self._rng = rng
        self._now_ms = clock.now_ms()
        self._last_ulid: str | None = None
        self._topic_names: dict[UUID, str] = {}
        self._planned_ends: Mapping[TopicIdPartition, int] = {}
        self._log_starts: Mapping[TopicIdPartition, int] = {}
        self._starts: dict[TopicIdPartition, int] = {}
        """The log start offsets, until all pieces are there."""
        self._open: dict[TopicIdPartition, dict[int, int]] = defaultdict(dict)
        """The first offsets of open transactions by producer, as the records leave them."""
        self._limits = CoordinatorSettings(commit_batches_max=1_000_000)

    def create(self, topics: Sequence[RebuiltTopic]) -> None:
        """The records of the topics and their partitions."""
        for topic in topics:
            for index in range(topic.partition_count):
                self.records.append(
                    records.PartitionCreatedRecord(
                        topic_id=topic.topic_id, name=topic.name, partition=index
                    )
                )
            if topic.configs:
                self.records.append(
                    records.TopicConfigsRecord(topic_id=topic.topic_id, configs=topic.configs)
                )
            if topic.columns:
                # Of no configs: a job makes them follow these before anything is planned.
                self.records.append(
                    records.TopicColumnsRecord(
                        topic_id=topic.topic_id, version=1, basis=b"", columns=topic.columns
                    )
                )
            self._topic_names[topic.topic_id] = topic.name

    def allocate_producer_ids(self, greatest: int) -> int:
        """Leave out all up to `greatest`, and a margin; returns the next one."""
        blocks = (greatest + 1 + PRODUCER_ID_MARGIN) // PRODUCER_ID_BLOCK + 1
        next_producer_id = blocks * PRODUCER_ID_BLOCK
        self.records.append(records.ProducerIdsAllocatedRecord(next_producer_id=next_producer_id))
        self.records.append(ConstantFixedRecord(name=Constant.ENDED_BELOW, value=next_producer_id))
        return next_producer_id

    def _start(self, layout: PartitionLayout) -> None:
        """Bring the partition's high watermark to where its pieces begin."""
        start = layout.pieces[0].base_offset if layout.pieces else layout.high_watermark
        self._starts[layout.partition] = start
        if start:
            self._commit_nothing(layout.partition, [plain_batch(layout.partition, 0, start)])
            self.records.append(
                records.RecordsDeletedRecord(partition=layout.partition, new_log_start_offset=start)
            )

    def _move_start(self, layout: PartitionLayout) -> None:
        """A log start within a piece can be set only when the piece is there."""
        if layout.pieces and layout.log_start_offset > layout.pieces[0].base_offset:
            self.records.append(
                records.RecordsDeletedRecord(
                    partition=layout.partition, new_log_start_offset=layout.log_start_offset
                )
            )

    def _commit_nothing(
        self, partition: TopicIdPartition, batches: Sequence[CommittedBatch]
    ) -> None:
        """Commit batches of an object that does not exist, because they are replaced at once."""
        if not batches:
            return
        self.records.append(
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

    def commit(self, layouts: Sequence[PartitionLayout]) -> None:
        """The records of everything that was laid out, each partition's in its order."""
        for layout in layouts:
            self._start(layout)
        self._planned_ends = _planned_ends(layouts)
        self._log_starts = {layout.partition: layout.log_start_offset for layout in layouts}
        for step in in_commit_order(layouts):
            self._emit(step)
            if step.source is not None and not step.is_copy:
                self.committed.add(step.source.object_key)
        for item in self._objects:
            if item.object_key not in self.committed and self._is_drained(item):
                self._emit_object(item, {})
                self.committed.add(item.object_key)
        for layout in layouts:
            self._move_start(layout)

    def restore_sinks(self, sinks: Sequence[NotedSink]) -> None:
        """The last batch of each sink, so that it is known when it comes again."""
        for noted in sinks:
            fields = noted._asdict() | {"ranges": [SinkRange(*item) for item in noted.ranges]}
            self.records.append(SinkCommittedRecord(sink=Sink(**fields)))

    def restore_generations(self, greatest: Mapping[TopicIdPartition, int]) -> None:
        """The next rewrite of a partition gets a generation, and so keys, that nothing has yet.

        How far a partition was compacted is not known; compacting it again changes nothing.
        """
        for partition, generation in sorted(greatest.items()):
            self.records.append(
                RewritePlannedRecord(
                    partition=partition,
                    generation=generation,
                    kind=MERGE,
                    base_offset=0,
                    last_offset=0,
                    planned_at_ms=self._now_ms,
                    delete_horizon_ms=self._now_ms,
                    target_bytes=0,
                )
            )
            self.records.append(
                RewriteEndedRecord(partition=partition, generation=generation, cleaned_end_offset=0)
            )

    def _emit(self, step: CommitStep) -> None:
        partition, piece = step.pieces[0]
        if isinstance(piece, SegmentPiece):
            self._emit_segment(partition, piece)
            return
        if isinstance(piece, Hole):
            self._emit_hole(partition, piece)
        elif isinstance(piece, MarkerPiece):
            self._emit_marker(partition, piece.end)
        else:
            assert step.source is not None
            placed = {
                batch.position: batch
                for _, part in step.pieces
                if isinstance(part, WalPiece)
                for batch in part.batches
            }
            if step.is_copy:
                self._emit_copy(step.source, placed)
            else:
                self._emit_object(step.source, placed)
        for place, part in step.pieces:
            self._plan_rolling(place, part)

    def _emit_segment(self, partition: TopicIdPartition, piece: SegmentPiece) -> None:
        segment = piece.segment
        start = segment.base_offset
        batches = batches_of_segment(segment)
        for end in piece.ends:
            self._commit_nothing(partition, batches_between(batches, start, end.marker.offset))
            self._emit_marker(partition, end)
            start = end.marker.offset + 1
        self._commit_nothing(partition, batches_between(batches, start, segment.next_offset))
        self.records.append(
            records.SegmentPlannedRecord(
                partition=partition,
                base_offset=segment.base_offset,
                last_offset=segment.last_offset,
                object_key=segment.object_key,
                planned_at_ms=self._now_ms,
            )
        )
        self.records.append(
            records.SegmentCommittedRecord(
                partition=partition,
                base_offset=segment.base_offset,
                last_offset=segment.last_offset,
                object_key=segment.object_key,
                object_bytes=segment.object_bytes,
                crc32c=segment.crc32c,
                record_count=segment.record_count,
                max_timestamp_ms=segment.max_timestamp_ms,
            )
        )

    def _emit_marker(self, partition: TopicIdPartition, end: NotedEnd) -> None:
        marker, number = end
        opened = self._open[partition]
        first_offset = opened.pop(marker.producer_id, NO_OFFSET)
        stable = min(opened.values(), default=marker.offset + 1)
        ended = EndedPartition(
            partition, marker.offset, first_offset, max(stable, self._starts[partition])
        )
        self.records.append(
            TransactionEndedRecord(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                number=number,
                is_commit=marker.is_commit,
                coordinator_epoch=marker.coordinator_epoch,
                ended_ms=marker.timestamp_ms,
                partitions=[ended],
                group_id=None,
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
        self.new_objects.append(item)
        self._note(item.object_key.rpartition("/")[2], item.plan.extents, placed, ())
        self.records.append(
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
                # Also what comes from a copy: a producer that sends it again is told where it is.
                offset, time_ms = (-1, -1) if left is None else left[3:]
                refused.append(RefusedBatch(position, _DUPLICATE_CODE, offset, time_ms, 0))
            else:
                refused.append(RefusedBatch(position, _REFUSED_CODE))
        if source.ulid not in self._noted:
            batches = [placed[position] for position in sorted(placed)]
            self._note(source.ulid, source.extents, batches, refused)
        self.records.append(
            self._file_record(
                source.object_key,
                source.object_bytes,
                source.uploader_broker_id,
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
            self.new_notes.append(note)

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
            digest = check_commit(request, self._limits, sink_id=sink_of(key)).digest
        except Rejected as error:
            # No coordinator would have taken it either, yet its batches are there.
            self._doubt(key, str(error))
            digest = bytes(16)
        committed_ms = max((batch.append_time_ms for batch in placed), default=self._now_ms)
        for batch in placed:
            if batch.extent.transaction_number != NO_TRANSACTION:
                opened = self._open[batch.extent.partition]
                opened.setdefault(batch.extent.producer_id, batch.base_offset)
        return FileCommittedRecord(
            object_key=key,
            object_format=WRITE_AHEAD_MULTI_SEGMENT,
            file_size=object_bytes,
            uploader_broker_id=broker_id,
            owner_ids=(CATALOGUE,),
            committed_at_ms=committed_ms,
            batches=[placed_batch(batch) for batch in placed],
            refused=refused,
            request_digest=digest,
        )

    def _plan_rolling(self, partition: TopicIdPartition, piece: Piece) -> None:
        """In front of a segment, everything is planned: plans follow each other without gap."""
        if piece.next_offset > self._planned_ends.get(partition, 0):
            return
        last_offset = piece.next_offset - 1
        self.records.append(
            records.SegmentPlannedRecord(
                partition=partition,
                base_offset=piece.base_offset,
                last_offset=last_offset,
                object_key=segment_key(
                    self._topic_names[partition.topic_id], partition, piece.base_offset, last_offset
                ),
                planned_at_ms=self._now_ms,
            )
        )

    def _is_drained(self, item: ObjectFacts) -> bool:
        left_out = self._left_out[item.object_key]
        return len(left_out) == len(item.extents) and all(
            left.why in DRAINED for left in left_out.values()
        )

    def _mint(self) -> str:
        self._last_ulid = mint_ulid(self._clock, self._rng, self._last_ulid)
        return self._last_ulid


def _planned_ends(layouts: Sequence[PartitionLayout]) -> Mapping[TopicIdPartition, int]:
    """Where the last segment of each partition begins; what lies before is rolled or planned."""
    return {
        layout.partition: piece.base_offset
        for layout in layouts
        for piece in layout.pieces
        if isinstance(piece, SegmentPiece)
    }
