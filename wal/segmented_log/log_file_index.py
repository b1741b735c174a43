"""The index of a log file: where in its store each record lies.

File `<20-digit base index>.index`: the 24-byte file header of wal/segmented_log/log_file_store.py
with magic "DLsi" and the store's salt, then one entry per record, so that entry n is found without
a search:

    byte  0  index     u64
          8  position  u64  of the record in the store
         16  CRC32C    u32  over the salt (u32), then bytes 0 .. 15

The index is derived: everything in it follows from the store. It is written after the store and
never synced before its log file is full; when it lags behind, is missing or does not check, it is
built again (by wal/segmented_log/log_file.py, its only user). A damaged entry is noticed when
it is read.
"""

import struct
from collections.abc import Iterable
from typing import Final

from wal.crc import crc32c
from wal.errors import CorruptLog
from wal.segmented_log.log_directory import LogDirectory, OpenFile
from wal.segmented_log.log_file_store import (
    FILE_HEADER,
    FORMAT_VERSION,
    file_name,
    pack_file_header,
    parse_file_header,
)

INDEX_SUFFIX: Final = ".index"

INDEX_ENTRY: Final = struct.Struct(">QQI")
assert INDEX_ENTRY.size == 20
_SALTED_FIELDS: Final = struct.Struct(">IQQ")
_CRC: Final = struct.Struct(">I")
_SALT_BYTES: Final = 4
_INDEX_MAGIC: Final = b"DLsi"


class LogFileIndex:
    """One open index file. `entry_count` entries are taken as valid; each is checked when read."""

    __slots__ = ("_base_index", "_file", "_salt", "entry_count", "name")

    def __init__(self, file: OpenFile, salt: int, base_index: int, entry_count: int) -> None:
        self._file = file
        self._salt = salt
        self._base_index = base_index
        self.name = str(file.path)
        self.entry_count = entry_count

    @classmethod
    def create(
        cls, directory: LogDirectory, base_index: int, salt: int, positions: Iterable[int] = ()
    ) -> "LogFileIndex":
        """A new index over `positions`, replacing any other."""
        file = directory.create(file_name(base_index, INDEX_SUFFIX))
        try:
            entries = [
                _pack_entry(salt, base_index + number, position)
                for number, position in enumerate(positions)
            ]
            file.write(0, (pack_file_header(_INDEX_MAGIC, salt, base_index), b"".join(entries)))
        except BaseException:
            file.close()
            raise
        return cls(file, salt, base_index, len(entries))

    @classmethod
    def open(cls, directory: LogDirectory, base_index: int, salt: int) -> "LogFileIndex | None":
        """The index of the store with `salt`; None when there is none that fits it in form."""
        file = directory.open(file_name(base_index, INDEX_SUFFIX))
        if file is None:
            return None
        try:
            header = parse_file_header(file.read(0, FILE_HEADER.size), _INDEX_MAGIC)
            count, rest = divmod(file.size_bytes() - FILE_HEADER.size, INDEX_ENTRY.size)
        except BaseException:
            file.close()
            raise
        if header != (FORMAT_VERSION, salt, base_index) or rest:
            file.close()
            return None
        return cls(file, salt, base_index, count)

    def position_of(self, index: int) -> int:
        """Returns where record `index` lies in the store. Raises CorruptLog for a damaged entry."""
        number = index - self._base_index
        at = _entry_position(number)
        entry = self._file.read(at, INDEX_ENTRY.size)
        if len(entry) == INDEX_ENTRY.size:
            found_index, position, _ = INDEX_ENTRY.unpack(entry)
            if found_index == index and entry == _pack_entry(self._salt, index, position):
                return int(position)
        raise CorruptLog(f"{self.name}: damaged entry of record {index} at byte {at}")

    def holds(self, positions: Iterable[int]) -> bool:
        """Whether the entries are exactly those of `positions`."""
        entries = b"".join(
            [
                _pack_entry(self._salt, self._base_index + number, position)
                for number, position in enumerate(positions)
            ]
        )
        # One byte more than wanted, so that an index that runs ahead is noticed.
        return self._file.read(FILE_HEADER.size, len(entries) + 1) == entries

    def append(self, position: int) -> None:
        """Add the entry of the next record; when it fails call `truncate(entry_count)`."""
        entry = _pack_entry(self._salt, self._base_index + self.entry_count, position)
        self._file.write(_entry_position(self.entry_count), (entry,))
        self.entry_count += 1

    def truncate(self, entry_count: int) -> None:
        """Forget what lies behind, even if the file cannot be shortened and this raises."""
        self.entry_count = entry_count
        self._file.truncate(_entry_position(entry_count))

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def _entry_position(number: int) -> int:
    return FILE_HEADER.size + number * INDEX_ENTRY.size


def _pack_entry(salt: int, index: int, position: int) -> bytes:
    salted = _SALTED_FIELDS.pack(salt, index, position)
    return salted[_SALT_BYTES:] + _CRC.pack(crc32c(salted))
