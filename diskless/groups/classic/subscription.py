"""The embedded "consumer" protocol: what members of classic groups say to each other about topics.

Assignment is the members' business and their metadata is opaque to a classic group, with one
exception: the offsets of a topic that is being read are not deleted and do not expire. A KIP-848
group that such members are in has to read what they subscribe to and have, and to write what is
assigned to them.

    subscription: int16 version, array topics: string; bytes user data (null -1);
        version 1: array owned: string topic, array int32 partitions
        version 2: int32 generation id
        version 3: string rack id (null -1)
    assignment: int16 version, array: string topic, array int32 partitions; bytes user data

All versions begin the same; what follows is passed over. Members of Connect and others have
protocol types of their own.

Source: ConsumerProtocolSubscription and ConsumerProtocolAssignment in Apache Kafka.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from diskless.protocol.wire import ProtocolError, Reader, string
from wal.wire.fields import INT16, INT32

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of groups that read topics; Connect and others have their own."""

_TOPIC_BYTES_MIN: Final = 2
_TOPIC_PARTITIONS_BYTES_MIN: Final = 6
_PARTITION_BYTES: Final = 4
_NO_USER_DATA: Final = b"\xff\xff\xff\xff"

_OWNED_FROM: Final = 1
_RACK_FROM: Final = 3


class Subscription(NamedTuple):
    """What a member of a classic group says when it joins."""

    version: int
    topics: frozenset[str]
    owned: Mapping[str, frozenset[int]]
    """What it goes on having; members that give up everything before they join have nothing."""
    rack_id: str | None


def read_subscription(metadata: bytes) -> Subscription | None:
    """None when it cannot be made out."""
    reader = Reader([metadata])
    owned: Mapping[str, frozenset[int]] = {}
    rack_id = None
    try:
        version = reader.int16()
        topics = _topics(reader)
        _skip_bytes(reader)
        if version >= _OWNED_FROM:
            owned = _partitions(reader)
        if version >= _RACK_FROM:
            reader.int32()
            rack_id = reader.nullable_string(flexible=False) or None
    except ProtocolError:
        return None
    return Subscription(version, topics, owned, rack_id)


def read_assignment(assignment: bytes) -> Mapping[str, frozenset[int]] | None:
    """By topic name; None when it cannot be made out. Nothing at all is nothing assigned."""
    if not assignment:
        return {}
    reader = Reader([assignment])
    try:
        reader.int16()
        return _partitions(reader)
    except ProtocolError:
        return None


def write_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    """Writes a member's assignment in the version of its subscription; all have the same fields."""
    parts = [INT16.pack(version), INT32.pack(len(partitions))]
    for name in sorted(partitions):
        indexes = sorted(partitions[name])
        parts += (string(name, flexible=False), INT32.pack(len(indexes)))
        parts += map(INT32.pack, indexes)
    parts.append(_NO_USER_DATA)
    return b"".join(parts)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics a member wants; None when that cannot be made out."""
    reader = Reader([metadata])
    try:
        reader.int16()
        return _topics(reader)
    except ProtocolError:
        return None


def all_subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics any of the members wants; None when one of them cannot be made out."""
    topics: set[str] = set()
    for one in metadata:
        wanted = subscribed_topics(one)
        if wanted is None:
            return None
        topics |= wanted
    return frozenset(topics)


def _topics(reader: Reader) -> frozenset[str]:
    count = reader.array_count(flexible=False, item_bytes_min=_TOPIC_BYTES_MIN)
    return frozenset(reader.string(flexible=False) for _ in range(count))


def _partitions(reader: Reader) -> Mapping[str, frozenset[int]]:
    partitions: dict[str, frozenset[int]] = {}
    for _ in range(reader.array_count(flexible=False, item_bytes_min=_TOPIC_PARTITIONS_BYTES_MIN)):
        name = reader.string(flexible=False)
        count = reader.array_count(flexible=False, item_bytes_min=_PARTITION_BYTES)
        indexes = frozenset(reader.int32() for _ in range(count))
        partitions[name] = partitions.get(name, frozenset()) | indexes
    return partitions


def _skip_bytes(reader: Reader) -> None:
    reader.pass_over(max(reader.nullable_bytes_length(flexible=False), 0))
