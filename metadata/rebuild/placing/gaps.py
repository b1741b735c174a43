"""Finds the gaps between known offsets, and the batches that may belong into them and fit.

Pure values and arithmetic; metadata/rebuild/placing/placement.py decides with them.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from metadata.rebuild.layout import Run
from metadata.state.producer_state import next_sequence
from wal.coordinates import BatchExtent, ObjectKey


class Waiting(NamedTuple):
    """What is left to be placed of a run without note."""

    run: Run
    positions: Sequence[int]

    @property
    def extents(self) -> Sequence[BatchExtent]:
        return [self.run.source.extents[position] for position in self.positions]

    @property
    def record_count(self) -> int:
        return sum(extent.record_count for extent in self.extents)


class Gap(NamedTuple):
    """Offsets in front of a fixed piece that nothing fixed has."""

    start: int
    end: int
    is_head: bool
    """Nothing lies before it."""


class Candidate(NamedTuple):
    """A run that looks for its gap: behind `start`, before `end`."""

    waiting: Waiting
    start: int
    end: float

    @property
    def key(self) -> ObjectKey:
        return self.waiting.run.source.object_key

    def has_room_in(self, gap: Gap, log_start: int) -> bool:
        """Whether it may have any offset of the gap."""
        return max(self.start, gap.start, log_start) < min(self.end, gap.end)

    def may_be_in(self, gap: Gap) -> bool:
        """Whether it is likely enough to be there."""
        return self.start < gap.end <= self.end and gap.start <= self.end


class Bound(NamedTuple):
    """Where a writer's object with this ULID lies, at least roughly."""

    ulid: str
    earlier_end: float
    """What the writer committed before ends at or below this."""
    later_start: int
    """What it committed later starts at or above this."""


class Bounds:
    """All bounds by one writer, to be asked for any ULID."""

    def __init__(self, bounds: Iterable[Bound] = ()) -> None:
        by_ulid = sorted(bounds)
        self._ulids = [bound.ulid for bound in by_ulid]
        self._starts = list(accumulate((bound.later_start for bound in by_ulid), max))
        ends = accumulate((bound.earlier_end for bound in reversed(by_ulid)), min)
        self._ends = list(ends)[::-1]

    def around(self, ulid: str) -> tuple[int, float]:
        """At or above which offset, and below which one, the object with this ULID lies."""
        first, last = bisect_left(self._ulids, ulid), bisect_right(self._ulids, ulid)
        start = self._starts[first - 1] if first else 0
        return start, self._ends[last] if last < len(self._ends) else math.inf


def ulid_of(candidate: Candidate) -> str:
    return candidate.waiting.run.source.ulid


_SUMS_MAX: Final = 20_000
"""Sums looked at to fill a gap exactly."""


def that_fill(counts: Sequence[int], size: int) -> Sequence[int] | None:
    """Returns which of `counts` add up to `size`, as many as possible; None when none are found."""
    sums: dict[int, tuple[int, ...]] = {0: ()}
    for index, count in enumerate(counts):
        for total, chosen in list(sums.items()):
            longer = total + count
            if longer <= size and len(chosen) >= len(sums.get(longer, ())):
                sums[longer] = (*chosen, index)
        if len(sums) > _SUMS_MAX:
            break
    return sums.get(size)


def that_fit(counts: Sequence[int], size: int) -> Sequence[int]:
    """The first ones that there is room for."""
    chosen: list[int] = []
    for index, count in enumerate(counts):
        if count <= size:
            chosen.append(index)
            size -= count
    return chosen


def follows(
    waiting: Waiting,
    producers: Mapping[int, tuple[int, int]],
    pending: Counter[tuple[int, int, int]],
) -> bool:
    """Whether each idempotent producer's first batch follows what is placed already."""
    seen: set[int] = set()
    for extent in waiting.extents:
        producer = extent.producer_id
        if producer < 0 or producer in seen:
            continue
        seen.add(producer)
        known = producers.get(producer)
        if known is None:
            if pending[producer, extent.producer_epoch, extent.base_sequence] > 0:
                return False  # its predecessor waits, in another writer's queue
        elif not is_next(known, extent):
            return False
    return True


def is_next(known: tuple[int, int], extent: BatchExtent) -> bool:
    epoch, last_sequence = known
    if extent.producer_epoch != epoch:
        return extent.producer_epoch > epoch and extent.base_sequence == 0
    return extent.base_sequence == next_sequence(last_sequence)
