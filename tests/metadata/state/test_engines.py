"""Engines of SQLite files: what they have in common, and how their transactions begin."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine.interfaces import CacheStats, ExecutionContext
from sqlalchemy.exc import OperationalError

from metadata.state import schema
from metadata.state.engines import engine_of


class Opened(sqlite3.Connection):
    """Says whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Files:
    """Engines on files, which are disposed of at the end, and the connections they opened."""

    def __init__(self, directory: Path, cleanup: ExitStack) -> None:
        self._directory = directory
        self._cleanup = cleanup
        self.opened: list[Opened] = []

    def engine(self, name: str, *pragmas: str, connections: int | None = 1, **kind: Any) -> Engine:
        def connect() -> sqlite3.Connection:
            path = self._directory / name
            connection = sqlite3.connect(path, 0, check_same_thread=False, factory=Opened)
            self.opened.append(connection)
            return connection

        engine = engine_of(connect, pragmas, connections=connections, **kind)
        self._cleanup.callback(engine.dispose)
        return engine


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    with ExitStack() as cleanup:
        yield Files(tmp_path, cleanup)


@pytest.mark.parametrize("is_writer", [True, False])
def test_a_statement_is_compiled_once_for_all_files(files: Files, is_writer: bool) -> None:
    found = []

    def note(*told: Any) -> None:
        context: ExecutionContext = told[4]
        found.append(context.cache_hit)

    for name in ("one", "two", "three"):
        with files.engine(name, is_writer=True).begin() as connection:
            schema.create_tables(connection)
        asked = files.engine(name, is_writer=is_writer)
        event.listen(asked, "before_cursor_execute", note)
        with asked.begin() as connection:
            assert connection.execute(schema.TOPICS.select_all.limit(7)).all() == []
    assert found[1:] == [CacheStats.CACHE_HIT] * 2


def test_a_writer_has_the_file_from_its_begin_on_and_readers_one_state(files: Files) -> None:
    writer, other = (files.engine("file", "journal_mode=WAL", is_writer=True) for _ in range(2))
    reader = files.engine("file", "query_only=ON")
    with writer.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number)"))
    count = text("SELECT count(*) FROM numbers")
    with reader.begin() as reading:
        assert reading.scalar(count) == 0
        with writer.begin() as writing:
            with pytest.raises(OperationalError, match="locked"), other.begin():
                pass
            writing.execute(text("INSERT INTO numbers VALUES (1)"))
        assert reading.scalar(count) == 0
    with reader.begin() as reading:
        assert reading.scalar(count) == 1


def test_what_fails_in_a_transaction_is_rolled_back(files: Files) -> None:
    writer = files.engine("file", is_writer=True)

    def fail() -> None:
        with writer.begin() as connection:
            connection.execute(text("CREATE TABLE numbers (number)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with writer.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM sqlite_schema")) == 0


def test_a_connection_that_cannot_be_set_up_is_closed(files: Files) -> None:
    with pytest.raises(OperationalError, match="incomplete input"):
        files.engine("file", "mmap_size=").connect()
    assert [each.is_closed for each in files.opened] == [True]


@pytest.mark.parametrize(("connections", "opened"), [(None, 3), (1, 1)])
def test_connections_stay_open_where_there_are_some(
    files: Files, connections: int | None, opened: int
) -> None:
    engine = files.engine("file", connections=connections)
    for _ in range(3):
        with engine.begin():
            pass
    assert len(files.opened) == opened
    assert all(each.is_closed for each in files.opened) == (connections is None)
    engine.dispose()
    assert all(each.is_closed for each in files.opened)
