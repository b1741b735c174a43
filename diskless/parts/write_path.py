"""The write path: chunk directory, write loop, uploader, commits.

It is opened before the read path, which reads chunks too, and runs after it: so at a stop what is
queued is sealed, uploaded and committed while everything that waits for it can still be answered.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import structlog

from diskless.parts.background import run_until_stop
from diskless.parts.process_parts import Ground, State
from diskless.parts.storage import Storage
from diskless.produce.commit_lane import CommitLane
from diskless.replica.replica_manager import append_failed
from diskless.shared.chunk_notices import ChunkNotices
from diskless.topics.noted_facts import NotedFacts
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.object_notes import CommitJournal
from wal.chunks.sealed_chunk import SealedChunk
from wal.disk import Disk
from wal.errors import StorageFailed
from wal.write_path.seal_policy import Arrivals
from wal.write_path.uploader import Uploader
from wal.write_path.write_loop import WriteLoop

_DRAIN_TIMEOUT_S: Final = 30.0
_TAKE_ATTEMPTS: Final = 5
_TAKE_RETRY_S: Final = 0.1

log = structlog.get_logger(__name__)


class WritePath:
    """What a batch goes through, from last to first."""

    def __init__(
        self,
        base: Ground,
        storage: Storage,
        coordination: State,
        disk: Disk,
        *,
        lane: int = 0,
        notices: ChunkNotices | None = None,
    ) -> None:
        """`disk` is the chunks' alone; metadata log and SQLite write to the machine's.

        `lane`: which of the broker's processes this is. `notices` tell the others of its chunks.
        """
        clock, rng, settings = base.clock, base.rng, storage.wal_settings
        facts = NotedFacts(coordination.client)
        self.journal: Final = CommitJournal()
        self.directory: Final = ChunkDirectory(
            storage.data.chunks_of(lane),
            settings=settings,
            clock=clock,
            rng=rng,
            fd_cache=storage.fd_cache,
            broker_id=base.node_id,
            lane=lane,
            disk=disk,
            topics=facts.topic,
            floors=facts.floors,
            commits=self.journal,
        )
        self.lane: Final = CommitLane(
            coordination.client, broker_id=base.node_id, clock=clock, journal=self.journal
        )
        self.uploader: Final = Uploader(
            storage.store,
            self.directory,
            settings=settings,
            clock=clock,
            rng=rng,
            committer=self.lane,
            thread_puts=storage.store.thread_puts,
        )
        self.arrivals: Final = Arrivals()
        self.write_loop: Final = WriteLoop(
            self.directory,
            settings=settings,
            clock=clock,
            on_sealed=self._sealed,
            on_failed=append_failed,
            arrivals=self.arrivals,
            under_way=lambda: self.uploader.under_way,
            is_behind=self.uploader.is_behind,
            puts=self.uploader.early,
        )
        self.uploader.listen(self.write_loop.look_again)
        self._clock = clock
        self._notices = notices

    async def recover(self, stack: AsyncExitStack) -> Sequence[SealedChunk]:
        """Open the chunk directory; the chunks that an earlier process left uncommitted."""
        stack.callback(self.directory.close)
        return await asyncio.to_thread(self.directory.recover)

    async def run(
        self, stack: AsyncExitStack, tasks: asyncio.TaskGroup, recovered: Sequence[SealedChunk]
    ) -> None:
        """Commit `recovered` again before anything new; then take batches until the stop."""
        run_until_stop(stack, tasks, self.uploader.run(), "uploader")
        for chunk in recovered:
            await self._sealed(chunk)
        if recovered:
            log.info("chunks of an earlier run are being committed", count=len(recovered))
        writing = tasks.create_task(self.write_loop.run(), name="write-loop")
        stack.push_async_callback(self._finish, writing)

    async def _sealed(self, chunk: SealedChunk) -> None:
        if self._notices is not None:
            self._notices.sealed(chunk.paths.number, chunk.identity.ulid)
        await self.uploader.submit(chunk)

    async def _finish(self, writing: asyncio.Task[None]) -> None:
        """What is sealed gets its chance to be committed; the next start recovers the rest."""
        self.write_loop.close()
        deadline = self._clock.monotonic() + _DRAIN_TIMEOUT_S
        done, _ = await asyncio.wait([writing], timeout=_DRAIN_TIMEOUT_S)
        if not done:
            # The store is away and the uploader has its fill; the next start finds the chunks.
            writing.cancel()
            await asyncio.wait([writing])
        await self.uploader.drain(max(deadline - self._clock.monotonic(), 0.0))


async def commit_left_chunks(
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
    base: Ground,
    storage: Storage,
    coordination: State,
    *,
    workers: int,
    journal: CommitJournal,
) -> None:
    """Commit what was left in the directories of workers that this broker has no more.

    It goes on beside everything else, under the keys that the chunks have; whoever sends a batch
    of theirs again is told what became of it. `workers`: how many there are now. Raises
    StorageFailed.
    """
    for lane in storage.data.worker_lanes():
        if lane <= workers:
            continue
        directory = ChunkDirectory(
            storage.data.chunks_of(lane),
            # Nobody reads there any more.
            settings=replace(storage.wal_settings, cache_max_bytes=0),
            clock=base.clock,
            rng=base.rng,
            fd_cache=storage.fd_cache,
            broker_id=base.node_id,
            lane=lane,
        )
        stack.callback(directory.close)
        left = await _taken(directory)
        if not left:
            continue
        log.info("chunks of a worker that is no more are being committed", count=len(left))
        uploader = Uploader(
            storage.store,
            directory,
            settings=storage.wal_settings,
            clock=base.clock,
            rng=base.rng,
            committer=CommitLane(
                coordination.client, broker_id=base.node_id, clock=base.clock, journal=journal
            ),
        )
        run_until_stop(stack, tasks, uploader.run(), f"uploader-{lane}")
        run_until_stop(stack, tasks, _submit_all(uploader, left), f"left-chunks-{lane}")


async def _taken(directory: ChunkDirectory) -> Sequence[SealedChunk]:
    """The chunks of a directory; its last process may be about to end. Raises StorageFailed."""
    for attempt in range(_TAKE_ATTEMPTS):
        try:
            return await asyncio.to_thread(directory.recover)
        except StorageFailed as error:
            log.info("the directory of a worker is not free yet", error=str(error))
            await asyncio.sleep(_TAKE_RETRY_S * 2**attempt)
    return await asyncio.to_thread(directory.recover)


async def _submit_all(uploader: Uploader, chunks: Sequence[SealedChunk]) -> None:
    for chunk in chunks:
        await uploader.submit(chunk)
