"""A log of records on local files, each a store with an index.

The log holds records `lowest_index` .. `highest_index - 1`; every record is a byte string with its
own CRC. Records can be appended at the end, read by index, and pruned from the start. All appends
go to the *write file*, the newest; when it has reached its capacity it becomes a read file and a
new write file starts. wal/segmented_log/log_file.py describes one of them.

Its owner calls it from one thread at a time; every call blocks. metadata/log/local_log.py is the
log's user.

Invariants (I1-I4 are checked when the log is opened and by `verify`):

I1  lowest_index = files[0].base_index; highest_index = write_file.next_index.
I2  files[n + 1].base_index = files[n].next_index: no gap, no overlap.
I3  In a store records lie back to back: position[i + 1] = position[i] + 24 + length[i].
I4  Every file but the last is whole: it was synced, index included, before its successor was
    created. So only the last one can have a torn tail.
I5  durable_index <= highest_index; records below it survive a loss of power. `sync` moves it.
I6  A failed call leaves the log as it was: what an append wrote is cut off again, durably, before
    the error is raised. When even that fails the log refuses all further writes.
I7  A failed sync is final, be it of a store, an index or the directory. The kernel marks the pages
    clean that it could not write, so that the next sync would succeed without them: what was not
    durable before is taken back, and the log refuses writes with StorageFailed until it is opened
    again.

Appends are streams: an append takes an iterable of fragments of unknown total length, and is cut
off with AppendTooLarge at the smallest of what the caller allows (`append_threshold`) and what the
file allows: capacity - size + overflow capacity. The overflow capacity is what a last record may
exceed the capacity by, so that a file is filled without knowing lengths in advance.

Opening a log recovers it by the same code whether it was closed or killed. A bad record at the end
of the last file is a torn tail: its append was never reported durable, so it is cut. A bad
record in an older file, or in front of a record that was written when the bad one was durable,
is damage, and CorruptLog: cutting there could lose what was promised. An index that is missing,
short or damaged is built again from its store. What is recovered is synced before it is served,
because a killed process may have left records that are whole but only in the page cache.

Source: the laminarmq crate's `segmented_log` (indices, streamed appends, overflow capacity).
"""

import random
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, NamedTuple

from wal.crc import Buffer
from wal.errors import CorruptLog, OutOfBounds, StorageFailed
from wal.segmented_log.log_directory import LogDirectory, SyncFailed
from wal.segmented_log.log_file import LogFile, remove_log_file
from wal.segmented_log.log_file_index import INDEX_SUFFIX
from wal.segmented_log.log_file_store import SCAN_BYTES, STORE_SUFFIX, file_name

DEFAULT_FILE_CAPACITY_BYTES: Final = 64 << 20

_FILE_NAME: Final = re.compile(r"(\d{20})(\.store|\.index)")
_READ_AHEAD_BYTES: Final = 4096
"""What a read of one record fetches with its header, in the hope that it is all."""


class _ReadFile(NamedTuple):
    """A full file; its files are open only while somebody reads them."""

    base_index: int
    next_index: int


