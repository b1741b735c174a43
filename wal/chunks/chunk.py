"""One chunk: four local files that hold produced batches until their WAL object is committed.

The write loop appends through a `ChunkWriter`; recovery and dumps read what it wrote with
wal/chunks/chunk_scan.py. wal/chunks/chunk_directory.py decides which chunks there are.

    chunk-NNNNNN.data   RecordBatches as their producers sent them, back to back
    chunk-NNNNNN.meta   a header, then per batch what the coordinator must know of it, then notes
    chunk-NNNNNN.desc   per batch what a reader needs to find and check its bytes
    chunk-NNNNNN.idx    per batch 36 bytes: offset and size in .data, .meta and .desc

Format version 1; all integers big-endian. A change of any table gets a new version in the header;
a broker refuses a chunk of a version that it does not know.

    .meta header, 64 bytes                   .meta record, 72 bytes
     0  magic        8s  "DLSCHUNK"           0  CRC           u32  over salt, then bytes 4 .. 71
     8  version     u16  2                    4  sequence      u32  0 for the chunk's first batch
    10  length      u16  64                   8  topic id      16s
    12  broker id   i32                      24  partition     i32
    16  opened at   u64  ms since the epoch  28  record count  i32
    24  salt        u64                      32  batch CRC     u32  bytes 17-20 of the batch
    32  ULID        26s  names the object    36  time type     u8   0 create, 1 log append
    58  zeros       2s                       37  zero          u8
    60  CRC         u32  over bytes 0 .. 59  38  epoch         i16  of the producer
                                             40  max time      i64  ms
                                             48  producer id   i64
    .desc record, 24 bytes                   56  base sequence i32
     0  CRC        u32  over salt, 4 .. 23   60  length        u32  of the batch
     4  sequence   u32                       64  request id    i64
     8  offset     u64  in .data
    16  length     u32                       .idx record, 36 bytes
    20  head CRC   u32  over the batch's      0  (offset u64, size u32) in .data
                        first 21 bytes       12  the same in .meta
                                             24  the same in .desc
    notes, behind the .meta records
     0  CRC        u32  over salt, 4 .. end
     4  batches    u32  in the chunk
     8  length     u32  of what follows
    12  the notes of the WAL object, see wal/chunks/object_notes.py

Notes are written once, when the chunk is sealed and before anything of it is uploaded. A chunk
without them was not sealed, or the disk refused them; recovery writes some then.

Why flipped bits cannot hide: .meta and .desc records carry a CRC, .idx must agree with .desc and
with the records before it, the batch's own CRC covers its bytes from 21 on, and the head CRC covers
the rest, the batch's CRC field included. Why stale bytes cannot pass: the salt is new for each
chunk, so a record that an earlier file left on the same disk block has the wrong CRC; the sequence
keeps a record from passing for its neighbour.

An append writes .data, .desc, .meta, .idx in this order, each with one vectored write, and counts
only when .idx is complete: a process killed in between leaves bytes that nothing points to. It is
all or nothing: when a write or an fdatasync fails, the batches of that append are taken back and
the chunk takes no more (an fsync that failed once says nothing when it succeeds later). Earlier
appends stay good. Should even the taking back fail, a crash before the upload may replay those
batches once, which their producers were told is possible.

Source: Mofka's default partition manager, "On-disk layout", "Crash recovery", "Write path";
LaminarMQ's segmented log for the append threshold.
"""

import os
import random
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import structlog

from wal.chunks.buffer import FragmentChain
from wal.chunks.chunk_spares import SpareFiles
from wal.clock import Clock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.crc import Buffer, crc32c
from wal.disk import SYSTEM_DISK, Disk, write_vectors
from wal.errors import AppendTooLarge, CorruptChunk, StorageFailed
from wal.records.record_batch import CRC_START, BatchHeader
from wal.ulid import ULID_CHARS, mint_ulid, wal_object_key

log = structlog.get_logger(__name__)

FORMAT_VERSION: Final = 1
MAGIC: Final = b"DLSCHUNK"
CHUNK_HEADER: Final = struct.Struct(">8sHHiQQ26s2s")
CHUNK_HEADER_CRC: Final = struct.Struct(">I")
CHUNK_HEADER_BYTES: Final = 64
assert CHUNK_HEADER.size + CHUNK_HEADER_CRC.size == CHUNK_HEADER_BYTES

RECORD_CRC: Final = struct.Struct(">I")
META_CONTENT: Final = struct.Struct(">I16siiIBxhqqiIq")
META_RECORD_BYTES: Final = RECORD_CRC.size + META_CONTENT.size
assert META_RECORD_BYTES == 72
DESC_CONTENT: Final = struct.Struct(">IQII")
DESC_RECORD_BYTES: Final = RECORD_CRC.size + DESC_CONTENT.size
assert DESC_RECORD_BYTES == 24
INDEX_RECORD: Final = struct.Struct(">QIQIQI")
assert INDEX_RECORD.size == 36

