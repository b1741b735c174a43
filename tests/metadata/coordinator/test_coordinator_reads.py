"""Extents and topics as one coordinator has them.

What clients are promised is in the suite beside (coordinator_conformance.py).
"""

import asyncio

from metadata import operations as ops
from tests.support.coordinators.coordinator_bench import CoordinatorBench, batch
from wal.coordinates import LOG_APPEND_TIME, TopicIdPartition


def spans(extents: object) -> list[tuple[int, int]]:
    assert isinstance(extents, list | tuple)
    return [(extent.base_offset, extent.last_offset) for extent in extents]


class TestFinding:
    async def test_an_extent_does_not_grow_past_a_mebibyte(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        await bench.commit(*[batch(partition, 1, size=400 << 10) for _ in range(5)])
        assert spans((await bench.find(partition, 0, max_bytes=1 << 30)).extents) == [
            (0, 1),
            (2, 3),
            (4, 4),
        ]


class TestListingOffsets:
    async def listed(
        self, bench: CoordinatorBench, partition: TopicIdPartition, timestamp: int
    ) -> ops.ListedOffset:
        (answer,) = await bench.coordinator.list_offsets([ops.ListOffsets(partition, timestamp)])
        return answer

    async def test_a_timestamp_gives_the_first_extent_that_may_hold_it(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        for timestamp_ms in (100, 300, 200, 300):
            await bench.commit(batch(partition, 10, timestamp_ms=timestamp_ms))
        for timestamp, span in (
            (0, (0, 9)),
            (100, (0, 9)),
            (101, (10, 19)),
            (300, (10, 19)),
            (ops.MAX_TIMESTAMP, (10, 19)),
        ):
            answer = await self.listed(bench, partition, timestamp)
            assert spans([answer.extent]) == [span]
        assert (await self.listed(bench, partition, 301)).extent is None

    async def test_extents_below_the_log_start_are_not_found(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        for timestamp_ms in (900, 300):
            await bench.commit(batch(partition, 10, timestamp_ms=timestamp_ms))
        await bench.coordinator.delete_records([ops.DeleteRecords(partition, 10)])
        assert spans([(await self.listed(bench, partition, 0)).extent]) == [(10, 19)]
        assert spans([(await self.listed(bench, partition, ops.MAX_TIMESTAMP)).extent]) == [
            (10, 19)
        ]
        assert (await self.listed(bench, partition, ops.EARLIEST_TIMESTAMP)).offset == 10

    async def test_append_time_counts_where_the_topic_says_so(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        now_ms = bench.clock.now_ms()
        await bench.commit(batch(partition, timestamp_type=LOG_APPEND_TIME, timestamp_ms=5))
        assert (await self.listed(bench, partition, now_ms)).extent is not None
        assert (await self.listed(bench, partition, now_ms + 1)).extent is None


class TestTopics:
    async def test_a_topic_has_its_partitions_and_configs(self, bench: CoordinatorBench) -> None:
        topic = await bench.topic("flights", 3, segment_bytes="1000")
        assert bench.coordinator.replica.topics() == {"flights": topic}
        assert bench.coordinator.replica.topic_by_id(topic.topic_id) == topic
        assert topic.configs == {"segment.bytes": "1000"}
        for index in range(3):
            partition = TopicIdPartition(topic.topic_id, index)
            assert bench.coordinator.replica.high_watermark(partition) == 0
        assert bench.coordinator.replica.high_watermark(TopicIdPartition(topic.topic_id, 3)) is None

    async def test_deleting_and_creating_a_name_in_one_go_leaves_the_new_topic(
        self, bench: CoordinatorBench
    ) -> None:
        old = await bench.topic("a", 2)
        deleted = bench.coordinator.delete_topics([old.topic_id])
        created = bench.coordinator.create_topics([ops.CreateTopic(name="a", partition_count=1)])
        answers = await asyncio.gather(deleted, created)
        assert answers[0] == [None]
        assert bench.coordinator.replica.topics()["a"] == answers[1][0]
        assert bench.coordinator.replica.topic_by_id(old.topic_id) is None
