"""One KIP-848 consumer group: a state machine without clock, I/O or waiting.

    Empty ──join──▶ Assigning ──targets are computed──▶ Reconciling ──all have theirs──▶ Stable
      ▲                 ▲                                                                  │
      └── nobody left ──┴────────── a member or a topic comes, goes, changes ──────────────┘

Members send heartbeats, and everything happens in them: a heartbeat says what has changed with the
member and what it has, its answer what it may have from now on. Nobody waits for anybody: each
member goes to its target at its own pace (diskless/groups/consumer/reconciliation.py), and only a
partition that is still held by another member has to be waited for. What is common to all members
is in diskless/groups/consumer/consumer_core.py, those that speak the classic protocol, which may be
in the group too, are in diskless/groups/consumer/classic_members.py.

Invariants:
- No partition is assigned to a member while another one may have it. It may, until it says that it
  has not, or is removed.
- What a member is told is durable, and so is all that led to it.
- A member that says it has nothing (epoch 0) has nothing: it may start over whenever it wants to.
  Clients do, under the same id, when they are fenced.

Failure cases: a member that is not heard of for its session, or does not give up what it was told
to within its rebalance timeout, is removed; when it comes back it is unknown, drops what it has and
joins anew. An answer that was lost is given again: a member that is one epoch behind, and has
nothing that it should not have, goes on.

Differences from Apache Kafka: a heartbeat to a group that is not there comes from an unknown
member, because clients take the absence of a group for final. Patterns are matched at once, not
some time later. A static member under its own id may start over without having left.

Source: KIP-848; Apache Kafka's GroupMetadataManager.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Final

from diskless.groups import errors
from diskless.groups.assignors.assignment import Assignor, TopicPartitions
from diskless.groups.assignors.partition_sets import NO_PARTITIONS, is_subset
from diskless.groups.classic.subscription import CONSUMER_PROTOCOL
from diskless.groups.consumer.classic_members import ClassicMembers, Joining
from diskless.groups.consumer.consumer_core import ConsumerCore, started_over
from diskless.groups.consumer.consumer_requests import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    says_all,
    subscribes_otherwise,
    updated,
)
from diskless.groups.consumer.roster import Roster
from diskless.groups.consumer.subscribed_topics import SubscribedTopics, Topics
from diskless.groups.consumer_state import ConsumerMember, MemberState, StoredConsumerGroup
from diskless.groups.group_machine import Confirmed, Reply, Ticket
from diskless.groups.requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    JoinedGroup,
    JoinGroup,
    SyncedGroup,
    SyncGroup,
)
from diskless.groups.settings import GroupSettings
from diskless.ports import ClientInfo
from metadata.records.groups import GroupKind
from wal.errors import DisklessError


class ConsumerGroupState(Enum):
    """As Kafka's tools show it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup:
    """One group and everybody in it."""

    kind = GroupKind.CONSUMER
    protocol_type = CONSUMER_PROTOCOL

    def __init__(
        self,
        group_id: str,
        topics: Topics,
        *,
        settings: GroupSettings,
        assignors: Mapping[str, Assignor],
        roster: Roster | None = None,
    ) -> None:
        self.group_id: Final = group_id
        self._settings = settings
        self._core = ConsumerCore(
            Roster() if roster is None else roster,
            SubscribedTopics(topics),
            settings=settings,
            assignors=assignors,
        )
        self.effects: Final = self._core.effects
        self.stored: Final = self._core.stored
        self.assigned: Final = self._core.assigned
        self._roster = self._core.roster
        self._classic = ClassicMembers(self._core, topics)
        self._is_closed = False

    @classmethod
    def restored(
        cls,
        group_id: str,
        stored: StoredConsumerGroup,
        now: float,
        topics: Topics,
        *,
        settings: GroupSettings,
        assignors: Mapping[str, Assignor],
    ) -> "ConsumerGroup":
        """The group as it was stored; every deadline is as far away as it can be."""
        group = cls(
            group_id,
            topics,
            settings=settings,
            assignors=assignors,
            roster=Roster.restored(stored),
        )
        for member in stored.members:
            group._core.hear(member, now)
            if member.state is MemberState.UNREVOKED:
                group._core.give_time(member, now)
        return group

    # -- what it looks like ---------------------------------------------------------------------

    @property
    def wakes_at(self) -> float:
        """When to call `tick` at latest; may be early."""
        return self._core.wakes_at

    @property
    def generation_id(self) -> int:
        """The group epoch; it only grows."""
        return self._roster.group_epoch

    @property
    def assignor_name(self) -> str:
        return self._core.assignor_name

    @property
    def state(self) -> ConsumerGroupState:
        if self._is_closed:
            return ConsumerGroupState.DEAD
        roster = self._roster
        if not roster:
            return ConsumerGroupState.EMPTY
        if roster.group_epoch > roster.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        is_stable = all(
            member.state is MemberState.STABLE and member.member_epoch == roster.assignment_epoch
            for member in roster.members()
        )
        return ConsumerGroupState.STABLE if is_stable else ConsumerGroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return not self._roster

    @property
    def is_unused(self) -> bool:
        return self.is_empty and self._core.is_durable and not self._core.is_assigning

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_all_classic(self) -> bool:
        """Whether all that are in it speak the classic protocol, and nothing is to be stored."""
        return (
            not self.is_empty
            and self._core.is_durable
            and not self._core.is_assigning
            and all(member.classic is not None for member in self._roster.members())
        )

    def snapshot(self) -> StoredConsumerGroup:
        """All of it, as it is now."""
        return self._roster.snapshot()

    def reads(self, topic: str) -> bool:
        """Whether members may be reading the topic; in doubt they are."""
        includes = self._core.subscribed.includes
        return any(includes(member, topic) for member in self._roster.members())

    def keeps_offsets(self, topic: str) -> bool:
        """Whether old offsets of the topic must not be forgotten now."""
        return self.is_empty or self.reads(topic)

    def may_delete_offsets(self) -> bool:
        """Whether it is known what the members read."""
        return True

    def patterns_to_match(self) -> AbstractSet[str]:
        """Patterns of members that the next heartbeat matches with topics that are new."""
        return self._core.subscribed.patterns_to_match(self._roster.members())

    # -- heartbeats -----------------------------------------------------------------------------

    def consumer_heartbeat(
        self, ticket: Ticket, request: ConsumerHeartbeat, client: ClientInfo, now: float
    ) -> None:
        """ConsumerGroupHeartbeat, unless `refused_heartbeat` refuses it."""
        core = self._core
        core.subscribed.described = request.described
        core.refuse_postponed(request.member_id, _superseded())
        try:
            if request.member_epoch == LEAVE_EPOCH:
                answer = self._leave_for_good(request)
            elif request.member_epoch == LEAVE_STATIC_EPOCH:
                answer = self._leave_for_a_while(request, now)
            else:
                revision = self._roster.revision
                member = self._heard(request, client, now)
                is_silent = self._roster.revision == revision and request.owned is None
                if is_silent and core.is_assigning:
                    self.effects.append(Reply(ticket, self._answer(member)))
                    return
                if core.must_wait():
                    proceed = partial(self._proceed, ticket, request, member)
                    empty_answer = Reply(ticket, ConsumerHeartbeatAnswer())
                    core.postpone(member.member_id, empty_answer, proceed)
                    return
                answer = self._moved(request, member, now)
        except DisklessError as error:
            self.effects.append(Reply(ticket, ConsumerHeartbeatAnswer(error=error)))
        else:
            core.answer(Reply(ticket, answer))
        core.flush()

    def _proceed(
        self, ticket: Ticket, request: ConsumerHeartbeat, member: ConsumerMember, now: float
    ) -> None:
        """Go on with a heartbeat that was postponed."""
        self._core.answer(Reply(ticket, self._moved(request, member, now)))

    def _heard(self, request: ConsumerHeartbeat, client: ClientInfo, now: float) -> ConsumerMember:
        """Take in what a member says; the member as it is then."""
        core, roster = self._core, self._roster
        if request.topic_pattern:
            core.subscribed.check_pattern(request.topic_pattern)
        joins = request.member_epoch == JOIN_EPOCH
        before = self._joining(request) if joins else self._known(request)
        member = updated(before, request, client)
        is_new = member.member_id not in roster
        roster.put(member)
        core.hear(member, now)
        if is_new or subscribes_otherwise(before, member):
            roster.bump()
        return member

    def _moved(
        self, request: ConsumerHeartbeat, before: ConsumerMember, now: float
    ) -> ConsumerHeartbeatAnswer:
        """Let the member go one step on, and tell it."""
        member = self._core.advance(before.member_id, request.owned, now)
        joins = request.member_epoch == JOIN_EPOCH
        if not joins and request.member_epoch < before.member_epoch != member.member_epoch:
            # It is more than one behind now; whatever happens to this answer, it may go on.
            member = replace(member, previous_epoch=request.member_epoch)
            self._roster.put(member)
        is_told = joins or says_all(request) or member.assigned != before.assigned
        return self._answer(member, member.assigned if is_told else None)

    def _answer(
        self, member: ConsumerMember, assignment: TopicPartitions | None = None
    ) -> ConsumerHeartbeatAnswer:
        return ConsumerHeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._settings.consumer_heartbeat_interval_ms,
            assignment=assignment,
        )

    def _joining(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """The joining member, as it is before it has said anything; it has nothing."""
        core, roster = self._core, self._roster
        known = roster.get(request.member_id)
        holder = None if request.instance_id is None else roster.instance(request.instance_id)
        if holder is not None and holder is not known:
            is_away = holder.member_epoch == LEAVE_STATIC_EPOCH
            if holder.classic is None and not is_away:
                raise errors.UnreleasedInstanceId(
                    f"{holder.member_id} has the instance id {request.instance_id}"
                )
            member = core.replaced(holder, request.member_id)
            # In its place at once: for the others nothing has changed.
            roster.put(member)
            return member
        if known is not None:
            # What it had is free; it may be given back in a moment.
            member = started_over(known)
            roster.put(member)
            return member
        if not core.has_place:
            raise errors.GroupMaxSizeReached(
                f"group.consumer.max.size={self._settings.consumer_max_size}"
            )
        return ConsumerMember(
            member_id=request.member_id, rebalance_timeout_ms=request.rebalance_timeout_ms
        )

    def _known(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """Who sends a heartbeat. Raises unless it is the member that it should be."""
        member = self._roster.known(request.member_id, request.instance_id)
        received, member_epoch = request.member_epoch, member.member_epoch
        if member.classic is not None:
            raise errors.UnknownMember(f"{member.member_id} speaks the classic protocol")
        is_one_behind = (
            received == member.previous_epoch
            and request.owned is not None
            and is_subset(request.owned, member.assigned)
        )
        if received > member_epoch or (received < member_epoch and not is_one_behind):
            raise errors.FencedMemberEpoch(f"member epoch {received}, it is {member_epoch}")
        return member

    # -- leaving --------------------------------------------------------------------------------

    def _leave_for_good(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        member = self._roster.known(request.member_id, request.instance_id)
        self._core.remove(member.member_id)
        return ConsumerHeartbeatAnswer(member_id=member.member_id, member_epoch=LEAVE_EPOCH)

    def _leave_for_a_while(self, request: ConsumerHeartbeat, now: float) -> ConsumerHeartbeatAnswer:
        member = self._roster.known(request.member_id, request.instance_id)
        away = replace(
            member,
            member_epoch=LEAVE_STATIC_EPOCH,
            previous_epoch=member.member_epoch,
            state=MemberState.STABLE,
            revoking=NO_PARTITIONS,
        )
        self._roster.put(away)
        self._core.has_done(away.member_id)
        self._core.hear(away, now)
        return ConsumerHeartbeatAnswer(member_id=away.member_id, member_epoch=LEAVE_STATIC_EPOCH)

    # -- members that speak the classic protocol ------------------------------------------------

    def join(
        self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float, *, new_id: str
    ) -> None:
        """JoinGroup: such a member is answered with the epoch it goes to, when that is assigned."""
        core = self._core
        try:
            joining = self._classic.hear_join(request, client, now, new_id=new_id)
        except DisklessError as error:
            refusal = JoinedGroup(error=error, member_id=request.member_id)
            self.effects.append(Reply(ticket, refusal))
        else:
            proceed = partial(self._proceed_join, ticket, joining)
            if core.must_wait():
                core.postpone(joining.member_id, Reply(ticket, JoinedGroup()), proceed)
            else:
                proceed(now)
        core.flush()

    def _proceed_join(self, ticket: Ticket, joining: Joining, now: float) -> None:
        self._core.answer(Reply(ticket, self._classic.join(joining, now)))

    def sync(self, ticket: Ticket, request: SyncGroup, now: float) -> None:
        """SyncGroup: what the member has been assigned."""
        try:
            answer = self._classic.sync(request, now)
        except DisklessError as error:
            self.effects.append(Reply(ticket, SyncedGroup(error=error)))
        else:
            self._core.answer(Reply(ticket, answer))
        self._core.flush()

    def heartbeat(
        self, generation_id: int, member_id: str, instance_id: str | None, now: float
    ) -> DisklessError | None:
        """Heartbeat: whether such a member has to join again."""
        try:
            self._classic.heartbeat(generation_id, member_id, instance_id, now)
        except DisklessError as error:
            return error
        finally:
            self._core.flush()
        return None

    def leave(self, member_id: str, instance_id: str | None, now: float) -> DisklessError | None:
        """LeaveGroup; by its instance id alone any static member can be removed."""
        try:
            self._classic.leave(member_id, instance_id)
        except DisklessError as error:
            return error
        return None

    def confirm(self, ticket: Ticket) -> None:
        self._core.answer(Reply(ticket, Confirmed()))
        self._core.flush()

    # -- offsets --------------------------------------------------------------------------------

    def check_commit(
        self,
        generation_id: int,
        member_id: str,
        instance_id: str | None,
        now: float,
        *,
        knows_member_epochs: bool = True,
        is_transactional: bool = False,
    ) -> DisklessError | None:
        """Members commit in their epoch; who has no member epoch, only if there are no members.

        In a transaction anybody commits who does not say that he is a member.
        """
        if generation_id < 0 and self.is_empty:
            return None
        if is_transactional and generation_id < 0 and not member_id and instance_id is None:
            return None
        try:
            member = self._roster.known(member_id, instance_id)
        except DisklessError as error:
            return error
        if member.classic is None and not knows_member_epochs and not is_transactional:
            return errors.MemberEpochNotSpoken("OffsetCommit of this version has no member epoch")
        if member.classic is not None:
            self._core.hear(member, now)
        return _refused_epoch(member, generation_id)

    def check_fetch(self, member_id: str, member_epoch: int) -> DisklessError | None:
        member = self._roster.get(member_id)
        if member is None:
            return errors.UnknownMember(f"no member {member_id!r}")
        return _refused_epoch(member, member_epoch)

    # -- time and store -------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due by now, and find out when the next thing is."""
        self._core.tick(now)
        self._core.flush()

    def close(self, error: DisklessError) -> None:
        """The group ends here: answer everybody who waits."""
        self._is_closed = True
        self._core.close(error)


def _superseded() -> DisklessError:
    return errors.GroupCoordinatorUnavailable("the member has sent another heartbeat")


def _refused_epoch(member: ConsumerMember, member_epoch: int) -> DisklessError | None:
    if member_epoch == member.member_epoch:
        return None
    if member.classic is not None:
        return errors.IllegalGeneration(f"generation {member_epoch}, it is {member.member_epoch}")
    return errors.StaleMemberEpoch(f"member epoch {member_epoch}, it is {member.member_epoch}")
