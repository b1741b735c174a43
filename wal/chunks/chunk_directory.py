"""The chunks of one broker: opened, sealed, uploaded, committed, kept as tail cache, recovered.

The write loop opens chunks here and seals them; the uploader reports what became of them; fetches
look for recent bytes here before they ask the object store. Start and restart are one path:
`recover` reads what is there, which is nothing the first time.

A chunk's life: open -> sealed -> committed (now only a cache) -> deleted. From its sealing on it
can be found by its object's key and read by the object's byte offsets, because a fetch may learn of
a commit before the uploader has noted it.

What `recover` does with each chunk, in the order of their numbers:

- no batch in it, or no .idx: an interrupted creation or deletion; removed.
- a torn tail: cut. A process that died in an append told nobody that it had succeeded.
- damage (a bad record with a good one behind it, a header that fails its CRC): all of its files
  move to `quarantine/`, an entry in `damage` and a log line name file and byte. The batches in
  front of the damage are not salvaged. Nothing is lost by that: whatever was acknowledged is in
  the object store, and whatever was not will be sent again by producers that lost their connection
  with this process anyway. A salvaged part, on the other hand, would be another object under a
  key that may exist already, and could commit a producer's later batch without its earlier one.
- a valid `chunk-NNNNNN.committed` file: kept for reading, if its plan still gives the object that
  was committed; else it is damaged. The file is not synced: a lost one costs one more upload and
  commit under the same key, both of which are idempotent.
- the others: sealed again, under the key they were opened with, for the uploader.

    .committed, 32 bytes
     0  magic         8s  "DLSCHDNE"
     8  batches      u32
    12  footer CRC   u32  of the object's footer, which pins down its whole plan
    16  object bytes u64
    24  zeros        4s
    28  CRC          u32  over bytes 0 .. 27

Committed chunks are kept up to `wal.cache.max.bytes` and as long as what is remembered of them fits
`wal.cache.memory.max.bytes`, quarantined ones up to
`wal.quarantine.max.bytes`; the oldest go first, and no chunk goes while somebody reads it. The
files of a few that went are used again (`wal.chunks.chunk_spares`).

An exclusive lock on the directory keeps two brokers from sharing it. When somebody deletes the
directory of a running broker, the next chunk makes it anew and locks it again; its lock file tells.
Batches in chunks that were not uploaded yet fail with ChunkLost, which says that they are nowhere;
committed ones are read from the object store.

Threads: the write loop's thread opens chunks, the uploader's marks and removes them, reader threads
read them; one lock guards the books, and is never held during I/O on data.

Source: Mofka's default partition manager, "Crash recovery and restart", "FD cache".
"""

import os
import random
import struct
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog

from wal.chunks.chunk import (
    CHUNK_FILE,
    CHUNK_HEADER_BYTES,
    META_RECORD_BYTES,
    ChunkEntry,
    ChunkIdentity,
    ChunkPaths,
    ChunkScan,
    ChunkWriter,
    cut_tail,
    encode_chunk_notes,
    remove_files,
    scan_chunk,
)
from wal.chunks.chunk_spares import SpareChunks, SpareFiles
from wal.chunks.object_notes import (
    CommitJournal,
    CommitNote,
    Floor,
    FloorLookup,
    ObjectNotes,
    TopicFacts,
    TopicLookup,
    encode_notes,
)
from wal.chunks.wal_object import WalObjectPlan, plan_wal_object
from wal.chunks.wal_settings import WalSettings
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.disk import SYSTEM_DISK, Disk, write_vectors
from wal.errors import ChunkLost, CorruptChunk, DirectoryLost, OutOfBounds, StorageFailed
from wal.fd_cache import FdCache, FdHandle
from wal.private_copy import unset_buffer
from wal.segmented_log.log_directory import DirectoryLock

_MARKER_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC

log = structlog.get_logger(__name__)

COMMITTED_MAGIC: Final = b"DLSCHDNE"
COMMITTED: Final = struct.Struct(">8sIIQ4s")
COMMITTED_CRC: Final = struct.Struct(">I")
COMMITTED_BYTES: Final = COMMITTED.size + COMMITTED_CRC.size
assert COMMITTED_BYTES == 32

