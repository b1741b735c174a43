"""The uploader: sealed chunks into the object store, then to the coordinator, in seal order.

The write loop hands chunks to `submit`, the broker runs `run()` in its TaskGroup. Uploads run in
parallel (`wal.upload.concurrency`), because a PUT takes long; commits take one lane, in the order
in which chunks were sealed, because that order is the producers' order. A chunk waits in the lane
until its own upload is done, while later ones go on uploading. The chunks that are stored when
the lane comes to them are committed together; no two commits are under way at once. The files of
chunks that were answered are put away (marked, deleted, quarantined) beside later commits.

`submit` waits while the chunks that are not committed yet are too large together
(`wal.buffer.max.bytes`, each batch charged a little more than its bytes). Bodies are read from the
chunk files, so an outage of the store fills a local disk up to that limit, and no memory.

A chunk that nothing is under way before may be in the store when it comes, or on the way to it
(wal/write_path/early_puts.py).

What happens to a chunk:

- Its put takes far longer than others do: it is put once more beside (`wal.stores.second_puts`).
- The store is unavailable, or nobody knows whether a put arrived: again, for ever, with a growing,
  jittered pause, under the same key. Producers have their own deadlines.
- The store holds something else under the key, or refuses the object: never committed. The chunk is
  abandoned and quarantined.
- A batch in the chunk file fails its CRC: that batch is failed, and with it the later batches that
  the same idempotent producer has on the same partition in this chunk (to accept those without it
  would be a gap). The others are uploaded under the same key; should an attempt before the damage
  have stored all of them after all, the put meets another object and the chunk is abandoned.
- The chunk's file was deleted: abandoned. Nothing of it was committed, so producers send it again.
- The coordinator says "not now", or nobody knows what it did: the same commit again, in place.
- The coordinator refuses the object (too old, not allowed): abandoned and deleted.
- Anything else is a bug or a broken state: `run` raises, and the broker stops.

Every token of a chunk has exactly one outcome, all through the `Committer`: `commit` returned,
`abandon`, or `abandon_batches`. When `run` ends with chunks left, their producers are told that the
outcome is unknown: the next start uploads and commits them.

Source: KIP-1164 and Mofka's write path; invariants W1, W2, W5 and W7 in docs/invariants.md.
"""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.sealed_chunk import SealedChunk, find_damaged
from wal.chunks.wal_object import WalObjectBody
from wal.chunks.wal_settings import WalSettings
from wal.clock import Clock
from wal.errors import (
    ChunkLost,
    CommitOutcomeUnknown,
    CorruptChunk,
    DisklessError,
    OutcomeUnknown,
    Retriable,
    StorageFailed,
)
from wal.failpoint import FailpointError, failpoint
from wal.stores.object_store import ObjectStore, ThreadPuts
from wal.stores.second_puts import SecondPuts
from wal.worker_threads import WorkerThreads
from wal.write_path.early_puts import PUT_AT_ONCE_BYTES_MAX, EarlyPuts

log = structlog.get_logger(__name__)

# The pause doubles per attempt up to its cap; beyond 2**20 times the first it is capped anyway.
_BACKOFF_DOUBLINGS_MAX: Final = 20


CHUNKS_PER_COMMIT_MAX: Final = 16
"""Stored chunks that are committed together."""
BATCHES_PER_COMMIT_MAX: Final = 4_000
"""Batches of theirs; a chunk with more is committed alone."""


class Committer(Protocol):
    """Turns uploaded chunks into offsets and answers their producers.

    While one of these runs, who waits for the chunks is its business; when it raises (also because
    it was cancelled), it must not have answered any.
    """

    async def commit(self, chunks: Sequence[SealedChunk]) -> Sequence[DisklessError | None]:
        """Commit the objects that the `plan`s of the chunks describe, in this order.

        Answers whoever waits for the batches in `plan` of each that was committed, and returns by
        position what was wrong with the others: nothing of such a chunk was committed, and
        `abandon` follows.
        Raises: Retriable or OutcomeUnknown (called again with the same chunks).
        """
        ...

    async def abandon(self, chunk: SealedChunk, error: DisklessError) -> None:
        """The chunk will not be committed by this process: answer whoever waits with `error`.

        Those whose batches were abandoned before are not in `plan`, and have their answer.
        """
        ...

    async def abandon_batches(
        self, chunk: SealedChunk, positions: Sequence[int], error: DisklessError
    ) -> None:
        """The batches at these arrival positions are damaged: answer whoever waits for them.

        The others will be committed.
        """
        ...


