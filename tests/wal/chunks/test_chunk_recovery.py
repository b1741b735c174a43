"""What a restart makes of the files it finds: cut, quarantine, keep, or seal again."""

import multiprocessing
import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.support.chunks.write_path import (
    A0,
    A1,
    B0,
    SETTINGS,
    FaultyDisk,
    batch_bytes,
    object_bytes,
    object_range,
    open_directory,
    open_writer,
    pending,
    sealed,
    write_chunk,
)
from tests.support.profiles import examples
from wal.chunks.batch_rows import BATCH_ROW
from wal.chunks.buffer import BufferPool
from wal.chunks.chunk import (
    CHUNK_HEADER_BYTES,
    COMMITTED,
    RECORD_HEAD_BYTES,
    ChunkPaths,
    encode_record,
)
from wal.chunks.chunk_directory import SPARE_CHUNKS_MAX, ChunkDirectory
from wal.chunks.chunk_scan import scan_chunk
from wal.chunks.quarantine import QUARANTINE
from wal.chunks.sealed_chunk import (
    CACHED_BATCH_BYTES,
    CACHED_CHUNK_BYTES,
    COMMITTED_CONTENT,
    SealedChunk,
)
from wal.chunks.wal_object import OBJECT_HEADER_BYTES, WalObjectBody
from wal.coordinates import ObjectKey
from wal.errors import CorruptChunk, DisklessError, OutOfBounds, StorageFailed
from wal.fd_cache import FdCache, FdHandle

BATCHES = [
    (B0, batch_bytes(b"first", producer_id=5, sequence=0)),
    (A0, batch_bytes(b"second, a little longer")),
    (B0, batch_bytes(b"third", producer_id=5, sequence=1)),
]


def files_of(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("chunk-*"))


def batches_of(chunk: SealedChunk) -> list[bytes]:
    """Arrival order, read through the object's own map."""
    by_position = {}
    for position, extent in zip(chunk.plan.positions, chunk.plan.extents, strict=True):
        by_position[position] = bytes(object_range(chunk, extent.byte_offset, extent.length_bytes))
    return [by_position[position] for position in sorted(by_position)]


def test_an_empty_directory_recovers_to_nothing(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "new")
    assert directory.recover() == []
    directory.close()


def test_a_recovered_chunk_is_the_same_object_under_the_same_key(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, BATCHES)
    before = (chunk.object_key, object_bytes(WalObjectBody(chunk, chunk.plan)))
    directory.close()
    again = open_directory(tmp_path, seed=99)
    (recovered,) = again.recover()
    assert (recovered.object_key, object_bytes(WalObjectBody(recovered, recovered.plan))) == before
    assert recovered.plan.extents == chunk.plan.extents
    assert not [*recovered.waiting_for(range(3))]
    again.close()


def test_chunks_come_back_oldest_first_and_numbering_goes_on(tmp_path: Path) -> None:
    """By their ULIDs: files that serve again keep their number."""
    ulids = {}
    for number in (2, 10, 999_999, 1_000_000):
        writer = write_chunk(tmp_path, BATCHES, number=number, seed=number)
        ulids[writer.identity.ulid] = number
    expected = [ulids[ulid] for ulid in sorted(ulids)]
    assert expected != sorted(expected)
    directory = open_directory(tmp_path)
    assert [chunk.paths.number for chunk in directory.recover()] == expected
    writer = directory.open_chunk()
    assert writer.paths.number == 1_000_001
    assert directory.seal(writer, ()) is None
    directory.close()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("chunk-1.idx", "chunk-0000001.idx", "chunk-000001.tmp", "notes"):
        (tmp_path / name).write_bytes(b"mine")
    directory = open_directory(tmp_path)
    assert directory.recover() == []
    assert len(list(tmp_path.iterdir())) == 5  # with the lock
    directory.close()


def test_chunks_without_a_batch_are_removed(tmp_path: Path) -> None:
    writer = write_chunk(tmp_path, [], number=3)
    # A creation that was interrupted before .idx, and one whose first record was not written.
    Path(ChunkPaths.of(tmp_path, 4).data).touch()
    header_only = ChunkPaths.of(tmp_path, 5)
    Path(header_only.data).touch()
    Path(header_only.idx).write_bytes(writer.identity.encode())
    directory = open_directory(tmp_path)
    assert directory.recover() == []
    assert files_of(tmp_path) == []
    assert not directory.damage
    directory.close()


