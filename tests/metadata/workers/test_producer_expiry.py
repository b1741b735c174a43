"""Producers that were silent for long enough are forgotten, in bounded steps, by every replica."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.records.control import ProducersExpiredRecord
from metadata.retention_settings import RetentionSettings
from metadata.rules.transactions.parts import closed_retention_ms
from metadata.transaction_operations import EndParts
from metadata.workers.producer_expiry import ProducerExpiry
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from tests.support.coordinators.pauses import first_pauses
from wal.clock import Sleep
from wal.columns import FEW_MAX
from wal.coordinates import BatchExtent, TopicIdPartition
from wal.errors import CommitFailed, InvalidTransactionState, OutOfOrderSequence

EXPIRATION_MS = 60_000
SETTINGS = CoordinatorSettings(producer_expiration_ms=EXPIRATION_MS, producer_cache_max=3)


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(tmp_path, log, settings=SETTINGS) as running:
        yield running


def expiry_of(bench: CoordinatorBench, *, limit: int = 2) -> ProducerExpiry:
    return ProducerExpiry(
        bench.coordinator,
        expiration_ms=EXPIRATION_MS,
        settings=RetentionSettings(step_rows_max=limit),
    )


async def producers(bench: CoordinatorBench) -> list[int]:
    return await bench.coordinator.replica.state.read(
        lambda connection: list(
            connection.exec_driver_sql(
                "SELECT producer_id FROM producer_states ORDER BY producer_id"
            ).scalars()
        )
    )


async def test_nobody_is_forgotten_before_the_time(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    await bench.commit_one(partition, producer=1)
    bench.clock.advance(60)
    appends = log.append_calls
    assert await expiry_of(bench).pass_once() == 0
    assert log.append_calls == appends
    bench.clock.advance(0.001)
    assert await expiry_of(bench).pass_once() == 1
    assert await producers(bench) == []


async def test_many_are_forgotten_in_steps_and_the_others_stay(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    await bench.commit(*[batch(partition, producer=number) for number in range(7)])
    bench.clock.advance(50)
    await bench.commit_one(partition, producer=3, sequence=1)
    await bench.commit_one(partition, producer=100)
    bench.clock.advance(11)
    assert await expiry_of(bench).pass_once() == 3
    assert await producers(bench) == [3, 100]
    limits = [
        record.limit for record in log.records() if isinstance(record, ProducersExpiredRecord)
    ]
    assert limits == [2, 2, 2]
    answer = await bench.commit_one(partition, producer=3, sequence=9)
    assert isinstance(answer.error, OutOfOrderSequence)


async def test_a_clock_that_jumps_a_day_ahead_makes_nobody_forgotten(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    first = await bench.commit_one(partition, producer=1, sequence=0)
    bench.clock.step_wall(86_400)
    appends = log.append_calls
    assert await expiry_of(bench).pass_once() == 0
    assert log.append_calls == appends
    again = await bench.commit_one(partition, producer=1, sequence=0)
    assert (again.is_duplicate, again.base_offset) == (True, first.base_offset)
    out_of_order = await bench.commit_one(partition, producer=1, sequence=7)
    assert isinstance(out_of_order.error, OutOfOrderSequence)
    assert (await bench.commit_one(partition, producer=1, sequence=1)).error is None
    bench.clock.step_wall(-86_400)
    # What was appended since bears a time of that day, and is remembered the longer.
    bench.clock.advance(61)
    assert await expiry_of(bench).pass_once() == 0
    assert await producers(bench) == [1]


async def test_a_forgotten_producer_may_start_anywhere(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    await bench.commit_one(partition, producer=1, sequence=0)
    bench.clock.advance(61)
    await expiry_of(bench).pass_once()
    answer = await bench.commit_one(partition, producer=1, sequence=77)
    assert (answer.error, answer.base_offset) == (None, 1)
    assert await producers(bench) == [1]


async def test_a_batch_that_comes_with_the_record_of_the_expiry_is_kept(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    await bench.commit_one(partition, producer=1, sequence=0)
    bench.clock.advance(61)
    log.gate.clear()
    log.entered.clear()
    expiring = asyncio.create_task(bench.coordinator.expire_producers(10))
    await log.entered.wait()
    # Decided while the expiry is being appended; in the log it comes behind it.
    committing = asyncio.create_task(bench.commit_one(partition, producer=1, sequence=1))
    log.gate.set()
    await expiring
    assert (await committing).error is None
    assert await producers(bench) == [1]
    again = await bench.commit_one(partition, producer=1, sequence=1)
    assert (again.is_duplicate, again.base_offset) == (True, 1)


async def test_a_replica_that_replays_forgets_the_same(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path, log, settings=SETTINGS) as bench:
        partition = await bench.partition()
        for number in range(9):
            bench.clock.advance(5)
            await bench.commit_one(partition, producer=number)
        bench.clock.advance(40)
        await bench.coordinator.expire_producers(3)
        await expiry_of(bench, limit=1).pass_once()
        state_hash, left = bench.coordinator.replica.state_hash, await producers(bench)
    (tmp_path / "state.sqlite").unlink()
    async with running_coordinator(tmp_path, log, settings=SETTINGS) as bench:
        assert bench.coordinator.replica.state_hash == state_hash
        assert await producers(bench) == left


async def test_it_tries_again_after_a_failure(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    partition = await bench.partition()
    await bench.commit_one(partition, producer=1)
    bench.clock.advance(61)
    log.failures.append(CommitFailed("disk full"))
    settings = RetentionSettings(producer_check_interval_ms=1_000)

    async def run(sleep: Sleep) -> None:
        await ProducerExpiry(
            bench.coordinator, expiration_ms=EXPIRATION_MS, settings=settings, sleep=sleep
        ).run()

    assert await first_pauses(3, run) == [1, 2, 1]
    assert await producers(bench) == []


def of_transaction(
    partition: TopicIdPartition, number: int, *, sequence: int = 0, count: int = 1
) -> list[BatchExtent]:
    """Batches of producer 1."""
    return [
        batch(partition, 1, producer=1, sequence=sequence + place)._replace(
            transaction_number=number
        )
        for place in range(count)
    ]


@pytest.mark.parametrize("count", [1, FEW_MAX + 1])
async def test_a_producer_is_not_forgotten_while_its_transaction_is_open(
    bench: CoordinatorBench, count: int
) -> None:
    partition = await bench.partition()
    await bench.commit(*of_transaction(partition, 1, count=count))
    await bench.commit_one(partition, producer=2)
    bench.clock.advance(61)
    assert await expiry_of(bench).pass_once() == 1
    assert await producers(bench) == [1]
    answers = await bench.commit(*of_transaction(partition, 1, sequence=count + 1, count=count))
    assert {type(answer.error) for answer in answers} == {OutOfOrderSequence}
    ended = [EndParts(1, 0, 1, True, 0, [partition])]
    assert await bench.coordinator.transactions.end_parts(ended) == [None]
    assert await expiry_of(bench).pass_once() == 1
    assert await producers(bench) == []


async def test_closed_numbers_are_forgotten_when_nothing_can_come_late(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    other = await bench.partition("other")
    asked = bench.coordinator.transactions
    for number, place in ((1, partition), (2, other)):
        ended = [EndParts(1, 0, number, True, 0, [place], ["g"])]
        assert await asked.end_parts(ended) == [None]
    retention_ms = closed_retention_ms(SETTINGS)
    assert retention_ms == 2 * (15 + 15 + 15) * 60_000
    bench.clock.advance(retention_ms / 1000)
    assert await expiry_of(bench).pass_once() == 0
    (late,) = await bench.commit(*of_transaction(partition, 1))
    assert isinstance(late.error, InvalidTransactionState)
    bench.clock.advance(0.001)
    assert await expiry_of(bench).pass_once() == 2
    (fresh,) = await bench.commit(*of_transaction(partition, 1))
    assert fresh.error is None
