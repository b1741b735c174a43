"""ListPartitionReassignments, key 46, version 0: partitions that move, of which there are none.

Any broker serves any partition, so nothing is ever being reassigned: no topic is in the answer,
whether it exists or not, as in Kafka. Asks for DESCRIBE on the cluster; who may not gets the
partitions back that the request names.
"""

from typing import Final

from diskless.api.access import Access
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request

KEY: Final = 46


def api(access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        error = access.refused_cluster(request.client, AclOperation.DESCRIBE)
        topics: list[Fields] = []
        for item in (asked.topics or ()) if error is not None else ():
            rows = [{"partition_index": index} for index in item.partition_indexes]
            topics.append({"name": item.name, "partitions": rows})
            yield
        answer = {"topics": topics, **error_fields(error)}
        return (yield from encode_response(KEY, request.version, answer))

    return Api(
        key=KEY,
        name="ListPartitionReassignments",
        versions=range(1),
        flexible_from=0,
        handler=handle,
    )
