"""One chunk: two local files that hold produced batches until their WAL object is committed.

The write loop appends through a `ChunkWriter`; recovery and dumps read what it wrote with
wal/chunks/chunk_scan.py. wal/chunks/chunk_directory.py decides which chunks there are.

    chunk-NNNNNN.data   RecordBatches as their producers sent them, back to back
    chunk-NNNNNN.idx    a header, then records: one per append, one with the notes, one for the
                        commit. Each starts at a multiple of 8 bytes, behind zeros where needed

Format version 1; all integers big-endian. A change of any table gets a new version in the header;
a broker refuses a chunk of a version that it does not know.

    header, 64 bytes                         record: a head, 24 bytes, then its content
     0  magic        8s  "DLSCHUNK"           0  CRC           u32  over salt, then bytes 4 .. end
     8  version     u16  1                    4  length        u32  of head and content
    10  length      u16  64                   8  kind          u8   1 batches, 2 notes, 3 committed
    12  broker id   i32                       9  zeros         3s
    16  opened at   u64  ms since the epoch  12  batches       u32  in the chunk before this record
    24  salt        u64                      16  data bytes    u64  of .data before this record
    32  ULID        26s  names the object
    58  lane        u16                      content of kind 2: the notes of the WAL object, see
    60  CRC         u32  over bytes 0 .. 59  wal/chunks/object_notes.py; of kind 3: see
                                             wal/chunks/sealed_chunk.py
    content of kind 1: 88 bytes per batch of the append, see wal/chunks/chunk_batches.py

Notes are written once, when the chunk is sealed and before anything of it is uploaded. A chunk
without them was not sealed, or the disk refused them; recovery writes some then.

Why flipped bits cannot hide: every record carries a CRC and says what must lie in front of it, the
batch's own CRC covers its bytes from 21 on, and its record tells all of the 21 bytes before. Why
stale bytes cannot pass: the salt is new for each chunk, so a record that an earlier file left on
the same disk block has the wrong CRC.

An append writes .data, then .idx, each with one vectored write, and counts only when its record is
complete: a process killed in between leaves bytes that nothing points to. It is all or nothing:
when a write or an fdatasync fails, the batches of that append are taken back and the chunk takes no
more (an fsync that failed once says nothing when it succeeds later). Earlier appends stay good.
Should even the taking back fail, a crash before the upload may replay those batches once, which
their producers were told is possible.

A chunk may be written over the files of one that is gone. The new header is written first: its salt
makes the old records worthless, and no other names what .data still holds. What is left of the
old bytes is cut when the chunk is closed. Emptying .idx instead would be simpler; but ext4 starts
to write a file that was emptied as soon as it is closed, which took 40 us.

Source: Mofka's default partition manager, "On-disk layout", "Crash recovery", "Write path" (with
four files; docs/adr/0002 says why there are two); LaminarMQ's segmented log for the append
threshold.
"""

import os
import random
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

import structlog

from wal.chunks.batch_rows import BATCH_ROW, PLACE, PLACE_POSITION, placed
from wal.chunks.buffer import FragmentChain
from wal.chunks.chunk_batches import ChunkBatches
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.crc import Buffer, crc32c
from wal.disk import SYSTEM_DISK, Disk, write_vectors
from wal.errors import AppendTooLarge, CorruptChunk, Overloaded, StorageFailed
from wal.ulid import ULID_CHARS, mint_ulid, wal_object_key

log = structlog.get_logger(__name__)

FORMAT_VERSION: Final = 1
MAGIC: Final = b"DLSCHUNK"
CHUNK_HEADER: Final = struct.Struct(">8sHHiQQ26sH")
CHUNK_HEADER_CRC: Final = struct.Struct(">I")
CHUNK_HEADER_BYTES: Final = 64
assert CHUNK_HEADER.size + CHUNK_HEADER_CRC.size == CHUNK_HEADER_BYTES

