"""Puts that do not wait for the uploader, for chunks that nothing is under way before.

Such a chunk waits for nobody, so what it costs to hand it from thread to thread, and to read back
what was just written, is what its producers wait for. Where the store takes puts in a thread:

- A small chunk is put by the thread that sealed it (`at_once`). What is appended meanwhile would
  only wait for this chunk.
- A chunk of a few large batches that came in one append is put by a thread of its own, while the
  write loop's thread writes its files (`beside`). What an object holds is known before that; it
  gets its name only after the chunk is whole, so a crash finds the two in the order that they have
  everywhere else: a stored object whose chunk is not there is nobody's.

Either way what came in one append is put from the memory that it was received into, each batch
checked as those that are read back are. The write loop's thread stays until its payloads are not
read any more, so they are given back when they would be otherwise.

Failure cases: a put fails, or the chunk cannot be written as it was planned: the object has no name
then, and the chunk, if there is one, is uploaded like any other, from its file. A failpoint in the
thread ends the uploader. At the end of the uploader a put is given up before its next fragment.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from wal.chunks.buffer import FragmentChain
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import FreshObjectBody, WalObjectBody, WalObjectPlan
from wal.columns import FEW_MAX
from wal.crc import Buffer
from wal.errors import DisklessError
from wal.failpoint import FailpointError, failpoint
from wal.stores.object_store import ObjectBody, ThreadPuts
from wal.worker_threads import WorkerThreads

log = structlog.get_logger(__name__)

PUT_AT_ONCE_BYTES_MAX: Final = 256 << 10
"""A larger chunk takes its time to be written: more is appended beside that."""
PUT_BESIDE_BYTES_MAX: Final = 1 << 20
"""A larger object is written past the page cache, from blocks that its chunk is read back into."""


class EarlyPuts:
    """The early puts of one uploader; belongs to the event loop but for `at_once`."""

    def __init__(self, puts: ThreadPuts | None, *, under_way: Callable[[], int]) -> None:
        """`puts`: the store, if it takes puts in a thread; `under_way`: chunks without answer."""
        self._puts = puts
        self._under_way = under_way
        self._threads = WorkerThreads("wal-put-beside", 1)
        self._is_closed = False

    def at_once(
        self,
        chunk: SealedChunk,
        abandoned: Callable[[], bool],
        payloads: Sequence[FragmentChain] = (),
    ) -> None:
        """Store a small chunk before it is submitted, if nothing is under way; blocks its thread.

        `payloads` are its batches in arrival order, where all of them are in memory still.
        """
        if self._puts is None or self._under_way() or chunk.data_bytes > PUT_AT_ONCE_BYTES_MAX:
            return
        plan = chunk.plan
        body: ObjectBody = WalObjectBody(chunk, plan)
        if payloads:
            body = FreshObjectBody(plan, payloads, chunk.data_path)
        chunk.is_stored = _put(self._puts, plan, body, abandoned)

    def beside(self, batch_count: int, data_bytes: int) -> "PutBeside | None":
        """Begins a put for a chunk of one append that has this size.

        None: such a chunk is not put beside its writing. The caller ends the put.
        """
        if (
            self._puts is None
            or self._is_closed
            or batch_count > FEW_MAX
            or not PUT_AT_ONCE_BYTES_MAX < data_bytes <= PUT_BESIDE_BYTES_MAX
            or self._under_way()
        ):
            return None
        return PutBeside(self._puts, self._threads, is_closed=lambda: self._is_closed)

    def noted(self, plan: WalObjectPlan) -> None:
        """Count an object that was stored early."""
        assert self._puts is not None
        self._puts.put_noted(plan.object_bytes)

    async def close(self) -> None:
        """Give up what is under way, and wait for its end."""
        self._is_closed = True
        await self._threads.close()


class PutBeside:
    """One put beside the writing of its chunk; begun when it is made, on the event loop.

    `begin` and `end` are called in the thread that writes the chunk.
    """

    def __init__(
        self, puts: ThreadPuts, threads: WorkerThreads, *, is_closed: Callable[[], bool]
    ) -> None:
        self._puts = puts
        self._is_closed = is_closed
        self._plan: WalObjectPlan | None = None
        self._body: ObjectBody | None = None
        self._is_given_up = False
        # What each thread waits for: a body or the end, a whole chunk or the end, the last view.
        self._has_begun = threading.Event()
        self._is_written = threading.Event()
        self._is_read = threading.Event()
        self._job = threads.begin(self._run)

    async def has_stored(self) -> bool:
        """Whether the object is in the store; waits for the end. Raises: FailpointError."""
        return await self._job.ended()

    def begin(self, plan: WalObjectPlan, payloads: Sequence[FragmentChain], path: str) -> None:
        """Put `plan` from `payloads`, while the chunk at `path` is written."""
        self._plan = plan
        self._body = _ReadOnceBody(FreshObjectBody(plan, payloads, path), self._is_read.set)
        self._has_begun.set()

    def end(self, plan: WalObjectPlan | None) -> None:
        """A chunk was written whose object is `plan`, or none: another object gets no name.

        Call it once, whether or not anything was begun. Nobody reads the payloads afterwards.
        """
        self._is_given_up = plan is not self._plan
        self._has_begun.set()
        self._is_written.set()
        self._is_read.wait()

    def _run(self) -> bool:
        self._has_begun.wait()
        try:
            if self._plan is None or self._body is None:
                return False
            return _put(self._puts, self._plan, self._body, self._is_abandoned, self._wait_written)
        finally:
            self._is_read.set()

    def _wait_written(self) -> None:
        self._is_written.wait()

    def _is_abandoned(self) -> bool:
        return self._is_given_up or self._is_closed()


class _ReadOnceBody:
    """The body of a put beside its chunk; tells when its memory is not read any more."""

    def __init__(self, body: FreshObjectBody, on_read: Callable[[], None]) -> None:
        self._body = body
        self._on_read = on_read

    @property
    def length_bytes(self) -> int:
        return self._body.length_bytes

    def fragments(self) -> Iterator[Buffer]:
        """Raises: CorruptChunk."""
        yield from self._body.fragments()
        self._on_read()


def _put(
    puts: ThreadPuts,
    plan: WalObjectPlan,
    body: ObjectBody,
    abandoned: Callable[[], bool],
    before_name: Callable[[], None] = lambda: None,
) -> bool:
    """Whether the object was stored. Raises: FailpointError."""
    failpoint("upload.before_put")
    try:
        puts.put_in_thread(plan.object_key, body, abandoned, before_name)
    except FailpointError:
        raise
    except DisklessError as error:
        log.warning("not put early", object_key=plan.object_key, error=str(error))
        return False
    return True
