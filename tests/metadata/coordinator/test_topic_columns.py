"""Typed columns of topics at the coordinator: who may set them, and which plans get them."""

from pathlib import Path
from uuid import UUID

from metadata import operations as ops
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.coordinates import TopicIdPartition
from wal.errors import Rejected, UnknownTopicId

EVERYTHING = ops.PlanSegments(include_partial=True)


async def typed_topic(bench: CoordinatorBench, source: str = "inline") -> ops.TopicDescription:
    topic = await bench.topic(
        value_schema_format="json", value_schema="{}", value_schema_source=source
    )
    await bench.commit(batch(TopicIdPartition(topic.topic_id, 0), 2))
    return topic


async def test_a_topic_is_planned_when_its_columns_are_made_of_its_configs(
    bench: CoordinatorBench,
) -> None:
    topic = await typed_topic(bench)
    assert await bench.coordinator.plan_segments(EVERYTHING) == []
    (schemas,) = bench.coordinator.topic_schemas(EVERYTHING)
    assert (schemas.topic_id, schemas.configs) == (topic.topic_id, topic.configs)
    assert schemas.has == ops.TopicColumns()
    assert bench.coordinator.topic_schemas(ops.PlanSegments(topics=["other"])) == []
    columns = ops.TopicColumns(1, schemas.basis, b"columns")
    asked = ops.SetTopicColumns(topic.topic_id, *columns)
    assert await bench.coordinator.catalogue.set_topic_columns([asked]) == [None]
    assert bench.coordinator.topic_schemas(EVERYTHING) == []
    (plan,) = await bench.coordinator.plan_segments(EVERYTHING)
    assert plan.columns == b"columns"


async def test_of_two_jobs_one_sets_the_columns(bench: CoordinatorBench) -> None:
    topic = await typed_topic(bench)
    first = ops.SetTopicColumns(topic.topic_id, 1, b"b", b"first")
    second = first._replace(columns=b"second")
    answers = await bench.coordinator.catalogue.set_topic_columns([first, second, first])
    assert answers[0] is None
    assert isinstance(answers[1], Rejected)
    assert answers[2] is None, "a repeated request"
    later = first._replace(version=3)
    nowhere = first._replace(topic_id=UUID(int=7))
    huge = first._replace(version=2, columns=bytes(2 << 20))
    refused = await bench.coordinator.catalogue.set_topic_columns([later, nowhere, huge])
    assert list(map(type, refused)) == [Rejected, UnknownTopicId, Rejected]
    replica = bench.coordinator.replica
    assert replica.topic_columns(topic.topic_id) == ops.TopicColumns(1, b"b", b"first")


async def test_a_topic_with_a_registry_is_listed_in_any_case(bench: CoordinatorBench) -> None:
    topic = await typed_topic(bench, "registry:id")
    (schemas,) = bench.coordinator.topic_schemas(EVERYTHING)
    asked = ops.SetTopicColumns(topic.topic_id, 1, schemas.basis, b"c")
    await bench.coordinator.catalogue.set_topic_columns([asked])
    (again,) = bench.coordinator.topic_schemas(EVERYTHING)
    assert again.has == ops.TopicColumns(1, schemas.basis, b"c")


async def test_a_plan_keeps_its_columns_and_a_topic_that_is_not_typed_has_none(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path, log) as bench:
        topic = await typed_topic(bench)
        partition = TopicIdPartition(topic.topic_id, 0)
        (schemas,) = bench.coordinator.topic_schemas(EVERYTHING)
        await bench.coordinator.catalogue.set_topic_columns(
            [ops.SetTopicColumns(topic.topic_id, 1, schemas.basis, b"one")]
        )
        await bench.coordinator.plan_segments(EVERYTHING)
        await bench.coordinator.catalogue.set_topic_columns(
            [ops.SetTopicColumns(topic.topic_id, 2, schemas.basis, b"two")]
        )
        await bench.commit(batch(partition, 2))
        await bench.coordinator.plan_segments(EVERYTHING)
        untyped = {**topic.configs, "value.schema.format": "none"}
        change = ops.AlterTopicConfigs(
            topic_id=topic.topic_id, before=topic.configs, configs=untyped
        )
        await bench.coordinator.catalogue.alter_topic_configs([change])
        await bench.commit(batch(partition, 2))
        plans = await bench.coordinator.plan_segments(EVERYTHING)
        assert [plan.columns for plan in plans] == [b"one", b"two", b""]
    # The state is gone, and made anew from the log.
    async with running_coordinator(tmp_path / "other", log) as bench:
        assert await bench.coordinator.plan_segments(EVERYTHING) == plans
        columns = bench.coordinator.replica.topic_columns(topic.topic_id)
        assert columns == ops.TopicColumns(2, schemas.basis, b"two")
        await bench.coordinator.delete_topics([topic.topic_id])
        assert bench.coordinator.replica.topic_columns(topic.topic_id) == ops.TopicColumns()
