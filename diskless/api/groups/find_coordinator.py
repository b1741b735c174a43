"""FindCoordinator, key 10, versions 0-6: names the broker that coordinates a group.

- Groups (type 0): the broker that leads the metadata partition the group belongs to.
  COORDINATOR_NOT_AVAILABLE while nobody leads it.
- Transactions (type 1) are not served; naming this broker lets clients get a clear answer from the
  API they go on with, instead of looking for a coordinator for ever.
- Asks for DESCRIBE on each group.
- Share groups (type 2) and unknown types are INVALID_REQUEST.
"""

from typing import Final

from diskless.api.access import Access, Refused
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.loop.long_work import Steps
from diskless.ports import BrokerEndpoint, Cluster
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from wal.errors import DisklessError, InvalidRequest

KEY: Final = 10

_GROUP: Final = 0
_TRANSACTION: Final = 1
_BATCHED_FROM: Final = 4

_NOBODY: Final = BrokerEndpoint(-1, "", -1)


def api(cluster: Cluster, groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        key_type = getattr(asked, "key_type", _GROUP)
        is_batched = request.version >= _BATCHED_FROM
        keys = asked.coordinator_keys if is_batched else [asked.key]
        refused: Refused = {}
        if key_type == _GROUP:
            refused = access.refused_groups(request.client, AclOperation.DESCRIBE, keys)
        answers = (
            {"key": key, **_answer(cluster, groups, key, key_type, refused.get(key))}
            for key in keys
        )
        values: Fields = {"coordinators": answers} if is_batched else next(answers)
        return (yield from encode_response(KEY, request.version, values))

    return Api(key=KEY, name="FindCoordinator", versions=range(7), flexible_from=3, handler=handle)


def _answer(
    cluster: Cluster,
    groups: GroupRouter,
    key: str,
    key_type: int,
    refused: DisklessError | None,
) -> dict[str, object]:
    found: BrokerEndpoint | DisklessError
    if refused is not None:
        found = refused
    elif key_type == _GROUP:
        found = groups.find(key)
    elif key_type == _TRANSACTION:
        found = next(item for item in cluster.brokers() if item.node_id == cluster.node_id)
    else:
        found = InvalidRequest(f"no coordinators of type {key_type}")
    error = found if isinstance(found, DisklessError) else None
    broker = _NOBODY if isinstance(found, DisklessError) else found
    return {
        **error_fields(error),
        "node_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
    }
