"""The segmented log against a list; what is read, streamed and refused."""

import itertools
import os
import random
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp

import pytest
from crc32c import crc32c
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.chunks.failing_disk import FailingDisk
from tests.support.logs.small_segmented_logs import (
    CAPACITY,
    FILE_HEADER_BYTES,
    FIRST_INDEX,
    FIRST_STORE,
    INDEX_ENTRY_BYTES,
    OVERFLOW,
    RECORD_HEADER_BYTES,
    UnsyncedDisk,
    append,
    contents,
    fill,
    open_log,
    recovered,
    snapshot,
)
from tests.support.profiles import examples
from wal.errors import AppendTooLarge, OutOfBounds
from wal.segmented_log.log_file_store import RECORD_HEADER

# --- values and bounds ---------------------------------------------------------------------------


def test_records_come_back_by_index_whatever_their_fragments(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert append(log, [b"one"]) == 0
    assert append(log, [b"t", memoryview(b"w"), bytearray(b"o")]) == 1
    assert append(log, []) == 2
    assert log.append_many([[b"three"], [b"fo", b"ur"]]) == 3
    assert contents(log) == [b"one", b"two", b"", b"three", b"four"]
    assert (log.lowest_index, log.highest_index) == (0, 5)
    log.close()


def test_the_files_are_the_bytes_that_the_docstrings_give(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [b"ab"])
    append(log, [b"c"])
    log.sync()
    append(log, [b"d"])
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
    with pytest.raises(OutOfBounds, match=r"0 \.\. 2"):
        log.prune(3)
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
    append(log, [b"kept"])
    before = snapshot(tmp_path)
    taken: list[int] = []
    with pytest.raises(AppendTooLarge, match="threshold of 55 bytes"):
        append(log, endless(taken), threshold=55)
    assert len(taken) == 6
    assert snapshot(tmp_path) == before
    assert append(log, [b"5" * 55], threshold=55) == 1
    log.close()


def test_a_file_takes_capacity_and_overflow_and_no_byte_more(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [b"x" * 100])
    used = FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 100
    room = CAPACITY - used + OVERFLOW
    taken: list[int] = []
    with pytest.raises(AppendTooLarge, match=f"threshold of {room} bytes"):
        append(log, endless(taken), threshold=10_000)
    assert len(taken) == room // 10 + 1
    with pytest.raises(AppendTooLarge):
        append(log, [b"y" * (room + 1)])
    assert append(log, [b"y" * room]) == 1
    assert log.file_count == 1
    # Now the file is over its capacity: the next record goes to a new one.
    assert append(log, [b"z"]) == 2
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
    assert append(log, itertools.repeat(fragment, 100)) == 0
    assert log.read(0) == fragment * 100
    assert disk.largest <= (1 << 20) + len(fragment) + RECORD_HEADER.size
    log.close()


def test_a_stream_that_breaks_leaves_the_log_as_it_was_and_its_own_error(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * (2 << 20)
        raise ConnectionResetError("the client went away")

    log = open_log(tmp_path, capacity=8 << 20)
    append(log, [b"kept"])
    before = snapshot(tmp_path)
    with pytest.raises(ConnectionResetError):
        append(log, broken())
    assert snapshot(tmp_path) == before
    assert append(log, [b"next"]) == 1
    log.close()


def test_append_many_is_all_or_none_even_across_files(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [b"kept" * 20])
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
        assert append(self.log, fragments) == self.first + len(self.model)
        self.model.append(b"".join(fragments))

    @rule(records=st.lists(record_bytes, min_size=1, max_size=4))
    def append_many(self, records: list[bytes]) -> None:
        first = self.log.append_many([[record] for record in records])
        assert first == self.first + len(self.model)
        self.model += records

    @rule(records=st.lists(record_bytes, max_size=12), threshold=st.integers(0, 119))
    def append_too_much(self, records: list[bytes], threshold: int) -> None:
        too_long = [*([record[:threshold]] for record in records), [b"x" * (threshold + 1)]]
        with pytest.raises(AppendTooLarge):
            self.log.append_many(too_long, append_threshold=threshold)

    @rule()
    def sync(self) -> None:
        self.log.sync()
        assert self.log.durable_index == self.log.highest_index

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
