"""Chooses the machine of a group by its kind, when it comes into use and when it becomes the other.

- A group without members is of whichever kind its next member is.
- A classic group becomes a KIP-848 group when a member that speaks its protocol joins, and one
  again when the last of these has gone, as far as `group.consumer.migration.policy` lets it.

Generations go on where they were, whichever kind the group was of.
"""

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

import structlog

from diskless.groups.assignors.assignors import ASSIGNORS
from diskless.groups.classic.classic_group import ClassicGroup
from diskless.groups.classic_state import StoredClassicGroup, decode_classic_group
from diskless.groups.consumer.consumer_group import ConsumerGroup
from diskless.groups.consumer_state import StoredConsumerGroup, decode_consumer_group
from diskless.groups.errors import (
    GroupIdNotFound,
    GroupMaxSizeReached,
    RebalanceInProgress,
    UnknownMember,
)
from diskless.groups.group_migration import downgraded, upgraded
from diskless.groups.live_groups import Dormant, GroupMachine, LiveGroup, LiveGroups
from diskless.groups.offsets import TopicsWith
from diskless.groups.requests import ConsumerHeartbeat
from diskless.groups.settings import GroupSettings
from metadata.records.groups import GroupKind
from metadata.state.queries.group_queries import StoredGroup
from wal.clock import Clock
from wal.errors import CorruptState

log = structlog.get_logger(__name__)

KnownGroup = StoredClassicGroup | StoredConsumerGroup


class GroupKinds:
    """Makes the machines of groups, and lets a group go on as another kind."""

    def __init__(
        self, groups: LiveGroups, topics: TopicsWith, *, settings: GroupSettings, clock: Clock
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._settings = settings
        self._assignors: Final = {name: ASSIGNORS[name] for name in settings.assignors}
        self._clock = clock

    def classic(self, group_id: str) -> LiveGroup:
        """The group, in use from now on; one without members is classic then."""
        return self._in_use(group_id, GroupKind.CLASSIC)

    def consumer(self, group_id: str) -> LiveGroup:
        """The same for a KIP-848 group."""
        return self._in_use(group_id, GroupKind.CONSUMER)

    def _in_use(self, group_id: str, kind: GroupKind) -> LiveGroup:
        group = self._groups.get(group_id)
        if group is None:
            return self._groups.wake(self._without_members(group_id, kind))
        if group.machine.is_empty and group.machine.kind is not kind:
            machine = self._without_members(group_id, kind)
            error = UnknownMember("the group is of another kind now")
            self._groups.convert(group, machine, error)
        return group

    def _without_members(self, group_id: str, kind: GroupKind) -> GroupMachine:
        group = self._groups.get(group_id)
        dormant = self._groups.dormant.get(group_id)
        generation_id = dormant.generation_id if dormant is not None else 0
        if group is not None:
            generation_id = group.machine.generation_id
        if kind is GroupKind.CONSUMER:
            return self.restored(
                group_id,
                StoredConsumerGroup(
                    group_epoch=generation_id,
                    assignment_epoch=generation_id,
                    partition_counts={},
                    members=(),
                ),
            )
        return self.restored(
            group_id,
            StoredClassicGroup(
                protocol_type="" if dormant is None else dormant.protocol_type,
                generation_id=generation_id,
                protocol_name=None,
                leader=None,
                members=(),
            ),
        )

    def restored(self, group_id: str, stored: KnownGroup) -> GroupMachine:
        """The machine of a group that is as it was stored."""
        if isinstance(stored, StoredClassicGroup):
            return self._classic(group_id, stored)
        return ConsumerGroup.restored(
            group_id,
            stored,
            self._clock.monotonic(),
            self._topics,
            settings=self._settings,
            assignors=self._assignors,
        )

    def _classic(self, group_id: str, stored: StoredClassicGroup) -> ClassicGroup:
        return ClassicGroup.restored(
            group_id,
            stored,
            self._clock.monotonic(),
            initial_delay_s=self._settings.initial_rebalance_delay_ms / 1000,
            size_max=self._settings.max_size,
        )

    def upgrade(self, group: LiveGroup, request: ConsumerHeartbeat) -> None:
        """Make a classic group one for this joining member. Raises what refuses it."""
        machine = group.machine
        assert isinstance(machine, ClassicGroup)
        if not self._settings.may_upgrade:
            raise GroupIdNotFound(f"Group {group.group_id} is not a consumer group.")
        if len(machine.member_ids) >= self._settings.consumer_max_size:
            raise GroupMaxSizeReached(f"group.consumer.max.size={self._settings.consumer_max_size}")
        if request.topic_pattern:
            self._topics.pattern(request.topic_pattern)
        stored = upgraded(machine.snapshot(), self._topics)
        log.info("a classic group becomes a KIP-848 group", group=group.group_id)
        self._groups.convert(
            group,
            self.restored(group.group_id, stored),
            RebalanceInProgress("the group is of another kind now"),
        )

    def downgrade_if_all_are_classic(self, group: LiveGroup) -> None:
        """Make a KIP-848 group a classic one when no member speaks its protocol any more."""
        machine = group.machine
        if (
            isinstance(machine, ConsumerGroup)
            and self._settings.may_downgrade
            and machine.is_all_classic
        ):
            log.info("a KIP-848 group becomes a classic group", group=group.group_id)
            stored = machine.snapshot()
            held = {topic_id for member in stored.members for topic_id in member.assigned}
            names = topic_names(self._topics, held)
            classic = self._classic(group.group_id, downgraded(stored, names))
            classic.begin_again(self._clock.monotonic())
            # Nothing waits: what was to be answered could only be when everything was stored.
            self._groups.convert(group, classic, RebalanceInProgress("of another kind now"))
            self._groups.settle(group)


def topic_names(topics: TopicsWith, topic_ids: Collection[UUID]) -> Mapping[UUID, str]:
    """The names of those topics that there are."""
    found = map(topics.topic_by_id, topic_ids)
    return {topic.topic_id: topic.name for topic in found if topic is not None}


def decoded(stored: StoredGroup) -> KnownGroup | None:
    """Decodes what is stored of a group; None when there is nothing that could be read."""
    try:
        if stored.kind == GroupKind.CLASSIC:
            return decode_classic_group(stored.state, stored.group_id)
        if stored.kind == GroupKind.CONSUMER:
            return decode_consumer_group(stored.state, stored.group_id)
    except CorruptState as error:
        # Its members join again, as after any expiry; its offsets are not part of this.
        log.error("a stored group cannot be read and begins anew", error=str(error))
    return None


def dormant(stored: StoredGroup, group: KnownGroup | None) -> Dormant:
    """A group that nobody was in when it was stored."""
    match group:
        case StoredClassicGroup():
            protocol_type, generation_id = group.protocol_type, group.generation_id
        case StoredConsumerGroup():
            protocol_type, generation_id = ConsumerGroup.protocol_type, group.group_epoch
        case None:
            protocol_type, generation_id = "", 0
    is_known = stored.kind in (GroupKind.OFFSETS_ONLY, GroupKind.CONSUMER)
    kind = GroupKind(stored.kind) if is_known else GroupKind.CLASSIC
    return Dormant(kind, protocol_type, generation_id, stored.updated_ms)
