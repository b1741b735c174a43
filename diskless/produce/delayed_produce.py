"""What waits for the outcomes of produced batches, and what a repeated batch waits for.

A delayed produce is one request; it completes with the last outcome of its batches, or at its
deadline. A `BatchWaiter` is the token of batches of one request on their way to the commit, which
were handed on together, and gets their outcomes.

A client that has waited too long for an answer sends an idempotent batch again, often on a new
connection. While the first is on its way, the second would be stored beside it, only to be found a
duplicate when it is committed: in an outage of the store each batch would be kept as often as its
client's timeout passes, and a client less patient than one round to the store would never get an
answer. So `BatchesUnderWay` names the idempotent batches without outcome, and a batch that has the
name and the content of one is not appended but waits for the outcome of the first.

Nothing here is an object for each batch but its name, and that of idempotent producers alone: a
waiter has the rows of its batches (wal/chunks/batch_rows.py), and outcomes come and go as they
are, columns as columns.

Invariants:

- A batch that repeats one is acknowledged only with the offset of that one.
- What went wrong with the first is not the second's fault: it is told that its outcome is unknown,
  and its client sends it again, as a new one. Else a batch might be refused as out of order because
  of one that failed before it, although its client has sent both again.
- A name is that of the latest batch that has it, and goes with that batch's outcome.
- At most REPEATS_MAX requests wait for one batch. More are appended: the commit tells duplicates
  by itself (invariant M6).

Source: "Purgatory Redesign"; KIP-98 for what names a batch of an idempotent producer.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from diskless.loop.purgatory import DelayedOperation
from metadata.batch_commits import BatchCommits
from metadata.operations import BatchCommit
from wal.chunks.batch_rows import BATCH_ROW, TIMESTAMP_TYPE_POSITION, row_of_batch
from wal.coordinates import LOG_APPEND_TIME
from wal.errors import DisklessError, OutcomeUnknown

REPEATS_MAX: Final = 5
"""As many requests as an idempotent producer has in flight."""


NO_NAME: Final = b""
"""Of a batch whose producer is not idempotent."""


class _Settled(NamedTuple):
    """Outcomes that came together."""

    positions: Sequence[int]
    """Of the batches in the request; they ascend."""
    results: Sequence[BatchCommit]


class DelayedProduce(DelayedOperation):
    """One Produce request; complete when every batch has its outcome."""

    __slots__ = ("_count", "_open_batches", "_settled", "future")

    def __init__(self, future: "asyncio.Future[Sequence[BatchCommit]]", count: int) -> None:
        super().__init__()
        self.future = future
        self._count = count
        self._open_batches = count
        self._settled: list[_Settled] = []

    def settle(self, positions: Sequence[int], results: Sequence[BatchCommit]) -> None:
        """The outcomes of batches, each of which gets one.

        Late outcomes of an expired produce change nothing.
        """
        if self._open_batches:
            self._settled.append(_Settled(positions, results))
            self._open_batches -= len(positions)
            if not self._open_batches:
                self.force_complete()

    def is_satisfied(self) -> bool:
        return self._open_batches == 0

    def on_expiration(self) -> None:
        open_positions = {*range(self._count)}
        for settled in self._settled:
            open_positions.difference_update(settled.positions)
        timed_out = BatchCommit(
            error=OutcomeUnknown("not committed within the request's timeout; it may still be")
        )
        missing = sorted(open_positions)
        self._settled.append(_Settled(missing, [timed_out] * len(missing)))
        self._open_batches = 0

    def on_complete(self) -> None:
        if not self.future.done():
            self.future.set_result(self._results())

    def _results(self) -> Sequence[BatchCommit]:
        """The outcomes in the order of the request."""
        if not self._settled:
            return ()
        if len(self._settled) == 1:
            return self._settled[0].results
        self._settled.sort(key=_first_position)
        parts = [results for _, results in self._settled]
        columns = [part for part in parts if type(part) is BatchCommits]
        if len(columns) == len(parts) and self._follow_each_other():
            return BatchCommits.joined(columns)
        results = [BatchCommit()] * self._count
        for positions, some in self._settled:
            for position, result in zip(positions, some, strict=True):
                results[position] = result
        return results

    def _follow_each_other(self) -> bool:
        end = 0
        for positions, _ in self._settled:
            if not positions or positions[0] != end or positions[-1] != end + len(positions) - 1:
                return False
            end += len(positions)
        return True


def _first_position(settled: _Settled) -> int:
    return settled.positions[0] if settled.positions else -1


class BatchWaiter:
    """The token of pending batches of one request: where their outcomes go."""

    __slots__ = ("_places", "_positions", "_produce", "_repeats", "_rows", "names", "under_way")

    def __init__(self, produce: DelayedProduce, positions: Sequence[int], rows: bytearray) -> None:
        """`rows` are those of the batches at these positions of the request, which ascend."""
        self._produce = produce
        self._positions = positions
        self._rows = rows
        self._repeats: dict[int, list[BatchWaiter]] = {}
        self._places: dict[bytes, int] | None = None
        self.names: Sequence[bytes] = ()
        """Of the batches, once they are under way; none where nothing repeats one of them."""
        self.under_way: BatchesUnderWay | None = None

    @property
    def is_waited_for(self) -> bool:
        """Whether the request has no answer yet."""
        return not self._produce.future.done()

    def takes(self, name: bytes, repeat: "BatchWaiter") -> bool:
        """Have `repeat`, of one batch, wait for the outcome of the one that has this name.

        False when it is another one, or too many do.
        """
        if self._places is None:
            self._places = {each: place for place, each in enumerate(self.names)}
        place = self._places[name]
        # A producer may give a sequence again, behind a transaction that it has aborted.
        if repeat.content() != self.content(place):
            return False
        repeats = [each for each in self._repeats.get(place, ()) if each.is_waited_for]
        if len(repeats) >= REPEATS_MAX:
            return False
        self._repeats[place] = [*repeats, repeat]
        return True

    def content(self, place: int = 0) -> tuple[int, int, int]:
        """Epoch, record count and CRC of a batch."""
        row = row_of_batch(self._rows, place)
        return row.producer_epoch, row.record_count, row.crc

    def batches_done(
        self, results: Sequence[BatchCommit], places: Sequence[int] | None = None
    ) -> None:
        """The outcomes of the batches at these places, which ascend, or of all."""
        if self.under_way is not None:
            names = self.names
            self.under_way.ended(self, names if places is None else [names[at] for at in places])
        positions = self._positions
        if places is not None:
            positions = [positions[place] for place in places]
        results = self._told(results, places)
        self._produce.settle(positions, results)
        if self._repeats:
            self._tell_repeats(results, range(len(positions)) if places is None else places)

    def all_failed(self, error: DisklessError) -> None:
        """None of them was appended, or is known to be."""
        self.batches_done([BatchCommit(error=error)] * len(self._positions))

    def _told(
        self, results: Sequence[BatchCommit], places: Sequence[int] | None
    ) -> Sequence[BatchCommit]:
        """The outcomes as a producer is told: the time of the append where its topic wants it."""
        types = self._rows[TIMESTAMP_TYPE_POSITION :: BATCH_ROW.size]
        if places is not None:
            types = bytearray(types[place] for place in places)
        if type(results) is BatchCommits:
            return results.without_append_times(np.frombuffer(types, np.uint8) != LOG_APPEND_TIME)
        return [
            result
            if timestamp_type == LOG_APPEND_TIME
            # Half the time of a call of the NamedTuple.
            else tuple.__new__(BatchCommit, (result[0], -1, *result[2:]))
            for timestamp_type, result in zip(types, results, strict=True)
        ]

    def _tell_repeats(self, results: Sequence[BatchCommit], places: Sequence[int]) -> None:
        results = [*results]  # Columns would make all of them for each that is asked for.
        for place, repeats in [*self._repeats.items()]:
            at = bisect_left(places, place)
            if at == len(places) or places[at] != place:
                continue
            del self._repeats[place]
            result = results[at]
            if result.error is not None:
                result = BatchCommit(
                    error=OutcomeUnknown("an earlier sending of this batch failed; send it again")
                )
            for repeat in repeats:
                repeat.batches_done([result])


class BatchesUnderWay:
    """Idempotent batches that have no outcome yet, by name."""

    def __init__(self) -> None:
        self._waiters: dict[bytes, BatchWaiter] = {}
        # Counted since the start.
        self.repeats = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def has(self, name: bytes) -> bool:
        """Whether a batch of this name is under way."""
        return name in self._waiters

    def has_any(self, names: Sequence[bytes]) -> bool:
        """Whether one of them is under way."""
        return not self._waiters.keys().isdisjoint(names)

    def is_repeat(self, name: bytes, waiter: BatchWaiter) -> bool:
        """Whether the one batch of `waiter` waits for an earlier one, and is not to be appended."""
        first = self._waiters.get(name)
        if first is None or not first.takes(name, waiter):
            return False
        self.repeats += 1
        return True

    def add(self, waiter: BatchWaiter, names: Sequence[bytes]) -> None:
        """Note batches that are about to be appended.

        `names` are those of all of its batches, NO_NAME where nothing repeats one.
        """
        waiter.names = names
        waiter.under_way = self
        for name in names:
            if name:
                self._waiters[name] = waiter

    def ended(self, waiter: BatchWaiter, names: Sequence[bytes]) -> None:
        """Forget batches that have their outcome."""
        waiters = self._waiters
        for name in names:
            if waiters.get(name) is waiter:
                del waiters[name]
