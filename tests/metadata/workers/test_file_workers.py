"""Files without live batches: deleted or handed over, after the grace, by one owner, for ever."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from metadata.operations import CommitFile, DescribedFile, HandedFile, PlanSegments, Tombstone
from metadata.rules.files import permuted_owners
from metadata.state.speculative import FileStanding
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from tests.support.coordinators.coordinator_bench import batch, rolled
from tests.support.coordinators.file_cluster import (
    COMMIT_AGE_S,
    GRACE_S,
    SETTINGS,
    Cluster,
    DeletingStore,
    dead_file,
    drain,
    running_cluster,
)
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CommitFailed, DisklessError, ObjectExpired, UnknownFile
from wal.failpoint import FailpointError, arm
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody
from wal.ulid import mint_ulid, wal_object_key


@pytest.fixture
def store() -> DeletingStore:
    return DeletingStore()


@pytest.fixture
async def alone(tmp_path: Path, store: DeletingStore) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, 1, store) as cluster:
        yield cluster


@pytest.fixture
async def three(tmp_path: Path, store: DeletingStore) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, 3, store) as cluster:
        yield cluster


def empty_file(key: ObjectKey, *owners: int) -> CommitFile:
    """A file that nobody has live batches in, from the beginning."""
    return CommitFile(
        object_key=key, file_size_bytes=9, uploader_broker_id=0, batches=(), owner_ids=owners
    )


# --- deleting ------------------------------------------------------------------------------------


async def test_an_object_is_deleted_after_the_grace_and_not_before(
    alone: Cluster, store: DeletingStore
) -> None:
    bench = alone.benches[0]
    partition = await bench.partition()
    request = bench.file(batch(partition, 5))
    await bench.coordinator.commit_file(request)
    alone.clock.advance(100)
    await alone.work()
    await drain(alone, 0, partition)
    alone.clock.advance(60)
    await alone.work()
    assert store.deleted == []
    alone.clock.advance(0.001)
    await alone.work()
    assert store.deleted == [request.object_key]
    await alone.work()
    assert store.deleted == [request.object_key]
    assert alone.workers[0].objects_deleted == 1


async def test_a_wall_clock_that_jumps_ahead_ends_no_grace(
    alone: Cluster, store: DeletingStore
) -> None:
    bench = alone.benches[0]
    partition = await bench.partition()
    request = bench.file(batch(partition, 5))
    await bench.coordinator.commit_file(request)
    await drain(alone, 0, partition)
    alone.clock.step_wall(86_400)
    await alone.work()
    assert store.deleted == []
    alone.clock.advance(GRACE_S + 0.001)
    await alone.work()
    assert store.deleted == [request.object_key]


async def test_the_answer_outlives_the_object_until_its_key_is_too_old(
    alone: Cluster, store: DeletingStore
) -> None:
    bench = alone.benches[0]
    partition = await bench.partition()
    request = bench.file(batch(partition, 5))
    first = await bench.coordinator.commit_file(request)
    await drain(alone, 0, partition)
    alone.clock.advance(GRACE_S)
    await alone.work()
    assert store.deleted == [request.object_key]
    assert alone.forgotten() == []
    assert await bench.coordinator.commit_file(request) == first
    alone.clock.advance(COMMIT_AGE_S)
    await alone.work()
    # Once more: a chunk that was recovered meanwhile may have uploaded it again.
    assert store.deleted == [request.object_key] * 2
    assert alone.forgotten() == [request.object_key]
    alone.clock.step_wall(-15 * 60)
    with pytest.raises(ObjectExpired):
        await bench.coordinator.commit_file(request)
    assert bench.coordinator.replica.high_watermark(partition) == 5


async def test_a_segment_is_forgotten_at_once(alone: Cluster, store: DeletingStore) -> None:
    bench = alone.benches[0]
    partition = await bench.partition()
    await bench.commit(batch(partition, 5))
    (plan,) = await bench.coordinator.plan_segments(PlanSegments(include_partial=True))
    await bench.coordinator.commit_segments([rolled(plan)])
    await bench.coordinator.delete_topics([partition.topic_id])
    alone.clock.advance(GRACE_S)
    await alone.work()
    assert plan.object_key in store.deleted
    assert alone.forgotten() == [plan.object_key]


async def test_what_the_store_does_not_confirm_is_neither_forgotten_nor_in_the_way(
    alone: Cluster, store: DeletingStore
) -> None:
    keys = [await dead_file(alone) for _ in range(8)]
    store.stubborn = set(keys[:3])  # a whole pass of them
    alone.clock.advance(20 * 60)
    workers = alone.workers[0]
    assert [await workers.delete_once() for _ in range(3)] == [True, True, False]
    assert sorted(alone.forgotten()) == sorted(keys[3:])
    store.stubborn = set()
    assert await workers.delete_once()
    assert sorted(alone.forgotten()) == sorted(keys)
    assert await alone.rows(0) == []


async def test_they_go_on_after_an_outage_of_the_store(
    alone: Cluster, store: DeletingStore
) -> None:
    keys = [await dead_file(alone) for _ in range(5)]
    alone.clock.advance(GRACE_S)
    pauses: list[float] = []
    over = asyncio.Event()
    store.is_away = True

    async def sleep(delay: float) -> None:
        pauses.append(delay)
        if len(pauses) == 20:
            store.is_away = False
        if len(store.deleted) == 5:
            over.set()
        await asyncio.sleep(0)

    workers = FileWorkers(
        alone.benches[0].coordinator,
        store,  # type: ignore[arg-type]
        alone,
        coordinator_id=0,
        settings=SETTINGS,
        clock=alone.clock,
        rng=random.Random(1),
        notes=NoteKeeper(store, clock=alone.clock, rng=random.Random(2)),  # type: ignore[arg-type]
        sleep=sleep,
    )
    task = asyncio.create_task(workers.run())
    await over.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert max(pauses) > 4, "it does not back off"
    assert sorted(store.deleted) == sorted(keys)
    assert workers.objects_deleted == 5
    assert workers.last_success_age_s == 0


async def test_restarted_workers_finish_what_was_begun(
    tmp_path: Path, store: DeletingStore
) -> None:
    async with running_cluster(tmp_path, 1, store) as cluster:
        key = await dead_file(cluster)
        cluster.clock.advance(GRACE_S)
        await cluster.work()
        clock, logs = cluster.clock, cluster.logs
    clock.advance(COMMIT_AGE_S)
    async with running_cluster(tmp_path, 1, store, logs=logs, clock=clock) as cluster:
        await cluster.work()
        assert cluster.forgotten() == [key]
    assert store.deleted == [key] * 2


async def test_a_file_is_forgotten_once_however_often_that_is_asked(alone: Cluster) -> None:
    keys = [await dead_file(alone) for _ in range(2)]
    coordinator = alone.benches[0].coordinator
    await asyncio.gather(*(coordinator.forget_files(keys) for _ in range(3)))
    await coordinator.forget_files([*keys, alone.benches[0].key()])
    assert alone.forgotten() == keys


# --- owners --------------------------------------------------------------------------------------


def test_owners_are_permuted_as_the_key_says() -> None:
    clock, rng = ManualClock(), random.Random(1)
    keys = [wal_object_key(mint_ulid(clock, rng)) for _ in range(200)]
    lists = [permuted_owners(key, [2, 0, 1, 0, 2]) for key in keys]
    assert all(sorted(owners) == [0, 1, 2] for owners in lists)
    assert len(set(lists)) == 6
    for key, owners in zip(keys, lists, strict=True):
        for left_out in owners:
            shorter = permuted_owners(key, {*owners} - {left_out})
            assert shorter == tuple(owner for owner in owners if owner != left_out)


async def committed_by_three(cluster: Cluster) -> tuple[ObjectKey, list[TopicIdPartition]]:
    """A file with live batches at three coordinators, which own it in the order 2, 0, 1."""
    partitions = await cluster.partitions()
    key = cluster.benches[0].key()
    for index, partition in enumerate(partitions):
        await cluster.benches[index].coordinator.commit_file(cluster.file(partition, key, 2, 0, 1))
    return key, partitions


async def test_a_file_goes_from_owner_to_owner_and_the_last_one_deletes_it(
    three: Cluster, store: DeletingStore
) -> None:
    key, partitions = await committed_by_three(three)
    for index in (1, 2, 0):  # not in the order of the owners
        three.clock.advance(GRACE_S)
        await three.work()
        assert store.deleted == []
        await drain(three, index, partitions[index])
    three.clock.advance(GRACE_S)
    for _ in range(3):
        await three.work()
    assert store.deleted == [key]
    assert three.workers[2].handed_over == three.workers[0].handed_over == 1
    assert three.workers[1].objects_deleted == 1
    three.clock.advance(COMMIT_AGE_S)
    await three.work()
    assert [three.forgotten(index) for index in range(3)] == [[key]] * 3
    assert store.deleted == [key] * 2


async def test_a_file_is_kept_while_any_of_its_owners_has_live_batches(
    three: Cluster, store: DeletingStore
) -> None:
    key, partitions = await committed_by_three(three)
    await drain(three, 2, partitions[2])
    await drain(three, 1, partitions[1])
    for _ in range(5):
        three.clock.advance(COMMIT_AGE_S)
        await three.work()
    assert store.deleted == []
    assert three.forgotten(2) == [key]
    (waiting,) = await three.rows(1)
    assert not waiting.is_owner
    (described,) = await three.benches[0].coordinator.describe_files([key])
    assert described == DescribedFile(has_live_batches=True)
    assert ("tombstone", 2) not in three.calls


async def test_a_handover_is_sent_once_while_its_answer_is_remembered(three: Cluster) -> None:
    _, partitions = await committed_by_three(three)
    await drain(three, 2, partitions[2])
    three.clock.advance(GRACE_S)
    for _ in range(3):
        await three.work()
    assert three.calls.count(("hand over", 0)) == 1
    three.restart_workers()
    offset = three.logs[0].end_offset
    await three.work()
    assert three.calls.count(("hand over", 0)) == 2
    assert three.logs[0].end_offset == offset, "the second one changed something"


async def test_an_owner_that_is_away_is_tried_for_ever_and_delays_no_other_file(
    three: Cluster, store: DeletingStore
) -> None:
    key, partitions = await committed_by_three(three)
    for index, partition in enumerate(partitions):
        await drain(three, index, partition)
    other = three.benches[2].key()
    await three.benches[2].coordinator.commit_file(empty_file(other, 2))
    three.absent = {0}
    three.clock.advance(GRACE_S)
    for _ in range(50):
        await three.work()
    assert store.deleted == [other]
    assert three.calls.count(("hand over", 0)) == 1, "it is asked without a pause"
    for _ in range(12):
        three.clock.advance(200)
        await three.work()
    assert 5 < three.calls.count(("hand over", 0)) < 13
    three.absent = set()
    three.clock.advance(300)
    for _ in range(3):
        await three.work()
    assert key in store.deleted


async def test_a_refused_file_stays_with_its_owner_and_the_others_go(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [three.benches[0].key() for _ in range(2)]
    for key in keys:
        await three.benches[0].coordinator.commit_file(empty_file(key, 0, 1))
    hand_over = three.hand_over_files

    async def refuse_first(
        coordinator: int, files: Sequence[HandedFile]
    ) -> Sequence[DisklessError | None]:
        taken = [file for file in files if file.object_key != keys[0]]
        await hand_over(coordinator, taken)
        return [None if file in taken else CommitFailed("no") for file in files]

    monkeypatch.setattr(three, "hand_over_files", refuse_first)
    three.clock.advance(GRACE_S)
    await three.work()
    assert three.workers[0].handed_over == 1
    monkeypatch.undo()
    await three.work()
    assert three.workers[0].handed_over == 2


async def test_a_file_whose_batches_were_all_refused_is_handed_over_at_once(
    three: Cluster, store: DeletingStore
) -> None:
    key = three.benches[0].key()
    gone = TopicIdPartition((await three.partitions())[1].topic_id, 9)
    for index in (0, 1):
        (answer,) = await three.benches[index].coordinator.commit_file(three.file(gone, key, 0, 1))
        assert answer.error is not None
    three.clock.advance(GRACE_S)
    await three.work()
    assert store.deleted == [key]


# --- a file that one of its owners never committed -----------------------------------------------


async def test_a_handover_before_the_commit_waits_for_it(
    three: Cluster, store: DeletingStore
) -> None:
    partitions = await three.partitions()
    key = three.benches[0].key()
    await three.benches[0].coordinator.commit_file(three.file(partitions[0], key, 0, 1))
    await drain(three, 0, partitions[0])
    three.clock.advance(GRACE_S)
    await three.work()
    (row,) = await three.rows(1)
    assert (row.standing, row.is_owner) == (FileStanding.HANDED_OVER, True)
    three.clock.advance(GRACE_S)
    await three.work()
    assert store.deleted == []
    coordinator = three.benches[1].coordinator
    request = three.file(partitions[1], key, 0, 1)
    first = await coordinator.commit_file(request)
    assert first[0].error is None
    assert await coordinator.commit_file(request) == first
    three.clock.advance(COMMIT_AGE_S)
    await three.work()
    assert store.deleted == []
    await drain(three, 1, partitions[1])
    three.clock.advance(GRACE_S)
    await three.work()
    assert store.deleted == [key], "the right to delete it was lost with the commit"


async def test_a_handover_of_what_is_never_committed_is_passed_on_when_it_is_too_old(
    three: Cluster, store: DeletingStore
) -> None:
    key, partitions = three.benches[0].key(), await three.partitions()
    for index in (0, 2):
        await three.benches[index].coordinator.commit_file(
            three.file(partitions[index], key, 0, 1, 2)
        )
        await drain(three, index, partitions[index])
    three.clock.advance(COMMIT_AGE_S)
    await three.work()
    three.clock.advance(GRACE_S)
    await three.workers[1].delete_once()
    assert three.workers[1].tombstoned == 1
    # The clock of the one who was to commit it is set back: still nobody can.
    three.clock.step_wall(-COMMIT_AGE_S)
    with pytest.raises(ObjectExpired):
        await three.benches[1].coordinator.commit_file(three.file(partitions[1], key, 0, 1, 2))
    three.clock.step_wall(COMMIT_AGE_S)
    await three.settle()
    assert set(store.deleted) == {key}
    assert [three.forgotten(index) for index in range(3)] == [[key]] * 3
    assert [await three.rows(index) for index in range(3)] == [[]] * 3


async def test_a_file_whose_first_owner_never_heard_of_it_is_taken_over(
    three: Cluster, store: DeletingStore
) -> None:
    key, partitions = three.benches[0].key(), await three.partitions()
    request = three.file(partitions[1], key, 2, 0, 1)
    await three.benches[1].coordinator.commit_file(request)
    await drain(three, 1, partitions[1])
    three.clock.advance(GRACE_S)
    await three.work()
    assert three.calls == [], "its commit there may be on its way"
    three.clock.advance(COMMIT_AGE_S)
    three.absent = {0}
    await three.work()
    assert store.deleted == []
    three.absent = set()
    await three.work()
    await three.workers[1].delete_once()
    assert three.workers[1].taken_over == 1
    assert set(store.deleted) == {key}
    three.clock.step_wall(-COMMIT_AGE_S)
    for index in (0, 2):
        with pytest.raises(ObjectExpired):
            await three.benches[index].coordinator.commit_file(
                three.file(partitions[index], key, 2, 0, 1)
            )
    three.clock.step_wall(COMMIT_AGE_S)
    await three.settle()
    assert [three.forgotten(index) for index in range(3)] == [[key]] * 3


async def test_an_earlier_owner_that_commits_while_it_is_asked_keeps_the_file(
    three: Cluster, store: DeletingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock is behind, so it accepts what everybody else thinks is too old."""
    key, partitions = three.benches[0].key(), await three.partitions()
    await three.benches[1].coordinator.commit_file(three.file(partitions[1], key, 0, 1))
    await drain(three, 1, partitions[1])
    three.clock.advance(COMMIT_AGE_S)
    describe = three.describe_files

    async def commit_after_the_answer(
        keys: Sequence[ObjectKey], *, coordinator: int | None = None
    ) -> Sequence[DescribedFile]:
        answers = await describe(keys, coordinator=coordinator)
        assert isinstance(answers[0].error, UnknownFile)
        three.clock.step_wall(-COMMIT_AGE_S)
        (commit,) = await three.benches[0].coordinator.commit_file(
            three.file(partitions[0], key, 0, 1)
        )
        assert commit.error is None
        three.clock.step_wall(COMMIT_AGE_S)
        return answers

    monkeypatch.setattr(three, "describe_files", commit_after_the_answer)
    await three.workers[1].take_over_once()
    monkeypatch.undo()
    assert three.workers[1].taken_over == 0
    for _ in range(3):
        await three.work()
    assert store.deleted == []


