"""Chunk files used again: nothing of the chunk they were is ever taken for the one they are."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.chunks.write_path import (
    A0,
    B0,
    SETTINGS,
    FaultyDisk,
    batch_bytes,
    object_range,
    open_directory,
    sealed,
)
from wal.chunks.chunk_directory import SPARE_CHUNKS_MAX, ChunkDirectory
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import OBJECT_HEADER_BYTES
from wal.coordinates import TopicIdPartition
from wal.disk import SYSTEM_DISK, Disk

NO_CACHE = replace(SETTINGS, cache_max_bytes=0)
"""Every committed chunk is retired at once."""

Batches = list[tuple[TopicIdPartition, bytes]]


def batches(number: int) -> Batches:
    """What chunk `number` holds; later chunks are smaller, so that stale bytes stay behind them."""
    count = 7 - number % 5
    return [(A0 if i % 2 else B0, batch_bytes(b"%d-%d" % (number, i) * 40)) for i in range(count)]


def stored(chunk: SealedChunk) -> list[bytes]:
    """The chunk's batches, read through its files."""
    return [
        bytes(object_range(chunk, extent.byte_offset, extent.length_bytes))
        for extent in chunk.plan.extents
    ]


def sorted_batches(number: int) -> list[bytes]:
    return [data for _, data in sorted(batches(number), key=lambda item: item[0])]


def cycle(directory: ChunkDirectory, number: int) -> None:
    chunk = sealed(directory, batches(number))
    assert stored(chunk) == sorted_batches(number)
    directory.mark_committed(chunk)


def test_evicted_chunks_become_the_files_of_the_next_ones(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, settings=NO_CACHE)
    directory.recover()
    inodes: set[int] = set()
    for number in range(20):
        cycle(directory, number)
        inodes |= {file.stat().st_ino for file in tmp_path.glob("*.data")}
    assert len(inodes) == 1
    assert directory.statistics().cached_chunks == 0
    directory.close()


def test_a_few_spares_are_kept_and_no_more(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, settings=NO_CACHE)
    directory.recover()
    chunks = [sealed(directory, batches(number)) for number in range(SPARE_CHUNKS_MAX + 3)]
    for chunk in chunks:
        directory.mark_committed(chunk)
    assert len(list(tmp_path.glob("chunk-*.data"))) == SPARE_CHUNKS_MAX
    assert len(list(tmp_path.glob("chunk-*.idx"))) == SPARE_CHUNKS_MAX
    assert all(directory.locate(chunk.object_key) is None for chunk in chunks)
    directory.close()


def test_a_chunk_is_written_over_the_largest_spare(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, settings=NO_CACHE)
    directory.recover()
    chunks = [sealed(directory, batches(number)) for number in (3, 0, 4)]
    for chunk in chunks:
        directory.mark_committed(chunk)
    again = [sealed(directory, batches(number)) for number in (4, 4, 4)]
    largest, larger, small = chunks[1], chunks[0], chunks[2]
    assert [chunk.data_path for chunk in again] == [
        chunk.data_path for chunk in (largest, larger, small)
    ]
    directory.close()


def test_large_spares_are_kept_up_to_eight_full_chunks(tmp_path: Path) -> None:
    data = batch_bytes(bytes(60_000))
    settings = replace(NO_CACHE, chunk_max_bytes=len(data))
    directory = open_directory(tmp_path, settings=settings)
    directory.recover()
    chunks = [sealed(directory, [(A0, data)]) for _ in range(10)]
    for chunk in chunks:
        directory.mark_committed(chunk)
    assert len(list(tmp_path.glob("chunk-*.data"))) == 8
    directory.close()


def test_a_chunk_made_of_a_spare_is_recovered_without_what_lay_behind_it(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, settings=NO_CACHE)
    directory.recover()
    cycle(directory, 0)
    waiting = sealed(directory, batches(4))
    size = Path(waiting.data_path).stat().st_size
    assert size == sum(len(data) for _, data in batches(4))
    directory.close()

    again = open_directory(tmp_path, settings=NO_CACHE)
    (recovered,) = again.recover()
    assert stored(recovered) == sorted_batches(4)
    again.close()


