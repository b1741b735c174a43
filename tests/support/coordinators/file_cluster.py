"""Coordinators whose workers hand files over to each other, on one object store and one clock."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile, DeleteRecords, DescribedFile, HandedFile, Tombstone
from metadata.records.records import FilesDeletedRecord
from metadata.replica.verify import verify_metadata
from metadata.state.queries.file_queries import DeletableFile
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from tests.support.coordinators.coordinator_bench import CoordinatorBench, MemoryMetadataLog, batch
from tests.support.coordinators.standalone_coordinator import standalone_coordinator
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError, NotCoordinator, ObjectNotFound, ObjectStoreUnavailable
from wal.stores.object_store import ObjectStat

SETTINGS = CoordinatorSettings(
    state_readers=2, file_cleaner_batch_max=3, file_cleaner_interval_ms=1_000
)
GRACE_S = SETTINGS.file_delete_grace_ms / 1000 + 0.001
COMMIT_AGE_S = SETTINGS.max_commit_age_ms / 1000 + 0.001


class DeletingStore:
    """As much of an object store as the workers need; none of the objects was ever uploaded."""

    def __init__(self) -> None:
        self.deleted: list[ObjectKey] = []
        self.stubborn: set[ObjectKey] = set()
        self.is_away = False

    async def head(self, key: ObjectKey) -> ObjectStat:
        raise ObjectNotFound(key)

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        raise ObjectNotFound(key)

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        if self.is_away:
            raise ObjectStoreUnavailable("away")
        confirmed = [key for key in keys if key not in self.stubborn]
        self.deleted += confirmed
        return confirmed


class Cluster:
    """Some coordinators with their workers; each is reached by the others through this."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.benches: dict[int, CoordinatorBench] = {}
        self.logs: dict[int, MemoryMetadataLog] = {}
        self.workers: dict[int, FileWorkers] = {}
        self.absent: set[int] = set()
        self.calls: list[tuple[str, int]] = []

    def _coordinator(self, what: str, coordinator: int | None) -> CoordinatorBench:
        assert coordinator is not None
        self.calls.append((what, coordinator))
        if coordinator in self.absent or coordinator not in self.benches:
            raise NotCoordinator("led elsewhere")
        return self.benches[coordinator]

    async def describe_files(
        self, keys: Sequence[ObjectKey], *, coordinator: int | None = None
    ) -> Sequence[DescribedFile]:
        bench = self._coordinator("describe", coordinator)
        return await bench.coordinator.describe_files(keys)

    async def tombstone_files(
        self, coordinator: int, keys: Sequence[ObjectKey]
    ) -> Sequence[Tombstone]:
        bench = self._coordinator("tombstone", coordinator)
        return await bench.coordinator.tombstone_files(keys)

    async def hand_over_files(
        self, coordinator: int, files: Sequence[HandedFile]
    ) -> Sequence[DisklessError | None]:
        bench = self._coordinator("hand over", coordinator)
        return await bench.coordinator.hand_over_files(files)

    # -- what tests do with it

    @property
    def clock(self) -> ManualClock:
        return self.benches[0].clock

    def restart_workers(self) -> None:
        """New workers, which know nothing that the old ones remembered."""
        for index, bench in self.benches.items():
            self.workers[index] = FileWorkers(
                bench.coordinator,
                self.store,
                self,
                coordinator_id=index,
                settings=SETTINGS,
                clock=bench.clock,
                rng=random.Random(index),
                notes=NoteKeeper(self.store, clock=bench.clock, rng=random.Random(index)),
            )

    async def work(self) -> None:
        """One round of every worker of every coordinator."""
        for workers in self.workers.values():
            for step in (workers.delete_once, workers.hand_over_once, workers.take_over_once):
                while await step():
                    pass

    async def settle(self) -> None:
        """As many rounds as the longest life of a file takes, each after another grace."""
        for _ in range(6):
            await self.work()
            self.clock.advance(GRACE_S)

    async def rows(self, coordinator: int) -> Sequence[DeletableFile]:
        found = []
        for is_owner in (True, False):
            found += await self.benches[coordinator].coordinator.deletable_files(
                before_ms=2**60, after=(-1, -1), limit=100, is_owner=is_owner
            )
        return [file for _, file in found]

    def forgotten(self, coordinator: int = 0) -> list[ObjectKey]:
        return [
            key
            for record in self.logs[coordinator].records()
            if isinstance(record, FilesDeletedRecord)
            for key in record.object_keys
        ]

    async def partitions(self) -> list[TopicIdPartition]:
        """One partition at each coordinator."""
        return [await bench.partition() for bench in self.benches.values()]

    def file(self, partition: TopicIdPartition, key: ObjectKey, *owners: int) -> CommitFile:
        request = self.benches[0].file(batch(partition, 5), key=key)
        return CommitFile(
            object_key=key,
            file_size_bytes=request.file_size_bytes,
            uploader_broker_id=0,
            batches=request.batches,
            owner_ids=owners,
        )


@asynccontextmanager
async def running_cluster(
    path: Path,
    coordinators: int,
    store: Any,
    *,
    logs: dict[int, MemoryMetadataLog] | None = None,
    clock: ManualClock | None = None,
) -> AsyncIterator[Cluster]:
    clock = clock or ManualClock()
    cluster = Cluster(store)
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        for index in range(coordinators):
            log = cluster.logs[index] = MemoryMetadataLog() if logs is None else logs[index]
            rng = random.Random(index)
            coordinator = await stack.enter_async_context(
                standalone_coordinator(
                    path / str(index),
                    log,
                    clock=clock,
                    rng=rng,
                    settings=SETTINGS,
                    coordinator_id=index,
                )
            )
            tasks.create_task(coordinator.run())
            cluster.benches[index] = CoordinatorBench(coordinator, log, clock, rng)
            if not log.end_offset:
                await coordinator.lease.renew()
        cluster.restart_workers()
        yield cluster
    for index, log in cluster.logs.items():
        report = await verify_metadata(path / str(index), log, coordinator_id=index)
        assert report.violations == []


async def dead_file(cluster: Cluster) -> ObjectKey:
    """A file whose only batch is for a partition that does not exist."""
    bench = cluster.benches[0]
    request = bench.file()
    await bench.coordinator.commit_file(request)
    return request.object_key


async def drain(cluster: Cluster, coordinator: int, partition: TopicIdPartition) -> None:
    (answer,) = await cluster.benches[coordinator].coordinator.delete_records(
        [DeleteRecords(partition, -1)]
    )
    assert answer.error is None
