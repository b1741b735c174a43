"""Conformance of coordinators: idempotent producers, and the ids that they are given."""

import asyncio

import pytest

from metadata.operations import BatchCommit
from metadata.rules.topics import PRODUCER_ID_BLOCK
from metadata.state.schema import PRODUCER_STATES
from tests.support.coordinators.conformance_bench import ConformanceBench
from tests.support.coordinators.coordinator_bench import batch
from wal.coordinates import LOG_APPEND_TIME, BatchExtent, TopicIdPartition
from wal.errors import OutOfOrderSequence, StaleProducerEpoch

MAX = 2**31 - 1
DAY_S = 24 * 3_600
PRODUCER = 9


def sent(
    partition: TopicIdPartition, sequence: int, records: int = 1, *, epoch: int = 0
) -> BatchExtent:
    return batch(partition, records, producer=PRODUCER, epoch=epoch, sequence=sequence)


def told(answers: list[BatchCommit]) -> list[object]:
    """Per batch: the offset of a new one, (offset,) of a duplicate, or the class of the refusal."""
    return [
        type(answer.error)
        if answer.error is not None
        else (answer.base_offset,)
        if answer.is_duplicate
        else answer.base_offset
        for answer in answers
    ]


async def _told(bench: ConformanceBench, *batches: BatchExtent) -> list[object]:
    """Of all `batches` in one file."""
    return told(list(await bench.commit(*batches)))


async def _states(bench: ConformanceBench, partition: TopicIdPartition) -> int:
    """How many producers the coordinator of a partition remembers."""
    rows = await bench.rows(bench.coordinator_of(partition))
    return len(rows[PRODUCER_STATES.name])