LAST = len(BATCHES) - 1
RECORD_BYTES = RECORD_HEAD_BYTES + BATCH_ROW.size
TAILS = {
    "data": (sum(len(data) for _, data in BATCHES[:LAST]), len(BATCHES[LAST][1])),
    "idx": (CHUNK_HEADER_BYTES + RECORD_BYTES * LAST, RECORD_BYTES),
}


@pytest.mark.parametrize("file", list(TAILS))
@pytest.mark.parametrize("fill", ["cut", "zeros", "garbage"])
def test_a_tail_torn_at_any_byte_is_cut_and_nothing_else(
    tmp_path: Path, file: str, fill: str
) -> None:
    """The file ends early, or its last pages came back as zeros or as what was there before."""
    start, length = TAILS[file]
    for kept in range(length):
        path = tmp_path / str(kept)
        path.mkdir()
        writer = write_chunk(path, BATCHES)
        torn = Path(getattr(writer.paths, file))
        whole = torn.read_bytes()
        assert len(whole) == start + length
        rest = length - kept
        filler = {"cut": b"", "zeros": bytes(rest), "garbage": random.Random(kept).randbytes(rest)}
        torn.write_bytes(whole[: start + kept] + filler[fill])
        expected = BATCHES[:LAST] if torn.read_bytes() != whole else BATCHES
        directory = open_directory(path)
        (chunk,) = directory.recover()
        assert batches_of(chunk) == [data for _, data in expected], f"{file} cut at {kept}"
        assert not directory.damage
        directory.close()
        # What was cut is gone: the next start finds a clean chunk.
        scan = scan_chunk(writer.paths, FdCache(8))
        assert scan is not None
        assert (len(scan.batches), scan.torn) == (len(expected), "")
        shutil.rmtree(path)


def test_a_process_killed_at_any_system_call_leaves_every_append_that_returned(
    tmp_path: Path,
) -> None:
    """Three appends of two batches; the child dies before its first, second, ... call."""
    for calls in range(1, 40):
        path = tmp_path / str(calls)
        path.mkdir()
        returned, survived = _append_until_killed(path, calls)
        directory = open_directory(path)
        recovered = [data for chunk in directory.recover() for data in batches_of(chunk)]
        assert not directory.damage
        directory.close()
        assert recovered == KILLED_BATCHES[: len(recovered)]
        assert len(recovered) in (2 * returned, 2 * returned + 2), f"killed at call {calls}"
        if survived:
            assert len(recovered) == 6
            return
    pytest.fail("the child never got through")


KILLED_BATCHES = [batch_bytes(b"%d" % number * 100) for number in range(6)]


def _append_until_killed(path: Path, calls: int) -> tuple[int, bool]:
    """(appends that returned, whether the child got to its end)"""

    def fail(call: str, file: str) -> None:
        if len(disk.calls) == calls:
            os.kill(os.getpid(), signal.SIGKILL)

    disk = FaultyDisk(fail)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pool = BufferPool(1 << 20)
            writer = open_writer(path, disk=disk, sync=True)
            for first in range(0, 6, 2):
                writer.append(
                    [pending(pool, A0, data) for data in KILLED_BATCHES[first : first + 2]]
                )
                os.write(writing, b"!")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as reports:
        returned = len(reports.read())
    return returned, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_bytes_that_no_index_record_names_are_cut(tmp_path: Path) -> None:
    """A process that died between .data and .idx."""
    writer = write_chunk(tmp_path, BATCHES)
    with open(writer.paths.data, "ab") as tail:
        tail.write(b"written, never indexed")
    directory = open_directory(tmp_path)
    (chunk,) = directory.recover()
    assert batches_of(chunk) == [data for _, data in BATCHES]
    assert Path(writer.paths.data).stat().st_size == chunk.data_bytes
    directory.close()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine")
    write_chunk(path, BATCHES)
    return path


