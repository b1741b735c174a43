"""The snapshot keeper: when it takes snapshots, which it keeps, and how far it prunes the log."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from metadata.log.log import MetadataRecordBatch
from metadata.replica.snapshot_format import (
    manifest_key,
    part_key,
    snapshot_name,
)
from metadata.replica.snapshots import SnapshotStatus, SnapshotStore
from metadata.state.schema import STATE_VERSION
from metadata.state.state import STATE_FILE
from metadata.state.state_file import is_as_closed
from metadata.workers.snapshot_keeper import DEBRIS_AGE_S, SnapshotKeeper, SnapshotSettings
from tests.support.logs.snapshot_bench import (
    CLUSTER,
    Following,
    PrunableLog,
    following,
    hash_at,
    keeper_of,
    opened,
    recorded_batches,
    snapshots_in,
)
from tests.support.logs.snapshot_store_bench import Pauses, keys, names
from tests.support.stores.faulty_store import FaultyStore, StoreFaults
from wal import errors
from wal.clock import ManualClock
from wal.failpoint import FailpointError, arm
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody, ObjectStore
from wal.ulid import mint_ulid


@pytest.fixture
async def batches(tmp_path: Path) -> list[MetadataRecordBatch]:
    return await recorded_batches(tmp_path / "recorded")


@pytest.fixture
async def store() -> AsyncIterator[ObjectStore]:
    async with MemoryStore(clock=ManualClock()) as opened_store:
        yield opened_store


class TestKeeping:
    async def test_the_newest_are_kept_and_the_log_behind_the_oldest_of_them(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        snapshots = snapshots_in(store)
        log = PrunableLog(batches)
        usable = SnapshotStatus.USABLE
        async with following(tmp_path, log) as followed:
            keeper = keeper_of(followed, snapshots, retained_max=3)
            ends: list[int] = []
            for number in (1, 3, 4, 7, 9, 11):
                ends.insert(0, batches[number].next_offset)
                await followed.follow(ends[0])
                await keeper.take_once()
                await keeper.maintain_once()
                assert await names(snapshots) == [(end, usable) for end in ends[:3]]
                # Batches stay whole: the first one may begin below what was asked for.
                needed = ends[:3][-1] - 1 if len(ends) > 1 else 0
                assert log.batches[0].base_offset <= needed < log.batches[0].next_offset
        assert len(await keys(store)) == 6

    async def test_with_one_snapshot_of_several_nothing_is_pruned(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        log = PrunableLog(batches)
        async with following(tmp_path, log, 10) as followed:
            keeper = keeper_of(followed, snapshots_in(store), retained_max=2)
            await keeper.take_once()
            await keeper.maintain_once()
            assert log.start_offset == 0
            single = keeper_of(followed, snapshots_in(store), retained_max=1)
            await single.maintain_once()
            assert log.start_offset > 0

    async def test_another_process_continues_where_the_last_one_was(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            first = keeper_of(followed, snapshots_in(store))
            await first.take_once()
            second = keeper_of(followed, snapshots_in(store), seed=2)
            await second.maintain_once()
            assert second.newest == first.newest
            assert await second.take_once() is None

    async def test_debris_goes_when_it_is_old_and_ones_own_at_once(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch]
    ) -> None:
        clock = ManualClock()
        async with MemoryStore(clock=clock) as store:
            snapshots = snapshots_in(store)
            ulid = mint_ulid(clock, random.Random(9))
            for name in (snapshot_name(3, ulid), snapshot_name(99, ulid)):
                await store.put(part_key(0, name, 0), BytesBody(b"of a process that died"))
            damaged = snapshot_name(2, ulid)
            await store.put(part_key(0, damaged, 0), BytesBody(b"x"))
            await store.put(manifest_key(0, damaged), BytesBody(b"not a manifest"))
            async with following(tmp_path, PrunableLog(batches), 10) as followed:
                keeper = keeper_of(followed, snapshots, clock=clock)
                arm("snapshot.after_upload=raise")
                with pytest.raises(FailpointError):
                    await keeper.take_once()
                arm("")
                assert [offset for offset, _ in await names(snapshots)] == [99, 10, 3, 2]
                await keeper.maintain_once()
                assert [offset for offset, _ in await names(snapshots)] == [99, 3, 2]
                # Only the store's own clock counts, and it moves with what is put.
                clock.advance(DEBRIS_AGE_S)
                await keeper.maintain_once()
                assert [offset for offset, _ in await names(snapshots)] == [99, 3, 2]
                await keeper.take_once()
                await keeper.maintain_once()
                assert await names(snapshots) == [(10, SnapshotStatus.USABLE)]

    async def test_snapshots_of_others_are_neither_used_nor_deleted(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch]
    ) -> None:
        clock = ManualClock()
        async with MemoryStore(clock=clock) as store:
            log = PrunableLog(batches)
            async with following(tmp_path / "a", log, 6) as followed:
                await keeper_of(followed, snapshots_in(store, cluster_id="b")).take_once()
                await keeper_of(followed, snapshots_in(store, partition=1), seed=3).take_once()
                clock.advance(2 * DEBRIS_AGE_S)
                keeper = keeper_of(followed, snapshots_in(store), retained_max=1)
                for offset in (8, 10):
                    await followed.follow(offset)
                    await keeper.take_once()
                    await keeper.maintain_once()
            assert await names(snapshots_in(store)) == [
                (10, SnapshotStatus.USABLE),
                (6, SnapshotStatus.FOREIGN),
            ]
            assert await names(snapshots_in(store, partition=1)) == [(6, SnapshotStatus.USABLE)]
            others = snapshots_in(store, cluster_id="c")
            async with opened(tmp_path / "b", PrunableLog(batches), others) as other:
                assert other.image.next_offset == log.end_offset
            with pytest.raises(errors.CorruptState, match="of another cluster"):
                async with opened(tmp_path / "c", log, others):
                    pass

    async def test_snapshots_of_another_release_go_when_they_are_behind_the_log(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        snapshots = snapshots_in(store)
        async with following(tmp_path, PrunableLog(batches), 6) as followed:
            keeper = keeper_of(followed, snapshots, retained_max=1)
            await keeper.take_once()
            await republish_as(snapshots, store, state_version=STATE_VERSION - 1)
            await keeper.maintain_once()
            assert await names(snapshots) == [(6, SnapshotStatus.OTHER_VERSION)]
            await followed.follow(8)
            fresh = keeper_of(followed, snapshots, retained_max=1, seed=2)
            await fresh.take_once()
            await fresh.maintain_once()
            assert await names(snapshots) == [(8, SnapshotStatus.USABLE)]

    async def test_a_snapshot_ahead_of_the_log_stops_the_keeper(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        log = PrunableLog(batches)
        async with following(tmp_path, log, log.end_offset) as followed:
            await keeper_of(followed, snapshots_in(store)).take_once()
            log.batches, log.hidden = log.batches[:-2], log.batches[-2:]
            keeper = keeper_of(followed, snapshots_in(store))
            # It was a leader that this log had not heard of: the next look finds its batches.
            await keeper.maintain_once()
            assert log.end_offset == followed.image.next_offset
            del log.batches[-2:]
            with pytest.raises(errors.CorruptState, match="lost records that were acknowledged"):
                await keeper.maintain_once()


async def republish_as(snapshots: SnapshotStore, store: ObjectStore, **fields: int) -> None:
    """Change fields in the manifest of the newest snapshot."""
    found = await snapshots.survey((await snapshots.stored())[0])
    assert found.manifest is not None
    await store.delete([manifest_key(snapshots.partition, found.stored.name)])
    await snapshots.publish(replace(found.manifest, **fields))


class TestRunning:
    def keeper(
        self,
        followed: Following,
        snapshots: SnapshotStore,
        pauses: Pauses,
        *,
        is_leading: bool = True,
        **settings: int,
    ) -> SnapshotKeeper:
        return SnapshotKeeper(
            followed.state,
            followed.log,
            snapshots,
            settings=SnapshotSettings(**settings),
            clock=pauses.clock,
            rng=random.Random(5),
            sleep=pauses,
            is_leading=lambda: is_leading,
        )

    async def run(self, keeper: SnapshotKeeper) -> None:
        with pytest.raises(asyncio.CancelledError):
            await keeper.run()

    async def test_one_is_taken_each_interval_if_the_log_has_grown(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        log = PrunableLog(batches[:8])
        async with following(tmp_path, log, 6) as followed:
            pauses = Pauses(ManualClock(), limit=60)
            keeper = self.keeper(followed, snapshots_in(store), pauses, interval_ms=60_000)

            async def grow() -> None:
                assert keeper.taken == 1
                await followed.follow()

            del log.batches[6:]
            pauses.at = {20: lambda: log.batches.extend(batches[6:8]), 21: grow}
            await followed.follow()
            await self.run(keeper)
            assert set(pauses.delays) == {5.0}
            # 300 s: the first minute, the one in which the log grew; in the others nothing came.
            assert keeper.taken == 2

    async def test_one_is_taken_when_the_log_grew_by_records_or_bytes(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            pauses = Pauses(ManualClock(), limit=3)
            few = self.keeper(followed, snapshots_in(store), pauses, log_records=1_000)
            await self.run(few)
            assert few.taken == 0
            pauses = Pauses(ManualClock(), limit=3)
            counts = iter([500, 1_523, *[1_524] * 20])
            bytes_wise = SnapshotKeeper(
                followed.state,
                followed.log,
                snapshots_in(store),
                settings=SnapshotSettings(log_bytes=1_024),
                clock=pauses.clock,
                rng=random.Random(5),
                sleep=pauses,
                applied_bytes=lambda: next(counts),
            )
            await self.run(bytes_wise)
            assert bytes_wise.taken == 1
            await followed.follow()
            pauses = Pauses(ManualClock(), limit=3)
            record_wise = self.keeper(followed, snapshots_in(store), pauses, log_records=1)
            await self.run(record_wise)
            assert record_wise.taken == 1

    async def test_a_follower_takes_none(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            pauses = Pauses(ManualClock(), limit=5)
            keeper = self.keeper(
                followed, snapshots_in(store), pauses, is_leading=False, log_records=1
            )
            await self.run(keeper)
            assert await keys(store) == set()

    async def test_an_outage_is_waited_out_and_leaves_nothing(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        faults = StoreFaults()
        snapshots = snapshots_in(FaultyStore(store, faults))
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            pauses = Pauses(ManualClock(), limit=20)
            keeper = self.keeper(followed, snapshots, pauses, log_records=1)
            # The parts can be put from the fourth round on, read from the eighth.
            faults.outage()
            pauses.at = {4: lambda: setattr(faults, "put_error", None), 8: faults.heal}
            await self.run(keeper)
            assert keeper.taken == 1
            assert keeper.failures == 8
            assert 0.5 <= pauses.delays[0] <= 1.0 <= pauses.delays[1] <= 2.0
            assert pauses.delays[7] >= 32.0
            assert await names(snapshots) == [(10, SnapshotStatus.USABLE)]

    @pytest.mark.parametrize(
        "point",
        [
            "snapshot.after_copy",
            "snapshot.after_upload",
            "snapshot.before_manifest",
            "snapshot.after_manifest",
            "snapshot.after_delete",
            "prune.before",
            "prune.after_some",
        ],
    )
    async def test_an_error_at_any_point_is_made_good_in_the_next_round(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore, point: str
    ) -> None:
        log = PrunableLog(batches)
        async with following(tmp_path, log, 4) as followed:
            pauses = Pauses(ManualClock(), limit=12)
            ends = iter([batches[number].next_offset for number in (4, 7, 9)])
            for at in (2, 5, 8):
                pauses.at[at] = lambda: followed.follow(next(ends))
            keeper = self.keeper(
                followed, snapshots_in(store), pauses, log_records=1, retained_max=2
            )
            arm(f"{point}=raise:1")
            try:
                await self.run(keeper)
            finally:
                arm("")
            assert keeper.failures == 1
            assert await names(snapshots_in(store)) == [
                (batches[number].next_offset, SnapshotStatus.USABLE) for number in (9, 7)
            ]
            assert log.start_offset <= batches[7].next_offset - 1 < log.batches[0].next_offset

    async def test_maintenance_that_failed_is_repeated_without_another_snapshot(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        log = PrunableLog(batches)
        async with following(tmp_path, log, 10) as followed:
            await keeper_of(followed, snapshots_in(store), seed=8).take_once()
            await followed.follow()
            pauses = Pauses(ManualClock(), limit=8)
            keeper = self.keeper(followed, snapshots_in(store), pauses, log_records=1)
            prune, refused = log.prune, [errors.ObjectStoreUnavailable("away")] * 3

            async def failing_prune(before_offset: int) -> int:
                if refused:
                    raise refused.pop()
                return await prune(before_offset)

            log.prune = failing_prune  # type: ignore[method-assign]
            await self.run(keeper)
            assert (keeper.taken, keeper.failures) == (1, 3)
            assert log.start_offset > 0

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE batches SET byte_size = byte_size + 1",
            "DELETE FROM partitions",
            "UPDATE applied SET next_offset = next_offset + 1",
        ],
    )
    async def test_a_state_that_gives_unsound_copies_twice_is_reported_and_not_trusted(
        self,
        tmp_path: Path,
        batches: Sequence[MetadataRecordBatch],
        store: ObjectStore,
        damage: str,
    ) -> None:
        log = PrunableLog(batches)
        async with following(tmp_path, log, 10) as followed:
            expected = await hash_at(tmp_path / "replayed", batches, log.end_offset)
            database = sqlite3.connect(tmp_path / STATE_FILE)
            database.execute(damage)
            database.commit()
            database.close()
            pauses = Pauses(ManualClock(), limit=20)
            keeper = self.keeper(followed, snapshots_in(store), pauses, log_records=1)
            with pytest.raises(errors.CorruptState):
                await keeper.run()
            assert keeper.failures == 1
            assert len(pauses.delays) == 1
            assert SnapshotStatus.USABLE not in [
                status for _, status in await names(snapshots_in(store))
            ]
        assert not is_as_closed(tmp_path / STATE_FILE)
        async with opened(tmp_path, log, snapshots_in(store)) as healed:
            assert await healed.checked_hash() == expected

    async def test_a_state_file_that_was_deleted_ends_the_keeper_and_is_not_made_again(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        log = PrunableLog(batches)
        async with following(tmp_path, log, 10) as followed:
            for suffix in ("", "-wal", "-shm"):
                (tmp_path / (STATE_FILE + suffix)).unlink(missing_ok=True)
            pauses = Pauses(ManualClock(), limit=20)
            keeper = self.keeper(followed, snapshots_in(store), pauses, log_records=1)
            with pytest.raises(errors.DirectoryLost, match=STATE_FILE):
                await keeper.run()
            assert not followed.state.path.exists()
        assert await keys(store) == set()

    async def test_a_snapshot_does_not_hold_up_writers(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        """The writer commits while the copy's read transaction is open and while parts go up."""
        waiting, go_on = asyncio.Event(), asyncio.Event()

        class HeldStore(FaultyStore):
            async def put(self, key: str, body: object) -> None:  # type: ignore[override]
                waiting.set()
                await go_on.wait()
                await super().put(key, body)  # type: ignore[arg-type]

        async with following(tmp_path, PrunableLog(batches), 6) as followed:
            keeper = keeper_of(followed, snapshots_in(HeldStore(store, StoreFaults())))
            taking = asyncio.create_task(keeper.take_once())
            await waiting.wait()
            await followed.follow()
            go_on.set()
            manifest = await taking
        assert manifest is not None
        assert manifest.next_offset == 6
        assert manifest.cluster_id == CLUSTER
