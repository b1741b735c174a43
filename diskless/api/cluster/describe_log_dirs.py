"""DescribeLogDirs, key 35, versions 1-4: how large partitions are.

- There is one directory, the object store; it has no size, and no room that could run out.
- A broker names the partitions that Metadata says are its own to this client. So a partition is
  there once when the answers of all brokers are added up.
- Asks for DESCRIBE on the cluster. Versions 1 and 2 have no place for the error: nothing is shown.
- A partition's size is that of its live data in WAL objects and segments, as this broker has heard.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import ClientInfo, Cluster, StoredPartitions, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from metadata.operations import METADATA_TOPIC_ID, TopicDescription
from wal.coordinates import TopicIdPartition

KEY: Final = 35

_UNKNOWN_BYTES: Final = -1

_Wanted = tuple[TopicDescription, Sequence[int]]
"""A topic and which of its partitions; what there is not is left out."""


def api(cluster: Cluster, topics: TopicAdmin, stored: StoredPartitions, access: Access) -> Api:
    def rows(
        topic: TopicDescription, wanted: Sequence[int], client: ClientInfo
    ) -> Steps[Sequence[Fields]]:
        found = []
        for index in wanted:
            yield
            if not 0 <= index < topic.partition_count:
                continue
            if cluster.leader_of(topic.topic_id, index, client) != cluster.node_id:
                continue
            size_bytes = stored.size_bytes(TopicIdPartition(topic.topic_id, index))
            if size_bytes is not None:
                found.append(
                    {
                        "partition_index": index,
                        "partition_size": size_bytes,
                        "offset_lag": 0,
                        "is_future_key": False,
                    }
                )
        return found

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        refused = access.refused_cluster(request.client, AclOperation.DESCRIBE)
        if refused is not None:
            values = {"error_code": kafka_code(refused), "results": ()}
            return (yield from encode_response(KEY, request.version, values))
        described = []
        names = sorted(topics.topics()) if asked.topics is None else ()
        for topic, wanted in chain(_all(topics, names), _wanted(topics, asked.topics or ())):
            partitions = yield from rows(topic, wanted, request.client)
            if partitions:
                described.append({"name": topic.name, "partitions": partitions})
            yield
        directory = {
            "error_code": 0,
            "log_dir": stored.store_url,
            "topics": described,
            "total_bytes": _UNKNOWN_BYTES,
            "usable_bytes": _UNKNOWN_BYTES,
        }
        return (
            yield from encode_response(
                KEY, request.version, {"error_code": 0, "results": [directory]}
            )
        )

    return Api(
        key=KEY, name="DescribeLogDirs", versions=range(1, 5), flexible_from=2, handler=handle
    )


def _all(topics: TopicAdmin, names: Iterable[str]) -> Iterator[_Wanted]:
    for name in names:
        topic = topics.topics().get(name)
        if topic is not None and topic.topic_id != METADATA_TOPIC_ID:
            yield topic, range(topic.partition_count)


def _wanted(topics: TopicAdmin, asked: Iterable[Any]) -> Iterator[_Wanted]:
    for item in asked:
        topic = topics.topics().get(item.topic)
        if topic is not None:
            yield topic, item.partitions
