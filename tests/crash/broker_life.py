"""A broker's coordinators and all their background work, as a script that can be killed anywhere.

    lives = Lives()                                     # one process that forks a child per life
    points = lives.recorded(directory, "local")         # every failpoint that was hit, by step
    lives.live(directory, "local", CrashPoint(12, "commit.after_log", 1))
    lives.live(directory, "local")                      # goes on with the step that was interrupted

One process has two coordinators, so that topics are spread, files are handed over and orphans are
asked about by both. The script is a list of steps; the answer of each is written to `answers.jsonl`
when it is there, as a client would note it. A later life in the same directory begins with the
first step without an answer, as a client repeats what it was not told the outcome of. Time is the
script's too: a step begins at the same time in every life.

At the end everything there is is written down by `inventory`, with names in place of surrogate
keys: all rows of all tables of both coordinators, and all objects. It must not depend on where the
process was killed. `verify_metadata` looks at both, too.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

import wal.failpoint
from diskless.transactions.transaction_ends import parts_of
from metadata import operations as ops
from metadata.clients.local_client import LocalClient
from metadata.coordinator.candidate import Candidate
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.log.local_log import LocalLogSettings, LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.groups import CommittedOffset
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from metadata.replica.verify import verify_metadata
from metadata.retention_settings import RetentionSettings
from metadata.rules.files import permuted_owners
from metadata.transaction_operations import (
    AddToTransaction,
    EndTransaction,
    InitProducer,
    TransactionGroup,
    TransactionPartition,
)
from metadata.workers.catalogue_sweep import CatalogueSweep
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.orphan_scan import OrphanScan
from metadata.workers.producer_expiry import ProducerExpiry
from metadata.workers.retention import RetentionWorker
from metadata.workers.row_sweeper import RowSweeper
from metadata.workers.snapshot_keeper import SnapshotKeeper, SnapshotSettings
from tests.support.coordinator_bench import batch, rolled
from tests.support.coordinator_worlds import NoSyncDisk
from tests.support.named_rows import named_rows
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkEntry
from wal.chunks.wal_object import plan_wal_object
from wal.clock import ManualClock
from wal.coordinates import BatchExtent, ByteOffset, ObjectKey, TopicIdPartition
from wal.errors import DisklessError, ObjectExists, TopicExists, UnknownTopicId
from wal.stores.file_store import FileStore
from wal.stores.object_store import BytesBody
from wal.ulid import WAL_PREFIX, minted_ms, ulid_at, wal_object_key

COORDINATORS: Final = 2
LOG_KINDS: Final = ("local", "object")
ANSWERS: Final = "answers.jsonl"
RECORDED: Final = "failpoints.json"
INVENTORY: Final = "inventory.json"
SETTINGS: Final = CoordinatorSettings(
    metadata_partitions=COORDINATORS,
    state_readers=1,
    segment_bytes=1_000,
    max_commit_age_ms=60_000,
    producer_expiration_ms=30_000,
    clock_skew_max_ms=1_000,
    orphan_scan_grace_ms=1_000,
    orphan_scan_interval_ms=1_000,
    orphan_scan_page_max=2,
    file_delete_grace_ms=1_000,
    file_cleaner_batch_max=4,
)
RETENTION: Final = RetentionSettings(retention_bytes=600, retention_ms=-1, step_rows_max=1)
SWEEPING: Final = RetentionSettings(step_rows_max=100)
SNAPSHOTS: Final = SnapshotSettings(retained_max=2)
LOCAL_LOG: Final = LocalLogSettings(segment_bytes=8 << 10)
KEPT: Final = UUID(int=0x4_0000)
DOOMED: Final = UUID(int=0x5_0000)
"""Even, so that even partitions are at coordinator 0 and odd ones at coordinator 1."""
PAYER: Final = "payer"
PAYING: Final = 40
"""A transactional id, and its producer id."""
BIG_FILES: Final = 3
BIG_BATCHES: Final = 420

Answer = Any
"""What JSON knows."""


class Life:
    """One process, from its start to its end."""

    def __init__(self, directory: Path, kind: str, number: int, clock: ManualClock) -> None:
        self.directory = directory
        self.kind = kind
        self.clock = clock
        self._number = number
        self._rng = random.Random(number)
        self.store = FileStore(
            directory / "objects", clock=clock, rng=random.Random(number), sync=False
        )
        self.partitions: list[MetadataPartition] = []
        self.client: LocalClient
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        self._date_objects()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self.store.__aexit__(None, None, None)

    # -- the coordinators -----------------------------------------------------------------------

    def _state(self, index: int) -> Path:
        return self.directory / f"state-{index}"

    def _snapshots(self, index: int) -> SnapshotStore:
        return SnapshotStore(self.store, partition=index, cluster_id="c", disk=NoSyncDisk(calls=()))

    async def open_log(self, index: int) -> MetadataLog:
        if self.kind == "local":
            return await LocalMetadataLog.open(
                self.directory / f"log-{index}",
                rng=self._rng,
                settings=LOCAL_LOG,
                disk=NoSyncDisk(calls=()),
            )
        return await ObjectMetadataLog.open(self.store, index, clock=self.clock, rng=self._rng)

    async def start(self) -> None:
        self.partitions = []
        for index in range(COORDINATORS):
            partition = await self._partition(index)
            self.partitions.append(await self._running.enter_async_context(partition))
            await self._running.enter_async_context(_running(partition))
        self.client = LocalClient(self.partitions, rng=self._rng)

    async def _partition(self, index: int) -> MetadataPartition:
        candidate = Candidate(
            broker_id=1,
            host="b",
            port=1,
            incarnation=UUID(int=self._number),
            # The data directory was locked by each of them, and is by this one.
            past_incarnations=[UUID(int=number) for number in range(self._number)],
        )
        return MetadataPartition(
            Replica(
                self._state(index),
                settings=SETTINGS,
                coordinator_id=index,
                snapshots=self._snapshots(index),
                catalogue=self.partitions[0].replica if index else None,
            ),
            await self.open_log(index),
            candidate=lambda: candidate,
            workers=lambda _: (),
            clock=self.clock,
            rng=self._rng,
            settings=SETTINGS,
            lease_ms=ObjectLogSettings().lease_ms if self.kind == "object" else 0,
            sleep=_for_ever,
        )

    async def stop(self) -> None:
        await self._running.aclose()

    async def restart_without_state(self) -> Answer:
        await self.stop()
        for index in range(COORDINATORS):
            shutil.rmtree(self._state(index), ignore_errors=True)
        await self.start()
        return "started"

    @property
    def coordinators(self) -> Sequence[PartitionCoordinator]:
        found = [partition.coordinator for partition in self.partitions]
        return [coordinator for coordinator in found if coordinator is not None]

    # -- objects --------------------------------------------------------------------------------

    async def put(self, key: ObjectKey, size: int) -> None:
        """Upload; another life may have done it."""
        try:
            await self.store.put(key, _body(key, size))
        except ObjectExists:
            pass
        self._date_objects()

    def _date_objects(self) -> None:
        """The store's clock is the script's: what was written since is as old as the step."""
        now_s = self.clock.now_ms() / 1000
        for path in (self.directory / "objects").rglob("*"):
            if path.is_file() and path.stat().st_mtime > now_s:
                os.utime(path, (now_s, now_s))

    # -- steps ----------------------------------------------------------------------------------

    async def create(self, topic_id: UUID, name: str, partitions: int) -> Answer:
        (answer,) = await self.client.create_topics(
            [
                ops.CreateTopic(
                    name=name,
                    partition_count=partitions,
                    topic_id=topic_id,
                    configs={"retention.bytes": "-1"},
                )
            ]
        )
        assert not isinstance(answer, DisklessError) or isinstance(answer, TopicExists)
        topic = self.client.catalogue.topic_by_id(topic_id)
        assert topic is not None
        return [topic.name, topic.partition_count, sorted(topic.assignments.items())]

    async def grow(self, partitions: int) -> Answer:
        request = ops.CreatePartitions(topic_id=KEPT, name="kept", partition_count=partitions)
        return _errors(await self.client.create_partitions([request]))

    async def alter(self) -> Answer:
        wanted = {"retention.bytes": "500"}
        (answer,) = await self.client.alter_topic_configs(
            [ops.AlterTopicConfigs(topic_id=KEPT, before={"retention.bytes": "-1"}, configs=wanted)]
        )
        # Asked again, somebody else was first: this script, in an earlier life.
        return dict(answer.configs)

    async def limit(self, **changes: float | None) -> Answer:
        request = ops.AlterClientQuotas(
            entity=(("client-id", None), ("user", "u")), changes=dict(changes)
        )
        assert await self.client.alter_client_quotas([request]) == [None]
        quotas = self.client.catalogue.client_quotas()
        return [sorted(known.items()) for known in quotas.values()]

    async def drop(self) -> Answer:
        (error,) = await self.client.delete_topics([DOOMED])
        assert error is None or isinstance(error, UnknownTopicId)
        return "gone"

    async def register(self) -> Answer:
        await self.client.register_broker(ops.RegisteredBroker(1, "b", 1, "", UUID(int=1), ""))
        return "registered"

    async def commit_group(self, offset: int) -> Answer:
        offsets = [
            CommittedOffset(TopicIdPartition(KEPT, index), offset, self.clock.now_ms())
            for index in range(3)
        ]
        for coordinator in self.coordinators:
            await coordinator.commit_offsets("readers", offsets)
        return offset

    async def begin_transaction(self) -> Answer:
        """Of two partitions and a group, at both coordinators; asked again, it is there."""
        transactions = self.coordinators[0].transactions
        if transactions.transaction(PAYER) is None:
            await transactions.init_producer(InitProducer(PAYER, 60_000, PAYING))
        partitions = [TransactionPartition(TopicIdPartition(KEPT, at), at) for at in (0, 1)]
        added = AddToTransaction(PAYER, PAYING, 0, partitions, [TransactionGroup("readers", 1)])
        return repr(await transactions.add_to_transaction(added))

    async def commit_group_in_transaction(self) -> Answer:
        offset = CommittedOffset(TopicIdPartition(KEPT, 1), 4, self.clock.now_ms())
        transactions = self.coordinators[1].transactions
        await transactions.commit_offsets("readers", PAYING, 0, 1, [offset])
        return "waits"

    async def end_transaction(self) -> Answer:
        """Decide, tell, complete; or go on with what is decided."""
        transactions = self.coordinators[0].transactions
        await transactions.end_transaction(EndTransaction(PAYER, PAYING, 0, is_commit=True))
        known = transactions.transaction(PAYER)
        assert known is not None
        if known.is_open:
            for coordinator, parts in parts_of(known, leader_epoch=0):
                answers = await self.coordinators[coordinator].transactions.end_parts([parts])
                assert answers == [None]
            await transactions.complete(PAYER, known.number)
        known = transactions.transaction(PAYER)
        return None if known is None else [known.number, known.producer_epoch, int(known.state)]

    async def allocate(self) -> Answer:
        block = await self.client.allocate_producer_ids()
        return [block.start, block.stop]

    async def commit(self, request: ops.CommitFile) -> Answer:
        await self.put(request.object_key, request.file_size_bytes)
        return [_committed(answer) for answer in await self.client.commit_file(request)]

    async def delete_records(self, requests: Sequence[ops.DeleteRecords]) -> Answer:
        answers = await self.client.delete_records(requests)
        return [[answer.log_start_offset, repr(answer.error)] for answer in answers]

    async def look(self) -> Answer:
        """What a reader sees of every partition."""
        names = [
            TopicIdPartition(topic.topic_id, index)
            for _, topic in sorted(self.client.catalogue.topics().items())
            for index in range(topic.partition_count)
        ]
        listed = await self.client.list_offsets(
            [ops.ListOffsets(name, at) for name in names for at in (-1, -2, -3, -4, -5)]
        )
        bounds = [answer.offset for answer in listed]
        found = await self.client.find_batches(
            [ops.FindBatches(name, 0, 1 << 20) for name in names], max_bytes=1 << 30
        )
        return [bounds, [[repr(answer.error), *map(repr, answer.extents)] for answer in found]]

    async def roll(self) -> Answer:
        plans = await self.client.plan_segments(ops.PlanSegments(include_partial=True))
        segments = [rolled(plan) for plan in plans]
        for segment in segments:
            await self.put(segment.object_key, segment.object_bytes)
        answers = await self.client.commit_segments(segments)
        return _errors([answer.error for answer in answers if answer.error is not None])

    async def snapshot(self) -> Answer:
        for partition in self.partitions:
            keeper = SnapshotKeeper(
                partition.replica.state,
                partition.log,
                self._snapshots(partition.index),
                settings=SNAPSHOTS,
                clock=self.clock,
                rng=self._rng,
            )
            await keeper.maintain_once()
            await keeper.take_once()
            await keeper.maintain_once()
        return "taken"

    async def retain(self) -> Answer:
        for coordinator in self.coordinators:
            worker = RetentionWorker(coordinator, settings=RETENTION, clock=self.clock)
            await worker.pass_once()
        return "kept"

    async def sweep(self) -> Answer:
        other = self.coordinators[1]
        # Its own time, so that an hour passes within one step.
        clock = ManualClock()
        abandoned = CatalogueSweep(
            other,
            have=other.replica.topic_ids,
            catalogue_has=lambda topic_id: self.client.catalogue.topic_by_id(topic_id) is not None,
            is_catalogue_followed=lambda: True,
            clock=clock,
        )
        await abandoned.sweep_once()
        clock.advance(3_600)
        await abandoned.sweep_once()
        for coordinator in self.coordinators:
            await RowSweeper(coordinator, settings=SWEEPING).pass_once()
        return "swept"

    async def expire(self) -> Answer:
        for coordinator in self.coordinators:
            await ProducerExpiry(
                coordinator,
                expiration_ms=SETTINGS.producer_expiration_ms,
                settings=RETENTION,
            ).pass_once()
        return "expired"

    async def clean(self) -> Answer:
        """One round of the work on files; who starts anew has nothing in memory."""
        for coordinator in self.coordinators:
            workers = FileWorkers(
                coordinator,
                self.store,
                self.client,
                coordinator_id=coordinator.coordinator_id,
                settings=SETTINGS,
                clock=self.clock,
                rng=self._rng,
                notes=self._keeper(),
            )
            for work in (workers.delete_once, workers.hand_over_once, workers.take_over_once):
                while await work():
                    pass
        return "cleaned"

    def _keeper(self) -> NoteKeeper:
        return NoteKeeper(self.store, clock=self.clock, rng=self._rng)

    async def scan(self, keys: Sequence[ObjectKey]) -> Answer:
        async def coordinator_ids() -> Sequence[int]:
            return range(COORDINATORS)

        scan = OrphanScan(
            self.store,
            self.client,
            coordinator_ids,
            settings=SETTINGS,
            clock=self.clock,
            rng=self._rng,
            notes=self._keeper(),
        )
        for shard in sorted({int(key.split("/")[1], 16) for key in keys}):
            self._date_objects()
            await scan.scan_shard(shard)
        return "scanned"

    # -- what there is --------------------------------------------------------------------------

    async def inventory(self) -> Mapping[str, Any]:
        """Of the state, everything but whose it is and was; of the store, all but the metadata."""
        objects = [
            stat.key
            for prefix in ("wal/", "segments/", "orphan-scan/")
            async for stat in self.store.list(prefix)
        ]
        states = [await partition.replica.state.read(named_rows) for partition in self.partitions]
        return {"objects": sorted(objects), "states": states}

    async def verify(self) -> list[str]:
        """Violations in what the process has left."""
        found: list[str] = []
        for index in range(COORDINATORS):
            log = await self.open_log(index)
            try:
                report = await verify_metadata(
                    self._state(index),
                    log,
                    coordinator_id=index,
                    snapshots=self._snapshots(index),
                )
            finally:
                await log.close()
            # What a dead process had begun of a snapshot stays until it is old.
            found += [
                f"{violation.subject}: {violation.problem}"
                for violation in report.violations
                if violation.problem != "is damaged"
            ]
        return found


@asynccontextmanager
async def _running(partition: MetadataPartition) -> AsyncIterator[None]:
    running = asyncio.create_task(partition.run())
    try:
        while partition.coordinator is None:
            if running.done():
                running.result()
            await asyncio.sleep(0)
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _for_ever(_: float) -> None:
    """Nobody waits for anything here, and leases are not renewed behind the script's back."""
    await asyncio.sleep(3_600)


