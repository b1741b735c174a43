"""Files of blocks: which bytes of them are read, and what becomes of files that are not right."""

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator
from itertools import combinations
from pathlib import Path

import pytest

from wal.caches.block_files import PAGE_BYTES, BlockFiles, BlockId, fresh_memory
from wal.coordinates import ObjectKey
from wal.fd_cache import FdCache

BLOCK = BlockId(ObjectKey("wal/00/object"), 3)
CONTENT = random.Random(1).randbytes(3 * PAGE_BYTES + 100)


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[BlockFiles]:
    found = BlockFiles(str(tmp_path), limit_bytes=1 << 20, threads=2, fd_cache=FdCache(4))
    await found.open()
    yield found
    await found.close()


def path_in(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


async def test_any_range_of_a_block_is_read_as_it_was_written(files: BlockFiles) -> None:
    await files.write(BLOCK, memoryview(CONTENT))
    page_borders = range(0, len(CONTENT), PAGE_BYTES)
    near = {border + step for border in page_borders for step in (-1, 0, 1)}
    borders = sorted({0, 7, *near, len(CONTENT) - 1, len(CONTENT)} - {-1})
    for start, end in combinations(borders, 2):
        assert await files.read(BLOCK, start, end - start) == CONTENT[start:end]
    assert await files.read(BLOCK, 1, len(CONTENT)) is None, "it has no such bytes"
    assert files.has(BLOCK)


@pytest.mark.parametrize("place", [0, PAGE_BYTES - 1, PAGE_BYTES + 5, 2 * PAGE_BYTES, -1])
async def test_damage_is_found_by_who_reads_its_page(
    files: BlockFiles, tmp_path: Path, place: int
) -> None:
    await files.write(BLOCK, memoryview(CONTENT))
    damaged = bytearray(CONTENT)
    damaged[place] ^= 16
    path_in(tmp_path).write_bytes(damaged)
    damaged_page = (place % len(CONTENT)) // PAGE_BYTES
    pages = range(0, len(CONTENT), PAGE_BYTES)
    for page, start in enumerate(pages):
        if page != damaged_page:
            assert await files.read(BLOCK, start + 9, 30) == CONTENT[start + 9 :][:30]
    assert files.corrupt_blocks == 0
    assert await files.read(BLOCK, pages[damaged_page] + 9, 30) is None
    assert (files.corrupt_blocks, files.total_bytes, files.has(BLOCK)) == (1, 0, False)
    assert os.listdir(tmp_path) == []


async def test_a_file_that_was_replaced_meanwhile_is_not_blamed(tmp_path: Path) -> None:
    may_read = threading.Event()

    def lend(length_bytes: int) -> memoryview:
        may_read.wait()
        return fresh_memory(length_bytes)

    files = BlockFiles(
        str(tmp_path), limit_bytes=1 << 20, threads=2, fd_cache=FdCache(4), lend=lend
    )
    await files.open()
    await files.write(BLOCK, memoryview(CONTENT))
    reading = asyncio.create_task(files.read(BLOCK, 0, 10))
    await asyncio.sleep(0)
    await files.write(BLOCK, memoryview(CONTENT[::-1]))
    may_read.set()
    assert await reading is None
    assert (files.corrupt_blocks, files.has(BLOCK)) == (0, True)
    assert await files.read(BLOCK, 0, 10) == CONTENT[::-1][:10]
    await files.close()


async def test_space_of_what_is_removed_comes_back_at_once(
    files: BlockFiles, tmp_path: Path
) -> None:
    await files.write(BLOCK, memoryview(CONTENT))
    await files.read(BLOCK, 0, 1)
    status = os.stat(path_in(tmp_path))
    await files.forget(BLOCK.key)
    still_open = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found = os.stat(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        still_open.append((found.st_dev, found.st_ino))
    assert (status.st_dev, status.st_ino) not in still_open
    assert files.total_bytes == 0
