"""Keeps open files: a bounded LRU of read-only descriptors keyed by path.

Chunk readers and the file store come here for every read, in order or at random, so that reading
many small extents of the same few files costs one `stat` and one `pread` each instead of an open
and a close.

How a path is kept honest: a descriptor keeps serving the file it was opened on even when that file
was unlinked and another one was created under the same path. So every `open` asks the file system
which file the path names now (device and inode) and uses the cached descriptor only when it is that
one. The comparison is safe against recycled inode numbers because the number of a file somebody
holds open is not given away.

Invariants:

- Never more than `capacity` descriptors, except for those in use: eviction skips handles that
  somebody reads from, and closes them when the last reader lets go.
- A descriptor is closed exactly once, and never under a reader.
- All methods may be called from any thread; no lock is held during `stat`, `open` or `pread`.

Callers pass files that do not change once they are readable (objects, sealed chunks) or only grow
(the open chunk).

Source: Mofka's default partition manager, "Caches and buffer pools": its FD cache serves the
consumer feed only, and its documentation names random access as an obvious future use.
"""

import errno
import itertools
import os
import resource
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from wal.errors import InvalidSettings

# A cache may hold at most this share of the process's descriptors: sockets need the others.
_NOFILE_SHARE: Final = 2


class FdCacheStatistics(NamedTuple):
    """Counters since the cache was made, and what is open now."""

    hits: int
    misses: int
    evictions: int
    open: int
    """Descriptors held now, including those in use that are no longer in the cache."""
    in_use: int


