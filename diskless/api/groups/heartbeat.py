"""Heartbeat, key 12, versions 0-4: a member of a classic group says that it is alive.

A coordinator that has not been certain for some seconds to be one still asks the metadata log
before it answers. If it cannot find out, it has heard the heartbeat and answers
COORDINATOR_NOT_AVAILABLE, where Apache Kafka would confirm it. Asks for READ on the group.
"""

from collections.abc import Awaitable
from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import GroupHeartbeat
from diskless.loop.long_work import Steps
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError

KEY: Final = 12


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        def encode(error: DisklessError | None) -> ReplySteps:
            return encode_response(KEY, request.version, {"error_code": kafka_code(error)})

        asked = yield from decode_request(KEY, request.version, request.body)
        refused = access.refused_group(request.client, AclOperation.READ, asked.group_id)
        if refused is not None:
            return (yield from encode(refused))
        answer = groups.heartbeat(
            GroupHeartbeat(
                group_id=asked.group_id,
                generation_id=asked.generation_id,
                member_id=asked.member_id,
                instance_id=getattr(asked, "group_instance_id", None),
            )
        )
        if isinstance(answer, Awaitable):
            return Deferred(answer, encode, None)
        return (yield from encode(answer))

    return Api(key=KEY, name="Heartbeat", versions=range(5), flexible_from=4, handler=handle)