NOTES_HEAD: Final = struct.Struct(">II")
NOTES_HEAD_BYTES: Final = RECORD_CRC.size + NOTES_HEAD.size
assert NOTES_HEAD_BYTES == 12

SALT: Final = struct.Struct(">Q")

FILE_BYTES_PER_BATCH: Final = META_RECORD_BYTES + DESC_RECORD_BYTES + INDEX_RECORD.size


class PendingBatch(NamedTuple):
    """One validated RecordBatch on its way into a chunk.

    Its holder owns `payload`, which is exactly the batch: `header.length_bytes` long.
    """

    partition: TopicIdPartition
    header: BatchHeader
    timestamp_type: int
    """The topic's message.timestamp.type: CREATE_TIME or LOG_APPEND_TIME."""
    request_id: int
    payload: FragmentChain
    token: Any
    """Whatever its owner needs to find who waits for it; never looked at here."""


class ChunkEntry(NamedTuple):
    """One batch of a chunk, as .meta and .desc tell it."""

    partition: TopicIdPartition
    data_offset: int
    length_bytes: int
    record_count: int
    crc: int
    """The batch's own CRC field, over its bytes from 21 on."""
    head_crc: int
    """Over the batch's first 21 bytes."""
    max_timestamp_ms: int
    timestamp_type: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkIdentity:
    """What the chunk's header says; fixed when the chunk is opened."""

    ulid: str
    salt: int
    broker_id: int
    opened_at_ms: int

    @classmethod
    def mint(
        cls, clock: Clock, rng: random.Random, broker_id: int, *, after: str | None = None
    ) -> Self:
        """A new object key, behind the ULID `after`, and a new salt."""
        return cls(
            ulid=mint_ulid(clock, rng, after),
            salt=rng.getrandbits(64),
            broker_id=broker_id,
            opened_at_ms=clock.now_ms(),
        )

    @property
    def object_key(self) -> ObjectKey:
        """The WAL object this chunk becomes; a recovered chunk keeps it."""
        return wal_object_key(self.ulid)

    def encode(self) -> bytes:
        content = CHUNK_HEADER.pack(
            MAGIC,
            FORMAT_VERSION,
            CHUNK_HEADER_BYTES,
            self.broker_id,
            self.opened_at_ms,
            self.salt,
            self.ulid.encode("ascii"),
            b"\0\0",
        )
        return content + CHUNK_HEADER_CRC.pack(crc32c(content))

    @classmethod
    def decode(cls, data: Buffer, name: str) -> Self:
        """The header at the start of a .meta file. Raises CorruptChunk naming `name`."""
        if len(data) < CHUNK_HEADER_BYTES:
            raise CorruptChunk(f"{name}: {len(data)} bytes cannot hold a chunk header")
        content = memoryview(data)[: CHUNK_HEADER.size]
        (crc,) = CHUNK_HEADER_CRC.unpack_from(data, CHUNK_HEADER.size)
        if crc32c(content) != crc:
            raise CorruptChunk(f"{name}: header at byte 0 fails its CRC")
        magic, version, length, broker_id, opened_at_ms, salt, ulid, _ = CHUNK_HEADER.unpack(
            content
        )
        if magic != MAGIC:
            raise CorruptChunk(f"{name}: no header of a chunk")
        if version != FORMAT_VERSION or length != CHUNK_HEADER_BYTES:
            raise CorruptChunk(
                f"{name}: format version {version}, header of {length} bytes;"
                f" this release reads version {FORMAT_VERSION}"
            )
        return cls(
            ulid=ulid.decode("ascii"),
            salt=salt,
            broker_id=broker_id,
            opened_at_ms=opened_at_ms,
        )


assert len("0" * ULID_CHARS) == 26


CHUNK_FILE: Final = re.compile(r"chunk-(\d{6}|[1-9]\d{6,})\.(?:idx|data|meta|desc|committed)")
"""The names of a chunk's files; group 1 is its number."""


class ChunkPaths(NamedTuple):
    """The files of one chunk."""

    number: int
    data: str
    meta: str
    desc: str
    idx: str
    committed: str
    """Written when the WAL object was committed; see wal/chunks/sealed_chunk.py."""

    @classmethod
    def of(cls, directory: Path, number: int) -> Self:
        stem = str(directory / f"chunk-{number:06d}")
        return cls(
            number, f"{stem}.data", f"{stem}.meta", f"{stem}.desc", f"{stem}.idx",
            f"{stem}.committed",
        )  # fmt: skip

    @property
    def files(self) -> Sequence[str]:
        """All of them, .idx first: without it the others mean nothing, so it goes first."""
        return self.idx, self.data, self.meta, self.desc, self.committed


