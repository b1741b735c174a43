"""What a rebuild makes of compacted topics, one case at a time."""

from pathlib import Path

import pytest
from tiered_topics import TieredTopics
from tiering_samples import SampleBatch, SampleRecord

from metadata.rewrites import RewritePlan
from metadata.workers.notes_sweep import SCHEMA_KEPT_MS
from wal.chunks.kept_notes import decode_kept_notes
from wal.chunks.object_notes import NOTED_SCHEMA_MAX
from wal.coordinates import TopicIdPartition


def records(*keys: bytes) -> SampleBatch:
    return SampleBatch([SampleRecord(key, b"value", 1_704_067_200_000) for key in keys])


async def rolled(world: TieredTopics, partition: TopicIdPartition, *batches: SampleBatch) -> None:
    """A segment for each batch."""
    for batch in batches:
        await world.produce([(partition, batch)])
        await world.roll()


async def the_plan(world: TieredTopics) -> RewritePlan:
    (plan,) = await world.plan_rewrites()
    return plan


async def compact(world: TieredTopics) -> None:
    assert await world.commit(world.written(await the_plan(world)))


async def test_a_producer_is_known_of_whose_segments_nothing_is_left(tmp_path: Path) -> None:
    async with TieredTopics(tmp_path, 1) as world:
        partition = await world.create("t", cleanup_policy="compact", segment_bytes="1")
        gone = records(b"k")._replace(producer_id=7, producer_epoch=0, base_sequence=0)
        await rolled(world, partition, gone, records(b"k"))
        await compact(world)
        assert [one.record_count for one in await world.live_segments(partition)] == [0, 1]
        await world.rebuild()
        (answer,) = await world.produce([(partition, gone)])
        assert answer.is_duplicate
        (answer,) = await world.produce([(partition, gone._replace(base_sequence=1))])
        assert answer.error is None


async def test_what_the_log_start_takes_from_a_plan_is_planned_anew_under_other_keys(
    tmp_path: Path,
) -> None:
    """Outputs of one generation that overlap: a rebuild would not know which are whole."""
    async with TieredTopics(tmp_path, 2) as world:
        partition = await world.create(
            "t", cleanup_policy="compact", segment_bytes="20000", min_cleanable_dirty_ratio="0"
        )
        await rolled(world, partition, *[records(b"a", b"%d" % at) for at in range(5)])
        first = await the_plan(world)
        world.written(first)  # and the job is killed
        await world.delete_records(partition, 2)
        second = await the_plan(world)
        assert second.generation == first.generation + 1
        assert second.inputs == first.inputs[1:]
        await world.commit(world.written(second))
        await world.clean()
        before = await world.read(partition)
        report = await world.rebuild()
        assert not report.doubts
        assert await world.read(partition) == before
        assert await world.log_start(partition) == 2


@pytest.mark.parametrize("share", [0, 1])
async def test_a_plan_stays_while_a_log_start_moves_within_its_first_input(
    tmp_path: Path, share: int
) -> None:
    async with TieredTopics(tmp_path, 3) as world:
        partition = await world.create("t", cleanup_policy="compact", segment_bytes="1")
        await rolled(world, partition, records(b"a", b"b"), records(b"a", b"b"))
        plan = await the_plan(world)
        await world.delete_records(partition, share)
        assert await the_plan(world) == plan


async def test_how_a_topic_is_configured_is_known_when_all_of_it_is_in_segments(
    tmp_path: Path,
) -> None:
    async with TieredTopics(tmp_path, 4) as world:
        partition = await world.create("t", cleanup_policy="compact", table_enabled="true")
        await rolled(world, partition, records(b"a"))
        await world.clean()
        assert not [*world.blocking.list("wal/")]
        report = await world.rebuild()
        assert report.tables == ["t"]
        configs = world.coordinator.replica.topic_configs(partition.topic_id)
        assert configs == {"cleanup.policy": "compact", "table.enabled": "true"}


async def test_a_long_schema_is_known_after_every_rebuild(tmp_path: Path) -> None:
    """Its text is in no WAL object; notes of texts that no topic has any more go."""
    schema = f'{{"title": "{"long" * NOTED_SCHEMA_MAX}"}}'
    async with TieredTopics(tmp_path, 7) as world:
        partition = await world.create("t", value_schema=schema)
        await world.produce([(partition, records(b"a"))])
        for _ in range(2):
            world.clock.advance(2 * SCHEMA_KEPT_MS / 1000)
            await world.sweep_notes()
            report = await world.rebuild()
            assert not report.doubts
            configs = world.coordinator.replica.topic_configs(partition.topic_id)
            assert configs == {"value.schema": schema}
            await world.roll()
            await world.clean()
        assert not [*world.blocking.list("wal/")]
        for stat in [*world.blocking.list("notes/")]:
            notes = decode_kept_notes(world.blocking.get(stat.key), stat.key)
            assert sum(len(facts.configs[0][1]) for facts in notes.topics.values()) < 100
            world.blocking.delete([stat.key] if notes.schemas else [])
        report = await world.rebuild()
        (doubt,) = report.doubts
        assert "value.schema is not in the bucket" in doubt.problem
        assert world.coordinator.replica.topic_configs(partition.topic_id) == {}


async def test_a_deleted_topic_does_not_come_back_by_what_was_kept_of_it(tmp_path: Path) -> None:
    async with TieredTopics(tmp_path, 5) as world:
        partition = await world.create("t")
        await rolled(world, partition, records(b"a"))
        await world.clean()
        assert [*world.blocking.list("notes/")]
        await world.coordinator.delete_topics([partition.topic_id])
        await world.coordinator.sweep_rows(100)
        await world.clean()
        assert not [*world.blocking.list("segments/")]
        report = await world.rebuild()
        assert not report.topics


async def test_what_lies_below_a_log_start_stays_gone_in_every_rebuild(tmp_path: Path) -> None:
    """A rebuild deletes nothing, so the next one finds the same segments and no WAL object."""
    async with TieredTopics(tmp_path, 6) as world:
        partition = await world.create("t", segment_bytes="1")
        await rolled(world, partition, records(b"a", b"b"), records(b"c", b"d"))
        await world.delete_records(partition, 2)
        await world.produce([(partition, records(b"e"))])
        for _ in range(3):
            await world.rebuild()
            assert await world.log_start(partition) == 2
            assert [one.key for one in await world.read(partition)] == [b"c", b"d", b"e"]
            await world.roll()
            await world.clean()
        assert not [*world.blocking.list("wal/")]
