"""Reads batches of a chunk for its object: each is checked before anybody gets it.

What is read comes in pieces of one reused buffer that starts at a block of memory; the pieces are
whole blocks but for the last, so a store can write them past the page cache.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np

from wal.chunks.chunk_batches import ChunkBatches, Wanted, head_of, heads_of, is_intact
from wal.columns import FEW_MAX
from wal.crc import crc32c, crc32c_of
from wal.errors import CorruptChunk
from wal.private_copy import BLOCK_BYTES, aligned_buffer
from wal.records.record_batch import CRC_START, header_bytes

READ_BYTES_MAX: Final = 1 << 20
"""The buffer of one upload; also the largest piece of an object's body."""


class DataFile(Protocol):
    """The bytes of .data: the open file, as the FD cache hands it out, or memory with the same."""

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from byte `offset` on; returns how much there was. Raises: OSError."""
        ...


def check_fragments(payload: Sequence[memoryview], wanted: Wanted, path: str) -> None:
    """Check a batch that lies in a fragment chain. Raises: CorruptChunk naming `path`."""
    _, length, leader_epoch, crc = wanted
    if (
        sum(map(len, payload)) != length
        or header_bytes(payload)[:CRC_START] != head_of(length, leader_epoch, crc)
        or crc32c_of(payload, CRC_START) != crc
    ):
        raise _rotten(path, wanted)


def read_checked(
    data: DataFile, path: str, batches: ChunkBatches, header: bytes = b"", footer: bytes = b""
) -> Iterator[memoryview]:
    """`header`, the bytes of `batches` back to back, `footer`, in pieces. Raises: CorruptChunk."""
    wanted = batches.wanted()
    total = len(header) + sum([batch.length_bytes for batch in wanted]) + len(footer)
    buffer = aligned_buffer(min(READ_BYTES_MAX, total))
    reads = CheckedReads(path, lambda: buffer)
    yield from reads.put(header)
    yield from reads.read(data, wanted)
    yield from reads.put(footer)
    yield reads.rest()


class CheckedReads:
    """Gathers what becomes an object in a buffer, and gives it away in pieces."""

    def __init__(self, path: str, take_buffer: Callable[[], memoryview]) -> None:
        """`take_buffer` gives the first buffer, and another one for each piece given away; that may
        be the same, when the piece is not used any more. A buffer starts at a block, and is of
        whole blocks or has room for all that comes. `path` names the chunk in errors.
        """
        self._path = path
        self._take_buffer = take_buffer
        self._buffer = take_buffer()
        self._filled = 0

    def put(self, content: bytes) -> Iterator[memoryview]:
        """Take bytes that need no check."""
        rest = memoryview(content)
        while self._filled + len(rest) > len(self._buffer):
            part = len(self._buffer) - self._filled
            self._buffer[self._filled :] = rest[:part]
            rest = rest[part:]
            yield self._buffer
            self._buffer, self._filled = self._take_buffer(), 0
        self._buffer[self._filled : self._filled + len(rest)] = rest
        self._filled += len(rest)

    def read(self, data: DataFile, wanted: Sequence[Wanted]) -> Iterator[memoryview]:
        """Take batches of `data`, one behind the other. Raises: CorruptChunk.

        One larger than the buffer comes in several pieces; the check of its end raises before the
        last one.
        """
        first = 0
        while first < len(wanted):
            size, last = self._filled, first
            while last < len(wanted) and size + wanted[last].length_bytes <= len(self._buffer):
                size += wanted[last].length_bytes
                last += 1
            if last > first:
                self._read_small(data, wanted[first:last], self._buffer[self._filled : size])
                self._filled, first = size, last
            elif self._filled < BLOCK_BYTES:
                yield from self._read_large(data, wanted[first])
                first += 1
            else:
                yield from self.whole_blocks()

    def whole_blocks(self) -> Iterator[memoryview]:
        """Give away what was taken but for the last block, if there are whole ones."""
        whole = self._filled - self._filled % BLOCK_BYTES
        if whole:
            rest = bytes(self._buffer[whole : self._filled])
            yield self._buffer[:whole]
            self._buffer, self._filled = self._take_buffer(), len(rest)
            self._buffer[: len(rest)] = rest

    def rest(self) -> memoryview:
        """All that was taken and not given away."""
        return self._buffer[: self._filled]

    def _read_small(self, data: DataFile, wanted: Sequence[Wanted], buffer: memoryview) -> None:
        """Fill `buffer` with `wanted`, one read per run of neighbours in .data; check them."""
        filled = run_start = 0
        run_offset = wanted[0].byte_offset
        for offset, length, _, _ in wanted:
            if offset != run_offset + filled - run_start:
                self._read_exactly(data, buffer[run_start:filled], run_offset)
                run_start, run_offset = filled, offset
            filled += length
        self._read_exactly(data, buffer[run_start:filled], run_offset)
        place = _first_rotten(buffer, wanted)
        if place is not None:
            raise _rotten(self._path, wanted[place])

    def _read_large(self, data: DataFile, batch: Wanted) -> Iterator[memoryview]:
        """Take a batch larger than the buffer, which holds less than a block."""
        offset, length, leader_epoch, expected = batch
        crc = done = 0
        while done < length:
            if self._filled == len(self._buffer):
                yield self._buffer
                self._buffer, self._filled = self._take_buffer(), 0
            piece = self._buffer[self._filled : self._filled + length - done]
            self._read_exactly(data, piece, offset + done)
            if done == 0:
                if piece[:CRC_START] != head_of(length, leader_epoch, expected):
                    raise _rotten(self._path, batch)
                crc = crc32c(piece[CRC_START:])
            else:
                crc = crc32c(piece, crc)
            self._filled += len(piece)
            done += len(piece)
        if crc != expected:
            raise _rotten(self._path, batch)

    def _read_exactly(self, data: DataFile, buffer: memoryview, offset: int) -> None:
        try:
            count = data.pread_into(buffer, offset)
        except OSError as error:
            raise CorruptChunk(f"{self._path}: unreadable at byte {offset}: {error}") from error
        if count != len(buffer):
            raise CorruptChunk(f"{self._path}: ends before byte {offset + len(buffer)}")


def _first_rotten(buffer: memoryview, wanted: Sequence[Wanted]) -> int | None:
    """Which of `wanted`, back to back in `buffer`, is not what was appended."""
    if len(wanted) <= FEW_MAX:
        start = 0
        for place, (_, length, leader_epoch, crc) in enumerate(wanted):
            end = start + length
            if not is_intact(buffer[start:end], length, leader_epoch, crc):
                return place
            start = end
        return None
    _, length_bytes, leader_epochs, crcs = map(np.array, zip(*wanted, strict=True))
    ends = length_bytes.cumsum()
    starts = ends - length_bytes
    heads = np.frombuffer(buffer, np.uint8)[starts[:, None] + np.arange(CRC_START)]
    is_right = (heads == heads_of(length_bytes, leader_epochs, crcs)).all(axis=1)
    bodies = zip((starts + CRC_START).tolist(), ends.tolist(), strict=True)
    is_right &= np.array([crc32c(buffer[start:end]) for start, end in bodies]) == crcs
    return None if is_right.all() else int(is_right.argmin())


def _rotten(path: str, batch: Wanted) -> CorruptChunk:
    return CorruptChunk(f"{path}: the batch at byte {batch.byte_offset} fails its CRC")
