"""Engines of SQLite files: the statements of a process are compiled once, whatever file they ask.

SQLAlchemy keeps what it compiled with an engine, and by the dialect object that the engine made
for itself. A broker has two engines for each metadata partition, and one more for each copy that
it checks, all with the same statements. So the engines made here have a dialect and a store of
compiled statements in common. They are as safe in several threads as those of one engine.

A transaction begins with one call of the driver; SQLAlchemy's own way to a statement costs twenty
times what BEGIN does.

Who asks for an engine disposes of it. A connection that cannot be set up is closed, and the
driver's error comes out of the engine as a DBAPIError, as that of a BEGIN does.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Engine, make_url
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.util import LRUCache

_STATEMENTS_MAX: Final = 1_000
"""Twice as many as SQLAlchemy keeps for an engine; a process has some two hundred."""


class _Dialect(sqlite.dialect):  # type: ignore[misc, valid-type] # a class, given as a variable
    """SQLite, with transactions that begin as `begin_sql` says."""

    supports_statement_cache = True

    def __init__(self, begin_sql: str) -> None:
        super().__init__(dbapi=sqlite3)
        self._begin_sql = begin_sql

    def do_begin(self, dbapi_connection: Any) -> None:
        dbapi_connection.execute(self._begin_sql).close()


_WRITING: Final = _Dialect("BEGIN IMMEDIATE")
_READING: Final = _Dialect("BEGIN")
_COMPILED: Final[LRUCache[Any, Any]] = LRUCache(_STATEMENTS_MAX)


def engine_of(
    connect: Callable[[], sqlite3.Connection],
    pragmas: Sequence[str],
    *,
    connections: int | None,
    is_writer: bool = False,
) -> Engine:
    """An engine on what `connect` opens, for use in any thread; each connection gets `pragmas`.

    With at most so many `connections`, which stay open; None: one for each use, closed behind it.
    """

    def configured() -> Any:  # SQLAlchemy asks for any attribute, which the driver's has not
        connection = connect()
        try:
            # Else the driver opens transactions by its own rules, and our BEGIN would fail.
            connection.isolation_level = None
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}").close()
        except BaseException:
            connection.close()
            raise
        return connection

    dialect = _WRITING if is_writer else _READING
    if connections is None:
        pool: NullPool | QueuePool = NullPool(configured, dialect=dialect)
    else:
        pool = QueuePool(configured, pool_size=connections, max_overflow=0, dialect=dialect)
    return Engine(
        pool,
        dialect,
        make_url("sqlite://"),
        query_cache_size=0,
        execution_options={"compiled_cache": _COMPILED},
    )
