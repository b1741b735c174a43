"""An object store in a directory: `file:///dir`, the embedded default and what tests run on.

An object is a file whose path below the root is its key. `BlockingFileStore` does the work;
`FileStore` runs it in threads of its own for the broker. Spark tasks use the blocking one directly
(`wal.stores.blocking_store`).

How a put is atomic, durable and put-if-absent, step by step:

1. the body is written to a new file in `<root>/.diskless-puts/<owner>/`; the kernel must have
   taken all of it, and the file must have its length; `fdatasync` makes it durable.
2. `link` gives it its name: the kernel refuses when the name is taken, so of several writers one
   wins, and readers see the whole file or nothing
3. `fsync` of the directory, and of the parents of directories made for it, makes the name durable

Failures before 2 left nothing behind (ObjectStoreUnavailable). Failures after it may have stored
the object (UploadOutcomeUnknown).

A name that is taken: the stored file is compared with ours byte by byte. Equal means a repeated put
(of this process or of one that crashed before it got its answer), which is a success. What has a
name was durable before it got it, so the stored file stays, and only 3 is repeated. It is not
replaced by ours, because a listing that runs meanwhile may miss a name that is renamed over: tmpfs
and btrfs take the old entry out and add a new one behind the reader. Different bytes are
ObjectExists.

An fsync that failed is not trusted the next time: the kernel may have dropped what it could not
write and report success. A put whose body did not get durable writes a new file anyway. Where 3
failed in this process, a repeated put does replace the stored file, by `rename`, which writes the
directory's entry anew; listings of a directory whose disk fails are the lesser worry.

Reads are `pread`s through an FD cache. Listing walks one directory at a time, in key order: a
`scandir` returns every name that was there when it began and is not taken away, and of names that
come and go meanwhile it returns some. Directories are made before their first object and never
removed. That is what `ObjectStore.list` promises, and no more: it is no snapshot.
Everything needs hard links, `flock` and `fsync` of directories: a local POSIX file system.
"""

import asyncio
import builtins
import itertools
import os
import random
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn, Self, TypeVar
from urllib.parse import quote

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptObject,
    DisklessError,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreUnavailable,
    Rejected,
    UploadOutcomeUnknown,
)
from wal.fd_cache import FdCache
from wal.settings import setting
from wal.stores.file_drafts import Drafts, discard, no_directory, same_content, unavailable
from wal.stores.object_store import (
    STAGING_DIRECTORY,
    ObjectBody,
    ObjectStat,
    StoreCounters,
    StoreStatistics,
    check_object_key,
)
from wal.worker_threads import WorkerThreads

_Result = TypeVar("_Result")

_KNOWN_DIRECTORIES_MAX: Final = 4096
_DOUBTED_NAMES_MAX: Final = 4096
_LIST_PAGE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStoreSettings:
    """Limits of one file store."""

    put_threads: int = setting(
        "file.store.put.threads",
        8,
        minimum=1,
        maximum=64,
        why="fewer: puts wait for each other's fsync; more: they share the same disk anyway",
    )
    read_threads: int = setting(
        "file.store.read.threads",
        4,
        minimum=1,
        maximum=64,
        why="apart from the puts, so that a slow fsync does not hold up a fetch; each is a thread",
    )
    fd_capacity: int = setting(
        "file.store.fd.capacity",
        64,
        minimum=1,
        maximum=65536,
        why="fewer: an open for every read; more: descriptors that sockets could use",
    )
    deadline_ms: int = setting(
        "file.store.deadline.ms",
        30_000,
        minimum=1,
        maximum=3_600_000,
        why="shorter: puts on a busy disk are given up; longer: a hung disk is noticed later",
    )


