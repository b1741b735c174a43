"""What waits for the outcomes of produced batches, and what a repeated batch waits for.

A delayed produce is one request; it completes with the last outcome of its batches, or at its
deadline. A `BatchWaiter` is the token of one batch on its way to the commit, and gets its outcome.

A client that has waited too long for an answer sends an idempotent batch again, often on a new
connection. While the first is on its way, the second would be stored beside it, only to be found a
duplicate when it is committed: in an outage of the store each batch would be kept as often as its
client's timeout passes, and a client less patient than one round to the store would never get an
answer. So `BatchesUnderWay` names the idempotent batches without outcome, and a batch that has the
name and the content of one is not appended but waits for the outcome of the first.

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
from collections.abc import Sequence
from typing import Final, cast

from diskless.replica.purgatory import DelayedOperation
from metadata.operations import BatchCommit
from wal.errors import OutcomeUnknown
from wal.records.record_batch import BatchHeader

REPEATS_MAX: Final = 5
"""As many requests as an idempotent producer has in flight."""

BatchName = tuple[str, int, int, int]
"""Topic, partition, producer id, first sequence number."""


class DelayedProduce(DelayedOperation):
    """One Produce request; complete when every batch has its outcome."""

    __slots__ = ("future", "open_batches", "results")

    def __init__(self, future: "asyncio.Future[Sequence[BatchCommit]]", count: int) -> None:
        super().__init__()
        self.future = future
        self.results: list[BatchCommit | None] = [None] * count
        self.open_batches = count

    def settle(self, index: int, result: BatchCommit) -> None:
        """The outcome of one batch; late outcomes of an expired produce change nothing."""
        if self.results[index] is None:
            self.results[index] = result
            self.open_batches -= 1
            if not self.open_batches:
                self.force_complete()

    def is_satisfied(self) -> bool:
        return self.open_batches == 0

    def on_expiration(self) -> None:
        timed_out = BatchCommit(
            error=OutcomeUnknown("not committed within the request's timeout; it may still be")
        )
        self.results = [result or timed_out for result in self.results]

    def on_complete(self) -> None:
        if not self.future.done():
            self.future.set_result(cast(list[BatchCommit], self.results))


class BatchWaiter:
    """The token of one pending batch: where its outcome goes."""

    __slots__ = (
        "_has_append_time",
        "_index",
        "_produce",
        "_repeats",
        "content",
        "name",
        "under_way",
    )

    def __init__(
        self,
        produce: DelayedProduce,
        index: int,
        has_append_time: bool,
        topic: str,
        partition: int,
        header: BatchHeader,
    ) -> None:
        self._produce = produce
        self._index = index
        self._has_append_time = has_append_time
        self._repeats: list[BatchWaiter] | None = None
        self.name: BatchName | None = None
        """None: no idempotent producer's, so that nothing repeats it."""
        self.under_way: BatchesUnderWay | None = None
        producer_id = header.producer_id
        if producer_id >= 0:
            self.name = (topic, partition, producer_id, header.base_sequence)
            # A producer may give a sequence again, behind a transaction that it has aborted.
            self.content = (header.producer_epoch, header.record_count, header.crc)

    @property
    def is_waited_for(self) -> bool:
        """Whether the request has no answer yet."""
        return not self._produce.future.done()

    def takes(self, repeat: "BatchWaiter") -> bool:
        """Have `repeat` wait for this batch's outcome; False when it is another, or too many do."""
        if repeat.content != self.content:
            return False
        repeats = [each for each in self._repeats or () if each.is_waited_for]
        if len(repeats) >= REPEATS_MAX:
            return False
        self._repeats = [*repeats, repeat]
        return True

    def batch_done(self, result: BatchCommit) -> None:
        if self.under_way is not None:
            self.under_way.ended(self)
        base_offset, _, log_start_offset, is_duplicate, error = result
        if error is None and not self._has_append_time:
            # Half the time of a call of the NamedTuple.
            answer = base_offset, -1, log_start_offset, is_duplicate, None
            result = tuple.__new__(BatchCommit, answer)
        self._produce.settle(self._index, result)
        if self._repeats is not None:
            if error is not None:
                result = BatchCommit(
                    error=OutcomeUnknown("an earlier sending of this batch failed; send it again")
                )
            for repeat in self._repeats:
                repeat.batch_done(result)


class BatchesUnderWay:
    """Idempotent batches that have no outcome yet, by name."""

    def __init__(self) -> None:
        self._waiters: dict[BatchName, BatchWaiter] = {}
        # Counted since the start.
        self.repeats = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def is_new(self, waiter: BatchWaiter) -> bool:
        """Note an idempotent batch; False if it waits for an earlier one and is not to be appended.

        Of other batches there is nothing to note, and each is new.
        """
        name = waiter.name
        if name is None:
            return True
        first = self._waiters.get(name)
        if first is not None and first.takes(waiter):
            self.repeats += 1
            return False
        self._waiters[name] = waiter
        waiter.under_way = self
        return True

    def ended(self, waiter: BatchWaiter) -> None:
        """Forget a batch that has its outcome."""
        name = waiter.name
        assert name is not None
        if self._waiters.get(name) is waiter:
            del self._waiters[name]
