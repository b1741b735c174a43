"""DescribeGroups, key 15, versions 0-6: every group that was asked for is in the answer.

- A group that is not there is GROUP_ID_NOT_FOUND from version 6 on. Before that it is "Dead", with
  the operations that are allowed on its name, as Kafka answers.
- Asks for DESCRIBE on each group.
- Metadata and assignments of members are there while the group is stable.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from diskless.api.access import NOT_ASKED, Access, allowed_rows
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation, ResourceType
from diskless.groups.errors import GroupIdNotFound
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import DescribedGroup
from diskless.loop.long_work import Steps, gathered
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request

KEY: Final = 15

_NOT_FOUND_FROM: Final = 6


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)
        include_operations = getattr(asked, "include_authorized_operations", False)
        refused = access.refused_groups(request.client, AclOperation.DESCRIBE, asked.groups)
        rows = allowed_rows(asked.groups, str, refused)
        operations: Mapping[str, int] = {}
        if include_operations:
            operations = access.operations(request.client, ResourceType.GROUP, rows.allowed)

        def encode(described: Sequence[DescribedGroup]) -> ReplySteps:
            described = rows.merged(
                described, lambda group_id, error: DescribedGroup(group_id, error=error)
            )
            answers = (
                _group(group, version, operations.get(group.group_id, NOT_ASKED))
                for group in described
            )
            return encode_response(KEY, version, {"groups": answers})

        return Deferred(gathered(groups.describe, rows.allowed), encode, None)

    return Api(key=KEY, name="DescribeGroups", versions=range(7), flexible_from=5, handler=handle)


def _group(group: DescribedGroup, version: int, operations: int) -> Fields:
    error = group.error
    if isinstance(error, GroupIdNotFound) and version < _NOT_FOUND_FROM:
        error = None
    elif error is not None and not isinstance(error, GroupIdNotFound):
        group = group._replace(state="")
    return {
        **error_fields(error),
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": (
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ),
        "authorized_operations": NOT_ASKED if error else operations,
    }
