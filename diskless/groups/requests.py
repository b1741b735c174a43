"""The requests and answers of a group coordinator; `GroupRouter` answers them.

The handlers in `diskless/api/groups/` decode, call it, and encode. The state machines of both
protocols take the same values. With an `error`, the other fields of an answer say nothing unless
they tell that they do.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from wal.errors import DisklessError
from wal.wire.layouts import SizedBytes


class GroupProtocol(NamedTuple):
    """A way of assigning that a member knows, with what it has to say for it; opaque to brokers."""

    name: str
    metadata: SizedBytes


class JoinGroup(NamedTuple):
    """A member wants to be in the next generation of its group."""

    group_id: str
    member_id: str
    """Empty: it has none yet."""
    instance_id: str | None
    """Of a static member; the same over restarts."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[GroupProtocol]
    """Most wanted first."""
    needs_member_id: bool
    """Whether it must come back with an id before it is let in (JoinGroup ≥ 4)."""
    may_skip_assignment: bool
    """Whether a leader understands that it has nothing to assign (JoinGroup ≥ 9)."""
    reason: str


class JoinedMember(NamedTuple):
    """One member, as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinedGroup(NamedTuple):
    """The answer to JoinGroup; with an error only `member_id` may say something."""

    error: DisklessError | None = None
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    member_id: str = ""
    members: Sequence[JoinedMember] = ()
    """Only the leader gets them."""
    skip_assignment: bool = False


class SyncGroup(NamedTuple):
    """A member asks what is assigned to it; the leader says what is assigned to all."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    """None: does not say."""
    protocol_name: str | None
    assignments: Mapping[str, bytes]
    """By member id; empty but for the leader."""


class SyncedGroup(NamedTuple):
    """The answer to SyncGroup."""

    error: DisklessError | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class GroupHeartbeat(NamedTuple):
    """A classic member is alive."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None


class LeavingMember(NamedTuple):
    """A static member may be named by its instance id alone; then `member_id` is empty."""

    member_id: str
    instance_id: str | None
    reason: str


RETENTION_AS_CONFIGURED: Final = -1


class CommitOffset(NamedTuple):
    """How far a group has read one partition: the next offset to be read."""

    topic_name: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class OffsetTransaction(NamedTuple):
    """The transaction with whose end offsets are committed."""

    producer_id: int
    producer_epoch: int
    number: int
    """What its coordinator counts it as."""


class CommitOffsets(NamedTuple):
    """Offsets of one group, committed by a member or, with generation -1, by anybody."""

    group_id: str
    generation_id: int
    """The member epoch, if the member is one of a KIP-848 group."""
    member_id: str
    instance_id: str | None
    retention_ms: int
    """How long the offsets stay, or RETENTION_AS_CONFIGURED; any other below 0: they go at once."""
    knows_member_epochs: bool
    """Whether this version can speak for a member of a KIP-848 group (OffsetCommit ≥ 9)."""
    offsets: Sequence[CommitOffset]
    transaction: OffsetTransaction | None = None
    """None: they are committed at once."""


class FetchOffsets(NamedTuple):
    """What a group has committed is asked for."""

    group_id: str
    member_id: str | None
    """Set by members of KIP-848 groups, with `member_epoch`."""
    member_epoch: int
    partitions: Sequence[tuple[str, int]] | None
    """(topic, partition). None asks for all that were committed."""
    require_stable: bool
    """Where a transaction may still commit another offset, none is wanted."""


class FetchedOffset(NamedTuple):
    """Nothing committed: offset -1."""

    topic_name: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: DisklessError | None = None


class FetchedOffsets(NamedTuple):
    """The offsets of one group."""

    error: DisklessError | None = None
    offsets: Sequence[FetchedOffset] = ()


class GroupMember(NamedTuple):
    """A member, as administrators see it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group, as administrators see it. `error` GroupIdNotFound: there is none of this name."""

    group_id: str
    error: DisklessError | None = None
    state: str = "Dead"
    protocol_type: str = ""
    protocol_name: str = ""
    members: Sequence[GroupMember] = ()


class ListedGroup(NamedTuple):
    """One line of ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str
    """"classic" or "consumer"."""


class ConsumerHeartbeat(NamedTuple):
    """A member of a KIP-848 group is alive, and says what has changed since it last said so.

    None, or -1 for the timeout: as before.
    """

    group_id: str
    member_id: str
    """Empty in version 0 only, of a member that joins and has none yet."""
    member_epoch: int
    """What it was last told; JOIN_EPOCH and so on of `groups.consumer.consumer_requests`."""
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topic_names: Sequence[str] | None
    topic_pattern: str | None
    """Empty: none."""
    assignor: str | None
    owned: Mapping[UUID, frozenset[int]] | None
    """The partitions it has, by topic id."""
    makes_own_id: bool
    """Whether members of this version come with an id of their own making (version ≥ 1)."""
    described: Callable[[frozenset[str]], frozenset[str]] = frozenset
    """Those of some topics that the member may know of; to be asked about what patterns match."""


class ConsumerHeartbeatAnswer(NamedTuple):
    """The answer to ConsumerHeartbeat."""

    error: DisklessError | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Mapping[UUID, frozenset[int]] | None = None
    """What the member may have. None when that has not changed."""


class AssignedTopic(NamedTuple):
    """Partitions of one topic, as administrators see them."""

    topic_id: UUID
    topic_name: str
    partitions: Sequence[int]


class ConsumerGroupMember(NamedTuple):
    """A member of a KIP-848 group, as administrators see it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: Sequence[str]
    topic_pattern: str | None
    assigned: Sequence[AssignedTopic]
    target: Sequence[AssignedTopic]
    is_classic: bool
    """It speaks the classic protocol."""


class DescribedConsumerGroup(NamedTuple):
    """A KIP-848 group, as administrators see it; `error` GroupIdNotFound: there is none."""

    group_id: str
    error: DisklessError | None = None
    state: str = "Dead"
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: Sequence[ConsumerGroupMember] = ()
