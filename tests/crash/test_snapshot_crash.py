"""SIGKILL at the named points of taking, keeping, pruning and restoring: the state comes back."""

import asyncio
import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

import pytest

from metadata.log.local_log import LocalLogSettings, LocalMetadataLog
from metadata.log.log import MetadataRecordBatch
from metadata.replica.snapshots import SnapshotStatus
from metadata.state.state import STATE_FILE
from tests.support.logs.snapshot_bench import (
    PrunableLog,
    following,
    keeper_of,
    opened,
    recorded_batches,
    snapshots_in,
)
from wal.clock import ManualClock
from wal.failpoint import arm
from wal.stores.file_store import FileStore

FILES = 24
RETAINED = 2
SNAPSHOT_EVERY = 5
LOG = LocalLogSettings(segment_bytes=4 << 10)

pytestmark = pytest.mark.crash


async def work(directory: Path, batches: Sequence[MetadataRecordBatch], seed: int) -> int:
    """Append the recorded batches from where an earlier process was; returns the state hash.

    Every few batches a snapshot is taken, older ones deleted, the log pruned. Then the local state
    is deleted, and the process starts once more, from a snapshot.
    """
    log = await LocalMetadataLog.open(directory / "log", rng=random.Random(seed), settings=LOG)
    store = FileStore(
        directory / "objects", clock=ManualClock(), rng=random.Random(seed), sync=False
    )
    try:
        async with store:
            snapshots = snapshots_in(store)
            async with opened(directory / "state", log, snapshots) as state:
                keeper = keeper_of(state, snapshots, seed=seed, retained_max=RETAINED)
                await keeper.maintain_once()
                for number, batch in enumerate(batches):
                    if batch.base_offset < log.end_offset:
                        continue
                    await log.append([batch.records], batch.timestamp_ms)
                    await state.follow()
                    if number % SNAPSHOT_EVERY == 0:
                        await keeper.take_once()
                        await keeper.maintain_once()
            shutil.rmtree(directory / "state")
            async with opened(directory / "state", log, snapshots) as state:
                assert state.image.next_offset == log.end_offset
                return await state.checked_hash()
    finally:
        await log.close()


def work_until(
    failpoints: str, directory: Path, batches: Sequence[MetadataRecordBatch], errors: Path
) -> None:
    """What a child does; it is killed at one of the failpoints."""
    with errors.open("w") as told:
        os.dup2(told.fileno(), 2)
    arm(failpoints)
    asyncio.run(work(directory, batches, seed=1))


class Recorded(NamedTuple):
    batches: Sequence[MetadataRecordBatch]
    state_hash: int
    """Of a replica that has read them from the first to the last."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    async def record(directory: Path) -> Recorded:
        batches = await recorded_batches(directory / "recorded", FILES)
        async with following(
            directory / "replayed", PrunableLog(batches), batches[-1].next_offset
        ) as replayed:
            return Recorded(batches, await replayed.checked_hash())

    return asyncio.run(record(tmp_path_factory.mktemp("recorded")))


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServerContext]:
    """Starts processes that have imported what they work with; it takes each most of a second."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "tests.support.logs.snapshot_bench"])
    yield context
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("snapshot.after_copy", 1),
        ("snapshot.after_copy", 4),
        ("snapshot.after_upload", 2),
        ("snapshot.before_manifest", 1),
        ("snapshot.before_manifest", 4),
        ("snapshot.after_manifest", 1),
        ("snapshot.after_manifest", 3),
        ("snapshot.after_delete", 2),
        ("prune.before", 2),
        ("prune.after_some", 1),
        ("prune.after_some", 3),
        ("restore.before_rename", 1),
        ("restore.after_rename", 1),
    ],
)
def test_a_process_killed_over_a_snapshot_comes_back_with_the_same_state(
    tmp_path: Path, forks: ForkServerContext, recorded: Recorded, point: str, count: int
) -> None:
    errors = tmp_path.with_name(f"{tmp_path.name}-errors")
    child = forks.Process(
        target=work_until, args=(f"{point}=kill:{count}", tmp_path, recorded.batches, errors)
    )
    child.start()
    child.join(timeout=240)
    assert child.exitcode == -signal.SIGKILL, errors.read_text()
    asyncio.run(check(tmp_path, recorded))


async def check(directory: Path, recorded: Recorded) -> None:
    """Whatever the dead process left, a start with and without its local state is right."""
    twin = directory.with_name(f"{directory.name}-twin")
    shutil.copytree(directory, twin)
    shutil.rmtree(twin / "state")
    for place in (directory, twin):
        assert await work(place, recorded.batches, seed=2) == recorded.state_hash
        async with FileStore(
            place / "objects", clock=ManualClock(), rng=random.Random(3), sync=False
        ) as store:
            snapshots = snapshots_in(store)
            found = [await snapshots.survey(stored) for stored in await snapshots.stored()]
            statuses = [one.status for one in found]
            assert statuses.count(SnapshotStatus.USABLE) == RETAINED
            # At most what the dead process did not finish; it goes when it is old enough.
            assert len(statuses) <= RETAINED + 1
        names = {path.name for path in (place / "state").iterdir()}
        assert names == {STATE_FILE, f"{STATE_FILE}.closed"}
