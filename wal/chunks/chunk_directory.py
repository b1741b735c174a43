"""The chunks of one lane of a broker: opened, sealed, uploaded, committed, kept, recovered.

The write loop opens chunks here and seals them; the uploader reports what became of them; fetches
look for recent bytes here before they ask the object store. Start and restart are one path:
`recover` reads what is there, which is nothing the first time.

A chunk's life: open -> sealed -> committed (now only a cache) -> deleted. From its sealing on it
can be found by its object's key and read by the object's byte offsets, because a fetch may learn of
a commit before the uploader has noted it.

What `recover` does with each chunk, in the order of their ULIDs (a file's number tells nothing):

- no batch in it, or no .idx: an interrupted creation or deletion; removed.
- a torn tail: cut. Who died in an append told nobody that it had succeeded.
- damage (a bad record with a good one behind it, a header that fails its CRC): all of its files
  move to `quarantine/`, an entry in `damage` and a log line name file and byte. The batches in
  front of the damage are not salvaged. Nothing is lost by that: whatever was acknowledged is in
  the object store, and whatever was not will be sent again by producers that lost their connection
  with this process anyway. A salvaged part, on the other hand, would be another object under a
  key that may exist already, and could commit a producer's later batch without its earlier one.
- a record of its commit: kept for reading, if its plan still gives the object that was committed;
  else it is damaged. That record is not synced: a lost one costs one more upload and commit under
  the same key, both of which are idempotent.
- the others: sealed again, under the key they were opened with, for the uploader.

Committed chunks are kept up to `wal.cache.max.bytes` and what is remembered of them up to
`wal.cache.memory.max.bytes`, quarantined ones up to `wal.quarantine.max.bytes`; the oldest go
first, and no chunk goes while somebody reads it. One of an earlier process is known by the two ends
of its .idx, and checked when it is first read from.

The files of a few that went are *spares*: the next chunks are written over them, the largest first,
in place. Creating and deleting files dozens of times a second is what a chunk would cost most for:
ext4 does not give out the inode of a file that was deleted within the last seconds, and looks at
each again whenever a file is created. And pages of .data that are in the page cache cost a part of
new ones. Until it is written over, a spare is a whole committed chunk, and a restart keeps it as
one; from then on it has a header with a new salt, and no record that agrees with that.

An exclusive lock keeps two processes from sharing the directory. When somebody deletes it under a
broker, the next chunk makes it anew and locks it again; its lock file tells. Batches in chunks that
were not uploaded yet fail with ChunkLost (they are nowhere); others are read from the object store.

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
from typing import Final, NamedTuple

import structlog

from wal.chunks import chunk_scan
from wal.chunks.chunk import (
    NOTES,
    ChunkIdentity,
    ChunkPaths,
    ChunkWriter,
    Waiting,
    encode_record,
    remove_files,
)
from wal.chunks.laying_out import LaidOut, LayingOut
from wal.chunks.object_notes import CommitJournal, FloorsLookup, TopicLookup
from wal.chunks.quarantine import QUARANTINE, Quarantine, chunk_numbers
from wal.chunks.sealed_chunk import ObjectMap, SealedChunk
from wal.chunks.wal_object import ObjectLayout
from wal.chunks.wal_settings import WalSettings
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.disk import SYSTEM_DISK, Disk, write_vectors
from wal.errors import ChunkLost, CorruptChunk, DirectoryLost, StorageFailed
from wal.fd_cache import FdCache, FdHandle
from wal.segmented_log.log_directory import DirectoryLock

SPARE_CHUNKS_MAX: Final = 32
"""Kept at a time: as many as commits that were made together evict."""
_SPARE_LARGE_CHUNKS_MAX: Final = 8
"""All spares hold at most this many times `wal.chunk.max.bytes`: what a bucket's uploads evict."""

log = structlog.get_logger(__name__)


class ChunkDirectoryStatistics(NamedTuple):
    """What the directory holds now."""

    uncommitted_chunks: int
    uncommitted_bytes: int
    cached_chunks: int
    cached_bytes: int
    quarantined: int
    """Chunks moved to quarantine since the start."""


