"""Conformance of coordinators: committing files, and the rows that their batches become."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from metadata.messages.commit_file import COMMIT_FILE, COMMIT_FILES_AT, CommitFileMessage
from metadata.messages.shapes import Addressed
from metadata.operations import BatchCommit, CommitFile, CreatePartitions
from tests.support.coordinators.conformance_bench import ConformanceBench
from tests.support.coordinators.coordinator_bench import UNKNOWN_PARTITION, batch
from wal.coordinates import LOG_APPEND_TIME, TopicIdPartition
from wal.errors import OutOfOrderSequence, Rejected, StaleProducerEpoch, UnknownPartition


def as_bytes(request: CommitFile, answers: object) -> bytes:
    """The answers to `request` as they go over a wire."""
    assert isinstance(answers, Sequence)
    return COMMIT_FILE.encode_response(CommitFileMessage(request), answers)


async def _answered(bench: ConformanceBench) -> tuple[CommitFile, bytes]:
    """A commit with an answer of every kind, and that answer."""
    first, second = await bench.partitions(2)
    await bench.commit_good(batch(first, 2), batch(first, 3, producer=9))
    await bench.delete_records(first, 1)
    request = bench.file(
        batch(first, 2),
        batch(UNKNOWN_PARTITION),
        batch(first, 3, producer=9),
        batch(second, 4, timestamp_type=LOG_APPEND_TIME),
        batch(first, 1, producer=9, sequence=7),
    )
    answers = await bench.client.commit_file(request)
    assert [(answer.base_offset, answer.is_duplicate) for answer in answers] == [
        (5, False),
        (-1, False),
        (2, True),
        (0, False),
        (-1, False),
    ]
    return request, as_bytes(request, answers)


class CommitCases:
    """Offsets, refusals, and the same answer again."""

    async def test_a_file_without_batches_is_committed_and_nothing_lives_in_it(
        self, bench: ConformanceBench
    ) -> None:
        request = bench.file()
        assert await bench.is_live(request.object_key) == [None]
        assert list(await bench.client.commit_file(request)) == []
        assert await bench.is_live(request.object_key) == [False]

    @pytest.mark.about_routing
    async def test_a_good_batch_is_committed_beside_an_unknown_partition_and_an_unknown_topic(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        beyond = partition._replace(partition=1)
        answers = await bench.commit(batch(UNKNOWN_PARTITION), batch(partition, 4), batch(beyond))
        assert isinstance(answers[0].error, UnknownPartition)
        assert (answers[1].base_offset, answers[1].error) == (0, None)
        assert isinstance(answers[2].error, UnknownPartition)
        assert answers[0].base_offset == answers[2].base_offset == -1
        assert await bench.high_watermark(partition) == 4

    async def test_offsets_come_from_the_high_watermark_whatever_base_offset_was_sent(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(batch(partition, 10))
        request = bench.file(batch(partition, 3))
        sent = COMMIT_FILE.encode_request(CommitFileMessage(request), 1_000)
        assert sent.count(OFFSETS_0_TO_2) == 1
        message, _ = COMMIT_FILE.decode_request(sent.replace(OFFSETS_0_TO_2, OFFSETS_700_TO_702))
        (answer,) = await bench.client.commit_file(message.file)
        assert answer.base_offset == 10
        assert await bench.high_watermark(partition) == 13

    async def test_batches_of_a_partition_get_consecutive_offsets_in_the_order_of_the_request(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2)
        answers = await bench.commit(
            batch(first, 3), batch(second, 7), batch(first, 2), batch(first, 1), batch(second, 1)
        )
        assert [answer.base_offset for answer in answers] == [0, 0, 3, 5, 7]
        answers = await bench.commit(batch(second, 1), batch(first, 1))
        assert [answer.base_offset for answer in answers] == [8, 6]

    @pytest.mark.about_log
    async def test_files_committed_at_the_same_time_leave_no_gap(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        commits = [bench.commit(*[batch(each, 2) for each in partitions]) for _ in range(20)]
        answers = await asyncio.gather(*commits)
        for place, partition in enumerate(partitions):
            given = [answer[place].base_offset for answer in answers]
            assert sorted(given) == list(range(0, 40, 2))
            assert await bench.high_watermark(partition) == 40

    @pytest.mark.about_routing
    async def test_files_sent_one_after_the_other_are_committed_in_that_order(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        requests = [bench.file(batch(partition, producer=5, sequence=at)) for at in range(20)]
        answers = await asyncio.gather(*[bench.client.commit_file(each) for each in requests])
        assert [(answer.base_offset, answer.error) for (answer,) in answers] == [
            (offset, None) for offset in range(20)
        ]

    async def test_a_batch_without_bytes_is_the_callers_mistake_and_nothing_is_committed(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        request = bench.file(batch(partition, 1), batch(partition, 1, size=0))
        assert isinstance(await bench.whole_refusal(request), Rejected)
        assert await bench.high_watermark(partition) == 0
        assert await bench.is_live(request.object_key) == [None]

    @pytest.mark.about_routing
    async def test_errors_belong_to_batches_and_come_in_the_order_of_the_request(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2)
        await bench.commit_good(
            batch(first, 2, producer=3, epoch=4), batch(second, 2, producer=3, epoch=4)
        )
        answers = await bench.commit(
            batch(second, 1, producer=3, epoch=4, sequence=2),
            batch(first, 1, producer=3, epoch=4, sequence=9),
            batch(first, 1, producer=3, epoch=3, sequence=0),
            batch(UNKNOWN_PARTITION, 1),
            batch(first, 2, producer=3, epoch=4, sequence=0),
            batch(second, 1, producer=3, epoch=4, sequence=2),
            batch(first, 5),
        )
        told = [(answer.base_offset, answer.is_duplicate, type(answer.error)) for answer in answers]
        assert told == [
            (2, False, type(None)),
            (-1, False, OutOfOrderSequence),
            (-1, False, StaleProducerEpoch),
            (-1, False, UnknownPartition),
            (0, True, type(None)),
            (2, True, type(None)),
            (2, False, type(None)),
        ]

    async def test_one_time_of_append_holds_for_a_whole_file_and_never_goes_back(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)

        async def commit() -> set[int]:
            batches = [batch(each, timestamp_type=LOG_APPEND_TIME) for each in partitions]
            return {answer.log_append_time_ms for answer in await bench.commit(*batches)}

        bench.clock.advance(5)
        assert await commit() == {bench.now_ms}
        bench.clock.step_wall(-60)
        assert await commit() == {bench.now_ms + 60_000}
        await bench.restart()
        assert await commit() == {bench.now_ms + 60_000}
        bench.clock.step_wall(60)

    async def test_the_answer_tells_where_the_log_starts(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        (first,) = await bench.commit(batch(partition, 10))
        await bench.delete_records(partition, 7)
        (second,) = await bench.commit(batch(partition, 10))
        assert (first.log_start_offset, second.log_start_offset) == (0, 7)

    # -- the same object key again

    @pytest.mark.about_routing
    async def test_the_same_key_and_content_get_the_first_answer_byte_for_byte(
        self, bench: ConformanceBench
    ) -> None:
        request, first = await _answered(bench)
        partition = request.batches[0].partition
        await bench.commit_good(batch(partition, 1))
        await bench.delete_records(partition, 6)
        bench.clock.advance(3)
        assert as_bytes(request, await bench.client.commit_file(request)) == first
        await bench.client.delete_topics([partition.topic_id])
        assert as_bytes(request, await bench.client.commit_file(request)) == first
        await bench.restart()
        assert as_bytes(request, await bench.client.commit_file(request)) == first

    async def test_a_partition_that_was_unknown_stays_unknown_to_a_commit_that_is_sent_again(
        self, bench: ConformanceBench
    ) -> None:
        known, topic_id = await bench.partitions(3), UUID(int=bench.rng.getrandbits(128))
        later = [TopicIdPartition(topic_id, index) for index in range(3)]
        request = bench.file(*[batch(each, 2) for each in (*known, *later)])
        first = as_bytes(request, await bench.client.commit_file(request))
        await bench.client.create_partitions(
            [CreatePartitions(topic_id=topic_id, name="later", partition_count=3)]
        )
        assert as_bytes(request, await bench.client.commit_file(request)) == first
        assert [await bench.high_watermark(each) for each in (*known, *later)] == [2] * 3 + [0] * 3

    @pytest.mark.about_log
    async def test_the_first_answer_outlives_the_process_the_state_and_the_leader(
        self, bench: ConformanceBench
    ) -> None:
        request, first = await _answered(bench)
        await bench.restart()
        assert as_bytes(request, await bench.client.commit_file(request)) == first
        await bench.fail_over()
        assert as_bytes(request, await bench.client.commit_file(request)) == first
        assert await bench.high_watermark(request.batches[0].partition) == 7

    @pytest.mark.about_routing
    async def test_a_commit_sent_several_times_at_once_is_one_commit(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        request = bench.file(*[batch(each, 3) for each in partitions])
        answers = await asyncio.gather(*[bench.client.commit_file(request) for _ in range(5)])
        assert len({as_bytes(request, each) for each in answers}) == 1
        assert [await bench.high_watermark(each) for each in partitions] == [3, 3, 3]

    @pytest.mark.about_routing
    async def test_other_content_under_a_known_key_is_refused(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        request = await bench.commit_good(batch(partition, 2), batch(partition, 3))
        for other in (
            replace(request, batches=request.batches[:1]),
            replace(request, file_size_bytes=request.file_size_bytes + 1),
            replace(request, batches=[request.batches[0], request.batches[1]._replace(crc=1)]),
        ):
            assert isinstance(await bench.whole_refusal(other), Rejected)
        assert await bench.high_watermark(partition) == 5


class FilesTogetherCases:
    """Several files of a broker in one commit."""

    async def test_files_of_one_commit_are_decided_in_their_order(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        files = [
            bench.file(batch(partition, 3, producer=9)),
            bench.file(batch(partition, 2, producer=9, sequence=3), batch(partition, 1)),
            bench.file(batch(partition, 1, producer=9, sequence=5)),
        ]
        coordinator = bench.coordinator_of(partition)
        answers = await bench.client.call(COMMIT_FILES_AT, Addressed(coordinator, files))
        assert [[commit.base_offset for commit in answer.batches] for answer in answers] == [
            [0],
            [3, 5],
            [6],
        ]
        assert all(answer.error is None for answer in answers)
        assert await bench.high_watermark(partition) == 7
        # Each is known by its own key: asked again, together or alone, it has its first answer.
        again = await bench.client.call(COMMIT_FILES_AT, Addressed(coordinator, files[::-1]))
        assert again == [*answers][::-1]
        for file, answer in zip(files, answers, strict=True):
            assert as_bytes(file, await bench.client.commit_file(file)) == as_bytes(
                file, answer.batches
            )
        assert await bench.high_watermark(partition) == 7

    async def test_a_file_that_is_refused_leaves_those_beside_it(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        known = await bench.commit_good(batch(partition, 1))
        unsound = bench.file(batch(partition, 1))
        files = [
            bench.file(batch(partition, 2)),
            bench.file(batch(partition, 5), key=known.object_key),
            bench.file(batch(partition, 3)),
            replace(unsound, file_size_bytes=1),
            bench.file(batch(partition, 1), key=known.object_key),
        ]
        asked = Addressed(bench.coordinator_of(partition), files)
        answers = await bench.client.call(COMMIT_FILES_AT, asked)
        assert isinstance(answers[1].error, Rejected)
        assert isinstance(answers[3].error, Rejected)
        assert [
            [commit.base_offset for commit in answers[place].batches] for place in (0, 2, 4)
        ] == [[1], [3], [0]]
        assert await bench.high_watermark(partition) == 6


class CoalescingCases:
    """Batches that lie back to back become one row; nobody sees it in an answer."""

    async def test_coalesced_batches_are_answered_as_if_each_had_a_file_of_its_own(
        self, bench: ConformanceBench
    ) -> None:
        together, apart = await bench.partitions(2)
        sizes = (1, 4, 2, 3)
        of_one_file = await bench.commit(*[batch(together, size) for size in sizes])
        of_many = [(await bench.commit(batch(apart, size)))[0] for size in sizes]
        assert [outcome(answer) for answer in of_one_file] == [outcome(each) for each in of_many]
        assert await bench.spans(together) == [(0, 9)]
        assert await bench.spans(apart) == [(0, 0), (1, 4), (5, 6), (7, 9)]

    @pytest.mark.about_routing
    async def test_a_row_ends_where_another_partition_begins(self, bench: ConformanceBench) -> None:
        first, second = await bench.partitions(2)
        await bench.commit_good(batch(first), batch(first), batch(second), batch(first))
        assert await bench.spans(first) == [(0, 1), (2, 2)]

    async def test_a_row_ends_at_a_duplicate_and_at_a_refused_batch(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit(
            batch(partition, producer=4),
            batch(partition, producer=4),
            batch(partition, producer=4, sequence=1),
            batch(partition, producer=4, sequence=9),
            batch(partition, producer=4, sequence=2),
        )
        assert await bench.spans(partition) == [(0, 0), (1, 1), (2, 2)]

    async def test_a_row_has_one_type_of_timestamp(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        await bench.commit_good(
            batch(partition), batch(partition, timestamp_type=LOG_APPEND_TIME), batch(partition)
        )
        assert await bench.spans(partition) == [(0, 0), (1, 1), (2, 2)]

    async def test_two_producers_in_one_row_are_both_remembered(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        batches = [
            batch(partition, 2, producer=1),
            batch(partition, 3, producer=2),
            batch(partition, 1, producer=1, sequence=2),
        ]
        await bench.commit_good(*batches)
        assert await bench.spans(partition) == [(0, 5)]
        again = await bench.commit(*batches)
        assert [(answer.base_offset, answer.is_duplicate) for answer in again] == [
            (0, True),
            (2, True),
            (5, True),
        ]

    async def test_a_row_stays_until_the_log_start_passes_its_end(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        request = await bench.commit_good(batch(partition, 5), batch(partition, 5))
        for log_start in (5, 9):
            await bench.delete_records(partition, log_start)
            assert await bench.spans(partition, log_start) == [(0, 9)]
            assert await bench.is_live(request.object_key) == [True]
        await bench.delete_records(partition, 10)
        assert await bench.is_live(request.object_key) == [False]


def outcome(answer: BatchCommit) -> tuple[int, int, bool, object]:
    return answer.base_offset, answer.log_start_offset, answer.is_duplicate, answer.error


OFFSETS_0_TO_2 = bytes(15) + b"\x02"
"""BaseOffset and LastOffset of a batch of three records, as our own client sends them."""
OFFSETS_700_TO_702 = (700).to_bytes(8) + (702).to_bytes(8)
