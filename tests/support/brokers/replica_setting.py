"""A replica manager on a write loop, a coordinator and a reader that do what a test says."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast
from uuid import UUID

from diskless.fetch.read_ahead import Answered, ReadAhead
from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import Steps, done_at_once
from diskless.ports import ClientInfo, FetchPartition, FetchResult
from diskless.produce.batch_lanes import BatchLanes
from diskless.replica.batch_reader import BatchReader, ReadRequest, ReadResult
from diskless.replica.metadata_topic import MetadataTopic
from diskless.replica.replica_manager import ReplicaManager
from diskless.replica.timestamp_search import TimestampSearch
from metadata import operations as ops
from metadata.clients.coordinator_client import Coordinator
from metadata.log.log import MetadataLog
from metadata.log.log_batch import encode_batch
from tests.support.brokers.produced import AskedBatch, produced
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.coordinators.coordinator_bench import MemoryMetadataLog
from tests.support.transactions.held_numbers import HeldNumbers
from wal.chunks.batch_rows import row_of_batch
from wal.chunks.buffer import BufferPool
from wal.clock import ManualClock
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import DisklessError, OffsetOutOfRange
from wal.inflation_budget import InflationBudget
from wal.records.batch_preparation import BatchWork, NeededWork, PreparedBatch
from wal.records.record_batch import BatchHeader, parse_header
from wal.write_path.write_loop import PendingBatches, WriteLoop

NOW_MS = 1_704_067_200_000
TOPIC = ops.TopicDescription(topic_id=UUID(int=1), name="t", partition_count=3)
P0, P1, P2 = (TopicIdPartition(TOPIC.topic_id, index) for index in range(3))
CLIENT = ClientInfo(1, "test", "127.0.0.1")
OTHER_CLIENT = ClientInfo(2, "test", "127.0.0.1")
SOON_S = 120
"""What must happen happens long before; what must not is asserted at once."""


async def until(is_so: Callable[[], bool]) -> None:
    """Let everybody else run until it is so."""
    async with asyncio.timeout(SOON_S):
        while not is_so():  # noqa: ASYNC110 - there is no event for it, and no time passes
            await asyncio.sleep(0)


class AppliedSoFar:
    """A replica of which the test says how far it is."""

    def __init__(self) -> None:
        self.applied_offset = 0
        self.listeners: list[Callable[[], None]] = []

    def subscribe_applied(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)


class Logged(NamedTuple):
    """A metadata partition."""

    log: MetadataLog
    replica: AppliedSoFar

    def apply(self, offset: int | None = None) -> None:
        self.replica.applied_offset = self.log.end_offset if offset is None else offset
        for listener in self.replica.listeners:
            listener()


class HeldBatch(NamedTuple):
    """One batch that reached the write loop."""

    partition: TopicIdPartition
    header: BatchHeader
    transaction_number: int
    timestamp_type: int
    request_id: int
    number_asked_ms: int
    token: Any
    place: int
    """Which of its token's it is."""


class HeldWriteLoop:
    """Takes batches, and keeps them until the test settles them."""

    def __init__(self) -> None:
        self.calls: list[Sequence[HeldBatch]] = []
        self.pending: list[PendingBatches] = []
        """What was taken, whose payloads were given back."""
        self.error: DisklessError | None = None

    def append_nowait(self, batches: PendingBatches) -> None:
        if self.error is not None:
            raise self.error
        data = b"".join(batches.payload.views())
        assert len(data) == batches.rows_bytes
        held = []
        for place in range(batches.batch_count):
            row = row_of_batch(batches.rows, place)
            header = parse_header(data, row.byte_offset)
            assert (header.length_bytes, header.crc) == (row.length_bytes, row.crc)
            held.append(
                HeldBatch(
                    TopicIdPartition(batches.topic_ids[row.topic_id], row.partition),
                    header,
                    row.transaction_number,
                    row.timestamp_type,
                    row.request_id,
                    batches.number_asked_ms,
                    batches.token,
                    place,
                )
            )
        self.calls.append(held)
        self.pending.append(batches)
        batches.payload.release()

    @property
    def batches(self) -> list[HeldBatch]:
        return [batch for call in self.calls for batch in call]

    def settle(self, index: int, result: ops.BatchCommit) -> None:
        batch = self.batches[index]
        batch.token.batches_done([result], [batch.place])


