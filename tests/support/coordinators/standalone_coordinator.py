"""A coordinator alone with its replica and log, without roles, workers or clients."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.sink_notes import NotePlace
from metadata.log.local_log import LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from wal.clock import Clock, Sleep


@asynccontextmanager
async def standalone_coordinator(
    directory: Path,
    log: MetadataLog | None = None,
    *,
    clock: Clock,
    rng: random.Random,
    settings: CoordinatorSettings | None = None,
    sleep: Sleep = asyncio.sleep,
    coordinator_id: int = 0,
    note_place: NotePlace | None = None,
) -> AsyncIterator[PartitionCoordinator]:
    """A coordinator that is ready to `run`, on `log` or a local log in `directory`.

    No LeaderChange is appended: what a test sees in the log is what it did itself.
    """
    settings = settings or CoordinatorSettings()
    if log is None:
        log = await LocalMetadataLog.open(directory / "log", rng=rng)
    replica = Replica(directory, settings=settings, coordinator_id=coordinator_id, sleep=sleep)
    try:
        await replica.open(log)
        coordinator = PartitionCoordinator(
            replica,
            log,
            clock=clock,
            rng=rng,
            settings=settings,
            sleep=sleep,
            note_place=note_place,
        )
        try:
            yield coordinator
        finally:
            await coordinator.stop()
            await replica.close()
    finally:
        await log.close()
