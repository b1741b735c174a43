"""Fetch: look up where the batches are, wait until there are enough of them, read them.

Below it lie the coordinator (where batches are), the batch reader (their bytes) and the metadata
topic (whose bytes are the metadata logs'). A fetch that finds too little waits in the purgatory
until one of its partitions is committed to; it is woken by the commit itself, never by polling,
and then looks whether there are `min_bytes` now. It remembers when it looked, so that a commit
between the look and the watch is not missed.

A reader of committed records (isolation level 1) is given what lies below the last stable offset,
and the aborted transactions of that; a commit wakes it like any other reader, and so does the
marker of a transaction, which takes an offset as well.

Nothing below the high watermark is called out of range: the high watermark comes from the
coordinator's committed state, which this broker's own answers never run ahead of.

Source: "Purgatory Redesign"; reference behaviour per Kafka's ReplicaManager.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import numpy as np

from diskless.fetch.fetch_rows import NO_ERRORS, FetchAnswer, FetchRows
from diskless.fetch.read_ahead import Answered, ReadAhead
from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import PORTION_ROWS, batched
from diskless.loop.purgatory import DelayedOperation, Purgatory
from diskless.ports import AT_ONCE, LEADER_EPOCH, ClientInfo, FetchPartition, FetchResult
from diskless.replica.batch_reader import BatchReader, ReadRequest, ReadResult
from diskless.replica.fetch_look import Found, Look, answer_of, refusals_of
from diskless.replica.log_ends import NOWHERE, LogEnds
from diskless.replica.metadata_topic import LogPartition, LogRead, MetadataTopic
from diskless.replica.served_topics import ServedTopics, Target
from metadata import operations as ops
from metadata.clients.coordinator_client import Coordinator
from wal.coordinates import TopicIdPartition
from wal.errors import ObjectNotFound

_FOUND_AT_ONCE: Final = 1_000
"""Partitions of a fetch that are looked up together."""


class DelayedFetch(DelayedOperation):
    """A Fetch that found too little; complete when one of its partitions was committed to."""

    __slots__ = ("_ends", "_look", "future")

    def __init__(self, future: "asyncio.Future[None]", ends: LogEnds, look: Look) -> None:
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


class Fetcher:
    """Serves fetches, and wakes them."""

    def __init__(
        self,
        topics: ServedTopics,
        coordinator: Coordinator,
        reader: BatchReader,
        metadata_topic: MetadataTopic,
        *,
        max_bytes: int,
        ahead: ReadAhead,
    ) -> None:
        """`max_bytes`: of any answer, whatever its client allows."""
        self._topics = topics
        self._coordinator = coordinator
        self._reader = reader
        self._metadata_topic = metadata_topic
        self._max_bytes = max_bytes
        self._ahead = ahead
        self._loop = asyncio.get_running_loop()
        self._ends = LogEnds(lambda topic_id: topics.by_id(topic_id) is not None)
        self.purgatory: Purgatory[int] = Purgatory("fetch")
        """By slot of a partition, or the negative of its topic's first one; see `Look.keys`."""
        self._is_closing = False
        self.fetches = 0

    def close(self) -> None:
        """Answer whatever still waits, and let nothing wait any more."""
        self._is_closing = True
        self.purgatory.expire_all()

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
        self.fetches += 1
        rows = FetchRows.of(requests)
        max_bytes = min(max_bytes, self._max_bytes)
        min_bytes = min(min_bytes, max_bytes)
        deadline = self._loop.time() + max_wait_ms / 1000
        while True:
            async with read_turn:
                # Anew each time: the topic may have been deleted while this waited.
                look = await self._look(rows, isolation)
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
        look = await self._look(rows, ops.READ_UNCOMMITTED)
        found = await self._find(rows, look, 0, at_least_one=False)
        return answer_of(look, found, {})

    def committed(self, partitions: Collection[TopicIdPartition]) -> None:
        """The coordinator applied a commit: wake the fetches that wait for these partitions."""
        for first, slots in self._ends.heard(partitions):
            for slot in slots:
                self.purgatory.check_and_complete(slot)
            self.purgatory.check_and_complete(-first)

    def forget(self, partitions: Collection[TopicIdPartition]) -> None:
        """These partitions are gone: fetches that wait for them find that out now."""
        self.committed(partitions)
        for topic_id in {partition.topic_id for partition in partitions}:
            self._ends.forget(topic_id)

    async def _wait_for_commit(self, look: Look, timeout_s: float, wake: EarlyEnd) -> None:
        """Until a commit to one of its partitions after the look, the deadline, or `wake`."""
        delayed = DelayedFetch(self._loop.create_future(), self._ends, look)
        try:
            if not self.purgatory.try_complete_else_watch(delayed, look.keys(), timeout_s):
                wake.listen(delayed.end_early)
                await delayed.future
        finally:
            wake.listen(None)
            delayed.force_complete()

    async def _look(self, rows: FetchRows, isolation: int) -> Look:
        """What is known of all rows at once, and which of them have to be looked up."""
        self._topics.refresh()
        topics: list[ops.TopicDescription | None] = []
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
                found = [self._topics.named(topic.name, topic.topic_id) for topic in portion]
                topics += found
                partition_counts += [0 if one is None else one.partition_count for one in found]
                wrongs += [
                    2 if one is not None else 0 if named.topic_id is None else 1
                    for named, one in zip(portion, found, strict=True)
                ]
                before = ends.generation
                firsts += ends.first_slots(found)
                if ends.generation != before:
                    self.purgatory.check_all()
        counts = np.array(partition_counts, np.int64)
        epochs = rows.leader_epochs
        is_there = (rows.partitions >= 0) & (rows.partitions < counts[rows.topic_of])
        is_right = is_there & ((epochs == LEADER_EPOCH) | (epochs == -1))
        slots = np.array(firsts, np.int64)[rows.topic_of] + rows.partitions
        errors = NO_ERRORS
        if not is_right.all():
            slots[~is_right] = NOWHERE
            errors = refusals_of(rows, wrongs, is_there, is_right)
        high_watermarks = ends.high_watermarks[slots]
        last_stable_offsets = ends.last_stable_offsets[slots]
        log_start_offsets = ends.log_start_offsets[slots]
        if errors:
            for column in (high_watermarks, last_stable_offsets, log_start_offsets):
                column[errors.rows] = -1
        visible_ends = last_stable_offsets if isolation == ops.READ_COMMITTED else high_watermarks
        # A reader of committed records may be anywhere between where these end and the log's end.
        is_at_end = (rows.offsets >= visible_ends) & (rows.offsets <= high_watermarks)
        is_open = is_right & (~is_at_end | (high_watermarks < 0))
        return Look(
            isolation=isolation,
            looked_at=ends.now,
            generation=ends.generation,
            topics=topics,
            firsts=firsts,
            slots=slots,
            high_watermarks=high_watermarks,
            last_stable_offsets=last_stable_offsets,
            log_start_offsets=log_start_offsets,
            open_rows=np.flatnonzero(is_open),
            errors=errors,
        )

    async def _find(
        self, rows: FetchRows, look: Look, max_bytes: int, *, at_least_one: bool = True
    ) -> Found:
        """What there is to read of the rows that have to be looked up; their offsets to `look`."""
        found = Found()
        for start in range(0, len(look.open_rows), _FOUND_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            wanted: list[int] = []
            requests: list[ops.FindBatches] = []
            for row in look.open_rows[start : start + _FOUND_AT_ONCE].tolist():
                target = self._target(look, rows, row)
                offset, limit = int(rows.offsets[row]), int(rows.max_bytes[row])
                if isinstance(target, LogPartition):
                    ends = await self._metadata_topic.find(target, offset)
                    look.learn([row], [ends])
                    found.add_log(row, LogRead(target, offset, limit), ends)
                else:
                    wanted.append(row)
                    requests.append(ops.FindBatches(target, offset, limit))
            if not wanted:
                continue
            answers = await self._coordinator.find_batches(
                requests,
                max_bytes=max_bytes - found.taken_bytes,
                at_least_one=at_least_one and not found.extents,
                isolation=look.isolation,
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
                    found.add(row, request, answer, look.end_of(row))
        return found

    async def _read(self, rows: FetchRows, look: Look, found: Found, max_bytes: int) -> FetchAnswer:
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
        return answer_of(look, found, pieces)

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
        look: Look,
        found: Found,
        max_bytes: int,
        *,
        at_least_one: bool,
    ) -> tuple[Found, Mapping[int, ReadResult]]:
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
        look: Look,
        found: Found,
        max_bytes: int,
        at_least_one: bool,
    ) -> Mapping[int, ReadResult]:
        reads: dict[int, ReadRequest] = {}
        for row, extents in found.extents.items():
            target = self._target(look, rows, row)
            assert isinstance(target, TopicIdPartition)
            reads[row] = ReadRequest(
                target,
                int(rows.offsets[row]),
                int(rows.max_bytes[row]),
                extents,
                look.end_of(row),
            )
        if not reads:
            return {}
        pieces = await self._reader.read(
            [*reads.values()], max_bytes=max_bytes, at_least_one=at_least_one
        )
        self._ahead.follow(
            [
                Answered(
                    *read[:2],
                    piece.next_offset,
                    piece.size_bytes,
                    min(read.end, high_watermark),
                    read.extents,
                )
                for read, piece, high_watermark in zip(
                    reads.values(), pieces, look.high_watermarks[[*reads]].tolist(), strict=True
                )
                if piece.size_bytes
            ]
        )
        return dict(zip(reads, pieces, strict=True))

    def _target(self, look: Look, rows: FetchRows, row: int) -> Target:
        """What a row that is right names."""
        topic = look.topics[rows.topic_of[row]]
        assert topic is not None
        return self._topics.target(topic, int(rows.partitions[row]))
