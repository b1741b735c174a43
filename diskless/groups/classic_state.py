"""Stores a classic group, so that its next coordinator goes on without a rebalance.

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

from diskless.groups.requests import GroupProtocol
from wal.errors import CorruptState
from wal.wire.fields import INT8, FieldReader
from wal.wire.layouts import EmptyIsNone, Int32, SizedBytes, layout

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """One member of a stored group."""

    member_id: str
    instance_id: EmptyIsNone
    client_id: str
    client_host: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    protocols: tuple[GroupProtocol, ...]
    assignment: SizedBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClassicGroup:
    """A classic group at a stable generation, or without members."""

    protocol_type: str
    generation_id: Int32
    protocol_name: EmptyIsNone
    leader: EmptyIsNone
    members: tuple[StoredMember, ...]


_GROUP: Final = layout(StoredClassicGroup)


def encode_classic_group(group: StoredClassicGroup) -> bytes:
    """As in the module docstring."""
    return INT8.pack(_VERSION) + _GROUP.write(group)


def decode_classic_group(data: bytes, group_id: str) -> StoredClassicGroup:
    """Raises: CorruptState."""
    reader = FieldReader(data, f"stored group {group_id!r}", CorruptState)
    version = reader.int8()
    if version != _VERSION:
        raise reader.corrupt(f"unknown version {version}")
    group = _GROUP.read(reader)
    reader.finish()
    return group
