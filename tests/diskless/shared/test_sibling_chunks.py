"""Chunks of another process: found by their objects, and never taken for others."""

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diskless.shared import chunk_notices
from diskless.shared.chunk_notices import ChunkNotices, ChunkPlace, make_notices
from diskless.shared.sibling_chunks import ChunkGone, SiblingChunk, SiblingChunks
from tests.support.chunks.write_path import A0, B0, SETTINGS, batch_bytes, open_directory, sealed
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.sealed_chunk import SealedChunk
from wal.coordinates import ObjectKey
from wal.fd_cache import FdCache
from wal.ulid import wal_object_key

RECYCLING = replace(SETTINGS, cache_max_bytes=0)
"""The files of a committed chunk are written over by the next one."""

OWNER = """
import json, sys, zlib
from pathlib import Path
from diskless.shared.chunk_notices import ChunkNotices
from tests.diskless.shared.test_sibling_chunks import RECYCLING, content_of, open_directory, seal

directory = open_directory(Path(sys.argv[2]), settings=RECYCLING)
directory.recover()
notices = ChunkNotices(int(sys.argv[1]), 1)
sums = {}
for number in range(400):
    chunk = seal(directory, notices, number)
    sums[chunk.object_key] = zlib.crc32(content_of(chunk))
    print(json.dumps([chunk.object_key, chunk.plan.object_bytes]), flush=True)
    sys.stdin.read(1)
    directory.mark_committed(chunk)
print(json.dumps(sums), flush=True)
"""


@pytest.fixture
def fd() -> Iterator[int]:
    made = make_notices(3)
    yield made
    os.close(made)


def seal(directory: ChunkDirectory, notices: ChunkNotices, number: int) -> SealedChunk:
    """Three batches of one partition around one of another, of lengths that tell chunks apart."""
    payload = b"%d" % number * (20 + number % 7)
    chunk = sealed(
        directory, [(B0 if i == 1 else A0, batch_bytes(b"%d-" % i + payload)) for i in range(4)]
    )
    notices.sealed(chunk.paths.number, chunk.identity.ulid)
    return chunk


def span_of(object_bytes: int, chunk: SealedChunk) -> tuple[int, int]:
    """All batches of the chunk's object."""
    extents = [*chunk.plan.extents]
    return extents[0].byte_offset, sum(extent.length_bytes for extent in extents)


def content_of(chunk: SealedChunk) -> bytes:
    start, length = span_of(chunk.plan.object_bytes, chunk)
    content = bytearray(length)
    chunk.read_object_range(start, memoryview(content))
    return bytes(content)


class Siblings:
    """Lane 1 is the owner's, lane 2 reads."""

    def __init__(self, fd: int, path: Path) -> None:
        directories = [path / name for name in ("head", "owner", "reader")]
        self.owner = open_directory(directories[1], settings=RECYCLING)
        self.owner.recover()
        self.owners_notices = ChunkNotices(fd, 1)
        self.notices = ChunkNotices(fd, 2)
        self.chunks = SiblingChunks(directories, self.notices, FdCache(16))

    def seal(self, number: int) -> SealedChunk:
        return seal(self.owner, self.owners_notices, number)

    def locate(self, chunk: SealedChunk) -> SiblingChunk:
        found = self.chunks.locate(chunk.object_key, chunk.plan.object_bytes)
        assert found is not None
        return found


@pytest.fixture
def siblings(fd: int, tmp_path: Path) -> Iterator[Siblings]:
    made = Siblings(fd, tmp_path)
    yield made
    made.owner.close()


def read(found: SiblingChunk, chunk: SealedChunk) -> bytes:
    start, length = span_of(found.object_bytes, chunk)
    content = bytearray(length)
    found.read_object_range(start, memoryview(content))
    return bytes(content)


def test_a_chunk_is_read_by_its_object_before_and_after_its_commit(siblings: Siblings) -> None:
    siblings.owner = open_directory(siblings.owner.path.parent / "owner2")
    siblings.owner.recover()
    siblings.chunks._directories = [siblings.owner.path] * 3
    chunk = siblings.seal(1)
    expected = content_of(chunk)
    plan = chunk.plan
    found = siblings.locate(chunk)
    assert read(found, chunk) == expected
    start, _ = span_of(plan.object_bytes, chunk)
    siblings.owner.mark_committed(chunk)
    part = bytearray(50)
    for at in (0, 13, len(expected) - 50):
        found.read_object_range(start + at, memoryview(part))
        assert bytes(part) == expected[at : at + 50]


