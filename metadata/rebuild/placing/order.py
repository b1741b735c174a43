"""Orders the runs without notes that share a place: a gap, or the tail.

One writer's runs lie in the order of their ULIDs. Those of several are merged one by one:
next comes a run whose floor is reached, whose producers' sequences follow what is placed, and whose
object was stored first: an object is committed just after it is stored, and a writer commits in
order, so the latest of its objects up to this one counts. Batches that are there already are left
out on the way.

Called by metadata/rebuild/placing/placement.py.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from metadata.rebuild.layout import Why
from metadata.rebuild.placing.fixed import FixedLog
from metadata.rebuild.placing.gaps import Waiting, follows, is_next
from metadata.state.producer_state import next_sequence


class Ordered(NamedTuple):
    """Runs in their order, without duplicates."""

    runs: Sequence[Waiting]
    competing: int
    """How many writers' runs fit at the first place in doubt; 0 where none is."""
    competing_at: int
    doubts: Sequence[str]


def in_order(log: FixedLog, runs: Sequence[Waiting], start: int) -> Ordered:
    """Merge the writers' runs, from offset `start` on; each writer's come by ULID."""
    return _Merge(log, runs, start).merged()


class _Merge:
    def __init__(self, log: FixedLog, runs: Sequence[Waiting], start: int) -> None:
        self._log = log
        self._position = start
        self._queues: dict[tuple[int, int], deque[tuple[int, Waiting]]] = defaultdict(deque)
        latest: dict[tuple[int, int], int] = {}
        for waiting in runs:
            source = waiting.run.source
            stored_ms = max(latest.get(source.writer, 0), source.stored_ms)
            latest[source.writer] = stored_ms
            self._queues[source.writer].append((stored_ms, waiting))
        self._producers = log.producers_before(start)
        self._pending = Counter(
            (extent.producer_id, extent.producer_epoch, next_sequence(extent.last_sequence))
            for waiting in runs
            for extent in waiting.extents
            if extent.producer_id >= 0
        )
        self._doubts: list[str] = []

    def merged(self) -> Ordered:
        ordered: list[Waiting] = []
        competing, competing_at = 0, 0
        while self._queues:
            heads = [queue[0][1] for queue in self._queues.values()]
            possible = sum(head.run.floor <= self._position for head in heads)
            if possible > 1 and not competing:
                competing, competing_at = possible, self._position
            waiting = self._take()
            kept = self._without_duplicates(waiting)
            self._position = max(self._position, waiting.run.floor) + kept.record_count
            if kept.positions:
                ordered.append(kept)
        return Ordered(ordered, competing, competing_at, self._doubts)

    def _take(self) -> Waiting:
        def rank(writer: tuple[int, int]) -> tuple[int, bool, int, str]:
            stored_ms, head = self._queues[writer][0]
            return (
                max(head.run.floor - self._position, 0),
                not follows(head, self._producers, self._pending),
                stored_ms,
                head.run.source.ulid,
            )

        writer = min(self._queues, key=rank)
        waiting = self._queues[writer].popleft()[1]
        if not self._queues[writer]:
            del self._queues[writer]
        return waiting

    def _without_duplicates(self, waiting: Waiting) -> Waiting:
        """Note what a run does to its producers' sequences; without the duplicates in it."""
        kept: list[int] = []
        source = waiting.run.source
        for position in waiting.positions:
            extent = source.extents[position]
            if extent.producer_id >= 0:
                following = next_sequence(extent.last_sequence)
                self._pending[extent.producer_id, extent.producer_epoch, following] -= 1
                if self._log.is_duplicate(extent):
                    self._log.leave_out(source, position, Why.DUPLICATE)
                    continue
                known = self._producers.get(extent.producer_id)
                if known is not None and not is_next(known, extent):
                    self._doubts.append(
                        f"{source.object_key}: sequence {extent.base_sequence} of producer"
                        f" {extent.producer_id} does not follow {known[1]}; it is kept"
                    )
                self._producers[extent.producer_id] = extent.producer_epoch, extent.last_sequence
                self._log.remember(extent)
            kept.append(position)
        return Waiting(waiting.run, kept)
