"""Turns groups of one kind into the other while members are in them.

Members keep what they have: the partitions that a classic group's leader assigned are held by them
in the KIP-848 group, until they give them up; and what they hold there is what they were assigned
in the classic group that it becomes, which then rebalances.

Source: KIP-848, "Upgrade to/downgrade from the new protocol".
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.assignors.partition_sets import difference, union
from diskless.groups.classic.subscription import (
    CONSUMER_PROTOCOL,
    read_assignment,
    read_subscription,
    write_assignment,
)
from diskless.groups.classic_state import StoredClassicGroup, StoredMember
from diskless.groups.consumer.subscribed_topics import Topics
from diskless.groups.consumer_state import ClassicMember, ConsumerMember, StoredConsumerGroup
from diskless.groups.errors import GroupIdNotFound


def upgraded(group: StoredClassicGroup, topics: Topics) -> StoredConsumerGroup:
    """The KIP-848 group that a classic group becomes. Raises GroupIdNotFound when it cannot."""
    if group.protocol_type != CONSUMER_PROTOCOL:
        raise GroupIdNotFound("the group is not a consumer group")
    members = []
    held: TopicPartitions = {}
    for stored in group.members:
        member = _upgraded_member(stored, group, topics)
        # Of a partition that members gave each other twice, nobody knows whose it is.
        member_holds = difference(member.assigned, held)
        held = union(held, member_holds)
        members.append(_holding(member, member_holds))
    return StoredConsumerGroup(
        group_epoch=group.generation_id,
        assignment_epoch=group.generation_id,
        partition_counts={},
        members=tuple(members),
    )


def _upgraded_member(
    stored: StoredMember, group: StoredClassicGroup, topics: Topics
) -> ConsumerMember:
    said = {protocol.name: protocol.metadata for protocol in stored.protocols}
    chosen = group.protocol_name if group.protocol_name in said else next(iter(said), None)
    subscription = read_subscription(said[chosen]) if chosen is not None else None
    assignment = read_assignment(stored.assignment)
    if subscription is None or assignment is None:
        raise GroupIdNotFound("a member of the group says what cannot be read")
    assigned: dict[UUID, frozenset[int]] = {}
    for name, indexes in assignment.items():
        topic = topics.topic(name)
        if topic is not None and indexes:
            assigned[topic.topic_id] = indexes
    return ConsumerMember(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        rack_id=subscription.rack_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        topic_names=tuple(sorted(subscription.topics)),
        member_epoch=group.generation_id,
        previous_epoch=group.generation_id,
        assigned=assigned,
        classic=ClassicMember(
            session_timeout_ms=stored.session_timeout_ms, protocols=stored.protocols
        ),
    )


def _holding(member: ConsumerMember, partitions: TopicPartitions) -> ConsumerMember:
    return replace(member, assigned=partitions, target=partitions)


def downgraded(group: StoredConsumerGroup, names: Mapping[UUID, str]) -> StoredClassicGroup:
    """The classic group that a KIP-848 group becomes, all of whose members are classic."""
    votes: Counter[str] = Counter()
    classic = [(member, member.classic) for member in group.members if member.classic is not None]
    for _, spoken in classic:
        votes.update({protocol.name for protocol in spoken.protocols})
    return StoredClassicGroup(
        protocol_type=CONSUMER_PROTOCOL,
        generation_id=group.group_epoch,
        protocol_name=votes.most_common(1)[0][0],
        leader=classic[0][0].member_id,
        members=tuple(_downgraded_member(member, spoken, names) for member, spoken in classic),
    )


def _downgraded_member(
    member: ConsumerMember, classic: ClassicMember, names: Mapping[UUID, str]
) -> StoredMember:
    subscription = read_subscription(classic.protocols[0].metadata)
    assert subscription is not None, "checked when it joined"
    held = {
        names[topic_id]: indexes
        for topic_id, indexes in member.assigned.items()
        if topic_id in names
    }
    return StoredMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=classic.protocols,
        assignment=write_assignment(subscription.version, held),
    )
