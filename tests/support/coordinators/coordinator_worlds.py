"""A coordinator with all that can be taken away from it: log, local state, process, rivals.

    world = LocalWorld(tmp_path)            # or RivalWorld: three brokers on one object store
    await world.open()
    await world.coordinator.commit_file(...)
    await world.observe()
    await world.restart(StateFate.DELETED, is_crash=True)
    await world.close()                     # compares all the ways to the state

Time is the world's `clock`, which stands still. An *observer* reads the metadata log after every
step, as followers do: it must be one gapless sequence that only grows, in which leader epochs grow
by one. What it reads it applies batch by batch, each in a transaction of its own, so that whatever
the leader had made of groups of batches is compared with plain replay at every step.
"""

import asyncio
import dataclasses
import random
import shutil
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.leadership.candidate import Candidate
from metadata.log.local_log import LocalLogSettings, LocalMetadataLog
from metadata.log.log import MetadataLog, MetadataRecordBatch
from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.control import LeaderChangeRecord
from metadata.records.records import decode_record
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from metadata.replica.state_recovery import apply_batches
from metadata.replica.verify import verify_metadata
from metadata.state.image import CommittedImage
from metadata.state.schema import STATE_TABLES
from metadata.state.state import STATE_FILE, StateDatabase
from metadata.workers.snapshot_keeper import SnapshotKeeper, SnapshotSettings
from tests.support.chunks.failing_disk import FailingDisk
from tests.support.coordinators.contender import LEASE_MS, Contender, until
from tests.support.stores.stepped_store import Fate
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.stores.memory_store import MemoryStore
from wal.ulid import mint_ulid, wal_object_key

CLUSTER: Final = "c"
"""As in tests.support.coordinators.contender."""
SNAPSHOTS_RETAINED: Final = 2
LOCAL_LOG: Final = LocalLogSettings(segment_bytes=8 << 10)
SETTINGS: Final = CoordinatorSettings(
    state_readers=1,
    follow_interval_ms=1,
    segment_bytes=500,
    producer_cache_max=1,
    plans_per_call_max=4,
    max_commit_age_ms=60_000,
    producer_expiration_ms=30_000,
)


class StateFate(Enum):
    """What becomes of the SQLite state of a process before it starts again."""

    KEPT = "as it was left"
    DELETED = "deleted"
    STALE = "an older copy is put in its place"
    DAMAGED = "bytes in the middle of it are overwritten"


class NoSyncDisk(FailingDisk):
    """Syncs that take no time: here processes die, not machines."""

    def fdatasync(self, fd: int) -> None:
        if self._fails("fdatasync"):
            raise self._error("fdatasync")

    def fsync(self, fd: int) -> None:
        if self._fails("fsync"):
            raise self._error("fsync")


class Observer:
    """Reads the metadata log batch by batch, and applies it."""

    def __init__(self, directory: Path) -> None:
        self._state = StateDatabase(directory / STATE_FILE, readers=1)
        self.image = CommittedImage(producers_max=1_000)
        self.batches: list[MetadataRecordBatch] = []
        self.leader_epochs: list[int] = []

    async def open(self) -> None:
        await self._state.open_or_create()

    async def close(self) -> None:
        await self._state.__aexit__(None, None, None)

    async def follow(self, log: MetadataLog) -> None:
        """Read on to the end of `log`."""
        while self.image.next_offset < log.end_offset:
            for batch in await log.read(self.image.next_offset, 1 << 20):
                assert batch.base_offset == self.image.next_offset, "the log has a hole"
                apply = partial(apply_batches, self.image, [batch])
                self.image.merge(await self._state.write(apply))
                self.batches.append(batch)
                self._note_leaders(batch)

    def _note_leaders(self, batch: MetadataRecordBatch) -> None:
        for data in batch.records:
            record = decode_record(data)
            if isinstance(record, LeaderChangeRecord):
                assert record.leader_epoch == len(self.leader_epochs) + 1
                self.leader_epochs.append(record.leader_epoch)

    async def rows(self) -> dict[str, list[tuple[object, ...]]]:
        return await rows_of_state(self._state)


def _has_reached(replica: Replica, end: int) -> bool:
    return replica.image.next_offset >= end


