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
  array of int32): the produce gateways for this client, best first
  (metadata/clients/produce_gateways.py). KIP-1163 proposes the field but no released schema has it;
  clients skip a tag they do not know.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from diskless.api.access import NOT_ASKED, Access, Refused
from diskless.api.answers import each_answered
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation, ResourceType
from diskless.loop.long_work import Steps, collected, in_order
from diskless.ports import LEADER_EPOCH, ClientInfo, Cluster, TopicAdmin
from diskless.protocol.messages import EXTRA_TAGS, Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, ReplySteps, Request
from diskless.topics.topic_names import TakenNames, check_topic_name, is_internal
from metadata.operations import CreateTopic, TopicDescription
from wal import errors
from wal.wire.fields import INT32, uvarint

KEY: Final = 3

PREFERRED_PRODUCE_BROKERS_TAG: Final = 10_000
"""Tagged field of a partition: compact array of int32."""


_REFUSED: Final = kafka_code(errors.TopicAuthorizationFailed())
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
        request: Request,
        asked: Any,
        wanted: list[_Asked] | None,
        hidden: Refused,
        refused: Refused,
        missing: tuple[list[CreateTopic], dict[Hashable, errors.DisklessError]],
    ) -> ReplySteps:
        refused = {**refused, **await _create(topics, *missing)}
        return _reply(cluster, topics, access, request, asked, wanted, hidden, refused)

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        wanted = yield from _asked_topics(request.version, asked)
        hidden = yield from _hidden(topics, access, request, wanted)
        missing = yield from _to_create(topics, asked, wanted, hidden)
        create = AclOperation.CREATE
        refused = access.refused_topics(request.client, create, missing, or_cluster=create)
        if refused:
            missing = [name for name in missing if name not in refused]
        if missing:
            creations = yield from _creations(topics, missing)
            return create_then_answer(request, asked, wanted, hidden, refused, creations)
        return (yield from _reply(cluster, topics, access, request, asked, wanted, hidden, refused))

    return Api(key=KEY, name="Metadata", versions=range(14), flexible_from=9, handler=handle)


def _asked_topics(version: int, asked: Any) -> Steps[list[_Asked] | None]:
    """The topics of a request in its order, once each; None for all."""
    if asked.topics is None or (version == 0 and not asked.topics):
        return None
    unique: dict[_Asked, None] = {}
    for item in asked.topics:
        unique[_asked_topic(item)] = None
        yield
    return list(unique)


def _asked_topic(item: Any) -> _Asked:
    """An id goes before a name: Java's admin client sends an empty name with it."""
    topic_id = getattr(item, "topic_id", None)
    return _Asked(item.name if topic_id is None else None, topic_id)


def _hidden(
    topics: TopicAdmin, access: Access, request: Request, wanted: list[_Asked] | None
) -> Steps[Refused]:
    """What may not be described, as the request names it."""
    client, describe = request.client, AclOperation.DESCRIBE
    if wanted is None:
        return access.hidden_topics(client, describe, topics.topics())
    named = yield from collected(item.key for item in wanted if item.key is not None)
    return access.refused_named(client, describe, named, topics)


def _to_create(
    topics: TopicAdmin, asked: Any, wanted: list[_Asked] | None, hidden: Refused
) -> Steps[list[str]]:
    if wanted is None or not topics.auto_create_enabled:
        return []
    if not getattr(asked, "allow_auto_topic_creation", True):
        return []
    known = topics.topics()
    missing = []
    for item in wanted:
        if item.name is not None and item.name not in known and item.name not in hidden:
            missing.append(item.name)
        yield
    return missing


def _creations(
    topics: TopicAdmin, names: Sequence[str]
) -> Steps[tuple[list[CreateTopic], dict[Hashable, errors.DisklessError]]]:
    """What to create with the defaults, and why the others of `names` cannot be."""
    creations: list[CreateTopic] = []
    refused: dict[Hashable, errors.DisklessError] = {}
    taken = TakenNames(topics.topics())
    for name in names:
        try:
            check_topic_name(name)
            taken.check_collision(name)
        except errors.InvalidTopic as error:
            refused[name] = error
        else:
            creations.append(CreateTopic(name=name, partition_count=topics.default_partition_count))
        yield
    return creations, refused


