"""The metadata log of an embedded broker: a segmented log in a local directory.

Every entry of the segmented log is one batch, as the RecordBatch bytes of
metadata/log/log_batch.py. The segmented log counts batches, the metadata log counts records; each
batch carries its base offset, so an offset is found by bisection over the batches, or at once when
it is where the last read ended, as in a replay.

All files are touched by one worker thread, in the order of the calls; that is what makes L3 of
metadata/log/log.py true and keeps the event loop free during an fdatasync. An append writes its
batches and syncs once.

When something fails:
- a write (disk full, I/O error): the segmented log takes it back, durably. CommitFailed; the log
  goes on, and takes the next append once the disk does.
- a sync, or the taking back: what the disk holds is unknown. CommitOutcomeUnknown, then
  NotCoordinator for every later append until the directory is opened again. Reads go on, up to the
  last good sync.
- damage found on opening or reading: CorruptLog. Nothing is repaired here except a torn tail.

The directory is locked for as long as the log is open, because two writers would each see a whole
log of their own. That lock is the election: an open log leads, without a call of `lead`, until it
is closed or its disk fails a sync. `lead` is an append like any other, so that a coordinator can
begin its term in the same way on every log; `refresh` finds nothing, and the lease never expires.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from metadata.log.log import MetadataRecordBatch
from metadata.log.log_batch import decode_batch, encode_batch
from wal.disk import SYSTEM_DISK, Disk
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    CorruptLog,
    NotCoordinator,
    OutOfBounds,
    Overloaded,
    StorageFailed,
)
from wal.failpoint import failpoint
from wal.segmented_log.log_directory import DirectoryLock, LogDirectory
from wal.segmented_log.segmented_log import SegmentedLog
from wal.settings import setting
from wal.worker_threads import Job, WorkerThreads

LOG_DIRECTORY: Final = "log"
"""Where the log lies in the directory of its metadata partition."""

APPENDS_UNDER_WAY_MAX: Final = 64
_VERIFY_BYTES: Final = 1 << 20

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLogSettings:
    """How the local metadata log lies on disk."""

    segment_bytes: int = setting(
        "metadata.log.segment.bytes",
        64 << 20,
        minimum=16 << 20,
        maximum=1 << 30,
        why="smaller: more files, and half of it bounds the record of one commit;"
        " larger: pruning frees space later, opening reads more",
    )

    @property
    def batch_max_bytes(self) -> int:
        """The largest batch: what fits into a log file's overflow, however full the file is."""
        return self.segment_bytes // 2


