"""Reads a chunk's files back and checks every byte of them: for recovery, dumps and `verify`.

The files are laid out as wal/chunks/chunk.py says.

A torn tail is what a crash leaves: those appends never returned, so no acknowledgement depends on
them and they may be cut. A bad record with a good one behind it is damage, and an error.

Source: Mofka's default partition manager, "Crash recovery".
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from wal.chunks.chunk import (
    CHUNK_HEADER_BYTES,
    DESC_CONTENT,
    DESC_RECORD_BYTES,
    INDEX_RECORD,
    META_CONTENT,
    META_RECORD_BYTES,
    NOTES_HEAD,
    NOTES_HEAD_BYTES,
    RECORD_CRC,
    SALT,
    ChunkEntry,
    ChunkIdentity,
    ChunkPaths,
)
from wal.coordinates import TopicIdPartition
from wal.crc import Buffer, crc32c
from wal.disk import SYSTEM_DISK, Disk
from wal.errors import CorruptChunk, StorageFailed
from wal.fd_cache import FdCache, FdHandle
from wal.records.record_batch import CRC_START


class ChunkScan(NamedTuple):
    """What reading a chunk's files found."""

    identity: ChunkIdentity
    entries: Sequence[ChunkEntry]
    """The valid batches, in arrival order."""
    data_bytes: int
    torn: str
    """Why the tail behind `entries` must be cut; empty when there is nothing to cut."""
    notes: bytes | None
    """The object's notes; None when the chunk was not sealed with any."""


def scan_chunk(paths: ChunkPaths, fd_cache: FdCache, *, verify_data: bool) -> ChunkScan | None:
    """Read and check a whole chunk; None when it holds no batch at all.

    `verify_data` also reads .data and checks every batch. The caller cuts what is torn.
    Raises: CorruptChunk (damage that is not a torn tail), StorageFailed (cannot be read now).
    """
    with _scanner(paths, fd_cache, verify_data=verify_data) as scanner:
        return scanner.scan()


def inspect_chunk(
    paths: ChunkPaths, fd_cache: FdCache
) -> tuple[ChunkIdentity, Sequence[ChunkEntry | str]]:
    """The header, and per index record the batch or what is wrong with it: for people to look at.

    Raises: CorruptChunk (without its header or a file nothing can be told), StorageFailed.
    """
    with _scanner(paths, fd_cache, verify_data=True) as scanner:
        return scanner.inspect()


@contextmanager
def _scanner(paths: ChunkPaths, fd_cache: FdCache, *, verify_data: bool) -> Iterator["_Scanner"]:
    try:
        with (
            fd_cache.open(paths.data) as data,
            fd_cache.open(paths.meta) as meta,
            fd_cache.open(paths.desc) as desc,
            fd_cache.open(paths.idx) as index,
        ):
            yield _Scanner(
                paths,
                data if verify_data else None,
                data.size(),
                meta.pread(meta.size(), 0),
                desc.pread(desc.size(), 0),
                index.pread(index.size(), 0),
            )
    except FileNotFoundError as error:
        raise CorruptChunk(f"{error.filename}: this file of the chunk is missing") from error
    except OSError as error:
        raise StorageFailed(f"{paths.idx}: cannot be read: {error}") from error


def cut_tail(paths: ChunkPaths, scan: ChunkScan, disk: Disk = SYSTEM_DISK) -> None:
    """Cut everything behind the scan's valid batches, .idx first. Raises StorageFailed."""
    count = len(scan.entries)
    lengths = (
        (paths.idx, INDEX_RECORD.size * count),
        (paths.meta, CHUNK_HEADER_BYTES + META_RECORD_BYTES * count),
        (paths.desc, DESC_RECORD_BYTES * count),
        (paths.data, scan.data_bytes),
    )
    for path, length in lengths:
        try:
            fd = disk.open(path, os.O_RDWR)
            try:
                disk.ftruncate(fd, length)
            finally:
                disk.close(fd)
        except OSError as error:
            raise StorageFailed(f"{path}: cannot cut the torn tail: {error}") from error


def check_batch(data: Buffer, entry: ChunkEntry) -> bool:
    """Whether `data`, all bytes of one batch, is what was appended."""
    view = memoryview(data)
    return (
        len(view) == entry.length_bytes
        and crc32c(view[:CRC_START]) == entry.head_crc
        and crc32c(view[CRC_START:]) == entry.crc
    )