async def rows_of_state(state: StateDatabase) -> dict[str, list[tuple[object, ...]]]:
    """Every row there is."""
    return await state.read(
        lambda connection: {
            table.name: sorted(tuple(row) for row in connection.execute(table.select_all))
            for table in STATE_TABLES
        }
    )


class World:
    """What both worlds have."""

    has_rivals = False

    def __init__(self, directory: Path, settings: CoordinatorSettings = SETTINGS) -> None:
        self.directory = directory
        self.settings = settings
        self.clock = ManualClock()
        self.rng = random.Random(1)
        self.store = MemoryStore(clock=self.clock)
        self.snapshots = SnapshotStore(self.store, partition=0, cluster_id=CLUSTER)
        self.observer = Observer(directory / "observer")
        self.stale: Path | None = None
        """A copy of a state directory that somebody made some time ago."""
        self._lives = 0

    # -- to be had from each world --------------------------------------------------------------

    @property
    def partition(self) -> MetadataPartition:
        """The leader's."""
        raise NotImplementedError

    async def open(self) -> None:
        """Start; somebody leads on return."""
        await self.observer.open()

    async def restart(self, fate: StateFate, *, is_crash: bool) -> None:
        """The leading process ends, and another one begins in its place."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End all processes."""
        raise NotImplementedError

    async def fresh_log(self) -> MetadataLog:
        """The log as somebody finds it who comes when everybody else is gone."""
        raise NotImplementedError

    async def followers(self) -> Sequence[Replica]:
        """Replicas of other processes, which have caught up with the leader."""
        return ()

    async def log_to_observe(self) -> MetadataLog:
        raise NotImplementedError

    # -- what tests do --------------------------------------------------------------------------

    @property
    def coordinator(self) -> PartitionCoordinator:
        assert self.partition.coordinator is not None
        return self.partition.coordinator

    @property
    def replica(self) -> Replica:
        return self.partition.replica

    def key(self) -> ObjectKey:
        return wal_object_key(mint_ulid(self.clock, self.rng))

    def life(self) -> UUID:
        """An incarnation that nobody had."""
        self._lives += 1
        return UUID(int=self._lives)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def settle(self) -> None:
        """The lease is new, so that the next append is the one that the test makes."""
        await self.coordinator.lease.renew()

    async def observe(self) -> None:
        """I11: the leader's state is what replaying the log gives."""
        log = await self.log_to_observe()
        await self.observer.follow(log)
        image = self.replica.image
        if image.next_offset == self.observer.image.next_offset:
            assert image.state_hash == self.observer.image.state_hash
            assert image.partitions == self.observer.image.partitions

    async def observe_followers(self) -> None:
        """I11: so is that of every other replica."""
        await self.observe()
        for replica in await self.followers():
            await self.observe()
            # The leader may append by itself meanwhile, and this one reads a little later than we.
            while replica.image.next_offset != self.observer.image.next_offset:
                end = self.observer.image.next_offset
                await until(partial(_has_reached, replica, end), "the follower has what we have")
                await self.observe()
            image, observed = replica.image, self.observer.image
            assert image.state_hash == observed.state_hash
            assert image.partitions == observed.partitions

    async def snapshot(self) -> None:
        """Take a snapshot and prune the log behind the older one."""
        await self.observe()
        keeper = SnapshotKeeper(
            self.replica.state,
            self.partition.log,
            self.snapshots,
            settings=SnapshotSettings(retained_max=SNAPSHOTS_RETAINED),
            clock=self.clock,
            rng=self.rng,
        )
        await keeper.maintain_once()
        await keeper.take_once()
        await keeper.maintain_once()

    def keep_a_copy(self, state: Path) -> None:
        """Of the state as it is; a later start may find it in place of its own."""
        self._lives += 1
        self.stale = self.directory / f"stale-{self._lives}"
        shutil.copytree(state, self.stale)

    def spoil(self, state: Path, fate: StateFate) -> None:
        """Do to the state of a process that ended what `fate` says."""
        if fate is StateFate.DELETED:
            shutil.rmtree(state)
        elif fate is StateFate.STALE and self.stale is not None:
            shutil.rmtree(state)
            shutil.copytree(self.stale, state)
        elif fate is StateFate.DAMAGED:
            damaged = bytearray((state / STATE_FILE).read_bytes())
            middle = len(damaged) // 2
            damaged[middle : middle + 64] = bytes(64)
            (state / STATE_FILE).write_bytes(damaged)

    async def close(self) -> None:
        """End everything, and compare all the ways to the state (I11).

        The rows, not only their hash: of the leader, of replaying batch by batch, of replaying from
        the log's beginning or its snapshot.
        """
        await self.observe_followers()
        offset = self.replica.applied_offset
        rows = await rows_of_state(self.replica.state)
        await self.stop()
        log = await self.fresh_log()
        try:
            await self.observer.follow(log)
            if self.observer.image.next_offset == offset:
                assert await self.observer.rows() == rows
            newcomer = Replica(
                self.directory / "newcomer",
                settings=self.settings,
                snapshots=self.snapshots,
            )
            await newcomer.open(log)
            try:
                assert newcomer.state_hash == self.observer.image.state_hash
                assert await rows_of_state(newcomer.state) == await self.observer.rows()
            finally:
                await newcomer.close()
            report = await verify_metadata(
                self.directory / "newcomer", log, snapshots=self.snapshots
            )
            assert report.violations == []
        finally:
            await log.close()
            await self.observer.close()


