"""The door to files that are written: system calls as an argument.

Chunk writing goes through a `Disk`, so that a test can give it a disk that is full, fails an fsync
or writes half of what it gets. Every method is one system call and raises OSError.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from wal.crc import Buffer

IOV_MAX: Final = int(os.sysconf("SC_IOV_MAX"))
_SYNC_FILE_RANGE_WRITE: Final = 2
"""Begin to write what is not being written yet."""


class Disk(Protocol):
    """The calls that change files."""

    def open(self, path: str, flags: int) -> int: ...

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int: ...

    def fdatasync(self, fd: int) -> None: ...

    def fsync(self, fd: int) -> None:
        """For directories, whose entries fdatasync need not write."""
        ...

    def ftruncate(self, fd: int, length_bytes: int) -> None: ...

    def close(self, fd: int) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...


class SystemDisk:
    """The operating system's."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def ftruncate(self, fd: int, length_bytes: int) -> None:
        os.ftruncate(fd, length_bytes)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)


SYSTEM_DISK: Final = SystemDisk()


def write_vectors(disk: Disk, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all of `buffers` back to back at `offset`; returns the offset behind them.

    One system call per IOV_MAX buffers, and another one only where the kernel wrote less than it
    was given, which it does just before it runs out of space. Raises: OSError, after which any
    prefix may have been written.
    """
    for first in range(0, len(buffers), IOV_MAX):
        vectors = buffers[first : first + IOV_MAX]
        while vectors:
            written = disk.pwritev(fd, vectors, offset)
            offset += written
            vectors = _behind(vectors, written)
    return offset


def _behind(vectors: Sequence[Buffer], written: int) -> Sequence[Buffer]:
    """What is left of `vectors` behind their first `written` bytes."""
    if written == sum(map(len, vectors)):
        return ()
    first = 0
    while first < len(vectors) and written >= len(vectors[first]):
        written -= len(vectors[first])
        first += 1
    left = list(vectors[first:])
    if written:
        left[0] = memoryview(left[0])[written:]
    return left


def _found() -> Callable[[int, int, int, int], int] | None:
    """Returns `sync_file_range` of the C library, or None where the system does not have it.

    Python does not offer the call. Through ctypes it releases the interpreter's lock.
    """
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call: Callable[[int, int, int, int], int] = function
    return call


_sync_file_range: Final = _found()


def begin_write_back(fd: int) -> None:
    """Have the system begin to write all that the file got by now to its disk, and do not wait.

    It promises nothing, and where it cannot be, nothing happens: whoever needs the bytes on the
    disk syncs the file afterwards.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)
