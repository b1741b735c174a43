"""The interface that classic and KIP-848 groups share towards those who drive them.

A group is a state machine without clock, I/O or waiting. Each event is a call with the monotonic
time; what is to be done is then in `effects`: answers to requests, which are known by a *ticket*,
states to be made durable, whose outcome is reported back through `stored`, and assignments to be
worked out, whose result comes back through `assigned`.
"""

from collections.abc import Container, Mapping
from typing import NamedTuple, Protocol

from diskless.groups.assignors.assignment import Targets
from diskless.groups.classic_state import StoredClassicGroup
from diskless.groups.consumer_state import StoredConsumerGroup
from diskless.groups.errors import FencedInstanceId, UnknownMember
from diskless.groups.requests import (
    ConsumerHeartbeatAnswer,
    JoinedGroup,
    JoinGroup,
    SyncedGroup,
    SyncGroup,
)
from diskless.loop.long_work import Steps
from diskless.ports import ClientInfo
from metadata.records.groups import GroupKind
from wal.errors import DisklessError

Ticket = object
"""What a request is known by; the group only hands it back."""


class Confirmed(NamedTuple):
    """What was asked to be confirmed is durable, or not known to be."""

    error: DisklessError | None = None


GroupAnswer = JoinedGroup | SyncedGroup | ConsumerHeartbeatAnswer | Confirmed


class Reply(NamedTuple):
    """Effect: a request is answered."""

    ticket: Ticket
    answer: GroupAnswer


class Store(NamedTuple):
    """Effect: make this durable, after all that was to be stored before, then call `stored`."""

    serial: int
    group: StoredClassicGroup | StoredConsumerGroup


class Assign(NamedTuple):
    """Effect: take these steps, then call `assigned` with what they return; one at a time."""

    serial: int
    steps: Steps[Targets]


class Removed(NamedTuple):
    """Effect: operators hear that the group has put a member out that did not leave by itself."""

    member_id: str
    reason: str


Effect = Reply | Store | Assign | Removed


class GroupMachine(Protocol):
    """One group and everybody in it, of either kind."""

    @property
    def effects(self) -> list[Effect]:
        """The work to do, in order; the driver takes it out after every event."""
        ...

    @property
    def group_id(self) -> str: ...

    @property
    def protocol_type(self) -> str: ...

    @property
    def wakes_at(self) -> float:
        """When to call `tick` at latest; may be early."""
        ...

    @property
    def kind(self) -> GroupKind: ...

    @property
    def generation_id(self) -> int:
        """It only grows; the group epoch of a KIP-848 group."""
        ...

    @property
    def state_name(self) -> str:
        """The state's name as Kafka's tools show it."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in it."""
        ...

    @property
    def is_unused(self) -> bool:
        """Nobody is in it and nobody is about to come."""
        ...

    @property
    def is_closed(self) -> bool: ...

    def join(
        self, ticket: Ticket, request: JoinGroup, client: ClientInfo, now: float, *, new_id: str
    ) -> None:
        """JoinGroup; `new_id` is the member id for a client that has none."""
        ...

    def sync(self, ticket: Ticket, request: SyncGroup, now: float) -> None:
        """SyncGroup."""
        ...

    def heartbeat(
        self, generation_id: int, member_id: str, instance_id: str | None, now: float
    ) -> DisklessError | None:
        """Heartbeat, of a member that speaks the classic protocol."""
        ...

    def leave(self, member_id: str, instance_id: str | None, now: float) -> DisklessError | None:
        """LeaveGroup, for one member; a static one may be named by its instance id alone."""
        ...

    def confirm(self, ticket: Ticket) -> None:
        """Answer when no answer given until now can be forgotten."""
        ...

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
        ...

    def check_fetch(self, member_id: str, member_epoch: int) -> DisklessError | None:
        """Whether a member that says who it is may ask for offsets now."""
        ...

    def may_delete_offsets(self) -> bool:
        """Whether it is known what the members read."""
        ...

    def reads(self, topic: str) -> bool:
        """Whether members may be reading the topic; in doubt they are."""
        ...

    def keeps_offsets(self, topic: str) -> bool:
        """Whether old offsets of the topic must not be forgotten now."""
        ...

    def tick(self, now: float) -> None:
        """Do what is due by now, and find out when the next thing is."""
        ...

    def stored(self, serial: int, error: DisklessError | None, now: float) -> None:
        """The store under `serial` has ended: the state is durable, or not known to be."""
        ...

    def assigned(self, serial: int, targets: Targets, now: float) -> None:
        """Takes in the result of an `Assign`."""
        ...

    def close(self, error: DisklessError) -> None:
        """The group ends here: answer everybody who waits."""
        ...


def misidentified(
    member_id: str, instance_id: str | None, members: Container[str], instances: Mapping[str, str]
) -> DisklessError | None:
    """UnknownMember or FencedInstanceId, unless this is the member it says it is.

    `instances` has member ids by instance id.
    """
    if instance_id is not None:
        holder = instances.get(instance_id)
        if holder is None:
            return UnknownMember(f"nobody has the instance id {instance_id}")
        if holder != member_id:
            return FencedInstanceId(f"{holder} has the instance id {instance_id}")
    if member_id not in members:
        return UnknownMember(f"no member {member_id!r}")
    return None