def _errors(errors: Sequence[DisklessError | None]) -> Answer:
    return [repr(error) for error in errors]


def _committed(answer: ops.BatchCommit) -> Answer:
    return [*answer[:4], type(answer.error).__name__]


# -- the script ---------------------------------------------------------------------------------


class Step(NamedTuple):
    """One thing that is asked for, so long after the one before."""

    name: str
    after_s: float
    do: Callable[[Life], Awaitable[Answer]]
    request: ops.CommitFile | None = None
    """What it commits, if it does."""


def script() -> list[Step]:
    """The same every time."""
    start_ms = ManualClock().now_ms()
    steps: list[Step] = []
    time_s = 0.0
    sequences: dict[tuple[int, int], int] = {}

    def step(
        name: str,
        do: Callable[[Life], Awaitable[Answer]],
        after_s: float = 0.01,
        request: ops.CommitFile | None = None,
    ) -> None:
        nonlocal time_s
        time_s += after_s
        steps.append(Step(name, after_s, do, request))

    def key(after_s: float = 0.01, *first: int) -> ObjectKey:
        """Minted when the next step begins; its owners begin with `first`."""
        rng = random.Random(len(steps))
        while True:
            made = wal_object_key(ulid_at(start_ms + round((time_s + after_s) * 1000), rng))
            if permuted_owners(made, range(COORDINATORS))[: len(first)] == first:
                return made

    def of(partition: int, records: int, producer: int = -1, *, again: bool = False) -> BatchExtent:
        sequence = -1
        if producer >= 0:
            at = (partition, producer)
            sequence = sequences.get(at, 0) - (records if again else 0)
            sequences[at] = sequence + records
        return batch(
            TopicIdPartition(KEPT, partition), records, producer=producer, sequence=sequence
        )

    def file(*batches: BatchExtent, owners: Sequence[int] = (), first: int = 0) -> ops.CommitFile:
        made = key(0.01, first)
        placed, position = [], 16
        for one in batches:
            placed.append(one._replace(byte_offset=ByteOffset(position)))
            position += one.length_bytes + 1
        return ops.CommitFile(
            object_key=made,
            file_size_bytes=position + 64,
            uploader_broker_id=1,
            batches=placed,
            owner_ids=permuted_owners(made, owners or range(COORDINATORS)),
        )

    def commit(name: str, request: ops.CommitFile) -> None:
        step(f"commit {name}", lambda life: life.commit(request), request=request)

    step("create", lambda life: life.create(KEPT, "kept", 4))
    step("create the doomed", lambda life: life.create(DOOMED, "doomed", 2))
    step("grow", lambda life: life.grow(6))
    step("alter", lambda life: life.alter())
    step("limit", lambda life: life.limit(a=1.5, b=2.0))
    step("register", lambda life: life.register())
    step("allocate", lambda life: life.allocate())
    commit("both", file(of(0, 3, 1), of(1, 2, 1), of(2, 1), of(5, 2)))
    commit("next", second := file(of(0, 2, 1), of(2, 2, 2), of(3, 2), first=1))
    commit("a duplicate", file(of(0, 2, 1, again=True), of(1, 2, 1), of(4, 1)))
    commit("once more", second)
    commit("what the other never had", file(of(0, 2), of(2, 2)))
    commit("what the first owner never had", file(of(0, 1), first=1))
    commit("likewise", file(of(1, 1)))
    orphans = [key(), key(0.02)]
    step("upload an orphan", lambda life: life.put(orphans[0], 99))
    step("upload another", lambda life: life.put(orphans[1], 99))
    step("commit a group", lambda life: life.commit_group(3))
    step("roll", lambda life: life.roll())
    for number in range(BIG_FILES):
        doomed = [
            batch(TopicIdPartition(DOOMED, place % 2), 1, size=20, producer=place, sequence=number)
            for place in range(BIG_BATCHES)
        ]
        commit(f"many batches, {number}", file(*doomed, first=number % 2))
    step("look", lambda life: life.look())
    step("snapshot", lambda life: life.snapshot())
    for number in range(3):
        commit(f"more, {number}", file(*(of(part, 2, 3) for part in range(6)), first=number % 2))
    everything = [ops.DeleteRecords(TopicIdPartition(DOOMED, 0), -1)]
    step("delete many records", lambda life: life.delete_records(everything))
    some = [ops.DeleteRecords(TopicIdPartition(KEPT, part), 5) for part in range(3)]
    step("delete some records", lambda life: life.delete_records(some))
    step("retain", lambda life: life.retain())
    step("allocate again", lambda life: life.allocate())
    step("take stock", lambda life: life.inventory())
    step("snapshot again", lambda life: life.snapshot(), 15.0)
    step("delete the topic", lambda life: life.drop())
    step("sweep", lambda life: life.sweep())
    step("roll again", lambda life: life.roll())
    step("take stock again", lambda life: life.inventory())
    commit("before the expiry", file(of(0, 1, 1), of(1, 1, 9)))
    step("expire", lambda life: life.expire(), 31.0)
    step("snapshot a third time", lambda life: life.snapshot())
    step("clean", lambda life: life.clean(), 2.0)
    for number in range(4):
        step(f"clean when keys are old, {number}", lambda life: life.clean(), 61.0)
    step("scan", lambda life: life.scan(orphans))
    step("start without state", lambda life: life.restart_without_state())
    commit("at last", file(of(0, 1, 1), of(3, 1, 1)))
    everywhere = [ops.DeleteRecords(TopicIdPartition(KEPT, part), -1) for part in range(6)]
    step("delete everything", lambda life: life.delete_records(everywhere))
    for number in range(3):
        step(f"clean at last, {number}", lambda life: life.clean(), 61.0)
    step("commit a group again", lambda life: life.commit_group(5))
    commit("to stay", file(*(of(part, 2, 4) for part in range(6)), of(0, 1, 1)))
    step("begin a transaction", lambda life: life.begin_transaction())
    paid = [of(at, 2, PAYING)._replace(transaction_number=1) for at in (0, 1)]
    commit("of the transaction", file(*paid, of(2, 1)))
    step("commit a group in it", lambda life: life.commit_group_in_transaction())
    step("end the transaction", lambda life: life.end_transaction())
    step("limit again", lambda life: life.limit(a=None, c=3.0))
    step("snapshot at last", lambda life: life.snapshot())
    step("look at last", lambda life: life.look())
    return steps


