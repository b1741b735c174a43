"""ConsumerGroupDescribe, key 69, versions 0-1: every group that was asked for is in the answer.

- A classic group is GROUP_ID_NOT_FOUND, as one that is not there; clients ask DescribeGroups then.
- Authorized operations are not known here (there is no authorizer); the field has its "not asked".
- Version 1 tells which members speak the classic protocol.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from diskless.api.errors import error_message, kafka_code
from diskless.api.registry import Api, Deferred, Reply, Request
from diskless.ports import (
    AssignedTopic,
    ConsumerGroupMember,
    DescribedConsumerGroup,
    GroupCoordinator,
)
from diskless.protocol.messages import Fields, decode_request, encode_response

KEY: Final = 69

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


def api(groups: GroupCoordinator) -> Api:
    def handle(request: Request) -> Deferred:
        version = request.version
        asked = decode_request(KEY, version, request.body)

        def encode(described: Sequence[DescribedConsumerGroup]) -> Reply:
            answers = [_group(group) for group in described]
            return [encode_response(KEY, version, {"groups": answers})]

        described = asyncio.gather(*map(groups.describe_consumer, asked.group_ids))
        return Deferred(described, encode, None)

    return Api(
        key=KEY,
        name="ConsumerGroupDescribe",
        min_version=0,
        max_version=1,
        flexible_from=0,
        handler=handle,
    )


def _group(group: DescribedConsumerGroup) -> Fields:
    return {
        "error_code": kafka_code(group.error),
        "error_message": error_message(group.error),
        "group_id": group.group_id,
        "group_state": group.state if group.error is None else "",
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(member) for member in group.members],
    }


def _member(member: ConsumerGroupMember) -> Fields:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topic_names,
        "subscribed_topic_regex": member.topic_pattern,
        "assignment": _assignment(member.assigned),
        "target_assignment": _assignment(member.target),
        "member_type": _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    }


def _assignment(topics: Sequence[AssignedTopic]) -> Fields:
    return {
        "topic_partitions": [
            {
                "topic_id": topic.topic_id,
                "topic_name": topic.topic_name,
                "partitions": topic.partitions,
            }
            for topic in topics
        ]
    }
