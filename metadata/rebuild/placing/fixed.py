"""Collects what is known of one partition for certain: segments, noted batches, and what follows.

A segment says its offsets itself; the *note* of a commit (wal/chunks/object_notes.py) says those of
an object's batches. Around what is fixed, other runs have room, and these bounds say where:

- a writer's ULIDs ascend in the order of its commits, so that a run lies behind everything that its
  writer is known to have committed before, and in front of what it committed later;
- an idempotent producer's sequences ascend in the order of the log: a batch lies behind those with
  lower sequences of its producer, and in front of those with higher ones;
- a run lies at or above its own floor, the high watermark known when its object was sealed;
- a transaction's batches lie in front of its marker, and behind its producer's previous one.

A batch that a segment names as its source, or whose producer and sequence something fixed has, is
there already.

Pure values; metadata/rebuild/placing/placement.py puts the runs without note around them.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from metadata.rebuild.facts import ObjectFacts, RolledBatch, SegmentFacts
from metadata.rebuild.filler import REBUILD_BROKER_ID
from metadata.rebuild.layout import (
    FixedPiece,
    LeftOut,
    MarkerPiece,
    PartitionLayout,
    PlacedBatch,
    Run,
    SegmentPiece,
    WalPiece,
    Why,
    marker_piece,
    next_offset,
    wal_piece,
)
from metadata.rebuild.placing.gaps import Bound, Bounds, Candidate, Waiting
from wal.chunks.kept_notes import NotedEnd
from wal.chunks.object_notes import DUPLICATE, Floor
from wal.coordinates import NO_TRANSACTION, BatchExtent, ObjectKey

_Sequenced = tuple[int, int, int, int]
"""(producer id, epoch, base sequence, last sequence)."""


def _sequenced(batch: BatchExtent | RolledBatch) -> _Sequenced:
    return batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence


class _Written(NamedTuple):
    """A fixed batch of an idempotent producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int


