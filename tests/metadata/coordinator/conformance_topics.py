"""Conformance of coordinators: topics and their partitions come, grow and go."""

import asyncio

import pytest

from metadata.operations import CreatePartitions, CreateTopic, TopicDescription
from tests.support.coordinators.conformance_bench import ConformanceBench
from tests.support.coordinators.coordinator_bench import UNKNOWN_PARTITION, batch
from wal.coordinates import TopicIdPartition
from wal.errors import InvalidPartitions, TopicExists, UnknownPartition, UnknownTopicId


def partitions_of(topic: TopicDescription) -> list[TopicIdPartition]:
    return [TopicIdPartition(topic.topic_id, index) for index in range(topic.partition_count)]


async def _wanted(
    bench: ConformanceBench, topic: TopicDescription, count: int
) -> type[Exception] | None:
    (error,) = await bench.client.create_partitions(
        [CreatePartitions(topic_id=topic.topic_id, name=topic.name, partition_count=count)]
    )
    return None if error is None else type(error)


class TopicCases:
    """Creating, growing and deleting, each as often as anybody likes."""

    @pytest.mark.about_routing
    async def test_creating_a_topic_again_keeps_its_data(self, bench: ConformanceBench) -> None:
        topic = await bench.topic(3, retention_ms="5000")
        partitions = partitions_of(topic)
        await bench.commit_good(*[batch(each, 4) for each in partitions])
        assert await _wanted(bench, topic, 3) is None
        assert [await bench.high_watermark(each) for each in partitions] == [4, 4, 4]
        assert bench.life.local.catalogue.topics()[topic.name] == topic

    @pytest.mark.about_routing
    async def test_growing_a_topic_adds_the_missing_partitions_alone(
        self, bench: ConformanceBench
    ) -> None:
        topic = await bench.topic(2, retention_ms="5000")
        old = partitions_of(topic)
        await bench.commit_good(*[batch(each, 4) for each in old])
        for _ in range(2):
            assert await _wanted(bench, topic, 5) is None
        grown = bench.life.local.catalogue.topics()[topic.name]
        assert (grown.partition_count, grown.configs) == (5, topic.configs)
        everything = partitions_of(grown)
        assert [await bench.high_watermark(each) for each in everything] == [4, 4, 0, 0, 0]
        assert [bench.coordinator_of(each) for each in everything[:2]] == [
            topic.coordinator_of(index) for index in range(2)
        ]
        await bench.commit_good(*[batch(each) for each in everything])

    @pytest.mark.about_routing
    async def test_a_deleted_topic_does_not_come_back_by_growing(
        self, bench: ConformanceBench
    ) -> None:
        topic = await bench.topic(3)
        assert await bench.client.delete_topics([topic.topic_id]) == [None]
        assert await _wanted(bench, topic, 6) is UnknownTopicId
        assert topic.name not in bench.life.local.catalogue.topics()
        (recreated,) = await bench.client.create_topics(
            [CreateTopic(name=topic.name, partition_count=3)]
        )
        assert isinstance(recreated, TopicDescription)
        await bench.commit_good(*[batch(each) for each in partitions_of(recreated)])

    async def test_a_topic_does_not_shrink(self, bench: ConformanceBench) -> None:
        topic = await bench.topic(3)
        for count in (2, 0):
            assert await _wanted(bench, topic, count) is InvalidPartitions
        assert bench.life.local.catalogue.topics()[topic.name].partition_count == 3

    @pytest.mark.about_routing
    async def test_a_name_belongs_to_one_topic(self, bench: ConformanceBench) -> None:
        topic = await bench.topic(3)
        partitions = partitions_of(topic)
        other = TopicDescription(
            topic_id=UNKNOWN_PARTITION.topic_id, name=topic.name, partition_count=3
        )
        assert await _wanted(bench, other, 3) is TopicExists
        (answer,) = await bench.client.create_topics(
            [CreateTopic(name=topic.name, partition_count=3)]
        )
        assert isinstance(answer, TopicExists)
        await bench.commit_good(*[batch(each) for each in partitions])

    @pytest.mark.about_routing
    async def test_a_name_is_taken_once_within_one_call(self, bench: ConformanceBench) -> None:
        answers = await bench.client.create_topics(
            [
                CreateTopic(name=name, partition_count=count)
                for name, count in (("twice", 3), ("twice", 3), ("none", 0), ("once", 3))
            ]
        )
        assert isinstance(answers[1], TopicExists)
        assert isinstance(answers[2], InvalidPartitions)
        for created in (answers[0], answers[3]):
            assert isinstance(created, TopicDescription)
            await bench.commit_good(*[batch(each) for each in partitions_of(created)])

    @pytest.mark.about_routing
    async def test_a_name_is_taken_once_over_calls_at_the_same_time(
        self, bench: ConformanceBench
    ) -> None:
        answers = await asyncio.gather(
            *[
                bench.client.create_topics([CreateTopic(name="contended", partition_count=3)])
                for _ in range(4)
            ]
        )
        topics = [topic for (topic,) in answers if isinstance(topic, TopicDescription)]
        assert len(topics) == 1
        await bench.commit_good(*[batch(each) for each in partitions_of(topics[0])])

    @pytest.mark.about_log
    async def test_topics_outlive_the_process_the_state_and_the_leader(
        self, bench: ConformanceBench
    ) -> None:
        topic = await bench.topic(3, retention_ms="5000")
        for change in (bench.restart(), bench.fail_over()):
            await change
            assert bench.life.local.catalogue.topics()[topic.name] == topic
        await bench.commit_good(*[batch(each) for each in partitions_of(topic)])

    # -- deleting

    @pytest.mark.about_routing
    async def test_a_deleted_topic_is_unknown_to_every_operation(
        self, bench: ConformanceBench
    ) -> None:
        topic = await bench.topic(3)
        partitions = partitions_of(topic)
        await bench.commit_good(*[batch(each, 4) for each in partitions])
        assert list(await bench.client.delete_topics([topic.topic_id])) == [None]
        for partition in partitions:
            assert isinstance((await bench.find(partition, 0)).error, UnknownPartition)
            assert isinstance((await bench.listed(partition, -1)).error, UnknownPartition)
            answers = await bench.commit(batch(partition))
            assert isinstance(answers[0].error, UnknownPartition)
            deleted = await bench.delete_records(partition, -1)
            assert isinstance(deleted.error, UnknownPartition)

    @pytest.mark.about_routing
    async def test_deleting_what_is_not_there_changes_nothing_and_says_so(
        self, bench: ConformanceBench
    ) -> None:
        kept, gone = await bench.topic(2), await bench.topic(2)
        await bench.commit_good(*[batch(each, 4) for each in partitions_of(kept)])
        first, second = [
            await bench.client.delete_topics([UNKNOWN_PARTITION.topic_id, gone.topic_id])
            for _ in range(2)
        ]
        assert isinstance(first[0], UnknownTopicId)
        assert first[1] is None
        assert all(isinstance(error, UnknownTopicId) for error in second)
        assert [await bench.high_watermark(each) for each in partitions_of(kept)] == [4, 4]

    @pytest.mark.about_routing
    async def test_a_file_lives_until_its_last_topic_goes(self, bench: ConformanceBench) -> None:
        topics = [await bench.topic(2) for _ in range(2)]
        shared = await bench.commit_good(
            *[batch(each, 3) for topic in topics for each in partitions_of(topic)]
        )
        alone = await bench.commit_good(batch(partitions_of(topics[0])[0]))
        keys = [shared.object_key, alone.object_key]
        assert await bench.is_live(*keys) == [True, True]
        await bench.client.delete_topics([topics[0].topic_id])
        assert await bench.is_live(*keys) == [True, False]
        assert await bench.spans(partitions_of(topics[1])[0]) == [(0, 2)]
        await bench.client.delete_topics([topics[1].topic_id])
        assert await bench.is_live(*keys) == [False, False]

    async def test_a_topic_that_is_created_anew_begins_at_zero_and_knows_no_producers(
        self, bench: ConformanceBench
    ) -> None:
        old = await bench.topic(1, name="reborn")
        await bench.commit_good(batch(partitions_of(old)[0], 5, producer=3))
        await bench.client.delete_topics([old.topic_id])
        new = await bench.topic(1, name="reborn")
        assert new.topic_id != old.topic_id
        (answer,) = await bench.commit(batch(partitions_of(new)[0], 5, producer=3))
        assert (answer.base_offset, answer.is_duplicate, answer.error) == (0, False, None)