class _Entry:
    """One chunk on its way; `uploaded` gets None, or the error for which it must be abandoned."""

    __slots__ = ("chunk", "submitted_at", "uploaded")

    def __init__(self, chunk: SealedChunk, submitted_at: float) -> None:
        self.chunk = chunk
        self.submitted_at = submitted_at
        self.uploaded: asyncio.Future[DisklessError | None] = (
            asyncio.get_running_loop().create_future()
        )


class _Settled(NamedTuple):
    """Chunks whose producers were answered; what is left to do concerns their files."""

    entries: Sequence[_Entry]
    refused: Sequence[DisklessError | None]


_SETTLED_TOGETHER_S: Final = 0.02
"""For so long the files of chunks that were answered are gathered; a hand-over for each would cost
as much as the work. A crash meanwhile has the next start put and commit them again, in vain."""
_STORED_AHEAD: Final = 2
"""Stored chunks that keep the commit lane busy."""


class Uploader:
    """Uploads and commits sealed chunks; see the module's text."""

    def __init__(
        self,
        store: ObjectStore,
        directory: ChunkDirectory,
        *,
        settings: WalSettings,
        clock: Clock,
        rng: random.Random,
        committer: Committer,
        thread_puts: ThreadPuts | None = None,
    ) -> None:
        """`thread_puts`: the store, if it takes puts in a thread."""
        share = settings.upload_second_percent / 100
        self.puts = SecondPuts(store, clock=clock, share=share)
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._committer = committer
        # Every chunk that was submitted and is not answered is in the lane; those that no upload
        # task took yet are also in the second queue, and those whose files are still to be put
        # away in `_settled`. All are bounded by `submit`.
        self._lane: deque[_Entry] = deque()
        self.early = EarlyPuts(thread_puts, under_way=lambda: len(self._lane))
        self._to_upload: asyncio.Queue[_Entry] = asyncio.Queue()
        self._settled: list[_Settled] = []
        self._has_settled = asyncio.Event()
        self._submitted = asyncio.Event()
        self._left = asyncio.Event()
        self._is_closed = False
        self._threads = WorkerThreads("wal-upload", 1)
        self._left_behind = 0
        self.waiting_bytes = 0
        """Of the chunks that are not put away, as `wal.buffer.max.bytes` counts them."""
        self._waiting_chunks = 0
        self._on_progress: Callable[[int, int], None] = lambda answered, chunks: None
        # Counted since the start.
        self.uploads = 0
        self.upload_bytes = 0
        self.upload_retries = 0
        self.commit_retries = 0
        self.batches_abandoned = 0
        """Damaged batches that were left out of their objects."""

    async def submit(self, chunk: SealedChunk) -> None:
        """Queue a chunk behind all earlier ones; waits while the queue is full.

        One chunk is always admitted, whatever its size. Call it from one task at a time: the order
        of calls is the order of commits. Cancelled: the chunk was not queued.
        Raises: StorageFailed when `run` has ended.
        """
        limit = self._settings.buffer_max_bytes
        while (
            not self._is_closed
            and self._waiting_chunks
            and self.waiting_bytes + chunk.charged_bytes > limit
        ):
            self._left.clear()
            await self._left.wait()
        if self._is_closed:
            raise StorageFailed("the uploader has ended")
        entry = _Entry(chunk, self._clock.monotonic())
        self._lane.append(entry)
        self.waiting_bytes += chunk.charged_bytes
        self._waiting_chunks += 1
        self._submitted.set()
        if chunk.is_stored:
            self._stored_early(chunk)
            entry.uploaded.set_result(None)
        else:
            self._to_upload.put_nowait(entry)

    def listen(self, on_progress: Callable[[int, int], None]) -> None:
        """Call this with the numbers of batches and of chunks that were answered, each time."""
        self._on_progress = on_progress

    @property
    def under_way(self) -> int:
        """Chunks that were submitted and whose producers have no answer yet."""
        return len(self._lane)

    def is_behind(self) -> bool:
        """Whether another chunk would only wait: for a place to be uploaded, or for its commit.

        A commit takes all chunks that are stored. With two stored behind the one that is being
        committed, the next commit has its work.
        """
        if len(self._lane) > self._settings.upload_concurrency:
            return True
        behind = itertools.islice(self._lane, 1, 1 + _STORED_AHEAD)
        return sum(entry.uploaded.done() for entry in behind) == _STORED_AHEAD

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything submitted is settled; False when that took too long.

        False also when `run` ended before. What is left is not lost: the next start recovers it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._waiting_chunks and not self._is_closed:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return False
        return not self._waiting_chunks and not self._left_behind

    @property
    def waiting_chunks(self) -> int:
        """Chunks that were submitted and are not put away."""
        return self._waiting_chunks

    @property
    def oldest_waiting_s(self) -> float:
        """How long the first chunk in the lane has waited: the age of an outage."""
        return self._clock.monotonic() - self._lane[0].submitted_at if self._lane else 0.0

    async def run(self) -> None:
        """Upload and commit until cancelled; returns only by cancellation or failure."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._settings.upload_concurrency):
                    tasks.create_task(self._upload_chunks(), name=f"upload-{number}")
                tasks.create_task(self._commit_chunks(), name="commit")
                tasks.create_task(self._put_chunks_away(), name="put-away")
        finally:
            self._is_closed = True
            if self._settled:
                await self._threads.run(partial(self._put_away, self._settled))
            await self._threads.close()
            await self.early.close()
            await self._abandon_rest()

    async def _upload_chunks(self) -> None:
        while True:
            entry = await self._to_upload.get()
            entry.uploaded.set_result(await self._upload(entry.chunk))

    async def _upload(self, chunk: SealedChunk) -> DisklessError | None:
        """Put the chunk's object; returns the error for which the chunk must be abandoned."""
        if chunk.early_put is not None and await chunk.early_put.has_stored():
            self._stored_early(chunk)
            return None
        if not chunk.is_planned:
            # A recovered one. Laying out many small batches takes time that the loop must not lose.
            await self._threads.run(lambda: chunk.plan)
        failpoint("upload.before_put")
        attempt = 0
        while True:
            try:
                await self.puts.put(chunk.object_key, WalObjectBody(chunk, chunk.plan))
            except ChunkLost as error:
                return error
            except CorruptChunk as error:
                log.error("damaged batch in a chunk", path=chunk.data_path, error=str(error))
                damaged = await self._threads.run(partial(find_damaged, chunk))
                if len(damaged) == chunk.batch_count:
                    return error
                if damaged:
                    await self._exclude(chunk, damaged, error)
                    continue
                # The second reading found nothing: it was not the file's content that failed.
                self.upload_retries += 1
                await self._back_off(attempt)
            except (Retriable, OutcomeUnknown) as error:
                log.warning(
                    "upload failed, trying again",
                    object_key=chunk.object_key,
                    attempt=attempt,
                    error=str(error),
                )
                self.upload_retries += 1
                await self._back_off(attempt)
            except FailpointError:
                raise
            except DisklessError as error:
                # Nothing of this chunk is or will be committed, so its producers may try again.
                refused = StorageFailed(f"{chunk.object_key} was not stored: {error}")
                refused.__cause__ = error
                log.error("upload refused", object_key=chunk.object_key, error=str(error))
                return refused
            else:
                break
            attempt += 1
        self._uploaded(chunk)
        return None

    def _stored_early(self, chunk: SealedChunk) -> None:
        self.early.noted(chunk.plan)
        self._uploaded(chunk)

    def _uploaded(self, chunk: SealedChunk) -> None:
        self.uploads += 1
        self.upload_bytes += chunk.plan.object_bytes

    async def _exclude(
        self, chunk: SealedChunk, positions: Sequence[int], error: CorruptChunk
    ) -> None:
        chunk.exclude(positions)
        self._directory.damage.append(error)
        self.batches_abandoned += len(positions)
        await self._committer.abandon_batches(chunk, positions, error)

    async def _commit_chunks(self) -> None:
        while True:
            while not self._lane:
                self._submitted.clear()
                await self._submitted.wait()
            entry = self._lane[0]
            # Shielded, for cancelling this wait must not cancel what the upload reports to.
            not_stored = await asyncio.shield(entry.uploaded)
            if not_stored is not None:
                entries = [entry]
                refused: Sequence[DisklessError | None] = [not_stored]
            else:
                failpoint("upload.after_put")
                entries = self._stored_entries()
                refused = await self._commit([entry.chunk for entry in entries])
            for entry, error in zip(entries, refused, strict=True):
                if error is not None:
                    await self._committer.abandon(entry.chunk, error)
                self._lane.popleft()
            self._settled.append(_Settled(entries, refused))
            self._has_settled.set()
            answered = sum([entry.chunk.batch_count for entry in entries])
            self._on_progress(answered, len(entries))

    async def _put_chunks_away(self) -> None:
        """Beside the commits, none of which has to wait for it; small chunks several at once."""
        while True:
            await self._has_settled.wait()
            if self.waiting_bytes <= PUT_AT_ONCE_BYTES_MAX * CHUNKS_PER_COMMIT_MAX:
                await asyncio.sleep(_SETTLED_TOGETHER_S)
            self._has_settled.clear()
            settled, self._settled = self._settled, []
            await self._threads.run_to_end(partial(self._put_away, settled))
            for entries, _ in settled:
                for entry in entries:
                    self.waiting_bytes -= entry.chunk.charged_bytes
                    self._waiting_chunks -= 1
            self._left.set()

    def _stored_entries(self) -> list[_Entry]:
        """The first entry of the lane, which is stored, and those behind it that are stored too."""
        entries: list[_Entry] = []
        batches = 0
        for entry in self._lane:
            batches += entry.chunk.batch_count
            if entries and (
                not entry.uploaded.done()
                or entry.uploaded.result() is not None
                or len(entries) >= CHUNKS_PER_COMMIT_MAX
                or batches > BATCHES_PER_COMMIT_MAX
            ):
                break
            entries.append(entry)
        return entries

    def _put_away(self, settled: Sequence[_Settled]) -> None:
        """Mark, delete or quarantine the files of settled chunks; blocks on the disk."""
        for entry, error in [pair for some in settled for pair in zip(*some, strict=True)]:
            chunk = entry.chunk
            if error is None:
                self._directory.mark_committed(chunk)
            elif entry.uploaded.result() is None or isinstance(error, ChunkLost):
                self._directory.discard(chunk)
            else:
                damage = CorruptChunk(f"{chunk.data_path}: {error}")
                self._directory.quarantine(chunk, damage)

    async def _commit(self, chunks: Sequence[SealedChunk]) -> Sequence[DisklessError | None]:
        """Commit until there is an answer; returns the errors for which chunks are abandoned."""
        attempt = 0
        while True:
            try:
                return await self._committer.commit(chunks)
            except (Retriable, OutcomeUnknown) as error:
                log.warning(
                    "commit failed, trying again",
                    object_key=chunks[0].object_key,
                    objects=len(chunks),
                    attempt=attempt,
                    error=str(error),
                )
                self.commit_retries += 1
                await self._back_off(attempt)
                attempt += 1

    async def _back_off(self, attempt: int) -> None:
        """Half of the pause is certain, half is random: many brokers do not come back together."""
        settings = self._settings
        pause_ms = min(
            settings.retry_backoff_ms << min(attempt, _BACKOFF_DOUBLINGS_MAX),
            settings.retry_backoff_max_ms,
        )
        await asyncio.sleep(pause_ms / 1000 * (0.5 + self._rng.random() / 2))

    async def _abandon_rest(self) -> None:
        error = CommitOutcomeUnknown("the broker stopped; its next start commits this batch")
        batches = 0
        while self._lane:
            entry = self._lane.popleft()
            self._left_behind += 1
            batches += entry.chunk.batch_count
            await self._committer.abandon(entry.chunk, error)
        if self._left_behind:
            log.warning(
                "chunks kept for the next start, which commits them",
                chunks=self._left_behind,
                batches=batches,
            )
        self.waiting_bytes = self._waiting_chunks = 0
        self._left.set()
