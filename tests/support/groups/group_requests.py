"""Requests of group members with everything that a test does not care about filled in."""

from collections.abc import Mapping, Sequence
from typing import Final

from diskless.groups.requests import GroupProtocol, JoinGroup, SyncGroup
from diskless.ports import ClientInfo

CLIENT: Final = ClientInfo(1, "client", "10.0.0.1")


def subscription(*topics: str) -> bytes:
    """Metadata of the embedded consumer protocol, version 0, without user data."""
    encoded = [topic.encode() for topic in topics]
    return b"".join(
        (
            b"\x00\x00",
            len(encoded).to_bytes(4, "big"),
            *(len(topic).to_bytes(2, "big") + topic for topic in encoded),
            b"\xff\xff\xff\xff",
        )
    )


def subscription_with_owned(
    topics: Sequence[str], owned: Mapping[str, Sequence[int]], version: int = 1
) -> bytes:
    """The same of versions 1 to 3, with what the member has."""
    encoded = b"".join(
        len(name.encode()).to_bytes(2, "big")
        + name.encode()
        + len(indexes).to_bytes(4, "big")
        + b"".join(index.to_bytes(4, "big") for index in indexes)
        for name, indexes in owned.items()
    )
    later = (b"", b"", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x00\x04rack")[version]
    return b"".join(
        (
            version.to_bytes(2, "big"),
            subscription(*topics)[2:],
            len(owned).to_bytes(4, "big"),
            encoded,
            later,
        )
    )


RANGE: Final = GroupProtocol("range", subscription("topic"))


def join_request(
    member_id: str = "",
    *,
    group_id: str = "group",
    instance_id: str | None = None,
    session_timeout_ms: int = 10_000,
    rebalance_timeout_ms: int = 60_000,
    protocol_type: str = "consumer",
    protocols: Sequence[GroupProtocol] = (RANGE,),
    needs_member_id: bool = True,
    may_skip_assignment: bool = True,
) -> JoinGroup:
    return JoinGroup(
        group_id,
        member_id,
        instance_id,
        session_timeout_ms,
        rebalance_timeout_ms,
        protocol_type,
        protocols,
        needs_member_id,
        may_skip_assignment,
        "",
    )


def sync_request(
    member_id: str,
    generation_id: int,
    assignments: Mapping[str, bytes] | None = None,
    *,
    group_id: str = "group",
    instance_id: str | None = None,
    protocol_type: str | None = None,
    protocol_name: str | None = None,
) -> SyncGroup:
    return SyncGroup(
        group_id,
        generation_id,
        member_id,
        instance_id,
        protocol_type,
        protocol_name,
        assignments or {},
    )
