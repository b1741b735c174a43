"""Append and fetch: the one place that knows what a partition's log is.

The API handlers decode, call this, and encode. Below it lie the write loop (batches in), the
coordinator (offsets), and the batch reader (bytes out). It owns both purgatories:

- A **delayed produce** waits until each of its batches has an outcome. The commit lane delivers
  them one by one; the last one completes the operation. Its deadline answers REQUEST_TIMED_OUT,
  because a batch whose outcome is not known may still be committed.
- A **delayed fetch** waits until one of its partitions is committed to, and is woken by the commit
  itself, never by polling; then it looks whether there are `min_bytes` now. It remembers when it
  looked, so that a commit between the look and the watch is not missed.

Invariants: `append` hands its batches to the write loop before it returns, in request order. Those
that need work first follow later, and keep the order of their connection within each partition
(`diskless/replica/batch_lanes.py`). Every batch gets exactly one outcome, and every fragment chain
is released exactly once. Nothing below the high watermark is called out of range: the high
watermark comes from the coordinator's committed state, which this broker's own answers never run
ahead of.

The metadata topic is read from the metadata logs themselves (diskless/replica/metadata_topic.py),
in the same requests, under the same limits and with the same waits; nothing can be appended to it.

Source: "Purgatory Redesign"; KIP-1163/1164; reference behaviour per Kafka's ReplicaManager.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from diskless.fetch.fetch_rows import NO_ERRORS, FetchAnswer, FetchRows, Int64s, RowErrors
from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import PORTION_ROWS, Steps, batched
from diskless.ports import (
    AT_ONCE,
    LEADER_EPOCH,
    AppendBatch,
    AppendResult,
    Buffer,
    ClientInfo,
    FetchPartition,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsResult,
)
from diskless.replica.batch_lanes import BatchLanes
from diskless.replica.batch_reader import BatchReader, ReadRequest, ReadResult
from diskless.replica.log_ends import NOWHERE, LogEnds
from diskless.replica.metadata_topic import LogPartition, LogRead, MetadataTopic
from diskless.replica.purgatory import DelayedOperation, Purgatory
from diskless.replica.timestamp_search import TimestampSearch
from diskless.topics.topic_configs import compression_of, topic_rules
from metadata.clients.local_client import taken_bytes
from metadata.operations import (
    LATEST_TIERED_TIMESTAMP,
    BatchCommit,
    Coordinator,
    Extent,
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
    detached,
)
from wal.records.batch_preparation import SUMMED_AT_ONCE_BYTES, NeededWork, needed_work
from wal.records.batch_validation import TopicRules, check_contents, check_header, opens_records
from wal.records.recompression import Compression

BATCHES_AT_ONCE: Final = 64
"""Batches of a request that are checked and handed on between two yields: a millisecond."""
_SUMMED_BETWEEN_YIELDS_BYTES: Final = 16 << 20
"""... unless they are together larger than this, which takes 0.7 ms."""

_FOUND_AT_ONCE: Final = 1_000
"""Partitions of a fetch that are looked up together."""

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


class _Appending(NamedTuple):
    """One Produce request on its way to the write loop."""

    batches: Sequence[AppendBatch]
    produce: DelayedProduce
    request_id: int
    acks: int
    produce_version: int
    connection_id: int


class _TopicRules(NamedTuple):
    """What produced batches are judged by and made into, made of a topic's configs once."""

    topic: TopicDescription
    batches: TopicRules
    compression: Compression | None
    may_need_work: bool
    """Whether any batch does that is not very large."""


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
        lanes: BatchLanes,
        metadata_topic: MetadataTopic | None = None,
        topic_defaults: Mapping[str, str] | None = None,
    ) -> None:
        """`topic_defaults` are the configs of topics that do not set them, where these differ from
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
        self._lanes = lanes
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
    ) -> Steps["asyncio.Future[Sequence[AppendResult]]"]:
        """See `diskless.ports.ReplicaManager.append`."""
        future: asyncio.Future[Sequence[AppendResult]] = self._loop.create_future()
        produce = DelayedProduce(future, len(batches))
        request_id = self._next_request_id
        self._next_request_id = (request_id + 1) & 0x7FFFFFFF
        source = client.connection_id
        request = _Appending(batches, produce, request_id, acks, produce_version, source)
        position = 0
        try:
            while position < len(batches):
                if position:
                    yield
                position = self._append_some(request, position)
        except GeneratorExit:
            for batch in batches[position:]:
                if batch.records is not None:
                    batch.records.release()
            raise
        # Only the deadline is watched: outcomes of batches come by themselves.
        self.produce_purgatory.try_complete_else_watch(produce, (), max(timeout_ms, 1) / 1000)
        return future

    def _append_some(self, request: _Appending, position: int) -> int:
        """Check some batches from `position` on and hand them on; the position behind them."""
        pending: list[PendingBatch] = []
        lanes = self._lanes
        now_ms = self._clock.now_ms()
        left_bytes = _SUMMED_BETWEEN_YIELDS_BYTES
        end = min(position + BATCHES_AT_ONCE, len(request.batches))
        while position < end and left_bytes > 0:
            batch = request.batches[position]
            try:
                valid, needed = self._checked(request, position, now_ms)
            except DisklessError as error:
                self._batches_rejected += 1
                request.produce.settle(position, AppendResult(error=detached(error)))
                if batch.records is not None:
                    batch.records.release()
            else:
                left_bytes -= valid.header.length_bytes
                if (needed is None and lanes.are_empty) or not lanes.takes(
                    valid,
                    needed,
                    client=request.connection_id,
                    hand_on=self._hand_on_one,
                    refuse=self._refuse,
                ):
                    pending.append(valid)
            position += 1
        if pending:
            self._hand_on(pending)
        return position

    def _hand_on(self, batches: Sequence[PendingBatch]) -> None:
        try:
            self._write_loop.append_nowait(batches)
        except DisklessError as error:
            for batch in batches:
                _refuse(batch, detached(error))
        else:
            self._batches_appended += len(batches)

    def _hand_on_one(self, batch: PendingBatch) -> None:
        self._hand_on((batch,))

    def _refuse(self, batch: PendingBatch, error: DisklessError) -> None:
        self._batches_rejected += 1
        _refuse(batch, error)

    def _checked(
        self, request: _Appending, position: int, now_ms: int
    ) -> tuple[PendingBatch, NeededWork | None]:
        """Kafka's per-partition checks. Raises the Rejected that names what is wrong."""
        if request.acks not in (-1, 0, 1):
            raise InvalidRequest(f"acks must be -1, 0 or 1, not {request.acks}")
        batch = request.batches[position]
        topic = self._topic(batch.topic_name, batch.topic_id)
        _check_partition(topic, batch.partition)
        if topic is self._metadata_topic.description:
            raise InvalidTopic(f"{topic.name} is the cluster's own: clients can only read it")
        if batch.records is None or batch.records.length_bytes == 0:
            raise InvalidRecord(f"no batch for {topic.name}-{batch.partition}")
        rules = self._rules_of(topic)
        payload = batch.records.views()
        header = check_header(
            payload,
            total_bytes=batch.records.length_bytes,
            rules=rules.batches,
            produce_version=request.produce_version,
        )
        needed = None
        if rules.may_need_work or header.length_bytes > SUMMED_AT_ONCE_BYTES:
            needed = needed_work(header, rules.batches, rules.compression, now_ms=now_ms)
        if needed is None or not needed.is_unchecked:
            check_contents(payload, header, rules=rules.batches, now_ms=now_ms)
        self._bytes_appended += header.length_bytes
        timestamp_type = rules.batches.timestamp_type
        pending = PendingBatch(
            partition=TopicIdPartition(topic.topic_id, batch.partition),
            header=header,
            timestamp_type=timestamp_type,
            request_id=request.request_id,
            payload=batch.records,
            token=_Waiter(request.produce, position, timestamp_type),
        )
        return pending, needed

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
        read_turn: AbstractAsyncContextManager[None] = AT_ONCE,
    ) -> Sequence[FetchResult]:
        """See `diskless.ports.ReplicaManager.fetch`."""
        self._fetches += 1
        rows = FetchRows.of(requests)
        max_bytes = min(max_bytes, self._fetch_max_bytes)
        min_bytes = min(min_bytes, max_bytes)
        deadline = self._loop.time() + max_wait_ms / 1000
        while True:
            async with read_turn:
                # Anew each time: the topic may have been deleted while this waited.
                look = await self._look(rows)
                found = await self._find(rows, look, max_bytes)
                left_s = deadline - self._loop.time()
                if (
                    left_s <= 0
                    or not rows
                    or wake.is_set()
                    or self._is_closing
                    or look.errors
                    or found.errors
                    or found.logs
                    or found.ready_bytes >= min_bytes
                ):
                    granted = reserve(min(max_bytes, found.to_read_bytes))
                    return await self._read(rows, look, found, granted)
            await self._wait_for_commit(look, left_s, wake)

    async def bounds(self, requests: Sequence[FetchPartition]) -> FetchAnswer:
        """See `diskless.ports.ReplicaManager.bounds`."""
        rows = FetchRows.of(requests)
        look = await self._look(rows)
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

    async def _look(self, rows: FetchRows) -> "_Look":
        """What is known of all rows at once, and which of them have to be looked up."""
        topics: list[TopicDescription | None] = []
        firsts: list[int] = []
        partition_counts: list[int] = []
        wrongs: list[int] = []
        ends = self._ends
        generation = -1
        while generation != ends.generation:
            generation = ends.generation
            topics.clear()
            firsts.clear()
            partition_counts.clear()
            wrongs.clear()
            for portion in batched(rows.topics, PORTION_ROWS):
                if topics:
                    await asyncio.sleep(0)
                found = [self._named(topic.name, topic.topic_id) for topic in portion]
                topics += found
                partition_counts += [0 if one is None else one.partition_count for one in found]
                wrongs += [
                    2 if one is not None else 0 if named.topic_id is None else 1
                    for named, one in zip(portion, found, strict=True)
                ]
                before = ends.generation
                firsts += ends.first_slots(found)
                if ends.generation != before:
                    self.fetch_purgatory.check_all()
        counts = np.array(partition_counts, np.int64)
        epochs = rows.leader_epochs
        is_there = (rows.partitions >= 0) & (rows.partitions < counts[rows.topic_of])
        is_right = is_there & ((epochs == LEADER_EPOCH) | (epochs == -1))
        slots = np.array(firsts, np.int64)[rows.topic_of] + rows.partitions
        errors = NO_ERRORS
        if not is_right.all():
            slots[~is_right] = NOWHERE
            errors = _refusals(rows, wrongs, is_there, is_right)
        high_watermarks = ends.high_watermarks[slots]
        log_start_offsets = ends.log_start_offsets[slots]
        if errors:
            high_watermarks[errors.rows] = log_start_offsets[errors.rows] = -1
        is_open = is_right & ((high_watermarks != rows.offsets) | (high_watermarks < 0))
        return _Look(
            looked_at=ends.now,
            generation=ends.generation,
            topics=topics,
            firsts=firsts,
            slots=slots,
            high_watermarks=high_watermarks,
            log_start_offsets=log_start_offsets,
            open_rows=np.flatnonzero(is_open),
            errors=errors,
        )

    async def _find(
        self, rows: FetchRows, look: "_Look", max_bytes: int, *, at_least_one: bool = True
    ) -> "_Found":
        """What there is to read of the rows that have to be looked up; their offsets to `look`."""
        found = _Found()
        for start in range(0, len(look.open_rows), _FOUND_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            wanted: list[int] = []
            requests: list[FindBatches] = []
            for row in look.open_rows[start : start + _FOUND_AT_ONCE].tolist():
                target = self._target(look, rows, row)
                offset, limit = int(rows.offsets[row]), int(rows.max_bytes[row])
                if isinstance(target, LogPartition):
                    ends = await self._metadata_topic.find(target, offset)
                    look.learn([row], [ends])
                    found.add_log(row, LogRead(target, offset, limit), ends)
                else:
                    wanted.append(row)
                    requests.append(FindBatches(target, offset, limit))
            if not wanted:
                continue
            answers = await self._coordinator.find_batches(
                requests,
                max_bytes=max_bytes - found.taken_bytes,
                at_least_one=at_least_one and not found.extents,
            )
            self._ends.learn(
                look.slots[wanted].tolist(),
                answers,
                generation=look.generation,
                looked_at=look.looked_at,
            )
            look.learn(wanted, answers)
            for row, request, answer in zip(wanted, requests, answers, strict=True):
                if answer.extents or answer.error is not None:
                    found.add(row, request, answer)
        return found

    async def _read(
        self, rows: FetchRows, look: "_Look", found: "_Found", max_bytes: int
    ) -> FetchAnswer:
        """The answer, in request order, from what was found before.

        The metadata topic comes first where it is asked for first; clients ask in turn.
        """
        pieces: dict[int, ReadResult] = {}
        logs = found.logs
        first_batches = next(iter(found.extents), None)
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
        found: "_Found",
        max_bytes: int,
        *,
        at_least_one: bool,
    ) -> tuple["_Found", Mapping[int, ReadResult]]:
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
        found: "_Found",
        max_bytes: int,
        at_least_one: bool,
    ) -> Mapping[int, ReadResult]:
        reads: dict[int, ReadRequest] = {}
        for row, extents in found.extents.items():
            target = self._target(look, rows, row)
            assert isinstance(target, TopicIdPartition)
            reads[row] = ReadRequest(
                target, int(rows.offsets[row]), int(rows.max_bytes[row]), extents
            )
        if not reads:
            return {}
        pieces = await self._reader.read(
            [*reads.values()], max_bytes=max_bytes, at_least_one=at_least_one
        )
        return dict(zip(reads, pieces, strict=True))

    def _target(self, look: "_Look", rows: FetchRows, row: int) -> "_Target":
        """What a row that is right names."""
        topic = look.topics[rows.topic_of[row]]
        assert topic is not None
        return self._target_of(topic, int(rows.partitions[row]))

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
                targets.append(self._target_of(topic, request.partition))
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
                results.append(
                    await self._search.exact(
                        request.timestamp, next(answers), client=client.connection_id
                    )
                )
            elif isinstance(target, LogPartition):
                results.append(await self._metadata_topic.list_offset(target, request.timestamp))
            else:
                results.append(ListOffsetsResult(error=target))
        return results

    # Topics

    def _topic(self, name: str, topic_id: UUID | None) -> TopicDescription:
        """By id if there is one. Raises UnknownTopicId or UnknownPartition."""
        topic = self._named(name, topic_id)
        if topic is None and topic_id is not None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        if topic is None:
            raise UnknownPartition(f"no topic {name}")
        return topic

    def _named(self, name: str, topic_id: UUID | None) -> TopicDescription | None:
        if topic_id is not None:
            return self._topic_by_id(topic_id)
        return self._coordinator.topics().get(name) or self._internal(name)

    def _topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        return self._coordinator.topic_by_id(topic_id) or self._internal(topic_id)

    def _internal(self, wanted: str | UUID) -> TopicDescription | None:
        """The topic of this name or id that no coordinator knows."""
        topic = self._metadata_topic.description
        return topic if wanted in (topic.name, topic.topic_id) else None

    def _target_of(self, topic: TopicDescription, partition: int) -> "_Target":
        if topic is self._metadata_topic.description:
            return LogPartition(partition)
        return TopicIdPartition(topic.topic_id, partition)

    def _rules_of(self, topic: TopicDescription) -> _TopicRules:
        known = self._rules.get(topic.topic_id)
        # Whatever changes about a topic makes another description of it.
        if known is None or known.topic is not topic:
            configs = {**self._topic_defaults, **topic.configs}
            rules, compression = topic_rules(configs), compression_of(configs)
            may_need_work = compression is not None or opens_records(rules)
            known = _TopicRules(topic, rules, compression, may_need_work)
            self._rules[topic.topic_id] = known
        return known


