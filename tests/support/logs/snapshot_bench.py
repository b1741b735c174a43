"""A metadata log that can be pruned, a state that follows it, and snapshots of that state."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from metadata.log.log import MetadataLog, MetadataRecordBatch
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.snapshots import SnapshotStore
from metadata.replica.state_recovery import apply_batches, open_state
from metadata.state.image import CommittedImage
from metadata.state.state import STATE_FILE, StateDatabase
from metadata.state.state_check import verified_position
from metadata.workers.snapshot_keeper import SnapshotKeeper, SnapshotSettings
from tests.support.coordinators.applied_state import applied_state
from tests.support.coordinators.coordinator_bench import MemoryMetadataLog
from wal.clock import Clock, ManualClock
from wal.disk import SYSTEM_DISK, Disk
from wal.errors import OutOfBounds
from wal.stores.object_store import ObjectStore

CLUSTER = "cluster-a"
SETTINGS = CoordinatorSettings(state_readers=1, producer_cache_max=1_000)


class PrunableLog(MemoryMetadataLog):
    """A metadata log in a list, from which whole batches are pruned."""

    def __init__(self, batches: Sequence[MetadataRecordBatch] = ()) -> None:
        super().__init__()
        self.batches = list(batches)
        self.hidden: list[MetadataRecordBatch] = []
        """Found by the next refresh."""
        self.before_read: Callable[[], None] = lambda: None

    @property
    def start_offset(self) -> int:
        return self.batches[0].base_offset if self.batches else 0

    async def refresh(self) -> int:
        self.batches += self.hidden
        self.hidden = []
        return self.end_offset

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        self.before_read()
        if offset < self.start_offset:
            raise OutOfBounds(f"{offset} is below {self.start_offset}")
        return await super().read(offset, max_bytes)

    async def prune(self, before_offset: int) -> int:
        if before_offset > self.end_offset:
            raise OutOfBounds(f"{before_offset} is above {self.end_offset}")
        while len(self.batches) > 1 and self.batches[0].next_offset <= before_offset:
            del self.batches[0]
        return self.start_offset


async def recorded_batches(directory: Path, files: int = 12) -> list[MetadataRecordBatch]:
    """The log of a small cluster: topics, files, producers; always the same."""
    async with applied_state(directory) as applied:
        partitions = await applied.topic(3, segment_bytes="1000")
        for number in range(files):
            applied.clock.advance(1)
            if number % 5 == 2:
                partitions += await applied.topic(2)
            await applied.apply(
                applied.file(
                    *[
                        (partition, 1 + (number + index) % 4, 100 + number, 1_000 + number)
                        for index, partition in enumerate(partitions)
                    ],
                    producer=-1 if number % 3 else number,
                )
            )
        return applied.batches


class Following:
    """A state that applies a log as far as it is told."""

    def __init__(self, state: StateDatabase, log: MetadataLog, image: CommittedImage) -> None:
        self.state = state
        self.log = log
        self.image = image

    async def follow(self, until: int | None = None) -> None:
        """Apply batch by batch up to `until`, else to the end."""
        until = self.log.end_offset if until is None else until
        while self.image.next_offset < until:
            (batch, *_) = await self.log.read(self.image.next_offset, 1)
            self.image.merge(await self.state.write(partial(apply_batches, self.image, [batch])))

    async def checked_hash(self) -> int:
        """The state hash that its rows have."""
        applied = await self.state.read(verified_position)
        assert applied is not None
        assert applied.state_hash == self.image.state_hash
        return applied.state_hash


@asynccontextmanager
async def following(directory: Path, log: MetadataLog, until: int = 0) -> AsyncIterator[Following]:
    """A new state in `directory`, applied up to `until`."""
    async with StateDatabase(directory / STATE_FILE, readers=1) as state:
        await state.open_or_create()
        followed = Following(state, log, CommittedImage(producers_max=1_000))
        await followed.follow(until)
        state.trust()
        yield followed


@asynccontextmanager
async def opened(
    directory: Path, log: MetadataLog, snapshots: SnapshotStore | None = None
) -> AsyncIterator[Following]:
    """The state in `directory` as a start finds or makes it."""
    async with StateDatabase(directory / STATE_FILE, readers=1) as state:
        image = await open_state(state, log, SETTINGS, snapshots)
        yield Following(state, log, image)


async def hash_at(directory: Path, batches: Sequence[MetadataRecordBatch], offset: int) -> int:
    """The state hash of replaying `batches` from zero up to `offset`."""
    async with following(directory, PrunableLog(batches), offset) as replayed:
        return replayed.image.state_hash


def snapshots_in(
    store: ObjectStore, *, cluster_id: str = CLUSTER, partition: int = 0, disk: Disk = SYSTEM_DISK
) -> SnapshotStore:
    return SnapshotStore(store, partition=partition, cluster_id=cluster_id, disk=disk)


def keeper_of(
    followed: Following,
    snapshots: SnapshotStore,
    *,
    clock: Clock | None = None,
    seed: int = 1,
    **settings: int,
) -> SnapshotKeeper:
    """A keeper whose `settings` are SnapshotSettings; it never sleeps, `run` is for other tests."""
    return SnapshotKeeper(
        followed.state,
        followed.log,
        snapshots,
        settings=SnapshotSettings(**settings),
        clock=clock or ManualClock(),
        rng=random.Random(seed),
    )