class ScriptedCoordinator:
    """Topics, and extents that appear when the test commits them."""

    def __init__(self) -> None:
        self.by_name = {"t": TOPIC}
        self.extents: dict[TopicIdPartition, list[ops.WalExtent]] = {}
        self.looked = 0
        self.isolations: list[int] = []
        """Of the look-ups."""
        self.first_open: dict[TopicIdPartition, int] = {}
        self.aborted: Sequence[ops.AbortedTransaction] = ()
        self.on_look: Callable[[], None] | None = None
        """Called once, within the next look, after its answer was made."""

    def topics(self) -> dict[str, ops.TopicDescription]:
        return self.by_name

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None:
        return next((t for t in self.by_name.values() if t.topic_id == topic_id), None)

    async def find_batches(
        self,
        requests: Sequence[ops.FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        isolation: int = ops.READ_UNCOMMITTED,
    ) -> list[ops.FoundBatches]:
        self.looked += 1
        self.isolations.append(isolation)
        found = [self._find(request) for request in requests]
        on_look, self.on_look = self.on_look, None
        if on_look is not None:
            on_look()
        await asyncio.sleep(0)
        return found

    def _find(self, request: ops.FindBatches) -> ops.FoundBatches:
        extents = self.extents.get(request.partition, [])
        end = extents[-1].last_offset + 1 if extents else 0
        if not 0 <= request.offset <= end:
            return ops.FoundBatches(0, end, error=OffsetOutOfRange(str(request.offset)))
        extents = [e for e in extents if e.last_offset >= request.offset]
        return ops.FoundBatches(
            0,
            end,
            extents,
            first_open_offset=self.first_open.get(request.partition, -1),
            aborted=self.aborted,
        )

    def add(self, partition: TopicIdPartition, length_bytes: int = 100) -> None:
        """One more record of that size at the end of the partition."""
        extents = self.extents.setdefault(partition, [])
        offset = Offset(len(extents))
        key = ObjectKey(f"wal/{partition.partition}/{offset}")
        extents.append(
            ops.WalExtent(key, ByteOffset(0), length_bytes, offset, offset, NOW_MS, NOW_MS, 0)
        )


class ScriptedReader:
    """Reads an extent as its key; `errors` by key."""

    def __init__(self) -> None:
        self.errors: dict[str, DisklessError] = {}
        self.requests: list[Sequence[ReadRequest]] = []
        self.max_bytes: list[int] = []
        self.at_least_one: list[bool] = []
        self.on_read: Callable[[], None] | None = None

    async def read(
        self, requests: Sequence[ReadRequest], *, max_bytes: int, at_least_one: bool = True
    ) -> list[ReadResult]:
        self.requests.append(requests)
        self.max_bytes.append(max_bytes)
        self.at_least_one.append(at_least_one)
        results = []
        for request in requests:
            records: list[bytes] = []
            error = None
            next_offset = request.offset
            for extent in request.extents:
                if extent.base_offset >= request.end:
                    break
                assert isinstance(extent, ops.WalExtent)
                error = self.errors.get(extent.object_key)
                if error is not None:
                    break
                records.append(extent.object_key.encode())
                next_offset = extent.last_offset + 1
            results.append(ReadResult(records, sum(map(len, records)), error, next_offset))
        if self.on_read is not None:
            self.on_read()
            self.on_read = None
        return results


class WorkBehindDoor(BatchWork):
    """Waits in its thread."""

    door: threading.Event

    def run(self) -> PreparedBatch:
        assert self.door.wait(SOON_S)
        return super().run()


class NoReadAhead:
    """What is answered is told to it, and nothing happens."""

    def follow(self, answers: Sequence[Answered]) -> None: ...


class Setting:
    """A replica manager and what the test moves it with."""

    def __init__(self) -> None:
        self.write_loop = HeldWriteLoop()
        self.coordinator = ScriptedCoordinator()
        self.reader = ScriptedReader()
        self.pool = BufferPool(1 << 20)
        self.logs = [Logged(MemoryMetadataLog(), AppliedSoFar()) for _ in range(2)]
        """The partitions of the metadata topic."""
        metadata_topic = MetadataTopic(self.logs)
        self.lanes = BatchLanes(self.pool, InflationBudget(1 << 28), begin=self._begin_work)
        self.numbers = HeldNumbers()
        self.clock = ManualClock(NOW_MS)
        self.door = threading.Event()
        self.door.set()
        self.granted_bytes = 1 << 30
        self.reserved: list[int] = []
        """What fetches were about to read, each time they asked."""
        self.manager = ReplicaManager(
            coordinator=cast(Coordinator, self.coordinator),
            write_loop=cast(WriteLoop, self.write_loop),
            reader=cast(BatchReader, self.reader),
            search=cast(TimestampSearch, None),
            clock=self.clock,
            fetch_max_bytes=1 << 20,
            lanes=self.lanes,
            numbers=self.numbers,
            metadata_topic=metadata_topic,
            ahead=cast(ReadAhead, NoReadAhead()),
        )
        metadata_topic.subscribe(self.manager.committed)

    def _begin_work(
        self, payload: Sequence[memoryview], header: BatchHeader, needed: NeededWork
    ) -> BatchWork:
        work = WorkBehindDoor(payload, header, needed)
        work.door = self.door
        return work

    def shut_door(self) -> None:
        """No batch that has to be opened gets any further, until `open_door`."""
        self.door.clear()

    def open_door(self) -> None:
        self.door.set()

    def configure(self, configs: dict[str, str]) -> None:
        self.coordinator.by_name["t"] = replace(TOPIC, configs=configs)

    async def log(self, partition: int = 0) -> bytes:
        """Append a batch to a metadata log and apply it; its bytes."""
        log = self.logs[partition].log
        offset = await log.append([[b"a record", b"another"]], NOW_MS)
        self.logs[partition].apply()
        return encode_batch(offset, NOW_MS, [b"a record", b"another"])

    def batch(self, partition: int = 0, data: bytes | None = None, topic: str = "t") -> AskedBatch:
        return AskedBatch(topic, partition, build_batch([Row(NOW_MS)]) if data is None else data)

    def append(
        self,
        *batches: AskedBatch,
        timeout_ms: int = 60_000,
        client: ClientInfo = CLIENT,
        transactional_id: str | None = None,
    ) -> "asyncio.Future[Sequence[ops.BatchCommit]]":
        return done_at_once(
            self.appending(
                *batches, timeout_ms=timeout_ms, client=client, transactional_id=transactional_id
            )
        )

    def appending(
        self,
        *batches: AskedBatch,
        timeout_ms: int = 60_000,
        client: ClientInfo = CLIENT,
        transactional_id: str | None = None,
    ) -> Steps["asyncio.Future[Sequence[ops.BatchCommit]]"]:
        asked = produced(self.pool, batches)
        try:
            return (
                yield from self.manager.append(
                    asked,
                    timeout_ms=timeout_ms,
                    produce_version=9,
                    client=client,
                    transactional_id=transactional_id,
                )
            )
        finally:
            asked.frame.release()

    def fetch(
        self,
        *partitions: FetchPartition,
        max_wait_ms: int = 60_000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        wake: EarlyEnd | None = None,
        isolation: int = ops.READ_UNCOMMITTED,
    ) -> "asyncio.Task[Sequence[FetchResult]]":
        return asyncio.create_task(
            self._fetch(
                partitions, max_wait_ms, min_bytes, max_bytes, wake or EarlyEnd(), isolation
            )
        )

    async def fetch_rows(self, partitions: Sequence[FetchPartition]) -> Sequence[FetchResult]:
        """As they are, which may be a `FetchRows`."""
        return await self._fetch(partitions, 60_000, 1, 1 << 20, EarlyEnd())

    async def _fetch(
        self,
        partitions: Sequence[FetchPartition],
        wait: int,
        low: int,
        high: int,
        wake: EarlyEnd,
        isolation: int = ops.READ_UNCOMMITTED,
    ) -> Sequence[FetchResult]:
        return await self.manager.fetch(
            partitions,
            max_wait_ms=wait,
            min_bytes=low,
            max_bytes=high,
            isolation=isolation,
            client=CLIENT,
            wake=wake,
            reserve=self._reserve,
        )

    def _reserve(self, wanted_bytes: int) -> int:
        self.reserved.append(wanted_bytes)
        return min(wanted_bytes, self.granted_bytes)

    async def until_parked(self, count: int = 1) -> None:
        await until(lambda: self.parked == count)

    @property
    def parked(self) -> int:
        return self.manager.fetcher.purgatory.statistics().watched

    def commit(self, partition: TopicIdPartition, length_bytes: int = 100) -> None:
        self.coordinator.add(partition, length_bytes)
        self.manager.committed([partition])


def at(partition: int, offset: int = 0, **values: Any) -> FetchPartition:
    return FetchPartition(None, "t", partition, offset, 1 << 20, -1)._replace(**values)


def at_log(partition: int = 0, offset: int = 0, **values: Any) -> FetchPartition:
    return at(partition, offset, topic_name=ops.METADATA_TOPIC, **values)


def done(offset: int) -> ops.BatchCommit:
    return ops.BatchCommit(base_offset=offset, log_append_time_ms=5, log_start_offset=0)
