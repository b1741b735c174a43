"""The input of a rebuild as values: what a bucket tells of the metadata that was lost.

`metadata.rebuild.rebuild` reads WAL objects into `ObjectFacts`, `metadata.rebuild.staged` those of
sinks; segments, which need a Parquet
reader, come as `SegmentFacts` from `tiering.segment_footers`. `metadata.rebuild.plan` turns both
into metadata.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from wal.chunks.kept_notes import NOTHING_KEPT, KeptNotes
from wal.chunks.object_notes import NO_NOTES, ObjectNotes
from wal.coordinates import BatchExtent, ObjectKey, TopicIdPartition
from wal.ulid import ulid_timestamp_ms

STAGED_BROKER_ID: Final = -2
"""In place of a broker, of what tasks wrote; their commits came in no order of their ULIDs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """One WAL object: its index and its notes."""

    object_key: ObjectKey
    ulid: str
    broker_id: int
    object_bytes: int
    stored_ms: int
    """When the store got it, by the store's clock: shortly before its commit, if there was one."""
    extents: Sequence[BatchExtent]
    notes: ObjectNotes = NO_NOTES
    lane: int = 0

    @property
    def writer(self) -> tuple[int, int]:
        """Broker and lane: what one writer wrote was committed in the order of its ULIDs."""
        return self.broker_id, self.lane

    @property
    def uploader_broker_id(self) -> int:
        """As its commit told; -1 where it was no broker."""
        return max(self.broker_id, -1)

    @property
    def minted_ms(self) -> int:
        """When its chunk was opened, by its broker's clock."""
        return ulid_timestamp_ms(self.ulid)


class RolledRange(NamedTuple):
    """Bytes of a WAL object whose batches a segment holds."""

    object_key: ObjectKey
    byte_offset: int
    length_bytes: int


class RolledBatch(NamedTuple):
    """A RecordBatch as a segment remembers it."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @property
    def last_sequence(self) -> int:
        """Sequences count the records that were sent, whether they are there still or not."""
        return (self.base_sequence + self.last_offset - self.base_offset) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One Parquet segment: its footer, and as far as they were read, its batches."""

    object_key: ObjectKey
    object_bytes: int
    crc32c: int
    topic_name: str
    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    generation: int = 0
    """Above 0: it was made of segments, which may be there still."""
    record_count: int
    """Rows; fewer than offsets where records are gone."""
    max_timestamp_ms: int
    stored_ms: int
    sources: Sequence[RolledRange]
    """Of the WAL objects that still exist."""
    last_source: str | None = None
    """The greatest ULID of an object that it was rolled from, whether that still exists or not."""
    column_id_max: int = -1
    """The greatest id among its typed columns."""
    columns: bytes = b""
    """Its typed columns, as the record TopicColumns has them."""
    producer_id_max: int = -1
    batch_timestamp_ms_max: int = -1
    """As `max_timestamp_ms`, with the batches of which no record is left."""
    batches: Sequence[RolledBatch] = ()
    """Those of idempotent producers that were read, in offset order."""

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1


def segments_beside_their_inputs(segments: Iterable[SegmentFacts]) -> Sequence[SegmentFacts]:
    """Those that were made of segments of which some are among these too."""
    by_partition: dict[TopicIdPartition, list[SegmentFacts]] = defaultdict(list)
    for segment in sorted(segments, key=lambda item: item.base_offset):
        by_partition[segment.partition].append(segment)
    found = []
    for neighbours in by_partition.values():
        starts = [segment.base_offset for segment in neighbours]
        for segment in neighbours:
            first = bisect_left(starts, segment.base_offset)
            inside = neighbours[first : bisect_left(starts, segment.next_offset)]
            if any(other.generation < segment.generation for other in inside):
                found.append(segment)
    return found


class Unreadable(NamedTuple):
    """An object that should tell something and does not."""

    object_key: ObjectKey
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    """Everything that was found."""

    objects: Sequence[ObjectFacts]
    segments: Sequence[SegmentFacts]
    kept: KeptNotes = NOTHING_KEPT
    """What notes objects tell, all of them together; with what they tell of staged objects."""
    uncommitted: Mapping[str, int] = field(default_factory=dict)
    """By sink id, how many staged objects there are of which no commit is noted."""
    unreadable: Sequence[Unreadable] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """What the operator of a rebuild decides."""

    include_orphans: bool = True
    """Whether objects whose commit nobody noted are taken as committed. Without them the newest
    acknowledged records are lost; with them records may appear that were never acknowledged."""
    commits_open_transactions: bool = False
    """What becomes of transactions of which nobody noted how they ended: they are aborted."""
    topic_names: Mapping[UUID, str] = field(default_factory=dict)
    """Names of topics, where the bucket has none or another one is wanted."""
    max_commit_age_ms: int = 15 * 60_000
    """How long after its minting an object may be committed."""
