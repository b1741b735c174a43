"""Topics in one process, from produced batches to rebuilt metadata; no socket and no Spark.

    async with TieredTopics(directory, seed) as world:
        partition = await world.create("topic", cleanup_policy="compact")
        await world.produce([(partition, SampleBatch([SampleRecord(b"key")]))])
        await world.roll()
        await world.rewrite()
        found = await world.read(partition)

The coordinator, the objects and what becomes of them are the real ones: WAL objects with notes,
segments, merges, compactions, tables, deletions of files, and the rebuild. Time is the world's
clock, which stands still; objects are as old as it says. What a job does is a method each, so that
one can end between any two steps, as a killed job does.
"""

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

import pyarrow.parquet as pq
from pyiceberg.table import StaticTable
from tiering_samples import SampleBatch, range_reader, read_batch

from diskless.cli.rebuild import read_bucket
from diskless.parts.leader_workers import schema_references as references
from diskless.topics.schema_notes import SchemaNotes
from metadata import operations as ops
from metadata.coordinator.sink_notes import NotePlace
from metadata.metadata_settings import CoordinatorSettings
from metadata.rebuild.facts import RebuildOptions
from metadata.rebuild.plan import plan_rebuild
from metadata.rebuild.rebuild import check_rebuilt, put_new_objects, write_metadata
from metadata.rebuild.report import RebuildReport
from metadata.rewrites import COMPACTION, PlanRewrites, Rewrite, RewritePlan
from metadata.sink_operations import CommitSink, SinkCommit
from metadata.table_operations import (
    CommitTable,
    ListedSegments,
    ListedTables,
    ListSegments,
    ListTables,
    LiveSegment,
    TableCommit,
)
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.notes_sweep import NotesSweep
from metadata.workers.sweeps.segments_sweep import SegmentsSweep
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    running_coordinator,
)
from tests.support.tiers.compacted import Meddle, compacted
from tiering.merging.merge import merge
from tiering.roll import roll
from tiering.segment_reader import SegmentReader
from tiering.tables.passes import TablePasses
from wal.chunks import object_notes
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkEntry
from wal.chunks.kept_notes import encode_kept_notes, notes_key
from wal.chunks.wal_object import ObjectLayout, WalObjectReader, plan_wal_object
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.staging.staged_object import staged_object
from wal.stores.file_store import BlockingFileStore
from wal.stores.object_store import BytesBody, ObjectBody, ObjectStat, StoreStatistics
from wal.ulid import mint_ulid

SETTINGS: Final = CoordinatorSettings(
    state_readers=1, segment_bytes=600, segment_ms=60_000, file_delete_grace_ms=0
)
EVERYTHING: Final = ops.PlanSegments(include_partial=True)


