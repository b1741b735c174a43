"""One classic consumer group: a state machine without clock, I/O or waiting.

Its driver calls a method per event with the monotonic time, then takes the `effects`: answers to
requests that were parked under a *ticket*, and states to be stored, which it reports back through
`stored`. It calls `tick` at `wakes_at`, or earlier. Here is what each request may do;
diskless/groups/classic/rebalance.py has the phases and the timers, classic_roster.py the members.

Invariants:
- Every ticket is answered exactly once: by a later event, by the group's own deadlines, or by
  `close`.
- The generation only grows. A member is answered with an assignment only in the generation for
  which the leader gave it, and only after it was stored.
- Members of a stable generation are those that joined it, and static members that were away.
- An instance id belongs to one member; who held it before is fenced.

Differences from Apache Kafka, all of them lenient: a member that changes its protocols is held to
those of the others only; a static member that comes back with another subscription starts a
rebalance; one that was away during the join phase is not thrown out for not syncing, but by its
session. A request that is parked twice is answered the first time too.

Source: Apache Kafka's GroupCoordinator; KIP-134 (initial delay), KIP-345 (static members), KIP-394
(member id required), KIP-559 (protocol in responses), KIP-814 (skipped assignment).
"""

from collections.abc import Sequence
from typing import Final

from diskless.groups.assignors.assignment import Targets
from diskless.groups.classic.classic_roster import ClassicRoster, distinct
from diskless.groups.classic.rebalance import GroupState, Rebalance
from diskless.groups.classic.subscription import CONSUMER_PROTOCOL, subscribed_topics
from diskless.groups.classic_state import StoredClassicGroup
from diskless.groups.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from diskless.groups.group_machine import Confirmed, Reply, Ticket
from diskless.groups.requests import GroupMember, JoinedGroup, JoinGroup, SyncedGroup, SyncGroup
from diskless.ports import ClientInfo
from metadata.records.groups import GroupKind
from wal.errors import DisklessError


