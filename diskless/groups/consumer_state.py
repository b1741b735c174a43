"""Stores a KIP-848 group, so that its next coordinator goes on as if nothing had happened.

Written whenever something in it has changed, before anybody learns of the change. The bytes are
opaque to the metadata log; their first one is a version, and every structure ends in tagged fields,
so that fields can be added without a new one.

    int8 version = 1
    int32 group_epoch   int32 assignment_epoch
    array topics: uuid topic_id, int32 partition_count (-1: nobody subscribes to it any more), tags
    array subscriptions: array of string topic_names, string pattern ("" none), tags
    array members: string member_id, string instance_id ("" none), string rack_id ("" none),
        string client_id, string client_host, int32 rebalance_timeout_ms,
        uvarint subscription (its place in the array above), string assignor ("" none),
        int32 member_epoch, int32 previous_epoch, int8 state (0 stable, 1 unrevoked, 2 unreleased),
        partitions target, partitions assigned (null: the same as target), partitions revoking,
        tags: 0 of members that speak the classic protocol:
            int32 session_timeout_ms, array protocols: string name, bytes metadata, tags
    tags

    partitions: array: uvarint topic (its place in the array above),
        array of runs: uvarint partitions left out, uvarint length - 1

Strings and arrays are compact as in Kafka's flexible versions; bytes are uvarint length + bytes.
Topic ids, and subscriptions that members share, are there once. Raises CorruptState for anything
else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple
from uuid import UUID

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.assignors.partition_sets import NO_PARTITIONS
from diskless.groups.requests import GroupProtocol
from diskless.loop.long_work import Steps, done_at_once
from wal.errors import CorruptState
from wal.wire.fields import INT8, INT32, NO_TAGS, FieldReader, compact_string, tag_section, uvarint
from wal.wire.layouts import EmptyIsNone, Int32, layout

_VERSION: Final = 1
_NOT_SUBSCRIBED: Final = -1
_CLASSIC_TAG: Final = 0

_MEMBER_BYTES_MIN: Final = 24
_PARTITIONS_BYTES_MIN: Final = 2
_RUN_BYTES_MIN: Final = 2
_PARTITION_MAX: Final = 2**31 - 1
_RUN_LENGTH_MAX: Final = 100_000
"""Far above what a topic may have: a few bytes must not become a huge set."""


def _nothing() -> TopicPartitions:
    return NO_PARTITIONS


class MemberState(IntEnum):
    """Where a member stands on its way to its target."""

    STABLE = 0
    """It has what the assignment of its epoch gives it."""
    UNREVOKED = 1
    """It has been told to give partitions up, and has not said yet that it has."""
    UNRELEASED = 2
    """It waits for partitions that others have not given up yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """What a member that speaks the classic protocol has beside the others."""

    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member; a value: what changes is another one."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...] = ()
    """In order, each once."""
    topic_pattern: str | None = None
    assignor: str | None = None
    """The one it votes for."""
    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    target: TopicPartitions = field(default_factory=_nothing)
    """What the assignment wants it to have."""
    assigned: TopicPartitions = field(default_factory=_nothing)
    """What it was told that it has."""
    revoking: TopicPartitions = field(default_factory=_nothing)
    """What it was told to give up and may still have."""
    classic: ClassicMember | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConsumerGroup:
    """A whole group at one moment."""

    group_epoch: int
    assignment_epoch: int
    """The group epoch that the members' targets belong to."""
    partition_counts: Mapping[UUID, int]
    """The topics that members subscribe to and that exist, as the group epoch knows them."""
    members: tuple[ConsumerMember, ...]


class _Topic(NamedTuple):
    topic_id: UUID
    partition_count: Int32


class _Subscription(NamedTuple):
    names: tuple[str, ...]
    pattern: EmptyIsNone


_TOPIC: Final = layout(_Topic)
_SUBSCRIPTION: Final = layout(_Subscription)
_PROTOCOL: Final = layout(GroupProtocol)