class _Spare(NamedTuple):
    """Files of a chunk that went."""

    data_bytes: int
    paths: ChunkPaths


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
        lane: int = 0,
        disk: Disk = SYSTEM_DISK,
        topics: TopicLookup | None = None,
        floors: FloorsLookup | None = None,
        commits: CommitJournal | None = None,
    ) -> None:
        """`topics`, `floors` and `commits` give what objects note: chunks/object_notes.py."""
        self.path = path
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._fd_cache = fd_cache
        self._broker_id = broker_id
        self._lane = lane
        self._disk = disk
        self.objects = LayingOut(topics, floors, commits)
        self._last_ulid: str | None = None
        self._lock = threading.Lock()
        self._chunks: dict[ObjectKey, SealedChunk] = {}
        # Committed chunks by number: the order of deletion.
        self._cached: dict[int, SealedChunk] = {}
        self._cached_bytes = 0
        self._cached_memory_bytes = 0
        self._next_number = 0
        self._directory_lock: DirectoryLock | None = None
        self._spares: list[_Spare] = []
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
            names = {*os.listdir(self.path)}
            quarantined = self._quarantine.numbers()
        except BlockingIOError as error:
            raise StorageFailed(f"{self.path}: another broker uses this directory") from error
        except OSError as error:
            raise StorageFailed(f"{self.path}: cannot be opened: {error}") from error
        numbers = chunk_numbers(names)
        indexed = {number for number in numbers if f"chunk-{number:06d}.idx" in names}
        self._next_number = max(numbers | quarantined, default=-1) + 1
        found: list[SealedChunk] = []
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
            found.append(chunk)
        waiting: list[SealedChunk] = []
        for chunk in sorted(found, key=lambda chunk: chunk.identity.ulid):
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
        with self._lock:
            spare = self._spares.pop() if self._spares else None
        if spare is not None:
            try:
                return self._new_writer(spare.paths, over_old=True)
            except StorageFailed as error:
                log.warning("spare files not used", error=str(error))
        with self._lock:
            number = self._next_number
            self._next_number += 1
        return self._new_writer(ChunkPaths.of(self.path, number))

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
            found = chunk_numbers(os.listdir(self.path))
        except OSError as error:
            raise DirectoryLost(
                f"{self.path} was deleted under this broker and cannot be made anew: {error}"
            ) from error
        with self._lock:
            self._next_number = max(self._next_number, max(found, default=-1) + 1)
            self._spares.clear()
            cached = list(self._cached.values())
        for chunk in cached:
            if not os.path.exists(chunk.data_path):
                self._forget(chunk)
                self._fd_cache.invalidate(chunk.data_path)

    def _new_writer(self, paths: ChunkPaths, *, over_old: bool = False) -> ChunkWriter:
        identity = ChunkIdentity.mint(
            self._clock, self._rng, self._broker_id, after=self._last_ulid, lane=self._lane
        )
        self._last_ulid = identity.ulid
        return ChunkWriter(
            paths,
            identity,
            data_max_bytes=self._settings.chunk_max_bytes,
            overflow_bytes=self._settings.chunk_overflow_bytes,
            sync=self._settings.chunk_sync,
            disk=self._disk,
            over_old=over_old,
        )

    def seal(
        self, writer: ChunkWriter, waiting: Sequence[Waiting], laid_out: LaidOut | None = None
    ) -> SealedChunk | None:
        """Close an open chunk, lay out its object, if it is not, and make it findable.

        None (and no files) if it has no batch. Notes that the disk refuses are not in the object
        either, whose plan is another one then. Raises: ChunkLost when somebody deleted its files;
        what is left of them is removed.
        """
        is_lost = bool(writer.batch_count) and not os.path.exists(writer.paths.data)
        if not writer.batch_count or is_lost:
            if laid_out is not None:
                self.objects.give_back(laid_out)
            writer.close()
            remove_files(self._disk, writer.paths)
            if is_lost:
                raise ChunkLost(f"{writer.paths.data}: deleted before it was sealed")
            return None
        if laid_out is None:
            laid_out = self.objects.lay_out(writer.identity, writer.batches())
        if laid_out.notes and not writer.write_notes(laid_out.notes):
            laid_out = self.objects.give_back(laid_out)
        writer.close()
        chunk = SealedChunk(
            self._open_data,
            self._lock,
            writer.paths,
            writer.identity,
            laid_out.batches,
            waiting=waiting,
            data_bytes=writer.data_bytes,
            index_bytes=writer.index_bytes,
            notes=laid_out.notes,
            plan=laid_out.plan,
        )
        with self._lock:
            self._chunks[chunk.object_key] = chunk
        return chunk

    def locate(self, object_key: ObjectKey) -> SealedChunk | None:
        """The chunk that became (or becomes) this object, while it is kept here."""
        return self._chunks.get(object_key)

    def mark_committed(self, chunk: SealedChunk) -> None:
        """The object is in the store and committed: from now on the chunk is only a cache. Blocks.

        Where that cannot be noted, its files are deleted, which cannot bring it back either.
        """
        plan = chunk.plan
        if len(plan.batches) < chunk.batch_count:
            # The object leaves out damaged batches; a restart could not plan it again.
            self.discard(chunk)
            return
        try:
            chunk.index_bytes = self._add_record(
                chunk.paths, chunk.commit_record(), chunk.index_bytes
            )
        except OSError as error:
            log.warning("commit not noted", path=chunk.paths.idx, error=str(error))
            self.discard(chunk)
            return
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
        ends, scan = chunk_scan.read_ends(paths), None
        if ends is None:
            scan = chunk_scan.scan_chunk(paths, self._fd_cache, trust_committed=True)
            if scan is None:
                return None
            if scan.committed is not None:
                ends = scan.ends()
        if ends is not None:
            books, load = self._lock, self._load_map
            return SealedChunk.committed(self._open_data, books, paths, ends, load)
        assert scan is not None
        if scan.torn:
            log.warning("torn tail cut", reason=scan.torn, batches_kept=len(scan.batches))
            chunk_scan.cut_tail(paths, scan, self._disk)
        notes, index_bytes = scan.notes or b"", scan.index_bytes
        if scan.notes is None:
            notes, index_bytes = self._note_recovered(paths, scan)
        return SealedChunk(
            self._open_data,
            self._lock,
            paths,
            scan.identity,
            scan.batches,
            data_bytes=scan.data_bytes,
            index_bytes=index_bytes,
            notes=notes,
        )

    def _load_map(self, chunk: SealedChunk) -> ObjectMap:
        """Of a chunk that an earlier process committed; one that is damaged is not kept."""
        try:
            return chunk_scan.map_of_committed(chunk.paths, self._fd_cache)
        except CorruptChunk as error:
            self.quarantine(chunk, error)
            raise

    def _note_recovered(self, paths: ChunkPaths, scan: chunk_scan.ChunkScan) -> tuple[bytes, int]:
        """Notes for a chunk that was not sealed, so that nothing of it was uploaded yet.

        With the length of .idx behind them.
        """
        notes = self.objects.notes_of(ObjectLayout.of(scan.batches).extents.partitions)
        if notes:
            record = encode_record(
                scan.identity.salt_crc, NOTES, len(scan.batches), scan.data_bytes, notes
            )
            try:
                end = self._add_record(
                    paths, record, scan.index_bytes, sync=self._settings.chunk_sync
                )
            except OSError as error:
                # What there is of them fails its CRC and is cut by the next recovery.
                log.warning("notes not written", path=paths.idx, error=str(error))
            else:
                return notes, end
        return b"", scan.index_bytes

    def _add_record(
        self, paths: ChunkPaths, record: bytes, position: int, *, sync: bool = False
    ) -> int:
        """Write a record to the .idx of a closed chunk; returns its end. Raises: OSError."""
        fd = self._disk.open(paths.idx, os.O_WRONLY)
        try:
            end = write_vectors(self._disk, fd, [record], position)
            if sync:
                self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        return end

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
        """A committed chunk that is not kept any longer: its files become a spare, or go."""
        self._forget(chunk)
        self._fd_cache.invalidate(chunk.data_path)
        with self._lock:
            bytes_max = self._settings.chunk_max_bytes * _SPARE_LARGE_CHUNKS_MAX
            spares = sorted([*self._spares, _Spare(chunk.data_bytes, chunk.paths)])
            if len(spares) <= SPARE_CHUNKS_MAX and sum([size for size, _ in spares]) <= bytes_max:
                self._spares = spares
                return
        remove_files(self._disk, chunk.paths)
