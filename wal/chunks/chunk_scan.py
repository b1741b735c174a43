"""Reads a chunk's files back and checks every byte of them: for recovery, dumps and `verify`.

Of a committed chunk, whose object is in the store, a start reads the two ends of .idx alone
(`read_ends`): there are thousands of them, and each is checked when it is first read from.

The files are laid out as wal/chunks/chunk.py says.

A torn tail is what a crash leaves: that append never returned, so no acknowledgement depends on it
and it may be cut. A bad record with the good record of another append behind it is damage, and an
error. What lies behind a bad record is found by trying every place where a record may start.

Source: Mofka's default partition manager, "Crash recovery".
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np

from wal.chunks.batch_rows import BATCH_ROW
from wal.chunks.chunk import (
    BATCHES,
    CHUNK_HEADER_BYTES,
    COMMITTED,
    NOTES,
    RECORD_ALIGNMENT,
    RECORD_CRC,
    RECORD_HEAD,
    RECORD_HEAD_BYTES,
    ChunkIdentity,
    ChunkPaths,
)
from wal.chunks.chunk_batches import ChunkBatches, ChunkEntry, is_intact
from wal.chunks.sealed_chunk import (
    COMMITTED_CONTENT,
    CommitRecord,
    CommittedEnds,
    ObjectMap,
)
from wal.chunks.wal_object import ObjectLayout
from wal.crc import crc32c
from wal.disk import SYSTEM_DISK, Disk
from wal.errors import CorruptChunk, StorageFailed
from wal.fd_cache import FdCache, FdHandle

_COMMITTED_BYTES: Final = RECORD_HEAD_BYTES + COMMITTED_CONTENT.size
assert _COMMITTED_BYTES % RECORD_ALIGNMENT == 0


class ChunkScan(NamedTuple):
    """What reading a chunk's files found."""

    identity: ChunkIdentity
    batches: ChunkBatches
    """The valid ones, in arrival order."""
    data_bytes: int
    index_bytes: int
    """Where .idx ends, or must be cut."""
    torn: str
    """Why the tail behind `batches` must be cut; empty when there is nothing to cut."""
    notes: bytes | None
    """The object's notes; None when the chunk was not sealed with any."""
    committed: bytes | None
    """The content of the record of the commit, if there is one."""

    def ends(self) -> CommittedEnds:
        """As `read_ends`. Raises CorruptChunk when the tail of a committed chunk is torn."""
        if self.torn:
            raise CorruptChunk(f"{self.torn}, in a chunk that was committed")
        count = len(self.batches)
        return CommittedEnds(self.identity, count, self.data_bytes, self.index_bytes)


class _Record(NamedTuple):
    position: int
    end: int
    kind: int
    batch_count: int
    data_bytes: int
    content: bytes


def read_ends(paths: ChunkPaths) -> CommittedEnds | None:
    """Read the two ends of .idx, which is all that must be known of a committed chunk at a start.

    None: it is not one, or not as long as it says, or cannot be read; a scan tells. What lies
    between is checked when the chunk is first read.
    """
    try:
        fd = os.open(paths.idx, os.O_RDONLY | os.O_CLOEXEC)
        try:
            index_bytes = os.fstat(fd).st_size
            start = index_bytes - _COMMITTED_BYTES
            if start < CHUNK_HEADER_BYTES:
                return None
            header = os.pread(fd, CHUNK_HEADER_BYTES, 0)
            last = os.pread(fd, _COMMITTED_BYTES, start)
        finally:
            os.close(fd)
        data_size = os.stat(paths.data).st_size
        identity = ChunkIdentity.decode(header, paths.idx)
    except (OSError, CorruptChunk):
        return None
    if len(last) < _COMMITTED_BYTES:
        return None
    (crc,) = RECORD_CRC.unpack_from(last)
    length, kind, _, batch_count, data_bytes = RECORD_HEAD.unpack_from(last, RECORD_CRC.size)
    is_committed = (
        kind == COMMITTED
        and length == _COMMITTED_BYTES
        and data_bytes == data_size
        and crc == crc32c(memoryview(last)[RECORD_CRC.size :], identity.salt_crc)
    )
    return CommittedEnds(identity, batch_count, data_bytes, index_bytes) if is_committed else None


def scan_chunk(
    paths: ChunkPaths,
    fd_cache: FdCache,
    *,
    trust_committed: bool = False,
    trust_all: bool = False,
) -> ChunkScan | None:
    """Read and check a whole chunk; None when it holds no batch at all.

    With `trust_committed`, the batches of a committed chunk are not read: readers check them; with
    `trust_all`, those of any chunk. The caller cuts what is torn.
    Raises: CorruptChunk (damage that is not a torn tail), StorageFailed (cannot be read now).
    """
    with _scanner(paths, fd_cache) as scanner:
        return scanner.scan(trust_committed=trust_committed, trust_all=trust_all)


