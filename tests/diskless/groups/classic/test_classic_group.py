"""The rules of a classic group, one by one, on the state machine."""

from typing import Any

import pytest

from diskless.groups import errors as group_errors
from diskless.groups.classic.rebalance import NEW_MEMBER_TIMEOUT_S, GroupState
from diskless.groups.group_machine import Removed
from diskless.groups.requests import GroupProtocol, SyncedGroup
from tests.support.groups.classic_group_bench import A, B, Bench, protocols
from tests.support.groups.group_requests import subscription


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- joining


def test_a_member_without_an_id_is_given_one_to_come_back_with(bench: Bench) -> None:
    asked = bench.joined(bench.ask_join(needs_member_id=True))
    assert isinstance(asked.error, group_errors.MemberIdRequired)
    assert asked.member_id == "m-1"
    assert bench.group.state is GroupState.EMPTY
    joined = bench.joined(bench.ask_join("m-1", needs_member_id=True))
    assert (joined.error, joined.member_id, joined.generation_id) == (None, "m-1", 1)
    assert joined.leader == "m-1"
    assert [member.member_id for member in joined.members] == ["m-1"]


def test_an_id_that_nobody_comes_back_with_is_forgotten_after_a_session(bench: Bench) -> None:
    bench.ask_join(needs_member_id=True, session_timeout_ms=10_000)
    bench.advance(9.9)
    assert not bench.group.is_unused
    bench.advance(0.1)
    assert bench.group.is_unused
    late = bench.joined(bench.ask_join("m-1"))
    assert isinstance(late.error, group_errors.UnknownMember)


def test_a_stable_group_hears_nothing_of_an_id_that_nobody_comes_back_with(bench: Bench) -> None:
    """A client asks for an id, and its connection ends before it has the answer."""
    bench.stable_pair(session_timeout_ms=60_000)
    generation_id = bench.group.generation_id
    bench.ask_join(needs_member_id=True, session_timeout_ms=10_000)
    bench.advance(10.0)
    assert bench.group.state is GroupState.STABLE
    left = bench.joined(bench.ask_join(needs_member_id=True)).member_id
    assert bench.leave(left) is None
    assert bench.group.state is GroupState.STABLE
    assert bench.group.generation_id == generation_id
    assert bench.heartbeat("m-1") is None


def test_a_rebalance_that_waited_for_such_an_id_ends_when_it_is_forgotten(bench: Bench) -> None:
    bench.stable_pair(session_timeout_ms=60_000)
    bench.ask_join(needs_member_id=True, session_timeout_ms=10_000)
    first = bench.ask_join("m-1")
    second = bench.ask_join("m-2")
    assert bench.is_parked(first)
    bench.advance(10.0)
    assert {bench.joined(ticket).generation_id for ticket in (first, second)} == {3}


def test_a_rebalance_waits_for_a_member_that_was_promised_a_place(bench: Bench) -> None:
    bench.stable_pair()
    bench.ask_join(needs_member_id=True)
    first = bench.ask_join("m-1")
    second = bench.ask_join("m-2")
    assert bench.is_parked(first)
    third = bench.ask_join("m-3")
    assert {bench.joined(ticket).generation_id for ticket in (first, second, third)} == {3}


def test_an_empty_group_waits_for_more_members_and_longer_when_some_come() -> None:
    bench = Bench(initial_delay_s=3.0)
    first = bench.ask_join(rebalance_timeout_ms=10_000)
    bench.advance(2.0)
    second = bench.ask_join(rebalance_timeout_ms=10_000)
    bench.advance(3.0)
    assert bench.is_parked(first)
    bench.advance(1.0)
    assert bench.joined(first).generation_id == bench.joined(second).generation_id == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout_however_many_come() -> None:
    bench = Bench(initial_delay_s=3.0)
    first = bench.ask_join(rebalance_timeout_ms=10_000)
    for _ in range(9):
        bench.advance(1.0)
        bench.ask_join(rebalance_timeout_ms=10_000)
    assert bench.is_parked(first)
    bench.advance(1.0)
    assert len(bench.joined(first).members) == 10


