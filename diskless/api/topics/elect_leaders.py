"""ElectLeaders, key 43, versions 0-2: elects leaders of partitions, which is never needed.

Any broker serves any partition, so each partition has a leader as long as a broker lives, and the
leader is always the preferred one.

- A partition that is named is told ELECTION_NOT_NEEDED, as in Kafka; one that there is not,
  UNKNOWN_TOPIC_OR_PARTITION. Where none is named, all are meant, and the answer has those that
  had a problem: none.
- Version 0 has preferred elections only, later ones also unclean elections.
- Asks for ALTER on the cluster. Who may not is told so for each partition, and for the whole.
"""

from typing import Final

from diskless.api.access import Access
from diskless.api.errors import ElectionNotNeeded, error_fields, kafka_code
from diskless.api.topics.named_topics import known_partition
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from wal.errors import DisklessError, InvalidRequest, UnknownPartition

KEY: Final = 43

_PREFERRED, _UNCLEAN = 0, 1


def api(topics: TopicAdmin, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        refused: DisklessError | None = access.refused_cluster(request.client, AclOperation.ALTER)
        kind = getattr(asked, "election_type", _PREFERRED)
        if refused is None and kind not in (_PREFERRED, _UNCLEAN):
            refused = InvalidRequest(f"Unknown election type {kind}")
        results = []
        for item in asked.topic_partitions or ():
            rows = []
            for index in item.partitions:
                error = refused or _why_not(topics, item.topic, index)
                rows.append({"partition_id": index, **error_fields(error)})
                yield
            results.append({"topic": item.topic, "partition_result": rows})
            yield
        answer = {"error_code": kafka_code(refused), "replica_election_results": results}
        return (yield from encode_response(KEY, request.version, answer))

    return Api(key=KEY, name="ElectLeaders", versions=range(3), flexible_from=2, handler=handle)


def _why_not(topics: TopicAdmin, name: str, index: int) -> DisklessError:
    try:
        known_partition(topics, name, index)
    except UnknownPartition as error:
        return error
    return ElectionNotNeeded("any broker serves the partition")
