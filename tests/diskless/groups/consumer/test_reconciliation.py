"""One step of a member towards its target."""

from dataclasses import replace
from uuid import UUID

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.consumer.reconciliation import reconciled
from diskless.groups.consumer_state import ConsumerMember, MemberState

TOPIC = UUID(int=1)


def of(*partitions: int) -> TopicPartitions:
    return {TOPIC: frozenset(partitions)} if partitions else {}


def member(
    assigned: TopicPartitions,
    target: TopicPartitions,
    *,
    epoch: int = 4,
    state: MemberState = MemberState.STABLE,
    revoking: TopicPartitions | None = None,
) -> ConsumerMember:
    return ConsumerMember(
        member_id="m",
        rebalance_timeout_ms=1,
        member_epoch=epoch,
        previous_epoch=epoch - 1,
        state=state,
        assigned=assigned,
        target=target,
        revoking=revoking or {},
    )


def step(
    before: ConsumerMember,
    owned: TopicPartitions | None = None,
    *,
    held_by_others: tuple[int, ...] = (),
    assignment_epoch: int = 7,
) -> ConsumerMember:
    def free_of(wanted: TopicPartitions) -> TopicPartitions:
        return of(*(each for each in wanted.get(TOPIC, ()) if each not in held_by_others))

    return reconciled(before, assignment_epoch=assignment_epoch, owned=owned, free_of=free_of)


def test_a_stable_member_of_the_assignments_epoch_stays_as_it_is() -> None:
    stable = member(of(1), of(1), epoch=7)
    assert step(stable) is stable


def test_a_member_whose_target_did_not_change_goes_to_the_assignments_epoch() -> None:
    moved = step(member(of(1), of(1)))
    assert (moved.member_epoch, moved.previous_epoch) == (7, 4)
    assert (moved.state, moved.assigned) == (MemberState.STABLE, of(1))


def test_a_member_gives_up_before_it_takes_and_its_epoch_stays() -> None:
    told = step(member(of(1, 2), of(2, 3)), of(1, 2))
    assert (told.state, told.member_epoch, told.previous_epoch) == (MemberState.UNREVOKED, 4, 3)
    assert (told.assigned, told.revoking) == (of(2), of(1))


def test_a_member_that_does_not_say_what_it_has_may_have_all() -> None:
    told = step(member(of(1), of()), None)
    assert (told.state, told.revoking) == (MemberState.UNREVOKED, of(1))


def test_what_a_member_says_that_it_has_not_is_not_waited_for() -> None:
    moved = step(member(of(1, 2), of(2, 3)), of(2))
    assert (moved.state, moved.member_epoch) == (MemberState.STABLE, 7)
    assert (moved.assigned, moved.revoking) == (of(2, 3), of())


def test_a_member_that_has_not_given_up_yet_is_waited_for() -> None:
    told = member(of(2), of(2, 3), state=MemberState.UNREVOKED, revoking=of(1))
    assert step(told, None) is told
    assert step(told, of(1, 2)) is told


def test_a_member_that_has_given_up_takes_what_is_free() -> None:
    told = member(of(2), of(2, 3), state=MemberState.UNREVOKED, revoking=of(1))
    moved = step(told, of(2))
    assert (moved.state, moved.member_epoch, moved.previous_epoch) == (MemberState.STABLE, 7, 4)
    assert (moved.assigned, moved.revoking) == (of(2, 3), of())


def test_a_member_that_has_given_up_may_be_told_to_give_up_more() -> None:
    told = member(of(2, 3), of(3), state=MemberState.UNREVOKED, revoking=of(1))
    moved = step(told, of(2, 3))
    assert (moved.state, moved.member_epoch) == (MemberState.UNREVOKED, 5)
    assert (moved.assigned, moved.revoking) == (of(3), of(2))


def test_what_others_hold_is_waited_for_in_the_assignments_epoch() -> None:
    waiting = step(member(of(1), of(1, 2, 3)), held_by_others=(2,))
    assert (waiting.state, waiting.member_epoch) == (MemberState.UNRELEASED, 7)
    assert waiting.assigned == of(1, 3)
    assert step(waiting, held_by_others=(2,)) is waiting
    moved = step(waiting)
    assert (moved.state, moved.assigned) == (MemberState.STABLE, of(1, 2, 3))


def test_a_member_that_waits_is_told_to_give_up_when_the_target_changes() -> None:
    waiting = member(of(1), of(2), epoch=7, state=MemberState.UNRELEASED)
    told = step(waiting, of(1), held_by_others=(2,), assignment_epoch=8)
    assert (told.state, told.member_epoch) == (MemberState.UNREVOKED, 7)
    assert (told.assigned, told.revoking) == (of(), of(1))


def test_what_a_member_gives_up_and_shall_have_again_comes_back_when_it_has_given_it_up() -> None:
    told = member(of(2), of(1, 2), state=MemberState.UNREVOKED, revoking=of(1))
    assert step(told, of(1, 2)) is told
    assert step(told, of(2)).assigned == of(1, 2)


def test_a_new_member_takes_what_is_free() -> None:
    joined = step(member(of(), of(1, 2), epoch=0), {}, held_by_others=(1,))
    assert (joined.state, joined.member_epoch) == (MemberState.UNRELEASED, 7)
    assert joined.assigned == of(2)
    assert replace(joined, target=of(2)).assigned == of(2)
