"""Rows read from the pages of a SQLite file: those that SQLite gives, or CorruptState."""

import os
import random
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from metadata.state.table_pages import COLUMNS_MAX, DatabasePages
from tests.support.profiles import examples, seeds
from wal.errors import CorruptState, StorageFailed

SEEDS = seeds(300)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
integers = st.one_of(
    int64, st.integers(-2, 2), st.integers(0, 63).map(lambda bits: -(1 << bits) if bits else 1)
)


def made(
    path: Path, rows: Iterable[Sequence[int]], columns: int, *, page_bytes: int = 4096, key: int = 2
) -> int:
    """A database with one table of integers; returns its root page."""
    path.unlink(missing_ok=True)
    names = [f"c{number}" for number in range(columns)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size={page_bytes}")
        database.execute(
            f"CREATE TABLE t ({', '.join(f'{name} INTEGER NOT NULL' for name in names)}, "
            f"PRIMARY KEY ({', '.join(names[:key])})) WITHOUT ROWID"
        )
        database.executemany(
            f"INSERT OR IGNORE INTO t VALUES ({', '.join('?' * columns)})",
            rows,
        )
        ((root_page,),) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'")
        assert isinstance(root_page, int)
        return root_page


def selected(path: Path) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT * FROM t").fetchall()


def read(path: Path, root_page: int, columns: int) -> list[tuple[int, ...]]:
    """What the pages give, in the order of the key, which is the first columns."""
    with DatabasePages(path) as pages:
        found = [*pages.columns(root_page, columns)]
    return sorted(tuple(row) for array in found for row in array.T.tolist())


@examples(allow=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), page_bytes=st.sampled_from([512, 1024, 4096, 65536]))
def test_any_integers_are_read_as_sqlite_reads_them(
    tmp_path: Path, data: st.DataObject, page_bytes: int
) -> None:
    columns = data.draw(st.integers(2, COLUMNS_MAX))
    rows = data.draw(st.lists(st.tuples(*[integers] * columns), max_size=60))
    path = tmp_path / "database"
    root_page = made(path, rows, columns, page_bytes=page_bytes)
    assert read(path, root_page, columns) == sorted(selected(path))


@pytest.mark.parametrize(("page_bytes", "count"), [(512, 20_000), (4096, 120_000)])
def test_a_tree_of_many_pages_is_read_whole(tmp_path: Path, page_bytes: int, count: int) -> None:
    rng = random.Random(7)
    rows = [(rng.randrange(700), rng.getrandbits(40), number, -number) for number in range(count)]
    path = tmp_path / "database"
    root_page = made(path, rows, 4, page_bytes=page_bytes)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM t WHERE c0 % 7 = 3")
    assert read(path, root_page, 4) == sorted(selected(path))


def test_a_damaged_file_gives_rows_or_is_refused(tmp_path: Path) -> None:
    """Whatever the damage; that the rows are the right ones is for their checksums to say."""
    path = tmp_path / "database"
    rows = [(number // 50, number, number << number % 40) for number in range(3_000)]
    root_page = made(path, rows, 3, page_bytes=512)
    whole = path.read_bytes()
    refused = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 1, 20])):
            # Headers of pages hold what could lead astray, so half of the damage goes there.
            page = rng.randrange(len(damaged) // 512) * 512
            position = page + rng.randrange(rng.choice([16, 512]))
            damaged[position] ^= rng.choice([1 << rng.randrange(8), 255])
        if rng.random() < 0.1:
            del damaged[rng.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        try:
            for array in _arrays(path, root_page):
                assert array.dtype == np.int64
        except CorruptState:
            refused += 1
    assert refused > len(SEEDS) // 4


def _arrays(
    path: Path, root_page: int
) -> Iterable[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    with DatabasePages(path) as pages:
        yield from pages.columns(root_page, 3)


def test_pages_in_a_circle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "database"
    root_page = made(path, [(number, 1, 2) for number in range(2_000)], 3, page_bytes=512)
    data = bytearray(path.read_bytes())
    start = (root_page - 1) * 512
    data[start + 8 : start + 12] = root_page.to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(CorruptState):
        read(path, root_page, 3)


@pytest.mark.parametrize("value", [None, 1.5, "1x", b"1"])
def test_what_is_not_an_integer_is_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "database"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER) WITHOUT ROWID")
        database.execute("INSERT INTO t VALUES (1, ?)", (value,))
    with pytest.raises(CorruptState, match="not one of integers"):
        read(path, 2, 2)


def test_tables_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "database"
    root_page = made(path, [(1, 2, 3)], 3)
    with pytest.raises(CorruptState):
        read(path, root_page, 4)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE other (a INTEGER PRIMARY KEY, b INTEGER)")
    with pytest.raises(CorruptState, match="not of a table of integers"):
        read(path, root_page + 1, 2)
    with pytest.raises(CorruptState, match="not there"):
        read(path, root_page + 2, 2)


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "database"
    for content in (b"", b"SQLite format 3\x00", os.urandom(8192), bytes(8192)):
        path.write_bytes(content)
        with pytest.raises(CorruptState):
            read(path, 2, 2)
    with pytest.raises(StorageFailed):
        read(tmp_path / "none", 2, 2)