class LocalWorld(World):
    """One process whose metadata log is in its directory."""

    def __init__(self, directory: Path, settings: CoordinatorSettings = SETTINGS) -> None:
        super().__init__(directory, settings)
        self.disk = NoSyncDisk(calls=())
        self._home = directory / "life-0"
        self._partition: MetadataPartition
        self._task: asyncio.Task[None]

    @property
    def partition(self) -> MetadataPartition:
        return self._partition

    @property
    def state_directory(self) -> Path:
        return self._home / "state"

    async def open(self) -> None:
        await super().open()
        await self._start()

    async def _open_log(self) -> LocalMetadataLog:
        return await LocalMetadataLog.open(
            self._home / "log", rng=self.rng, settings=LOCAL_LOG, disk=self.disk
        )

    async def _start(self) -> None:
        candidate = Candidate(broker_id=1, host="broker-1", port=9092, incarnation=self.life())
        log = await self._open_log()
        self._partition = MetadataPartition(
            Replica(self.state_directory, settings=self.settings, snapshots=self.snapshots),
            log,
            candidate=lambda: candidate,
            workers=lambda _: (),
            clock=self.clock,
            rng=self.rng,
            settings=self.settings,
        )
        await self._partition.__aenter__()
        self._task = asyncio.create_task(self._partition.run())
        await until(
            lambda: self._partition.coordinator is not None or self._task.done(), "it leads"
        )
        if self._task.done():
            self._task.result()

    async def restart(self, fate: StateFate, *, is_crash: bool) -> None:
        """A crash leaves the files as they are at this moment."""
        home = self._home
        if is_crash:
            home = self.directory / f"life-{self._lives}"
            shutil.copytree(self._home, home)
        await self.stop()
        if is_crash:
            shutil.rmtree(self._home)
        self._home = home
        self.spoil(self.state_directory, fate)
        await self._start()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # what it died of is the test's business
        await self._partition.__aexit__(None, None, None)

    async def fresh_log(self) -> MetadataLog:
        return await self._open_log()

    async def log_to_observe(self) -> MetadataLog:
        return self._partition.log


