"""SIGKILL at the named points of commit and segment commit: what was durable is there, once."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from metadata.coordinator import PartitionCoordinator
from metadata.local_log import LocalMetadataLog
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile, CreateTopic, TopicDescription
from metadata.verify import verify_metadata
from tests.support.coordinator_bench import batch, rolled
from tests.support.standalone_coordinator import standalone_coordinator
from wal.clock import ManualClock
from wal.coordinates import ByteOffset, TopicIdPartition
from wal.errors import DisklessError
from wal.failpoint import ENVIRONMENT_VARIABLE, arm_from_environment
from wal.ulid import mint_ulid, wal_object_key

COMMITS = 6

pytestmark = pytest.mark.crash


def opened(directory: Path, seed: int) -> AbstractAsyncContextManager[PartitionCoordinator]:
    return standalone_coordinator(
        directory,
        clock=ManualClock(),
        rng=random.Random(seed),
        settings=CoordinatorSettings(state_readers=1),
    )


def request(number: int, topic: TopicDescription) -> CommitFile:
    """The same object every time it is asked for."""
    key = wal_object_key(mint_ulid(ManualClock(), random.Random(1_000 + number)))
    placed = batch(TopicIdPartition(topic.topic_id, 0), 3, producer=1, sequence=3 * number)
    return CommitFile(
        object_key=key,
        file_size_bytes=200,
        uploader_broker_id=0,
        batches=[placed._replace(byte_offset=ByteOffset(16))],
    )


async def work(directory: Path, seed: int) -> list[int]:
    """Create the topic, commit, roll; whatever an earlier process did is found done already."""
    async with asyncio.TaskGroup() as tasks, opened(directory, seed) as coordinator:
        tasks.create_task(coordinator.run())
        (created,) = await coordinator.create_topics([CreateTopic(name="a", partition_count=1)])
        topic = coordinator.replica.topics()["a"]
        assert isinstance(created, DisklessError) or created == topic
        offsets = []
        for number in range(COMMITS):
            (answer,) = await coordinator.commit_file(request(number, topic))
            offsets.append(answer.base_offset)
            print(f"committed {number} {answer.base_offset}", flush=True)
            if number == 3:
                plans = await coordinator.plan_segments(include_partial=True)
                await coordinator.commit_segments([rolled(plan) for plan in plans])
        return offsets


@pytest.mark.parametrize(
    ("point", "count"),
    [
        *[("commit.after_log", count) for count in (1, 2, 4, 6, 7)],
        *[("commit.after_apply", count) for count in (1, 3, 6, 8)],
        ("segment.after_log", 1),
    ],
)
def test_a_killed_coordinator_comes_back_with_what_it_had(
    tmp_path: Path, point: str, count: int
) -> None:
    child = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={
            **os.environ,
            ENVIRONMENT_VARIABLE: f"{point}=kill:{count}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    acknowledged = [line.split()[1:] for line in child.stdout.splitlines()]

    offsets = asyncio.run(work(tmp_path, seed=2))
    assert offsets == [3 * number for number in range(COMMITS)]
    assert all(offsets[int(number)] == int(offset) for number, offset in acknowledged)

    async def verify() -> None:
        log = await LocalMetadataLog.open(tmp_path / "log", rng=random.Random(3))
        try:
            assert (await verify_metadata(tmp_path, log)).violations == []
        finally:
            await log.close()

    asyncio.run(verify())


if __name__ == "__main__":
    arm_from_environment()
    asyncio.run(work(Path(sys.argv[1]), seed=1))
