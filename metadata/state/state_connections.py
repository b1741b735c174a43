"""How a state's file is opened, and what SQLite's errors mean to who reads or writes it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from metadata.state.engines import engine_of
from wal.errors import CorruptState, NotCoordinator, StorageFailed

_WAL_PAGES_MAX: Final = 4_000
"""A checkpoint every 16 MiB: rare enough for its sync, small enough to restart from."""
_CACHE_KIB: Final = 64 << 10
_READER_CACHE_KIB: Final = 8 << 10
_BUSY_TIMEOUT_S: Final = 10.0

_Result = TypeVar("_Result")


def pooled_engine(path: Path, *, connections: int, is_writer: bool) -> Engine:
    """An engine on the file that a coordinator writes, or on the same file for its readers."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path.absolute(), check_same_thread=False, timeout=_BUSY_TIMEOUT_S)

    pragmas = ["mmap_size=0", "foreign_keys=OFF", "temp_store=MEMORY"]
    if is_writer:
        pragmas += [
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"wal_autocheckpoint={_WAL_PAGES_MAX}",
            f"cache_size=-{_CACHE_KIB}",
        ]
    else:
        pragmas += [
            "query_only=ON",
            "wal_autocheckpoint=0",
            f"cache_size=-{_READER_CACHE_KIB}",
        ]
    return engine_of(connect, pragmas, connections=connections, is_writer=is_writer)


def read_only_engine(path: Path, *, is_in_use: bool = False) -> Engine:
    """An engine on a database file, for reading. Dispose of it.

    Unless it `is_in_use` nobody must write it; it has no write-ahead log, and gets no companions.
    """

    def connect() -> sqlite3.Connection:
        mode = "mode=ro" if is_in_use else "immutable=1"
        location = f"file:{quote(str(path.absolute()))}?{mode}"
        return sqlite3.connect(location, uri=True, check_same_thread=False)

    return engine_of(connect, ["mmap_size=0"], connections=None)


def run_in_transaction(engine: Engine | None, work: Callable[[Connection], _Result]) -> _Result:
    """`work` on a connection of `engine`. Raises like `StateDatabase.write`."""
    with translated_errors(), opened(engine).begin() as connection:
        return work(connection)


def opened(engine: Engine | None) -> Engine:
    """Raises: NotCoordinator when there is none."""
    if engine is None:
        raise NotCoordinator("the coordinator's state is not open")
    return engine


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raises CorruptState or StorageFailed for what SQLite or its driver raises."""
    try:
        yield
    except DBAPIError as error:
        raise _translated(error.orig) from error
    except sqlite3.Error as error:  # from those who use the driver's connection
        raise _translated(error) from error
    except UnicodeDecodeError as error:  # from the driver, about a damaged name in a message
        raise CorruptState(f"SQLite: {error}") from error


def _translated(error: BaseException | None) -> CorruptState | StorageFailed:
    # A missing table has SQLITE_ERROR; the driver's own, as for a text that is no UTF-8, have none.
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, sqlite3.OperationalError) and code not in (None, sqlite3.SQLITE_ERROR):
        # Full disk, I/O error, no descriptors: the transaction is undone and may be tried again.
        return StorageFailed(f"SQLite: {error}")
    return CorruptState(f"SQLite: {error}")
