"""What a KIP-848 group tells only when it is stored, and what it takes back."""

from typing import Any

import pytest

from diskless.groups.assignors.assignors import ASSIGNORS
from diskless.groups.consumer.consumer_core import LOOK_AGAIN_S
from diskless.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from diskless.groups.errors import GroupCoordinatorUnavailable, NotGroupCoordinator, UnknownMember
from tests.support.groups.consumer_group_driver import ALL, TOPIC, Driver, refused
from tests.support.groups.consumer_requests import SESSION_S
from wal.errors import AppendTooLarge, InvalidRequest


@pytest.fixture
def driver() -> Driver:
    return Driver()


# -- what is durable


def test_nothing_is_told_before_it_is_stored(driver: Driver) -> None:
    driver.stores = False
    assert driver.join("a") is None
    assert driver.beat("a", 1) is None
    driver.store()
    assert driver.answers[0].assignment == {TOPIC: ALL}
    assert driver.answers[1].error is None


def test_one_state_is_stored_at_a_time_and_takes_along_what_happened_until_then(
    driver: Driver,
) -> None:
    driver.stores = False
    for member in "abcd":
        driver.join(member)
    assert len(driver.pending) == 1
    driver.store()
    assert [*driver.answers] == [0]
    assert len(driver.pending) == 1
    driver.store()
    assert [*driver.answers] == [0, 1, 2, 3]
    assert not driver.pending
    assert len(driver.stored[-1].members) == 4


def test_members_that_come_while_a_state_is_stored_share_one_assignment(driver: Driver) -> None:
    calls = 0
    uniform = ASSIGNORS["uniform"]

    class Counting:
        name = "uniform"

        def assign(self, *args: Any) -> Any:
            nonlocal calls
            calls += 1
            return uniform.assign(*args)

    assignors = {"uniform": Counting(), "range": ASSIGNORS["range"]}
    driver.group = ConsumerGroup(
        "group", driver.topics, settings=driver.settings, assignors=assignors
    )
    driver.stores = False
    for number in range(20):
        driver.join(f"m-{number:02}")
    assert calls == 1
    driver.store()
    assert calls == 2
    driver.store()
    assert len(driver.answers) == 20
    assert all(answer.error is None for answer in driver.answers.values())


def test_members_go_on_as_they_are_while_an_assignment_is_worked_out(driver: Driver) -> None:
    driver.join("a")
    driver.assigns = False
    assert driver.join("b") is None
    told = driver.beat("a", 1)
    assert (told.error, told.member_epoch, driver.assigned("a")) == (None, 1, ALL)
    driver.assign()
    assert driver.answers[1].member_epoch == 2
    told = driver.beat("a", 1)
    assert len((told.assignment or {})[TOPIC]) == 2


