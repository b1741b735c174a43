"""The directory of a segmented log and the files in it.

wal/segmented_log/segmented_log.py reaches the disk only through here, and what changes anything
goes through a `Disk` (wal/disk.py), so that a test can fail any write, sync or removal. What the
operating system refuses comes out as StorageFailed, naming the file.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from wal.crc import Buffer
from wal.disk import SYSTEM_DISK, Disk, write_vectors
from wal.errors import StorageFailed

LOCK_NAME: Final = "lock"


class SyncFailed(StorageFailed):
    """A sync failed: the kernel has given up what it could not write, and will not say so again."""


class OpenFile:
    """One open file, read and written by position; positions and lengths are in bytes.

    Every method raises StorageFailed.
    """

    __slots__ = ("_disk", "_fd", "path")

    def __init__(self, disk: Disk, path: Path, fd: int) -> None:
        self._disk = disk
        self._fd = fd
        self.path = path

    def size_bytes(self) -> int:
        with _translated(self.path, "stat"):
            return os.fstat(self._fd).st_size

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        with _translated(self.path, "read"):
            data = os.pread(self._fd, length, position)
            if len(data) == length or not data:
                return data
            # A read may be short in the middle of a file, too: the kernel stops at 2 GiB.
            parts = [data]
            done = len(data)
            while done < length and (data := os.pread(self._fd, length - done, position + done)):
                parts.append(data)
                done += len(data)
            return b"".join(parts)

    def write(self, position: int, fragments: Sequence[Buffer]) -> None:
        """Write all fragments back to back; when it fails any prefix may have been written."""
        with _translated(self.path, "write"):
            write_vectors(self._disk, self._fd, fragments, position)

    def truncate(self, size_bytes: int) -> None:
        with _translated(self.path, "truncate"):
            self._disk.ftruncate(self._fd, size_bytes)

    def sync(self) -> None:
        """Return when content and size are durable, in the file that `path` names.

        What is synced into a file that was deleted or moved away is lost with this process.
        Raises: SyncFailed.
        """
        with _translated(self.path, "fdatasync", SyncFailed):
            self._disk.fdatasync(self._fd)
        if not _is_named(self._fd, self.path):
            raise SyncFailed(f"{self.path}: deleted or moved away while it was open")

    def close(self) -> None:
        with _translated(self.path, "close"):
            self._disk.close(self._fd)


class LogDirectory:
    """One flat directory that one log owns; created, with its parents, if it is not there.

    Every method raises StorageFailed.
    """

    def __init__(self, path: Path, disk: Disk = SYSTEM_DISK) -> None:
        self._path = path
        self._disk = disk
        with _translated(path, "mkdir"):
            path.mkdir(parents=True, exist_ok=True)

    def __str__(self) -> str:
        return str(self._path)

    def names(self) -> Sequence[str]:
        with _translated(self._path, "listdir"):
            return os.listdir(self._path)

    def create(self, name: str) -> OpenFile:
        """A new empty file, replacing what had the name."""
        path = self._path / name
        with _translated(path, "create"):
            fd = self._disk.open(str(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return OpenFile(self._disk, path, fd)

    def open(self, name: str) -> OpenFile | None:
        """An existing file, or None."""
        path = self._path / name
        with _translated(path, "open"):
            try:
                fd = self._disk.open(str(path), os.O_RDWR)
            except FileNotFoundError:
                return None
        return OpenFile(self._disk, path, fd)

    def remove(self, name: str) -> None:
        path = self._path / name
        with _translated(path, "unlink"):
            self._disk.unlink(str(path))

    def sync(self) -> None:
        """Return when all creations and removals are durable. Raises: SyncFailed."""
        with _translated(self._path, "fsync", SyncFailed):
            fd = self._disk.open(str(self._path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)


def _is_named(fd: int, path: Path) -> bool:
    """Whether `path` is the name of the open file. Raises: SyncFailed."""
    with _translated(path, "stat", SyncFailed):
        try:
            return os.path.samestat(os.stat(path), os.fstat(fd))
        except (FileNotFoundError, NotADirectoryError):
            return False


@contextmanager
def _translated(
    path: Path, operation: str, failure: type[StorageFailed] = StorageFailed
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failure(f"{operation} {path}: {error.strerror}") from error


class DirectoryLock:
    """Makes this process the directory's only user for as long as the lock is open.

    The kernel lets go of it when the process dies, however it dies.
    Raises: BlockingIOError when somebody else holds it.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path / LOCK_NAME
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._fd)
            raise

    def is_in_place(self) -> bool:
        """Whether the directory still has this lock: it was not deleted, moved or replaced.

        Raises: StorageFailed.
        """
        return _is_named(self._fd, self._path)

    def close(self) -> None:
        os.close(self._fd)
