"""The segmented log against a list, a torn disk, a damaged disk and a failing disk."""

import itertools
import os
import random
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import pytest
from crc32c import crc32c
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.failing_disk import FailingDisk
from support.power_cut_disk import PowerCut, PowerCutDisk

from tests.support.profiles import examples, seeds
from wal.disk import SYSTEM_DISK, Disk, SystemDisk
from wal.errors import AppendTooLarge, CorruptLog, OutOfBounds, StorageFailed
from wal.segmented_log.log_directory import LogDirectory
from wal.segmented_log.log_file_store import RECORD_HEADER
from wal.segmented_log.segmented_log import SegmentedLog

CAPACITY = 256
OVERFLOW = CAPACITY // 2
FIRST_STORE = f"{0:020d}.store"
FIRST_INDEX = f"{0:020d}.index"
FILE_HEADER_BYTES = 24
RECORD_HEADER_BYTES = 24
INDEX_ENTRY_BYTES = 20


class UnsyncedDisk(SystemDisk):
    """For tests that open a log thousands of times and never cut the power."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync(self, fd: int) -> None:
        pass


def open_log(path: Path, disk: Disk = SYSTEM_DISK, capacity: int = CAPACITY) -> SegmentedLog:
    return SegmentedLog.open(
        LogDirectory(path, disk), rng=random.Random(7), file_capacity_bytes=capacity
    )


def contents(log: SegmentedLog) -> list[bytes]:
    return [log.read(index) for index in range(log.lowest_index, log.highest_index)]


def fill(path: Path, records: Sequence[bytes], capacity: int = CAPACITY) -> None:
    """Write `records`, each of them synced."""
    log = open_log(path, capacity=capacity)
    for record in records:
        log.append([record])
        log.sync()
    log.close()


def recovered(path: Path, capacity: int = CAPACITY) -> list[bytes]:
    """What is in the log after opening it, read record by record and in one go."""
    log = open_log(path, UnsyncedDisk(), capacity)
    try:
        records = contents(log)
        assert list(log.read_from(log.lowest_index, 1 << 30)) == records
        return records
    finally:
        log.close()


def recovered_or_refused(path: Path) -> tuple[list[bytes] | None, str]:
    try:
        return recovered(path), ""
    except CorruptLog as error:
        return None, str(error)


def snapshot(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


# --- values and bounds ---------------------------------------------------------------------------


def test_records_come_back_by_index_whatever_their_fragments(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.append([b"one"]) == 0
    assert log.append([b"t", memoryview(b"w"), bytearray(b"o")]) == 1
    assert log.append([]) == 2
    assert log.append_many([[b"three"], [b"fo", b"ur"]]) == 3
    assert contents(log) == [b"one", b"two", b"", b"three", b"four"]
    assert (log.lowest_index, log.highest_index) == (0, 5)
    log.close()


def test_the_files_are_the_bytes_that_the_docstrings_give(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([b"ab"])
    log.append([b"c"])
    log.sync()
    log.append([b"d"])
    log.close()
    salt = random.Random(7).getrandbits(32)

    def with_crc(fields: bytes, crc: int = 0) -> bytes:
        return fields + struct.pack(">I", crc32c(fields, crc))

    store = with_crc(b"DLss" + struct.pack(">HHIQ", 1, 0, salt, 0))
    for index, unsynced, content in ((0, 0, b"ab"), (1, 1, b"c"), (2, 0, b"d")):
        fields = struct.pack(">IIQI", salt, len(content), index, unsynced)
        store += with_crc(fields, crc32c(content)) + content
    assert (tmp_path / FIRST_STORE).read_bytes() == store
    entries = b""
    for index, position in ((0, 24), (1, 50), (2, 75)):
        entry = struct.pack(">QQ", index, position)
        entries += entry + struct.pack(">I", crc32c(struct.pack(">I", salt) + entry))
    header = with_crc(b"DLsi" + struct.pack(">HHIQ", 1, 0, salt, 0))
    assert (tmp_path / FIRST_INDEX).read_bytes() == header + entries


def test_an_index_outside_the_log_is_refused_with_its_bounds(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_many([[b"x"], [b"y"]])
    for call in (lambda: log.read(2), lambda: log.read(-1), lambda: log.read_from(3, 10)):
        with pytest.raises(OutOfBounds, match=r"0 \.\. 2"):
            call()
    for beyond in (lambda: log.truncate(3), lambda: log.truncate(-1), lambda: log.prune(3)):
        with pytest.raises(OutOfBounds, match=r"0 \.\. 2"):
            beyond()
    assert list(log.read_from(2, 10)) == []
    log.close()


def test_read_from_stops_at_its_bytes_but_gives_at_least_one(tmp_path: Path) -> None:
    records = [bytes([65 + number]) * 100 for number in range(12)]
    fill(tmp_path, records)
    log = open_log(tmp_path)
    assert log.file_count > 2
    assert list(log.read_from(3, 0)) == records[3:4]
    assert list(log.read_from(3, 299)) == records[3:5]
    assert list(log.read_from(3, 700)) == records[3:10]
    assert list(log.read_from(3, 10_000)) == records[3:]
    log.close()


def test_files_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    fill(tmp_path, [b"x" * 90] * 20)
    log = open_log(tmp_path)
    bases = sorted(int(file.stem) for file in tmp_path.glob("*.store"))
    counts = [
        (os.path.getsize(tmp_path / f"{base:020d}.index") - FILE_HEADER_BYTES) // INDEX_ENTRY_BYTES
        for base in bases
    ]
    assert bases == list(itertools.accumulate(counts, initial=0))[:-1]
    assert sum(counts) == 20 == log.verify()
    log.close()


def test_reading_many_files_holds_two_descriptors(tmp_path: Path) -> None:
    fill(tmp_path, [b"x" * 300] * 40)
    before = len(os.listdir("/proc/self/fd"))
    log = open_log(tmp_path)
    assert log.file_count == 40
    contents(log)
    assert len(os.listdir("/proc/self/fd")) - before == 2
    log.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- streamed appends ----------------------------------------------------------------------------


def endless(taken: list[int], fragment: bytes = b"0123456789") -> Iterator[bytes]:
    for number in itertools.count():
        taken.append(number)
        yield fragment


def test_an_endless_stream_is_cut_off_at_the_threshold_and_the_log_is_as_it_was(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    log.append([b"kept"])
    before = snapshot(tmp_path)
    taken: list[int] = []
    with pytest.raises(AppendTooLarge, match="threshold of 55 bytes"):
        log.append(endless(taken), append_threshold=55)
    assert len(taken) == 6
    assert snapshot(tmp_path) == before
    assert log.append([b"5" * 55], append_threshold=55) == 1
    log.close()


def test_a_file_takes_capacity_and_overflow_and_no_byte_more(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([b"x" * 100])
    used = FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 100
    room = CAPACITY - used + OVERFLOW
    taken: list[int] = []
    with pytest.raises(AppendTooLarge, match=f"threshold of {room} bytes"):
        log.append(endless(taken), append_threshold=10_000)
    assert len(taken) == room // 10 + 1
    with pytest.raises(AppendTooLarge):
        log.append([b"y" * (room + 1)])
    assert log.append([b"y" * room]) == 1
    assert log.file_count == 1
    # Now the file is over its capacity: the next record goes to a new one.
    assert log.append([b"z"]) == 2
    assert log.file_count == 2
    log.close()
    assert recovered(tmp_path) == [b"x" * 100, b"y" * room, b"z"]


def test_a_long_stream_is_written_as_it_comes_and_not_gathered(tmp_path: Path) -> None:
    class WriteSizes(FailingDisk):
        largest = 0

        def pwritev(
            self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], at: int
        ) -> int:
            self.largest = max(self.largest, sum(map(len, buffers)))
            return super().pwritev(fd, buffers, at)

    disk = WriteSizes()
    log = open_log(tmp_path, disk, capacity=16 << 20)
    fragment = bytes(range(256)) * 256
    assert log.append(itertools.repeat(fragment, 100)) == 0
    assert log.read(0) == fragment * 100
    assert disk.largest <= (1 << 20) + len(fragment) + RECORD_HEADER.size
    log.close()


def test_a_stream_that_breaks_leaves_the_log_as_it_was_and_its_own_error(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * (2 << 20)
        raise ConnectionResetError("the client went away")

    log = open_log(tmp_path, capacity=8 << 20)
    log.append([b"kept"])
    before = snapshot(tmp_path)
    with pytest.raises(ConnectionResetError):
        log.append(broken())
    assert snapshot(tmp_path) == before
    assert log.append([b"next"]) == 1
    log.close()


def test_append_many_is_all_or_none_even_across_files(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([b"kept" * 20])
    before = contents(log)
    with pytest.raises(AppendTooLarge):
        log.append_many([[b"a" * 200], [b"b" * 200], [b"c" * 10_000]])
    assert contents(log) == before
    assert log.file_count == 1
    assert log.append_many([[b"a" * 200], [b"b" * 200]]) == 1
    log.close()
    assert recovered(tmp_path) == [*before, b"a" * 200, b"b" * 200]


# --- a log is a list -----------------------------------------------------------------------------


record_bytes = st.binary(max_size=120)


class LogIsAList(RuleBasedStateMachine):
    """Commands on a log with small files, compared with a list and a first index."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(mkdtemp())
        self.log = open_log(self.path, UnsyncedDisk())
        self.model: list[bytes] = []
        self.first = 0

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.path)

    @rule(fragments=st.lists(st.binary(max_size=40), max_size=4))
    def append(self, fragments: list[bytes]) -> None:
        assert self.log.append(fragments) == self.first + len(self.model)
        self.model.append(b"".join(fragments))

    @rule(records=st.lists(record_bytes, min_size=1, max_size=4))
    def append_many(self, records: list[bytes]) -> None:
        first = self.log.append_many([[record] for record in records])
        assert first == self.first + len(self.model)
        self.model += records

    @rule(records=st.lists(record_bytes, max_size=3), threshold=st.integers(0, 119))
    def append_too_much(self, records: list[bytes], threshold: int) -> None:
        too_long = [*([record[:threshold]] for record in records), [b"x" * (threshold + 1)]]
        with pytest.raises(AppendTooLarge):
            self.log.append_many(too_long, append_threshold=threshold)

    @rule()
    def sync(self) -> None:
        self.log.sync()
        assert self.log.durable_index == self.log.highest_index

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.model)))
        self.log.truncate(self.first + count)
        del self.model[count:]

    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        index = self.first + data.draw(st.integers(0, len(self.model)))
        lowest = self.log.prune(index)
        assert self.first <= lowest <= index
        del self.model[: lowest - self.first]
        self.first = lowest

    @rule(killed=st.booleans())
    def reopen(self, killed: bool) -> None:
        # A killed process leaves in the files exactly what was written, synced or not.
        old = self.log
        if not killed:
            old.close()
        self.log = open_log(self.path, UnsyncedDisk())
        if killed:
            old.close()
        assert self.log.cut_bytes == 0

    @precondition(lambda self: self.model)
    @rule(data=st.data(), max_bytes=st.integers(0, 500))
    def read_from(self, data: st.DataObject, max_bytes: int) -> None:
        start = data.draw(st.integers(0, len(self.model) - 1))
        got = list(self.log.read_from(self.first + start, max_bytes))
        assert got == self.model[start : start + len(got)]
        assert got
        assert len(got) == 1 or sum(map(len, got)) <= max_bytes

    @invariant()
    def equals_the_model(self) -> None:
        assert self.log.lowest_index == self.first
        assert self.log.highest_index == self.first + len(self.model)
        assert self.log.durable_index <= self.log.highest_index
        assert list(self.log.read_from(self.first, 1 << 20)) == self.model

    @rule()
    def read_every_record(self) -> None:
        assert contents(self.log) == self.model


