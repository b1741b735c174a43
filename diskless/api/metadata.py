"""Metadata, key 3, versions 0-13: brokers, topics and which broker to use for each partition.

- Every broker can serve every partition. The "leader" a client is told is chosen for that client
  (rack, then a stable hash); its epoch is always 0. Replicas are the leader and a broker of each
  other rack: whom consumers may be sent to (diskless/reader_routing.py). All are in sync.
- Any broker takes administrative requests; the controller named is a live one.
- Unknown topics are created when the request and `auto.create.topics.enable` allow it, and are
  answered with their partitions at once: there is no election to wait for.
- The metadata topic is listed as an internal one, whatever is asked for; nobody produces to it.
- Without an authorizer, everything is allowed: asked for authorized operations, it lists all.
- From version 9 on each partition has a tagged field of ours, PreferredProduceBrokers (tag 10000,
  array of int32): the produce gateways for this client, best first (metadata/produce_gateways.py).
  KIP-1163 proposes the field but no released schema has it; clients skip a tag they do not know.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from diskless.api.errors import kafka_code
from diskless.api.registry import Api, Reply, Request
from diskless.ports import LEADER_EPOCH, ClientInfo, Cluster, TopicAdmin
from diskless.protocol.messages import EXTRA_TAGS, Fields, decode_request, encode_response
from diskless.protocol.wire import INT32, unsigned_varint
from diskless.topic_names import check_collision, check_topic_name, is_internal
from metadata.operations import CreateTopic, TopicDescription
from wal.errors import (
    DisklessError,
    InvalidRequest,
    InvalidTopic,
    TopicExists,
    UnknownPartition,
    UnknownTopicId,
)

KEY: Final = 3

PREFERRED_PRODUCE_BROKERS_TAG: Final = 10_000
"""Tagged field of a partition: compact array of int32."""

NOT_ASKED: Final = -(2**31)
"""Authorized operations when the request did not ask for them."""

TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe configs, alter configs."""

CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""Create, alter, describe, cluster action, describe configs, alter configs, idempotent write."""


class _Asked(NamedTuple):
    """One topic of a request: by name, or by id."""

    name: str | None
    topic_id: UUID | None


def api(cluster: Cluster, topics: TopicAdmin) -> Api:
    async def create_then_answer(request: Request, asked: Any, missing: list[str]) -> Reply:
        refused = await _create(topics, missing)
        return _reply(cluster, topics, request, asked, refused)

    def handle(request: Request) -> Any:
        asked = decode_request(KEY, request.version, request.body)
        missing = _to_create(topics, request.version, asked)
        if missing:
            return create_then_answer(request, asked, missing)
        return _reply(cluster, topics, request, asked, {})

    return Api(
        key=KEY, name="Metadata", min_version=0, max_version=13, flexible_from=9, handler=handle
    )


def _asked_topics(version: int, asked: Any) -> list[_Asked] | None:
    """The topics of a request in its order, once each; None for all."""
    if asked.topics is None or (version == 0 and not asked.topics):
        return None
    unique = {_asked_topic(item): None for item in asked.topics}
    return list(unique)


def _asked_topic(item: Any) -> _Asked:
    """An id goes before a name: Java's admin client sends an empty name with it."""
    topic_id = getattr(item, "topic_id", None)
    return _Asked(item.name if topic_id is None else None, topic_id)


def _to_create(topics: TopicAdmin, version: int, asked: Any) -> list[str]:
    wanted = _asked_topics(version, asked)
    if wanted is None or not topics.auto_create_enabled:
        return []
    if not getattr(asked, "allow_auto_topic_creation", True):
        return []
    known = topics.topics()
    return [item.name for item in wanted if item.name is not None and item.name not in known]


async def _create(topics: TopicAdmin, names: Sequence[str]) -> Mapping[str, DisklessError]:
    """Create topics with the defaults; gives the names that could not be, and why."""
    refused: dict[str, DisklessError] = {}
    creations = []
    for name in names:
        try:
            check_topic_name(name)
            check_collision(name, topics.topics())
        except InvalidTopic as error:
            refused[name] = error
        else:
            creations.append(CreateTopic(name=name, partition_count=topics.default_partition_count))
    if not creations:
        return refused
    try:
        results: Sequence[TopicDescription | DisklessError] = await topics.create_topics(creations)
    except DisklessError as error:
        results = [error] * len(creations)
    for creation, result in zip(creations, results, strict=True):
        # Somebody else may have created it meanwhile; then it is there, which is all we want.
        if isinstance(result, DisklessError) and not isinstance(result, TopicExists):
            refused[creation.name] = result
    return refused


def _reply(
    cluster: Cluster,
    topics: TopicAdmin,
    request: Request,
    asked: Any,
    refused: Mapping[str, DisklessError],
) -> Reply:
    version = request.version
    wanted = _asked_topics(version, asked)
    known = topics.topics()
    operations = (
        TOPIC_OPERATIONS
        if getattr(asked, "include_topic_authorized_operations", False)
        else NOT_ASKED
    )
    if wanted is None:
        rows = [_topic(cluster, request.client, known[name], operations) for name in sorted(known)]
    else:
        rows = [
            _wanted_topic(cluster, topics, request.client, item, operations, refused)
            for item in wanted
        ]
    include_cluster = getattr(asked, "include_cluster_authorized_operations", False)
    values = {
        "brokers": [broker._asdict() for broker in cluster.brokers()],
        "error_code": 0,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": rows,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if include_cluster else NOT_ASKED,
    }
    return [encode_response(KEY, version, values)]


def _wanted_topic(
    cluster: Cluster,
    topics: TopicAdmin,
    client: ClientInfo,
    asked: _Asked,
    operations: int,
    refused: Mapping[str, DisklessError],
) -> Fields:
    error: DisklessError
    if asked.name is not None:
        topic = topics.topics().get(asked.name)
        error = refused.get(asked.name) or _absence(asked.name)
    elif asked.topic_id is not None:
        topic = topics.topic_by_id(asked.topic_id)
        error = UnknownTopicId()
    else:
        topic = None
        error = InvalidRequest()
    if topic is not None:
        return _topic(cluster, client, topic, operations)
    return {
        "error_code": kafka_code(error),
        "name": asked.name,
        "topic_id": asked.topic_id,
        "is_internal": False,
        "partitions": [],
    }


def _absence(name: str) -> DisklessError:
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        return error
    return UnknownPartition()


def _topic(
    cluster: Cluster, client: ClientInfo, topic: TopicDescription, operations: int
) -> Fields:
    partitions = []
    internal = is_internal(topic.name)
    for partition in range(topic.partition_count):
        replicas = cluster.replicas_of(topic.topic_id, partition, client)
        partitions.append(
            {
                "error_code": 0,
                "partition_index": partition,
                "leader_id": replicas[0],
                "leader_epoch": LEADER_EPOCH,
                "replica_nodes": replicas,
                "isr_nodes": replicas,
                EXTRA_TAGS: {}
                if internal
                else _gateways(cluster, client, topic.topic_id, partition),
            }
        )
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": internal,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }


def _gateways(
    cluster: Cluster, client: ClientInfo, topic_id: UUID, partition: int
) -> Mapping[int, bytes]:
    preferred = cluster.preferred_produce_brokers(topic_id, partition, client)
    if not preferred:
        return {}
    ids = b"".join([INT32.pack(broker) for broker in preferred])
    return {PREFERRED_PRODUCE_BROKERS_TAG: unsigned_varint(len(preferred) + 1) + ids}
