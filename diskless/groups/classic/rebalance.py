"""The phases of a classic group, from one generation to the next, and its timers.

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                 ▲   │                                                │
      └──nobody left────┼───┘                 the leader's assignment is durable
                        └──join, leave, expiry── Stable ◀────────────────────┘

Joins are parked until the join phase ends, whose length is the longest rebalance timeout; syncs
until the assignment is durable, at latest until the end of the sync phase, which is as long.

Timers cost nothing while nothing happens: a heartbeat only moves its member's deadline on;
`wakes_at` is a lower bound that is made exact when it comes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from diskless.groups.classic.classic_roster import ClassicRoster
from diskless.groups.classic_state import StoredMember
from diskless.groups.errors import RebalanceInProgress, UnknownMember
from diskless.groups.group_machine import Effect, Removed, Reply, Store, Ticket
from diskless.groups.requests import JoinedGroup, JoinedMember, SyncedGroup
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


class Rebalance:
    """Which phase a group is in, who waits for the next one, and until when."""

    def __init__(
        self, roster: ClassicRoster, *, generation_id: int, initial_delay_s: float
    ) -> None:
        self.effects: Final[list[Effect]] = []
        self.state = GroupState.EMPTY
        self.generation_id = generation_id
        self.wakes_at = math.inf
        self.joining: Final[dict[str, Ticket]] = {}
        """Members whose joins are parked."""
        self.pending: Final[dict[str, float]] = {}
        """Ids given to clients to come back with, and until when they are good."""
        self._roster = roster
        self._initial_delay_s = initial_delay_s
        self._sessions: dict[str, float] = {}
        """Until when a member must be heard of; none while it waits for us."""
        self._syncing: dict[str, Ticket] = {}
        self._unsynced: set[str] = set()
        """Members of this generation that have not asked for their assignment."""
        self._join_deadline = math.inf
        self._sync_deadline = math.inf
        self._initial_left_s: float | None = None
        """What is left of the initial delay's limit. None after the delay."""
        self._grew = False
        """Whether a member came during the initial delay."""
        self._serial = 0
        self._proposal: tuple[int, Mapping[str, bytes]] | None = None
        """The leader's assignment that is being stored, under this serial."""

    # -- who waits ------------------------------------------------------------------------------

    def park_new(self, ticket: Ticket, member_id: str, now: float) -> None:
        """The join of a member that is new in the roster."""
        self.joining[member_id] = ticket
        self._sessions[member_id] = until = now + NEW_MEMBER_TIMEOUT_S
        self.wake_at(until)
        self._grew = True

    def park_join(self, ticket: Ticket, member_id: str) -> None:
        self.answer_parked(member_id, RebalanceInProgress("the member has joined again"))
        self.joining[member_id] = ticket
        self._sessions.pop(member_id, None)

    def park_sync(self, ticket: Ticket, member_id: str) -> None:
        self.answer_parked(member_id, RebalanceInProgress("the member asks again"))
        self._syncing[member_id] = ticket
        self._sessions.pop(member_id, None)

    def answer_parked(self, member_id: str, error: DisklessError) -> None:
        if (ticket := self.joining.pop(member_id, None)) is not None:
            self.effects.append(Reply(ticket, JoinedGroup(error=error, member_id=member_id)))
        if (ticket := self._syncing.pop(member_id, None)) is not None:
            self.effects.append(Reply(ticket, SyncedGroup(error=error)))

    def generation(self, member_id: str) -> JoinedGroup:
        """The generation as a member sees it."""
        roster = self._roster
        members: Sequence[JoinedMember] = ()
        if member_id == roster.leader:
            members = [
                JoinedMember(one.member_id, one.instance_id, roster.said(one))
                for one in roster.members.values()
            ]
        return JoinedGroup(
            generation_id=self.generation_id,
            protocol_type=roster.protocol_type,
            protocol_name=roster.protocol_name,
            leader=roster.leader or "",
            member_id=member_id,
            members=members,
        )

    def assignment(self, member: StoredMember) -> SyncedGroup:
        """Returns the assignment of a member in this generation."""
        return SyncedGroup(
            protocol_type=self._roster.protocol_type,
            protocol_name=self._roster.protocol_name,
            assignment=member.assignment,
        )

    # -- join phase -----------------------------------------------------------------------------

    def begin_or_complete(self, now: float) -> None:
        """A member has come or changed: begin a rebalance, or see whether all are there."""
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_are_there(now)
        else:
            self.prepare(now)

    def prepare(self, now: float) -> None:
        was_empty = self.state is GroupState.EMPTY
        self._answer_syncs(RebalanceInProgress("the group forms its next generation"), now)
        self._unsynced.clear()
        self._proposal = None
        self._sync_deadline = math.inf
        self.state = GroupState.PREPARING
        timeout_s = self._roster.rebalance_timeout_s
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
        self.wake_at(deadline)

    def _complete_join_if_all_are_there(self, now: float) -> None:
        is_initial = self._initial_left_s is not None
        if not is_initial and not self.pending and len(self.joining) == len(self._roster.members):
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
        roster = self._roster
        for member in [*roster.members.values()]:
            if member.member_id not in self.joining and member.instance_id is None:
                self._put_out(member.member_id, "did not join in time")
        if roster.members and not self.joining:
            # Only static members that are away: their sessions say how long to wait for them.
            self._set_join_deadline(now + max(roster.rebalance_timeout_s, 1.0))
            return
        self.generation_id += 1
        if not roster.members:
            self.state = GroupState.EMPTY
            roster.protocol_name = None
            roster.leader = None
            roster.note_subscription()
            self.store()
            return
        if roster.leader not in self.joining:
            roster.leader = next(iter(self.joining))
        roster.protocol_name = roster.voted_protocol()
        self.state = GroupState.COMPLETING
        roster.note_subscription()
        self._sync_deadline = now + roster.rebalance_timeout_s
        self.wake_at(self._sync_deadline)
        self._unsynced.update(self.joining)
        for member_id, ticket in self.joining.items():
            self.start_session(member_id, now)
            self.effects.append(Reply(ticket, self.generation(member_id)))
        self.joining.clear()

    # -- sync phase -----------------------------------------------------------------------------

    def sync(
        self, ticket: Ticket, member_id: str, assignments: Mapping[str, bytes], now: float
    ) -> None:
        """A member of this generation asks for its assignment; the leader's are proposed."""
        self._unsynced.discard(member_id)
        members = self._roster.members
        if self.state is GroupState.STABLE:
            self.start_session(member_id, now)
            self.effects.append(Reply(ticket, self.assignment(members[member_id])))
            self._end_sync_phase_if_all_came()
            return
        self.park_sync(ticket, member_id)
        if member_id == self._roster.leader and self._proposal is None:
            proposed = {one: assignments.get(one, b"") for one in members}
            self._proposal = (self.store(proposed), proposed)

    def _answer_syncs(self, error: DisklessError | None, now: float) -> None:
        syncing, self._syncing = self._syncing, {}
        for member_id, ticket in syncing.items():
            self.start_session(member_id, now)
            member = self._roster.members[member_id]
            answer = SyncedGroup(error=error) if error else self.assignment(member)
            self.effects.append(Reply(ticket, answer))

    def _end_sync_phase_if_all_came(self) -> None:
        if self.state is GroupState.STABLE and not self._unsynced:
            self._sync_deadline = math.inf

    def _sync_time_is_up(self, now: float) -> None:
        """Throw out who did not ask for its assignment, and begin again."""
        self._sync_deadline = math.inf
        for member_id in sorted(self._unsynced):
            self._put_out(member_id, "did not sync in time")
        self.prepare(now)

    # -- store ----------------------------------------------------------------------------------

    def store(self, assignments: Mapping[str, bytes] | None = None) -> int:
        """Have the group stored as it is, or with these assignments; the serial to wait for."""
        self._serial += 1
        group = self._roster.snapshot(self.generation_id)
        if assignments is not None:
            members = (replace(m, assignment=assignments[m.member_id]) for m in group.members)
            group = replace(group, members=tuple(members))
        self.effects.append(Store(self._serial, group))
        return self._serial

    def stored(self, serial: int, error: DisklessError | None, now: float) -> None:
        """The store under `serial` has ended: the state is durable, or not known to be."""
        if self._proposal is None or self._proposal[0] != serial:
            return
        _, assignments = self._proposal
        self._proposal = None
        if error is not None:
            self._answer_syncs(error, now)
            self.prepare(now)
            return
        self._roster.assign(assignments)
        self.state = GroupState.STABLE
        self._answer_syncs(None, now)
        self._end_sync_phase_if_all_came()

    # -- members that change or go --------------------------------------------------------------

    def rename(self, old_id: str, new_id: str, error: DisklessError) -> None:
        """A static member has another id from now on; who waits under the old one is answered."""
        self.answer_parked(old_id, error)
        self._roster.rename(old_id, new_id)
        self._sessions.pop(old_id, None)
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)

    def remove(self, member_id: str, error: DisklessError, now: float) -> None:
        """The member is no more: go on without it."""
        self._remove(member_id, error)
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        """Members are gone."""
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_are_there(now)
        elif self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self.prepare(now)

    def _put_out(self, member_id: str, reason: str) -> None:
        self.effects.append(Removed(member_id, reason))
        self._remove(member_id, UnknownMember(reason))

    def _remove(self, member_id: str, error: DisklessError) -> None:
        """Take a member out, answering what it has parked; the caller sees to what follows."""
        self.answer_parked(member_id, error)
        self._roster.remove(member_id)
        self._sessions.pop(member_id, None)
        self._unsynced.discard(member_id)

    def forget_pending(self, member_ids: Sequence[str], now: float) -> None:
        """Nobody comes back with these ids any more: only a join phase waits for that."""
        for member_id in member_ids:
            del self.pending[member_id]
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_are_there(now)

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due by now, and find out when the next thing is."""
        sessions = self._sessions
        expired = [one for one in self._roster.members if sessions.get(one, math.inf) <= now]
        forgotten = [member_id for member_id, until in self.pending.items() if until <= now]
        for member_id in forgotten:
            del self.pending[member_id]
        if expired:
            for member_id in expired:
                self._put_out(member_id, "the session has expired")
            self._go_on(now)
        elif forgotten:
            self.forget_pending((), now)
        if self._join_deadline <= now:
            self._join_time_is_up(now)
        if self._sync_deadline <= now:
            self._sync_time_is_up(now)
        self.wakes_at = min(
            (self._join_deadline, self._sync_deadline, *sessions.values(), *self.pending.values())
        )

    def wake_at(self, moment: float) -> None:
        self.wakes_at = min(self.wakes_at, moment)

    def hear(self, member_id: str, now: float) -> None:
        """A sign of life; who has a request parked does not need one."""
        if member_id in self._sessions and member_id not in self.joining:
            self.start_session(member_id, now)

    def start_session(self, member_id: str, now: float) -> None:
        timeout_s = self._roster.members[member_id].session_timeout_ms / 1000
        self._sessions[member_id] = until = now + timeout_s
        self.wake_at(until)

    def close(self, error: DisklessError) -> None:
        """Answer everybody who waits, and wait for nobody any more."""
        for member_id in [*self._roster.members]:
            self.answer_parked(member_id, error)
        self._proposal = None
        self._roster.members.clear()
        self._sessions.clear()
        self.pending.clear()
        self.state = GroupState.DEAD
        self.wakes_at = math.inf