class SegmentedLog:
    """See the module's docstring. Create with `SegmentedLog.open`."""

    def __init__(
        self,
        directory: LogDirectory,
        rng: random.Random,
        file_capacity_bytes: int,
        file_overflow_bytes: int,
    ) -> None:
        self._directory = directory
        self._rng = rng
        self._capacity_bytes = file_capacity_bytes
        self._overflow_bytes = file_overflow_bytes
        self._failure: str | None = None
        self._cut_bytes = 0
        self._read_files: list[_ReadFile]
        self._write_file: LogFile
        self._read_files, self._write_file = self._recover()
        self._durable_index = self.highest_index

    @classmethod
    def open(
        cls,
        directory: LogDirectory,
        *,
        rng: random.Random,
        file_capacity_bytes: int = DEFAULT_FILE_CAPACITY_BYTES,
        file_overflow_bytes: int | None = None,
    ) -> "SegmentedLog":
        """Open the log in `directory`, or start one at index 0; recovers what a crash left.

        `file_overflow_bytes` defaults to half the capacity. `rng` gives each file its salt.
        Raises: CorruptLog naming the file and the byte, StorageFailed.
        """
        if file_overflow_bytes is None:
            file_overflow_bytes = file_capacity_bytes // 2
        return cls(directory, rng, file_capacity_bytes, file_overflow_bytes)

    @property
    def lowest_index(self) -> int:
        """Index of the first record; equals `highest_index` when the log is empty."""
        if self._read_files:
            return self._read_files[0].base_index
        return self._write_file.base_index

    @property
    def highest_index(self) -> int:
        """The index that the next record will get."""
        return self._write_file.next_index

    @property
    def durable_index(self) -> int:
        """Records below it survive a loss of power."""
        return self._durable_index

    @property
    def failure(self) -> str | None:
        """Why the log refuses writes until it is opened again; None while it takes them."""
        return self._failure

    @property
    def cut_bytes(self) -> int:
        """The bytes of a torn tail that were cut when the log was opened."""
        return self._cut_bytes

    @property
    def file_count(self) -> int:
        return len(self._read_files) + 1

    def append_many(
        self, records: Iterable[Iterable[Buffer]], *, append_threshold: int | None = None
    ) -> int:
        """Append records in order, all or none, and return the index of the first one.

        Each is made of fragments, which are consumed as they are written, and only up to where they
        exceed the threshold (see the module's docstring); they may block, and what they raise comes
        out of here unchanged. Records may span files. They are durable after `sync`; a crash before
        it may keep a prefix of them.
        Raises: AppendTooLarge, StorageFailed. After any exception the log is as it was.
        """
        self._refuse_writes_after_failure()
        first_index = self.highest_index
        try:
            for fragments in records:
                self._append_one(fragments, append_threshold)
        except BaseException as error:
            if isinstance(error, SyncFailed):
                self._fail(str(error))
                first_index = min(first_index, self._durable_index)
            self._take_back(first_index)
            raise
        return first_index

    def sync(self) -> None:
        """Make every record durable. Raises: StorageFailed, and then for ever (I7)."""
        self._refuse_writes_after_failure()
        if self._durable_index == self.highest_index:
            return
        try:
            self._write_file.store.sync()
        except StorageFailed as error:
            self._fail(str(error))
            self._take_back(self._durable_index)
            raise
        self._durable_index = self.highest_index

    def read(self, index: int) -> bytes:
        """The content of record `index`. Raises: OutOfBounds, CorruptLog, StorageFailed."""
        if not self.lowest_index <= index < self.highest_index:
            raise self._out_of_bounds(index)
        with self._file_of(index) as file:
            return next(file.records_from(index, _READ_AHEAD_BYTES))

    def read_from(self, index: int, max_bytes: int) -> Sequence[bytes]:
        """Records from `index` on, as many as fit into `max_bytes`, but at least one.

        Empty exactly when `index` is `highest_index`.
        Raises: OutOfBounds (below the lowest or above the highest index), CorruptLog,
        StorageFailed.
        """
        if not self.lowest_index <= index <= self.highest_index:
            raise self._out_of_bounds(index)
        records: list[bytes] = []
        total_bytes = 0
        read_ahead_bytes = min(max(max_bytes, _READ_AHEAD_BYTES), SCAN_BYTES)
        while index < self.highest_index:
            with self._file_of(index) as file:
                for record in file.records_from(index, read_ahead_bytes):
                    total_bytes += len(record)
                    if records and total_bytes > max_bytes:
                        return records
                    records.append(record)
                    index += 1
        return records

    def prune(self, index: int) -> int:
        """Remove the files that lie wholly below `index` and return the new lowest index.

        The write file stays, whatever `index` is.
        Raises: OutOfBounds (above the highest index), StorageFailed (some may be removed, some
        not; the log is whole, and takes further writes unless it was a sync that failed).
        """
        if index > self.highest_index:
            raise self._out_of_bounds(index)
        # Oldest first: whenever this stops, what is left has no gap.
        try:
            while self._read_files and self._read_files[0].next_index <= index:
                remove_log_file(self._directory, self._read_files[0].base_index)
                del self._read_files[0]
        except SyncFailed as error:
            self._fail(str(error))
            raise
        return self.lowest_index

    def verify(self) -> int:
        """Read and check every record; returns how many there are. Raises: CorruptLog."""
        count = 0
        bases = [file.base_index for file in self._read_files]
        for base_index in (*bases, self._write_file.base_index):
            with self._file_of(base_index) as file:
                count += sum(1 for _ in file.store.scan(base_index))
        if count != self.highest_index - self.lowest_index:
            raise CorruptLog(
                f"{self._directory}: {count} records in the stores of"
                f" {self.lowest_index} .. {self.highest_index}"
            )
        return count

    def close(self) -> None:
        """Let go of the files; syncs nothing."""
        self._write_file.close()

    # --- appending ---------------------------------------------------------------------------

    def _append_one(self, fragments: Iterable[Buffer], append_threshold: int | None) -> None:
        file = self._write_file
        if file.store.size_bytes >= self._capacity_bytes and file.index.entry_count:
            self._rotate()
            file = self._write_file
        content_bytes_max = self._capacity_bytes - file.store.size_bytes + self._overflow_bytes
        if append_threshold is not None:
            content_bytes_max = min(append_threshold, content_bytes_max)
        file.append(
            fragments,
            unsynced=file.next_index - self._durable_index,
            content_bytes_max=content_bytes_max,
        )

    def _rotate(self) -> None:
        """Make the write file a read file (I4) and start the next one."""
        full = self._write_file
        self.sync()
        # From now on the index is believed entry by entry. Without this sync a power cut could
        # bring back entries of records that were taken back: whole, but of records that are gone.
        full.index.sync()
        try:
            self._write_file = LogFile.create(self._directory, full.next_index, self._rng)
        except StorageFailed:
            # The half-made file must not stay: taking back could put it behind a gap (I2).
            try:
                remove_log_file(self._directory, full.next_index)
            except StorageFailed as error:
                self._fail(str(error))
            raise
        self._read_files.append(_ReadFile(full.base_index, full.next_index))
        full.close()

    # --- taking back -------------------------------------------------------------------------

    def _take_back(self, index: int) -> None:
        """Undo what failed, down to `index`; the caller is about to raise why it failed."""
        try:
            self._cut_back(min(index, self.highest_index))
        except (StorageFailed, CorruptLog) as error:
            self._fail(f"cannot take back what follows record {index}: {error}")

    def _cut_back(self, index: int) -> None:
        """Make `index` the highest index, durably; whole files go newest first (I2)."""
        self._durable_index = min(self._durable_index, index)
        while self._read_files and self._write_file.base_index > index:
            reopened = LogFile.open(self._directory, *self._read_files[-1])
            dropped, self._write_file = self._write_file, reopened
            del self._read_files[-1]
            dropped.close()
            remove_log_file(self._directory, dropped.base_index)
        self._write_file.cut(index)

    def _refuse_writes_after_failure(self) -> None:
        if self._failure is not None:
            raise StorageFailed(
                f"{self._directory}: no writes until the log is opened again: {self._failure}"
            )

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    # --- files -------------------------------------------------------------------------------

    @contextmanager
    def _file_of(self, index: int) -> Iterator[LogFile]:
        """The log file that holds record `index`, open for the duration."""
        if index >= self._write_file.base_index:
            yield self._write_file
            return
        number = bisect_right(self._read_files, index, key=lambda file: file.base_index)
        file = LogFile.open(self._directory, *self._read_files[number - 1])
        try:
            yield file
        finally:
            file.close()

    def _out_of_bounds(self, index: int) -> OutOfBounds:
        return OutOfBounds(
            f"{self._directory}: index {index} is not within"
            f" {self.lowest_index} .. {self.highest_index}"
        )

    def _recover(self) -> tuple[list[_ReadFile], LogFile]:
        stores: list[int] = []
        indexes: list[int] = []
        for name in self._directory.names():
            if match := _FILE_NAME.fullmatch(name):
                (stores if match[2] == STORE_SUFFIX else indexes).append(int(match[1]))
        for base_index in set(indexes).difference(stores):
            self._directory.remove(file_name(base_index, INDEX_SUFFIX))
        if not stores:
            return [], LogFile.create(self._directory, 0, self._rng)
        stores.sort()
        read_files = [_ReadFile(*bounds) for bounds in pairwise(stores)]
        for bounds in read_files:
            LogFile.open(self._directory, *bounds).close()
        write_file, self._cut_bytes = LogFile.recover(self._directory, stores[-1], self._rng)
        return read_files, write_file
