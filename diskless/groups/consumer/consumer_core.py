"""Holds what all members of a KIP-848 group share, whichever protocol they speak.

    a member comes, goes or subscribes otherwise ─┐
    topics come, go or grow ──────────────────────┴▶ group epoch + 1
                                                          │ the next member that is heard of
                                                          ▼
                                     assignor: targets for all, assignment epoch = group epoch
                                                          │ each member, when it is heard of
                                                          ▼
                                     reconciliation: one step towards its target

Nothing is told that could be forgotten: an answer waits until all that happened before it is
durable. One state is being stored at a time, with everything that happened until it was taken; what
happens meanwhile goes into the next one. When a store fails, the requests it was for are refused,
and what they changed stays: the next event stores it. When it never can be stored, as of a group
that has grown too large, everybody who waits is refused, and the group is what it was when it was
stored last. What it knew of topics is taken back too, so it looks at them again a little later.

An assignment is worked out in steps, outside, from what is so when it begins. A member that needs
one is *postponed* until it is there, and so is one that has something to say; members that only say
that they are alive are answered at once, and stay as they are. They take no step, because what they
would be given now might be asked back at once, before they have said that they have it; and they
are told nothing that they do not know, so their answers wait for no store. What changes meanwhile
is stored together with the assignment, and is a reason for the next one: this one holds until then,
so that the group gets on however often something changes. At most one is worked out at a time.

While a state is being stored no new assignment is begun for heartbeats: nobody could be told of it
yet, and more members may come until then. They too are postponed, and then share it. What a member
says is good until it says something else, so its next request takes the place of one that is
postponed.

Timers cost nothing while nothing happens, as in a classic group: being heard of only moves the
member's deadline on; `wakes_at` is a lower bound that is made exact when it comes.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from diskless.groups.assignors.assignment import (
    Assignor,
    MemberSubscription,
    Targets,
    TopicPartitions,
)
from diskless.groups.consumer.reconciliation import reconciled
from diskless.groups.consumer.roster import Roster
from diskless.groups.consumer.subscribed_topics import SubscribedTopics
from diskless.groups.consumer_state import ConsumerMember, MemberState, StoredConsumerGroup
from diskless.groups.errors import GroupCoordinatorUnavailable, UnknownMember
from diskless.groups.group_machine import Assign, Effect, Removed, Reply, Store
from diskless.groups.settings import GroupSettings
from wal.errors import AppendTooLarge, DisklessError, Rejected

_STORE_RETRY_S: Final = 1.0
"""What could not be stored is stored with the next event, or then."""

_NO_REVISION: Final = -1

LOOK_AGAIN_S: Final = 5.0
"""How long after a refused state the group looks at its topics again; about one heartbeat. At once
would refuse every heartbeat of a group whose topics have become too many to be stored."""


class _Postponed(NamedTuple):
    answer: Reply
    """Without anything in it yet."""
    proceed: Callable[[float], None]


class _Assigning(NamedTuple):
    serial: int
    bumps: int
    """Of the roster, when it began."""


class ConsumerCore:
    """Members, their assignment, their deadlines, and what is durable of it."""

    def __init__(
        self,
        roster: Roster,
        subscribed: SubscribedTopics,
        *,
        settings: GroupSettings,
        assignors: Mapping[str, Assignor],
    ) -> None:
        self.roster: Final = roster
        self.subscribed: Final = subscribed
        self.effects: Final[list[Effect]] = []
        self.wakes_at = math.inf
        self._settings = settings
        self._assignors = assignors
        self._sessions: dict[str, float] = {}
        """Until when a member must be heard of."""
        self._deadlines: dict[str, float] = {}
        """Until when a member must have done what it was told to."""
        self._serial = 0
        self._storing: tuple[int, int, StoredConsumerGroup] | None = None
        """Serial, revision and content of what is being stored."""
        self._durable = roster.snapshot()
        self._durable_revision = roster.revision
        self._may_be_other = False
        """Whether a later state may be what is stored, because a store had no certain outcome."""
        self._waiting: list[tuple[int, Reply]] = []
        """Answers, with the revision they must not precede; in order."""
        self._postponed: dict[str, _Postponed] = {}
        """Requests that need an assignment, by member."""
        self._assigning: _Assigning | None = None
        self._looks_again_at = math.inf
        """When to look at the topics again, because what came of the last look was taken back."""

    # -- assignment -----------------------------------------------------------------------------

    def advance(self, member_id: str, owned: TopicPartitions | None, now: float) -> ConsumerMember:
        """Let a member that says what it has go one step on; the member as it is then."""
        roster = self.roster
        before = roster[member_id]
        member = reconciled(
            before,
            assignment_epoch=roster.assignment_epoch,
            owned=owned,
            free_of=partial(roster.free, member_id),
        )
        if member is not before:
            roster.put(member)
            if member.state is MemberState.UNREVOKED:
                self.give_time(member, now)
            else:
                self.has_done(member_id)
        return member

    def look_at_topics(self) -> None:
        """Find out whether there are others now; costs nothing when there are not."""
        if not self.subscribed.is_current:
            self._count_topics()

    def _count_topics(self) -> None:
        """See what members subscribe to; another assignment if that is something else now."""
        counts = self.subscribed.counts(self.roster.members())
        if counts != self.roster.partition_counts:
            self.roster.know_topics(counts)

    @property
    def assignor_name(self) -> str:
        """The one that most members want; of equals the one configured first."""
        votes = Counter(
            member.assignor for member in self.roster.members() if member.assignor is not None
        )
        names = self._settings.assignors
        return max(names, key=lambda name: (votes[name], -names.index(name)))

    def _begin_assignment(self) -> None:
        """Have the next assignment worked out, unless one is being worked out; not beside a store.

        So what it is worked out from is not taken back meanwhile.
        """
        assert self._storing is None
        if self._assigning is not None:
            return
        self._count_topics()
        roster, subscribed = self.roster, self.subscribed
        members = roster.members()
        steps = self._assignors[self.assignor_name].assign(
            {
                one.member_id: MemberSubscription(one.instance_id, one.rack_id, subscribed.ids(one))
                for one in members
            },
            roster.partition_counts,
            {one.member_id: one.target for one in members},
            subscribed.topic_names,
        )
        self._serial += 1
        self._assigning = _Assigning(self._serial, roster.bumps)
        self.effects.append(Assign(self._serial, steps))

    def assigned(self, serial: int, targets: Targets, now: float) -> None:
        """The assignment that was begun under `serial` is worked out."""
        if self._assigning is None or self._assigning.serial != serial:
            return
        bumps, self._assigning = self._assigning.bumps, None
        roster = self.roster
        roster.assign(targets)
        members = {member.member_id for member in roster.members()}
        if roster.bumps != bumps or members != targets.keys():
            roster.bump()
        self._proceed(now, targets.keys())
        if not self._waiting:
            self._begin_if_wanted()
        self.flush()

    def _proceed(self, now: float, assigned: Container[str] = ()) -> None:
        """Go on with what was postponed: all of it, or that of members that are `assigned`."""
        postponed, self._postponed = self._postponed, {}
        is_outdated = self.roster.is_outdated
        for member_id, one in postponed.items():
            if is_outdated and member_id not in assigned:
                self._postponed[member_id] = one
            else:
                one.proceed(now)

    def _begin_if_wanted(self) -> None:
        """Begin an assignment for those that are postponed, unless a store is under way."""
        if self._postponed and self._storing is None:
            self._begin_assignment()

    def must_wait(self) -> bool:
        """Whether a request needs another assignment, which is begun if it can be."""
        self.look_at_topics()
        if self.roster.is_outdated and self._storing is None:
            self._begin_assignment()
        return self.roster.is_outdated

    def postpone(
        self, member_id: str, empty_answer: Reply, proceed: Callable[[float], None]
    ) -> None:
        """Go on with this member's request when there is an assignment."""
        self._postponed[member_id] = _Postponed(empty_answer, proceed)

    def refuse_postponed(self, member_id: str, error: DisklessError) -> None:
        """Refuses what a member said earlier: it does not count any more."""
        postponed = self._postponed.pop(member_id, None)
        if postponed is not None:
            self.effects.append(refused(postponed.answer, error))

    @property
    def is_assigning(self) -> bool:
        """Whether an assignment is being worked out."""
        return self._assigning is not None

    # -- members --------------------------------------------------------------------------------

    @property
    def has_place(self) -> bool:
        """Whether one more may come."""
        return len(self.roster) < self._settings.consumer_max_size

    def replaced(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member under another id; it has nothing, but a right to what `old` was given."""
        kept = {
            topic_id: partitions & old.target[topic_id]
            for topic_id, partitions in old.assigned.items()
            if topic_id in old.target
        }
        self.forget(old.member_id)
        self.roster.remove(old.member_id)
        if member_id in self.roster:
            self.remove(member_id)
        return replace(
            started_over(old),
            member_id=member_id,
            assigned={topic_id: indexes for topic_id, indexes in kept.items() if indexes},
        )

    def remove(self, member_id: str) -> None:
        """A member is no more: what it had is free, and is to be assigned to others."""
        self.forget(member_id)
        self.roster.remove(member_id)
        self.roster.bump()

    def forget(self, member_id: str) -> None:
        """Wait for nothing from this member any more."""
        self._sessions.pop(member_id, None)
        self._deadlines.pop(member_id, None)
        self.refuse_postponed(member_id, UnknownMember("the member has been removed"))

    # -- time -----------------------------------------------------------------------------------

    def hear(self, member: ConsumerMember, now: float) -> None:
        """The member is alive."""
        classic = member.classic
        timeout_ms = (
            self._settings.consumer_session_timeout_ms
            if classic is None
            else classic.session_timeout_ms
        )
        self._sessions[member.member_id] = until = now + timeout_ms / 1000
        self.wakes_at = min(self.wakes_at, until)

    def give_time(self, member: ConsumerMember, now: float) -> None:
        """The member was told to do something: it has as long as it asked for."""
        self._deadlines[member.member_id] = until = now + member.rebalance_timeout_ms / 1000
        self.wakes_at = min(self.wakes_at, until)

    def is_due(self, member_id: str) -> bool:
        """Whether the member was told to do something."""
        return member_id in self._deadlines

    def has_done(self, member_id: str) -> None:
        """The member has done what it was told to."""
        self._deadlines.pop(member_id, None)

    def tick(self, now: float) -> None:
        """Remove who was not heard of in time, or has not done in time what it was told to."""
        late = {
            member_id: reason
            for times, reason in (
                (self._deadlines, "did not give up its partitions in time"),
                (self._sessions, "the session has expired"),
            )
            for member_id, until in times.items()
            if until <= now
        }
        for member_id in sorted(late):
            self.effects.append(Removed(member_id, late[member_id]))
            self.remove(member_id)
        if self._looks_again_at <= now:
            self._looks_again_at = math.inf
            self.subscribed.look_again()
        self.wakes_at = min(
            (self._looks_again_at, *self._sessions.values(), *self._deadlines.values())
        )

    # -- what is durable ------------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        """Whether nothing of what is so can be forgotten."""
        return self._durable_revision == self.roster.revision

    def answer(self, effect: Reply) -> None:
        """Answer when nothing that happened until now can be forgotten."""
        if self.is_durable:
            self.effects.append(effect)
        else:
            self._waiting.append((self.roster.revision, effect))

    def flush(self) -> None:
        """Have stored what has changed, unless a store is under way; the end of every event.

        What changes while an assignment is worked out is stored together with it.
        """
        is_busy = self._storing is not None or self._assigning is not None
        if not is_busy and not self.is_durable:
            self._serial += 1
            snapshot = self.roster.snapshot()
            self._storing = self._serial, self.roster.revision, snapshot
            self.effects.append(Store(self._serial, snapshot))

    def stored(self, serial: int, error: DisklessError | None, now: float) -> None:
        """The store under `serial` has ended: the state is durable, or not known to be."""
        if self._storing is None or self._storing[0] != serial:
            return
        _, revision, snapshot = self._storing
        self._storing = None
        if error is None:
            self._durable, self._durable_revision = snapshot, revision
            self._may_be_other = False
        elif isinstance(error, Rejected):
            self._refuse_all_postponed(unavailable(error))
            revision = self._take_back(now)
        else:
            self._may_be_other = True
            self.wakes_at = min(self.wakes_at, now + _STORE_RETRY_S)
        answered = [effect for needed, effect in self._waiting if needed <= revision]
        self._waiting = [one for one in self._waiting if one[0] > revision]
        if isinstance(error, AppendTooLarge):
            # Some member made it too large: no other one gives up because of it.
            error = unavailable(error)
        self.effects.extend(
            answered if error is None else [refused(one, error) for one in answered]
        )
        self._proceed(now)
        self._begin_if_wanted()
        if self._waiting or error is None:
            self.flush()

    def _take_back(self, now: float) -> int:
        """Go back to the durable state: the rest never becomes durable. Returns its revision."""
        roster = self.roster
        roster.revert(self._durable)
        taken_back_at = roster.revision
        if self._may_be_other:
            # Nobody was told what that state says, and somebody else would begin with it.
            self._durable_revision = _NO_REVISION
            self.wakes_at = min(self.wakes_at, now + _STORE_RETRY_S)
        else:
            self._durable_revision = taken_back_at
        self._looks_again_at = now + LOOK_AGAIN_S
        self.wakes_at = min(self.wakes_at, self._looks_again_at)
        for member_id in (*self._sessions, *self._deadlines):
            if member_id not in roster:
                self.forget(member_id)
        for member in roster.members():
            if member.member_id not in self._sessions:
                self.hear(member, now)
            if member.state is MemberState.UNREVOKED:
                if not self.is_due(member.member_id):
                    self.give_time(member, now)
            elif member.classic is None:
                # What it was told to do has been taken back. One that speaks the classic protocol
                # may have been told to join again, and is heard of when it does.
                self.has_done(member.member_id)
        return taken_back_at

    def _refuse_all_postponed(self, error: DisklessError) -> None:
        for member_id in [*self._postponed]:
            self.refuse_postponed(member_id, error)

    def close(self, error: DisklessError) -> None:
        """Refuse all that wait."""
        waiting, self._waiting = self._waiting, []
        self.effects.extend(refused(effect, error) for _, effect in waiting)
        self._refuse_all_postponed(error)
        self._storing = self._assigning = None
        self._sessions.clear()
        self._deadlines.clear()
        self._looks_again_at = self.wakes_at = math.inf


def started_over(member: ConsumerMember) -> ConsumerMember:
    """A member that says that it has nothing, and begins anew."""
    return replace(
        member,
        member_epoch=0,
        previous_epoch=0,
        state=MemberState.STABLE,
        assigned={},
        revoking={},
        classic=None,
    )


def unavailable(error: DisklessError) -> DisklessError:
    """Returns the error for members that are not to blame for a failed store."""
    return GroupCoordinatorUnavailable(f"the group cannot be stored: {error}")


def refused(effect: Reply, error: DisklessError) -> Reply:
    """An error instead of the answer."""
    return effect._replace(answer=type(effect.answer)(error=error))
