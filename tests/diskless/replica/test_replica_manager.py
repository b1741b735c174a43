"""The life of delayed produces and fetches, over a write loop, a coordinator and a reader that do
what the test says, when it says so."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import Steps, done_at_once
from diskless.ports import (
    AppendBatch,
    ClientInfo,
    FetchPartition,
    FetchResult,
    ListOffsetsPartition,
)
from diskless.replica.batch_lanes import BatchLanes
from diskless.replica.batch_reader import BatchReader, ReadRequest, ReadResult
from diskless.replica.metadata_topic import MetadataTopic
from diskless.replica.replica_manager import BATCHES_AT_ONCE, ReplicaManager, append_failed
from diskless.replica.timestamp_search import TimestampSearch
from metadata.clients.coordinator_client import Coordinator
from metadata.log.log_batch import encode_batch
from metadata.operations import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    BatchCommit,
    FindBatches,
    FoundBatches,
    TopicDescription,
    WalExtent,
)
from tests.diskless.replica.test_metadata_topic import AppliedSoFar, Logged
from tests.support.batch_builder import Row, build_batch
from tests.support.coordinator_bench import MemoryMetadataLog
from wal.chunks.buffer import BufferPool, chain_of
from wal.chunks.write_loop import PendingBatch, WriteLoop
from wal.clock import ManualClock
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import (
    CorruptBatch,
    CorruptObject,
    DisklessError,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    KeysMissing,
    ObjectNotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    RecordTooLarge,
    StorageFailed,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownTopicId,
)
from wal.inflation_budget import InflationBudget
from wal.records.batch_preparation import BatchWork, NeededWork, PreparedBatch
from wal.records.compression import GZIP, ZSTD
from wal.records.record_batch import BatchHeader

NOW_MS = 1_704_067_200_000
TOPIC = TopicDescription(topic_id=UUID(int=1), name="t", partition_count=3)
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


class HeldWriteLoop:
    """Takes batches, and keeps them until the test settles them."""

    def __init__(self) -> None:
        self.calls: list[Sequence[PendingBatch]] = []
        self.error: DisklessError | None = None

    def append_nowait(self, batches: Sequence[PendingBatch]) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(batches)
        for batch in batches:
            batch.payload.release()

    @property
    def batches(self) -> list[PendingBatch]:
        return [batch for call in self.calls for batch in call]

    def settle(self, index: int, result: BatchCommit) -> None:
        self.batches[index].token.batch_done(result)


class ScriptedCoordinator:
    """Topics, and extents that appear when the test commits them."""

    def __init__(self) -> None:
        self.by_name = {"t": TOPIC}
        self.extents: dict[TopicIdPartition, list[WalExtent]] = {}
        self.looked = 0
        self.on_look: Callable[[], None] | None = None
        """Called once, within the next look, after its answer was made."""

    def topics(self) -> dict[str, TopicDescription]:
        return self.by_name

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        return next((t for t in self.by_name.values() if t.topic_id == topic_id), None)

    async def find_batches(
        self, requests: Sequence[FindBatches], *, max_bytes: int, at_least_one: bool = True
    ) -> list[FoundBatches]:
        self.looked += 1
        found = [self._find(request) for request in requests]
        on_look, self.on_look = self.on_look, None
        if on_look is not None:
            on_look()
        await asyncio.sleep(0)
        return found

    def _find(self, request: FindBatches) -> FoundBatches:
        extents = self.extents.get(request.partition, [])
        end = extents[-1].last_offset + 1 if extents else 0
        if not 0 <= request.offset <= end:
            return FoundBatches(0, end, error=OffsetOutOfRange(str(request.offset)))
        return FoundBatches(0, end, [e for e in extents if e.last_offset >= request.offset])

    def add(self, partition: TopicIdPartition, length_bytes: int = 100) -> None:
        """One more record of that size at the end of the partition."""
        extents = self.extents.setdefault(partition, [])
        offset = Offset(len(extents))
        key = ObjectKey(f"wal/{partition.partition}/{offset}")
        extents.append(
            WalExtent(key, ByteOffset(0), length_bytes, offset, offset, NOW_MS, NOW_MS, 0)
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
            for extent in request.extents:
                error = self.errors.get(extent.object_key)
                if error is not None:
                    break
                records.append(extent.object_key.encode())
            results.append(ReadResult(records, sum(map(len, records)), error))
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
            clock=ManualClock(NOW_MS),
            fetch_max_bytes=1 << 20,
            lanes=self.lanes,
            metadata_topic=metadata_topic,
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

    def batch(self, partition: int = 0, data: bytes | None = None, topic: str = "t") -> AppendBatch:
        content = build_batch([Row(NOW_MS)]) if data is None else data
        return AppendBatch(None, topic, partition, chain_of(self.pool, content))

    def append(
        self,
        *batches: AppendBatch,
        timeout_ms: int = 60_000,
        client: ClientInfo = CLIENT,
    ) -> "asyncio.Future[Sequence[BatchCommit]]":
        return done_at_once(self.appending(*batches, timeout_ms=timeout_ms, client=client))

    def appending(
        self,
        *batches: AppendBatch,
        timeout_ms: int = 60_000,
        client: ClientInfo = CLIENT,
    ) -> Steps["asyncio.Future[Sequence[BatchCommit]]"]:
        return self.manager.append(batches, timeout_ms=timeout_ms, produce_version=9, client=client)

    def fetch(
        self,
        *partitions: FetchPartition,
        max_wait_ms: int = 60_000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        wake: EarlyEnd | None = None,
    ) -> "asyncio.Task[Sequence[FetchResult]]":
        return asyncio.create_task(
            self._fetch(partitions, max_wait_ms, min_bytes, max_bytes, wake or EarlyEnd())
        )

    async def fetch_rows(self, partitions: Sequence[FetchPartition]) -> Sequence[FetchResult]:
        """As they are, which may be a `FetchRows`."""
        return await self._fetch(partitions, 60_000, 1, 1 << 20, EarlyEnd())

    async def _fetch(
        self, partitions: Sequence[FetchPartition], wait: int, low: int, high: int, wake: EarlyEnd
    ) -> Sequence[FetchResult]:
        return await self.manager.fetch(
            partitions,
            max_wait_ms=wait,
            min_bytes=low,
            max_bytes=high,
            isolation=0,
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
    return at(partition, offset, topic_name=METADATA_TOPIC, **values)


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    setting = Setting()
    async with setting.lanes:
        yield setting
    # Whatever the test did, nothing may be left behind.
    assert setting.parked == 0
    assert setting.pool.statistics().in_use_bytes == 0


def done(offset: int) -> BatchCommit:
    return BatchCommit(base_offset=offset, log_append_time_ms=5, log_start_offset=0)


# Produce


async def test_a_produce_is_answered_when_its_last_batch_has_its_outcome(setting: Setting) -> None:
    future = setting.append(setting.batch(0), setting.batch(1), setting.batch(2))
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P1, P2]
    setting.write_loop.settle(2, done(7))
    setting.write_loop.settle(0, BatchCommit(error=StorageFailed("disk")))
    assert not future.done()
    setting.write_loop.settle(1, done(9))
    results = await future
    assert [result.base_offset for result in results] == [-1, 9, 7]
    assert isinstance(results[0].error, StorageFailed)
    assert results[1].log_append_time_ms == -1  # the topic has CreateTime
    assert setting.manager.produce_purgatory.statistics() == (0, 1, 0)


async def test_the_append_time_is_told_where_the_topic_has_it(setting: Setting) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    setting.coordinator.by_name["u"] = TopicDescription(
        topic_id=UUID(int=2), name="u", partition_count=1, configs=configs
    )
    future = setting.append(setting.batch(topic="u"))
    setting.write_loop.settle(0, done(0))
    assert (await future)[0].log_append_time_ms == 5


async def test_batches_are_queued_before_append_returns_and_in_order(setting: Setting) -> None:
    futures = [setting.append(setting.batch(number % 3)) for number in range(6)]
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P1, P2] * 2
    for number, future in enumerate(futures):
        setting.write_loop.settle(number, done(number))
        assert (await future)[0].base_offset == number
    request_ids = [batch.request_id for batch in setting.write_loop.batches]
    assert len(set(request_ids)) == 6


async def test_past_its_timeout_the_outcome_of_a_batch_is_unknown(setting: Setting) -> None:
    future = setting.append(setting.batch(0), setting.batch(1), timeout_ms=20)
    setting.write_loop.settle(1, done(4))
    async with asyncio.timeout(SOON_S):
        results = await future
    assert isinstance(results[0].error, OutcomeUnknown)
    assert (results[1].error, results[1].base_offset) == (None, 4)
    assert setting.manager.produce_purgatory.statistics() == (0, 1, 1)
    # The commit comes after all: too late for the answer, and no harm.
    setting.write_loop.settle(0, done(3))
    assert results == await future


async def test_a_client_that_went_away_takes_no_batch_back(setting: Setting) -> None:
    future = setting.append(setting.batch(0))
    future.cancel()
    setting.write_loop.settle(0, done(0))
    assert setting.manager.produce_purgatory.statistics().watched == 0


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (AppendBatch(None, "t", 0, None), InvalidRecord),
        (AppendBatch(None, "nobody", 0, None), UnknownPartition),
        (AppendBatch(None, "t", 3, None), UnknownPartition),
        (AppendBatch(None, "t", -1, None), UnknownPartition),
        (AppendBatch(UUID(int=9), "", 0, None), UnknownTopicId),
    ],
)
async def test_a_refused_batch_is_answered_at_once_when_it_is_alone(
    setting: Setting, batch: AppendBatch, error: type[DisklessError]
) -> None:
    future = setting.append(batch)
    assert future.done()
    assert isinstance((await future)[0].error, error)
    assert setting.write_loop.calls == []


async def test_a_refused_batch_waits_for_the_good_ones_beside_it(setting: Setting) -> None:
    broken = build_batch([Row(NOW_MS)])[:-1] + b"?"
    future = setting.append(setting.batch(0), setting.batch(1, broken), setting.batch(2))
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P2]
    setting.write_loop.settle(0, done(0))
    setting.write_loop.settle(1, done(0))
    results = await future
    assert [type(result.error) for result in results] == [type(None), CorruptBatch, type(None)]
    assert setting.manager.batches_rejected == 1


async def test_a_full_queue_is_the_outcome_of_every_batch(setting: Setting) -> None:
    setting.write_loop.error = Overloaded("full")
    future = setting.append(setting.batch(0), setting.batch(1))
    assert future.done()
    assert [type(result.error) for result in await future] == [Overloaded, Overloaded]
    assert setting.manager.produce_purgatory.statistics() == (0, 1, 0), "nothing waits any more"


async def test_each_batch_is_judged_by_its_own_topic(setting: Setting) -> None:
    small = TopicDescription(
        topic_id=UUID(int=2), name="u", partition_count=9, configs={"max.message.bytes": "70"}
    )
    setting.coordinator.by_name["u"] = small
    asked = [("t", 0), ("u", 1), ("t", 1), ("nobody", 0), ("t", 7), ("nobody", 1), ("t", 2)]
    future = setting.append(
        *(setting.batch(partition, topic=topic) for topic, partition in asked),
        AppendBatch(small.topic_id, "", 2, chain_of(setting.pool, build_batch([Row(NOW_MS)]))),
        AppendBatch(TOPIC.topic_id, "", 0, chain_of(setting.pool, build_batch([Row(NOW_MS)]))),
    )
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P1, P2, P0]
    for index in range(4):
        setting.write_loop.settle(index, done(index))
    assert [(type(result.error), result.base_offset) for result in await future] == [
        (type(None), 0),
        (RecordTooLarge, -1),
        (type(None), 1),
        (UnknownPartition, -1),
        (UnknownPartition, -1),
        (UnknownPartition, -1),
        (type(None), 2),
        (RecordTooLarge, -1),
        (type(None), 3),
    ]


async def test_what_the_disk_refused_is_the_outcome_of_every_batch(setting: Setting) -> None:
    future = setting.append(setting.batch(0), setting.batch(1))
    append_failed(setting.write_loop.batches, StorageFailed("full"))
    assert [type(result.error) for result in await future] == [StorageFailed, StorageFailed]


async def test_a_changed_topic_configuration_counts_from_the_next_batch(setting: Setting) -> None:
    small = TopicDescription(
        topic_id=TOPIC.topic_id, name="t", partition_count=3, configs={"max.message.bytes": "10"}
    )
    setting.append(setting.batch(0))
    setting.coordinator.by_name["t"] = small
    refused = setting.append(setting.batch(0))
    assert (await refused)[0].error is not None
    setting.write_loop.settle(0, done(0))


async def test_closing_answers_the_produces_that_still_wait(setting: Setting) -> None:
    future = setting.append(setting.batch(0))
    setting.manager.close()
    assert isinstance((await future)[0].error, OutcomeUnknown)
    setting.write_loop.settle(0, done(0))


async def test_a_request_of_very_many_batches_is_appended_in_steps(setting: Setting) -> None:
    count = 5 * BATCHES_AT_ONCE
    steps = setting.appending(*(setting.batch(number % 3) for number in range(count)))
    for number in range(1, 5):
        next(steps)
        assert [len(call) for call in setting.write_loop.calls] == [BATCHES_AT_ONCE] * number
    beside = setting.append(setting.batch(1), client=OTHER_CLIENT)
    # Outcomes may come before it is all handed on.
    setting.write_loop.settle(0, done(0))
    future = done_at_once(steps)
    for number in range(1, count + 1):
        setting.write_loop.settle(number, done(number))
    assert len(await future) == count
    assert (await beside)[0].base_offset == 4 * BATCHES_AT_ONCE


async def test_a_large_request_that_is_given_up_keeps_nothing(setting: Setting) -> None:
    steps = setting.appending(*(setting.batch() for _ in range(2 * BATCHES_AT_ONCE)))
    next(steps)
    steps.close()
    assert len(setting.write_loop.batches) == BATCHES_AT_ONCE


async def test_refusals_of_a_large_request_are_its_answer_too(setting: Setting) -> None:
    count = 3 * BATCHES_AT_ONCE
    results = await setting.append(*(setting.batch(7) for _ in range(count)))
    assert [type(result.error) for result in results] == [UnknownPartition] * count
    assert all(result.error.__traceback__ is None for result in results if result.error)


async def test_after_large_batches_others_come_first(setting: Setting) -> None:
    setting.configure({"max.message.bytes": "100000000"})
    large = build_batch([Row(NOW_MS, value=bytes(7 << 20))])
    steps = setting.appending(*(setting.batch(0, large) for _ in range(4)), setting.batch(1))
    next(steps)
    assert len(setting.write_loop.batches) == 3
    done_at_once(steps)
    assert len(setting.write_loop.batches) == 5


async def test_a_batch_that_has_to_be_opened_holds_up_its_partition_alone(
    setting: Setting,
) -> None:
    setting.configure({"cleanup.policy": "compact"})
    setting.shut_door()
    keyed = build_batch([Row(NOW_MS, b"key")], codec=GZIP)
    opened = setting.append(setting.batch(0, keyed))
    setting.configure({})
    behind = setting.append(setting.batch(0), setting.batch(1))
    beside = setting.append(setting.batch(0), client=OTHER_CLIENT)
    assert [batch.partition for batch in setting.write_loop.batches] == [P1, P0]
    setting.open_door()
    await until(lambda: len(setting.write_loop.batches) == 4)
    for number in range(4):
        setting.write_loop.settle(number, done(number))
    assert [result.base_offset for result in await behind] == [3, 0]
    assert (await beside)[0].base_offset == 1
    assert (await opened)[0].base_offset == 2


async def test_a_batch_that_is_opened_and_refused_is_its_answer(setting: Setting) -> None:
    setting.configure({"cleanup.policy": "compact", "compression.type": "zstd"})
    keyed = build_batch([Row(NOW_MS, b"key")], codec=GZIP)
    keyless = build_batch([Row(NOW_MS, b"key"), Row(NOW_MS)], codec=GZIP)
    future = setting.append(setting.batch(0, keyless), setting.batch(1, keyed))
    await until(lambda: len(setting.write_loop.batches) == 1)
    assert setting.write_loop.batches[0].header.codec == ZSTD
    setting.write_loop.settle(0, done(0))
    refused, stored = await future
    assert isinstance(refused.error, KeysMissing)
    assert refused.error.positions == [1]
    assert stored.base_offset == 0


# Fetch


async def test_what_is_there_is_answered_without_waiting(setting: Setting) -> None:
    setting.coordinator.add(P0)
    setting.coordinator.add(P0)
    (result,) = await setting.fetch(at(0, 1))
    assert result == FetchResult(None, 2, 0, [b"wal/0/1"])
    assert setting.coordinator.looked == 1


async def test_a_fetch_at_the_end_waits_for_a_commit_to_its_partition(setting: Setting) -> None:
    task = setting.fetch(at(0), at(1))
    await setting.until_parked()
    setting.commit(P2)
    assert setting.parked == 1
    setting.commit(P1)
    async with asyncio.timeout(SOON_S):
        results = await task
    assert [list(result.records) for result in results] == [[], [b"wal/1/0"]]
    assert setting.coordinator.looked == 2


async def test_a_commit_during_the_look_is_not_missed(setting: Setting) -> None:
    """The answer of the look is old when it comes; nothing else is committed afterwards."""
    setting.coordinator.on_look = lambda: setting.commit(P0)
    async with asyncio.timeout(SOON_S):
        (result,) = await setting.fetch(at(0))
    assert list(result.records) == [b"wal/0/0"]


async def test_min_bytes_are_collected_over_several_commits(setting: Setting) -> None:
    task = setting.fetch(at(0), at(1), min_bytes=250)
    await setting.until_parked()
    for partition in (P0, P1):
        looked = setting.coordinator.looked
        setting.commit(partition)
        await until(lambda: setting.coordinator.looked > looked)  # noqa: B023 - awaited here
        await setting.until_parked()
        assert not task.done()
    setting.commit(P0)
    async with asyncio.timeout(SOON_S):
        results = await task
    assert [len(result.records) for result in results] == [2, 1]


async def test_at_its_deadline_a_fetch_answers_with_what_there_is(setting: Setting) -> None:
    setting.coordinator.add(P1)
    async with asyncio.timeout(SOON_S):
        results = await setting.fetch(at(0), at(1), min_bytes=10_000, max_wait_ms=20)
    assert [list(result.records) for result in results] == [[], [b"wal/1/0"]]
    assert setting.manager.fetcher.purgatory.statistics().expired == 1


async def test_a_fetch_that_may_not_wait_does_not(setting: Setting) -> None:
    (result,) = await setting.fetch(at(0), max_wait_ms=0)
    assert (result.error, result.high_watermark, list(result.records)) == (None, 0, [])
    assert setting.manager.fetcher.purgatory.statistics().completed == 0


async def test_somebody_waiting_behind_it_ends_a_fetch_early(setting: Setting) -> None:
    wake = EarlyEnd()
    task = setting.fetch(at(0), wake=wake)
    await setting.until_parked()
    wake.set()
    async with asyncio.timeout(SOON_S):
        (result,) = await task
    assert (result.error, list(result.records)) == (None, [])
    already = EarlyEnd()
    already.set()
    assert (await setting.fetch(at(0), wake=already))[0].error is None


async def test_a_cancelled_fetch_leaves_no_watch(setting: Setting) -> None:
    wake = EarlyEnd()
    task = setting.fetch(at(0), at(1), wake=wake)
    await setting.until_parked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert setting.parked == 0
    wake.set()
    setting.commit(P0)  # nobody is there to be woken


async def test_an_error_in_one_partition_ends_the_wait_for_all(setting: Setting) -> None:
    results = await setting.fetch(at(0), at(1, 77), at(2, topic_name="nobody"))
    assert [type(result.error) for result in results] == [
        type(None),
        OffsetOutOfRange,
        UnknownPartition,
    ]
    # A client that is out of range resets with these.
    assert (results[1].high_watermark, results[1].log_start_offset) == (0, 0)


async def test_answers_are_in_the_order_of_the_request(setting: Setting) -> None:
    for partition in (P0, P1, P2):
        setting.coordinator.add(partition)
    results = await setting.fetch(at(2), at(0), at(5), at(1))
    assert [list(result.records) for result in results] == [
        [b"wal/2/0"],
        [b"wal/0/0"],
        [],
        [b"wal/1/0"],
    ]


async def test_leader_epochs_other_than_ours_are_fenced(setting: Setting) -> None:
    setting.coordinator.add(P0)
    results = await setting.fetch(
        at(0, current_leader_epoch=0),
        at(0, current_leader_epoch=1),
        at(0, current_leader_epoch=-2),
    )
    assert [type(result.error) for result in results] == [
        type(None),
        UnknownLeaderEpoch,
        FencedLeaderEpoch,
    ]


async def test_an_object_that_vanished_is_looked_up_once_more(setting: Setting) -> None:
    """As when tiering replaces batches between the look and the read."""
    setting.coordinator.add(P0)
    setting.coordinator.add(P1)
    setting.reader.errors["wal/0/0"] = ObjectNotFound("wal/0/0")

    def tiered() -> None:
        (old,) = setting.coordinator.extents[P0]
        setting.coordinator.extents[P0] = [old._replace(object_key=ObjectKey("elsewhere"))]

    setting.reader.on_read = tiered
    results = await setting.fetch(at(0), at(1))
    assert [list(result.records) for result in results] == [[b"elsewhere"], [b"wal/1/0"]]
    assert setting.coordinator.looked == 2


async def test_an_object_that_stays_away_is_an_error_and_not_asked_for_ever(
    setting: Setting,
) -> None:
    setting.coordinator.add(P0)
    setting.coordinator.add(P1)
    setting.reader.errors["wal/0/0"] = ObjectNotFound("wal/0/0")
    results = await setting.fetch(at(0), at(1))
    assert isinstance(results[0].error, ObjectNotFound)
    assert list(results[1].records) == [b"wal/1/0"]
    assert len(setting.reader.requests) == 2


async def test_damage_shows_only_when_nothing_lies_before_it(setting: Setting) -> None:
    for _ in range(3):
        setting.coordinator.add(P0)
    setting.reader.errors["wal/0/1"] = CorruptObject("wal/0/1")
    (before,) = await setting.fetch(at(0))
    assert (before.error, list(before.records)) == (None, [b"wal/0/0"])
    (on_it,) = await setting.fetch(at(0, 1))
    assert isinstance(on_it.error, CorruptObject)
    (after,) = await setting.fetch(at(0, 2))
    assert (after.error, list(after.records)) == (None, [b"wal/0/2"])


async def test_a_deleted_topic_is_told_to_the_fetches_that_wait_for_it(setting: Setting) -> None:
    by_name = setting.fetch(at(0))
    by_id = setting.fetch(at(0, topic_id=TOPIC.topic_id, topic_name=""))
    await setting.until_parked(2)
    del setting.coordinator.by_name["t"]
    setting.manager.forget([P0, P1, P2])
    async with asyncio.timeout(SOON_S):
        assert isinstance((await by_name)[0].error, UnknownPartition)
        assert isinstance((await by_id)[0].error, UnknownTopicId)


async def test_closing_answers_the_fetches_that_still_wait(setting: Setting) -> None:
    task = setting.fetch(at(0))
    await setting.until_parked()
    setting.manager.close()
    async with asyncio.timeout(SOON_S):
        assert (await task)[0].error is None


async def test_the_brokers_own_limit_caps_what_a_client_may_ask_for(setting: Setting) -> None:
    # min_bytes above what may be answered would never come.
    setting.coordinator.add(P0, length_bytes=1 << 20)
    async with asyncio.timeout(SOON_S):
        (result,) = await setting.fetch(at(0), min_bytes=1 << 30, max_bytes=1 << 30)
    assert list(result.records) == [b"wal/0/0"]


async def test_a_fetch_reserves_what_it_reads_when_it_reads_it(setting: Setting) -> None:
    setting.granted_bytes = 250
    task = setting.fetch(at(0), at(1), min_bytes=300)
    await setting.until_parked()
    setting.commit(P0, length_bytes=200)
    await setting.until_parked()
    assert setting.reserved == [], "who waits for data holds none"
    setting.commit(P1, length_bytes=150)
    await task
    assert setting.reserved == [350]
    assert setting.reader.max_bytes == [250]


async def test_a_special_timestamp_that_does_not_exist_is_refused(setting: Setting) -> None:
    (result,) = await setting.manager.list_offsets(
        [ListOffsetsPartition("t", 0, -6, -1)], isolation=0, client=CLIENT
    )
    assert isinstance(result.error, InvalidRequest)


# The metadata topic


async def test_the_metadata_topic_is_fetched_by_name_and_by_id(setting: Setting) -> None:
    logged = [await setting.log(), await setting.log()]
    for request in (at_log(), at_log(topic_id=METADATA_TOPIC_ID)._replace(topic_name="")):
        (result,) = await setting.fetch(request)
        assert result == (None, 4, 0, logged)
    for missing in (at_log(2), at_log(-1)):
        (result,) = await setting.fetch(missing)
        assert isinstance(result.error, UnknownPartition)
    (result,) = await setting.fetch(at_log(offset=5))
    assert isinstance(result.error, OffsetOutOfRange)
    assert (result.high_watermark, result.log_start_offset) == (4, 0)
    (result,) = await setting.fetch(at_log(current_leader_epoch=1))
    assert isinstance(result.error, UnknownLeaderEpoch)


async def test_what_is_applied_wakes_the_fetch_that_waits_for_it(setting: Setting) -> None:
    task = setting.fetch(at_log(0), at_log(1), at(0))
    await setting.until_parked()
    looked = setting.coordinator.looked
    logged = await setting.log(1)
    async with asyncio.timeout(SOON_S):
        results = await task
    assert [list(result.records) for result in results] == [[], [logged], []]
    assert setting.coordinator.looked == looked, "nothing happened to the partition at its end"
    # Of others it hears nothing.
    task = setting.fetch(at_log(0))
    await setting.until_parked()
    await setting.log(1)
    assert setting.parked == 1
    await setting.log(0)
    await task


async def test_a_commit_wakes_a_fetch_of_both(setting: Setting) -> None:
    task = setting.fetch(at_log(0), at(0))
    await setting.until_parked()
    setting.commit(P0)
    async with asyncio.timeout(SOON_S):
        results = await task
    assert [list(result.records) for result in results] == [[], [b"wal/0/0"]]


async def test_any_of_the_metadata_topic_is_enough_to_answer(setting: Setting) -> None:
    logged = await setting.log()
    async with asyncio.timeout(SOON_S):
        (result,) = await setting.fetch(at_log(), min_bytes=1 << 20)
    assert result.records == [logged]


async def test_both_share_the_limit_and_who_is_asked_first_comes_first(setting: Setting) -> None:
    logged = await setting.log()
    setting.coordinator.add(P0)
    of_batches = len(b"wal/0/0")

    # The log first: it takes what it needs, and what is left is for the batches.
    log, batches = await setting.fetch(at_log(), at(0), max_bytes=len(logged))
    assert (log.records, list(batches.records)) == ([logged], [b"wal/0/0"])
    assert (setting.reader.max_bytes.pop(), setting.reader.at_least_one.pop()) == (0, False)
    log, batches = await setting.fetch(at_log(), at(0), max_bytes=1)
    assert log.records == [logged], "one batch comes whatever the limit"
    assert (setting.reader.max_bytes.pop(), setting.reader.at_least_one.pop()) == (
        1 - len(logged),
        False,
    )

    # The batches first: what they leave is for the log.
    batches, log = await setting.fetch(at(0), at_log(), max_bytes=of_batches + len(logged))
    assert (list(batches.records), log.records) == ([b"wal/0/0"], [logged])
    assert setting.reader.at_least_one.pop()
    batches, log = await setting.fetch(at(0), at_log(), max_bytes=of_batches + len(logged) - 1)
    assert (list(batches.records), list(log.records)) == ([b"wal/0/0"], [])
    assert (log.error, log.high_watermark) == (None, 2)

    # Nothing of the batches can be read: then the log gives the one that must come.
    setting.reader.errors["wal/0/0"] = CorruptObject("wal/0/0")
    batches, log = await setting.fetch(at(0), at_log(), max_bytes=1)
    assert isinstance(batches.error, CorruptObject)
    assert log.records == [logged]


async def test_the_metadata_topic_counts_in_what_a_fetch_reserves(setting: Setting) -> None:
    logged = [await setting.log() for _ in range(3)]
    setting.coordinator.add(P0, length_bytes=200)
    setting.granted_bytes = 2 * len(logged[0])
    (log, _) = await setting.fetch(at_log(max_bytes=1_000), at(0))
    assert setting.reserved == [1_200]
    assert log.records == logged[:2]


async def test_batches_that_moved_meanwhile_are_found_again_beside_a_log(
    setting: Setting,
) -> None:
    logged = await setting.log()
    setting.coordinator.add(P0)
    setting.reader.errors["wal/0/0"] = ObjectNotFound("wal/0/0")
    setting.reader.on_read = setting.reader.errors.clear
    batches, log = await setting.fetch(at(0), at_log())
    assert (list(batches.records), log.records) == ([b"wal/0/0"], [logged])


async def test_nothing_is_appended_to_the_metadata_topic(setting: Setting) -> None:
    future = setting.append(setting.batch(topic=METADATA_TOPIC), setting.batch())
    setting.write_loop.settle(0, done(0))
    refused, appended = await future
    assert isinstance(refused.error, InvalidTopic)
    assert appended.base_offset == 0
    assert [batch.partition for batch in setting.write_loop.batches] == [P0]


async def test_offsets_of_the_metadata_topic_are_listed_beside_others(setting: Setting) -> None:
    await setting.log()
    wanted = [(METADATA_TOPIC, 0, -1), ("nobody", 0, -1), (METADATA_TOPIC, 1, -1)]
    wanted += [(METADATA_TOPIC, 2, -1), (METADATA_TOPIC, 0, NOW_MS), (METADATA_TOPIC, 0, -6)]
    results = await setting.manager.list_offsets(
        [ListOffsetsPartition(*item, -1) for item in wanted], isolation=0, client=CLIENT
    )
    assert [(type(result.error), result.offset) for result in results] == [
        (type(None), 2),
        (UnknownPartition, -1),
        (type(None), 0),
        (UnknownPartition, -1),
        (type(None), 0),
        (InvalidRequest, -1),
    ]