def test_only_the_leader_is_told_who_is_in_the_group(bench: Bench) -> None:
    bench.ask_join(protocols=[GroupProtocol("range", b"of one")])
    second = bench.ask_join(protocols=[GroupProtocol("range", b"of two")])
    first = bench.ask_join("m-1", protocols=[GroupProtocol("range", b"of one")])
    assert [(one.member_id, one.metadata) for one in bench.joined(first).members] == [
        ("m-1", b"of one"),
        ("m-2", b"of two"),
    ]
    assert bench.joined(second).members == ()
    assert bench.joined(second).leader == "m-1"
    assert bench.joined(second).protocol_name == "range"


def test_members_that_do_not_rejoin_in_time_are_out(bench: Bench) -> None:
    bench.stable_pair(rebalance_timeout_ms=5_000)
    third = bench.ask_join(rebalance_timeout_ms=5_000)
    bench.advance(4.9)
    assert isinstance(bench.heartbeat("m-1"), group_errors.RebalanceInProgress)
    assert bench.is_parked(third)
    bench.advance(0.1)
    assert [member.member_id for member in bench.joined(third).members] == ["m-3"]
    assert isinstance(bench.heartbeat("m-1"), group_errors.UnknownMember)
    assert bench.removed == [Removed(one, "did not join in time") for one in ("m-1", "m-2")]


