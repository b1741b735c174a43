"""A write loop over real files: what it sealed, and how each batch ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.chunks.write_path import (
    A0,
    A1,
    SETTINGS,
    FaultyDisk,
    Outcomes,
    batch_bytes,
    open_directory,
    pending,
    together,
    tokens_of,
)
from wal.chunks.buffer import BufferPool
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_settings import WalSettings
from wal.clock import Clock, SystemClock
from wal.write_path.seal_policy import Arrivals
from wal.write_path.write_loop import PendingBatches, WriteLoop

BATCH = batch_bytes(b"x" * 439)
assert len(BATCH) == 500


class Rig:
    """A write loop over real files; `gate` is the uploader that may have no room."""

    def __init__(
        self,
        path: Path,
        *,
        settings: WalSettings = SETTINGS,
        disk: FaultyDisk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.disk = FaultyDisk() if disk is None else disk
        self.directory: ChunkDirectory = open_directory(path, settings=settings, disk=self.disk)
        self.directory.recover()
        self.pool = BufferPool(1 << 22)
        self.outcomes = Outcomes()
        self.sealed: list[SealedChunk] = []
        self.changed = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.appended: list[object] = []
        self.after_append: Callable[[], None] = lambda: None
        self.arrivals = Arrivals()
        self.under_way = 0
        self.loop = WriteLoop(
            self.directory,
            settings=settings,
            clock=clock or SystemClock(),
            on_sealed=self._take,
            on_failed=self.outcomes.failed,
            on_appended=self._appended,
            arrivals=self.arrivals,
            under_way=lambda: self.under_way,
            is_behind=self._looked,
        )
        self.is_behind = False
        self.looks = 0
        self._next_token = 0
        self.tokens: list[int] = []

    async def _take(self, chunk: SealedChunk) -> None:
        await self.gate.wait()
        self.sealed.append(chunk)
        for token in tokens_of(chunk):
            self.outcomes.of_token.setdefault(token, []).append("sealed")
        self.changed.set()

    def _looked(self) -> bool:
        self.looks += 1
        self.changed.set()
        return self.is_behind

    def _appended(self, batches: Sequence[PendingBatches]) -> None:
        self.appended += [token for some in batches for token in some.token]
        self.after_append()
        self.changed.set()

    def batches(self, count: int, data: bytes = BATCH) -> PendingBatches:
        """Those of one request."""
        made = []
        for _ in range(count):
            self.tokens.append(self._next_token)
            partition = (A0, A1)[self._next_token % 2]
            made.append(pending(self.pool, partition, data, token=self._next_token))
            self._next_token += 1
        return together(self.pool, made)

    async def wait_sealed(self, count: int) -> None:
        await self._wait_until(lambda: len(self.sealed) >= count)

    async def wait_appended(self, count: int) -> None:
        await self._wait_until(lambda: len(self.appended) >= count)

    async def wait_looked(self, count: int) -> None:
        """Until the loop asked so often whether the uploader is behind."""
        await self._wait_until(lambda: self.looks >= count)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def sealed_tokens(self) -> list[list[object]]:
        return [tokens_of(chunk) for chunk in self.sealed]

    def check_each_token_once(self) -> None:
        assert set(self.outcomes.of_token) == set(self.tokens)
        for token, outcomes in self.outcomes.of_token.items():
            assert len(outcomes) == 1, f"token {token}: {outcomes}"
        assert self.pool.statistics().in_use_bytes == 0


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    """Runs the loop, closes it at the end, and checks what must hold after any run."""
    task = asyncio.create_task(rig.loop.run())
    try:
        yield rig
        rig.loop.close()
        async with asyncio.timeout(120):
            await task
    finally:
        task.cancel()
        await asyncio.wait([task])
        rig.directory.close()
    rig.check_each_token_once()