class LocalMetadataLog:
    """A `MetadataLog` (metadata/log/log.py) in a directory. Create with `LocalMetadataLog.open`."""

    def __init__(
        self,
        lock: DirectoryLock,
        log: SegmentedLog,
        settings: LocalLogSettings,
        worker: WorkerThreads,
    ) -> None:
        self._lock = lock
        self._log = log
        self._settings = settings
        self._worker = worker
        self._appends_under_way = 0
        self._closed = False
        # From here on these belong to the worker thread; the event loop only looks at the offsets.
        self._start_offset = 0
        self._end_offset = 0
        self._hint = (0, log.lowest_index)
        """An offset that begins a batch, and that batch's index in the segmented log."""
        if log.highest_index > log.lowest_index:
            self._start_offset = self._batch_at(log.lowest_index).base_offset
            self._end_offset = self._batch_at(log.highest_index - 1).next_offset
            self._hint = (self._start_offset, log.lowest_index)

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        rng: random.Random,
        settings: LocalLogSettings | None = None,
        disk: Disk = SYSTEM_DISK,
    ) -> "LocalMetadataLog":
        """Lock and open the log in `directory`, or start one at offset 0.

        Raises: NotCoordinator (somebody else has it open), CorruptLog, StorageFailed.
        """
        # The generator is used by the worker thread, hence one of its own.
        salts = random.Random(rng.getrandbits(64))
        worker = WorkerThreads("metadata-log", 1)
        opened: list[LocalMetadataLog] = []

        def open_in_worker() -> None:
            chosen = settings or LocalLogSettings()
            lock = _lock(directory)
            try:
                log = SegmentedLog.open(
                    LogDirectory(directory, disk),
                    rng=salts,
                    file_capacity_bytes=chosen.segment_bytes,
                    file_overflow_bytes=chosen.batch_max_bytes,
                )
                try:
                    opened.append(cls(lock, log, chosen, worker))
                except BaseException:
                    log.close()
                    raise
            except BaseException:
                lock.close()
                raise

        def close_in_worker() -> None:
            for log in opened:
                log._close_in_worker()

        try:
            await worker.run(open_in_worker)
        except BaseException:
            # A cancelled caller leaves the opening under way; what it opens is closed behind it.
            worker.begin(close_in_worker)
            worker.end()
            raise
        return opened[0]

    @property
    def start_offset(self) -> int:
        return self._start_offset

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def cut_bytes(self) -> int:
        """The bytes of a torn tail that were cut when the log was opened."""
        return self._log.cut_bytes

    @property
    def lease_expires_at(self) -> float | None:
        """See `MetadataLog.lease_expires_at`: never, while it can append."""
        return None if self._closed or self._log.failure is not None else math.inf

    @property
    def proven_since(self) -> float | None:
        """See `MetadataLog.proven_since`: for ever, while it can append."""
        return self.lease_expires_at

    async def prove(self) -> None:
        """See `MetadataLog.prove`: nobody else can have appended."""
        if self.lease_expires_at is None:
            raise NotCoordinator("this metadata log does not append any more")

    async def refresh(self) -> int:
        """See `MetadataLog.refresh`: nobody else can have appended."""
        if self._closed:
            raise NotCoordinator("this metadata log is closed")
        return self._end_offset

    async def peek(self) -> bool:
        """See `MetadataLog.peek`: nobody else appends here."""
        return False

    async def lead(self, records: Sequence[bytes], timestamp_ms: int, *, at_offset: int) -> int:
        """See `MetadataLog.lead`; an append."""
        if at_offset < self._end_offset:
            raise NotCoordinator(f"the metadata log is at {self._end_offset}, not at {at_offset}")
        return await self.append([records], timestamp_ms, at_offset=at_offset)

    async def append(
        self,
        batches: Sequence[Sequence[bytes]],
        timestamp_ms: int,
        *,
        at_offset: int | None = None,
    ) -> int:
        """See `MetadataLog.append`; one fdatasync per call."""
        return await self._begin(
            lambda: self._append_in_worker(batches, timestamp_ms, at_offset)
        ).ended()

    def begin_append(
        self,
        batches: Sequence[Sequence[bytes]],
        timestamp_ms: int,
        *,
        at_offset: int,
        then: Callable[[], _Result],
    ) -> Job[_Result]:
        """See `ThreadLog.begin_append`; one fdatasync per call."""

        def work() -> _Result:
            self._append_in_worker(batches, timestamp_ms, at_offset)
            return then()

        return self._begin(work)

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        """See `MetadataLog.read`."""
        return await self._submit(lambda: self._read_in_worker(offset, max_bytes)).ended()

    async def read_encoded(self, offset: int, max_bytes: int) -> Sequence[bytes]:
        """See `MetadataLog.read_encoded`."""
        batches = await self.read(offset, max_bytes)
        return [encode_batch(*batch) for batch in batches]

    async def prune(self, before_offset: int) -> int:
        """See `MetadataLog.prune`; frees whole log files."""
        return await self._submit(lambda: self._prune_in_worker(before_offset)).ended()

    async def verify(self) -> int:
        """Read and check everything; returns the number of records. Raises: CorruptLog."""
        return await self._submit(self._verify_in_worker).ended()

    async def close(self) -> None:
        """See `MetadataLog.close`; a second call does nothing."""
        if self._closed:
            return
        closing = self._submit(self._close_in_worker)
        self._closed = True
        self._worker.end()
        await closing.ended()

    def _submit(
        self, work: Callable[[], _Result], *, on_end: Callable[[], None] | None = None
    ) -> Job[_Result]:
        """Queue `work` for the worker; it always runs.

        An append that a cancellation took out of the queue would be a hole for those behind it.
        """
        if self._closed:
            raise NotCoordinator("this metadata log is closed")
        return self._worker.begin(work, on_end=on_end)

    def _begin(self, append: Callable[[], _Result]) -> Job[_Result]:
        """Queue an append. Raises: Overloaded, NotCoordinator."""
        if self._appends_under_way >= APPENDS_UNDER_WAY_MAX:
            raise Overloaded(f"{self._appends_under_way} metadata appends are under way")
        job = self._submit(append, on_end=self._append_done)
        self._appends_under_way += 1
        return job

    def _append_done(self) -> None:
        self._appends_under_way -= 1

    # --- in the worker thread ----------------------------------------------------------------

    def _append_in_worker(
        self, batches: Sequence[Sequence[bytes]], timestamp_ms: int, at_offset: int | None
    ) -> int:
        if self._log.failure is not None:
            raise NotCoordinator(f"the metadata log must be opened again: {self._log.failure}")
        base_offset = self._end_offset
        if at_offset is not None and at_offset != base_offset:
            raise CommitFailed(f"the metadata log ends at {base_offset}, not at {at_offset}")
        entries = []
        next_offset = base_offset
        for records in batches:
            # In one piece: most batches are of small records, and joining these is faster than
            # many fragments are.
            entries.append((encode_batch(next_offset, timestamp_ms, records),))
            next_offset += len(records)
        try:
            self._log.append_many(entries, append_threshold=self._settings.batch_max_bytes)
        except StorageFailed as error:
            if self._log.failure is not None:
                raise CommitOutcomeUnknown(f"metadata append at {base_offset}: {error}") from error
            raise CommitFailed(f"metadata append at {base_offset}: {error}") from error
        failpoint("log.before_sync")
        try:
            self._log.sync()
        except StorageFailed as error:
            raise CommitOutcomeUnknown(f"metadata append at {base_offset}: {error}") from error
        self._end_offset = next_offset
        return base_offset

    def _read_in_worker(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        if not self._start_offset <= offset <= self._end_offset:
            raise self._out_of_bounds(offset)
        if offset == self._end_offset:
            return []
        index = self._index_of(offset)
        batches: list[MetadataRecordBatch] = []
        for entry in self._log.read_from(index, max_bytes):
            batch = decode_batch(entry)
            if batches and batch.base_offset != batches[-1].next_offset:
                raise CorruptLog(
                    f"metadata batch {batch.base_offset} follows {batches[-1].next_offset - 1}"
                )
            batches.append(batch)
        self._hint = (batches[-1].next_offset, index + len(batches))
        return batches

    def _prune_in_worker(self, before_offset: int) -> int:
        if before_offset > self._end_offset:
            raise self._out_of_bounds(before_offset)
        if before_offset > self._start_offset:
            # The last batch stays: it alone knows the offset at which the log goes on.
            last_index = self._log.highest_index - 1
            keep = (
                last_index if before_offset == self._end_offset else self._index_of(before_offset)
            )
            lowest_index = self._log.prune(keep)
            self._start_offset = self._batch_at(lowest_index).base_offset
        return self._start_offset

    def _verify_in_worker(self) -> int:
        self._log.verify()
        offset = self._start_offset
        while offset < self._end_offset:
            offset = self._read_in_worker(offset, _VERIFY_BYTES)[-1].next_offset
        return offset - self._start_offset

    def _close_in_worker(self) -> None:
        try:
            self._log.close()
        finally:
            self._lock.close()

    def _index_of(self, offset: int) -> int:
        """Index of the batch that contains `offset`, which must be in the log."""
        if self._hint[0] == offset:
            return self._hint[1]
        low, high = self._log.lowest_index, self._log.highest_index
        while high - low > 1:
            middle = (low + high) // 2
            if self._batch_at(middle).base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    def _batch_at(self, index: int) -> MetadataRecordBatch:
        return decode_batch(self._log.read(index))

    def _out_of_bounds(self, offset: int) -> OutOfBounds:
        return OutOfBounds(
            f"metadata offset {offset} is not within {self._start_offset} .. {self._end_offset}"
        )


def _lock(directory: Path) -> DirectoryLock:
    try:
        return DirectoryLock(directory)
    except BlockingIOError as error:
        raise NotCoordinator(f"{directory}: this metadata log is open elsewhere") from error
    except OSError as error:
        raise StorageFailed(f"{directory}: {error}") from error
