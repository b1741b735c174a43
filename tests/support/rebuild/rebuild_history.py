"""Histories of a bucket for the tests of rebuilding: brokers, one coordinator, rolls, deletions.

`History` plays them in memory: it knows what was committed at which offset, which is the truth, and
what the bucket holds, which is all that a rebuild gets to see. A batch is known by where it lies,
(object key, position in it).

`replayed` reads records back as the plainest coordinator would, and refuses what contradicts.
"""

import random
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from uuid import UUID

from metadata.rebuild.facts import BucketFacts, ObjectFacts, RolledBatch, RolledRange, SegmentFacts
from metadata.records.acls import AccessControlEntryRecord
from metadata.records.file_committed import FileCommittedRecord
from metadata.records.records import (
    MetadataRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
    TopicColumnsRecord,
    TopicConfigsRecord,
)
from metadata.records.segment_identity import segment_key
from metadata.records.transactions import ConstantFixedRecord, TransactionEndedRecord
from metadata.state.producer_state import ProducerBatch, ProducerWindow, check_sequence, with_batch
from wal.chunks import object_notes
from wal.chunks.kept_notes import NotedEnd
from wal.clock import ManualClock
from wal.coordinates import BatchExtent, ByteOffset, ObjectKey, TopicIdPartition
from wal.records.marker_batches import Marker
from wal.ulid import mint_ulid, wal_object_key

TOPICS: Final = {
    UUID(int=0xA): object_notes.TopicFacts("flights", 2),
    UUID(int=0xB): object_notes.TopicFacts("radar", 1),
}
PARTITIONS: Final = [
    TopicIdPartition(topic_id, index)
    for topic_id, facts in TOPICS.items()
    for index in range(facts.partition_count)
]
EXPIRATION_MS: Final = 24 * 3_600_000

Batch = tuple[ObjectKey, int]
"""(object, position in it)."""


class Placed(NamedTuple):
    """A committed batch; `segment` once it was rolled."""

    base_offset: int
    next_offset: int
    batch: Batch
    extent: BatchExtent


def rolled(placed: Sequence[Placed], topic_name: str, now_ms: int) -> SegmentFacts:
    """The segment that is made of batches of one partition."""
    partition = placed[0].extent.partition
    base, last = placed[0].base_offset, placed[-1].next_offset - 1
    ulids = [one.batch[0].rpartition("/")[2] for one in placed]
    return SegmentFacts(
        object_key=segment_key(topic_name, partition, base, last),
        object_bytes=1000,
        crc32c=7,
        topic_name=topic_name,
        partition=partition,
        base_offset=base,
        last_offset=last,
        record_count=last - base + 1,
        max_timestamp_ms=max(one.extent.max_timestamp_ms for one in placed),
        stored_ms=now_ms,
        sources=[
            RolledRange(one.batch[0], one.extent.byte_offset, one.extent.length_bytes)
            for one in placed
        ],
        last_source=max(ulids),
        producer_id_max=max(one.extent.producer_id for one in placed),
        batches=[
            RolledBatch(
                one.base_offset,
                one.next_offset - 1,
                one.extent.producer_id,
                one.extent.producer_epoch,
                one.extent.base_sequence,
            )
            for one in placed
            if one.extent.producer_id >= 0
        ],
    )


def with_sources(segment: SegmentFacts, existing: Container[ObjectKey]) -> SegmentFacts:
    """The segment as a rebuild reads it: it names only the sources that exist."""
    return replace(segment, sources=[one for one in segment.sources if one.object_key in existing])


