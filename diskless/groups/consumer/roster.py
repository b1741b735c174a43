"""Knows who is in a KIP-848 group, and who holds which partition.

Invariants:
- A partition has at most one holder: the member it is assigned to, or that has not said yet that it
  gave it up. `put` asserts it; only `put` and `remove` change it.
- An instance id belongs to one member.
- Every change counts `revision` up: what is written down at one revision is all there is to know at
  it. Epochs only grow, but for what is taken back.
"""

from collections.abc import Mapping, ValuesView
from dataclasses import replace
from types import MappingProxyType
from typing import Final
from uuid import UUID

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.assignors.partition_sets import NO_PARTITIONS, difference, each, union
from diskless.groups.consumer_state import ConsumerMember, StoredConsumerGroup
from diskless.groups.group_machine import misidentified


class Roster:
    """The members of one group, as values that are replaced."""

    def __init__(self, *, group_epoch: int = 0) -> None:
        self.revision = 0
        self.group_epoch = group_epoch
        self.assignment_epoch = group_epoch
        self.bumps = 0
        """How often something has changed that the assignment depends on."""
        self.partition_counts: Mapping[UUID, int] = MappingProxyType({})
        """Of the topics that members subscribe to and that exist, as the group epoch knows them."""
        self._members: dict[str, ConsumerMember] = {}
        self._instances: dict[str, str] = {}
        self._holders: dict[UUID, dict[int, str]] = {}

    @classmethod
    def restored(cls, stored: StoredConsumerGroup) -> "Roster":
        roster = cls()
        roster.revert(stored)
        return roster

    def snapshot(self) -> StoredConsumerGroup:
        """All of it, as it is now."""
        return StoredConsumerGroup(
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            partition_counts=self.partition_counts,
            members=tuple(self._members.values()),
        )

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> ConsumerMember:
        return self._members[member_id]

    def get(self, member_id: str) -> ConsumerMember | None:
        return self._members.get(member_id)

    def members(self) -> ValuesView[ConsumerMember]:
        """In the order in which they came."""
        return self._members.values()

    def instance(self, instance_id: str) -> ConsumerMember | None:
        """The member that has this instance id."""
        member_id = self._instances.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def known(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """The member that says it is this one. Raises: UnknownMember, FencedInstanceId."""
        error = misidentified(member_id, instance_id, self._members, self._instances)
        if error is not None:
            raise error
        return self._members[member_id]

    def is_free(self, member_id: str, topic_id: UUID, partition: int) -> bool:
        """Whether nobody but `member_id` holds the partition."""
        return self._holders.get(topic_id, _NOBODY).get(partition, member_id) == member_id

    def free(self, member_id: str, wanted: TopicPartitions) -> TopicPartitions:
        """Those of `wanted` that nobody but `member_id` holds."""
        held = self._holders.keys()
        found = {}
        for topic_id, indexes in wanted.items():
            # Of most topics that are free at all, nobody holds any partition.
            if topic_id in held:
                indexes = frozenset(
                    index for index in indexes if self.is_free(member_id, topic_id, index)
                )
            if indexes:
                found[topic_id] = indexes
        return found

    def revert(self, stored: StoredConsumerGroup) -> None:
        """Be as this was; what happened since has not happened."""
        self.group_epoch = stored.group_epoch
        self.assignment_epoch = stored.assignment_epoch
        self.partition_counts = stored.partition_counts
        self._members.clear()
        self._instances.clear()
        self._holders.clear()
        for member in stored.members:
            self.put(member)
        self.revision += 1

    # -- changes --------------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        """Add a member, or let it be as given from now on."""
        before = self._members.get(member.member_id)
        if before is member:
            return
        self.revision += 1
        self._members[member.member_id] = member
        if before is None:
            self._hold(member.member_id, NO_PARTITIONS, _held(member))
        elif (before.assigned, before.revoking) != (member.assigned, member.revoking):
            self._hold(member.member_id, _held(before), _held(member))
        if before is not None and before.instance_id not in (None, member.instance_id):
            del self._instances[before.instance_id]
        if member.instance_id is not None:
            assert self._instances.get(member.instance_id, member.member_id) == member.member_id
            self._instances[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> None:
        """Take a member out; what it held is free."""
        self.revision += 1
        member = self._members.pop(member_id)
        self._hold(member_id, _held(member), NO_PARTITIONS)
        if member.instance_id is not None:
            del self._instances[member.instance_id]

    def know_topics(self, partition_counts: Mapping[UUID, int]) -> None:
        """These are the topics from now on, which is a reason for another assignment."""
        self.partition_counts = partition_counts
        self.bump()

    def bump(self) -> None:
        """Something has changed that the assignment depends on.

        A group epoch that has no assignment yet is as good for that as the next one.
        """
        self.revision += 1
        self.bumps += 1
        self.group_epoch = self.assignment_epoch + 1

    @property
    def is_outdated(self) -> bool:
        """Whether the group epoch has no assignment yet."""
        return self.group_epoch > self.assignment_epoch

    def assign(self, targets: Mapping[str, TopicPartitions]) -> None:
        """The group epoch has an assignment: `targets` by member, of which some may have gone."""
        self.revision += 1
        self.assignment_epoch = self.group_epoch
        for member_id, target in targets.items():
            member = self._members.get(member_id)
            if member is not None and member.target != target:
                self._members[member_id] = replace(member, target=target)

    def _hold(self, member_id: str, before: TopicPartitions, now: TopicPartitions) -> None:
        for topic_id, partition in each(difference(before, now)):
            holders = self._holders[topic_id]
            assert holders[partition] == member_id
            del holders[partition]
            if not holders:
                del self._holders[topic_id]
        for topic_id, partitions in difference(now, before).items():
            holders = self._holders.setdefault(topic_id, {})
            assert holders.keys().isdisjoint(partitions), f"{topic_id} is held by others"
            holders.update(dict.fromkeys(partitions, member_id))


_NOBODY: Final[Mapping[int, str]] = MappingProxyType({})


def _held(member: ConsumerMember) -> TopicPartitions:
    return union(member.assigned, member.revoking)
