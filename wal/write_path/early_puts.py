"""Puts that do not wait for the uploader, for chunks that nothing is under way before.

Such a chunk waits for nobody, so what it costs to hand it from thread to thread, and to read back
what was just written, is what its producers wait for. Where the store takes puts in a thread:

- A chunk of one append that is not large is put by the thread that writes it, from the memory that
  its batches were received into; it is written while the disk takes the object (`with_chunk`).
- A small chunk of several appends is put by the thread that sealed it (`at_once`). What is appended
  meanwhile would only wait.
- A chunk that begins with few large batches is put by a thread of its own while it fills
  (`beside`, wal/write_path/growing_object.py). When it is sealed, only its last batches and the
  object's index are left to store.

In each way each batch is checked as those that are read back are. An object has no name before its
chunk is whole, so a crash finds the two in the order that they have everywhere else: a stored
object whose chunk is not there is nobody's.

Failure cases: a put fails, or the chunk becomes another object than was begun (it cannot be
written, or gets batches that have to be sorted). Then the object has no name, and the chunk, if
there is one, is uploaded like any other, from its file. A failpoint in a thread ends the write loop
or the uploader, and at the end of either a put is given up before its next fragment.
"""

from collections.abc import Callable
from typing import Final

import structlog

from wal.chunks.chunk import ChunkWriter, PlacedGroup
from wal.chunks.chunk_batches import ChunkBatches, lie_as_they_came
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import FreshObjectBody, WalObjectBody, WalObjectPlan
from wal.columns import FEW_MAX
from wal.coordinates import ObjectKey
from wal.errors import CorruptChunk, DisklessError
from wal.failpoint import FailpointError, failpoint
from wal.private_copy import aligned_buffer
from wal.stores.object_store import ObjectBody, ThreadPuts
from wal.worker_threads import WorkerThreads
from wal.write_path.growing_object import GrowingObject

log = structlog.get_logger(__name__)

PUT_AT_ONCE_BYTES_MAX: Final = 256 << 10
"""A larger chunk takes its time to be read back: more is appended beside that."""
PUT_WITH_CHUNK_BYTES_MAX: Final = 1 << 20
"""Of a chunk of few batches in one append. Measured: what is larger is put faster past the page
cache, for which it is copied."""
BESIDE_BUFFER_BYTES: Final = 8 << 20
"""For the one put beside a chunk. Most chunks fit; those that do not wait for the store now and
then while they are written."""
_LARGE_BATCH_BYTES: Final = 128 << 10
"""A chunk that begins with batches of this size will hold few of them."""


