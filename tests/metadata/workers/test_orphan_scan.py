"""The orphan scan: everything nobody committed goes in the end, and nothing that anybody might."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile, HandedFile, Tombstone
from metadata.sink_operations import CommitSink
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.orphan_scan import MARKER_PREFIX, OrphanScan
from tests.support.coordinators.file_cluster import COMMIT_AGE_S, GRACE_S, drain, running_cluster
from tests.support.coordinators.orphan_scene import OLD_S, SETTINGS, Scene, TroubledStore
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import InvalidRequest, ObjectExpired, ObjectStoreUnavailable, Rejected
from wal.failpoint import FailpointError, arm
from wal.staging.staged_keys import staged_key
from wal.stores.file_store import FileStore
from wal.stores.object_store import BytesBody, ObjectStat
from wal.ulid import WAL_SHARDS, mint_ulid, minted_ms, ulid_at, wal_object_key


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store_clock = ManualClock()
    store = TroubledStore(store_clock)
    async with running_cluster(tmp_path, 2, store) as cluster:
        yield Scene(cluster, store, store_clock)
    arm("")


# --- what is deleted -----------------------------------------------------------------------------


async def test_an_object_nobody_committed_is_deleted_when_it_is_old(scene: Scene) -> None:
    key = await scene.upload()
    scene.advance(OLD_S - 1)
    await scene.scan.scan_once()
    assert await scene.store.keys() == [key]
    assert scene.cluster.calls == []
    scene.advance(1)
    await scene.scanner().scan_once()
    assert await scene.store.keys() == []
    for bench in scene.cluster.benches.values():
        with pytest.raises(ObjectExpired):
            await bench.coordinator.commit_file(bench.file(key=key))


async def test_an_object_that_any_coordinator_knows_is_left_alone(scene: Scene) -> None:
    partitions = await scene.cluster.partitions()
    key = await scene.upload()
    await scene.cluster.benches[1].coordinator.commit_file(
        scene.cluster.file(partitions[1], key, 0, 1)
    )
    scene.advance(OLD_S)
    await scene.scan.scan_once()
    assert await scene.store.keys() == [key]
    assert (scene.scan.known, scene.scan.orphans_deleted) == (1, 0)
    assert [log.end_offset for log in scene.cluster.logs.values()] == [2, 3], "it was written to"


async def test_an_object_is_left_alone_while_not_everybody_can_be_asked(scene: Scene) -> None:
    key = await scene.upload()
    scene.advance(OLD_S)
    scene.cluster.absent = {1}
    await scene.scan.scan_once()
    assert await scene.store.keys() == [key]
    assert scene.scan.deferred == 1
    scene.cluster.absent = set()
    await scene.scan.scan_once()
    assert await scene.store.keys() == []


async def test_a_coordinator_that_came_while_the_others_were_asked_stops_the_deletion(
    scene: Scene,
) -> None:
    key = await scene.upload()
    scene.advance(OLD_S)
    scan = scene.scanner(ids=iter([(0,), (0, 1), (0, 1), (0, 1)]))
    await scan.scan_once()
    assert await scene.store.keys() == [key]
    await scan.scan_once()
    assert await scene.store.keys() == []


async def test_nobody_to_ask_means_nothing_to_delete(scene: Scene) -> None:
    key = await scene.upload()
    scene.advance(OLD_S)
    await scene.scanner(ids=repeat(())).scan_once()
    assert await scene.store.keys() == [key]


@pytest.mark.parametrize(
    "foreign",
    [
        "wal/{shard}/{ulid}.tmp",
        "wal/{shard}/{ulid}/part",
        "wal/{shard}/{lower}",
        "wal/{other}/{ulid}",
        "wal/{shard}/README",
        "wal/{shard}/8{cut}",
        "wal/{shard}/sub/{ulid}",
        "wal/{ulid}",
        "walx/{shard}/{ulid}",
        "meta/0/log/00000000000000000000",
        "segments/{shard}/{ulid}",
        "orphan-scan/notes.txt",
    ],
)
async def test_other_names_are_never_touched(scene: Scene, foreign: str) -> None:
    """All 256 shards are scanned, with everything else that is about it old enough."""
    ulid = mint_ulid(scene.cluster.clock, scene.rng)
    shard = wal_object_key(ulid).split("/")[1]
    name = ObjectKey(
        foreign.format(
            ulid=ulid,
            shard=shard,
            lower=ulid.lower(),
            cut=ulid[1:],
            other=f"{int(shard, 16) ^ 1:02x}",
        )
    )
    await scene.upload(name)
    orphan = await scene.upload()
    scene.advance(OLD_S * 400)
    await scene.scan.scan_once()
    assert await scene.store.keys() == [name]
    assert orphan != name


async def test_both_ages_count(scene: Scene) -> None:
    clock = scene.cluster.clock
    old_ulid = wal_object_key(ulid_at(clock.now_ms(), scene.rng))
    scene.advance(OLD_S)
    uploaded_late = await scene.upload(old_ulid)  # a chunk that was recovered just now
    scene.advance(60)
    from_the_future = await scene.upload(
        wal_object_key(ulid_at(clock.now_ms() + 10 * int(OLD_S * 1000), scene.rng))
    )
    await scene.scan.scan_once()
    assert sorted(await scene.store.keys()) == sorted([uploaded_late, from_the_future])
    scene.advance(OLD_S)
    await scene.scanner().scan_once()
    assert await scene.store.keys() == [from_the_future]
    scene.advance(11 * OLD_S)
    await scene.scanner().scan_once()
    assert await scene.store.keys() == []


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
async def test_the_age_is_that_of_the_store_s_clock(scene: Scene, ahead_s: float) -> None:
    scene.store_clock.step_wall(ahead_s)
    await scene.upload()
    scene.advance(OLD_S - 1)
    # Our own clock jumps far ahead: the store has not seen that time pass.
    scene.cluster.clock.step_wall(10 * OLD_S)
    await scene.scan.scan_once()
    assert len(await scene.store.keys()) == 1
    scene.advance(3602)
    await scene.scanner().scan_once()
    assert await scene.store.keys() == []


async def test_the_marker_of_the_store_s_clock_does_not_stay(scene: Scene) -> None:
    await scene.upload()
    scene.advance(OLD_S)
    arm("orphan.after_marker=raise")
    with pytest.raises(FailpointError):
        await scene.scan.scan_once()
    arm("")
    (marker,) = [key for key in await scene.store.keys() if key.startswith(MARKER_PREFIX)]
    await scene.scanner(2).scan_once()
    assert await scene.store.keys() == [marker], "another scanner may be about to look at it"
    await scene.upload()
    scene.advance(OLD_S)
    await scene.scanner(3).scan_once()
    assert await scene.store.keys() == []


# --- the rule of the KIP, taken literally --------------------------------------------------------


class LiteralScan:
    """KIP-1164, "Orphan files", word by word."""

    def __init__(self, scene: Scene, grace_ms: int) -> None:
        self._scene = scene
        self._grace_ms = grace_ms

    async def scan_once(self) -> None:
        # 1. "ask each DC for the timestamp of the oldest file it has batches in. The grace period
        #    will be added to the oldest of all the timestamps": with nothing left, that is now.
        cluster = self._scene.cluster
        threshold_ms = self._scene.store_clock.now_ms() + self._grace_ms
        # 2. "files older than the threshold", 3. "ask each DC whether particular files are known"
        for key in await self._scene.store.keys():
            answers = [
                (await bench.coordinator.describe_files([key]))[0]
                for bench in cluster.benches.values()
            ]
            if minted_ms(key) < threshold_ms and all(answer.error for answer in answers):
                await self._scene.store.delete([key])  # 4. "physically deleted by the worker"


async def drained_scene(scene: Scene) -> ObjectKey:
    """Everything was tiered; one object is uploaded, its commit has not arrived yet."""
    partitions = await scene.cluster.partitions()
    first = await scene.upload()
    await scene.cluster.benches[0].coordinator.commit_file(
        scene.cluster.file(partitions[0], first, 0)
    )
    await drain(scene.cluster, 0, partitions[0])
    for _ in range(2):
        scene.advance(COMMIT_AGE_S + GRACE_S)
        await scene.cluster.work()
    assert await scene.store.keys() == []
    return await scene.upload()


async def test_the_literal_rule_deletes_an_object_whose_commit_then_succeeds(scene: Scene) -> None:
    """Why there is a rule of our own: this loses acknowledged records (invariant F1)."""
    key = await drained_scene(scene)
    await LiteralScan(scene, SETTINGS.orphan_scan_grace_ms).scan_once()
    (partition,) = [*scene.cluster.benches[0].coordinator.replica.image.partitions]
    (answer,) = await scene.cluster.benches[0].coordinator.commit_file(
        scene.cluster.file(partition, key, 0)
    )
    assert answer.error is None
    assert await scene.store.keys() == []


@pytest.mark.parametrize("stalled_s", [0, 3600, 2 * OLD_S])
async def test_ours_never_deletes_what_is_committed_afterwards(
    scene: Scene, stalled_s: float
) -> None:
    """A commit that was stalled for an hour is refused, and its object goes in the end."""
    key = await drained_scene(scene)
    (partition,) = [*scene.cluster.benches[0].coordinator.replica.image.partitions]
    for _ in range(4):
        scene.advance(stalled_s / 4)
        await scene.scanner().scan_once()
    is_committed = False
    with suppress(ObjectExpired):
        (answer,) = await scene.cluster.benches[0].coordinator.commit_file(
            scene.cluster.file(partition, key, 0)
        )
        is_committed = answer.error is None
    assert is_committed == (stalled_s == 0)
    assert is_committed <= (key in await scene.store.keys())
    scene.advance(OLD_S)
    await scene.scanner().scan_once()
    assert (key in await scene.store.keys()) == is_committed


async def test_a_commit_that_is_accepted_against_all_clocks_keeps_its_object(scene: Scene) -> None:
    """The coordinator's clock is a day behind, so it finds nothing wrong with an old key."""
    partitions = await scene.cluster.partitions()
    key = await scene.upload()
    clock = scene.cluster.clock
    scene.advance(OLD_S)
    request = scene.cluster.file(partitions[1], key, 0, 1)
    outcomes: list[str] = []

    async def commit_in_between(coordinator: int, keys: Sequence[ObjectKey]) -> Sequence[Tombstone]:
        if coordinator == 1 and not outcomes:
            clock.step_wall(-OLD_S)
            (answer,) = await scene.cluster.benches[1].coordinator.commit_file(request)
            outcomes.append("committed" if answer.error is None else "refused")
            clock.step_wall(OLD_S)
        return await tombstone(coordinator, keys)

    tombstone = scene.cluster.tombstone_files
    scene.cluster.tombstone_files = commit_in_between  # type: ignore[method-assign]
    await scene.scan.scan_once()
    assert outcomes == ["committed"]
    assert await scene.store.keys() == [key]
    # The other way round: what was given up stays refused, whatever the clock says.
    orphan = await scene.upload()
    scene.advance(OLD_S)
    await scene.scanner().scan_once()
    clock.step_wall(-OLD_S)
    for index, partition in enumerate(partitions):
        with pytest.raises(ObjectExpired):
            await scene.cluster.benches[index].coordinator.commit_file(
                scene.cluster.file(partition, orphan, 0, 1)
            )