RECORD_CRC: Final = struct.Struct(">I")
RECORD_HEAD: Final = struct.Struct(">IB3sIQ")
RECORD_HEAD_BYTES: Final = RECORD_CRC.size + RECORD_HEAD.size
assert RECORD_HEAD_BYTES == 24
RECORD_ALIGNMENT: Final = 8
assert CHUNK_HEADER_BYTES % RECORD_ALIGNMENT == 0

BATCHES: Final = 1
NOTES: Final = 2
COMMITTED: Final = 3

_SALT: Final = struct.Struct(">Q")


NUMBER_AGE_MAX_MS: Final = 15 * 60_000
"""A chunk takes no batch whose transaction number was asked for so long before it was opened.

A transaction's end is remembered for some time (metadata/rules/transactions/parts.py), and a chunk
is committed within some time after it was opened. This is the time between: however long a process
stands still, and wherever, no batch comes so late that its transaction is not remembered.
"""
NEVER_MS: Final = 1 << 62


class PendingBatches(NamedTuple):
    """Validated RecordBatches of one request on their way into a chunk, in its order.

    Their holder owns `payload`, which is exactly the batches, back to back; no view of it has parts
    of two of them.
    """

    rows: bytearray
    """A BATCH_ROW of each; the first one's `byte_offset` is 0, and each lies behind the one before.
    """
    batch_count: int
    topic_ids: Mapping[bytes, UUID]
    """By their bytes: those in `rows`, or more."""
    payload: FragmentChain
    token: Any
    """Whatever its owner needs to find who waits for them; never looked at here."""
    number_asked_ms: int = NEVER_MS
    """Wall time before the numbers of their transactions were asked for; NEVER_MS without."""

    @property
    def rows_bytes(self) -> int:
        """How long the batches are together, as their rows have it."""
        offset, length = PLACE.unpack_from(
            self.rows, len(self.rows) - BATCH_ROW.size + PLACE_POSITION
        )
        return int(offset + length)


class Waiting(NamedTuple):
    """Who waits for batches of a chunk that came together."""

    token: Any
    """The token of the pending batches; None when nobody waits for them."""
    batch_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkIdentity:
    """What the chunk's header says; fixed when the chunk is opened."""

    ulid: str
    salt: int
    broker_id: int
    opened_at_ms: int
    lane: int = 0
    """Which of the broker's processes opened it: a worker's number, or 0. Commits of one lane are
    made in the order of their ULIDs."""

    @classmethod
    def mint(
        cls,
        clock: Clock,
        rng: random.Random,
        broker_id: int,
        *,
        after: str | None = None,
        lane: int = 0,
    ) -> Self:
        """A new object key, behind the ULID `after`, and a new salt."""
        return cls(
            ulid=mint_ulid(clock, rng, after),
            salt=rng.getrandbits(64),
            broker_id=broker_id,
            opened_at_ms=clock.now_ms(),
            lane=lane,
        )

    @property
    def object_key(self) -> ObjectKey:
        """The WAL object this chunk becomes; a recovered chunk keeps it."""
        return wal_object_key(self.ulid)

    @property
    def salt_crc(self) -> int:
        """What the CRCs of the chunk's records go on from."""
        return crc32c(_SALT.pack(self.salt))

    def encode(self) -> bytes:
        content = CHUNK_HEADER.pack(
            MAGIC,
            FORMAT_VERSION,
            CHUNK_HEADER_BYTES,
            self.broker_id,
            self.opened_at_ms,
            self.salt,
            self.ulid.encode("ascii"),
            self.lane,
        )
        return content + CHUNK_HEADER_CRC.pack(crc32c(content))

    @classmethod
    def decode(cls, data: Buffer, name: str) -> Self:
        """The header at the start of an .idx file. Raises CorruptChunk naming `name`."""
        if len(data) < CHUNK_HEADER_BYTES:
            raise CorruptChunk(f"{name}: {len(data)} bytes cannot hold a chunk header")
        content = memoryview(data)[: CHUNK_HEADER.size]
        (crc,) = CHUNK_HEADER_CRC.unpack_from(data, CHUNK_HEADER.size)
        if crc32c(content) != crc:
            raise CorruptChunk(f"{name}: header at byte 0 fails its CRC")
        magic, version, length, broker_id, opened_at_ms, salt, ulid, lane = CHUNK_HEADER.unpack(
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
            lane=lane,
        )


