"""Holds batches that wait for something before they are appended, and hands them on in order.

A batch of a compacted topic has to be opened, one of a topic with a compression.type to be packed
anew, a very large one to be summed (`wal/records/batch_preparation.py`). That takes from a
millisecond to a second, so it happens in threads. A batch of a transaction waits for the number of
its transaction (`diskless/transactions/numbered_batches.py`), which a coordinator knows. But a
producer's batches must reach the write loop in sequence. So a partition with a batch in work is,
for the connection that sent it, a *lane*: what this connection sends later for it waits behind,
whether it needs anything or not, and leaves with its predecessors. Other partitions pass by, and so
do other connections, whose batches have no order with these.

Who gets the threads: connections in turn (`FairWorkers`), a batch at a time. A connection that
sends a thousand batches which inflate to 64 MiB each waits for them itself, and nobody else longer
than for one batch of each connection that does the same. Before a batch is inflated it reserves
what that takes at most from the `InflationBudget`, which all who inflate share.

A batch in a lane still counts in its request's memory, which is what bounds how many there are. One
that becomes larger counts so when it leaves; if the write queue is full then, it is refused with an
error that producers retry at.

A batch that turns out wrong (a record without a key, a codec that cannot read it, too large under
its new codec, not in the transaction) is refused alone; those behind it go on. Long runs of batches
that leave together do so some at a time, with turns of the event loop in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, Self

import structlog

from diskless.loop.fair_workers import FairWorkers
from diskless.transactions.transaction_numbers import Answer
from wal.chunks.batch_rows import batch_row
from wal.chunks.buffer import BufferPool, FragmentChain
from wal.chunks.chunk import NEVER_MS, PendingBatches
from wal.coordinates import NO_TRANSACTION, TopicIdPartition
from wal.errors import DisklessError, StorageFailed, outcome_of
from wal.inflation_budget import InflationBudget
from wal.records.batch_preparation import BatchWork, NeededWork, PreparedBatch, PreparesBatch
from wal.records.record_batch import BatchHeader
from wal.worker_threads import WorkerThreads

THREADS: Final = 2
HANDED_ON_AT_ONCE: Final = 64
"""Batches that leave a lane in one turn of the event loop."""

_log = structlog.get_logger(__name__)


class BeginsWork(Protocol):
    """`wal.records.batch_preparation.BatchWork`."""

    def __call__(
        self, payload: Sequence[memoryview], header: BatchHeader, needed: NeededWork
    ) -> PreparesBatch: ...


class CheckedBatch(NamedTuple):
    """One batch that may have to wait. Its holder owns `payload`, which is exactly the batch."""

    partition: TopicIdPartition
    header: BatchHeader
    timestamp_type: int
    """The topic's message.timestamp.type: CREATE_TIME or LOG_APPEND_TIME."""
    request_id: int
    payload: FragmentChain
    token: Any
    """Of its `pending`."""
    transaction_number: int = NO_TRANSACTION
    """Which transaction of its producer it belongs to."""
    number_asked_ms: int = NEVER_MS

    @property
    def pending(self) -> PendingBatches:
        """What the write loop takes, by itself."""
        topic_id, partition = self.partition
        name = topic_id.bytes
        row = batch_row(
            name,
            partition,
            0,
            self.header,
            self.timestamp_type,
            self.request_id,
            self.transaction_number,
        )
        return PendingBatches(
            bytearray(row), 1, {name: topic_id}, self.payload, self.token, self.number_asked_ms
        )


class _Held(NamedTuple):
    """A batch in a lane; with neither work nor number it only waits for its turn."""

    batch: CheckedBatch
    work: "asyncio.Future[PreparedBatch | DisklessError] | None"
    number: Answer | None

    @property
    def is_ready(self) -> bool:
        is_prepared = self.work is None or self.work.done()
        return is_prepared and (self.number is None or self.number.done())


_LaneKey = tuple[int, TopicIdPartition]


class _Lane:
    """The batches of one connection for one partition, from the first that is in work on."""

    __slots__ = ("hand_on", "held", "key", "refuse")

    def __init__(
        self,
        key: _LaneKey,
        hand_on: Callable[[CheckedBatch], None],
        refuse: Callable[[CheckedBatch, DisklessError], None],
    ) -> None:
        self.key = key
        self.hand_on = hand_on
        self.refuse = refuse
        self.held: deque[_Held] = deque()