async def test_objects_that_are_older_than_the_metadata_are_kept_to_rebuild_from(
    tmp_path: Path,
) -> None:
    """Metadata that was lost knows nothing of a bucket full of data."""
    clock = ManualClock()
    store = TroubledStore(clock)
    rng = random.Random(1)
    keys = []
    for _ in range(5):
        keys.append(wal_object_key(mint_ulid(clock, rng)))
        await store.put(keys[-1], BytesBody(b"batches"))
        clock.advance(1)
    async with running_cluster(tmp_path, 2, store, clock=clock) as cluster:
        scene = Scene(cluster, store, clock)
        orphan = await scene.upload()
        clock.advance(OLD_S)
        await scene.scan.scan_once()
        assert sorted(await store.keys()) == sorted(keys)
        assert orphan not in keys
        assert scene.scan.deferred == len(keys)
        handed = HandedFile(
            object_key=keys[0], object_format=1, file_size_bytes=7, owner_ids=(0, 1)
        )
        (refused,) = await cluster.hand_over_files(1, [handed])
        assert isinstance(refused, InvalidRequest)


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["orphan.after_tombstones", "orphan.after_delete"])
async def test_a_scanner_that_dies_half_way_is_finished_by_the_next(
    scene: Scene, point: str
) -> None:
    keys = [await scene.upload() for _ in range(5)]
    scene.advance(OLD_S)
    arm(f"{point}=raise")
    with pytest.raises(FailpointError):
        await scene.scan.scan_once()
    arm("")
    left = await scene.store.keys()
    assert set(left) <= set(keys)
    scan = scene.scanner(2)
    await scan.scan_once()
    assert await scene.store.keys() == []
    assert scan.orphans_deleted == len(left)


