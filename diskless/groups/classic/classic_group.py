"""One classic consumer group: a state machine without clock, I/O or waiting.

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                 ▲   │                                                │
      └──nobody left────┼───┘                 the leader's assignment is durable
                        └──join, leave, expiry── Stable ◀────────────────────┘

Whoever drives it calls a method per event with the monotonic time, then takes the `effects`:
answers to requests that were parked under a *ticket*, and states to be stored, which it reports
back through `stored`. It calls `tick` at `wakes_at`, or earlier.

Invariants:
- Every ticket is answered exactly once: by a later event, by the group's own deadlines, or by
  `close`. A parked join is answered at the end of the join phase, whose length is the longest
  rebalance timeout; a parked sync when the assignment is durable, at latest at the end of the sync
  phase, which is as long.
- The generation only grows. A member is answered with an assignment only in the generation for
  which the leader gave it, and only after it was stored.
- Members of a stable generation are those that joined it, and static members that were away.
- An instance id belongs to one member; who held it before is fenced.

Timers cost nothing while nothing happens: a heartbeat only moves its member's deadline on;
`wakes_at` is a lower bound that is made exact when it comes.

Differences from Apache Kafka, all of them lenient: a member that changes its protocols is held to
those of the others only; a static member that comes back with another subscription starts a
rebalance; one that was away during the join phase is not thrown out for not syncing, but by its
session. A request that is parked twice is answered the first time too.

Source: Apache Kafka's GroupCoordinator; KIP-134 (initial delay), KIP-345 (static members), KIP-394
(member id required), KIP-559 (protocol in responses), KIP-814 (skipped assignment).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from diskless.groups.assignors.assignment import Targets
from diskless.groups.classic.subscription import (
    CONSUMER_PROTOCOL,
    all_subscribed_topics,
    subscribed_topics,
)
from diskless.groups.classic_state import StoredClassicGroup, StoredMember
from diskless.groups.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from diskless.groups.group_machine import (
    AnswerConfirm,
    AnswerJoin,
    AnswerSync,
    Confirmed,
    Effect,
    Store,
    Ticket,
)
from diskless.groups.requests import (
    GroupMember,
    GroupProtocol,
    JoinedGroup,
    JoinedMember,
    JoinGroup,
    SyncedGroup,
    SyncGroup,
)
from diskless.ports import ClientInfo
from metadata.records.groups import GroupKind
from wal.errors import DisklessError

NEW_MEMBER_TIMEOUT_S: Final = 300.0
"""A client that does not know its member id yet cannot send heartbeats; it may wait that long."""


class GroupState(Enum):
    """As Kafka's tools show it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class _Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    expires_at: float = math.inf
    """Never while a request of its own is parked: it waits for us."""

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")


