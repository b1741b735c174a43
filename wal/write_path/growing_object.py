"""The body of an object that is put while its chunk fills: batches go in as they are appended.

The write loop's thread adds the batches of each append, out of the memory that they were received
into, and tells in the end what the object is; another thread puts the body. What was added is the
start of an object only if its batches lie in that order. If they do not, or the chunk comes to
nothing, the body is given up and its put fails.

Between the two are some buffers: who adds fills them, each batch checked, and waits while all of
them are on their way to the store; for PATIENCE_S at most, for a store that hangs must not keep
batches from their chunk. Then the body is given up.

Invariants:

- Nobody reads the payloads that were added when `add` has returned.
- The footer comes last, after the chunk is whole, and only if the object's batches are those that
  were added. So nothing has a name before its chunk is whole.
- Once it is given up, or its put is over, nobody waits for it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

import structlog

from wal.chunks.checked_reads import CheckedReads
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkBatches
from wal.chunks.wal_object import WalObjectPlan, object_header
from wal.coordinates import ObjectKey
from wal.crc import Buffer
from wal.errors import ObjectStoreUnavailable
from wal.private_copy import copy_into

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


class _Piece(NamedTuple):
    content: memoryview
    buffer: memoryview
    """What it is a part of."""


class GrowingObject:
    """An `ObjectBody` whose fragments can be taken once; see the module's text."""

    def __init__(self, buffers: Sequence[memoryview], *, patience_s: float = PATIENCE_S) -> None:
        """`buffers` are as for `CheckedReads`, and its own until its put is over."""
        self._patience_s = patience_s
        self._reads: CheckedReads | None = None
        self._offsets: list[int] = []
        self._filling = buffers[0]
        self._plan: WalObjectPlan | None = None
        self._is_over = False
        # From one thread to the other; None: look whether it is over.
        self._begun: SimpleQueue[ObjectKey | None] = SimpleQueue()
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        for buffer in buffers:
            self._free.put(buffer)

    # What the write loop's thread says

    def begin(self, identity: ChunkIdentity, path: str) -> None:
        """It is the object of the chunk at `path`."""
        self._begun.put(identity.object_key)
        self._reads = CheckedReads(path, self._take_buffer)
        self._give(self._reads.put(object_header(identity)))

    def add(self, batches: ChunkBatches, views: Sequence[memoryview], start: int) -> None:
        """`batches` come next; `views` are bytes of .data from `start` on that have them all.

        Waits while the store has all buffers. Raises: CorruptChunk.
        """
        assert self._reads is not None
        if self._is_over:
            return
        wanted = batches.wanted()
        self._offsets += [batch.byte_offset for batch in wanted]
        self._give(self._reads.read(ReceivedData(views, start), wanted))
        self._give(self._reads.whole_blocks())

    def finish(self, plan: WalObjectPlan) -> None:
        """The chunk is whole, and this is its object."""
        offsets = [batch.byte_offset for batch in plan.batches.wanted()]
        if self._reads is None or self._is_over or offsets != self._offsets:
            self.end()
            return
        self._give(self._reads.put(plan.footer))
        self._give([self._reads.rest()])
        self._plan = plan
        self._pieces.put(None)

    # What both say

    def end(self) -> None:
        """Give it up; after its put this changes nothing."""
        self._is_over = True
        for queue in (self._begun, self._pieces, self._free):
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
        while (piece := self._pieces.get()) is not None and not self._is_over:
            yield piece.content
            self._free.put(piece.buffer)
        if self._is_over:
            raise ObjectStoreUnavailable("the object is not put beside its chunk any more")

    def _take_buffer(self) -> memoryview:
        buffer = None
        if not self._is_over:
            try:
                buffer = self._free.get(timeout=self._patience_s)
            except Empty:
                log.warning("the store is too slow to put an object beside its chunk")
                self.end()
        if buffer is not None:
            self._filling = buffer
        # Else it may be on its way to the store: of an object that gets no name any more.
        return self._filling

    def _give(self, pieces: Iterable[memoryview]) -> None:
        for content in pieces:
            self._pieces.put(_Piece(content, self._filling))