class _Scanner:
    """The files of one chunk in memory, except .data; see `scan_chunk`."""

    def __init__(
        self,
        paths: ChunkPaths,
        data: FdHandle | None,
        data_size: int,
        meta: bytes,
        desc: bytes,
        index: bytes,
    ) -> None:
        self._paths = paths
        self._data = data
        self._data_size = data_size
        self._meta = memoryview(meta)
        self._desc = memoryview(desc)
        self._index = index
        self._salt_crc = 0
        self._topic_ids: dict[bytes, UUID] = {}

    def scan(self) -> ChunkScan | None:
        count = len(self._index) // INDEX_RECORD.size
        if count == 0:
            # Nothing was ever appended in full, so even a torn header costs nothing.
            return None
        identity = self._read_identity()
        entries: list[ChunkEntry] = []
        data_bytes = 0
        torn = ""
        for sequence in range(count):
            found = self._check(sequence, data_bytes)
            if isinstance(found, str):
                torn = found
                break
            entries.append(found)
            data_bytes += found.length_bytes
        if torn:
            for later in range(len(entries) + 1, count):
                if isinstance(self._check(later, None), ChunkEntry):
                    raise CorruptChunk(f"{torn}, and record {later} behind it is good")
        notes = self._read_notes(count)
        if not torn and self._has_bytes_behind(count, data_bytes, notes):
            torn = f"{self._paths.idx}: bytes behind record {count - 1} that it does not name"
        if not entries:
            return None
        return ChunkScan(identity, entries, data_bytes, torn, None if torn else notes)

    def inspect(self) -> tuple[ChunkIdentity, Sequence[ChunkEntry | str]]:
        identity = self._read_identity()
        count = len(self._index) // INDEX_RECORD.size
        return identity, [self._check(sequence, None) for sequence in range(count)]

    def _read_identity(self) -> ChunkIdentity:
        identity = ChunkIdentity.decode(self._meta, self._paths.meta)
        self._salt_crc = crc32c(SALT.pack(identity.salt))
        return identity

    def _read_notes(self, count: int) -> bytes | None:
        """The valid notes behind `count` records, if that is what is there, and all of it."""
        rest = self._meta[CHUNK_HEADER_BYTES + META_RECORD_BYTES * count :]
        if len(rest) < NOTES_HEAD_BYTES:
            return None
        (crc,) = RECORD_CRC.unpack_from(rest)
        batches, length = NOTES_HEAD.unpack_from(rest, RECORD_CRC.size)
        if (
            batches != count
            or length != len(rest) - NOTES_HEAD_BYTES
            or crc != crc32c(rest[RECORD_CRC.size :], self._salt_crc)
        ):
            return None
        return bytes(rest[NOTES_HEAD_BYTES:])

    def _has_bytes_behind(self, count: int, data_bytes: int, notes: bytes | None) -> bool:
        notes_bytes = 0 if notes is None else NOTES_HEAD_BYTES + len(notes)
        return (
            len(self._index) != INDEX_RECORD.size * count
            or len(self._meta) != CHUNK_HEADER_BYTES + META_RECORD_BYTES * count + notes_bytes
            or len(self._desc) != DESC_RECORD_BYTES * count
            or self._data_size != data_bytes
        )

    def _check(self, sequence: int, expected_offset: int | None) -> ChunkEntry | str:
        """The batch of one index record, or what is wrong with it.

        `expected_offset` is where its bytes must start; None when the records before it are
        unknown.
        """
        position = INDEX_RECORD.size * sequence
        offset, length, meta_offset, meta_size, desc_offset, desc_size = INDEX_RECORD.unpack_from(
            self._index, position
        )
        where = f"{self._paths.idx}: record {sequence} at byte {position}"
        if (
            meta_offset != CHUNK_HEADER_BYTES + META_RECORD_BYTES * sequence
            or meta_size != META_RECORD_BYTES
            or desc_offset != DESC_RECORD_BYTES * sequence
            or desc_size != DESC_RECORD_BYTES
            or (expected_offset is not None and offset != expected_offset)
        ):
            return f"{where} points where it should not"
        meta = self._meta[meta_offset : meta_offset + meta_size]
        desc = self._desc[desc_offset : desc_offset + desc_size]
        if len(meta) < meta_size or len(desc) < desc_size:
            return f"{where} points behind the end of .meta or .desc"
        for content, name in ((meta, ".meta"), (desc, ".desc")):
            if RECORD_CRC.unpack_from(content)[0] != crc32c(
                content[RECORD_CRC.size :], self._salt_crc
            ):
                return f"{where}: its {name} record fails its CRC"
        desc_sequence, desc_data_offset, desc_length, head_crc = DESC_CONTENT.unpack_from(
            desc, RECORD_CRC.size
        )
        (
            meta_sequence,
            topic_id,
            partition,
            record_count,
            crc,
            timestamp_type,
            producer_epoch,
            max_timestamp_ms,
            producer_id,
            base_sequence,
            meta_length,
            request_id,
        ) = META_CONTENT.unpack_from(meta, RECORD_CRC.size)
        if (
            not meta_sequence == desc_sequence == sequence
            or not meta_length == desc_length == length
            or desc_data_offset != offset
        ):
            return f"{where} does not agree with .meta and .desc"
        if offset + length > self._data_size:
            return f"{where} points behind the end of .data"
        known = self._topic_ids.get(topic_id)
        if known is None:
            known = self._topic_ids[topic_id] = UUID(bytes=topic_id)
        entry = ChunkEntry(
            TopicIdPartition(known, partition),
            offset,
            length,
            record_count,
            crc,
            head_crc,
            max_timestamp_ms,
            timestamp_type,
            producer_id,
            producer_epoch,
            base_sequence,
            request_id,
        )
        if self._data is not None and not check_batch(self._data.pread(length, offset), entry):
            return f"{where}: the batch at byte {offset} of .data fails its CRC"
        return entry
