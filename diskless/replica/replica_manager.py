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

The metadata topic is read from the metadata logs themselves (diskless/replica/metadata_topic.py), in the
same requests, under the same limits and with the same waits; nothing can be appended to it.

Source: "Purgatory Redesign"; KIP-1163/1164; reference behaviour per Kafka's ReplicaManager.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from diskless.fetch.fetch_rows import FetchAnswer, FetchRows, Int64s
from diskless.ports import (
    LEADER_EPOCH,
    AppendBatch,
    AppendResult,
    Buffer,
    ClientInfo,
    EarlyEnd,
    FetchPartition,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsResult,
)
from diskless.replica.batch_lanes import Recompression
from diskless.replica.batch_reader import BatchReader, ReadRequest, ReadResult
from diskless.replica.log_ends import NOWHERE, LogEnds
from diskless.replica.metadata_topic import LogPartition, LogRead, MetadataTopic
from diskless.replica.purgatory import DelayedOperation, Purgatory
from diskless.replica.timestamp_search import TimestampSearch
from diskless.topics.topic_configs import compression_of, topic_rules
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
from wal.chunks.write_loop import PendingBatch, WriteLoop
from wal.clock import Clock
from wal.coordinates import LOG_APPEND_TIME, TopicIdPartition
from wal.errors import (
    DisklessError,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    ObjectNotFound,
    OutcomeUnknown,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownTopicId,
)
from wal.records.batch_validation import TopicRules, validate_batch
from wal.records.recompression import Compression

_WATCHED_PARTITIONS_MAX: Final = 64
"""A fetch of more partitions watches their topics, and is asked at each commit to one of those."""


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


