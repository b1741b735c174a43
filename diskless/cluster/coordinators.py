"""The metadata partitions of one broker: their logs, replicas, background workers and clients.

    RoutedClient ──(led here)── LocalClient ── MetadataPartition 0 .. n-1
         └──(led elsewhere)── WireClient          ├── metadata log (local or object)
                                                  ├── Replica (SQLite), from a snapshot if need be
                                                  └── while leading: PartitionCoordinator + workers

The broker enters `Coordinators`, runs `run` in its task group and waits for `ready`. Everything
else talks to `client`.

With the local log this broker leads all metadata partitions by holding their directories' locks.
With the object log any number of brokers share the logs below one bucket prefix, and each leads
what it was elected for.

Failure cases: a partition that cannot go on (its log or state makes no sense) ends `run`, and with
it the broker; whatever else happens to a worker it retries itself.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Self

from diskless.config import Config
from diskless.replica.noted_facts import NotedFacts
from diskless.storage.cluster_identity import OBJECT_LOG
from diskless.storage.data_directory import DataDirectory
from metadata.clients.coordinator_client import RemoteClient
from metadata.clients.local_client import LocalClient
from metadata.clients.routed_client import RoutedClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import Candidate, MetadataPartition, Worker
from metadata.log.local_log import LOG_DIRECTORY, LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.operations import CATALOGUE
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from metadata.workers.catalogue_sweep import CatalogueSweep
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.notes_sweep import NotesSweep
from metadata.workers.orphan_scan import OrphanScan
from metadata.workers.producer_expiry import ProducerExpiry
from metadata.workers.retention import RetentionWorker
from metadata.workers.row_sweeper import RowSweeper
from metadata.workers.snapshot_keeper import SnapshotKeeper
from wal.clock import Clock
from wal.errors import InvalidSettings
from wal.stores.object_store import ObjectStore


class LeaderWorkers(NamedTuple):
    """Those workers of a leader that count something."""

    files: FileWorkers
    retention: RetentionWorker
    snapshots: SnapshotKeeper
    orphans: OrphanScan | None
    """Only with the catalogue."""


class Coordinators:
    """All metadata partitions in this process. Async context manager."""

    def __init__(
        self,
        config: Config,
        *,
        data: DataDirectory,
        store: ObjectStore,
        cluster_id: str,
        candidate: Callable[[], Candidate],
        connect: Callable[[str, int], RemoteClient],
        owns_prefix: bool,
        group_worker: Callable[[PartitionCoordinator], Worker],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`candidate` says who this broker is; `connect` makes a client to another one.

        `owns_prefix`: nobody else's objects can be below the store's prefix, so what no
        coordinator knows may be deleted. `group_worker` makes what coordinates the consumer groups
        of a metadata partition that is led here.
        """
        self._config = config
        self._data = data
        self._store = store
        self._cluster_id = cluster_id
        self._candidate = candidate
        self._connect = connect
        self._owns_prefix = owns_prefix
        self._group_worker = group_worker
        self._clock = clock
        self._rng = rng
        self._stack = AsyncExitStack()
        self.is_shared: Final = config.broker.metadata_log == OBJECT_LOG
        """Whether other brokers may work on the same metadata."""
        self.partitions: Sequence[MetadataPartition] = ()
        self.workers_at_work: dict[int, LeaderWorkers] = {}
        """By metadata partition, of those that are or were led here; for the metrics."""
        self.local: LocalClient
        self.client: RoutedClient

    async def __aenter__(self) -> Self:
        """Open every log and bring every replica to its end.

        Raises: NotCoordinator (another process has a local log), InvalidSettings (fewer metadata
        partitions than there are already, or the metadata is in a local log), CorruptLog,
        CorruptState, StorageFailed, ObjectStoreUnavailable.
        """
        self._refuse_the_other_log()
        async with AsyncExitStack() as stack:
            self.partitions = partitions = await self._open_partitions(stack)
            self._refuse_fewer_partitions()
            self.local = LocalClient(partitions, rng=self._rng)
            self.client = await stack.enter_async_context(
                RoutedClient(self.local, connect=self._connect, clock=self._clock, rng=self._rng)
            )
            self.local.topics.peers = self.client
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def run(self) -> None:
        """Follow and lead until cancelled. Raises what a partition cannot heal."""
        async with asyncio.TaskGroup() as tasks:
            for partition in self.partitions:
                tasks.create_task(partition.run(), name=f"metadata-partition-{partition.index}")

    async def ready(self) -> None:
        """Return when every metadata partition has a leader, here or elsewhere."""
        for partition in self.partitions:
            await partition.ready()

    async def _open_partitions(self, stack: AsyncExitStack) -> list[MetadataPartition]:
        """All metadata partitions, entered into `stack`.

        Side by side: each asks the store for one thing after the other, and a dozen of them in
        turn would make a start on a slow store wait a dozen times as long.
        """
        catalogue = self._replica(CATALOGUE, None)
        opened: dict[int, MetadataPartition] = {}

        async def open_one(index: int) -> None:
            replica = catalogue if index == CATALOGUE else self._replica(index, catalogue)
            partition = self._partition(replica, await self._open_log(index))
            opened[index] = await stack.enter_async_context(partition)

        try:
            async with asyncio.TaskGroup() as tasks:
                for index in range(self._config.coordinator.metadata_partitions):
                    tasks.create_task(open_one(index), name=f"open-metadata-{index}")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [opened[index] for index in sorted(opened)]

    def _replica(self, index: int, catalogue: Replica | None) -> Replica:
        return Replica(
            self._data.metadata_partition(index),
            settings=self._config.coordinator,
            coordinator_id=index,
            snapshots=SnapshotStore(self._store, partition=index, cluster_id=self._cluster_id),
            catalogue=catalogue,
        )

    def _partition(self, replica: Replica, log: MetadataLog) -> MetadataPartition:
        return MetadataPartition(
            replica,
            log,
            candidate=self._candidate,
            workers=self._workers,
            clock=self._clock,
            rng=self._rng,
            settings=self._config.coordinator,
            lease_ms=self._config.object_log.lease_ms if self.is_shared else 0,
        )

    async def _open_log(self, index: int) -> MetadataLog:
        if self.is_shared:
            return await ObjectMetadataLog.open(
                self._store,
                index,
                clock=self._clock,
                rng=self._rng,
                settings=self._config.object_log,
            )
        return await LocalMetadataLog.open(
            self._data.metadata_partition(index) / LOG_DIRECTORY,
            rng=self._rng,
            settings=self._config.metadata_log,
        )

    def _refuse_the_other_log(self) -> None:
        """The object log is not where this directory's metadata is: it would begin empty."""
        if self.is_shared and self._data.has_metadata:
            raise InvalidSettings(
                f"diskless.metadata.log=object, but {self._data.path} has a metadata log, and one "
                "is not turned into the other: leave it local, let `diskless rebuild` make one in "
                "the object store, or use another data directory and another prefix"
            )

    def _refuse_fewer_partitions(self) -> None:
        count = len(self.partitions)
        for topic in self.partitions[CATALOGUE].replica.topics().values():
            highest = max(topic.assignments.values(), default=CATALOGUE)
            if highest >= count:
                raise InvalidSettings(
                    f"diskless.metadata.topic.num.partitions={count}, but partitions of "
                    f"{topic.name} live at coordinator {highest}: it can only be raised"
                )

    async def _coordinator_ids(self, catalogue: PartitionCoordinator) -> Sequence[int]:
        """All coordinators that anything was ever assigned to, as of now.

        Another broker may have been configured with more of them. Raises: NotCoordinator.
        """
        await catalogue.lease.confirm()
        highest = max(
            (
                coordinator
                for topic in catalogue.replica.topics().values()
                for coordinator in topic.assignments.values()
            ),
            default=CATALOGUE,
        )
        return range(max(len(self.partitions), highest + 1))

    def _workers(self, coordinator: PartitionCoordinator) -> Sequence[Worker]:
        """What runs beside a coordinator as long as it leads."""
        config, clock, rng = self._config, self._clock, self._rng
        index = coordinator.coordinator_id
        partition = self.partitions[index]
        snapshots = partition.replica.snapshots
        assert snapshots is not None
        facts = NotedFacts(self.client)
        keeper = NoteKeeper(
            self._store, clock=clock, rng=rng, floors=facts.floor, topics=facts.topic
        )
        file_workers = FileWorkers(
            coordinator,
            self._store,
            self.client,
            coordinator_id=index,
            settings=config.coordinator,
            clock=clock,
            rng=rng,
            notes=keeper,
        )
        retention = RetentionWorker(coordinator, settings=config.retention, clock=clock)
        snapshot_keeper = SnapshotKeeper(
            partition.replica.state,
            partition.log,
            snapshots,
            settings=config.snapshots,
            clock=clock,
            rng=rng,
            is_leading=lambda: partition.coordinator is coordinator,
            applied_bytes=lambda: partition.replica.applied_bytes,
        )
        orphan_scan: OrphanScan | None = None
        workers: list[Worker] = [
            file_workers,
            retention,
            RowSweeper(coordinator, settings=config.retention),
            ProducerExpiry(
                coordinator,
                expiration_ms=config.coordinator.producer_expiration_ms,
                settings=config.retention,
            ),
            snapshot_keeper,
            self._group_worker(coordinator),
        ]
        if index == CATALOGUE:
            workers.append(coordinator.sessions)
            if self._owns_prefix:
                orphan_scan = OrphanScan(
                    self._store,
                    self.client,
                    partial(self._coordinator_ids, coordinator),
                    settings=config.coordinator,
                    clock=clock,
                    rng=rng,
                    notes=keeper,
                )
                workers.append(orphan_scan)
                workers.append(
                    NotesSweep(
                        self._store,
                        topics=facts.topic,
                        log_began_ms=lambda: coordinator.replica.log_began_ms,
                        settings=config.coordinator,
                        rng=rng,
                    )
                )
        else:
            catalogue = self.partitions[CATALOGUE]
            workers.append(
                CatalogueSweep(
                    coordinator,
                    have=coordinator.replica.topic_ids,
                    catalogue_has=lambda topic_id: (
                        catalogue.replica.topic_by_id(topic_id) is not None
                    ),
                    is_catalogue_followed=lambda: catalogue.leader is not None,
                    clock=clock,
                )
            )
        self.workers_at_work[index] = LeaderWorkers(
            file_workers, retention, snapshot_keeper, orphan_scan
        )
        return workers
