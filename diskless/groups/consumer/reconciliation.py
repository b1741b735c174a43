"""Moves a member of a KIP-848 group from what it owns to its target.

            ┌── nothing to give up: epoch = the assignment's ──▶ STABLE or UNRELEASED
    STABLE ─┤                                                          ▲
            └── something to give up: epoch stays ──▶ UNREVOKED ───────┘
                                            the member says that it gave it up

A member first gives up what the target does not have any more, then takes what nobody else has.
Whatever others still have it waits for, asking with every heartbeat (UNRELEASED). A partition
counts as held by a member from when it is assigned until the member itself says that it has it no
longer, or is removed: no two members have a partition at the same time.

Source: KIP-848, "Member reconciliation".
"""

from collections.abc import Callable
from dataclasses import replace

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.assignors.partition_sets import (
    NO_PARTITIONS,
    difference,
    intersection,
    overlaps,
    union,
)
from diskless.groups.consumer_state import ConsumerMember, MemberState


def reconciled(
    member: ConsumerMember,
    *,
    assignment_epoch: int,
    owned: TopicPartitions | None,
    free_of: Callable[[TopicPartitions], TopicPartitions],
) -> ConsumerMember:
    """The member one step further; itself if there is nothing to be done yet.

    `owned` is what the member says it has, None where it does not say. `free_of` takes partitions
    and returns those that no other member has.
    """
    member_epoch = member.member_epoch
    match member.state:
        case MemberState.STABLE if member_epoch == assignment_epoch:
            return member
        case MemberState.UNREVOKED:
            if _may_have(owned, member.revoking):
                return member
            member_epoch = min(member_epoch + 1, assignment_epoch)
    kept = intersection(member.assigned, member.target)
    given_up = difference(member.assigned, kept)
    if given_up and _may_have(owned, given_up):
        return _at_epoch(
            member, member_epoch, MemberState.UNREVOKED, assigned=kept, revoking=given_up
        )
    missing = difference(member.target, kept)
    free = free_of(missing)
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED
    assigned = union(kept, free) if free or given_up else member.assigned
    return _at_epoch(member, assignment_epoch, state, assigned=assigned, revoking=NO_PARTITIONS)


def _may_have(owned: TopicPartitions | None, partitions: TopicPartitions) -> bool:
    return owned is None or overlaps(owned, partitions)


def _at_epoch(
    member: ConsumerMember,
    member_epoch: int,
    state: MemberState,
    *,
    assigned: TopicPartitions,
    revoking: TopicPartitions,
) -> ConsumerMember:
    """Itself if that is what it is already."""
    is_same_epoch = member_epoch == member.member_epoch
    moved = replace(
        member,
        member_epoch=member_epoch,
        previous_epoch=member.previous_epoch if is_same_epoch else member.member_epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )
    return member if moved == member else moved
