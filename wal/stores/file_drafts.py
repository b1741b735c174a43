"""Drafts of a file store: objects that are being written and have no name yet.

A put (wal/stores/file_store.py) writes its body to a new file in `<root>/.diskless-puts/<owner>/`,
durably, before it gives it a name. Nothing below `.diskless-puts` is an object.

A large draft is written past the page cache (O_DIRECT): the disk takes the bytes from where the
body has them, and 8 MiB cost 1.1 ms of CPU instead of 2.5. That goes for fragments of whole blocks
in memory that starts at a block, which are those of a WAL object but for its end. From the first
other fragment on, and where the file system does not know that way, a draft is written as any file.
Its pages leave the page cache then: its writer has the bytes locally, and pages that stay mean new
ones for every object. Where free memory was never touched before, as on a young virtual machine,
that alone made a put of 8 MiB cost 10 to 20 ms of CPU instead of 3. Reading the file back would
only compare the page cache with itself; what an object holds is checked by the checksums in it.

The owner directories exist so that what a crash left over can be told from what another live
process is writing: an owner holds a `flock` on its directory while it lives, and opening the store
removes the directories whose lock can be taken.
"""

import errno
import fcntl
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from wal.coordinates import ObjectKey
from wal.disk import begin_write_back
from wal.errors import (
    CorruptObject,
    DisklessError,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    Rejected,
)
from wal.private_copy import BLOCK_BYTES, is_aligned
from wal.stores.object_store import Buffer, ObjectBody

REFUSALS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_BUFFERS_PER_WRITE_MAX: Final = 1024  # IOV_MAX of Linux and macOS
# Below this, copying a fragment is cheaper than a system call of its own.
_SMALL_FRAGMENT_BYTES: Final = 16 * 1024
_COMPARE_BYTES: Final = 1024 * 1024
_DIRECT_BYTES_MIN: Final = 256 * 1024
"""Of the first fragment. Measured: below, setting up the transfers costs what the copies cost that
it saves."""
_O_DIRECT: Final = getattr(os, "O_DIRECT", 0)


