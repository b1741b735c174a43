"""The body of an object that is put while its chunk fills: batches go in as they are appended.

The write loop's thread adds the batches of each append, out of the memory that they were received
into, and tells in the end what the object is; another thread puts the body. What was added is the
start of an object only if its batches lie in that order. If they do not, or the chunk comes to
nothing, the body is given up and its put fails.

Between the two is a buffer: who adds fills it, each batch checked, and who puts takes all whole
blocks that are there. When it is full, who adds waits until all of it was put; for PATIENCE_S at
most, for a store that hangs must not keep batches from their chunk. Then the body is given up.

Invariants:

- Nobody reads the payloads that were added when `add` has returned.
- The footer comes last, after the chunk is whole, and only if the object's batches are those that
  were added. So what is put has its chunk.
- Once it is given up, or its put is over, nobody waits for it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Final

import structlog

from wal.chunks.checked_reads import read_into
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkBatches
from wal.chunks.wal_object import WalObjectPlan, object_header
from wal.coordinates import ObjectKey
from wal.crc import Buffer
from wal.errors import ObjectStoreUnavailable
from wal.private_copy import BLOCK_BYTES, copy_into

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 1.0
"""A disk that takes a megabyte and more in a second is waited for."""


class ReceivedData:
    """A `DataFile` of bytes that are still in the memory they were received into."""

    def __init__(self, views: Sequence[memoryview], start: int) -> None:
        """`views` are bytes of .data back to back, the first of them at `start`."""
        self._views = views
        self._starts = [start]
        for view in views:
            self._starts.append(self._starts[-1] + len(view))

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        filled = 0
        place = bisect_right(self._starts, offset) - 1
        while filled < len(buffer) and 0 <= place < len(self._views):
            first = offset + filled - self._starts[place]
            part = self._views[place][first : first + len(buffer) - filled]
            copy_into(buffer[filled : filled + len(part)], [part])
            filled += len(part)
            place += 1
        return filled


class GrowingObject:
    """An `ObjectBody` whose fragments can be taken once; see the module's text.

    Positions are in the object. The buffer has what lies from `_base` on, which is moved only when
    all before `_given` was put.
    """

    def __init__(self, buffer: memoryview, *, patience_s: float = PATIENCE_S) -> None:
        """`buffer` starts at a block, is of whole blocks, and its own until its put is over."""
        self._buffer = buffer
        self._patience_s = patience_s
        self._path = ""
        self._offsets: list[int] = []
        self._base = self._filled = self._given = 0
        self._plan: WalObjectPlan | None = None
        self._is_over = False
        # These wake the other thread. A number is the position up to which the object is given, or
        # put. None says: look whether it is over.
        self._begun: SimpleQueue[ObjectKey | None] = SimpleQueue()
        self._gives: SimpleQueue[int | None] = SimpleQueue()
        self._puts: SimpleQueue[int | None] = SimpleQueue()

    # What the write loop's thread says

    def begin(self, identity: ChunkIdentity, path: str) -> None:
        """It is the object of the chunk at `path`."""
        self._path = path
        self._begun.put(identity.object_key)
        header = object_header(identity)
        self._room(len(header))[:] = header

    def add(self, batches: ChunkBatches, views: Sequence[memoryview], start: int) -> None:
        """`batches` come next; `views` are bytes of .data from `start` on that have them all.

        May wait for the store. Raises: CorruptChunk.
        """
        data = ReceivedData(views, start)
        for batch in batches.wanted():
            room = self._room(batch.length_bytes)
            if self._is_over:
                return
            read_into(data, self._path, [batch], room)
            self._offsets.append(batch.byte_offset)
            self._give(self._filled - self._filled % BLOCK_BYTES)

    def finish(self, plan: WalObjectPlan) -> None:
        """The chunk is whole, and this is its object."""
        if self._offsets != [batch.byte_offset for batch in plan.batches.wanted()]:
            self.end()
            return
        room = self._room(len(plan.footer))
        if not self._is_over:
            room[:] = plan.footer
            self._plan = plan
            self._give(self._filled)
            self._gives.put(None)

    # What both say

    def end(self) -> None:
        """Give it up; after its put this changes nothing."""
        self._is_over = True
        for queue in (self._begun, self._gives, self._puts):
            queue.put(None)

    @property
    def is_over(self) -> bool:
        """Whether it was given up, or has been put."""
        return self._is_over

    # What who puts it asks

    def wait_begun(self) -> ObjectKey | None:
        """The object's key, once the chunk is there; None when it is over before that."""
        return self._begun.get()

    @property
    def length_bytes(self) -> int:
        """Of the whole object; 0 until it is known, which it is after the last fragment."""
        return 0 if self._plan is None else self._plan.object_bytes

    def fragments(self) -> Iterator[Buffer]:
        """Whole blocks, as many as there are; then the rest. Waits for what is not there yet.

        Raises: ObjectStoreUnavailable when it is given up.
        """
        put_to = 0
        while (given_to := self._next()) is not None:
            yield self._buffer[put_to - self._base : given_to - self._base]
            put_to = given_to
            self._puts.put(put_to)

    def _next(self) -> int | None:
        """The position up to which the object is given by now; None after the last one."""
        given_to = self._gives.get()
        # One write for all of it: after each, a thread waits for the interpreter.
        while given_to is not None and not self._gives.empty():
            later = self._gives.get()
            if later is None:
                self._gives.put(None)
                break
            given_to = later
        if self._is_over:
            raise ObjectStoreUnavailable("the object is not put beside its chunk any more")
        return given_to

    def _give(self, end: int) -> None:
        if end > self._given:
            self._given = end
            self._gives.put(end)

    def _room(self, length_bytes: int) -> memoryview:
        """Where the next bytes go. If there is no such room, it is over: they go nowhere."""
        if self._filled - self._base + length_bytes > len(self._buffer):
            self._wait_put()
            rest = bytes(self._buffer[self._given - self._base : self._filled - self._base])
            if len(rest) + length_bytes > len(self._buffer):
                self.end()
            if not self._is_over:
                self._buffer[: len(rest)] = rest
                self._base = self._given
        start = self._filled - self._base
        self._filled += length_bytes
        return self._buffer[start : start + length_bytes]

    def _wait_put(self) -> None:
        """Wait until all that was given is put, or it is over."""
        put_to: int | None = 0
        while put_to != self._given and not self._is_over:
            try:
                put_to = self._puts.get(timeout=self._patience_s)
            except Empty:
                log.warning("the store is too slow to put an object beside its chunk")
                self.end()
