"""An uploader on a directory of chunks and a store whose puts can wait or fail."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.chunks.write_path import (
    A0,
    A1,
    SETTINGS,
    Outcomes,
    batch_bytes,
    open_directory,
    sealed,
)
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_settings import WalSettings
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import ObjectBody
from wal.write_path.uploader import Uploader

BATCH = batch_bytes(b"x" * 439)


class TestStore(MemoryStore):
    """A store whose puts can be made to wait or to fail, before or after they took effect."""

    __test__ = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.attempts: dict[ObjectKey, int] = {}
        self.started: list[ObjectKey] = []
        self.running = 0
        self.running_max = 0
        self.before: Callable[[ObjectKey, int], Awaitable[None]] | None = None
        self.after: Callable[[ObjectKey, int], None] | None = None

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        attempt = self.attempts[key] = self.attempts.get(key, 0) + 1
        self.started.append(key)
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            if self.before is not None:
                await self.before(key, attempt)
            await super().put(key, body)
            if self.after is not None:
                self.after(key, attempt)
        finally:
            self.running -= 1


class Rig:
    def __init__(self, path: Path, settings: WalSettings = SETTINGS) -> None:
        self.clock = ManualClock()
        self.path = path
        self.store = TestStore(self.clock)
        self.directory = open_directory(path, settings=settings)
        self.recovered = self.directory.recover()
        self.outcomes = Outcomes()
        self.uploader = Uploader(
            self.store,
            self.directory,
            settings=settings,
            clock=self.clock,
            rng=random.Random(1),
            committer=self.outcomes,
        )
        self._next_token = 0

    def chunk(self, count: int = 2, batches: list[bytes] | None = None) -> SealedChunk:
        contents = [BATCH] * count if batches is None else batches
        tokens = list(range(self._next_token, self._next_token + len(contents)))
        self._next_token += len(contents)
        placed = [((A0, A1)[number % 2], data) for number, data in enumerate(contents)]
        return sealed(self.directory, placed, tokens)

    def check_each_token_once(self) -> None:
        assert set(self.outcomes.of_token) == set(range(self._next_token))
        for token, outcomes in self.outcomes.of_token.items():
            assert len(outcomes) == 1, f"token {token}: {outcomes}"

    def files(self, folder: str = "") -> set[str]:
        return {name[:12] for name in os.listdir(self.path / folder) if name.startswith("chunk-")}


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    task = asyncio.create_task(rig.uploader.run())
    try:
        yield rig
        assert not task.done(), "the uploader died"
    finally:
        task.cancel()
        await asyncio.wait([task])
        rig.directory.close()
    rig.check_each_token_once()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)
