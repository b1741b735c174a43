"""The groups of a broker: what reaches them, what survives, what is refused, what is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from diskless.groups import errors as group_errors
from diskless.groups.requests import JoinedGroup, LeavingMember
from diskless.loop.long_work import done_at_once
from metadata.records.groups import GroupKind
from metadata.rules.groups import group_coordinator
from tests.support.groups.group_requests import CLIENT, join_request, subscription, sync_request
from tests.support.groups.groups_bench import SETTINGS, GroupsBench
from wal.errors import (
    CommitFailed,
    InvalidRequest,
    InvalidSettings,
    NotCoordinator,
    StorageFailed,
)


@pytest.fixture
async def bench() -> AsyncIterator[GroupsBench]:
    bench = GroupsBench()
    await bench.start()
    yield bench
    await bench.stop()


# -- the way to a group


async def test_clients_are_sent_to_who_leads_the_groups_metadata_partition() -> None:
    bench = GroupsBench(partitions=3)
    index = group_coordinator("group", 3)
    assert bench.router.find("group") == 7
    bench.partitions[index].leader = None
    assert isinstance(bench.router.find("group"), group_errors.GroupCoordinatorUnavailable)


async def test_a_broker_that_does_not_lead_says_so_to_every_request() -> None:
    bench = GroupsBench(partitions=2)
    index = group_coordinator("group", 2)
    task = bench.lead(1 - index)
    await bench.settled()
    joined = await bench.join()
    errors: list[Any] = [
        joined.error,
        (await bench.sync(joined)).error,
        bench.heartbeat(joined),
        await bench.router.leave("group", [LeavingMember("m", None, "")]),
        (await bench.commit(("topic", 0, 1)))[0],
        (await bench.fetch()).error,
        await bench.router.delete_offsets("group", [("topic", 0)]),
        (await bench.router.describe("group")).error,
        await bench.router.delete_group("group"),
    ]
    assert {type(error) for error in errors} == {group_errors.NotGroupCoordinator}
    assert done_at_once(bench.router.list_groups()) == []
    assert not task.done()
    await bench.stop()


async def test_while_groups_are_being_read_clients_are_asked_to_try_again() -> None:
    bench = GroupsBench()
    bench.store.read_failures.append(StorageFailed("a bad disk"))
    bench.lead()
    await bench.settled()
    assert bench.pauses == 1
    assert isinstance((await bench.join()).error, group_errors.GroupLoading)
    assert isinstance(done_at_once(bench.router.list_groups()), group_errors.GroupLoading)
    # A member of the group that is being read is not disturbed.
    assert bench.heartbeat(JoinedGroup(member_id="a member", generation_id=3)) is None
    bench.may_go_on.set()
    await bench.settled()
    assert (await bench.join()).error is None
    await bench.stop()


async def test_whoever_waits_is_sent_elsewhere_when_the_broker_leads_no_more(
    bench: GroupsBench,
) -> None:
    await bench.member()
    waiting = asyncio.ensure_future(bench.join())
    await bench.settled()
    assert not waiting.done()
    await bench.stop()
    assert isinstance((await waiting).error, group_errors.NotGroupCoordinator)
    assert isinstance((await bench.join()).error, group_errors.NotGroupCoordinator)


async def test_groups_stored_at_another_coordinator_than_their_own_stop_the_broker() -> None:
    bench = GroupsBench(partitions=2)
    index = group_coordinator("group", 2)
    await bench.store.commit_offsets("group", [])
    task = bench.lead(1 - index)
    await asyncio.wait([task])
    with pytest.raises(ExceptionGroup) as raised:
        task.result()
    assert raised.group_contains(InvalidSettings, match="another coordinator")


async def test_a_group_needs_an_id_to_be_joined_but_not_to_be_committed_to(
    bench: GroupsBench,
) -> None:
    joined = await bench.join(group_id="")
    assert isinstance(joined.error, group_errors.InvalidGroupId)
    assert isinstance((await bench.sync(joined, "")).error, group_errors.InvalidGroupId)
    assert isinstance(bench.heartbeat(joined, ""), group_errors.InvalidGroupId)
    assert isinstance(await bench.router.leave("", []), group_errors.InvalidGroupId)
    assert await bench.commit(("topic", 0, 1), group_id="") == [None]
    assert await bench.fetched("") == {("topic", 0): 1}


async def test_names_that_no_old_version_can_carry_are_refused(bench: GroupsBench) -> None:
    joined = await bench.join(instance_id="x" * 40_000)
    assert isinstance(joined.error, InvalidRequest)


# -- members


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
async def test_session_timeouts_are_bounded(bench: GroupsBench, session_timeout_ms: int) -> None:
    joined = await bench.join(session_timeout_ms=session_timeout_ms)
    assert isinstance(joined.error, group_errors.InvalidSessionTimeout)


async def test_a_member_of_a_group_that_nobody_knows_is_told_to_join_anew(
    bench: GroupsBench,
) -> None:
    joined = await bench.join("m-1")
    assert isinstance(joined.error, group_errors.UnknownMember)
    assert isinstance((await bench.sync(joined)).error, group_errors.UnknownMember)
    assert isinstance(bench.heartbeat(joined), group_errors.UnknownMember)
    (error,) = await bench.router.leave("group", [LeavingMember("m-1", None, "")])
    assert isinstance(error, group_errors.UnknownMember)
    assert done_at_once(bench.router.list_groups()) == []


async def test_member_ids_begin_with_the_client_or_the_instance_id(bench: GroupsBench) -> None:
    dynamic = await bench.join(needs_member_id=True)
    assert dynamic.member_id.startswith("client-")
    static = await bench.join(group_id="other", instance_id="i-1", needs_member_id=True)
    assert static.member_id.startswith("i-1-")
    assert static.error is None


async def test_a_silent_member_is_thrown_out_by_the_purgatory(bench: GroupsBench) -> None:
    joined = await bench.member(session_timeout_ms=10_000)
    await bench.advance(9.0)
    assert bench.heartbeat(joined) is None
    await bench.advance(9.0)
    assert bench.heartbeat(joined) is None
    with capture_logs() as lines:
        await bench.advance(10.0)
    assert [(line["member_id"], line["reason"]) for line in lines] == [
        (joined.member_id, "the session has expired")
    ]
    assert isinstance(bench.heartbeat(joined), group_errors.UnknownMember)
    assert (await bench.router.describe("group")).state == "Empty"
    assert bench.router.purgatory.statistics().watched == 0


async def test_waiting_costs_nothing(bench: GroupsBench) -> None:
    members = [
        (f"group-{number}", await bench.member(f"group-{number}", session_timeout_ms=600_000))
        for number in range(500)
    ]

    async def live(seconds: int) -> None:
        for _ in range(seconds // 10):
            for group_id, joined in members:
                assert bench.heartbeat(joined, group_id) is None
            await bench.advance(10.0)

    await live(60)  # the rebalance timeout, after which nothing but sessions is waited for
    calls = bench.loop.calls
    await live(300)
    assert bench.loop.calls == calls
    assert bench.router.purgatory.statistics().watched == len(members)


async def test_members_go_on_after_the_coordinator_was_replaced(bench: GroupsBench) -> None:
    joined = await bench.member(session_timeout_ms=10_000)
    after = await bench.restarted()
    assert after.heartbeat(joined) is None
    assert (await after.sync(joined)).assignment == b"all"
    assert await after.commit(("topic", 1, 5), joined=joined) == [None]
    await after.advance(10.0)
    assert isinstance(after.heartbeat(joined), group_errors.UnknownMember)
    await after.stop()


async def test_a_generation_that_was_not_durable_never_was(bench: GroupsBench) -> None:
    joined = await bench.join()
    bench.store.failures.append(CommitFailed("away"))
    synced = await bench.sync(joined, own=b"all")
    assert isinstance(synced.error, group_errors.GroupCoordinatorUnavailable)
    assert isinstance(bench.heartbeat(joined), group_errors.RebalanceInProgress)
    again = await bench.join(joined.member_id)
    assert again.generation_id == 2
    assert (await bench.sync(again, own=b"all")).assignment == b"all"


async def test_a_leader_that_was_deposed_confirms_no_assignment(bench: GroupsBench) -> None:
    joined = await bench.join()
    bench.store.failures.append(NotCoordinator("deposed"))
    assert isinstance((await bench.sync(joined)).error, group_errors.NotGroupCoordinator)


async def test_heartbeats_are_heard_but_not_confirmed_while_another_may_lead(
    bench: GroupsBench,
) -> None:
    joined = await bench.member(session_timeout_ms=10_000)
    bench.store.leads = False
    for _ in range(3):
        await bench.advance(9.0)
        answer = bench.heartbeat(joined)
        assert isinstance(answer, Awaitable)
        assert isinstance(await answer, group_errors.GroupCoordinatorUnavailable)
    bench.store.leads = True
    assert bench.heartbeat(joined) is None


async def test_a_group_is_stored_in_the_order_in_which_it_changed(bench: GroupsBench) -> None:
    joined = await bench.join(session_timeout_ms=10_000)
    bench.store.gate.clear()
    synced = asyncio.ensure_future(bench.sync(joined, own=b"all"))
    await bench.settled()
    await bench.router.leave("group", [LeavingMember(joined.member_id, None, "")])
    await bench.settled()
    bench.store.gate.set()
    assert isinstance((await synced).error, group_errors.UnknownMember)
    after = await bench.restarted()
    assert (await after.router.describe("group")).state == "Empty"
    assert (await after.join()).generation_id == 3
    await after.stop()


async def test_a_group_that_nobody_ever_was_in_leaves_nothing_behind(bench: GroupsBench) -> None:
    await bench.join(needs_member_id=True)
    assert [group.group_id for group in done_at_once(bench.router.list_groups())] == ["group"]
    await bench.advance(10.0)
    assert done_at_once(bench.router.list_groups()) == []
    assert bench.store.groups == {}


async def test_static_members_are_fenced_after_a_restart_too(bench: GroupsBench) -> None:
    old = await bench.join(instance_id="i-1")
    await bench.router.sync(sync_request(old.member_id, 1, {old.member_id: b"all"}))
    new = await bench.join(instance_id="i-1")
    assert (new.skip_assignment, new.generation_id) == (True, 1)
    after = await bench.restarted()
    request = sync_request(old.member_id, 1, instance_id="i-1")
    assert isinstance((await after.router.sync(request)).error, group_errors.FencedInstanceId)
    request = sync_request(new.member_id, 1, instance_id="i-1")
    assert (await after.router.sync(request)).assignment == b"all"
    await after.stop()


async def test_a_stored_group_of_another_version_begins_anew_and_keeps_its_offsets(
    bench: GroupsBench,
) -> None:
    await bench.store.store_group("group", GroupKind.CLASSIC, b"\x63 of the future")
    await bench.commit(("topic", 0, 5))
    after = await bench.restarted()
    assert await after.fetched() == {("topic", 0): 5}
    assert (await after.join()).error is None
    await after.stop()


# -- administration


async def test_groups_are_listed_by_state_and_type(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1), group_id="offsets only")
    await bench.member("live")
    joined = await bench.member("left")
    await bench.router.leave("left", [LeavingMember(joined.member_id, None, "")])

    def listed(**filters: Any) -> set[tuple[str, str, str]]:
        groups = done_at_once(bench.router.list_groups(**filters))
        assert not isinstance(groups, Exception)
        assert all(group.group_type == "classic" for group in groups)
        return {(group.group_id, group.protocol_type, group.state) for group in groups}

    await bench.settled()
    live = ("live", "consumer", "Stable")
    left = ("left", "consumer", "Empty")
    offsets_only = ("offsets only", "", "Empty")
    assert listed() == {live, left, offsets_only}
    assert listed(states=["stable"]) == {live}
    assert listed(states=["Empty", "Dead"]) == {left, offsets_only}
    assert listed(types=["CLASSIC"]) == {live, left, offsets_only}
    assert listed(types=["consumer"]) == set()
    after = await bench.restarted()
    assert {group.group_id: group.state for group in done_at_once(after.router.list_groups())} == {
        "live": "Stable",
        "left": "Empty",
        "offsets only": "Empty",
    }
    await after.stop()


async def test_a_group_is_described_with_its_members(bench: GroupsBench) -> None:
    joined = await bench.member(instance_id="i-1")
    described = await bench.router.describe("group")
    assert (described.state, described.protocol_type, described.protocol_name) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = described.members
    assert member.member_id == joined.member_id
    assert (member.instance_id, member.client_id, member.client_host) == (
        "i-1",
        CLIENT.client_id,
        CLIENT.host,
    )
    assert (member.metadata, member.assignment) == (subscription("topic"), b"all")
    missing = await bench.router.describe("unheard of")
    assert (missing.state, type(missing.error)) == ("Dead", group_errors.GroupIdNotFound)


async def test_a_group_is_deleted_with_its_offsets_when_it_is_empty(bench: GroupsBench) -> None:
    joined = await bench.member()
    await bench.commit(("topic", 0, 1), joined=joined)
    assert isinstance(await bench.router.delete_group("group"), group_errors.NonEmptyGroup)
    await bench.router.leave("group", [LeavingMember(joined.member_id, None, "")])
    assert await bench.router.delete_group("group") is None
    assert await bench.fetched() == {}
    assert done_at_once(bench.router.list_groups()) == []
    assert isinstance(await bench.router.delete_group("group"), group_errors.GroupIdNotFound)
    after = await bench.restarted()
    assert done_at_once(after.router.list_groups()) == []
    await after.stop()


async def test_a_deletion_that_failed_leaves_the_group(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1))
    bench.store.failures.append(CommitFailed("away"))
    assert isinstance(
        await bench.router.delete_group("group"), group_errors.GroupCoordinatorUnavailable
    )
    assert len(done_at_once(bench.router.list_groups())) == 1


async def test_who_joins_while_the_group_is_deleted_is_in_a_new_group(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1))
    bench.store.gate.clear()
    deleting = asyncio.ensure_future(bench.router.delete_group("group"))
    await bench.settled()
    joining = asyncio.ensure_future(bench.member())
    await bench.settled()
    bench.store.gate.set()
    assert await deleting is None
    joined = await joining
    assert bench.store.writes == ["commit_offsets group", "delete_group group", "store_group group"]
    after = await bench.restarted()
    assert after.heartbeat(joined) is None
    await after.stop()


async def test_a_group_may_have_its_own_limits() -> None:
    bench = GroupsBench(replace(SETTINGS, max_size=1, min_session_timeout_ms=1))
    await bench.start()
    await bench.member(session_timeout_ms=1)
    refused = await bench.router.join(join_request(needs_member_id=True), CLIENT)
    assert refused.error is not None
    await bench.stop()
