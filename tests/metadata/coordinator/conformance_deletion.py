"""Conformance of coordinators: deleting records, retention, and what becomes of files."""

from collections.abc import Awaitable, Callable, Sequence

import pytest

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.operations import CommitFile, DeletedRecords, DeleteRecords
from metadata.replica.replica import Replica
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.orphan_scan import OrphanScan
from tests.support.coordinators.conformance_bench import ConformanceBench
from tests.support.coordinators.coordinator_bench import UNKNOWN_PARTITION, batch
from wal.coordinates import LOG_APPEND_TIME, ObjectKey, TopicIdPartition
from wal.errors import ObjectExpired, OffsetOutOfRange, UnknownPartition
from wal.stores.object_store import BytesBody
from wal.ulid import minted_ms

HOUR_S = 3_600


async def _log(bench: ConformanceBench) -> tuple[TopicIdPartition, list[ObjectKey]]:
    """Three rows of ten records, each in a file of its own."""
    partition = await bench.partition()
    files = [await bench.commit_good(batch(partition, 10)) for _ in range(3)]
    return partition, [file.object_key for file in files]


async def _write(bench: ConformanceBench, partition: TopicIdPartition, *ages_s: float) -> None:
    """A row of five records and 100 bytes per age."""
    for age_s in ages_s:
        await bench.commit_good(
            batch(partition, 5, timestamp_ms=bench.now_ms - round(age_s * 1_000))
        )


async def _is_stored(bench: ConformanceBench, key: ObjectKey) -> bool:
    return key in [stat.key async for stat in bench.store.list(key)]


async def _commit_error(bench: ConformanceBench, request: CommitFile) -> Exception | None:
    try:
        answers = await bench.client.commit_file(request)
    except ObjectExpired as error:
        return error
    return answers[0].error


async def _scan(bench: ConformanceBench, key: ObjectKey) -> None:
    """As the scan's worker does, but only where `key` lies."""
    assert minted_ms(key) <= bench.now_ms

    async def coordinator_ids() -> Sequence[int]:
        return range(bench.coordinators)

    scan = OrphanScan(
        bench.store,
        bench.client,
        coordinator_ids,
        settings=bench.settings,
        clock=bench.clock,
        rng=bench.rng,
        notes=NoteKeeper(bench.store, clock=bench.clock, rng=bench.rng),
    )
    await scan.scan_shard(int(key.split("/")[1], 16))


