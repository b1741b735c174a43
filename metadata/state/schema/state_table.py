"""What every table of the state has in common: a checksum for each row, and prepared SQL.

Statements are built with SQLAlchemy Core; those that run thousands of times per transaction are
compiled once to SQL with positional parameters and given tuples, which costs a third of what
dictionaries cost.
"""

import sqlite3
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, Final, cast

import numpy.typing as npt
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    bindparam,
    create_mock_engine,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.type_api import TypeEngine

from metadata.state.state_hash import RowChecksum
from wal.columns import Int64s

SCHEMA: Final = MetaData()

Row = tuple[Any, ...]


def compiled(statement: ClauseElement) -> str:
    """`statement` as SQLite's SQL with positional parameters, in the order of their appearance."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))


def create_tables(connection: Connection) -> None:
    """Make the tables and indexes of a new state."""
    driver = cast(sqlite3.Connection, connection.connection.driver_connection)
    for statement in _creation():
        driver.execute(statement).close()


@cache
def _creation() -> Sequence[str]:
    """Compiled once: that takes ten times as long as to run them, in every metadata partition."""
    statements: list[str] = []
    engine = create_mock_engine(
        "sqlite://", lambda each, *_, **__: statements.append(compiled(each))
    )
    SCHEMA.create_all(engine, checkfirst=False)
    return statements


def stored_rows(
    connection: Connection, sql: str, parameters: Sequence[int | str | bytes]
) -> Sequence[tuple[Any, ...]]:
    """All rows that `sql` finds, unchecked; for statements that run several times per look-up.

    From the driver itself: SQLAlchemy's share of such a statement is ten times SQLite's. All at
    once: a statement left half read would keep its snapshot open.
    """
    driver = cast(sqlite3.Connection, connection.connection.driver_connection)
    return driver.execute(sql, parameters).fetchall()


class StateTable:
    """One table whose rows carry a checksum and count in the state hash."""

    def __init__(
        self,
        tag: int,
        name: str,
        integers: Sequence[str],
        blobs: Sequence[tuple[str, type[TypeEngine[Any]]]] = (),
        *,
        key: Sequence[str],
        constraints: Sequence[UniqueConstraint] = (),
    ) -> None:
        self.name = name
        rowid = len(key) == 1 and key[0] in integers
        self.table = Table(
            name,
            SCHEMA,
            *[
                Column(column, Integer, primary_key=column in key, nullable=False)
                for column in integers
            ],
            *[
                Column(column, kind, primary_key=column in key, nullable=False)
                for column, kind in blobs
            ],
            Column("checksum", Integer, nullable=False),
            *constraints,
            sqlite_with_rowid=rowid,
        )
        self.columns: Final = tuple(self.table.columns.keys())
        self._integers = len(integers)
        self._is_text = tuple(kind is String for _, kind in blobs)
        self.row_checksum: Final = RowChecksum(tag, len(integers))
        """`checksum` for who has integers and blobs apart, and no texts."""
        self.insert_sql: Final = compiled(insert(self.table))
        self.select_all: Final = select(self.table)
        self._key = key

    def row(self, *values: Any) -> Row:
        """`values` of all columns in order, and behind them their checksum."""
        return (*values, self.checksum(values))

    def checksum(self, values: Sequence[Any]) -> int:
        """The checksum of a row without its last column.

        Raises struct.error, TypeError or AttributeError when the values have not the right types.
        """
        count = self._integers
        if len(values) == count:
            return self.row_checksum(values)
        # A text where bytes belong, or the other way round, is one flipped bit: it is refused.
        return self.row_checksum(
            values[:count],
            [
                blob.encode() if is_text else blob
                for blob, is_text in zip(values[count:], self._is_text, strict=True)
            ],
        )

    def checksums_of(self, rows: Sequence[Row]) -> Int64s:
        """Returns what `checksum` gives for each of `rows`, which have checksums; raises alike."""
        columns = [*zip(*rows, strict=True)]
        blobs = [
            [text.encode() for text in column] if is_text else column
            for column, is_text in zip(columns[self._integers : -1], self._is_text, strict=True)
        ]
        return self.row_checksum.one_by_one(columns[: self._integers], blobs)

    def checksums(
        self,
        columns: Sequence[Int64s],
        blobs: npt.NDArray[Any] | None = None,
        lengths: Int64s | None = None,
    ) -> Int64s:
        """Those of many rows; see `RowChecksum.rows`."""
        return self.row_checksum.rows(columns, blobs, lengths)

    @cached_property
    def select_all_sql(self) -> str:
        """SELECT of all rows."""
        return compiled(self.select_all)

    def update_sql(self, *changed: str) -> str:
        """UPDATE of `changed` columns and the checksum; parameters in that order, then the key."""
        statement = update(self.table).values(
            {column: bindparam(f"new_{column}") for column in (*changed, "checksum")}
        )
        for column in self._key:
            statement = statement.where(self.table.c[column] == bindparam(f"key_{column}"))
        return compiled(statement)

    @cached_property
    def upsert_sql(self) -> str:
        """INSERT, or replacement of all columns that are not in the key."""
        statement = sqlite.insert(self.table)
        return compiled(
            statement.on_conflict_do_update(
                index_elements=list(self._key),
                set_={
                    column: statement.excluded[column]
                    for column in self.columns
                    if column not in self._key
                },
            )
        )

    def delete_sql(self) -> str:
        """DELETE by key."""
        statement = self.table.delete()
        for column in self._key:
            statement = statement.where(self.table.c[column] == bindparam(f"key_{column}"))
        return compiled(statement)