QUARANTINE: Final = "quarantine"
DAMAGE_KEPT_MAX: Final = 100

BATCH_OVERHEAD_BYTES: Final = 1024
"""What a waiting batch is taken to cost in memory beside its bytes, when queues are bounded.

Measured: 0.5 KiB sealed and 0.8 KiB once its object is laid out, with a small token. Uncharged,
tiny batches would fill memory long before their bytes fill a queue.
"""


CACHED_CHUNK_BYTES: Final = 4096
"""What a committed chunk is taken to cost in memory, beside CACHED_BATCH_BYTES for each batch.

Measured: 3.4 KiB, most of it names. Uncharged, chunks of a few records that are sealed a hundred
times a second would fill memory long before they fill the disk that the cache may use.
"""
CACHED_BATCH_BYTES: Final = 16


class ObjectMap(NamedTuple):
    """From an object's bytes to .data: the batches at `object_offsets` start at `data_offsets`.

    Two arrays, because a tail cache of tiny batches holds millions of them.
    """

    object_offsets: "array[int]"
    """Ascending; one more than batches: the last one is where the footer starts."""
    data_offsets: "array[int]"

    @classmethod
    def of(cls, plan: WalObjectPlan) -> "ObjectMap":
        object_offsets = array("Q", [extent.byte_offset for extent in plan.extents])
        object_offsets.append(plan.object_bytes - len(plan.footer))
        data_offsets = array("Q", [entry.data_offset for entry in plan.entries])
        return cls(object_offsets, data_offsets)


