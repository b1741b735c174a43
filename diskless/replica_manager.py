"""Append and fetch: the one place that knows what a partition's log is.

The API handlers decode, call this, and encode. Below it lie the write loop (batches in), the
coordinator (offsets), and the batch reader (bytes out). It owns both purgatories:

- A **delayed produce** waits until each of its batches has an outcome. The commit lane delivers
  them one by one; the last one completes the operation. Its deadline answers REQUEST_TIMED_OUT,
  because a batch whose outcome is not known may still be committed.
- A **delayed fetch** waits until one of its partitions is committed to, and is woken by the commit
  itself, never by polling; then it looks whether there are `min_bytes` now. It remembers when it
  looked, so that a commit between the look and the watch is not missed.

Invariants: `append` hands its batches to the write loop before it returns, in request order; those
of a topic with a compression.type may follow a little later, in order too. Every batch gets exactly
one outcome, and every fragment chain is released exactly once. Nothing below the high watermark is
called out of range: the high watermark comes from the coordinator's committed state, which this
broker's own answers never run ahead of.

The metadata topic is read from the metadata logs themselves (diskless/metadata_topic.py), in the
same requests, under the same limits and with the same waits; nothing can be appended to it.

Source: "Purgatory Redesign"; KIP-1163/1164; reference behaviour per Kafka's ReplicaManager.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from diskless.batch_reader import BatchReader, ReadRequest, ReadResult
from diskless.metadata_topic import LogPartition, LogRead, MetadataTopic
from diskless.ports import (
    LEADER_EPOCH,
    AppendBatch,
    AppendResult,
    ClientInfo,
    EarlyEnd,
    FetchPartition,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsResult,
)
from diskless.purgatory import DelayedOperation, Purgatory
from diskless.recompression import Recompression
from diskless.timestamp_search import TimestampSearch
from diskless.topic_configs import compression_of, topic_rules
from metadata.operations import (
    LATEST_TIERED_TIMESTAMP,
    BatchCommit,
    Coordinator,
    FindBatches,
    FoundBatches,
    ListOffsets,
    TopicDescription,
    WalExtent,
)
from wal.batch_validation import TopicRules, validate_batch
from wal.clock import Clock
from wal.coordinates import LOG_APPEND_TIME, TopicIdPartition
from wal.errors import (
    DisklessError,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    ObjectNotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownTopicId,
)
from wal.recompression import Compression
from wal.write_loop import PendingBatch, WriteLoop


class DelayedProduce(DelayedOperation):
    """One Produce request; complete when every batch has its outcome."""

    __slots__ = ("future", "open_batches", "results")

    def __init__(self, future: "asyncio.Future[Sequence[AppendResult]]", count: int) -> None:
        super().__init__()
        self.future = future
        self.results: list[AppendResult | None] = [None] * count
        self.open_batches = count

    def settle(self, index: int, result: AppendResult) -> None:
        """The outcome of one batch; late outcomes of an expired produce change nothing."""
        if self.results[index] is None:
            self.results[index] = result
            self.open_batches -= 1

    def is_satisfied(self) -> bool:
        return self.open_batches == 0

    def on_expiration(self) -> None:
        timed_out = AppendResult(
            error=OutcomeUnknown("not committed within the request's timeout; it may still be")
        )
        self.results = [result or timed_out for result in self.results]

    def on_complete(self) -> None:
        if not self.future.done():
            self.future.set_result([result for result in self.results if result is not None])


class _Waiter:
    """The token of one pending batch: where its outcome goes."""

    __slots__ = ("_index", "_produce", "_timestamp_type")

    def __init__(self, produce: DelayedProduce, index: int, timestamp_type: int) -> None:
        self._produce = produce
        self._index = index
        self._timestamp_type = timestamp_type

    def batch_done(self, result: BatchCommit) -> None:
        append_time = -1
        if self._timestamp_type == LOG_APPEND_TIME:
            append_time = result.log_append_time_ms
        self._produce.settle(
            self._index,
            AppendResult(result.error, result.base_offset, append_time, result.log_start_offset),
        )
        self._produce.try_complete()


class CommitClock:
    """Which partitions were committed to since when; ticks once per commit."""

    def __init__(self) -> None:
        self.now = 0
        self._last: dict[TopicIdPartition, int] = {}

    def tick(self, partitions: Collection[TopicIdPartition]) -> None:
        self.now += 1
        for partition in partitions:
            self._last[partition] = self.now

    def any_since(self, then: int, partitions: Sequence[TopicIdPartition]) -> bool:
        """Whether one of `partitions` was committed to after `then`."""
        if self.now == then:
            return False
        last = self._last
        return any(last.get(partition, 0) > then for partition in partitions)

    def forget(self, partition: TopicIdPartition) -> None:
        self._last.pop(partition, None)


class DelayedFetch(DelayedOperation):
    """A Fetch that found too little; complete when one of its partitions was committed to."""

    __slots__ = ("_clock", "_looked_at", "_partitions", "future")

    def __init__(
        self,
        future: "asyncio.Future[None]",
        partitions: Sequence[TopicIdPartition],
        clock: CommitClock,
        looked_at: int,
    ) -> None:
        super().__init__()
        self.future = future
        self._partitions = partitions
        self._clock = clock
        self._looked_at = looked_at

    def is_satisfied(self) -> bool:
        return self._clock.any_since(self._looked_at, self._partitions)

    def on_complete(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def end_early(self) -> None:
        self.force_complete()


class _TopicRules(NamedTuple):
    """What produced batches are judged by and made into, made of a topic's configs once."""

    topic: TopicDescription
    batches: TopicRules
    compression: Compression | None


