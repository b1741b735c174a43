"""A group that is alone: appended and applied by one thread, with what can go wrong between."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from metadata.log.local_log import LocalMetadataLog
from metadata.log.log import MetadataRecordBatch
from metadata.replica.replica import Replica
from metadata.state.image import Changes
from tests.support.coordinators.coordinator_bench import running_coordinator
from wal.errors import CommitOutcomeUnknown, CorruptState, StorageFailed

Applying = Callable[[Replica, Sequence[MetadataRecordBatch]], Callable[[], Changes]]


async def open_log(directory: Path) -> LocalMetadataLog:
    return await LocalMetadataLog.open(directory / "log", rng=random.Random(1))


async def test_the_thread_that_appends_a_lone_commit_applies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_path)
    applied_in: list[str] = []
    applying: Applying = Replica.applying

    def noted(replica: Replica, batches: Sequence[MetadataRecordBatch]) -> Callable[[], Changes]:
        apply = applying(replica, batches)

        def run() -> Changes:
            assert log.end_offset == batches[-1].next_offset, "it is durable before"
            applied_in.append(threading.current_thread().name)
            return apply()

        return run

    monkeypatch.setattr(Replica, "applying", noted)
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        await bench.commit_one(partition)
        assert bench.coordinator.replica.high_watermark(partition) == 1
        assert bench.coordinator.replica.applied_offset == log.end_offset
    assert len(applied_in) == log.end_offset
    assert {name.partition("_")[0] for name in applied_in} == {"metadata-log"}


async def test_what_sqlite_refuses_behind_its_append_is_applied_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Callable[[], Changes]:
        def run() -> Changes:
            raise StorageFailed("disk full")

        return run

    log = await open_log(tmp_path)
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        monkeypatch.setattr(Replica, "applying", refused)
        answers = [await bench.commit_one(partition) for _ in range(2)]
        assert [answer.base_offset for answer in answers] == [0, 1]
        assert bench.coordinator.replica.applied_offset == log.end_offset


async def test_a_state_that_is_damaged_behind_an_append_leaves_the_outcome_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> Callable[[], Changes]:
        def run() -> Changes:
            raise CorruptState("a row fails its checksum")

        return run

    log = await open_log(tmp_path)
    with pytest.RaisesGroup(pytest.RaisesGroup(CorruptState)):
        async with running_coordinator(tmp_path, log) as bench:
            partition = await bench.partition()
            monkeypatch.setattr(Replica, "applying", damaged)
            with pytest.raises(CommitOutcomeUnknown):
                await bench.commit_one(partition)
    monkeypatch.undo()
    async with running_coordinator(tmp_path, await open_log(tmp_path), seed=2) as again:
        # It was durable all along.
        assert again.coordinator.replica.high_watermark(partition) == 1


async def test_memory_follows_sqlite_when_the_coordinator_stops_between_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_path)
    entered, gate = threading.Event(), threading.Event()
    applying: Applying = Replica.applying

    def held(replica: Replica, batches: Sequence[MetadataRecordBatch]) -> Callable[[], Changes]:
        apply = applying(replica, batches)

        def run() -> Changes:
            entered.set()
            assert gate.wait(60)
            return apply()

        return run

    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        monkeypatch.setattr(Replica, "applying", held)
        commit = asyncio.ensure_future(bench.commit_one(partition))
        assert await asyncio.to_thread(entered.wait, 60)
        replica = bench.coordinator.replica
        stopping = asyncio.create_task(bench.coordinator.pipeline.stop())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stopping.done()
        gate.set()
        await stopping
        assert replica.high_watermark(partition) == 1
        assert replica.applied_offset == log.end_offset
        with pytest.raises(CommitOutcomeUnknown):
            await commit