async def test_a_tombstone_deletes_nothing_and_is_forgotten(
    three: Cluster, store: DeletingStore
) -> None:
    """The scan asked us before it found out that another coordinator has live batches in it."""
    key, partitions = three.benches[0].key(), await three.partitions()
    await three.benches[1].coordinator.commit_file(three.file(partitions[1], key, 1, 0))
    assert await three.benches[0].coordinator.tombstone_files([key]) == [Tombstone()]
    three.clock.advance(COMMIT_AGE_S)
    await three.work()
    assert store.deleted == []
    assert three.forgotten(0) == [key]
    three.clock.step_wall(-COMMIT_AGE_S)
    with pytest.raises(ObjectExpired):
        await three.benches[0].coordinator.commit_file(three.file(partitions[0], key, 1, 0))


async def test_what_is_handed_over_to_a_tombstone_goes_on_at_once(
    three: Cluster, store: DeletingStore
) -> None:
    key, partitions = three.benches[0].key(), await three.partitions()
    await three.benches[1].coordinator.commit_file(three.file(partitions[1], key, 1, 0, 2))
    await three.benches[0].coordinator.tombstone_files([key])
    await drain(three, 1, partitions[1])
    three.clock.advance(GRACE_S)
    await three.work()
    (row,) = await three.rows(0)
    assert (row.standing, row.owner_ids) == (FileStanding.SEALED, (1, 0, 2))
    assert await three.benches[0].coordinator.tombstone_files([key]) == [Tombstone(is_known=True)]
    await three.benches[0].coordinator.forget_files([key], tombstones=True)
    assert await three.rows(0) == [row], "an obligation was forgotten with its tombstone"
    with pytest.raises(ObjectExpired):
        await three.benches[0].coordinator.commit_file(three.file(partitions[0], key, 1, 0, 2))
    three.clock.advance(COMMIT_AGE_S)
    await three.settle()
    assert set(store.deleted) == {key}


