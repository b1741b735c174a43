"""The check of a state before it is served: what it finds, in a whole file and after a crash."""

import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from metadata.state import state_file
from metadata.state.state import STATE_FILE, Applied, StateDatabase, read_copy
from metadata.state.state_check import checked_position, verified_file, verified_position
from metadata.state.state_file import is_as_closed
from tests.support.coordinators.large_state import fill_state
from tests.support.logs.snapshot_bench import PrunableLog, following, recorded_batches
from wal.errors import CorruptState


@pytest.fixture
async def sound(tmp_path: Path) -> Path:
    """A closed state with batches, files, producers and their indexes, and no closing mark."""
    log = PrunableLog(await recorded_batches(tmp_path / "recorded"))
    async with following(tmp_path / "state", log, log.end_offset):
        pass
    path = tmp_path / "state" / STATE_FILE
    path.with_name(f"{STATE_FILE}.closed").unlink()
    return path


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount


def with_another_key_in_table_and_index(path: Path) -> Iterable[int]:
    """The file, with a flipped bit in an object key, once in the table and once in its index."""
    with closing(sqlite3.connect(path)) as database:
        ((key,),) = database.execute("SELECT max(object_key) FROM files")
    data = path.read_bytes()
    places = {data.find(key.encode()), data.rfind(key.encode())}
    assert len(places) == 2
    for place in places:
        damaged = bytearray(data)
        damaged[place + len(key) - 1] ^= 1
        path.write_bytes(damaged)
        yield place


def in_file(path: Path) -> Applied | None:
    return read_copy(path, verified_position)


CHECKS = pytest.mark.parametrize("check", [checked_position, verified_file, in_file])
Check = Callable[[Path], Applied | None]


@CHECKS
async def test_a_sound_state_is_as_far_as_it_says(sound: Path, check: Check) -> None:
    applied = check(sound)
    assert applied is not None
    assert applied.next_offset > 10
    assert applied == in_file(sound)


@CHECKS
@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM batches WHERE base_offset = (SELECT max(base_offset) FROM batches)",
        "UPDATE batches SET byte_offset = byte_offset + 1 WHERE base_offset = 0",
        "UPDATE batches SET byte_offset = 1.5 WHERE base_offset = 0",
        "UPDATE batches SET checksum = checksum + 1 WHERE base_offset = 0",
        "DELETE FROM file_answers",
        "UPDATE files SET live_rows = 1.5",
        "UPDATE files SET object_key = object_key || 'x'",
        "DELETE FROM applied",
        "UPDATE applied SET next_offset = next_offset - 1",
    ],
)
async def test_rows_that_are_wrong_or_missing_are_found(
    sound: Path, check: Check, damage: str
) -> None:
    changed(sound, damage)
    with pytest.raises(CorruptState):
        check(sound)


@CHECKS
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE files SET object_key = CAST(object_key AS BLOB)",
        "UPDATE files SET owner_ids = CAST(owner_ids AS TEXT)",
        "UPDATE topics SET name = CAST(name AS BLOB)",
    ],
)
async def test_a_text_is_no_blob_of_the_same_bytes(sound: Path, check: Check, damage: str) -> None:
    """One flipped bit makes the one of the other; looked up, they are not equal."""
    changed(sound, damage)
    with pytest.raises(CorruptState, match="wrong types"):
        check(sound)


@CHECKS
@pytest.mark.parametrize(
    "damage",
    [
        "CREATE TABLE stray (x)",
        "DROP INDEX files_deletable",
        "ALTER TABLE batches RENAME COLUMN append_time_ms TO other_ms",
        "DROP TABLE swept",
    ],
)
async def test_another_schema_is_refused(sound: Path, check: Check, damage: str) -> None:
    changed(sound, damage)
    with pytest.raises(CorruptState):
        check(sound)


@CHECKS
async def test_an_index_without_a_key_is_found(sound: Path, check: Check) -> None:
    """A file whose key is not found is committed a second time."""
    for _ in with_another_key_in_table_and_index(sound):
        with pytest.raises(CorruptState):
            check(sound)


async def test_what_a_crash_left_in_the_write_ahead_log_is_part_of_the_state(
    tmp_path: Path,
) -> None:
    log = PrunableLog(await recorded_batches(tmp_path / "recorded"))
    crashed = tmp_path / "crashed" / STATE_FILE
    crashed.parent.mkdir()
    async with following(tmp_path / "state", log, log.end_offset) as followed:
        for suffix in ("", "-wal"):
            shutil.copy(followed.state.path.with_name(f"{STATE_FILE}{suffix}"), crashed.parent)
        expected = followed.image
    assert crashed.with_name(f"{STATE_FILE}-wal").stat().st_size > 0
    applied = checked_position(crashed)
    assert applied is not None
    assert (applied.next_offset, applied.state_hash) == (expected.next_offset, expected.state_hash)
    assert not crashed.with_name(f"{STATE_FILE}-wal").exists()


async def test_a_state_that_somebody_reads_is_checked_without_moving_its_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "_SETTLE_TIMEOUT_S", 0)
    log = PrunableLog(await recorded_batches(tmp_path / "recorded"))
    async with following(tmp_path / "state", log, log.end_offset // 2) as followed:
        path = followed.state.path
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM batches").fetchall()
            await followed.follow()
            applied = checked_position(path)
            assert applied is not None
            assert applied.state_hash == followed.image.state_hash
            with closing(sqlite3.connect(path)) as writer, writer:
                writer.execute("DELETE FROM batches WHERE base_offset = 0")
            with pytest.raises(CorruptState, match="state hash"):
                checked_position(path)


async def test_a_state_that_is_as_it_was_closed_is_not_checked_again(sound: Path) -> None:
    """What is not as it was when it was checked must be; the mark of a damaged one shows that."""
    changed(sound, "DELETE FROM batches")
    async with StateDatabase(sound, readers=1) as state:
        await state.open_or_create()
        state.trust()
    assert is_as_closed(sound)
    assert checked_position(sound) is not None
    sound.with_name(f"{STATE_FILE}.closed").unlink()
    with pytest.raises(CorruptState):
        checked_position(sound)


async def test_a_large_state_is_checked_in_pages_of_every_level(tmp_path: Path) -> None:
    path = tmp_path / STATE_FILE
    async with StateDatabase(path, readers=1) as state:
        await state.open_or_create()
        large = await fill_state(state, 40_000, batches_per_file=100)
    applied = checked_position(path)
    assert applied is not None
    assert applied.state_hash == large.state_hash
    changed(
        path, "UPDATE batches SET append_time_ms = append_time_ms + 1 WHERE last_offset % 499 = 9"
    )
    with pytest.raises(CorruptState, match="row of batches"):
        checked_position(path)
