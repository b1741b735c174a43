"""Conformance of coordinators: offsets by time, and a log of two tiers."""

import pytest

from metadata import operations as ops
from tests.support.coordinators.conformance_bench import ConformanceBench
from tests.support.coordinators.coordinator_bench import UNKNOWN_PARTITION, batch
from tests.support.logs.log_media import LEASE_MS
from wal.coordinates import LOG_APPEND_TIME, TopicIdPartition
from wal.errors import InvalidRequest, OffsetOutOfRange, Rejected, UnknownPartition

NONE = (-1, -1)


async def _rows(bench: ConformanceBench, **configs: str) -> TopicIdPartition:
    """Four rows of ten records and 100 bytes; a segment has two of them."""
    partition = await bench.partition(segment_bytes="200", **configs)
    await _more(bench, partition, 4)
    return partition


async def _more(bench: ConformanceBench, partition: TopicIdPartition, count: int) -> None:
    for _ in range(count):
        await bench.commit_good(batch(partition, 10, timestamp_ms=bench.now_ms))


async def _segments(
    bench: ConformanceBench, partition: TopicIdPartition
) -> list[ops.RolledSegment]:
    """What is due, rolled."""
    plans = [plan for plan in await bench.client.plan_segments() if plan.partition == partition]
    return [bench.rolled(plan) for plan in sorted(plans, key=lambda plan: plan.base_offset)]


async def _starts(bench: ConformanceBench, partition: TopicIdPartition) -> tuple[int, int, int]:
    """EARLIEST, EARLIEST_LOCAL, LATEST_TIERED."""
    answers = await bench.client.list_offsets(
        [
            ops.ListOffsets(partition, timestamp)
            for timestamp in (
                ops.EARLIEST_TIMESTAMP,
                ops.EARLIEST_LOCAL_TIMESTAMP,
                ops.LATEST_TIERED_TIMESTAMP,
            )
        ]
    )
    earliest, local, tiered = (answer.offset for answer in answers)
    return earliest, local, tiered


