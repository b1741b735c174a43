"""The write loop: the one task that appends produced batches to chunks.

The produce path calls `append_nowait` with the batches of one request; the broker runs `run()` in
its TaskGroup. Per turn the loop drains what is queued into one grouped append (two system calls,
in its own thread), releases the buffers, and seals the chunk when the policy says so
(wal/write_path/seal_policy.py): a chunk that can be sealed at once is sealed on the same way to the
thread. It asks again after each append, when `look_again` is called (an earlier chunk got its
answer), and at the time that the policy gave. A sealed chunk is handed to `on_sealed`, the
uploader's `submit`, which waits while the uploader has its fill: that is the back pressure.
Appends are still accepted meanwhile; what the queue then holds are the fragments it was given, so
who lends these out (the server, up to `queued.max.request.bytes`) stops long before the queue is
full. Past `wal.append.queue.max.bytes` an append is refused, which no broker should ever see.

Invariants:

- Batches are appended in the order of the `append_nowait` calls, and the batches of one call land
  in the same chunk: they become visible together, or fail together.
- Every accepted batch has exactly one outcome. Its token is in one sealed chunk that `on_sealed`
  took, or the batch was in one call of `on_failed`.
- Payloads are the loop's from acceptance on, and released exactly once: after the write that used
  them returned, also when the task is cancelled meanwhile (a thread cannot be cancelled, so its
  end is awaited first). When `append_nowait` raises, they are still the caller's.
- A chunk seals in time although nothing else is appended: the loop sleeps until then at the latest.

Failure cases: an append that the disk refuses fails its batches with StorageFailed and seals the
chunk with what was in it before; the next append tries a new chunk, so a full disk heals by
itself. Where a number waited too long for its chunk, the append fails with Overloaded. A chunk
whose files somebody deleted fails with ChunkLost when it is sealed. A chunk directory that is gone
and cannot be made anew ends the loop, and the broker, with DirectoryLost. When `run` is cancelled,
queued batches fail with StorageFailed (they are in no chunk); those in the open chunk fail with
CommitOutcomeUnknown, because a restart will recover that chunk and commit it.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog

from wal.chunks.chunk import ChunkWriter, PendingBatches
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.sealed_chunk import BATCH_OVERHEAD_BYTES, SealedChunk
from wal.chunks.wal_settings import WalSettings
from wal.clock import Clock
from wal.errors import (
    AppendTooLarge,
    ChunkLost,
    CommitOutcomeUnknown,
    CorruptBatch,
    DisklessError,
    Overloaded,
    StorageFailed,
)
from wal.failpoint import failpoint
from wal.worker_threads import WorkerThreads
from wal.write_path.chunk_thread import ChunkThread, Written
from wal.write_path.early_puts import EarlyPuts, PutBeside
from wal.write_path.seal_policy import Arrivals, OpenChunk, SealPolicy

__all__ = ["PendingBatches", "WriteLoop", "WriteLoopStatistics"]

log = structlog.get_logger(__name__)

OnSealed = Callable[[SealedChunk], Awaitable[None]]
OnAppended = Callable[[Sequence[PendingBatches]], None]
OnFailed = Callable[[Sequence[PendingBatches], DisklessError], None]

_TIMER_S_MIN: Final = 1e-3
"""What the event loop's timers can tell apart; one that is set for less may fire at once."""


class WriteLoopStatistics(NamedTuple):
    """Counters since the start, and what is waiting now."""

    appends: int
    """Grouped writes."""
    batches: int
    bytes: int
    chunks_sealed: int
    batches_failed: int
    queued_batches: int
    queued_bytes: int
    overloaded: int
    """Calls of `append_nowait` refused because the queue was full."""


class _Group(NamedTuple):
    """The batches of one `append_nowait`, or of one append."""

    batches: Sequence[PendingBatches] = ()
    batch_count: int = 0
    data_bytes: int = 0
    charged_bytes: int = 0


_NOTHING: Final = _Group()


