"""Reads batches of a chunk for its object: each is checked before anybody gets it."""

from collections.abc import Generator, Iterator, Sequence
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
    """`header`, the bytes of `batches` back to back, `footer`, in pieces of one reused buffer.

    The buffer starts at a block of memory, and the pieces are whole blocks but for the last: a
    store can write them past the page cache. A batch larger than the buffer comes in several
    pieces, and the check of its end raises before the last one. Raises: CorruptChunk.
    """
    wanted = batches.wanted()
    total = len(header) + sum([batch.length_bytes for batch in wanted]) + len(footer)
    buffer = aligned_buffer(min(READ_BYTES_MAX, total))
    filled = len(header)
    buffer[:filled] = header
    first = 0
    while first < len(wanted):
        size, last = filled, first
        while last < len(wanted) and size + wanted[last].length_bytes <= len(buffer):
            size += wanted[last].length_bytes
            last += 1
        if last > first:
            read_into(data, path, wanted[first:last], buffer[filled:size])
            filled, first = size, last
        elif filled < BLOCK_BYTES:
            filled = yield from _read_large(data, path, wanted[first], buffer, filled)
            first += 1
        else:
            filled = yield from _whole_blocks(buffer, filled)
    rest = memoryview(footer)
    while filled + len(rest) > len(buffer):
        part = len(buffer) - filled
        buffer[filled:] = rest[:part]
        rest = rest[part:]
        yield buffer
        filled = 0
    buffer[filled : filled + len(rest)] = rest
    yield buffer[: filled + len(rest)]


def _whole_blocks(buffer: memoryview, filled: int) -> Generator[memoryview, None, int]:
    """Hand out what is in the buffer but for the last block, which moves to its start.

    Returns the bytes that are left.
    """
    whole = filled - filled % BLOCK_BYTES
    yield buffer[:whole]
    buffer[: filled - whole] = buffer[whole:filled]
    return filled - whole


def read_into(data: DataFile, path: str, wanted: Sequence[Wanted], buffer: memoryview) -> None:
    """Fill `buffer` with `wanted`, one read per run of neighbours in .data, and check them.

    Raises: CorruptChunk.
    """
    filled = run_start = 0
    run_offset = wanted[0].byte_offset
    for offset, length, _, _ in wanted:
        if offset != run_offset + filled - run_start:
            _read_exactly(data, path, buffer[run_start:filled], run_offset)
            run_start, run_offset = filled, offset
        filled += length
    _read_exactly(data, path, buffer[run_start:filled], run_offset)
    place = _first_rotten(buffer, wanted)
    if place is not None:
        raise _rotten(path, wanted[place])


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


def _read_large(
    data: DataFile, path: str, batch: Wanted, buffer: memoryview, filled: int
) -> Generator[memoryview, None, int]:
    """A batch larger than the buffer, which holds `filled` bytes; returns those left in it."""
    offset, length, leader_epoch, expected = batch
    crc = 0
    done = 0
    while done < length:
        if filled == len(buffer):
            yield buffer
            filled = 0
        piece = buffer[filled : filled + length - done]
        _read_exactly(data, path, piece, offset + done)
        if done == 0:
            if piece[:CRC_START] != head_of(length, leader_epoch, expected):
                raise _rotten(path, batch)
            crc = crc32c(piece[CRC_START:])
        else:
            crc = crc32c(piece, crc)
        filled += len(piece)
        done += len(piece)
    if crc != expected:
        raise _rotten(path, batch)
    return filled


def _read_exactly(data: DataFile, path: str, buffer: memoryview, offset: int) -> None:
    try:
        count = data.pread_into(buffer, offset)
    except OSError as error:
        raise CorruptChunk(f"{path}: unreadable at byte {offset}: {error}") from error
    if count != len(buffer):
        raise CorruptChunk(f"{path}: ends before byte {offset + len(buffer)}")


def _rotten(path: str, batch: Wanted) -> CorruptChunk:
    return CorruptChunk(f"{path}: the batch at byte {batch.byte_offset} fails its CRC")