OPENING: Final = -1
"""The step before the first: starting."""


class CrashPoint(NamedTuple):
    """The `nth` time that `name` is reached within a step, from 1."""

    step: int
    name: str
    nth: int


def _number_of_life(directory: Path) -> int:
    """From 1; noted, so that the next life has another one."""
    number = len([*directory.glob("life-*")]) + 1
    (directory / f"life-{number}").touch()
    return number


async def live(directory: Path, kind: str, begin_step: Callable[[int], None]) -> None:
    """Go on with the first step that has no answer, to the end; then write the inventory."""
    steps = script()
    answers = directory / ANSWERS
    done = len(answers.read_text().splitlines()) if answers.exists() else 0
    lives = _number_of_life(directory)
    clock = ManualClock()
    for step in steps[: done + 1]:
        clock.advance(step.after_s)
    begin_step(OPENING)
    with answers.open("a") as noted:
        async with Life(directory, kind, lives, clock) as life:
            for number, step in enumerate(steps[done:], done):
                if number > done:
                    clock.advance(step.after_s)
                begin_step(number)
                answer = await step.do(life)
                noted.write(json.dumps([step.name, answer]) + "\n")
                noted.flush()
            begin_step(len(steps))
            inventory = dict(await life.inventory())
            await life.stop()
            inventory["violations"] = await life.verify()
    (directory / INVENTORY).write_text(json.dumps(inventory, indent=1, sort_keys=True))


