"""Offsets of groups: committed, fetched, deleted, and forgotten when they are old."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diskless.groups import errors as group_errors
from diskless.groups.requests import FetchedOffset, GroupProtocol, LeavingMember
from diskless.loop.long_work import done_at_once
from tests.support.groups.groups_bench import SETTINGS, GroupsBench
from wal.errors import (
    AppendTooLarge,
    CommitFailed,
    CommitOutcomeUnknown,
    NotCoordinator,
    UnknownPartition,
)

DAY_S = 24 * 3600.0
RETENTION_S = SETTINGS.offsets_retention_minutes * 60.0


@pytest.fixture
async def bench() -> AsyncIterator[GroupsBench]:
    bench = GroupsBench()
    await bench.start()
    yield bench
    await bench.stop()


# -- offsets


async def test_offsets_are_fetched_as_they_were_committed(bench: GroupsBench) -> None:
    assert await bench.commit(("topic", 1, 5), ("topic", 0, 7), metadata="m") == [None, None]
    found = await bench.fetch(("topic", 0), ("topic", 2), ("topic", 1), ("gone", 0))
    assert found.offsets == [
        FetchedOffset("topic", 0, 7, 0, "m"),
        FetchedOffset("topic", 2),
        FetchedOffset("topic", 1, 5, 0, "m"),
        FetchedOffset("gone", 0),
    ]
    assert await bench.fetched() == {("topic", 0): 7, ("topic", 1): 5}
    assert await bench.fetched("other") == {}


async def test_an_epoch_of_another_cluster_is_not_given_out(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1), leader_epoch=57)
    await bench.commit(("topic", 1, 1), leader_epoch=-1)
    assert [one.leader_epoch for one in (await bench.fetch()).offsets] == [0, -1]


async def test_one_bad_offset_does_not_hinder_the_others(bench: GroupsBench) -> None:
    errors = await bench.commit(("topic", 0, 1), ("gone", 0, 1), ("topic", 9, 1), ("topic", -1, 1))
    assert [type(error) for error in errors] == [type(None), *[UnknownPartition] * 3]
    assert await bench.fetched() == {("topic", 0): 1}


async def test_metadata_is_bounded_in_bytes(bench: GroupsBench) -> None:
    assert await bench.commit(("topic", 0, 1), metadata="ü" * 2_048) == [None]
    (error,) = await bench.commit(("topic", 0, 2), metadata="ü" * 2_048 + "x")
    assert isinstance(error, group_errors.OffsetMetadataTooLarge)
    assert await bench.fetched() == {("topic", 0): 1}


async def test_an_offset_is_answered_when_it_is_durable(bench: GroupsBench) -> None:
    bench.store.gate.clear()
    committing = asyncio.ensure_future(bench.commit(("topic", 0, 1)))
    await bench.settled()
    assert not committing.done()
    assert await bench.fetched() == {}
    bench.store.gate.set()
    assert await committing == [None]
    assert await bench.fetched() == {("topic", 0): 1}


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (CommitFailed("away"), group_errors.GroupCoordinatorUnavailable),
        (CommitOutcomeUnknown("away"), group_errors.GroupCoordinatorUnavailable),
        (NotCoordinator("deposed"), group_errors.NotGroupCoordinator),
        (AppendTooLarge("5 MiB"), group_errors.InvalidCommitOffsetSize),
    ],
)
async def test_an_offset_that_could_not_be_stored_is_an_error_that_says_what_to_do(
    bench: GroupsBench, failure: Any, error: type[Exception]
) -> None:
    bench.store.failures.append(failure)
    errors = await bench.commit(("topic", 0, 1), ("topic", 1, 1))
    assert [type(one) for one in errors] == [error, error]
    assert done_at_once(bench.router.list_groups()) == []


async def test_a_deposed_leader_gives_out_no_offsets(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1))
    bench.store.failures.append(NotCoordinator("deposed"))
    found = await bench.fetch()
    assert isinstance(found.error, group_errors.NotGroupCoordinator)
    assert found.offsets == ()


async def test_only_members_commit_to_a_group_that_has_any(bench: GroupsBench) -> None:
    joined = await bench.member()
    assert await bench.commit(("topic", 0, 1), joined=joined) == [None]
    (error,) = await bench.commit(("topic", 0, 2))
    assert isinstance(error, group_errors.UnknownMember)
    (error,) = await bench.commit(("topic", 0, 2), joined=joined._replace(generation_id=7))
    assert isinstance(error, group_errors.IllegalGeneration)
    assert await bench.fetched() == {("topic", 0): 1}


@pytest.mark.parametrize(
    ("knows_member_epochs", "error"),
    [(False, group_errors.IllegalGeneration), (True, group_errors.GroupIdNotFound)],
)
async def test_a_member_cannot_commit_to_a_group_that_is_not_there(
    bench: GroupsBench, knows_member_epochs: bool, error: type[Exception]
) -> None:
    (refused,) = await bench.commit(
        ("topic", 0, 1), generation_id=1, knows_member_epochs=knows_member_epochs
    )
    assert isinstance(refused, error)
    await bench.commit(("topic", 0, 1))
    (refused,) = await bench.commit(
        ("topic", 0, 1), generation_id=1, knows_member_epochs=knows_member_epochs
    )
    assert isinstance(refused, group_errors.UnknownMember)


async def test_a_topic_created_again_under_its_name_has_no_offsets(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1))
    del bench.topics.known["topic"]
    assert await bench.fetched() == {}
    bench.topics.create("topic")
    assert await bench.fetched() == {}
    assert (await bench.fetch(("topic", 0))).offsets == [FetchedOffset("topic", 0)]


async def test_offsets_of_the_clusters_own_topic_can_be_committed(bench: GroupsBench) -> None:
    assert await bench.commit(("internal", 0, 1)) == [None]
    assert await bench.fetched() == {("internal", 0): 1}


async def test_offsets_are_deleted_except_of_what_is_being_read(bench: GroupsBench) -> None:
    bench.topics.create("other")
    joined = await bench.member()
    await bench.commit(("topic", 0, 1), ("other", 0, 1), ("other", 1, 1), joined=joined)
    errors = await bench.router.delete_offsets(
        "group", [("topic", 0), ("other", 0), ("gone", 0), ("other", 3)]
    )
    assert [type(error) for error in errors] == [
        group_errors.GroupSubscribedToTopic,
        type(None),
        UnknownPartition,
        type(None),
    ]
    assert await bench.fetched() == {("other", 1): 1, ("topic", 0): 1}


async def test_offsets_of_a_group_of_workers_are_not_deleted(bench: GroupsBench) -> None:
    await bench.member(protocol_type="connect", protocols=[GroupProtocol("default", b"")])
    error = await bench.router.delete_offsets("group", [("topic", 0)])
    assert isinstance(error, group_errors.NonEmptyGroup)
    error = await bench.router.delete_offsets("unheard of", [("topic", 0)])
    assert isinstance(error, group_errors.GroupIdNotFound)


async def test_a_group_is_gone_with_its_last_offset_if_it_has_nothing_else(
    bench: GroupsBench,
) -> None:
    await bench.commit(("topic", 0, 1))
    assert len(done_at_once(bench.router.list_groups())) == 1
    await bench.router.delete_offsets("group", [("topic", 0)])
    assert done_at_once(bench.router.list_groups()) == []


# -- forgetting


async def test_offsets_of_a_group_without_members_are_forgotten_after_their_retention(
    bench: GroupsBench,
) -> None:
    joined = await bench.member(session_timeout_ms=1_800_000)
    await bench.commit(("topic", 0, 1), joined=joined)
    await bench.advance(1_700)
    await bench.commit(("topic", 1, 1), joined=joined)
    await bench.router.leave("group", [LeavingMember(joined.member_id, None, "")])
    await bench.settled()
    await bench.advance(RETENTION_S - 1)
    await bench.led.forget_unused()
    assert len(await bench.fetched()) == 2
    await bench.advance(2)
    await bench.led.forget_unused()
    assert await bench.fetched() == {}
    assert bench.store.groups == {}
    assert done_at_once(bench.router.list_groups()) == []


async def test_offsets_of_what_is_read_are_kept_however_old(bench: GroupsBench) -> None:
    bench.topics.create("other")
    joined = await bench.member(session_timeout_ms=1_800_000)
    await bench.commit(("topic", 0, 1), ("other", 0, 1), joined=joined)
    for _ in range(int(RETENTION_S / 1_500) + 2):
        await bench.advance(1_500)
        assert bench.heartbeat(joined) is None
    await bench.led.forget_unused()
    assert await bench.fetched() == {("topic", 0): 1}


async def test_offsets_without_a_group_go_by_their_own_age(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1))
    await bench.advance(DAY_S)
    await bench.commit(("topic", 1, 1))
    await bench.advance(RETENTION_S - DAY_S + 1)
    await bench.led.forget_unused()
    assert await bench.fetched() == {("topic", 1): 1}
    await bench.advance(DAY_S)
    await bench.led.forget_unused()
    assert await bench.fetched() == {}
    assert done_at_once(bench.router.list_groups()) == []


async def test_a_clock_that_jumps_ahead_makes_no_offset_old(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1))
    await bench.commit(("topic", 1, 1), retention_ms=10_000)
    bench.clock.step_wall(2 * RETENTION_S)
    await bench.led.forget_unused()
    assert await bench.fetched() == {("topic", 0): 1, ("topic", 1): 1}


async def test_offsets_with_a_time_of_their_own_go_by_that(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1), retention_ms=10_000)
    await bench.advance(9)
    await bench.led.forget_unused()
    assert await bench.fetched() == {("topic", 0): 1}
    await bench.advance(2)
    await bench.led.forget_unused()
    assert await bench.fetched() == {}


@pytest.mark.parametrize(
    ("retention_ms", "stays"), [(-1, True), (-2, False), (-(2**63), False), (2**63 - 1, True)]
)
async def test_a_retention_of_any_size_is_a_time_or_the_brokers_own(
    bench: GroupsBench, retention_ms: int, stays: bool
) -> None:
    await bench.commit(("topic", 0, 1), retention_ms=retention_ms)
    await bench.advance(1)
    await bench.led.forget_unused()
    assert await bench.fetched() == ({("topic", 0): 1} if stays else {})


async def test_offsets_of_deleted_topics_go_when_they_are_old(bench: GroupsBench) -> None:
    joined = await bench.member(session_timeout_ms=1_800_000)
    await bench.commit(("topic", 0, 1), joined=joined)
    del bench.topics.known["topic"]
    await bench.led.forget_unused()
    assert len(bench.store.offsets["group"]) == 1
    for _ in range(int(RETENTION_S / 1_500) + 2):
        await bench.advance(1_500)
        bench.heartbeat(joined)
    await bench.led.forget_unused()
    assert bench.store.offsets["group"] == {}


async def test_forgetting_goes_on_the_next_time_when_the_store_is_away(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1))
    await bench.advance(RETENTION_S + 1)
    bench.store.failures.append(CommitFailed("away"))
    bench.may_go_on.set()
    await bench.settled()
    assert await bench.fetched() == {("topic", 0): 1}
    bench.may_go_on.set()
    await bench.settled()
    assert await bench.fetched() == {}