class DelayedFetch(DelayedOperation):
    """A Fetch that found too little; complete when one of its partitions was committed to."""

    __slots__ = ("_ends", "_look", "future")

    def __init__(self, future: "asyncio.Future[None]", ends: LogEnds, look: "_Look") -> None:
        super().__init__()
        self.future = future
        self._ends = ends
        self._look = look

    def is_satisfied(self) -> bool:
        look = self._look
        return self._ends.heard_since(look.looked_at, look.slots, look.generation)

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
        self.fetch_purgatory: Purgatory[int] = Purgatory("fetch")
        """By slot of a partition, or the negative of its topic's first one; see `_Look.keys`."""
        self._recompression = recompression
        self._topic_defaults = topic_defaults or {}
        self._rules: dict[UUID, _TopicRules] = {}
        self._ends = LogEnds(lambda topic_id: self._topic_by_id(topic_id) is not None)
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
        topic = self._topic(batch.topic_name, batch.topic_id)
        _check_partition(topic, batch.partition)
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
        rows = FetchRows.of(requests)
        max_bytes = min(max_bytes, self._fetch_max_bytes)
        min_bytes = min(min_bytes, max_bytes)
        deadline = self._loop.time() + max_wait_ms / 1000
        while True:
            # Anew each time: the topic may have been deleted while this waited.
            look = self._look(rows)
            found = await self._find(rows, look, max_bytes)
            logs = _readable_logs(rows, look, found)
            left_s = deadline - self._loop.time()
            if (
                left_s <= 0
                or not rows
                or wake.is_set()
                or self._is_closing
                or look.errors
                or any(batches.error is not None for batches in found.values())
                or logs
                or _size_bytes(rows, found) >= min_bytes
            ):
                to_read = _bytes_to_read(rows, found) + sum(log.max_bytes for log in logs.values())
                granted = reserve(min(max_bytes, to_read))
                return await self._read(rows, look, found, logs, granted)
            await self._wait_for_commit(look, left_s, wake)

    async def bounds(self, requests: Sequence[FetchPartition]) -> FetchAnswer:
        """See `diskless.ports.ReplicaManager.bounds`."""
        rows = FetchRows.of(requests)
        look = self._look(rows)
        found = await self._find(rows, look, 0, at_least_one=False)
        return _answer(look, found, {})

    def committed(self, partitions: Collection[TopicIdPartition]) -> None:
        """The coordinator applied a commit: wake the fetches that wait for these partitions."""
        for first, slots in self._ends.heard(partitions):
            for slot in slots:
                self.fetch_purgatory.check_and_complete(slot)
            self.fetch_purgatory.check_and_complete(-first)

    def forget(self, partitions: Collection[TopicIdPartition]) -> None:
        """These partitions are gone: fetches that wait for them find that out now."""
        self.committed(partitions)
        for topic_id in {partition.topic_id for partition in partitions}:
            self._ends.forget(topic_id)
            self._rules.pop(topic_id, None)

    async def _wait_for_commit(self, look: "_Look", timeout_s: float, wake: EarlyEnd) -> None:
        """Until a commit to one of its partitions after the look, the deadline, or `wake`."""
        delayed = DelayedFetch(self._loop.create_future(), self._ends, look)
        try:
            if not self.fetch_purgatory.try_complete_else_watch(delayed, look.keys(), timeout_s):
                wake.listen(delayed.end_early)
                await delayed.future
        finally:
            wake.listen(None)
            delayed.force_complete()

    def _look(self, rows: FetchRows) -> "_Look":
        """What is known of all rows at once, and which of them have to be looked up."""
        topics: list[TopicDescription | None] = []
        for named in rows.topics:
            try:
                topics.append(self._topic(named.name, named.topic_id))
            except DisklessError:
                topics.append(None)
        ends = self._ends
        generation = ends.generation
        firsts = ends.first_slots(topics)
        if ends.generation != generation:
            self.fetch_purgatory.check_all()
        counts = np.array([0 if topic is None else topic.partition_count for topic in topics], int)
        epochs = rows.leader_epochs
        is_right = (
            (rows.partitions >= 0)
            & (rows.partitions < counts[rows.topic_of])
            & ((epochs == LEADER_EPOCH) | (epochs == -1))
        )
        slots = np.array(firsts, np.int64)[rows.topic_of] + rows.partitions
        errors: dict[int, DisklessError] = {}
        if not is_right.all():
            slots[~is_right] = NOWHERE
            errors = {row: self._refusal(rows[row]) for row in np.flatnonzero(~is_right).tolist()}
        high_watermarks = ends.high_watermarks[slots]
        is_open = (high_watermarks != rows.offsets) | (high_watermarks < 0)
        targets: dict[int, _Target] = {}
        for row in np.flatnonzero(is_open & is_right).tolist():
            topic = topics[rows.topic_of[row]]
            assert topic is not None
            targets[row] = self._target(topic, int(rows.partitions[row]))
        return _Look(
            looked_at=ends.now,
            generation=ends.generation,
            firsts=firsts,
            slots=slots,
            high_watermarks=high_watermarks,
            log_start_offsets=ends.log_start_offsets[slots],
            targets=targets,
            errors=errors,
        )

    def _refusal(self, request: FetchPartition) -> DisklessError:
        """What is wrong with a row that names nothing that could be read."""
        try:
            topic = self._topic(request.topic_name, request.topic_id)
            _check_partition(topic, request.partition)
            _check_leader_epoch(request.current_leader_epoch)
        except DisklessError as error:
            return error
        raise AssertionError(f"nothing is wrong with {request}")

    async def _find(
        self, rows: FetchRows, look: "_Look", max_bytes: int, *, at_least_one: bool = True
    ) -> dict[int, FoundBatches]:
        """What there is to read of the rows that have to be looked up, in ascending order."""
        if not look.targets:
            return {}
        wanted = {
            row: FindBatches(target, int(rows.offsets[row]), int(rows.max_bytes[row]))
            for row, target in look.targets.items()
            if isinstance(target, TopicIdPartition)
        }
        answers: Sequence[FoundBatches] = ()
        if wanted:
            answers = await self._coordinator.find_batches(
                [*wanted.values()], max_bytes=max_bytes, at_least_one=at_least_one
            )
            self._ends.learn(
                look.slots[[*wanted]].tolist(),
                answers,
                generation=look.generation,
                looked_at=look.looked_at,
            )
        if len(wanted) == len(look.targets):
            return dict(zip(wanted, answers, strict=True))
        found = dict(zip(wanted, answers, strict=True))
        for row, target in look.targets.items():
            if isinstance(target, LogPartition):
                found[row] = await self._metadata_topic.find(target, int(rows.offsets[row]))
        return dict(sorted(found.items()))

    async def _read(
        self,
        rows: FetchRows,
        look: "_Look",
        found: Mapping[int, FoundBatches],
        logs: Mapping[int, LogRead],
        max_bytes: int,
    ) -> FetchAnswer:
        """The answer, in request order, from what was found before.

        The metadata topic comes first where it is asked for first; clients ask in turn.
        """
        pieces: dict[int, ReadResult] = {}
        first_batches = next((row for row, batches in found.items() if batches.extents), None)
        are_logs_first = bool(logs) and (first_batches is None or min(logs) < first_batches)
        if are_logs_first:
            pieces.update(await self._read_logs(logs, max_bytes, at_least_one=True))
        size = sum(piece.size_bytes for piece in pieces.values())
        if first_batches is not None:
            found, read = await self._read_batches(
                rows, look, found, max_bytes - size, at_least_one=not size
            )
            pieces.update(read)
        if logs and not are_logs_first:
            size = sum(piece.size_bytes for piece in pieces.values())
            pieces.update(await self._read_logs(logs, max_bytes - size, at_least_one=not size))
        return _answer(look, found, pieces)

    async def _read_logs(
        self, logs: Mapping[int, LogRead], max_bytes: int, *, at_least_one: bool
    ) -> Mapping[int, ReadResult]:
        pieces = await self._metadata_topic.read(
            [*logs.values()], max_bytes=max_bytes, at_least_one=at_least_one
        )
        return dict(zip(logs, pieces, strict=True))

    async def _read_batches(
        self,
        rows: FetchRows,
        look: "_Look",
        found: Mapping[int, FoundBatches],
        max_bytes: int,
        *,
        at_least_one: bool,
    ) -> tuple[Mapping[int, FoundBatches], Mapping[int, ReadResult]]:
        """What extents give, and where they were in the end."""
        pieces = await self._read_extents(rows, look, found, max_bytes, at_least_one)
        if any(isinstance(piece.error, ObjectNotFound) for piece in pieces.values()):
            # Tiering or retention released the object between the look-up and the read. The
            # coordinator knows where the data is now; if it still names the object, it is lost.
            found = await self._find(rows, look, max_bytes)
            pieces = await self._read_extents(rows, look, found, max_bytes, at_least_one)
        return found, pieces

    async def _read_extents(
        self,
        rows: FetchRows,
        look: "_Look",
        found: Mapping[int, FoundBatches],
        max_bytes: int,
        at_least_one: bool,
    ) -> Mapping[int, ReadResult]:
        reads = {
            row: ReadRequest(
                target, int(rows.offsets[row]), int(rows.max_bytes[row]), found[row].extents
            )
            for row, target in look.targets.items()
            if isinstance(target, TopicIdPartition) and found[row].extents
        }
        if not reads:
            return {}
        pieces = await self._reader.read(
            [*reads.values()], max_bytes=max_bytes, at_least_one=at_least_one
        )
        return dict(zip(reads, pieces, strict=True))

    # Offsets

    async def list_offsets(
        self, requests: Sequence[ListOffsetsPartition], *, isolation: int, client: ClientInfo
    ) -> Sequence[ListOffsetsResult]:
        """See `diskless.ports.ReplicaManager.list_offsets`. Isolation levels do not differ yet."""
        targets: list[_Target | DisklessError] = []
        for request in requests:
            try:
                topic = self._topic(request.topic_name, None)
                _check_partition(topic, request.partition)
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

    def _topic(self, name: str, topic_id: UUID | None) -> TopicDescription:
        """By id if there is one. Raises UnknownTopicId or UnknownPartition."""
        if topic_id is not None:
            topic = self._topic_by_id(topic_id)
            if topic is None:
                raise UnknownTopicId(f"no topic has the id {topic_id}")
            return topic
        topic = self._coordinator.topics().get(name) or self._internal(name)
        if topic is None:
            raise UnknownPartition(f"no topic {name}")
        return topic

    def _topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        return self._coordinator.topic_by_id(topic_id) or self._internal(topic_id)

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


