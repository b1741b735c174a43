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
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog

from wal.chunks.chunk import (
    CHUNK_HEADER_BYTES,
    META_RECORD_BYTES,
    ChunkEntry,
    ChunkIdentity,
    ChunkPaths,
    ChunkWriter,
    encode_chunk_notes,
    remove_files,
)
from wal.chunks.chunk_scan import ChunkScan, cut_tail, scan_chunk
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
from wal.chunks.quarantine import QUARANTINE, Quarantine, chunk_numbers, file_bytes_of
from wal.chunks.sealed_chunk import CommittedMarker, SealedChunk
from wal.chunks.wal_settings import WalSettings
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.disk import SYSTEM_DISK, Disk, write_vectors
from wal.errors import ChunkLost, CorruptChunk, DirectoryLost, StorageFailed
from wal.fd_cache import FdCache, FdHandle
from wal.segmented_log.log_directory import DirectoryLock

_MARKER_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC

log = structlog.get_logger(__name__)


class ChunkDirectoryStatistics(NamedTuple):
    """What the directory holds now."""

    uncommitted_chunks: int
    uncommitted_bytes: int
    cached_chunks: int
    cached_bytes: int
    quarantined: int
    """Chunks moved to quarantine since the start."""


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
        self._quarantine = Quarantine(
            path / QUARANTINE, disk, fd_cache, max_bytes=settings.quarantine_max_bytes
        )

    @property
    def damage(self) -> deque[CorruptChunk]:
        """The latest damage found since the start; each names file and position."""
        return self._quarantine.damage

    def recover(self) -> list[SealedChunk]:
        """Take the directory; returns the chunks to upload and commit, oldest first. Blocks.

        Raises: StorageFailed (another process has the directory, or it cannot be read).
        """
        try:
            if self._directory_lock is None:
                self._directory_lock = DirectoryLock(self.path)
            self._spares.clear()
            names = os.listdir(self.path)
            quarantined = self._quarantine.numbers()
        except BlockingIOError as error:
            raise StorageFailed(f"{self.path}: another broker uses this directory") from error
        except OSError as error:
            raise StorageFailed(f"{self.path}: cannot be opened: {error}") from error
        numbers = chunk_numbers(names)
        indexed = {number for number in numbers if f"chunk-{number:06d}.idx" in names}
        self._next_number = max(numbers | quarantined, default=-1) + 1
        waiting: list[SealedChunk] = []
        for number in sorted(numbers):
            paths = ChunkPaths.of(self.path, number)
            if number not in indexed:
                remove_files(self._disk, paths)
                continue
            try:
                chunk = self._recover_chunk(paths)
            except CorruptChunk as error:
                self._quarantine.take(paths, error)
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
            damaged=self._quarantine.count,
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
            found = chunk_numbers(os.listdir(self.path))
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
            self._open_data,
            self._lock,
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
        # A spare marker gets its content under its old name: under the new one it is believed.
        marker = self._spares.take_marker()
        try:
            fd = self._disk.open(marker or chunk.paths.committed, _MARKER_FLAGS)
            try:
                self._disk.pwritev(fd, [CommittedMarker.of(plan).encode()], 0)
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
        self._quarantine.take(chunk.paths, error)

    def _open_data(self, chunk: SealedChunk) -> FdHandle:
        """Raises: ChunkLost (deleted; what is committed is in the store), StorageFailed."""
        try:
            return self._fd_cache.open(chunk.data_path)
        except FileNotFoundError as error:
            if chunk.is_committed:
                self._forget(chunk)
            raise ChunkLost(f"{chunk.data_path}: the file is missing") from error
        except OSError as error:
            raise StorageFailed(f"{chunk.data_path}: cannot be opened: {error}") from error

    def statistics(self) -> ChunkDirectoryStatistics:
        with self._lock:
            waiting = [chunk for chunk in self._chunks.values() if not chunk.is_committed]
            return ChunkDirectoryStatistics(
                uncommitted_chunks=len(waiting),
                uncommitted_bytes=sum(chunk.file_bytes for chunk in waiting),
                cached_chunks=len(self._cached),
                cached_bytes=self._cached_bytes,
                quarantined=self._quarantine.count,
            )

    def close(self) -> None:
        """Let another process have the directory. Closing twice is harmless."""
        if self._directory_lock is not None:
            self._directory_lock.close()
            self._directory_lock = None

    def _recover_chunk(self, paths: ChunkPaths) -> SealedChunk | None:
        """Raises: CorruptChunk, StorageFailed."""
        marker = CommittedMarker.read(paths, self._fd_cache)
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
            self._open_data,
            self._lock,
            paths,
            scan.identity,
            scan.entries,
            tokens=[None] * len(scan.entries),
            data_bytes=scan.data_bytes,
            file_bytes=file_bytes_of(paths),
            notes=notes,
        )
        if marker is not None:
            if marker != CommittedMarker.of(chunk.plan):
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
