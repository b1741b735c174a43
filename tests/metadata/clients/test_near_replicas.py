"""Batches found in the replica of another process, and what that process is asked about."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from metadata import operations as ops
from metadata.clients.near_replicas import NearReplicas
from metadata.messages.find_batches import FindBatchesMessage
from metadata.state.state import STATE_FILE
from tests.support.coordinators.coordinator_bench import (
    UNKNOWN_PARTITION,
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed


class Bench:
    """A coordinator, its replica's readers, and what they asked it."""

    def __init__(self, coordinator: CoordinatorBench, near: NearReplicas) -> None:
        self.coordinator = coordinator
        self.near = near
        self.asked: list[FindBatchesMessage] = []
        self.failure: Exception | None = None

    async def _ask(self, message: FindBatchesMessage) -> Sequence[ops.FoundBatches]:
        self.asked.append(message)
        if self.failure is not None:
            raise self.failure
        return [ops.FoundBatches(0, 1_000) for _ in message.requests]

    async def find(
        self, *wanted: tuple[TopicIdPartition, int], max_bytes: int = 1 << 20
    ) -> Sequence[ops.FoundBatches]:
        requests = [ops.FindBatches(partition, offset, 1 << 20) for partition, offset in wanted]
        message = FindBatchesMessage(requests, max_bytes, 100)
        return await self.near.find(message, self._ask, timeout_ms=60_000)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with (
        running_coordinator(tmp_path, MemoryMetadataLog()) as coordinator,
        NearReplicas([tmp_path], readers=1, coordinator_of=lambda _: 0) as near,
    ):
        yield Bench(coordinator, near)


async def test_what_is_in_the_file_is_asked_of_nobody(bench: Bench) -> None:
    first, second = [await bench.coordinator.partition(name) for name in ("a", "b")]
    await bench.coordinator.commit(batch(first, 3), batch(second, 2))
    found = await bench.find((first, 0), (second, 2))
    assert [one.high_watermark for one in found] == [3, 2]
    assert [len(one.extents) for one in found] == [1, 0]
    assert not bench.asked


async def test_requests_share_what_an_answer_may_have(bench: Bench) -> None:
    first, second = [await bench.coordinator.partition(name) for name in ("a", "b")]
    await bench.coordinator.commit(batch(first), batch(second))
    found = await bench.find((first, 0), (second, 0), max_bytes=10)
    assert [len(one.extents) for one in found] == [1, 0]


async def test_what_is_not_in_the_file_is_asked_of_who_has_the_replica(bench: Bench) -> None:
    partition = await bench.coordinator.partition()
    await bench.coordinator.commit(batch(partition, 3))
    found = await bench.find((UNKNOWN_PARTITION, 0), (partition, 0), (partition, 9))
    assert [one.high_watermark for one in found] == [1_000, 3, 1_000]
    (asked,) = bench.asked
    assert [request.offset for request in asked.requests] == [0, 9]
    assert not asked.at_least_one, "the first has something already"
    bench.failure = CommitFailed("nobody there")
    again = await bench.find((partition, 9))
    assert (again[0].error, again[0].high_watermark) == (None, 3)


async def test_everything_is_asked_while_the_file_is_replaced(bench: Bench, tmp_path: Path) -> None:
    partition = await bench.coordinator.partition()
    await bench.coordinator.commit(batch(partition, 3))
    log_of_pages = tmp_path / f"{STATE_FILE}-wal"
    aside = log_of_pages.rename(tmp_path / "aside")
    found = await bench.find((partition, 0), (partition, 2))
    aside.rename(log_of_pages)
    assert [one.high_watermark for one in found] == [1_000, 1_000]
    (asked,) = bench.asked
    assert asked.at_least_one
    assert len(asked.requests) == 2


async def test_damage_is_for_who_has_the_replica(bench: Bench) -> None:
    partition = await bench.coordinator.partition()
    await bench.coordinator.commit(batch(partition, 3))
    state = bench.coordinator.coordinator.replica.state
    await state.write(lambda it: it.exec_driver_sql("UPDATE batches SET byte_size = 1").rowcount)
    found = await bench.find((partition, 0))
    assert (found[0].error, found[0].high_watermark) == (None, 1_000)
    assert len(bench.asked) == 1
