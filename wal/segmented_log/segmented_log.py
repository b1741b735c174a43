"""A log of records on local files: segments with a store and an index each.

The log holds records `lowest_index` .. `highest_index - 1`; every record is a byte string with its
own CRC. Records can be appended at the end, read by index, and dropped from either end. All appends
go to the *write segment*, the newest; when it has reached its capacity it becomes a read segment
and a new write segment starts. wal/segmented_log/segment_store.py and
wal/segmented_log/segment_index.py describe the files.

Whoever owns a log calls it from one thread at a time; every call blocks. metadata/log/local_log.py
is the log's user.

Invariants (I1-I4 are checked when the log is opened and by `verify`):

I1  lowest_index = segments[0].base_index; highest_index = write_segment.next_index.
I2  segments[n + 1].base_index = segments[n].next_index: no gap, no overlap.
I3  In a store records lie back to back: position[i + 1] = position[i] + 24 + length[i].
I4  Every segment but the last is whole: it was synced, index included, before its successor was
    created. So only the last one can have a torn tail.
I5  durable_index <= highest_index; records below it survive a loss of power. `sync` moves it.
I6  A failed call leaves the log as it was: what an append wrote is cut off again, durably, before
    the error is raised. When even that fails the log refuses all further writes.
I7  A failed sync is final, be it of a store, an index or the directory. The kernel marks the pages
    clean that it could not write, so that the next sync would succeed without them: what was not
    durable before is taken back, and the log refuses writes with StorageFailed until it is opened
    again.

Appends are streams: an append takes an iterable of fragments whose total length nobody knows, and
is cut off with AppendTooLarge at the smallest of what the caller allows (`append_threshold`) and
what the segment allows: capacity - size + overflow capacity. The overflow capacity is what a last
record may exceed the capacity by, so that a segment is filled without knowing lengths in advance.

Opening a log recovers it by the same code whether it was closed or killed. A bad record at the end
of the last segment is a torn tail: its append was never reported durable, so it is cut. A bad
record in an older segment, or in front of a record that was written when the bad one was durable,
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
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from wal.crc import Buffer
from wal.errors import CorruptLog, OutOfBounds, StorageFailed
from wal.segmented_log.log_directory import LogDirectory, SyncFailed
from wal.segmented_log.segment_index import INDEX_SUFFIX, SegmentIndex
from wal.segmented_log.segment_store import (
    SCAN_BYTES,
    STORE_SUFFIX,
    DamagedRecord,
    SegmentStore,
    segment_name,
)

DEFAULT_SEGMENT_CAPACITY_BYTES: Final = 64 << 20

_SEGMENT_FILE: Final = re.compile(r"(\d{20})(\.store|\.index)")
_SALT_BITS: Final = 32
_READ_AHEAD_BYTES: Final = 4096
"""What a read of one record fetches with its header, in the hope that it is all."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """One open segment."""

    store: SegmentStore
    index: SegmentIndex

    @property
    def base_index(self) -> int:
        return self.store.base_index

    @property
    def next_index(self) -> int:
        return self.store.base_index + self.index.entry_count

    def append(self, fragments: Iterable[Buffer], *, unsynced: int, content_bytes_max: int) -> None:
        end = self.store.append(self.next_index, unsynced, fragments, content_bytes_max)
        self.index.append(self.store.size_bytes)
        self.store.size_bytes = end

    def cut(self, size_bytes: int, next_index: int) -> None:
        """Durably drop what lies behind; it is forgotten even when this fails."""
        try:
            self.store.truncate(size_bytes)
        finally:
            self.index.truncate(next_index - self.base_index)
        self.store.sync()

    def close(self) -> None:
        self.store.close()
        self.index.close()


class _ReadSegment(NamedTuple):
    """A full segment; its files are open only while somebody reads them."""

    base_index: int
    next_index: int


class SegmentedLog:
    """See the module's docstring. Create with `SegmentedLog.open`."""

    def __init__(
        self,
        directory: LogDirectory,
        rng: random.Random,
        segment_capacity_bytes: int,
        segment_overflow_bytes: int,
    ) -> None:
        self._directory = directory
        self._rng = rng
        self._capacity_bytes = segment_capacity_bytes
        self._overflow_bytes = segment_overflow_bytes
        self._failure: str | None = None
        self._cut_bytes = 0
        self._read_segments: list[_ReadSegment]
        self._write_segment: _Segment
        self._read_segments, self._write_segment = self._recover()
        self._durable_index = self.highest_index

    @classmethod
    def open(
        cls,
        directory: LogDirectory,
        *,
        rng: random.Random,
        segment_capacity_bytes: int = DEFAULT_SEGMENT_CAPACITY_BYTES,
        segment_overflow_bytes: int | None = None,
    ) -> "SegmentedLog":
        """Open the log in `directory`, or start one at index 0; recovers what a crash left.

        `segment_overflow_bytes` defaults to half the capacity. `rng` gives each segment its salt.
        Raises: CorruptLog naming the file and the byte, StorageFailed.
        """
        if segment_overflow_bytes is None:
            segment_overflow_bytes = segment_capacity_bytes // 2
        return cls(directory, rng, segment_capacity_bytes, segment_overflow_bytes)

    @property
    def lowest_index(self) -> int:
        """Index of the first record; equals `highest_index` when the log is empty."""
        if self._read_segments:
            return self._read_segments[0].base_index
        return self._write_segment.base_index

    @property
    def highest_index(self) -> int:
        """The index that the next record will get."""
        return self._write_segment.next_index

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
        """How many bytes of a torn tail were cut when the log was opened."""
        return self._cut_bytes

    @property
    def segment_count(self) -> int:
        return len(self._read_segments) + 1

    def append(self, fragments: Iterable[Buffer], *, append_threshold: int | None = None) -> int:
        """Append one record made of `fragments` and return its index; durable after `sync`.

        The fragments are consumed as they are written, and only up to where they exceed the
        threshold (see the module's docstring); they may block, and what they raise comes out of
        here unchanged.
        Raises: AppendTooLarge, StorageFailed. After any exception the log is as it was.
        """
        return self.append_many((fragments,), append_threshold=append_threshold)

    def append_many(
        self, records: Iterable[Iterable[Buffer]], *, append_threshold: int | None = None
    ) -> int:
        """Append records in order, all or none, and return the index of the first one.

        They may span segments. The threshold holds for each of them. A crash before the next
        `sync` may keep a prefix of them.
        Raises: as `append`.
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
            self._write_segment.store.sync()
        except StorageFailed as error:
            self._fail(str(error))
            self._take_back(self._durable_index)
            raise
        self._durable_index = self.highest_index

    def read(self, index: int) -> bytes:
        """The content of record `index`. Raises: OutOfBounds, CorruptLog, StorageFailed."""
        if not self.lowest_index <= index < self.highest_index:
            raise self._out_of_bounds(index)
        with self._segment_of(index) as segment:
            position = self._position(segment, index)
            return next(segment.store.scan(index, position, _READ_AHEAD_BYTES)).content

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
            with self._segment_of(index) as segment:
                position = self._position(segment, index)
                for record in segment.store.scan(index, position, read_ahead_bytes):
                    total_bytes += len(record.content)
                    if records and total_bytes > max_bytes:
                        return records
                    records.append(record.content)
                    index += 1
        return records

    def truncate(self, index: int) -> None:
        """Drop every record from `index` on, durably; `index` becomes the highest index.

        Raises: OutOfBounds, CorruptLog, StorageFailed (the log then refuses further writes).
        """
        self._refuse_writes_after_failure()
        if not self.lowest_index <= index <= self.highest_index:
            raise self._out_of_bounds(index)
        if index == self.highest_index:
            return
        try:
            self._cut_back(index)
        except (StorageFailed, CorruptLog) as error:
            self._fail(f"truncation to {index} failed: {error}")
            raise

    def prune(self, index: int) -> int:
        """Remove the segments that lie wholly below `index` and return the new lowest index.

        The write segment stays, whatever `index` is.
        Raises: OutOfBounds (above the highest index), StorageFailed (some may be removed, some
        not; the log is whole, and takes further writes unless it was a sync that failed).
        """
        if index > self.highest_index:
            raise self._out_of_bounds(index)
        # Oldest first: whenever this stops, what is left has no gap.
        try:
            while self._read_segments and self._read_segments[0].next_index <= index:
                self._remove_files(self._read_segments[0].base_index)
                del self._read_segments[0]
        except SyncFailed as error:
            self._fail(str(error))
            raise
        return self.lowest_index

    def verify(self) -> int:
        """Read and check every record; returns how many there are. Raises: CorruptLog."""
        count = 0
        for base_index in [segment.base_index for segment in self._read_segments]:
            with self._segment_of(base_index) as segment:
                count += sum(1 for _ in segment.store.scan(base_index))
        count += sum(1 for _ in self._write_segment.store.scan(self._write_segment.base_index))
        if count != self.highest_index - self.lowest_index:
            raise CorruptLog(
                f"{self._directory}: {count} records in the stores of"
                f" {self.lowest_index} .. {self.highest_index}"
            )
        return count

    def close(self) -> None:
        """Let go of the files; syncs nothing."""
        self._write_segment.close()

    # --- appending ---------------------------------------------------------------------------

    def _append_one(self, fragments: Iterable[Buffer], append_threshold: int | None) -> None:
        segment = self._write_segment
        if segment.store.size_bytes >= self._capacity_bytes and segment.index.entry_count:
            self._rotate()
            segment = self._write_segment
        content_bytes_max = self._capacity_bytes - segment.store.size_bytes + self._overflow_bytes
        if append_threshold is not None:
            content_bytes_max = min(append_threshold, content_bytes_max)
        segment.append(
            fragments,
            unsynced=segment.next_index - self._durable_index,
            content_bytes_max=content_bytes_max,
        )

    def _rotate(self) -> None:
        """Make the write segment a read segment (I4) and start the next one."""
        full = self._write_segment
        self.sync()
        # From now on the index is believed entry by entry. Without this sync a power cut could
        # bring back entries from before a truncation: whole, but of records that are gone.
        full.index.sync()
        try:
            self._write_segment = self._create_segment(full.next_index)
        except StorageFailed:
            # The half-made segment must not stay: a truncation could put it behind a gap (I2).
            try:
                self._remove_files(full.next_index)
            except StorageFailed as error:
                self._fail(str(error))
            raise
        self._read_segments.append(_ReadSegment(full.base_index, full.next_index))
        full.close()

    def _create_segment(self, base_index: int) -> _Segment:
        salt = self._rng.getrandbits(_SALT_BITS) or 1
        store = SegmentStore.create(self._directory, base_index, salt)
        try:
            index = SegmentIndex.create(self._directory, base_index, salt)
            try:
                self._directory.sync()
            except BaseException:
                index.close()
                raise
        except BaseException:
            store.close()
            raise
        return _Segment(store, index)

    # --- taking back -------------------------------------------------------------------------

    def _take_back(self, index: int) -> None:
        """Undo what failed, down to `index`; the caller is about to raise why it failed."""
        try:
            self._cut_back(min(index, self.highest_index))
        except (StorageFailed, CorruptLog) as error:
            self._fail(f"cannot take back what follows record {index}: {error}")

    def _cut_back(self, index: int) -> None:
        """Make `index` the highest index, durably; whole segments go newest first (I2)."""
        self._durable_index = min(self._durable_index, index)
        while self._read_segments and self._write_segment.base_index > index:
            newest = self._read_segments[-1]
            reopened = self._open_read_segment(newest.base_index, newest.next_index)
            dropped, self._write_segment = self._write_segment, reopened
            del self._read_segments[-1]
            dropped.close()
            self._remove_files(dropped.base_index)
        segment = self._write_segment
        if index < segment.next_index:
            segment.cut(self._position(segment, index), index)
        else:
            segment.cut(segment.store.size_bytes, index)

    def _refuse_writes_after_failure(self) -> None:
        if self._failure is not None:
            raise StorageFailed(
                f"{self._directory}: no writes until the log is opened again: {self._failure}"
            )

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    # --- files -------------------------------------------------------------------------------

    @contextmanager
    def _segment_of(self, index: int) -> Iterator[_Segment]:
        """The segment that holds record `index`, open for the duration."""
        if index >= self._write_segment.base_index:
            yield self._write_segment
            return
        number = bisect_right(self._read_segments, index, key=lambda segment: segment.base_index)
        found = self._read_segments[number - 1]
        segment = self._open_read_segment(found.base_index, found.next_index)
        try:
            yield segment
        finally:
            segment.close()

    def _position(self, segment: _Segment, index: int) -> int:
        """Where record `index` lies in its store, by the index or, failing that, by search."""
        try:
            return segment.index.position_of(index)
        except CorruptLog:
            for number, record in enumerate(segment.store.scan(segment.base_index)):
                if segment.base_index + number == index:
                    return record.position
            raise

    def _open_read_segment(self, base_index: int, next_index: int) -> _Segment:
        """A segment that must hold exactly `base_index` .. `next_index - 1`.

        Reads only the last record; the others are checked when they are read, and all of them when
        the index has to be built again.
        Raises: CorruptLog.
        """
        store = SegmentStore.open(self._directory, base_index)
        if store is None:
            raise CorruptLog(
                f"{segment_name(base_index, STORE_SUFFIX)}: damaged file header at byte 0"
            )
        try:
            index = SegmentIndex.open(self._directory, base_index, store.salt)
            if index is not None:
                try:
                    if index.entry_count == next_index - base_index:
                        last = index.position_of(next_index - 1)
                        if sum(1 for _ in store.scan(next_index - 1, last)) == 1:
                            return _Segment(store, index)
                except DamagedRecord:
                    index.close()
                    raise
                except CorruptLog:
                    pass  # the index misfits: built again below
                index.close()
            positions = [record.position for record in store.scan(base_index)]
            if base_index + len(positions) != next_index:
                raise CorruptLog(
                    f"{store.name}: ends at byte {store.size_bytes} with record"
                    f" {base_index + len(positions) - 1} where {next_index - 1} should be the last"
                )
            return _Segment(
                store, SegmentIndex.create(self._directory, base_index, store.salt, positions)
            )
        except BaseException:
            store.close()
            raise

    def _remove_files(self, base_index: int) -> None:
        """Remove what there is of a segment, durably.

        Durably, because removals of several segments that are not synced one by one may reach the
        disk in any order, and then leave a gap (I2).
        """
        wanted = {segment_name(base_index, suffix) for suffix in (STORE_SUFFIX, INDEX_SUFFIX)}
        for name in sorted(wanted.intersection(self._directory.names()), reverse=True):
            self._directory.remove(name)
        self._directory.sync()

    def _out_of_bounds(self, index: int) -> OutOfBounds:
        return OutOfBounds(
            f"{self._directory}: index {index} is not within"
            f" {self.lowest_index} .. {self.highest_index}"
        )

    # --- recovery ----------------------------------------------------------------------------

    def _recover(self) -> tuple[list[_ReadSegment], _Segment]:
        stores: list[int] = []
        indexes: list[int] = []
        for name in self._directory.names():
            if match := _SEGMENT_FILE.fullmatch(name):
                (stores if match[2] == STORE_SUFFIX else indexes).append(int(match[1]))
        for base_index in set(indexes).difference(stores):
            self._directory.remove(segment_name(base_index, INDEX_SUFFIX))
        if not stores:
            return [], self._create_segment(0)
        stores.sort()
        read_segments = []
        for base_index, next_index in pairwise(stores):
            self._open_read_segment(base_index, next_index).close()
            read_segments.append(_ReadSegment(base_index, next_index))
        return read_segments, self._recover_write_segment(stores[-1])

    def _recover_write_segment(self, base_index: int) -> _Segment:
        store = SegmentStore.open(self._directory, base_index)
        if store is None:
            # Its header is made durable before anything is appended, so there was nothing in it.
            return self._create_segment(base_index)
        try:
            positions: list[int] = []
            try:
                for record in store.scan(base_index):
                    positions.append(record.position)
            except DamagedRecord as damaged:
                if store.proves_durable(damaged):
                    raise
                self._cut_bytes = store.size_bytes - damaged.position
                store.truncate(damaged.position)
            index = SegmentIndex.open(self._directory, base_index, store.salt)
            if index is None or not index.holds(positions):
                if index is not None:
                    index.close()
                index = SegmentIndex.create(self._directory, base_index, store.salt, positions)
            try:
                store.sync()
                self._directory.sync()
            except BaseException:
                index.close()
                raise
            return _Segment(store, index)
        except BaseException:
            store.close()
            raise
