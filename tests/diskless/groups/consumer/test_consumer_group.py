"""The rules of a KIP-848 group, one by one."""

from collections.abc import Sequence
from typing import Any

import pytest

from diskless.groups import errors as group_errors
from diskless.groups.classic.subscription import read_assignment
from diskless.groups.consumer.consumer_group import ConsumerGroupState
from diskless.groups.group_machine import Removed
from diskless.groups.requests import ConsumerHeartbeatAnswer, GroupProtocol
from tests.support.groups.consumer_group_driver import ALL, TOPIC, Driver, refused
from tests.support.groups.consumer_requests import SESSION_S, SETTINGS, consumer_join
from tests.support.groups.group_requests import subscription, subscription_with_owned


@pytest.fixture
def driver() -> Driver:
    return Driver()


# -- joining


def test_the_first_member_has_everything_at_once(driver: Driver) -> None:
    answer = driver.join("a")
    assert answer == ConsumerHeartbeatAnswer(
        None, "a", 1, SETTINGS.consumer_heartbeat_interval_ms, {TOPIC: ALL}
    )
    assert driver.group.state is ConsumerGroupState.STABLE


def test_a_member_of_no_topic_is_told_that_it_has_nothing(driver: Driver) -> None:
    answer = driver.join("a", "missing")
    assert (answer.error, answer.assignment) == (None, {})


def test_the_second_member_gets_what_the_first_one_gives_up(driver: Driver) -> None:
    driver.join("a")
    joined = driver.join("b")
    assert (joined.member_epoch, joined.assignment) == (2, {})
    assert driver.group.state is ConsumerGroupState.RECONCILING
    told = driver.beat("a", 1)
    assert (told.member_epoch, len((told.assignment or {})[TOPIC])) == (1, 2)
    kept = (told.assignment or {})[TOPIC]
    assert driver.beat("b", 2).assignment is None
    moved = driver.beat("a", 1, sorted(kept))
    assert (moved.member_epoch, moved.assignment) == (2, None)
    assert driver.beat("b", 2).assignment == {TOPIC: ALL - kept}
    assert driver.group.state is ConsumerGroupState.STABLE


def test_a_heartbeat_that_changes_nothing_is_answered_without_an_assignment(
    driver: Driver,
) -> None:
    driver.join("a")
    stored = len(driver.stored)
    wakes_at = driver.group.wakes_at
    answer = driver.beat("a", 1)
    assert (answer.error, answer.member_epoch, answer.assignment) == (None, 1, None)
    assert len(driver.stored) == stored
    assert driver.group.wakes_at == wakes_at


def test_a_heartbeat_that_says_everything_is_answered_with_the_assignment(driver: Driver) -> None:
    driver.join("a")
    answer = driver.beat("a", 1, sorted(ALL), rebalance_timeout_ms=1, topic_names=["topic"])
    assert answer.assignment == {TOPIC: ALL}


def test_a_full_group_takes_nobody_in() -> None:
    driver = Driver(consumer_max_size=1)
    driver.join("a")
    assert refused(driver.join("b"), group_errors.GroupMaxSizeReached)
    assert isinstance(driver.join_classic().error, group_errors.GroupMaxSizeReached)
    assert driver.join("a").error is None


def test_a_member_that_changes_its_subscription_changes_the_assignment(driver: Driver) -> None:
    other = driver.topics.create("other", 2)
    driver.join("a")
    answer = driver.beat("a", 1, sorted(ALL), topic_names=["other"])
    assert (answer.member_epoch, answer.assignment) == (1, {})
    answer = driver.beat("a", 1, [])
    assert (answer.member_epoch, answer.assignment) == (2, {other: frozenset({0, 1})})
    assert driver.group.generation_id == 2


def test_the_same_subscription_in_another_order_changes_nothing(driver: Driver) -> None:
    driver.join("a", "topic", "other")
    driver.beat("a", 1, topic_names=["other", "topic", "topic"])
    assert driver.group.generation_id == 1


def test_most_members_choose_the_assignor(driver: Driver) -> None:
    driver.join("a", assignor="range")
    assert driver.group.assignor_name == "range"
    driver.join("b", assignor="uniform")
    assert driver.group.assignor_name == "uniform"
    driver.join("c", assignor="range")
    assert driver.group.assignor_name == "range"
    assert Driver(consumer_assignors="range,uniform").group.assignor_name == "range"


# -- epochs