class ReplicaStatistics(NamedTuple):
    """Counters since the start."""

    batches_appended: int
    bytes_appended: int
    batches_rejected: int
    fetches: int


class ReplicaManager:
    """`diskless.ports.ReplicaManager` over write loop, coordinator and batch reader."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        write_loop: WriteLoop,
        reader: BatchReader,
        search: TimestampSearch,
        clock: Clock,
        fetch_max_bytes: int,
        metadata_topic: MetadataTopic | None = None,
        recompression: Recompression | None = None,
        topic_defaults: Mapping[str, str] | None = None,
    ) -> None:
        """Without `recompression` all batches stay as they were sent, whatever a topic says.

        `topic_defaults` are the configs of topics that do not set them, where these differ from
        the built-in ones.
        """
        self._coordinator = coordinator
        self._write_loop = write_loop
        self._reader = reader
        self._search = search
        self._clock = clock
        self._fetch_max_bytes = fetch_max_bytes
        self._metadata_topic = metadata_topic or MetadataTopic(())
        self._loop = asyncio.get_running_loop()
        self.produce_purgatory: Purgatory[TopicIdPartition] = Purgatory("produce")
        self.fetch_purgatory: Purgatory[TopicIdPartition] = Purgatory("fetch")
        self._recompression = recompression
        self._topic_defaults = topic_defaults or {}
        self._rules: dict[UUID, _TopicRules] = {}
        self._commits = CommitClock()
        self._next_request_id = 0
        self._batches_appended = 0
        self._bytes_appended = 0
        self._batches_rejected = 0
        self._fetches = 0
        self._is_closing = False

    def statistics(self) -> ReplicaStatistics:
        return ReplicaStatistics(
            self._batches_appended, self._bytes_appended, self._batches_rejected, self._fetches
        )

    def close(self) -> None:
        """Answer whatever still waits, and let nothing wait any more; for a clean stop."""
        self._is_closing = True
        self.produce_purgatory.expire_all()
        self.fetch_purgatory.expire_all()

    # Append

    def append(
        self,
        batches: Sequence[AppendBatch],
        *,
        acks: int,
        timeout_ms: int,
        produce_version: int,
        client: ClientInfo,
    ) -> "asyncio.Future[Sequence[AppendResult]]":
        """See `diskless.ports.ReplicaManager.append`."""
        future: asyncio.Future[Sequence[AppendResult]] = self._loop.create_future()
        produce = DelayedProduce(future, len(batches))
        pending: list[PendingBatch] = []
        request_id = self._next_request_id
        self._next_request_id = (request_id + 1) & 0x7FFFFFFF
        for index, batch in enumerate(batches):
            try:
                valid, rules = self._validated(
                    batch, produce, index, request_id, produce_version, acks
                )
                if not self._is_held(valid, rules):
                    pending.append(valid)
            except DisklessError as error:
                self._batches_rejected += 1
                produce.settle(index, AppendResult(error=error))
                if batch.records is not None:
                    batch.records.release()
        if pending:
            self._hand_on(pending)
        # Only the deadline is watched: a produce is told of its batches' outcomes, it need not ask.
        self.produce_purgatory.try_complete_else_watch(produce, (), max(timeout_ms, 1) / 1000)
        return future

    def _hand_on(self, batches: Sequence[PendingBatch]) -> None:
        try:
            self._write_loop.append_nowait(batches)
        except DisklessError as error:
            for batch in batches:
                _refuse(batch, error)
        else:
            self._batches_appended += len(batches)

    def _is_held(self, batch: PendingBatch, rules: _TopicRules) -> bool:
        """Whether the batch comes later, because it or one before it is being recompressed."""
        if self._recompression is None:
            return False
        return self._recompression.takes(
            batch,
            rules.compression,
            max_bytes=rules.batches.max_message_bytes,
            hand_on=lambda batch: self._hand_on([batch]),
            refuse=self._cannot_recompress,
        )

    def _cannot_recompress(self, batch: PendingBatch, error: DisklessError) -> None:
        self._batches_rejected += 1
        _refuse(batch, error)

    def _validated(
        self,
        batch: AppendBatch,
        produce: DelayedProduce,
        index: int,
        request_id: int,
        produce_version: int,
        acks: int,
    ) -> tuple[PendingBatch, _TopicRules]:
        """Kafka's per-partition checks. Raises the Rejected that names what is wrong."""
        if acks not in (-1, 0, 1):
            raise InvalidRequest(f"acks must be -1, 0 or 1, not {acks}")
        topic = self._topic(batch.topic_name, batch.topic_id, batch.partition)
        if topic is self._metadata_topic.description:
            raise InvalidTopic(f"{topic.name} is the cluster's own: clients can only read it")
        if batch.records is None or batch.records.length_bytes == 0:
            raise InvalidRecord(f"no batch for {topic.name}-{batch.partition}")
        rules = self._rules_of(topic)
        header = validate_batch(
            batch.records.views(),
            total_bytes=batch.records.length_bytes,
            rules=rules.batches,
            produce_version=produce_version,
            now_ms=self._clock.now_ms(),
        )
        self._bytes_appended += header.length_bytes
        timestamp_type = rules.batches.timestamp_type
        pending = PendingBatch(
            partition=TopicIdPartition(topic.topic_id, batch.partition),
            header=header,
            timestamp_type=timestamp_type,
            request_id=request_id,
            payload=batch.records,
            token=_Waiter(produce, index, timestamp_type),
        )
        return pending, rules

    # Fetch

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
    ) -> Sequence[FetchResult]:
        """See `diskless.ports.ReplicaManager.fetch`."""
        self._fetches += 1
        max_bytes = min(max_bytes, self._fetch_max_bytes)
        min_bytes = min(min_bytes, max_bytes)
        deadline = self._loop.time() + max_wait_ms / 1000
        while True:
            # Anew each time: the topic may have been deleted while this waited.
            resolved = [self._resolve_fetch(request) for request in requests]
            keys = _keys_of(resolved)
            looked_at = self._commits.now
            found = await self._find(requests, resolved, max_bytes)
            logs = _readable_logs(requests, resolved, found)
            left_s = deadline - self._loop.time()
            if (
                left_s <= 0
                or not keys
                or wake.is_set()
                or self._is_closing
                or any(batches.error is not None for batches in found)
                or logs
                or _size_bytes(found) >= min_bytes
            ):
                to_read = _bytes_to_read(requests, found) + sum(
                    log.max_bytes for log in logs.values()
                )
                granted = reserve(min(max_bytes, to_read))
                return await self._read(requests, resolved, found, logs, granted)
            await self._wait_for_commit(keys, looked_at, left_s, wake)

    def committed(self, partitions: Collection[TopicIdPartition]) -> None:
        """The coordinator applied a commit: wake the fetches that wait for these partitions."""
        self._commits.tick(partitions)
        for partition in partitions:
            self.fetch_purgatory.check_and_complete(partition)

    def forget(self, partitions: Collection[TopicIdPartition]) -> None:
        """These partitions are gone: fetches that wait for them find that out now."""
        for partition in partitions:
            self.fetch_purgatory.force_complete_all(partition)
            self._commits.forget(partition)
            self._rules.pop(partition.topic_id, None)

    async def _wait_for_commit(
        self, keys: Sequence[TopicIdPartition], looked_at: int, timeout_s: float, wake: EarlyEnd
    ) -> None:
        """Until a commit to one of `keys` after `looked_at`, the deadline, or `wake`."""
        delayed = DelayedFetch(self._loop.create_future(), keys, self._commits, looked_at)
        try:
            if not self.fetch_purgatory.try_complete_else_watch(delayed, keys, timeout_s):
                wake.listen(delayed.end_early)
                await delayed.future
        finally:
            wake.listen(None)
            delayed.force_complete()

    async def _read(
        self,
        requests: Sequence[FetchPartition],
        resolved: Sequence["_Target"],
        found: Sequence[FoundBatches],
        logs: Mapping[int, LogRead],
        max_bytes: int,
    ) -> list[FetchResult]:
        """The answer, in request order, from what was found before.

        The metadata topic comes first where it is asked for first; clients ask in turn.
        """
        if not logs:
            return await self._read_batches(requests, resolved, found, max_bytes)
        pieces: Sequence[ReadResult] = ()
        first_batches = next((i for i, batches in enumerate(found) if batches.extents), None)
        are_logs_first = first_batches is None or min(logs) < first_batches
        size = 0
        if are_logs_first:
            pieces = await self._metadata_topic.read(
                [*logs.values()], max_bytes=max_bytes, at_least_one=True
            )
            size = sum(piece.size_bytes for piece in pieces)
        results = await self._read_batches(
            requests, resolved, found, max_bytes - size, at_least_one=not size
        )
        if not are_logs_first:
            size = sum(len(buffer) for result in results for buffer in result.records)
            pieces = await self._metadata_topic.read(
                [*logs.values()], max_bytes=max_bytes - size, at_least_one=not size
            )
        for index, piece in zip(logs, pieces, strict=True):
            results[index] = _fetch_result(found[index], piece)
        return results

    async def _read_batches(
        self,
        requests: Sequence[FetchPartition],
        resolved: Sequence["_Target"],
        found: Sequence[FoundBatches],
        max_bytes: int,
        *,
        at_least_one: bool = True,
    ) -> list[FetchResult]:
        """What extents give; of the metadata topic only the bounds."""
        reads, places = _reads_of(requests, resolved, found)
        pieces = await self._read_extents(reads, max_bytes, at_least_one)
        if any(isinstance(piece.error, ObjectNotFound) for piece in pieces):
            # Tiering or retention released the object between the look-up and the read. The
            # coordinator knows where the data is now; if it still names the object, it is lost.
            found = await self._find(requests, resolved, max_bytes)
            reads, places = _reads_of(requests, resolved, found)
            pieces = await self._read_extents(reads, max_bytes, at_least_one)
        read_at = dict(zip(places, pieces, strict=True))
        return [_fetch_result(batches, read_at.get(index)) for index, batches in enumerate(found)]

    async def _read_extents(
        self, reads: Sequence[ReadRequest], max_bytes: int, at_least_one: bool
    ) -> Sequence[ReadResult]:
        if not reads:
            return []
        return await self._reader.read(reads, max_bytes=max_bytes, at_least_one=at_least_one)

    async def _find(
        self,
        requests: Sequence[FetchPartition],
        resolved: Sequence["_Target"],
        max_bytes: int,
    ) -> list[FoundBatches]:
        wanted = [
            FindBatches(target, request.offset, request.max_bytes)
            for request, target in zip(requests, resolved, strict=True)
            if isinstance(target, TopicIdPartition)
        ]
        answers = iter(
            await self._coordinator.find_batches(wanted, max_bytes=max_bytes) if wanted else ()
        )
        found = []
        for request, target in zip(requests, resolved, strict=True):
            if isinstance(target, TopicIdPartition):
                found.append(next(answers))
            elif isinstance(target, LogPartition):
                found.append(await self._metadata_topic.find(target, request.offset))
            else:
                found.append(FoundBatches(error=target))
        return found

    def _resolve_fetch(self, request: FetchPartition) -> "_Target":
        try:
            topic = self._topic(request.topic_name, request.topic_id, request.partition)
            _check_leader_epoch(request.current_leader_epoch)
        except DisklessError as error:
            return error
        return self._target(topic, request.partition)

    # Offsets

    async def list_offsets(
        self, requests: Sequence[ListOffsetsPartition], *, isolation: int, client: ClientInfo
    ) -> Sequence[ListOffsetsResult]:
        """See `diskless.ports.ReplicaManager.list_offsets`. Isolation levels do not differ yet."""
        targets: list[_Target] = []
        for request in requests:
            try:
                topic = self._topic(request.topic_name, None, request.partition)
                _check_leader_epoch(request.current_leader_epoch)
                if request.timestamp < LATEST_TIERED_TIMESTAMP:
                    raise InvalidRequest(f"no such special timestamp: {request.timestamp}")
                targets.append(self._target(topic, request.partition))
            except DisklessError as error:
                targets.append(error)
        wanted = [
            ListOffsets(target, request.timestamp)
            for request, target in zip(requests, targets, strict=True)
            if isinstance(target, TopicIdPartition)
        ]
        answers = iter(await self._coordinator.list_offsets(wanted) if wanted else ())
        results = []
        for request, target in zip(requests, targets, strict=True):
            if isinstance(target, TopicIdPartition):
                results.append(await self._search.exact(request.timestamp, next(answers)))
            elif isinstance(target, LogPartition):
                results.append(await self._metadata_topic.list_offset(target, request.timestamp))
            else:
                results.append(ListOffsetsResult(error=target))
        return results

    # Topics

    def _topic(self, name: str, topic_id: UUID | None, partition: int) -> TopicDescription:
        """Raises UnknownTopicId or UnknownPartition."""
        if topic_id is not None:
            topic = self._coordinator.topic_by_id(topic_id) or self._internal(topic_id)
            if topic is None:
                raise UnknownTopicId(f"no topic has the id {topic_id}")
        else:
            topic = self._coordinator.topics().get(name) or self._internal(name)
            if topic is None:
                raise UnknownPartition(f"no topic {name}")
        if not 0 <= partition < topic.partition_count:
            raise UnknownPartition(
                f"topic {topic.name} has {topic.partition_count} partitions, no {partition}"
            )
        return topic

    def _internal(self, wanted: str | UUID) -> TopicDescription | None:
        """The topic of this name or id that no coordinator knows."""
        topic = self._metadata_topic.description
        return topic if wanted in (topic.name, topic.topic_id) else None

    def _target(self, topic: TopicDescription, partition: int) -> "_Target":
        if topic is self._metadata_topic.description:
            return LogPartition(partition)
        return TopicIdPartition(topic.topic_id, partition)

    def _rules_of(self, topic: TopicDescription) -> _TopicRules:
        known = self._rules.get(topic.topic_id)
        # Whatever changes about a topic makes another description of it.
        if known is None or known.topic is not topic:
            configs = {**self._topic_defaults, **topic.configs}
            known = _TopicRules(topic, topic_rules(configs), compression_of(configs))
            self._rules[topic.topic_id] = known
        return known