class RivalWorld(World):
    """Brokers that share one object store, of which one leads."""

    has_rivals = True
    BROKERS: Final = 3

    def __init__(self, directory: Path, settings: CoordinatorSettings = SETTINGS) -> None:
        super().__init__(directory, settings)
        self.contenders: list[Contender] = []
        self.leader = 0
        self._log: ObjectMetadataLog

    @property
    def partition(self) -> MetadataPartition:
        return self.contenders[self.leader].partition

    @property
    def leading(self) -> Contender:
        return self.contenders[self.leader]

    def state_directory_of(self, number: int) -> Path:
        return self.directory / f"broker-{number}"

    @property
    def state_directory(self) -> Path:
        return self.state_directory_of(self.leader)

    async def open(self) -> None:
        await super().open()
        self._log = await self._open_log()
        self.contenders = [self._contender(number) for number in range(self.BROKERS)]
        self.may_lead(0)
        for contender in self.contenders:
            await contender.__aenter__()
        await self.leading.leading()

    def _contender(self, number: int, past: Sequence[UUID] = ()) -> Contender:
        life = self.life()
        contender = Contender(
            self.state_directory_of(number),
            self.store,
            clock=self.clock,
            broker_id=life.int,  # it is also the seed of the process
            past=past,
            settings=self.settings,
            may_lead=False,
        )
        contender.candidate = dataclasses.replace(contender.candidate, broker_id=number)
        assert contender.candidate.incarnation == life
        return contender

    async def _open_log(self) -> ObjectMetadataLog:
        return await ObjectMetadataLog.open(
            self.store,
            0,
            clock=self.clock,
            rng=random.Random(99),
            settings=ObjectLogSettings(lease_ms=LEASE_MS),
        )

    def may_lead(self, number: int) -> None:
        """Nobody but this broker stands from now on, so that it is known who comes to lead."""
        for other, contender in enumerate(self.contenders):
            contender.candidate = dataclasses.replace(contender.candidate, may_lead=other == number)

    async def elect(self, number: int) -> None:
        """Another broker comes to lead, when the lease of the one that leads is over."""
        self.may_lead(number)
        replica = self.contenders[number].replica
        # Its patience begins when it has seen the last entry.
        end = await self._log.refresh()
        await until(lambda: replica.applied_offset >= end, "the candidate has caught up")
        self.clock.advance(LEASE_MS * 1.4 / 1000)
        await self.contenders[number].leading()
        self.leader = number

    async def restart(self, fate: StateFate, *, is_crash: bool) -> None:
        """The leading broker starts anew and leads again: its earlier life is known to be over."""
        number = self.leader
        await self.end(number, is_crash=is_crash)
        await self.begin(number, fate)
        self.may_lead(number)
        await self.leading.leading()

    async def end(self, number: int, *, is_crash: bool) -> None:
        """The process of this broker ends; a crash leaves its files as they are at this moment."""
        contender = self.contenders[number]
        if is_crash:
            state = self.state_directory_of(number)
            copy = self.directory / f"crashed-{self._lives}"
            shutil.copytree(state, copy)
            await self._kill(contender)
            shutil.rmtree(state)
            copy.rename(state)
        else:
            await self._end(contender)

    async def _kill(self, contender: Contender) -> None:
        """From now on nothing that it wants reaches the store, nor did what is on its way."""

        def refuse_all() -> None:
            for waiting in list(contender.steps.waiting):
                if not waiting.fate.done():
                    waiting.decide(Fate.AWAY)

        async def keep_refusing() -> None:
            while True:
                refuse_all()
                await asyncio.sleep(0.001)

        refuse_all()
        contender.go_on()
        contender.steps.held = True
        refusing = asyncio.create_task(keep_refusing())
        try:
            await contender.die()
        finally:
            refusing.cancel()

    async def _end(self, contender: Contender) -> None:
        is_dead = contender.task.done()
        try:
            await contender.__aexit__(None, None, None)
        except BaseException:
            if not is_dead:
                raise

    async def begin(self, number: int, fate: StateFate) -> None:
        """The broker starts again, as a follower."""
        self.spoil(self.state_directory_of(number), fate)
        past = (self.contenders[number].candidate.incarnation,)
        self.contenders[number] = self._contender(number, past)
        await self.contenders[number].__aenter__()

    async def stop(self) -> None:
        # Who goes last has nobody left to hand over to.
        for number, contender in enumerate(self.contenders):
            if number != self.leader:
                await self._end(contender)
        await self._end(self.leading)
        await self._log.close()

    async def fresh_log(self) -> MetadataLog:
        return await self._open_log()

    async def log_to_observe(self) -> MetadataLog:
        await self._log.refresh()
        return self._log

    async def followers(self) -> Sequence[Replica]:
        followers = [
            contender for number, contender in enumerate(self.contenders) if number != self.leader
        ]
        for follower in followers:
            await follower.following(self.leading)
        return [follower.replica for follower in followers]

    async def land_zombies(self) -> None:
        """Puts that everybody gave up arrive now."""
        for contender in self.contenders:
            for zombie in contender.steps.zombies:
                await zombie.land()
            contender.steps.zombies.clear()

    def plan_puts(self, *fates: Fate) -> None:
        """What becomes of the leader's next puts."""
        self.leading.steps.puts.extend(fates)