class SealedChunk:
    """A chunk that takes no more appends: what will become, or has become, one WAL object.

    `tokens` has one entry per batch in arrival order; a recovered chunk's are all None.
    """

    def __init__(
        self,
        directory: "ChunkDirectory",
        paths: ChunkPaths,
        identity: ChunkIdentity,
        entries: Sequence[ChunkEntry],
        *,
        tokens: Sequence[Any],
        data_bytes: int,
        file_bytes: int,
        notes: bytes = b"",
    ) -> None:
        self.paths = paths
        self.identity = identity
        self.tokens = list(tokens)
        self.data_bytes = data_bytes
        self.file_bytes = file_bytes
        self.batch_count = len(entries)
        self.is_committed = False
        self._directory = directory
        self._entries = entries
        self._notes = notes
        self._plan: WalObjectPlan | None = None
        self._map: ObjectMap | None = None
        self._lock = threading.Lock()
        self.readers = 0
        self.is_gone = False

    @property
    def object_key(self) -> ObjectKey:
        return self.identity.object_key

    @property
    def data_path(self) -> str:
        return self.paths.data

    @property
    def cached_memory_bytes(self) -> int:
        """What it counts against `wal.cache.memory.max.bytes` when it is committed."""
        return CACHED_CHUNK_BYTES + CACHED_BATCH_BYTES * self.batch_count

    @property
    def charged_bytes(self) -> int:
        """What this chunk counts against `wal.buffer.max.bytes`."""
        return self.data_bytes + BATCH_OVERHEAD_BYTES * self.batch_count

    @property
    def entries(self) -> Sequence[ChunkEntry]:
        """The batches in arrival order; empty once committed, when only the map is kept."""
        return self._entries

    @property
    def plan(self) -> WalObjectPlan:
        """The object this chunk becomes; laid out when first asked for, gone once committed."""
        with self._lock:
            if self._plan is None:
                if self.is_committed:
                    raise ValueError(f"{self.object_key} is committed, its plan was dropped")
                self._set_plan(self._lay_out())
            assert self._plan is not None
            return self._plan

    def exclude(self, positions: Collection[int]) -> None:
        """Plan the object without the batches at these arrival positions.

        For batches that were found damaged before anything was uploaded under this chunk's key.
        """
        with self._lock:
            self._set_plan(self._lay_out(positions))

    def tokens_in(self, plan: WalObjectPlan) -> Sequence[Any]:
        """The tokens of the plan's extents, in the object's order."""
        tokens = self.tokens
        return [tokens[position] for position in plan.positions]

    def open_data(self) -> FdHandle:
        """The .data file, for a `with` statement. Raises: ChunkLost, StorageFailed."""
        return self._directory.open_data(self)

    def read_object_range(self, start: int, length: int) -> memoryview:
        """Bytes [start, start + length) of the object, from this chunk; blocks on the disk.

        The caller owns the answer. The range must lie within the batches; it need not follow their
        borders. The bytes are not checked: readers check each batch's CRC, as they do for bytes
        from anywhere else.
        Raises: OutOfBounds, StorageFailed (deleted in the meantime, or unreadable), CorruptChunk
        (the file is too short).
        """
        pieces = self._extents_of(start, length)
        content = unset_buffer(length)
        with self._directory.pin(self), self.open_data() as data:
            filled = 0
            for offset, size in pieces:
                self._fill(data, content[filled : filled + size], offset)
                filled += size
        return content

    def forget_plan(self) -> None:
        """Committed: keep what reading needs, drop what only the upload and the commit needed."""
        with self._lock:
            if self._map is None:
                self._set_plan(self._lay_out())
            self.is_committed = True
            self._plan = None
            self._entries = ()
            self._notes = b""
            self.tokens = []

    def _lay_out(self, excluded: Collection[int] = ()) -> WalObjectPlan:
        return plan_wal_object(self.identity, self._entries, excluded=excluded, notes=self._notes)

    def _set_plan(self, plan: WalObjectPlan) -> None:
        self._plan = plan
        self._map = ObjectMap.of(plan)

    def _fill(self, data: FdHandle, view: memoryview, offset: int) -> None:
        try:
            count = data.pread_into(view, offset)
        except OSError as error:
            raise StorageFailed(f"{self.data_path}: byte {offset}: {error}") from error
        if count != len(view):
            raise CorruptChunk(f"{self.data_path}: ends before byte {offset + len(view)}")

    def _extents_of(self, start: int, length: int) -> Sequence[tuple[int, int]]:
        """(offset in .data, size) of each piece of an object range, neighbours merged."""
        if self._map is None:
            self.plan  # noqa: B018 - lays out the object
        found = self._map
        assert found is not None
        object_offsets, data_offsets = found
        if start < object_offsets[0] or length < 0 or start + length > object_offsets[-1]:
            raise OutOfBounds(
                f"{self.object_key}: bytes [{start}, {start + length}) are not within its batches,"
                f" [{object_offsets[0]}, {object_offsets[-1]})"
            )
        pieces: list[tuple[int, int]] = []
        index = bisect_right(object_offsets, start) - 1
        while length:
            skipped = start - object_offsets[index]
            size = min(object_offsets[index + 1] - start, length)
            offset = data_offsets[index] + skipped
            if pieces and sum(pieces[-1]) == offset:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + size)
            else:
                pieces.append((offset, size))
            start += size
            length -= size
            index += 1
        return pieces


class ChunkDirectoryStatistics(NamedTuple):
    """What the directory holds now."""

    uncommitted_chunks: int
    uncommitted_bytes: int
    cached_chunks: int
    cached_bytes: int
    quarantined: int
    """Chunks moved to quarantine since the start."""


class _Pin:
    """Keeps a chunk's files for the length of a `with` block."""

    __slots__ = ("_chunk", "_lock")

    def __init__(self, chunk: SealedChunk, lock: threading.Lock) -> None:
        self._chunk = chunk
        self._lock = lock

    def __enter__(self) -> None:
        with self._lock:
            if self._chunk.is_gone:
                raise StorageFailed(f"{self._chunk.data_path}: no longer kept")
            self._chunk.readers += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._chunk.readers -= 1