class WriteLoop:
    """Appends to the open chunk; see the module's text."""

    def __init__(
        self,
        directory: ChunkDirectory,
        *,
        settings: WalSettings,
        clock: Clock,
        on_sealed: OnSealed,
        on_failed: OnFailed,
        on_appended: OnAppended | None = None,
        arrivals: Arrivals | None = None,
        under_way: Callable[[], int] = lambda: 0,
        is_behind: Callable[[], bool] = lambda: False,
        puts: EarlyPuts | None = None,
    ) -> None:
        """`on_failed` and `on_appended` are called on the event loop and must not raise.

        `under_way`, `is_behind` and `puts`, which are early, are the uploader's, whose progress
        `look_again` hears of.
        """
        self._settings = settings
        self._clock = clock
        self._on_sealed = on_sealed
        self._on_failed = on_failed
        self._on_appended = on_appended
        self._under_way = under_way
        self._is_behind = is_behind
        self._is_cancelled = False
        self._puts = puts or EarlyPuts(None, under_way=under_way)
        self._blocking = ChunkThread(directory, self._puts, is_cancelled=lambda: self._is_cancelled)
        self._policy = SealPolicy(settings, arrivals or Arrivals())
        self._queue: deque[_Group] = deque()
        self._queued_bytes = 0
        self._queued_batches = 0
        self._calls_queued = 0
        self._calls_taken = 0
        self._wake = asyncio.Event()
        self._is_closing = False
        self._is_closed = False
        self._flushes: list[asyncio.Future[None]] = []
        self._writer: ChunkWriter | None = None
        self._writer_batches: list[PendingBatches] = []
        self._put: PutBeside | None = None
        self._opened_at = 0.0
        self._called_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._is_alarmed = False
        self._appends = self._batches = self._bytes = 0
        self._chunks_sealed = self._batches_failed = self._overloaded = 0

    # For the produce path

    def append_nowait(self, batches: PendingBatches) -> None:
        """Queue the batches of one request, which all land in one chunk; takes their payload over.

        Raises, leaving the payload with the caller: Overloaded (the queue is full), AppendTooLarge
        (more bytes or batches than a chunk may ever hold, or more bytes than their rows say),
        CorruptBatch (less than their rows say), StorageFailed (the loop has ended).
        """
        if self._is_closing or self._is_closed:
            raise StorageFailed("the broker is shutting down")
        if not batches.rows:
            return
        count, data_bytes = batches.batch_count, batches.payload.length_bytes
        announced = batches.rows_bytes
        if data_bytes != announced:
            kind = AppendTooLarge if data_bytes > announced else CorruptBatch
            raise kind(f"{data_bytes} bytes for batches of {announced}")
        settings = self._settings
        threshold = settings.chunk_max_bytes + settings.chunk_overflow_bytes
        if data_bytes > threshold:
            raise AppendTooLarge(f"{data_bytes} bytes in one append, {threshold} are allowed")
        if count > settings.chunk_max_batches:
            # A commit of them all might be more than the coordinator takes.
            raise AppendTooLarge(
                f"{count} batches in one append, {settings.chunk_max_batches} are allowed"
            )
        charged = data_bytes + BATCH_OVERHEAD_BYTES * count
        limit = settings.append_queue_max_bytes
        if self._queued_bytes and self._queued_bytes + charged > limit:
            self._overloaded += 1
            raise Overloaded(f"{self._queued_bytes} bytes wait to be written, {limit} may")
        self._queue.append(_Group((batches,), count, data_bytes, charged))
        self._calls_queued += 1
        self._queued_bytes += charged
        self._queued_batches += count
        self._called_at = self._clock.monotonic()
        self._policy.arrived(count)
        self._wake.set()

    async def flush(self) -> None:
        """Return when everything queued before this call is in a chunk that `on_sealed` took.

        Raises: StorageFailed when the loop ended before.
        """
        if self._is_closed:
            raise StorageFailed("the write loop has ended")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append(future)
        self._wake.set()
        await future

    def look_again(self, answered: int = 0, chunks: int = 0) -> None:
        """See what may be sealed now that `answered` batches were, of the oldest chunks."""
        if answered:
            self._policy.answered(answered, self._clock.monotonic(), chunks)
        if self._writer is not None:
            self._wake.set()

    def close(self) -> None:
        """Accept nothing more; `run` seals what is left, hands it over and returns."""
        self._is_closing = True
        self._wake.set()

    def statistics(self) -> WriteLoopStatistics:
        return WriteLoopStatistics(
            appends=self._appends,
            batches=self._batches,
            bytes=self._bytes,
            chunks_sealed=self._chunks_sealed,
            batches_failed=self._batches_failed,
            queued_batches=self._queued_batches,
            queued_bytes=self._queued_bytes,
            overloaded=self._overloaded,
        )

    # The task

    async def run(self) -> None:
        """Append and seal until closed or cancelled; returns after `close`. Run it once."""
        thread = WorkerThreads("wal-append", 1)
        try:
            while True:
                self._wake.clear()
                # Taken before the queue is drained: what these flushes wait for is in it.
                flushes, self._flushes = self._flushes, []
                try:
                    await self._drain(thread, must_seal=bool(flushes) or self._is_closing)
                    # What came during the append counts as arrived, so it belongs into the chunk.
                    if self._writer is not None and (flushes or self._is_closing or self._is_due()):
                        await self._write(thread, _NOTHING, seals=True)
                except BaseException:
                    self._flushes += flushes
                    raise
                for future in flushes:
                    if not future.done():
                        future.set_result(None)
                if self._is_closing and not self._queue and not self._flushes:
                    return
                await self._sleep()
        finally:
            self._is_closed = True
            if self._alarm is not None:
                self._alarm.cancel()
            self._abandon_all()
            thread.end()
            thread.join()

    async def _sleep(self) -> None:
        """Until there is something to do: an append, a flush, a close, or the policy's time."""
        if self._writer is not None and (seal_at := self._seal_at()) < math.inf:
            self._set_alarm(seal_at)
        await self._wake.wait()
        if self._is_alarmed:
            self._is_alarmed = False
            # If the event loop was busy until now, what has arrived meanwhile is not read yet.
            await asyncio.sleep(0)

    def _set_alarm(self, at: float) -> None:
        """Wake at a time, or a little earlier: an alarm that is set stays where it is."""
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        delay = max(at - self._clock.monotonic(), _TIMER_S_MIN)
        self._alarm = asyncio.get_running_loop().call_later(delay, self._alarmed)
        self._alarm_at = at

    def _alarmed(self) -> None:
        self._alarm = None
        self._is_alarmed = True
        self._wake.set()

    def _is_due(self) -> bool:
        return not self._queue and self._seal_at() <= self._clock.monotonic()

    def _seal_at(self, group: _Group = _NOTHING, *, is_full: bool = False) -> float:
        """When the open chunk may be sealed, with `group` in it."""
        writer, settings = self._writer, self._settings
        data_bytes, count = group.data_bytes, group.batch_count
        opened_at = self._called_at
        if writer is not None:
            data_bytes += writer.data_bytes
            count += writer.batch_count
            opened_at = self._opened_at
            is_full |= not writer.is_appendable
        is_full |= data_bytes >= settings.chunk_max_bytes or count >= settings.chunk_max_batches
        chunk = OpenChunk(opened_at, self._called_at, data_bytes, is_full)
        return self._policy.seal_at(chunk, under_way=self._under_way(), is_behind=self._is_behind())

    async def _drain(self, thread: WorkerThreads, *, must_seal: bool) -> None:
        """Append what is queued by now, sealing each chunk that may be sealed on the way.

        What is queued meanwhile waits for the next turn, so that a flush ends under any load. What
        finds no room in a full chunk waits until that may be sealed, unless it must be.
        """
        last_call = self._calls_queued
        while self._calls_taken < last_call:
            group, is_full = self._take_group()
            if not group.batches and not is_full:
                return
            seals = self._seal_at(group, is_full=is_full) <= self._clock.monotonic()
            seals |= is_full and must_seal
            if not group.batches and not seals:
                return
            await self._write(thread, group, seals=seals)

    def _take_group(self) -> tuple[_Group, bool]:
        """The calls that still fit into the open chunk, and whether the next one did not.

        A call that is larger than a whole chunk gets a chunk of its own.
        """
        settings = self._settings
        bytes_max = self._policy.bytes_max(self._clock.monotonic())
        before_bytes = before = 0
        if self._writer is not None:
            if not self._writer.is_appendable:
                return _NOTHING, True
            before_bytes = self._writer.data_bytes
            before = self._writer.batch_count
        batches: list[PendingBatches] = []
        count = charged = data_bytes = 0
        is_full = False
        while self._queue:
            call = self._queue[0]
            if (batches or self._writer is not None) and (
                before_bytes + data_bytes + call.data_bytes > bytes_max
                or before + count + call.batch_count > settings.chunk_max_batches
            ):
                is_full = True
                break
            self._queue.popleft()
            self._calls_taken += 1
            batches += call.batches
            count += call.batch_count
            data_bytes += call.data_bytes
            charged += call.charged_bytes
        self._queued_bytes -= charged
        self._queued_batches -= count
        return _Group(batches, count, data_bytes, charged), is_full

    async def _write(self, thread: WorkerThreads, group: _Group, *, seals: bool) -> None:
        """Append `group`, and with `seals` seal the chunk and hand it over."""
        started, data_bytes = self._clock.monotonic(), group.data_bytes
        writer = self._writer
        if writer is None:
            self._opened_at = started
            self._put = self._puts.beside(group.batch_count, data_bytes, seals=seals)
        else:
            data_bytes += writer.data_bytes
        if seals:
            self._policy.sealed(started, data_bytes)
        write, earlier, put = self._blocking.write, self._writer_batches, self._put
        job = thread.begin(lambda: write(writer, earlier, group.batches, seals=seals, put=put))
        cancelled: asyncio.CancelledError | None = None
        try:
            written = await job.ended()
        except asyncio.CancelledError as cancellation:
            self._is_cancelled = True
            written = await job.to_the_end()  # It uses buffers and files that are given back then.
            cancelled = cancellation
        self._writer = written.writer
        if written.writer is None:
            self._put = None
        self._settle(group, written)
        error = cancelled or written.error
        if written.writer is None and seals:
            await self._hand_over(written.chunk, error)
        elif error is not None:
            raise error

    def _settle(self, group: _Group, written: Written) -> None:
        """Each batch of an append is in the open chunk, or has failed."""
        batches = group.batches
        if written.is_appended:
            for batch in batches:
                batch.payload.release()
            self._writer_batches += batches
            self._appends += 1
            self._batches += group.batch_count
            self._bytes += group.data_bytes
            if self._on_appended is not None:
                self._on_appended(batches)
        elif batches:
            refused = written.refused or StorageFailed("the broker stopped while it wrote")
            log.error("append failed", error=str(refused), batches=group.batch_count)
            self._fail(group, refused)

    async def _hand_over(self, chunk: SealedChunk | None, error: BaseException | None) -> None:
        """Hand over what is sealed, or tell its batches why it is not."""
        batches, self._writer_batches = self._writer_batches, []
        try:
            if error is not None:
                raise error
            if chunk is not None:
                await self._on_sealed(chunk)
        except ChunkLost as lost:
            count = sum([some.batch_count for some in batches])
            log.error("chunk lost", batches=count, error=str(lost))
            self._batches_failed += count
            self._on_failed(batches, lost)
            return
        except BaseException:
            self._on_failed(batches, _stopped())
            raise
        if chunk is not None:
            self._chunks_sealed += 1
            failpoint("chunk.after_seal")

    def _fail(self, group: _Group, error: DisklessError) -> None:
        for batches in group.batches:
            batches.payload.release()
        self._batches_failed += group.batch_count
        self._on_failed(group.batches, error)

    def _abandon_all(self) -> None:
        """The loop ends: everything it still holds gets its outcome."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            if self._put is not None:
                self._put.give_up()
            batches, self._writer_batches = self._writer_batches, []
            self._on_failed(batches, _stopped())
        while self._queue:
            stopped = StorageFailed("the broker stopped before it wrote this batch")
            self._fail(self._queue.popleft(), stopped)
        self._queued_bytes = self._queued_batches = 0
        for future in self._flushes:
            if not future.done():
                future.set_exception(StorageFailed("the write loop has ended"))
        self._flushes = []


def _stopped() -> CommitOutcomeUnknown:
    return CommitOutcomeUnknown("the broker stopped; its next start commits this batch")