class FixedLog:
    """One partition as far as its offsets are known; grows by what is fitted in."""

    def __init__(self, layout: PartitionLayout) -> None:
        self._layout = layout
        self.segments: list[SegmentFacts] = []
        self.pieces: list[FixedPiece] = []
        """In the order of their offsets."""
        self.ends_seen = 0
        """The greatest high watermark that anything tells of."""
        self.log_start_seen = 0
        """Everything below it had been deleted."""
        self._bounds: Mapping[tuple[int, int], Bounds] = {}
        self._crc_of: dict[_Sequenced, int | None] = {}
        self._sources: dict[ObjectKey, list[tuple[int, int]]] = defaultdict(list)
        self._rolled_into: dict[ObjectKey, list[int]] = defaultdict(list)
        self._written: Mapping[tuple[int, int], Sequence[_Written]] = {}
        self._ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By producer, of each noted end the transaction's number and the offset of its marker."""
        self.rolled_ends: list[NotedEnd] = []
        """Those whose marker is in a segment."""

    # -- what is fixed --------------------------------------------------------------------------

    def take_floor(self, floor: Floor) -> None:
        """Takes in what a notes object tells of the partition."""
        self.ends_seen = max(self.ends_seen, floor.high_watermark)
        self.log_start_seen = max(self.log_start_seen, floor.log_start_offset)

    def take_segments(self, segments: Sequence[SegmentFacts]) -> None:
        """Of segments that have the same offsets, those of the highest generation.

        What is made of segments covers whole ones, and holds what they hold, but for records that
        compaction removes. So any of it may take their place, committed or not; and where one
        output of a swap is missing, its inputs are there.
        """
        for segment in self._newest(segments):
            end = segment.next_offset
            self.segments.append(segment)
            self.pieces.append(
                SegmentPiece(base_offset=segment.base_offset, next_offset=end, segment=segment)
            )
            for key, start, length in segment.sources:
                self._sources[key].append((start, start + length))
                self._rolled_into[key].append(len(self.segments) - 1)
            for batch in segment.batches:
                self._crc_of[_sequenced(batch)] = None

    def _newest(self, segments: Sequence[SegmentFacts]) -> Sequence[SegmentFacts]:
        chosen: list[SegmentFacts] = []
        for segment in sorted(
            segments, key=lambda item: (-item.generation, item.base_offset, -item.last_offset)
        ):
            at = bisect_left(chosen, segment.base_offset + 1, key=lambda one: one.next_offset)
            other = chosen[at] if at < len(chosen) else None
            if other is None or other.base_offset >= segment.next_offset:
                chosen.insert(at, segment)
                continue
            self._layout.unused_segments.append(segment)
            ends_within = segment.next_offset <= other.next_offset
            if not ends_within or other.generation == segment.generation:
                self._doubt(f"{segment.object_key} overlaps {other.object_key}")
        return chosen

    def take_ends(self, ends: Sequence[NotedEnd]) -> None:
        """Takes in where transactions ended; behind `take_segments`."""
        for end in ends:
            offset = end.marker.offset
            self.take_floor(Floor(offset + 1))
            insort(self._ends[end.marker.producer_id], (end.number, offset))
            if self._segment_at(offset, offset + 1) is None:
                self.pieces.append(marker_piece(end))
            else:
                self.rolled_ends.append(end)

    def take_noted(self, runs: Sequence[Run]) -> None:
        """The runs whose offsets are noted, as pieces; what they say of others, as bounds."""
        bounds: dict[tuple[int, int], list[Bound]] = defaultdict(list)
        ends = [segment.next_offset for segment in self.segments]
        starts = [segment.base_offset for segment in self.segments]
        pieces: list[WalPiece] = []
        copied = _copied(runs)
        for run in runs:
            source = run.source
            self.take_floor(run.known)
            if run.outcomes is None:
                inside = self._rolled_into.get(source.object_key)
                if inside:
                    start = starts[inside[0]]
                    bound = Bound(source.ulid, ends[inside[-1]], max(start, run.floor))
                else:
                    # What its writer committed later lies behind its floor, too.
                    bound = Bound(source.ulid, math.inf, run.floor)
                bounds[source.writer].append(bound)
                continue
            placed: list[PlacedBatch] = []
            for position, outcome in zip(run.positions, run.outcomes, strict=True):
                extent = source.extents[position]
                if outcome.exception is not None:
                    why = Why.DUPLICATE if outcome.exception == DUPLICATE else Why.REFUSED
                    self.leave_out(source, position, why)
                    continue
                batch = PlacedBatch(position, extent, outcome.base_offset, outcome.append_time_ms)
                self.take_floor(Floor(next_offset(batch), outcome.log_start_offset))
                placed.append(batch)
            if source.broker_id != REBUILD_BROKER_ID and copied:
                for batch in placed:
                    if copied.get(batch.base_offset) == batch.extent.crc:
                        self.leave_out(source, batch.position, Why.DUPLICATE, batch)
                placed = [
                    batch for batch in placed if copied.get(batch.base_offset) != batch.extent.crc
                ]
            if not placed:
                continue
            bounds[source.writer].append(
                Bound(source.ulid, placed[0].base_offset, next_offset(placed[-1]))
            )
            pieces += self._pieces_beside_segments(source, placed)
        self._bounds = {writer: Bounds(of_writer) for writer, of_writer in bounds.items()}
        self._add_noted(pieces)
        self._written = _written(self.pieces)

    def _pieces_beside_segments(
        self, source: ObjectFacts, placed: Sequence[PlacedBatch]
    ) -> list[WalPiece]:
        """What of a noted run is in no segment, as pieces of consecutive offsets."""
        pieces: list[list[PlacedBatch]] = []
        for batch in placed:
            where = self._segment_at(batch.base_offset, next_offset(batch))
            if where is not None:
                start, end = where
                is_inside = start <= batch.base_offset and next_offset(batch) <= end
                why = Why.ROLLED if is_inside else Why.CONFLICT
                if not is_inside:
                    self._doubt(
                        f"{source.object_key}: the batch at offset {batch.base_offset} is partly in"
                        f" the segment {start}..{end - 1}"
                    )
                self.leave_out(source, batch.position, why, batch)
                continue
            if pieces and next_offset(pieces[-1][-1]) == batch.base_offset:
                pieces[-1].append(batch)
            else:
                pieces.append([batch])
        return [wal_piece(source, batches) for batches in pieces]

    def _segment_at(self, start: int, end: int) -> tuple[int, int] | None:
        """(first, next offset) of a segment that has some of these offsets."""
        at = bisect_left(self.segments, start + 1, key=lambda segment: segment.next_offset)
        if at < len(self.segments) and self.segments[at].base_offset < end:
            return self.segments[at].base_offset, self.segments[at].next_offset
        return None

    def _add_noted(self, pieces: Sequence[WalPiece]) -> None:
        fixed: list[FixedPiece] = []
        for piece in sorted(
            [*self.pieces, *pieces],
            key=lambda item: (item.base_offset, isinstance(item, MarkerPiece)),
        ):
            if fixed and piece.base_offset < fixed[-1].next_offset:
                # Only damage that still has its checksums right comes here.
                if isinstance(piece, MarkerPiece):
                    self._doubt(f"{piece.end} is noted at an offset that a batch has")
                    continue
                assert isinstance(piece, WalPiece)
                self._doubt(f"{piece.source.object_key} is noted at offsets that another has")
                for batch in piece.batches:
                    self.leave_out(piece.source, batch.position, Why.CONFLICT, batch)
                continue
            fixed.append(piece)
            if isinstance(piece, WalPiece):
                for batch in piece.batches:
                    self.remember(batch.extent)
        self.pieces = fixed

    def add_fitted(self, pieces: Iterable[FixedPiece]) -> None:
        """Adds what was put where there was room."""
        self.pieces = sorted([*self.pieces, *pieces], key=lambda piece: piece.base_offset)

    # -- what follows for others ----------------------------------------------------------------

    def candidate(self, waiting: Waiting) -> Candidate:
        """Returns where a run without note may lie."""
        source = waiting.run.source
        # Below the log's start it would be gone, so it is worth a place above it only.
        start, end = max(waiting.run.floor, self.log_start_seen), math.inf
        if source.writer in self._bounds:
            behind, before = self._bounds[source.writer].around(source.ulid)
            start, end = max(start, behind), min(end, before)
        for lowest, highest in (self._by_sequence(waiting), self._by_transaction(waiting)):
            if max(start, lowest) <= min(end, highest):
                start, end = max(start, lowest), min(end, highest)
            # Otherwise the coordinator refused it: such a batch may have any sequence, or number.
        return Candidate(waiting, start, end)

    def _by_sequence(self, waiting: Waiting) -> tuple[int, float]:
        """Between which offsets the sequences of a run's producers lie."""
        lowest, highest = 0, math.inf
        before = 0
        total = waiting.record_count
        for extent in waiting.extents:
            written = self._written.get((extent.producer_id, extent.producer_epoch), ())
            at = bisect_left(written, 0, key=lambda one: _ahead(extent.base_sequence, one))
            if at:
                lowest = max(lowest, written[at - 1].next_offset - before)
            before += extent.record_count
            if at < len(written):
                highest = min(highest, written[at].base_offset + total - before)
        return lowest, highest

    def _by_transaction(self, waiting: Waiting) -> tuple[int, float]:
        """Between which offsets the ends of its producers' transactions leave a run."""
        lowest, highest = 0, math.inf
        before = 0
        total = waiting.record_count
        for extent in waiting.extents:
            after = before + extent.record_count
            ends = self._ends.get(extent.producer_id)
            if ends is not None and extent.transaction_number != NO_TRANSACTION:
                at = bisect_left(ends, (extent.transaction_number,))
                if at:
                    lowest = max(lowest, ends[at - 1][1] + 1 - before)
                if at < len(ends):
                    highest = min(highest, ends[at][1] + total - after)
            before = after
        return lowest, highest

    def not_there_yet(self, run: Run) -> Waiting:
        """The batches of a run that are in no segment and no duplicates of what is fixed."""
        rolled = self._sources.get(run.source.object_key, ())
        left: list[int] = []
        for position in run.positions:
            extent = run.source.extents[position]
            end = extent.byte_offset + extent.length_bytes
            if any(start <= extent.byte_offset and end <= stop for start, stop in rolled):
                self.leave_out(run.source, position, Why.ROLLED)
            elif self.is_duplicate(extent):
                self.leave_out(run.source, position, Why.DUPLICATE)
            else:
                left.append(position)
        return Waiting(run, left)

    def remember(self, extent: BatchExtent) -> None:
        """A batch is placed; the same one again is a duplicate."""
        if extent.producer_id >= 0:
            self._crc_of[_sequenced(extent)] = extent.crc

    def is_duplicate(self, extent: BatchExtent) -> bool:
        """Whether the batch, byte by byte, was placed already."""
        if extent.producer_id < 0:
            return False
        # A sequence comes again after 2**31 records; the bytes of a repetition are the same ones.
        crc = self._crc_of.get(_sequenced(extent), -1)
        return crc is None or crc == extent.crc

    def producers_before(self, offset: int) -> dict[int, tuple[int, int]]:
        """(epoch, last sequence) by producer, as what is placed below `offset` leaves them."""
        producers: dict[int, tuple[int, int]] = {}
        for piece in self.pieces:
            if piece.base_offset >= offset:
                break
            for batch in _batches_of(piece):
                if batch.producer_id >= 0:
                    producers[batch.producer_id] = batch.producer_epoch, batch.last_sequence
        return producers

    def open_before(self, offset: int) -> dict[int, BatchExtent]:
        """By producer a batch of the transaction that is open at `offset`, as far as is placed."""
        opened: dict[int, BatchExtent] = {}
        for piece in self.pieces:
            if piece.base_offset >= offset:
                break
            match piece:
                case MarkerPiece():
                    opened.pop(piece.end.marker.producer_id, None)
                case SegmentPiece():
                    opened.clear()  # nothing is rolled before all in front of it has ended
                case WalPiece():
                    for batch in piece.batches:
                        if batch.extent.transaction_number != NO_TRANSACTION:
                            opened[batch.extent.producer_id] = batch.extent
        return opened

    # -- what is told ---------------------------------------------------------------------------

    def leave_out(
        self, source: ObjectFacts, position: int, why: Why, batch: PlacedBatch | None = None
    ) -> None:
        """A batch that is not served from its object."""
        offset, time_ms = (-1, -1) if batch is None else (batch.base_offset, batch.append_time_ms)
        self._layout.left_out.append(LeftOut(source.object_key, position, why, offset, time_ms))

    def leave_all_out(self, waiting: Waiting, why: Why) -> None:
        """A run that is not served from its object."""
        for position in waiting.positions:
            self.leave_out(waiting.run.source, position, why)

    def _doubt(self, problem: str) -> None:
        self._layout.doubts.append(problem)


