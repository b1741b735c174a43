"""Random histories of a whole cluster, of which a rebuild gets the bucket, and the test the truth.

Several brokers write through one or several coordinators; everything that deletes, deletes: clients
and retention delete records, topics are deleted and made anew, the background workers
(`metadata.workers.file_workers`, `metadata.workers.orphan_scan`, the real ones) delete objects.
Brokers crash with and without their disks, between any two steps, and recover their chunks;
idempotent producers send again through another broker. Uploads land out of order, or never. Objects
are real bytes in a store in memory; what coordinators decide about files follows the real rules
(tests/support/coordinators/file_ledger).

The seed alone decides what happens: `played(seed)` is the same every time.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

from metadata.metadata_settings import CoordinatorSettings
from metadata.rebuild.facts import BucketFacts, SegmentFacts
from metadata.rebuild.rebuild import read_kept_notes, read_wal_objects
from metadata.rules.files import permuted_owners
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.notes_sweep import NotesSweep
from metadata.workers.orphan_scan import OrphanScan
from tests.support.coordinators.file_ledger import FileWorld
from tests.support.rebuild.rebuild_history import PartitionTruth, rolled, with_sources
from wal.chunks import object_notes
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkEntry
from wal.chunks.wal_object import ObjectLayout, WalObjectPlan, plan_wal_object
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError, ObjectExpired, ObjectStoreUnavailable
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody
from wal.ulid import mint_ulid

NAMES: Final = {"flights": 2, "radar": 1, "ships": 2}
BATCH_BYTES: Final = 100
SETTINGS: Final = CoordinatorSettings(
    file_cleaner_batch_max=5, orphan_scan_grace_ms=0, clock_skew_max_ms=60_000
)
IN_FLIGHT_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch as its producer sends it, and sends it again."""

    partition: TopicIdPartition
    record_count: int
    crc: int
    timestamp_ms: int
    producer: int = -1
    sequence: int = -1
    transaction: int = -1


@dataclass(slots=True, eq=False)
class Chunk:
    """A sealed chunk, from its broker's disk to its commit at every coordinator."""

    plan: WalObjectPlan
    ulid: str
    batches: Sequence[Sent]
    """In the order of the object."""
    is_uploaded: bool = False
    missing: list[int] = field(default_factory=list)
    """Coordinators that have not answered yet."""
    outcomes: dict[int, object_notes.BatchOutcome] = field(default_factory=dict)

    @property
    def key(self) -> ObjectKey:
        return self.plan.object_key


@dataclass(slots=True, eq=False)
class Producer:
    """An idempotent producer that writes through one broker at a time."""

    id: int
    broker: int
    next_sequence: dict[TopicIdPartition, int] = field(default_factory=lambda: defaultdict(int))
    in_flight: list[Sent] = field(default_factory=list)


@dataclass(slots=True)
class Broker:
    clock: ManualClock
    journal: object_notes.CommitJournal = field(default_factory=object_notes.CommitJournal)
    open: list[Sent] = field(default_factory=list)
    sealed: list[Chunk] = field(default_factory=list)
    last_ulid: str | None = None
    seen: dict[TopicIdPartition, int] = field(default_factory=dict)
    """Batches that its replica had applied when it last looked."""


