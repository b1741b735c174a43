"""Decides which coordinator a group has, and what is written down about groups.

Nothing here depends on the state: the group's coordinator keeps the group in memory and has judged
everything that can be refused. What comes here is written down; the last one wins. Only sizes are
checked, because what the log cannot hold would take along everything decided beside it.

Many offsets are several operations, each of one record, so that others have their turn in between.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from metadata.records import groups
from metadata.rules.commit import Decision
from wal.coordinates import TopicIdPartition
from wal.crc import crc32c
from wal.errors import AppendTooLarge, InvalidRequest
from wal.wire.fields import INT32, INT64

GROUP_ID_BYTES_MAX: Final = 32_767
"""The longest string of Kafka's protocol."""

GROUP_RECORD_BYTES_MAX: Final = 4 << 20
"""State of a group, or offsets of one commit; some 80,000 of them."""

OFFSETS_PER_RECORD_MAX: Final = 2_000
"""Offsets that one operation commits or deletes: some twenty milliseconds of applying."""

_GROUP_KIND_MAX: Final = 127

_Item = TypeVar("_Item")


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


def commit_offsets_decisions(
    group_id: str, offsets: Sequence[groups.CommittedOffset]
) -> Sequence[Decision[None]]:
    """One after the other, when all of it was checked. Raises: InvalidRequest, AppendTooLarge."""
    return [
        Decision((groups.OffsetsCommittedRecord(group_id=group_id, offsets=some),), None)
        for some in offsets_in_steps(group_id, offsets)
    ]


def offsets_in_steps(
    group_id: str, offsets: Sequence[groups.CommittedOffset]
) -> Sequence[Sequence[groups.CommittedOffset]]:
    """What is written down at a time, when all of it was checked.

    Raises: InvalidRequest, AppendTooLarge.
    """
    _check_group_id(group_id)
    try:
        size = sum(map(len, map(groups.encode_offset, offsets)))
    except (struct.error, ValueError) as error:
        raise InvalidRequest(f"an offset of group {group_id!r}: {error}") from error
    _check_size(size, f"offsets of group {group_id!r}")
    return [tuple(some) for some in _in_steps(offsets)]


def delete_offsets_decisions(
    group_id: str,
    partitions: Sequence[TopicIdPartition],
    committed_until_ms: int = groups.WHENEVER_COMMITTED,
) -> Iterator[Decision[None]]:
    """One after the other, each made when it is taken. Raises: InvalidRequest."""
    _check_group_id(group_id)
    try:
        for _, partition in partitions:
            INT32.pack(partition)
        INT64.pack(committed_until_ms)
    except struct.error as error:
        raise InvalidRequest(f"offsets of group {group_id!r} to delete: {error}") from error
    return (
        Decision(
            (
                groups.OffsetsDeletedRecord(
                    group_id=group_id,
                    partitions=tuple(dict.fromkeys(some)),
                    committed_until_ms=committed_until_ms,
                ),
            ),
            None,
        )
        for some in _in_steps(partitions)
    )


def store_group_decision(group_id: str, kind: int, state: bytes, now_ms: int) -> Decision[None]:
    """Raises: InvalidRequest, AppendTooLarge."""
    _check_group_id(group_id)
    if not groups.GroupKind.OFFSETS_ONLY < kind <= _GROUP_KIND_MAX:
        raise InvalidRequest(f"group {group_id!r} cannot be of kind {kind}")
    _check_size(len(state), f"state of group {group_id!r}")
    record = groups.GroupStoredRecord(
        group_id=group_id, kind=int(kind), state=bytes(state), updated_ms=now_ms
    )
    return Decision((record,), None)


def delete_group_decision(group_id: str) -> Decision[None]:
    """Raises: InvalidRequest."""
    _check_group_id(group_id)
    return Decision((groups.GroupDeletedRecord(group_id=group_id),), None)


def _in_steps(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), OFFSETS_PER_RECORD_MAX):
        yield items[start : start + OFFSETS_PER_RECORD_MAX]


def _check_size(size: int, what: str) -> None:
    if size > GROUP_RECORD_BYTES_MAX:
        raise AppendTooLarge(f"{what}: {size} bytes, allowed are {GROUP_RECORD_BYTES_MAX}")
