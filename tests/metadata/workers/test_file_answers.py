"""What a coordinator answers about files: whether they are live, tombstones, hand-overs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.operations import DescribedFile, HandedFile, Tombstone
from tests.support.coordinators.coordinator_bench import batch
from tests.support.coordinators.file_cluster import (
    Cluster,
    DeletingStore,
    dead_file,
    running_cluster,
)
from wal.coordinates import ObjectKey
from wal.errors import CommitFailed, InvalidRequest, ObjectExpired, UnknownFile


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, 1, DeletingStore()) as cluster:
        yield cluster


async def test_describing_says_live_dead_or_unknown(alone: Cluster) -> None:
    bench = alone.benches[0]
    partition = await bench.partition()
    live = bench.file(batch(partition, 5))
    await bench.coordinator.commit_file(live)
    dead, unknown, tombstoned = await dead_file(alone), bench.key(), bench.key()
    await bench.coordinator.tombstone_files([tombstoned])
    answers = await bench.coordinator.describe_files([unknown, live.object_key, dead, tombstoned])
    assert answers[1:3] == [DescribedFile(has_live_batches=True), DescribedFile()]
    assert all(isinstance(answers[index].error, UnknownFile) for index in (0, 3))


async def test_commits_and_tombstones_of_one_key_exclude_each_other(alone: Cluster) -> None:
    bench = alone.benches[0]
    partition = await bench.partition()
    for first in ("commit", "tombstone"):
        request = bench.file(batch(partition, 1))
        operations = [
            bench.coordinator.commit_file(request),
            bench.coordinator.tombstone_files([request.object_key]),
        ]
        if first == "tombstone":
            operations.reverse()
        outcomes = await asyncio.gather(*operations, return_exceptions=True)
        if first == "commit":
            assert outcomes[1] == [Tombstone(is_known=True)]
        else:
            assert outcomes[0] == [Tombstone()]
            assert isinstance(outcomes[1], ObjectExpired)


async def test_tombstones_are_logged_once(alone: Cluster) -> None:
    bench = alone.benches[0]
    keys = [bench.key() for _ in range(3)]
    coordinator = bench.coordinator
    first, again = await asyncio.gather(
        coordinator.tombstone_files([*keys, keys[0]]), coordinator.tombstone_files(keys)
    )
    assert first == [Tombstone()] * 4
    assert again == [Tombstone()] * 3
    assert alone.logs[0].end_offset == 2
    (refused,) = await coordinator.tombstone_files([ObjectKey("wal/../x")])
    assert isinstance(refused.error, InvalidRequest)


async def test_what_is_not_for_this_coordinator_is_not_taken(alone: Cluster) -> None:
    key = alone.benches[0].key()

    def handed(**fields: object) -> HandedFile:
        given: dict[str, object] = {
            "object_key": key,
            "object_format": 1,
            "file_size_bytes": 9,
            "owner_ids": (1, 0),
        }
        return HandedFile(**(given | fields))  # type: ignore[arg-type]

    answers = await alone.benches[0].coordinator.hand_over_files(
        [
            handed(owner_ids=(1, 2)),
            handed(object_key=ObjectKey("wal/nothing")),
            handed(object_format=2),
            handed(),
        ]
    )
    assert [isinstance(answer, InvalidRequest) for answer in answers] == [True, True, True, False]
    assert answers[3] is None


async def test_a_failed_append_leaves_no_tombstone_behind(alone: Cluster) -> None:
    bench = alone.benches[0]
    partition = await bench.partition()
    request = bench.file(batch(partition, 1))
    alone.logs[0].failures.append(CommitFailed("no"))
    with pytest.raises(CommitFailed):
        await bench.coordinator.tombstone_files([request.object_key])
    (answer,) = await bench.coordinator.commit_file(request)
    assert answer.error is None