class ClassicGroup:
    """One group and everybody in it."""

    def __init__(self, group_id: str, *, initial_delay_s: float, size_max: int) -> None:
        self.group_id: Final = group_id
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.wakes_at = math.inf
        """When to call `tick` at latest; may be early."""
        self.effects: list[Effect] = []
        """What is to be done, in order; the driver takes them out after every event."""
        self._initial_delay_s = initial_delay_s
        self._size_max = size_max
        self._members: dict[str, _Member] = {}
        self._instances: dict[str, str] = {}
        """Member id by instance id."""
        self._pending: dict[str, float] = {}
        """Ids given to clients to come back with, and until when they are good."""
        self._supported: Counter[str] = Counter()
        """How many members know a protocol."""
        self._joining: dict[str, Ticket] = {}
        self._syncing: dict[str, Ticket] = {}
        self._unsynced: set[str] = set()
        """Members of this generation that have not asked for their assignment."""
        self._join_deadline = math.inf
        self._sync_deadline = math.inf
        self._initial_left_s: float | None = None
        """By how much the initial delay may still be prolonged; None: it is over."""
        self._grew = False
        """Whether a member came during the initial delay."""
        self._serial = 0
        self._proposal: tuple[int, Mapping[str, bytes]] | None = None
        """The leader's assignment that is being stored, under this serial."""
        self._replaced: dict[int, tuple[Ticket, JoinedGroup]] = {}
        """Answers to static members that came back, by the serial they wait for."""
        self._subscribed: frozenset[str] | None = frozenset()

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
        group = cls(group_id, initial_delay_s=initial_delay_s, size_max=size_max)
        group.generation_id = stored.generation_id
        group.protocol_type = stored.protocol_type
        for kept in stored.members:
            member = _Member(
                member_id=kept.member_id,
                instance_id=kept.instance_id,
                client_id=kept.client_id,
                client_host=kept.client_host,
                session_timeout_ms=kept.session_timeout_ms,
                rebalance_timeout_ms=kept.rebalance_timeout_ms,
                protocols=kept.protocols,
                assignment=kept.assignment,
            )
            group._insert(member)
            group._start_session(member, now)
        if stored.members:
            group.state = GroupState.STABLE
            group.protocol_name = stored.protocol_name
            group.leader = stored.leader
            group._note_subscription()
        return group

    # -- what it looks like ---------------------------------------------------------------------

    @property
    def member_ids(self) -> Sequence[str]:
        return [*self._members]

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CLASSIC

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_closed(self) -> bool:
        return self.state is GroupState.DEAD

    @property
    def is_unused(self) -> bool:
        """Nobody is in it and nobody is about to come."""
        return self.state is GroupState.EMPTY and not self._pending

    def members(self) -> Sequence[GroupMember]:
        """As DescribeGroups shows them: what they do is settled only when the group is stable."""
        is_stable = self.state is GroupState.STABLE
        return [
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol_name) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in self._members.values()
        ]

    def reads(self, topic: str) -> bool:
        """Whether members may be reading the topic; in doubt they are."""
        if not self._members:
            return False
        return self._subscribed is None or topic in self._subscribed

    def keeps_offsets(self, topic: str) -> bool:
        """Whether old offsets of the topic must not be forgotten now."""
        return self.state is not GroupState.STABLE or self.reads(topic)

    def may_delete_offsets(self) -> bool:
        """Whether it is known what the members read."""
        return self.is_empty or self.protocol_type == CONSUMER_PROTOCOL

    def snapshot(self) -> StoredClassicGroup:
        """The group as it is; of a generation that has no assignment yet, with what was before."""
        return self._snapshot({one.member_id: one.assignment for one in self._members.values()})

    # -- join -----------------------------------------------------------------------------------

    def join(
        self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float, *, new_id: str
    ) -> None:
        """JoinGroup; `new_id` is the member id for a client that has none."""
        member_id = request.member_id
        refusal = self._refusal(request)
        if refusal is not None:
            if isinstance(refusal, GroupMaxSizeReached) and member_id in self._members:
                self._remove(member_id, refusal)
                self._after_removal(now)
            self._refuse_join(ticket, request, refusal)
        elif not member_id and request.instance_id is not None:
            self._join_static(ticket, request, client, now, new_id)
        elif not member_id and request.needs_member_id:
            self._pending[new_id] = until = now + request.session_timeout_ms / 1000
            self._wake_at(until)
            required = MemberIdRequired("join again under this member id")
            self._answer_join(ticket, JoinedGroup(error=required, member_id=new_id))
        elif not member_id:
            self._join_new(ticket, request, client, now, new_id)
        elif member_id in self._pending and request.instance_id is None:
            del self._pending[member_id]
            self._join_new(ticket, request, client, now, member_id)
        elif (error := self._check_member(member_id, request.instance_id)) is not None:
            self._refuse_join(ticket, request, error)
        else:
            self._rejoin(ticket, self._members[member_id], request, client, now)

    def _refusal(self, request: JoinGroup) -> DisklessError | None:
        """Why nobody of this kind can join."""
        places = self._joining if self.state is GroupState.PREPARING else self._members
        others_awaited = len(self._pending) - (request.member_id in self._pending)
        has_place = self._own_id(request) in places
        if not has_place and len(places) + others_awaited >= self._size_max:
            return GroupMaxSizeReached(f"group.max.size={self._size_max}")
        if not self._shares_protocol(request):
            return InconsistentGroupProtocol("no protocol that all members have")
        return None

    def _own_id(self, request: JoinGroup) -> str:
        """Under which id the one who asks is in the group, if it is."""
        return request.member_id or self._instances.get(request.instance_id or "", "")

    def _shares_protocol(self, request: JoinGroup) -> bool:
        if not request.protocol_type or not request.protocols:
            return False
        own = self._members.get(self._own_id(request))
        others = len(self._members) - (own is not None)
        if not others:
            return True
        own_names = {protocol.name for protocol in own.protocols} if own is not None else set()
        return request.protocol_type == self.protocol_type and any(
            self._supported[protocol.name] - (protocol.name in own_names) == others
            for protocol in request.protocols
        )

    def _join_new(
        self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float, member_id: str
    ) -> None:
        if not self._members:
            self.protocol_type = request.protocol_type
        member = _Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=client.client_id,
            client_host=client.host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=_distinct(request.protocols),
            expires_at=now + NEW_MEMBER_TIMEOUT_S,
        )
        self._insert(member)
        self._wake_at(member.expires_at)
        self._joining[member_id] = ticket
        self._grew = True
        self._rebalance_or_complete(now)

    def _rejoin(
        self, ticket: Ticket, member: _Member, request: JoinGroup, client: ClientInfo, now: float
    ) -> None:
        is_same = member.protocols == _distinct(request.protocols)
        if self.state is GroupState.COMPLETING and is_same:
            # The answer to its join was lost.
            self._start_session(member, now)
            self._answer_join(ticket, self._generation(member))
        elif self.state is GroupState.STABLE and is_same and member.member_id != self.leader:
            self._start_session(member, now)
            self._answer_join(ticket, self._generation(member))
        else:
            self._update(member, request, client)
            self._park_join(ticket, member)
            self._rebalance_or_complete(now)

    def _join_static(
        self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float, new_id: str
    ) -> None:
        assert request.instance_id is not None
        old_id = self._instances.get(request.instance_id)
        if old_id is None:
            self._join_new(ticket, request, client, now, new_id)
            return
        old_leader = self.leader
        topics_before = subscribed_topics(self._members[old_id].metadata(self.protocol_name))
        member = self._take_over(old_id, new_id)
        self._update(member, request, client)
        topics_now = subscribed_topics(member.metadata(self.protocol_name))
        if (
            self.state is not GroupState.STABLE
            or self._voted_protocol() != self.protocol_name
            or (self.protocol_type == CONSUMER_PROTOCOL and topics_now != topics_before)
        ):
            self._park_join(ticket, member)
            self._rebalance_or_complete(now)
            return
        # Nothing changes for anybody but the id, which must outlive this coordinator: otherwise
        # the next one would take the old member for the owner of the instance id.
        self._start_session(member, now)
        if request.may_skip_assignment:
            skips = member.member_id == self.leader
            answer = self._generation(member)._replace(skip_assignment=skips)
        else:
            # Were it told that it leads, it would assign anew; so the one who did is named.
            answer = self._generation(member)._replace(leader=old_leader or "", members=())
        self._replaced[self._store()] = (ticket, answer)

    def _take_over(self, old_id: str, new_id: str) -> _Member:
        """Give a member another id, in its place; whoever waits under the old one is fenced."""
        fenced = FencedInstanceId(f"another member has taken over from {old_id}")
        self._answer_parked(old_id, fenced)
        member = self._members.pop(old_id)
        assert member.instance_id is not None
        member.member_id = new_id
        self._members[new_id] = member
        self._instances[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)
        return member

    def _update(self, member: _Member, request: JoinGroup, client: ClientInfo) -> None:
        """What the member said when it joined again."""
        self._supported.subtract(protocol.name for protocol in member.protocols)
        member.protocols = _distinct(request.protocols)
        self._supported.update(protocol.name for protocol in member.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id = client.client_id
        member.client_host = client.host
        if len(self._members) == 1:
            self.protocol_type = request.protocol_type

    def _park_join(self, ticket: Ticket, member: _Member) -> None:
        self._answer_parked(member.member_id, RebalanceInProgress("the member has joined again"))
        self._joining[member.member_id] = ticket
        member.expires_at = math.inf

    def _generation(self, member: _Member) -> JoinedGroup:
        """The generation as its members are told of it."""
        members: Sequence[JoinedMember] = ()
        if member.member_id == self.leader:
            members = [
                JoinedMember(one.member_id, one.instance_id, one.metadata(self.protocol_name))
                for one in self._members.values()
            ]
        return JoinedGroup(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            member_id=member.member_id,
            members=members,
        )

    # -- rebalance ------------------------------------------------------------------------------

    def _rebalance_or_complete(self, now: float) -> None:
        """A member has come or changed: begin a rebalance, or see whether all are there."""
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_are_there(now)
        else:
            self._prepare_rebalance(now)

    def begin_again(self, now: float) -> None:
        """The members did not come to what they have by themselves: store it, and rebalance."""
        self._store()
        self._prepare_rebalance(now)

    def _prepare_rebalance(self, now: float) -> None:
        was_empty = self.state is GroupState.EMPTY
        self._answer_syncs(RebalanceInProgress("the group forms its next generation"), now)
        self._unsynced.clear()
        self._proposal = None
        self._sync_deadline = math.inf
        self.state = GroupState.PREPARING
        timeout_s = self._rebalance_timeout_s()
        if was_empty and self._initial_delay_s > 0:
            delay_s = min(self._initial_delay_s, timeout_s)
            self._initial_left_s = timeout_s - delay_s
            self._grew = False
            self._set_join_deadline(now + delay_s)
        elif was_empty:
            self._complete_join(now)
        else:
            self._set_join_deadline(now + timeout_s)
            self._complete_join_if_all_are_there(now)

    def _set_join_deadline(self, deadline: float) -> None:
        self._join_deadline = deadline
        self._wake_at(deadline)

    def _rebalance_timeout_s(self) -> float:
        """The longest that any member asked for."""
        return max((m.rebalance_timeout_ms for m in self._members.values()), default=0) / 1000

    def _complete_join_if_all_are_there(self, now: float) -> None:
        is_initial = self._initial_left_s is not None
        if not is_initial and not self._pending and len(self._joining) == len(self._members):
            self._complete_join(now)

    def _join_time_is_up(self, now: float) -> None:
        left_s = self._initial_left_s
        if left_s and self._grew:
            # Somebody came: there may be more to come.
            delay_s = min(self._initial_delay_s, left_s)
            self._initial_left_s = left_s - delay_s
            self._grew = False
            self._set_join_deadline(now + delay_s)
        else:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Begin the next generation with those who are there."""
        self._initial_left_s = None
        self._join_deadline = math.inf
        for member in [*self._members.values()]:
            if member.member_id not in self._joining and member.instance_id is None:
                self._remove(member.member_id, UnknownMember("did not join in time"))
        if self._members and not self._joining:
            # Only static members that are away: their sessions say how long to wait for them.
            self._set_join_deadline(now + max(self._rebalance_timeout_s(), 1.0))
            return
        self.generation_id += 1
        if not self._members:
            self.state = GroupState.EMPTY
            self.protocol_name = None
            self.leader = None
            self._note_subscription()
            self._store()
            return
        if self.leader not in self._joining:
            self.leader = next(iter(self._joining))
        self.protocol_name = self._voted_protocol()
        self.state = GroupState.COMPLETING
        self._note_subscription()
        self._sync_deadline = now + self._rebalance_timeout_s()
        self._wake_at(self._sync_deadline)
        joining, self._joining = self._joining, {}
        for member_id, ticket in joining.items():
            member = self._members[member_id]
            self._unsynced.add(member_id)
            self._start_session(member, now)
            self._answer_join(ticket, self._generation(member))

    def _voted_protocol(self) -> str:
        """Of the protocols that all have, the one that most want; the first named wins a tie."""
        everybody = len(self._members)
        votes: Counter[str] = Counter()
        for member in self._members.values():
            votes[
                next(p.name for p in member.protocols if self._supported[p.name] == everybody)
            ] += 1
        return votes.most_common(1)[0][0]

    def _note_subscription(self) -> None:
        if self.protocol_type == CONSUMER_PROTOCOL:
            self._subscribed = all_subscribed_topics(
                member.metadata(self.protocol_name) for member in self._members.values()
            )
        else:
            self._subscribed = None if self._members else frozenset()

    # -- sync -----------------------------------------------------------------------------------

    def sync(self, ticket: Ticket, request: SyncGroup, now: float) -> None:
        """SyncGroup."""
        error = self._check_member(request.member_id, request.instance_id)
        if error is None and request.generation_id != self.generation_id:
            error = self._illegal(request.generation_id)
        if error is None and not self._names_protocol(request):
            error = InconsistentGroupProtocol(
                f"the generation's protocol is {self.protocol_type} {self.protocol_name}"
            )
        if error is None and self.state is GroupState.PREPARING:
            error = RebalanceInProgress("the group forms its next generation")
        if error is not None:
            self.effects.append(AnswerSync(ticket, SyncedGroup(error=error)))
            return
        member = self._members[request.member_id]
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._start_session(member, now)
            self.effects.append(AnswerSync(ticket, self._assignment(member)))
            self._end_sync_phase_if_all_came()
            return
        self._answer_parked(member.member_id, RebalanceInProgress("the member asks again"))
        self._syncing[member.member_id] = ticket
        member.expires_at = math.inf
        if member.member_id == self.leader and self._proposal is None:
            proposed = {one: request.assignments.get(one, b"") for one in self._members}
            self._proposal = (self._store(proposed), proposed)

    def _names_protocol(self, request: SyncGroup) -> bool:
        return request.protocol_type in (None, self.protocol_type) and request.protocol_name in (
            None,
            self.protocol_name,
        )

    def _assignment(self, member: _Member) -> SyncedGroup:
        return SyncedGroup(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _answer_syncs(self, error: DisklessError | None, now: float) -> None:
        syncing, self._syncing = self._syncing, {}
        for member_id, ticket in syncing.items():
            member = self._members[member_id]
            self._start_session(member, now)
            answer = SyncedGroup(error=error) if error else self._assignment(member)
            self.effects.append(AnswerSync(ticket, answer))

    def _end_sync_phase_if_all_came(self) -> None:
        if self.state is GroupState.STABLE and not self._unsynced:
            self._sync_deadline = math.inf

    def _sync_time_is_up(self, now: float) -> None:
        """Throw out who did not ask for its assignment, and begin again."""
        self._sync_deadline = math.inf
        for member_id in sorted(self._unsynced):
            self._remove(member_id, UnknownMember("did not sync in time"))
        self._prepare_rebalance(now)

    # -- store ----------------------------------------------------------------------------------

    def _store(self, assignments: Mapping[str, bytes] | None = None) -> int:
        """Have the group stored as it is, or with these assignments; the serial to wait for."""
        self._serial += 1
        group = self.snapshot() if assignments is None else self._snapshot(assignments)
        self.effects.append(Store(self._serial, group))
        return self._serial

    def _snapshot(self, assignments: Mapping[str, bytes]) -> StoredClassicGroup:
        members = tuple(
            StoredMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.protocols,
                assignment=assignments[member.member_id],
            )
            for member in self._members.values()
        )
        return StoredClassicGroup(
            protocol_type=self.protocol_type,
            generation_id=self.generation_id,
            protocol_name=self.protocol_name,
            leader=self.leader,
            members=members,
        )

    def stored(self, serial: int, error: DisklessError | None, now: float) -> None:
        """What was to be stored under `serial` is durable, or it is not known to be."""
        if serial in self._replaced:
            ticket, answer = self._replaced.pop(serial)
            if error is not None:
                answer = JoinedGroup(error=error)
            elif answer.member_id not in self._members:
                answer = JoinedGroup(error=UnknownMember("gone meanwhile"))
            self._answer_join(ticket, answer)
        if self._proposal is None or self._proposal[0] != serial:
            return
        _, assignments = self._proposal
        self._proposal = None
        if error is not None:
            self._answer_syncs(error, now)
            self._prepare_rebalance(now)
            return
        for member_id, assignment in assignments.items():
            self._members[member_id].assignment = assignment
        self.state = GroupState.STABLE
        self._answer_syncs(None, now)
        self._end_sync_phase_if_all_came()

    # -- heartbeat, leave, commit ---------------------------------------------------------------

    def heartbeat(
        self, generation_id: int, member_id: str, instance_id: str | None, now: float
    ) -> DisklessError | None:
        """Heartbeat. In the sync phase it is a heartbeat like any other."""
        error = self._check_generation(generation_id, member_id, instance_id)
        if error is not None:
            return error
        self._hear(self._members[member_id], now)
        if self.state is GroupState.PREPARING:
            return RebalanceInProgress("the group forms its next generation")
        return None

    def leave(self, member_id: str, instance_id: str | None, now: float) -> DisklessError | None:
        """LeaveGroup, for one member; a static one may be named by its instance id alone."""
        if not member_id and instance_id is not None:
            member_id = self._instances.get(instance_id, "")
        if member_id in self._pending and instance_id is None:
            del self._pending[member_id]
            self._stop_waiting_for_pending(now)
            return None
        error = self._check_member(member_id, instance_id)
        if error is None:
            self._remove(member_id, UnknownMember("the member has left"))
            self._after_removal(now)
        return error

    def confirm(self, ticket: Ticket) -> None:
        """At once: what members do between generations may be forgotten."""
        self.effects.append(AnswerConfirm(ticket, Confirmed()))

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
    ) -> DisklessError | None:
        """Whether this member, or nobody in particular, may commit offsets now."""
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return None
        if generation_id < 0 and not member_id and instance_id is None:
            return UnknownMember("the group has members; only they may commit")
        error = self._check_generation(generation_id, member_id, instance_id)
        if error is not None:
            return error
        self._hear(self._members[member_id], now)
        if self.state is GroupState.COMPLETING:
            return RebalanceInProgress("the generation has no assignment yet")
        return None

    def _check_generation(
        self, generation_id: int, member_id: str, instance_id: str | None
    ) -> DisklessError | None:
        error = self._check_member(member_id, instance_id)
        if error is None and generation_id != self.generation_id:
            error = self._illegal(generation_id)
        return error

    def _check_member(self, member_id: str, instance_id: str | None) -> DisklessError | None:
        """UnknownMember or FencedInstanceId, unless this is the member it says it is."""
        if instance_id is not None:
            holder = self._instances.get(instance_id)
            if holder is None:
                return UnknownMember(f"nobody has the instance id {instance_id}")
            if holder != member_id:
                return FencedInstanceId(f"{holder} has the instance id {instance_id}")
        if member_id not in self._members:
            return UnknownMember(f"no member {member_id!r}")
        return None

    def _illegal(self, generation_id: int) -> IllegalGeneration:
        return IllegalGeneration(f"generation {generation_id}, it is {self.generation_id}")

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due by now, and find out when the next thing is."""
        expired = [one.member_id for one in self._members.values() if one.expires_at <= now]
        forgotten = [member_id for member_id, until in self._pending.items() if until <= now]
        for member_id in forgotten:
            del self._pending[member_id]
        for member_id in expired:
            self._remove(member_id, UnknownMember("the session has expired"))
        if expired:
            self._after_removal(now)
        elif forgotten:
            self._stop_waiting_for_pending(now)
        if self._join_deadline <= now:
            self._join_time_is_up(now)
        if self._sync_deadline <= now:
            self._sync_time_is_up(now)
        self.wakes_at = min(
            self._join_deadline,
            self._sync_deadline,
            min((one.expires_at for one in self._members.values()), default=math.inf),
            min(self._pending.values(), default=math.inf),
        )

    def assigned(self, serial: int, targets: Targets, now: float) -> None:
        """Never called: a member assigns the partitions."""
        raise AssertionError("a classic group does not ask for an assignment")

    def close(self, error: DisklessError) -> None:
        """The group ends here: answer everybody who waits."""
        for member_id in [*self._members]:
            self._answer_parked(member_id, error)
        for ticket, answer in self._replaced.values():
            self._answer_join(ticket, JoinedGroup(error=error, member_id=answer.member_id))
        self._replaced.clear()
        self._proposal = None
        self._members.clear()
        self._pending.clear()
        self.state = GroupState.DEAD
        self.wakes_at = math.inf

    def _wake_at(self, moment: float) -> None:
        self.wakes_at = min(self.wakes_at, moment)

    def _hear(self, member: _Member, now: float) -> None:
        """A sign of life; who has a request parked does not need one."""
        if member.expires_at < math.inf and member.member_id not in self._joining:
            self._start_session(member, now)

    def _start_session(self, member: _Member, now: float) -> None:
        member.expires_at = now + member.session_timeout_ms / 1000
        self._wake_at(member.expires_at)

    # -- members --------------------------------------------------------------------------------

    def _insert(self, member: _Member) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._supported.update(protocol.name for protocol in member.protocols)
        if self.leader is None:
            self.leader = member.member_id

    def _remove(self, member_id: str, error: DisklessError) -> None:
        """Take a member out, answering what it has parked; the caller sees to what follows."""
        self._answer_parked(member_id, error)
        member = self._members.pop(member_id)
        self._supported.subtract(protocol.name for protocol in member.protocols)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._unsynced.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)

    def _after_removal(self, now: float) -> None:
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_are_there(now)
        elif self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare_rebalance(now)

    def _stop_waiting_for_pending(self, now: float) -> None:
        """An id is good no more that nobody came back with: only a join phase waits for these."""
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_are_there(now)

    def _answer_parked(self, member_id: str, error: DisklessError) -> None:
        if (ticket := self._joining.pop(member_id, None)) is not None:
            self._answer_join(ticket, JoinedGroup(error=error, member_id=member_id))
        if (ticket := self._syncing.pop(member_id, None)) is not None:
            self.effects.append(AnswerSync(ticket, SyncedGroup(error=error)))

    def _answer_join(self, ticket: Ticket, answer: JoinedGroup) -> None:
        self.effects.append(AnswerJoin(ticket, answer))

    def _refuse_join(self, ticket: Ticket, request: JoinGroup, error: DisklessError) -> None:
        self._answer_join(ticket, JoinedGroup(error=error, member_id=request.member_id))


def _distinct(protocols: Sequence[GroupProtocol]) -> tuple[GroupProtocol, ...]:
    """The first of each name, in order: a name counts once in a vote."""
    first: dict[str, GroupProtocol] = {}
    for protocol in protocols:
        first.setdefault(protocol.name, protocol)
    return tuple(first.values())
