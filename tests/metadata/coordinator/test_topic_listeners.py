"""Who wants to know when topics are others hears of it, and of nothing else."""

from metadata.operations import CreatePartitions
from tests.support.coordinators.coordinator_bench import CoordinatorBench


async def test_topics_that_come_grow_and_go_are_heard_of_when_they_can_be_read(
    bench: CoordinatorBench,
) -> None:
    replica = bench.coordinator.replica
    heard: list[dict[str, int]] = []
    replica.subscribe_topics(
        lambda: heard.append(
            {name: topic.partition_count for name, topic in replica.topics().items()}
        )
    )
    partition = await bench.partition("flights")
    assert heard == [{"flights": 1}]
    await bench.coordinator.create_partitions(
        [CreatePartitions(topic_id=partition.topic_id, name="flights", partition_count=3)]
    )
    assert heard[1:] == [{"flights": 3}]
    await bench.coordinator.delete_topics([partition.topic_id])
    assert heard[2:] == [{}]


async def test_records_and_offsets_are_not_heard_of(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    heard: list[None] = []
    bench.coordinator.replica.subscribe_topics(lambda: heard.append(None))
    await bench.commit_one(partition, 4)
    await bench.coordinator.store_group("group", 1, b"")
    assert not heard
