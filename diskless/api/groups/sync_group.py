"""SyncGroup, key 14, versions 0-5: gives a member of a classic group its assignment.

The answer comes when the leader has said so and that is durable. Asks for READ on the group.
"""

from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import SyncedGroup, SyncGroup
from diskless.loop.long_work import Steps
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request

KEY: Final = 14


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        assignments = {}
        for item in asked.assignments:
            assignments[item.member_id] = item.assignment
            yield
        sync = SyncGroup(
            group_id=asked.group_id,
            generation_id=asked.generation_id,
            member_id=asked.member_id,
            instance_id=getattr(asked, "group_instance_id", None),
            protocol_type=getattr(asked, "protocol_type", None),
            protocol_name=getattr(asked, "protocol_name", None),
            assignments=assignments,
        )

        def encode(synced: SyncedGroup) -> ReplySteps:
            values = {
                "error_code": kafka_code(synced.error),
                "protocol_type": synced.protocol_type,
                "protocol_name": synced.protocol_name,
                "assignment": synced.assignment,
            }
            return encode_response(KEY, request.version, values)

        refused = access.refused_group(request.client, AclOperation.READ, sync.group_id)
        if refused is not None:
            return (yield from encode(SyncedGroup(error=refused)))
        return Deferred(groups.sync(sync), encode, None)

    return Api(key=KEY, name="SyncGroup", versions=range(6), flexible_from=4, handler=handle)
