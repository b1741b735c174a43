"""What committing a WAL object promises: offsets, refusals, duplicates, the same answer again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile
from metadata.topic_rules import PRODUCER_ID_BLOCK
from tests.support.coordinator_bench import (
    UNKNOWN_PARTITION,
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.coordinates import ByteOffset, ObjectKey, TopicIdPartition
from wal.errors import (
    ObjectExpired,
    OutOfOrderSequence,
    Rejected,
    StaleProducerEpoch,
    UnknownPartition,
)
from wal.ulid import mint_ulid, wal_object_key

MAX = 2**31 - 1


@pytest.fixture
def log() -> MemoryMetadataLog:
    return MemoryMetadataLog()


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(tmp_path, log) as running:
        yield running


async def test_offsets_are_consecutive_over_batches_files_and_partitions(
    bench: CoordinatorBench,
) -> None:
    topic = await bench.topic(partitions=2)
    first, second = (TopicIdPartition(topic.topic_id, index) for index in range(2))
    answers = await bench.commit(batch(first, 3), batch(first, 2), batch(second, 7))
    assert [answer.base_offset for answer in answers] == [0, 3, 0]
    answers = await bench.commit(batch(second, 1), batch(first, 1))
    assert [answer.base_offset for answer in answers] == [7, 5]
    assert bench.coordinator.replica.high_watermark(first) == 6
    assert bench.coordinator.replica.high_watermark(second) == 8


async def test_a_file_without_batches_is_fine_and_deletable(bench: CoordinatorBench) -> None:
    request = bench.file()
    assert await bench.coordinator.commit_file(request) == []
    assert [key for key, _ in await deletable(bench)] == [request.object_key]


async def deletable(bench: CoordinatorBench) -> list[tuple[ObjectKey, int]]:
    files = await bench.coordinator.deletable_files(
        before_ms=2**60, after=(-1, -1), limit=100, is_owner=True
    )
    return [(file.object_key, file.deletable_since_ms) for _, file in files]


async def test_a_batch_for_nowhere_is_refused_alone(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    beyond = partition._replace(partition=1)
    answers = await bench.commit(batch(UNKNOWN_PARTITION), batch(partition, 4), batch(beyond))
    assert isinstance(answers[0].error, UnknownPartition)
    assert answers[1].base_offset == 0
    assert answers[1].error is None
    assert isinstance(answers[2].error, UnknownPartition)
    assert answers[2].base_offset == -1
    assert (await bench.find(partition, 0)).high_watermark == 4


async def test_the_answer_tells_the_log_start_and_one_append_time(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    bench.clock.advance(5)
    answer = await bench.commit_one(partition)
    assert answer.log_append_time_ms == bench.clock.now_ms()
    assert answer.log_start_offset == 0


async def test_append_time_never_goes_back_even_over_a_restart(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        bench.clock.advance(3600)
        first = await bench.commit_one(partition)
        bench.clock.step_wall(-1800)
        second = await bench.commit_one(partition)
        clock = bench.clock
    clock.step_wall(-600)
    async with running_coordinator(tmp_path, log, clock=clock, seed=2) as bench:
        third = await bench.commit_one(partition)
    assert first.log_append_time_ms == second.log_append_time_ms == third.log_append_time_ms


class TestProducers:
    async def test_a_duplicate_gets_its_first_offset_and_changes_nothing(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        await bench.commit_one(partition, 2)
        first = await bench.commit_one(partition, 3, producer=9)
        await bench.commit_one(partition, 1, producer=9, sequence=3)
        bench.clock.advance(1)
        again = bench.file(batch(partition, 3, producer=9))
        (answer,) = await bench.coordinator.commit_file(again)
        assert answer.is_duplicate
        assert answer.base_offset == first.base_offset == 2
        assert answer.log_append_time_ms == first.log_append_time_ms
        assert answer.log_start_offset == 0
        assert bench.coordinator.replica.high_watermark(partition) == 6
        assert [key for key, _ in await deletable(bench)] == [again.object_key]

    async def test_a_duplicate_within_one_file_is_told(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        one = batch(partition, 3, producer=9)
        answers = await bench.commit(one, one, one._replace(base_sequence=3))
        assert [answer.base_offset for answer in answers] == [0, 0, 3]
        assert [answer.is_duplicate for answer in answers] == [False, True, False]

    async def test_a_duplicate_of_a_pending_batch_is_told(
        self, bench: CoordinatorBench, log: MemoryMetadataLog
    ) -> None:
        partition = await bench.partition()
        log.gate.clear()
        log.entered.clear()
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(bench.commit_one(partition, 3, producer=9))
            await log.entered.wait()
            second = tasks.create_task(bench.commit_one(partition, 3, producer=9))
            third = tasks.create_task(bench.commit_one(partition, 3, producer=9, sequence=3))
            await asyncio.sleep(0)
            log.gate.set()
        assert not first.result().is_duplicate
        assert second.result().is_duplicate
        assert second.result().base_offset == 0
        assert third.result().base_offset == 3

    async def test_a_duplicate_is_told_after_a_restart_and_after_sqlite_is_gone(
        self, tmp_path: Path, log: MemoryMetadataLog
    ) -> None:
        async with running_coordinator(tmp_path, log) as bench:
            partition = await bench.partition()
            await bench.commit_one(partition, 3, producer=9)
        for seed in (2, 3):
            async with running_coordinator(tmp_path, log, seed=seed) as bench:
                answer = await bench.commit_one(partition, 3, producer=9)
                assert answer.is_duplicate
            (tmp_path / "state.sqlite").unlink()

    async def test_the_sixth_oldest_batch_is_out_of_order(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        for sequence in range(6):
            await bench.commit_one(partition, producer=9, sequence=sequence)
        assert (await bench.commit_one(partition, producer=9, sequence=1)).is_duplicate
        refused = await bench.commit_one(partition, producer=9, sequence=0)
        assert isinstance(refused.error, OutOfOrderSequence)

    async def test_good_batches_before_a_gap_stay_committed(self, bench: CoordinatorBench) -> None:
        partition = await bench.partition()
        answers = await bench.commit(
            batch(partition, 5, producer=9),
            batch(partition, 5, producer=9, sequence=6),
            batch(partition, 5, producer=9, sequence=5),
        )
        assert answers[0].base_offset == 0
        assert isinstance(answers[1].error, OutOfOrderSequence)
        assert answers[2].base_offset == 5

    async def test_a_first_sequence_other_than_zero_is_accepted(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        assert (await bench.commit_one(partition, producer=9, sequence=41)).error is None

    async def test_sequences_wrap_and_a_batch_may_span_the_wrap(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        answers = await bench.commit(
            batch(partition, 2, producer=9, sequence=MAX - 1),
            batch(partition, 5, producer=9, sequence=0),
            batch(partition, 2, producer=8, sequence=MAX),
            batch(partition, 1, producer=8, sequence=1),
        )
        assert [answer.error for answer in answers] == [None] * 4
        wrapped = await bench.commit_one(partition, 2, producer=8, sequence=MAX)
        assert wrapped.is_duplicate

    async def test_an_epoch_bump_starts_at_zero_and_fences_the_old_epoch(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        answers = await bench.commit(
            batch(partition, 5, producer=9),
            batch(partition, 5, producer=9, epoch=1, sequence=5),
            batch(partition, 5, producer=9, epoch=1, sequence=0),
            batch(partition, 5, producer=9, epoch=0, sequence=5),
        )
        assert answers[0].error is None
        assert isinstance(answers[1].error, OutOfOrderSequence)
        assert answers[2].base_offset == 5
        assert not answers[2].is_duplicate
        assert isinstance(answers[3].error, StaleProducerEpoch)

    async def test_a_producer_that_was_silent_too_long_may_start_anywhere(
        self, tmp_path: Path, log: MemoryMetadataLog
    ) -> None:
        settings = CoordinatorSettings(producer_expiration_ms=1_000)
        async with running_coordinator(tmp_path, log, settings=settings) as bench:
            partition = await bench.partition()
            await bench.commit_one(partition, producer=9)
            refused = await bench.commit_one(partition, producer=9, sequence=5)
            assert isinstance(refused.error, OutOfOrderSequence)
            bench.clock.advance(1.1)
            assert (await bench.commit_one(partition, producer=9, sequence=5)).error is None

    async def test_producers_that_fell_out_of_memory_are_looked_up(
        self, tmp_path: Path, log: MemoryMetadataLog
    ) -> None:
        settings = CoordinatorSettings(producer_cache_max=2)
        async with running_coordinator(tmp_path, log, settings=settings) as bench:
            partition = await bench.partition()
            everyone = [batch(partition, producer=producer) for producer in range(10)]
            await bench.commit(*everyone)
            answers = await bench.commit(*everyone)
            assert all(answer.is_duplicate for answer in answers)

    async def test_a_producer_that_was_looked_up_before_is_looked_up_again(
        self, tmp_path: Path, log: MemoryMetadataLog
    ) -> None:
        settings = CoordinatorSettings(producer_cache_max=1)
        async with running_coordinator(tmp_path, log, settings=settings) as bench:
            partition = await bench.partition()
            first, second, third = (batch(partition, producer=number) for number in range(3))
            await bench.commit(first, second, third)
            assert (await bench.commit(first))[0].is_duplicate
            async with asyncio.timeout(10):
                answers = await bench.commit(first, second)
            assert all(answer.is_duplicate for answer in answers)

    async def test_batches_without_a_producer_are_never_duplicates(
        self, bench: CoordinatorBench
    ) -> None:
        partition = await bench.partition()
        assert (await bench.commit_one(partition)).base_offset == 0
        assert (await bench.commit_one(partition)).base_offset == 1


class TestTheSameObjectAgain:
    async def request(self, bench: CoordinatorBench) -> CommitFile:
        partition = await bench.partition()
        await bench.commit_one(partition, producer=9)
        return bench.file(
            batch(partition, 2),
            batch(UNKNOWN_PARTITION, 1),
            batch(partition, 1, producer=9),
            batch(partition, 1, producer=9, sequence=7),
        )

    async def test_it_gets_the_first_answer(self, bench: CoordinatorBench) -> None:
        request = await self.request(bench)
        first = await bench.coordinator.commit_file(request)
        bench.clock.advance(1)
        await bench.coordinator.delete_topics([request.batches[0].partition.topic_id])
        again = await bench.coordinator.commit_file(request)
        assert repr(again) == repr(first)

    async def test_it_gets_the_first_answer_when_both_are_pending(
        self, bench: CoordinatorBench, log: MemoryMetadataLog
    ) -> None:
        request = await self.request(bench)
        log.gate.clear()
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(bench.coordinator.commit_file(request)) for _ in range(3)]
            await asyncio.sleep(0)
            log.gate.set()
        answers = [repr(task.result()) for task in waiting]
        assert answers[0] == answers[1] == answers[2]
        assert bench.coordinator.replica.high_watermark(request.batches[0].partition) == 3

    async def test_it_gets_the_first_answer_after_a_restart_and_a_rebuild(
        self, tmp_path: Path, log: MemoryMetadataLog
    ) -> None:
        async with running_coordinator(tmp_path, log) as bench:
            request = await self.request(bench)
            first = await bench.coordinator.commit_file(request)
        for _ in range(2):
            async with running_coordinator(tmp_path, log) as bench:
                assert repr(await bench.coordinator.commit_file(request)) == repr(first)
            (tmp_path / "state.sqlite").unlink()

    async def test_other_content_under_its_key_is_rejected(self, bench: CoordinatorBench) -> None:
        request = await self.request(bench)
        await bench.coordinator.commit_file(request)
        other = replace(request, batches=request.batches[:-1])
        with pytest.raises(Rejected, match="other content"):
            await bench.coordinator.commit_file(other)

    async def test_it_is_answered_even_when_the_key_is_old_by_now(
        self, bench: CoordinatorBench
    ) -> None:
        request = await self.request(bench)
        first = await bench.coordinator.commit_file(request)
        bench.clock.advance(3600)
        assert repr(await bench.coordinator.commit_file(request)) == repr(first)


async def test_an_object_that_is_too_old_is_refused(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    request = bench.file(batch(partition))
    bench.clock.advance(15 * 60 + 1)
    with pytest.raises(ObjectExpired):
        await bench.coordinator.commit_file(request)
    assert bench.coordinator.replica.high_watermark(partition) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"length_bytes": 0},
        {"length_bytes": -5},
        {"record_count": 0},
        {"record_count": 2**31},
        {"byte_offset": ByteOffset(-1)},
        {"byte_offset": ByteOffset(10_000)},
        {"byte_offset": ByteOffset(20)},
        {"timestamp_type": 2},
        {"producer_id": 5},
        {"max_timestamp_ms": 2**63},
        {"partition": TopicIdPartition(UNKNOWN_PARTITION.topic_id, -1)},
    ],
)
async def test_a_request_that_does_not_hold_together_is_rejected_as_a_whole(
    bench: CoordinatorBench, change: dict[str, object]
) -> None:
    partition = await bench.partition()
    request = bench.file(batch(partition), batch(partition), batch(partition))
    broken = request.batches[2]._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(Rejected):
        await bench.coordinator.commit_file(
            replace(request, batches=[*request.batches[:2], broken])
        )
    assert bench.coordinator.replica.high_watermark(partition) == 0


@pytest.mark.parametrize("key", ["wal/00/nothing", "", "../x", "wal/00/" + "é" * 26])
async def test_a_key_that_is_not_a_wal_objects_is_rejected(
    bench: CoordinatorBench, key: str
) -> None:
    with pytest.raises(Rejected):
        await bench.coordinator.commit_file(
            bench.file(key=ObjectKey(key) if key else None)
            if key
            else replace(bench.file(), object_key=key)
        )


async def test_extents_may_come_in_any_order_of_bytes(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    request = bench.file(batch(partition, 1), batch(partition, 2), batch(partition, 4))
    shuffled = replace(request, batches=[request.batches[i] for i in (2, 0, 1)])
    answers = await bench.coordinator.commit_file(shuffled)
    assert [answer.base_offset for answer in answers] == [0, 4, 5]
    found = await bench.find(partition, 0)
    assert [(extent.base_offset, extent.last_offset) for extent in found.extents] == [
        (0, 3),
        (4, 6),
    ]


async def test_producer_ids_are_never_given_out_twice(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    given: list[int] = []
    for seed in range(3):
        async with running_coordinator(tmp_path, log, seed=seed) as bench:
            allocate = bench.coordinator.allocate_producer_ids
            for block in await asyncio.gather(*[allocate() for _ in range(12)]):
                given += block
    assert len(set(given)) == len(given) == 36 * PRODUCER_ID_BLOCK
    assert min(given) >= 0


async def test_commits_that_come_together_share_one_append(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    before = log.append_calls
    answers = await asyncio.gather(*[bench.commit_one(partition, 2) for _ in range(50)])
    assert sorted(answer.base_offset for answer in answers) == list(range(0, 100, 2))
    assert log.append_calls - before <= 3


async def test_a_listener_hears_of_a_commit_when_it_is_readable_and_not_answered(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    heard: list[tuple[bool, int | None]] = []
    commit = asyncio.ensure_future(bench.commit_one(partition, 4))
    bench.coordinator.replica.subscribe(
        lambda partitions: heard.append(
            (commit.done(), bench.coordinator.replica.high_watermark(partition))
            if partition in partitions
            else (True, None)
        )
    )
    await commit
    assert heard == [(False, 4)]


async def test_keys_from_a_clock_that_runs_ahead_are_accepted(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    bench.clock.advance(60)
    key = wal_object_key(mint_ulid(bench.clock, bench.rng))
    bench.clock.step_wall(-60)
    (answer,) = await bench.coordinator.commit_file(bench.file(batch(partition), key=key))
    assert answer.error is None
