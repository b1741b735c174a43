"""FindCoordinator, key 10, versions 0-6: names the broker that coordinates a group or a producer.

- Groups (type 0) and transactional ids (type 1): the broker that leads the metadata partition that
  the name belongs to. COORDINATOR_NOT_AVAILABLE while nobody leads it, or where that broker does
  not have the listener that was asked through.
- Asks for DESCRIBE on each group or transactional id.
- Share groups (type 2) and unknown types are INVALID_REQUEST.
"""

from typing import Final

from diskless.api.access import Access, Refused
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation
from diskless.groups.errors import GroupCoordinatorUnavailable
from diskless.groups.group_router import GroupRouter
from diskless.loop.long_work import Steps
from diskless.ports import BrokerEndpoint, Cluster
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from diskless.transactions.transaction_router import TransactionRouter
from wal.errors import DisklessError, InvalidRequest

KEY: Final = 10

_GROUP: Final = 0
_TRANSACTION: Final = 1
_BATCHED_FROM: Final = 4

_NOBODY: Final = BrokerEndpoint(-1, "", -1)


def api(
    cluster: Cluster, groups: GroupRouter, transactions: TransactionRouter, access: Access
) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        key_type = getattr(asked, "key_type", _GROUP)
        is_batched = request.version >= _BATCHED_FROM
        keys = asked.coordinator_keys if is_batched else [asked.key]
        refused: Refused = {}
        if key_type == _GROUP:
            refused = access.refused_groups(request.client, AclOperation.DESCRIBE, keys)
        elif key_type == _TRANSACTION:
            refused = access.refused_transactional_ids(request.client, AclOperation.DESCRIBE, keys)
        brokers = {one.node_id: one for one in cluster.brokers(request.client.listener)}

        def found(key: str, refusal: DisklessError | None) -> BrokerEndpoint | DisklessError:
            node_id: int | DisklessError
            if refusal is not None:
                node_id = refusal
            elif key_type == _GROUP:
                node_id = groups.find(key)
            elif key_type == _TRANSACTION:
                node_id = transactions.find(key)
            else:
                node_id = InvalidRequest(f"no coordinators of type {key_type}")
            if isinstance(node_id, DisklessError):
                return node_id
            return brokers.get(node_id) or GroupCoordinatorUnavailable(
                f"broker {node_id} cannot be reached through this listener now"
            )

        answers = ({"key": key, **_answer(found(key, refused.get(key)))} for key in keys)
        values: Fields = {"coordinators": answers} if is_batched else next(answers)
        return (yield from encode_response(KEY, request.version, values))

    return Api(key=KEY, name="FindCoordinator", versions=range(7), flexible_from=3, handler=handle)


def _answer(found: BrokerEndpoint | DisklessError) -> dict[str, object]:
    error = found if isinstance(found, DisklessError) else None
    broker = _NOBODY if isinstance(found, DisklessError) else found
    return {
        **error_fields(error),
        "node_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
    }