_Target = TopicIdPartition | LogPartition
"""What a request names: a partition in the care of a coordinator, or one of the metadata topic."""


class _Look(NamedTuple):
    """The rows of a fetch at one moment; where a column says nothing, there is an entry instead."""

    looked_at: int
    generation: int
    topics: Sequence[TopicDescription | None]
    firsts: Sequence[int]
    """Where the slots of the topics begin."""
    slots: Int64s
    high_watermarks: Int64s
    log_start_offsets: Int64s
    open_rows: npt.NDArray[np.intp]
    """What has to be looked up. The others are at the ends of their logs, or have an error."""
    errors: RowErrors

    def learn(self, rows: Sequence[int], answers: Sequence[FoundBatches]) -> None:
        """Take in the offsets that a look-up gave."""
        self.high_watermarks[rows] = [answer.high_watermark for answer in answers]
        self.log_start_offsets[rows] = [answer.log_start_offset for answer in answers]

    def keys(self) -> Sequence[int]:
        """What to watch: partitions, or topics where that is less."""
        if len(self.slots) <= _WATCHED_PARTITIONS_MAX:
            slots: list[int] = self.slots.tolist()
            return slots
        return [-first for first in self.firsts]


class _Found:
    """What look-ups gave, by row, ascending; nothing of rows that are at the ends of their logs."""

    __slots__ = ("errors", "extents", "logs", "ready_bytes", "taken_bytes", "to_read_bytes")

    def __init__(self) -> None:
        self.errors: dict[int, DisklessError] = {}
        self.extents: dict[int, Sequence[Extent]] = {}
        self.logs: dict[int, LogRead] = {}
        """Of the metadata topic. How much there is shows when it is read, so any ends the wait."""
        self.ready_bytes = 0
        """About how much can be read now; a segment, being old, always counts as plenty."""
        self.taken_bytes = 0
        """How much the extents use up of what all rows may give."""
        self.to_read_bytes = 0
        """What an answer takes; of a segment as much as the client wants decoded."""

    def add(self, row: int, request: FindBatches, answer: FoundBatches) -> None:
        if answer.error is not None:
            self.errors[row] = answer.error
        if not answer.extents:
            return
        self.extents[row] = answer.extents
        self.taken_bytes += taken_bytes([request], [answer])
        has_segment = False
        for extent in answer.extents:
            self.ready_bytes += extent.bytes_from(request.offset)
            if has_segment:
                continue
            if isinstance(extent, WalExtent):
                self.to_read_bytes += extent.length_bytes
            else:
                has_segment = True
                self.to_read_bytes += request.max_bytes

    def add_log(self, row: int, read: LogRead, ends: FoundBatches) -> None:
        if ends.error is not None:
            self.errors[row] = ends.error
        elif read.offset < ends.high_watermark:
            self.logs[row] = read
            self.to_read_bytes += read.max_bytes


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