class ClassicGroup:
    """One group and everybody in it."""

    kind = GroupKind.CLASSIC

    def __init__(
        self,
        group_id: str,
        *,
        initial_delay_s: float,
        size_max: int,
        generation_id: int = 0,
        protocol_type: str = "",
    ) -> None:
        self.group_id: Final = group_id
        self._size_max = size_max
        self._roster = ClassicRoster(protocol_type)
        self._phases = Rebalance(
            self._roster, generation_id=generation_id, initial_delay_s=initial_delay_s
        )
        self.effects: Final = self._phases.effects
        self._replaced: dict[int, tuple[Ticket, JoinedGroup]] = {}
        """Answers to static members that came back, by the serial they wait for."""

    @classmethod
    def restored(
        cls,
        group_id: str,
        stored: StoredClassicGroup,
        now: float,
        *,
        initial_delay_s: float,
        size_max: int,
    ) -> "ClassicGroup":
        """The group as it was stored; every member has a whole session to be heard from."""
        group = cls(
            group_id,
            initial_delay_s=initial_delay_s,
            size_max=size_max,
            generation_id=stored.generation_id,
            protocol_type=stored.protocol_type,
        )
        roster = group._roster
        for member in stored.members:
            roster.add(member)
            group._phases.start_session(member.member_id, now)
        if stored.members:
            group._phases.state = GroupState.STABLE
            roster.protocol_name = stored.protocol_name
            roster.leader = stored.leader
            roster.note_subscription()
        return group

    # -- what it looks like ---------------------------------------------------------------------

    @property
    def wakes_at(self) -> float:
        """When to call `tick` at latest; may be early."""
        return self._phases.wakes_at

    @property
    def state(self) -> GroupState:
        return self._phases.state

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def generation_id(self) -> int:
        """It only grows."""
        return self._phases.generation_id

    @property
    def protocol_type(self) -> str:
        return self._roster.protocol_type

    @property
    def protocol_name(self) -> str | None:
        return self._roster.protocol_name

    @property
    def leader(self) -> str | None:
        return self._roster.leader

    @property
    def member_ids(self) -> Sequence[str]:
        return [*self._roster.members]

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_closed(self) -> bool:
        return self.state is GroupState.DEAD

    @property
    def is_unused(self) -> bool:
        """Nobody is in it and nobody is about to come."""
        return self.is_empty and not self._phases.pending

    def members(self) -> Sequence[GroupMember]:
        """As DescribeGroups shows them: what they do is settled only when the group is stable."""
        is_stable = self.state is GroupState.STABLE
        return [
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                self._roster.said(member) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in self._roster.members.values()
        ]

    def reads(self, topic: str) -> bool:
        """Whether members may be reading the topic; in doubt they are."""
        return self._roster.reads(topic)

    def keeps_offsets(self, topic: str) -> bool:
        """Whether old offsets of the topic must not be forgotten now."""
        return self.state is not GroupState.STABLE or self.reads(topic)

    def may_delete_offsets(self) -> bool:
        """Whether it is known what the members read."""
        return self.is_empty or self.protocol_type == CONSUMER_PROTOCOL

    def snapshot(self) -> StoredClassicGroup:
        """The group as it is; of a generation that has no assignment yet, with what was before."""
        return self._roster.snapshot(self.generation_id)

    # -- join -----------------------------------------------------------------------------------

    def join(
        self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float, *, new_id: str
    ) -> None:
        """JoinGroup; `new_id` is the member id for a client that has none."""
        phases, member_id = self._phases, request.member_id
        refusal = self._refusal(request)
        if refusal is not None:
            if isinstance(refusal, GroupMaxSizeReached) and member_id in self._roster.members:
                phases.remove(member_id, refusal, now)
            self._refuse_join(ticket, request, refusal)
        elif not member_id and request.instance_id is not None:
            self._join_static(ticket, request, client, now, new_id)
        elif not member_id and request.needs_member_id:
            phases.pending[new_id] = until = now + request.session_timeout_ms / 1000
            phases.wake_at(until)
            required = MemberIdRequired("join again under this member id")
            self.effects.append(Reply(ticket, JoinedGroup(error=required, member_id=new_id)))
        elif not member_id:
            self._join_new(ticket, request, client, now, new_id)
        elif member_id in phases.pending and request.instance_id is None:
            del phases.pending[member_id]
            self._join_new(ticket, request, client, now, member_id)
        elif (error := self._roster.check(member_id, request.instance_id)) is not None:
            self._refuse_join(ticket, request, error)
        else:
            self._rejoin(ticket, request, client, now)

    def _refusal(self, request: JoinGroup) -> DisklessError | None:
        """Why nobody of this kind can join."""
        roster, pending = self._roster, self._phases.pending
        places = self._phases.joining if self.state is GroupState.PREPARING else roster.members
        others_awaited = len(pending) - (request.member_id in pending)
        has_place = roster.id_of(request.member_id, request.instance_id) in places
        if not has_place and len(places) + others_awaited >= self._size_max:
            return GroupMaxSizeReached(f"group.max.size={self._size_max}")
        if not roster.shares_protocol(request):
            return InconsistentGroupProtocol("no protocol that all members have")
        return None

    def _refuse_join(self, ticket: Ticket, request: JoinGroup, error: DisklessError) -> None:
        self.effects.append(Reply(ticket, JoinedGroup(error=error, member_id=request.member_id)))

    def _join_new(
        self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float, member_id: str
    ) -> None:
        self._roster.add_new(member_id, request, client)
        self._phases.park_new(ticket, member_id, now)
        self._phases.begin_or_complete(now)

    def _rejoin(self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float) -> None:
        phases, member_id = self._phases, request.member_id
        is_same = self._roster.members[member_id].protocols == distinct(request.protocols)
        # While the others sync, the answer to its join was lost.
        is_settled = self.state is GroupState.COMPLETING or (
            self.state is GroupState.STABLE and member_id != self.leader
        )
        if is_same and is_settled:
            phases.start_session(member_id, now)
            self.effects.append(Reply(ticket, phases.generation(member_id)))
        else:
            self._roster.update(member_id, request, client)
            phases.park_join(ticket, member_id)
            phases.begin_or_complete(now)

    def _join_static(
        self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float, new_id: str
    ) -> None:
        phases, roster = self._phases, self._roster
        old_id = roster.id_of("", request.instance_id)
        if not old_id:
            self._join_new(ticket, request, client, now, new_id)
            return
        old_leader = roster.leader
        topics_before = subscribed_topics(roster.said(roster.members[old_id]))
        fenced = FencedInstanceId(f"another member has taken over from {old_id}")
        phases.rename(old_id, new_id, fenced)
        roster.update(new_id, request, client)
        topics_now = subscribed_topics(roster.said(roster.members[new_id]))
        if (
            self.state is not GroupState.STABLE
            or roster.voted_protocol() != roster.protocol_name
            or (roster.protocol_type == CONSUMER_PROTOCOL and topics_now != topics_before)
        ):
            phases.park_join(ticket, new_id)
            phases.begin_or_complete(now)
            return
        # Nothing changes for anybody but the id, which must outlive this coordinator: otherwise
        # the next one would take the old member for the owner of the instance id.
        phases.start_session(new_id, now)
        answer = phases.generation(new_id)
        if request.may_skip_assignment:
            answer = answer._replace(skip_assignment=new_id == roster.leader)
        else:
            # Were it told that it leads, it would assign anew; so the one who did is named.
            answer = answer._replace(leader=old_leader or "", members=())
        self._replaced[phases.store()] = (ticket, answer)

    # -- sync -----------------------------------------------------------------------------------

    def sync(self, ticket: Ticket, request: SyncGroup, now: float) -> None:
        error = self._check(request.generation_id, request.member_id, request.instance_id)
        if error is None and not self._names_protocol(request):
            error = InconsistentGroupProtocol(
                f"the generation's protocol is {self.protocol_type} {self.protocol_name}"
            )
        if error is None and self.state is GroupState.PREPARING:
            error = RebalanceInProgress("the group forms its next generation")
        if error is not None:
            self.effects.append(Reply(ticket, SyncedGroup(error=error)))
        else:
            self._phases.sync(ticket, request.member_id, request.assignments, now)

    def _names_protocol(self, request: SyncGroup) -> bool:
        return request.protocol_type in (None, self.protocol_type) and request.protocol_name in (
            None,
            self.protocol_name,
        )

    # -- heartbeat, leave, offsets --------------------------------------------------------------

    def heartbeat(
        self, generation_id: int, member_id: str, instance_id: str | None, now: float
    ) -> DisklessError | None:
        """In the sync phase it is a heartbeat like any other."""
        error = self._check(generation_id, member_id, instance_id)
        if error is not None:
            return error
        self._phases.hear(member_id, now)
        if self.state is GroupState.PREPARING:
            return RebalanceInProgress("the group forms its next generation")
        return None

    def leave(self, member_id: str, instance_id: str | None, now: float) -> DisklessError | None:
        member_id = self._roster.id_of(member_id, instance_id)
        if member_id in self._phases.pending and instance_id is None:
            self._phases.forget_pending([member_id], now)
            return None
        error = self._roster.check(member_id, instance_id)
        if error is None:
            self._phases.remove(member_id, UnknownMember("the member has left"), now)
        return error

    def confirm(self, ticket: Ticket) -> None:
        """At once: what members do between generations may be forgotten."""
        self.effects.append(Reply(ticket, Confirmed()))

    def check_fetch(self, member_id: str, member_epoch: int) -> DisklessError | None:
        """Anybody may; members do not say who they are."""
        return None

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
        if generation_id < 0 and self.is_empty:
            return None
        if generation_id < 0 and not member_id and instance_id is None:
            if is_transactional:
                return None
            return UnknownMember("the group has members; only they may commit")
        error = self._check(generation_id, member_id, instance_id)
        if error is not None:
            return error
        self._phases.hear(member_id, now)
        if self.state is GroupState.COMPLETING and not is_transactional:
            return RebalanceInProgress("the generation has no assignment yet")
        return None

    def _check(
        self, generation_id: int, member_id: str, instance_id: str | None
    ) -> DisklessError | None:
        error = self._roster.check(member_id, instance_id)
        if error is None and generation_id != self.generation_id:
            return IllegalGeneration(f"generation {generation_id}, it is {self.generation_id}")
        return error

    # -- time and store -------------------------------------------------------------------------

    def begin_again(self, now: float) -> None:
        """The members did not come to what they have by themselves: store it, and rebalance."""
        self._phases.store()
        self._phases.prepare(now)

    def tick(self, now: float) -> None:
        self._phases.tick(now)

    def stored(self, serial: int, error: DisklessError | None, now: float) -> None:
        if serial in self._replaced:
            ticket, answer = self._replaced.pop(serial)
            if error is not None:
                answer = JoinedGroup(error=error)
            elif answer.member_id not in self._roster.members:
                answer = JoinedGroup(error=UnknownMember("gone meanwhile"))
            self.effects.append(Reply(ticket, answer))
        self._phases.stored(serial, error, now)

    def assigned(self, serial: int, targets: Targets, now: float) -> None:
        """Never called: a member assigns the partitions."""
        raise AssertionError("a classic group does not ask for an assignment")

    def close(self, error: DisklessError) -> None:
        self._phases.close(error)
        for ticket, answer in self._replaced.values():
            refused = JoinedGroup(error=error, member_id=answer.member_id)
            self.effects.append(Reply(ticket, refused))
        self._replaced.clear()