# -- writing


def encode_consumer_group(group: StoredConsumerGroup) -> bytes:
    """As in the module docstring."""
    return done_at_once(encode_in_steps(group))


def encode_in_steps(group: StoredConsumerGroup) -> Steps[bytes]:
    """The same, for groups of many topics."""
    topics = dict(group.partition_counts)
    for member in group.members:
        for topic_id in chain(member.target, member.assigned, member.revoking):
            topics.setdefault(topic_id, _NOT_SUBSCRIBED)
            yield
    places: dict[UUID, bytes] = {}
    for topic_id in topics:
        places[topic_id] = uvarint(len(places))
        yield
    subscriptions: dict[_Subscription, int] = {}
    for member in group.members:
        subscriptions.setdefault(_subscription(member), len(subscriptions))
    parts = [
        INT8.pack(_VERSION),
        INT32.pack(group.group_epoch),
        INT32.pack(group.assignment_epoch),
        uvarint(len(topics) + 1),
    ]
    for topic in topics.items():
        parts.append(_TOPIC.write(_Topic(*topic)))
        yield
    parts.append(uvarint(len(subscriptions) + 1))
    parts += map(_SUBSCRIPTION.write, subscriptions)
    parts.append(uvarint(len(group.members) + 1))
    for member in group.members:
        for part in _member_parts(member, subscriptions[_subscription(member)], places):
            parts.append(part)
            yield
    parts.append(NO_TAGS)
    return b"".join(parts)


def _subscription(member: ConsumerMember) -> _Subscription:
    return _Subscription(member.topic_names, member.topic_pattern)


def _member_parts(
    member: ConsumerMember, subscription: int, places: Mapping[UUID, bytes]
) -> Iterable[bytes]:
    yield compact_string(member.member_id)
    yield compact_string(member.instance_id or "")
    yield compact_string(member.rack_id or "")
    yield compact_string(member.client_id)
    yield compact_string(member.client_host)
    yield INT32.pack(member.rebalance_timeout_ms)
    yield uvarint(subscription)
    yield compact_string(member.assignor or "")
    yield INT32.pack(member.member_epoch)
    yield INT32.pack(member.previous_epoch)
    yield INT8.pack(member.state)
    yield from _partitions_parts(member.target, places)
    if member.assigned == member.target:
        yield uvarint(0)
    else:
        yield from _partitions_parts(member.assigned, places)
    yield from _partitions_parts(member.revoking, places)
    if member.classic is None:
        yield NO_TAGS
    else:
        yield tag_section({_CLASSIC_TAG: _classic_bytes(member.classic)})


def _classic_bytes(classic: ClassicMember) -> bytes:
    protocols = classic.protocols
    parts = (INT32.pack(classic.session_timeout_ms), uvarint(len(protocols) + 1))
    return b"".join((*parts, *map(_PROTOCOL.write, protocols)))


def _partitions_parts(partitions: TopicPartitions, places: Mapping[UUID, bytes]) -> Iterable[bytes]:
    yield uvarint(len(partitions) + 1)
    for topic_id, indexes in partitions.items():
        yield places[topic_id]
        runs = _runs(indexes)
        yield uvarint(len(runs) + 1)
        for left_out, length in runs:
            yield uvarint(left_out)
            yield uvarint(length - 1)


