"""Tells the other processes of a broker which chunks one of them has sealed.

Each process has a *lane*: a ring of the chunks that it sealed last, in memory that all of them
inherit as a file descriptor, so that nothing is left of it when they are gone. A lane is written by
its own process, and read by the others when they look for an object whose chunk they have not got.

A notice is a hint: who reads a chunk checks that it is the one (`sibling_chunks`). Nobody is told
that a chunk went; that shows when it is read.

Invariants:

- Who looks after `sealed` has returned finds the chunk, unless NOTICES_PER_LANE others were sealed
  after it.
- A notice that is half written is passed over: its CRC does not fit. The counter of a lane moves
  after its notice was written.
"""

import mmap
import os
import struct
from typing import Final, NamedTuple

from diskless.shared.shared_memory import make_memory
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.ulid import ULID_CHARS, wal_object_key

NOTICES_PER_LANE: Final = 4096

_COUNTER: Final = struct.Struct("<Q")
_NOTICE: Final = struct.Struct("<QQ26s2s")
"""How many there were before it; number and ULID of the chunk."""
_NOTICE_CRC: Final = struct.Struct("<I")
_NOTICE_BYTES: Final = _NOTICE.size + _NOTICE_CRC.size
assert _NOTICE_BYTES == 48
assert ULID_CHARS == 26
_LANE_BYTES: Final = _NOTICE_BYTES * (1 + NOTICES_PER_LANE)
"""The counter takes the place of a notice."""


class ChunkPlace(NamedTuple):
    """A chunk of some process of this broker."""

    lane: int
    number: int


def make_notices(lanes: int) -> int:
    """Make the memory for `lanes` processes; returns the descriptor that they inherit."""
    return make_memory("diskless-chunks", lanes * _LANE_BYTES)


class ChunkNotices:
    """What one process writes of its own chunks, and knows of others'."""

    def __init__(self, fd: int, lane: int) -> None:
        """`fd` as `make_notices` made it, and may be closed afterwards; `lane`: the own one."""
        self._memory: Final = mmap.mmap(fd, os.fstat(fd).st_size)
        self._lane: Final = lane
        lanes = len(self._memory) // _LANE_BYTES
        self._others: Final = [other for other in range(lanes) if other != lane]
        # A process that was started anew goes on where the one before it ended.
        self._sealed = self._count(lane)
        self._seen: Final = [0] * lanes
        self._places: Final[dict[ObjectKey, ChunkPlace]] = {}
        """Those heard of first come first, and go first."""

    def sealed(self, number: int, ulid: str) -> None:
        """The process of this lane has sealed a chunk; any of its threads may call, one at a time.

        It is called before anything of the chunk is committed.
        """
        notice = _NOTICE.pack(self._sealed, number, ulid.encode("ascii"), bytes(2))
        start = self._place_of(self._lane, self._sealed)
        whole = notice + _NOTICE_CRC.pack(crc32c(notice))
        self._memory[start : start + _NOTICE_BYTES] = whole
        self._sealed += 1
        _COUNTER.pack_into(self._memory, self._lane * _LANE_BYTES, self._sealed)

    def find(self, object_key: ObjectKey) -> ChunkPlace | None:
        """Returns where another process has the chunk of this object; on one thread."""
        for lane in self._others:
            count = self._count(lane)
            if count != self._seen[lane]:
                self._learn(lane, count)
        return self._places.get(object_key)

    def forget(self, object_key: ObjectKey) -> None:
        """The chunk turned out to be gone."""
        self._places.pop(object_key, None)

    def _learn(self, lane: int, count: int) -> None:
        for index in range(max(self._seen[lane], count - NOTICES_PER_LANE), count):
            start = self._place_of(lane, index)
            whole = self._memory[start : start + _NOTICE_BYTES]
            (crc,) = _NOTICE_CRC.unpack_from(whole, _NOTICE.size)
            if crc32c(whole[: _NOTICE.size]) != crc:
                continue
            _, number, ulid, _ = _NOTICE.unpack_from(whole)
            self._places[wal_object_key(ulid.decode("ascii"))] = ChunkPlace(lane, number)
        while len(self._places) > NOTICES_PER_LANE * len(self._others):
            del self._places[next(iter(self._places))]
        self._seen[lane] = count

    def _count(self, lane: int) -> int:
        (count,) = _COUNTER.unpack_from(self._memory, lane * _LANE_BYTES)
        return int(count)

    @staticmethod
    def _place_of(lane: int, index: int) -> int:
        return lane * _LANE_BYTES + _NOTICE_BYTES * (1 + index % NOTICES_PER_LANE)
