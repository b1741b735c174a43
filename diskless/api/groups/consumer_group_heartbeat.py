"""ConsumerGroupHeartbeat, key 68, versions 0-1: what members of KIP-848 groups say and hear.

- Version 1 adds subscriptions by pattern, and member ids of the client's making.
- Asks for READ on the group, and for DESCRIBE on each topic that is subscribed to by name. Patterns
  find topics that may be described.
- The answer comes at once, or when what the heartbeat has changed is durable.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from diskless.api.access import Access
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from diskless.loop.long_work import Steps
from diskless.ports import ClientInfo
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError

KEY: Final = 68

_OWN_MEMBER_ID_FROM: Final = 1
_MS: Final = timedelta(milliseconds=1)


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)
        owned = yield from _partitions(asked.topic_partitions)
        heartbeat = ConsumerHeartbeat(
            group_id=asked.group_id,
            member_id=asked.member_id,
            member_epoch=asked.member_epoch,
            instance_id=asked.instance_id,
            rack_id=asked.rack_id,
            rebalance_timeout_ms=asked.rebalance_timeout // _MS,
            topic_names=asked.subscribed_topic_names,
            topic_pattern=getattr(asked, "subscribed_topic_regex", None),
            assignor=asked.server_assignor,
            owned=owned,
            makes_own_id=version >= _OWN_MEMBER_ID_FROM,
            described=partial(access.described_topics, request.client),
        )

        def encode(answer: ConsumerHeartbeatAnswer) -> ReplySteps:
            assignment = answer.assignment
            values = {
                **error_fields(answer.error),
                "member_id": answer.member_id,
                "member_epoch": answer.member_epoch,
                "heartbeat_interval": timedelta(milliseconds=answer.heartbeat_interval_ms),
                "assignment": None
                if assignment is None
                else {
                    "topic_partitions": (
                        {"topic_id": topic_id, "partitions": sorted(indexes)}
                        for topic_id, indexes in assignment.items()
                    )
                },
            }
            return encode_response(KEY, version, values)

        refused = _refused(access, request.client, heartbeat)
        if refused is not None:
            return (yield from encode(ConsumerHeartbeatAnswer(error=refused)))
        try:
            # Kept until the heartbeat is taken in, which would match all topics at once otherwise.
            matched = yield from groups.match_patterns(heartbeat)
        except DisklessError as error:
            return (yield from encode(ConsumerHeartbeatAnswer(error=error)))
        answer = groups.consumer_heartbeat(heartbeat, request.client)
        del matched
        return Deferred(answer, encode, None)

    return Api(
        key=KEY, name="ConsumerGroupHeartbeat", versions=range(2), flexible_from=0, handler=handle
    )


def _refused(
    access: Access, client: ClientInfo, heartbeat: ConsumerHeartbeat
) -> DisklessError | None:
    refused = access.refused_group(client, AclOperation.READ, heartbeat.group_id)
    if refused is None and heartbeat.topic_names:
        hidden = access.refused_topics(client, AclOperation.DESCRIBE, heartbeat.topic_names)
        return next(iter(hidden.values()), None)
    return refused


def _partitions(topics: Any) -> Steps[Mapping[UUID, frozenset[int]] | None]:
    """None for null; topics without an id or without partitions are nothing."""
    if topics is None:
        return None
    owned: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        if topic.topic_id is not None and topic.partitions:
            before = owned.get(topic.topic_id, frozenset())
            owned[topic.topic_id] = before | frozenset(topic.partitions)
        yield
    return owned
