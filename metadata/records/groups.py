"""Metadata records about consumer groups: committed offsets, and what a group must not forget.

They are framed and encoded like all metadata records (metadata/records/records.py) and applied by
metadata/apply/apply_groups.py. They are in the log of the metadata partition that coordinates the group
(`metadata.rules.groups.group_coordinator`).

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

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from wal.coordinates import TopicIdPartition
from wal.wire.fields import (
    INT8,
    INT64,
    NO_TAGS,
    FieldReader,
    compact_string,
    uvarint,
)

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
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    expire_ms: int = NO_EXPIRY
    """When it expires, if the client itself said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommittedRecord:
    """The group's offsets of these partitions; each replaces what was committed before."""

    group_id: str
    offsets: Sequence[CommittedOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsDeletedRecord:
    """The group has no offsets of these partitions any more.

    Except for what was committed after `committed_until_ms`: whoever lets offsets expire read them
    some time before, and a commit may have come in between. What is not there is passed over. A
    group that has nothing but offsets is gone with the last of them.
    """

    group_id: str
    partitions: Sequence[TopicIdPartition]
    committed_until_ms: int = WHENEVER_COMMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStoredRecord:
    """All that a group's coordinator has to remember of it; replaces what was stored before."""

    group_id: str
    kind: int
    """A GroupKind other than OFFSETS_ONLY, or one of a newer release."""
    state: bytes
    """The coordinator's own format, with its own version."""
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeletedRecord:
    """The group and its offsets are gone; nothing happens when there is none."""

    group_id: str


GroupRecord = OffsetsCommittedRecord | OffsetsDeletedRecord | GroupStoredRecord | GroupDeletedRecord

_OFFSET: Final = struct.Struct(">16siqiqq")
_PARTITION: Final = struct.Struct(">16si")
_OFFSET_BYTES_MIN: Final = _OFFSET.size + 2


def encode_offset(offset: CommittedOffset) -> bytes:
    """One entry of OffsetsCommitted. Raises: struct.error, ValueError (it does not fit)."""
    partition, value, commit_ms, leader_epoch, metadata, expire_ms = offset
    fixed = _OFFSET.pack(
        partition.topic_id.bytes, partition.partition, value, leader_epoch, commit_ms, expire_ms
    )
    return fixed + compact_string(metadata) + NO_TAGS


def _decode_offset(reader: FieldReader) -> CommittedOffset:
    topic_id, partition, value, leader_epoch, commit_ms, expire_ms = _OFFSET.unpack_from(
        reader.data, reader.skip(_OFFSET.size)
    )
    offset = CommittedOffset(
        partition=TopicIdPartition(UUID(bytes=topic_id), partition),
        offset=value,
        commit_ms=commit_ms,
        leader_epoch=leader_epoch,
        metadata=reader.compact_string(),
        expire_ms=expire_ms,
    )
    reader.skip_tags()
    return offset


def _encode_offsets_committed(record: OffsetsCommittedRecord) -> bytes:
    return b"".join(
        (
            compact_string(record.group_id),
            uvarint(len(record.offsets) + 1),
            *map(encode_offset, record.offsets),
            NO_TAGS,
        )
    )


def _decode_offsets_committed(reader: FieldReader) -> OffsetsCommittedRecord:
    group_id = reader.compact_string()
    offsets = [_decode_offset(reader) for _ in range(reader.array_count(_OFFSET_BYTES_MIN))]
    reader.skip_tags()
    return OffsetsCommittedRecord(group_id=group_id, offsets=tuple(offsets))


def _encode_offsets_deleted(record: OffsetsDeletedRecord) -> bytes:
    partitions = [
        _PARTITION.pack(topic_id.bytes, partition) + NO_TAGS
        for topic_id, partition in record.partitions
    ]
    return b"".join(
        (
            compact_string(record.group_id),
            INT64.pack(record.committed_until_ms),
            uvarint(len(partitions) + 1),
            *partitions,
            NO_TAGS,
        )
    )


def _decode_offsets_deleted(reader: FieldReader) -> OffsetsDeletedRecord:
    group_id = reader.compact_string()
    committed_until_ms = reader.int64()
    partitions = []
    for _ in range(reader.array_count(_PARTITION.size + 1)):
        partitions.append(TopicIdPartition(reader.uuid(), reader.int32()))
        reader.skip_tags()
    reader.skip_tags()
    return OffsetsDeletedRecord(
        group_id=group_id,
        partitions=tuple(partitions),
        committed_until_ms=committed_until_ms,
    )


def _encode_group_stored(record: GroupStoredRecord) -> bytes:
    return b"".join(
        (
            compact_string(record.group_id),
            INT8.pack(record.kind),
            INT64.pack(record.updated_ms),
            uvarint(len(record.state) + 1),
            record.state,
            NO_TAGS,
        )
    )


def _decode_group_stored(reader: FieldReader) -> GroupStoredRecord:
    record = GroupStoredRecord(
        group_id=reader.compact_string(),
        kind=reader.int8(),
        updated_ms=reader.int64(),
        state=reader.raw(reader.array_count()),
    )
    reader.skip_tags()
    return record


def _encode_group_deleted(record: GroupDeletedRecord) -> bytes:
    return compact_string(record.group_id) + NO_TAGS


def _decode_group_deleted(reader: FieldReader) -> GroupDeletedRecord:
    record = GroupDeletedRecord(group_id=reader.compact_string())
    reader.skip_tags()
    return record


GROUP_CODECS: Final[Sequence[tuple[int, type[Any], Callable[[Any], bytes], Callable[..., Any]]]] = (
    (1020, OffsetsCommittedRecord, _encode_offsets_committed, _decode_offsets_committed),
    (1021, OffsetsDeletedRecord, _encode_offsets_deleted, _decode_offsets_deleted),
    (1022, GroupStoredRecord, _encode_group_stored, _decode_group_stored),
    (1023, GroupDeletedRecord, _encode_group_deleted, _decode_group_deleted),
)
