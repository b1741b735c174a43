"""DeleteGroups, key 42, versions 0-2: deletes groups without members, with their offsets.

Asks for DELETE on each group.
"""

from collections.abc import Sequence
from typing import Final

from diskless.api.access import Access, allowed_rows
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.loop.long_work import Steps, gathered
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError

KEY: Final = 42


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        names = [*dict.fromkeys(asked.groups_names)]
        refused = access.refused_groups(request.client, AclOperation.DELETE, names)
        rows = allowed_rows(names, str, refused)

        def encode(answers: Sequence[DisklessError | None]) -> ReplySteps:
            errors = rows.merged(answers, lambda _, error: error)
            answered = (
                {"group_id": name, "error_code": kafka_code(error)}
                for name, error in zip(names, errors, strict=True)
            )
            results = access.noted(
                request.client, "DeleteGroups", answered, lambda row: f"group:{row['group_id']}"
            )
            return encode_response(KEY, request.version, {"results": results})

        return Deferred(gathered(groups.delete_group, rows.allowed), encode, None)

    return Api(key=KEY, name="DeleteGroups", versions=range(3), flexible_from=2, handler=handle)
