"""Knows who is in a classic group, and what its members agree on.

Invariants:
- An instance id belongs to one member.
- Members have a protocol in common: `shares_protocol` says who may come.
- While there are members, one of them leads.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from diskless.groups.classic.subscription import CONSUMER_PROTOCOL, all_subscribed_topics
from diskless.groups.classic_state import StoredClassicGroup, StoredMember
from diskless.groups.group_machine import misidentified
from diskless.groups.requests import GroupProtocol, JoinGroup
from diskless.ports import ClientInfo
from wal.errors import DisklessError


class ClassicRoster:
    """The members of one group, as values that are replaced."""

    def __init__(self, protocol_type: str = "") -> None:
        self.members: Final[dict[str, StoredMember]] = {}
        """By id, in the order in which they came; only the methods here change it."""
        self.protocol_type = protocol_type
        self.protocol_name: str | None = None
        """The one of this generation."""
        self.leader: str | None = None
        self._instances: dict[str, str] = {}
        """Member id by instance id."""
        self._supported: Counter[str] = Counter()
        """How many members know a protocol."""
        self._subscribed: frozenset[str] | None = frozenset()

    def snapshot(self, generation_id: int) -> StoredClassicGroup:
        """The group as it is."""
        return StoredClassicGroup(
            protocol_type=self.protocol_type,
            generation_id=generation_id,
            protocol_name=self.protocol_name,
            leader=self.leader,
            members=tuple(self.members.values()),
        )

    # -- who it is ------------------------------------------------------------------------------

    def check(self, member_id: str, instance_id: str | None) -> DisklessError | None:
        """UnknownMember or FencedInstanceId, unless this is the member it says it is."""
        return misidentified(member_id, instance_id, self.members, self._instances)

    def id_of(self, member_id: str, instance_id: str | None) -> str:
        """The id of a member that may be named by its instance id alone; empty: there is none."""
        return member_id or self._instances.get(instance_id or "", "")

    # -- coming and going -----------------------------------------------------------------------

    def add(self, member: StoredMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._supported.update(protocol.name for protocol in member.protocols)
        if self.leader is None:
            self.leader = member.member_id

    def add_new(self, member_id: str, request: JoinGroup, client: ClientInfo) -> None:
        """A member that has not been here before; the first one says what the group is about."""
        if not self.members:
            self.protocol_type = request.protocol_type
        self.add(
            StoredMember(
                member_id=member_id,
                instance_id=request.instance_id,
                client_id=client.client_id,
                client_host=client.host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocols=distinct(request.protocols),
                assignment=b"",
            )
        )

    def update(self, member_id: str, request: JoinGroup, client: ClientInfo) -> None:
        """Takes in what the member said when it joined again."""
        member = self.members[member_id]
        protocols = distinct(request.protocols)
        self._supported.subtract(protocol.name for protocol in member.protocols)
        self._supported.update(protocol.name for protocol in protocols)
        self.members[member_id] = replace(
            member,
            client_id=client.client_id,
            client_host=client.host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=protocols,
        )
        if len(self.members) == 1:
            self.protocol_type = request.protocol_type

    def rename(self, old_id: str, new_id: str) -> None:
        """Give a static member another id."""
        member = self.members.pop(old_id)
        assert member.instance_id is not None
        self.members[new_id] = replace(member, member_id=new_id)
        self._instances[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._supported.subtract(protocol.name for protocol in member.protocols)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """By member id, of all members."""
        for member_id, assignment in assignments.items():
            self.members[member_id] = replace(self.members[member_id], assignment=assignment)

    # -- what they agree on ---------------------------------------------------------------------

    def shares_protocol(self, request: JoinGroup) -> bool:
        """Whether the joining member has a protocol that all others have."""
        if not request.protocol_type or not request.protocols:
            return False
        own = self.members.get(self.id_of(request.member_id, request.instance_id))
        others = len(self.members) - (own is not None)
        if not others:
            return True
        own_names = {protocol.name for protocol in own.protocols} if own is not None else set()
        return request.protocol_type == self.protocol_type and any(
            self._supported[protocol.name] - (protocol.name in own_names) == others
            for protocol in request.protocols
        )

    def voted_protocol(self) -> str:
        """Returns the protocol that all have and most want; the first named wins a tie."""
        everybody = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[
                next(p.name for p in member.protocols if self._supported[p.name] == everybody)
            ] += 1
        return votes.most_common(1)[0][0]

    def said(self, member: StoredMember) -> bytes:
        """Returns the member's metadata for the protocol of this generation."""
        return next((p.metadata for p in member.protocols if p.name == self.protocol_name), b"")

    def note_subscription(self) -> None:
        """Notes what members read, once the protocol of the generation is chosen."""
        if self.protocol_type == CONSUMER_PROTOCOL:
            self._subscribed = all_subscribed_topics(map(self.said, self.members.values()))
        else:
            self._subscribed = None if self.members else frozenset()

    def reads(self, topic: str) -> bool:
        """Whether members may be reading the topic; in doubt they are."""
        return bool(self.members) and (self._subscribed is None or topic in self._subscribed)

    @property
    def rebalance_timeout_s(self) -> float:
        """The longest that any member asked for."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0) / 1000


def distinct(protocols: Sequence[GroupProtocol]) -> tuple[GroupProtocol, ...]:
    """The first of each name, in order: a name counts once in a vote."""
    first: dict[str, GroupProtocol] = {}
    for protocol in protocols:
        first.setdefault(protocol.name, protocol)
    return tuple(first.values())