@dataclass(slots=True)
class PartitionTruth:
    """What is true of one partition."""

    log: list[Placed] = field(default_factory=list)
    log_start: int = 0
    rolled_end: int = 0
    producers: dict[int, ProducerWindow] = field(default_factory=dict)
    ends: list[NotedEnd] = field(default_factory=list)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By producer the transaction that has data here: its number and first offset."""
    closed: dict[int, int] = field(default_factory=dict)
    """By producer the number of the last transaction that ended here."""

    @property
    def high_watermark(self) -> int:
        last_marker = self.ends[-1].marker.offset if self.ends else -1
        return max(last_marker + 1, self.log[-1].next_offset if self.log else 0)

    @property
    def last_stable_offset(self) -> int:
        return min((first for _, first in self.open.values()), default=self.high_watermark)

    def end(self, producer: int, number: int, *, is_commit: bool, now_ms: int) -> None:
        """Close a transaction with a marker."""
        marker = Marker(self.high_watermark, producer, 0, is_commit, 3, now_ms)
        self.ends.append(NotedEnd(marker, number))
        self.open.pop(producer, None)
        self.closed[producer] = number

    @property
    def live(self) -> Sequence[Placed]:
        return [placed for placed in self.log if placed.next_offset > self.log_start]

    def decide(self, batch: Batch, extent: BatchExtent, now_ms: int) -> object_notes.BatchOutcome:
        """Append the batch, unless its producer's sequences refuse it, as the coordinator does."""
        base, producer = self.high_watermark, extent.producer_id
        if producer >= 0:
            verdict = check_sequence(
                self.producers.get(producer),
                epoch=extent.producer_epoch,
                base_sequence=extent.base_sequence,
                last_sequence=extent.last_sequence,
                now_ms=now_ms,
                expiration_ms=EXPIRATION_MS,
            )
            if isinstance(verdict, ProducerBatch):
                return object_notes.BatchOutcome(exception=object_notes.DUPLICATE)
            number = extent.transaction_number
            is_late = 0 <= number <= self.closed.get(producer, -1)
            if verdict is not None or is_late:
                return object_notes.BatchOutcome(exception=object_notes.REFUSED)
            if number >= 0:
                self.open.setdefault(producer, (number, base))
            self.producers[producer] = with_batch(
                self.producers.get(producer),
                extent.producer_epoch,
                ProducerBatch(extent.base_sequence, extent.last_sequence, base, now_ms),
            )
        self.log.append(Placed(base, base + extent.record_count, batch, extent))
        return object_notes.BatchOutcome(base, now_ms, self.log_start)


@dataclass(slots=True)
class BrokerTruth:
    journal: object_notes.CommitJournal = field(default_factory=object_notes.CommitJournal)
    waiting: deque[ObjectKey] = field(default_factory=deque)
    last_ulid: str | None = None


