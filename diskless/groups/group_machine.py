"""What classic and KIP-848 groups share: their effects, and the check of a member's identity.

Both have the same methods, and LiveGroups drives them without a look at their kind. A group is a
state machine without clock, I/O or waiting. Each event is a call with the monotonic time; what is
to be done is then in `effects`: answers to requests, which are known by a *ticket*, states to be
made durable, whose outcome is reported back through `stored`, and assignments to be worked out,
whose result comes back through `assigned`.
"""

from collections.abc import Container, Mapping
from typing import NamedTuple

from diskless.groups.assignors.assignment import Targets
from diskless.groups.classic_state import StoredClassicGroup
from diskless.groups.consumer_state import StoredConsumerGroup
from diskless.groups.errors import FencedInstanceId, UnknownMember
from diskless.groups.requests import ConsumerHeartbeatAnswer, JoinedGroup, SyncedGroup
from diskless.loop.long_work import Steps
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
