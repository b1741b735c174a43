"""Starting: from the local state, a snapshot or the log's beginning, and never with wrong rows."""

import asyncio
import logging
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from metadata.log.log import MetadataRecordBatch
from metadata.records.records import PartitionCreatedRecord, encode_record
from metadata.replica.snapshot_format import SnapshotManifest, manifest_key, part_key
from metadata.replica.snapshots import SnapshotStore
from metadata.replica.verify import verify_metadata
from metadata.state.schema import STATE_VERSION
from metadata.state.state import SET_ASIDE_MAX, STATE_FILE, StateDatabase
from metadata.state.state_file import is_as_closed
from tests.support.chunks.failing_disk import FailingDisk
from tests.support.logs.snapshot_bench import (
    PrunableLog,
    following,
    keeper_of,
    opened,
    recorded_batches,
    snapshots_in,
)
from tests.support.profiles import seeds
from tests.support.stores.faulty_store import FaultyStore, StoreFaults
from wal.clock import ManualClock
from wal.errors import CorruptState, ObjectStoreUnavailable, StorageFailed
from wal.stores.file_store import FileStore
from wal.stores.object_store import ObjectStat, ObjectStore

SEEDS = seeds(40)


class Scene(NamedTuple):
    """A log pruned behind the older of two snapshots, and no local state."""

    directory: Path
    objects: Path
    store: ObjectStore
    snapshots: SnapshotStore
    all_batches: Sequence[MetadataRecordBatch]
    log: PrunableLog
    older: SnapshotManifest
    newer: SnapshotManifest
    state_hash: int

    def file(self, key: str) -> Path:
        return self.objects / key

    async def starts(self, *, log: PrunableLog | None = None) -> None:
        """A start gives exactly the state that replaying everything gives."""
        async with opened(self.directory, log or self.log, self.snapshots) as state:
            assert state.image.next_offset == self.all_batches[-1].next_offset
            assert await state.checked_hash() == self.state_hash

    async def refuses(self, message: str, *, log: PrunableLog | None = None) -> None:
        with pytest.raises(CorruptState, match=message):
            async with opened(self.directory, log or self.log, self.snapshots):
                pass


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    batches = await recorded_batches(tmp_path / "recorded")
    log = PrunableLog(batches)
    manifests = []
    async with FileStore(
        tmp_path / "objects", clock=ManualClock(), rng=random.Random(1), sync=False
    ) as store:
        snapshots = snapshots_in(store)
        async with following(tmp_path / "leader", log) as followed:
            keeper = keeper_of(followed, snapshots)
            for number in (3, 7):
                await followed.follow(batches[number].next_offset)
                manifests.append(await keeper.take_once())
            await keeper.maintain_once()
            await followed.follow()
            state_hash = followed.image.state_hash
        older, newer = manifests
        assert older is not None
        assert newer is not None
        assert 0 < log.start_offset < older.next_offset
        yield Scene(
            tmp_path / "state",
            tmp_path / "objects",
            store,
            snapshots,
            batches,
            log,
            older,
            newer,
            state_hash,
        )


