"""The write path: chunk directory, write loop, uploader, commits.

It is opened before the read path, which reads chunks too, and runs after it: so at a stop what is
queued is sealed, uploaded and committed while everything that waits for it can still be answered.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import structlog

from diskless.parts.background import run_until_stop
from diskless.parts.coordination import Coordination
from diskless.parts.foundation import Foundation
from diskless.parts.storage import Storage
from diskless.replica.commit_lane import CommitLane
from diskless.replica.replica_manager import append_failed
from diskless.topics.noted_facts import NotedFacts
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.object_notes import CommitJournal
from wal.chunks.seal_policy import Arrivals
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.uploader import Uploader
from wal.chunks.write_loop import WriteLoop
from wal.disk import Disk

_DRAIN_TIMEOUT_S: Final = 30.0

log = structlog.get_logger(__name__)


class WritePath:
    """What a batch goes through, from last to first."""

    def __init__(
        self, base: Foundation, storage: Storage, coordination: Coordination, disk: Disk
    ) -> None:
        """`disk` is the chunks' alone; metadata log and SQLite write to the machine's."""
        clock, rng, settings = base.clock, base.rng, storage.wal_settings
        facts = NotedFacts(coordination.client)
        self.journal: Final = CommitJournal()
        self.directory: Final = ChunkDirectory(
            storage.data.chunks,
            settings=settings,
            clock=clock,
            rng=rng,
            fd_cache=storage.fd_cache,
            broker_id=base.node_id,
            disk=disk,
            topics=facts.topic,
            floors=facts.floor,
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
        )
        self.arrivals: Final = Arrivals()
        self.write_loop: Final = WriteLoop(
            self.directory,
            settings=settings,
            clock=clock,
            on_sealed=self.uploader.submit,
            on_failed=append_failed,
            arrivals=self.arrivals,
            under_way=lambda: self.uploader.under_way,
            is_behind=self.uploader.is_behind,
        )
        self.uploader.listen(self.write_loop.look_again)
        self._clock = clock

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
            await self.uploader.submit(chunk)
        if recovered:
            log.info("chunks of an earlier run are being committed", count=len(recovered))
        writing = tasks.create_task(self.write_loop.run(), name="write-loop")
        stack.push_async_callback(self._finish, writing)

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