@given(file=st.sampled_from(["data", "idx"]), draw=st.data())
@examples(4, allow=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_found_wherever_it_is(
    pristine: Path, tmp_path: Path, file: str, draw: st.DataObject
) -> None:
    """In the last batch it looks like a torn tail and is cut; before that the chunk is refused."""
    path = tmp_path / "flipped"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(pristine, path)
    target = Path(getattr(ChunkPaths.of(path, 0), file))
    content = bytearray(target.read_bytes())
    bit = draw.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    target.write_bytes(content)
    directory = open_directory(path)
    recovered = directory.recover()
    directory.close()
    if bit // 8 >= TAILS[file][0]:
        (chunk,) = recovered
        assert batches_of(chunk) == [data for _, data in BATCHES[:LAST]]
    else:
        assert recovered == []
        (damage,) = directory.damage
        assert str(path) in str(damage)
        assert files_of(path) == []
        assert len(files_of(path / QUARANTINE)) == 2


@given(garbage=st.binary(max_size=400), file=st.sampled_from(["data", "idx"]))
@examples(allow=[HealthCheck.function_scoped_fixture])
def test_garbage_in_place_of_a_file_never_becomes_a_batch(
    pristine: Path, tmp_path: Path, garbage: bytes, file: str
) -> None:
    path = tmp_path / "garbage"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(pristine, path)
    Path(getattr(ChunkPaths.of(path, 0), file)).write_bytes(garbage)
    directory = open_directory(path)
    assert directory.recover() == []
    directory.close()


def test_damage_in_one_chunk_leaves_the_others_alone(tmp_path: Path) -> None:
    for number in range(3):
        write_chunk(tmp_path, BATCHES, number=number, seed=number)
    data = Path(ChunkPaths.of(tmp_path, 1).data)
    data.write_bytes(b"?" + data.read_bytes()[1:])
    directory = open_directory(tmp_path)
    assert {chunk.paths.number for chunk in directory.recover()} == {0, 2}
    (damage,) = directory.damage
    assert "chunk-000001.idx: record at byte 64: the batch at byte 0 of .data" in str(damage)
    assert f"record at byte {64 + RECORD_BYTES} is good" in str(damage)
    assert directory.statistics().quarantined == 1
    directory.close()


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    writer = write_chunk(tmp_path, BATCHES)
    os.unlink(writer.paths.data)
    directory = open_directory(tmp_path)
    assert directory.recover() == []
    assert "missing" in str(directory.damage[0])
    directory.close()


def test_quarantined_numbers_are_not_used_again(tmp_path: Path) -> None:
    damaged = write_chunk(tmp_path, BATCHES, number=8)
    Path(damaged.paths.idx).write_bytes(bytes(200))
    first = open_directory(tmp_path)
    first.recover()
    first.close()
    second = open_directory(tmp_path)
    second.recover()
    writer = second.open_chunk()
    assert writer.paths.number == 9
    second.seal(writer, ())
    second.close()


def test_quarantine_keeps_the_newest_evidence_under_its_cap(tmp_path: Path) -> None:
    for number in range(4):
        writer = write_chunk(tmp_path, BATCHES, number=number, seed=number)
        Path(writer.paths.idx).write_bytes(bytes(1000))
    one = sum(Path(path).stat().st_size for path in writer.paths.files)
    directory = open_directory(tmp_path, settings=replace(SETTINGS, quarantine_max_bytes=2 * one))
    directory.recover()
    assert {name[:12] for name in files_of(tmp_path / QUARANTINE)} == {
        "chunk-000002",
        "chunk-000003",
    }
    directory.close()


def test_a_committed_chunk_is_kept_for_reading_and_not_uploaded_again(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, BATCHES)
    plan = chunk.plan
    directory.mark_committed(chunk)
    directory.close()
    again = open_directory(tmp_path)
    assert again.recover() == []
    kept = again.locate(chunk.object_key)
    assert kept is not None
    for extent, position in zip(plan.extents, plan.positions, strict=True):
        read = object_range(kept, extent.byte_offset, extent.length_bytes)
        assert read == BATCHES[position][1]
    again.close()


@pytest.mark.parametrize("missing", [40, 39, 16, 1])
def test_a_commit_that_was_not_noted_in_full_is_made_again(tmp_path: Path, missing: int) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, BATCHES)
    body = object_bytes(WalObjectBody(chunk, chunk.plan))
    directory.mark_committed(chunk)
    directory.close()
    os.truncate(chunk.paths.idx, os.stat(chunk.paths.idx).st_size - missing)
    again = open_directory(tmp_path)
    (recovered,) = again.recover()
    assert recovered.object_key == chunk.object_key
    assert object_bytes(WalObjectBody(recovered, recovered.plan)) == body
    again.close()