async def _create(
    topics: TopicAdmin,
    creations: Sequence[CreateTopic],
    refused: dict[Hashable, errors.DisklessError],
) -> Refused:
    """Create topics; `refused`, and with them the ones that could not be, and why."""
    results = await each_answered(topics.create_topics, creations)
    for creation, result in zip(creations, results, strict=True):
        # Somebody else may have created it meanwhile; then it is there, which is all we want.
        if isinstance(result, errors.DisklessError) and not isinstance(result, errors.TopicExists):
            refused[creation.name] = result
    return refused


def _reply(
    cluster: Cluster,
    topics: TopicAdmin,
    access: Access,
    request: Request,
    asked: Any,
    wanted: list[_Asked] | None,
    hidden: Refused,
    refused: Refused,
) -> ReplySteps:
    """`hidden` may not be described, `refused` could not be created."""
    rows: Iterable[Fields]
    if wanted is None:
        names = yield from in_order(topics.topics())
        rows = _known_topics(cluster, topics, request.client, names, hidden)
    else:
        rows = (_wanted_topic(cluster, topics, request, item, hidden, refused) for item in wanted)
    if getattr(asked, "include_topic_authorized_operations", False):
        rows = _with_operations(access, request.client, rows)
    cluster_operations = NOT_ASKED
    if getattr(asked, "include_cluster_authorized_operations", False):
        cluster_operations = access.cluster_operations(request.client)
    values = {
        "brokers": [broker._asdict() for broker in cluster.brokers(request.client.listener)],
        "error_code": 0,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": rows,
        "cluster_authorized_operations": cluster_operations,
    }
    return (yield from encode_response(KEY, request.version, values))


def _known_topics(
    cluster: Cluster, topics: TopicAdmin, client: ClientInfo, names: Sequence[str], hidden: Refused
) -> Iterator[Fields]:
    """Those that are still there when their row is written."""
    for name in names:
        topic = topics.topics().get(name)
        if topic is not None and name not in hidden:
            yield _topic(cluster, client, topic)


def _with_operations(
    access: Access, client: ClientInfo, rows: Iterable[Fields]
) -> Iterator[Fields]:
    for row in rows:
        operations = NOT_ASKED
        name = row["name"]
        # As Kafka: of one that is not there too, for who may describe it.
        if name and row["error_code"] != _REFUSED:
            operations = access.operations(client, ResourceType.TOPIC, (name,))[name]
        yield {**row, "topic_authorized_operations": operations}


def _wanted_topic(
    cluster: Cluster,
    topics: TopicAdmin,
    request: Request,
    asked: _Asked,
    hidden: Refused,
    refused: Refused,
) -> Fields:
    error: errors.DisklessError
    if asked.key in hidden:
        topic = None
        error = hidden[asked.key]
    elif asked.name is not None:
        topic = topics.topics().get(asked.name)
        error = refused.get(asked.name) or _absence(asked.name)
    elif asked.topic_id is not None:
        topic = topics.topic_by_id(asked.topic_id)
        error = errors.UnknownTopicId()
    else:
        topic = None
        error = errors.InvalidRequest()
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


def _absence(name: str) -> errors.DisklessError:
    try:
        check_topic_name(name)
    except errors.InvalidTopic as error:
        return error
    return errors.UnknownPartition()


def _topic(cluster: Cluster, client: ClientInfo, topic: TopicDescription) -> Fields:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": (
            _partition(cluster, client, topic, index) for index in range(topic.partition_count)
        ),
    }


def _partition(
    cluster: Cluster, client: ClientInfo, topic: TopicDescription, partition: int
) -> Fields:
    replicas = cluster.replicas_of(topic.topic_id, partition, client)
    internal = is_internal(topic.name)
    return {
        "error_code": 0,
        "partition_index": partition,
        "leader_id": replicas[0],
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": replicas,
        "isr_nodes": replicas,
        EXTRA_TAGS: {} if internal else _gateways(cluster, client, topic.topic_id, partition),
    }


def _gateways(
    cluster: Cluster, client: ClientInfo, topic_id: UUID, partition: int
) -> Mapping[int, bytes]:
    preferred = cluster.preferred_produce_brokers(topic_id, partition, client)
    if not preferred:
        return {}
    ids = b"".join([INT32.pack(broker) for broker in preferred])
    return {PREFERRED_PRODUCE_BROKERS_TAG: uvarint(len(preferred) + 1) + ids}
