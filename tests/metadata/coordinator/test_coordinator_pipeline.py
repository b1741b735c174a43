"""Failing and stopping in the middle of the pipeline: no hole, no false answer, nothing lost."""

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.pipeline import Pipeline
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile, CreateTopic
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from tests.support.coordinators.standalone_coordinator import standalone_coordinator
from wal import failpoint
from wal.clock import ManualClock
from wal.errors import (
    AppendTooLarge,
    CommitFailed,
    CommitOutcomeUnknown,
    DisklessError,
    NotCoordinator,
    Overloaded,
    Rejected,
    StorageFailed,
)
from wal.failpoint import FailpointError

TURNS = 20
"""Of the loop, in which a request comes to the queue of its coordinator; no thread takes part."""


async def until_queued(pipeline: Pipeline) -> None:
    """Wait until everything that was asked is decided, or finds no room among what is decided."""
    still = 0
    async with asyncio.timeout(120):
        while still < TURNS:
            is_full = pipeline._may_decide.locked()
            is_idle = not pipeline._deciding and (is_full or pipeline._waiting.empty())
            still = still + 1 if is_idle else 0
            await asyncio.sleep(0 if is_idle else 0.001)


@pytest.mark.parametrize(
    "failure", [CommitFailed("disk full"), Overloaded("busy"), AppendTooLarge("too large")]
)
async def test_what_was_decided_on_a_failed_append_fails_with_it(
    tmp_path: Path, failure: DisklessError
) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        log.gate.clear()
        log.entered.clear()
        log.failures.append(failure)
        requests = [
            bench.file(batch(partition, 3, producer=7, sequence=3 * number)) for number in range(6)
        ]
        waiting = []
        for request in requests:
            # One after the other, so that later ones are decided in later groups, on the earlier.
            waiting.append(asyncio.ensure_future(bench.coordinator.commit_file(request)))
            await until_queued(bench.coordinator.pipeline)
        log.gate.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        failed = [isinstance(outcome, CommitFailed) for outcome in outcomes]
        assert failed[0]
        # Whatever did not fail was decided afterwards, on the committed state.
        first_good = failed.index(False) if False in failed else len(failed)
        assert all(failed[:first_good])
        assert not any(failed[first_good:])
        for outcome, number in zip(outcomes[first_good:], range(first_good, 6), strict=True):
            assert not isinstance(outcome, BaseException)
            assert outcome[0].base_offset == 3 * (number - first_good)
        committed = 3 * (6 - first_good)
        assert bench.coordinator.replica.high_watermark(partition) == committed
        # Repeated under their keys, they are appended now, without a hole.
        for request in requests[:first_good]:
            await bench.coordinator.commit_file(request)
        answer = await bench.commit_one(partition)
        assert answer.base_offset == bench.coordinator.replica.high_watermark(partition) - 1  # type: ignore[operator]
        found = await bench.find(partition, 0)
        assert found.error is None


