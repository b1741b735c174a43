"""Checks that a SQLite state is what the metadata log made of it, before it is served.

SQLite may lie (P8): of 200 single flipped bits in a closed database, about a quarter pass its own
integrity check and give wrong rows; and nothing in a row shows that another is missing, or that it
is an old one. So a state is checked as a whole, every time it is not known to be bit for bit what a
process left that had checked it:

- its schema is that of this release, so that columns mean what they should;
- every row has its checksum, and all of them the state hash (metadata/state/state_hash.py);
- SQLite's integrity check finds every row once, in its place, and in every index: with a damaged
  index on object keys a file could be committed twice.

Nothing is served before. To serve at once and check meanwhile would start no faster where it counts
and could not be undone: a commit that was let through because an index did not find its object key
is in the log, and acknowledged, when the check fails.

**What it costs.** A clean stop leaves a mark, and the next start only hashes the file. After a
crash a million committed batches, each in a row of its own, take two to three seconds: 2.4 s of CPU
for their rows, while the integrity check runs in a thread beside, without the interpreter's lock.
For that the file must be whole: what a crash left in the write-ahead log is moved into it first.
Only when another process keeps that from happening, one comes after the other. Reading the rows
from SQLite's pages by hand took 0.9 s; the bound of 5 s for such a start does not need it, and
larger fetches or rows as NumPy arrays save a tenth (2.1 s).
"""

import sqlite3
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, create_engine

from metadata.state.schema import STATE_TABLES, StateTable, create_tables
from metadata.state.state import Applied, checked_row, read_applied, read_copy
from metadata.state.state_file import is_as_closed, settle_database
from metadata.state.state_hash import HASH_MODULUS, sum_of
from wal.columns import Int64s
from wal.errors import CorruptState

_SCAN_ROWS: Final = 500
_SCHEMA_SQL: Final = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"


def checked_position(path: Path) -> Applied | None:
    """How far the state in the file `path` is, which this process has not open; None: no further
    than empty.

    Everything in it was checked, now or before it was closed. Raises: CorruptState, StorageFailed.
    """
    if is_as_closed(path):
        return read_copy(path, read_applied)
    if settle_database(path):
        return verified_file(path)
    return read_copy(path, verified_position, is_in_use=True)


def verified_file(path: Path) -> Applied | None:
    """`verified_position` of a whole file that nobody writes and this process has not open.

    Raises: CorruptState, StorageFailed.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="state-integrity") as beside:
        integrity = beside.submit(read_copy, path, check_integrity)
        applied = read_copy(path, _verified_rows)
        integrity.result()
    return applied


def verified_position(connection: Connection) -> Applied | None:
    """Checks everything in the state and returns how far it is. Raises CorruptState."""
    check_integrity(connection)
    return _verified_rows(connection)


def check_integrity(connection: Connection) -> None:
    """SQLite's own check; it covers what a scan of the rows cannot see: order, indexes, free pages.

    Raises CorruptState.
    """
    problem = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
    if problem != "ok":
        raise CorruptState(f"SQLite's integrity check: {problem}")


def _verified_rows(connection: Connection) -> Applied | None:
    applied = read_applied(connection)
    if _schema_in(connection) != _expected_schema():
        raise CorruptState("the tables and indexes are not those of this release")
    state_hash = scan_state_hash(connection)
    if state_hash != (0 if applied is None else applied.state_hash):
        raise CorruptState(f"the rows' state hash is {state_hash:016x}, stored is {applied}")
    return applied


@cache
def _expected_schema() -> tuple[tuple[str, ...], ...]:
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            create_tables(connection)
            return _schema_in(connection)
    finally:
        engine.dispose()


def _schema_in(connection: Connection) -> tuple[tuple[str, ...], ...]:
    """Tables and indexes as SQL; how it is spaced does not count."""
    rows = connection.exec_driver_sql(_SCHEMA_SQL)
    return tuple(tuple(" ".join(str(value).split()) for value in row) for row in rows)


def scan_state_hash(connection: Connection) -> int:
    """Recompute the state hash from every row; raises CorruptState for a row that is damaged."""
    driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
    total = 0
    for table in STATE_TABLES:
        for checksums in _checksums_of_rows(driver, table):
            total += sum_of(checksums)
    return total % HASH_MODULUS


def _checksums_of_rows(driver: sqlite3.Connection, table: StateTable) -> Iterator[Int64s]:
    # The driver's own rows: SQLAlchemy's would take a quarter of the time of a start.
    cursor = driver.execute(table.select_all_sql)
    while rows := cursor.fetchmany(_SCAN_ROWS):
        try:
            checksums = table.checksums_of(rows)
            is_sound = checksums.tolist() == [row[-1] for row in rows]
        except (struct.error, TypeError, AttributeError):
            is_sound = False
        if not is_sound:
            for row in rows:
                checked_row(table, row)  # raises for the first one that is damaged
        yield checksums
