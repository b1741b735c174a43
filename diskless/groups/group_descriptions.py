"""Groups as administrators see them, in use or dormant."""

from collections.abc import Iterator
from itertools import chain

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.classic.classic_group import ClassicGroup
from diskless.groups.classic.rebalance import GroupState
from diskless.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from diskless.groups.consumer_state import ConsumerMember
from diskless.groups.errors import GroupIdNotFound
from diskless.groups.group_kinds import topic_names
from diskless.groups.live_groups import LiveGroups
from diskless.groups.offsets import TopicsWith
from diskless.groups.requests import (
    AssignedTopic,
    ConsumerGroupMember,
    DescribedConsumerGroup,
    DescribedGroup,
    ListedGroup,
)
from metadata.records.groups import GroupKind


def described(groups: LiveGroups, group_id: str) -> DescribedGroup:
    """A classic group."""
    live = groups.get(group_id)
    dormant = groups.dormant.get(group_id)
    if live is not None and isinstance(live.machine, ClassicGroup):
        machine = live.machine
        is_stable = machine.state is GroupState.STABLE
        return DescribedGroup(
            group_id,
            state=machine.state_name,
            protocol_type=machine.protocol_type,
            protocol_name=(machine.protocol_name or "") if is_stable else "",
            members=machine.members(),
        )
    if live is None and dormant is not None and dormant.kind is not GroupKind.CONSUMER:
        return DescribedGroup(
            group_id, state=GroupState.EMPTY.value, protocol_type=dormant.protocol_type
        )
    missing = "not found" if live is None and dormant is None else "is not a classic group"
    return DescribedGroup(group_id, error=GroupIdNotFound(f"Group {group_id} {missing}."))


def described_consumer(
    groups: LiveGroups, topics: TopicsWith, group_id: str, *, default_assignor: str
) -> DescribedConsumerGroup:
    """A KIP-848 group."""
    live = groups.get(group_id)
    dormant = groups.dormant.get(group_id)
    if live is not None and isinstance(live.machine, ConsumerGroup):
        machine = live.machine
        group = machine.snapshot()
        return DescribedConsumerGroup(
            group_id,
            state=machine.state_name,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=machine.assignor_name,
            members=[_member(member, topics) for member in group.members],
        )
    if dormant is not None and dormant.kind is GroupKind.CONSUMER:
        return DescribedConsumerGroup(
            group_id,
            state=ConsumerGroupState.EMPTY.value,
            group_epoch=dormant.generation_id,
            assignment_epoch=dormant.generation_id,
            assignor=default_assignor,
        )
    missing = "not found" if live is None and dormant is None else "is not a consumer group"
    return DescribedConsumerGroup(group_id, error=GroupIdNotFound(f"Group {group_id} {missing}."))


def _member(member: ConsumerMember, topics: TopicsWith) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        member.client_id,
        member.client_host,
        member.topic_names,
        member.topic_pattern,
        _assigned(member.assigned, topics),
        _assigned(member.target, topics),
        member.classic is not None,
    )


def _assigned(partitions: TopicPartitions, topics: TopicsWith) -> list[AssignedTopic]:
    """Without topics that are gone."""
    names = topic_names(topics, partitions.keys())
    return [
        AssignedTopic(topic_id, names[topic_id], sorted(indexes))
        for topic_id, indexes in partitions.items()
        if topic_id in names
    ]


def listed(groups: LiveGroups) -> Iterator[ListedGroup]:
    """All there are now; there may be very many, so each row is made when it is taken."""
    live = (
        ListedGroup(
            group.group_id,
            group.machine.protocol_type,
            group.machine.state_name,
            _type_of(group.machine.kind),
        )
        for group in [*groups]
    )
    dormant = (
        ListedGroup(group_id, group.protocol_type, GroupState.EMPTY.value, _type_of(group.kind))
        for group_id, group in [*groups.dormant.items()]
    )
    return chain(live, dormant)


def _type_of(kind: GroupKind) -> str:
    return "consumer" if kind is GroupKind.CONSUMER else "classic"