class IdempotenceCases:
    """Kafka's rules for sequences and epochs, over files, clients, restarts and leaders."""

    # -- duplicates

    async def test_each_of_the_last_five_batches_is_told_by_its_first_offset(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(batch(partition, 100))
        batches = [sent(partition, at, 10) for at in range(0, 50, 10)]
        await bench.commit_good(*batches)
        size = bench.live_bytes(partition)
        for one, offset in zip(batches, range(100, 150, 10), strict=True):
            assert await _told(bench, one) == [(offset,)]
        assert await _told(bench, *batches) == [(offset,) for offset in range(100, 150, 10)]
        assert await bench.high_watermark(partition) == 150
        assert bench.live_bytes(partition) == size

    async def test_the_sixth_oldest_batch_is_out_of_order(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        for sequence in range(6):
            await bench.commit_good(sent(partition, sequence))
        assert await _told(bench, sent(partition, 0)) == [OutOfOrderSequence]
        assert await _told(bench, sent(partition, 1)) == [(1,)]
        assert await bench.high_watermark(partition) == 6

    async def test_duplicates_within_one_file_are_told(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        one, two = sent(partition, 0, 3), sent(partition, 3, 2)
        assert await _told(bench, one, one, two, one, two) == [0, (0,), 3, (0,), (3,)]

    async def test_duplicates_in_files_that_are_committed_at_the_same_time_are_told(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        answers = await asyncio.gather(*[bench.commit(sent(partition, 0, 3)) for _ in range(8)])
        assert sorted(answer.is_duplicate for (answer,) in answers) == [False] + [True] * 7
        assert {answer.base_offset for (answer,) in answers} == {0}
        assert await bench.high_watermark(partition) == 3

    @pytest.mark.about_routing
    async def test_a_duplicate_is_told_to_any_client(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        await bench.commit_good(sent(partition, 0, 3))
        for client in (bench.life.local, bench.client):
            (answer,) = await client.commit_file(bench.file(sent(partition, 0, 3)))
            assert (answer.base_offset, answer.is_duplicate) == (0, True)

    @pytest.mark.about_log
    async def test_duplicates_are_told_after_a_restart_and_by_the_next_leader(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        first = sent(partition, 0, 3)
        await bench.commit_good(first)
        await bench.restart()
        assert await _told(bench, first, sent(partition, 3)) == [(0,), 3]
        await bench.fail_over()
        assert await _told(bench, first, sent(partition, 3), sent(partition, 4)) == [
            (0,),
            (3,),
            4,
        ]

    async def test_a_duplicate_of_deleted_records_still_has_its_first_offset(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(sent(partition, 0, 3), batch(partition, 3))
        await bench.delete_records(partition, 5)
        (answer,) = await bench.commit(sent(partition, 0, 3))
        assert (answer.base_offset, answer.is_duplicate) == (0, True)
        assert answer.log_start_offset == 5

    async def test_a_duplicate_has_the_time_of_append_of_the_first(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        one = sent(partition, 0, 3)._replace(timestamp_type=LOG_APPEND_TIME)
        first_ms = bench.now_ms
        for _ in range(3):
            (answer,) = await bench.commit(one)
            assert answer.log_append_time_ms == first_ms
            bench.clock.advance(1)

    async def test_a_file_of_duplicates_alone_has_no_live_batches(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        original = await bench.commit_good(sent(partition, 0))
        again = bench.file(sent(partition, 0))
        await bench.client.commit_file(again)
        assert await bench.is_live(original.object_key, again.object_key) == [True, False]

    async def test_batches_without_a_producer_are_never_duplicates_and_leave_no_state(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        before = await _states(bench, partition)
        assert await _told(bench, batch(partition), batch(partition)) == [0, 1]
        assert await _told(bench, batch(partition)) == [2]
        assert await _states(bench, partition) == before

    @pytest.mark.about_routing
    async def test_what_is_remembered_is_of_one_producer_on_one_partition(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2)
        assert await _told(
            bench,
            batch(first, 3, producer=1),
            batch(second, 3, producer=1),
            batch(first, 3, producer=2),
            batch(first, 1, producer=1, sequence=3),
            batch(second, 3, producer=1),
            batch(second, 1, producer=1, sequence=9),
        ) == [0, 0, 3, 6, (0,), OutOfOrderSequence]

    # -- order

    async def test_a_producer_that_nobody_knows_may_start_anywhere(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        assert await _told(bench, sent(partition, 41), sent(partition, 42)) == [0, 1]

    @pytest.mark.parametrize("sequence", [13, 14, 16])
    async def test_what_overlaps_or_leaves_a_gap_is_refused_within_one_file(
        self, bench: ConformanceBench, sequence: int
    ) -> None:
        partition = await bench.partition()
        assert await _told(
            bench,
            sent(partition, 10, 5),
            sent(partition, sequence, 3),
            sent(partition, 15, 3),
        ) == [0, OutOfOrderSequence, 5]

    @pytest.mark.parametrize("sequence", [13, 14, 16])
    async def test_what_overlaps_or_leaves_a_gap_is_refused_over_files(
        self, bench: ConformanceBench, sequence: int
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(sent(partition, 10, 5))
        assert await _told(bench, sent(partition, sequence, 3)) == [OutOfOrderSequence]
        assert await bench.high_watermark(partition) == 5
        assert await _told(bench, sent(partition, 15, 3)) == [5]

    async def test_a_file_of_refused_batches_alone_has_no_live_batches(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(sent(partition, 0))
        refused = bench.file(sent(partition, 7))
        (answer,) = await bench.client.commit_file(refused)
        assert isinstance(answer.error, OutOfOrderSequence)
        assert await bench.is_live(refused.object_key) == [False]

    # -- the wrap

    async def test_zero_follows_the_last_sequence_in_one_file(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        last, after = sent(partition, MAX - 4, 5), sent(partition, 0, 3)
        assert await _told(
            bench, last, sent(partition, 1), after, sent(partition, 3), last, after
        ) == [0, OutOfOrderSequence, 5, 8, (0,), (5,)]

    async def test_zero_follows_the_last_sequence_over_files(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        last, after = sent(partition, MAX), sent(partition, 0)
        assert await _told(bench, last) == [0]
        assert await _told(bench, sent(partition, 1)) == [OutOfOrderSequence]
        assert await _told(bench, after) == [1]
        assert await _told(bench, last) == [(0,)]
        assert await _told(bench, after) == [(1,)]
        assert await _told(bench, sent(partition, 1)) == [2]

    async def test_a_batch_may_span_the_wrap(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        spanning = sent(partition, MAX - 1, 4)  # MAX - 1, MAX, 0, 1
        assert await _told(bench, spanning) == [0]
        assert await _told(bench, sent(partition, 0)) == [OutOfOrderSequence]
        assert await _told(bench, sent(partition, 2)) == [4]
        assert await _told(bench, spanning) == [(0,)]
        await bench.fail_over()
        assert await _told(bench, spanning, sent(partition, 3)) == [(0,), 5]

    # -- epochs

    async def test_a_new_epoch_starts_at_zero(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        await bench.commit_good(sent(partition, 0, 5))
        assert await _told(bench, sent(partition, 5, epoch=1)) == [OutOfOrderSequence]
        assert await _told(bench, sent(partition, 0, 5, epoch=1)) == [5]
        assert await _told(bench, sent(partition, 0, 5, epoch=1)) == [(5,)]
        assert await _told(bench, sent(partition, 5, epoch=1)) == [10]
        assert await _told(bench, sent(partition, 1, epoch=7)) == [OutOfOrderSequence]
        assert await _told(bench, sent(partition, 0, epoch=7)) == [11]

    async def test_a_new_epoch_starts_at_zero_within_one_file(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        assert await _told(
            bench,
            sent(partition, 0, 5),
            sent(partition, 5, epoch=1),
            sent(partition, 0, 5, epoch=1),
            sent(partition, 5, epoch=1),
        ) == [0, OutOfOrderSequence, 5, 10]

    async def test_an_older_epoch_is_refused_within_one_file(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        assert await _told(
            bench,
            sent(partition, 0, epoch=3),
            sent(partition, 1, epoch=2),
            sent(partition, 0, epoch=2),
            sent(partition, 1, epoch=3),
        ) == [0, StaleProducerEpoch, StaleProducerEpoch, 1]

    @pytest.mark.about_log
    async def test_an_older_epoch_is_refused_over_files_and_leaders(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        old = sent(partition, 0, epoch=2)
        await bench.commit_good(old)
        await bench.commit_good(sent(partition, 0, epoch=3))
        assert await _told(bench, old) == [StaleProducerEpoch]
        await bench.fail_over()
        assert await _told(bench, old) == [StaleProducerEpoch]
        assert await _told(bench, sent(partition, 1, epoch=2)) == [StaleProducerEpoch]
        assert await bench.high_watermark(partition) == 2

    # -- expiry

    async def test_a_producer_that_was_silent_too_long_is_forgotten_and_may_start_anywhere(
        self, bench: ConformanceBench
    ) -> None:
        first, second = await bench.partitions(2)
        await bench.commit_good(sent(first, 0), sent(second, 0))
        bench.clock.advance(DAY_S - 10)
        await bench.commit_good(sent(second, 1))
        await bench.expire_producers()
        assert await _told(bench, sent(first, 7)) == [OutOfOrderSequence]
        bench.clock.advance(10.001)
        assert await _told(bench, sent(second, 7)) == [OutOfOrderSequence]
        remembered = await _states(bench, first)
        await bench.expire_producers()
        assert await _states(bench, first) < remembered
        assert await _told(bench, sent(first, 7), sent(second, 2)) == [1, 2]

    async def test_a_producer_that_has_expired_may_start_anywhere_before_its_row_is_gone(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit_good(sent(partition, 0, epoch=4))
        bench.clock.advance(DAY_S + 0.001)
        assert await _told(bench, sent(partition, 7, epoch=1)) == [1]
        assert await _told(bench, sent(partition, 8, epoch=1)) == [2]

    # -- producer ids

    @pytest.mark.about_routing
    async def test_producer_ids_are_never_given_out_twice(self, bench: ConformanceBench) -> None:
        blocks = [*await asyncio.gather(*[bench.client.allocate_producer_ids() for _ in range(9)])]
        for change in (bench.restart(), bench.fail_over()):
            await change
            blocks += [await bench.client.allocate_producer_ids() for _ in range(3)]
        ids = [number for block in blocks for number in block]
        assert len(set(ids)) == len(ids) == len(blocks) * PRODUCER_ID_BLOCK
        assert min(ids) >= 0