class Seen(NamedTuple):
    """A record as a consumer reads it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class TieredTopics:
    """A cluster of one broker; `clock` and `rng` are its own."""

    def __init__(self, directory: Path, seed: int, *, meddle: Meddle | None = None) -> None:
        """`meddle` is a bug planted into compactions."""
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.blocking = ClockedFileStore(directory / "objects", self.clock, self.rng)
        self.store = _AtOnce(self.blocking)
        self.log = MemoryMetadataLog()
        self.names: dict[UUID, str] = {}
        self._meddle = meddle
        self.directory = directory
        self.segments_swept = 0
        self._lives = 0
        self._journal = object_notes.CommitJournal()
        self._last_ulid: str | None = None
        self._life = AsyncExitStack()
        self._passes: TablePasses | None = None

    async def __aenter__(self) -> Self:
        self.blocking.open()
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()
        self.blocking.close()

    @property
    def coordinator(self) -> Any:
        return self.bench.coordinator

    # -- lives ----------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self.bench: CoordinatorBench = await self._life.enter_async_context(
            running_coordinator(
                self.directory / f"state-{self._lives}",
                self.log,
                clock=self.clock,
                seed=self.rng.getrandbits(32),
                settings=SETTINGS,
                note_place=NotePlace(self.store, self._topic),
            )
        )
        self._reader = SegmentReader(range_reader(self.blocking))
        self._life.push_async_exit(self._reader)
        self._workers = FileWorkers(
            self.coordinator,
            self.store,
            _NoOthers(),
            coordinator_id=0,
            settings=SETTINGS,
            clock=self.clock,
            rng=self.rng,
            notes=NoteKeeper(
                self.store,
                clock=self.clock,
                rng=self.rng,
                floors=self._floor,
                topics=self._topic,
            ),
        )

    async def _end(self) -> None:
        if self._passes is not None:
            self._passes.__exit__()
            self._passes = None
        await self._life.aclose()

    async def restart(self, *, keeps_state: bool) -> None:
        """The broker dies with what it has not noted; another one takes its place."""
        await self._end()
        self._journal = object_notes.CommitJournal()
        if not keeps_state:
            shutil.rmtree(self.directory / f"state-{self._lives}")
        await self._begin()

    async def rebuild(self, *, dies: bool = False) -> RebuildReport:
        """The metadata are lost and made anew from the bucket; the first attempt may die."""
        await self._end()
        for attempt in range(1 + dies):
            facts = await read_bucket(self.store, progress=_no_progress)
            plan = plan_rebuild(facts, RebuildOptions(), clock=self.clock, rng=self.rng)
            await put_new_objects(self.store, plan.new_objects, progress=_no_progress)
            if dies and not attempt:
                continue
            self.log = MemoryMetadataLog()
            self._lives += 1
            await write_metadata(self.log, plan.records, self.clock.now_ms())
            await check_rebuilt(self.log, self.directory / f"checked-{self._lives}")
            if not plan.notes.is_empty:
                key = notes_key(mint_ulid(self.clock, self.rng))
                await self.store.put(key, BytesBody(encode_kept_notes(plan.notes)))
        await self._begin()
        return plan.report

    # -- producing ------------------------------------------------------------------------------

    async def create(self, name: str, **configs: str) -> TopicIdPartition:
        """A topic of one partition; config names have `_` for `.`."""
        notes = SchemaNotes(self.store, clock=self.clock, rng=self.rng)
        await notes.keep([{key.replace("_", "."): value for key, value in configs.items()}])
        topic = await self.bench.topic(name, **configs)
        self.names[topic.topic_id] = name
        return TopicIdPartition(topic.topic_id, 0)

    async def produce(
        self, batches: Sequence[tuple[TopicIdPartition, SampleBatch]]
    ) -> list[ops.BatchCommit]:
        """All in one WAL object; the answers match the batches by position."""
        self._last_ulid = mint_ulid(self.clock, self.rng, self._last_ulid)
        encoded = [batch.encoded() for _, batch in batches]
        entries = [
            _entry(partition, batch, data)
            for (partition, batch), data in zip(batches, encoded, strict=True)
        ]
        partitions = ObjectLayout.of(entries).extents.partitions
        notes = object_notes.ObjectNotes(
            {one.topic_id: facts for one in partitions if (facts := self._topic(one.topic_id))},
            self._journal.take(),
            [self._floor(partition) for partition in partitions],
        )
        identity = ChunkIdentity(
            ulid=self._last_ulid, salt=0, broker_id=0, opened_at_ms=self.clock.now_ms()
        )
        plan = plan_wal_object(identity, entries, notes=object_notes.encode_notes(notes))
        parts = [encoded[position] for position in plan.positions]
        await self.store.put(plan.object_key, BytesBody(plan.header, *parts, plan.footer))
        answers = await self.coordinator.commit_file(
            ops.CommitFile(
                object_key=plan.object_key,
                file_size_bytes=plan.object_bytes,
                uploader_broker_id=0,
                batches=plan.extents,
            )
        )
        note = object_notes.note_commit(self._last_ulid, plan.extents, [*map(_outcome, answers)])
        assert note is not None
        self._journal.add(note)
        by_position = dict(zip(plan.positions, answers, strict=True))
        return [by_position[position] for position in range(len(batches))]

    async def stage(
        self, sink_id: str, batches: Sequence[tuple[TopicIdPartition, SampleBatch]]
    ) -> ops.CommitFile:
        """Puts the object of a task of a sink; it can be committed afterwards."""
        encoded = [(partition, batch.encoded()) for partition, batch in batches]
        ulid = mint_ulid(self.clock, self.rng)
        item = staged_object(sink_id, ulid, self.clock.now_ms(), encoded)
        await self.store.put(item.object_key, item.body)
        index = await WalObjectReader(self.store).read_index(item.object_key)
        return ops.CommitFile(
            object_key=item.object_key,
            file_size_bytes=item.body.length_bytes,
            uploader_broker_id=-1,
            batches=index.extents,
        )

    async def commit_sink(
        self, sink_id: str, batch_id: int, files: Sequence[ops.CommitFile]
    ) -> SinkCommit:
        """The digest follows from the batch's id, as that of a query that can be repeated."""
        digest = batch_id.to_bytes(16, "big")
        commit = CommitSink(sink_id, "User:spark", batch_id, digest, files)
        answer: SinkCommit = await self.coordinator.sinks.commit(commit)
        return answer

    async def sweep_notes(self, *, everything: bool = True) -> None:
        """Notes objects are merged, and what is of no use any more is dropped."""
        sweep = NotesSweep(
            self.store,
            topics=self._topic,
            log_began_ms=lambda: self.coordinator.replica.log_began_ms,
            steady_ms=lambda: self.coordinator.steady_ms,
            schemas=lambda: references(self.coordinator.replica),
            settings=SETTINGS,
            rng=self.rng,
        )
        await sweep.sweep_once(everything=everything)

    async def sweep_segments(self) -> None:
        """What a job wrote as segments goes, however young, unless it may still be committed."""
        self.clock.advance(0.001)
        replica = self.coordinator.replica
        sweep = SegmentsSweep(
            self.store,
            replica,
            [replica],
            confirm_leadership=self.coordinator.lease.confirm,
            settings=replace(SETTINGS, orphan_scan_grace_ms=0, clock_skew_max_ms=0),
            clock=self.clock,
        )
        await sweep.sweep_once()
        self.segments_swept += sweep.objects_deleted

    async def delete_records(self, partition: TopicIdPartition, before: int) -> None:
        (answer,) = await self.coordinator.delete_records([ops.DeleteRecords(partition, before)])
        assert answer.error is None

    # -- jobs -----------------------------------------------------------------------------------

    async def roll(self, *, is_killed: bool = False) -> None:
        """Put all that is committed into segments; a killed job has not committed any."""
        plans = await self.coordinator.plan_segments(EVERYTHING)
        segments = [roll(plan, self.blocking).segment for plan in plans]
        if not is_killed:
            answers = await self.coordinator.commit_segments(segments)
            assert not any(answer.error for answer in answers), answers

    async def plan_rewrites(self) -> Sequence[RewritePlan]:
        found: Sequence[RewritePlan] = await self.coordinator.plan_rewrites(PlanRewrites())
        return found

    def written(self, plan: RewritePlan) -> Rewrite:
        """The outcome of a plan, with all its objects."""
        if plan.kind == COMPACTION:
            if self._meddle is not None:
                return compacted(plan, self.blocking, hash_bits=4, meddle=self._meddle)
            return compacted(plan, self.blocking, hash_bits=4)
        segments = [merge(plan, self.blocking)] if len(plan.inputs) > 1 else []
        return Rewrite(partition=plan.partition, generation=plan.generation, segments=segments)

    async def commit(self, rewrite: Rewrite) -> bool:
        """Whether it was new."""
        (answer,) = await self.coordinator.commit_rewrites([rewrite])
        assert answer.error is None, answer
        return not answer.is_duplicate

    async def run_table_pass(self) -> None:
        """Every table shows the live segments afterwards, with as many rows as these have."""
        if self._passes is None:
            self._passes = TablePasses(
                _TableClient(self.coordinator, asyncio.get_running_loop(), self.blocking.url),
                ListTables(),
                object_store_url=None,
                clock=self.clock,
                rng=self.rng,
            )
        report = await asyncio.to_thread(self._passes.run_pass)
        assert not report.failures, report
        for table in self.coordinator.catalogue.list_tables(ListTables()):
            location = f"{self.blocking.url}/{table.location}"
            live = await self.live_segments(TopicIdPartition(table.topic_id, 0))
            shown = await asyncio.to_thread(_data_files, location)
            assert shown == {
                f"{self.blocking.url}/{one.object_key}": one.record_count
                for one in live
                if one.record_count
            }

    async def clean(self) -> None:
        """The files that nobody needs any more are deleted."""
        self.clock.advance(1)
        while await self._workers.delete_once():
            pass

    # -- reading --------------------------------------------------------------------------------

    async def live_segments(self, partition: TopicIdPartition) -> Sequence[LiveSegment]:
        (listed,) = await self.coordinator.replica.list_segments([ListSegments(partition, 0)])
        assert listed.error is None
        segments: Sequence[LiveSegment] = listed.segments
        return segments

    async def log_start(self, partition: TopicIdPartition) -> int:
        image = self.coordinator.replica.image
        return int(image.partitions[partition].log_start_offset)

    async def first_extent(self, partition: TopicIdPartition) -> int:
        """Where the extent with the log start begins."""
        answer = await self.bench.find(partition, await self.log_start(partition))
        return answer.extents[0].base_offset

    async def read(self, partition: TopicIdPartition) -> list[Seen]:
        """All records from the log start on, as a consumer gets them; there is no gap."""
        state = self.coordinator.replica.image.partitions[partition]
        offset = state.log_start_offset
        found: list[Seen] = []
        while offset < state.high_watermark:
            answer = await self.bench.find(partition, offset)
            assert answer.error is None
            for extent in answer.extents:
                assert extent.base_offset <= offset <= extent.last_offset, "no gap between them"
                async for base, last, records in self._batches(extent, offset):
                    assert last >= offset, "a batch of before comes again"
                    assert base >= extent.base_offset
                    found += [record for record in records if record.offset >= offset]
                    offset = last + 1
                assert offset == extent.last_offset + 1, "the extent leads to its end"
        return found

    async def _batches(
        self, extent: ops.Extent, offset: int
    ) -> AsyncIterator[tuple[int, int, list[Seen]]]:
        """First and last offset of each batch from the one with `offset` on, and its records."""
        if isinstance(extent, ops.SegmentExtent):
            while offset <= extent.last_offset:
                for batch in await self._reader.read(extent, offset, 1_000):
                    seen = read_batch(batch.data) if batch.data[61:] else None
                    yield batch.base_offset, batch.last_offset, _seen(seen)
                    offset = batch.last_offset + 1
            return
        data = self.blocking.get_range(extent.object_key, extent.byte_offset, extent.length_bytes)
        base = int(extent.base_offset)
        while data:
            length = 12 + int.from_bytes(data[8:12], "big")
            seen = read_batch(data[:length])
            last = base + seen.last_offset
            if last >= offset:
                yield base, last, _seen(seen, base)
            base, data = last + 1, data[length:]

    async def horizons(self, partition: TopicIdPartition) -> dict[int, int]:
        """The delete horizons of the tombstones that have one, by offset."""
        found = {}
        for segment in await self.live_segments(partition):
            path = self.directory / "objects" / segment.object_key
            rows = pq.read_table(path, columns=["offset", "delete_horizon"])
            rows = rows.filter(rows.column("delete_horizon").is_valid())
            columns = [column.to_numpy().tolist() for column in rows.columns]
            found.update(zip(*columns, strict=True))
        return found

    # -- what a broker knows --------------------------------------------------------------------

    def _topic(self, topic_id: UUID) -> object_notes.TopicFacts | None:
        topic = self.coordinator.replica.image.topics.get(topic_id)
        if topic is None:
            return None
        configs = self.coordinator.replica.topic_configs(topic_id) or {}
        noted = object_notes.noted_configs(configs)
        return object_notes.TopicFacts(self.names[topic_id], 1, noted)

    def _floor(self, partition: TopicIdPartition) -> object_notes.Floor | None:
        state = self.coordinator.replica.image.partitions.get(partition)
        return state and object_notes.Floor(state.high_watermark, state.log_start_offset)