_REFUSALS: Final = (
    UnknownPartition("no such topic"),
    UnknownTopicId("no topic has this id"),
    UnknownPartition("the topic has no such partition"),
    UnknownLeaderEpoch(f"the leader epoch is ahead of {LEADER_EPOCH}"),
    FencedLeaderEpoch(f"the leader epoch is behind {LEADER_EPOCH}"),
)
"""What can be wrong with a row; its client is sent nothing but the code."""


def _refusals(
    rows: FetchRows,
    by_topic: Sequence[int],
    is_there: npt.NDArray[np.bool_],
    is_right: npt.NDArray[np.bool_],
) -> RowErrors:
    """What is wrong with the rows that name nothing that could be read.

    `by_topic` says what is wrong with those whose partition is not there, as a place in _REFUSALS.
    """
    wrong = np.flatnonzero(~is_right)
    of_epoch = np.where(rows.leader_epochs[wrong] > LEADER_EPOCH, 3, 4)
    which = np.where(is_there[wrong], of_epoch, np.array(by_topic, np.int64)[rows.topic_of[wrong]])
    return RowErrors(wrong, which, _REFUSALS)


def _answer(look: _Look, found: _Found, pieces: Mapping[int, ReadResult]) -> FetchAnswer:
    """All rows: those that were looked up, those with an error, and the others as they are known.

    A row that could be read in part has records and no error.
    """
    errors = found.errors
    records: dict[int, Sequence[Buffer]] = {}
    for row, piece in sorted(pieces.items()):
        if row in found.errors:
            continue
        if piece.size_bytes:
            records[row] = piece.records
        elif piece.error is not None:
            errors[row] = piece.error
    return FetchAnswer(
        look.high_watermarks,
        look.log_start_offsets,
        records,
        look.errors.joined(RowErrors.of(errors)),
    )
