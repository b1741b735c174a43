"""FindCoordinator, key 10, versions 0-6: always this broker.

- Groups (type 0) and transactions (type 1) are not served yet; naming this broker lets clients get
  a clear answer from the API they go on with, instead of looking for a coordinator for ever.
- Share groups (type 2) and unknown types are INVALID_REQUEST.
"""

from typing import Final

from diskless.api.errors import error_message, kafka_code
from diskless.api.registry import Api, Reply, Request
from diskless.ports import BrokerEndpoint, Cluster
from diskless.protocol.messages import Fields, decode_request, encode_response
from wal.errors import InvalidRequest

KEY: Final = 10

_GROUP: Final = 0
_TRANSACTION: Final = 1
_BATCHED_FROM: Final = 4

_NOBODY: Final = BrokerEndpoint(-1, "", -1)


def api(cluster: Cluster) -> Api:
    def handle(request: Request) -> Reply:
        asked = decode_request(KEY, request.version, request.body)
        answer = _answer(cluster, getattr(asked, "key_type", _GROUP))
        if request.version >= _BATCHED_FROM:
            values: Fields = {
                "coordinators": [{"key": key, **answer} for key in asked.coordinator_keys]
            }
        else:
            values = answer
        return [encode_response(KEY, request.version, values)]

    return Api(
        key=KEY,
        name="FindCoordinator",
        min_version=0,
        max_version=6,
        flexible_from=3,
        handler=handle,
    )


def _answer(cluster: Cluster, key_type: int) -> dict[str, object]:
    error = None
    broker = _NOBODY
    if key_type in (_GROUP, _TRANSACTION):
        broker = next(item for item in cluster.brokers() if item.node_id == cluster.node_id)
    else:
        error = InvalidRequest(f"no coordinators of type {key_type}")
    return {
        "error_code": kafka_code(error),
        "error_message": error_message(error),
        "node_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
    }
