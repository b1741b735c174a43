"""Batches of sinks that several coordinators have shares of: what each of them keeps."""

from pathlib import Path
from uuid import UUID

import pytest

from metadata.coordinator import sinks as sinks_module
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.messages.commit_file import pack_files, unpack_files
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile
from metadata.replica.verify import verify_metadata
from metadata.sink_operations import CommitShare, CommitSink, SinkCommit, SinkRange, SinkShare
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import CommitOutcomeUnknown, ConcurrentTransactions, InvalidRequest, Rejected
from wal.staging.staged_keys import staged_key
from wal.ulid import mint_ulid

A = bytes(range(16))
DAY_S = 24 * 3_600.0
ELSEWHERE = TopicIdPartition(UUID(int=77), 0)
SETTINGS = CoordinatorSettings(state_readers=2, commit_batches_max=10)


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody who tells shares here."""
    monkeypatch.setattr(sinks_module, "COMPLETED_WITHIN_S", 0.0)


def file_of(bench: CoordinatorBench, partition: TopicIdPartition, count: int) -> CommitFile:
    key = staged_key("s", mint_ulid(bench.clock, bench.rng))
    return bench.file(batch(partition, count), key=key)


def told(files: list[CommitFile], decided_at_ms: int, batch_id: int = 0) -> CommitShare:
    return CommitShare(1, "s", "User:a", batch_id, A, decided_at_ms, pack_files(files))


async def is_sound(directory: Path, log: MemoryMetadataLog) -> None:
    """Rows, hashes and the log say the same."""
    report = await verify_metadata(directory, log)
    assert not report.violations


async def end_of(bench: CoordinatorBench, partition: TopicIdPartition) -> int:
    return (await bench.find(partition, 0)).high_watermark


async def decide(bench: CoordinatorBench, batch_id: int, own: list[CommitFile]) -> None:
    share = SinkShare(1, [file_of(bench, ELSEWHERE, 4)])
    commit = CommitSink("s", "User:a", batch_id, A, own, [share])
    with pytest.raises(CommitOutcomeUnknown, match="is decided, and not committed everywhere"):
        await bench.coordinator.sinks.commit(commit)


async def is_open(coordinator: PartitionCoordinator) -> None:
    (opened,) = coordinator.sinks.open_batches()
    (share,) = opened.shares
    (file,) = unpack_files(share.files)
    assert opened.object_keys == {file.object_key}
    assert [extent.partition for extent in file.batches] == [ELSEWHERE]
    (answer,) = await coordinator.tombstone_files([file.object_key])
    assert answer.is_known
    with pytest.raises(ConcurrentTransactions):
        await coordinator.sinks.find("s")


async def test_an_open_batch_survives_a_restart_and_every_other_batch_waits(
    tmp_path: Path,
) -> None:
    log, clock = MemoryMetadataLog(), ManualClock()
    async with running_coordinator(tmp_path, log, clock=clock, settings=SETTINGS) as bench:
        partition = await bench.partition()
        await decide(bench, 7, [file_of(bench, partition, 3)])
        await is_open(bench.coordinator)
    for directory in (tmp_path, tmp_path / "from the log alone"):
        async with running_coordinator(directory, log, clock=clock, settings=SETTINGS) as bench:
            await is_open(bench.coordinator)
            assert await end_of(bench, partition) == 3
            await decide(bench, 7, [file_of(bench, partition, 9)])
            later = CommitSink("s", "User:a", 8, A, [file_of(bench, partition, 9)])
            with pytest.raises(ConcurrentTransactions, match="batch 7 is not committed everywhere"):
                await bench.coordinator.sinks.commit(later)
            clock.advance(40 * DAY_S)
            assert await bench.coordinator.expire_sinks(9) == 0
            with pytest.raises(Rejected, match="batch 6 comes after"):
                await bench.coordinator.sinks.commit(later._replace(batch_id=6))
    async with running_coordinator(tmp_path, log, clock=clock, settings=SETTINGS) as bench:
        (opened,) = bench.coordinator.sinks.open_batches()
        there = SinkRange(ELSEWHERE, 10, 13)
        for _ in range(2):
            await bench.coordinator.sinks.complete("s", opened.sink.committed_at_ms, [there])
        assert bench.coordinator.sinks.open_batches() == []
        again = CommitSink("s", "User:a", 7, A, [])
        wanted = sorted([there, SinkRange(partition, 0, 2)])
        assert await bench.coordinator.sinks.commit(again) == SinkCommit(True, tuple(wanted))
    await is_sound(tmp_path, log)


async def test_a_share_is_committed_once_and_however_late(tmp_path: Path) -> None:
    log, clock = MemoryMetadataLog(), ManualClock()
    async with running_coordinator(tmp_path, log, clock=clock, settings=SETTINGS) as bench:
        partition = await bench.partition()
        file = file_of(bench, partition, 3)
        # Somebody looked for orphans, and its home knew it.
        (answer,) = await bench.coordinator.tombstone_files([file.object_key])
        assert not answer.is_known
        clock.advance(10 * DAY_S)
        answer_of = bench.coordinator.sinks.commit_share
        first = await answer_of(told([file], 1_000))
        assert first == SinkCommit(ranges=(SinkRange(partition, 0, 2),))
    async with running_coordinator(tmp_path, log, clock=clock, settings=SETTINGS) as bench:
        answer_of = bench.coordinator.sinks.commit_share
        assert await answer_of(told([file], 1_000)) == first._replace(is_repeated=True)
        # An earlier decision that comes late, and the first batch of a sink that was forgotten.
        assert (await answer_of(told([file_of(bench, partition, 9)], 999, 7))).is_repeated
        assert await end_of(bench, partition) == 3
        later = told([file_of(bench, partition, 2), file, file_of(bench, ELSEWHERE, 1)], 1_001)
        assert await answer_of(later) == SinkCommit(ranges=(SinkRange(partition, 3, 4),))
        assert await bench.coordinator.sinks.find("s") is None
        with pytest.raises(InvalidRequest):
            await answer_of(later._replace(decided_at_ms=2_000, files=b"\x02"))
        assert await end_of(bench, partition) == 5
    await is_sound(tmp_path, log)