def map_of_committed(paths: ChunkPaths, fd_cache: FdCache) -> ObjectMap:
    """Check a chunk that was committed, all but the batches' bytes, and find where these are.

    Raises: CorruptChunk, StorageFailed.
    """
    scan = scan_chunk(paths, fd_cache, trust_committed=True)
    if scan is None or scan.committed is None:
        raise CorruptChunk(f"{paths.idx}: not a chunk that was committed")
    scan.ends()
    plan = ObjectLayout.of(scan.batches).plan(scan.identity, scan.notes or b"")
    if CommitRecord.of(plan) != CommitRecord.decode(scan.committed):
        raise CorruptChunk(f"{paths.idx}: not the batches that were committed")
    return ObjectMap.of(plan)


def inspect_chunk(
    paths: ChunkPaths, fd_cache: FdCache
) -> tuple[ChunkIdentity, Sequence[ChunkEntry | str]]:
    """The header, and each batch or what is wrong with it or with a record: for people to look at.

    Raises: CorruptChunk (without its header or a file nothing can be told), StorageFailed.
    """
    with _scanner(paths, fd_cache) as scanner:
        return scanner.inspect()


@contextmanager
def _scanner(paths: ChunkPaths, fd_cache: FdCache) -> Iterator["_Scanner"]:
    try:
        with fd_cache.open(paths.data) as data, fd_cache.open(paths.idx) as index:
            yield _Scanner(paths, data, index.pread(index.size(), 0))
    except FileNotFoundError as error:
        raise CorruptChunk(f"{error.filename}: this file of the chunk is missing") from error
    except OSError as error:
        raise StorageFailed(f"{paths.idx}: cannot be read: {error}") from error


def cut_tail(paths: ChunkPaths, scan: ChunkScan, disk: Disk = SYSTEM_DISK) -> None:
    """Cut everything behind what the scan found valid, .idx first. Raises StorageFailed."""
    for path, length in ((paths.idx, scan.index_bytes), (paths.data, scan.data_bytes)):
        try:
            fd = disk.open(path, os.O_RDWR)
            try:
                disk.ftruncate(fd, length)
            finally:
                disk.close(fd)
        except OSError as error:
            raise StorageFailed(f"{path}: cannot cut the torn tail: {error}") from error