class History:
    """What happened, and what is in the bucket."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        seed: int = 0,
        is_noting: bool = True,
        is_lagging: bool = False,
    ) -> None:
        """`is_noting`: objects have notes. `is_lagging`: brokers follow the coordinator slowly."""
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.is_noting = is_noting
        self.is_lagging = is_lagging
        self.brokers = [BrokerTruth() for _ in range(brokers)]
        self.partitions = {partition: PartitionTruth() for partition in PARTITIONS}
        self.objects: dict[ObjectKey, ObjectFacts] = {}
        self.segments: dict[ObjectKey, SegmentFacts] = {}
        self.uncommitted: set[ObjectKey] = set()
        self.noted: set[ObjectKey] = set()
        self._sequences: dict[tuple[TopicIdPartition, int], int] = defaultdict(int)
        self._crc = 0

    # -- what may happen ------------------------------------------------------------------------

    def seal(self, broker: int, batches: Sequence[tuple[int, int, int]]) -> ObjectKey:
        """A broker uploads an object; each batch is (partition, records, producer or -1)."""
        who = self.brokers[broker]
        who.last_ulid = mint_ulid(self.clock, self.rng, who.last_ulid)
        key = wal_object_key(who.last_ulid)
        wanted = sorted(
            ((PARTITIONS[number], count, producer) for number, count, producer in batches),
            key=lambda batch: batch[0],
        )
        extents: list[BatchExtent] = []
        position = 64
        for partition, count, producer in wanted:
            sequence = -1
            if producer >= 0:
                sequence = self._sequences[partition, producer]
                self._sequences[partition, producer] += count
            extents.append(self._extent(partition, position, count, producer, sequence))
            position += 100
        return self._store(broker, key, extents)

    def send_again(self, broker: int, key: ObjectKey) -> None:
        """A client repeats all of an object's batches through another broker, byte by byte."""
        source = self.objects.get(key)
        if source is None or any(extent.producer_id < 0 for extent in source.extents):
            return
        who = self.brokers[broker]
        who.last_ulid = mint_ulid(self.clock, self.rng, who.last_ulid)
        self._store(broker, wal_object_key(who.last_ulid), source.extents)

    def commit(self, broker: int) -> None:
        """The coordinator commits the next object of a broker."""
        who = self.brokers[broker]
        if not who.waiting:
            return
        key = who.waiting.popleft()
        item = self.objects[key]
        now_ms = self.clock.now_ms()
        outcomes = [
            self.partitions[extent.partition].decide((key, position), extent, now_ms)
            for position, extent in enumerate(item.extents)
        ]
        self.uncommitted.discard(key)
        note = object_notes.note_commit(item.ulid, item.extents, outcomes)
        assert note is not None
        who.journal.add(note)

    def give_up(self, broker: int) -> None:
        """The coordinator refuses the next object of a broker as a whole."""
        who = self.brokers[broker]
        if who.waiting:
            item = self.objects[who.waiting.popleft()]
            who.journal.add(object_notes.CommitNote(item.ulid, outcome=object_notes.GIVEN_UP))

    def restart(self, broker: int) -> None:
        """A broker forgets what it has not noted; what it had uploaded is committed later."""
        self.brokers[broker].journal = object_notes.CommitJournal()

    def die(self, broker: int) -> None:
        """A broker and its disk are lost: what it had uploaded is never committed."""
        self.restart(broker)
        self.brokers[broker].waiting.clear()

    def roll(self, number: int, batches: int) -> None:
        """Put the next batches of a partition into a segment."""
        partition = PARTITIONS[number]
        truth = self.partitions[partition]
        wanted = [placed for placed in truth.live if placed.base_offset >= truth.rolled_end]
        wanted = wanted[:batches]
        if not wanted:
            return
        truth.rolled_end = wanted[-1].next_offset
        self.clock.advance(1)
        segment = rolled(wanted, TOPICS[partition.topic_id].name, self.clock.now_ms())
        self.segments[segment.object_key] = segment

    def delete_records(self, number: int, share: float) -> None:
        """Move a log start; segments below it are deleted."""
        partition = PARTITIONS[number]
        truth = self.partitions[partition]
        room = truth.high_watermark - truth.log_start
        truth.log_start += int(room * share)
        truth.rolled_end = max(truth.rolled_end, min((p.base_offset for p in truth.live),
                                                     default=truth.high_watermark))  # fmt: skip
        for key, segment in list(self.segments.items()):
            if segment.partition == partition and segment.next_offset <= truth.log_start:
                del self.segments[key]

    def clean(self) -> None:
        """Delete every object that nothing needs any more."""
        live = {
            placed.batch[0]
            for truth in self.partitions.values()
            for placed in truth.live
            if placed.base_offset >= truth.rolled_end
        }
        for key in list(self.objects):
            is_waiting = any(key in broker.waiting for broker in self.brokers)
            if key not in live and key not in self.uncommitted and not is_waiting:
                del self.objects[key]

    # -- what is in the bucket ------------------------------------------------------------------

    def facts(self) -> BucketFacts:
        """As a rebuild reads it: sources are those that exist."""
        return BucketFacts(
            objects=list(self.objects.values()),
            segments=[with_sources(segment, self.objects) for segment in self.segments.values()],
        )

    def is_traceless(self, partition: TopicIdPartition) -> bool:
        """Whether something was committed, and deleted, of which nothing in the bucket tells."""
        truth = self.partitions[partition]
        told = [
            floor.high_watermark
            for item in self.objects.values()
            for place, floor in zip(
                sorted({extent.partition for extent in item.extents}),
                item.notes.floors,
                strict=True,
            )
            if place == partition and floor is not None
        ]
        told += [s.next_offset for s in self.segments.values() if s.partition == partition]
        told += [placed.next_offset for placed in truth.log if placed.batch[0] in self.objects
                 and placed.batch[0] in self.noted]  # fmt: skip
        deleted = [placed for placed in truth.log if placed.next_offset <= truth.log_start]
        return any(
            placed.next_offset > max(told, default=0) and placed.batch[0] not in self.objects
            for placed in deleted
        )

    def live_batches(self) -> Mapping[TopicIdPartition, Sequence[Placed]]:
        return {partition: truth.live for partition, truth in self.partitions.items()}

    # -- how ------------------------------------------------------------------------------------

    def _extent(
        self, partition: TopicIdPartition, position: int, count: int, producer: int, sequence: int
    ) -> BatchExtent:
        self._crc += 1
        return BatchExtent(
            partition=partition,
            byte_offset=ByteOffset(position),
            length_bytes=100,
            record_count=count,
            crc=self._crc,
            max_timestamp_ms=self.clock.now_ms(),
            timestamp_type=0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            request_id=0,
        )

    def _store(self, broker: int, key: ObjectKey, extents: Sequence[BatchExtent]) -> ObjectKey:
        who = self.brokers[broker]
        notes = object_notes.ObjectNotes()
        if self.is_noting:
            commits = who.journal.take()
            partitions = sorted({extent.partition for extent in extents})
            topics = {p.topic_id: TOPICS[p.topic_id] for p in partitions}
            floors = [self._floor(partition) for partition in partitions]
            notes = object_notes.ObjectNotes(topics, commits, floors)
            self.noted |= {
                wal_object_key(note.ulid)
                for note in commits
                if note.outcome == object_notes.COMMITTED
            }
        self.objects[key] = ObjectFacts(
            object_key=key,
            ulid=key.rpartition("/")[2],
            broker_id=broker,
            object_bytes=64 + 100 * len(extents) + 1000,
            stored_ms=self.clock.now_ms(),
            extents=list(extents),
            notes=notes,
        )
        self.uncommitted.add(key)
        who.waiting.append(key)
        return key

    def _floor(self, partition: TopicIdPartition) -> object_notes.Floor | None:
        """What a replica knows, which may be behind."""
        truth = self.partitions[partition]
        if self.is_lagging and self.rng.random() < 0.5:
            behind = self.rng.randrange(truth.high_watermark + 1)
            return object_notes.Floor(behind, min(behind, truth.log_start))
        return object_notes.Floor(truth.high_watermark, truth.log_start)