# -- processes ----------------------------------------------------------------------------------


class _Recorder(dict[str, Any]):
    """Takes the place of the armed failpoints: none is, and all that are hit are noted."""

    def __init__(self) -> None:
        super().__init__(none=None)
        self.step = OPENING
        self._counts: dict[tuple[int, str], int] = {}
        self.hit: list[CrashPoint] = []

    def begin_step(self, step: int) -> None:
        self.step = step

    def __contains__(self, name: object) -> bool:
        key = self.step, str(name)
        self._counts[key] = self._counts.get(key, 0) + 1
        self.hit.append(CrashPoint(*key, self._counts[key]))
        return False


def _child(directory: Path, kind: str, kill_at: CrashPoint | None, is_recorded: bool) -> int:
    recorder = _Recorder()

    def begin_step(step: int) -> None:
        armed = ""
        if kill_at is not None and kill_at.step == step:
            armed = f"{kill_at.name}=kill:{kill_at.nth}"
        wal.failpoint.arm(armed)

    if is_recorded:
        wal.failpoint._armed = recorder
        begin_step = recorder.begin_step
    try:
        asyncio.run(live(directory, kind, begin_step))
    except BaseException:
        traceback.print_exc()
        return 1
    if is_recorded:
        (directory / RECORDED).write_text(json.dumps(recorder.hit))
    return 0


