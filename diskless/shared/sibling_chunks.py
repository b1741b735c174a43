"""Reads the chunks of the other processes of this broker, by the bytes of their objects.

What was just produced is read from the chunk it lies in, whichever process took it. Its owner tells
when it has sealed a chunk (`chunk_notices`), and gives no notice when the chunk goes: its files may
be deleted, or written over by the next chunk, while they are read here. Nothing is locked.

Why no other bytes are ever served:

- A chunk's index names its object and has a salt that is new for each chunk. Who writes over a
  chunk's files writes the new index header first. So the header is read once more *after* the data:
  if it is still the same, what was read before is this chunk's.
- Where each byte of the object lies in the chunk follows from its index, unless a batch was left
  out of the object. So the object that follows from it must be as long as the one committed.
- The CRC of each batch is checked by who serves it, as always.

What cannot be read is ChunkGone, and the object is asked instead.

Maps from objects to chunks are kept for the chunks read last, MAPS_BYTES_MAX of them.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from diskless.shared.chunk_notices import ChunkNotices
from wal.chunks.chunk import CHUNK_HEADER_BYTES, ChunkIdentity, ChunkPaths
from wal.chunks.chunk_scan import scan_chunk
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import ObjectLayout
from wal.coordinates import ObjectKey
from wal.errors import CorruptChunk, StorageFailed
from wal.fd_cache import FdCache, FdHandle

MAPS_BYTES_MAX: Final = 32 << 20
"""16 bytes for each batch, and some for each chunk: a few hundred chunks."""


class ChunkGone(StorageFailed):
    """A chunk of another process is not there any more, or is another one."""


class SiblingChunks:
    """Finds chunks of other processes; any thread reads them."""

    def __init__(
        self, directories: Sequence[Path], notices: ChunkNotices, fd_cache: FdCache
    ) -> None:
        """`directories` by lane, the own one among them."""
        self._directories = directories
        self._notices = notices
        self._fd_cache = fd_cache
        self._lock = threading.Lock()
        self._maps: OrderedDict[ObjectKey, SealedChunk] = OrderedDict()
        """The one that was read last comes last."""
        self._maps_bytes = 0

    def locate(self, object_key: ObjectKey, object_bytes: int) -> "SiblingChunk | None":
        """The chunk of an object of this length, as far as was heard; no I/O; on one thread."""
        place = self._notices.find(object_key)
        if place is None:
            return None
        paths = ChunkPaths.of(self._directories[place.lane], place.number)
        return SiblingChunk(self, object_key, object_bytes, paths)

    def forget(self, object_key: ObjectKey) -> None:
        """It turned out to be gone; on the thread of `locate`."""
        self._notices.forget(object_key)
        with self._lock:
            self._drop(object_key)

    # -- in the threads that read ---------------------------------------------------------------

    def _map_of(self, wanted: "SiblingChunk") -> SealedChunk:
        """Raises: ChunkGone, CorruptChunk, StorageFailed."""
        with self._lock:
            known = self._maps.get(wanted.object_key)
            if known is not None:
                self._maps.move_to_end(wanted.object_key)
                return known
        # Two threads may do it at once; both find the same.
        found = self._scan(wanted)
        with self._lock:
            if wanted.object_key not in self._maps:
                self._maps[wanted.object_key] = found
                self._maps_bytes += found.cached_memory_bytes
            while self._maps_bytes > MAPS_BYTES_MAX and len(self._maps) > 1:
                self._drop(next(iter(self._maps)))
        return found

    def _drop(self, object_key: ObjectKey) -> None:
        known = self._maps.pop(object_key, None)
        if known is not None:
            self._maps_bytes -= known.cached_memory_bytes

    def _scan(self, wanted: "SiblingChunk") -> SealedChunk:
        paths = wanted.paths
        try:
            scan = scan_chunk(paths, self._fd_cache, trust_all=True)
        except CorruptChunk as error:
            # One that is being written over looks like this as well.
            raise ChunkGone(str(error)) from error
        if scan is None or scan.identity.object_key != wanted.object_key:
            raise ChunkGone(f"{paths.idx}: not the chunk of {wanted.object_key}")
        plan = ObjectLayout.of(scan.batches).plan(scan.identity, scan.notes or b"")
        if plan.object_bytes != wanted.object_bytes:
            raise ChunkGone(f"{paths.idx}: not all of what became {wanted.object_key}")
        chunk = SealedChunk(
            self._open_data,
            self._lock,
            paths,
            scan.identity,
            scan.batches,
            data_bytes=scan.data_bytes,
            index_bytes=scan.index_bytes,
            plan=plan,
        )
        chunk.forget_plan()
        return chunk

    def _open_data(self, chunk: SealedChunk) -> FdHandle:
        try:
            return self._fd_cache.open(chunk.data_path)
        except OSError as error:
            raise ChunkGone(f"{chunk.data_path}: {error}") from error

    def _check_still_there(self, chunk: SealedChunk) -> None:
        """Raises ChunkGone."""
        path = chunk.paths.idx
        try:
            with self._fd_cache.open(path) as index:
                header = index.pread(CHUNK_HEADER_BYTES, 0)
            now = ChunkIdentity.decode(header, path)
        except (OSError, CorruptChunk) as error:
            raise ChunkGone(f"{path}: {error}") from error
        if now != chunk.identity:
            raise ChunkGone(f"{path}: written over by {now.object_key}")


class SiblingChunk:
    """One chunk of another process, perhaps gone."""

    __slots__ = ("_siblings", "object_bytes", "object_key", "paths")

    def __init__(
        self,
        siblings: SiblingChunks,
        object_key: ObjectKey,
        object_bytes: int,
        paths: ChunkPaths,
    ) -> None:
        self._siblings = siblings
        self.object_key = object_key
        self.object_bytes = object_bytes
        self.paths = paths

    def read_object_range(self, start: int, content: memoryview) -> None:
        """As `SealedChunk.read_object_range`. Raises: ChunkGone, OutOfBounds, StorageFailed."""
        siblings = self._siblings
        chunk = siblings._map_of(self)
        try:
            chunk.read_object_range(start, content)
        except CorruptChunk as error:
            raise ChunkGone(str(error)) from error
        siblings._check_still_there(chunk)