TestLogIsAList = LogIsAList.TestCase
TestLogIsAList.settings = examples(0.6, steps=25)


# --- torn and damaged files ----------------------------------------------------------------------


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
        assert log.append([b"again"]) == 2
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
    log.append([b"synced"])
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
    log.append([b"first"])
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
        assert log.append([b"z"]) == 2
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


# --- a failing disk ------------------------------------------------------------------------------


def test_a_full_disk_refuses_an_append_and_the_log_is_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    log.append([b"kept"])
    log.sync()
    before = snapshot(tmp_path)
    for free in range(RECORD_HEADER_BYTES + 40 + INDEX_ENTRY_BYTES):
        disk.bytes_free = free
        with pytest.raises(StorageFailed, match="No space left"):
            log.append([b"n" * 20, b"o" * 20])
        assert snapshot(tmp_path) == before
        assert log.failure is None
    disk.bytes_free = None
    assert log.append([b"fits again"]) == 1
    log.close()
    assert recovered(tmp_path) == [b"kept", b"fits again"]


@pytest.mark.parametrize("heals", [True, False], ids=["once", "for good"])
def test_a_failed_sync_is_final_until_the_log_is_opened_again(tmp_path: Path, heals: bool) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    log.append([b"durable"])
    log.sync()
    log.append([b"lost"])
    if heals:
        disk.fail_number = disk.count + 1
    else:
        disk.failing = {"fdatasync"}
    with pytest.raises(StorageFailed, match="fdatasync"):
        log.sync()
    disk.failing = set()
    assert log.failure is not None
    for write in (
        lambda: log.append([b"more"]),
        log.sync,
        lambda: log.truncate(0),
    ):
        with pytest.raises(StorageFailed, match="until the log is opened again"):
            write()
    assert contents(log) == [b"durable"]
    log.close()
    assert recovered(tmp_path) == [b"durable"]


