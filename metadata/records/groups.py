"""Metadata records about consumer groups: committed offsets, and what a group must not forget.

They are framed and encoded like all metadata records (metadata/records/records.py) and applied by
metadata/apply/apply_groups.py. They are in the log of the metadata partition that coordinates the
group (`metadata.rules.groups.group_coordinator`).

    1020 OffsetsCommitted  GroupId string, Offsets []
                             TopicId uuid, PartitionIndex int32, Offset int64, LeaderEpoch int32,
                             CommitTime int64, ExpireTime int64, Metadata string
    1021 OffsetsDeleted    GroupId string, CommittedUntil int64, Partitions []
                             TopicId uuid, PartitionIndex int32
    1022 GroupStored       GroupId string, Kind int8, UpdatedAt int64, State bytes
    1023 GroupDeleted      GroupId string

Encoding raises ValueError or struct.error for a number that its field cannot hold; decoding raises
nothing but CorruptLog.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple

from wal.coordinates import TopicIdPartition
from wal.wire.layouts import CompactBytes, Int8, Int32, array, layout

NO_EXPIRY: Final = -1
"""`expire_ms` of an offset that goes when the group's retention says so."""

NO_LEADER_EPOCH: Final = -1

WHENEVER_COMMITTED: Final = 2**63 - 1
"""`committed_until_ms` of a deletion that asks for no time."""


class GroupKind(IntEnum):
    """What coordinates a group; decides how its state is read."""

    OFFSETS_ONLY = 0
    """Nobody stored anything of the group: it only has offsets."""
    CLASSIC = 1
    CONSUMER = 2


class CommittedOffset(NamedTuple):
    """One committed offset of a group, all of it as it was when it was committed."""

    partition: TopicIdPartition
    offset: int
    commit_ms: int
    leader_epoch: Int32 = NO_LEADER_EPOCH
    metadata: str = ""
    expire_ms: int = NO_EXPIRY
    """When it expires, if the client itself said so."""


OFFSET_LAYOUT: Final = layout(
    CommittedOffset, "partition", "offset", "leader_epoch", "commit_ms", "expire_ms", "metadata"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommittedRecord:
    """The group's offsets of these partitions; each replaces what was committed before."""

    group_id: str
    offsets: Annotated[Sequence[CommittedOffset], array(OFFSET_LAYOUT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsDeletedRecord:
    """The group has no offsets of these partitions any more.

    Except for what was committed after `committed_until_ms`: the worker that lets offsets expire
    read them some time before, and a commit may have come in between. What is not there is passed
    over. A group that has nothing but offsets is gone with the last of them. What waits for the end
    of a transaction goes by the same rule.
    """

    group_id: str
    committed_until_ms: int = WHENEVER_COMMITTED
    partitions: Sequence[TopicIdPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStoredRecord:
    """All that a group's coordinator has to remember of it; replaces what was stored before."""

    group_id: str
    kind: Int8
    """A GroupKind other than OFFSETS_ONLY, or one of a newer release."""
    updated_ms: int
    state: CompactBytes
    """The coordinator's own format, with its own version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeletedRecord:
    """The group and its offsets are gone; nothing happens when there is none."""

    group_id: str


GroupRecord = OffsetsCommittedRecord | OffsetsDeletedRecord | GroupStoredRecord | GroupDeletedRecord

GROUP_RECORDS: Final[Mapping[int, type[Any]]] = {
    1020: OffsetsCommittedRecord,
    1021: OffsetsDeletedRecord,
    1022: GroupStoredRecord,
    1023: GroupDeletedRecord,
}

encode_offset: Final = OFFSET_LAYOUT.write
"""One entry of OffsetsCommitted. Raises: struct.error, ValueError (it does not fit)."""
