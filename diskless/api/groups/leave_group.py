"""LeaveGroup, key 13, versions 0-5: members leave; from version 3 on several, each with its error.

Asks for READ on the group.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import LeavingMember
from diskless.loop.long_work import PORTION_ROWS, Steps, batched, collected
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError

KEY: Final = 13

_MANY_MEMBERS_FROM: Final = 3


def api(groups: GroupRouter, access: Access) -> Api:
    async def left(
        group_id: str, leaving: Sequence[LeavingMember]
    ) -> DisklessError | Sequence[DisklessError | None]:
        errors: list[DisklessError | None] = []
        for some in batched(leaving, PORTION_ROWS):
            outcome = await groups.leave(group_id, some)
            if isinstance(outcome, DisklessError):
                return outcome
            errors += outcome
            await asyncio.sleep(0)
        return errors

    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)
        names_many = version >= _MANY_MEMBERS_FROM
        if names_many:
            leaving = yield from collected(
                LeavingMember(
                    item.member_id, item.group_instance_id, getattr(item, "reason", None) or ""
                )
                for item in asked.members
            )
        else:
            leaving = [LeavingMember(asked.member_id, None, "")]

        def encode(left: DisklessError | Sequence[DisklessError | None]) -> ReplySteps:
            values: Fields
            if isinstance(left, DisklessError):
                values = {"error_code": kafka_code(left), "members": []}
            elif names_many:
                members = (
                    {
                        "member_id": member.member_id,
                        "group_instance_id": member.instance_id,
                        "error_code": kafka_code(error),
                    }
                    for member, error in zip(leaving, left, strict=True)
                )
                values = {"error_code": 0, "members": members}
            else:
                values = {"error_code": kafka_code(left[0])}
            return encode_response(KEY, version, values)

        refused = access.refused_group(request.client, AclOperation.READ, asked.group_id)
        if refused is not None:
            return (yield from encode(refused))
        return Deferred(left(asked.group_id, leaving), encode, None)

    return Api(key=KEY, name="LeaveGroup", versions=range(6), flexible_from=4, handler=handle)