def test_what_is_recovered_is_made_durable_before_it_is_served(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([b"written but never synced"])
    log.close()
    with pytest.raises(StorageFailed, match="fdatasync"):
        open_log(tmp_path, FailingDisk(fail_number=1, calls=("fdatasync",)))
    log = open_log(tmp_path)
    assert log.durable_index == log.highest_index == 1
    log.close()


@dataclass
class History:
    """What a log was told, by absolute index: `promised` for sure, `tried` if the call succeeds."""

    promised: list[bytes] = field(default_factory=list)
    tried: list[bytes] = field(default_factory=list)
    durable: int = 0
    pruned_below: int = 0


def exercise(path: Path, disk: FailingDisk, history: History) -> None:
    """Groups of appends across files, a truncation into an older file, a prune."""
    log = open_log(path, disk)
    try:
        for number in range(8):
            group = [bytes([97 + number]) * 60, bytes([65 + number]) * 70]
            history.tried = history.promised + group
            try:
                log.append_many([[record] for record in group])
            except StorageFailed:
                assert contents(log) == history.promised
                raise
            log.sync()
            history.promised = history.tried
            if number == 5:
                history.tried = history.promised[:-5]
                log.truncate(len(history.tried))
                history.promised = history.tried
            assert contents(log) == history.promised
        history.pruned_below = log.highest_index - 2
        log.prune(history.pruned_below)
    finally:
        log.close()


def test_whichever_call_fails_the_log_opens_again_with_all_that_was_promised(
    tmp_path: Path,
) -> None:
    healthy = FailingDisk()
    exercise(tmp_path / "healthy", healthy, History())
    failed: set[str] = set()
    for number in range(1, healthy.count + 1):
        path = tmp_path / f"fails-{number}"
        disk = FailingDisk(fail_number=number)
        history = History()
        with pytest.raises(StorageFailed, match="injected"):
            exercise(path, disk, history)
        failed.update(disk.failed_calls)
        log = open_log(path)
        got = contents(log)
        longest = max(history.promised, history.tried, key=len)
        assert got == longest[log.lowest_index : log.highest_index]
        assert log.highest_index >= min(len(history.promised), len(history.tried))
        assert log.lowest_index <= history.pruned_below
        log.append([b"goes on"])
        log.close()
        assert recovered(path) == [*got, b"goes on"]
    assert failed == {"create", "pwritev", "fdatasync", "fsync", "ftruncate", "unlink"}


def test_a_file_that_cannot_be_created_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    log.append([b"x" * 300])
    log.sync()
    before = snapshot(tmp_path)
    for call in ("create", "pwritev"):
        disk.failing = {call}
        with pytest.raises(StorageFailed, match=call):
            log.append([b"needs a new file"])
        assert snapshot(tmp_path) == before
        assert log.failure is None
    disk.failing = set()
    assert log.append([b"needs a new file"]) == 1
    assert log.file_count == 2
    log.close()


@pytest.mark.parametrize(("call", "which"), [("fdatasync", 1), ("fdatasync", 2), ("fsync", 1)])
def test_a_sync_that_fails_while_a_file_is_created_is_final_too(
    tmp_path: Path, call: str, which: int
) -> None:
    disk = FailingDisk(calls=(call,))
    log = open_log(tmp_path, disk)
    log.append([b"x" * 300])
    log.sync()
    disk.fail_number = disk.count + which
    with pytest.raises(StorageFailed, match=call):
        log.append([b"needs a new file"])
    assert contents(log) == [b"x" * 300]
    with pytest.raises(StorageFailed, match="until the log is opened again"):
        log.append([b"more"])
    log.close()
    assert recovered(tmp_path) == [b"x" * 300]


def test_a_failure_that_cannot_be_taken_back_stops_all_writes(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    log.append([b"durable"])
    log.sync()
    disk.failing = {"pwritev", "ftruncate"}
    with pytest.raises(StorageFailed, match="pwritev"):
        log.append([b"half written"])
    disk.failing = set()
    with pytest.raises(StorageFailed, match="until the log is opened again"):
        log.append([b"more"])
    assert contents(log) == [b"durable"]
    log.close()
    assert recovered(tmp_path) == [b"durable"]


# --- a power cut ---------------------------------------------------------------------------------


def use_until_the_power_is_cut(
    path: Path, disk: PowerCutDisk, rng: random.Random, history: History
) -> None:
    log = open_log(path, disk)
    while True:
        choice = rng.random()
        if choice < 0.5:
            group = [rng.randbytes(rng.randrange(70)) for _ in range(rng.randint(1, 4))]
            history.tried = history.promised + group
            log.append_many([[record] for record in group])
            history.promised = history.tried
        elif choice < 0.8:
            log.sync()
            history.durable = len(history.promised)
        elif choice < 0.9:
            group = [rng.randbytes(rng.randrange(70)) for _ in range(3)]
            history.tried = history.promised + group
            with pytest.raises(AppendTooLarge):
                log.append_many([*([record] for record in group), [bytes(1000)]])
            history.tried = history.promised
        elif choice < 0.95:
            count = rng.randint(log.lowest_index, len(history.promised))
            history.durable = min(history.durable, count)
            history.tried = history.promised
            log.truncate(count)
            history.promised = history.tried = history.promised[:count]
        else:
            history.pruned_below = rng.randint(log.lowest_index, len(history.promised))
            history.pruned_below = log.prune(history.pruned_below)


def test_whenever_the_power_is_cut_every_synced_record_is_there_and_no_other_bytes(
    tmp_path: Path,
) -> None:
    for number in seeds(100):
        rng = random.Random(number)
        path = tmp_path / f"{number}"
        path.mkdir()
        disk = PowerCutDisk(path, rng, cut_at=rng.randint(1, 200))
        history = History()
        with pytest.raises(PowerCut):
            use_until_the_power_is_cut(path, disk, rng, history)
        disk.cut(tmp_path / f"{number}-after")
        log = open_log(tmp_path / f"{number}-after", UnsyncedDisk())
        longest = max(history.promised, history.tried, key=len)
        assert contents(log) == longest[log.lowest_index : log.highest_index], number
        assert log.highest_index >= history.durable, number
        assert log.lowest_index <= history.pruned_below, number
        log.close()