_Target = TopicIdPartition | LogPartition | DisklessError
"""What a request names: a partition in the care of a coordinator, one of the metadata topic, or
nothing that could be read."""


def _refuse(batch: PendingBatch, error: DisklessError) -> None:
    batch.payload.release()
    batch.token.batch_done(BatchCommit(error=error))


def append_failed(batches: Sequence[PendingBatch], error: DisklessError) -> None:
    """The write loop could not store these batches: that is their outcome."""
    for batch in batches:
        batch.token.batch_done(BatchCommit(error=error))


def _check_leader_epoch(current: int) -> None:
    if current in (-1, LEADER_EPOCH):
        return
    if current > LEADER_EPOCH:
        raise UnknownLeaderEpoch(f"leader epoch {current} is ahead of {LEADER_EPOCH}")
    raise FencedLeaderEpoch(f"leader epoch {current} is behind {LEADER_EPOCH}")


def _keys_of(resolved: Sequence[_Target]) -> list[TopicIdPartition]:
    """What a fetch waits for."""
    keys = []
    for target in resolved:
        if isinstance(target, TopicIdPartition):
            keys.append(target)
        elif isinstance(target, LogPartition):
            keys.append(target.key)
    return keys


def _readable_logs(
    requests: Sequence[FetchPartition],
    resolved: Sequence[_Target],
    found: Sequence[FoundBatches],
) -> dict[int, LogRead]:
    """What there is to read of the metadata topic, by its position in the request.

    How much that is shows when it is read, so any of it ends the wait.
    """
    return {
        index: LogRead(target, requests[index].offset, requests[index].max_bytes)
        for index, target in enumerate(resolved)
        if isinstance(target, LogPartition)
        and found[index].error is None
        and requests[index].offset < found[index].high_watermark
    }