class _Scanner:
    """The .idx file of one chunk in memory, and its .data file; see `scan_chunk`."""

    def __init__(self, paths: ChunkPaths, data: FdHandle, index: bytes) -> None:
        self._paths = paths
        self._data = data
        self._data_size = data.size()
        self._index = index
        self._salt_crc = 0

    def scan(self, *, trust_committed: bool, trust_all: bool) -> ChunkScan | None:
        index = self._index
        if len(index) <= CHUNK_HEADER_BYTES:
            # Nothing was ever appended in full, so even a torn header costs nothing.
            return None
        identity = self._read_identity()
        reads_data = not (trust_all or (trust_committed and self._is_committed()))
        rows: list[bytes] = []
        notes: bytes | None = None
        committed: bytes | None = None
        data_bytes = batch_count = 0
        position = CHUNK_HEADER_BYTES
        torn = ""
        while position < len(index) and not torn:
            record = self._record(position)
            if isinstance(record, str):
                torn = record
            elif (record.batch_count, record.data_bytes) != (batch_count, data_bytes):
                torn = f"{self._at(position)} is not the next one"
            elif committed is not None or (notes is not None and record.kind != COMMITTED):
                torn = f"{self._at(position)} stands behind the last one"
            elif record.kind == NOTES:
                notes = record.content
            elif record.kind == COMMITTED:
                committed = record.content
            else:
                batches = ChunkBatches.of_bytes(record.content)
                torn = self._wrong_in(record, batches, reads_data=reads_data)
                if not torn:
                    rows.append(record.content)
                    batch_count += len(batches)
                    data_bytes += int(batches.numbers("length_bytes").sum())
            if not torn:
                assert not isinstance(record, str)
                position = record.end
        if torn:
            self._refuse_good_behind(position, torn)
        elif self._data_size != data_bytes:
            torn = f"{self._paths.data}: bytes that no record names"
        if not rows:
            return None
        batches = ChunkBatches.of_bytes(b"".join(rows))
        return ChunkScan(identity, batches, data_bytes, position, torn, notes, committed)

    def inspect(self) -> tuple[ChunkIdentity, Sequence[ChunkEntry | str]]:
        identity = self._read_identity()
        found: list[ChunkEntry | str] = []
        position = CHUNK_HEADER_BYTES
        while position < len(self._index):
            record = self._record(position)
            if isinstance(record, str):
                found.append(record)
                position = next((r.position for r in self._good_behind(position)), len(self._index))
                continue
            position = record.end
            if record.kind == BATCHES:
                for entry in ChunkBatches.of_bytes(record.content):
                    found.append(self._wrong_with(record, entry) or entry)
        return identity, found

    def _read_identity(self) -> ChunkIdentity:
        identity = ChunkIdentity.decode(self._index, self._paths.idx)
        self._salt_crc = identity.salt_crc
        return identity

    def _at(self, position: int) -> str:
        return f"{self._paths.idx}: record at byte {position}"

    def _record(self, position: int) -> _Record | str:
        """The record at `position`, or what is wrong with it."""
        index = memoryview(self._index)
        if position + RECORD_HEAD_BYTES > len(index):
            return f"{self._at(position)} ends too early"
        (crc,) = RECORD_CRC.unpack_from(index, position)
        length, kind, _, batch_count, data_bytes = RECORD_HEAD.unpack_from(
            index, position + RECORD_CRC.size
        )
        end = position + length
        padded_end = end + -length % RECORD_ALIGNMENT
        if length < RECORD_HEAD_BYTES or padded_end > len(index):
            return f"{self._at(position)} gives its length as {length} bytes"
        if crc != crc32c(index[position + RECORD_CRC.size : end], self._salt_crc):
            return f"{self._at(position)} fails its CRC"
        if any(index[end:padded_end]):
            return f"{self._at(position)} is not followed by zeros"
        content = bytes(index[position + RECORD_HEAD_BYTES : end])
        if kind not in (BATCHES, NOTES, COMMITTED) or (
            kind == BATCHES and (not content or len(content) % BATCH_ROW.size)
        ):
            return f"{self._at(position)} is of kind {kind}, with {len(content)} bytes"
        return _Record(position, padded_end, kind, batch_count, data_bytes, content)

    def _good_behind(self, position: int) -> Iterator[_Record]:
        """The good records behind a bad one."""
        position += RECORD_ALIGNMENT
        while position < len(self._index):
            record = self._record(position)
            if isinstance(record, str):
                position += RECORD_ALIGNMENT
            else:
                yield record
                position = record.end

    def _is_committed(self) -> bool:
        """Whether .idx has the record of a commit; at its end, unless something is wrong."""
        last = self._record(max(len(self._index) - _COMMITTED_BYTES, CHUNK_HEADER_BYTES))
        if not isinstance(last, str) and last.kind == COMMITTED:
            return True
        records = self._good_behind(CHUNK_HEADER_BYTES - RECORD_ALIGNMENT)
        return any(record.kind == COMMITTED for record in records)

    def _refuse_good_behind(self, position: int, torn: str) -> None:
        """Raises CorruptChunk when a good append lies behind the bad record at `position`."""
        for record in self._good_behind(position):
            if record.kind == BATCHES:
                batches = ChunkBatches.of_bytes(record.content)
                if not self._wrong_in(record, batches, reads_data=True):
                    raise CorruptChunk(f"{torn}, and record at byte {record.position} is good")
            elif record.kind == COMMITTED:
                raise CorruptChunk(f"{torn}, in a chunk that was committed")

    def _wrong_in(self, record: _Record, batches: ChunkBatches, *, reads_data: bool) -> str:
        """What is wrong with the batches of an append; empty when they are good."""
        offsets, lengths = batches.numbers("byte_offset"), batches.numbers("length_bytes")
        elsewhere = np.flatnonzero(offsets != record.data_bytes + np.cumsum(lengths) - lengths)
        if len(elsewhere):
            return f"{self._at(record.position)} names byte {offsets[elsewhere[0]]} of .data"
        if offsets[-1] + lengths[-1] > self._data_size:
            return f"{self._at(record.position)} points behind the end of .data"
        if not reads_data:
            return ""
        return next(filter(None, (self._wrong_with(record, entry) for entry in batches)), "")

    def _wrong_with(self, record: _Record, entry: ChunkEntry) -> str:
        data = memoryview(self._data.pread(entry.length_bytes, entry.data_offset))
        if is_intact(data, entry.length_bytes, entry.leader_epoch, entry.crc):
            return ""
        return (
            f"{self._at(record.position)}: the batch at byte {entry.data_offset} of .data fails"
            " its CRC"
        )
