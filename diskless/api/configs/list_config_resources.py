"""ListConfigResources, key 74, versions 0-1: what has configs that can be asked for by name.

- Topics and the live brokers, of the types that are asked for; of all, when none is named.
- Loggers, client metrics and groups are listed as the empty lists they are: nothing has configs of
  its own of those kinds here. Version 0 asks for client metrics alone.
- Asks for DESCRIBE_CONFIGS on the cluster.
- A type that Kafka does not list either is UNSUPPORTED_VERSION, as there.
"""

from collections.abc import Iterable
from typing import Final

from diskless.api.access import Access
from diskless.api.configs.config_resources import BROKER, GROUP, TOPIC, UNSERVED
from diskless.api.errors import UnsupportedVersion, kafka_code
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import Cluster, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request

KEY: Final = 74

_TYPES_FROM: Final = 1
_LISTED: Final = frozenset({TOPIC, BROKER, GROUP, *UNSERVED})


def api(cluster: Cluster, topics: TopicAdmin, access: Access) -> Api:
    def names_of(resource_type: int, listener: str) -> list[str]:
        if resource_type == TOPIC:
            return sorted(topics.topics())
        if resource_type == BROKER:
            return [str(broker.node_id) for broker in cluster.brokers(listener)]
        return []

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        types = set(asked.resource_types) or _LISTED if request.version >= _TYPES_FROM else set()
        resources: Iterable[Fields] = ()
        error = access.refused_cluster(request.client, AclOperation.DESCRIBE_CONFIGS)
        if error is None and types <= _LISTED:
            resources = (
                {"resource_name": name, "resource_type": resource_type}
                for resource_type in sorted(types)
                for name in names_of(resource_type, request.client.listener)
            )
        elif error is None:
            error = UnsupportedVersion(f"cannot list types {sorted(types - _LISTED)}")
        answer = {"error_code": kafka_code(error), "config_resources": resources}
        return (yield from encode_response(KEY, request.version, answer))

    return Api(
        key=KEY, name="ListConfigResources", versions=range(2), flexible_from=0, handler=handle
    )
