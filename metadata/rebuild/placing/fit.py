"""Decides which of the runs without notes belong into which gap between known offsets.

Offsets are dense, so a gap was full; what filled it is still there, unless an object is lost. So a
gap takes the runs that fill it exactly: first those that have room nowhere else, then all that may
be there, then as many as there are sums for. Without such a sum it takes what fits.

1. A run may lie in a gap if its bounds allow it (metadata/rebuild/placing/fixed.py). Clocks are
   not asked: in random histories they misled more often than they helped.
2. The gap in front of everything is filled from its end, since the log starts somewhere in it.
3. What the gaps leave is the tail, behind the last known offset. So is what competed for a gap and
   lost: a run is left out only where its bounds alone, which are no guesses, prove that every
   offset that it could have is another's. Then it was not committed, or was deleted.

Pure functions over values; metadata/rebuild/placing/placement.py lays out what is chosen.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from metadata.rebuild.layout import Placing
from metadata.rebuild.placing.fixed import FixedLog
from metadata.rebuild.placing.gaps import Candidate, Gap, Waiting, that_fill, that_fit, ulid_of
from wal.coordinates import ObjectKey


class Filled(NamedTuple):
    """A gap, and what was chosen for it, by ULID."""

    gap: Gap
    chosen: Sequence[Waiting]
    placing: Placing


class Fitting(NamedTuple):
    """What goes where."""

    gaps: Sequence[Filled]
    """Between known offsets."""
    tail: Sequence[Candidate]
    """Behind them, by ULID."""
    without_room: frozenset[str]
    """The ULIDs of those in the tail that should have been in a gap, and found it taken."""
    excluded: Sequence[Candidate]
    """All offsets that these could have are others'."""
    doubts: Sequence[str]


def gaps_of(log: FixedLog) -> list[Gap]:
    """Returns where something may belong between what is known; nothing below the log's start."""
    gaps: list[Gap] = []
    start = 0
    is_head = True
    for piece in log.pieces:
        if piece.base_offset > max(start, log.log_start_seen):
            gaps.append(Gap(start, piece.base_offset, is_head))
        start = piece.next_offset
        is_head = is_head and start <= log.log_start_seen
    return gaps


def fit(log: FixedLog, candidates: Iterable[Candidate]) -> Fitting:
    """Choose for each gap, from the first one on."""
    gaps = gaps_of(log)
    left: list[Candidate] = []
    excluded: list[Candidate] = []
    for candidate in sorted(candidates, key=ulid_of):
        has_room = math.isinf(candidate.end) or any(
            candidate.has_room_in(gap, log.log_start_seen) for gap in gaps
        )
        (left if has_room else excluded).append(candidate)
    filled: list[Filled] = []
    doubts: list[str] = []
    crowded_out: list[Candidate] = []
    for number, gap in enumerate(gaps):
        possible = [one for one in left if one.may_be_in(gap)]
        if not possible:
            continue
        following = gaps[number + 1 :]
        bound = {
            one.key
            for one in possible
            if math.isfinite(one.end) and not any(one.may_be_in(later) for later in following)
        }
        chosen, is_full = _choose(log, gap, possible, bound)
        if len(chosen) < len(possible):
            doubts.append(
                f"{len(possible)} objects may have what belongs at {gap.start}..{gap.end - 1};"
                f" {len(chosen)} of them fit"
            )
        if chosen:
            filled.append(Filled(gap, chosen, Placing.FILLS if is_full else Placing.IN_GAP))
        left, lost = _after(left, chosen)
        crowded_out += lost
    # What must lie before something known and was chosen nowhere comes last: it is here.
    crowded_out += [one for one in left if math.isfinite(one.end)]
    tail = sorted([*crowded_out, *(one for one in left if math.isinf(one.end))], key=ulid_of)
    return Fitting(filled, tail, frozenset(map(ulid_of, crowded_out)), excluded, doubts)


def _after(
    left: Sequence[Candidate], chosen: Sequence[Waiting]
) -> tuple[list[Candidate], list[Candidate]]:
    """Who may still be in a later gap, and who may not because its writer's later runs are placed.

    Of a run that was chosen in part the rest is among the latter.
    """
    taken = {waiting.run.source.object_key: waiting for waiting in chosen}
    newest: dict[tuple[int, int], str] = {}
    for waiting in chosen:
        source = waiting.run.source
        newest[source.writer] = max(newest.get(source.writer, ""), source.ulid)
    still: list[Candidate] = []
    lost: list[Candidate] = []
    for candidate in left:
        waiting = candidate.waiting
        part = taken.get(candidate.key)
        if part is not None:
            rest = sorted(set(waiting.positions) - set(part.positions))
            if rest:
                lost.append(candidate._replace(waiting=waiting._replace(positions=rest)))
        elif waiting.run.source.ulid > newest.get(waiting.run.source.writer, ""):
            still.append(candidate)
        else:
            lost.append(candidate)
    return still, lost


def _choose(
    log: FixedLog, gap: Gap, possible: Sequence[Candidate], bound: Collection[ObjectKey]
) -> tuple[Sequence[Waiting], bool]:
    """What goes into the gap, by ULID, and whether it fills it."""
    size = gap.end - max(gap.start, log.log_start_seen)
    runs = [candidate.waiting for candidate in possible]
    must = [run for run in runs if run.run.source.object_key in bound]
    may = [run for run in runs if run.run.source.object_key not in bound]
    room = size - sum(run.record_count for run in must)
    others = that_fill([run.record_count for run in may], room) if room >= 0 else None
    if others is not None:
        return _by_ulid([*must, *(may[index] for index in others)]), True
    every = that_fill([run.record_count for run in runs], size)
    if every is not None:
        return _by_ulid(runs[index] for index in every), True
    fitting = that_fit([run.record_count for run in runs], size)
    return [runs[index] for index in fitting], gap.is_head


def _by_ulid(runs: Iterable[Waiting]) -> Sequence[Waiting]:
    return sorted((run for run in runs if run.positions), key=lambda run: run.run.source.ulid)