def chosen(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Names of the snapshots that were loaded."""
    start = "coordinator state loaded from snapshot "
    return [message.removeprefix(start) for message in caplog.messages if message.startswith(start)]


class TestWithoutLocalState:
    async def test_the_newest_snapshot_and_the_log_behind_it_give_the_same_state(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        await scene.starts()
        assert chosen(caplog) == [scene.newer.name]
        assert {path.name for path in scene.directory.iterdir()} == {
            STATE_FILE,
            f"{STATE_FILE}.closed",
        }
        caplog.clear()
        await scene.starts()
        assert chosen(caplog) == []

    @pytest.mark.parametrize("damage", ["flip", "cut", "append", "remove", "manifest", "swap"])
    async def test_a_damaged_newest_snapshot_is_passed_over(
        self, scene: Scene, caplog: pytest.LogCaptureFixture, damage: str
    ) -> None:
        caplog.set_level(logging.INFO)
        part = scene.file(part_key(0, scene.newer.name, 0))
        manifest = scene.file(manifest_key(0, scene.newer.name))
        whole = part.read_bytes()
        if damage == "flip":
            part.write_bytes(whole[:50] + bytes([whole[50] ^ 4]) + whole[51:])
        elif damage == "cut":
            part.write_bytes(whole[:-1])
        elif damage == "append":
            part.write_bytes(whole + b"0")
        elif damage == "remove":
            part.unlink()
        elif damage == "manifest":
            manifest.write_bytes(manifest.read_bytes()[:-2])
        else:
            manifest.write_bytes(scene.file(manifest_key(0, scene.older.name)).read_bytes())
        await scene.starts()
        assert chosen(caplog) == [scene.older.name]

    async def test_no_flipped_or_cut_snapshot_ever_gives_wrong_rows(self, scene: Scene) -> None:
        objects = [
            scene.file(key)
            for key in (
                part_key(0, scene.newer.name, 0),
                manifest_key(0, scene.newer.name),
                part_key(0, scene.older.name, 0),
            )
        ]
        for seed in SEEDS:
            rng = random.Random(seed)
            # The newer one is damaged always; the older one is what it falls back to.
            path = objects[rng.randrange(2)]
            whole = path.read_bytes()
            position = rng.randrange(len(whole))
            if rng.random() < 0.3:
                path.write_bytes(whole[:position])
            else:
                flipped = bytearray(whole)
                flipped[position] ^= 1 << rng.randrange(8)
                path.write_bytes(flipped)
            await scene.starts()
            path.write_bytes(whole)
            shutil.rmtree(scene.directory)

    async def test_with_all_snapshots_damaged_only_a_whole_log_helps(self, scene: Scene) -> None:
        for manifest in (scene.older, scene.newer):
            scene.file(part_key(0, manifest.name, 0)).write_bytes(b"nothing")
        await scene.refuses("begins at .*damaged.*`diskless rebuild`")
        await scene.starts(log=PrunableLog(scene.all_batches))

    async def test_without_any_snapshot_only_a_whole_log_helps(self, scene: Scene) -> None:
        shutil.rmtree(scene.objects / "meta")
        await scene.refuses("no snapshot.*`diskless rebuild`")
        await scene.starts(log=PrunableLog(scene.all_batches))

    async def test_a_listing_that_lost_the_race_with_the_keeper_is_made_again(
        self, scene: Scene
    ) -> None:
        """All that was there was deleted while it was made, and what came does not show yet."""
        empty_listings = iter(range(1))

        class Racing(FaultyStore):
            def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
                is_empty = next(empty_listings, None) is not None
                return super().list(f"{prefix}none" if is_empty else prefix, start_after)

        racing = snapshots_in(Racing(scene.store, StoreFaults()))
        await scene._replace(snapshots=racing).starts()

    async def test_a_snapshot_of_another_release_is_not_used(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        for manifest in (scene.older, scene.newer):
            await scene.store.delete([manifest_key(0, manifest.name)])
            await scene.snapshots.publish(replace(manifest, state_version=STATE_VERSION + 1))
        caplog.set_level(logging.INFO)
        await scene.refuses("another state version")
        await scene.starts(log=PrunableLog(scene.all_batches))
        assert chosen(caplog) == []

    async def test_a_snapshot_of_another_log_is_not_continued(self, scene: Scene) -> None:
        other = [
            batch._replace(records=(*batch.records[:-1], b"something else"))
            for batch in scene.all_batches
        ]
        await scene.refuses("not the one that was applied", log=PrunableLog(other[2:]))

    async def test_a_log_that_begins_just_behind_the_snapshot_is_enough(self, scene: Scene) -> None:
        await scene.starts(log=PrunableLog(scene.all_batches[8:]))
        shutil.rmtree(scene.directory)
        await scene.refuses("ends before the log begins", log=PrunableLog(scene.all_batches[9:]))

    async def test_an_outage_is_an_error_unless_the_log_is_whole(self, scene: Scene) -> None:
        faults = StoreFaults()
        faults.outage()
        away = scene._replace(snapshots=snapshots_in(FaultyStore(scene.store, faults)))
        with pytest.raises(ObjectStoreUnavailable):
            await away.starts()
        await away.starts(log=PrunableLog(scene.all_batches))

    async def test_a_log_pruned_during_the_replay_is_met_by_a_newer_snapshot(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        newest = scene.file(f"meta/0/snapshots/{scene.newer.name}")
        hidden = newest.rename(scene.objects.parent / "hidden")

        def publish_and_prune() -> None:
            if scene.log.start_offset < scene.newer.next_offset - 1 and state_is_loaded():
                hidden.rename(newest)
                while scene.log.batches[0].next_offset < scene.newer.next_offset:
                    del scene.log.batches[0]

        def state_is_loaded() -> bool:
            return (scene.directory / STATE_FILE).exists() and hidden.exists()

        scene.log.before_read = publish_and_prune
        await scene.starts()
        assert chosen(caplog) == [scene.older.name, scene.newer.name]

    @pytest.mark.parametrize("call", ["create", "pwritev", "fdatasync", "rename", "fsync"])
    async def test_a_disk_that_fails_leaves_no_half_state(self, scene: Scene, call: str) -> None:
        disk = FailingDisk()
        disk.failing.add(call)
        failing = scene._replace(snapshots=snapshots_in(scene.store, disk=disk))
        with pytest.raises(StorageFailed):
            await failing.starts()
        disk.failing.clear()
        await failing.starts()

    async def test_a_write_ahead_log_without_its_database_is_not_taken_for_the_snapshots(
        self, scene: Scene, tmp_path: Path
    ) -> None:
        """SQLite would replay its frames over the restored pages."""
        scene.directory.mkdir()
        async with following(tmp_path / "other", scene.log) as other:
            other.image.next_offset = scene.log.start_offset
            database = sqlite3.connect(tmp_path / "other" / STATE_FILE)
            database.execute("PRAGMA wal_autocheckpoint=0").close()
            database.execute("CREATE TABLE stray (x)")
            database.execute("DELETE FROM batches")
            database.commit()
            stray = (tmp_path / "other" / f"{STATE_FILE}-wal").read_bytes()
            database.close()
        assert stray
        (scene.directory / f"{STATE_FILE}-wal").write_bytes(stray)
        await scene.starts()


class TestWithLocalState:
    async def local(self, scene: Scene, until: int | None = None) -> None:
        """Leave a closed local state there."""
        log = PrunableLog(scene.all_batches)
        end = log.end_offset if until is None else until
        async with following(scene.directory, log, end):
            pass

    async def test_a_sound_one_is_used_and_no_snapshot_read(self, scene: Scene) -> None:
        await self.local(scene, scene.newer.next_offset)
        for manifest in (scene.older, scene.newer):
            scene.file(part_key(0, manifest.name, 0)).unlink()
        await scene.starts()

    async def test_one_behind_the_pruned_log_is_replaced_by_a_snapshot(self, scene: Scene) -> None:
        await self.local(scene, scene.all_batches[0].next_offset)
        await scene.starts()
        assert not list(scene.directory.glob("*.bad-*"))

    async def test_one_behind_the_pruned_log_stays_while_nothing_can_replace_it(
        self, scene: Scene
    ) -> None:
        await self.local(scene, scene.all_batches[0].next_offset)
        shutil.rmtree(scene.objects / "meta")
        await scene.refuses("`diskless rebuild`")
        await scene.starts(log=PrunableLog(scene.all_batches))

    async def test_a_damaged_one_is_set_aside_for_a_snapshot(self, scene: Scene) -> None:
        await self.local(scene)
        database = sqlite3.connect(scene.directory / STATE_FILE)
        database.execute("UPDATE batches SET byte_offset = byte_offset + 1")
        database.commit()
        database.close()
        await scene.starts()
        assert (scene.directory / f"{STATE_FILE}.bad-1").exists()

    async def test_only_the_last_ones_set_aside_are_kept(self, scene: Scene) -> None:
        for _ in range(SET_ASIDE_MAX + 2):
            await self.local(scene)
            (scene.directory / STATE_FILE).write_bytes(b"not a database at all" * 100)
            await scene.starts()
            (scene.directory / STATE_FILE).unlink()
        assert sorted(path.name for path in scene.directory.glob("*.bad-*")) == [
            f"{STATE_FILE}.bad-{number}" for number in (3, 4, 5)
        ]

    @pytest.mark.parametrize("is_marked", [True, False])
    async def test_no_flipped_bit_ever_gives_wrong_rows(
        self, scene: Scene, is_marked: bool
    ) -> None:
        await self.local(scene)
        path = scene.directory / STATE_FILE
        assert is_as_closed(path)
        whole = path.read_bytes()
        mark = path.with_name(f"{STATE_FILE}.closed")
        noted = mark.read_bytes()
        for seed in SEEDS:
            shutil.rmtree(scene.directory)
            scene.directory.mkdir()
            rng = random.Random(seed)
            flipped = bytearray(whole)
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            if is_marked:
                mark.write_bytes(noted)
            assert not is_as_closed(path)
            await scene.starts()

    @pytest.mark.parametrize("has_snapshots", [True, False])
    async def test_a_snapshot_ahead_of_the_log_is_refused(
        self, scene: Scene, has_snapshots: bool
    ) -> None:
        """An old copy of the log's directory was put back: its offsets were given out already."""
        log = PrunableLog(scene.all_batches[:5])
        if has_snapshots:
            await scene.refuses("lost records that were acknowledged", log=log)
        await self.local(scene, log.end_offset)
        await scene.refuses("lost records that were acknowledged", log=log)
        await scene.refuses("lost records that were acknowledged", log=PrunableLog())

    async def test_a_snapshot_ahead_of_what_a_follower_knows_is_not(self, scene: Scene) -> None:
        log = PrunableLog(scene.all_batches[:5])
        log.hidden = list(scene.all_batches[5:])
        await self.local(scene, log.end_offset)
        async with opened(scene.directory, log, scene.snapshots) as state:
            assert state.log.end_offset == scene.all_batches[-1].next_offset

    async def test_a_store_that_is_away_does_not_hold_up_a_sound_start(self, scene: Scene) -> None:
        await self.local(scene)
        faults = StoreFaults()
        away = scene._replace(snapshots=snapshots_in(AwayStore(scene.store, faults)))
        await away.starts()


class AwayStore(FaultyStore):
    """Listing fails."""

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[object]:  # type: ignore[override]
        raise ObjectStoreUnavailable("the store is away")
        yield


class TestClosingMark:
    async def test_a_state_closed_after_it_was_opened_is_known_again(self, scene: Scene) -> None:
        await scene.starts()
        assert is_as_closed(scene.directory / STATE_FILE)
        await scene.starts()
        assert is_as_closed(scene.directory / STATE_FILE)

    async def test_a_state_in_use_or_never_checked_is_not(self, scene: Scene) -> None:
        log = PrunableLog(scene.all_batches)
        path = scene.directory / STATE_FILE
        async with following(scene.directory, log, log.end_offset):
            assert not is_as_closed(path)
        assert is_as_closed(path)
        async with StateDatabase(path, readers=1) as state:
            await state.open_or_create()
            await state.write(lambda connection: connection.exec_driver_sql("DELETE FROM batches"))
        # Nobody called it sound this time, and the mark of last time does not fit.
        assert not is_as_closed(path)
        await scene.starts()

    async def test_a_damaged_row_found_while_it_served_leaves_no_mark(self, scene: Scene) -> None:
        await scene.starts()
        path = scene.directory / STATE_FILE
        async with opened(scene.directory, scene.log, scene.snapshots) as state:
            database = sqlite3.connect(path)
            database.execute("UPDATE partitions SET high_watermark = 3")
            database.commit()
            database.close()
            with pytest.raises(CorruptState):
                await state.checked_hash()
        assert not is_as_closed(path)
        await scene.starts()

    async def test_a_write_ahead_log_is_not_overlooked(self, scene: Scene) -> None:
        await scene.starts()
        path = scene.directory / STATE_FILE
        assert is_as_closed(path)
        path.with_name(f"{STATE_FILE}-wal").write_bytes(b"x")
        assert not is_as_closed(path)
        await scene.starts()

    async def test_an_older_file_put_back_with_its_mark_catches_up(self, scene: Scene) -> None:
        log = PrunableLog(scene.all_batches)
        async with following(scene.directory, log, scene.newer.next_offset):
            pass
        kept = scene.directory.rename(scene.directory.with_name("kept"))
        await scene.starts()
        shutil.rmtree(scene.directory)
        kept.rename(scene.directory)
        await scene.starts()

    async def test_a_copy_that_is_cancelled_has_ended_when_the_caller_goes_on(
        self, scene: Scene, tmp_path: Path
    ) -> None:
        log = PrunableLog(scene.all_batches)
        async with following(scene.directory, log, log.end_offset) as followed:
            copying = asyncio.create_task(followed.state.backup(tmp_path / "copy"))
            await asyncio.sleep(0)
            copying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copying
            await followed.state.backup(tmp_path / "copy")


class TestVerify:
    async def test_a_pruned_log_is_checked_from_the_oldest_snapshot(self, scene: Scene) -> None:
        await scene.starts()
        report = await verify_metadata(scene.directory, scene.log, snapshots=scene.snapshots)
        assert report.violations == []
        assert report.records == scene.all_batches[-1].next_offset
        whole = PrunableLog(scene.all_batches)
        report = await verify_metadata(scene.directory, whole, snapshots=scene.snapshots)
        assert report.violations == []
        assert is_as_closed(scene.directory / STATE_FILE)

    async def test_a_pruned_log_without_its_snapshots_is_a_violation(self, scene: Scene) -> None:
        await scene.starts()
        (violation,) = (await verify_metadata(scene.directory, scene.log)).violations
        assert violation.subject == "metadata log"
        assert "no sound snapshot" in violation.problem

    async def test_damaged_snapshots_are_reported(self, scene: Scene) -> None:
        await scene.starts()
        part = scene.file(part_key(0, scene.newer.name, 0))
        part.write_bytes(part.read_bytes()[:-1] + b"x")
        scene.file(manifest_key(0, scene.older.name)).write_bytes(b"")
        report = await verify_metadata(
            scene.directory, PrunableLog(scene.all_batches), snapshots=scene.snapshots
        )
        assert [violation.subject for violation in report.violations] == [
            f"snapshot {scene.older.name}",
            f"snapshot {scene.newer.name}",
        ]

    async def test_a_sound_snapshot_that_the_log_does_not_give_is_reported(
        self, scene: Scene, tmp_path: Path
    ) -> None:
        await scene.starts()
        record = PartitionCreatedRecord(topic_id=UUID(int=99), name="another", partition=0)
        different = [
            *scene.all_batches[:4],
            scene.all_batches[4]._replace(records=(encode_record(record),)),
        ]
        end = different[-1].next_offset
        async with following(tmp_path / "wrong", PrunableLog(different), end) as followed:
            wrong = await keeper_of(followed, scene.snapshots, seed=9).take_once()
        assert wrong is not None
        report = await verify_metadata(
            scene.directory, PrunableLog(scene.all_batches), snapshots=scene.snapshots
        )
        assert {violation.subject for violation in report.violations} == {f"snapshot {wrong.name}"}
