"""Conformance of coordinators: finding batches, within limits and in turn."""

import pytest

from metadata.operations import FindBatches, FoundBatches, WalExtent
from tests.support.coordinators.conformance_bench import ConformanceBench, spans
from tests.support.coordinators.coordinator_bench import UNKNOWN_PARTITION, batch
from wal.coordinates import BatchExtent, Offset, TopicIdPartition
from wal.errors import OffsetOutOfRange, UnknownPartition

ROW_BYTES = 100


def at_start(partitions: list[TopicIdPartition], max_bytes: int) -> list[FindBatches]:
    return [FindBatches(partition, 0, max_bytes) for partition in partitions]


def counts(answers: object) -> list[int]:
    assert isinstance(answers, list | tuple)
    assert all(answer.error is None for answer in answers)
    return [len(answer.extents) for answer in answers]


async def _rows(bench: ConformanceBench, partitions: list[TopicIdPartition], count: int) -> None:
    """`count` rows of one record and ROW_BYTES in each of `partitions`."""
    for _ in range(count):
        await bench.commit_good(*[batch(each, size=ROW_BYTES) for each in partitions])


class FindCases:
    """What is found where, and how much of it."""

    async def test_any_offset_inside_a_row_finds_it_and_what_follows(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        for _ in range(3):
            await bench.commit_good(batch(partition, 5))
        for offset in range(5, 10):
            found = await bench.find(partition, offset)
            assert spans(found) == [(5, 9), (10, 14)]
            assert (found.log_start_offset, found.high_watermark) == (0, 15)

    async def test_a_row_tells_where_its_bytes_are_and_which_times_they_have(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        bench.clock.advance(1)
        request = await bench.commit_good(
            batch(partition, 2, size=70, timestamp_ms=5),
            batch(partition, 3, size=30, timestamp_ms=3),
        )
        found = await bench.find(partition, 4)
        assert list(found.extents) == [
            WalExtent(
                object_key=request.object_key,
                byte_offset=request.batches[0].byte_offset,
                length_bytes=100,
                base_offset=Offset(0),
                last_offset=Offset(4),
                log_append_time_ms=bench.now_ms,
                max_timestamp_ms=5,
                timestamp_type=0,
                object_bytes=request.file_size_bytes,
            )
        ]

    async def test_before_the_first_commit_there_is_nothing_and_no_error(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        found = await bench.find(partition, 0)
        assert (list(found.extents), found.error) == ([], None)
        assert (found.log_start_offset, found.high_watermark) == (0, 0)

    async def test_at_the_high_watermark_there_is_nothing_and_no_error(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(batch(partition, 12))
        found = await bench.find(partition, 12)
        assert (list(found.extents), found.error, found.high_watermark) == ([], None, 12)

    @pytest.mark.parametrize("offset", [-1, 1, 4, 13])
    async def test_outside_the_log_is_out_of_range_with_its_true_bounds(
        self, bench: ConformanceBench, offset: int
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(batch(partition, 12))
        await bench.delete_records(partition, 5)
        found = await bench.find(partition, offset)
        assert isinstance(found.error, OffsetOutOfRange)
        assert (found.log_start_offset, found.high_watermark) == (5, 12)
        assert list(found.extents) == []

    @pytest.mark.parametrize("offset", [-1, 1])
    async def test_an_empty_log_has_the_offset_zero_and_no_other(
        self, bench: ConformanceBench, offset: int
    ) -> None:
        partition = await bench.partition()
        found = await bench.find(partition, offset)
        assert isinstance(found.error, OffsetOutOfRange)
        assert (found.log_start_offset, found.high_watermark) == (0, 0)

    @pytest.mark.about_routing
    async def test_an_unknown_partition_is_an_error_of_its_entry_alone(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2)
        await _rows(bench, [first, second], 1)
        beyond = first._replace(partition=2)
        answers = await bench.find_all(
            at_start([UNKNOWN_PARTITION, first, beyond, second], 100), max_bytes=1_000
        )
        assert isinstance(answers[0].error, UnknownPartition)
        assert isinstance(answers[2].error, UnknownPartition)
        assert spans(answers[1]) == spans(answers[3]) == [(0, 0)]

    async def test_what_was_committed_is_found_at_once(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        for offset in range(20):
            await bench.commit_good(batch(partition))
            assert await bench.spans(partition, offset) == [(offset, offset)]

    async def test_a_long_backlog_is_found_without_a_gap(self, bench: ConformanceBench) -> None:
        first, second = await bench.partitions(2)
        # Batches of two partitions in turn are rows of their own.
        await bench.commit_good(*[batch(each) for _ in range(200) for each in (first, second)])
        assert await bench.spans(first, 3) == [(offset, offset) for offset in range(3, 200)]

    # -- limits

    @pytest.mark.about_routing
    async def test_limits_of_the_request_and_of_partitions(self, bench: ConformanceBench) -> None:
        partitions = await bench.partitions(3)
        await _rows(bench, partitions, 3)
        for max_bytes, partition_max_bytes, expected in (
            # The row that reaches or crosses a limit is the last one.
            (1_000, 1_000, [3, 3, 3]),
            (1_000, 300, [3, 3, 3]),
            (1_000, 201, [3, 3, 3]),
            (1_000, 200, [2, 2, 2]),
            (1_000, 101, [2, 2, 2]),
            (1_000, 1, [1, 1, 1]),
            # Partitions behind have what those before left.
            (301, 1_000, [3, 1, 0]),
            (300, 1_000, [3, 0, 0]),
            (201, 1_000, [3, 0, 0]),
            (200, 1_000, [2, 0, 0]),
            (250, 150, [2, 1, 0]),
            (100, 1_000, [1, 0, 0]),
            # One row per request in any case.
            (1, 1_000, [1, 0, 0]),
            (0, 1_000, [1, 0, 0]),
            (1_000, 0, [1, 0, 0]),
            (0, 0, [1, 0, 0]),
        ):
            answers = await bench.find_all(
                at_start(partitions, partition_max_bytes), max_bytes=max_bytes
            )
            assert counts(answers) == expected, (max_bytes, partition_max_bytes)
            # Who gets nothing is told its offsets all the same.
            assert [answer.high_watermark for answer in answers] == [3, 3, 3]

    async def test_an_answer_is_at_most_one_row_too_long(self, bench: ConformanceBench) -> None:
        partitions = await bench.partitions(3)
        sizes = [10, 300, 40, 5, 120]
        for size in sizes:
            await bench.commit_good(*[batch(each, size=size) for each in partitions])
        for limit in range(1, 1_500, 97):
            answers = await bench.find_all(at_start(partitions, 1 << 20), max_bytes=limit)
            lengths = [
                extent.length_bytes
                for answer in answers
                for extent in answer.extents
                if isinstance(extent, WalExtent)
            ]
            assert sum(lengths[:-1]) < limit
            assert sum(lengths) >= min(limit, 3 * sum(sizes))

    async def test_what_lies_before_the_asked_offset_is_not_counted(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2)
        # Ten batches of one row.
        await bench.commit_good(*[batch(first, size=100)] * 10, batch(second, size=100))
        for offset, max_bytes, expected in (
            (0, 150, [1, 0]),
            (8, 200, [1, 0]),
            (8, 201, [1, 1]),
            (9, 101, [1, 1]),
        ):
            requests = [FindBatches(first, offset, 1_000), FindBatches(second, 0, 1_000)]
            answers = await bench.find_all(requests, max_bytes=max_bytes)
            assert counts(answers) == expected, (offset, max_bytes)

    @pytest.mark.about_routing
    async def test_the_first_partition_that_has_something_gets_one_row_whatever_the_limits(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        await bench.commit_good(*[batch(each, size=900) for each in partitions[1:]])
        requests = [
            FindBatches(UNKNOWN_PARTITION, 0, 100),
            FindBatches(partitions[2], 7, 100),
            *at_start(partitions, 0),
        ]
        answers = await bench.find_all(requests, max_bytes=0)
        assert [len(answer.extents) for answer in answers] == [0, 0, 0, 1, 0]
        answers = await bench.find_all(requests, max_bytes=0, at_least_one=False)
        assert [len(answer.extents) for answer in answers] == [0] * 5

    @pytest.mark.parametrize(("most", "expected"), [(2, [2, 2]), (1, [1, 1]), (9, [4, 4])])
    async def test_batches_per_partition_are_limited(
        self, bench: ConformanceBench, most: int, expected: list[int]
    ) -> None:
        partitions = await bench.partitions(2)
        await _rows(bench, partitions, 4)
        answers = await bench.find_all(
            at_start(partitions, 1_000), max_bytes=1_000, batches_per_partition_max=most
        )
        assert counts(answers) == expected

    async def test_a_coalesced_row_counts_with_all_its_bytes_and_as_one(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2)
        await bench.commit_good(*[batch(first, size=50)] * 4, *[batch(second, size=50)] * 4)
        answers = await bench.find_all(
            at_start([first, second], 1_000), max_bytes=1_000, batches_per_partition_max=1
        )
        assert [spans(answer) for answer in answers] == [[(0, 3)], [(0, 3)]]
        answers = await bench.find_all(at_start([first, second], 1_000), max_bytes=200)
        assert counts(answers) == [1, 0]
        answers = await bench.find_all(at_start([first, second], 1_000), max_bytes=201)
        assert counts(answers) == [1, 1]

    # -- order

    @pytest.mark.about_routing
    async def test_answers_come_in_the_order_of_the_request_and_so_does_the_budget(
        self, bench: ConformanceBench
    ) -> None:
        topics = [await bench.partitions(2) for _ in range(3)]
        for number, partitions in enumerate(topics):
            for index, partition in enumerate(partitions):
                await bench.commit_good(batch(partition, 1 + number * 2 + index))
        mixed = [topics[number][index] for index in (1, 0) for number in (2, 0, 1)]
        answers = await bench.find_all(at_start(mixed, 1_000), max_bytes=301)
        assert [answer.high_watermark for answer in answers] == [6, 2, 4, 5, 1, 3]
        assert counts(answers) == [1, 1, 1, 1, 0, 0]

    @pytest.mark.about_routing
    async def test_one_partition_may_be_asked_for_twice(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        await _rows(bench, [partition], 3)
        answers = await bench.find_all(
            [FindBatches(partition, 2, 10), FindBatches(partition, 0, 1_000)], max_bytes=10_000
        )
        assert [spans(answer) for answer in answers] == [[(2, 2)], [(0, 0), (1, 1), (2, 2)]]

    @pytest.mark.about_routing
    @pytest.mark.parametrize(
        ("partition_count", "served_per_round", "rounds", "expected"),
        [(4, 1, 32, 8), (10, 5, 50, 25)],
    )
    async def test_rotating_the_request_serves_all_partitions_alike(
        self,
        bench: ConformanceBench,
        partition_count: int,
        served_per_round: int,
        rounds: int,
        expected: int,
    ) -> None:
        partitions = await bench.partitions(partition_count)
        rows: list[BatchExtent] = [
            batch(partition, size=ROW_BYTES)
            for _ in range(expected + 5)
            for partition in partitions
        ]
        await bench.commit_good(*rows)
        positions = dict.fromkeys(partitions, 0)
        for turn in range(rounds):
            shift = turn % partition_count
            order = partitions[shift:] + partitions[:shift]
            answers = await bench.find_all(
                [FindBatches(each, positions[each], ROW_BYTES) for each in order],
                max_bytes=served_per_round * ROW_BYTES,
            )
            for partition, answer in zip(order, answers, strict=True):
                positions[partition] = next_offset(answer, positions[partition])
        assert list(positions.values()) == [expected] * partition_count


def next_offset(answer: FoundBatches, offset: int) -> int:
    assert answer.error is None
    return answer.extents[-1].last_offset + 1 if answer.extents else offset