def test_an_object_that_nobody_told_of_is_not_found(siblings: Siblings) -> None:
    nobodys = wal_object_key("0" * 26)
    assert siblings.chunks.locate(nobodys, 100) is None
    own = seal(siblings.owner, siblings.notices, 1)
    assert siblings.chunks.locate(own.object_key, own.plan.object_bytes) is None


@pytest.mark.parametrize("is_known", [True, False], ids=["map-kept", "never-read"])
def test_a_chunk_that_is_written_over_is_gone(siblings: Siblings, is_known: bool) -> None:
    chunk = siblings.seal(1)
    found = siblings.locate(chunk)
    expected, plan = content_of(chunk), chunk.plan
    if is_known:
        assert read(found, chunk) == expected
    span = span_of(plan.object_bytes, chunk)
    siblings.owner.mark_committed(chunk)
    over = siblings.seal(8)
    assert over.paths == chunk.paths
    assert len(content_of(over)) == len(expected)
    with pytest.raises(ChunkGone):
        found.read_object_range(span[0], memoryview(bytearray(span[1])))
    siblings.chunks.forget(chunk.object_key)
    assert siblings.chunks.locate(chunk.object_key, plan.object_bytes) is None
    assert read(siblings.locate(over), over) == content_of(over)


def test_a_chunk_that_is_deleted_is_gone(siblings: Siblings) -> None:
    chunk = siblings.seal(1)
    found, span = siblings.locate(chunk), span_of(0, chunk)
    assert read(found, chunk) == content_of(chunk)
    siblings.owner.discard(chunk)
    with pytest.raises(ChunkGone):
        found.read_object_range(span[0], memoryview(bytearray(span[1])))


def test_a_chunk_of_which_a_batch_was_left_out_is_not_read(siblings: Siblings) -> None:
    chunk = siblings.seal(1)
    chunk.exclude([0])
    found = siblings.locate(chunk)
    with pytest.raises(ChunkGone, match="not all of what became"):
        found.read_object_range(span_of(0, chunk)[0], memoryview(bytearray(10)))


def test_a_lane_forgets_the_oldest(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_notices, "NOTICES_PER_LANE", 4)
    owner, reader = ChunkNotices(fd, 0), ChunkNotices(fd, 1)
    ulids = [f"01J{number:023d}" for number in range(20)]

    def found() -> list[int]:
        keys: list[ObjectKey] = [*map(wal_object_key, ulids)]
        return [number for number, key in enumerate(keys) if reader.find(key) is not None]

    owner.sealed(0, ulids[0])
    assert found() == [0]
    for number in range(1, 9):
        owner.sealed(number, ulids[number])
    assert found() == [0, 5, 6, 7, 8]
    # The process of the lane is another one now.
    again = ChunkNotices(fd, 0)
    again.sealed(3, ulids[9])
    assert reader.find(wal_object_key(ulids[9])) == ChunkPlace(0, 3)


def test_chunks_of_a_process_that_goes_on_writing_are_read_whole_or_not_at_all(
    fd: int, tmp_path: Path
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(fd), str(tmp_path / "owner")],
        pass_fds=[fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    chunks = SiblingChunks([tmp_path / "owner"] * 3, ChunkNotices(fd, 2), FdCache(16))
    sums: dict[str, int] = {}
    gone = 0
    assert "chunks recovered" in owner.stdout.readline()
    for _ in range(400):
        key, object_bytes = json.loads(owner.stdout.readline())
        # From here on it is written over.
        owner.stdin.write("\n")
        owner.stdin.flush()
        found = chunks.locate(key, object_bytes)
        assert found is not None
        try:
            map_of = chunks._map_of(found)
            assert map_of._map is not None
            begin, end = map_of._map.object_offsets[0], map_of._map.object_offsets[-1]
            content = bytearray(end - begin)
            found.read_object_range(begin, memoryview(content))
            sums[key] = zlib.crc32(content)
        except ChunkGone:
            gone += 1
    expected = json.loads(owner.stdout.readline())
    owner.stdin.close()
    owner.stdout.close()
    assert owner.wait() == 0
    assert {key: expected[key] for key in sums} == sums
    assert len(sums) + gone == 400