def test_a_spare_is_a_committed_chunk_until_it_serves_again(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, settings=NO_CACHE)
    directory.recover()
    first = sealed(directory, batches(0))
    directory.mark_committed(first)
    assert directory.locate(first.object_key) is None
    directory.close()
    again = open_directory(tmp_path)
    assert again.recover() == []
    kept = again.locate(first.object_key)
    assert kept is not None
    start, size = OBJECT_HEADER_BYTES, first.data_bytes
    assert object_range(kept, start, size) == b"".join(sorted_batches(0))
    again.close()


@pytest.mark.parametrize("suffix", [".data", ".idx"])
def test_files_that_cannot_be_opened_again_only_cost_the_spare(tmp_path: Path, suffix: str) -> None:
    refused: list[str] = []

    def fail(call: str, path: str) -> None:
        if call == "open" and path.endswith(suffix) and path not in created:
            created.append(path)
        elif call == "open" and path.endswith(suffix) and is_failing:
            refused.append(path)
            raise OSError(5, "no")

    created: list[str] = []
    is_failing = False
    directory = open_directory(tmp_path, settings=NO_CACHE, disk=FaultyDisk(fail))
    directory.recover()
    cycle(directory, 0)
    is_failing = True
    writer = directory.open_chunk()
    assert refused
    assert writer.paths.number == 1
    assert not list(tmp_path.glob("chunk-000000.*"))
    is_failing = False
    assert directory.seal(writer, ()) is None
    directory.close()


def test_a_commit_that_cannot_be_noted_costs_the_chunk_and_nothing_else(tmp_path: Path) -> None:
    """Kept without a note, it would be committed again by a start long after."""
    disk = FaultyDisk()
    directory = open_directory(tmp_path, disk=disk)
    directory.recover()
    chunk = sealed(directory, batches(0))
    disk.space = 0
    directory.mark_committed(chunk)
    assert directory.locate(chunk.object_key) is None
    assert not list(tmp_path.glob("chunk-*"))
    directory.close()


def run_until_killed(path: Path, calls: int) -> tuple[int, bool]:
    """Cycles chunks 0 to 3 and leaves 4 and 5 uncommitted; (chunks sealed, whether it got through).

    The child dies before its `calls`th call to the disk.
    """

    def fail(call: str, file: str) -> None:
        if len(disk.calls) == calls:
            os.kill(os.getpid(), signal.SIGKILL)

    disk = FaultyDisk(fail)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            directory = open_directory(path, settings=NO_CACHE, disk=disk, seed=calls)
            directory.recover()
            for number in range(6):
                chunk = sealed(directory, batches(number))
                os.write(writing, b"s")
                if number < 4:
                    directory.mark_committed(chunk)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as reports:
        sealed_count = len(reports.read())
    return sealed_count, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def recovered_chunks(path: Path, disk: Disk = SYSTEM_DISK) -> tuple[list[list[bytes]], int]:
    """(batches of the chunks that wait to be uploaded, chunks found damaged)"""
    directory = open_directory(path, settings=replace(SETTINGS, cache_max_bytes=1 << 30), disk=disk)
    try:
        return [stored(chunk) for chunk in directory.recover()], len(directory.damage)
    finally:
        directory.close()


def test_a_process_killed_at_any_system_call_leaves_whole_chunks_and_no_damage(
    tmp_path: Path,
) -> None:
    """Whatever was sealed and not committed is there; nothing that was committed comes back."""
    for calls in range(1, 300):
        path = tmp_path / str(calls)
        path.mkdir()
        sealed_count, survived = run_until_killed(path, calls)
        waiting, damaged = recovered_chunks(path)
        assert not damaged, f"killed at call {calls}"
        contents = [sorted_batches(number) for number in range(6)]
        for chunk in waiting:
            assert chunk in contents, f"killed at call {calls}"
        if sealed_count > 4:
            assert contents[4] in waiting
        # A chunk whose commit was not noted is uploaded again, which is idempotent: at most one.
        committed = [chunk for chunk in waiting if chunk in contents[: max(0, sealed_count - 1)]]
        assert len([chunk for chunk in committed if chunk in contents[:4]]) <= 1
        if survived:
            assert waiting == contents[4:]
            return
    pytest.fail("the child never got through")