class ClockedFileStore(BlockingFileStore):
    """A store in a directory whose objects are as old as `clock` says."""

    def __init__(self, root: Path, clock: ManualClock, rng: random.Random) -> None:
        super().__init__(root, clock=clock, rng=rng, sync=False)
        self._root_path = root
        self._now_ms = clock.now_ms

    def put(
        self, key: ObjectKey, body: ObjectBody, abandoned: Callable[[], bool] = lambda: False
    ) -> None:
        super().put(key, body, abandoned)
        now_s = self._now_ms() / 1000
        os.utime(self._root_path / key, (now_s, now_s))


class _AtOnce:
    """The store behind the broker's interface, without threads."""

    def __init__(self, store: BlockingFileStore) -> None:
        self._store = store
        self.url = store.url

    def statistics(self) -> StoreStatistics:
        raise NotImplementedError

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        self._store.put(key, body)

    async def get(self, key: ObjectKey) -> bytes:
        return self._store.get(key)

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        return self._store.get_range(key, start, length)

    async def head(self, key: ObjectKey) -> ObjectStat:
        return self._store.head(key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        for stat in self._store.list(prefix, start_after):
            yield stat

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        return self._store.delete(keys)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class _NoOthers:
    """The other coordinators of a cluster that has one."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody is there for {name}")


class _TableClient:
    """What a registrar asks of the coordinator, from its own thread."""

    def __init__(self, coordinator: Any, loop: asyncio.AbstractEventLoop, url: str) -> None:
        self._coordinator = coordinator
        self._loop = loop
        self._url = url

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def list_tables(self, asked: ListTables) -> ListedTables:
        return ListedTables(self._coordinator.catalogue.list_tables(asked), self._url)

    def list_segments(self, asked: Sequence[ListSegments]) -> Sequence[ListedSegments]:
        answers: Sequence[ListedSegments] = self._run(
            self._coordinator.replica.list_segments(asked)
        )
        return answers

    def commit_table(self, commit: CommitTable) -> TableCommit:
        (answer,) = self._run(self._coordinator.catalogue.commit_tables([commit]))
        assert isinstance(answer, TableCommit)
        return answer


def _data_files(location: str) -> dict[str, int]:
    """The files of a table's newest snapshot and their rows; PyIceberg passes over empty ones."""
    tasks = StaticTable.from_metadata(location).scan().plan_files()
    return {task.file.file_path: task.file.record_count for task in tasks}


def _entry(partition: TopicIdPartition, batch: SampleBatch, data: bytes) -> ChunkEntry:
    return ChunkEntry(
        partition,
        0,
        len(data),
        len(batch.records),
        int.from_bytes(data[17:21], "big"),
        max(record.timestamp_ms for record in batch.records),
        0,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        0,
        transaction_number=batch.transaction_number,
    )


def _outcome(answer: ops.BatchCommit) -> object_notes.BatchOutcome:
    if answer.error is not None:
        return object_notes.BatchOutcome(exception=object_notes.REFUSED)
    if answer.is_duplicate:
        return object_notes.BatchOutcome(exception=object_notes.DUPLICATE)
    return object_notes.BatchOutcome(
        answer.base_offset, answer.log_append_time_ms, max(answer.log_start_offset, 0)
    )


def _seen(batch: Any, base_offset: int = 0) -> list[Seen]:
    if batch is None:
        return []
    return [
        Seen(base_offset + offset, timestamp_ms, key, value, tuple(headers))
        for offset, timestamp_ms, key, value, headers in batch.records
    ]


def _no_progress(what: str, done: int, total: int) -> None:
    pass
