"""JoinGroup, key 11, versions 0-9: a member enters the next generation of its classic group.

- The answer comes when the generation begins, which may be minutes later.
- Version 0 has no rebalance timeout; it is the session timeout then.
- Asks for READ on the group.
- Errors have no text in any version.
"""

from datetime import timedelta
from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import GroupProtocol, JoinedGroup, JoinGroup
from diskless.loop.long_work import Steps, collected
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request

KEY: Final = 11

_MEMBER_ID_NEEDED_FROM: Final = 4
_PROTOCOL_NULLABLE_FROM: Final = 7
_ASSIGNMENT_SKIPPED_FROM: Final = 9
_MS: Final = timedelta(milliseconds=1)


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)
        protocols = yield from collected(
            GroupProtocol(item.name, item.metadata) for item in asked.protocols
        )
        join = JoinGroup(
            group_id=asked.group_id,
            member_id=asked.member_id,
            instance_id=getattr(asked, "group_instance_id", None),
            session_timeout_ms=asked.session_timeout // _MS,
            rebalance_timeout_ms=getattr(asked, "rebalance_timeout", asked.session_timeout) // _MS,
            protocol_type=asked.protocol_type,
            protocols=protocols,
            needs_member_id=version >= _MEMBER_ID_NEEDED_FROM,
            may_skip_assignment=version >= _ASSIGNMENT_SKIPPED_FROM,
            reason=getattr(asked, "reason", None) or "",
        )

        def encode(joined: JoinedGroup) -> ReplySteps:
            no_name = None if version >= _PROTOCOL_NULLABLE_FROM else ""
            values = {
                "error_code": kafka_code(joined.error),
                "generation_id": joined.generation_id,
                "protocol_type": joined.protocol_type,
                "protocol_name": no_name if joined.protocol_name is None else joined.protocol_name,
                "leader": joined.leader,
                "skip_assignment": joined.skip_assignment,
                "member_id": joined.member_id,
                "members": (
                    {
                        "member_id": member.member_id,
                        "group_instance_id": member.instance_id,
                        "metadata": member.metadata,
                    }
                    for member in joined.members
                ),
            }
            return encode_response(KEY, version, values)

        refused = access.refused_group(request.client, AclOperation.READ, join.group_id)
        if refused is not None:
            return (yield from encode(JoinedGroup(error=refused)))
        return Deferred(groups.join(join, request.client), encode, None)

    return Api(key=KEY, name="JoinGroup", versions=range(10), flexible_from=6, handler=handle)