def _runs(indexes: frozenset[int]) -> Sequence[tuple[int, int]]:
    """(how many are left out before it, its length) of every run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    after = 0
    for index in sorted(indexes):
        if runs and index == after and runs[-1][1] < _RUN_LENGTH_MAX:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index - after, 1))
        after = index + 1
    return runs


# -- reading


def decode_consumer_group(data: bytes, group_id: str) -> StoredConsumerGroup:
    """Raises: CorruptState."""
    reader = FieldReader(data, f"stored group {group_id!r}", CorruptState)
    version = reader.int8()
    if version != _VERSION:
        raise reader.corrupt(f"unknown version {version}")
    group_epoch, assignment_epoch = reader.int32(), reader.int32()
    topics = [_TOPIC.read(reader) for _ in reader.entries(_TOPIC.bytes_min)]
    entries = reader.entries(_SUBSCRIPTION.bytes_min)
    subscriptions = [_SUBSCRIPTION.read(reader) for _ in entries]
    topic_ids = [topic.topic_id for topic in topics]
    entries = reader.entries(_MEMBER_BYTES_MIN)
    members = tuple([_member(reader, topic_ids, subscriptions) for _ in entries])
    reader.skip_tags()
    reader.finish()
    return StoredConsumerGroup(
        group_epoch=group_epoch,
        assignment_epoch=assignment_epoch,
        partition_counts={topic_id: count for topic_id, count in topics if count >= 0},
        members=members,
    )


def _member(
    reader: FieldReader,
    topic_ids: Sequence[UUID],
    subscriptions: Sequence[_Subscription],
) -> ConsumerMember:
    member_id = reader.compact_string()
    instance_id = reader.compact_string() or None
    rack_id = reader.compact_string() or None
    client_id = reader.compact_string()
    client_host = reader.compact_string()
    rebalance_timeout_ms = reader.int32()
    subscription = reader.uvarint()
    if subscription >= len(subscriptions):
        raise reader.corrupt(f"no subscription {subscription}")
    names, pattern = subscriptions[subscription]
    assignor = reader.compact_string() or None
    member_epoch, previous_epoch = reader.int32(), reader.int32()
    number = reader.int8()
    if number not in MemberState._value2member_map_:
        raise reader.corrupt(f"no state {number} of a member")
    target = _partitions(reader, topic_ids)
    if target is None:
        raise reader.corrupt("a member without target")
    assigned = _partitions(reader, topic_ids)
    revoking = _partitions(reader, topic_ids)
    if revoking is None:
        raise reader.corrupt("null where partitions must be")
    classic = None
    for tag, content in reader.tags():
        if tag == _CLASSIC_TAG:
            classic = _classic(content)
    return ConsumerMember(
        member_id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        topic_names=names,
        topic_pattern=pattern,
        assignor=assignor,
        member_epoch=member_epoch,
        previous_epoch=previous_epoch,
        state=MemberState(number),
        target=target,
        assigned=target if assigned is None else assigned,
        revoking=revoking,
        classic=classic,
    )


def _classic(reader: FieldReader) -> ClassicMember:
    session_timeout_ms = reader.int32()
    protocols = tuple([_PROTOCOL.read(reader) for _ in reader.entries(_PROTOCOL.bytes_min)])
    return ClassicMember(session_timeout_ms=session_timeout_ms, protocols=protocols)


def _partitions(reader: FieldReader, topic_ids: Sequence[UUID]) -> TopicPartitions | None:
    """None for a null array."""
    count = reader.uvarint() - 1
    if count < 0:
        return None
    if count * _PARTITIONS_BYTES_MIN > reader.end - reader.position:
        raise reader.corrupt(f"partitions of {count} topics")
    partitions: dict[UUID, frozenset[int]] = {}
    for _ in range(count):
        place = reader.uvarint()
        if place >= len(topic_ids):
            raise reader.corrupt(f"no topic {place}")
        partitions[topic_ids[place]] = _indexes(reader)
    return partitions


def _indexes(reader: FieldReader) -> frozenset[int]:
    indexes: set[int] = set()
    after = 0
    for _ in range(reader.array_count(_RUN_BYTES_MIN)):
        first = after + reader.uvarint()
        after = first + reader.uvarint() + 1
        if after - first > _RUN_LENGTH_MAX or after > _PARTITION_MAX:
            raise reader.corrupt(f"partitions {first} to {after - 1}")
        indexes.update(range(first, after))
    return frozenset(indexes)