def test_a_committed_chunk_is_never_cut(tmp_path: Path) -> None:
    """A shorter chunk would lay out another object: byte offsets would name the wrong batches."""
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, BATCHES)
    directory.mark_committed(chunk)
    directory.close()
    index = Path(chunk.paths.idx)
    content = bytearray(index.read_bytes())
    content[CHUNK_HEADER_BYTES + RECORD_HEAD_BYTES + 30] ^= 1
    index.write_bytes(content)
    again = open_directory(tmp_path)
    assert again.recover() == []
    check_damage_is_found_when_it_is_read(again, chunk.object_key, "committed")
    again.close()


def check_damage_is_found_when_it_is_read(
    directory: ChunkDirectory, key: ObjectKey, text: str
) -> None:
    """Then the chunk is gone, and readers turn to the store."""
    kept = directory.locate(key)
    assert kept is not None
    with pytest.raises(CorruptChunk, match=text):
        object_range(kept, OBJECT_HEADER_BYTES, 1)
    assert directory.locate(key) is None
    assert directory.statistics().cached_bytes == 0
    (damage,) = directory.damage
    assert text in str(damage)
    with pytest.raises(StorageFailed, match="no longer kept"):
        object_range(kept, OBJECT_HEADER_BYTES, 1)


def test_a_committed_chunk_that_is_another_by_now_is_not_read(tmp_path: Path) -> None:
    """Valid to the last byte, but of another object."""
    writer = write_chunk(tmp_path, BATCHES)
    commit = COMMITTED_CONTENT.pack(1, bytes(4), 2)
    with open(writer.paths.idx, "ab") as index:
        index.write(
            encode_record(
                writer.identity.salt_crc, COMMITTED, len(BATCHES), writer.data_bytes, commit
            )
        )
    directory = open_directory(tmp_path)
    assert directory.recover() == []
    text = "not the batches that were committed"
    check_damage_is_found_when_it_is_read(directory, writer.identity.object_key, text)
    directory.close()


