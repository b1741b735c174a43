"""A broker's coordinators and all their background work, one action at a time.

One process has two coordinators, so that topics are spread, files are handed over and orphans are
asked about by both.

`Life.inventory` tells everything there is, with names in place of surrogate keys: all rows of all
tables of both coordinators, and all objects. It must not depend on where the process was killed.
`Life.verify` looks at both with `verify_metadata`, too.
"""

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from diskless.transactions.transaction_ends import parts_of
from metadata import operations as ops
from metadata.clients.local_client import LocalClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.leadership.candidate import Candidate
from metadata.log.local_log import LocalLogSettings, LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from metadata.messages.brokers import ALTER_TOPIC_CONFIGS
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.groups import CommittedOffset
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from metadata.replica.verify import verify_metadata
from metadata.retention_settings import RetentionSettings
from metadata.transaction_operations import (
    AddToTransaction,
    EndTransaction,
    InitProducer,
    TransactionGroup,
    TransactionPartition,
)
from metadata.workers.catalogue_sweep import CatalogueSweep
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.orphan_scan import OrphanScan
from metadata.workers.producer_expiry import ProducerExpiry
from metadata.workers.retention import RetentionWorker
from metadata.workers.row_sweeper import RowSweeper
from metadata.workers.snapshot_keeper import SnapshotKeeper, SnapshotSettings
from tests.support.coordinators.coordinator_bench import rolled
from tests.support.coordinators.coordinator_worlds import NoSyncDisk
from tests.support.coordinators.named_rows import named_rows
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkEntry
from wal.chunks.wal_object import plan_wal_object
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError, ObjectExists, TopicExists, UnknownTopicId
from wal.stores.file_store import FileStore
from wal.stores.object_store import BytesBody
from wal.ulid import WAL_PREFIX, minted_ms

COORDINATORS: Final = 2
LOG_KINDS: Final = ("local", "object")
SETTINGS: Final = CoordinatorSettings(
    metadata_partitions=COORDINATORS,
    state_readers=1,
    segment_bytes=1_000,
    max_commit_age_ms=60_000,
    producer_expiration_ms=30_000,
    clock_skew_max_ms=1_000,
    orphan_scan_grace_ms=1_000,
    orphan_scan_interval_ms=1_000,
    orphan_scan_page_max=2,
    file_delete_grace_ms=1_000,
    file_cleaner_batch_max=4,
)
RETENTION: Final = RetentionSettings(retention_bytes=600, retention_ms=-1, step_rows_max=1)
SWEEPING: Final = RetentionSettings(step_rows_max=100)
SNAPSHOTS: Final = SnapshotSettings(retained_max=2)
LOCAL_LOG: Final = LocalLogSettings(segment_bytes=8 << 10)
KEPT: Final = UUID(int=0x4_0000)
DOOMED: Final = UUID(int=0x5_0000)
"""Even, so that even partitions are at coordinator 0 and odd ones at coordinator 1."""
PAYER: Final = "payer"
PAYING: Final = 40
"""A transactional id, and its producer id."""
BIG_FILES: Final = 3
BIG_BATCHES: Final = 420

Answer = Any
"""What JSON knows."""