class ListOffsetsCases:
    """Exact to the record, and strictly consistent."""

    @pytest.mark.parametrize(
        ("timestamp", "offset"),
        [
            (ops.LATEST_TIMESTAMP, 0),
            (ops.EARLIEST_TIMESTAMP, 0),
            (ops.MAX_TIMESTAMP, -1),
            (ops.EARLIEST_LOCAL_TIMESTAMP, 0),
            (ops.LATEST_TIERED_TIMESTAMP, -1),
            (0, -1),
            (1_000, -1),
        ],
    )
    async def test_of_an_empty_log(
        self, bench: ConformanceBench, timestamp: int, offset: int
    ) -> None:
        partition = await bench.partition()
        assert await bench.offset(partition, timestamp) == (offset, -1)

    async def test_the_first_record_at_or_after_a_time_of_creation(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.write(partition, [100, 120, 110], [300])
        await bench.write(partition, [200, 250])
        expected = {
            0: (0, 100),  # before the first
            100: (0, 100),  # exactly
            105: (1, 120),  # between, inside of a batch
            121: (3, 300),  # between, in the next batch
            250: (3, 300),  # the first in the order of offsets
            300: (3, 300),
            301: NONE,  # after the last
        }
        for timestamp, record in expected.items():
            assert await bench.offset(partition, timestamp) == record, timestamp

    async def test_special_timestamps_of_a_filled_log(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        await bench.write(partition, [100, 900], [300])
        await bench.write(partition, [900, 250])
        expected = {
            ops.LATEST_TIMESTAMP: (5, -1),
            ops.EARLIEST_TIMESTAMP: (0, -1),
            ops.MAX_TIMESTAMP: (1, 900),  # the first of several
            ops.EARLIEST_LOCAL_TIMESTAMP: (0, -1),
            ops.LATEST_TIERED_TIMESTAMP: NONE,
        }
        for timestamp, record in expected.items():
            assert await bench.offset(partition, timestamp) == record, timestamp

    async def test_where_the_time_of_append_counts_it_is_that_of_the_commit(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        first_ms = bench.now_ms
        await bench.write(partition, [5, 9_999], timestamp_type=LOG_APPEND_TIME)
        bench.clock.advance(1)
        await bench.write(partition, [1, 2], timestamp_type=LOG_APPEND_TIME)
        expected = {
            5: (0, first_ms),
            first_ms: (0, first_ms),
            first_ms + 1: (2, first_ms + 1_000),
            first_ms + 1_001: NONE,
            ops.MAX_TIMESTAMP: (2, first_ms + 1_000),
        }
        for timestamp, record in expected.items():
            assert await bench.offset(partition, timestamp) == record, timestamp

    async def test_no_answer_is_below_the_log_start(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        await bench.write(partition, [900, 910])
        await bench.write(partition, [300, 310, 320])
        await bench.delete_records(partition, 3)
        assert await bench.offset(partition, ops.EARLIEST_TIMESTAMP) == (3, -1)
        assert await bench.offset(partition, ops.EARLIEST_LOCAL_TIMESTAMP) == (3, -1)
        # The row of the record at 300 is still there, in part.
        assert (await bench.offset(partition, 0))[0] == 3
        assert await bench.offset(partition, 315) == (4, 320)
        assert await bench.offset(partition, ops.MAX_TIMESTAMP) == (4, 320)
        assert await bench.offset(partition, 321) == NONE

    @pytest.mark.about_routing
    async def test_unknown_partitions_are_errors_of_their_entries(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2)
        await bench.commit_good(batch(first, 3), batch(second, 4))
        answers = await bench.client.list_offsets(
            [
                ops.ListOffsets(each, ops.LATEST_TIMESTAMP)
                for each in (second, UNKNOWN_PARTITION, first, first._replace(partition=2), second)
            ]
        )
        assert [answer.offset for answer in answers] == [4, -1, 3, -1, 4]
        assert isinstance(answers[1].error, UnknownPartition)
        assert isinstance(answers[3].error, UnknownPartition)

    @pytest.mark.parametrize("timestamp", [-6, -(2**63)])
    async def test_there_are_no_timestamps_below_minus_five(
        self, bench: ConformanceBench, timestamp: int
    ) -> None:
        partition = await bench.partition()
        assert isinstance((await bench.listed(partition, timestamp)).error, InvalidRequest)

    async def test_what_was_answered_before_is_in_the_answer(self, bench: ConformanceBench) -> None:
        partitions = await bench.partitions(3)
        for count in range(1, 8):
            await bench.commit_good(*[batch(each) for each in partitions])
            assert [await bench.high_watermark(each) for each in partitions] == [count] * 3
        await bench.delete_records(partitions[0], 5)
        assert await bench.offset(partitions[0], ops.EARLIEST_TIMESTAMP) == (5, -1)

    @pytest.mark.about_log
    async def test_a_leader_whose_lease_ran_out_answers_as_well(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(batch(partition, 3))
        for _ in range(3):
            bench.clock.advance(5 * LEASE_MS / 1_000)
            assert await bench.high_watermark(partition) == 3

    @pytest.mark.about_log
    async def test_the_next_leader_answers_with_all_that_was_acknowledged(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        await bench.commit_good(*[batch(each, 3) for each in partitions])
        await bench.fail_over()
        assert [await bench.high_watermark(each) for each in partitions] == [3, 3, 3]


class TierCases:
    """Rows are replaced by segments; the log itself stays what it was."""

    async def test_a_segment_moves_the_local_start_and_leaves_the_log_start(
        self, bench: ConformanceBench
    ) -> None:
        partition = await _rows(bench)
        assert await _starts(bench, partition) == (0, 0, -1)
        first, second = await _segments(bench, partition)
        await bench.client.commit_segments([first])
        assert await _starts(bench, partition) == (0, 20, 19)
        await bench.client.commit_segments([second])
        assert await _starts(bench, partition) == (0, 40, 39)
        await _more(bench, partition, 1)
        assert await _starts(bench, partition) == (0, 40, 39)
        assert await bench.high_watermark(partition) == 50

    async def test_starts_only_move_up_over_deletions_in_either_tier(
        self, bench: ConformanceBench
    ) -> None:
        partition = await _rows(bench)
        await bench.client.commit_segments(await _segments(bench, partition))
        await _more(bench, partition, 1)
        seen = [await _starts(bench, partition)]
        for log_start in (5, 20, 39, 45, 50):
            await bench.delete_records(partition, log_start)
            seen.append(await _starts(bench, partition))
        assert seen == [
            (0, 40, 39),
            (5, 40, 39),
            (20, 40, 39),
            (39, 40, 39),
            (45, 45, -1),
            (50, 50, -1),
        ]

    async def test_reading_crosses_tiers_without_a_gap(self, bench: ConformanceBench) -> None:
        partition = await _rows(bench)
        await bench.client.commit_segments((await _segments(bench, partition))[:1])
        offset, seen = 0, []
        while offset < 40:
            found = await bench.find(partition, offset)
            for extent in found.extents:
                assert extent.base_offset == offset
                offset = extent.last_offset + 1
                seen.append(isinstance(extent, ops.SegmentExtent))
        assert seen == [True, False, False]

    async def test_segments_take_whole_rows_and_free_their_files(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition(segment_bytes="150")
        files = [await bench.commit_good(batch(partition, 10)) for _ in range(3)]
        keys = [file.object_key for file in files]
        (segment,) = await _segments(bench, partition)
        assert (segment.base_offset, segment.last_offset) == (0, 19)
        assert await bench.is_live(*keys) == [True, True, True]
        await bench.client.commit_segments([segment])
        assert await bench.is_live(*keys, segment.object_key) == [False, False, True, True]

    @pytest.mark.about_routing
    async def test_a_file_lives_as_long_as_a_partition_has_not_tiered_it(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2, segment_bytes="100")
        file = await bench.commit_good(batch(first, 10), batch(second, 10))
        lives = []
        for partition in (first, second):
            await bench.client.commit_segments(await _segments(bench, partition))
            lives += await bench.is_live(file.object_key)
        assert lives == [True, False]

    async def test_the_size_of_a_log_is_that_of_its_segments_and_rows(
        self, bench: ConformanceBench
    ) -> None:
        partition = await _rows(bench, retention_bytes="650", retention_ms="-1")
        segments = await _segments(bench, partition)
        assert bench.live_bytes(partition) == 400
        await bench.client.commit_segments(segments)
        assert bench.live_bytes(partition) == sum(each.object_bytes for each in segments) == 1_000
        await _more(bench, partition, 1)
        await bench.retain()
        assert await bench.log_start(partition) == 0
        await _more(bench, partition, 1)
        await bench.retain()
        assert await _starts(bench, partition) == (20, 40, 39)

    async def test_the_same_segment_again_changes_nothing(self, bench: ConformanceBench) -> None:
        partition = await _rows(bench)
        first = (await _segments(bench, partition))[0]
        answers = await bench.client.commit_segments([first, first])
        assert [(each.is_duplicate, each.error) for each in answers] == [
            (False, None),
            (True, None),
        ]
        await bench.restart()
        (answer,) = await bench.client.commit_segments([first])
        assert (answer.is_duplicate, answer.error) == (True, None)
        assert await _starts(bench, partition) == (0, 20, 19)

    @pytest.mark.about_routing
    async def test_segments_are_answered_in_the_order_of_the_request_each_for_itself(
        self, bench: ConformanceBench
    ) -> None:
        kept, gone = await _rows(bench), await _rows(bench)
        first, second = await _segments(bench, kept)
        of_gone = (await _segments(bench, gone))[0]
        await bench.client.delete_topics([gone.topic_id])
        broken = ops.RolledSegment(
            partition=second.partition,
            object_key=second.object_key,
            base_offset=second.base_offset,
            last_offset=second.last_offset,
            object_bytes=second.object_bytes,
            crc32c=second.crc32c,
            record_count=second.record_count - 1,
            max_timestamp_ms=second.max_timestamp_ms,
        )
        answers = await bench.client.commit_segments([of_gone, second, broken, first])
        assert [type(answer.error) for answer in answers] == [
            UnknownPartition,
            type(None),
            Rejected,
            type(None),
        ]
        assert await _starts(bench, kept) == (0, 40, 39)

    @pytest.mark.about_log
    async def test_plans_and_segments_outlive_the_process_the_state_and_the_leader(
        self, bench: ConformanceBench
    ) -> None:
        partition = await _rows(bench)
        first, second = await _segments(bench, partition)
        await bench.client.commit_segments([first])
        await bench.restart()
        assert await _segments(bench, partition) == [second]
        await bench.fail_over()
        assert await _segments(bench, partition) == [second]
        assert await _starts(bench, partition) == (0, 20, 19)

    async def test_timestamps_are_found_in_both_tiers(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        await bench.write(partition, [100, 900], [200])
        await bench.tier(partition)
        await bench.write(partition, [300, 950])
        expected = {
            0: (0, 100),
            150: (1, 900),
            901: (4, 950),
            951: NONE,
            ops.MAX_TIMESTAMP: (4, 950),
            ops.LATEST_TIERED_TIMESTAMP: (2, 900),
            ops.EARLIEST_LOCAL_TIMESTAMP: (3, -1),
        }
        for timestamp, record in expected.items():
            assert await bench.offset(partition, timestamp) == record, timestamp

    async def test_a_tiered_log_is_out_of_range_below_its_log_start_alone(
        self, bench: ConformanceBench
    ) -> None:
        partition = await _rows(bench)
        await bench.client.commit_segments(await _segments(bench, partition))
        await bench.delete_records(partition, 25)
        assert await bench.spans(partition, 25) == [(20, 39)]
        assert isinstance((await bench.find(partition, 24)).error, OffsetOutOfRange)
        assert (await bench.find(partition, 40)).error is None
        assert isinstance((await bench.find(partition, 41)).error, OffsetOutOfRange)