def test_nobody_is_given_anything_while_an_assignment_is_worked_out(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.assigns = False
    driver.join("c")
    driver.beat("a", -1)
    # What it waits for is free, but will not all be its own.
    told = driver.beat("b", 2)
    assert (told.error, told.member_epoch, told.assignment) == (None, 2, None)
    assert driver.assigned("b") == set()
    driver.assigns = True
    driver.settle()
    assert driver.beat("b", 2).assignment


def test_what_a_member_gives_up_while_an_assignment_is_worked_out_counts(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    told = driver.beat("a", 1)
    kept = sorted((told.assignment or {})[TOPIC])
    driver.assigns = False
    driver.join("c")
    assert driver.beat("a", 1, kept) is None
    driver.assign()
    assert driver.answers[4].error is None
    assert driver.answers[4].member_epoch >= 2
    assert driver.beat("b", 2).assignment == {TOPIC: ALL - frozenset(kept)}


def test_what_changes_while_an_assignment_is_worked_out_leads_to_the_next_one(
    driver: Driver,
) -> None:
    driver.assigns = False
    assert driver.join("a") is None
    assert driver.join("b") is None
    assert driver.join("c") is None
    driver.assign()
    assert driver.answers[0].assignment == {TOPIC: ALL}
    assert [*driver.answers] == [0]
    driver.assign()
    assert [driver.answers[ticket].member_epoch for ticket in (1, 2)] == [2, 2]
    assert not driver.assignments
    assert driver.group.state is ConsumerGroupState.RECONCILING


def test_who_leaves_while_an_assignment_is_worked_out_has_left(driver: Driver) -> None:
    driver.join("a")
    driver.assigns = False
    driver.join("b")
    driver.join("c")
    driver.beat("c", -1)
    driver.beat("a", -1)
    driver.assign()
    assert driver.member_ids == ["b"]
    driver.assigns = True
    driver.beat("b", driver.epoch("b"), [])
    assert driver.assigned("b") == ALL


def test_a_static_member_that_is_replaced_while_an_assignment_is_worked_out_gets_its_share(
    driver: Driver,
) -> None:
    driver.join("s-1", instance_id="i")
    driver.beat("s-1", -2, instance_id="i")
    driver.assigns = False
    driver.join("b")
    assert driver.join("s-2", instance_id="i") is None
    driver.assign()
    assert 3 not in driver.answers
    driver.assign()
    (*_, answer) = driver.answers.values()
    assert len((answer.assignment or {})[TOPIC]) == 2


def test_a_classic_member_waits_for_its_assignment(driver: Driver) -> None:
    driver.join("a")
    driver.assigns = False
    assert driver.join_classic() is None
    driver.assign()
    joined = driver.answers[1]
    assert (joined.error, joined.generation_id) == (None, 2)


def test_a_classic_member_that_joins_twice_is_answered_for_the_last_time(driver: Driver) -> None:
    driver.join("a")
    classic = driver.join_classic().member_id
    driver.topics.grow("topic", 5)
    driver.assigns = False
    assert driver.join_classic(classic) is None
    assert driver.join_classic(classic) is None
    assert isinstance(driver.answers[2].error, UnknownMember)
    driver.assign()
    assert driver.answers[3].error is None


def test_who_waits_for_an_assignment_is_refused_with_what_is_taken_back(driver: Driver) -> None:
    driver.join("a")
    driver.stores = driver.assigns = False
    driver.join("b", "x" * 1_000)
    driver.assign()
    assert driver.join("c") is None
    assert driver.join_classic() is None
    assert not driver.assignments
    driver.store(AppendTooLarge("4 MiB"))
    assert isinstance(driver.answers[2].error, GroupCoordinatorUnavailable)
    assert isinstance(driver.answers[3].error, GroupCoordinatorUnavailable)
    assert driver.member_ids == ["a"]
    driver.stores = driver.assigns = True
    assert driver.join("d").member_epoch == 2
    assert driver.member_ids == ["a", "d"]


def test_nothing_is_stored_while_an_assignment_is_worked_out(driver: Driver) -> None:
    driver.join("a")
    stored = len(driver.stored)
    driver.assigns = False
    driver.join("b")
    assert driver.beat("a", -1) is None
    assert len(driver.stored) == stored
    driver.assign()
    # The answers, then what b is given of what a has left.
    assert [driver.answers[ticket].error for ticket in (1, 2)] == [None, None]
    assert driver.stored[-1] == driver.group.snapshot()


def test_who_waits_for_an_assignment_when_the_group_ends_is_sent_elsewhere(driver: Driver) -> None:
    driver.assigns = False
    driver.join("a")
    driver.join_classic()
    driver.group.close(NotGroupCoordinator("moved"))
    driver.assign()
    assert refused(driver.answers[0], NotGroupCoordinator)
    assert isinstance(driver.answers[1].error, NotGroupCoordinator)
    assert not driver.pending


def test_a_group_is_in_use_while_an_assignment_is_worked_out(driver: Driver) -> None:
    driver.assigns = False
    driver.join("a")
    driver.beat("a", -1)
    assert not driver.group.is_unused
    driver.assign()
    assert driver.group.is_unused


def test_what_a_member_says_last_is_what_counts_when_the_store_is_done(driver: Driver) -> None:
    driver.join("a")
    driver.stores = False
    driver.join("b")
    driver.join("c")
    first, second = driver.join("c", "other"), driver.join("c", "topic")
    assert (first, second) == (None, None)
    driver.store()
    driver.store()
    answers = [driver.answers[number] for number in sorted(driver.answers)]
    assert isinstance(answers[-2].error, GroupCoordinatorUnavailable)
    assert answers[-1].error is None
    assert driver.group.reads("topic")
    assert not driver.group.reads("other")


def test_who_is_removed_while_its_heartbeat_is_postponed_is_told_so(driver: Driver) -> None:
    driver.join("a")
    driver.stores = False
    driver.join("b")
    driver.join("c")
    driver.beat("c", -1)
    assert isinstance(driver.answers[2].error, GroupCoordinatorUnavailable)
    driver.join("d")
    driver.pass_time(SESSION_S + 1)
    assert isinstance(driver.answers[4].error, UnknownMember)
    driver.group.close(NotGroupCoordinator("moved"))
    driver.settle()
    assert isinstance(driver.answers[1].error, NotGroupCoordinator)


def test_who_is_postponed_when_the_group_ends_is_sent_elsewhere(driver: Driver) -> None:
    driver.stores = False
    driver.join("a")
    driver.join("b")
    driver.group.close(NotGroupCoordinator("moved"))
    driver.settle()
    assert refused(driver.answers[0], NotGroupCoordinator)
    assert refused(driver.answers[1], NotGroupCoordinator)


def test_a_failed_store_refuses_what_waits_for_it_and_is_repeated_with_the_next_event(
    driver: Driver,
) -> None:
    driver.stores = False
    driver.join("a")
    driver.store(GroupCoordinatorUnavailable("away"))
    assert refused(driver.answers[0], GroupCoordinatorUnavailable)
    assert driver.join("a") is None
    driver.store()
    assert driver.answers[1].assignment == {TOPIC: ALL}


def test_a_failed_store_is_repeated_soon_without_an_event(driver: Driver) -> None:
    driver.join("a")
    driver.stores = False
    driver.beat("a", -1)
    driver.store(GroupCoordinatorUnavailable("away"))
    assert not driver.group.is_unused
    driver.stores = True
    driver.pass_time(2)
    assert driver.group.is_unused
    assert driver.stored[-1].members == ()


def test_what_can_never_be_stored_has_not_happened(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    told = driver.beat("a", 1)
    before = driver.group.snapshot()
    driver.stores = False
    driver.join("c", "x" * 1_000)
    driver.beat("b", -1)
    kept = sorted((told.assignment or {})[TOPIC])
    driver.beat("a", 1, kept)
    driver.store(AppendTooLarge("4 MiB"))
    assert [type(answer.error) for answer in list(driver.answers.values())[-3:]] == [
        GroupCoordinatorUnavailable
    ] * 3
    assert driver.group.snapshot() == before
    assert not driver.pending
    driver.stores = True
    assert driver.beat("a", 1, kept).member_epoch == 2
    assert driver.beat("b", 2).assignment == {TOPIC: ALL - frozenset(kept)}
    driver.pass_time(SESSION_S + 1)
    assert driver.group.is_empty


def test_topics_that_a_refused_state_knew_are_assigned_a_little_later(driver: Driver) -> None:
    driver.join("a", topic_pattern="topic|new")
    new = driver.topics.create("new", 2)
    driver.stores = False
    driver.beat("a", 1)
    driver.store(AppendTooLarge("4 MiB"))
    driver.stores = True
    driver.pass_time(LOOK_AGAIN_S)
    assert driver.beat("a", 1).assignment == {TOPIC: ALL, new: frozenset({0, 1})}


def test_a_topic_made_anew_in_a_refused_state_is_assigned_a_little_later(driver: Driver) -> None:
    driver.join("a")
    driver.topics.delete("topic")
    new = driver.topics.create("topic", 1)
    driver.stores = False
    driver.join("b")
    driver.store(AppendTooLarge("4 MiB"))
    driver.stores = True
    driver.pass_time(LOOK_AGAIN_S)
    driver.beat("a", 1)
    assert driver.beat("a", 1, []).assignment == {new: frozenset({0})}


def test_a_group_that_cannot_store_its_new_topics_goes_on_with_those_it_has(
    driver: Driver,
) -> None:
    driver.join("a", topic_pattern=".*")
    driver.topics.create("new", 2)
    driver.stores = False
    for _ in range(3):
        assert driver.beat("a", 1) is None
        driver.store(AppendTooLarge("4 MiB"))
        assert driver.beat("a", 1).error is None
        assert driver.assigned("a") == ALL
        driver.pass_time(LOOK_AGAIN_S)


def test_who_was_told_to_give_up_in_a_refused_state_need_not(driver: Driver) -> None:
    driver.join("a", rebalance_timeout_ms=10_000)
    driver.stores = False
    driver.join("b")
    driver.beat("a", 1)
    driver.store(AppendTooLarge("4 MiB"))
    driver.stores = True
    driver.pass_time(11)
    assert driver.beat("a", 1).error is None
    assert driver.assigned("a") == ALL


def test_a_refusal_replaces_what_may_have_been_stored_before_it(driver: Driver) -> None:
    driver.join("a")
    before = driver.group.snapshot()
    driver.stores = False
    driver.join("b")
    driver.beat("a", -1)
    # Whether that one was stored nobody knows.
    driver.store(GroupCoordinatorUnavailable("away"))
    driver.join("c", "x" * 1_000)
    driver.store(AppendTooLarge("4 MiB"))
    assert driver.group.snapshot() == before
    assert driver.beat("a", 1) is None
    driver.store()
    assert driver.stored[-1] == before
    assert not driver.pending
    (*_, answer) = driver.answers.values()
    assert (answer.error, answer.member_epoch) == (None, 1)


def test_what_may_have_been_stored_before_a_refusal_is_replaced_without_an_event(
    driver: Driver,
) -> None:
    driver.stores = False
    driver.join("a")
    driver.store(GroupCoordinatorUnavailable("away"))
    driver.join("c", "x" * 1_000)
    driver.store(AppendTooLarge("4 MiB"))
    assert not driver.group.is_unused
    driver.stores = True
    driver.pass_time(2)
    assert driver.stored[-1].members == ()
    assert driver.group.is_unused


def test_the_last_member_can_be_removed_while_a_state_is_stored(driver: Driver) -> None:
    driver.stores = False
    driver.join("a")
    driver.pass_time(SESSION_S + 1)
    driver.stores = True
    driver.store()
    assert driver.stored[-1].members == ()
    assert driver.group.is_unused


def test_a_group_whose_first_state_can_never_be_stored_is_unused(driver: Driver) -> None:
    driver.stores = False
    driver.join("a")
    driver.store(InvalidRequest("the id of the group is too long"))
    assert refused(driver.answers[0], InvalidRequest)
    assert driver.group.is_unused


def test_who_waits_when_the_group_ends_is_sent_elsewhere(driver: Driver) -> None:
    driver.stores = False
    driver.join("a")
    driver.group.close(NotGroupCoordinator("moved"))
    driver.settle()
    assert refused(driver.answers[0], NotGroupCoordinator)
    assert driver.group.state is ConsumerGroupState.DEAD


def test_the_next_coordinator_goes_on_with_whole_sessions(driver: Driver) -> None:
    a, b = driver.share()
    driver.pass_time(SESSION_S - 1)
    heir = driver.restarted()
    heir.pass_time(SESSION_S - 1)
    assert heir.beat("a", a).error is None
    assert heir.beat("b", b).error is None
    assert heir.assigned("a") == driver.assigned("a")
    assert not heir.stored


def test_the_next_coordinator_waits_for_what_is_being_given_up(driver: Driver) -> None:
    driver.join("a", rebalance_timeout_ms=10_000)
    driver.join("b")
    driver.beat("a", 1)
    driver.pass_time(9)
    heir = driver.restarted()
    heir.pass_time(9)
    assert heir.beat("b", 2).assignment is None
    heir.pass_time(2)
    assert heir.member_ids == ["b"]
