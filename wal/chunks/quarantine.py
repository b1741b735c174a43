"""Damaged chunks, moved out of the way of recovery and kept for people to look at.

The chunk directory (wal/chunks/chunk_directory.py) decides what is damaged. The oldest chunks here
are deleted when all of them exceed `wal.quarantine.max.bytes`. What the disk refuses is logged: the
chunk then stays where it was, is in no book, and the next start finds it again.
"""

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from wal.chunks.chunk import CHUNK_FILE, ChunkPaths, remove_files
from wal.disk import Disk
from wal.errors import CorruptChunk
from wal.fd_cache import FdCache

QUARANTINE: Final = "quarantine"
"""The name of its directory, among the chunks."""
DAMAGE_KEPT_MAX: Final = 100

log = structlog.get_logger(__name__)


class Quarantine:
    """The directory of damaged chunks; it is made with the first of them."""

    def __init__(self, path: Path, disk: Disk, fd_cache: FdCache, *, max_bytes: int) -> None:
        self._path = path
        self._disk = disk
        self._fd_cache = fd_cache
        self._max_bytes = max_bytes
        self.damage: deque[CorruptChunk] = deque(maxlen=DAMAGE_KEPT_MAX)
        self.count = 0
        """Chunks that came here since the start."""

    def numbers(self) -> set[int]:
        """The numbers of the chunks that are here. Raises: OSError."""
        return chunk_numbers(os.listdir(self._path)) if self._path.exists() else set()

    def take(self, paths: ChunkPaths, error: CorruptChunk) -> None:
        """Move the files of a chunk that has this damage. Blocks."""
        log.error("chunk quarantined", number=paths.number, error=str(error))
        self.damage.append(error)
        self.count += 1
        try:
            self._path.mkdir(exist_ok=True)
            for source in paths.files:
                self._fd_cache.invalidate(source)
                try:
                    self._disk.rename(source, str(self._path / os.path.basename(source)))
                except FileNotFoundError:
                    continue
            self._shrink()
        except OSError as failure:
            log.error("chunk not moved", number=paths.number, error=str(failure))

    def _shrink(self) -> None:
        chunks = [ChunkPaths.of(self._path, number) for number in sorted(self.numbers())]
        sizes = [file_bytes_of(paths) for paths in chunks]
        excess = sum(sizes) - self._max_bytes
        for paths, size in zip(chunks, sizes, strict=True):
            if excess <= 0:
                return
            log.warning("quarantined chunk deleted, wal.quarantine.max.bytes", number=paths.number)
            remove_files(self._disk, paths)
            excess -= size


def chunk_numbers(names: Iterable[str]) -> set[int]:
    """The numbers of the chunks that have a file among `names`; other names are left alone."""
    matches = (CHUNK_FILE.fullmatch(name) for name in names)
    return {int(match[1]) for match in matches if match is not None}


def file_bytes_of(paths: ChunkPaths) -> int:
    """Returns the bytes of all the files of a chunk that exist. Raises: OSError."""
    total = 0
    for path in paths.files:
        try:
            total += os.stat(path).st_size
        except FileNotFoundError:
            continue
    return total
