"""Fetches of many partitions: what they look up, what wakes them, and what becomes of their topics.

The setting is that of the replica manager's tests; here it counts which partitions are looked up.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from diskless.fetch.fetch_rows import FetchAnswer, FetchRows
from diskless.ports import FetchPartition, FetchResult
from metadata.operations import AbortedTransaction, FindBatches, FoundBatches, TopicDescription
from tests.diskless.replica.conftest import setting
from tests.support.brokers.replica_setting import SOON_S, Setting, at, until
from wal.coordinates import TopicIdPartition
from wal.errors import FencedLeaderEpoch, UnknownPartition, UnknownTopicId

__all__ = ["setting"]

WIDE = TopicDescription(topic_id=UUID(int=77), name="wide", partition_count=1_000)


def wide(partition: int, offset: int = 0, **values: Any) -> FetchPartition:
    return at(partition, offset, topic_name="wide", **values)


def all_wide() -> list[FetchPartition]:
    return [wide(partition) for partition in range(WIDE.partition_count)]


def key(partition: int) -> TopicIdPartition:
    return TopicIdPartition(WIDE.topic_id, partition)


@pytest.fixture
def looks(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The partitions of each look-up from here on."""
    setting.coordinator.by_name["wide"] = WIDE
    seen: list[list[int]] = []
    original = setting.coordinator.find_batches

    async def find_batches(
        requests: Sequence[FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        isolation: int,
    ) -> list[FoundBatches]:
        seen.append([request.partition.partition for request in requests])
        return await original(requests, max_bytes=max_bytes, at_least_one=at_least_one)

    monkeypatch.setattr(setting.coordinator, "find_batches", find_batches)
    return seen


async def woken(task: "asyncio.Task[Sequence[FetchResult]]") -> Sequence[FetchResult]:
    async with asyncio.timeout(SOON_S):
        return await task


async def test_who_is_woken_for_one_partition_looks_up_that_one(
    setting: Setting, looks: list[list[int]]
) -> None:
    task = setting.fetch(*all_wide())
    await setting.until_parked()
    assert looks == [[*range(1_000)]], "the first time, nothing is known"
    setting.commit(key(7))
    results = await woken(task)
    assert looks[1:] == [[7]]
    assert len(results) == 1_000
    assert results[7] == FetchResult(None, 1, 0, [b"wal/7/0"], 1)
    assert {result for result in results if not result.records} == {FetchResult(None, 0, 0, (), 0)}


async def test_idle_polls_look_nothing_up(setting: Setting, looks: list[list[int]]) -> None:
    for _ in range(3):
        await setting.fetch(*all_wide(), max_wait_ms=0)
    assert len(looks) == 1
    # Neither does another consumer of the same partitions, wherever it begins.
    rows = all_wide()
    await setting.fetch(*rows[500:], *rows[:500], max_wait_ms=0)
    assert len(looks) == 1
    setting.commit(key(3))
    setting.commit(key(999))
    await setting.fetch(*all_wide(), max_wait_ms=0)
    assert looks[1:] == [[3, 999]]


async def test_only_commits_to_its_own_partitions_wake_a_fetch(
    setting: Setting, looks: list[list[int]]
) -> None:
    odd = setting.fetch(*all_wide()[1::2])
    few = setting.fetch(*all_wide()[4:8:2])
    await setting.until_parked(2)
    setting.commit(key(2))
    setting.commit(TopicIdPartition(UUID(int=1), 0))
    await asyncio.sleep(0)
    assert setting.parked == 2
    setting.commit(key(6))
    assert [len(result.records) for result in await woken(few)] == [0, 1]
    assert setting.parked == 1
    setting.commit(key(501))
    results = await woken(odd)
    assert [row for row, result in enumerate(results) if result.records] == [250]


async def test_many_topics_wake_a_fetch_as_one_does(setting: Setting) -> None:
    topics = [
        TopicDescription(topic_id=UUID(int=1_000 + n), name=f"t{n}", partition_count=2)
        for n in range(100)
    ]
    setting.coordinator.by_name |= {topic.name: topic for topic in topics}
    task = setting.fetch(*(at(n % 2, topic_name=f"t{n // 2}") for n in range(200)))
    await setting.until_parked()
    setting.commit(TopicIdPartition(topics[42].topic_id, 1))
    results = await woken(task)
    assert [row for row, result in enumerate(results) if result.records] == [85]


@pytest.mark.parametrize("between", [at(1), wide(0)])
async def test_a_topic_may_come_again_after_another_one(
    setting: Setting, between: FetchPartition
) -> None:
    """As in the requests of librdkafka, which begin with another partition each time."""
    setting.coordinator.by_name["wide"] = WIDE
    asked = FetchRows.of([*all_wide()[500:], between, *all_wide()[:500]])
    topic_of = asked.topic_of.copy()
    topic_of[501:] = len(asked.topics)
    rows = FetchRows(
        [*asked.topics, asked.topics[0]],
        topic_of,
        asked.partitions,
        asked.offsets,
        asked.max_bytes,
        asked.leader_epochs,
    )
    task = asyncio.create_task(setting.fetch_rows(rows))
    await setting.until_parked()
    setting.commit(key(499))
    results = await woken(task)
    assert [row for row, result in enumerate(results) if result.records] == [1_000]
    assert setting.parked == 0


async def test_a_commit_during_the_look_is_not_missed_among_many(
    setting: Setting, looks: list[list[int]]
) -> None:
    setting.coordinator.on_look = lambda: setting.commit(key(800))
    results = await woken(setting.fetch(*all_wide()))
    assert list(results[800].records) == [b"wal/800/0"]
    assert looks == [[*range(1_000)], [800]]


async def test_a_topic_that_grows_while_it_is_waited_for(
    setting: Setting, looks: list[list[int]]
) -> None:
    task = setting.fetch(*all_wide())
    await setting.until_parked()
    setting.coordinator.by_name["wide"] = replace(WIDE, partition_count=1_001)
    # Somebody asks for the new one, which gives the partitions other places.
    other = setting.fetch(wide(1_000))
    await until(lambda: looks[-1] == [*range(1_000)] and len(looks) == 3)
    await setting.until_parked(2)
    setting.commit(key(5))
    assert [row for row, result in enumerate(await woken(task)) if result.records] == [5]
    setting.commit(key(1_000))
    assert list((await woken(other))[0].records) == [b"wal/1000/0"]


async def test_a_topic_that_is_deleted_while_it_is_waited_for(
    setting: Setting, looks: list[list[int]]
) -> None:
    here = setting.fetch(*all_wide())
    await setting.until_parked()
    del setting.coordinator.by_name["wide"]
    setting.manager.forget([key(partition) for partition in range(1_000)])
    results = await woken(here)
    assert {type(result.error) for result in results} == {UnknownPartition}
    assert {result[1:] for result in results} == {(-1, -1, (), -1, ())}


async def test_a_topic_that_another_broker_deletes_while_it_is_waited_for(
    setting: Setting, looks: list[list[int]]
) -> None:
    """Then all that is heard of it is that its partitions changed."""
    task = setting.fetch(*(request._replace(topic_id=WIDE.topic_id) for request in all_wide()))
    await setting.until_parked()
    del setting.coordinator.by_name["wide"]
    setting.manager.committed([key(partition) for partition in range(1_000)])
    assert {type(result.error) for result in await woken(task)} == {UnknownTopicId}


async def test_rows_that_cannot_be_read_are_errors_among_many(
    setting: Setting, looks: list[list[int]]
) -> None:
    rows = all_wide()
    rows[10] = wide(-1)
    rows[20] = wide(1_000)
    rows[30] = wide(30, current_leader_epoch=-2)
    rows[40] = at(0, topic_name="nobody")
    results = await setting.fetch(*rows)
    wrong = {row: type(result.error) for row, result in enumerate(results) if result.error}
    assert wrong == {
        10: UnknownPartition,
        20: UnknownPartition,
        30: FencedLeaderEpoch,
        40: UnknownPartition,
    }
    assert looks == [[n for n in range(1_000) if n not in wrong]]


@pytest.mark.parametrize("offset", [-(2**63), -1, 2**63 - 1])
async def test_an_offset_at_which_no_log_can_end_is_looked_up(
    setting: Setting, looks: list[list[int]], offset: int
) -> None:
    for _ in range(2):
        (result,) = await setting.fetch(wide(0, offset))
        assert result.error is not None
    assert looks == [[0], [0]]


@pytest.mark.parametrize("count", [2, 100])
async def test_what_is_asked_for_twice_is_answered_twice(
    setting: Setting, looks: list[list[int]], count: int
) -> None:
    rows = all_wide()[:count]
    task = setting.fetch(*rows, *rows)
    by_id = setting.fetch(*rows, at(0), *(row._replace(topic_id=WIDE.topic_id) for row in rows))
    await setting.until_parked(2)
    setting.commit(key(1))
    results = await woken(task)
    assert [row for row, result in enumerate(results) if result.records] == [1, count + 1]
    results = await woken(by_id)
    assert [row for row, result in enumerate(results) if result.records] == [1, count + 2]
    assert setting.parked == 0


async def test_an_offset_that_nobody_here_has_heard_of_is_waited_for(
    setting: Setting, looks: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a follower that cannot reach the leader: that is no OFFSET_OUT_OF_RANGE."""
    ends = {7: 5}

    def found(request: FindBatches) -> FoundBatches:
        return FoundBatches(0, ends.get(request.partition.partition, 0))

    monkeypatch.setattr(setting.coordinator, "_find", found)
    (result,) = await setting.fetch(wide(7, 9), max_wait_ms=20)
    assert result == FetchResult(None, 5, 0, (), 5)
    task = setting.fetch(wide(7, 9), wide(8))
    await setting.until_parked()
    looked = len(looks)
    # It is asked for again whenever something is heard of it, and the other one is not.
    setting.manager.committed([key(7)])
    await until(lambda: len(looks) == looked + 1)
    await setting.until_parked()
    assert looks[-1] == [7]
    ends[7] = 9
    setting.manager.committed([key(7)])
    await until(lambda: len(looks) == looked + 2)
    await setting.until_parked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nothing_is_asked_for_and_nothing_answered(setting: Setting) -> None:
    assert list(await setting.fetch()) == []


async def test_thousands_of_partitions_are_looked_up_in_turns_and_share_the_limit(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.coordinator.by_name["wide"] = replace(WIDE, partition_count=2_500)
    for partition in (0, 1_500):
        setting.commit(key(partition), 300)
    looks: list[tuple[int, int, bool]] = []
    turns: list[int] = []
    original = setting.coordinator.find_batches

    async def find_batches(
        requests: Sequence[FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        isolation: int,
    ) -> list[FoundBatches]:
        looks.append((len(requests), max_bytes, at_least_one))
        turns.append(turn)
        return await original(requests, max_bytes=max_bytes, at_least_one=at_least_one)

    monkeypatch.setattr(setting.coordinator, "find_batches", find_batches)
    turn = 0
    task = setting.fetch(*(wide(partition) for partition in range(2_500)), max_bytes=1_000)
    while not task.done():
        turn += 1
        await asyncio.sleep(0)
    assert looks == [(1_000, 1_000, True), (1_000, 700, False), (500, 400, False)]
    assert turns == sorted({*turns}), "the loop had a turn between them"
    results = await task
    assert [row for row, result in enumerate(results) if result.records] == [0, 1_500]
    assert {result.high_watermark for result in results} == {0, 1}


async def test_what_is_wrong_with_many_rows_is_one_error_for_all(setting: Setting) -> None:
    rows = FetchRows.of([at(0, topic_name=f"no-{number}") for number in range(1_200)])
    answer = FetchAnswer.of(await setting.fetch_rows(rows))
    assert {*map(type, answer.errors.values())} == {UnknownPartition}
    assert len({*map(id, answer.errors.values())}) == 1
    assert [*answer.errors] == [*range(1_200)]


async def test_columns_give_back_what_they_were_made_of() -> None:
    requests = [
        FetchPartition(None, "a", 2, 5, 100, -1),
        FetchPartition(UUID(int=4), "", -7, -1, -1, 3),
        FetchPartition(None, "a", 0, 2**63 - 1, 2**31 - 1, 0),
    ]
    rows = FetchRows.of(requests)
    assert list(rows) == requests
    assert rows[-1] == requests[-1]
    assert rows[1:] == requests[1:]
    assert FetchRows.of(rows) is rows
    results = [
        FetchResult(None, 5, 1, (b"x",), 4, (AbortedTransaction(7, 1, 3),)),
        FetchResult(UnknownPartition("gone")),
        *[FetchResult(None, 0, 0)],
    ]
    answer = FetchAnswer.of(results)
    assert list(answer) == results
    assert answer[-1] == results[-1]
    assert answer[:2] == results[:2]
    with pytest.raises(IndexError):
        answer[3]


async def test_cancelling_a_fetch_of_many_leaves_no_watch(
    setting: Setting, looks: list[list[int]]
) -> None:
    task = setting.fetch(*all_wide())
    await setting.until_parked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert setting.parked == 0
    setting.commit(key(0))
