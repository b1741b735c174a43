"""DescribeUserScramCredentials, key 50, version 0: who has SCRAM credentials, and of what kind.

- Nothing of a password is told but the number of iterations.
- A user that is named and unknown is RESOURCE_NOT_FOUND, one that is named twice
  DUPLICATE_RESOURCE, each for itself. No names, or null: all users, in the order of their names.
- Asks for DESCRIBE on the cluster, whose refusal concerns the whole request. As in Kafka it is
  told once more for each user that was named, without the name.
"""

from collections import Counter
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.errors import DuplicateResource, ResourceNotFound, error_fields
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import ScramAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from metadata.scram.credentials import ScramCredential
from wal.errors import DisklessError

KEY: Final = 50


def api(users: ScramAdmin, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        refused = access.refused_cluster(request.client, AclOperation.DESCRIBE)
        if refused is not None:
            told = error_fields(refused)
            rows = [{"user": "", **told, "credential_infos": ()} for _ in asked.users or ()]
            return (yield from encode_response(KEY, request.version, {**told, "results": rows}))
        known: dict[str, list[tuple[int, ScramCredential]]] = {}
        for (user, mechanism), credential in [*users.scram_credentials().items()]:
            known.setdefault(user, []).append((mechanism, credential))
            yield
        named = Counter(row.name for row in asked.users or ())
        results = (
            _described(user, count, known.get(user, ()))
            for user, count in (named or dict.fromkeys(sorted(known), 1)).items()
        )
        return (
            yield from encode_response(
                KEY, request.version, {**error_fields(None), "results": results}
            )
        )

    return Api(
        key=KEY,
        name="DescribeUserScramCredentials",
        versions=range(1),
        flexible_from=0,
        handler=handle,
    )


def _described(user: str, count: int, credentials: Any) -> Fields:
    error: DisklessError | None = None
    if count > 1:
        error = DuplicateResource("the user is named more than once in the request")
    elif not credentials:
        error = ResourceNotFound("the user has no SCRAM credentials")
    return {
        "user": user,
        **error_fields(error),
        "credential_infos": [
            {"mechanism": mechanism, "iterations": credential.iterations}
            for mechanism, credential in sorted(credentials, key=lambda row: row[0])
            if error is None
        ],
    }