class EarlyPuts:
    """The early puts of one uploader; belongs to the event loop.

    The thread that writes its chunks calls `at_once`, `takes_with_chunk` and `with_chunk`.
    """

    def __init__(self, puts: ThreadPuts | None, *, under_way: Callable[[], int]) -> None:
        """`puts`: the store, if it takes puts in a thread; `under_way`: chunks without answer."""
        self._puts = puts
        self._under_way = under_way
        self._threads = WorkerThreads("wal-put-beside", 1)
        self._beside: PutBeside | None = None
        self._buffer: memoryview | None = None
        self._is_closed = False

    def at_once(self, chunk: SealedChunk, abandoned: Callable[[], bool]) -> None:
        """Store a small chunk before it is submitted, if nothing is under way; blocks."""
        if self._puts is None or self._under_way() or chunk.data_bytes > PUT_AT_ONCE_BYTES_MAX:
            return
        plan = chunk.plan
        chunk.is_stored = _put(self._puts, plan.object_key, WalObjectBody(chunk, plan), abandoned)

    def takes_with_chunk(self, batch_count: int, data_bytes: int) -> bool:
        """Whether a chunk that one append of this size makes is for `with_chunk`."""
        return (
            self._puts is not None
            and data_bytes <= PUT_WITH_CHUNK_BYTES_MAX
            and (batch_count <= FEW_MAX or data_bytes <= PUT_AT_ONCE_BYTES_MAX)
            and not self._under_way()
        )

    def with_chunk(
        self,
        body: FreshObjectBody,
        abandoned: Callable[[], bool],
        write_chunk: Callable[[], object],
    ) -> bool:
        """Whether the object of a chunk was stored; blocks its thread.

        `write_chunk` is called once the store has the bytes, and not where the put fails before.
        `abandoned` is asked behind it: whether the chunk is not there, or became another object.
        """
        assert self._puts is not None
        return _put(self._puts, body.object_key, body, abandoned, write_chunk)

    def beside(self, batch_count: int, data_bytes: int, *, seals: bool) -> "PutBeside | None":
        """Begins a put for a chunk that is opened by an append of this size.

        `seals`: the chunk takes no other. None: such a chunk is not put beside its writing. The
        caller ends the put.
        """
        if (
            self._puts is None
            or self._is_closed
            or batch_count > FEW_MAX
            or data_bytes <= (PUT_WITH_CHUNK_BYTES_MAX if seals else PUT_AT_ONCE_BYTES_MAX)
            or (not seals and data_bytes < batch_count * _LARGE_BATCH_BYTES)
            or self._under_way()
            or not (self._beside is None or self._beside.has_ended)
        ):
            return None
        if self._buffer is None:
            self._buffer = aligned_buffer(BESIDE_BUFFER_BYTES)
        self._beside = PutBeside(self._puts, self._threads, self._buffer)
        return self._beside

    def noted(self, plan: WalObjectPlan) -> None:
        """Count an object that was stored early."""
        assert self._puts is not None
        self._puts.put_noted(plan.object_bytes)

    async def close(self) -> None:
        """Give up what is under way, and wait for its end."""
        self._is_closed = True
        if self._beside is not None:
            self._beside.give_up()
        await self._threads.close()


class PutBeside:
    """One put beside the writing of its chunk; begun when it is made, on the event loop.

    The thread that writes the chunk calls the other methods; `give_up` and `has_ended` anybody.
    """

    def __init__(self, puts: ThreadPuts, threads: WorkerThreads, buffer: memoryview) -> None:
        """`buffer` is for it alone until it has ended, and as for `GrowingObject`."""
        self._puts = puts
        self._object = GrowingObject(buffer)
        self._names: list[tuple[bytes, int]] = []
        self._job = threads.begin(self._run)

    @property
    def has_ended(self) -> bool:
        return self._job.has_ended

    async def has_stored(self) -> bool:
        """Whether the object is in the store; waits for the end. Raises: FailpointError."""
        return await self._job.ended()

    def add(self, writer: ChunkWriter, batches: ChunkBatches, append: PlacedGroup) -> None:
        """`batches` come next in the object of the open chunk; `append` has the bytes of them."""
        if self._object.is_over:
            return
        try:
            if not self._names:
                self._object.begin(writer.identity, writer.paths.data)
            self._names += batches.names()
            if lie_as_they_came(self._names):
                self._object.add(batches, append.data, append.data_start)
            else:
                self.give_up()
        except CorruptChunk as error:
            log.error("damaged batch in memory", path=writer.paths.data, error=str(error))
            self.give_up()

    def finish(self, plan: WalObjectPlan | None) -> None:
        """The chunk is whole and its object is `plan`, or it comes to nothing."""
        if plan is None:
            self.give_up()
        else:
            self._object.finish(plan)

    def give_up(self) -> None:
        """Store nothing; changes nothing after the end."""
        self._object.end()

    def _run(self) -> bool:
        body = self._object
        try:
            key = body.wait_begun()
            if key is None:
                return False
            return _put(self._puts, key, body, lambda: body.is_over)
        finally:
            body.end()


def _put(
    puts: ThreadPuts,
    key: ObjectKey,
    body: ObjectBody,
    abandoned: Callable[[], bool],
    meanwhile: Callable[[], object] | None = None,
) -> bool:
    """Whether the object was stored. Raises: FailpointError."""
    failpoint("upload.before_put")
    try:
        puts.put_in_thread(key, body, abandoned, meanwhile)
    except FailpointError:
        raise
    except DisklessError as error:
        if not abandoned():
            log.warning("not put early", object_key=key, error=str(error))
        return False
    return True
