"""Static members of a classic group, and what of a group outlives its coordinator."""

import pytest

from diskless.groups import errors as group_errors
from diskless.groups.classic.classic_group import ClassicGroup
from diskless.groups.classic.rebalance import GroupState
from diskless.groups.requests import GroupProtocol
from tests.support.groups.classic_group_bench import A, B, Bench, protocols
from tests.support.groups.group_requests import subscription


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- static members


def test_a_static_member_comes_back_to_what_it_had_without_a_rebalance(bench: Bench) -> None:
    bench.stable_statics()
    generation_id = bench.group.generation_id
    back = bench.joined(bench.ask_join(instance_id="i-2"))
    assert (back.error, back.generation_id, back.member_id) == (None, generation_id, "m-3")
    assert bench.synced(bench.ask_sync("m-3", instance_id="i-2")).assignment == B
    assert bench.group.state is GroupState.STABLE
    assert isinstance(bench.heartbeat("m-2", "i-2"), group_errors.FencedInstanceId)
    assert isinstance(bench.commit(generation_id, "m-2", "i-2"), group_errors.FencedInstanceId)
    assert {one.member_id for one in bench.stored[-1].members} == {"m-1", "m-3"}
    assert bench.heartbeat("m-3", "i-2") is None


def test_a_returned_leader_is_told_to_leave_the_assignment_as_it_is(bench: Bench) -> None:
    bench.stable_statics()
    back = bench.joined(bench.ask_join(instance_id="i-1", may_skip_assignment=True))
    assert (back.leader, back.skip_assignment) == ("m-3", True)
    assert {member.member_id for member in back.members} == {"m-3", "m-2"}


def test_a_returned_leader_that_cannot_skip_is_told_that_another_leads(bench: Bench) -> None:
    bench.stable_statics()
    back = bench.joined(bench.ask_join(instance_id="i-1", may_skip_assignment=False))
    assert (back.leader, back.members, back.skip_assignment) == ("m-1", (), False)


def test_a_returned_member_is_answered_when_its_new_id_is_durable(bench: Bench) -> None:
    bench.stable_statics()
    bench.held = []
    ticket = bench.ask_join(instance_id="i-2")
    assert bench.is_parked(ticket)
    failure = group_errors.GroupCoordinatorUnavailable("away")
    bench.group.stored(bench.held.pop().serial, failure, bench.now)
    bench.settle()
    assert bench.joined(ticket).error is failure
    bench.held = None
    assert bench.joined(bench.ask_join(instance_id="i-2")).error is None


def test_a_static_member_with_another_subscription_starts_a_rebalance(bench: Bench) -> None:
    bench.stable_statics()
    other = [GroupProtocol("range", subscription("topic", "other"))]
    assert bench.is_parked(bench.ask_join(instance_id="i-2", protocols=other))
    assert bench.group.state is GroupState.PREPARING


def test_who_waits_under_an_instance_id_that_is_taken_over_is_fenced(bench: Bench) -> None:
    bench.stable_statics()
    waiting = bench.ask_join("m-1", instance_id="i-1")
    bench.ask_join(instance_id="i-1")
    assert isinstance(bench.joined(waiting).error, group_errors.FencedInstanceId)


def test_a_takeover_in_the_sync_phase_starts_a_new_rebalance(bench: Bench) -> None:
    bench.ask_join(instance_id="i-1")
    bench.ask_join(instance_id="i-2")
    bench.ask_join("m-1", instance_id="i-1")
    syncing = bench.ask_sync("m-2", instance_id="i-2")
    back = bench.ask_join(instance_id="i-2")
    assert isinstance(bench.synced(syncing).error, group_errors.FencedInstanceId)
    assert bench.is_parked(back)
    assert bench.group.state is GroupState.PREPARING


def test_a_static_member_that_is_away_stays_in_the_generation_until_its_session_ends(
    bench: Bench,
) -> None:
    times = {"rebalance_timeout_ms": 5_000, "session_timeout_ms": 60_000}
    bench.stable_statics(**times)
    third = bench.ask_join(**times)
    first = bench.ask_join("m-1", instance_id="i-1", **times)
    bench.advance(5.0)
    told = bench.joined(first).members
    assert [member.member_id for member in told] == ["m-1", "m-2", "m-3"]
    assert bench.joined(third).error is None
    bench.ask_sync("m-1", {"m-1": A, "m-2": B}, instance_id="i-1")
    bench.ask_sync("m-3")
    bench.advance(54.0)
    assert bench.group.state is GroupState.STABLE
    assert bench.assignments()["m-2"] == B
    bench.advance(1.0)
    assert bench.group.member_ids == ["m-1", "m-3"]


def test_administrators_remove_a_static_member_by_its_instance_id(bench: Bench) -> None:
    bench.stable_statics()
    assert isinstance(bench.leave("", "i-9"), group_errors.UnknownMember)
    assert isinstance(bench.leave("m-1", "i-2"), group_errors.FencedInstanceId)
    assert bench.leave("", "i-2") is None
    assert bench.group.member_ids == ["m-1"]


# -- what outlives a coordinator


def restored(bench: Bench) -> Bench:
    other = Bench()
    other.group = ClassicGroup.restored("group", bench.stored[-1], other.now, **bench.options)
    return other


def test_a_restored_group_goes_on_without_a_rebalance(bench: Bench) -> None:
    bench.stable_pair(session_timeout_ms=10_000)
    other = restored(bench)
    assert other.group.state is GroupState.STABLE
    assert other.assignments() == {"m-1": A, "m-2": B}
    assert other.heartbeat("m-1", generation_id=2) is None
    assert other.commit(2, "m-2") is None
    assert other.synced(other.ask_sync("m-2")).assignment == B
    other.advance(10.0)
    assert other.group.member_ids == []


def test_a_restored_group_fences_and_elects_as_before(bench: Bench) -> None:
    bench.stable_statics()
    other = restored(bench)
    assert isinstance(other.heartbeat("m-9", "i-1"), group_errors.FencedInstanceId)
    refused = other.joined(other.ask_join(protocols=protocols("other")))
    assert isinstance(refused.error, group_errors.InconsistentGroupProtocol)
    assert other.group.leader == "m-1"
    assert other.group.reads("topic")


def test_a_restored_empty_group_goes_on_counting(bench: Bench) -> None:
    bench.stable_pair()
    bench.leave("m-1")
    bench.leave("m-2")
    other = restored(bench)
    assert other.group.state is GroupState.EMPTY
    assert other.joined(other.ask_join()).generation_id == 4


def test_closing_answers_everybody_who_waits(bench: Bench) -> None:
    bench.stable_statics()
    bench.held = []
    returning = bench.ask_join(instance_id="i-1")
    newcomer = bench.ask_join()
    bench.group.close(group_errors.NotGroupCoordinator("moved"))
    bench.settle()
    for ticket in (returning, newcomer):
        assert isinstance(bench.joined(ticket).error, group_errors.NotGroupCoordinator)
    assert bench.group.state is GroupState.DEAD