async def test_what_the_store_refuses_to_delete_is_found_again(scene: Scene) -> None:
    keys = [await scene.upload() for _ in range(4)]
    scene.advance(OLD_S)
    scene.store.kept = set(keys[:2])
    await scene.scan.scan_once()
    assert sorted(await scene.store.keys()) == sorted(keys[:2])
    assert (scene.scan.tombstoned, scene.scan.orphans_deleted) == (4, 2)
    scene.store.kept = set()
    await scene.cluster.work()  # the tombstones are old, and go
    scene.advance(60)
    await scene.scan.scan_once()
    assert await scene.store.keys() == []


async def test_an_object_that_comes_back_after_its_deletion_is_found_again(scene: Scene) -> None:
    """A put that everybody had given up lands after all; its tombstones are forgotten by then."""
    key = await scene.upload()
    scene.advance(OLD_S)
    await scene.scan.scan_once()
    scene.advance(GRACE_S)
    await scene.cluster.work()
    assert [await scene.cluster.rows(index) for index in (0, 1)] == [[], []]
    await scene.upload(key)
    await scene.scan.scan_once()
    assert await scene.store.keys() == [key], "the store says that it is new"
    scene.advance(OLD_S)
    await scene.scanner().scan_once()
    assert await scene.store.keys() == []
    scene.cluster.clock.step_wall(-2 * OLD_S)
    for bench in scene.cluster.benches.values():
        with pytest.raises(ObjectExpired):
            await bench.coordinator.commit_file(bench.file(key=key))