class ChunkWriter:
    """The open chunk: appends groups of batches to the four files. One thread at a time.

    `data_max_bytes` is where appends stop being welcome, `overflow_bytes` what a single append may
    go beyond it (`wal.chunk.max.bytes`, `wal.chunk.overflow.bytes`).
    """

    def __init__(
        self,
        paths: ChunkPaths,
        identity: ChunkIdentity,
        *,
        data_max_bytes: int,
        overflow_bytes: int,
        sync: bool = False,
        disk: Disk = SYSTEM_DISK,
        spare: SpareFiles | None = None,
    ) -> None:
        """Create the files, or make them out of `spare`; none may exist.

        Raises StorageFailed, leaving none behind; what is left of `spare` stays the caller's.
        """
        self.paths = paths
        self.identity = identity
        self.entries: list[ChunkEntry] = []
        self.data_bytes = 0
        self.notes_bytes = 0
        self.is_appendable = True
        self._data_max_bytes = data_max_bytes
        self._overflow_bytes = overflow_bytes
        self._sync = sync
        self._disk = disk
        self._salt_crc = crc32c(SALT.pack(identity.salt))
        self._fds: list[int] = []
        self._has_stale_data = False
        try:
            # .idx last: files without an index are what an interrupted creation leaves.
            if spare is None:
                for path in (paths.data, paths.desc, paths.meta, paths.idx):
                    self._fds.append(disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            else:
                self._use_again(spare)
            write_vectors(disk, self._fds[2], [identity.encode()], 0)
        except OSError as error:
            self.close()
            remove_files(disk, paths)
            raise StorageFailed(f"{paths.idx}: cannot open a chunk: {error}") from error

    def _use_again(self, spare: SpareFiles) -> None:
        """All but .data are emptied; of that, `close` cuts what lies behind the last append."""
        disk, paths = self._disk, self.paths
        self._fds.append(disk.open(spare.data, os.O_RDWR))
        for path in (spare.desc, spare.meta, spare.idx):
            self._fds.append(disk.open(path, os.O_RDWR | os.O_TRUNC))
        self._has_stale_data = True
        disk.rename(spare.data, paths.data)
        disk.rename(spare.desc, paths.desc)
        disk.rename(spare.meta, paths.meta)
        disk.rename(spare.idx, paths.idx)

    @property
    def append_threshold(self) -> int:
        """Bytes that one append may have now: the capacity left plus the overflow capacity."""
        return max(self._data_max_bytes - self.data_bytes, 0) + self._overflow_bytes

    @property
    def file_bytes(self) -> int:
        """The bytes of all the chunk's files."""
        return (
            self.data_bytes
            + CHUNK_HEADER_BYTES
            + FILE_BYTES_PER_BATCH * len(self.entries)
            + self.notes_bytes
        )

    def append(self, batches: Sequence[PendingBatch]) -> None:
        """Append a group: all of its batches are in the chunk when this returns, else none.

        Raises: AppendTooLarge (the chunk is as it was), StorageFailed (it takes no more appends;
        what was in it before stays good).
        """
        if not self.is_appendable:
            raise StorageFailed(f"{self.paths.idx}: an earlier append failed")
        threshold = self.append_threshold
        sequence = len(self.entries)
        offset = self.data_bytes
        salt_crc = self._salt_crc
        meta_offset = CHUNK_HEADER_BYTES + META_RECORD_BYTES * sequence
        desc_offset = DESC_RECORD_BYTES * sequence
        entries: list[ChunkEntry] = []
        data: list[memoryview] = []
        meta: list[bytes] = []
        desc: list[bytes] = []
        index: list[bytes] = []
        for partition, header, timestamp_type, request_id, payload, _ in batches:
            length = header.length_bytes
            if payload.length_bytes > min(length, threshold):
                raise AppendTooLarge(
                    f"{self.paths.data}: {payload.length_bytes} bytes for a batch of {length},"
                    f" {threshold} may be appended"
                )
            assert payload.length_bytes == length, "a batch is validated before it comes here"
            threshold -= length
            views = payload.views()
            first = views[0]
            if len(first) < CRC_START:
                head_crc = crc32c(payload.copy_bytes(0, CRC_START))
            else:
                head_crc = crc32c(first[:CRC_START])
            entry = ChunkEntry(
                partition,
                offset,
                length,
                header.record_count,
                header.crc,
                head_crc,
                header.max_timestamp_ms,
                timestamp_type,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                request_id,
            )
            entries.append(entry)
            data += views
            content = encode_meta(sequence, entry)
            meta.append(RECORD_CRC.pack(crc32c(content, salt_crc)) + content)
            content = DESC_CONTENT.pack(sequence, offset, length, head_crc)
            desc.append(RECORD_CRC.pack(crc32c(content, salt_crc)) + content)
            index.append(
                INDEX_RECORD.pack(
                    offset, length, meta_offset, META_RECORD_BYTES, desc_offset, DESC_RECORD_BYTES
                )
            )
            sequence += 1
            offset += length
            meta_offset += META_RECORD_BYTES
            desc_offset += DESC_RECORD_BYTES
        self._write(data, b"".join(meta), b"".join(desc), b"".join(index))
        self.entries += entries
        self.data_bytes = offset

    def write_notes(self, notes: bytes) -> bool:
        """Write the notes behind the last batch; no append may follow. False: the disk refused.

        Then there are none in the file, and none may go into the object either, for a recovered
        chunk must become the same object.
        """
        self.is_appendable = False
        meta_fd = self._fds[2]
        data = encode_chunk_notes(self.identity, len(self.entries), notes)
        start = CHUNK_HEADER_BYTES + META_RECORD_BYTES * len(self.entries)
        try:
            write_vectors(self._disk, meta_fd, [data], start)
            if self._sync:
                self._disk.fdatasync(meta_fd)
        except OSError as error:
            log.warning("notes not written", path=self.paths.meta, error=str(error))
            try:
                self._disk.ftruncate(meta_fd, start)
            except OSError as second:
                log.warning("notes not taken back", path=self.paths.meta, error=str(second))
            return False
        self.notes_bytes = len(data)
        return True

    def close(self) -> None:
        """Close the files; no append may follow. Closing twice is harmless."""
        self.is_appendable = False
        if self._has_stale_data and self._fds:
            self._has_stale_data = False
            try:
                self._disk.ftruncate(self._fds[0], self.data_bytes)
            except OSError as error:
                # Readers never go there, and recovery cuts it as a torn tail.
                log.warning("stale bytes not cut", path=self.paths.data, error=str(error))
        while self._fds:
            self._disk.close(self._fds.pop())

    def _write(self, data: Sequence[Buffer], meta: bytes, desc: bytes, index: bytes) -> None:
        count = len(self.entries)
        data_fd, desc_fd, meta_fd, index_fd = self._fds
        lengths = (
            (index_fd, INDEX_RECORD.size * count),
            (meta_fd, CHUNK_HEADER_BYTES + META_RECORD_BYTES * count),
            (desc_fd, DESC_RECORD_BYTES * count),
            (data_fd, self.data_bytes),
        )
        try:
            write_vectors(self._disk, data_fd, data, self.data_bytes)
            write_vectors(self._disk, desc_fd, [desc], DESC_RECORD_BYTES * count)
            write_vectors(self._disk, meta_fd, [meta], lengths[1][1])
            write_vectors(self._disk, index_fd, [index], INDEX_RECORD.size * count)
            if self._sync:
                for fd in self._fds:
                    self._disk.fdatasync(fd)
        except OSError as error:
            self.is_appendable = False
            for fd, length in lengths:
                # .idx first: what it does not name is not there, whatever the others hold.
                try:
                    self._disk.ftruncate(fd, length)
                except OSError as second:
                    log.warning("chunk not taken back", path=self.paths.idx, error=str(second))
            raise StorageFailed(f"{self.paths.data}: append failed: {error}") from error


def encode_meta(sequence: int, entry: ChunkEntry) -> bytes:
    """A .meta record without its CRC."""
    return META_CONTENT.pack(
        sequence,
        entry.partition.topic_id.bytes,
        entry.partition.partition,
        entry.record_count,
        entry.crc,
        entry.timestamp_type,
        entry.producer_epoch,
        entry.max_timestamp_ms,
        entry.producer_id,
        entry.base_sequence,
        entry.length_bytes,
        entry.request_id,
    )


def encode_chunk_notes(identity: ChunkIdentity, batch_count: int, notes: bytes) -> bytes:
    """Encodes what stands behind the .meta records of a chunk of `batch_count` batches."""
    content = NOTES_HEAD.pack(batch_count, len(notes)) + notes
    crc = crc32c(content, crc32c(SALT.pack(identity.salt)))
    return RECORD_CRC.pack(crc) + content


def remove_files(disk: Disk, paths: ChunkPaths) -> None:
    """Unlink what exists of a chunk, .idx first. What cannot be unlinked is logged and left."""
    for path in paths.files:
        try:
            disk.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("chunk file not removed", path=path, error=str(error))