def _copied(runs: Sequence[Run]) -> Mapping[int, int]:
    """By offset the CRC of what an earlier rebuild wrote: its copies count, not their originals."""
    return {
        outcome.base_offset: run.source.extents[position].crc
        for run in runs
        if run.source.broker_id == REBUILD_BROKER_ID and run.outcomes is not None
        for position, outcome in zip(run.positions, run.outcomes, strict=True)
        if outcome.exception is None
    }


def _batches_of(piece: FixedPiece) -> Iterable[BatchExtent | RolledBatch]:
    if isinstance(piece, SegmentPiece):
        return piece.segment.batches
    if isinstance(piece, MarkerPiece):
        return ()
    return (placed.extent for placed in piece.batches)


def _written(
    pieces: Iterable[FixedPiece],
) -> Mapping[tuple[int, int], Sequence[_Written]]:
    """By (producer, epoch) its fixed batches, where their sequences ascend as they should."""
    found: dict[tuple[int, int], list[_Written]] = defaultdict(list)
    for piece in pieces:
        if isinstance(piece, SegmentPiece):
            for rolled in piece.segment.batches:
                if rolled.producer_id >= 0:
                    found[rolled.producer_id, rolled.producer_epoch].append(
                        _Written(rolled.base_sequence, rolled.last_sequence, rolled.base_offset,
                                 rolled.last_offset + 1)
                    )  # fmt: skip
            continue
        for placed in piece.batches if isinstance(piece, WalPiece) else ():
            extent = placed.extent
            if extent.producer_id >= 0:
                found[extent.producer_id, extent.producer_epoch].append(
                    _Written(extent.base_sequence, extent.last_sequence, placed.base_offset,
                             next_offset(placed))
                )  # fmt: skip
    # Sequences that were wrapped, or a producer that began anew, order nothing.
    return {
        producer: written
        for producer, written in found.items()
        if all(first.base_sequence < second.base_sequence for first, second in pairwise(written))
    }


def _ahead(base_sequence: int, written: _Written) -> int:
    """Negative for what comes before `base_sequence`; 0 or more for the others."""
    return written.base_sequence - base_sequence
