"""Coordinators under test: on either metadata log, through either client, one or several of them.

    async with ConformanceBench(tmp_path, medium, over_the_wire=True, coordinators=3, ...) as bench:
        partition = await bench.partition()
        (answer,) = await bench.commit(batch(partition, 5))

One broker leads every metadata partition at a time. Everything is asked of `bench.client`: the
broker's `LocalClient` in this process, or a `WireClient` to the listener that serves it. The next
life of the same broker, without its SQLite state if a case wants so, comes with `restart`; another
broker's, with a state of its own, with `fail_over`. `clock` stands still until a case moves it.

`batch` (tests/support/coordinators/coordinator_bench.py) makes extents that nobody ever reads;
`write` stores a WAL object with real RecordBatches first, for cases that look at
timestamps of records.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self, cast

from sqlalchemy import Connection, select

from diskless.ports import ListOffsetsResult
from diskless.replica.batch_reader import BatchReader
from diskless.replica.timestamp_search import TimestampSearch
from metadata import operations as ops
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from metadata.retention_settings import RetentionSettings
from metadata.rules.files import permuted_owners
from metadata.state.schema import APPLIED, STATE_TABLES
from metadata.state.state import STATE_FILE, StateDatabase
from metadata.workers.deletion_steps import DeletingCoordinator
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.producer_expiry import ProducerExpiry
from metadata.workers.retention import RetentionWorker
from metadata.workers.snapshot_keeper import SnapshotKeeper, SnapshotSettings
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.chunks.written_records import WrittenRecords
from tests.support.coordinators.conformance_life import BrokerLife
from tests.support.coordinators.contender import until
from tests.support.coordinators.coordinator_bench import rolled
from tests.support.logs.log_media import LEASE_MS, TICK_S, Medium
from wal.clock import ManualClock
from wal.coordinates import CREATE_TIME, BatchExtent, ByteOffset, ObjectKey, TopicIdPartition
from wal.errors import DisklessError, Rejected, UnknownFile
from wal.inflation_budget import InflationBudget
from wal.stores.object_store import BytesBody, ObjectStore
from wal.ulid import mint_ulid, wal_object_key

HEADER_BYTES: Final = 16
"""What lies before the first batch of an object."""

_SILENCES_MAX: Final = 40
_LOOKS: Final = 100

Rows = Mapping[str, Sequence[tuple[Any, ...]]]
"""All rows of a state by table, in the order of their keys."""


# -- the bench ---------------------------------------------------------------------------------


class ConformanceBench:
    """See the module's text."""

    def __init__(
        self,
        path: Path,
        medium: Medium,
        *,
        clock: ManualClock,
        store: ObjectStore,
        over_the_wire: bool,
        coordinators: int,
    ) -> None:
        """`store` holds WAL objects and snapshots."""
        self.path = path
        self.medium = medium
        self.clock = clock
        self.store = store
        self.over_the_wire = over_the_wire
        self.coordinators = coordinators
        self.rng = random.Random(5)
        self.settings = CoordinatorSettings(state_readers=1, follow_interval_ms=1)
        self.is_shared: Final = medium.lease_ms > 0
        """Whether two brokers can be there at the same time."""
        self.records = WrittenRecords(store)
        self.search = TimestampSearch(
            reader=cast(BatchReader, self.records),
            segments=self.records,
            budget=InflationBudget(64 << 20),
        )
        self._names = 0
        self.life: BrokerLife

    async def __aenter__(self) -> Self:
        self.life = BrokerLife(self, 1, self.path / "broker-1")
        await self.search.__aenter__()
        await self._begin()
        return self

    async def _begin(self) -> None:
        await self.life.start()
        await self.life.lead()

    async def __aexit__(self, *error: Any) -> None:
        await self.life.stop()
        await self.search.__aexit__(*error)

    # -- lives of brokers

    @property
    def client(self) -> CoordinatorClient:
        return self.life.client

    def coordinator(self, index: int) -> PartitionCoordinator:
        leading = self.life.partitions[index].coordinator
        assert leading is not None
        return leading

    def coordinator_of(self, partition: TopicIdPartition) -> int:
        return self.life.local.coordinator_of(partition)

    async def restart(self, *, without_state: bool = False) -> None:
        """The same broker's next life; `without_state`: somebody deleted its SQLite files."""
        old = self.life
        await old.stop()
        if without_state:
            for index in range(self.coordinators):
                (old.directory / str(index) / STATE_FILE).unlink()
        self.life = BrokerLife(self, old.broker_id, old.directory, old.past)
        await self._begin()

    async def fail_over(self) -> None:
        """The leader dies, and another broker leads, which has a state of its own.

        On the local log, that is the broker that opens its directory next.
        """
        old = self.life
        if not self.is_shared:
            await old.stop()
            self.life = self._next_broker()
            await self._begin()
            return
        await self._follow()
        await old.die()
        await self._depose()

    @asynccontextmanager
    async def overtaken(self) -> AsyncIterator[BrokerLife]:
        """Another broker leads, because the leader was paused for too long: here it is.

        It has heard of nothing yet, and is waiting for its log.
        """
        old = self.life
        await self._follow()
        old.pause()
        try:
            await self._depose()
            yield old
        finally:
            old.go_on()
            await old.stop()

    def _next_broker(self) -> BrokerLife:
        broker_id = self.life.broker_id + 1
        return BrokerLife(self, broker_id, self.path / f"broker-{broker_id}")

    async def _follow(self) -> None:
        """Another broker is there and follows; from now on it is the one that is asked."""
        self.life = self._next_broker()
        await self.life.start()
        await until(
            lambda: all(each.leader is not None for each in self.life.partitions),
            "the follower has heard of a leader",
        )

    async def _depose(self) -> None:
        """The leader is silent for longer than its lease, counted from when the follower looked."""
        for _ in range(_SILENCES_MAX):
            self.clock.advance(2 * LEASE_MS / 1000)
            for _ in range(_LOOKS):
                if self.life.is_leading:
                    return
                await asyncio.sleep(TICK_S)
        raise AssertionError(f"broker {self.life.broker_id} does not lead")

    @property
    def is_sound(self) -> bool:
        """Whether everything is still led, so that the next case may go on with it."""
        return not self.life.task.done() and self.life.is_leading

    @property
    def records_logged(self) -> int:
        """In the longest of the metadata logs."""
        return max(partition.log.end_offset for partition in self.life.partitions)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    # -- topics

    async def topic(
        self, partitions: int = 1, *, name: str | None = None, **configs: str
    ) -> ops.TopicDescription:
        """A new topic; config names have `_` for `.`."""
        self._names += 1
        (created,) = await self.client.create_topics(
            [
                ops.CreateTopic(
                    name=name or f"topic-{self._names}",
                    partition_count=partitions,
                    configs={key.replace("_", "."): value for key, value in configs.items()},
                )
            ]
        )
        assert isinstance(created, ops.TopicDescription), created
        return created

    async def partitions(self, count: int, **configs: str) -> list[TopicIdPartition]:
        """All partitions of a new topic; each at the coordinator next to that of the one before."""
        topic = await self.topic(count, **configs)
        return [TopicIdPartition(topic.topic_id, index) for index in range(count)]

    async def partition(self, **configs: str) -> TopicIdPartition:
        (partition,) = await self.partitions(1, **configs)
        return partition

    # -- committing

    def key(self) -> ObjectKey:
        return wal_object_key(mint_ulid(self.clock, self.rng))

    def file(self, *batches: BatchExtent, key: ObjectKey | None = None) -> ops.CommitFile:
        """A commit request of `batches` back to back, owned by all that have a share in it."""
        placed = []
        position = HEADER_BYTES
        for batch in batches:
            placed.append(batch._replace(byte_offset=ByteOffset(position)))
            position += batch.length_bytes
        key = key or self.key()
        owners = {self.coordinator_of(batch.partition) for batch in batches} or {ops.CATALOGUE}
        return ops.CommitFile(
            object_key=key,
            file_size_bytes=position + 64,
            uploader_broker_id=7,
            batches=placed,
            owner_ids=permuted_owners(key, owners),
        )

    async def commit(self, *batches: BatchExtent) -> Sequence[ops.BatchCommit]:
        return await self.client.commit_file(self.file(*batches))

    async def commit_good(self, *batches: BatchExtent) -> ops.CommitFile:
        """Commit what is taken as it is; returns the request."""
        request = self.file(*batches)
        answers = await self.client.commit_file(request)
        assert all(answer.error is None and not answer.is_duplicate for answer in answers), answers
        return request

    async def whole_refusal(self, request: ops.CommitFile) -> DisklessError | None:
        """Why nothing of `request` is committed: what is raised, or what all entries say.

        With several coordinators each refuses its share.
        """
        try:
            answers = await self.client.commit_file(request)
        except Rejected as error:
            return error
        errors = [answer.error for answer in answers]
        return errors[0] if errors and all(type(e) is type(errors[0]) for e in errors) else None

    async def write(
        self,
        partition: TopicIdPartition,
        *batches: Sequence[int],
        timestamp_type: int = CREATE_TIME,
    ) -> ops.CommitFile:
        """Store and commit an object of RecordBatches, each given by its records' timestamps."""
        encoded = [build_batch([Row(timestamp) for timestamp in rows]) for rows in batches]
        request = self.file(
            *[
                BatchExtent(
                    partition=partition,
                    byte_offset=ByteOffset(0),
                    length_bytes=len(data),
                    record_count=len(rows),
                    crc=0,
                    max_timestamp_ms=max(rows),
                    timestamp_type=timestamp_type,
                    producer_id=-1,
                    producer_epoch=-1,
                    base_sequence=-1,
                    request_id=0,
                )
                for rows, data in zip(batches, encoded, strict=True)
            ]
        )
        content = bytes(HEADER_BYTES) + b"".join(encoded) + bytes(64)
        await self.store.put(request.object_key, BytesBody(content))
        answers = await self.client.commit_file(request)
        assert all(answer.error is None for answer in answers), answers
        self.records.timestamps[partition] += [timestamp for rows in batches for timestamp in rows]
        return request

    # -- reading

    async def find(
        self, partition: TopicIdPartition, offset: int, *, max_bytes: int = 1 << 20
    ) -> ops.FoundBatches:
        (found,) = await self.find_all(
            [ops.FindBatches(partition, offset, max_bytes)], max_bytes=1 << 30
        )
        return found

    async def find_all(
        self, requests: Sequence[ops.FindBatches], *, max_bytes: int, **limits: Any
    ) -> Sequence[ops.FoundBatches]:
        found = await self.client.find_batches(requests, max_bytes=max_bytes, **limits)
        assert len(found) == len(requests)
        return found

    async def spans(self, partition: TopicIdPartition, offset: int = 0) -> list[tuple[int, int]]:
        """(base, last offset) of everything from `offset` on."""
        found = await self.find(partition, offset, max_bytes=1 << 30)
        assert found.error is None, found.error
        return spans(found)

    async def offset(self, partition: TopicIdPartition, timestamp: int) -> tuple[int, int]:
        """(offset, timestamp) that ListOffsets gives, exact to the record over either client."""
        result = await self.listed(partition, timestamp)
        assert result.error is None, result.error
        return result.offset, result.timestamp_ms

    async def listed(self, partition: TopicIdPartition, timestamp: int) -> ListOffsetsResult:
        (listed,) = await self.client.list_offsets([ops.ListOffsets(partition, timestamp)])
        return await self.search.exact(timestamp, listed)

    async def high_watermark(self, partition: TopicIdPartition) -> int:
        return (await self.offset(partition, ops.LATEST_TIMESTAMP))[0]

    def live_bytes(self, partition: TopicIdPartition) -> int:
        """As its coordinator has it for retention."""
        replica = self.life.partitions[self.coordinator_of(partition)].replica
        return replica.image.partitions[partition].live_bytes

    # -- deleting

    async def delete_records(self, partition: TopicIdPartition, offset: int) -> ops.DeletedRecords:
        (answer,) = await self.client.delete_records([ops.DeleteRecords(partition, offset)])
        return answer

    async def retain(self, *, step_rows_max: int = 500) -> None:
        """One pass of retention at every coordinator."""
        for worker in self.retention(step_rows_max=step_rows_max):
            await worker.pass_once()

    def retention(
        self,
        wrap: Callable[[PartitionCoordinator], DeletingCoordinator] = lambda leading: leading,
        *,
        step_rows_max: int = 500,
    ) -> Sequence[RetentionWorker]:
        """Workers by coordinator."""
        return [
            RetentionWorker(
                wrap(self.coordinator(index)),
                settings=RetentionSettings(step_rows_max=step_rows_max),
                clock=self.clock,
            )
            for index in range(self.coordinators)
        ]

    async def expire_producers(self) -> None:
        for index in range(self.coordinators):
            expiry = ProducerExpiry(
                self.coordinator(index),
                expiration_ms=self.settings.producer_expiration_ms,
                settings=RetentionSettings(),
            )
            await expiry.pass_once()

    async def log_start(self, partition: TopicIdPartition) -> int:
        """As FindBatches says it."""
        return (await self.find(partition, -1)).log_start_offset

    # -- files

    async def is_live(self, *keys: ObjectKey) -> list[bool | None]:
        """Whether each file has live batches; None: nobody ever heard of it."""
        described = await self.client.describe_files(keys)
        assert all(isinstance(each.error, UnknownFile | None) for each in described), described
        return [None if each.error else each.has_live_batches for each in described]

    def file_workers(self, index: int = 0) -> FileWorkers:
        """Of one coordinator; a life of its own each time."""
        return FileWorkers(
            self.coordinator(index),
            self.store,
            self.client,
            coordinator_id=index,
            settings=self.settings,
            clock=self.clock,
            rng=self.rng,
            notes=NoteKeeper(self.store, clock=self.clock, rng=self.rng),
        )

    async def work_on_files(self) -> None:
        """A round of all background work on files at every coordinator."""
        for index in range(self.coordinators):
            workers = self.file_workers(index)
            for step in (workers.delete_once, workers.hand_over_once, workers.take_over_once):
                while await step():
                    pass

    # -- segments

    async def plan(self, partition: TopicIdPartition) -> list[ops.SegmentPlan]:
        """Plans for everything in `partition` that is not in a segment yet."""
        plans = await self.client.plan_segments(ops.PlanSegments(include_partial=True))
        return [plan for plan in plans if plan.partition == partition]

    def rolled(self, plan: ops.SegmentPlan) -> ops.RolledSegment:
        """What a task that did its work reports."""
        self.records.partition_of[plan.object_key] = plan.partition
        timestamps = self.records.timestamps[plan.partition]
        inside = timestamps[plan.base_offset : plan.last_offset + 1]
        return rolled(plan, max_timestamp_ms=max(inside, default=1_000))

    async def tier(self, partition: TopicIdPartition) -> list[ops.SegmentPlan]:
        """Put all of `partition` into segments; returns what was planned."""
        plans = await self.plan(partition)
        answers = await self.client.commit_segments([self.rolled(plan) for plan in plans])
        assert all(answer == (False, None) for answer in answers), answers
        return plans

    # -- states

    def snapshots(self, index: int) -> SnapshotStore:
        return SnapshotStore(self.store, partition=index, cluster_id="conformance")

    async def take_snapshot(self, index: int) -> None:
        """Of one metadata partition."""
        partition = self.life.partitions[index]
        keeper = SnapshotKeeper(
            partition.replica.state,
            partition.log,
            self.snapshots(index),
            settings=SnapshotSettings(),
            clock=self.clock,
            rng=self.rng,
        )
        manifest = await keeper.take_once()
        assert manifest is not None

    async def rows(self, index: int) -> Rows:
        """Of the leader."""
        return await rows_of(self.life.partitions[index].replica.state)

    def replica(self, index: int, name: str, *, from_snapshot: bool = False) -> Replica:
        """Another replica of a metadata partition, new and not opened yet."""
        return Replica(
            self.path / name / str(index),
            settings=self.settings,
            coordinator_id=index,
            snapshots=self.snapshots(index) if from_snapshot else None,
        )


async def rows_of(state: StateDatabase) -> Rows:
    """Everything in `state`."""

    def read(connection: Connection) -> Rows:
        return {
            table.name: [
                tuple(row)
                for row in connection.execute(select(table).order_by(*table.primary_key.columns))
            ]
            for table in (*(each.table for each in STATE_TABLES), APPLIED)
        }

    return await state.read(read)


def spans(found: ops.FoundBatches) -> list[tuple[int, int]]:
    """(base, last offset) of each extent."""
    return [(extent.base_offset, extent.last_offset) for extent in found.extents]
