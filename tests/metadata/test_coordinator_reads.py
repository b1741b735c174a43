"""find_batches and list_offsets, deleting records and topics."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.operations import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    CreateTopic,
    DeleteRecords,
    FindBatches,
    ListedOffset,
    ListOffsets,
    TopicDescription,
    WalExtent,
)
from tests.support.coordinator_bench import (
    UNKNOWN_PARTITION,
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.coordinates import LOG_APPEND_TIME, Offset, TopicIdPartition
from wal.errors import (
    InvalidPartitions,
    InvalidRequest,
    OffsetOutOfRange,
    TopicExists,
    UnknownPartition,
    UnknownTopicId,
)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as running:
        yield running


def spans(extents: object) -> list[tuple[int, int]]:
    assert isinstance(extents, list | tuple)
    return [(extent.base_offset, extent.last_offset) for extent in extents]


class TestFinding:
    async def test_any_offset_inside_an_extent_gives_it_and_what_follows(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        for _ in range(3):
            await bench.commit(batch(partition, 5))
        for offset in range(5, 10):
            found = await bench.find(partition, offset)
            assert spans(found.extents) == [(5, 9), (10, 14)]
            assert (found.log_start_offset, found.high_watermark) == (0, 15)

    async def test_contiguous_batches_of_a_file_are_one_extent(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        other = await bench.partition("weather")
        request = bench.file(
            batch(partition, 2, size=70, timestamp_ms=5),
            batch(partition, 3, size=30, timestamp_ms=3),
            batch(other, 1),
            batch(partition, 1, size=20),
            batch(partition, 1, size=20, timestamp_type=LOG_APPEND_TIME),
        )
        await bench.coordinator.commit_file(request)
        found = await bench.find(partition, 0)
        assert spans(found.extents) == [(0, 4), (5, 5), (6, 6)]
        assert found.extents[0] == WalExtent(
            object_key=request.object_key,
            byte_offset=request.batches[0].byte_offset,
            length_bytes=100,
            base_offset=Offset(0),
            last_offset=Offset(4),
            log_append_time_ms=bench.clock.now_ms(),
            max_timestamp_ms=5,
            timestamp_type=0,
            object_bytes=request.file_size_bytes,
        )

    async def test_a_refused_batch_breaks_the_extent(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        await bench.commit(
            batch(partition, 1, producer=4),
            batch(partition, 1, producer=4),
            batch(partition, 1, producer=4, sequence=1),
        )
        assert spans((await bench.find(partition, 0)).extents) == [(0, 0), (1, 1)]

    async def test_an_extent_does_not_grow_past_a_mebibyte(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        await bench.commit(*[batch(partition, 1, size=400 << 10) for _ in range(5)])
        assert spans((await bench.find(partition, 0, max_bytes=1 << 30)).extents) == [
            (0, 1),
            (2, 3),
            (4, 4),
        ]

    async def test_at_the_high_watermark_there_is_nothing_and_no_error(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        empty = await bench.find(partition, 0)
        assert (empty.extents, empty.error, empty.high_watermark) == ((), None, 0)
        await bench.commit(batch(partition, 5))
        found = await bench.find(partition, 5)
        assert (list(found.extents), found.error, found.high_watermark) == ([], None, 5)

    @pytest.mark.parametrize("offset", [-1, 1, 4, 13])
    async def test_outside_the_log_is_out_of_range_with_the_true_bounds(
        self, bench: CoordinatorBench, offset: int
    ) -> None:
        partition = await bench.partition()
        await bench.commit(batch(partition, 12))
        await bench.coordinator.delete_records([DeleteRecords(partition, 5)])
        found = await bench.find(partition, offset)
        assert isinstance(found.error, OffsetOutOfRange)
        assert (found.log_start_offset, found.high_watermark) == (5, 12)

    async def test_an_unknown_partition_is_an_error_of_its_entry(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit(batch(partition, 1))
        answers = await bench.coordinator.find_batches(
            [FindBatches(UNKNOWN_PARTITION, 0, 100), FindBatches(partition, 0, 100)],
            max_bytes=1_000,
        )
        assert isinstance(answers[0].error, UnknownPartition)
        assert spans(answers[1].extents) == [(0, 0)]

    async def test_limits_include_what_crosses_them_and_are_shared_over_the_request(
        self, bench: CoordinatorBench
    ) -> None:
        topic = await bench.topic(partitions=4)
        partitions = [TopicIdPartition(topic.topic_id, index) for index in range(4)]
        for _ in range(5):
            await bench.commit(*[batch(partition, 1, size=100) for partition in partitions])
        answers = await bench.coordinator.find_batches(
            [FindBatches(partition, 0, 250) for partition in partitions], max_bytes=450
        )
        assert [len(answer.extents) for answer in answers] == [3, 2, 0, 0]
        assert all(answer.error is None and answer.high_watermark == 5 for answer in answers)

    async def test_the_first_partition_with_data_gets_one_extent_whatever_the_limit(
        self, bench: CoordinatorBench
    ) -> None:
        topic = await bench.topic(partitions=3)
        partitions = [TopicIdPartition(topic.topic_id, index) for index in range(3)]
        await bench.commit(*[batch(partition, 1, size=900) for partition in partitions[1:]])
        requests = [FindBatches(partition, 0, 0) for partition in partitions]
        answers = await bench.coordinator.find_batches(requests, max_bytes=0)
        assert [len(answer.extents) for answer in answers] == [0, 1, 0]
        answers = await bench.coordinator.find_batches(requests, max_bytes=0, at_least_one=False)
        assert [len(answer.extents) for answer in answers] == [0, 0, 0]

    async def test_rotating_the_request_order_serves_all_partitions_equally(
        self, bench: CoordinatorBench
    ) -> None:
        topic = await bench.topic(partitions=4)
        partitions = [TopicIdPartition(topic.topic_id, index) for index in range(4)]
        for _ in range(10):
            await bench.commit(*[batch(partition, 1, size=100) for partition in partitions])
        positions = dict.fromkeys(partitions, 0)
        for turn in range(8):
            order = partitions[turn % 4 :] + partitions[: turn % 4]
            answers = await bench.coordinator.find_batches(
                [FindBatches(partition, positions[partition], 200) for partition in order],
                max_bytes=200,
            )
            for partition, answer in zip(order, answers, strict=True):
                positions[partition] += len(answer.extents)
        assert set(positions.values()) == {4}

    async def test_one_partition_may_be_asked_twice(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        for _ in range(3):
            await bench.commit(batch(partition, 1))
        answers = await bench.coordinator.find_batches(
            [FindBatches(partition, 2, 10), FindBatches(partition, 0, 1_000)], max_bytes=10_000
        )
        assert [spans(answer.extents) for answer in answers] == [[(2, 2)], [(0, 0), (1, 1), (2, 2)]]

    async def test_long_answers_are_gapless(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        for _ in range(150):
            await bench.commit(batch(partition, 1))
        found = await bench.find(partition, 3, max_bytes=1 << 30)
        assert spans(found.extents) == [(offset, offset) for offset in range(3, 150)]


class TestListingOffsets:
    async def listed(
        self, bench: CoordinatorBench, partition: TopicIdPartition, timestamp: int
    ) -> ListedOffset:
        (answer,) = await bench.coordinator.list_offsets([ListOffsets(partition, timestamp)])
        return answer

    async def test_an_empty_log(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        expected = {
            LATEST_TIMESTAMP: 0,
            EARLIEST_TIMESTAMP: 0,
            EARLIEST_LOCAL_TIMESTAMP: 0,
            MAX_TIMESTAMP: -1,
            LATEST_TIERED_TIMESTAMP: -1,
            1_000: -1,
        }
        for timestamp, offset in expected.items():
            answer = await self.listed(bench, partition, timestamp)
            assert (answer.offset, answer.extent, answer.error) == (offset, None, None), timestamp

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
            (MAX_TIMESTAMP, (10, 19)),
        ):
            answer = await self.listed(bench, partition, timestamp)
            assert spans([answer.extent]) == [span]
        assert (await self.listed(bench, partition, 301)).extent is None

    async def test_extents_below_the_log_start_are_not_found(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        for timestamp_ms in (900, 300):
            await bench.commit(batch(partition, 10, timestamp_ms=timestamp_ms))
        await bench.coordinator.delete_records([DeleteRecords(partition, 10)])
        assert spans([(await self.listed(bench, partition, 0)).extent]) == [(10, 19)]
        assert spans([(await self.listed(bench, partition, MAX_TIMESTAMP)).extent]) == [(10, 19)]
        assert (await self.listed(bench, partition, EARLIEST_TIMESTAMP)).offset == 10

    async def test_append_time_counts_where_the_topic_says_so(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        now_ms = bench.clock.now_ms()
        await bench.commit(batch(partition, timestamp_type=LOG_APPEND_TIME, timestamp_ms=5))
        assert (await self.listed(bench, partition, now_ms)).extent is not None
        assert (await self.listed(bench, partition, now_ms + 1)).extent is None

    async def test_unknown_partitions_and_timestamps_are_errors_of_their_entry(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        assert isinstance(
            (await self.listed(bench, UNKNOWN_PARTITION, LATEST_TIMESTAMP)).error, UnknownPartition
        )
        assert isinstance((await self.listed(bench, partition, -6)).error, InvalidRequest)


class TestDeletingRecords:
    async def delete(
        self, bench: CoordinatorBench, partition: TopicIdPartition, offset: int
    ) -> int | type[Exception]:
        (answer,) = await bench.coordinator.delete_records([DeleteRecords(partition, offset)])
        return answer.log_start_offset if answer.error is None else type(answer.error)

    async def test_the_log_start_moves_up_and_never_down(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        for _ in range(3):
            await bench.commit(batch(partition, 10))
        assert await self.delete(bench, partition, 15) == 15
        assert spans((await bench.find(partition, 15)).extents) == [(10, 19), (20, 29)]
        assert await self.delete(bench, partition, 3) == 15
        assert await self.delete(bench, partition, 15) == 15
        assert await self.delete(bench, partition, 20) == 20
        assert spans((await bench.find(partition, 20)).extents) == [(20, 29)]
        assert await self.delete(bench, partition, -1) == 30
        assert (await bench.find(partition, 30)).error is None
        assert (await bench.commit_one(partition)).log_start_offset == 30
        assert spans((await bench.find(partition, 30)).extents) == [(30, 30)]

    @pytest.mark.parametrize("offset", [-2, 11])
    async def test_outside_the_log_is_out_of_range(
        self, bench: CoordinatorBench, offset: int
    ) -> None:
        partition = await bench.partition()
        await bench.commit(batch(partition, 10))
        assert await self.delete(bench, partition, offset) is OffsetOutOfRange

    async def test_two_requests_for_one_partition_apply_in_order(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit(batch(partition, 10))
        answers = await bench.coordinator.delete_records(
            [
                DeleteRecords(partition, 7),
                DeleteRecords(UNKNOWN_PARTITION, 0),
                DeleteRecords(partition, 5),
            ]
        )
        assert [answer.log_start_offset for answer in answers] == [7, -1, 7]
        assert isinstance(answers[1].error, UnknownPartition)

    async def test_a_file_lives_as_long_as_one_partition_needs_it(
        self, bench: CoordinatorBench
    ) -> None:
        first, second = await bench.partition("a"), await bench.partition("b")
        request = bench.file(batch(first, 5), batch(second, 5))
        await bench.coordinator.commit_file(request)
        for partition, deletable in ((first, []), (second, [request.object_key])):
            await self.delete(bench, partition, -1)
            files = await bench.coordinator.deletable_files(
                before_ms=2**60, after=(-1, -1), limit=10, is_owner=True
            )
            assert [file.object_key for _, file in files] == deletable


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

    async def test_names_are_taken_once_also_within_one_call(self, bench: CoordinatorBench) -> None:
        await bench.topic("a")
        answers = await bench.coordinator.create_topics(
            [
                CreateTopic(name=name, partition_count=count)
                for name, count in (("a", 1), ("b", 1), ("b", 1), ("c", 0))
            ]
        )
        assert isinstance(answers[0], TopicExists)
        assert isinstance(answers[1], TopicDescription)
        assert isinstance(answers[2], TopicExists)
        assert isinstance(answers[3], InvalidPartitions)
        assert sorted(bench.coordinator.replica.topics()) == ["a", "b"]

    async def test_a_deleted_topic_takes_its_data_and_frees_its_name(
        self, bench: CoordinatorBench
    ) -> None:
        first, second = await bench.partition("a"), await bench.partition("b")
        request = bench.file(batch(first, 5, producer=3), batch(second, 5))
        await bench.coordinator.commit_file(request)
        assert await bench.coordinator.delete_topics([first.topic_id]) == [None]
        (again,) = await bench.coordinator.delete_topics([first.topic_id])
        assert isinstance(again, UnknownTopicId)
        assert isinstance((await bench.find(first, 0)).error, UnknownPartition)
        assert isinstance((await bench.commit_one(first)).error, UnknownPartition)
        assert spans((await bench.find(second, 0)).extents) == [(0, 4)]
        recreated = await bench.partition("a")
        assert recreated.topic_id != first.topic_id
        assert (await bench.commit_one(recreated, producer=3)).base_offset == 0

    async def test_deleting_and_creating_a_name_in_one_go_leaves_the_new_topic(
        self, bench: CoordinatorBench
    ) -> None:
        old = await bench.topic("a", 2)
        deleted = bench.coordinator.delete_topics([old.topic_id])
        created = bench.coordinator.create_topics([CreateTopic(name="a", partition_count=1)])
        answers = await asyncio.gather(deleted, created)
        assert answers[0] == [None]
        assert bench.coordinator.replica.topics()["a"] == answers[1][0]
        assert bench.coordinator.replica.topic_by_id(old.topic_id) is None