class Life:
    """One process, from its start to its end."""

    def __init__(self, directory: Path, kind: str, number: int, clock: ManualClock) -> None:
        self.directory = directory
        self.kind = kind
        self.clock = clock
        self._number = number
        self._rng = random.Random(number)
        self.store = FileStore(
            directory / "objects", clock=clock, rng=random.Random(number), sync=False
        )
        self.partitions: list[MetadataPartition] = []
        self.client: LocalClient
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        self._date_objects()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self.store.__aexit__(None, None, None)

    # -- the coordinators -----------------------------------------------------------------------

    def _state(self, index: int) -> Path:
        return self.directory / f"state-{index}"

    def _snapshots(self, index: int) -> SnapshotStore:
        return SnapshotStore(self.store, partition=index, cluster_id="c", disk=NoSyncDisk(calls=()))

    async def open_log(self, index: int) -> MetadataLog:
        if self.kind == "local":
            return await LocalMetadataLog.open(
                self.directory / f"log-{index}",
                rng=self._rng,
                settings=LOCAL_LOG,
                disk=NoSyncDisk(calls=()),
            )
        return await ObjectMetadataLog.open(self.store, index, clock=self.clock, rng=self._rng)

    async def start(self) -> None:
        self.partitions = []
        for index in range(COORDINATORS):
            partition = await self._partition(index)
            self.partitions.append(await self._running.enter_async_context(partition))
            await self._running.enter_async_context(_running(partition))
        self.client = LocalClient(self.partitions, rng=self._rng)

    async def _partition(self, index: int) -> MetadataPartition:
        candidate = Candidate(
            broker_id=1,
            host="b",
            port=1,
            incarnation=UUID(int=self._number),
            # The data directory was locked by each of them, and is by this one.
            past_incarnations=[UUID(int=number) for number in range(self._number)],
        )
        return MetadataPartition(
            Replica(
                self._state(index),
                settings=SETTINGS,
                coordinator_id=index,
                snapshots=self._snapshots(index),
                catalogue=self.partitions[0].replica if index else None,
            ),
            await self.open_log(index),
            candidate=lambda: candidate,
            workers=lambda _: (),
            clock=self.clock,
            rng=self._rng,
            settings=SETTINGS,
            lease_ms=ObjectLogSettings().lease_ms if self.kind == "object" else 0,
            sleep=_for_ever,
        )

    async def stop(self) -> None:
        await self._running.aclose()

    async def restart_without_state(self) -> Answer:
        await self.stop()
        for index in range(COORDINATORS):
            shutil.rmtree(self._state(index), ignore_errors=True)
        await self.start()
        return "started"

    @property
    def coordinators(self) -> Sequence[PartitionCoordinator]:
        found = [partition.coordinator for partition in self.partitions]
        return [coordinator for coordinator in found if coordinator is not None]

    # -- objects --------------------------------------------------------------------------------

    async def put(self, key: ObjectKey, size: int) -> None:
        """Upload; another life may have done it."""
        try:
            await self.store.put(key, _body(key, size))
        except ObjectExists:
            pass
        self._date_objects()

    def _date_objects(self) -> None:
        """The store's clock is the script's: what was written since is as old as the step."""
        now_s = self.clock.now_ms() / 1000
        for path in (self.directory / "objects").rglob("*"):
            if path.is_file() and path.stat().st_mtime > now_s:
                os.utime(path, (now_s, now_s))

    # -- steps ----------------------------------------------------------------------------------

    async def create(self, topic_id: UUID, name: str, partitions: int) -> Answer:
        (answer,) = await self.client.create_topics(
            [
                ops.CreateTopic(
                    name=name,
                    partition_count=partitions,
                    topic_id=topic_id,
                    configs={"retention.bytes": "-1"},
                )
            ]
        )
        assert not isinstance(answer, DisklessError) or isinstance(answer, TopicExists)
        topic = self.client.catalogue.topic_by_id(topic_id)
        assert topic is not None
        return [topic.name, topic.partition_count, sorted(topic.assignments.items())]

    async def grow(self, partitions: int) -> Answer:
        request = ops.CreatePartitions(topic_id=KEPT, name="kept", partition_count=partitions)
        return _errors(await self.client.create_partitions([request]))

    async def alter(self) -> Answer:
        before, wanted = {"retention.bytes": "-1"}, {"retention.bytes": "500"}
        change = ops.AlterTopicConfigs(topic_id=KEPT, before=before, configs=wanted)
        (answer,) = await self.client.call(ALTER_TOPIC_CONFIGS, [change])
        # Asked again, somebody else was first: this script, in an earlier life.
        return dict(answer.configs)

    async def limit(self, **changes: float | None) -> Answer:
        request = ops.AlterClientQuotas(
            entity=(("client-id", None), ("user", "u")), changes=dict(changes)
        )
        assert await self.client.alter_client_quotas([request]) == [None]
        quotas = self.client.catalogue.client_quotas()
        return [sorted(known.items()) for known in quotas.values()]

    async def drop(self) -> Answer:
        (error,) = await self.client.delete_topics([DOOMED])
        assert error is None or isinstance(error, UnknownTopicId)
        return "gone"

    async def register(self) -> Answer:
        await self.client.register_broker(ops.RegisteredBroker(1, "b", 1, "", UUID(int=1), ""))
        return "registered"

    async def commit_group(self, offset: int) -> Answer:
        offsets = [
            CommittedOffset(TopicIdPartition(KEPT, index), offset, self.clock.now_ms())
            for index in range(3)
        ]
        for coordinator in self.coordinators:
            await coordinator.commit_offsets("readers", offsets)
        return offset

    async def begin_transaction(self) -> Answer:
        """Of two partitions and a group, at both coordinators; asked again, it is there."""
        transactions = self.coordinators[0].transactions
        if transactions.transaction(PAYER) is None:
            await transactions.init_producer(InitProducer(PAYER, 60_000, PAYING))
        partitions = [TransactionPartition(TopicIdPartition(KEPT, at), at) for at in (0, 1)]
        added = AddToTransaction(PAYER, PAYING, 0, partitions, [TransactionGroup("readers", 1)])
        return repr(await transactions.add_to_transaction(added))

    async def commit_group_in_transaction(self, number: int) -> Answer:
        offset = CommittedOffset(TopicIdPartition(KEPT, 1), 3 + number, self.clock.now_ms())
        transactions = self.coordinators[1].transactions
        await transactions.commit_offsets("readers", PAYING, 0, number, [offset])
        return "waits"

    async def end_transaction(self, *, is_commit: bool) -> Answer:
        """Decide, tell, complete; or go on with what is decided."""
        transactions = self.coordinators[0].transactions
        await transactions.end_transaction(EndTransaction(PAYER, PAYING, 0, is_commit))
        known = transactions.transaction(PAYER)
        assert known is not None
        if known.is_open:
            for coordinator, parts in parts_of(known, leader_epoch=0):
                answers = await self.coordinators[coordinator].transactions.end_parts([parts])
                assert answers == [None]
            await transactions.complete(PAYER, known.number)
        known = transactions.transaction(PAYER)
        return None if known is None else [known.number, known.producer_epoch, int(known.state)]

    async def allocate(self) -> Answer:
        block = await self.client.allocate_producer_ids()
        return [block.start, block.stop]

    async def commit(self, request: ops.CommitFile) -> Answer:
        await self.put(request.object_key, request.file_size_bytes)
        return [_committed(answer) for answer in await self.client.commit_file(request)]

    async def delete_records(self, requests: Sequence[ops.DeleteRecords]) -> Answer:
        answers = await self.client.delete_records(requests)
        return [[answer.log_start_offset, repr(answer.error)] for answer in answers]

    async def look(self) -> Answer:
        """What a reader sees of every partition."""
        names = [
            TopicIdPartition(topic.topic_id, index)
            for _, topic in sorted(self.client.catalogue.topics().items())
            for index in range(topic.partition_count)
        ]
        listed = await self.client.list_offsets(
            [ops.ListOffsets(name, at) for name in names for at in (-1, -2, -3, -4, -5)]
        )
        bounds = [answer.offset for answer in listed]
        found = await self.client.find_batches(
            [ops.FindBatches(name, 0, 1 << 20) for name in names], max_bytes=1 << 30
        )
        return [bounds, [[repr(answer.error), *map(repr, answer.extents)] for answer in found]]

    async def roll(self) -> Answer:
        plans = await self.client.plan_segments(ops.PlanSegments(include_partial=True))
        segments = [rolled(plan) for plan in plans]
        for segment in segments:
            await self.put(segment.object_key, segment.object_bytes)
        answers = await self.client.commit_segments(segments)
        return _errors([answer.error for answer in answers if answer.error is not None])

    async def snapshot(self) -> Answer:
        for partition in self.partitions:
            keeper = SnapshotKeeper(
                partition.replica.state,
                partition.log,
                self._snapshots(partition.index),
                settings=SNAPSHOTS,
                clock=self.clock,
                rng=self._rng,
            )
            await keeper.maintain_once()
            await keeper.take_once()
            await keeper.maintain_once()
        return "taken"

    async def retain(self) -> Answer:
        for coordinator in self.coordinators:
            worker = RetentionWorker(coordinator, settings=RETENTION, clock=self.clock)
            await worker.pass_once()
        return "kept"

    async def sweep(self) -> Answer:
        other = self.coordinators[1]
        # Its own time, so that an hour passes within one step.
        clock = ManualClock()
        abandoned = CatalogueSweep(
            other,
            have=other.replica.topic_ids,
            catalogue_has=lambda topic_id: self.client.catalogue.topic_by_id(topic_id) is not None,
            is_catalogue_followed=lambda: True,
            clock=clock,
        )
        await abandoned.sweep_once()
        clock.advance(3_600)
        await abandoned.sweep_once()
        for coordinator in self.coordinators:
            await RowSweeper(coordinator, settings=SWEEPING).pass_once()
        return "swept"

    async def expire(self) -> Answer:
        for coordinator in self.coordinators:
            await ProducerExpiry(
                coordinator,
                expiration_ms=SETTINGS.producer_expiration_ms,
                settings=RETENTION,
            ).pass_once()
        return "expired"

    async def clean(self) -> Answer:
        """One round of the work on files; who starts anew has nothing in memory."""
        for coordinator in self.coordinators:
            workers = FileWorkers(
                coordinator,
                self.store,
                self.client,
                coordinator_id=coordinator.coordinator_id,
                settings=SETTINGS,
                clock=self.clock,
                rng=self._rng,
                notes=self._keeper(),
            )
            for work in (workers.delete_once, workers.hand_over_once, workers.take_over_once):
                while await work():
                    pass
        return "cleaned"

    def _keeper(self) -> NoteKeeper:
        return NoteKeeper(self.store, clock=self.clock, rng=self._rng)

    async def scan(self, keys: Sequence[ObjectKey]) -> Answer:
        async def coordinator_ids() -> Sequence[int]:
            return range(COORDINATORS)

        scan = OrphanScan(
            self.store,
            self.client,
            coordinator_ids,
            settings=SETTINGS,
            clock=self.clock,
            rng=self._rng,
            notes=self._keeper(),
        )
        for shard in sorted({int(key.split("/")[1], 16) for key in keys}):
            self._date_objects()
            await scan.scan_shard(shard)
        return "scanned"

    # -- what there is --------------------------------------------------------------------------

    async def inventory(self) -> Mapping[str, Any]:
        """Of the state, everything but whose it is and was; of the store, all but the metadata."""
        objects = [
            stat.key
            for prefix in ("wal/", "segments/", "orphan-scan/")
            async for stat in self.store.list(prefix)
        ]
        states = [await partition.replica.state.read(named_rows) for partition in self.partitions]
        return {"objects": sorted(objects), "states": states}

    async def verify(self) -> list[str]:
        """Violations in what the process has left."""
        found: list[str] = []
        for index in range(COORDINATORS):
            log = await self.open_log(index)
            try:
                report = await verify_metadata(
                    self._state(index),
                    log,
                    coordinator_id=index,
                    snapshots=self._snapshots(index),
                )
            finally:
                await log.close()
            # What a dead process had begun of a snapshot stays until it is old.
            found += [
                f"{violation.subject}: {violation.problem}"
                for violation in report.violations
                if violation.problem != "is damaged"
            ]
        return found


