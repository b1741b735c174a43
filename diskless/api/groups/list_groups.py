"""ListGroups, key 16, versions 0-5: the groups this broker coordinates; clients ask every broker.

Version 4 filters by state, version 5 by type ("classic" or "consumer"); case does not matter.
Who may not DESCRIBE the cluster sees the groups that it may DESCRIBE.
"""

from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.loop.long_work import Steps
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from wal.errors import DisklessError

KEY: Final = 16


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        listed = yield from groups.list_groups(
            states=getattr(asked, "states_filter", ()), types=getattr(asked, "types_filter", ())
        )
        client, describe = request.client, AclOperation.DESCRIBE
        if not access.may_cluster(client, describe) and not isinstance(listed, DisklessError):
            hidden = access.hidden_groups(client, describe, [group.group_id for group in listed])
            listed = [group for group in listed if group.group_id not in hidden]
        values: Fields
        if isinstance(listed, DisklessError):
            values = {"error_code": kafka_code(listed), "groups": []}
        else:
            values = {
                "error_code": 0,
                "groups": (
                    {
                        "group_id": group.group_id,
                        "protocol_type": group.protocol_type,
                        "group_state": group.state,
                        "group_type": group.group_type,
                    }
                    for group in listed
                ),
            }
        return (yield from encode_response(KEY, request.version, values))

    return Api(key=KEY, name="ListGroups", versions=range(6), flexible_from=3, handler=handle)
