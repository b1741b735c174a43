"""Commits of sinks: each batch once, all of its objects or none, and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.records.records import FileCommittedRecord
from metadata.records.sinks import SinkCommittedRecord, SinksExpiredRecord
from metadata.sink_operations import CommitSink, SinkCommit, SinkRange
from tests.support.coordinators.coordinator_bench import (
    UNKNOWN_PARTITION,
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.clock import ManualClock
from wal.coordinates import BatchExtent, ObjectKey, TopicIdPartition
from wal.errors import (
    ClusterAuthorizationFailed,
    CommitFailed,
    Rejected,
    UnknownPartition,
)
from wal.staging.staged_keys import staged_key
from wal.ulid import mint_ulid

A = bytes(range(16))
B = bytes(range(1, 17))
HOUR_S = 3_600.0
SETTINGS = CoordinatorSettings(state_readers=2, commit_batches_max=10)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(tmp_path, MemoryMetadataLog(), settings=SETTINGS) as made:
        yield made


def key_of(bench: CoordinatorBench, sink_id: str = "s") -> ObjectKey:
    return staged_key(sink_id, mint_ulid(bench.clock, bench.rng))


def commit_of(
    bench: CoordinatorBench,
    batch_id: int,
    *objects: tuple[BatchExtent, ...],
    digest: bytes = A,
    principal: str = "User:a",
    sink_id: str = "s",
) -> CommitSink:
    files = [bench.file(*batches, key=key_of(bench, sink_id)) for batches in objects]
    return CommitSink(sink_id, principal, batch_id, digest, files)


async def end_of(bench: CoordinatorBench, partition: TopicIdPartition) -> int:
    return (await bench.find(partition, 0)).high_watermark


async def test_all_objects_of_a_batch_are_one_batch_of_the_log(bench: CoordinatorBench) -> None:
    topic = await bench.topic(partitions=2)
    first, second = (TopicIdPartition(topic.topic_id, index) for index in range(2))
    await bench.commit_one(second, 4)
    request = commit_of(bench, 0, (batch(first, 3), batch(second, 2)), (batch(first, 5),))
    answer = await bench.coordinator.sinks.commit(request)
    assert answer == SinkCommit(ranges=(SinkRange(first, 0, 7), SinkRange(second, 4, 5)))
    assert isinstance(bench.log, MemoryMetadataLog)
    kinds = [type(record) for record in bench.log.records()[-3:]]
    assert kinds == [FileCommittedRecord, FileCommittedRecord, SinkCommittedRecord]
    assert len(bench.log.batches[-1].records) == 3
    assert await end_of(bench, first) == 8


async def test_a_repeated_batch_gets_its_first_answer_whatever_objects_it_names(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    first = await bench.coordinator.sinks.commit(commit_of(bench, 7, (batch(partition, 3),)))
    again = await bench.coordinator.sinks.commit(
        commit_of(bench, 7, (batch(partition, 1),), (batch(partition, 2),))
    )
    assert again == first._replace(is_repeated=True)
    assert await end_of(bench, partition) == 3


async def test_the_answer_survives_a_restart(tmp_path: Path) -> None:
    log, clock = MemoryMetadataLog(), ManualClock()
    async with running_coordinator(tmp_path, log, clock=clock, settings=SETTINGS) as bench:
        partition = await bench.partition()
        first = await bench.coordinator.sinks.commit(commit_of(bench, 7, (batch(partition, 3),)))
    for directory in (tmp_path, tmp_path / "from the log alone"):
        async with running_coordinator(directory, log, clock=clock, settings=SETTINGS) as bench:
            again = await bench.coordinator.sinks.commit(
                commit_of(bench, 7, (batch(partition, 9),))
            )
            assert again == first._replace(is_repeated=True)


async def test_another_digest_and_a_lower_batch_are_refused(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    commit = bench.coordinator.sinks.commit
    await commit(commit_of(bench, 7, (batch(partition, 3),)))
    with pytest.raises(Rejected, match="batch 7 was committed with other records"):
        await commit(commit_of(bench, 7, (batch(partition, 3),), digest=B))
    with pytest.raises(Rejected, match="batch 6 comes after batch 7 was committed"):
        await commit(commit_of(bench, 6, (batch(partition, 3),)))
    assert await end_of(bench, partition) == 3
    await commit(commit_of(bench, 9, (batch(partition, 1),), digest=B))
    assert await end_of(bench, partition) == 4


async def test_of_two_drivers_at_once_one_is_answered_and_the_other_refused(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    commits = [
        bench.coordinator.sinks.commit(commit_of(bench, 0, (batch(partition, 2),), digest=digest))
        for digest in (A, B)
    ]
    first, second = await asyncio.gather(*commits, return_exceptions=True)
    assert isinstance(first, SinkCommit)
    assert isinstance(second, Rejected)
    assert await end_of(bench, partition) == 2


async def test_a_sink_belongs_to_who_committed_first(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    commit = bench.coordinator.sinks.commit
    await commit(commit_of(bench, 0, (batch(partition, 1),)))
    with pytest.raises(ClusterAuthorizationFailed, match="belongs to another principal"):
        await commit(commit_of(bench, 1, (batch(partition, 1),), principal="User:b"))
    await commit(commit_of(bench, 0, (batch(partition, 1),), principal="User:b", sink_id="t"))


async def test_nothing_is_committed_when_one_object_may_not_be(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    commit = bench.coordinator.sinks.commit
    with pytest.raises(UnknownPartition):
        await commit(commit_of(bench, 0, (batch(partition, 1),), (batch(UNKNOWN_PARTITION, 1),)))
    old = commit_of(bench, 0, (batch(partition, 1),))
    bench.clock.advance(25 * HOUR_S)
    young = commit_of(bench, 0, (batch(partition, 1),))
    with pytest.raises(Rejected, match=r"older than sink\.stage\.max\.age\.ms"):
        await commit(young._replace(files=[*young.files, *old.files]))
    committed = await commit(young)
    assert committed.ranges == (SinkRange(partition, 0, 0),)
    with pytest.raises(Rejected, match="was committed by an earlier batch"):
        await commit(young._replace(batch_id=1))
    assert await end_of(bench, partition) == 1


async def test_a_tombstoned_object_is_never_committed(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    request = commit_of(bench, 0, (batch(partition, 1),))
    (answer,) = await bench.coordinator.tombstone_files([request.files[0].object_key])
    assert not answer.is_known
    with pytest.raises(Rejected, match="was given up"):
        await bench.coordinator.sinks.commit(request)
    later = commit_of(bench, 0, (batch(partition, 1),))
    await bench.coordinator.sinks.commit(later)
    (answer,) = await bench.coordinator.tombstone_files([later.files[0].object_key])
    assert answer.is_known


async def test_a_clock_that_was_set_back_lets_no_old_object_in(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    request = commit_of(bench, 0, (batch(partition, 1),))
    bench.clock.advance(25 * HOUR_S)
    await bench.commit_one(partition, 1)
    bench.clock.step_wall(-3 * HOUR_S)
    with pytest.raises(Rejected, match="older than"):
        await bench.coordinator.sinks.commit(request)


async def test_objects_of_others_are_refused(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    request = commit_of(bench, 0, (batch(partition, 1),))
    commit = bench.coordinator.sinks.commit
    for key in (bench.key(), key_of(bench, "t"), ObjectKey("staged/s/x/" + "0" * 26)):
        foreign = replace(request.files[0], object_key=key)
        with pytest.raises(Rejected, match="is no object of s"):
            await commit(request._replace(files=[foreign]))
    with pytest.raises(Rejected, match="is no object of a broker"):
        await bench.coordinator.commit_file(request.files[0])
    with pytest.raises(Rejected, match="named twice"):
        await commit(request._replace(files=[*request.files, *request.files]))
    for sink_id in ("", "a/b", "..", "x" * 129):
        with pytest.raises(Rejected, match="sink id"):
            await commit(request._replace(sink_id=sink_id))


async def test_more_batches_than_one_commit_holds_are_refused(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    six = tuple(batch(partition, 1) for _ in range(6))
    with pytest.raises(Rejected, match="12 record batches, 10 fit into one commit"):
        await bench.coordinator.sinks.commit(commit_of(bench, 0, six, six))
    assert await end_of(bench, partition) == 0


async def test_a_batch_that_was_not_appended_can_be_committed_again(
    bench: CoordinatorBench,
) -> None:
    partition = await bench.partition()
    request = commit_of(bench, 0, (batch(partition, 2),))
    assert isinstance(bench.log, MemoryMetadataLog)
    bench.log.failures.append(CommitFailed("the log is away"))
    with pytest.raises(CommitFailed):
        await bench.coordinator.sinks.commit(request)
    answer = await bench.coordinator.sinks.commit(request)
    assert answer == SinkCommit(ranges=(SinkRange(partition, 0, 1),))


async def test_a_sink_that_was_silent_for_long_is_forgotten(bench: CoordinatorBench) -> None:
    partition = await bench.partition()
    commit = bench.coordinator.sinks.commit
    await commit(commit_of(bench, 7, (batch(partition, 1),)))
    bench.clock.advance(29 * 24 * HOUR_S)
    assert await bench.coordinator.expire_sinks(10) == 0
    with pytest.raises(Rejected, match="comes after"):
        await commit(commit_of(bench, 0, (batch(partition, 1),)))
    bench.clock.advance(2 * 24 * HOUR_S)
    assert await bench.coordinator.sinks.find("s") is None
    await commit(commit_of(bench, 0, (batch(partition, 1),), principal="User:b"))
    await commit(commit_of(bench, 0, (batch(partition, 1),), sink_id="t"))
    bench.clock.advance(31 * 24 * HOUR_S)
    assert await bench.coordinator.expire_sinks(1) == 1
    assert await bench.coordinator.expire_sinks(9) == 1
    assert await bench.coordinator.expire_sinks(9) == 0
    assert isinstance(bench.log, MemoryMetadataLog)
    assert isinstance(bench.log.records()[-1], SinksExpiredRecord)
    assert not bench.coordinator.replica.image.sinks