_Target = TopicIdPartition | LogPartition
"""What a request names: a partition in the care of a coordinator, or one of the metadata topic."""


class _Look(NamedTuple):
    """The rows of a fetch at one moment; where a column says nothing, there is an entry instead."""

    looked_at: int
    generation: int
    firsts: Sequence[int]
    """Where the slots of the topics begin."""
    slots: Int64s
    high_watermarks: Int64s
    log_start_offsets: Int64s
    targets: Mapping[int, _Target]
    """By row, ascending: what has to be looked up. The others are at the ends of their logs."""
    errors: Mapping[int, DisklessError]

    def keys(self) -> Sequence[int]:
        """What to watch: partitions, or topics where that is less."""
        if len(self.slots) <= _WATCHED_PARTITIONS_MAX:
            slots: list[int] = self.slots.tolist()
            return slots
        return [-first for first in self.firsts]


def _refuse(batch: PendingBatch, error: DisklessError) -> None:
    batch.payload.release()
    batch.token.batch_done(BatchCommit(error=error))


def append_failed(batches: Sequence[PendingBatch], error: DisklessError) -> None:
    """The write loop could not store these batches: that is their outcome."""
    for batch in batches:
        batch.token.batch_done(BatchCommit(error=error))


def _check_partition(topic: TopicDescription, partition: int) -> None:
    if not 0 <= partition < topic.partition_count:
        raise UnknownPartition(
            f"topic {topic.name} has {topic.partition_count} partitions, no {partition}"
        )