def _reads_of(
    requests: Sequence[FetchPartition],
    resolved: Sequence[_Target],
    found: Sequence[FoundBatches],
) -> tuple[list[ReadRequest], list[int]]:
    """(what to read, position of each in the request)"""
    reads = []
    places = []
    for index, (request, target, batches) in enumerate(zip(requests, resolved, found, strict=True)):
        if isinstance(target, TopicIdPartition) and batches.extents:
            reads.append(ReadRequest(target, request.offset, request.max_bytes, batches.extents))
            places.append(index)
    return reads, places


def _size_bytes(found: Sequence[FoundBatches]) -> int:
    """Bytes that can be read now; a segment, being old, always counts as plenty."""
    return sum(
        extent.length_bytes if isinstance(extent, WalExtent) else extent.object_bytes
        for batches in found
        for extent in batches.extents
    )


def _bytes_to_read(requests: Sequence[FetchPartition], found: Sequence[FoundBatches]) -> int:
    """What an answer from these extents takes; of a segment as much as the client wants decoded."""
    total = 0
    for request, batches in zip(requests, found, strict=True):
        for extent in batches.extents:
            if not isinstance(extent, WalExtent):
                total += request.max_bytes
                break
            total += extent.length_bytes
    return total


def _fetch_result(found: FoundBatches, read: ReadResult | None) -> FetchResult:
    if found.error is not None:
        if isinstance(found.error, OffsetOutOfRange):
            return FetchResult(found.error, found.high_watermark, found.log_start_offset)
        return FetchResult(found.error)
    if read is not None and read.error is not None and read.size_bytes == 0:
        return FetchResult(read.error, found.high_watermark, found.log_start_offset)
    records = read.records if read is not None else ()
    return FetchResult(None, found.high_watermark, found.log_start_offset, records)
