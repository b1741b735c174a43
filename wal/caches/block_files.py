"""Keeps blocks of objects in a directory: the object cache's disk tier, an LRU by bytes.

One file per block with a header. A file whose header or CRC32C is wrong is removed, and counts as
absent: the cache fetches the block. Files are written without fsync and removed at start: they
belong to this process.

Sizes and order are kept in memory and changed on the event loop; files are read, written and
removed in threads. A file is written under a temporary name and renamed, so that a reader sees all
of it.
"""

import os
import struct
from collections import OrderedDict
from contextlib import suppress
from hashlib import blake2b
from typing import Final, NamedTuple

from crc32c import crc32c

from wal.coordinates import ObjectKey
from wal.errors import ObjectStoreUnavailable
from wal.worker_threads import WorkerThreads

_BLOCK_MAGIC: Final = b"DLBLOCK1"
# Magic, CRC32C of everything after this header, key length, block number, content length.
_BLOCK_HEADER: Final = struct.Struct(">8sIIQQ")
assert _BLOCK_HEADER.size == 32
_BLOCK_SUFFIX: Final = ".block"


class BlockId(NamedTuple):
    key: ObjectKey
    number: int


class BlockFiles:
    """The block files of one directory; used on the event loop alone."""

    def __init__(self, directory: str, limit_bytes: int, threads: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._files: OrderedDict[BlockId, int] = OrderedDict()
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

    async def read(self, block: BlockId) -> bytes | None:
        """The block's content; None when it is not here or its file is damaged."""
        if block not in self._files:
            return None
        self._files.move_to_end(block)
        path = self._path(block)
        content = await self._threads.run(lambda: _read_block_file(path, block))
        if content is None and block in self._files:
            self.corrupt_blocks += 1
            await self._remove([block])
        return content

    async def write(self, block: BlockId, content: memoryview) -> None:
        """Keep a block; a disk that refuses it costs a GET later, nothing else."""
        size = _BLOCK_HEADER.size + len(block.key.encode()) + len(content)
        if size > self._limit_bytes:
            return
        path = self._path(block)
        if not await self._threads.run(lambda: _write_block_file(path, block, content)):
            return
        self.total_bytes += size - self._files.pop(block, 0)
        self._files[block] = size
        for oldest in [*self._files]:
            if self.total_bytes <= self._limit_bytes:
                break
            await self._remove([oldest])

    async def forget(self, key: ObjectKey) -> None:
        await self._remove([block for block in self._files if block.key == key])

    async def _remove(self, blocks: list[BlockId]) -> None:
        for block in blocks:
            self.total_bytes -= self._files.pop(block, 0)
        paths = [self._path(block) for block in blocks]
        await self._threads.run(lambda: _unlink_all(paths))

    def _path(self, block: BlockId) -> str:
        name = blake2b(block.key.encode(), digest_size=16).hexdigest()
        return f"{self._directory}/{name}-{block.number}{_BLOCK_SUFFIX}"


def _write_block_file(path: str, block: BlockId, content: memoryview) -> bool:
    """Write and rename; False when the disk refuses."""
    key = block.key.encode()
    checksum = crc32c(content, crc32c(key))
    header = _BLOCK_HEADER.pack(_BLOCK_MAGIC, checksum, len(key), block.number, len(content))
    draft = f"{path}.tmp"
    try:
        with open(draft, "wb") as file:
            file.writelines((header, key, content))
        os.rename(draft, path)
    except OSError:
        # A full or broken cache disk: reads go to the store instead. What was written so far
        # is overwritten by the next try or removed at the next start.
        _unlink_all([draft])
        return False
    return True


def _read_block_file(path: str, block: BlockId) -> bytes | None:
    """The content, or None when anything about the file is not as it was written."""
    try:
        with open(path, "rb") as file:
            header = file.read(_BLOCK_HEADER.size)
            if len(header) != _BLOCK_HEADER.size:
                return None
            magic, checksum, key_length, number, length = _BLOCK_HEADER.unpack(header)
            key = block.key.encode()
            if (magic, key_length, number) != (_BLOCK_MAGIC, len(key), block.number):
                return None
            if file.read(len(key)) != key or os.fstat(file.fileno()).st_size != (
                _BLOCK_HEADER.size + len(key) + length
            ):
                return None
            content = file.read()
    except OSError:
        return None
    return content if crc32c(content, crc32c(key)) == checksum else None


def _unlink_all(paths: list[str]) -> None:
    for path in paths:
        with suppress(OSError):  # not there, or removed at the next start
            os.unlink(path)