class Drafts:
    """The drafts of one store in this process, in a directory that it locks while it is open."""

    def __init__(self, root: str, owner: str, *, sync: bool) -> None:
        """`root` is shared with other processes, `owner` is this one's name in it."""
        self._root = root
        self._own = f"{root}/{owner}"
        self._sync = sync
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._lock_fd: int | None = None
        self._may_be_direct = sync and bool(_O_DIRECT)

    def open(self) -> None:
        """Make and lock our staging directory; with the first put, so that readers need no write
        permission. Raises: OSError."""
        with self._lock:
            if self._lock_fd is not None:
                return
            os.makedirs(self._root, exist_ok=True)
            # Nobody may look for abandoned directories between our mkdir and our lock.
            with _locked_directory(self._root):
                os.mkdir(self._own)
                fd = os.open(self._own, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(fd, fcntl.LOCK_EX)
            self._lock_fd = fd

    def remove_abandoned(self) -> None:
        """Remove what crashed writers left unfinished. Raises: OSError."""
        if not os.path.isdir(self._root):
            return
        with _locked_directory(self._root):
            self._remove_unlocked()

    def _remove_unlocked(self) -> None:
        for name in os.listdir(self._root):
            staging = f"{self._root}/{name}"
            try:
                fd = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (NotADirectoryError, FileNotFoundError):
                continue  # not ours to remove, or its owner just closed its store
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_directory(staging)
            except BlockingIOError:
                pass  # its owner lives
            finally:
                os.close(fd)

    def close(self) -> None:
        """Give up the directory; no put may be running."""
        with self._lock:
            if self._lock_fd is not None:
                _remove_directory(self._own)
                os.close(self._lock_fd)
                self._lock_fd = None

    def new_path(self) -> str:
        """The path of the next draft."""
        return f"{self._own}/{next(self._numbers)}"

    def write(
        self,
        key: ObjectKey,
        draft: str,
        body: ObjectBody,
        check_in_time: Callable[[], None],
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Step 1 of a put: a complete, verified and durable file without a name.

        `meanwhile` is called beside the disk, once the file has all of its bytes.
        """
        try:
            # Readable for whom the umask says: Spark may run as another user.
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise unavailable(key, error) from error
        with ExitStack() as closing:
            closing.callback(os.close, fd)
            written = 0
            is_direct = False
            for buffers in _gathered(body):
                check_in_time()
                if not written and self._may_be_direct and len(buffers[0]) >= _DIRECT_BYTES_MIN:
                    is_direct = _go_direct(fd)
                written += sum(len(buffer) for buffer in buffers)
                try:
                    if is_direct:
                        buffers = _write_blocks(fd, buffers)
                        if buffers:
                            _end_direct(fd)
                            is_direct = False
                    _write_fully(fd, buffers)
                except OSError as error:
                    if is_direct and error.errno == errno.EINVAL:
                        # The flag was taken, these writes are not; the next put knows.
                        self._may_be_direct = False
                    raise unavailable(key, error) from error
            if written != body.length_bytes:
                raise CorruptObject(
                    f"{key}: the body says {body.length_bytes} bytes and has {written}"
                )
            if meanwhile is not None:
                if self._sync:
                    begin_write_back(fd)
                meanwhile()
            try:
                length = os.fstat(fd).st_size
                if length != written:
                    raise ObjectStoreUnavailable(f"{key}: wrote {written} bytes, it has {length}")
                if self._sync:
                    os.fdatasync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise unavailable(key, error) from error


def no_directory(url: str, error: OSError) -> ObjectStoreUnavailable:
    """What it means that the store's own directories cannot be made, read or written."""
    in_the_way = isinstance(error, (FileExistsError, NotADirectoryError))
    if in_the_way or error.errno in REFUSALS:
        return ObjectStoreRefused(
            f"object store {url}: {error}; it must be a directory that this user may write to"
        )
    return ObjectStoreUnavailable(f"object store {url}: {error}")


def unavailable(key: str, error: OSError) -> DisklessError:
    """Returns what a failure means when the object certainly has no name yet.

    A directory tree is narrower than a bucket: a name in a key is at most 255 bytes long, and `a`
    and `a/b` cannot both be objects. Trying again does not help against either.
    """
    if (
        isinstance(error, (NotADirectoryError, IsADirectoryError))
        or error.errno == errno.ENAMETOOLONG
    ):
        return Rejected(f"{key}: {error}")
    if error.errno in REFUSALS:
        return ObjectStoreRefused(f"{key}: {error}")
    return ObjectStoreUnavailable(f"{key}: {error}")


def _gathered(body: ObjectBody) -> Iterator[Sequence[Buffer]]:
    """The body's fragments in groups that one vectored write may take.

    Fragments of a list or tuple are all valid together. Any others are valid until the next one is
    asked for, so a group ends with the first that is not worth copying.
    """
    fragments = body.fragments()
    if isinstance(fragments, (list, tuple)):
        for first in range(0, len(fragments), _BUFFERS_PER_WRITE_MAX):
            yield [_as_bytes(f) for f in fragments[first : first + _BUFFERS_PER_WRITE_MAX]]
        return
    group: list[Buffer] = []
    for fragment in fragments:
        view = _as_bytes(fragment)
        small = len(view) < _SMALL_FRAGMENT_BYTES
        group.append(bytes(view) if small else view)
        if not small or len(group) == _BUFFERS_PER_WRITE_MAX:
            yield group
            group = []
    if group:
        yield group


def _go_direct(fd: int) -> bool:
    """Write past the page cache from now on; False where the file system cannot."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | _O_DIRECT)
    except OSError:
        return False
    return True


def _end_direct(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_O_DIRECT)


def _write_blocks(fd: int, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Write whole blocks of the first buffer; returns what is left. Raises: OSError."""
    view = memoryview(buffers[0])
    whole = len(view) - len(view) % BLOCK_BYTES if is_aligned(view) else 0
    if whole:
        _write_fully(fd, [view[:whole]])
    return [view[whole:], *buffers[1:]] if whole < len(view) or len(buffers) > 1 else ()


def _as_bytes(fragment: Buffer) -> memoryview:
    return memoryview(fragment).cast("B")


def _write_fully(fd: int, buffers: Sequence[Buffer]) -> None:
    """Write all of it; the kernel may take less than it is given. Raises: OSError."""
    remaining = list(buffers)
    while remaining:
        written = os.writev(fd, remaining)
        first = 0
        while first < len(remaining) and written >= len(remaining[first]):
            written -= len(remaining[first])
            first += 1
        del remaining[:first]
        if remaining and written:
            remaining[0] = memoryview(remaining[0])[written:]


def same_content(key: str, path: str, other_path: str) -> bool:
    """Whether two files hold the same bytes. Raises: ObjectStoreUnavailable, Rejected."""
    try:
        with open(path, "rb") as file, open(other_path, "rb") as other:
            if os.fstat(file.fileno()).st_size != os.fstat(other.fileno()).st_size:
                return False
            while piece := file.read(_COMPARE_BYTES):
                if piece != other.read(_COMPARE_BYTES):
                    return False
            return True
    except OSError as error:
        # Also when it was deleted this moment: the put did not happen and may be tried again.
        raise unavailable(key, error) from error


@contextmanager
def _locked_directory(path: str) -> Iterator[None]:
    """Holds an exclusive `flock` on a directory; waits for it. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _remove_directory(staging: str) -> None:
    """Remove a staging directory and the drafts in it, as far as that is possible."""
    try:
        for name in os.listdir(staging):
            discard(f"{staging}/{name}")
        os.rmdir(staging)
    except OSError:
        pass  # costs disk space only, and the next open tries again


def discard(draft: str) -> None:
    try:
        os.unlink(draft)
    except OSError:
        pass  # renamed into place, or left for the next open to remove
