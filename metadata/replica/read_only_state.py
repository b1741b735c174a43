"""Reads the SQLite state that another process of this broker writes.

One process has the replica: it applies, checkpoints, and puts another file in the place of this one
when that is damaged or too old. Others read here. Their connections are opened read-only, so they
cannot checkpoint: SQLite before 3.51.3 corrupts a database when two connections do. In WAL mode
they keep the writer waiting for nothing, but a checkpoint from starting the log of pages anew while
they read.

A read sees one committed state, and no older one than there was when it began.

How a file is known to be the one: the writer holds database, log of pages and index of that open as
long as the file is in use, and the first thing it does to one that leaves is to remove, or rename,
one of these three. So all three are looked at by their inodes before a transaction begins, and
again after it has ended. When they are the same, what was read in between is of a file in use; else
it is thrown away. An inode is not given to another file while a connection here has it open.

Failure cases: NotCoordinator while there is no such file, which is what a writer that is about to
replace it looks like; whoever has the replica can be asked. StorageFailed and CorruptState as of
`StateDatabase`: what is damaged is not judged here.
"""

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine

from metadata.state.engines import engine_of
from metadata.state.state_connections import run_in_transaction
from metadata.state.state_file import DATABASE_SUFFIXES
from wal.errors import DisklessError, NotCoordinator, StorageFailed
from wal.worker_threads import WorkerThreads

_BUSY_TIMEOUT_S: Final = 2.0
_CACHE_KIB: Final = 8 << 10

_Result = TypeVar("_Result")
_Inodes = tuple[tuple[int, int], ...]


class ReadOnlyState:
    """The file at `path`, which need not exist. Async context manager."""

    def __init__(self, path: Path, *, readers: int) -> None:
        self.path: Final = path
        self._files: Final = [path.with_name(path.name + suffix) for suffix in DATABASE_SUFFIXES]
        self._readers = readers
        self._threads = WorkerThreads("state-reader", readers)
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._inodes: _Inodes = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._threads.close()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    async def read(self, work: Callable[[Connection], _Result]) -> _Result:
        """Run `work` in a thread on one committed state.

        Raises: NotCoordinator (no file in use, or another one since), StorageFailed, CorruptState,
        and what `work` raises.
        """
        return await self._threads.run(lambda: self._read(work))

    def _read(self, work: Callable[[Connection], _Result]) -> _Result:
        inodes = self._look()
        engine = self._engine_of(inodes)
        error: DisklessError | None = None
        try:
            result = run_in_transaction(engine, work)
        except DisklessError as failure:
            error = failure
        if self._look() != inodes:
            raise NotCoordinator(f"{self.path} was replaced")
        if error is not None:
            raise error
        return result

    def _look(self) -> _Inodes:
        """Which files there are now. Raises: NotCoordinator when one of them is missing."""
        try:
            found = [os.stat(file) for file in self._files]
        except FileNotFoundError as error:
            raise NotCoordinator(f"{error.filename} is not in use") from error
        except OSError as error:
            raise StorageFailed(f"{self.path}: {error}") from error
        return tuple((one.st_dev, one.st_ino) for one in found)

    def _engine_of(self, inodes: _Inodes) -> Engine:
        """Connections that were all made to these very files."""
        with self._lock:
            if self._engine is None or inodes != self._inodes:
                if self._engine is not None:
                    # A thread that reads by one of its connections closes that when it is done.
                    self._engine.dispose()
                self._engine = _engine(self.path, self._readers)
                self._inodes = inodes
            return self._engine


def _engine(path: Path, readers: int) -> Engine:
    location = f"file:{quote(str(path.absolute()))}?mode=ro"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(location, uri=True, check_same_thread=False, timeout=_BUSY_TIMEOUT_S)

    pragmas = ("mmap_size=0", "query_only=ON", "wal_autocheckpoint=0", f"cache_size=-{_CACHE_KIB}")
    return engine_of(connect, pragmas, connections=readers)