# --- crashes -------------------------------------------------------------------------------------


@pytest.fixture
def disarmed() -> AsyncIterator[None]:  # type: ignore[misc]
    yield  # type: ignore[misc]
    arm("")


@pytest.mark.usefixtures("disarmed")
@pytest.mark.parametrize(
    "point",
    [
        "handover.before_send",
        "handover.after_ack",
        "delete.before_object",
        "delete.after_object",
        "forget.after_log",
        "seal.after_log",
        "takeover.after_tombstones",
        "takeover.after_log",
    ],
)
async def test_a_crash_anywhere_changes_nothing_in_the_end(tmp_path: Path, point: str) -> None:
    store = DeletingStore()
    async with running_cluster(tmp_path, 3, store) as cluster:
        partitions = await cluster.partitions()
        keys = [cluster.benches[0].key() for _ in range(3)]
        # Committed by all of them; by all but the second owner; by all but the first one.
        for key, committers in zip(keys, ((0, 1, 2), (0, 2), (1, 2)), strict=True):
            for index in committers:
                await cluster.benches[index].coordinator.commit_file(
                    cluster.file(partitions[index], key, 0, 1, 2)
                )
        for index, partition in enumerate(partitions):
            await drain(cluster, index, partition)
        cluster.clock.advance(COMMIT_AGE_S)
        arm(f"{point}=raise")
        crashes = 0
        for _ in range(12):
            cluster.clock.advance(GRACE_S)
            try:
                await cluster.work()
            except (FailpointError, ExceptionGroup):
                crashes += 1
                cluster.restart_workers()
        clock, logs = cluster.clock, cluster.logs
        assert crashes == 1
        assert set(store.deleted) == set(keys)
        assert [sorted(set(cluster.forgotten(index))) for index in range(3)] == [sorted(keys)] * 3
    # A replay from zero comes to the same end.
    for index in range(3):
        (tmp_path / str(index) / "state.sqlite").unlink()
    async with running_cluster(tmp_path, 3, store, logs=logs, clock=clock) as cluster:
        assert [await cluster.rows(index) for index in range(3)] == [[]] * 3


async def test_a_resurrected_object_is_deleted_again_before_it_is_forgotten(
    alone: Cluster,
) -> None:
    objects = MemoryStore(clock=alone.clock)
    alone.store = objects
    alone.restart_workers()
    key = await dead_file(alone)
    await objects.put(key, BytesBody(b"x"))
    alone.clock.advance(GRACE_S)
    await alone.work()
    await objects.put(key, BytesBody(b"x"))
    alone.clock.advance(COMMIT_AGE_S)
    await alone.work()
    assert [stat async for stat in objects.list("")] == []
    assert alone.forgotten() == [key]
