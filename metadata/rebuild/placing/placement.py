"""Placing the batches of one partition at their offsets, without the metadata that had them.

1. Segments and noted batches are fixed (metadata/rebuild/placing/fixed.py). They are exact.
2. A run of batches (one partition in one object) without note goes into a gap between fixed
   offsets, where one takes it (metadata/rebuild/placing/fit.py).
3. The rest is the tail, behind everything fixed, in an order that follows from floors, sequences
   and the store's clock (metadata/rebuild/placing/order.py).
4. What then is missing between two offsets is a hole: lost. Offsets stay what consumers have
   committed, so the hole stays too. Missing at the beginning is no hole; the log starts later.
5. What lies below a noted log start offset had been deleted, and is not brought back.
6. What transactions are left open is ended (metadata/rebuild/placing/endings.py).

One writer's objects are placed exactly by this as long as none is missing. The tails of several
writers interleave in a way that nobody noted; that is reported, and so is every run that was placed
without a note, with the reason for its place.

Pure functions; the result is a layout (metadata/rebuild/layout.py). Called by
metadata/rebuild/plan.py.
"""

import math
from collections.abc import Sequence
from typing import Final

from metadata.rebuild.facts import SegmentFacts
from metadata.rebuild.layout import (
    Hole,
    MarkerPiece,
    PartitionLayout,
    Piece,
    PlacedBatch,
    Placing,
    Run,
    SegmentPiece,
    WalPiece,
    Why,
    marker_piece,
    wal_piece,
)
from metadata.rebuild.placing.endings import Decisions, close_transactions, ends_between
from metadata.rebuild.placing.fit import fit
from metadata.rebuild.placing.fixed import FixedLog
from metadata.rebuild.placing.gaps import Candidate, Waiting
from metadata.rebuild.placing.order import in_order
from wal.chunks.kept_notes import NotedEnd
from wal.chunks.object_notes import Floor
from wal.coordinates import NO_TRANSACTION, BatchExtent, TopicIdPartition

HOLE_RECORDS_MAX: Final = 10_000_000
"""A larger hole is not kept: the log starts behind it."""


def place_partition(
    partition: TopicIdPartition,
    segments: Sequence[SegmentFacts],
    runs: Sequence[Run],
    *,
    floor: Floor,
    ends: Sequence[NotedEnd],
    decisions: Decisions,
    include_orphans: bool,
) -> PartitionLayout:
    """Lay out one partition; `runs` by ULID.

    `floor` and `ends` are what notes objects tell of it.
    """
    placement = _Placement(partition, decisions, include_orphans)
    placement.log.take_floor(floor)
    placement.log.take_segments(segments)
    placement.log.take_ends(ends)
    placement.log.take_noted(runs)
    placement.fit(runs)
    return placement.finish()


