"""Placing the batches of one partition at their offsets, without the metadata that had them.

What fixes an offset: a segment, which says it itself, and the *note* of a commit that a later
object of the same broker carries (wal/chunks/object_notes.py). These are exact, and everything else is
fitted in between and behind:

1. A batch that a segment names as its source, or whose producer and sequence a fixed batch has, is
   there already. A segment of an earlier release names no sources; then its batches are compared
   by producer, sequence, size and timestamp.
2. A run of batches (one partition in one object) without note goes into a gap between fixed
   offsets, if it fits there: behind everything that its broker had committed before (the order of
   a broker's ULIDs is the order of its commits), before everything its broker committed later, at
   or above its own floor, and before whatever was committed long before the object existed. The
   gap in front of everything is filled from its end, the others from their start.
3. What must lie before something fixed and finds no gap was not committed, or was rolled and then
   deleted: it is left out. What competes with others for a gap and loses joins the tail.
4. The rest is the tail. It follows the last fixed offset in the order of ULIDs, except that a floor
   or a producer's sequence may say otherwise.
5. What then is missing between two offsets is a hole: lost. Offsets stay what consumers have
   committed, so the hole stays too. Missing at the beginning is no hole; the log starts later.
6. What lies below a noted log start offset had been deleted, and is not brought back.

One broker's objects are placed exactly by this as long as none is missing. The tails of several
brokers interleave in a way that nobody noted; that is reported.

Pure functions, over the gaps of metadata/rebuild/gaps.py; the result is a layout
(metadata/rebuild/layout.py). Called by metadata/rebuild/plan.py.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from metadata.rebuild.facts import ObjectFacts, RolledBatch, SegmentFacts
from metadata.rebuild.gaps import (
    COMMIT_DELAY_MS,
    Bound,
    Candidate,
    Gap,
    Waiting,
    follows,
    is_next,
    sums,
    that_fill,
    that_fit,
    ulid_of,
)
from metadata.rebuild.layout import (
    Hole,
    LeftOut,
    PartitionLayout,
    Piece,
    PlacedBatch,
    Run,
    SegmentPiece,
    WalPiece,
    Why,
    next_offset,
    wal_piece,
)
from metadata.state.producer_state import next_sequence
from wal.chunks.object_notes import DUPLICATE
from wal.coordinates import BatchExtent, ObjectKey, TopicIdPartition
from wal.ulid import ulid_timestamp_ms

HOLE_RECORDS_MAX: Final = 10_000_000
"""A larger hole is not kept: the log starts behind it."""


def place_partition(
    partition: TopicIdPartition,
    segments: Sequence[SegmentFacts],
    runs: Sequence[Run],
    *,
    include_orphans: bool,
    has_one_broker: bool,
) -> PartitionLayout:
    """Lay out one partition; `runs` by ULID. `has_one_broker`: in the whole bucket."""
    placement = _Placement(partition, include_orphans, has_one_broker)
    placement.take_segments(segments)
    placement.take_noted(runs)
    placement.fit(runs)
    return placement.finish()


_Sequenced = tuple[int, int, int, int]
"""(producer id, epoch, base sequence, last sequence)."""


def _sequenced(batch: BatchExtent | RolledBatch) -> _Sequenced:
    return batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence


class _Shape(NamedTuple):
    """By what a batch is recognised in a segment that does not name its sources."""

    record_count: int
    max_timestamp_ms: int
    producer_id: int
    base_sequence: int


class _Placement:
    """The work on one partition; see the module's text."""

    def __init__(
        self, partition: TopicIdPartition, include_orphans: bool, has_one_broker: bool
    ) -> None:
        self._include_orphans = include_orphans
        self._has_one_broker = has_one_broker
        self._layout = PartitionLayout(partition=partition)
        self._segments: list[SegmentFacts] = []
        self._fixed: list[WalPiece | SegmentPiece] = []
        self._fitted: list[WalPiece] = []
        self._bounds: dict[int, list[Bound]] = defaultdict(list)
        self._ends_seen = 0
        self._log_start_seen = 0
        self._crc_of: dict[_Sequenced, int | None] = {}
        self._shapes: Counter[_Shape] = Counter()
        self._sources: dict[ObjectKey, list[tuple[int, int]]] = defaultdict(list)
        self._rolled_into: dict[ObjectKey, list[int]] = defaultdict(list)
        self._order_is_known = True

    # -- what is fixed --------------------------------------------------------------------------

    def take_segments(self, segments: Sequence[SegmentFacts]) -> None:
        end = 0
        for segment in sorted(segments, key=lambda item: (item.base_offset, -item.last_offset)):
            if segment.base_offset < end:
                self._layout.unused_segments.append(segment)
                self._doubt(f"{segment.object_key} overlaps the segment before it")
                continue
            end = segment.next_offset
            self._segments.append(segment)
            self._fixed.append(
                SegmentPiece(base_offset=segment.base_offset, next_offset=end, segment=segment)
            )
            for key, start, length in segment.sources or ():
                self._sources[key].append((start, start + length))
                self._rolled_into[key].append(len(self._segments) - 1)
            for batch in segment.batches:
                if batch.producer_id >= 0:
                    self._crc_of[_sequenced(batch)] = None
                if segment.sources is None:
                    self._shapes[_shape(batch, batch.max_timestamp_ms)] += 1

    def take_noted(self, runs: Sequence[Run]) -> None:
        """The runs whose offsets are noted, as pieces; those that only bound others, as bounds."""
        ends = [segment.next_offset for segment in self._segments]
        starts = [segment.base_offset for segment in self._segments]
        pieces: list[WalPiece] = []
        for run in runs:
            source = run.source
            self._ends_seen = max(self._ends_seen, run.floor)
            self._log_start_seen = max(self._log_start_seen, run.known.log_start_offset)
            if run.outcomes is None:
                inside = self._rolled_into.get(source.object_key)
                if inside:
                    bound = Bound(source.ulid, ends[inside[-1]], starts[inside[0]], True)
                    self._bounds[source.broker_id].append(bound)
                continue
            placed: list[PlacedBatch] = []
            for position, outcome in zip(run.positions, run.outcomes, strict=True):
                extent = source.extents[position]
                if outcome.exception is not None:
                    why = Why.DUPLICATE if outcome.exception == DUPLICATE else Why.REFUSED
                    self._leave_out(source, position, why)
                    continue
                batch = PlacedBatch(position, extent, outcome.base_offset, outcome.append_time_ms)
                self._ends_seen = max(self._ends_seen, next_offset(batch))
                self._log_start_seen = max(self._log_start_seen, outcome.log_start_offset)
                placed.append(batch)
            if not placed:
                continue
            self._bounds[source.broker_id].append(
                Bound(source.ulid, placed[0].base_offset, next_offset(placed[-1]))
            )
            pieces += self._pieces_beside_segments(source, placed)
        if self._has_one_broker:
            for segment in self._segments:
                base, end = segment.base_offset, segment.next_offset
                if segment.first_source is not None and segment.last_source is not None:
                    self._bounds[_THE_ONE] += (
                        Bound(segment.first_source, base, base),
                        Bound(segment.last_source, end, end),
                    )
        self._add_pieces(pieces)

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
                self._leave_out(source, batch.position, why, batch)
                continue
            if pieces and next_offset(pieces[-1][-1]) == batch.base_offset:
                pieces[-1].append(batch)
            else:
                pieces.append([batch])
        return [wal_piece(source, batches, is_noted=True) for batches in pieces]

    def _segment_at(self, start: int, end: int) -> tuple[int, int] | None:
        """(first, next offset) of a segment that has some of these offsets."""
        low, high = 0, len(self._segments)
        while low < high:
            middle = (low + high) // 2
            if self._segments[middle].next_offset <= start:
                low = middle + 1
            else:
                high = middle
        if low < len(self._segments) and self._segments[low].base_offset < end:
            return self._segments[low].base_offset, self._segments[low].next_offset
        return None

    def _add_pieces(self, pieces: Sequence[WalPiece]) -> None:
        fixed: list[WalPiece | SegmentPiece] = []
        for piece in sorted([*self._fixed, *pieces], key=lambda item: item.base_offset):
            if fixed and piece.base_offset < fixed[-1].next_offset:
                # Only damage that still has its checksums right comes here.
                assert isinstance(piece, WalPiece)
                self._doubt(f"{piece.source.object_key} is noted at offsets that another has")
                for batch in piece.batches:
                    self._leave_out(piece.source, batch.position, Why.CONFLICT, batch)
                continue
            fixed.append(piece)
            if isinstance(piece, WalPiece):
                for batch in piece.batches:
                    if batch.extent.producer_id >= 0:
                        self._crc_of[_sequenced(batch.extent)] = batch.extent.crc
        self._fixed = fixed

    # -- what is fitted -------------------------------------------------------------------------

    def fit(self, runs: Sequence[Run]) -> None:
        """Put the runs without note into gaps, the first one that takes them."""
        candidates: list[Candidate] = []
        for run in runs:
            if run.outcomes is not None:
                continue
            waiting = self._not_there_yet(run)
            if not waiting.positions:
                continue
            candidate = self._candidate(waiting)
            if candidate.end <= self._log_start_seen:
                self._leave_all_out(waiting, Why.DELETED)
            elif self._include_orphans:
                candidates.append(candidate)
            else:
                self._leave_all_out(waiting, Why.ORPHAN)
        # What others were preferred to may have been committed all the same: it joins the tail.
        crowded_out: list[Candidate] = []
        had_a_chance: set[ObjectKey] = set()
        for gap in self._gaps():
            possible = [one for one in candidates if one.may_be_in(gap)]
            if math.isinf(gap.end):
                late = [
                    one for one in candidates if one not in possible and one.key in had_a_chance
                ]
                possible = sorted([*possible, *late, *crowded_out], key=ulid_of)
            elif not possible:
                continue
            had_a_chance |= {one.key for one in possible}
            chosen = {waiting.run.source.object_key: waiting for waiting in
                      self._choose(gap, possible)}  # fmt: skip
            newest: dict[int, str] = {}
            for waiting in chosen.values():
                source = waiting.run.source
                newest[source.broker_id] = max(newest.get(source.broker_id, ""), source.ulid)
            left: list[Candidate] = []
            for candidate in candidates:
                source = candidate.waiting.run.source
                taken = chosen.get(candidate.key)
                if taken is not None:
                    rest = set(candidate.waiting.positions) - set(taken.positions)
                    if rest:
                        part = candidate.waiting._replace(positions=sorted(rest))
                        crowded_out.append(candidate._replace(waiting=part))
                elif source.ulid > newest.get(source.broker_id, ""):
                    left.append(candidate)
                elif candidate.key in had_a_chance:
                    crowded_out.append(candidate)
                else:
                    self._leave_all_out(candidate.waiting, Why.NO_ROOM)
            candidates = left
            if chosen:
                gap.waiting = list(chosen.values())
                self._fitted += self._fill(gap)
        for candidate in candidates:
            self._leave_all_out(candidate.waiting, Why.NO_ROOM)
        self._fixed = sorted([*self._fixed, *self._fitted], key=lambda piece: piece.base_offset)

    def _candidate(self, waiting: Waiting) -> Candidate:
        source = waiting.run.source
        # Below the log's start it would be gone, so it is worth a place above it only.
        start, end = max(waiting.run.floor, self._log_start_seen), math.inf
        for bound in (*self._bounds[source.broker_id], *self._bounds[_THE_ONE]):
            if bound.ulid > source.ulid:
                end = min(end, bound.earlier_end)
            elif bound.ulid < source.ulid or bound.is_itself:
                start = max(start, bound.later_start)
        return Candidate(waiting, start, end)

    def _choose(self, gap: Gap, candidates: Sequence[Candidate]) -> Sequence[Waiting]:
        """What of the candidates goes into the gap, by ULID."""
        if math.isinf(gap.end):
            return [candidate.waiting for candidate in candidates]
        size = int(gap.end) - gap.start
        whole = [candidate.waiting for candidate in candidates]
        # What comes out of sequence the coordinator refused, as far as all that came is here.
        following = self._in_sequence(whole, gap.start)
        for runs in (whole, following):
            counts = [run.record_count for run in runs]
            chosen: Sequence[int] | None
            if gap.is_head and self._log_start_seen > gap.start:
                chosen = self._at_the_start(runs, int(gap.end))
            elif sum(counts) <= size:
                chosen = range(len(runs))
            else:
                chosen = that_fill(counts, size)
            if chosen is not None:
                break
        else:
            runs, chosen = whole, that_fit([run.record_count for run in whole], size)
        if len(chosen) == len(whole):
            return [run for run in runs if run.positions]
        self._doubt(
            f"{len(runs)} objects may have what belongs at {gap.start}..{int(gap.end) - 1};"
            f" {len(chosen)} of them fit, the others come last"
        )
        return [runs[index] for index in chosen if runs[index].positions]

    def _at_the_start(self, runs: Sequence[Waiting], end: int) -> Sequence[int]:
        """Which runs lie from the known log start to `end`; a batch may begin before it, no more.

        As many as fill the place, else as many as there is room for.
        """
        size = end - self._log_start_seen
        firsts = [run.extents[0].record_count if run.positions else 0 for run in runs]
        reached = sums([run.record_count for run in runs], min(end, size + max(firsts, default=0)))
        for total in sorted(reached):
            chosen = reached[total]
            if total >= size and (total == size or total - firsts[chosen[0]] < size):
                return chosen
        return reached[max(total for total in reached if total <= size)]

    def _in_sequence(self, runs: Sequence[Waiting], offset: int) -> list[Waiting]:
        """Without the batches that a coordinator had to refuse if they came at `offset`."""
        producers = self._producers_before(offset)
        found: list[Waiting] = []
        for waiting in runs:
            kept: list[int] = []
            for position in waiting.positions:
                extent = waiting.run.source.extents[position]
                if extent.producer_id >= 0:
                    known = producers.get(extent.producer_id)
                    if known is not None and not is_next(known, extent):
                        continue
                    producers[extent.producer_id] = extent.producer_epoch, extent.last_sequence
                kept.append(position)
            found.append(Waiting(waiting.run, kept))
        return found

    def _gaps(self) -> list[Gap]:
        """Where something may belong: nothing that lies below the log's start."""
        gaps: list[Gap] = []
        start = 0
        is_head = True
        for piece in self._fixed:
            if piece.base_offset > max(start, self._log_start_seen):
                gaps.append(Gap(start, piece.base_offset, _committed_ms(piece), is_head))
            start = piece.next_offset
            is_head = is_head and start <= self._log_start_seen
        gaps.append(Gap(start, math.inf, math.inf, False))
        return gaps

    def _not_there_yet(self, run: Run) -> Waiting:
        """The batches of a run that are in no segment and no duplicates of what is fixed."""
        rolled = self._sources.get(run.source.object_key, ())
        by_shape = self._found_by_shape(run)
        left: list[int] = []
        for position in run.positions:
            extent = run.source.extents[position]
            end = extent.byte_offset + extent.length_bytes
            is_rolled = any(start <= extent.byte_offset and end <= stop for start, stop in rolled)
            if is_rolled or by_shape:
                self._leave_out(run.source, position, Why.ROLLED)
            elif self._is_duplicate(extent):
                self._leave_out(run.source, position, Why.DUPLICATE)
            else:
                left.append(position)
        return Waiting(run, left)

    def _is_duplicate(self, extent: BatchExtent) -> bool:
        if extent.producer_id < 0:
            return False
        # A sequence comes again after 2**31 records; the bytes of a repetition are the same ones.
        crc = self._crc_of.get(_sequenced(extent), -1)
        return crc is None or crc == extent.crc

    def _found_by_shape(self, run: Run) -> bool:
        """Whether a segment that names no sources has all of a run's batches, by their looks."""
        if not self._shapes:
            return False
        wanted = Counter(_shape(extent, extent.max_timestamp_ms) for extent in run.extents)
        if any(self._shapes[shape] < count for shape, count in wanted.items()):
            return False
        self._shapes.subtract(wanted)
        if any(shape.producer_id < 0 for shape in wanted):
            self._doubt(
                f"{run.source.object_key} looks like a part of an older segment, which does not say"
                " what it was rolled from"
            )
        return True

    def _fill(self, gap: Gap) -> list[WalPiece]:
        """The gap's runs in their order, at the offsets that gives."""
        is_head = gap.is_head
        ordered = self._in_order(gap)
        total = sum(waiting.record_count for waiting in ordered)
        if math.isfinite(gap.end) and not is_head and gap.start + total < gap.end:
            self._doubt(
                f"{total} records were put into a gap of {int(gap.end) - gap.start} at offset"
                f" {gap.start}; where in it they belong is not known"
            )
        position = int(gap.end) - total if is_head else gap.start
        pieces: list[WalPiece] = []
        left = total
        for waiting in ordered:
            if not is_head and position < waiting.run.floor <= gap.end - left:
                position = waiting.run.floor
            first = waiting.run.source.extents[waiting.positions[0]].record_count
            if math.isinf(gap.end) and position + first <= self._log_start_seen:
                # Behind the records whose end is not known, or it would be gone, and it is here.
                self._doubt(f"{waiting.run.source.object_key} may begin before the log does")
                position = self._log_start_seen
            placed: list[PlacedBatch] = []
            for index in waiting.positions:
                extent = waiting.run.source.extents[index]
                time_ms = waiting.run.source.stored_ms
                placed.append(PlacedBatch(index, extent, position, time_ms))
                position += extent.record_count
            left -= waiting.record_count
            if placed:
                pieces.append(wal_piece(waiting.run.source, placed, is_noted=False))
        return pieces

    def _in_order(self, gap: Gap) -> Sequence[Waiting]:
        """Merge the brokers' runs by ULID, as far as floors and sequences allow."""
        queues: dict[int, deque[Waiting]] = defaultdict(deque)
        for waiting in gap.waiting:
            queues[waiting.run.source.broker_id].append(waiting)
        producers = self._producers_before(gap.start)
        pending = Counter(
            (extent.producer_id, extent.producer_epoch, next_sequence(extent.last_sequence))
            for waiting in gap.waiting
            for extent in waiting.extents
            if extent.producer_id >= 0
        )
        ordered: list[Waiting] = []
        position = gap.start
        while queues:
            heads = {broker: queue[0] for broker, queue in queues.items()}
            possible = sum(head.run.floor <= position for head in heads.values())
            if possible > 1 and self._order_is_known:
                self._order_is_known = False
                self._doubt(
                    f"the order of what {possible} brokers wrote from offset {position} on is not"
                    " noted; it follows their clocks"
                )
            broker = min(
                heads,
                key=lambda item: (
                    max(heads[item].run.floor - position, 0),
                    not follows(heads[item], producers, pending),
                    heads[item].run.source.ulid,
                ),
            )
            waiting = queues[broker].popleft()
            if not queues[broker]:
                del queues[broker]
            kept = self._sequence(waiting, producers, pending)
            position = max(position, waiting.run.floor) + kept.record_count
            if kept.positions:
                ordered.append(kept)
        return ordered

    def _sequence(
        self,
        waiting: Waiting,
        producers: dict[int, tuple[int, int]],
        pending: Counter[tuple[int, int, int]],
    ) -> Waiting:
        """Note what a run does to its producers' sequences; without the duplicates in it."""
        kept: list[int] = []
        for position in waiting.positions:
            extent = waiting.run.source.extents[position]
            if extent.producer_id >= 0:
                following = next_sequence(extent.last_sequence)
                pending[extent.producer_id, extent.producer_epoch, following] -= 1
                if self._is_duplicate(extent):
                    self._leave_out(waiting.run.source, position, Why.DUPLICATE)
                    continue
                known = producers.get(extent.producer_id)
                if known is not None and not is_next(known, extent):
                    self._doubt(
                        f"{waiting.run.source.object_key}: sequence {extent.base_sequence} of"
                        f" producer {extent.producer_id} does not follow {known[1]}; it is kept"
                    )
                producers[extent.producer_id] = extent.producer_epoch, extent.last_sequence
                self._crc_of[_sequenced(extent)] = extent.crc
            kept.append(position)
        return Waiting(waiting.run, kept)

    def _producers_before(self, offset: int) -> dict[int, tuple[int, int]]:
        """(epoch, last sequence) by producer, as what is placed below `offset` leaves them."""
        producers: dict[int, tuple[int, int]] = {}
        below = [piece for piece in (*self._fixed, *self._fitted) if piece.base_offset < offset]
        for piece in sorted(below, key=lambda item: item.base_offset):
            batches: Iterable[BatchExtent | RolledBatch]
            if isinstance(piece, SegmentPiece):
                batches = piece.segment.batches
            else:
                batches = (placed.extent for placed in piece.batches)
            for batch in batches:
                if batch.producer_id >= 0:
                    producers[batch.producer_id] = batch.producer_epoch, batch.last_sequence
        return producers

    # -- the result -----------------------------------------------------------------------------

    def finish(self) -> PartitionLayout:
        layout = self._layout
        log_start = self._log_start_seen
        pieces: list[Piece] = []
        for piece in self._fixed:
            if piece.next_offset <= log_start:
                self._drop(piece, Why.DELETED)
                continue
            self._skip_to(piece.base_offset, pieces)
            pieces.append(piece)
        self._skip_to(self._ends_seen, pieces)
        layout.pieces = pieces
        if pieces:
            layout.log_start_offset = max(pieces[0].base_offset, log_start)
            layout.high_watermark = pieces[-1].next_offset
        else:
            layout.log_start_offset = layout.high_watermark = max(self._ends_seen, log_start)
        layout.exact_end = layout.high_watermark
        for placed in pieces:
            if isinstance(placed, Hole):
                layout.exact_end = min(layout.exact_end, placed.base_offset)
            elif isinstance(placed, WalPiece) and not placed.is_noted:
                layout.exact_end = min(layout.exact_end, placed.base_offset)
                layout.inferred_objects.add(placed.source.object_key)
        self._doubt_old_segments()
        return layout

    def _doubt_old_segments(self) -> None:
        """Nobody knows what went into a segment that names no sources."""
        silent = [segment for segment in self._segments if segment.sources is None]
        rolled_ms = max((segment.stored_ms for segment in silent), default=-1)
        for piece in self._layout.pieces:
            if (
                isinstance(piece, WalPiece)
                and not piece.is_noted
                and piece.source.minted_ms <= rolled_ms
            ):
                self._doubt(
                    f"{piece.source.object_key} may be in a segment already, which does not say"
                    f" what it was rolled from; its records are at {piece.base_offset}"
                )

    def _drop(self, piece: Piece, why: Why) -> None:
        if isinstance(piece, SegmentPiece):
            self._layout.unused_segments.append(piece.segment)
        elif isinstance(piece, WalPiece):
            for batch in piece.batches:
                self._leave_out(piece.source, batch.position, why, batch)

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
        self._doubt(f"the records {start}..{offset - 1} are missing")
        pieces.append(Hole(base_offset=start, next_offset=offset))

    def _doubt(self, problem: str) -> None:
        self._layout.doubts.append(problem)

    def _leave_all_out(self, waiting: Waiting, why: Why) -> None:
        for position in waiting.positions:
            self._leave_out(waiting.run.source, position, why)

    def _leave_out(
        self, source: ObjectFacts, position: int, why: Why, batch: PlacedBatch | None = None
    ) -> None:
        offset, time_ms = (-1, -1) if batch is None else (batch.base_offset, batch.append_time_ms)
        self._layout.left_out.append(LeftOut(source.object_key, position, why, offset, time_ms))


_THE_ONE: Final = -(1 << 40)
"""Stands for the only broker there is, where objects that are gone cannot say whose they were."""


def _shape(batch: BatchExtent | RolledBatch, max_timestamp_ms: int) -> _Shape:
    return _Shape(batch.record_count, max_timestamp_ms, batch.producer_id, batch.base_sequence)


def _committed_ms(piece: WalPiece | SegmentPiece) -> float:
    """When the first record of a fixed piece was committed, at the latest."""
    if isinstance(piece, WalPiece):
        return piece.batches[0].append_time_ms
    segment = piece.segment
    if segment.first_source is not None:
        return ulid_timestamp_ms(segment.first_source) + COMMIT_DELAY_MS
    return segment.stored_ms