assert len("0" * ULID_CHARS) == 26


CHUNK_FILE: Final = re.compile(r"chunk-(\d{6}|[1-9]\d{6,})\.(?:idx|data)")
"""The names of a chunk's files; group 1 is its number."""


class ChunkPaths(NamedTuple):
    """The files of one chunk."""

    number: int
    data: str
    idx: str

    @classmethod
    def of(cls, directory: Path, number: int) -> Self:
        stem = f"{directory}/chunk-{number:06d}"
        return cls(number, f"{stem}.data", f"{stem}.idx")

    @property
    def files(self) -> Sequence[str]:
        """Both of them, .idx first: without it the other means nothing, so it goes first."""
        return self.idx, self.data


class PlacedGroup(NamedTuple):
    """A group of batches on its way into a chunk."""

    rows: bytes
    """As they will be in the chunk."""
    topic_ids: Mapping[bytes, UUID]
    data: Sequence[memoryview]
    data_start: int
    """Where in .data they begin,"""
    data_end: int
    """and end."""

    def batches(self) -> ChunkBatches:
        return ChunkBatches.of_bytes(self.rows, self.topic_ids)


class ChunkWriter:
    """The open chunk: appends groups of batches to the two files. One thread at a time.

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
        over_old: bool = False,
    ) -> None:
        """Create the files, neither of which may exist; with `over_old`, write over both.

        Raises StorageFailed, leaving none behind.
        """
        self.paths = paths
        self.identity = identity
        self.batch_count = 0
        self.data_bytes = 0
        self.index_bytes = CHUNK_HEADER_BYTES
        self.is_appendable = True
        self._data_max_bytes = data_max_bytes
        self._overflow_bytes = overflow_bytes
        self._sync = sync
        self._disk = disk
        self._salt_crc = identity.salt_crc
        self._rows: list[bytes] = []
        self._topic_ids: dict[bytes, UUID] = {}
        self._fds: list[int] = []
        self._has_stale_bytes = over_old
        flags = os.O_RDWR if over_old else os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            # .idx last: files without an index are what an interrupted creation leaves.
            self._fds.append(disk.open(paths.data, flags))
            self._fds.append(disk.open(paths.idx, flags))
            write_vectors(disk, self._fds[1], [identity.encode()], 0)
        except OSError as error:
            self.close()
            remove_files(disk, paths)
            raise StorageFailed(f"{paths.idx}: cannot open a chunk: {error}") from error

    @property
    def append_threshold(self) -> int:
        """Bytes that one append may have now: the capacity left plus the overflow capacity."""
        return max(self._data_max_bytes - self.data_bytes, 0) + self._overflow_bytes

    @property
    def file_bytes(self) -> int:
        """The bytes of both files."""
        return self.data_bytes + self.index_bytes

    def batches(self) -> ChunkBatches:
        """What the chunk holds, in arrival order."""
        return ChunkBatches.of_bytes(b"".join(self._rows), self._topic_ids)

    def append(self, group: Sequence[PendingBatches]) -> None:
        """Append a group: all of its batches are in the chunk when this returns, else none.

        Raises: AppendTooLarge, Overloaded (the chunk is as it was), StorageFailed (it takes no
        more appends; what was in it before stays good).
        """
        self.write(self.place(group))

    def place(self, group: Sequence[PendingBatches]) -> PlacedGroup:
        """Where a group would lie. Raises as `append`."""
        if not self.is_appendable:
            raise StorageFailed(f"{self.paths.idx}: an earlier append failed")
        threshold = self.append_threshold
        offset = self.data_bytes
        asked_before_ms = self.identity.opened_at_ms - NUMBER_AGE_MAX_MS
        topic_ids: dict[bytes, UUID] = {}
        data: list[memoryview] = []
        rows: list[bytes | bytearray] = []
        for pending in group:
            if pending.number_asked_ms < asked_before_ms:
                raise Overloaded("a batch of a transaction waited too long for a chunk")
            size, announced = pending.payload.length_bytes, pending.rows_bytes
            if size > announced or size > threshold:
                raise AppendTooLarge(
                    f"{self.paths.data}: {size} bytes for batches of {announced},"
                    f" {threshold} may be appended"
                )
            assert size == announced, "batches are validated before they come here"
            threshold -= size
            topic_ids |= pending.topic_ids
            data += pending.payload.views()
            rows.append(placed(pending.rows, offset))
            offset += size
        return PlacedGroup(b"".join(rows), topic_ids, data, self.data_bytes, offset)

    def write(self, placed: PlacedGroup) -> None:
        """Append what was placed with nothing appended since. Raises: StorageFailed."""
        rows = placed.rows
        self._write(placed.data, rows)
        self._rows.append(rows)
        self._topic_ids |= placed.topic_ids
        self.batch_count += len(rows) // BATCH_ROW.size
        self.data_bytes = placed.data_end

    def write_notes(self, notes: bytes) -> bool:
        """Write the notes behind the last batch; no append may follow. False: the disk refused.

        Then there are none in the file, and none may go into the object either, for a recovered
        chunk must become the same object.
        """
        self.is_appendable = False
        index_fd = self._fds[1]
        record = encode_record(self._salt_crc, NOTES, self.batch_count, self.data_bytes, notes)
        try:
            end = write_vectors(self._disk, index_fd, [record], self.index_bytes)
            if self._sync:
                self._disk.fdatasync(index_fd)
        except OSError as error:
            log.warning("notes not written", path=self.paths.idx, error=str(error))
            try:
                self._disk.ftruncate(index_fd, self.index_bytes)
            except OSError as second:
                log.warning("notes not taken back", path=self.paths.idx, error=str(second))
            return False
        self.index_bytes = end
        return True

    def close(self) -> None:
        """Close the files; no append may follow. Closing twice is harmless."""
        self.is_appendable = False
        if self._has_stale_bytes and len(self._fds) == 2:
            self._has_stale_bytes = False
            try:
                self._disk.ftruncate(self._fds[0], self.data_bytes)
                self._disk.ftruncate(self._fds[1], self.index_bytes)
            except OSError as error:
                # Readers never go there, and recovery cuts it.
                log.warning("stale bytes not cut", path=self.paths.data, error=str(error))
        while self._fds:
            self._disk.close(self._fds.pop())

    def _write(self, data: Sequence[Buffer], rows: bytes) -> None:
        data_fd, index_fd = self._fds
        record = encode_record(self._salt_crc, BATCHES, self.batch_count, self.data_bytes, rows)
        try:
            write_vectors(self._disk, data_fd, data, self.data_bytes)
            end = write_vectors(self._disk, index_fd, [record], self.index_bytes)
            if self._sync:
                self._disk.fdatasync(data_fd)
                self._disk.fdatasync(index_fd)
        except OSError as error:
            self.is_appendable = False
            # .idx first: what it does not name is not there, whatever .data holds.
            for fd, length in ((index_fd, self.index_bytes), (data_fd, self.data_bytes)):
                try:
                    self._disk.ftruncate(fd, length)
                except OSError as second:
                    log.warning("chunk not taken back", path=self.paths.idx, error=str(second))
            raise StorageFailed(f"{self.paths.data}: append failed: {error}") from error
        self.index_bytes = end


def encode_record(
    salt_crc: int, kind: int, batch_count: int, data_bytes: int, content: bytes
) -> bytes:
    """One record of .idx, with the zeros behind it."""
    head = RECORD_HEAD.pack(
        RECORD_HEAD_BYTES + len(content), kind, bytes(3), batch_count, data_bytes
    )
    crc = crc32c(content, crc32c(head, salt_crc))
    return b"".join((RECORD_CRC.pack(crc), head, content, bytes(-len(content) % RECORD_ALIGNMENT)))


def remove_files(disk: Disk, paths: ChunkPaths) -> None:
    """Unlink what exists of a chunk, .idx first. What cannot be unlinked is logged and left."""
    for path in paths.files:
        try:
            disk.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("chunk file not removed", path=path, error=str(error))