async def test_two_scanners_at_once_do_what_one_does(scene: Scene) -> None:
    partitions = await scene.cluster.partitions()
    kept = await scene.upload()
    await scene.cluster.benches[0].coordinator.commit_file(
        scene.cluster.file(partitions[0], kept, 0, 1)
    )
    for _ in range(10):
        await scene.upload()
    scene.advance(OLD_S)
    await asyncio.gather(*(scene.scanner(seed).scan_once() for seed in range(3)))
    assert await scene.store.keys() == [kept]


async def test_a_shard_that_cannot_be_listed_does_not_stop_the_others(scene: Scene) -> None:
    for _ in range(20):
        await scene.upload()
    scene.advance(OLD_S)
    scene.store.lists_fail = 100
    scene.store.deletes_fail = 5
    pauses: list[float] = []

    async def sleep(delay: float) -> None:
        pauses.append(delay)
        await asyncio.sleep(0)
        if not any(key.startswith("wal/") for key in await scene.store.keys()):
            raise asyncio.CancelledError

    scan = scene.scanner(sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await scan.run()
    longest = SETTINGS.orphan_scan_interval_ms / 1000 / WAL_SHARDS
    assert 100 < max(pauses) <= 300, "it does not back off"
    assert pauses[0] <= longest
    assert scan.orphans_deleted >= 20


async def test_a_truncated_listing_only_delays(scene: Scene) -> None:
    keys = [await scene.upload() for _ in range(6)]
    scene.advance(OLD_S)
    whole = scene.store.list

    async def half(prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        stats = [stat async for stat in whole(prefix, start_after)]
        for stat in stats[: len(stats) // 2]:
            yield stat

    scene.store.list = half  # type: ignore[method-assign]
    await scene.scan.scan_once()
    assert set(await scene.store.keys()) <= set(keys)
    scene.store.list = whole  # type: ignore[method-assign]
    await scene.scan.scan_once()
    assert await scene.store.keys() == []


# --- progress ------------------------------------------------------------------------------------


async def test_every_page_is_reached_by_scanners_that_do_not_live_long(scene: Scene) -> None:
    """One shard of many pages, all in use but one; each scanner dies at its third listing."""
    clock, cluster = scene.cluster.clock, scene.cluster
    partitions = await cluster.partitions()
    keys: list[ObjectKey] = []
    while len(keys) < 40:
        clock.advance(1)
        scene.store_clock.advance(1)
        ulid = mint_ulid(clock, scene.rng)
        key = wal_object_key(f"{ulid[:-2]}00")
        await scene.upload(key)
        keys.append(key)
    orphan = keys.pop(31)
    for key in keys:
        await cluster.benches[0].coordinator.commit_file(cluster.file(partitions[0], key, 0))
    scene.advance(OLD_S)
    lives = 0
    while orphan in await scene.store.keys():
        lives += 1
        assert lives < 500, "the orphan is never reached"
        scene.store.lists_until_killed = 2 + (lives == 1)
        with suppress(ObjectStoreUnavailable):
            await scene.scanner(lives).scan_shard(0)
    scene.store.lists_until_killed = -1
    assert sorted(await scene.store.keys()) == keys


async def test_a_round_spends_nothing_on_young_objects(scene: Scene) -> None:
    for _ in range(300):
        await scene.upload()
    scene.advance(OLD_S - 60)
    await scene.scan.scan_once()
    assert len(scene.store.listed) == WAL_SHARDS + 1  # and staged/
    assert scene.store.statistics().puts == 300, "the store's clock was asked for nothing"
    assert scene.cluster.calls == []


async def test_the_next_round_begins_where_nobody_knows(scene: Scene) -> None:
    orders = set()
    for seed in range(5):
        scene.store.listed.clear()
        await scene.scanner(seed).scan_once()
        assert scene.store.listed.pop() == "staged/"
        assert sorted(scene.store.listed) == [f"wal/{shard:02x}/" for shard in range(WAL_SHARDS)]
        orders.add(tuple(scene.store.listed))
    assert len(orders) == 5


async def test_it_scans_a_directory_as_well(tmp_path: Path) -> None:
    """The file store takes the time from the file system."""
    clock = ManualClock(now_ms=1_704_067_200_000)
    settings = CoordinatorSettings(
        max_commit_age_ms=1_000, clock_skew_max_ms=0, orphan_scan_grace_ms=0
    )
    async with (
        FileStore(tmp_path / "bucket", clock=clock, rng=random.Random(1)) as store,
        running_cluster(tmp_path, 1, store, clock=clock) as cluster,
    ):
        key = cluster.benches[0].key()  # minted in 2024
        await store.put(key, BytesBody(b"x"))
        clock.step_wall(20 * 365 * 86_400)

        async def coordinator_ids() -> Sequence[int]:
            return (0,)

        scan = OrphanScan(
            store,
            cluster,
            coordinator_ids,
            settings=settings,
            clock=clock,
            rng=random.Random(1),
            notes=NoteKeeper(store, clock=clock, rng=random.Random(1)),
        )
        await scan.scan_once()
        assert [stat.key async for stat in store.list("")] == [key], "it was put just now"


# --- staged objects ------------------------------------------------------------------------------

STAGED_OLD_S = (SETTINGS.sink_stage_max_age_ms + SETTINGS.clock_skew_max_ms) / 1000


def staged(scene: Scene, sink_id: str) -> ObjectKey:
    return staged_key(sink_id, mint_ulid(scene.cluster.clock, scene.rng))


async def test_staged_objects_that_nobody_committed_go_by_their_own_age(scene: Scene) -> None:
    bench = scene.cluster.benches[0]
    (partition, *_) = await scene.cluster.partitions()
    old = [await scene.upload(staged(scene, name)) for name in ("a", "a", "a", "b", "b-c")]
    committed = await scene.upload(staged(scene, "a"))
    file = scene.cluster.file(partition, committed)
    await bench.coordinator.sinks.commit(CommitSink("a", "User:u", 0, bytes(16), [file]))
    foreign = await scene.upload(ObjectKey("staged/b/not-ours"))
    scene.advance(STAGED_OLD_S - 60)
    await scene.scan.scan_once()
    assert {*old} <= {*await scene.store.keys()}
    young = [await scene.upload(staged(scene, name)) for name in ("a", "b")]
    scene.advance(120)
    await scene.scan.scan_once()
    left = {key for key in await scene.store.keys() if key.startswith("staged/")}
    assert left == {committed, foreign, *young}
    late = file_of(file, old[0])
    with pytest.raises(Rejected, match="given up"):
        await bench.coordinator.sinks.commit(CommitSink("a", "User:u", 1, bytes(16), [late]))


async def test_a_staged_object_is_tombstoned_before_it_is_deleted(scene: Scene) -> None:
    """A commit between the two is refused: planted is a scan that was killed in between."""
    bench = scene.cluster.benches[0]
    (partition, *_) = await scene.cluster.partitions()
    key = await scene.upload(staged(scene, "a"))
    scene.advance(STAGED_OLD_S + 60)
    arm("orphan.after_tombstones=raise")
    with pytest.raises(FailpointError):
        await scene.scan.scan_once()
    arm("")
    assert key in await scene.store.keys()
    file = scene.cluster.file(partition, key)
    with pytest.raises(Rejected, match="given up"):
        await bench.coordinator.sinks.commit(CommitSink("a", "User:u", 0, bytes(16), [file]))


def file_of(file: CommitFile, key: ObjectKey) -> CommitFile:
    return replace(file, object_key=key)