class _Placement:
    """The work on one partition; see the module's text."""

    def __init__(
        self, partition: TopicIdPartition, decisions: Decisions, include_orphans: bool
    ) -> None:
        self._decisions = decisions
        self._include_orphans = include_orphans
        self._layout = PartitionLayout(partition=partition)
        self.log = FixedLog(self._layout)
        self._order_is_known = True

    # -- what is fitted -------------------------------------------------------------------------

    def fit(self, runs: Sequence[Run]) -> None:
        """Put the runs without note into gaps, and behind."""
        log = self.log
        fitting = fit(log, self._candidates(runs))
        self._layout.doubts += fitting.doubts
        for candidate in fitting.excluded:
            log.leave_all_out(candidate.waiting, Why.NO_ROOM)
        for gap, chosen, placing in fitting.gaps:
            log.add_fitted(self._fill(gap.start, gap.end, chosen, placing, is_head=gap.is_head))
        tail = [candidate.waiting for candidate in fitting.tail]
        start = log.pieces[-1].next_offset if log.pieces else 0
        pieces = self._fill(start, None, tail, Placing.TAIL, is_head=False)
        log.add_fitted(
            wal_piece(piece.source, piece.batches, Placing.NO_ROOM)
            if isinstance(piece, WalPiece) and piece.source.ulid in fitting.without_room
            else piece
            for piece in pieces
        )

    def _candidates(self, runs: Sequence[Run]) -> list[Candidate]:
        log = self.log
        candidates: list[Candidate] = []
        for run in runs:
            if run.outcomes is not None:
                continue
            waiting = log.not_there_yet(run)
            if not waiting.positions:
                continue
            candidate = log.candidate(waiting)
            if candidate.end <= log.log_start_seen:
                log.leave_all_out(waiting, Why.DELETED)
            elif self._include_orphans:
                candidates.append(candidate)
            else:
                log.leave_all_out(waiting, Why.ORPHAN)
        return candidates

    def _fill(
        self,
        start: int,
        end: int | None,
        chosen: Sequence[Waiting],
        placing: Placing,
        *,
        is_head: bool,
    ) -> list[WalPiece | MarkerPiece]:
        """Runs in their order, at the offsets that gives; `end` None: behind everything.

        A transaction of which nobody noted the end gets its marker where its producer's next one
        begins.
        """
        ordered = in_order(self.log, chosen, start)
        if ordered.competing and self._order_is_known:
            self._order_is_known = False
            self._doubt(
                f"the order of what {ordered.competing} writers wrote from offset"
                f" {ordered.competing_at} on is not noted; it follows the times of their uploads"
            )
        self._layout.doubts += ordered.doubts
        total = sum(waiting.record_count for waiting in ordered.runs)
        if end is not None and not is_head and start + total < end:
            self._doubt(
                f"{total} records were put into a gap of {end - start} at offset {start}; where in"
                " it they belong is not known"
            )
        limit = math.inf if end is None else end
        position = end - total if is_head and end is not None else start
        log_start = self.log.log_start_seen
        pieces: list[WalPiece | MarkerPiece] = []
        left = total
        opened = self.log.open_before(start)
        for waiting in ordered.runs:
            source = waiting.run.source
            for extent in ends_between(opened, waiting.extents):
                if position + left < limit:
                    pieces.append(self._marker(extent, position))
                    position += 1
            opened |= {
                extent.producer_id: extent
                for extent in waiting.extents
                if extent.transaction_number != NO_TRANSACTION
            }
            if not is_head and position < waiting.run.floor <= limit - left:
                position = waiting.run.floor
            first = source.extents[waiting.positions[0]].record_count
            if end is None and position + first <= log_start:
                # Behind the records whose end is not known, or it would be gone, and it is here.
                self._doubt(f"{source.object_key} may begin before the log does")
                position = log_start
            placed: list[PlacedBatch] = []
            for index in waiting.positions:
                extent = source.extents[index]
                placed.append(PlacedBatch(index, extent, position, source.stored_ms))
                position += extent.record_count
            left -= waiting.record_count
            pieces.append(wal_piece(source, placed, placing))
        return pieces

    def _marker(self, extent: BatchExtent, offset: int) -> MarkerPiece:
        end = self._decisions.end(
            extent.producer_id, extent.transaction_number, extent.producer_epoch, offset
        )
        return marker_piece(end, is_noted=False)

    # -- the result -----------------------------------------------------------------------------

    def finish(self) -> PartitionLayout:
        layout, log = self._layout, self.log
        log_start = log.log_start_seen
        pieces: list[Piece] = []
        for piece in log.pieces:
            if piece.next_offset <= log_start:
                self._drop(piece, Why.DELETED)
                continue
            self._skip_to(piece.base_offset, pieces)
            pieces.append(piece)
        self._skip_to(log.ends_seen, pieces)
        closed = close_transactions(pieces, log.rolled_ends, self._decisions)
        layout.pieces = pieces = [*closed.pieces]
        layout.ended = closed.ended
        layout.doubts += closed.doubts
        if pieces:
            layout.log_start_offset = max(pieces[0].base_offset, log_start)
            layout.high_watermark = pieces[-1].next_offset
        else:
            layout.log_start_offset = layout.high_watermark = max(log.ends_seen, log_start)
        layout.exact_end = layout.high_watermark
        for placed in pieces:
            if isinstance(placed, Hole):
                self._doubt(
                    f"the records {placed.base_offset}..{placed.next_offset - 1} are missing"
                )
            if isinstance(placed, Hole) or not (
                isinstance(placed, SegmentPiece) or placed.is_noted
            ):
                layout.exact_end = min(layout.exact_end, placed.base_offset)
        return layout

    def _drop(self, piece: Piece, why: Why) -> None:
        if isinstance(piece, SegmentPiece):
            self._layout.unused_segments.append(piece.segment)
        elif isinstance(piece, WalPiece):
            for batch in piece.batches:
                self.log.leave_out(piece.source, batch.position, why, batch)

    def _skip_to(self, offset: int, pieces: list[Piece]) -> None:
        """Account for the offsets from the end of `pieces` up to `offset`."""
        if not pieces or offset <= pieces[-1].next_offset:
            return
        start = pieces[-1].next_offset
        if offset - start > HOLE_RECORDS_MAX:
            self._doubt(f"the log starts at {offset}: {offset - start} records before are missing")
            for piece in pieces:
                self._drop(piece, Why.BEFORE_HOLE)
            pieces.clear()
            return
        pieces.append(Hole(base_offset=start, next_offset=offset))

    def _doubt(self, problem: str) -> None:
        self._layout.doubts.append(problem)
