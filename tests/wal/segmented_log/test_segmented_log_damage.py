"""The segmented log on files that are torn or damaged."""

import os
import random
import shutil
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.support.logs.small_segmented_logs import (
    CAPACITY,
    FILE_HEADER_BYTES,
    FIRST_INDEX,
    FIRST_STORE,
    INDEX_ENTRY_BYTES,
    RECORD_HEADER_BYTES,
    append,
    contents,
    fill,
    open_log,
    recovered,
    recovered_or_refused,
    snapshot,
)
from wal.errors import CorruptLog
from wal.segmented_log.log_directory import LogDirectory
from wal.segmented_log.segmented_log import SegmentedLog


def test_a_last_record_torn_at_any_byte_is_cut_and_the_log_goes_on(tmp_path: Path) -> None:
    records = [b"first", b"second", b"the last one"]
    whole = tmp_path / "whole"
    fill(whole, records)
    store = (whole / FIRST_STORE).read_bytes()
    last_bytes = RECORD_HEADER_BYTES + len(records[-1])
    for missing in range(1, last_bytes + 1):
        torn = tmp_path / f"torn-{missing}"
        shutil.copytree(whole, torn)
        (torn / FIRST_STORE).write_bytes(store[:-missing])
        log = open_log(torn)
        assert contents(log) == records[:-1]
        assert log.cut_bytes == last_bytes - missing
        assert append(log, [b"again"]) == 2
        log.close()
        assert recovered(torn) == [*records[:-1], b"again"]


def test_a_tail_of_zeros_is_torn_too(tmp_path: Path) -> None:
    fill(tmp_path, [b"first", b"second"])
    with (tmp_path / FIRST_STORE).open("ab") as file:
        file.write(bytes(5000))
    assert recovered(tmp_path) == [b"first", b"second"]


@pytest.mark.parametrize("capacity", [CAPACITY, 1 << 20], ids=["old file", "write file"])
def test_an_index_torn_at_any_byte_or_missing_is_built_again(tmp_path: Path, capacity: int) -> None:
    records = [bytes([97 + number]) * 70 for number in range(5)]
    whole = tmp_path / "whole"
    fill(whole, records, capacity)
    index = (whole / FIRST_INDEX).read_bytes()
    for length in range(len(index)):
        torn = tmp_path / f"torn-{length}"
        shutil.copytree(whole, torn)
        (torn / FIRST_INDEX).write_bytes(index[:length])
        assert recovered(torn, capacity) == records
        assert (torn / FIRST_INDEX).read_bytes() == index
    (whole / FIRST_INDEX).unlink()
    assert recovered(whole, capacity) == records


def test_an_index_that_runs_ahead_of_its_store_is_cut(tmp_path: Path) -> None:
    fill(tmp_path, [b"first", b"second"])
    whole = (tmp_path / FIRST_INDEX).read_bytes()
    (tmp_path / FIRST_INDEX).write_bytes(whole + whole[-INDEX_ENTRY_BYTES:])
    assert recovered(tmp_path) == [b"first", b"second"]
    assert (tmp_path / FIRST_INDEX).read_bytes() == whole


def test_a_flipped_bit_anywhere_is_an_error_or_a_cut_tail_and_never_other_bytes(
    tmp_path: Path,
) -> None:
    records = [bytes([97 + number]) * (30 + 7 * number) for number in range(9)]
    whole = tmp_path / "whole"
    fill(whole, records)
    stores = sorted(file.name for file in whole.glob("*.store"))
    assert len(stores) >= 3
    last_base = int(stores[-1].removesuffix(".store"))
    damaged = tmp_path / "damaged"
    outcomes = {"error": 0, "cut": 0, "healed": 0}
    for name, content in sorted(snapshot(whole).items()):
        for position in range(len(content)):
            shutil.copytree(whole, damaged)
            flipped = bytearray(content)
            flipped[position] ^= 1 << (position * 5 + len(name)) % 8
            (damaged / name).write_bytes(flipped)
            got, problem = recovered_or_refused(damaged)
            if got is None:
                assert name in problem
                assert "byte" in problem
                assert name.endswith(".store")
                outcomes["error"] += 1
            else:
                assert got == records[: len(got)]
                if name == stores[-1]:
                    assert last_base <= len(got) < len(records)
                    outcomes["cut"] += 1
                else:
                    # Nothing but an index may be wrong without a trace.
                    assert name.endswith(".index")
                    assert got == records
                    outcomes["healed"] += 1
            shutil.rmtree(damaged)
    assert all(outcomes.values())


