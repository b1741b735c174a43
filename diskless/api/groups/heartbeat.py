"""Heartbeat, key 12, versions 0-4: a member of a classic group says that it is alive.

A coordinator that cannot be certain to be one still (its lease has run out) hears the heartbeat and
answers COORDINATOR_NOT_AVAILABLE, where Apache Kafka would confirm it. Asks for READ on the group.
"""

from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import GroupHeartbeat
from diskless.loop.long_work import Steps
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request

KEY: Final = 12


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        error = access.refused_group(request.client, AclOperation.READ, asked.group_id)
        if error is None:
            error = groups.heartbeat(
                GroupHeartbeat(
                    group_id=asked.group_id,
                    generation_id=asked.generation_id,
                    member_id=asked.member_id,
                    instance_id=getattr(asked, "group_instance_id", None),
                )
            )
        return (yield from encode_response(KEY, request.version, {"error_code": kafka_code(error)}))

    return Api(key=KEY, name="Heartbeat", versions=range(5), flexible_from=4, handler=handle)
