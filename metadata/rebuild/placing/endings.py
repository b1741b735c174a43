"""Ends the transactions of a partition: those whose end is noted, and those that nobody noted.

A batch of a transaction has its number in the index of its object, and a marker that is noted is at
its offset (metadata/rebuild/placing/fixed.py). What is left after that are transactions without an
end in this partition. Each of them is ended here, because nobody could end it later: the state of
its transactional id is lost. How it ends is known where the notes of another partition tell the end
of the same transaction. Otherwise it is aborted, or committed where the operator says so, and told.

Where its marker goes:

- into a segment, if that has it: the aborted range must be told to readers of what lies before it;
- to an offset that nothing has, between its last batch and the next transaction of its producer, or
  where all offsets that are missing can be markers: then they are;
- behind everything else.

A producer's next transaction begins when the last one has ended. Where offsets leave no room for a
marker between two of them, at places that were inferred, the second is taken for the first: it ends
with it, and that is told.

Pure functions over values; called by metadata/rebuild/placing/placement.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from metadata.rebuild.layout import (
    EndedHere,
    Hole,
    MarkerPiece,
    Piece,
    PlacedBatch,
    SegmentPiece,
    WalPiece,
    marker_piece,
    next_offset,
)
from wal.chunks.kept_notes import NotedEnd
from wal.coordinates import NO_TRANSACTION, BatchExtent
from wal.records.marker_batches import Marker

UNKNOWN_COORDINATOR_EPOCH = 0
"""In markers of ends that nobody noted."""


class Decisions:
    """How transactions ended, or end now."""

    def __init__(self, ends: Iterable[NotedEnd], *, commits_unknown: bool, now_ms: int) -> None:
        """`ends` are those noted in all partitions."""
        self._known = {(end.marker.producer_id, end.number): end.marker for end in ends}
        self._commits_unknown = commits_unknown
        self._now_ms = now_ms

    def is_known(self, producer_id: int, number: int) -> bool:
        """Whether anything is noted of the transaction's end."""
        return (producer_id, number) in self._known

    def end(self, producer_id: int, number: int, epoch: int, offset: int) -> NotedEnd:
        """The end of a transaction whose marker gets `offset`; `epoch` is that of its batches."""
        known = self._known.get((producer_id, number))
        if known is not None:
            return NotedEnd(known._replace(offset=offset), number)
        marker = Marker(
            offset,
            producer_id,
            epoch,
            self._commits_unknown,
            UNKNOWN_COORDINATOR_EPOCH,
            self._now_ms,
        )
        return NotedEnd(marker, number)


class Closed(NamedTuple):
    """A partition in which every transaction has ended."""

    pieces: Sequence[Piece]
    ended: Sequence[EndedHere]
    doubts: Sequence[str]


@dataclass(slots=True)
class _Open:
    producer_id: int
    number: int
    epoch: int
    first_offset: int
    next_offset: int
    """Behind its last batch so far."""


def close_transactions(
    pieces: Sequence[Piece], rolled_ends: Sequence[NotedEnd], decisions: Decisions
) -> Closed:
    """`rolled_ends` are those of which segments have the markers."""
    return _Closing(rolled_ends, decisions).closed(pieces)


