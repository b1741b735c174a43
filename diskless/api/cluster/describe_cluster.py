"""DescribeCluster, key 60, versions 0-1: cluster id, controller and live brokers.

Every broker takes what Kafka's controllers take, and there are no controller endpoints besides:
asked for those, the answer is UNSUPPORTED_ENDPOINT_TYPE. Everybody may ask, as in Kafka; authorized
operations are told to who may DESCRIBE the cluster.
"""

from typing import Final

from diskless.api.access import NOT_ASKED, Access
from diskless.api.errors import UnsupportedEndpointType, error_fields
from diskless.loop.long_work import Steps
from diskless.ports import Cluster
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request

KEY: Final = 60

_BROKERS: Final = 1


def api(cluster: Cluster, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        endpoint_type = getattr(asked, "endpoint_type", _BROKERS)
        error = None
        if endpoint_type != _BROKERS:
            error = UnsupportedEndpointType(f"no endpoints of type {endpoint_type}")
        operations = NOT_ASKED
        if asked.include_cluster_authorized_operations:
            operations = access.cluster_operations(request.client)
        values = {
            **error_fields(error),
            "endpoint_type": endpoint_type,
            "cluster_id": cluster.cluster_id,
            "controller_id": cluster.controller_id,
            "brokers": []
            if error is not None
            else [
                {
                    "broker_id": broker.node_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                }
                for broker in cluster.brokers(request.client.listener)
            ],
            "cluster_authorized_operations": operations,
        }
        return (yield from encode_response(KEY, request.version, values))

    return Api(key=KEY, name="DescribeCluster", versions=range(2), flexible_from=0, handler=handle)
