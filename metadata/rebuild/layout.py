"""The values of a rebuilt partition that placing, planning and reporting share.

A `Run` is what goes in, a `PartitionLayout` what comes out (metadata/rebuild/placing/placement.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from metadata.rebuild.facts import ObjectFacts, SegmentFacts
from wal.chunks.kept_notes import NotedEnd
from wal.chunks.object_notes import BatchOutcome, Floor
from wal.coordinates import BatchExtent, ObjectKey, TopicIdPartition


class Why(Enum):
    """Why a batch of an object is not served from there."""

    ROLLED = "it is in a segment"
    DUPLICATE = "it was sent twice"
    REFUSED = "the coordinator had refused it, or its object was given up"
    NO_ROOM = "every offset that it could have is another's"
    ORPHAN = "nobody noted its commit"
    CONFLICT = "something else is known to have its offset"
    DELETED = "it was deleted"
    BEFORE_HOLE = "it lies before a hole too large to keep"
    NAMELESS = "its topic was deleted, or its number of partitions is impossible"


class Placing(Enum):
    """Why a run of batches lies where it does."""

    NOTED = "its commit is noted"
    FILLS = "not noted: it fills offsets that nothing else has"
    IN_GAP = "not noted: it lies between known offsets, and does not fill the place"
    TAIL = "not noted: it follows the last known offset, in the order of uploads"
    NO_ROOM = "not noted: what it should lie between leaves no room, so it comes last"


class LeftOut(NamedTuple):
    """One batch that is not served from its object; the offset is -1 where it is not known."""

    object_key: ObjectKey
    position: int
    why: Why
    base_offset: int = -1
    append_time_ms: int = -1


class PlacedBatch(NamedTuple):
    """One batch of an object at its offset."""

    position: int
    extent: BatchExtent
    base_offset: int
    append_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WalPiece:
    """Consecutive offsets from one WAL object."""

    base_offset: int
    next_offset: int
    source: ObjectFacts
    batches: Sequence[PlacedBatch]
    placing: Placing

    @property
    def is_noted(self) -> bool:
        return self.placing is Placing.NOTED


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPiece:
    """The offsets of a segment."""

    base_offset: int
    next_offset: int
    segment: SegmentFacts
    ends: Sequence[NotedEnd] = ()
    """By marker, of the transactions that are open where it begins: it has their markers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerPiece:
    """The one offset of a transaction's marker."""

    base_offset: int
    next_offset: int
    end: NotedEnd
    is_noted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Offsets whose records nobody has."""

    base_offset: int
    next_offset: int


FixedPiece = WalPiece | SegmentPiece | MarkerPiece
Piece = FixedPiece | Hole


class EndedHere(NamedTuple):
    """A transaction that was ended without a note of its end in the partition."""

    producer_id: int
    number: int
    first_offset: int
    marker_offset: int
    is_commit: bool
    is_known: bool
    """Another partition's notes say how it ended."""


class Doubt(NamedTuple):
    """Something about a partition, or the bucket, that could not be known."""

    subject: str
    problem: str


@dataclass(slots=True, kw_only=True)
class PartitionLayout:
    """One partition: `pieces` follow each other from `log_start_offset` to `high_watermark`."""

    partition: TopicIdPartition
    log_start_offset: int = 0
    high_watermark: int = 0
    pieces: Sequence[Piece] = ()
    exact_end: int = 0
    """Below it, every offset is known to be what it was; from it on they were inferred."""
    left_out: list[LeftOut] = field(default_factory=list)
    unused_segments: list[SegmentFacts] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    ended: Sequence[EndedHere] = ()


class Run(NamedTuple):
    """The batches of one partition in one object."""

    source: ObjectFacts
    positions: Sequence[int]
    known: Floor
    """Where the partition's log was when the object was sealed, at least."""
    outcomes: Sequence[BatchOutcome] | None
    """What is noted of them, by place in `positions`; None where nothing is."""

    @property
    def floor(self) -> int:
        """Its batches lie at or above it."""
        return self.known.high_watermark

    @property
    def extents(self) -> Sequence[BatchExtent]:
        return [self.source.extents[position] for position in self.positions]


def wal_piece(
    source: ObjectFacts, batches: Sequence[PlacedBatch], placing: Placing = Placing.NOTED
) -> WalPiece:
    """Batches of one object that follow each other."""
    return WalPiece(
        base_offset=batches[0].base_offset,
        next_offset=next_offset(batches[-1]),
        source=source,
        batches=batches,
        placing=placing,
    )


def marker_piece(end: NotedEnd, *, is_noted: bool = True) -> MarkerPiece:
    """Where a transaction ended."""
    offset = end.marker.offset
    return MarkerPiece(base_offset=offset, next_offset=offset + 1, end=end, is_noted=is_noted)


def next_offset(batch: PlacedBatch) -> int:
    return batch.base_offset + batch.extent.record_count
