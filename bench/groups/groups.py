"""Group `groups`: what consumer groups cost.

Offsets are committed as the offset manager of a group's coordinator does: by the coordinator's own
call, which returns when they are durable and can be read. Decoding of requests is not in it.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from bench.groups.consumer_rebalance import run_consumer_rebalance
from bench.groups.rebalance import run_rebalance
from bench.tools.broker import fresh_directory
from bench.tools.coordinator_bed import CLOCK, Bed, coordinating, run, settle
from bench.tools.report import Report
from metadata.records.groups import CommittedOffset
from wal.coordinates import TopicIdPartition

GROUPS: Final = 50
PARTITIONS_MAX: Final = 10
"""Of one commit; each has 1 .. PARTITIONS_MAX of them."""
COMMITS_PER_GROUP: Final = 200
ROUNDS: Final = 5


class OffsetCommitFigures(NamedTuple):
    """Commits per second, all groups together, of each round; milliseconds of each commit."""

    commits_per_s: Sequence[float]
    waits_ms: Sequence[float]
    partitions_per_commit: float


def run_groups(report: Report) -> None:
    """GROUPS groups at once, each with one commit under way, on the local log; a large group."""
    report.step(f"groups: {GROUPS} groups commit 1-{PARTITIONS_MAX} offsets at once, local log")
    with fresh_directory() as directory:
        figures = run(measure_offset_commits(directory))
    report.add(
        "offset_commits_per_s",
        statistics.median(figures.commits_per_s),
        "/s",
        bound="≥ 2000",
        note=f"median of {len(figures.commits_per_s)}, {figures.partitions_per_commit:.1f} "
        f"partitions each, median wait {statistics.median(figures.waits_ms):.1f} ms",
    )
    run_rebalance(report)
    run_consumer_rebalance(report)


async def measure_offset_commits(
    directory: Path,
    *,
    groups: int = GROUPS,
    commits: int = COMMITS_PER_GROUP,
    rounds: int = ROUNDS,
) -> OffsetCommitFigures:
    """Measure in an empty `directory`: `rounds` times `commits` of every group."""
    per_s: list[float] = []
    waits_ms: list[float] = []
    async with coordinating(directory) as bed:
        lanes = [_Lane(number) for number in range(groups)]
        await _commit_all(bed, lanes, 5)
        settle()
        for _ in range(rounds):
            started = time.perf_counter()
            waits_ms += await _commit_all(bed, lanes, commits)
            per_s.append(groups * commits / (time.perf_counter() - started))
        counts = [lane.offset_count / lane.commit_count for lane in lanes]
    return OffsetCommitFigures(per_s, waits_ms, statistics.mean(counts))


class _Lane:
    """One group, which commits where its consumers are in its partitions, again and again."""

    def __init__(self, number: int) -> None:
        self.group_id = f"group-{number}"
        self._rng = random.Random(number)
        topic_id = UUID(int=number + 1)
        self._partitions = [TopicIdPartition(topic_id, index) for index in range(PARTITIONS_MAX)]
        self.commit_count = 0
        self.offset_count = 0

    def next(self) -> Sequence[CommittedOffset]:
        partitions = self._rng.sample(self._partitions, self._rng.randint(1, PARTITIONS_MAX))
        self.commit_count += 1
        self.offset_count += len(partitions)
        now_ms = CLOCK.now_ms()
        return [
            CommittedOffset(partition=partition, offset=self.commit_count, commit_ms=now_ms)
            for partition in partitions
        ]

    async def commit(self, bed: Bed, commits: int) -> Sequence[float]:
        """One after the other; milliseconds of each."""
        waits_ms = []
        for _ in range(commits):
            offsets = self.next()
            started = time.perf_counter()
            await bed.coordinator.commit_offsets(self.group_id, offsets)
            waits_ms.append((time.perf_counter() - started) * 1_000)
        return waits_ms


async def _commit_all(bed: Bed, lanes: Sequence[_Lane], commits: int) -> Sequence[float]:
    async with asyncio.TaskGroup() as tasks:
        serving = [tasks.create_task(lane.commit(bed, commits)) for lane in lanes]
    return [wait for task in serving for wait in task.result()]
