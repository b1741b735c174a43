"""Topics and their logs in memory, which fail and wait as a test says."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import Steps
from diskless.ports import (
    AT_ONCE,
    ClientInfo,
    FetchPartition,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsResult,
    ProducedBatches,
)
from diskless.protocol.batch_scan import ScannedBatch, scanned_batches
from metadata import operations as ops
from wal import errors
from wal.chunks.buffer import FragmentChain
from wal.records.record_batch import assign_offsets, parse_header

HIGH_WATERMARK: Final = 7


@dataclass
class FakeTopics:
    """`TopicAdmin` and `ProducerIds` in two dictionaries."""

    auto_create_enabled: bool = True
    default_partition_count: int = 1
    max_partition_count: int = 1_000
    known: dict[str, ops.TopicDescription] = field(default_factory=dict)
    randomness: random.Random = field(default_factory=lambda: random.Random(7))
    failure: errors.DisklessError | None = None
    next_producer_id: int = 1_000
    deletions: list[ops.DeleteRecords] = field(default_factory=list)
    """All that were asked for; each partition's high watermark counts as HIGH_WATERMARK."""

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        return self.known

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None:
        return next((t for t in self.known.values() if t.topic_id == topic_id), None)

    def add(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> ops.TopicDescription:
        topic = ops.TopicDescription(
            topic_id=UUID(int=self.randomness.getrandbits(128)),
            name=name,
            partition_count=partitions,
            configs=configs or {},
        )
        self.known[name] = topic
        return topic

    async def create_topics(
        self, topics: Sequence[ops.CreateTopic]
    ) -> Sequence[ops.TopicDescription | errors.DisklessError]:
        if self.failure is not None:
            raise self.failure
        return [
            errors.TopicExists(topic.name)
            if topic.name in self.known
            else self.add(topic.name, topic.partition_count, dict(topic.configs))
            for topic in topics
        ]

    async def delete_topics(
        self, topic_ids: Sequence[UUID]
    ) -> Sequence[errors.DisklessError | None]:
        results: list[errors.DisklessError | None] = []
        for topic_id in topic_ids:
            topic = self.topic_by_id(topic_id)
            if topic is None:
                results.append(errors.UnknownTopicId(str(topic_id)))
            else:
                del self.known[topic.name]
                results.append(None)
        return results

    async def create_partitions(
        self, topics: Sequence[ops.CreatePartitions]
    ) -> Sequence[errors.DisklessError | None]:
        if self.failure is not None:
            raise self.failure
        for topic in topics:
            self.known[topic.name] = replace(
                self.known[topic.name], partition_count=topic.partition_count
            )
        return [None] * len(topics)

    async def alter_configs(
        self, topic_id: UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        if self.failure is not None:
            raise self.failure
        topic = self.topic_by_id(topic_id)
        if topic is None:
            raise errors.UnknownTopicId(str(topic_id))
        self.known[topic.name] = replace(topic, configs=dict(change(topic.configs)))

    async def delete_records(
        self, requests: Sequence[ops.DeleteRecords]
    ) -> Sequence[ops.DeletedRecords]:
        if self.failure is not None:
            raise self.failure
        self.deletions += requests
        return [
            ops.DeletedRecords(5, errors.OffsetOutOfRange(str(offset)))
            if offset > HIGH_WATERMARK
            else ops.DeletedRecords(HIGH_WATERMARK if offset == -1 else offset)
            for _, offset in requests
        ]

    async def allocate_producer_id(self) -> int:
        if self.failure is not None:
            raise self.failure
        self.next_producer_id += 1
        return self.next_producer_id


@dataclass
class FakeLog:
    """One partition: batches with their offsets assigned."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(base offset, next offset, bytes)"""
    next_offset: int = 0


class FakeReplicaManager:
    """Commits at once, unless `hold` is set; keeps the records of each append in arrival order."""

    def __init__(self, topics: FakeTopics) -> None:
        self._topics = topics
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.appended: list[bytes] = []
        self.hold = False
        self.held: list[asyncio.Future[Sequence[ops.BatchCommit]]] = []
        self.keeps_memory = False
        """Whether a held append also holds its records, as a full write queue does."""
        self.kept: deque[FragmentChain] = deque()
        self.raises: Exception | None = None
        self.append_error: errors.DisklessError | None = None
        self.clients: list[ClientInfo] = []
        self.transactional_ids: list[str | None] = []
        """Of each append."""
        self.fetches_running = 0
        self.fetches_cancelled = 0
        self.fetch_records: Sequence[bytes] | None = None
        """When set, every Fetch gives these, once `fetch_gate` is open."""
        self.fetch_gate = asyncio.Event()
        self.fetch_gate.set()
        self.fetches_granted: list[tuple[int, int]] = []
        """What each of them wanted to read, and how much of it was granted."""
        self._arrived = asyncio.Event()

    def append(
        self,
        batches: ProducedBatches,
        *,
        timeout_ms: int,
        produce_version: int,
        client: ClientInfo,
        transactional_id: str | None = None,
    ) -> Steps[asyncio.Future[Sequence[ops.BatchCommit]]]:
        yield
        self.clients.append(client)
        self.transactional_ids.append(transactional_id)
        if self.raises is not None:
            raise self.raises
        named = [topic.named for topic in batches.topics for _ in range(topic.batch_count)]
        results = [
            self._append_one(name, batch, batches.frame)
            for name, batch in zip(named, scanned_batches(batches.rows), strict=True)
        ]
        if self.hold and self.keeps_memory:
            self.kept.append(batches.frame.share(0, len(batches.frame)))
        future: asyncio.Future[Sequence[ops.BatchCommit]] = (
            asyncio.get_running_loop().create_future()
        )
        if self.hold:
            self.held.append(future)
            future.results = results  # type: ignore[attr-defined]
        else:
            future.set_result(results)
        self._wake_fetches()
        return future

    def release_held(self, index: int = 0) -> None:
        future = self.held.pop(index)
        if self.kept:
            self.kept.popleft().release()
        future.set_result(future.results)  # type: ignore[attr-defined]

    def _append_one(
        self, named: str | UUID, batch: ScannedBatch, frame: FragmentChain
    ) -> ops.BatchCommit:
        if self.append_error is not None:
            return ops.BatchCommit(error=self.append_error)
        if batch.size < 0:
            return ops.BatchCommit(error=errors.InvalidRecord("null"))
        data = frame.copy_bytes(batch.position, batch.size)
        self.appended.append(data)
        if isinstance(named, UUID):
            topic = self._topics.topic_by_id(named)
            if topic is None:
                return ops.BatchCommit(error=errors.UnknownTopicId(f"no {named}"))
        else:
            topic = self._topics.known.get(named)
        if topic is None or not 0 <= batch.partition < topic.partition_count:
            return ops.BatchCommit(error=errors.UnknownPartition(f"no {named}"))
        log = self.logs.setdefault((topic.name, batch.partition), FakeLog())
        count = parse_header(data).record_count
        base = log.next_offset
        stored = bytearray(data)
        assign_offsets(stored, 0, base)
        log.next_offset += count
        log.batches.append((base, log.next_offset, bytes(stored)))
        return ops.BatchCommit(base, -1, 0)

    async def fetch(
        self,
        requests: Sequence[FetchPartition],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: int,
        client: ClientInfo,
        wake: EarlyEnd,
        reserve: Callable[[int], int],
        read_turn: AbstractAsyncContextManager[None] = AT_ONCE,
    ) -> Sequence[FetchResult]:
        if self.raises is not None:
            raise self.raises
        if self.fetch_records is not None:
            wanted = min(max_bytes, sum(map(len, self.fetch_records)) * len(requests))
            self.fetches_granted.append((wanted, reserve(wanted)))
            await self.fetch_gate.wait()
            return [FetchResult(None, 5, 0, self.fetch_records, 5) for _ in requests]
        self.fetches_running += 1
        ended = asyncio.Event()
        wake.listen(ended.set)
        try:
            async with asyncio.timeout(max_wait_ms / 1000):
                while not ended.is_set():
                    results = [self._fetch_one(request, max_bytes) for request in requests]
                    ready = sum(len(part) for result in results for part in result.records)
                    if ready >= min_bytes or any(r.error for r in results):
                        return results
                    self._arrived.clear()
                    waits = [
                        asyncio.ensure_future(event.wait()) for event in (ended, self._arrived)
                    ]
                    try:
                        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for waiting in waits:
                            waiting.cancel()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.fetches_cancelled += 1
            raise
        finally:
            wake.listen(None)
            self.fetches_running -= 1
        return [self._fetch_one(request, max_bytes) for request in requests]

    async def bounds(self, requests: Sequence[FetchPartition]) -> Sequence[FetchResult]:
        return [self._fetch_one(request, 0)._replace(records=()) for request in requests]

    def _wake_fetches(self) -> None:
        self._arrived.set()

    def _fetch_one(self, request: FetchPartition, max_bytes: int) -> FetchResult:
        name = request.topic_name
        if request.topic_id is not None:
            topic = self._topics.topic_by_id(request.topic_id)
            if topic is None:
                return FetchResult(error=errors.UnknownTopicId("no such id"))
            name = topic.name
        if name not in self._topics.known:
            return FetchResult(error=errors.UnknownPartition("no such topic"))
        log = self.logs.get((name, request.partition), FakeLog())
        if not 0 <= request.offset <= log.next_offset:
            return FetchResult(error=errors.OffsetOutOfRange(str(request.offset)))
        records: list[bytes] = []
        for _, end, data in log.batches:
            if end <= request.offset:
                continue
            if records and sum(map(len, records)) + len(data) > max_bytes:
                break
            records.append(data)
        return FetchResult(None, log.next_offset, 0, records, log.next_offset)

    async def list_offsets(
        self, requests: Sequence[ListOffsetsPartition], *, isolation: int, client: ClientInfo
    ) -> Sequence[ListOffsetsResult]:
        if isinstance(self.raises, errors.DisklessError):
            raise self.raises
        results = []
        for request in requests:
            log = self.logs.get((request.topic_name, request.partition), FakeLog())
            if request.topic_name not in self._topics.known:
                results.append(ListOffsetsResult(error=errors.UnknownPartition("no such topic")))
            elif request.timestamp == -1:
                results.append(ListOffsetsResult(None, log.next_offset))
            elif request.timestamp == -2:
                results.append(ListOffsetsResult(None, 0))
            else:
                results.append(ListOffsetsResult())
        return results