class BlockingFileStore:
    """The file store for threads and Spark tasks; every method blocks and is safe in threads.

    `sync=False` leaves out every fsync: a process may crash, the machine may not.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        clock: Clock,
        rng: random.Random,
        sync: bool = True,
        settings: FileStoreSettings | None = None,
    ) -> None:
        self._root = os.path.abspath(root)
        self._clock = clock
        self._sync = sync
        self._settings = settings or FileStoreSettings()
        self._files = FdCache(self._settings.fd_capacity)
        self._drafts = Drafts(
            f"{self._root}/{STAGING_DIRECTORY}", f"{rng.getrandbits(64):016x}", sync=sync
        )
        self._lock = threading.Lock()
        self._known_directories: set[str] = set()
        self._doubted: dict[str, None] = {}
        """Objects whose directory this process could not sync, oldest first."""

    @property
    def url(self) -> str:
        return f"file://{quote(self._root)}"

    def open(self) -> None:
        """Make the root directory and remove what crashed writers left unfinished.

        Raises: ObjectStoreRefused, ObjectStoreUnavailable when it cannot be made or read.
        """
        try:
            os.makedirs(self._root, exist_ok=True)
            self._drafts.remove_abandoned()
        except OSError as error:
            raise no_directory(self.url, error) from error

    def close(self) -> None:
        """Close cached files and give up the staging directory; no put may be running."""
        self._files.close()
        self._drafts.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(
        self,
        key: ObjectKey,
        body: ObjectBody,
        abandoned: Callable[[], bool] = lambda: False,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Store `body` under `key`; see `ObjectStore.put` for the promise and the errors.

        `abandoned` is asked between fragments and before the object gets its name; when it says
        so, or when the deadline has passed, nothing is stored and ObjectStoreUnavailable is raised.
        `meanwhile`: see `ThreadPuts`.
        """
        path = self._path(key)
        deadline = self._clock.monotonic() + self._settings.deadline_ms / 1000

        def check_in_time() -> None:
            if abandoned():
                raise ObjectStoreUnavailable(f"{key}: put abandoned")
            if self._clock.monotonic() > deadline:
                raise ObjectStoreUnavailable(
                    f"{key}: not written within {self._settings.deadline_ms} ms"
                )

        check_in_time()
        try:
            self._drafts.open()
        except OSError as error:
            raise no_directory(self.url, error) from error
        try:
            self._ensure_directory(os.path.dirname(path))
        except OSError as error:
            raise unavailable(key, error) from error
        draft = self._drafts.new_path()
        try:
            self._drafts.write(key, draft, body, check_in_time, meanwhile)
            check_in_time()
            self._publish(key, draft, path)
        finally:
            discard(draft)

    def get(self, key: ObjectKey) -> bytes:
        """The whole object. Raises: ObjectNotFound, ObjectStoreUnavailable."""
        try:
            with self._files.open(self._path(key)) as file:
                return file.pread(file.size(), 0)
        except OSError as error:
            _raise_read_error(key, error)

    def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        """Bytes [start, start + length). Raises: ObjectNotFound, CorruptObject when it is shorter,
        ObjectStoreUnavailable."""
        try:
            with self._files.open(self._path(key)) as file:
                size = file.size()
                if start < 0 or length < 0 or start + length > size:
                    raise CorruptObject(
                        f"{key}: no bytes [{start}, {start + length}): it has {size}"
                    )
                data = file.pread(length, start)
        except OSError as error:
            _raise_read_error(key, error)
        if len(data) != length:
            raise CorruptObject(f"{key}: cut off at byte {start + len(data)} while it was read")
        return data

    def head(self, key: ObjectKey) -> ObjectStat:
        """Raises: ObjectNotFound, ObjectStoreUnavailable."""
        try:
            status = os.stat(self._path(key))
        except OSError as error:
            _raise_read_error(key, error)
        if not stat.S_ISREG(status.st_mode):
            raise ObjectNotFound(key)
        return ObjectStat(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectStat]:
        """Objects in key order; holds the names of one directory per level in memory.

        Raises: ObjectStoreUnavailable.
        """
        # Everything below the deepest directory that the prefix names; nothing outside of it.
        directory = prefix.rpartition("/")[0]
        if any(name in ("", ".", "..") for name in directory.split("/") if directory):
            return
        try:
            yield from self._walk(f"{directory}/" if directory else "", prefix, start_after)
        except OSError as error:
            raise unavailable(prefix, error) from error

    def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        """Unlink many; returns the keys that are gone. Empty directories stay: a put may be
        about to use them."""
        gone: dict[str, ObjectKey] = {}
        touched: dict[str, builtins.list[ObjectKey]] = {}
        failure: OSError | None = None
        for key in keys:
            try:
                path = self._path(key)
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                pass  # absent is what was asked for
            except Rejected:
                continue  # no object can have such a key, but nobody confirmed anything either
            except OSError as error:
                failure = error
                continue
            self._files.invalidate(path)
            # Also where nothing was there: an earlier unlink may not have been made durable.
            touched.setdefault(os.path.dirname(path), []).append(key)
            gone[key] = key
        for directory, unlinked in touched.items():
            try:
                self._sync_directory(directory)
            except (FileNotFoundError, NotADirectoryError):
                pass  # nor is there a directory that could bring anything back
            except OSError as error:
                # Unlinked, but a power cut may bring them back: not confirmed.
                failure = error
                for key in unlinked:
                    gone.pop(key, None)
        if failure is not None and not gone:
            raise ObjectStoreUnavailable(f"{self.url}: delete: {failure}") from failure
        return tuple(gone.values())

    # -- writing

    def _publish(self, key: ObjectKey, draft: str, path: str) -> None:
        """Steps 2 and 3: the name, and its durability."""
        try:
            try:
                os.link(draft, path)
            except FileNotFoundError:
                # Somebody removed the directory since we made it, or we only remember it.
                self._known_directories.clear()
                self._ensure_directory(os.path.dirname(path))
                os.link(draft, path)
        except FileExistsError as error:
            if not same_content(key, draft, path):
                raise ObjectExists(f"{self.url}: {key}") from error
            if path in self._doubted:
                try:
                    os.rename(draft, path)
                except OSError as rename_error:
                    # The object is there, whole, but nobody vouches that it survives a power cut.
                    raise UploadOutcomeUnknown(f"{key}: {rename_error}") from rename_error
        except OSError as error:
            raise unavailable(key, error) from error
        try:
            self._sync_directory(os.path.dirname(path))
        except OSError as error:
            self._doubt(path)
            raise UploadOutcomeUnknown(f"{key}: stored, but not durably: {error}") from error
        self._doubted.pop(path, None)

    def _doubt(self, path: str) -> None:
        """Remember that the name `path` may not be durable; the oldest doubts are given up."""
        with self._lock:
            self._doubted[path] = None
            while len(self._doubted) > _DOUBTED_NAMES_MAX:
                del self._doubted[next(iter(self._doubted))]

    def _ensure_directory(self, directory: str) -> None:
        if directory in self._known_directories or directory == self._root:
            return
        parent = os.path.dirname(directory)
        self._ensure_directory(parent)
        # Whoever made it may not have synced its name yet, so we do. If it is an object and not a
        # directory, giving the new object its name fails.
        with suppress(FileExistsError):
            os.mkdir(directory)
        self._sync_directory(parent)
        if len(self._known_directories) >= _KNOWN_DIRECTORIES_MAX:
            self._known_directories.clear()
        self._known_directories.add(directory)

    def _sync_directory(self, directory: str) -> None:
        if not self._sync:
            return
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # -- reading

    def _walk(self, directory: str, prefix: str, start_after: str) -> Iterator[ObjectStat]:
        """Objects below `directory` (empty, or ending in a slash), which is part of the prefix."""
        for name, is_directory in self._entries(directory):
            key = directory + name
            # For a directory `key` ends in "/" and stands for every key that starts with it.
            if is_directory:
                selected = key.startswith(prefix) or prefix.startswith(key)
                if selected and (key > start_after or start_after.startswith(key)):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                try:
                    status = os.stat(f"{self._root}/{key}")
                except FileNotFoundError:
                    continue  # deleted since the directory was read
                yield ObjectStat(ObjectKey(key), status.st_size, status.st_mtime_ns // 1_000_000)

    def _entries(self, directory: str) -> Sequence[tuple[str, bool]]:
        """(name, is a directory) in key order; a directory's name ends in the slash that follows
        it in keys, because `a-b` sorts before `a/b` although `a` sorts before `a-b`."""
        try:
            with os.scandir(f"{self._root}/{directory}") as entries:
                return sorted(
                    (f"{entry.name}/", True) if entry.is_dir() else (entry.name, False)
                    for entry in entries
                    if directory or entry.name != STAGING_DIRECTORY
                )
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def _path(self, key: ObjectKey) -> str:
        check_object_key(key)
        return f"{self._root}/{key}"


class FileStore:
    """The file store for an event loop: `wal.stores.object_store.ObjectStore` on a directory.

    Puts and reads run in two small thread pools of this store's own. Cancelling a put waits until
    its thread let go of the body: a buffer must not be reused while it is being written.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        clock: Clock,
        rng: random.Random,
        sync: bool = True,
        settings: FileStoreSettings | None = None,
    ) -> None:
        settings = settings or FileStoreSettings()
        self._blocking = BlockingFileStore(root, clock=clock, rng=rng, sync=sync, settings=settings)
        self._putting = WorkerThreads("file-store-put", settings.put_threads)
        self._reading = WorkerThreads("file-store-read", settings.read_threads)
        self._counters = StoreCounters()

    @property
    def url(self) -> str:
        return self._blocking.url

    def statistics(self) -> StoreStatistics:
        return self._counters.snapshot()

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        self._counters.puts += 1
        abandoned = threading.Event()
        try:
            await self._putting.run_to_end(
                lambda: self._blocking.put(key, body, abandoned.is_set), abandoned.set
            )
        except DisklessError:
            self._counters.errors += 1
            raise
        self._counters.put_bytes += body.length_bytes

    def put_in_thread(
        self,
        key: ObjectKey,
        body: ObjectBody,
        abandoned: Callable[[], bool],
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """See `ThreadPuts`."""
        self._blocking.put(key, body, abandoned, meanwhile)

    def put_noted(self, length_bytes: int) -> None:
        """See `ThreadPuts`."""
        self._counters.puts += 1
        self._counters.put_bytes += length_bytes

    async def get(self, key: ObjectKey) -> bytes:
        self._counters.gets += 1
        data = await self._read(lambda: self._blocking.get(key))
        self._counters.get_bytes += len(data)
        return data

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        self._counters.gets += 1
        data = await self._read(lambda: self._blocking.get_range(key, start, length))
        self._counters.get_bytes += length
        return data

    async def head(self, key: ObjectKey) -> ObjectStat:
        self._counters.heads += 1
        return await self._read(lambda: self._blocking.head(key))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        found = self._blocking.list(prefix, start_after)
        while True:
            self._counters.lists += 1
            page = await self._read(lambda: tuple(itertools.islice(found, _LIST_PAGE)))
            for entry in page:
                yield entry
            if len(page) < _LIST_PAGE:
                return

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        self._counters.deletes += 1
        return await self._read(lambda: self._blocking.delete(keys))

    async def __aenter__(self) -> Self:
        await self._read(self._blocking.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        # A read whose caller was cancelled may still be running; its file is closed after it.
        await self._putting.close()
        await self._reading.close()
        await asyncio.to_thread(self._blocking.close)

    async def _read(self, work: Callable[[], _Result]) -> _Result:
        try:
            return await self._reading.run(work)
        except DisklessError:
            self._counters.errors += 1
            raise


def _raise_read_error(key: str, error: OSError) -> NoReturn:
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        raise ObjectNotFound(key) from error
    raise unavailable(key, error) from error