def _serve() -> None:
    """Fork a child for each line of the input, and answer how it ended."""
    for line in sys.stdin:
        directory, kind, kill_at, is_recorded = json.loads(line)
        child = os.fork()
        if child == 0:
            point = None if kill_at is None else CrashPoint(*kill_at)
            os._exit(_child(Path(directory), kind, point, is_recorded))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class Lives:
    """A process that has imported everything, and forks a child for every life."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )

    def recorded(self, directory: Path, kind: str) -> Sequence[CrashPoint]:
        """The whole script in one life; all points that it came to, in order."""
        assert self._live(directory, kind, None, is_recorded=True)
        return [CrashPoint(*point) for point in json.loads((directory / RECORDED).read_text())]

    def live(self, directory: Path, kind: str, kill_at: CrashPoint | None = None) -> bool:
        """One life in `directory`, to its end or, which is False, to its death at `kill_at`."""
        return self._live(directory, kind, kill_at, is_recorded=False)

    def _live(
        self, directory: Path, kind: str, kill_at: CrashPoint | None, *, is_recorded: bool
    ) -> bool:
        directory.mkdir(exist_ok=True, parents=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = json.dumps([str(directory), kind, kill_at, is_recorded])
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline().strip()
        if status not in ("0", str(-signal.SIGKILL)):
            raise AssertionError(f"{kill_at}: ended with {status}: {self.close()}")
        return status == "0"

    def close(self) -> str:
        """End the process; what it and its children complained about."""
        _, complaints = self._process.communicate()
        return complaints


def _body(key: ObjectKey, size: int) -> BytesBody:
    """What lies under `key`: of a WAL object enough for its notes to be read when it is deleted."""
    if not key.startswith(WAL_PREFIX):
        return BytesBody(key.encode().ljust(size, b"."))
    entry = ChunkEntry(TopicIdPartition(DOOMED, 0), 0, size, 1, 0, 0, 0, -1, -1, -1, 0)
    identity = ChunkIdentity(
        ulid=key.rpartition("/")[2], salt=0, broker_id=0, opened_at_ms=minted_ms(key)
    )
    plan = plan_wal_object(identity, [entry])
    return BytesBody(plan.header, bytes(size), plan.footer)


if __name__ == "__main__":
    _serve()
