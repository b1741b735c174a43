"""Which coordinator a group has, and deciding what is written down about groups.

Nothing here depends on the state: the group's coordinator keeps the group in memory and has judged
everything that can be refused. What comes here is written down; whoever comes last wins. Only sizes
are checked, because what the log cannot hold would take along everything decided beside it.
"""

import struct
from collections.abc import Sequence
from typing import Final

from metadata.commit_rules import Decision
from metadata.group_records import (
    WHENEVER_COMMITTED,
    CommittedOffset,
    GroupDeletedRecord,
    GroupKind,
    GroupStoredRecord,
    OffsetsCommittedRecord,
    OffsetsDeletedRecord,
    encode_offset,
)
from wal.coordinates import TopicIdPartition
from wal.crc import crc32c
from wal.errors import AppendTooLarge, InvalidRequest

GROUP_ID_BYTES_MAX: Final = 32_767
"""The longest string of Kafka's protocol."""

GROUP_RECORD_BYTES_MAX: Final = 4 << 20
"""State of a group, or offsets of one commit; some 80,000 of them."""

PARTITIONS_DELETED_MAX: Final = 100_000
"""Partitions of one deletion of offsets."""

_GROUP_KIND_MAX: Final = 127


def group_coordinator(group_id: str, coordinators: int) -> int:
    """The metadata partition, of `coordinators`, whose leader coordinates the group."""
    return crc32c(group_id.encode()) % coordinators


def _check_group_id(group_id: str) -> None:
    try:
        length = len(group_id.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the group id {group_id!r} is not Unicode") from error
    if length > GROUP_ID_BYTES_MAX:
        raise InvalidRequest(f"a group id of {length} bytes, allowed are {GROUP_ID_BYTES_MAX}")


def commit_offsets_decision(group_id: str, offsets: Sequence[CommittedOffset]) -> Decision[None]:
    """Raises: InvalidRequest, AppendTooLarge."""
    _check_group_id(group_id)
    if not offsets:
        return Decision((), None)
    try:
        size = sum(map(len, map(encode_offset, offsets)))
    except (struct.error, ValueError) as error:
        raise InvalidRequest(f"an offset of group {group_id!r}: {error}") from error
    _check_size(size, f"offsets of group {group_id!r}")
    return Decision((OffsetsCommittedRecord(group_id=group_id, offsets=tuple(offsets)),), None)


def delete_offsets_decision(
    group_id: str,
    partitions: Sequence[TopicIdPartition],
    committed_until_ms: int = WHENEVER_COMMITTED,
) -> Decision[None]:
    """Raises: InvalidRequest."""
    _check_group_id(group_id)
    if len(partitions) > PARTITIONS_DELETED_MAX:
        raise InvalidRequest(f"{len(partitions)} partitions, allowed are {PARTITIONS_DELETED_MAX}")
    if not partitions:
        return Decision((), None)
    record = OffsetsDeletedRecord(
        group_id=group_id,
        partitions=tuple(dict.fromkeys(partitions)),
        committed_until_ms=committed_until_ms,
    )
    return Decision((record,), None)


def store_group_decision(group_id: str, kind: int, state: bytes, now_ms: int) -> Decision[None]:
    """Raises: InvalidRequest, AppendTooLarge."""
    _check_group_id(group_id)
    if not GroupKind.OFFSETS_ONLY < kind <= _GROUP_KIND_MAX:
        raise InvalidRequest(f"group {group_id!r} cannot be of kind {kind}")
    _check_size(len(state), f"state of group {group_id!r}")
    record = GroupStoredRecord(
        group_id=group_id, kind=int(kind), state=bytes(state), updated_ms=now_ms
    )
    return Decision((record,), None)


def delete_group_decision(group_id: str) -> Decision[None]:
    """Raises: InvalidRequest."""
    _check_group_id(group_id)
    return Decision((GroupDeletedRecord(group_id=group_id),), None)


def _check_size(size: int, what: str) -> None:
    if size > GROUP_RECORD_BYTES_MAX:
        raise AppendTooLarge(f"{what}: {size} bytes, allowed are {GROUP_RECORD_BYTES_MAX}")
