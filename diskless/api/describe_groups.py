"""DescribeGroups, key 15, versions 0-6: every group that was asked for is in the answer.

- A group that is not there is GROUP_ID_NOT_FOUND from version 6 on, before that it is "Dead".
- Without an authorizer, everything is allowed: asked for authorized operations, it lists all.
- Metadata and assignments of members are there while the group is stable.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from diskless.api.errors import error_message, kafka_code
from diskless.api.metadata import NOT_ASKED
from diskless.api.registry import Api, Deferred, Reply, Request
from diskless.groups.errors import GroupIdNotFound
from diskless.ports import DescribedGroup, GroupCoordinator
from diskless.protocol.messages import Fields, decode_request, encode_response

KEY: Final = 15

GROUP_OPERATIONS: Final = sum(1 << code for code in (3, 6, 8))
"""Read, delete, describe."""

_NOT_FOUND_FROM: Final = 6


def api(groups: GroupCoordinator) -> Api:
    def handle(request: Request) -> Deferred:
        version = request.version
        asked = decode_request(KEY, version, request.body)
        include_operations = getattr(asked, "include_authorized_operations", False)
        operations = GROUP_OPERATIONS if include_operations else NOT_ASKED

        def encode(described: Sequence[DescribedGroup]) -> Reply:
            answers = [_group(group, version, operations) for group in described]
            return [encode_response(KEY, version, {"groups": answers})]

        return Deferred(asyncio.gather(*map(groups.describe, asked.groups)), encode, None)

    return Api(
        key=KEY,
        name="DescribeGroups",
        min_version=0,
        max_version=6,
        flexible_from=5,
        handler=handle,
    )


def _group(group: DescribedGroup, version: int, operations: int) -> Fields:
    error = group.error
    if isinstance(error, GroupIdNotFound) and version < _NOT_FOUND_FROM:
        error = None
    elif error is not None and not isinstance(error, GroupIdNotFound):
        group = group._replace(state="")
    return {
        "error_code": kafka_code(error),
        "error_message": error_message(error),
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": NOT_ASKED if group.error else operations,
    }