class Cluster:
    """A cluster, its bucket, and what really happened."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = FileWorld(self.rng.choice((1, 1, 1, 3)), SETTINGS)
        self.clock = self.world.scan_clock
        self.brokers = [Broker(ManualClock()) for _ in range(self.rng.randint(2, 4))]
        if self.rng.random() < 0.3:
            for broker in self.brokers:
                broker.clock.step_wall(self.rng.choice((-20.0, -1.0, 0.0, 1.0, 20.0)))
        self.lag = self.rng.choice((0.0, 0.3))
        self.is_apart = self.rng.random() < 0.6
        self.short_lived = self.rng.choice((None, "flights", "radar"))
        """Of whose records retention leaves little."""
        self.producers: list[Producer] = []
        self.topics: dict[str, UUID] = {}
        self.names: dict[UUID, str] = {}
        self.partitions: dict[TopicIdPartition, PartitionTruth] = {}
        self.segments: dict[ObjectKey, SegmentFacts] = {}
        self.answers: dict[tuple[ObjectKey, int], dict[int, object_notes.BatchOutcome]] = {}
        # Of its own, so that the same seed is the same history whatever is kept.
        self._keeper_rng = random.Random(seed)
        self._crc = 0
        self._next_id = 0
        for name in NAMES:
            self.create_topic(name)
        for _ in range(3):
            self._new_producer()
        self.workers = [self._new_workers(index) for index in range(len(self.world.coordinators))]

    # -- time and topics ------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        for clock in (*self.world.clocks, *(broker.clock for broker in self.brokers)):
            clock.advance(seconds)

    def create_topic(self, name: str) -> None:
        topic_id = UUID(int=self.rng.getrandbits(128), version=4)
        self.topics[name] = topic_id
        self.names[topic_id] = name
        for index in range(NAMES[name]):
            self.partitions[TopicIdPartition(topic_id, index)] = PartitionTruth()

    def delete_topic(self, name: str) -> None:
        """And make it anew at once; what brokers have of the old one is on its way still."""
        topic_id = self.topics.pop(name)
        for index in range(NAMES[name]):
            del self.partitions[TopicIdPartition(topic_id, index)]
        for producer in self.producers:
            producer.in_flight = [s for s in producer.in_flight if s.partition in self.partitions]
        for key, segment in list(self.segments.items()):
            if segment.partition.topic_id == topic_id:
                del self.segments[key]
        self._drain()
        self.create_topic(name)

    def coordinator_of(self, partition: TopicIdPartition) -> int:
        return (partition.topic_id.int + partition.partition) % len(self.world.coordinators)

    # -- producers and brokers ------------------------------------------------------------------

    def _new_producer(self) -> Producer:
        self._next_id += 1
        producer = Producer(self._next_id, self.rng.randrange(len(self.brokers)))
        self.producers.append(producer)
        return producer

    def produce(self, broker: int) -> None:
        """Some batches arrive at a broker, and those of producers at theirs."""
        partitions = list(self.partitions)
        if self.is_apart:
            # An object has few partitions, so that some objects go while their neighbours stay.
            partitions = [self.rng.choice(partitions)]
        for _ in range(self.rng.randint(1, 4)):
            partition = self.rng.choice(partitions)
            count = self.rng.randint(1, 6)
            if self.rng.random() < 0.5:
                self._open(broker, self._sent(partition, count))
                continue
            producer = self.rng.choice(self.producers)
            if len(producer.in_flight) >= IN_FLIGHT_MAX:
                continue
            sequence = producer.next_sequence[partition]
            producer.next_sequence[partition] += count
            sent = self._sent(partition, count, producer.id, sequence)
            producer.in_flight.append(sent)
            self._open(producer.broker, sent)

    def _sent(
        self, partition: TopicIdPartition, count: int, producer: int = -1, sequence: int = -1
    ) -> Sent:
        self._crc += 1
        return Sent(
            partition=partition, record_count=count, crc=self._crc,
            timestamp_ms=self.clock.now_ms(), producer=producer, sequence=sequence,
        )  # fmt: skip

    def _open(self, broker: int, sent: Sent) -> None:
        self.brokers[broker].open.append(sent)

    def seal(self, number: int) -> None:
        """A broker seals what it has, with its notes."""
        broker = self.brokers[number]
        if not broker.open:
            return
        broker.last_ulid = mint_ulid(broker.clock, self.rng, broker.last_ulid)
        arrived, broker.open = broker.open, []
        entries = [_entry(sent) for sent in arrived]
        partitions = ObjectLayout.of(entries).extents.partitions
        facts = {
            partition.topic_id: object_notes.TopicFacts(name, NAMES[name])
            for partition in partitions
            if self.topics.get(name := self.names[partition.topic_id]) == partition.topic_id
        }
        commits = broker.journal.take()
        notes = object_notes.ObjectNotes(
            facts, commits, [self._floor(number, partition) for partition in partitions]
        )
        identity = ChunkIdentity(
            ulid=broker.last_ulid, salt=0, broker_id=number, opened_at_ms=self.clock.now_ms()
        )
        plan = plan_wal_object(identity, entries, notes=object_notes.encode_notes(notes))
        batches = [arrived[position] for position in plan.positions]
        broker.sealed.append(Chunk(plan, broker.last_ulid, batches))

    def _floor(self, number: int, partition: TopicIdPartition) -> object_notes.Floor | None:
        """What the broker's replica knows; it may be behind."""
        truth = self.partitions.get(partition)
        if truth is None:
            return None
        if self.rng.random() < self.lag:
            # A follower is some way behind, and never goes back, unless its disk was lost.
            known = self.brokers[number].seen
            seen = self.rng.randint(min(known.get(partition, 0), len(truth.log)), len(truth.log))
            known[partition] = seen
            behind = truth.log[seen - 1].next_offset if seen else 0
            return object_notes.Floor(behind, min(behind, truth.log_start))
        return object_notes.Floor(truth.high_watermark, truth.log_start)

    async def upload(self, number: int) -> None:
        """One of a broker's sealed chunks is uploaded, in any order."""
        waiting = [chunk for chunk in self.brokers[number].sealed if not chunk.is_uploaded]
        if not waiting:
            return
        chunk = self.rng.choice(waiting)
        await self._put(chunk)
        chunk.is_uploaded = True
        chunk.missing = sorted({self.coordinator_of(sent.partition) for sent in chunk.batches})

    async def _put(self, chunk: Chunk) -> None:
        size = BATCH_BYTES * len(chunk.batches)
        body = BytesBody(chunk.plan.header, bytes(size), chunk.plan.footer)
        self.world.owners[chunk.key] = ()  # from now on the world watches over it
        await MemoryStore.put(self.world.store, chunk.key, body)

    def commit(self, number: int) -> None:
        """A broker's oldest chunk is committed at one more of its coordinators."""
        broker = self.brokers[number]
        if not broker.sealed or not broker.sealed[0].is_uploaded:
            return
        chunk = broker.sealed[0]
        coordinator = chunk.missing.pop(self.rng.randrange(len(chunk.missing)))
        chunk.outcomes |= self._commit_at(coordinator, chunk)
        if chunk.missing:
            return
        broker.sealed.pop(0)
        outcomes = [chunk.outcomes[position] for position in range(len(chunk.batches))]
        note = object_notes.note_commit(chunk.ulid, chunk.plan.extents, outcomes)
        assert note is not None
        broker.journal.add(note)
        for sent, outcome in zip(chunk.batches, outcomes, strict=True):
            self._answer(sent, outcome)

    def _commit_at(self, coordinator: int, chunk: Chunk) -> dict[int, object_notes.BatchOutcome]:
        """The answers of one coordinator, by position; the same ones as the first time."""
        positions = [
            position
            for position, sent in enumerate(chunk.batches)
            if self.coordinator_of(sent.partition) == coordinator
        ]
        owners = permuted_owners(
            chunk.key, {self.coordinator_of(sent.partition) for sent in chunk.batches}
        )
        ledger = self.world.coordinators[coordinator]
        try:
            ledger.commit(chunk.key, owners)
        except ObjectExpired:
            return dict.fromkeys(
                positions, object_notes.BatchOutcome(exception=object_notes.REFUSED)
            )
        answer = self.answers.get((chunk.key, coordinator))
        if answer is None:
            answer = {position: self._append(chunk, position) for position in positions}
            self.answers[chunk.key, coordinator] = answer
            if all(outcome.exception is not None for outcome in answer.values()):
                self._drain()
        return answer

    def _append(self, chunk: Chunk, position: int) -> object_notes.BatchOutcome:
        truth = self.partitions.get(chunk.batches[position].partition)
        if truth is None:
            return object_notes.BatchOutcome(exception=object_notes.REFUSED)
        extent = chunk.plan.extents[position]
        return truth.decide((chunk.key, position), extent, self.clock.now_ms())

    def _answer(self, sent: Sent, outcome: object_notes.BatchOutcome) -> None:
        for producer in list(self.producers):
            if producer.id != sent.producer or sent not in producer.in_flight:
                continue
            if outcome.exception == object_notes.REFUSED:
                # It gives up and begins anew, under another id.
                self.producers.remove(producer)
                self._new_producer()
            else:
                producer.in_flight.remove(sent)

    def crash(self, number: int, *, keeps_disk: bool) -> None:
        """A broker dies. With its disk its chunks are recovered under the keys they had."""
        broker = self.brokers[number]
        broker.journal = object_notes.CommitJournal()
        broker.open = []
        if keeps_disk:
            # Whether a chunk was uploaded, or committed somewhere, its broker does not know any
            # more; and a chunk that was committed just now may be committed once more.
            for chunk in broker.sealed:
                chunk.is_uploaded = False
                chunk.missing = []
                chunk.outcomes = {}
        else:
            broker.sealed = []
            broker.last_ulid = None
            broker.seen = {}
        for producer in self.producers:
            if producer.broker == number:
                producer.broker = self.rng.randrange(len(self.brokers))
                for sent in producer.in_flight:
                    self._open(producer.broker, sent)

    def give_up(self, number: int) -> None:
        """A broker abandons its oldest chunk, which nobody has committed, uploaded or not."""
        broker = self.brokers[number]
        if not broker.sealed or any((broker.sealed[0].key, c) in self.answers for c in range(3)):
            return
        chunk = broker.sealed.pop(0)
        broker.journal.add(object_notes.CommitNote(chunk.ulid, outcome=object_notes.GIVEN_UP))
        for sent in chunk.batches:
            self._answer(sent, object_notes.BatchOutcome(exception=object_notes.REFUSED))

    # -- what ends records and objects ----------------------------------------------------------

    def roll(self) -> None:
        """The next batches of a partition become a segment."""
        partition = self.rng.choice(list(self.partitions))
        truth = self.partitions[partition]
        wanted = [placed for placed in truth.live if placed.base_offset >= truth.rolled_end]
        wanted = wanted[: self.rng.randint(1, 8)]
        if not wanted:
            return
        truth.rolled_end = wanted[-1].next_offset
        segment = rolled(wanted, self.names[partition.topic_id], self.clock.now_ms())
        self.segments[segment.object_key] = segment
        self._drain()

    def delete_records(self, *, is_retention: bool) -> None:
        """Move a log start: retention to the next batch, a client to any offset."""
        partition = self.rng.choice(list(self.partitions))
        truth = self.partitions[partition]
        live = truth.live
        if not live:
            return
        if is_retention:
            is_short = self.names[partition.topic_id] == self.short_lived
            left = self.rng.randrange(3 if is_short else len(live) + 1)
            truth.log_start = live[max(len(live) - left, 1) - 1].next_offset
        else:
            truth.log_start = self.rng.randint(truth.log_start, truth.high_watermark)
        left = [placed.base_offset for placed in truth.live]
        truth.rolled_end = max(truth.rolled_end, min(left, default=truth.high_watermark))
        for key, segment in list(self.segments.items()):
            if (
                self.partitions.get(segment.partition) is truth
                and segment.next_offset <= truth.log_start
            ):
                del self.segments[key]
        self._drain()

    def _drain(self) -> None:
        """Coordinators notice what they have no live batches in any more."""
        live: set[tuple[int, ObjectKey]] = {
            (self.coordinator_of(partition), placed.batch[0])
            for partition, truth in self.partitions.items()
            for placed in truth.live
            if placed.base_offset >= truth.rolled_end
        }
        for index, ledger in enumerate(self.world.coordinators):
            for key, row in ledger.rows.items():
                if row.is_live and (index, key) not in live:
                    ledger.drain(key)

    def _new_workers(self, index: int) -> FileWorkers:
        return FileWorkers(
            self.world.coordinators[index],
            self.world.store,
            self.world,
            coordinator_id=index,
            settings=SETTINGS,
            clock=self.clock,
            rng=self.rng,
            notes=self._keeper(),
        )

    def _keeper(self) -> NoteKeeper:
        return NoteKeeper(
            self.world.store,
            clock=self.clock,
            rng=self._keeper_rng,
            floors=self._known_floor,
            topics=self._known_topic,
        )

    def _known_floor(self, partition: TopicIdPartition) -> object_notes.Floor | None:
        truth = self.partitions.get(partition)
        return None if truth is None else object_notes.Floor(truth.high_watermark, truth.log_start)

    def _known_topic(self, topic_id: UUID) -> object_notes.TopicFacts | None:
        name = self.names[topic_id]
        return (
            object_notes.TopicFacts(name, NAMES[name])
            if self.topics.get(name) == topic_id
            else None
        )

    async def sweep(self) -> None:
        """Notes objects are merged."""
        sweep = NotesSweep(
            self.world.store,
            topics=self._known_topic,
            log_began_ms=lambda: 0,
            steady_ms=self.clock.now_ms,
            settings=SETTINGS,
            rng=self._keeper_rng,
        )
        with suppress(ObjectStoreUnavailable):
            await sweep.sweep_once(everything=self._keeper_rng.random() < 0.5)

    async def clean(self) -> None:
        """The workers of a coordinator do their rounds; some die in between."""
        self.advance(61)
        for _ in range(2):
            for index in range(len(self.workers)):
                if self.rng.random() < 0.2:
                    self.workers[index] = self._new_workers(index)
                    if self.rng.random() < 0.5:
                        self.world.deletes_fail += 1
                workers = self.workers[index]
                for step in (
                    workers.delete_once,
                    workers.hand_over_once,
                    workers.take_over_once,
                ):
                    with suppress(ObjectStoreUnavailable):
                        while await step():
                            pass

    async def scan(self) -> None:
        """Time passes, and the orphans of before are found."""
        self.advance(20 * 60)

        async def ids() -> Sequence[int]:
            return range(len(self.world.coordinators))

        scan = OrphanScan(
            self.world.store,
            self.world,
            ids,
            settings=SETTINGS,
            clock=self.clock,
            rng=self.rng,
            notes=self._keeper(),
        )
        with suppress(DisklessError):
            await scan.scan_once()

    # -- a whole history ------------------------------------------------------------------------

    async def play(self, steps: int) -> None:
        for _ in range(steps):
            await self._step()
        # Everything ends in the middle of it: what is under way stays under way.

    async def _step(self) -> None:
        self.advance(self.rng.choice((0.01, 0.05, 0.25, 1.0)))
        broker = self.rng.randrange(len(self.brokers))
        chance = self.rng.random()
        if chance < 0.80:
            self.produce(broker)
            self.seal(broker)
            # Usually an upload is over before the next one begins.
            for number in (broker, self.rng.randrange(len(self.brokers))):
                if self.rng.random() < 0.8:
                    await self.upload(number)
                    for _ in range(self.rng.randint(1, 4)):
                        self.commit(number)
        elif chance < 0.85:
            await self.upload(broker)
        elif chance < 0.90:
            self.commit(broker)
        elif chance < 0.925:
            self.delete_records(is_retention=True)
        elif chance < 0.93:
            self.delete_records(is_retention=False)
        elif chance < 0.95:
            self.roll()
        elif chance < 0.975:
            await self.clean()
            await self.sweep()
        elif chance < 0.987:
            self.crash(broker, keeps_disk=self.rng.random() < 0.6)
        elif chance < 0.991:
            self.give_up(broker)
        elif chance < 0.996:
            self.delete_topic(self.rng.choice(list(self.topics)))
        else:
            await self.scan()

    async def facts(self) -> BucketFacts:
        """What a rebuild reads."""
        objects, unreadable = await read_wal_objects(
            self.world.store, progress=lambda what, done, total: None
        )
        assert not unreadable
        existing = {item.object_key for item in objects}
        segments = [with_sources(segment, existing) for segment in self.segments.values()]
        kept, unreadable = await read_kept_notes(
            self.world.store, progress=lambda what, done, total: None
        )
        assert not unreadable
        return BucketFacts(objects=objects, segments=segments, kept=kept)


_Cluster = TypeVar("_Cluster", bound=Cluster)


def _entry(sent: Sent) -> ChunkEntry:
    return ChunkEntry(
        sent.partition, 0, BATCH_BYTES, sent.record_count, sent.crc, sent.timestamp_ms, 0,
        sent.producer, 0 if sent.producer >= 0 else -1, sent.sequence, 0,
        transaction_number=sent.transaction,
    )  # fmt: skip


class _AtOnce(ThreadPoolExecutor):
    """Does what it is given where it is given: threads would end in any order."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **options))
        except Exception as error:
            done.set_exception(error)
        return done


async def played(seed: int, steps: int = 400) -> Cluster:
    """The history that belongs to `seed`; no thread takes part in it."""
    return await played_by(Cluster(seed), steps)


async def played_by(cluster: _Cluster, steps: int = 400) -> _Cluster:
    """The history that a cluster's seed gives; no thread takes part in it."""
    asyncio.get_running_loop().set_default_executor(_AtOnce(1))
    await cluster.play(steps)
    return cluster
