"""Gaps between offsets that are known, what may belong into them, and what of it fits.

Pure values and arithmetic; metadata/rebuild/placement.py decides with them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metadata.rebuild.layout import Run
from metadata.state.producer_state import next_sequence
from wal.coordinates import BatchExtent, ObjectKey

COMMIT_DELAY_MS: Final = 10_000
"""Objects are committed sooner after they were minted, and brokers' clocks differ by less."""


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


@dataclass(slots=True)
class Gap:
    """Offsets between two fixed pieces, or behind them all."""

    start: int
    end: float
    ends_ms: float
    """When what follows it was committed, at the latest."""
    is_head: bool
    """Nothing lies before it."""
    waiting: list[Waiting] = field(default_factory=list)


class Candidate(NamedTuple):
    """A run that looks for its gap: behind `start`, before `end`."""

    waiting: Waiting
    start: int
    end: float

    @property
    def key(self) -> ObjectKey:
        return self.waiting.run.source.object_key

    def may_be_in(self, gap: Gap) -> bool:
        # Where its broker's later objects prove that it comes first, clocks need not agree.
        slack = COMMIT_DELAY_MS if self.end < math.inf else 0
        return (
            self.start < gap.end <= self.end
            and self.waiting.run.source.minted_ms <= gap.ends_ms + slack
        )


class Bound(NamedTuple):
    """Where a broker's object with this ULID lies, at least roughly."""

    ulid: str
    earlier_end: int
    """What the broker committed before ends at or below this."""
    later_start: int
    """What it committed later starts at or above this."""
    is_itself: bool = False
    """It is a part of the run in question, so that the rest comes later."""


def ulid_of(candidate: Candidate) -> str:
    return candidate.waiting.run.source.ulid


_SUMS_MAX: Final = 20_000
"""Sums looked at to fill a gap exactly."""


def that_fill(counts: Sequence[int], size: int) -> Sequence[int] | None:
    """Which of `counts` add up to `size`, as many as possible; None when none are found."""
    return sums(counts, size).get(size)


def sums(counts: Sequence[int], most: int) -> Mapping[int, tuple[int, ...]]:
    """The sums of some of `counts` up to `most`, each with the places of as many as possible."""
    sums: dict[int, tuple[int, ...]] = {0: ()}
    for index, count in enumerate(counts):
        for total, chosen in list(sums.items()):
            longer = total + count
            if longer <= most and len(chosen) >= len(sums.get(longer, ())):
                sums[longer] = (*chosen, index)
        if len(sums) > _SUMS_MAX:
            break
    return sums


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
                return False  # its predecessor waits, in another broker's queue
        elif not is_next(known, extent):
            return False
    return True


def is_next(known: tuple[int, int], extent: BatchExtent) -> bool:
    epoch, last_sequence = known
    if extent.producer_epoch != epoch:
        return extent.producer_epoch > epoch and extent.base_sequence == 0
    return extent.base_sequence == next_sequence(last_sequence)