def test_the_longest_rebalance_timeout_of_a_member_counts(bench: Bench) -> None:
    bench.stable_pair(rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    third = bench.ask_join(rebalance_timeout_ms=5_000)
    bench.advance(19.9)
    assert bench.is_parked(third)
    bench.advance(0.1)
    assert bench.joined(third).error is None


def test_a_new_member_that_cannot_send_heartbeats_may_wait_for_long_but_not_for_ever(
    bench: Bench,
) -> None:
    hour_ms = 3_600_000
    bench.stable_pair(rebalance_timeout_ms=hour_ms, session_timeout_ms=hour_ms)
    third = bench.ask_join(rebalance_timeout_ms=hour_ms, session_timeout_ms=6_000)
    bench.advance(NEW_MEMBER_TIMEOUT_S - 1)
    assert bench.is_parked(third)
    bench.advance(1)
    assert isinstance(bench.joined(third).error, group_errors.UnknownMember)


def test_who_joins_twice_gets_both_answered(bench: Bench) -> None:
    bench.stable_pair()
    first = bench.ask_join("m-1")
    again = bench.ask_join("m-1")
    assert isinstance(bench.joined(first).error, group_errors.RebalanceInProgress)
    assert bench.is_parked(again)
    bench.ask_join("m-2")
    assert bench.joined(again).error is None


def test_a_lost_join_answer_is_given_again_in_the_sync_phase(bench: Bench) -> None:
    bench.ask_join()
    bench.ask_join()
    lost = bench.joined(bench.ask_join("m-1"))
    again = bench.joined(bench.ask_join("m-1"))
    assert again == lost
    assert bench.group.generation_id == lost.generation_id


def test_a_follower_that_rejoins_unchanged_is_told_the_generation_and_a_leader_rebalances(
    bench: Bench,
) -> None:
    bench.stable_pair()
    follower = bench.joined(bench.ask_join("m-2"))
    assert (follower.error, follower.generation_id) == (None, 2)
    assert bench.group.state is GroupState.STABLE
    leader = bench.ask_join("m-1")
    assert bench.is_parked(leader)
    assert bench.group.state is GroupState.PREPARING


def test_a_follower_with_another_subscription_starts_a_rebalance(bench: Bench) -> None:
    bench.stable_pair()
    ticket = bench.ask_join("m-2", protocols=[GroupProtocol("range", subscription("other"))])
    assert bench.is_parked(ticket)
    assert isinstance(bench.heartbeat("m-1"), group_errors.RebalanceInProgress)


def test_the_protocol_that_all_have_and_most_want_wins(bench: Bench) -> None:
    bench.ask_join(protocols=protocols("cooperative", "range", "sticky"))
    bench.ask_join(protocols=protocols("sticky", "range"))
    third = bench.ask_join(protocols=protocols("sticky", "range"))
    first = bench.ask_join("m-1", protocols=protocols("cooperative", "range", "sticky"))
    bench.ask_join("m-2", protocols=protocols("sticky", "range"))
    assert bench.joined(first).protocol_name == bench.joined(third).protocol_name == "sticky"


@pytest.mark.parametrize(
    "fields",
    [
        {"protocols": protocols("unheard of")},
        {"protocols": ()},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ],
)
def test_a_member_without_a_common_protocol_is_refused(bench: Bench, fields: Any) -> None:
    bench.stable_pair()
    refused = bench.joined(bench.ask_join(**fields))
    assert isinstance(refused.error, group_errors.InconsistentGroupProtocol)
    assert bench.group.state is GroupState.STABLE


def test_the_only_member_may_change_to_any_protocol(bench: Bench) -> None:
    bench.ask_join()
    changed = bench.joined(bench.ask_join("m-1", protocols=protocols("other"), protocol_type="x"))
    assert (changed.error, changed.protocol_name, changed.protocol_type) == (None, "other", "x")


def test_a_full_group_refuses_new_members_and_keeps_those_it_has() -> None:
    bench = Bench(size_max=2)
    bench.stable_pair()
    refused = bench.joined(bench.ask_join())
    assert isinstance(refused.error, group_errors.GroupMaxSizeReached)
    refused = bench.joined(bench.ask_join(needs_member_id=True))
    assert isinstance(refused.error, group_errors.GroupMaxSizeReached)
    assert bench.heartbeat("m-1") is None
    assert bench.joined(bench.ask_join("m-2")).error is None


def test_a_group_that_is_too_large_now_keeps_who_rejoins_first() -> None:
    bench = Bench(size_max=3)
    bench.stable_pair()
    bench.ask_join()
    bench.group._size_max = 2
    bench.ask_join("m-2")
    refused = bench.joined(bench.ask_join("m-1"))
    assert isinstance(refused.error, group_errors.GroupMaxSizeReached)
    assert bench.group.member_ids == ["m-2", "m-3"]
    assert bench.group.state is GroupState.COMPLETING


# -- syncing


def test_an_assignment_is_given_out_when_it_is_durable(bench: Bench) -> None:
    bench.ask_join()
    bench.ask_join()
    bench.ask_join("m-1")
    bench.held = []
    follower = bench.ask_sync("m-2")
    leader = bench.ask_sync("m-1", {"m-1": A, "m-2": B, "stranger": b"?"})
    assert bench.is_parked(leader)
    assert bench.is_parked(follower)
    (effect,) = bench.held
    assert {one.member_id: one.assignment for one in effect.group.members} == {"m-1": A, "m-2": B}
    bench.group.stored(effect.serial, None, bench.now)
    bench.settle()
    assert bench.synced(leader) == SyncedGroup(
        protocol_type="consumer", protocol_name="range", assignment=A
    )
    assert bench.synced(follower).assignment == B


def test_an_assignment_that_could_not_be_stored_is_told_to_nobody(bench: Bench) -> None:
    bench.ask_join()
    bench.held = []
    leader = bench.ask_sync("m-1", {"m-1": A})
    failure = group_errors.GroupCoordinatorUnavailable("away")
    bench.group.stored(bench.held.pop().serial, failure, bench.now)
    bench.settle()
    assert bench.synced(leader).error is failure
    assert bench.group.state is GroupState.PREPARING
    bench.held = None
    assert bench.joined(bench.ask_join("m-1")).generation_id == 2
    assert bench.synced(bench.ask_sync("m-1", {"m-1": A})).assignment == A


def test_an_assignment_of_a_generation_that_ended_while_it_was_stored_counts_no_more(
    bench: Bench,
) -> None:
    bench.ask_join()
    bench.held = []
    leader = bench.ask_sync("m-1", {"m-1": A})
    bench.ask_join()
    assert isinstance(bench.synced(leader).error, group_errors.RebalanceInProgress)
    bench.group.stored(bench.held.pop().serial, None, bench.now)
    bench.settle()
    assert bench.group.state is GroupState.PREPARING


def test_a_follower_that_syncs_late_gets_its_assignment_at_once(bench: Bench) -> None:
    bench.ask_join()
    bench.ask_join()
    bench.ask_join("m-1")
    bench.ask_sync("m-1", {"m-1": A, "m-2": B})
    assert bench.synced(bench.ask_sync("m-2")).assignment == B
    assert bench.synced(bench.ask_sync("m-2")).assignment == B


def test_who_does_not_sync_in_time_is_out_and_the_others_begin_again(bench: Bench) -> None:
    bench.ask_join(rebalance_timeout_ms=5_000)
    bench.ask_join(rebalance_timeout_ms=5_000)
    bench.ask_join("m-1", rebalance_timeout_ms=5_000)
    follower = bench.ask_sync("m-2")
    bench.advance(4.9)
    assert bench.is_parked(follower)
    bench.advance(0.1)
    assert isinstance(bench.synced(follower).error, group_errors.RebalanceInProgress)
    assert bench.group.member_ids == ["m-2"]
    assert bench.removed == [Removed("m-1", "did not sync in time")]
    assert bench.joined(bench.ask_join("m-2")).leader == "m-2"


def test_who_never_fetches_its_assignment_is_out_of_a_stable_group_too(bench: Bench) -> None:
    bench.ask_join(rebalance_timeout_ms=5_000)
    bench.ask_join(rebalance_timeout_ms=5_000)
    bench.ask_join("m-1", rebalance_timeout_ms=5_000)
    bench.ask_sync("m-1", {"m-1": A, "m-2": B})
    assert bench.group.state is GroupState.STABLE
    bench.advance(5.0)
    assert bench.group.member_ids == ["m-1"]
    assert bench.group.state is GroupState.PREPARING


def test_a_sync_of_another_generation_or_protocol_is_refused(bench: Bench) -> None:
    bench.stable_pair()
    wrong = bench.synced(bench.ask_sync("m-1", generation_id=1))
    assert isinstance(wrong.error, group_errors.IllegalGeneration)
    wrong = bench.synced(bench.ask_sync("m-1", protocol_type="connect"))
    assert isinstance(wrong.error, group_errors.InconsistentGroupProtocol)
    wrong = bench.synced(bench.ask_sync("m-1", protocol_name="sticky"))
    assert isinstance(wrong.error, group_errors.InconsistentGroupProtocol)
    right = bench.synced(bench.ask_sync("m-1", protocol_type="consumer", protocol_name="range"))
    assert right.assignment == A
    wrong = bench.synced(bench.ask_sync("m-9"))
    assert isinstance(wrong.error, group_errors.UnknownMember)
    bench.ask_join()
    wrong = bench.synced(bench.ask_sync("m-1"))
    assert isinstance(wrong.error, group_errors.RebalanceInProgress)


# -- living


def test_a_silent_member_is_out_after_its_session_and_heartbeats_keep_it(bench: Bench) -> None:
    bench.stable_pair(session_timeout_ms=10_000)
    for _ in range(3):
        bench.advance(9.0)
        assert bench.heartbeat("m-1") is None
        if "m-2" in bench.group.member_ids:
            assert bench.heartbeat("m-2") is None
    bench.advance(9.0)
    assert bench.heartbeat("m-1") is None
    bench.advance(1.0)
    assert bench.group.member_ids == ["m-1"]
    assert bench.removed == [Removed("m-2", "the session has expired")]
    assert isinstance(bench.heartbeat("m-1"), group_errors.RebalanceInProgress)


def test_commits_and_syncs_are_signs_of_life_too(bench: Bench) -> None:
    bench.stable_pair(session_timeout_ms=10_000)
    bench.advance(6.0)
    assert bench.commit(2, "m-1") is None
    bench.ask_sync("m-2")
    bench.advance(6.0)
    assert bench.group.member_ids == ["m-1", "m-2"]


def test_a_heartbeat_is_refused_to_strangers_and_in_other_generations(bench: Bench) -> None:
    bench.stable_pair()
    assert isinstance(bench.heartbeat("m-9"), group_errors.UnknownMember)
    assert isinstance(bench.heartbeat("m-1", generation_id=1), group_errors.IllegalGeneration)
    assert isinstance(bench.heartbeat("m-1", "i-9"), group_errors.UnknownMember)


def test_a_heartbeat_in_the_sync_phase_is_one_like_any_other(bench: Bench) -> None:
    bench.ask_join()
    assert bench.group.state is GroupState.COMPLETING
    assert bench.heartbeat("m-1") is None


def test_when_one_leaves_the_others_rebalance_at_once(bench: Bench) -> None:
    bench.stable_pair()
    assert bench.leave("m-2") is None
    assert isinstance(bench.heartbeat("m-1"), group_errors.RebalanceInProgress)
    assert bench.joined(bench.ask_join("m-1")).generation_id == 3


def test_when_the_last_one_leaves_the_group_is_stored_empty(bench: Bench) -> None:
    bench.stable_pair()
    bench.leave("m-1")
    bench.leave("m-2")
    assert bench.group.is_unused
    assert bench.stored[-1].members == ()
    assert bench.stored[-1].generation_id == bench.group.generation_id == 3


def test_when_one_leaves_whom_the_others_wait_for_the_rebalance_is_complete(bench: Bench) -> None:
    bench.stable_pair()
    third = bench.ask_join()
    first = bench.ask_join("m-1")
    assert bench.is_parked(third)
    bench.leave("m-2")
    assert bench.joined(first).error is bench.joined(third).error is None


def test_who_leaves_with_a_request_parked_gets_it_answered(bench: Bench) -> None:
    bench.stable_pair()
    waiting = bench.ask_join("m-1")
    bench.leave("m-1")
    assert isinstance(bench.joined(waiting).error, group_errors.UnknownMember)


def test_a_client_gives_back_the_id_that_it_was_to_join_with(bench: Bench) -> None:
    bench.ask_join(needs_member_id=True)
    assert bench.leave("m-1") is None
    assert bench.group.is_unused
    assert isinstance(bench.leave("m-1"), group_errors.UnknownMember)


# -- committing


def test_who_may_commit(bench: Bench) -> None:
    assert bench.commit(-1) is None
    bench.ask_join()
    assert isinstance(bench.commit(1, "m-1"), group_errors.RebalanceInProgress)
    bench.ask_sync("m-1", {"m-1": A})
    assert bench.commit(1, "m-1") is None
    assert isinstance(bench.commit(-1), group_errors.UnknownMember)
    assert isinstance(bench.commit(0, "m-1"), group_errors.IllegalGeneration)
    assert isinstance(bench.commit(1, "m-2"), group_errors.UnknownMember)
    bench.ask_join()
    assert bench.commit(1, "m-1") is None  # what it read before it rejoins
    bench.leave("m-1")
    bench.leave("m-2")
    assert bench.commit(-1) is None
    assert isinstance(bench.commit(1, "m-1"), group_errors.UnknownMember)


# -- subscriptions


def test_what_a_group_reads(bench: Bench) -> None:
    assert not bench.group.reads("a")
    bench.ask_join(protocols=[GroupProtocol("range", subscription("a"))])
    bench.ask_join(protocols=[GroupProtocol("range", subscription("b", "c"))])
    bench.ask_join("m-1", protocols=[GroupProtocol("range", subscription("a"))])
    assert [name for name in "abcd" if bench.group.reads(name)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "metadata", [b"", b"\x00", subscription("a")[:-8], b"\x00\x00\x7f\xff\xff\xff"]
)
def test_a_subscription_that_cannot_be_read_may_be_to_anything(
    bench: Bench, metadata: bytes
) -> None:
    bench.ask_join(protocols=[GroupProtocol("range", metadata)])
    assert bench.group.reads("a")


def test_a_group_that_is_no_consumer_may_read_anything(bench: Bench) -> None:
    bench.ask_join(protocol_type="connect", protocols=protocols("default"))
    assert bench.group.reads("a")
    bench.leave("m-1")
    assert not bench.group.reads("a")
