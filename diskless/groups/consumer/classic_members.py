"""Members of a KIP-848 group that speak the classic protocol: while a group is being upgraded.

Nobody waits for anybody here either. JoinGroup is answered as soon as there is an assignment, with
the member's epoch as the generation and without a leader; SyncGroup with what the coordinator has
assigned. Heartbeats answer "rebalance in progress" when the member has to come again: for a newer
assignment, to say that it has given something up, or because what it waits for is free now. A
member says what it has in its subscription when it joins: one that rebalances eagerly has nothing
then.

A member that was told to join again, or has joined and not asked for its assignment yet, is removed
after its rebalance timeout.

Differences from Apache Kafka: a client without a member id is let in at once, also by JoinGroup ≥ 4
(MEMBER_ID_REQUIRED keeps answers that are lost from leaving members behind; here the answer does
not take minutes, and such a member goes with its session).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.assignors.partition_sets import difference
from diskless.groups.classic.subscription import (
    CONSUMER_PROTOCOL,
    Subscription,
    read_subscription,
    write_assignment,
)
from diskless.groups.consumer.consumer_core import ConsumerCore
from diskless.groups.consumer.subscribed_topics import Topics
from diskless.groups.consumer_state import ClassicMember, ConsumerMember, MemberState
from diskless.groups.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMember,
)
from diskless.groups.requests import JoinedGroup, JoinGroup, SyncedGroup, SyncGroup
from diskless.ports import ClientInfo


class Joining(NamedTuple):
    """Who has asked to join, and what it has."""

    member_id: str
    owned: TopicPartitions


class ClassicMembers:
    """Their part of a group. What is asked raises what it refuses."""

    def __init__(self, core: ConsumerCore, topics: Topics) -> None:
        self._core: Final = core
        self._roster: Final = core.roster
        self._topics = topics

    def hear_join(
        self, request: JoinGroup, client: ClientInfo, now: float, *, new_id: str
    ) -> Joining:
        """Take in a JoinGroup; `new_id` is the member id for a client that has none."""
        core, roster = self._core, self._roster
        subscription = self._subscription(request)
        before = self._joining(request, new_id)
        # Of the time when it spoke the other protocol.
        core.refuse_postponed(before.member_id, UnknownMember("the member has joined again"))
        classic = ClassicMember(
            session_timeout_ms=request.session_timeout_ms, protocols=tuple(request.protocols)
        )
        member = replace(
            before,
            instance_id=request.instance_id,
            rack_id=subscription.rack_id,
            client_id=client.client_id,
            client_host=client.host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topic_names=tuple(sorted(subscription.topics)),
            topic_pattern=None,
            assignor=None,
            classic=classic,
        )
        is_new = member.member_id not in roster
        is_same = (before.topic_names, before.topic_pattern) == (member.topic_names, None)
        roster.put(before if member == before else member)
        if is_new or not is_same:
            roster.bump()
        core.hear(member, now)
        core.give_time(member, now)
        return Joining(member.member_id, self._ids(subscription.owned))

    def join(self, joining: Joining, now: float) -> JoinedGroup:
        """Let who has asked to join go one step on; what it is told."""
        core = self._core
        member = core.advance(joining.member_id, joining.owned, now)
        assert member.classic is not None
        core.hear(member, now)
        # Until it has asked for its assignment.
        core.give_time(member, now)
        return JoinedGroup(
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=member.classic.protocols[0].name,
            member_id=member.member_id,
        )

    def sync(self, request: SyncGroup, now: float) -> SyncedGroup:
        """SyncGroup: what the member may have from now on."""
        core = self._core
        member = self._member(request.member_id, request.instance_id, request.generation_id)
        assert member.classic is not None
        protocol = member.classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or (
            request.protocol_name not in (None, protocol.name)
        ):
            raise InconsistentGroupProtocol(
                f"the member's protocol is {CONSUMER_PROTOCOL} {protocol.name}"
            )
        core.hear(member, now)
        core.look_at_topics()
        is_behind = member.member_epoch < self._roster.group_epoch
        if is_behind and member.state is not MemberState.UNREVOKED:
            self._tell_to_join(member, now)
        core.has_done(member.member_id)
        if member.state is MemberState.UNREVOKED:
            core.give_time(member, now)
        subscription = read_subscription(protocol.metadata)
        assert subscription is not None, "checked when it joined"
        return SyncedGroup(
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=protocol.name,
            assignment=write_assignment(subscription.version, self._named(member.assigned)),
        )

    def heartbeat(
        self, generation_id: int, member_id: str, instance_id: str | None, now: float
    ) -> None:
        """Heartbeat. Raises RebalanceInProgress when the member has to join again."""
        core = self._core
        member = self._member(member_id, instance_id, generation_id)
        core.hear(member, now)
        core.look_at_topics()
        if (
            member.member_epoch < self._roster.group_epoch
            or member.state is MemberState.UNREVOKED
            or (member.state is MemberState.UNRELEASED and self._can_take_more(member))
        ):
            self._tell_to_join(member, now)

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """LeaveGroup; administrators name members by their instance ids alone."""
        roster = self._roster
        if instance_id is not None:
            holder = roster.instance(instance_id)
            if holder is None:
                raise UnknownMember(f"nobody has the instance id {instance_id}")
            if member_id and holder.member_id != member_id:
                raise FencedInstanceId(f"{holder.member_id} has the instance id {instance_id}")
            self._core.remove(holder.member_id)
            return
        member = roster.get(member_id)
        if member is None or member.classic is None:
            raise UnknownMember(f"no member {member_id!r} that speaks the classic protocol")
        self._core.remove(member_id)

    # -- who it is ------------------------------------------------------------------------------

    def _joining(self, request: JoinGroup, new_id: str) -> ConsumerMember:
        """The joining member, as it is before it has said anything."""
        core, roster = self._core, self._roster
        holder = None if request.instance_id is None else roster.instance(request.instance_id)
        if holder is not None and not request.member_id:
            member = core.replaced(holder, new_id)
            # In its place at once: for the others nothing has changed.
            roster.put(member)
            return member
        if request.member_id:
            return self._roster.known(request.member_id, request.instance_id)
        if not core.has_place:
            raise GroupMaxSizeReached("group.consumer.max.size")
        return ConsumerMember(member_id=new_id, rebalance_timeout_ms=request.rebalance_timeout_ms)

    def _member(
        self, member_id: str, instance_id: str | None, generation_id: int
    ) -> ConsumerMember:
        member = self._roster.known(member_id, instance_id)
        if member.classic is None:
            raise UnknownMember(f"{member_id} does not speak the classic protocol")
        if generation_id != member.member_epoch:
            raise IllegalGeneration(f"generation {generation_id}, it is {member.member_epoch}")
        return member

    # -- what it says and is told ---------------------------------------------------------------

    def _subscription(self, request: JoinGroup) -> Subscription:
        if request.protocol_type != CONSUMER_PROTOCOL or not request.protocols:
            raise InconsistentGroupProtocol("the group's members read topics")
        own_ids = {request.member_id}
        if request.instance_id is not None:
            holder = self._roster.instance(request.instance_id)
            own_ids.add("" if holder is None else holder.member_id)
        others = [
            member.classic
            for member in self._roster.members()
            if member.classic is not None and member.member_id not in own_ids
        ]
        known = Counter(name for one in others for name in {p.name for p in one.protocols})
        if not any(known[protocol.name] == len(others) for protocol in request.protocols):
            raise InconsistentGroupProtocol("no protocol that all classic members have")
        subscription = read_subscription(request.protocols[0].metadata)
        if subscription is None:
            raise InconsistentGroupProtocol("a subscription that cannot be read")
        return subscription

    def _tell_to_join(self, member: ConsumerMember, now: float) -> None:
        if not self._core.is_due(member.member_id):
            self._core.give_time(member, now)
        raise RebalanceInProgress("there is another assignment")

    def _can_take_more(self, member: ConsumerMember) -> bool:
        missing = difference(member.target, member.assigned)
        return bool(self._roster.free(member.member_id, missing))

    def _ids(self, owned: Mapping[str, frozenset[int]]) -> TopicPartitions:
        by_id: dict[UUID, frozenset[int]] = {}
        for name, indexes in owned.items():
            topic = self._topics.topic(name)
            if topic is not None:
                by_id[topic.topic_id] = indexes
        return by_id

    def _named(self, partitions: TopicPartitions) -> Mapping[str, frozenset[int]]:
        """Without those of topics that are gone."""
        names = self._core.subscribed.names(partitions)
        return {
            names[topic_id]: indexes
            for topic_id, indexes in partitions.items()
            if topic_id in names
        }
