"""Snapshots: what is taken is the state at its offset, and what is kept of them."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.log.log import MetadataRecordBatch
from metadata.replica.snapshot_format import (
    SnapshotManifest,
    SnapshotPart,
    decode_manifest,
    encode_manifest,
    manifest_key,
    next_offset_of,
    part_key,
    snapshot_name,
)
from metadata.replica.snapshots import SnapshotStatus, SnapshotStore
from metadata.state.schema import STATE_VERSION
from metadata.state.state import STATE_FILE, Applied
from metadata.state.state_check import verified_file
from metadata.state.state_file import is_as_closed
from metadata.workers.snapshot_keeper import DEBRIS_AGE_S, SnapshotKeeper, SnapshotSettings
from tests.support.faulty_store import FaultyStore, StoreFaults
from tests.support.snapshot_bench import (
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
from wal import errors
from wal.clock import ManualClock
from wal.crc import crc32c
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


async def names(snapshots: SnapshotStore) -> list[tuple[int, SnapshotStatus]]:
    """(next offset, status) of what is stored, newest first."""
    return [
        (found.stored.next_offset, found.status)
        for stored in await snapshots.stored()
        for found in [await snapshots.survey(stored)]
    ]


async def keys(store: ObjectStore) -> set[str]:
    return {stat.key async for stat in store.list("meta/")}


class TestFormat:
    _manifests = st.builds(
        SnapshotManifest,
        cluster_id=st.text(max_size=30),
        partition=st.integers(0, 2**31 - 1),
        name=st.just("set below"),
        state_version=st.integers(0, 2**16),
        applied=st.builds(
            Applied,
            next_offset=st.integers(1, 2**63 - 1),
            last_record_crc=st.integers(0, 2**32 - 1),
            timestamp_ms=st.integers(-1, 2**63 - 1),
            forgotten_until_ms=st.integers(-1, 2**63 - 1),
            began_ms=st.integers(-1, 2**63 - 1),
            state_hash=st.integers(0, 2**64 - 1),
        ),
        taken_at_ms=st.integers(0, 2**63 - 1),
        file_sha256=st.binary(min_size=32, max_size=32),
        parts=st.lists(
            st.builds(
                SnapshotPart,
                stored_bytes=st.integers(1, 64 << 20),
                crc32c=st.integers(0, 2**32 - 1),
                file_bytes=st.integers(1, 64 << 20),
            ),
            min_size=1,
            max_size=5,
        ),
    ).map(lambda made: replace(made, name=snapshot_name(made.next_offset, "0" * 26)))

    @given(_manifests)
    def test_a_manifest_is_read_as_it_was_written(self, manifest: SnapshotManifest) -> None:
        assert decode_manifest(encode_manifest(manifest), manifest.name) == manifest

    @given(_manifests, st.data())
    def test_a_damaged_manifest_is_found(
        self, manifest: SnapshotManifest, data: st.DataObject
    ) -> None:
        encoded = bytearray(encode_manifest(manifest))
        position = data.draw(st.integers(0, len(encoded) - 1))
        encoded[position] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(errors.CorruptObject):
            decode_manifest(bytes(encoded), manifest.name)
        with pytest.raises(errors.CorruptObject):
            decode_manifest(encode_manifest(manifest)[:position], manifest.name)

    @given(st.binary(max_size=200))
    def test_garbage_is_no_manifest(self, data: bytes) -> None:
        with pytest.raises(errors.CorruptObject):
            decode_manifest(data, snapshot_name(1, "0" * 26))

    @given(_manifests)
    def test_a_manifest_under_another_name_is_refused(self, manifest: SnapshotManifest) -> None:
        with pytest.raises(errors.CorruptObject):
            decode_manifest(encode_manifest(manifest), snapshot_name(5, "1" * 26))

    def test_a_manifest_of_a_later_format_is_refused(self) -> None:
        name = snapshot_name(1, "0" * 26)
        line = b'{"format":2}'
        with pytest.raises(errors.CorruptObject, match="format 2"):
            decode_manifest(b"%s\n%08x\n" % (line, crc32c(line)), name)

    @pytest.mark.parametrize(
        "name", ["", "manifest", "1-" + "0" * 26, "0" * 20, "0" * 20 + "-" + "a" * 26]
    )
    def test_other_names_have_no_offset(self, name: str) -> None:
        assert next_offset_of(name) is None

    def test_names_sort_by_offset(self) -> None:
        ulid = mint_ulid(ManualClock(), random.Random(1))
        made = [snapshot_name(offset, ulid) for offset in (0, 9, 10, 99, 10**18, 2**63 - 1)]
        assert sorted(made) == made
        assert [next_offset_of(name) for name in made] == [0, 9, 10, 99, 10**18, 2**63 - 1]


class TestTaking:
    async def test_snapshots_taken_while_batches_are_applied_are_the_state_at_their_offset(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        snapshots = snapshots_in(store)
        taken: list[SnapshotManifest] = []
        async with following(tmp_path, PrunableLog(batches), 4) as followed:
            keeper = keeper_of(followed, snapshots)
            is_done = False

            async def take() -> None:
                while not is_done:
                    if (manifest := await keeper.take_once()) is not None:
                        taken.append(manifest)

            taking = asyncio.create_task(take())
            await followed.follow()
            is_done = True
            await taking
            if (last := await keeper.take_once()) is not None:
                taken.append(last)
            assert taken[-1].next_offset == followed.image.next_offset
        assert len(taken) > 1
        for number, manifest in enumerate(taken):
            expected = await hash_at(tmp_path / str(number), batches, manifest.next_offset)
            assert manifest.applied.state_hash == expected
            loaded = tmp_path / "loaded"
            await snapshots.download(manifest, loaded)
            assert verified_file(loaded) == manifest.applied

    async def test_nothing_is_taken_of_an_empty_state_or_of_one_that_did_not_move(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        async with following(tmp_path, PrunableLog(batches)) as followed:
            keeper = keeper_of(followed, snapshots_in(store))
            assert await keeper.take_once() is None
            await followed.follow()
            assert await keeper.take_once() is not None
            assert await keeper.take_once() is None
            assert keeper.taken == 1

    async def test_a_large_state_is_stored_in_parts(
        self,
        tmp_path: Path,
        batches: Sequence[MetadataRecordBatch],
        store: ObjectStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("metadata.replica.snapshots.PART_BYTES", 10_000)
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            manifest = await keeper_of(followed, snapshots_in(store)).take_once()
        assert manifest is not None
        assert len(manifest.parts) > 5
        assert {part.file_bytes for part in manifest.parts[:-1]} == {10_000}
        expected = {part_key(0, manifest.name, number) for number in range(len(manifest.parts))}
        assert await keys(store) == expected | {manifest_key(0, manifest.name)}

    async def test_no_copy_is_left_beside_the_state(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        async with following(tmp_path / "s", PrunableLog(batches), 10) as followed:
            await keeper_of(followed, snapshots_in(store)).take_once()
            faults = StoreFaults()
            faults.outage()
            await followed.follow()
            failing = keeper_of(followed, snapshots_in(FaultyStore(store, faults)))
            with pytest.raises(errors.ObjectStoreUnavailable):
                await failing.take_once()
        assert {path.name for path in (tmp_path / "s").iterdir()} == {
            STATE_FILE,
            f"{STATE_FILE}.closed",
        }

    async def test_what_the_store_gives_back_differently_is_no_snapshot(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        faults = StoreFaults()
        snapshots = snapshots_in(FaultyStore(store, faults))
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            keeper = keeper_of(followed, snapshots)
            faults.flip_bits = True
            with pytest.raises(errors.CorruptObject):
                await keeper.take_once()
            faults.heal()
            assert await names(snapshots) == [(10, SnapshotStatus.UNFINISHED)]
            await keeper.take_once()
            await keeper.maintain_once()
            assert await names(snapshots) == [(10, SnapshotStatus.USABLE)]

    async def test_a_manifest_whose_put_was_not_answered_counts_only_with_its_parts(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        faults = StoreFaults()
        snapshots = snapshots_in(FaultyStore(store, faults))
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            keeper = keeper_of(followed, snapshots)
            arm("snapshot.before_manifest=raise")
            try:
                with pytest.raises(FailpointError):
                    await keeper.take_once()
            finally:
                arm("")
            (unfinished,) = await snapshots.stored()
            await keeper.maintain_once()
            assert await names(snapshots) == []
            # It lands after all, when its parts have been deleted.
            manifest = await keeper.take_once()
            assert manifest is not None
            late = replace(manifest, name=unfinished.name)
            await snapshots.publish(late)
            assert sorted(status.name for _, status in await names(snapshots)) == [
                "DAMAGED",
                "USABLE",
            ]

    async def test_a_lost_answer_is_an_unknown_outcome_and_the_next_round_goes_on(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        faults = StoreFaults()
        snapshots = snapshots_in(FaultyStore(store, faults))
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            keeper = keeper_of(followed, snapshots)
            faults.lost_responses = 1
            with pytest.raises(errors.UploadOutcomeUnknown):
                await keeper.take_once()
            assert await keeper.take_once() is not None


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


class Pauses:
    """A sleep that ends the test's run after so many, and does something at some of them."""

    def __init__(self, clock: ManualClock, limit: int) -> None:
        self.clock = clock
        self.limit = limit
        self.delays: list[float] = []
        self.at: dict[int, object] = {}

    async def __call__(self, delay: float, /) -> None:
        self.delays.append(delay)
        self.clock.advance(delay)
        action = self.at.get(len(self.delays))
        if callable(action):
            result = action()
            if asyncio.iscoroutine(result):
                await result
        if len(self.delays) >= self.limit:
            raise asyncio.CancelledError
        await asyncio.sleep(0)


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