class _Descriptor:
    """One open file: its identity, how many handles use it, and whether the cache let go of it."""

    __slots__ = ("cached", "fd", "identity", "path", "users")

    def __init__(self, path: str, fd: int, identity: tuple[int, int]) -> None:
        self.path = path
        self.fd = fd
        self.identity = identity
        self.users = 0
        self.cached = True

    def close(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        # Who forgets to close the cache leaves no files open.
        if self.fd >= 0:
            self.close()


class FdHandle:
    """A file that stays open for the length of a `with` block; made by `FdCache.open`."""

    __slots__ = ("_cache", "_descriptor")

    def __init__(self, cache: "FdCache", descriptor: _Descriptor) -> None:
        self._cache = cache
        self._descriptor: _Descriptor | None = descriptor

    def pread(self, length: int, offset: int) -> bytes:
        """Bytes [offset, offset + length), or as many of them as the file has.

        Repeats reads that the kernel cut short, so a short answer means the end of the file.
        Raises: OSError.
        """
        fd = self._open_descriptor().fd
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        missing = length - len(data)
        while missing and (data := os.pread(fd, missing, offset + length - missing)):
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from byte `offset` on; returns how much of it the file had.

        Repeats reads that the kernel cut short. Raises: OSError.
        """
        fd = self._open_descriptor().fd
        filled = os.preadv(fd, [buffer], offset)
        while 0 < filled < len(buffer):
            count = os.preadv(fd, [buffer[filled:]], offset + filled)
            if not count:
                break
            filled += count
        return filled

    def load_together(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have the disk read `ranges`, each (offset, length), at once, for the reads that follow.

        These would else wait for the disk one after the other. Nothing is done where the last range
        is in memory, as nearly always: a call for each would bring nothing then.
        Raises: OSError.
        """
        fd = self._open_descriptor().fd
        try:
            if os.preadv(fd, [bytearray(1)], ranges[-1][0], os.RWF_NOWAIT):
                return
        except OSError as error:
            # Not in memory, or the file system cannot tell.
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
        for offset, length in ranges:
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)

    def size(self) -> int:
        """The file's length in bytes now."""
        return os.fstat(self._open_descriptor().fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; the cache may close it from now on. Closing twice is harmless."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._cache._release(descriptor)

    def _open_descriptor(self) -> _Descriptor:
        if self._descriptor is None:
            raise ValueError("read from a file handle after its with block")
        return self._descriptor


class FdCache:
    """A bounded LRU of read-only descriptors; see the module's text for the rules.

    `capacity` (`fd.cache.capacity`): too small costs an open per read, too large starves sockets.
    Raises InvalidSettings when it is not between 1 and half of RLIMIT_NOFILE.
    """

    def __init__(self, capacity: int) -> None:
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = soft_limit // _NOFILE_SHARE
        if capacity < 1 or (soft_limit != resource.RLIM_INFINITY and capacity > most):
            raise InvalidSettings(
                f"fd.cache.capacity: {capacity} is not between 1 and {most},"
                f" half of this process's limit of {soft_limit} open files"
            )
        self._capacity = capacity
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, _Descriptor] = OrderedDict()
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._open = 0
        self._in_use = 0

    def open(self, path: str) -> FdHandle:
        """A handle on the file that `path` names now; use it in a `with` statement.

        Raises: OSError, FileNotFoundError first of all, also when a deleted file's descriptor is
        still cached.
        """
        try:
            status = os.stat(path)
        except FileNotFoundError:
            self.invalidate(path)
            raise
        if not stat.S_ISREG(status.st_mode):
            # Opening a directory works and opening a pipe waits; neither can be read from.
            raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
        identity = (status.st_dev, status.st_ino)
        with self._lock:
            descriptor = self._cached.get(path)
            if descriptor is not None and descriptor.identity == identity:
                self._cached.move_to_end(path)
                self._hits += 1
                return self._lend(descriptor)
            self._misses += 1
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The path may name yet another file than a moment ago; what was opened is what counts.
            status = os.fstat(fd)
        except OSError:
            os.close(fd)
            raise
        opened = _Descriptor(path, fd, (status.st_dev, status.st_ino))
        with self._lock:
            self._open += 1
            stale = self._cached.pop(path, None)
            if stale is not None:
                # Replaced file, or a thread that missed at the same time: the newest open wins.
                self._retire(stale)
            self._cached[path] = opened
            handle = self._lend(opened)
            self._shrink()
        return handle

    def invalidate(self, path: str) -> None:
        """Forget `path`, for example because its file was unlinked and its space should return."""
        with self._lock:
            descriptor = self._cached.pop(path, None)
            if descriptor is not None:
                self._retire(descriptor)

    def statistics(self) -> FdCacheStatistics:
        with self._lock:
            return FdCacheStatistics(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                open=self._open,
                in_use=self._in_use,
            )

    def close(self) -> None:
        """Close everything; what is in use is closed by its last reader. Reopening is allowed."""
        with self._lock:
            while self._cached:
                _, descriptor = self._cached.popitem()
                self._retire(descriptor)

    def _lend(self, descriptor: _Descriptor) -> FdHandle:
        if descriptor.users == 0:
            self._in_use += 1
        descriptor.users += 1
        return FdHandle(self, descriptor)

    def _release(self, descriptor: _Descriptor) -> None:
        with self._lock:
            descriptor.users -= 1
            if descriptor.users:
                return
            self._in_use -= 1
            if not descriptor.cached:
                self._close(descriptor)
            else:
                self._shrink()

    def _shrink(self) -> None:
        """Evict the least recently used files nobody reads, until the capacity is kept again."""
        excess = len(self._cached) - self._capacity
        if excess <= 0:
            return
        idle = (entry for entry in self._cached.values() if not entry.users)
        # Made before anything is deleted, and no further than that many: the oldest come first.
        for descriptor in [*itertools.islice(idle, excess)]:
            del self._cached[descriptor.path]
            self._evictions += 1
            self._retire(descriptor)

    def _retire(self, descriptor: _Descriptor) -> None:
        descriptor.cached = False
        if not descriptor.users:
            self._close(descriptor)

    def _close(self, descriptor: _Descriptor) -> None:
        self._open -= 1
        descriptor.close()