# --- reading records back -------------------------------------------------------------------------


class Ended(NamedTuple):
    """A transaction's end."""

    producer_id: int
    number: int
    is_commit: bool
    first_offset: int


@dataclass(slots=True)
class RebuiltLog:
    """One partition as the records make it."""

    log_start: int = 0
    high_watermark: int = 0
    planned_end: int = 0
    batches: dict[int, tuple[int, Batch]] = field(default_factory=dict)
    """By base offset: (next offset, where it is)."""
    segments: dict[int, tuple[int, ObjectKey]] = field(default_factory=dict)
    ends: dict[int, Ended] = field(default_factory=dict)
    """By the offset of the marker."""


@dataclass(slots=True)
class RebuiltState:
    names: dict[UUID, str] = field(default_factory=dict)
    configs: dict[UUID, Mapping[str, str]] = field(default_factory=dict)
    partitions: dict[TopicIdPartition, RebuiltLog] = field(default_factory=dict)
    files: dict[ObjectKey, FileCommittedRecord] = field(default_factory=dict)
    next_producer_id: int = 0


def replayed(records: Iterable[MetadataRecord]) -> RebuiltState:
    state = RebuiltState()
    for record in records:
        match record:
            case PartitionCreatedRecord():
                assert record.name not in [
                    name for topic, name in state.names.items() if topic != record.topic_id
                ]
                state.names[record.topic_id] = record.name
                partition = TopicIdPartition(record.topic_id, record.partition)
                assert partition not in state.partitions
                state.partitions[partition] = RebuiltLog()
            case TopicConfigsRecord():
                state.configs[record.topic_id] = record.configs
            case FileCommittedRecord():
                _commit_file(state, record)
            case RecordsDeletedRecord():
                log = state.partitions[record.partition]
                start = record.new_log_start_offset
                assert log.log_start <= start <= log.high_watermark
                log.log_start = start
                log.batches = {b: e for b, e in log.batches.items() if e[0] > start}
                log.segments = {b: e for b, e in log.segments.items() if e[0] > start}
                log.planned_end = max(log.planned_end, min(log.batches, default=start))
            case SegmentPlannedRecord():
                log = state.partitions[record.partition]
                assert record.base_offset == log.planned_end, record
                log.planned_end = record.last_offset + 1
            case SegmentCommittedRecord():
                log = state.partitions[record.partition]
                covered = [base for base in log.batches if base >= record.base_offset]
                assert log.planned_end == log.high_watermark == record.last_offset + 1
                assert min(covered) == record.base_offset
                for base in covered:
                    del log.batches[base]
                log.segments[record.base_offset] = record.last_offset + 1, record.object_key
            case TopicColumnsRecord(topic_id=topic_id):
                assert topic_id in {partition.topic_id for partition in state.partitions}
            case AccessControlEntryRecord():
                assert (record.rule.principal, record.rule.permission) == ("User:*", 2)
            case ProducerIdsAllocatedRecord():
                state.next_producer_id = record.next_producer_id
            case ConstantFixedRecord():
                assert (record.name, record.value) == (0, state.next_producer_id)
            case TransactionEndedRecord(partitions=[ended]):
                log = state.partitions[ended.partition]
                assert ended.marker_offset == log.high_watermark
                log.high_watermark += 1
                log.ends[ended.marker_offset] = Ended(
                    record.producer_id, record.number, record.is_commit, ended.first_offset
                )
            case _:
                raise AssertionError(record)
    return state


def _commit_file(state: RebuiltState, record: FileCommittedRecord) -> None:
    assert record.object_key not in state.files
    state.files[record.object_key] = record
    positions = [batch.position for batch in record.batches]
    positions += [refused.position for refused in record.refused]
    assert sorted(positions) == list(range(len(positions)))
    left: set[TopicIdPartition] = set()
    previous: TopicIdPartition | None = None
    for batch in record.batches:
        if batch.partition != previous:
            assert batch.partition not in left, "a partition's batches lie together"
            left.add(batch.partition)
            previous = batch.partition
        log = state.partitions[batch.partition]
        assert batch.base_offset == log.high_watermark
        log.high_watermark = batch.last_offset + 1
        log.batches[batch.base_offset] = (
            batch.last_offset + 1,
            (record.object_key, batch.position),
        )
