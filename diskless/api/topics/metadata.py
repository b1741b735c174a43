"""Metadata, key 3, versions 0-13: brokers, topics and which broker to use for each partition.

- Every broker can serve every partition. The "leader" a client is told is chosen for that client
  (rack, then a stable hash); its epoch is always 0. Replicas are the leader and a broker of each
  other rack: whom consumers may be sent to (diskless/cluster/reader_routing.py). All are in sync.
- Any broker takes administrative requests; the controller named is a live one.
- Unknown topics are created when the request and `auto.create.topics.enable` allow it, and are
  answered with their partitions at once: there is no election to wait for.
- The metadata topic is listed as an internal one, whatever is asked for; nobody produces to it.
- Asks for DESCRIBE on each topic; an answer about all topics leaves out those that may not be
  described. Creating one takes CREATE on it, or on the cluster.
- From version 9 on each partition has a tagged field of ours, PreferredProduceBrokers (tag 10000,
  array of int32): the produce gateways for this client, best first (metadata/clients/produce_gateways.py).
  KIP-1163 proposes the field but no released schema has it; clients skip a tag they do not know.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from diskless.api.access import NOT_ASKED, Access, Refused
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation, ResourceType
from diskless.ports import LEADER_EPOCH, ClientInfo, Cluster, TopicAdmin
from diskless.protocol.messages import EXTRA_TAGS, Fields, decode_request, encode_response
from diskless.protocol.wire import INT32, unsigned_varint
from diskless.server.registry import Api, Reply, Request
from diskless.topics.topic_names import check_collision, check_topic_name, is_internal
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


_NO_NAME_FROM: Final = 12
"""Answers have names that may be null; requests have had them since version 10, with ids."""


class _Asked(NamedTuple):
    """One topic of a request: by name, or by id."""

    name: str | None
    topic_id: UUID | None

    @property
    def key(self) -> str | UUID | None:
        return self.topic_id if self.name is None else self.name


def api(cluster: Cluster, topics: TopicAdmin, access: Access) -> Api:
    async def create_then_answer(
        request: Request, asked: Any, hidden: Refused, refused: Refused, missing: list[str]
    ) -> Reply:
        refused = {**refused, **await _create(topics, missing)}
        return _reply(cluster, topics, access, request, asked, hidden, refused)

    def handle(request: Request) -> Any:
        asked = decode_request(KEY, request.version, request.body)
        hidden = _hidden(topics, access, request, asked)
        missing = _to_create(topics, request.version, asked, hidden)
        create = AclOperation.CREATE
        refused = access.refused_topics(request.client, create, missing, or_cluster=create)
        missing = [name for name in missing if name not in refused]
        if missing:
            return create_then_answer(request, asked, hidden, refused, missing)
        return _reply(cluster, topics, access, request, asked, hidden, refused)

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


def _hidden(topics: TopicAdmin, access: Access, request: Request, asked: Any) -> Refused:
    """What may not be described, as the request names it."""
    client, describe = request.client, AclOperation.DESCRIBE
    wanted = _asked_topics(request.version, asked)
    if wanted is None:
        return access.refused_topics(client, describe, topics.topics())
    named = [item.key for item in wanted if item.key is not None]
    return access.refused_named(client, describe, named, topics)


def _to_create(topics: TopicAdmin, version: int, asked: Any, hidden: Refused) -> list[str]:
    wanted = _asked_topics(version, asked)
    if wanted is None or not topics.auto_create_enabled:
        return []
    if not getattr(asked, "allow_auto_topic_creation", True):
        return []
    known = topics.topics()
    names = [item.name for item in wanted if item.name is not None]
    return [name for name in names if name not in known and name not in hidden]


async def _create(topics: TopicAdmin, names: Sequence[str]) -> Refused:
    """Create topics with the defaults; gives the names that could not be, and why."""
    refused: dict[Hashable, DisklessError] = {}
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
    access: Access,
    request: Request,
    asked: Any,
    hidden: Refused,
    refused: Refused,
) -> Reply:
    """`hidden` may not be described, `refused` could not be created."""
    version = request.version
    wanted = _asked_topics(version, asked)
    known = topics.topics()
    if wanted is None:
        names = [name for name in sorted(known) if name not in hidden]
        rows = [_topic(cluster, request.client, known[name]) for name in names]
    else:
        rows = [_wanted_topic(cluster, topics, request, item, hidden, refused) for item in wanted]
    if getattr(asked, "include_topic_authorized_operations", False):
        shown = [row["name"] for row in rows if not row["error_code"]]
        operations = access.operations(request.client, ResourceType.TOPIC, shown)
        rows = [
            {**row, "topic_authorized_operations": operations.get(row["name"], NOT_ASKED)}
            for row in rows
        ]
    cluster_operations = NOT_ASKED
    if getattr(asked, "include_cluster_authorized_operations", False):
        cluster_operations = access.cluster_operations(request.client)
    values = {
        "brokers": [broker._asdict() for broker in cluster.brokers()],
        "error_code": 0,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": rows,
        "cluster_authorized_operations": cluster_operations,
    }
    return [encode_response(KEY, version, values)]


def _wanted_topic(
    cluster: Cluster,
    topics: TopicAdmin,
    request: Request,
    asked: _Asked,
    hidden: Refused,
    refused: Refused,
) -> Fields:
    error: DisklessError
    if asked.key in hidden:
        topic = None
        error = hidden[asked.key]
    elif asked.name is not None:
        topic = topics.topics().get(asked.name)
        error = refused.get(asked.name) or _absence(asked.name)
    elif asked.topic_id is not None:
        topic = topics.topic_by_id(asked.topic_id)
        error = UnknownTopicId()
    else:
        topic = None
        error = InvalidRequest()
    if topic is not None:
        return _topic(cluster, request.client, topic)
    no_name = None if request.version >= _NO_NAME_FROM else ""
    return {
        "error_code": kafka_code(error),
        "name": no_name if asked.name is None else asked.name,
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


def _topic(cluster: Cluster, client: ClientInfo, topic: TopicDescription) -> Fields:
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
    }


def _gateways(
    cluster: Cluster, client: ClientInfo, topic_id: UUID, partition: int
) -> Mapping[int, bytes]:
    preferred = cluster.preferred_produce_brokers(topic_id, partition, client)
    if not preferred:
        return {}
    ids = b"".join([INT32.pack(broker) for broker in preferred])
    return {PREFERRED_PRODUCE_BROKERS_TAG: unsigned_varint(len(preferred) + 1) + ids}
