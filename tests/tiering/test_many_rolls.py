"""A quiet topic that is rolled again and again ends as few files, and consumers read all of it.

The sizes of a cluster, scaled down: segments merge up to TARGET instead of 512 MiB, and a partition
may have FILES_MAX files for each quarter of that instead of for each 128 MiB. Rolls, merges,
commits and deletions are the real ones; a pass that does nothing else follows each roll.
"""

from pathlib import Path
from typing import Final

import pytest
from tiered_topics import Seen, TieredTopics
from tiering_samples import SampleBatch, SampleRecord

from tests.support.exhaustive import IS_EXHAUSTIVE

ROLLS: Final = 1_000 if IS_EXHAUSTIVE else 30
TARGET: Final = 4_000_000
FILES_MAX: Final = 12
"""For each quarter of TARGET."""
SMALL_MAX: Final = 8
"""Of files of less than half of TARGET there are fewer in all."""
REWRITES_MAX: Final = 5
"""How often a byte is written by merges, on average."""


@pytest.mark.parametrize("value_bytes", [10, 30_000])
async def test_a_thousand_rolls_end_as_few_files_and_nothing_is_lost(
    tmp_path: Path, value_bytes: int
) -> None:
    async with TieredTopics(tmp_path, seed=1) as world:
        partition = await world.create("quiet", segment_merge_bytes=str(TARGET), retention_ms="-1")
        expected: list[Seen] = []
        rolled_bytes = merged_bytes = 0
        for number in range(ROLLS):
            world.clock.advance(600)
            value = world.rng.randbytes(value_bytes)
            record = SampleRecord(b"%d" % number, value, world.clock.now_ms())
            (answer,) = await world.produce([(partition, SampleBatch([record]))])
            expected.append(Seen(answer.base_offset, record.timestamp_ms, *record[:2], ()))
            await world.roll()
            rolled_bytes += (await world.live_segments(partition))[-1].object_bytes
            merged_bytes += await merge_all(world)
            await world.clean()
        live = await world.live_segments(partition)
        size = sum(segment.object_bytes for segment in live)
        assert len(live) <= FILES_MAX * max(1, size / (TARGET / 4))
        assert sum(segment.object_bytes < TARGET / 2 for segment in live) < SMALL_MAX
        assert merged_bytes <= REWRITES_MAX * rolled_bytes
        assert await world.read(partition) == expected
        await world.clean()
        stored = {stat.key for stat in world.blocking.list("segments/")}
        assert stored == {segment.object_key for segment in live}


async def merge_all(world: TieredTopics) -> int:
    """Commits merges until none is due; the bytes that they wrote."""
    written = 0
    while plans := await world.plan_rewrites():
        for plan in plans:
            rewrite = world.written(plan)
            assert await world.commit(rewrite)
            written += sum(segment.object_bytes for segment in rewrite.segments)
    return written
