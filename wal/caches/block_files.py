"""Keeps blocks of objects in a directory: the object cache's disk tier, an LRU by bytes.

One file per block, with its bytes and nothing else. How long it is and the CRC32C of each of its
pages, PAGE_BYTES long, are kept in memory: a file means nothing without the process that wrote it,
is written without fsync and removed at the next start.

A reader has the bytes it asks for read and no others, but for the rest of the pages at both ends,
whose checksums it needs. It gets memory of its own, which `lend` gives; a file stays open in the FD
cache from one reader to the next. A file that is gone, too short, or has a page with another
checksum is removed and counts as absent: the cache asks the store. Damage in pages that nobody
reads is found by who reads them.

Sizes and order are changed on the event loop; files are read, written and removed in threads. A
file is written under a temporary name and renamed, so that a reader sees all of it. A file that is
replaced or removed while somebody reads it is the other one's to account for: only who finds damage
in the file that is still known removes it.
"""

import os
from array import array
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import ObjectStoreUnavailable
from wal.fd_cache import FdCache
from wal.worker_threads import WorkerThreads

PAGE_BYTES: Final = 64 << 10
"""Of one checksum: a tier of 100 GiB has 6.4 MiB of them. Who reads less reads up to two pages."""

_BLOCK_SUFFIX: Final = ".block"


class BlockId(NamedTuple):
    key: ObjectKey
    number: int


class _BlockFile(NamedTuple):
    """What is known of a file besides its name."""

    length_bytes: int
    checksums: "array[int]"
    """Of its pages, in order; the last page may be shorter."""


def fresh_memory(length_bytes: int) -> memoryview:
    """Writable memory with anything in it."""
    return np.empty(length_bytes, np.uint8).data


class BlockFiles:
    """The block files of one directory; used on the event loop alone.

    The directory belongs to it alone, and is emptied of block files by `open`.
    """

    def __init__(
        self,
        directory: str,
        *,
        limit_bytes: int,
        threads: int,
        fd_cache: FdCache,
        lend: Callable[[int], memoryview] = fresh_memory,
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._fd_cache = fd_cache
        self._lend = lend
        self._files: OrderedDict[BlockId, _BlockFile] = OrderedDict()
        self._threads = WorkerThreads("object-cache-disk", threads)
        self.total_bytes = 0
        self.corrupt_blocks = 0

    async def open(self) -> None:
        """Make the directory; remove the block files of an earlier process.

        Raises: ObjectStoreUnavailable when it cannot be used.
        """

        def prepare() -> None:
            os.makedirs(self._directory, exist_ok=True)
            for name in os.listdir(self._directory):
                if name.endswith((_BLOCK_SUFFIX, _BLOCK_SUFFIX + ".tmp")):
                    os.unlink(f"{self._directory}/{name}")

        try:
            await self._threads.run(prepare)
        except OSError as error:
            raise ObjectStoreUnavailable(f"object cache: {error}") from error

    async def close(self) -> None:
        await self._threads.close()

    def has(self, block: BlockId) -> bool:
        return block in self._files

    async def read(self, block: BlockId, start: int, length: int) -> memoryview | None:
        """Bytes [start, start + length) of a block, which the caller may write to.

        None when they are not here, or not as they were written.
        """
        file = self._files.get(block)
        if file is None or start + length > file.length_bytes:
            return None
        self._files.move_to_end(block)
        path = self._path(block)
        content = await self._threads.run(lambda: self._read_file(path, file, start, length))
        if content is None and self._files.get(block) is file:
            self.corrupt_blocks += 1
            await self._remove([block])
        return content

    async def write(self, block: BlockId, content: memoryview) -> None:
        """Keep a block; a disk that refuses it costs a GET later, nothing else."""
        size = len(content)
        if size > self._limit_bytes:
            return
        path = self._path(block)
        checksums = await self._threads.run(lambda: _write_block_file(path, content))
        if checksums is None:
            return
        previous = self._files.pop(block, None)
        self.total_bytes += size - (0 if previous is None else previous.length_bytes)
        self._files[block] = _BlockFile(size, checksums)
        for oldest in [*self._files]:
            if self.total_bytes <= self._limit_bytes:
                break
            await self._remove([oldest])

    async def forget(self, key: ObjectKey) -> None:
        await self._remove([block for block in self._files if block.key == key])

    async def _remove(self, blocks: list[BlockId]) -> None:
        paths = []
        for block in blocks:
            file = self._files.pop(block, None)
            if file is not None:
                self.total_bytes -= file.length_bytes
                paths.append(self._path(block))
        await self._threads.run(lambda: self._unlink_all(paths))

    def _path(self, block: BlockId) -> str:
        name = blake2b(block.key.encode(), digest_size=16).hexdigest()
        return f"{self._directory}/{name}-{block.number}{_BLOCK_SUFFIX}"

    def _read_file(
        self, path: str, known: _BlockFile, start: int, length: int
    ) -> memoryview | None:
        """Runs in a thread. None when anything about these pages is not as it was written."""
        end = start + length
        first = start // PAGE_BYTES
        last = -(-end // PAGE_BYTES)
        content = self._lend(length)
        before = fresh_memory(start - first * PAGE_BYTES)
        behind = fresh_memory(min(last * PAGE_BYTES, known.length_bytes) - end)
        try:
            with self._fd_cache.open(path) as file:
                position = first * PAGE_BYTES
                for part in (before, content, behind):
                    if file.pread_into(part, position) != len(part):
                        return None
                    position += len(part)
        except OSError:
            return None
        crc = crc32c(before)
        for page in range(first, last):
            page_end = (page + 1) * PAGE_BYTES
            crc = crc32c(content[max(page * PAGE_BYTES - start, 0) : page_end - start], crc)
            if page == last - 1:
                crc = crc32c(behind, crc)
            if crc != known.checksums[page]:
                return None
            crc = 0
        return content

    def _unlink_all(self, paths: list[str]) -> None:
        for path in paths:
            _unlink(path)
            # An open descriptor would keep its bytes on the disk.
            self._fd_cache.invalidate(path)


def _write_block_file(path: str, content: memoryview) -> "array[int] | None":
    """Write and rename; returns the checksums of its pages, or None when the disk refuses."""
    checksums = array("I")
    for start in range(0, len(content), PAGE_BYTES):
        checksums.append(crc32c(content[start : start + PAGE_BYTES]))
    draft = f"{path}.tmp"
    try:
        with open(draft, "wb") as file:
            file.write(content)
        os.rename(draft, path)
    except OSError:
        # A full or broken cache disk: reads go to the store instead. What was written so far
        # is overwritten by the next try or removed at the next start.
        _unlink(draft)
        return None
    return checksums


def _unlink(path: str) -> None:
    with suppress(OSError):  # not there, or removed at the next start
        os.unlink(path)
