"""The store of a log file: the file that holds its records.

File `<20-digit base index>.store`:

    byte  0  magic       4 bytes "DLss"
          4  version     u16  1
          6  zero        u16
          8  salt        u32  random, never 0
         12  base index  u64  index of the first record
         20  CRC32C      u32  over bytes 0 .. 19
         24  records back to back

A record:

    byte  0  salt        u32  the store's
          4  length      u32  of the content
          8  index       u64
         16  unsynced    u32  how many records before this one were not durable yet
         20  CRC32C      u32  over the content, then bytes 0 .. 19
         24  content

The salt is in every record, under its CRC, so that bytes of another file or of the disk's past
never pass for a record, and so that whole records can be found behind a damaged one. A streamed
record's length and CRC are known only at its end: its content is written first, its header last,
and until the header is there the record is not.

`unsynced` tells a torn group from damage. Records that share one sync may reach the disk in any
order, so a crash can leave a hole with whole records behind it; nobody was told about any of them
and they may be cut. But a whole record that says "everything up to here was durable before me"
convicts a bad record in front of it: that one had been promised.

Used by wal/segmented_log/log_file.py alone. All methods raise StorageFailed when the disk
refuses.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from wal.crc import Buffer, crc32c
from wal.errors import AppendTooLarge, CorruptLog
from wal.segmented_log.log_directory import LogDirectory, OpenFile

STORE_SUFFIX: Final = ".store"
FORMAT_VERSION: Final = 1

FILE_HEADER: Final = struct.Struct(">4sHHIQI")
assert FILE_HEADER.size == 24
_FILE_HEADER_FIELDS: Final = struct.Struct(">4sHHIQ")

RECORD_HEADER: Final = struct.Struct(">IIQII")
assert RECORD_HEADER.size == 24
_RECORD_HEADER_FIELDS: Final = struct.Struct(">IIQI")

_STORE_MAGIC: Final = b"DLss"
_U32: Final = struct.Struct(">I")
_FLUSH_BYTES: Final = 1 << 20
"""A streamed append holds back at most about this much (and `_FLUSH_FRAGMENTS`) before writing."""
_FLUSH_FRAGMENTS: Final = 256
SCAN_BYTES: Final = 1 << 20
"""How much a scan reads at once, unless a record is larger."""


def file_name(base_index: int, suffix: str) -> str:
    return f"{base_index:020d}{suffix}"


def pack_file_header(magic: bytes, salt: int, base_index: int) -> bytes:
    """The header that store and index files share in form."""
    fields = _FILE_HEADER_FIELDS.pack(magic, FORMAT_VERSION, 0, salt, base_index)
    return fields + _U32.pack(crc32c(fields))


def parse_file_header(header: bytes, magic: bytes) -> tuple[int, int, int] | None:
    """(version, salt, base index), or None when `header` is not a whole header of this kind."""
    if len(header) != FILE_HEADER.size:
        return None
    found_magic, version, _, salt, base_index, crc = FILE_HEADER.unpack(header)
    whole = crc == crc32c(header[: _FILE_HEADER_FIELDS.size])
    if not whole or found_magic != magic:
        return None
    return version, salt, base_index


class DamagedRecord(CorruptLog):
    """The record at `position` of a store, whose index would be `index`, fails its checks."""

    def __init__(self, name: str, position: int, index: int, problem: str) -> None:
        super().__init__(f"{name}: record {index} at byte {position}: {problem}")
        self.position = position
        self.index = index


class StoredRecord(NamedTuple):
    """A record that passed all checks."""

    position: int
    content: bytes


class LogFileStore:
    """One open store file. `size_bytes` is where the next record goes."""

    __slots__ = ("_file", "_salt_bytes", "base_index", "name", "salt", "size_bytes")

    def __init__(self, file: OpenFile, salt: int, base_index: int, size_bytes: int) -> None:
        self._file = file
        self._salt_bytes = _U32.pack(salt)
        self.name = str(file.path)
        self.salt = salt
        self.base_index = base_index
        self.size_bytes = size_bytes

    @classmethod
    def create(cls, directory: LogDirectory, base_index: int, salt: int) -> "LogFileStore":
        """An empty store whose header is durable; its name is so once the directory is synced."""
        file = directory.create(file_name(base_index, STORE_SUFFIX))
        try:
            file.write(0, (pack_file_header(_STORE_MAGIC, salt, base_index),))
            file.sync()
        except BaseException:
            file.close()
            raise
        return cls(file, salt, base_index, FILE_HEADER.size)

    @classmethod
    def open(cls, directory: LogDirectory, base_index: int) -> "LogFileStore | None":
        """The store of `base_index`; None when a crash interrupted its creation.

        Raises: CorruptLog when it is gone, is of another version, or holds more than its damaged
        header.
        """
        name = file_name(base_index, STORE_SUFFIX)
        file = directory.open(name)
        if file is None:
            raise CorruptLog(f"{directory}/{name}: is gone")
        try:
            size = file.size_bytes()
            header = parse_file_header(file.read(0, FILE_HEADER.size), _STORE_MAGIC)
            if header is None and size <= FILE_HEADER.size:
                file.close()
                return None
            if header is None:
                raise CorruptLog(f"{file.path}: damaged file header at byte 0")
            version, salt, told_index = header
            if version != FORMAT_VERSION:
                raise CorruptLog(
                    f"{file.path}: format version {version};"
                    f" this release reads version {FORMAT_VERSION}"
                )
            if told_index != base_index:
                raise CorruptLog(f"{file.path}: its header says base index {told_index}")
        except BaseException:
            file.close()
            raise
        return cls(file, salt, base_index, size)

    def append(
        self, index: int, unsynced: int, fragments: Iterable[Buffer], content_bytes_max: int
    ) -> int:
        """Write one record at the end and return the position behind it.

        The record belongs to the store once `size_bytes` is set to that, which is the caller's to
        do; until then, and after any exception, `truncate(size_bytes)` takes away what was written.
        Raises: AppendTooLarge as soon as the fragments exceed `content_bytes_max`; those up to
        there may be written, nothing of the one that crosses it is.
        """
        start = self.size_bytes
        content_start = start + RECORD_HEADER.size
        held: list[Buffer] = []
        held_bytes = flushed_bytes = crc = 0
        for fragment in fragments:
            length = len(fragment)
            if flushed_bytes + held_bytes + length > content_bytes_max:
                raise AppendTooLarge(
                    f"{self.name}: an append ran past its threshold of {content_bytes_max} bytes"
                )
            crc = crc32c(fragment, crc)
            held.append(fragment)
            held_bytes += length
            if held_bytes >= _FLUSH_BYTES or len(held) >= _FLUSH_FRAGMENTS:
                self._file.write(content_start + flushed_bytes, held)
                flushed_bytes += held_bytes
                held_bytes = 0
                held = []
        length = flushed_bytes + held_bytes
        fields = _RECORD_HEADER_FIELDS.pack(self.salt, length, index, unsynced)
        header = fields + _U32.pack(crc32c(fields, crc))
        if flushed_bytes:
            self._file.write(content_start + flushed_bytes, held)
            self._file.write(start, (header,))
        else:
            self._file.write(start, (header, *held))
        return content_start + length

    def truncate(self, size_bytes: int) -> None:
        """Forget what lies behind, even if the file cannot be shortened and this raises."""
        self.size_bytes = size_bytes
        self._file.truncate(size_bytes)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def scan(
        self,
        index: int,
        position: int = FILE_HEADER.size,
        read_ahead_bytes: int = SCAN_BYTES,
    ) -> Iterator[StoredRecord]:
        """The records from `position` to the end, the first of which must have `index`.

        Raises: DamagedRecord at the first one that fails its checks.
        """
        block = b""
        block_start = position
        while position < self.size_bytes:
            at = position - block_start
            if at + RECORD_HEADER.size > len(block):
                block = self._file.read(position, max(read_ahead_bytes, RECORD_HEADER.size))
                block_start, at = position, 0
                if len(block) < RECORD_HEADER.size:
                    raise DamagedRecord(self.name, position, index, "header cut off")
            salt, length, found_index, _, crc = RECORD_HEADER.unpack_from(block, at)
            if salt != self.salt or found_index != index:
                raise DamagedRecord(self.name, position, index, "not a record header of this file")
            total = RECORD_HEADER.size + length
            if total > self.size_bytes - position:
                raise DamagedRecord(self.name, position, index, "runs past the end of the file")
            if at + total > len(block):
                block = self._file.read(position, max(total, read_ahead_bytes))
                block_start, at = position, 0
                if len(block) < total:
                    raise DamagedRecord(self.name, position, index, "cut off")
            content = block[at + RECORD_HEADER.size : at + total]
            if crc != _record_crc(block, at, content):
                raise DamagedRecord(self.name, position, index, "CRC does not fit")
            yield StoredRecord(position, content)
            position += total
            index += 1

    def proves_durable(self, damaged: DamagedRecord) -> bool:
        """Whether a whole record behind `damaged` says that `damaged` was durable before it."""
        position = damaged.position + 1
        while position < self.size_bytes:
            block = self._file.read(position, SCAN_BYTES + len(self._salt_bytes) - 1)
            found = block.find(self._salt_bytes)
            while found >= 0:
                if self._is_whole_and_after(position + found, damaged.index):
                    return True
                found = block.find(self._salt_bytes, found + 1)
            position += SCAN_BYTES
        return False

    def _is_whole_and_after(self, position: int, durable_index: int) -> bool:
        header = self._file.read(position, RECORD_HEADER.size)
        if len(header) < RECORD_HEADER.size:
            return False
        _, length, index, unsynced, crc = RECORD_HEADER.unpack(header)
        end = position + RECORD_HEADER.size + length
        if index - unsynced <= durable_index or end > self.size_bytes:
            return False
        content = self._file.read(position + RECORD_HEADER.size, length)
        return bool(crc == _record_crc(header, 0, content))


def _record_crc(buffer: bytes, position: int, content: Buffer) -> int:
    fields = buffer[position : position + _RECORD_HEADER_FIELDS.size]
    return crc32c(fields, crc32c(content))