def test_the_tail_cache_drops_the_oldest_chunks(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = open_directory(tmp_path / "elsewhere")
    other.recover()
    probe = sealed(other, BATCHES)
    other.mark_committed(probe)
    other.close()
    assert probe.file_bytes == sum(os.stat(path).st_size for path in probe.paths.files)
    limit = replace(SETTINGS, cache_max_bytes=2 * probe.file_bytes)
    directory = open_directory(tmp_path, settings=limit)
    directory.recover()
    count = SPARE_CHUNKS_MAX + 4
    chunks = [sealed(directory, BATCHES) for _ in range(count)]
    for chunk in chunks:
        directory.mark_committed(chunk)
    kept = [directory.locate(chunk.object_key) is not None for chunk in chunks]
    assert kept == [False] * (count - 2) + [True] * 2
    assert directory.statistics().cached_bytes == 2 * probe.file_bytes
    left = {ChunkPaths.of(tmp_path, number) for number in range(count - 2)}
    assert len([paths for paths in left if os.path.exists(paths.data)]) == SPARE_CHUNKS_MAX
    with pytest.raises(StorageFailed, match="no longer kept"):
        object_range(chunks[0], 64, 1)
    directory.close()


def test_the_tail_cache_drops_chunks_that_it_costs_too_much_memory_to_know(tmp_path: Path) -> None:
    each = CACHED_CHUNK_BYTES + CACHED_BATCH_BYTES * len(BATCHES)
    limit = replace(SETTINGS, cache_memory_max_bytes=3 * each)
    directory = open_directory(tmp_path, settings=limit)
    directory.recover()
    chunks = [sealed(directory, BATCHES) for _ in range(5)]
    for chunk in chunks:
        directory.mark_committed(chunk)
    kept = [directory.locate(chunk.object_key) is not None for chunk in chunks]
    assert kept == [False, False, True, True, True]
    directory.close()
    again = open_directory(tmp_path, settings=replace(SETTINGS, cache_memory_max_bytes=each))
    assert again.recover() == []
    kept = [again.locate(chunk.object_key) is not None for chunk in chunks]
    assert kept == [False, False, False, False, True]
    again.close()


def test_a_chunk_being_read_is_not_deleted(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, settings=replace(SETTINGS, cache_max_bytes=0))
    directory.recover()
    first = sealed(directory, BATCHES)
    with first.pinned():
        directory.mark_committed(first)
        assert directory.locate(first.object_key) is first
    second = sealed(directory, BATCHES)
    directory.mark_committed(second)
    assert directory.locate(first.object_key) is None
    assert directory.statistics().cached_chunks == 0
    directory.close()


@given(st.data())
@examples(allow=[HealthCheck.function_scoped_fixture])
def test_any_range_of_the_batches_reads_as_the_object_does(
    tmp_path: Path, draw: st.DataObject
) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    rng = random.Random(draw.draw(st.integers(0, 5)))
    chunk = sealed(
        directory,
        [
            (rng.choice([A0, A1, B0]), batch_bytes(rng.randbytes(rng.randrange(90))))
            for _ in "12345"
        ],
    )
    whole = object_bytes(WalObjectBody(chunk, chunk.plan))
    end = len(whole) - len(chunk.plan.footer)
    start = draw.draw(st.integers(CHUNK_HEADER_BYTES, end))
    length = draw.draw(st.integers(0, end - start))
    for _ in "before and after the commit":
        assert object_range(chunk, start, length) == whole[start : start + length]
        if not chunk.is_committed:
            directory.mark_committed(chunk)
    directory.discard(chunk)
    directory.close()


def test_pieces_of_a_range_that_are_not_in_memory_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    batches = [batch_bytes(bytes(size)) for size in (10, 20, 30)]
    chunk = sealed(directory, list(zip((A0, B0, A0), batches, strict=True)))
    together: list[list[tuple[int, int]]] = []
    monkeypatch.setattr(FdHandle, "load_together", lambda _, ranges: together.append([*ranges]))
    first, *_ = chunk.plan.extents
    a_bytes = len(batches[0]) + len(batches[2])
    object_range(chunk, first.byte_offset, a_bytes)
    (sizes,) = [[size for _, size in pieces] for pieces in together]
    assert sizes == [len(batches[0]), len(batches[2])]
    object_range(chunk, first.byte_offset + a_bytes, len(batches[1]))
    assert len(together) == 1, "one piece is read at once"
    directory.close()


@pytest.mark.parametrize(("start", "length"), [(0, 64), (63, 2), (64, 10_000)])
def test_ranges_outside_the_batches_are_refused(tmp_path: Path, start: int, length: int) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, BATCHES)
    with pytest.raises(OutOfBounds):
        object_range(chunk, start, length)
    directory.close()


def test_a_sealed_chunk_can_be_read_before_its_commit_is_noted(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, BATCHES)
    assert directory.locate(chunk.object_key) is chunk
    assert batches_of(chunk) == [data for _, data in BATCHES]
    directory.close()


def test_a_file_cut_under_a_reader_is_an_error_not_short_bytes(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, BATCHES)
    extent = chunk.plan.extents[-1]
    os.truncate(chunk.paths.data, 5)
    with pytest.raises(CorruptChunk, match="ends before byte"):
        object_range(chunk, extent.byte_offset, extent.length_bytes)
    directory.close()


def _recover_elsewhere(path: Path, result: "multiprocessing.Queue[str]") -> None:
    try:
        open_directory(path).recover()
    except DisklessError as error:
        result.put(type(error).__name__)
    else:
        result.put("took it")


def test_two_brokers_cannot_have_one_directory(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    with pytest.raises(StorageFailed, match="another broker"):
        open_directory(tmp_path).recover()
    context = multiprocessing.get_context("spawn")
    result: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_recover_elsewhere, args=(tmp_path, result))
    child.start()
    assert result.get(timeout=120) == "StorageFailed"
    child.join()
    directory.close()
    directory.close()
    other = open_directory(tmp_path)
    assert other.recover() == []
    other.close()