class ChunkDirectory:
    """The chunks below one directory, which this process alone may use while it is open."""

    def __init__(
        self,
        path: Path,
        *,
        settings: WalSettings,
        clock: Clock,
        rng: random.Random,
        fd_cache: FdCache,
        broker_id: int,
        disk: Disk = SYSTEM_DISK,
        topics: TopicLookup | None = None,
        floors: FloorLookup | None = None,
        commits: CommitJournal | None = None,
    ) -> None:
        """`topics`, `floors` and `commits` give what objects note: chunks/object_notes.py."""
        self.path = path
        self.damage: deque[CorruptChunk] = deque(maxlen=DAMAGE_KEPT_MAX)
        """The latest damage found since the start; each names file and position."""
        self._damaged_chunks = 0
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._fd_cache = fd_cache
        self._broker_id = broker_id
        self._disk = disk
        self._topics = topics
        self._floors = floors
        self._commits = commits or CommitJournal()
        self._last_ulid: str | None = None
        self._lock = threading.Lock()
        self._chunks: dict[ObjectKey, SealedChunk] = {}
        # Committed chunks by number: the order of deletion.
        self._cached: dict[int, SealedChunk] = {}
        self._cached_bytes = 0
        self._cached_memory_bytes = 0
        self._next_number = 0
        self._directory_lock: DirectoryLock | None = None
        self._spares = SpareChunks(path, disk)

    def recover(self) -> list[SealedChunk]:
        """Take the directory; returns the chunks to upload and commit, oldest first. Blocks.

        Raises: StorageFailed (another process has the directory, or it cannot be read).
        """
        try:
            if self._directory_lock is None:
                self._directory_lock = DirectoryLock(self.path)
            self._spares.clear()
            names = os.listdir(self.path)
            quarantine = self.path / QUARANTINE
            quarantined = os.listdir(quarantine) if quarantine.exists() else []
        except BlockingIOError as error:
            raise StorageFailed(f"{self.path}: another broker uses this directory") from error
        except OSError as error:
            raise StorageFailed(f"{self.path}: cannot be opened: {error}") from error
        numbers = _chunk_numbers(names)
        indexed = {number for number in numbers if f"chunk-{number:06d}.idx" in names}
        self._next_number = max(numbers | _chunk_numbers(quarantined), default=-1) + 1
        waiting: list[SealedChunk] = []
        for number in sorted(numbers):
            paths = ChunkPaths.of(self.path, number)
            if number not in indexed:
                remove_files(self._disk, paths)
                continue
            try:
                chunk = self._recover_chunk(paths)
            except CorruptChunk as error:
                self._quarantine(paths, error)
                continue
            if chunk is None:
                remove_files(self._disk, paths)
                continue
            self._chunks[chunk.object_key] = chunk
            self._last_ulid = max(self._last_ulid or "", chunk.identity.ulid)
            if chunk.is_committed:
                self._keep(chunk)
            else:
                waiting.append(chunk)
        self._shrink_cache()
        log.info(
            "chunks recovered",
            path=str(self.path),
            waiting=len(waiting),
            cached=len(self._cached),
            damaged=self._damaged_chunks,
        )
        return waiting

    def open_chunk(self) -> ChunkWriter:
        """A new chunk with a new object key; blocks. Raises: StorageFailed, DirectoryLost."""
        self._make_anew_if_deleted()
        spare = self._spares.take()
        if spare is not None:
            try:
                return self._new_writer(spare)
            except StorageFailed as error:
                log.warning("spare files not used", error=str(error))
                self._spares.delete(spare.files)
        return self._new_writer(None)

    def _make_anew_if_deleted(self) -> None:
        """Raises: DirectoryLost when it cannot be made anew, or is another broker's by now."""
        held = self._directory_lock
        if held is None or held.is_in_place():
            return
        log.error("chunk directory deleted under this broker, made anew", path=str(self.path))
        try:
            # Not all parents: a data directory that was deleted is not made again.
            self.path.parent.mkdir(exist_ok=True)
            self.path.mkdir(exist_ok=True)
            self._directory_lock = DirectoryLock(self.path)
            held.close()
            self._spares.clear()
            found = _chunk_numbers(os.listdir(self.path))
        except OSError as error:
            raise DirectoryLost(
                f"{self.path} was deleted under this broker and cannot be made anew: {error}"
            ) from error
        with self._lock:
            self._next_number = max(self._next_number, max(found, default=-1) + 1)
            cached = list(self._cached.values())
        for chunk in cached:
            if not os.path.exists(chunk.data_path):
                self._forget(chunk)
                self._fd_cache.invalidate(chunk.data_path)

    def _new_writer(self, spare: SpareFiles | None) -> ChunkWriter:
        with self._lock:
            number = self._next_number
            self._next_number += 1
        identity = ChunkIdentity.mint(
            self._clock, self._rng, self._broker_id, after=self._last_ulid
        )
        self._last_ulid = identity.ulid
        return ChunkWriter(
            ChunkPaths.of(self.path, number),
            identity,
            data_max_bytes=self._settings.chunk_max_bytes,
            overflow_bytes=self._settings.chunk_overflow_bytes,
            sync=self._settings.chunk_sync,
            disk=self._disk,
            spare=spare,
        )

    def seal(self, writer: ChunkWriter, tokens: Sequence[Any]) -> SealedChunk | None:
        """Close an open chunk and make it findable; None (and no files) if it has no batch.

        Raises: ChunkLost when somebody deleted its files; what is left of them is removed.
        """
        is_lost = bool(writer.entries) and not os.path.exists(writer.paths.data)
        if not writer.entries or is_lost:
            writer.close()
            remove_files(self._disk, writer.paths)
            if is_lost:
                raise ChunkLost(f"{writer.paths.data}: deleted before it was sealed")
            return None
        assert len(tokens) == len(writer.entries)
        commits = self._commits.take()
        notes = self._notes_of(writer.entries, commits)
        if notes and not writer.write_notes(notes):
            self._commits.give_back(commits)
            notes = b""
        writer.close()
        chunk = SealedChunk(
            self,
            writer.paths,
            writer.identity,
            writer.entries,
            tokens=tokens,
            data_bytes=writer.data_bytes,
            file_bytes=writer.file_bytes,
            notes=notes,
        )
        with self._lock:
            self._chunks[chunk.object_key] = chunk
        return chunk

    def _notes_of(self, entries: Sequence[ChunkEntry], commits: Sequence[CommitNote]) -> bytes:
        topics: dict[UUID, TopicFacts] = {}
        if self._topics is not None:
            # By identity first: hashing a UUID is Python code, and there are thousands of entries.
            seen = {id(entry.partition.topic_id): entry.partition.topic_id for entry in entries}
            for topic_id in set(seen.values()):
                facts = self._topics(topic_id)
                if facts is not None:
                    topics[topic_id] = facts
        floors: Sequence[Floor | None] = ()
        if self._floors is not None:
            partitions = sorted({entry.partition for entry in entries})
            floors = list(map(self._floors, partitions))
        return encode_notes(ObjectNotes(topics, commits, floors))

    def locate(self, object_key: ObjectKey) -> SealedChunk | None:
        """The chunk that became (or becomes) this object, while it is kept here."""
        return self._chunks.get(object_key)

    def mark_committed(self, chunk: SealedChunk) -> None:
        """The object is in the store and committed: from now on the chunk is only a cache. Blocks.

        A marker that cannot be written is logged: its loss costs an idempotent repetition.
        """
        plan = chunk.plan
        if len(plan.entries) < chunk.batch_count:
            # The object leaves out damaged batches; a restart could not plan it again.
            self.discard(chunk)
            return
        content = COMMITTED.pack(
            COMMITTED_MAGIC,
            len(plan.extents),
            crc32c(plan.footer),
            plan.object_bytes,
            bytes(4),
        )
        # A spare marker gets its content under its old name: under the new one it is believed.
        marker = self._spares.take_marker()
        try:
            fd = self._disk.open(marker or chunk.paths.committed, _MARKER_FLAGS)
            try:
                self._disk.pwritev(fd, [content + COMMITTED_CRC.pack(crc32c(content))], 0)
            finally:
                self._disk.close(fd)
            if marker is not None:
                self._disk.rename(marker, chunk.paths.committed)
        except OSError as error:
            log.warning("commit not noted", path=chunk.paths.committed, error=str(error))
        chunk.forget_plan()
        with self._lock:
            self._keep(chunk)
        self._shrink_cache()

    def discard(self, chunk: SealedChunk) -> None:
        """Delete a chunk that will never be committed, or need not be kept. Blocks."""
        self._forget(chunk)
        self._fd_cache.invalidate(chunk.data_path)
        remove_files(self._disk, chunk.paths)

    def quarantine(self, chunk: SealedChunk, error: CorruptChunk) -> None:
        """Move a chunk whose files or object are not what they should be out of the way. Blocks."""
        self._forget(chunk)
        self._quarantine(chunk.paths, error)

    def open_data(self, chunk: SealedChunk) -> FdHandle:
        """Raises: ChunkLost (deleted; what is committed is in the store), StorageFailed."""
        try:
            return self._fd_cache.open(chunk.data_path)
        except FileNotFoundError as error:
            if chunk.is_committed:
                self._forget(chunk)
            raise ChunkLost(f"{chunk.data_path}: the file is missing") from error
        except OSError as error:
            raise StorageFailed(f"{chunk.data_path}: cannot be opened: {error}") from error

    def pin(self, chunk: SealedChunk) -> _Pin:
        """Keep the chunk's files for a `with` block; entering it raises StorageFailed if gone."""
        return _Pin(chunk, self._lock)

    def statistics(self) -> ChunkDirectoryStatistics:
        with self._lock:
            waiting = [chunk for chunk in self._chunks.values() if not chunk.is_committed]
            return ChunkDirectoryStatistics(
                uncommitted_chunks=len(waiting),
                uncommitted_bytes=sum(chunk.file_bytes for chunk in waiting),
                cached_chunks=len(self._cached),
                cached_bytes=self._cached_bytes,
                quarantined=self._damaged_chunks,
            )

    def close(self) -> None:
        """Let another process have the directory. Closing twice is harmless."""
        if self._directory_lock is not None:
            self._directory_lock.close()
            self._directory_lock = None

    def _recover_chunk(self, paths: ChunkPaths) -> SealedChunk | None:
        """Raises: CorruptChunk, StorageFailed."""
        marker = self._read_marker(paths)
        scan = scan_chunk(paths, self._fd_cache, verify_data=marker is None)
        if scan is None and marker is None:
            return None
        if scan is None or (marker is not None and scan.torn):
            reason = scan.torn if scan is not None else f"{paths.idx}: no valid record"
            raise CorruptChunk(f"{reason}, in a chunk that was committed")
        if scan.torn:
            log.warning("torn tail cut", reason=scan.torn, batches_kept=len(scan.entries))
            cut_tail(paths, scan, self._disk)
        notes = scan.notes
        if notes is None:
            notes = self._note_recovered(paths, scan) if marker is None else b""
        chunk = SealedChunk(
            self,
            paths,
            scan.identity,
            scan.entries,
            tokens=[None] * len(scan.entries),
            data_bytes=scan.data_bytes,
            file_bytes=_file_bytes(paths),
            notes=notes,
        )
        if marker is not None:
            plan = chunk.plan
            if marker != (len(plan.extents), crc32c(plan.footer), plan.object_bytes):
                raise CorruptChunk(f"{paths.idx}: not the batches that were committed")
            chunk.forget_plan()
        return chunk

    def _note_recovered(self, paths: ChunkPaths, scan: ChunkScan) -> bytes:
        """Notes for a chunk that was not sealed, so that nothing of it was uploaded yet."""
        notes = self._notes_of(scan.entries, ())
        if not notes:
            return b""
        count = len(scan.entries)
        start = CHUNK_HEADER_BYTES + META_RECORD_BYTES * count
        try:
            fd = self._disk.open(paths.meta, os.O_RDWR)
            try:
                data = encode_chunk_notes(scan.identity, count, notes)
                write_vectors(self._disk, fd, [data], start)
                if self._settings.chunk_sync:
                    self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)
        except OSError as error:
            # What there is of them fails its CRC and is cut by the next recovery.
            log.warning("notes not written", path=paths.meta, error=str(error))
            return b""
        self._fd_cache.invalidate(paths.meta)
        return notes

    def _read_marker(self, paths: ChunkPaths) -> tuple[int, int, int] | None:
        """(batches, footer CRC, object bytes), or None when there is no valid marker."""
        try:
            with self._fd_cache.open(paths.committed) as file:
                data = file.pread(COMMITTED_BYTES, 0)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"{paths.committed}: cannot be read: {error}") from error
        if len(data) != COMMITTED_BYTES:
            return None
        (crc,) = COMMITTED_CRC.unpack_from(data, COMMITTED.size)
        magic, batches, footer_crc, object_bytes, _ = COMMITTED.unpack_from(data)
        if crc != crc32c(data[: COMMITTED.size]) or magic != COMMITTED_MAGIC:
            return None
        return batches, footer_crc, object_bytes

    def _keep(self, chunk: SealedChunk) -> None:
        self._cached[chunk.paths.number] = chunk
        self._cached_bytes += chunk.file_bytes
        self._cached_memory_bytes += chunk.cached_memory_bytes

    def _forget(self, chunk: SealedChunk) -> None:
        with self._lock:
            chunk.is_gone = True
            self._chunks.pop(chunk.object_key, None)
            if self._cached.pop(chunk.paths.number, None) is not None:
                self._cached_bytes -= chunk.file_bytes
                self._cached_memory_bytes -= chunk.cached_memory_bytes

    def _shrink_cache(self) -> None:
        victims: list[SealedChunk] = []
        with self._lock:
            excess = self._cached_bytes - self._settings.cache_max_bytes
            memory_excess = self._cached_memory_bytes - self._settings.cache_memory_max_bytes
            # In the order of commits: nothing here may cost what the whole cache is large.
            for chunk in self._cached.values():
                if excess <= 0 and memory_excess <= 0:
                    break
                if chunk.readers:
                    continue
                victims.append(chunk)
                chunk.is_gone = True
                excess -= chunk.file_bytes
                memory_excess -= chunk.cached_memory_bytes
        for chunk in victims:
            self._retire(chunk)

    def _retire(self, chunk: SealedChunk) -> None:
        """A committed chunk that is not kept any longer: its files serve again, or go."""
        is_usual = chunk.data_bytes <= self._settings.chunk_max_bytes * 2
        self._forget(chunk)
        self._fd_cache.invalidate(chunk.data_path)
        files = chunk.paths.files
        if not (is_usual and self._spares.keep(files[:-1], files[-1])):
            remove_files(self._disk, chunk.paths)

    def _quarantine(self, paths: ChunkPaths, error: CorruptChunk) -> None:
        log.error("chunk quarantined", number=paths.number, error=str(error))
        self.damage.append(error)
        self._damaged_chunks += 1
        target = self.path / QUARANTINE
        try:
            target.mkdir(exist_ok=True)
            for source in paths.files:
                self._fd_cache.invalidate(source)
                try:
                    self._disk.rename(source, str(target / os.path.basename(source)))
                except FileNotFoundError:
                    continue
            self._shrink_quarantine(target)
        except OSError as failure:
            # The chunk is in no book any more, so it is not read; the next start finds it again.
            log.error("chunk not moved", number=paths.number, error=str(failure))

    def _shrink_quarantine(self, directory: Path) -> None:
        numbers = _chunk_numbers(os.listdir(directory))
        sizes = {number: _file_bytes(ChunkPaths.of(directory, number)) for number in numbers}
        excess = sum(sizes.values()) - self._settings.quarantine_max_bytes
        for number in sorted(numbers):
            if excess <= 0:
                return
            log.warning("quarantined chunk deleted, wal.quarantine.max.bytes", number=number)
            remove_files(self._disk, ChunkPaths.of(directory, number))
            excess -= sizes[number]


def _chunk_numbers(names: Iterable[str]) -> set[int]:
    """The numbers of the chunks that have a file among `names`; other names are left alone."""
    matches = (CHUNK_FILE.fullmatch(name) for name in names)
    return {int(match[1]) for match in matches if match is not None}


def _file_bytes(paths: ChunkPaths) -> int:
    total = 0
    for path in paths.files:
        try:
            total += os.stat(path).st_size
        except FileNotFoundError:
            continue
    return total