def test_an_epoch_that_was_not_given_is_fenced(driver: Driver) -> None:
    driver.join("a")
    assert refused(driver.beat("a", 2), group_errors.FencedMemberEpoch)
    assert driver.beat("a", 1).error is None


def test_a_member_whose_answer_was_lost_goes_on(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    told = driver.beat("a", 1)
    kept = sorted((told.assignment or {})[TOPIC])
    lost = driver.beat("a", 1, kept)
    again = driver.beat("a", 1, kept, rebalance_timeout_ms=1, topic_names=["topic"])
    assert (again.error, again.member_epoch) == (None, lost.member_epoch)
    assert again.assignment == {TOPIC: frozenset(kept)}


def test_a_member_one_epoch_behind_that_has_what_it_should_not_is_fenced(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    told = driver.beat("a", 1)
    kept = sorted((told.assignment or {})[TOPIC])
    driver.beat("a", 1, kept)
    assert refused(driver.beat("a", 1, sorted(ALL)), group_errors.FencedMemberEpoch)
    assert refused(driver.beat("a", 1), group_errors.FencedMemberEpoch)


def test_a_member_goes_on_however_many_answers_were_lost(driver: Driver) -> None:
    driver.join("a")
    driver.join("b", "other")
    assert driver.beat("a", 1, sorted(ALL)).member_epoch == 2
    for epoch in (3, 4, 5):
        driver.beat("b", driver.epoch("b"), topic_names=[f"topic-{epoch}"])
        assert driver.beat("a", 1, sorted(ALL)).member_epoch == epoch


def test_a_fenced_member_starts_over_under_its_id(driver: Driver) -> None:
    driver.share()
    answer = driver.join("a")
    assert answer.error is None
    assert answer.assignment == {TOPIC: frozenset(driver.assigned("a"))}
    assert len(driver.assigned("a")) == 2


def test_a_stranger_is_unknown(driver: Driver) -> None:
    assert refused(driver.beat("a", 1), group_errors.UnknownMember)
    assert refused(driver.beat("a", -1), group_errors.UnknownMember)
    driver.join("a")
    assert refused(driver.beat("b", 1), group_errors.UnknownMember)


# -- leaving and being left


def test_who_leaves_leaves_its_partitions_to_the_others(driver: Driver) -> None:
    _, b = driver.share()
    assert driver.beat("a", -1).member_epoch == -1
    assert driver.group.state is ConsumerGroupState.ASSIGNING
    assert driver.beat("b", b).assignment == {TOPIC: ALL}
    assert driver.member_ids == ["b"]


def test_a_group_that_all_have_left_is_unused_when_that_is_stored(driver: Driver) -> None:
    driver.join("a")
    driver.stores = False
    driver.beat("a", -1)
    assert driver.group.is_empty
    assert not driver.group.is_unused
    driver.store()
    assert driver.group.is_unused
    assert driver.group.state is ConsumerGroupState.EMPTY


def test_a_member_that_falls_silent_is_removed_after_its_session(driver: Driver) -> None:
    _, b = driver.share()
    driver.pass_time(SESSION_S - 1)
    driver.beat("b", b)
    driver.pass_time(2)
    assert driver.member_ids == ["b"]
    assert driver.removed == [Removed("a", "the session has expired")]
    assert refused(driver.beat("a", 3), group_errors.UnknownMember)


def test_a_member_that_does_not_give_up_in_time_is_removed(driver: Driver) -> None:
    driver.join("a", rebalance_timeout_ms=10_000)
    driver.join("b")
    driver.beat("a", 1, sorted(ALL))
    driver.pass_time(6)
    driver.beat("a", 1, sorted(ALL))
    driver.beat("b", 2)
    driver.pass_time(5)
    assert driver.member_ids == ["b"]
    assert driver.removed == [Removed("a", "did not give up its partitions in time")]
    assert driver.beat("b", 2).assignment == {TOPIC: ALL}


def test_a_member_that_gave_up_in_time_stays(driver: Driver) -> None:
    driver.join("a", rebalance_timeout_ms=10_000)
    driver.join("b")
    told = driver.beat("a", 1)
    driver.beat("a", 1, sorted((told.assignment or {})[TOPIC]))
    driver.pass_time(11)
    assert driver.member_ids == ["a", "b"]


# -- static members


def test_a_static_member_comes_back_to_what_it_had_and_the_others_hear_nothing(
    driver: Driver,
) -> None:
    driver.join("a", instance_id="i")
    driver.join("b")
    told = driver.beat("a", 1)
    a = driver.beat("a", 1, sorted((told.assignment or {})[TOPIC]))
    b = driver.beat("b", 2)
    had, epoch = driver.assigned("a"), driver.group.generation_id
    left = driver.beat("a", -2, instance_id="i")
    assert (left.error, left.member_epoch) == (None, -2)
    assert driver.beat("b", b.member_epoch).assignment is None
    back = driver.join("a-2", instance_id="i")
    assert (back.member_epoch, back.assignment) == (a.member_epoch, {TOPIC: frozenset(had)})
    assert driver.group.generation_id == epoch
    assert driver.member_ids == ["b", "a-2"]
    assert refused(driver.beat("a", 2), group_errors.UnknownMember)


def test_a_static_member_that_does_not_come_back_is_removed(driver: Driver) -> None:
    driver.join("a", instance_id="i")
    driver.beat("a", -2, instance_id="i")
    driver.pass_time(SESSION_S + 1)
    assert driver.group.is_empty


def test_an_instance_id_in_use_is_not_given_away(driver: Driver) -> None:
    driver.join("a", instance_id="i")
    assert refused(driver.join("b", instance_id="i"), group_errors.UnreleasedInstanceId)
    assert driver.join("a", instance_id="i").error is None


def test_who_was_replaced_is_fenced(driver: Driver) -> None:
    driver.join("a", instance_id="i")
    driver.beat("a", -2, instance_id="i")
    driver.join("b", instance_id="i")
    for epoch in (1, -1, -2):
        assert refused(driver.beat("a", epoch, instance_id="i"), group_errors.FencedInstanceId)
    assert refused(driver.beat("b", 1, instance_id="j"), group_errors.UnknownMember)


def test_a_static_member_that_leaves_while_it_gives_up_has_given_up(driver: Driver) -> None:
    driver.join("a", instance_id="i")
    driver.join("b")
    driver.beat("a", 1)
    driver.beat("a", -2, instance_id="i")
    assert len((driver.beat("b", 2).assignment or {})[TOPIC]) == 2


def test_a_static_member_that_leaves_for_good_is_removed(driver: Driver) -> None:
    driver.join("a", instance_id="i")
    driver.beat("a", -1, instance_id="i")
    assert driver.group.is_empty


# -- topics


def test_a_topic_that_comes_is_assigned_at_the_next_heartbeat(driver: Driver) -> None:
    driver.join("a", "later")
    later = driver.topics.create("later", 2)
    answer = driver.beat("a", 1)
    assert (answer.member_epoch, answer.assignment) == (2, {later: frozenset({0, 1})})


def test_a_topic_that_grows_is_assigned_anew(driver: Driver) -> None:
    driver.join("a")
    driver.topics.grow("topic", 6)
    assert driver.beat("a", 1).assignment == {TOPIC: frozenset(range(6))}


def test_a_topic_that_goes_is_given_up_and_another_one_of_its_name_is_another_one(
    driver: Driver,
) -> None:
    driver.join("a")
    driver.topics.delete("topic")
    again = driver.topics.create("topic", 1)
    assert driver.beat("a", 1).assignment == {}
    assert driver.beat("a", 1, []).assignment == {again: frozenset({0})}


def test_topics_that_nobody_subscribes_to_change_nothing(driver: Driver) -> None:
    driver.join("a")
    driver.topics.create("other", 1)
    assert driver.beat("a", 1).member_epoch == 1
    assert driver.group.generation_id == 1


def test_topics_that_changed_while_nobody_coordinated_are_noticed(driver: Driver) -> None:
    driver.join("a")
    driver.topics.grow("topic", 5)
    heir = driver.restarted()
    assert heir.beat("a", 1).assignment == {TOPIC: frozenset(range(5))}


def test_a_pattern_is_the_topics_that_match_it_now_and_later(driver: Driver) -> None:
    driver.topics.create("other", 1)
    joined = driver.join("a", topic_pattern="t.*")
    assert joined.assignment == {TOPIC: ALL}
    later = driver.topics.create("t-2", 1)
    assert driver.beat("a", 1).assignment == {TOPIC: ALL, later: frozenset({0})}
    assert driver.group.reads("t-2")
    assert not driver.group.reads("other")


def test_a_pattern_finds_no_topics_that_the_member_may_not_describe(driver: Driver) -> None:
    asked: list[frozenset[str]] = []

    def described(names: frozenset[str]) -> frozenset[str]:
        asked.append(names)
        return names - {"t2"}

    driver.topics.create("t2", 2)
    join = consumer_join("a", topic_pattern="t.*")
    joined = driver.send(join._replace(described=described))
    assert asked == [frozenset({"topic", "t2"})]
    assert joined.assignment == {TOPIC: ALL}
    driver.beat("a", 1, sorted(ALL))
    assert len(asked) == 1, "what a pattern finds is kept until topics change"


def test_a_pattern_can_be_taken_back(driver: Driver) -> None:
    driver.join("a", topic_pattern="t.*")
    answer = driver.beat("a", 1, sorted(ALL), topic_pattern="")
    assert answer.assignment == {}


def test_a_pattern_that_makes_no_sense_changes_nothing(driver: Driver) -> None:
    assert refused(driver.join("a", topic_pattern="("), group_errors.InvalidRegularExpression)
    assert driver.group.is_empty
    driver.join("a")
    assert refused(driver.beat("a", 1, topic_pattern="["), group_errors.InvalidRegularExpression)
    assert driver.group.generation_id == 1


# -- offsets


def test_members_commit_in_their_epoch(driver: Driver) -> None:
    driver.join("a")
    check = driver.group.check_commit
    assert check(1, "a", None, driver.now) is None
    assert isinstance(check(0, "a", None, driver.now), group_errors.StaleMemberEpoch)
    assert isinstance(check(2, "a", None, driver.now), group_errors.StaleMemberEpoch)
    assert isinstance(check(1, "b", None, driver.now), group_errors.UnknownMember)
    assert isinstance(check(-1, "", None, driver.now), group_errors.UnknownMember)
    old = check(1, "a", None, driver.now, knows_member_epochs=False)
    assert isinstance(old, group_errors.MemberEpochNotSpoken)
    driver.beat("a", -1)
    assert check(-1, "", None, driver.now) is None


def test_members_fetch_offsets_in_their_epoch(driver: Driver) -> None:
    driver.join("a")
    assert driver.group.check_fetch("a", 1) is None
    assert isinstance(driver.group.check_fetch("a", 0), group_errors.StaleMemberEpoch)
    assert isinstance(driver.group.check_fetch("b", 1), group_errors.UnknownMember)


# -- members that speak the classic protocol


def with_both(driver: Driver) -> tuple[str, int]:
    """Member a, and an eager classic one; its id and generation."""
    driver.join("a")
    joined = driver.join_classic()
    assert (joined.error, joined.protocol_name, joined.leader) == (None, "range", "")
    return joined.member_id, joined.generation_id


def test_a_classic_member_is_assigned_by_the_coordinator(driver: Driver) -> None:
    classic, generation = with_both(driver)
    assert read_assignment(driver.sync(classic, generation).assignment) == {}
    told = driver.beat("a", 1)
    kept = (told.assignment or {})[TOPIC]
    assert driver.group.heartbeat(generation, classic, None, driver.now) is None
    driver.beat("a", 1, sorted(kept))
    # What it waits for is free: it has to come for it.
    error = driver.group.heartbeat(generation, classic, None, driver.now)
    assert isinstance(error, group_errors.RebalanceInProgress)
    joined = driver.join_classic(classic)
    synced = driver.sync(classic, joined.generation_id)
    assert read_assignment(synced.assignment) == {"topic": ALL - kept}
    assert driver.group.heartbeat(joined.generation_id, classic, None, driver.now) is None
    assert driver.group.state is ConsumerGroupState.STABLE


def test_a_cooperative_classic_member_gives_up_what_it_says_that_it_has(driver: Driver) -> None:
    def cooperative(**owned: Sequence[int]) -> dict[str, Any]:
        metadata = subscription_with_owned(["topic"], owned)
        return {"protocols": [GroupProtocol("cooperative-sticky", metadata)]}

    joined = driver.join_classic(**cooperative())
    classic = joined.member_id
    assert read_assignment(driver.sync(classic, 1).assignment) == {"topic": ALL}
    driver.join("a")
    error = driver.group.heartbeat(1, classic, None, driver.now)
    assert isinstance(error, group_errors.RebalanceInProgress)
    joined = driver.join_classic(classic, **cooperative(topic=sorted(ALL)))
    kept = read_assignment(driver.sync(classic, joined.generation_id).assignment)
    assert kept is not None
    assert len(kept["topic"]) == 2
    assert driver.beat("a", 2).assignment is None
    joined = driver.join_classic(classic, **cooperative(topic=sorted(kept["topic"])))
    assert joined.generation_id == 2
    assert driver.beat("a", 2).assignment == {TOPIC: ALL - kept["topic"]}


def test_a_classic_member_that_does_not_come_when_told_to_is_removed(driver: Driver) -> None:
    classic, generation = with_both(driver)
    driver.sync(classic, generation)
    driver.join("b")
    for _ in range(8):
        driver.group.heartbeat(generation, classic, None, driver.now)
        for member in "ab":
            driver.beat(member, driver.epoch(member), sorted(driver.assigned(member)))
        driver.pass_time(8)
    assert driver.member_ids == ["a", "b"]


def test_a_classic_member_that_never_asks_for_its_assignment_is_removed(driver: Driver) -> None:
    joined = driver.join_classic(session_timeout_ms=100_000, rebalance_timeout_ms=5_000)
    assert driver.member_ids == [joined.member_id]
    driver.pass_time(6)
    assert driver.member_ids == []


def test_a_classic_member_that_falls_silent_is_removed_after_its_own_session(
    driver: Driver,
) -> None:
    classic, generation = with_both(driver)
    driver.sync(classic, generation)
    driver.pass_time(11)
    assert driver.member_ids == ["a"]


def test_what_classic_members_get_wrong_is_refused(driver: Driver) -> None:
    classic, generation = with_both(driver)
    heartbeat = driver.group.heartbeat
    assert isinstance(heartbeat(9, classic, None, driver.now), group_errors.IllegalGeneration)
    assert isinstance(heartbeat(1, "a", None, driver.now), group_errors.UnknownMember)
    assert isinstance(heartbeat(1, "nobody", None, driver.now), group_errors.UnknownMember)
    assert isinstance(heartbeat(1, classic, "i", driver.now), group_errors.UnknownMember)
    assert isinstance(driver.sync(classic, 9).error, group_errors.IllegalGeneration)
    wrong = driver.sync(classic, generation, protocol_name="other")
    assert isinstance(wrong.error, group_errors.InconsistentGroupProtocol)
    assert isinstance(driver.join_classic("nobody").error, group_errors.UnknownMember)
    for protocols in (
        {"protocol_type": "connect"},
        {"protocols": []},
        {"protocols": [GroupProtocol("range", b"?")]},
        {"protocols": [GroupProtocol("other", subscription("topic"))]},
    ):
        assert isinstance(
            driver.join_classic(**protocols).error, group_errors.InconsistentGroupProtocol
        )
    assert refused(driver.beat(classic, generation), group_errors.UnknownMember)


def test_classic_members_leave_and_administrators_remove_static_ones(driver: Driver) -> None:
    classic, _ = with_both(driver)
    leave = driver.group.leave
    assert isinstance(leave("a", None, driver.now), group_errors.UnknownMember)
    assert leave(classic, None, driver.now) is None
    driver.join("s", instance_id="i")
    assert isinstance(leave("x", "i", driver.now), group_errors.FencedInstanceId)
    assert isinstance(leave("", "j", driver.now), group_errors.UnknownMember)
    assert leave("", "i", driver.now) is None
    assert driver.member_ids == ["a"]


def test_a_static_member_goes_from_the_classic_protocol_to_the_other_one_and_back(
    driver: Driver,
) -> None:
    driver.join("b", "other")
    old = driver.join_classic(instance_id="i")
    assert read_assignment(
        driver.sync(old.member_id, old.generation_id, instance_id="i").assignment
    ) == {"topic": ALL}
    new = driver.join("new", instance_id="i")
    assert new.assignment == {TOPIC: ALL}
    error = driver.group.heartbeat(old.generation_id, old.member_id, "i", driver.now)
    assert isinstance(error, group_errors.FencedInstanceId)
    back = driver.join_classic(instance_id="i")
    assert refused(
        driver.beat("new", new.member_epoch, instance_id="i"), group_errors.FencedInstanceId
    )
    assert read_assignment(
        driver.sync(back.member_id, back.generation_id, instance_id="i").assignment
    ) == {"topic": ALL}


def test_classic_members_commit_in_their_generation(driver: Driver) -> None:
    classic, generation = with_both(driver)
    check = driver.group.check_commit
    assert check(generation, classic, None, driver.now, knows_member_epochs=False) is None
    assert isinstance(
        check(generation + 1, classic, None, driver.now), group_errors.IllegalGeneration
    )


def test_a_group_of_classic_members_alone_says_so_when_that_is_stored(driver: Driver) -> None:
    with_both(driver)
    assert not driver.group.is_all_classic
    driver.stores = False
    driver.beat("a", -1)
    assert not driver.group.is_all_classic
    driver.store()
    assert driver.group.is_all_classic
