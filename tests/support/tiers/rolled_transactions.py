"""Three interleaved transactions of one partition, written, rolled in pieces, merged, and read.

Real records of the metadata log are applied, real objects are written and rolled, and what is read
comes through the batch reader and the segment reader. Only the coordinator is missing: a test says
where a plan ends and in which order segments are committed.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from diskless.fetch.read_memory import ReadMemory
from diskless.loop.long_work import LongWork
from diskless.replica.batch_reader import BatchReader, ReadRequest
from diskless.replica.batch_stamping import NO_END
from diskless.replica.extent_source import ExtentSource
from metadata.operations import (
    READ_COMMITTED,
    AbortedTransaction,
    FindBatches,
    FoundBatches,
    RolledSegment,
    SegmentPlan,
)
from metadata.records.records import (
    CommittedBatch,
    FileCommittedRecord,
    SegmentCommittedRecord,
    SegmentPlannedRecord,
)
from metadata.records.rewrites import (
    RewriteEndedRecord,
    RewritePlannedRecord,
    SegmentRewrittenRecord,
)
from metadata.records.segment_identity import segment_key
from metadata.records.transactions import EndedPartition, TransactionEndedRecord
from metadata.rewrites import MERGE, RewriteInput, RewritePlan
from metadata.rules.segments import decide_commit_segments
from metadata.state.queries.batch_queries import FileNames, find_batches, segment_plan
from metadata.state.queries.segment_queries import neighbours_within
from metadata.state.speculative import SpeculativeView
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.coordinators.applied_state import START_MS, AppliedState, applied_state
from tests.tiering.tiering_samples import file_store, range_reader
from tiering.merging.merge import merge
from tiering.roll import roll
from tiering.segment_reader import SegmentReader
from wal.caches.object_cache import ObjectCache
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.wal_settings import WalSettings
from wal.clock import SystemClock
from wal.coordinates import CREATE_TIME, NO_SEQUENCE, ByteOffset, Offset, TopicIdPartition
from wal.fd_cache import FdCache
from wal.records.record_batch import iterate_headers
from wal.stores.file_store import BlockingFileStore, FileStore
from wal.stores.object_store import BytesBody
from wal.worker_threads import WorkerThreads

LOG: Final = "axbaBcAbcCxB"
"""Who writes a batch, one after the other; an upper case letter is the marker of an end."""
NOBODY: Final = "x"
"""Its batches belong to no transaction."""
RECORDS: Final = 2
"""Of each batch."""
MUCH: Final = 1 << 30

_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20


class Written(NamedTuple):
    """A batch or a marker of the log, by the offsets that it has."""

    who: str
    base_offset: int
    last_offset: int
    began: int
    """Offset of the first batch of its transaction; -1: it has none."""
    is_committed: bool
    """Told by the marker; of what is not ended False."""
    is_ended: bool

    @property
    def is_marker(self) -> bool:
        return self.who.isupper()


def written(log: str, outcomes: Sequence[bool]) -> Sequence[Written]:
    """The log by offsets; `outcomes` are those of its markers, in order: whether they commit."""
    entries: list[Written] = []
    began: dict[str, int] = {}
    of_open: dict[str, list[int]] = {}
    left = list(outcomes)
    offset = 0
    for who in log:
        last = offset + (1 if who.isupper() else RECORDS) - 1
        first = -1 if who == NOBODY else began.get(who.lower(), -1)
        if who.islower() and who != NOBODY:
            first = began.setdefault(who, offset)
            of_open.setdefault(who, []).append(len(entries))
        entries.append(Written(who, offset, last, first, who == NOBODY, who == NOBODY))
        if who.isupper():
            outcome = left.pop(0)
            for place in (*of_open.pop(who.lower(), ()), len(entries) - 1):
                entries[place] = entries[place]._replace(is_committed=outcome, is_ended=True)
            began.pop(who.lower(), None)
        offset = last + 1
    return entries


def stable_end(entries: Sequence[Written]) -> int:
    """The last stable offset behind all entries."""
    opened = [one.base_offset for one in entries if not one.is_ended]
    return min(opened) if opened else entries[-1].last_offset + 1


def batch_of(entry: Written) -> bytes:
    rows = [
        Row(START_MS + offset, entry.who.encode(), b"%d" % offset)
        for offset in range(entry.base_offset, entry.last_offset + 1)
    ]
    if entry.who == NOBODY:
        return build_batch(rows)
    return build_batch(
        rows,
        attributes=_TRANSACTIONAL_BIT,
        producer_id=ord(entry.who),
        producer_epoch=0,
        base_sequence=entry.base_offset,
    )


class Rolling:
    """One partition with its store, and what a broker has to read it."""

    def __init__(
        self,
        state: AppliedState,
        follower: AppliedState,
        store: BlockingFileStore,
        reader: BatchReader,
    ) -> None:
        self.state = state
        self.follower = follower
        """Of another broker; see `consumed_by_turns`."""
        self._followed = 0
        self.store = store
        self._reader = reader
        self._partition: TopicIdPartition | None = None
        self._generation = 0

    @property
    def partition(self) -> TopicIdPartition:
        assert self._partition is not None
        return self._partition

    @property
    def topic_name(self) -> str:
        return self.state.image.topics[self.partition.topic_id].description.name

    async def write(self, entries: Sequence[Written]) -> None:
        """A new topic's partition with these entries, each batch in a row of its own."""
        (self._partition,) = await self.state.topic()
        number = 0
        for place, entry in enumerate(entries):
            if not entry.is_marker:
                number += 1
                await self._append(entry, number)
                continue
            so_far = [
                one._replace(is_ended=one.is_ended and _end_of(one, entries) <= entry.base_offset)
                for one in entries[: place + 1]
            ]
            await self.state.apply(
                TransactionEndedRecord(
                    producer_id=ord(entry.who.lower()),
                    producer_epoch=0,
                    number=place + 1,
                    is_commit=entry.is_committed,
                    coordinator_epoch=3,
                    ended_ms=START_MS,
                    partitions=[
                        EndedPartition(
                            self.partition, entry.base_offset, entry.began, stable_end(so_far)
                        )
                    ],
                    group_id=None,
                )
            )

    async def _append(self, entry: Written, number: int) -> None:
        data = batch_of(entry)
        key = self.state.key()
        self.store.put(key, BytesBody(b"head", data))
        is_ours = entry.who != NOBODY
        batch = CommittedBatch(
            partition=self.partition,
            position=0,
            magic=2,
            byte_offset=ByteOffset(4),
            byte_size=len(data),
            base_offset=Offset(entry.base_offset),
            last_offset=Offset(entry.last_offset),
            log_append_time_ms=START_MS,
            max_timestamp_ms=START_MS + entry.last_offset,
            timestamp_type=CREATE_TIME,
            producer_id=ord(entry.who) if is_ours else -1,
            producer_epoch=0 if is_ours else -1,
            base_sequence=entry.base_offset if is_ours else NO_SEQUENCE,
            last_sequence=entry.last_offset if is_ours else NO_SEQUENCE,
            transaction_number=entry.began + 1 if is_ours else -1,
        )
        await self.state.apply(
            FileCommittedRecord(
                object_key=key,
                object_format=1,
                file_size=4 + len(data),
                uploader_broker_id=0,
                owner_ids=(0,),
                committed_at_ms=START_MS,
                batches=(batch,),
            )
        )

    # -- rolling ----------------------------------------------------------------------------------

    async def plan(self, base: int, last: int) -> SegmentPlan:
        """Plan these offsets, and ask for the plan as a job does."""
        key = segment_key(self.topic_name, self.partition, base, last)
        await self.state.apply(
            SegmentPlannedRecord(
                partition=self.partition,
                base_offset=base,
                last_offset=last,
                object_key=key,
                planned_at_ms=START_MS,
            )
        )
        return await self.asked(base)

    async def asked(self, base: int) -> SegmentPlan:
        """The outstanding plan from `base` on."""
        (planned,) = (
            plan
            for plan in self.state.image.plans.values()
            if plan.partition == self.partition and plan.base_offset == base
        )
        partition_id = self.state.partition(self.partition).id
        plan = await self.state.state.read(
            lambda connection: segment_plan(
                connection, FileNames(), planned, partition_id, self.topic_name
            )
        )
        assert plan is not None
        return plan

    async def commit(self, plan: SegmentPlan) -> RolledSegment:
        """Roll the plan, twice, and commit it by the coordinator's rules."""
        segment = roll(plan, self.store).segment
        assert roll(plan, self.store).segment == segment
        view = SpeculativeView(self.state.image)
        decision = decide_commit_segments(view, [segment])
        assert decision.answer[0].error is None, decision.answer
        (record,) = decision.records
        assert isinstance(record, SegmentCommittedRecord)
        await self.state.apply(record)
        return segment

    async def inputs(self) -> Sequence[RewriteInput]:
        """All segments, which follow each other."""
        state = self.state.partition(self.partition)
        return await self.state.state.read(
            lambda connection: neighbours_within(
                connection, FileNames(), state.id, 0, state.high_watermark
            )
        )

    async def merge(self) -> None:
        """Make one of all segments."""
        inputs = await self.inputs()
        self._generation += 1
        plan = RewritePlan(
            topic_name=self.topic_name,
            partition=self.partition,
            kind=MERGE,
            generation=self._generation,
            planned_at_ms=START_MS,
            delete_horizon_ms=START_MS,
            producers_since_ms=0,
            target_bytes=MUCH,
            inputs=inputs,
        )
        made = merge(plan, self.store)
        await self.state.apply(
            RewritePlannedRecord(
                partition=self.partition,
                generation=plan.generation,
                kind=MERGE,
                base_offset=inputs[0].base_offset,
                last_offset=inputs[-1].last_offset,
                planned_at_ms=START_MS,
                delete_horizon_ms=START_MS,
                target_bytes=MUCH,
            ),
            SegmentRewrittenRecord(
                partition=self.partition,
                generation=plan.generation,
                base_offset=made.base_offset,
                last_offset=made.last_offset,
                object_key=made.object_key,
                object_bytes=made.object_bytes,
                crc32c=made.crc32c,
                record_count=made.record_count,
                removed_count=made.removed_count,
                max_timestamp_ms=made.max_timestamp_ms,
            ),
            RewriteEndedRecord(
                partition=self.partition, generation=plan.generation, cleaned_end_offset=0
            ),
        )

    # -- reading ----------------------------------------------------------------------------------

    async def consumed(self, offset: int, isolation: int, max_bytes: int = MUCH) -> list[int]:
        """The offsets of the records that a consumer gives its application, from `offset` on."""
        seen: list[int] = []
        end = self._end(self.state, isolation)
        while offset < end:
            data, next_offset, aborted = await self._fetch(offset, isolation, max_bytes)
            assert next_offset > offset, f"a consumer would stay at {offset}"
            seen += _given(data, offset, aborted)
            offset = next_offset
        assert offset == end
        return seen

    async def consumed_by_turns(
        self, offset: int, isolation: int, max_bytes: int = MUCH
    ) -> list[int]:
        """The same, fetched by turns from a follower and from the leader.

        The follower is one metadata batch behind: it knows nothing of the last record, marker or
        segment.
        """
        await self.follower.follow(self.state, self._followed, behind=1)
        self._followed = max(len(self.state.batches) - 1, 0)
        seen: list[int] = []
        end = self._end(self.state, isolation)
        is_followers_turn = True
        while offset < end:
            knows_more = offset < self._end(self.follower, isolation)
            at = self.follower if is_followers_turn and knows_more else self.state
            data, next_offset, aborted = await self._fetch(offset, isolation, max_bytes, at)
            assert next_offset > offset, f"a consumer would stay at {offset}"
            seen += _given(data, offset, aborted)
            offset = next_offset
            is_followers_turn = not is_followers_turn
        return seen

    def _end(self, at: AppliedState, isolation: int) -> int:
        """Behind what a reader may see there."""
        known = at.image.partitions.get(self.partition)
        if known is None:
            return 0
        is_committed = isolation == READ_COMMITTED
        return known.last_stable_offset if is_committed else known.high_watermark

    async def find(
        self,
        offset: int,
        isolation: int,
        max_bytes: int = MUCH,
        extents_max: int = 100,
        at: AppliedState | None = None,
    ) -> FoundBatches:
        """As a replica answers; the leader, or `at`."""
        state = at or self.state
        partition_id = state.partition(self.partition).id
        (found,) = await state.state.read(
            lambda connection: find_batches(
                connection,
                FileNames(),
                [(FindBatches(self.partition, offset, max_bytes), partition_id)],
                max_bytes=max_bytes,
                at_least_one=True,
                rows_per_partition_max=extents_max,
                isolation=isolation,
            )
        )
        assert found.error is None, found.error
        return found

    async def _fetch(
        self, offset: int, isolation: int, max_bytes: int, at: AppliedState | None = None
    ) -> tuple[bytes, int, Sequence[AbortedTransaction]]:
        found = await self.find(offset, isolation, max_bytes, at=at)
        end = found.last_stable_offset if isolation == READ_COMMITTED else NO_END
        request = ReadRequest(self.partition, offset, max_bytes, found.extents, end)
        (result,) = await self._reader.read([request], max_bytes=max_bytes)
        assert result.error is None, result.error
        begun = [one for one in found.aborted if one.first_offset < result.next_offset]
        assert isolation == READ_COMMITTED or not begun
        return b"".join(result.records), result.next_offset, begun


