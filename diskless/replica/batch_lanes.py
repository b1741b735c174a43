"""Recompresses produced batches in threads, and hands them on in the order in which they came.

A topic whose compression.type is not `producer` has its batches under one codec, whatever producers
send. That takes milliseconds a batch, so it happens in threads; but a producer's batches must reach
the write loop in sequence. So a partition with a batch under way is a *lane*: what comes later for
it waits behind, whether it needs to be recompressed or not, and leaves with its predecessors. Other
partitions pass by. Batches of a lane are recompressed at the same time, as far as threads go.

Everything here runs on the event loop but the recompression itself. A batch in a lane still counts
in its request's memory, which is what bounds how many there are; inflated, `THREADS` batches exist
at a time.

Records that come compressed and are stored without may be many times as large. They are not counted
as that before they are in the write queue; if that is full then, their batch is refused with an
error that producers retry at.

A batch that cannot be recompressed (its producer's codec is broken, it gets too large) is refused
alone; those behind it go on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

import structlog

from wal.chunks.buffer import BufferPool, chain_of
from wal.chunks.chunk import PendingBatch
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError
from wal.records.batch_validation import INFLATED_BYTES_CEILING, INFLATION_MAX
from wal.records.recompression import Compression, recompressed
from wal.records.record_batch import BatchHeader

THREADS: Final = 2

_log = structlog.get_logger(__name__)


class Recompress(Protocol):
    """`wal.records.recompression.recompressed`."""

    def __call__(
        self,
        payload: Sequence[memoryview],
        header: BatchHeader,
        wanted: Compression,
        *,
        max_bytes: int,
        inflated_bytes_max: int,
    ) -> tuple[BatchHeader, bytes]: ...


_Done = asyncio.Future[tuple[BatchHeader, bytes]]


@dataclass(slots=True)
class _Held:
    """A batch in a lane; `work` is None when it only waits for its turn."""

    batch: PendingBatch
    work: _Done | None


class Recompression:
    """A context manager; leaving it waits for the threads."""

    def __init__(self, pool: BufferPool, *, recompress: Recompress = recompressed) -> None:
        """`recompress` runs in threads."""
        self._pool = pool
        self._recompress = recompress
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="recompress")
        self._lanes: dict[TopicIdPartition, deque[_Held]] = {}
        self.batches_recompressed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor.shutdown()

    def takes(
        self,
        batch: PendingBatch,
        wanted: Compression | None,
        *,
        max_bytes: int,
        hand_on: Callable[[PendingBatch], None],
        refuse: Callable[[PendingBatch, DisklessError], None],
    ) -> bool:
        """Whether `batch` goes through a lane; it is handed on or refused later then, once.

        `wanted` None leaves a batch as it is. Who is told False hands it on himself, at once.
        """
        needs_work = wanted is not None and wanted.codec != batch.header.codec
        if not needs_work and not self._lanes:
            return False  # nearly always; hashing a partition is Python code
        lane = self._lanes.get(batch.partition)
        if lane is None and not needs_work:
            return False
        work: _Done | None = None
        if wanted is not None and needs_work:
            work = asyncio.get_running_loop().run_in_executor(
                self._executor,
                partial(
                    self._recompress,
                    batch.payload.views(),
                    batch.header,
                    wanted,
                    max_bytes=max_bytes,
                    inflated_bytes_max=min(max_bytes * INFLATION_MAX, INFLATED_BYTES_CEILING),
                ),
            )
            work.add_done_callback(lambda _: self._move_on(batch.partition, hand_on, refuse))
        if lane is None:
            lane = self._lanes[batch.partition] = deque()
        lane.append(_Held(batch, work))
        return True

    def _move_on(
        self,
        partition: TopicIdPartition,
        hand_on: Callable[[PendingBatch], None],
        refuse: Callable[[PendingBatch, DisklessError], None],
    ) -> None:
        """Let go whatever has nothing before it that is still under way."""
        lane = self._lanes[partition]
        while lane and (lane[0].work is None or lane[0].work.done()):
            held = lane.popleft()
            if held.work is None:
                hand_on(held.batch)
                continue
            try:
                header, data = held.work.result()
            except DisklessError as error:
                refuse(held.batch, error)
                continue
            except Exception as error:
                # A bug, but not one that may hold up whatever waits behind.
                _log.exception("a batch could not be recompressed")
                refuse(held.batch, DisklessError(f"recompression failed: {error!r}"))
                continue
            payload = chain_of(self._pool, data)
            held.batch.payload.release()
            self.batches_recompressed += 1
            hand_on(held.batch._replace(header=header, payload=payload))
        if not lane:
            del self._lanes[partition]