@asynccontextmanager
async def _running(partition: MetadataPartition) -> AsyncIterator[None]:
    running = asyncio.create_task(partition.run())
    try:
        while partition.coordinator is None:
            if running.done():
                running.result()
            await asyncio.sleep(0)
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _for_ever(_: float) -> None:
    """Nobody waits for anything here, and leases are not renewed behind the script's back."""
    await asyncio.sleep(3_600)


def _errors(errors: Sequence[DisklessError | None]) -> Answer:
    return [repr(error) for error in errors]


def _committed(answer: ops.BatchCommit) -> Answer:
    return [*answer[:4], type(answer.error).__name__]


def _body(key: ObjectKey, size: int) -> BytesBody:
    """What lies under `key`: of a WAL object enough for its notes to be read when it is deleted."""
    if not key.startswith(WAL_PREFIX):
        return BytesBody(key.encode().ljust(size, b"."))
    entry = ChunkEntry(TopicIdPartition(DOOMED, 0), 0, size, 1, 0, 0, 0, -1, -1, -1, 0)
    identity = ChunkIdentity(
        ulid=key.rpartition("/")[2], salt=0, broker_id=0, opened_at_ms=minted_ms(key)
    )
    plan = plan_wal_object(identity, [entry])
    return BytesBody(plan.header, bytes(size), plan.footer)