class _Closing:
    """The walk over one partition; see the module's text."""

    def __init__(self, rolled_ends: Sequence[NotedEnd], decisions: Decisions) -> None:
        self._rolled = {(end.marker.producer_id, end.number): end for end in rolled_ends}
        self._decisions = decisions
        self._open: dict[int, _Open] = {}
        """By producer."""
        self._pieces: list[Piece] = []
        self._ended: list[EndedHere] = []
        self._doubts: list[str] = []

    def closed(self, pieces: Sequence[Piece]) -> Closed:
        for piece in pieces:
            match piece:
                case WalPiece():
                    piece = self._take_batches(piece)
                case MarkerPiece():
                    piece = self._take_marker(piece)
                case SegmentPiece():
                    piece = self._take_segment(piece)
            self._pieces.append(piece)
        self._fill_holes()
        for opened in self._by_first_offset():
            self._pieces.append(self._ended_at(opened, self._pieces[-1].next_offset))
        return Closed(self._pieces, self._ended, self._doubts)

    def _by_first_offset(self) -> list[_Open]:
        return sorted(self._open.values(), key=lambda opened: opened.first_offset)

    def _take_batches(self, piece: WalPiece) -> WalPiece:
        batches: list[PlacedBatch] = []
        for batch in piece.batches:
            extent = batch.extent
            if extent.transaction_number == NO_TRANSACTION:
                batches.append(batch)
                continue
            opened = self._open.get(extent.producer_id)
            if opened is not None and opened.number != extent.transaction_number:
                if self._end_in_hole(opened):
                    opened = None
                else:
                    self._doubts.append(
                        f"{piece.source.object_key}: no offset is left for the end of transaction"
                        f" {opened.number} of producer {opened.producer_id} before offset"
                        f" {batch.base_offset}; it ends with the one that follows"
                    )
                    extent = extent._replace(transaction_number=opened.number)
                    batch = batch._replace(extent=extent)
            if opened is None:
                self._open[extent.producer_id] = _Open(
                    extent.producer_id,
                    extent.transaction_number,
                    extent.producer_epoch,
                    batch.base_offset,
                    next_offset(batch),
                )
            else:
                opened.next_offset = next_offset(batch)
            batches.append(batch)
        return replace(piece, batches=batches)

    def _take_marker(self, piece: MarkerPiece) -> MarkerPiece:
        marker, number = piece.end
        opened = self._open.get(marker.producer_id)
        if opened is None:
            return piece
        if opened.number != number and self._end_in_hole(opened):
            return piece
        del self._open[opened.producer_id]
        if opened.number == number:
            if not piece.is_noted:
                self._tell(opened, marker)
            return piece
        end = self._decisions.end(
            opened.producer_id, opened.number, marker.producer_epoch, marker.offset
        )
        self._doubts.append(
            f"no offset is left for the end of transaction {opened.number} of producer"
            f" {opened.producer_id} before that of {number} at offset {marker.offset}"
        )
        self._tell(opened, end.marker)
        return replace(piece, end=end)

    def _take_segment(self, piece: SegmentPiece) -> SegmentPiece:
        ends = []
        for opened in self._by_first_offset():
            end = self._rolled.get((opened.producer_id, opened.number))
            if end is not None and piece.base_offset <= end.marker.offset < piece.next_offset:
                ends.append(end)
                del self._open[opened.producer_id]
        return replace(piece, ends=sorted(ends)) if ends else piece

    def _end_in_hole(self, opened: _Open) -> bool:
        """Put its marker into the last hole behind its batches; False where there is none."""
        for at in reversed(range(len(self._pieces))):
            piece = self._pieces[at]
            if piece.base_offset < opened.next_offset:
                return False
            if isinstance(piece, Hole):
                del self._open[opened.producer_id]
                offset = piece.next_offset - 1
                rest: list[Piece] = [replace(piece, next_offset=offset)]
                if piece.base_offset == offset:
                    rest = []
                self._pieces[at : at + 1] = [*rest, self._ended_at(opened, offset)]
                return True
        return False

    def _fill_holes(self) -> None:
        """Take for markers what is missing, as far as all of a hole can be such."""
        pieces: list[Piece] = []
        for piece in self._pieces:
            if isinstance(piece, Hole):
                size = piece.next_offset - piece.base_offset
                waiting = [
                    opened
                    for opened in self._by_first_offset()
                    if opened.next_offset <= piece.base_offset
                ]
                if size <= len(waiting):
                    for number, opened in enumerate(waiting[:size]):
                        del self._open[opened.producer_id]
                        pieces.append(self._ended_at(opened, piece.base_offset + number))
                    continue
            pieces.append(piece)
        self._pieces = pieces

    def _ended_at(self, opened: _Open, offset: int) -> MarkerPiece:
        end = self._decisions.end(opened.producer_id, opened.number, opened.epoch, offset)
        self._tell(opened, end.marker)
        return marker_piece(end, is_noted=False)

    def _tell(self, opened: _Open, marker: Marker) -> None:
        self._ended.append(
            EndedHere(
                opened.producer_id,
                opened.number,
                opened.first_offset,
                marker.offset,
                marker.is_commit,
                self._decisions.is_known(opened.producer_id, opened.number),
            )
        )


def ends_between(
    opened: Mapping[int, BatchExtent], extents: Iterable[BatchExtent]
) -> Sequence[BatchExtent]:
    """Of the producers' open transactions, a batch of each that must end before `extents`."""
    found: dict[int, BatchExtent] = {}
    for extent in extents:
        before = opened.get(extent.producer_id)
        if (
            before is not None
            and extent.transaction_number != NO_TRANSACTION
            and extent.transaction_number != before.transaction_number
        ):
            found.setdefault(extent.producer_id, before)
    return list(found.values())