def test_a_bad_record_in_front_of_one_that_knew_it_durable_is_damage(tmp_path: Path) -> None:
    fill(tmp_path, [b"first", b"second", b"third"])
    path = tmp_path / FIRST_STORE
    store = bytearray(path.read_bytes())
    second_at = FILE_HEADER_BYTES + RECORD_HEADER_BYTES + len(b"first")
    store[second_at + RECORD_HEADER_BYTES] ^= 1
    path.write_bytes(store)
    with pytest.raises(CorruptLog, match=rf"{FIRST_STORE}: record 1 at byte {second_at}"):
        open_log(tmp_path)
    assert path.read_bytes() == store


def test_a_hole_in_a_group_that_was_never_synced_is_a_torn_tail(tmp_path: Path) -> None:
    log = open_log(tmp_path, capacity=1 << 20)
    append(log, [b"synced"])
    log.sync()
    log.append_many([[b"hole" * 10], [b"whole" * 10], [b"whole too" * 10]])
    log.close()
    path = tmp_path / FIRST_STORE
    store = bytearray(path.read_bytes())
    hole_at = store.index(b"hole")
    store[hole_at : hole_at + 40] = bytes(40)
    path.write_bytes(store)
    assert recovered(tmp_path) == [b"synced"]


def test_a_record_of_another_file_never_passes_for_one_of_this(tmp_path: Path) -> None:
    fill(tmp_path / "one", [b"first", b"second"])
    log = SegmentedLog.open(LogDirectory(tmp_path / "two"), rng=random.Random(8))
    append(log, [b"first"])
    log.close()
    foreign = (tmp_path / "one" / FIRST_STORE).read_bytes()
    with (tmp_path / "two" / FIRST_STORE).open("ab") as file:
        file.write(foreign[file.tell() :])
    assert recovered(tmp_path / "two") == [b"first"]


def test_a_shortened_or_missing_old_file_is_damage(tmp_path: Path) -> None:
    records = [b"x" * 90] * 12
    fill(tmp_path / "whole", records)
    second = sorted((tmp_path / "whole").glob("*.store"))[1].name
    shutil.copytree(tmp_path / "whole", tmp_path / "short")
    short = tmp_path / "short" / second
    os.truncate(short, short.stat().st_size - 1)
    with pytest.raises(CorruptLog, match=second):
        open_log(tmp_path / "short")
    (tmp_path / "whole" / second).unlink()
    with pytest.raises(CorruptLog, match=FIRST_STORE):
        open_log(tmp_path / "whole")


def test_a_file_whose_creation_was_interrupted_is_created_again(tmp_path: Path) -> None:
    records = [b"x" * 120, b"y" * 120]
    whole = tmp_path / "whole"
    fill(whole, records)
    header = (whole / FIRST_STORE).read_bytes()[:FILE_HEADER_BYTES]
    for length in range(FILE_HEADER_BYTES):
        torn = tmp_path / f"torn-{length}"
        shutil.copytree(whole, torn)
        (torn / f"{2:020d}.store").write_bytes(header[:length])
        log = open_log(torn)
        assert contents(log) == records
        assert append(log, [b"z"]) == 2
        log.close()
        assert recovered(torn) == [*records, b"z"]


def with_version(path: Path, version: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(">H", data, 4, version)
    struct.pack_into(">I", data, 20, crc32c(bytes(data[:20])))
    path.write_bytes(data)


@pytest.mark.parametrize("records", [[], [b"x"]], ids=["empty", "with a record"])
def test_a_store_of_an_unknown_version_is_refused_by_name_and_kept(
    tmp_path: Path, records: list[bytes]
) -> None:
    fill(tmp_path, records)
    with_version(tmp_path / FIRST_STORE, 2)
    before = (tmp_path / FIRST_STORE).read_bytes()
    with pytest.raises(CorruptLog, match=f"{FIRST_STORE}: format version 2;.* version 1"):
        open_log(tmp_path)
    assert (tmp_path / FIRST_STORE).read_bytes() == before


def test_an_index_of_an_unknown_version_is_made_again_from_the_store(tmp_path: Path) -> None:
    fill(tmp_path, [b"x"])
    before = (tmp_path / FIRST_INDEX).read_bytes()
    with_version(tmp_path / FIRST_INDEX, 2)
    assert recovered(tmp_path) == [b"x"]
    assert (tmp_path / FIRST_INDEX).read_bytes() == before


def test_an_index_without_a_store_is_removed_and_foreign_files_are_left_alone(
    tmp_path: Path,
) -> None:
    fill(tmp_path, [b"x"])
    (tmp_path / f"{9:020d}.index").write_bytes(b"left behind")
    (tmp_path / "notes.txt").write_text("mine")
    assert recovered(tmp_path) == [b"x"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        FIRST_INDEX,
        FIRST_STORE,
        "notes.txt",
    ]
