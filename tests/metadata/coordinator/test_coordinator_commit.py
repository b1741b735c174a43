"""Commits to one coordinator: what is pending, what fell out of memory, what makes no sense.

What clients are promised is in the suite beside (coordinator_conformance.py).
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile
from tests.support.coordinators.coordinator_bench import (
    UNKNOWN_PARTITION,
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.coordinates import ByteOffset, ObjectKey, TopicIdPartition
from wal.errors import ObjectExpired, Rejected
from wal.ulid import mint_ulid, wal_object_key


class TestProducers:
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
            async with asyncio.timeout(120):
                answers = await bench.commit(first, second)
            assert all(answer.is_duplicate for answer in answers)


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


@pytest.mark.parametrize("keys", [("new", "old"), ("old", "new")], ids=lambda keys: "-".join(keys))
async def test_a_key_is_known_again_whatever_came_before_it(
    tmp_path: Path, keys: tuple[str, str]
) -> None:
    """Keys beyond the newest one are not looked up; brokers' clocks differ, and files come late."""
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        minted = {}
        for name in ("old", "new", "newest"):
            bench.clock.advance(1)
            minted[name] = bench.key()
        files = [bench.file(batch(partition, 2), key=minted[name]) for name in keys]
        answers = [await bench.coordinator.commit_file(file) for file in files]
        assert [answer[0].base_offset for answer in answers] == [0, 2]
        for file, answer in zip(files, answers, strict=True):
            assert await bench.coordinator.commit_file(file) == answer
        newest = bench.file(batch(partition, 1), key=minted["newest"])
    # Another leader knows of the keys only what is stored.
    async with running_coordinator(tmp_path, log) as bench:
        assert await bench.coordinator.commit_file(newest) == [
            answers[0][0]._replace(base_offset=4)
        ]
        for file, answer in zip(files, answers, strict=True):
            assert await bench.coordinator.commit_file(file) == answer
        assert bench.coordinator.replica.high_watermark(partition) == 5


async def test_a_tombstone_holds_for_a_key_newer_than_all_others(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    await bench.commit(batch(partition))
    bench.clock.advance(1)
    file = bench.file(batch(partition))
    (tombstone,) = await bench.coordinator.tombstone_files([file.object_key])
    assert not tombstone.is_known
    with pytest.raises(ObjectExpired):
        await bench.coordinator.commit_file(file)
    (again,) = await bench.coordinator.tombstone_files([file.object_key])
    assert not again.is_known