class BatchLanes:
    """An async context manager; leaving it waits for the threads and refuses what is left."""

    def __init__(
        self,
        pool: BufferPool,
        budget: InflationBudget,
        *,
        begin: BeginsWork = BatchWork,
    ) -> None:
        self._pool = pool
        self._budget = budget
        self._begin = begin
        self._workers = FairWorkers("prepare", THREADS)
        self._threads = WorkerThreads("prepare", THREADS)
        self._lanes: dict[_LaneKey, _Lane] = {}
        self._is_closing = False
        self.batches_prepared = 0

    async def __aenter__(self) -> Self:
        await self._workers.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        await self._workers.__aexit__()
        await self._threads.close()
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            while lane.held:
                lane.refuse(lane.held.popleft().batch, _stopped())

    @property
    def waiting(self) -> int:
        """Batches that wait for a thread."""
        return self._workers.waiting

    @property
    def are_empty(self) -> bool:
        """Whether nothing has to be waited for; nearly always, and cheaper than to ask for each."""
        return not self._lanes

    def takes(
        self,
        batch: CheckedBatch,
        needed: NeededWork | None,
        *,
        client: int,
        hand_on: Callable[[CheckedBatch], None],
        refuse: Callable[[CheckedBatch, DisklessError], None],
        number: Answer | None = None,
    ) -> bool:
        """Whether `batch` goes through a lane; it is handed on or refused later then, once.

        `client` is the connection it came from, `number` what it gets as the number of its
        transaction. Who is told False hands it on himself, at once.
        """
        has_to_wait = needed is not None or number is not None
        if not has_to_wait and not self._lanes:
            return False
        key = (client, batch.partition)
        lane = self._lanes.get(key)
        if lane is None:
            if not has_to_wait:
                return False
            lane = self._lanes[key] = _Lane(key, hand_on, refuse)
        work = None
        if needed is not None:
            work = self._workers.submit(client, partial(self._prepare, batch, needed))
            # The lane itself, not its name: of several batches that are done in one turn the first
            # callback lets all of them go, and the lane with them.
            work.add_done_callback(lambda _: self._let_leave(lane))
        if number is not None:
            number.add_done_callback(lambda _: self._let_leave(lane))
        lane.held.append(_Held(batch, work, number))
        return True

    async def _prepare(
        self, batch: CheckedBatch, needed: NeededWork
    ) -> PreparedBatch | DisklessError:
        work = self._begin(batch.payload.views(), batch.header, needed)
        memory_bytes = await self._threads.run_to_end(work.measure)
        async with self._budget.reserve(memory_bytes):
            return await self._threads.run_to_end(partial(outcome_of, work.run))

    def _let_leave(self, lane: _Lane) -> None:
        """Let go whatever has nothing before it that is still in work."""
        left = HANDED_ON_AT_ONCE
        while lane.held and lane.held[0].is_ready:
            if not left:
                asyncio.get_running_loop().call_soon(self._let_leave, lane)
                return
            self._let_go(lane, lane.held.popleft())
            left -= 1
        # An earlier call may have emptied this lane, and the next batch opened another one since.
        if not lane.held and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def _let_go(self, lane: _Lane, held: _Held) -> None:
        batch, work, number = held
        if self._is_closing or (work is not None and work.cancelled()):
            lane.refuse(batch, _stopped())
            return
        if number is not None:
            joined = number.result()
            if joined.error is not None:
                lane.refuse(batch, joined.error)
                return
            batch = batch._replace(transaction_number=joined.number)
        if work is None:
            lane.hand_on(batch)
            return
        error = work.exception()
        if error is not None:
            # A bug, but not one that may hold up whatever waits behind.
            _log.error("a batch could not be prepared", exc_info=error)
            lane.refuse(batch, DisklessError(f"preparation failed: {error!r}"))
            return
        outcome = work.result()
        if isinstance(outcome, DisklessError):
            lane.refuse(batch, outcome)
            return
        self.batches_prepared += 1
        if outcome.data is None:
            lane.hand_on(batch)
            return
        payload = self._pool.adopt(outcome.data)
        batch.payload.release()
        lane.hand_on(batch._replace(header=outcome.header, payload=payload))


def _stopped() -> StorageFailed:
    return StorageFailed("the broker is shutting down")