async def test_files_of_one_commit_are_appended_all_or_none(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        files = [
            bench.file(batch(partition, 3, producer=7, sequence=3 * number)) for number in range(3)
        ]
        end, appends = log.end_offset, len(log.batches)
        log.failures.append(CommitFailed("disk full"))
        with pytest.raises(CommitFailed):
            await bench.coordinator.commit_files(files)
        assert log.end_offset == end
        assert bench.coordinator.replica.high_watermark(partition) == 0
        answers = await bench.coordinator.commit_files(files)
        assert [answer.batches[0].base_offset for answer in answers] == [0, 3, 6]
        # One record for each file, and one batch of the log for all of them.
        assert (log.end_offset, len(log.batches)) == (end + 3, appends + 1)


async def test_what_needs_no_record_is_answered_by_who_leads_still(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        commit = bench.file(batch(partition, 3, producer=7))
        answer = await bench.coordinator.commit_file(commit)
        assert await bench.coordinator.commit_file(commit) == answer
        assert log.prove_calls == 0

        log.lease_expires_at = bench.clock.monotonic()
        log.proofs.append(StorageFailed("no answer"))
        with pytest.raises(CommitFailed, match="no answer"):
            await bench.coordinator.commit_file(commit)
        assert await bench.coordinator.commit_file(commit) == answer
        assert log.prove_calls == 2
        # An append asks the log by itself.
        await bench.commit_one(partition)
        assert log.prove_calls == 2


async def test_a_leader_that_was_deposed_refuses_nothing(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    asked: list[asyncio.Future[object]] = []

    async def ask() -> None:
        async with running_coordinator(tmp_path, log) as bench:
            await bench.topic("flights")
            log.lease_expires_at = None
            log.proofs.append(NotCoordinator("another leads"))
            again = CreateTopic(name="flights", partition_count=1)
            asked.append(asyncio.ensure_future(bench.coordinator.create_topics([again])))
            await asyncio.wait(asked)

    with pytest.RaisesGroup(pytest.RaisesGroup(NotCoordinator)):
        await ask()
    assert isinstance(asked[0].exception(), NotCoordinator)


async def test_operations_that_need_no_record_wait_for_what_they_rest_on(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        log.gate.clear()
        log.entered.clear()
        log.failures.append(CommitFailed("disk full"))
        request = bench.file(batch(partition))
        first = asyncio.ensure_future(bench.coordinator.commit_file(request))
        await log.entered.wait()
        again = asyncio.ensure_future(bench.coordinator.commit_file(request))
        taken = asyncio.ensure_future(bench.topic("flights"))
        await until_queued(bench.coordinator.pipeline)
        assert not again.done()
        assert not taken.done()
        log.gate.set()
        outcomes = await asyncio.gather(first, again, taken, return_exceptions=True)
        assert all(isinstance(outcome, CommitFailed) for outcome in outcomes)


async def test_the_coordinator_goes_on_after_a_failed_append(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        for number in range(3):
            log.failures.append(CommitFailed("disk full"))
            with pytest.raises(CommitFailed):
                await bench.commit_one(partition)
            assert (await bench.commit_one(partition)).base_offset == number
        state_hash = bench.coordinator.replica.state_hash
    (tmp_path / "state.sqlite").unlink()
    async with running_coordinator(tmp_path, log) as bench:
        assert bench.coordinator.replica.state_hash == state_hash


class Stopped:
    """A coordinator that died while a commit was under way."""

    bench: CoordinatorBench
    request: CommitFile
    outcome: object


async def run_until_it_stops(
    directory: Path, log: MemoryMetadataLog, stopped: Stopped, *, failure: Exception | None = None
) -> None:
    """Commit one file into `failure` or an armed failpoint; raises what `run` raised."""
    commit: asyncio.Future[object] | None = None
    try:
        async with running_coordinator(directory, log) as bench:
            stopped.bench = bench
            stopped.request = bench.file(batch(await bench.partition(), 2))
            if failure is not None:
                log.failures.append(failure)
            commit = asyncio.ensure_future(bench.coordinator.commit_file(stopped.request))
            await asyncio.Event().wait()  # until the failing task group cancels it
    finally:
        if commit is not None:
            (stopped.outcome,) = await asyncio.gather(commit, return_exceptions=True)


async def test_after_an_unknown_outcome_it_stops_and_the_next_one_finds_out(tmp_path: Path) -> None:
    log, stopped = MemoryMetadataLog(), Stopped()
    with pytest.RaisesGroup(pytest.RaisesGroup(CommitOutcomeUnknown)):
        await run_until_it_stops(tmp_path, log, stopped, failure=CommitOutcomeUnknown("no answer"))
    assert isinstance(stopped.outcome, CommitOutcomeUnknown)
    with pytest.raises(NotCoordinator):
        await stopped.bench.commit()
    async with running_coordinator(tmp_path, log, seed=2) as again:
        (answer,) = await again.coordinator.commit_file(stopped.request)
        assert answer.base_offset == 0


async def test_a_deposed_coordinator_acknowledges_nothing(tmp_path: Path) -> None:
    stopped = Stopped()
    with pytest.RaisesGroup(pytest.RaisesGroup(NotCoordinator)):
        await run_until_it_stops(
            tmp_path, MemoryMetadataLog(), stopped, failure=NotCoordinator("another one leads")
        )
    assert isinstance(stopped.outcome, NotCoordinator)
    with pytest.raises(NotCoordinator):
        await stopped.bench.topic("late")


@pytest.mark.parametrize("point", ["commit.after_log", "commit.after_apply"])
async def test_what_was_durable_when_it_died_is_there_once(tmp_path: Path, point: str) -> None:
    log, stopped = MemoryMetadataLog(), Stopped()
    # The first time is the creation of the topic.
    failpoint.arm(f"{point}=raise:2")
    try:
        with pytest.RaisesGroup(pytest.RaisesGroup(FailpointError)):
            await run_until_it_stops(tmp_path, log, stopped)
    finally:
        failpoint.arm("")
    assert isinstance(stopped.outcome, CommitOutcomeUnknown)
    partition = stopped.request.batches[0].partition
    async with running_coordinator(tmp_path, log, seed=2) as bench:
        assert bench.coordinator.replica.high_watermark(partition) == 2
        (answer,) = await bench.coordinator.commit_file(stopped.request)
        assert answer.base_offset == 0
        assert bench.coordinator.replica.high_watermark(partition) == 2


async def test_a_cancelled_caller_takes_nobody_with_it(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        log.gate.clear()
        log.entered.clear()
        first = asyncio.ensure_future(bench.commit_one(partition))
        await log.entered.wait()
        second = asyncio.ensure_future(bench.commit_one(partition))
        await until_queued(bench.coordinator.pipeline)
        first.cancel()
        log.gate.set()
        assert (await second).base_offset == 1
        assert bench.coordinator.replica.high_watermark(partition) == 2


async def test_waiting_operations_are_bounded(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    settings = CoordinatorSettings(pending_operations_max=2, group_records_max=1)
    async with running_coordinator(tmp_path, log, settings=settings) as bench:
        partition = await bench.partition()
        log.gate.clear()
        waiting = [asyncio.ensure_future(bench.commit_one(partition)) for _ in range(40)]
        await until_queued(bench.coordinator.pipeline)
        assert bench.coordinator.pipeline._waiting.qsize() == 2
        log.gate.set()
        answers = await asyncio.gather(*waiting)
        assert sorted(answer.base_offset for answer in answers) == list(range(40))


async def test_closing_fails_what_waits_and_refuses_what_comes(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        log.gate.clear()
        log.entered.clear()
        appending = asyncio.ensure_future(bench.commit_one(partition))
        await log.entered.wait()
        waiting = asyncio.ensure_future(bench.commit_one(partition))
        await until_queued(bench.coordinator.pipeline)
    outcomes = await asyncio.gather(appending, waiting, return_exceptions=True)
    assert isinstance(outcomes[0], CommitOutcomeUnknown)
    assert isinstance(outcomes[1], CommitFailed | NotCoordinator)
    with pytest.raises(NotCoordinator):
        await bench.commit_one(partition)
    with pytest.raises(NotCoordinator):
        await bench.find(partition, 99)


async def test_a_refused_operation_leaves_no_trace(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await bench.partition()
        request = bench.file(batch(partition))
        await bench.coordinator.commit_file(request)
        end, state_hash = log.end_offset, bench.coordinator.replica.state_hash
        with pytest.raises(Rejected):
            await bench.coordinator.commit_file(
                bench.file(batch(partition, 2), key=request.object_key)
            )
        assert (log.end_offset, bench.coordinator.replica.state_hash) == (end, state_hash)


async def test_on_the_local_log_everything_survives_a_restart(tmp_path: Path) -> None:
    def opened(seed: int) -> AbstractAsyncContextManager[PartitionCoordinator]:
        return standalone_coordinator(tmp_path, clock=ManualClock(), rng=random.Random(seed))

    async with asyncio.TaskGroup() as tasks, opened(1) as coordinator:
        tasks.create_task(coordinator.run())
        (topic,) = await coordinator.create_topics([CreateTopic(name="a", partition_count=2)])
        replica = coordinator.replica
        state_hash, applied = replica.state_hash, replica.applied_offset
    assert applied == 2
    async with opened(2) as coordinator:
        replica = coordinator.replica
        assert replica.topics() == {"a": topic}
        assert (replica.state_hash, replica.applied_offset) == (state_hash, applied)
