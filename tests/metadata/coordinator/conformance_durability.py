"""Conformance of coordinators: what was answered stays, whatever becomes of who answered it."""

import asyncio

import pytest

from metadata.operations import CommitFile, PlanSegments
from metadata.replica.replica import Replica
from metadata.replica.verify import check_state
from tests.support.coordinators.conformance_bench import ConformanceBench, Rows, rows_of
from tests.support.coordinators.coordinator_bench import UNKNOWN_PARTITION, batch
from wal.coordinates import LOG_APPEND_TIME
from wal.errors import CommitFailed, CommitOutcomeUnknown
from wal.failpoint import arm


async def _follow(bench: ConformanceBench, followers: list[Replica]) -> None:
    for index, follower in enumerate(followers):
        await follower.catch_up(bench.life.partitions[index].log)


async def _rows_once_open(bench: ConformanceBench, index: int, replica: Replica) -> Rows:
    try:
        await replica.open(bench.life.partitions[index].log)
        assert await replica.state.read(check_state) == []
        return await rows_of(replica.state)
    finally:
        await replica.close()


async def _history(bench: ConformanceBench, seed: int) -> None:
    """A little of everything that changes a state."""
    first, second, third = await bench.partitions(3, segment_bytes="150", retention_bytes="150")
    doomed = await bench.partition()
    for number in range(3):
        bench.clock.advance(1)
        await bench.commit(
            batch(first, number + seed, producer=seed, sequence=number * 10),
            batch(second, 2, producer=seed, epoch=number, sequence=0),
            batch(second, 3),
            batch(third, 1, timestamp_type=LOG_APPEND_TIME),
            batch(UNKNOWN_PARTITION),
            batch(doomed, 4, producer=7 + number),
        )
    await bench.client.commit_file(bench.file())
    await bench.client.allocate_producer_ids()
    await bench.tier(first)
    await bench.client.plan_segments(PlanSegments(include_partial=True))
    await bench.delete_records(third, 3)
    await bench.retain()
    await bench.client.delete_topics([doomed.topic_id])
    await bench.client.tombstone_files(0, [bench.key()])
    bench.clock.advance(24 * 3_600 + 1)
    await bench.expire_producers()
    await bench.work_on_files()
    await bench.commit_good(batch(second, 2, producer=seed, sequence=5), batch(third))


async def _crashed(bench: ConformanceBench, failpoint: str) -> CommitFile:
    """A commit in which the broker dies at `failpoint`; others of the producer came before."""
    first, second, third = await bench.partitions(3)
    await bench.commit_good(batch(first, 2, producer=4), batch(second, 3))
    request = bench.file(
        batch(first, 5, producer=4, sequence=2),
        batch(second, 2),
        batch(UNKNOWN_PARTITION),
        batch(first, 2, producer=4, sequence=0),
        batch(third, 1),
    )
    arm(f"{failpoint}=raise")
    with pytest.raises(CommitOutcomeUnknown):
        await bench.client.commit_file(request)
    arm("")
    return request


class DurabilityCases:
    """Crashes between the log and the state, refused appends, and replicas that are equal."""

    # -- equal states

    @pytest.mark.about_log
    async def test_every_replica_has_the_same_rows_however_it_came_to_its_state(
        self, bench: ConformanceBench
    ) -> None:
        followers = [bench.replica(index, "follower") for index in range(bench.coordinators)]
        try:
            for index, follower in enumerate(followers):
                await follower.open(bench.life.partitions[index].log)
            await _history(bench, 1)
            await _follow(bench, followers)
            for index in range(bench.coordinators):
                await bench.take_snapshot(index)
            await _history(bench, 2)
            await _follow(bench, followers)
            for index, follower in enumerate(followers):
                expected = await bench.rows(index)
                assert await rows_of(follower.state) == expected
                assert follower.state_hash == bench.life.partitions[index].replica.state_hash
                for name, from_snapshot in (("replayed", False), ("snapshot-and-tail", True)):
                    replica = bench.replica(index, name, from_snapshot=from_snapshot)
                    assert await _rows_once_open(bench, index, replica) == expected
        finally:
            for follower in followers:
                await follower.close()

    @pytest.mark.about_log
    async def test_the_next_life_of_a_broker_has_the_same_rows_with_its_state_and_without(
        self, bench: ConformanceBench
    ) -> None:
        await _history(bench, 3)
        before = [await bench.rows(index) for index in range(bench.coordinators)]
        for without_state in (False, True):
            await bench.restart(without_state=without_state)
            for index, rows in enumerate(before):
                now = await bench.rows(index)
                # Its term begins with a LeaderChange, and nothing else is different.
                assert {name for name in now if now[name] != rows[name]} <= {
                    "leadership",
                    "applied",
                }

    # -- crashes

    @pytest.mark.about_log
    @pytest.mark.parametrize(
        ("failpoint", "way"),
        [
            ("commit.after_log", "restart"),
            ("commit.after_log", "restart without state"),
            ("commit.after_log", "fail over"),
            ("commit.after_apply", "restart"),
        ],
    )
    async def test_a_commit_that_is_durable_when_its_coordinator_dies_happened_once(
        self, bench: ConformanceBench, failpoint: str, way: str
    ) -> None:
        request = await _crashed(bench, failpoint)
        first, second, third = (request.batches[place].partition for place in (0, 1, 4))
        if way == "fail over":
            await bench.fail_over()
        else:
            await bench.restart(without_state=way == "restart without state")
        for _ in range(2):
            answers = await bench.client.commit_file(request)
            assert [(answer.base_offset, answer.is_duplicate) for answer in answers] == [
                (2, False),
                (3, False),
                (-1, False),
                (0, True),
                (0, False),
            ]
        assert [await bench.high_watermark(each) for each in (first, second, third)] == [7, 5, 1]
        (again,) = await bench.commit(batch(first, 5, producer=4, sequence=2))
        assert (again.base_offset, again.is_duplicate) == (2, True)
        (after,) = await bench.commit(batch(first, 1, producer=4, sequence=7))
        assert after.base_offset == 7

    # -- appends that are refused

    @pytest.mark.about_log
    async def test_a_refused_append_fails_everything_on_top_of_it_and_leaves_no_hole(
        self, bench: ConformanceBench
    ) -> None:
        first, second, third = await bench.partitions(3)
        await bench.commit_good(batch(first, 2, producer=4), batch(second, 2), batch(third, 2))
        requests = [
            bench.file(batch(first, 3, producer=4, sequence=2 + 3 * at), batch(third, 1))
            for at in range(4)
        ]
        accept = bench.medium.refuse_appends(bench.life.steps)
        try:
            outcomes = await asyncio.gather(
                *[bench.client.commit_file(each) for each in requests], return_exceptions=True
            )
            for outcome in outcomes:
                errors = (
                    [outcome]
                    if isinstance(outcome, BaseException)
                    else [answer.error for answer in outcome]
                )
                assert all(isinstance(error, CommitFailed) for error in errors), errors
        finally:
            accept()
        assert await bench.high_watermark(first) == 2
        given = [await bench.client.commit_file(each) for each in requests]
        assert [answers[0].base_offset for answers in given] == [2, 5, 8, 11]
        assert [answers[1].base_offset for answers in given] == [2, 3, 4, 5]
        assert not any(answer.is_duplicate for answers in given for answer in answers)
        assert await bench.high_watermark(second) == 2
