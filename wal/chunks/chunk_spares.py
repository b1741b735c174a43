"""Keeps the files of chunks that are gone, for the chunks to come.

A broker under load opens and deletes dozens of chunks a second, of five files each. ext4 does not
give out the inode of a file that was deleted within the last seconds, and looks at each such inode
again whenever a file is created in that directory: creating the four files of a chunk came to cost
more than writing its 8 MiB. So the files of an evicted chunk are renamed and used again. The pages
of .data stay in the page cache and are written over, which costs half of what new ones do.

The chunk directory owns one of these and calls it from several threads.

Invariants:

- A spare is `spare-N.{idx,data,meta,desc,committed}`, a name that recovery never takes for a chunk.
- Retiring a chunk renames .idx first, using a spare renames .idx last, emptied before. So at any
  crash a chunk either has all of its files or no .idx, which is what recovery removes.
- .data is not emptied: stale bytes behind what was appended are cut when the chunk is sealed, and
  by recovery as a torn tail. No index record ever names them.
- A marker gets its content before its name.

Failure cases: whatever the disk refuses, the files in question are deleted and the chunk is created
or deleted as without spares. `clear`, at start and when the directory was deleted under the broker,
deletes what is left of an earlier time.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from wal.disk import Disk

SPARE_CHUNKS_MAX: Final = 4
"""Kept at a time: as many as are opened before the next one is evicted."""

PREFIX: Final = "spare-"
_SUFFIXES: Final = ("idx", "data", "meta", "desc")
_MARKER_SUFFIX: Final = "committed"

log = structlog.get_logger(__name__)


class SpareFiles:
    """The four files of one spare."""

    def __init__(self, directory: Path, number: int) -> None:
        base = f"{directory / PREFIX}{number:06d}"
        self.idx, self.data, self.meta, self.desc = (f"{base}.{suffix}" for suffix in _SUFFIXES)
        self.marker = f"{base}.{_MARKER_SUFFIX}"

    @property
    def files(self) -> Sequence[str]:
        """.idx first, as chunks do."""
        return self.idx, self.data, self.meta, self.desc


class SpareChunks:
    """A few spares, and markers that wait for a chunk to be committed."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._lock = threading.Lock()
        self._next_number = 0
        self._spares: list[SpareFiles] = []
        self._markers: list[str] = []

    def clear(self) -> None:
        """Forget and delete every spare in the directory. Raises: OSError."""
        with self._lock:
            self._spares.clear()
            self._markers.clear()
        for name in os.listdir(self._directory):
            if name.startswith(PREFIX):
                self._disk.unlink(str(self._directory / name))

    def keep(self, files: Sequence[str], marker: str) -> bool:
        """Retire a chunk's four files, .idx first, and its marker.

        False when there are spares enough, or the disk refused: then the caller deletes what is
        left of the chunk.
        """
        with self._lock:
            if len(self._spares) >= SPARE_CHUNKS_MAX:
                return False
            spare = SpareFiles(self._directory, self._next_number)
            self._next_number += 1
        renamed: list[str] = []
        try:
            for source, target in zip((*files, marker), (*spare.files, spare.marker), strict=True):
                self._disk.rename(source, target)
                renamed.append(target)
        except OSError as error:
            log.warning("chunk files not kept for use again", error=str(error))
            self.delete(renamed)
            return False
        with self._lock:
            self._spares.append(spare)
            self._markers.append(spare.marker)
        return True

    def take(self) -> SpareFiles | None:
        """A spare that now belongs to the caller, if there is one."""
        with self._lock:
            return self._spares.pop() if self._spares else None

    def take_marker(self) -> str | None:
        """The path of a marker file that now belongs to the caller, if there is one."""
        with self._lock:
            return self._markers.pop() if self._markers else None

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files that belong to the caller; what cannot be deleted is left for `clear`."""
        for path in paths:
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("spare file not deleted", path=path, error=str(error))