class DeleteRecordsCases:
    """The log start moves up, and rows that end below it go."""

    async def test_inside_a_row_the_row_stays_and_the_log_start_moves(
        self, bench: ConformanceBench
    ) -> None:
        partition, keys = await _log(bench)
        assert await bench.delete_records(partition, 15) == DeletedRecords(15)
        assert await bench.spans(partition, 15) == [(10, 19), (20, 29)]
        assert await bench.is_live(*keys) == [False, True, True]
        assert isinstance((await bench.find(partition, 14)).error, OffsetOutOfRange)

    async def test_at_the_end_of_a_row_the_row_goes(self, bench: ConformanceBench) -> None:
        partition, keys = await _log(bench)
        assert await bench.delete_records(partition, 20) == DeletedRecords(20)
        assert await bench.spans(partition, 20) == [(20, 29)]
        assert await bench.is_live(*keys) == [False, False, True]

    async def test_up_to_the_log_start_and_below_it_nothing_happens(
        self, bench: ConformanceBench
    ) -> None:
        partition, keys = await _log(bench)
        await bench.delete_records(partition, 15)
        for offset in (15, 14, 0):
            assert await bench.delete_records(partition, offset) == DeletedRecords(15)
        assert await bench.is_live(*keys) == [False, True, True]

    async def test_minus_one_means_everything(self, bench: ConformanceBench) -> None:
        partition, keys = await _log(bench)
        assert await bench.delete_records(partition, -1) == DeletedRecords(30)
        found = await bench.find(partition, 30)
        assert (found.log_start_offset, found.high_watermark) == (30, 30)
        assert (list(found.extents), found.error) == ([], None)
        assert await bench.is_live(*keys) == [False, False, False]
        (answer,) = await bench.commit(batch(partition, 1))
        assert (answer.base_offset, answer.log_start_offset) == (30, 30)

    @pytest.mark.parametrize("offset", [-2, 31])
    async def test_below_minus_one_and_above_the_high_watermark_is_out_of_range(
        self, bench: ConformanceBench, offset: int
    ) -> None:
        partition, keys = await _log(bench)
        answer = await bench.delete_records(partition, offset)
        assert isinstance(answer.error, OffsetOutOfRange)
        assert await bench.log_start(partition) == 0
        assert await bench.is_live(*keys) == [True, True, True]

    @pytest.mark.about_routing
    async def test_a_file_lives_as_long_as_one_partition_needs_it(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        file = await bench.commit_good(*[batch(each, 5) for each in partitions])
        lives = []
        for partition in partitions:
            await bench.delete_records(partition, -1)
            lives += await bench.is_live(file.object_key)
        assert lives == [True, True, False]

    @pytest.mark.about_routing
    async def test_partitions_in_any_order_and_several_times_are_answered_in_that_order(
        self, bench: ConformanceBench
    ) -> None:
        first, second, third = await bench.partitions(3)
        await bench.commit_good(*[batch(each, 10) for each in (first, second, third)])
        answers = await bench.client.delete_records(
            [
                DeleteRecords(third, 3),
                DeleteRecords(first, 7),
                DeleteRecords(UNKNOWN_PARTITION, 0),
                DeleteRecords(second, 11),
                DeleteRecords(first, 5),
                DeleteRecords(third, -1),
            ]
        )
        assert [answer.log_start_offset for answer in answers if answer.error is None] == [
            3,
            7,
            7,
            10,
        ]
        assert isinstance(answers[2].error, UnknownPartition)
        assert isinstance(answers[3].error, OffsetOutOfRange)

    async def test_many_rows_go_in_one_call(self, bench: ConformanceBench) -> None:
        first, second = await bench.partitions(2)
        file = await bench.commit_good(
            *[batch(each) for _ in range(700) for each in (first, second)]
        )
        assert await bench.delete_records(first, 699) == DeletedRecords(699)
        assert await bench.spans(first, 699) == [(699, 699)]
        assert await bench.delete_records(second, -1) == DeletedRecords(700)
        assert await bench.is_live(file.object_key) == [True]


class Interfered:
    """A coordinator to whom something happens between retention's look at a partition and what it
    then asks to be deleted there."""

    def __init__(
        self,
        coordinator: PartitionCoordinator,
        partition: TopicIdPartition,
        interfere: Callable[[int], Awaitable[object]],
    ) -> None:
        """`interfere` is told the new log start that retention asks for."""
        self._coordinator = coordinator
        self._partition = partition
        self._interfere = interfere

    @property
    def replica(self) -> Replica:
        return self._coordinator.replica

    async def delete_records_at_once(
        self, requests: Sequence[DeleteRecords]
    ) -> Sequence[DeletedRecords]:
        for partition, before_offset in requests:
            if partition == self._partition:
                await self._interfere(before_offset)
        return await self._coordinator.delete_records_at_once(requests)


class RetentionCases:
    """Old rows go, and too many; by Kafka's rules, a bounded number at a time."""

    # -- by size

    async def test_by_size_an_empty_log_is_left_alone(self, bench: ConformanceBench) -> None:
        partition = await bench.partition(retention_bytes="0")
        await bench.retain()
        assert await bench.log_start(partition) == 0

    @pytest.mark.parametrize(
        ("limit", "log_start"),
        [(1_000, 0), (300, 0), (299, 0), (200, 5), (101, 5), (100, 10), (0, 15)],
    )
    async def test_by_size_at_least_the_limit_stays(
        self, bench: ConformanceBench, limit: int, log_start: int
    ) -> None:
        partition = await bench.partition(retention_bytes=str(limit))
        await _write(bench, partition, 0, 0, 0)
        await bench.retain()
        assert await bench.log_start(partition) == log_start

    async def test_by_size_a_row_that_is_deleted_in_part_counts_whole(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition(retention_bytes="200")
        await _write(bench, partition, 0, 0, 0, 0)
        await bench.delete_records(partition, 2)
        await bench.retain()
        assert await bench.log_start(partition) == 10

    async def test_by_size_a_step_of_one_row_deletes_one_row(self, bench: ConformanceBench) -> None:
        partition = await bench.partition(retention_bytes="100")
        await _write(bench, partition, *[0] * 4)
        asked: list[int] = []

        async def ask(before_offset: int) -> None:
            asked.append(before_offset)

        workers = bench.retention(
            lambda leading: Interfered(leading, partition, ask), step_rows_max=1
        )
        await workers[bench.coordinator_of(partition)].pass_once()
        assert asked == [5, 10, 15]
        assert await bench.log_start(partition) == 15

    async def test_by_size_small_steps_delete_as_much_as_large_ones(
        self, bench: ConformanceBench
    ) -> None:
        small, large = [await bench.partition(retention_bytes="250") for _ in range(2)]
        for partition in (small, large):
            await _write(bench, partition, *[0] * 7)
        workers = bench.retention(step_rows_max=2)
        await workers[bench.coordinator_of(small)].pass_once()
        await bench.retain()
        assert [await bench.log_start(each) for each in (small, large)] == [20, 20]

    # -- by time

    async def test_by_time_an_empty_log_is_left_alone(self, bench: ConformanceBench) -> None:
        partition = await bench.partition(retention_ms="0")
        await bench.retain()
        assert await bench.log_start(partition) == 0

    @pytest.mark.parametrize(
        ("ages_s", "log_start"),
        [
            ([1, 0.5, 0], 0),  # none: exactly as old as allowed is not too old
            ([1.001, 1, 0], 5),
            ([9, 9, 0.1, 0], 10),
            ([9, 8, 7], 15),  # all
            ([-5, 9, 9], 0),  # a timestamp in the future holds up the rest
            ([9, 0, 9, 9], 5),  # and so does any that is young enough
        ],
    )
    async def test_by_time_what_is_too_old_goes_up_to_the_first_that_is_not(
        self, bench: ConformanceBench, ages_s: list[float], log_start: int
    ) -> None:
        partition = await bench.partition(retention_ms="1000")
        await _write(bench, partition, *ages_s)
        await bench.retain()
        assert await bench.log_start(partition) == log_start

    async def test_by_time_the_time_of_append_is_that_of_the_commit(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition(retention_ms="1000")
        await bench.commit_good(batch(partition, 5, timestamp_ms=1, timestamp_type=LOG_APPEND_TIME))
        await bench.retain()
        assert await bench.log_start(partition) == 0
        bench.clock.advance(1.001)
        await bench.retain()
        assert await bench.log_start(partition) == 5

    async def test_by_time_a_row_is_as_young_as_its_youngest_batch(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition(retention_ms="1000")
        young, old = bench.now_ms - 500, bench.now_ms - 5_000
        await bench.commit_good(
            batch(partition, 2, timestamp_ms=old),
            batch(partition, 2, timestamp_ms=young),
            batch(partition, 2, timestamp_ms=old),
        )
        await bench.retain()
        assert await bench.spans(partition) == [(0, 5)]
        bench.clock.advance(0.501)
        await bench.retain()
        assert await bench.log_start(partition) == 6

    # -- both, neither, many

    async def test_both_rules_delete_what_either_wants_gone(self, bench: ConformanceBench) -> None:
        by_size = await bench.partition(retention_ms="1000", retention_bytes="100")
        by_time = await bench.partition(retention_ms="1000", retention_bytes="300")
        for partition in (by_size, by_time):
            await _write(bench, partition, 9, 0, 0, 0)
        await bench.retain()
        assert [await bench.log_start(each) for each in (by_size, by_time)] == [15, 5]

    async def test_without_a_rule_nothing_is_deleted(self, bench: ConformanceBench) -> None:
        unlimited = await bench.partition(retention_ms="-1", retention_bytes="-1")
        compacted = await bench.partition(cleanup_policy="compact", retention_ms="1")
        for partition in (unlimited, compacted):
            await _write(bench, partition, 99_999_999, 1)
        await bench.retain()
        assert [await bench.log_start(each) for each in (unlimited, compacted)] == [0, 0]

    @pytest.mark.about_routing
    async def test_every_partition_has_its_turn(self, bench: ConformanceBench) -> None:
        partitions = await bench.partitions(7, retention_ms="1000")
        for age_s in (9, 9, 0):
            await bench.commit_good(
                *[batch(each, 5, timestamp_ms=bench.now_ms - age_s * 1_000) for each in partitions]
            )
        await bench.retain(step_rows_max=3)
        assert [await bench.log_start(each) for each in partitions] == [10] * 7

    async def test_files_without_live_rows_are_left_to_be_deleted(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition(retention_ms="1000")
        old = await bench.commit_good(batch(partition, 5, timestamp_ms=1))
        young = await bench.commit_good(batch(partition, 5, timestamp_ms=bench.now_ms))
        await bench.retain()
        assert await bench.is_live(old.object_key, young.object_key) == [False, True]

    # -- what comes in between

    async def test_a_log_start_never_moves_back(self, bench: ConformanceBench) -> None:
        partition = await bench.partition(retention_bytes="200")
        await _write(bench, partition, *[0] * 4)
        await bench.delete_records(partition, 18)
        await bench.retain()
        assert await bench.log_start(partition) == 18

    async def test_a_log_start_moved_between_look_and_deletion_does_not_move_back(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition(retention_bytes="200")
        await _write(bench, partition, *[0] * 4)
        workers = bench.retention(
            lambda leading: Interfered(
                leading, partition, lambda _: bench.delete_records(partition, 18)
            )
        )
        await workers[bench.coordinator_of(partition)].pass_once()
        assert await bench.log_start(partition) == 18

    async def test_a_log_deleted_between_look_and_deletion_stays_deleted(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition(retention_ms="1000")
        await _write(bench, partition, 9, 9)
        workers = bench.retention(
            lambda leading: Interfered(
                leading, partition, lambda _: bench.client.delete_topics([partition.topic_id])
            )
        )
        await workers[bench.coordinator_of(partition)].pass_once()
        assert isinstance((await bench.find(partition, 0)).error, UnknownPartition)


class FileCases:
    """What becomes of objects that nobody needs."""

    @pytest.mark.about_routing
    async def test_files_are_unknown_live_or_drained(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        unknown = bench.file(batch(partition))
        live = await bench.commit_good(batch(partition))
        drained = await bench.commit_good(batch(partition))
        await bench.delete_records(partition, 1)
        keys = [each.object_key for each in (unknown, live, drained)]
        assert await bench.is_live(*keys) == [None, False, True]
        await bench.delete_records(partition, 2)
        assert await bench.is_live(*reversed(keys)) == [False, False, None]

    @pytest.mark.about_routing
    async def test_an_object_is_deleted_after_its_grace_and_no_earlier(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        file = await bench.commit_good(*[batch(each) for each in partitions])
        await bench.store.put(file.object_key, BytesBody(b"batches"))
        grace_s = bench.settings.file_delete_grace_ms / 1_000
        bench.clock.advance(grace_s * 2)
        await bench.work_on_files()
        for partition in partitions:
            await bench.delete_records(partition, -1)
        bench.clock.advance(grace_s)
        await bench.work_on_files()
        assert await _is_stored(bench, file.object_key)
        # Each coordinator that has a part in it hands it on, and the last one deletes it.
        for _ in range(bench.coordinators):
            bench.clock.advance(grace_s + 0.001)
            await bench.work_on_files()
        assert not await _is_stored(bench, file.object_key)
        # Its row stays as long as the commit might be sent again, and then goes.
        assert await bench.is_live(file.object_key) == [False]
        bench.clock.advance(bench.settings.max_commit_age_ms / 1_000)
        # What was handed on once more to who had forgotten it goes through all of that again.
        for _ in range(3 * bench.coordinators):
            await bench.work_on_files()
            bench.clock.advance(grace_s + 0.001)
        assert await bench.is_live(file.object_key) == [None]
        assert isinstance(await _commit_error(bench, file), ObjectExpired)

    async def test_deletable_files_come_by_age_strictly_behind_their_grace_and_not_too_many(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        files = []
        for _ in range(4):
            bench.clock.advance(1)
            files.append(await bench.commit_good(batch(partition)))
            await bench.delete_records(partition, -1)
        leading = bench.coordinator(bench.coordinator_of(partition))

        async def deletable(before_ms: int, limit: int = 1_000) -> list[ObjectKey]:
            rows = await leading.deletable_files(
                before_ms=before_ms, after=(bench.now_ms - 3_001, -1), limit=limit, is_owner=True
            )
            return [file.object_key for _, file in rows]

        keys = [file.object_key for file in files]
        assert await deletable(bench.now_ms + 1) == keys
        assert await deletable(bench.now_ms) == keys[:3]
        assert await deletable(bench.now_ms, limit=2) == keys[:2]

    # -- objects that were never committed

    @pytest.mark.about_routing
    async def test_an_upload_under_way_survives_the_scan_for_orphans_and_is_committed(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        file = bench.file(*[batch(each, 2) for each in partitions])
        await bench.store.put(file.object_key, BytesBody(b"batches"))
        bench.clock.advance(bench.settings.max_commit_age_ms / 1_000 - 1)
        await _scan(bench, file.object_key)
        assert await _is_stored(bench, file.object_key)
        answers = await bench.client.commit_file(file)
        assert [answer.error for answer in answers] == [None] * 3
        bench.clock.advance(48 * HOUR_S)
        await _scan(bench, file.object_key)
        assert await _is_stored(bench, file.object_key)
        assert await bench.is_live(file.object_key) == [True]

    @pytest.mark.about_routing
    async def test_an_orphan_is_deleted_and_can_never_be_committed(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        file = bench.file(batch(partition, 2))
        await bench.store.put(file.object_key, BytesBody(b"batches"))
        bench.clock.advance(48 * HOUR_S)
        await _scan(bench, file.object_key)
        assert not await _is_stored(bench, file.object_key)
        assert isinstance(await _commit_error(bench, file), ObjectExpired)
        await bench.restart()
        assert isinstance(await _commit_error(bench, file), ObjectExpired)
        assert await bench.high_watermark(partition) == 0

    @pytest.mark.about_routing
    async def test_whoever_comes_first_excludes_the_other_the_commit_or_the_tombstone(
        self, bench: ConformanceBench
    ) -> None:
        partition = await bench.partition()
        coordinator = bench.coordinator_of(partition)
        committed, given_up = bench.file(batch(partition)), bench.file(batch(partition))
        await bench.client.commit_file(committed)
        keys = [committed.object_key, given_up.object_key]
        tombstones = await bench.client.tombstone_files(coordinator, keys)
        assert [each.is_known for each in tombstones] == [True, False]
        assert isinstance(await _commit_error(bench, given_up), ObjectExpired)
        await bench.fail_over()
        assert isinstance(await _commit_error(bench, given_up), ObjectExpired)
        assert await _commit_error(bench, committed) is None
        assert await bench.high_watermark(partition) == 1

    async def test_an_object_whose_key_is_too_old_is_refused(self, bench: ConformanceBench) -> None:
        partition = await bench.partition()
        old, older = bench.file(batch(partition)), bench.file(batch(partition))
        bench.clock.advance(bench.settings.max_commit_age_ms / 1_000)
        assert await _commit_error(bench, old) is None
        bench.clock.advance(0.001)
        assert isinstance(await _commit_error(bench, older), ObjectExpired)
        assert await _commit_error(bench, old) is None
        assert await bench.high_watermark(partition) == 1