def _end_of(entry: Written, entries: Sequence[Written]) -> int:
    """Where what it belongs to was ended; of what no transaction has, at once."""
    if entry.who == NOBODY:
        return -1
    marker = entry.who.upper()
    ends = [one.base_offset for one in entries if one.who == marker]
    return next((end for end in ends if end >= entry.base_offset), MUCH)


def _given(data: bytes, offset: int, aborted: Sequence[AbortedTransaction]) -> list[int]:
    """As Kafka's clients do: drop a producer's batches from what was told up to its marker."""
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    dropped: set[int] = set()
    given = []
    for position, header in iterate_headers(data):
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropped.add(waiting.pop(0).producer_id)
        if header.attributes & _CONTROL_BIT:
            # Of an abort, by the type in the key of its record.
            if header.producer_id >= 0 and data[position + 61 + 8] == 0:
                dropped.discard(header.producer_id)
        elif not (header.attributes & _TRANSACTIONAL_BIT and header.producer_id in dropped):
            assert header.record_count == header.last_offset_delta + 1
            given += [
                at for at in range(header.base_offset, header.last_offset + 1) if at >= offset
            ]
    return given


@asynccontextmanager
async def rolling(directory: Path) -> AsyncIterator[Rolling]:
    """Nothing is written yet; `Rolling.write` may be called again for another partition."""
    clock = SystemClock()
    chunks = ChunkDirectory(
        directory / "chunks",
        settings=WalSettings(),
        clock=clock,
        rng=random.Random(1),
        fd_cache=FdCache(8),
        broker_id=0,
    )
    chunks.recover()
    threads = WorkerThreads("read", 1)
    objects = directory / "objects"
    behind = directory / "follower"
    behind.mkdir()
    async with applied_state(directory) as state, applied_state(behind) as follower:
        with file_store(objects) as store:
            remote = FileStore(str(objects), clock=clock, rng=random.Random(2), sync=False)
            async with (
                remote,
                ObjectCache(remote, clock=clock) as cache,
                SegmentReader(range_reader(store)) as segments,
            ):
                source = ExtentSource(
                    directory=chunks,
                    cache=cache,
                    memory=ReadMemory(1 << 20),
                    segments=segments,
                    threads=threads,
                    clock=clock,
                    cold_after_ms=60_000,
                )
                reader = BatchReader(source=source, long_work=LongWork(clock.monotonic))
                yield Rolling(state, follower, store, reader)
    await threads.close()
    chunks.close()
