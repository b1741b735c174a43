"""Objects that jobs wrote as segments, and that nobody commits."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from metadata import operations as ops
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.segment_identity import named_segment, segment_key
from metadata.rewrites import PlanRewrites, RewritePlan
from metadata.workers.sweeps.segments_sweep import SegmentsSweep
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import NotCoordinator
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody

SETTINGS = CoordinatorSettings(state_readers=1, segment_bytes=1)
EVERYTHING = ops.PlanSegments(include_partial=True)
OLD_S = (SETTINGS.orphan_scan_grace_ms + SETTINGS.clock_skew_max_ms) / 1000
NOBODYS = UUID(int=99)


class Bed:
    """A coordinator with one topic of one partition, and a bucket."""

    def __init__(self, bench: CoordinatorBench, store: MemoryStore, clock: ManualClock) -> None:
        self.bench, self.store, self.clock = bench, store, clock
        self.leads = True
        replica = bench.coordinator.replica
        self.sweep = SegmentsSweep(
            store,
            replica,
            [replica],
            confirm_leadership=self._confirm,
            settings=SETTINGS,
            clock=clock,
        )

    async def _confirm(self) -> None:
        if not self.leads:
            raise NotCoordinator("somebody else leads")

    async def begin(self) -> None:
        topic = await self.bench.topic(
            "flights", cleanup_policy="compact", min_cleanable_dirty_ratio="0"
        )
        self.partition = TopicIdPartition(topic.topic_id, 0)
        self.clock.advance(SETTINGS.clock_skew_max_ms / 1000 + 1)

    def key(self, base: int, last: int, generation: int = 0, topic_id: UUID | None = None) -> str:
        partition = TopicIdPartition(topic_id or self.partition.topic_id, 0)
        return segment_key("flights", partition, base, last, generation)

    async def put(self, *keys: str) -> None:
        for key in keys:
            await self.store.put(ObjectKey(key), BytesBody(b"x"))

    async def left(self) -> list[str]:
        await self.sweep.sweep_once()
        return sorted([stat.key async for stat in self.store.list("")])

    async def rolled(self, *, count: int) -> list[ObjectKey]:
        """Commit `count` segments of one record each."""
        keys = []
        for _ in range(count):
            (plan,) = await self.planned()
            (answer,) = await self.bench.coordinator.commit_segments([rolled(plan)])
            assert answer.error is None
            await self.put(plan.object_key)
            keys.append(plan.object_key)
        return keys

    async def planned(self) -> Sequence[ops.SegmentPlan]:
        """The plan for one more record."""
        await self.bench.commit(batch(self.partition))
        return await self.bench.coordinator.plan_segments(EVERYTHING)

    async def rewrite(self) -> RewritePlan:
        (plan,) = await self.bench.coordinator.plan_rewrites(PlanRewrites())
        return plan

    async def delete_records(self, before: int) -> None:
        asked = ops.DeleteRecords(self.partition, before)
        (answer,) = await self.bench.coordinator.delete_records([asked])
        assert answer.error is None


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    clock = ManualClock()
    log = MemoryMetadataLog()
    async with (
        MemoryStore(clock=clock) as store,
        running_coordinator(tmp_path, log, clock=clock, settings=SETTINGS) as bench,
    ):
        bed = Bed(bench, store, clock)
        await bed.begin()
        yield bed


async def test_a_key_says_what_it_was_made_of(bed: Bed) -> None:
    key = ObjectKey(bed.key(3, 9, 2))
    assert named_segment(key) == ("flights", bed.partition, 3, 9, 2)
    for other in (key.replace("=0/", "=00/"), key.replace("-2.", "-02."), key + "x", f"a{key}"):
        assert named_segment(ObjectKey(other)) is None


async def test_what_no_plan_can_commit_goes_when_it_is_old(bed: Bed) -> None:
    live = await bed.rolled(count=3)
    between = bed.key(0, 1)
    await bed.put(between)
    bed.clock.advance(OLD_S)
    assert await bed.left() == sorted([*live, between])
    bed.clock.advance(1)
    assert await bed.left() == sorted(live)
    assert bed.sweep.objects_deleted == 1


async def test_what_is_planned_or_may_be_planned_stays(bed: Bed) -> None:
    live = await bed.rolled(count=2)
    (plan,) = await bed.planned()
    later, merge_to_come = bed.key(3, 3), bed.key(0, 1, 1)
    await bed.put(plan.object_key, later, merge_to_come)
    bed.clock.advance(2 * OLD_S)
    assert await bed.left() == sorted([*live, plan.object_key, later, merge_to_come])


async def test_an_output_stays_until_its_rewrite_has_ended(bed: Bed) -> None:
    live = await bed.rolled(count=4)
    plan = await bed.rewrite()
    output = bed.key(0, 3, plan.generation)
    await bed.put(output)
    bed.clock.advance(2 * OLD_S)
    assert await bed.left() == sorted([*live, output])
    await bed.delete_records(2)
    after = await bed.rewrite()
    assert after.generation > plan.generation, "the first one ended"
    # The segments below the log start have rows until the file workers have deleted them.
    assert await bed.left() == sorted(live)


async def test_what_a_deleted_topic_left_goes_if_this_broker_leads(bed: Bed) -> None:
    gone = bed.key(0, 5, topic_id=NOBODYS)
    await bed.put(gone)
    bed.clock.advance(2 * OLD_S)
    bed.leads = False
    with pytest.raises(NotCoordinator):
        await bed.left()
    bed.leads = True
    assert await bed.left() == []


async def test_what_is_older_than_the_metadata_log_stays(bed: Bed) -> None:
    replica = bed.sweep._catalogue
    gone = bed.key(0, 5, topic_id=NOBODYS)
    await bed.put(gone)
    bed.clock.advance(2 * OLD_S)
    for began_ms in (None, bed.clock.now_ms()):
        younger: Any = SimpleNamespace(log_began_ms=began_ms, topic_by_id=replica.topic_by_id)
        bed.sweep._catalogue = younger
        assert await bed.left() == [gone]
    bed.sweep._catalogue = replica
    assert await bed.left() == []


async def test_other_names_and_partitions_that_nobody_has_are_left_alone(bed: Bed) -> None:
    topic_id = bed.partition.topic_id
    foreign = [
        "segments/notes.txt",
        segment_key("another", bed.partition, 0, 0),
        segment_key("flights", TopicIdPartition(topic_id, 1), 0, 0),
        bed.key(0, 0).replace(".parquet", ".parquet.tmp"),
    ]
    await bed.rolled(count=1)
    await bed.put(*foreign)
    bed.clock.advance(2 * OLD_S)
    assert set(await bed.left()) >= set(foreign)


@pytest.mark.parametrize("generation", [1, 2, 3])
async def test_only_what_is_under_way_or_comes_later_may_be_committed(
    bed: Bed, generation: int
) -> None:
    """The first of two rewrites has ended, the second is under way."""
    await bed.rolled(count=4)
    first = await bed.rewrite()
    await bed.delete_records(2)
    assert ((await bed.rewrite()).generation, first.generation) == (2, 1)
    output = bed.key(2, 3, generation)
    await bed.put(output)
    bed.clock.advance(2 * OLD_S)
    assert (output in await bed.left()) is (generation > 1)
