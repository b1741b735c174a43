"""DescribeTopicPartitions, key 75, version 0: topics and partitions, a page at a time.

- Topics come in the order of their names, whatever the order of the request; none named means all.
- A page has as many partitions as the request wants, PAGE_PARTITIONS_MAX at most; the cursor names
  the first one that is not on it. A page begins where the cursor of the request says, also when
  that topic is gone meanwhile.
- Asks for DESCRIBE on each topic. Asked for all, it leaves out those that may not be described.
- Leader, replicas and epochs are as in Metadata. There are no replicas that could become eligible.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from diskless.api.access import NOT_ASKED, Access, Refused
from diskless.api.errors import kafka_code
from diskless.api.topics.named_topics import named_topic
from diskless.authorization import AclOperation, ResourceType
from diskless.loop.long_work import Steps, in_order, mapped
from diskless.ports import LEADER_EPOCH, ClientInfo, Cluster, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from diskless.topics.topic_names import is_internal
from metadata.operations import TopicDescription
from wal.errors import DisklessError, InvalidRequest

KEY: Final = 75

PAGE_PARTITIONS_MAX: Final = 2_000
"""Kafka's max.request.partition.size.limit."""


def api(cluster: Cluster, topics: TopicAdmin, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        cursor = asked.cursor
        if cursor is not None and cursor.partition_index < 0:
            refused = InvalidRequest("the cursor's partition is negative")
            absent = (_absent(item.name, refused) for item in asked.topics)
            return (
                yield from encode_response(
                    KEY, request.version, {"topics": absent, "next_cursor": None}
                )
            )
        named = yield from mapped(attrgetter("name"), asked.topics)
        names = yield from in_order(set(named) or topics.topics())
        ask = access.refused_topics if named else access.hidden_topics
        hidden = ask(request.client, AclOperation.DESCRIBE, names)
        if hidden and not asked.topics:
            names = [name for name in names if name not in hidden]
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
        left = max(min(asked.response_partition_limit, PAGE_PARTITIONS_MAX), 1)
        rows: list[Fields] = []
        next_cursor: Mapping[str, Any] | None = None
        for name in names:
            yield
            if left <= 0:
                next_cursor = {"topic_name": name, "partition_index": 0}
                break
            try:
                if name in hidden:
                    raise hidden[name]
                topic = named_topic(topics, name)
            except DisklessError as error:
                rows.append(_absent(name, error))
                continue
            is_continued = cursor is not None and cursor.topic_name == name
            first = cursor.partition_index if is_continued else 0
            end = min(first + left, topic.partition_count)
            rows.append(_topic(cluster, request.client, topic, range(first, end)))
            left -= max(end - first, 0)
            if end < topic.partition_count:
                next_cursor = {"topic_name": name, "partition_index": end}
                break
        allowed = (_with_operations(access, request.client, row, hidden) for row in rows)
        values = {"topics": allowed, "next_cursor": next_cursor}
        return (yield from encode_response(KEY, request.version, values))

    return Api(
        key=KEY, name="DescribeTopicPartitions", versions=range(1), flexible_from=0, handler=handle
    )


def _with_operations(access: Access, client: ClientInfo, row: Fields, hidden: Refused) -> Fields:
    name = row["name"]
    operations = NOT_ASKED
    if name not in hidden:
        operations = access.operations(client, ResourceType.TOPIC, (name,))[name]
    return {**row, "topic_authorized_operations": operations}


def _absent(name: str, error: DisklessError) -> Fields:
    return {
        "error_code": kafka_code(error),
        "name": name,
        "topic_id": None,
        "is_internal": is_internal(name),
        "partitions": [],
    }


def _topic(
    cluster: Cluster, client: ClientInfo, topic: TopicDescription, indexes: Sequence[int]
) -> Fields:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": (_partition(cluster, client, topic, index) for index in indexes),
    }


def _partition(cluster: Cluster, client: ClientInfo, topic: TopicDescription, index: int) -> Fields:
    replicas = cluster.replicas_of(topic.topic_id, index, client)
    return {
        "error_code": 0,
        "partition_index": index,
        "leader_id": replicas[0],
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": replicas,
        "isr_nodes": replicas,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": (),
    }
