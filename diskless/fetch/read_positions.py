"""Where readers stopped in the middle of an extent, so that they go on there.

An extent is all that a WAL object has of a partition, often megabytes, and the metadata knows where
it begins and not where its batches do. A consumer that takes a part of it in each Fetch would have
it read and checked from its beginning each time. The place where an answer ended is where the same
consumer, and others like it, go on.

What is remembered stays true: bytes of an object and offsets of an extent never change. What is
forgotten is found again by walking the extent.
"""

from collections import OrderedDict
from typing import NamedTuple

from metadata.operations import WalExtent
from wal.coordinates import ByteOffset, ObjectKey, Offset


class _Place(NamedTuple):
    object_key: ObjectKey
    byte_offset: ByteOffset
    base_offset: Offset
    offset: int


class ReadPositions:
    """A bounded LRU; used on the event loop alone."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._starts: OrderedDict[_Place, int] = OrderedDict()

    def find(self, extent: WalExtent, offset: int) -> int | None:
        """How many bytes of `extent` come before the batch that begins with `offset`."""
        place = _Place(extent.object_key, extent.byte_offset, extent.base_offset, offset)
        start = self._starts.get(place)
        if start is not None:
            self._starts.move_to_end(place)
        return start

    def learn(self, extent: WalExtent, offset: int, start: int) -> None:
        """The batch at byte `start` of `extent` begins with `offset`; all before it was checked."""
        place = _Place(extent.object_key, extent.byte_offset, extent.base_offset, offset)
        self._starts[place] = start
        self._starts.move_to_end(place)
        if len(self._starts) > self._capacity:
            self._starts.popitem(last=False)

    def __len__(self) -> int:
        return len(self._starts)