def _check_leader_epoch(current: int) -> None:
    if current in (-1, LEADER_EPOCH):
        return
    if current > LEADER_EPOCH:
        raise UnknownLeaderEpoch(f"leader epoch {current} is ahead of {LEADER_EPOCH}")
    raise FencedLeaderEpoch(f"leader epoch {current} is behind {LEADER_EPOCH}")


def _readable_logs(
    rows: FetchRows, look: _Look, found: Mapping[int, FoundBatches]
) -> dict[int, LogRead]:
    """What there is to read of the metadata topic, by row.

    How much that is shows when it is read, so any of it ends the wait.
    """
    return {
        row: LogRead(target, int(rows.offsets[row]), int(rows.max_bytes[row]))
        for row, target in look.targets.items()
        if isinstance(target, LogPartition)
        and found[row].error is None
        and rows.offsets[row] < found[row].high_watermark
    }


def _size_bytes(rows: FetchRows, found: Mapping[int, FoundBatches]) -> int:
    """About how much can be read now; a segment, being old, always counts as plenty."""
    return sum(
        extent.bytes_from(int(rows.offsets[row]))
        for row, batches in found.items()
        for extent in batches.extents
    )


def _bytes_to_read(rows: FetchRows, found: Mapping[int, FoundBatches]) -> int:
    """What an answer from these extents takes; of a segment as much as the client wants decoded."""
    total = 0
    for row, batches in found.items():
        for extent in batches.extents:
            if not isinstance(extent, WalExtent):
                total += int(rows.max_bytes[row])
                break
            total += extent.length_bytes
    return total


def _answer(
    look: _Look, found: Mapping[int, FoundBatches], pieces: Mapping[int, ReadResult]
) -> FetchAnswer:
    """All rows: those that were looked up, those with an error, and the others as they are known.

    A row that could be read in part has records and no error.
    """
    high_watermarks, log_start_offsets = look.high_watermarks, look.log_start_offsets
    errors = dict(look.errors)
    records: dict[int, Sequence[Buffer]] = {}
    for row in errors:
        high_watermarks[row] = log_start_offsets[row] = -1
    for row, batches in found.items():
        high_watermarks[row] = batches.high_watermark
        log_start_offsets[row] = batches.log_start_offset
        piece = pieces.get(row)
        if batches.error is not None:
            errors[row] = batches.error
        elif piece is not None and piece.size_bytes:
            records[row] = piece.records
        elif piece is not None and piece.error is not None:
            errors[row] = piece.error
    return FetchAnswer(high_watermarks, log_start_offsets, records, errors)
