"""Checks heartbeats of KIP-848 members: the epochs with a special meaning, and those without any.

They are refused before anything is looked up.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from diskless.groups.consumer_state import ConsumerMember
from diskless.groups.errors import UnsupportedAssignor
from diskless.groups.requests import ConsumerHeartbeat
from diskless.ports import ClientInfo
from wal.errors import DisklessError, InvalidRequest

JOIN_EPOCH: Final = 0
"""A member comes, or starts over and has nothing."""
LEAVE_EPOCH: Final = -1
"""A member goes for good."""
LEAVE_STATIC_EPOCH: Final = -2
"""A static member goes and will come back; it has nothing meanwhile."""
UNCHANGED_MS: Final = -1
"""The rebalance timeout is as before."""

STRING_BYTES_MAX: Final = 2**15 - 1
"""What a string may have in the oldest versions, in which members are shown to others."""


def refused_heartbeat(
    request: ConsumerHeartbeat, assignors: Collection[str]
) -> DisklessError | None:
    """InvalidRequest or UnsupportedAssignor; None: it makes sense."""
    try:
        _check(request, assignors)
    except DisklessError as error:
        return error
    return None


def _check(request: ConsumerHeartbeat, assignors: Collection[str]) -> None:
    member_epoch = request.member_epoch
    if not request.group_id:
        raise InvalidRequest("GroupId can't be empty.")
    if not request.member_id and (request.makes_own_id or member_epoch != JOIN_EPOCH):
        raise InvalidRequest("MemberId can't be empty.")
    if request.instance_id == "":
        raise InvalidRequest("InstanceId can't be empty.")
    if request.rack_id == "":
        raise InvalidRequest("RackId can't be empty.")
    if request.rebalance_timeout_ms < UNCHANGED_MS:
        raise InvalidRequest(f"RebalanceTimeoutMs is {request.rebalance_timeout_ms}.")
    for name in (request.member_id, request.instance_id, request.rack_id):
        if name is not None and len(name.encode()) > STRING_BYTES_MAX:
            raise InvalidRequest(f"a name of {len(name.encode())} bytes")
    if member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise InvalidRequest("InstanceId can't be null.")
    elif member_epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequest(f"MemberEpoch is {member_epoch}, but must be at least -2.")
    if request.assignor is not None and request.assignor not in assignors:
        raise UnsupportedAssignor(
            f"ServerAssignor {request.assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}."
        )


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms == UNCHANGED_MS:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if request.topic_names is None and request.topic_pattern is None:
        raise InvalidRequest(
            "SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def updated(
    member: ConsumerMember, request: ConsumerHeartbeat, client: ClientInfo
) -> ConsumerMember:
    """The member with what it said; itself if that is nothing new."""
    names, pattern = member.topic_names, member.topic_pattern
    if request.topic_names is not None:
        names = tuple(sorted(set(request.topic_names)))
    if request.topic_pattern is not None:
        pattern = request.topic_pattern or None
    timeout_ms = request.rebalance_timeout_ms
    updated = replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if timeout_ms == UNCHANGED_MS else timeout_ms
        ),
        topic_names=names,
        topic_pattern=pattern,
        assignor=request.assignor or member.assignor,
    )
    return member if updated == member else updated


def subscribes_otherwise(before: ConsumerMember, now: ConsumerMember) -> bool:
    return (before.topic_names, before.topic_pattern) != (now.topic_names, now.topic_pattern)


def says_all(request: ConsumerHeartbeat) -> bool:
    """Whether the member says everything, as clients do when an answer may have been lost."""
    return (
        request.rebalance_timeout_ms != UNCHANGED_MS
        and (request.topic_names is not None or request.topic_pattern is not None)
        and request.owned is not None
    )
