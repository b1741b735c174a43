"""A classic group as it is stored: what its next coordinator needs to go on without a rebalance.

Written when a generation becomes stable, when a static member is replaced, and when the last member
has gone. The bytes are opaque to the metadata log; their first one is a version, and every
structure ends in tagged fields, so that fields can be added without a new one.

    int8 version = 1
    string protocol_type   int32 generation   string protocol_name ("" none)   string leader ("")
    array members: string member_id, string instance_id ("" none), string client_id,
        string client_host, int32 session_timeout_ms, int32 rebalance_timeout_ms,
        array protocols: string name, bytes metadata, tags
        bytes assignment, tags
    tags

Strings and arrays are compact as in Kafka's flexible versions; bytes are uvarint length + bytes.
Raises CorruptState for anything else.
"""

from dataclasses import dataclass
from typing import Final

from diskless.ports import GroupProtocol
from wal.errors import CorruptLog, CorruptState
from wal.wire.fields import INT8, INT32, NO_TAGS, FieldReader, compact_string, uvarint

_VERSION: Final = 1
_MEMBER_BYTES_MIN: Final = 15
_PROTOCOL_BYTES_MIN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """One member of a stored group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClassicGroup:
    """A classic group at a stable generation, or without members."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    members: tuple[StoredMember, ...]


def encode_classic_group(group: StoredClassicGroup) -> bytes:
    """As in the module docstring."""
    parts = [
        INT8.pack(_VERSION),
        compact_string(group.protocol_type),
        INT32.pack(group.generation_id),
        compact_string(group.protocol_name or ""),
        compact_string(group.leader or ""),
        uvarint(len(group.members) + 1),
    ]
    for member in group.members:
        parts += (
            compact_string(member.member_id),
            compact_string(member.instance_id or ""),
            compact_string(member.client_id),
            compact_string(member.client_host),
            INT32.pack(member.session_timeout_ms),
            INT32.pack(member.rebalance_timeout_ms),
            uvarint(len(member.protocols) + 1),
        )
        for protocol in member.protocols:
            parts += (compact_string(protocol.name), _bytes(protocol.metadata), NO_TAGS)
        parts += (_bytes(member.assignment), NO_TAGS)
    parts.append(NO_TAGS)
    return b"".join(parts)


def decode_classic_group(data: bytes, group_id: str) -> StoredClassicGroup:
    """Raises: CorruptState."""
    reader = FieldReader(data, f"stored group {group_id!r}")
    try:
        version = reader.int8()
        if version != _VERSION:
            raise reader.corrupt(f"unknown version {version}")
        protocol_type = reader.compact_string()
        generation_id = reader.int32()
        protocol_name = reader.compact_string() or None
        leader = reader.compact_string() or None
        members = tuple(_member(reader) for _ in range(reader.array_count(_MEMBER_BYTES_MIN)))
        _skip_tags(reader)
        if reader.position != reader.end:
            raise reader.corrupt("more than a group")
    except CorruptLog as error:
        raise CorruptState(str(error)) from error
    return StoredClassicGroup(
        protocol_type=protocol_type,
        generation_id=generation_id,
        protocol_name=protocol_name,
        leader=leader,
        members=members,
    )


def _member(reader: FieldReader) -> StoredMember:
    member_id = reader.compact_string()
    instance_id = reader.compact_string() or None
    client_id = reader.compact_string()
    client_host = reader.compact_string()
    session_timeout_ms = reader.int32()
    rebalance_timeout_ms = reader.int32()
    protocols = tuple(_protocol(reader) for _ in range(reader.array_count(_PROTOCOL_BYTES_MIN)))
    assignment = reader.raw(reader.uvarint())
    _skip_tags(reader)
    return StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocols=protocols,
        assignment=assignment,
    )


def _protocol(reader: FieldReader) -> GroupProtocol:
    name = reader.compact_string()
    metadata = reader.raw(reader.uvarint())
    _skip_tags(reader)
    return GroupProtocol(name, metadata)


def _skip_tags(reader: FieldReader) -> None:
    for _ in reader.tags():
        pass


def _bytes(data: bytes) -> bytes:
    return uvarint(len(data)) + data
