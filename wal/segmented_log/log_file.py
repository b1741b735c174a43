"""A log file: records that follow each other in the log, as a store and an index beside it.

The store (wal/segmented_log/log_file_store.py) is the truth; the index
(wal/segmented_log/log_file_index.py) follows from it and is built again when it is missing, short
or damaged. Only the newest file of a log can have a torn tail, and only `recover` cuts one.

Used by wal/segmented_log/segmented_log.py alone. Everything raises StorageFailed when the disk
refuses.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from wal.crc import Buffer
from wal.errors import CorruptLog
from wal.segmented_log.log_directory import LogDirectory
from wal.segmented_log.log_file_index import INDEX_SUFFIX, LogFileIndex
from wal.segmented_log.log_file_store import (
    SCAN_BYTES,
    STORE_SUFFIX,
    DamagedRecord,
    LogFileStore,
    file_name,
)

_SALT_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class LogFile:
    """One open log file. Create with `create`, `open` or `recover`."""

    store: LogFileStore
    index: LogFileIndex

    @classmethod
    def create(cls, directory: LogDirectory, base_index: int, rng: random.Random) -> "LogFile":
        """An empty file, which is durable with its name; `rng` gives it its salt."""
        salt = rng.getrandbits(_SALT_BITS) or 1
        with ExitStack() as opened:
            store = LogFileStore.create(directory, base_index, salt)
            opened.callback(store.close)
            index = LogFileIndex.create(directory, base_index, salt)
            opened.callback(index.close)
            directory.sync()
            opened.pop_all()
        return cls(store, index)

    @classmethod
    def open(cls, directory: LogDirectory, base_index: int, next_index: int) -> "LogFile":
        """A file that must hold exactly `base_index` .. `next_index - 1`.

        Reads only the last record; the others are checked when they are read, and all of them when
        the index has to be built again.
        Raises: CorruptLog.
        """
        store = LogFileStore.open(directory, base_index)
        if store is None:
            raise CorruptLog(
                f"{file_name(base_index, STORE_SUFFIX)}: damaged file header at byte 0"
            )
        with ExitStack() as opened:
            opened.callback(store.close)
            index = _sound_index(directory, store, next_index)
            if index is None:
                positions = [record.position for record in store.scan(base_index)]
                if base_index + len(positions) != next_index:
                    raise CorruptLog(
                        f"{store.name}: ends at byte {store.size_bytes} with record"
                        f" {base_index + len(positions) - 1} where {next_index - 1} should be the"
                        " last"
                    )
                index = LogFileIndex.create(directory, base_index, store.salt, positions)
            opened.pop_all()
        return cls(store, index)

    @classmethod
    def recover(
        cls, directory: LogDirectory, base_index: int, rng: random.Random
    ) -> tuple["LogFile", int]:
        """The newest file as a crash left it, synced, and how many bytes of it were cut.

        Raises: CorruptLog (a record that was durable is damaged).
        """
        store = LogFileStore.open(directory, base_index)
        if store is None:
            # Its header is made durable before anything is appended, so there was nothing in it.
            return cls.create(directory, base_index, rng), 0
        with ExitStack() as opened:
            opened.callback(store.close)
            cut_bytes = 0
            positions: list[int] = []
            try:
                positions.extend(record.position for record in store.scan(base_index))
            except DamagedRecord as damaged:
                if store.proves_durable(damaged):
                    raise
                cut_bytes = store.size_bytes - damaged.position
                store.truncate(damaged.position)
            index = LogFileIndex.open(directory, base_index, store.salt)
            if index is None or not index.holds(positions):
                if index is not None:
                    index.close()
                index = LogFileIndex.create(directory, base_index, store.salt, positions)
            opened.callback(index.close)
            store.sync()
            directory.sync()
            opened.pop_all()
        return cls(store, index), cut_bytes

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

    def records_from(self, index: int, read_ahead_bytes: int = SCAN_BYTES) -> Iterator[bytes]:
        """The contents of record `index` and those behind it. Raises: CorruptLog."""
        for record in self.store.scan(index, self._position_of(index), read_ahead_bytes):
            yield record.content

    def cut(self, index: int) -> None:
        """Durably drop the records from `index` on; they are forgotten even when this fails."""
        size_bytes = self.store.size_bytes  # behind it lies what a failed append has left
        if index < self.next_index:
            size_bytes = self._position_of(index)
        try:
            self.store.truncate(size_bytes)
        finally:
            self.index.truncate(index - self.base_index)
        self.store.sync()

    def close(self) -> None:
        self.store.close()
        self.index.close()

    def _position_of(self, index: int) -> int:
        """Where record `index` lies in the store, by the index or, failing that, by search."""
        try:
            return self.index.position_of(index)
        except CorruptLog:
            for number, record in enumerate(self.store.scan(self.base_index)):
                if self.base_index + number == index:
                    return record.position
            raise


def remove_log_file(directory: LogDirectory, base_index: int) -> None:
    """Remove what there is of a log file, durably.

    Durably, because removals of several files that are not synced one by one may reach the disk in
    any order, and then leave a gap (I2 of wal/segmented_log/segmented_log.py).
    """
    wanted = {file_name(base_index, suffix) for suffix in (STORE_SUFFIX, INDEX_SUFFIX)}
    for name in sorted(wanted.intersection(directory.names()), reverse=True):
        directory.remove(name)
    directory.sync()


def _sound_index(
    directory: LogDirectory, store: LogFileStore, next_index: int
) -> LogFileIndex | None:
    """The index of a store that ends at `next_index`, if there is one that fits.

    Raises: DamagedRecord (the last record itself is damaged).
    """
    index = LogFileIndex.open(directory, store.base_index, store.salt)
    if index is None:
        return None
    with ExitStack() as opened:
        opened.callback(index.close)
        if index.entry_count != next_index - store.base_index:
            return None
        try:
            last = index.position_of(next_index - 1)
        except CorruptLog:
            return None
        if sum(1 for _ in store.scan(next_index - 1, last)) != 1:
            return None
        opened.pop_all()
    return index
