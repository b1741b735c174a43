"""CreateTopics, key 19, versions 2-7.

- Any replication factor is accepted and 1 is reported: the object store replicates. A manual
  assignment counts as so many partitions; its brokers are ignored, since any broker serves any
  partition.
- A topic can be used as soon as it is answered; the request's timeout is not needed.
- The metadata topic always exists: TOPIC_ALREADY_EXISTS.
- Asks for CREATE on each topic, or on the cluster. Who may not DESCRIBE_CONFIGS of a topic is not
  told how it was made.
- Refused entries do not hinder the others. A name that occurs twice is refused both times.
"""

from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    error_message,
    kafka_code,
)
from diskless.authorization import AclOperation
from diskless.ports import TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Reply, Request
from diskless.topics.topic_config_entries import TopicConfigs
from diskless.topics.topic_configs import check_topic_configs
from diskless.topics.topic_names import check_collision, check_topic_name
from metadata.operations import CreateTopic, TopicDescription
from wal.errors import DisklessError, InvalidPartitions, InvalidRequest, TopicExists

KEY: Final = 19

_REPLICATION_FACTOR: Final = 1


def api(topics: TopicAdmin, configs: TopicConfigs, access: Access) -> Api:
    async def answer(version: int, asked: Any, refused: Refused, hidden: Refused) -> Reply:
        twice = {name for name, count in Counter(t.name for t in asked.topics).items() if count > 1}
        outcomes: dict[int, CreateTopic | TopicDescription | DisklessError] = {}
        for index, item in enumerate(asked.topics):
            try:
                if item.name in twice:
                    raise InvalidRequest(f"{item.name!r} occurs more than once in the request")
                if item.name in refused:
                    raise refused[item.name]
                outcomes[index] = _checked(topics, item)
            except DisklessError as error:
                outcomes[index] = error
        if not asked.validate_only:
            wanted = {i: item for i, item in outcomes.items() if isinstance(item, CreateTopic)}
            if wanted:
                created = await _create(topics, list(wanted.values()))
                outcomes.update(zip(wanted, created, strict=True))
        rows = [
            _row(configs, item.name, outcomes[index], hidden.get(item.name))
            for index, item in enumerate(asked.topics)
        ]
        return [encode_response(KEY, version, {"topics": rows})]

    def handle(request: Request) -> Awaitable[Reply]:
        asked = decode_request(KEY, request.version, request.body)
        client, names = request.client, [item.name for item in asked.topics]
        refused = access.refused_topics(
            client, AclOperation.CREATE, names, or_cluster=AclOperation.CREATE
        )
        hidden = access.refused_topics(client, AclOperation.DESCRIBE_CONFIGS, names)
        return answer(request.version, asked, refused, hidden)

    return Api(
        key=KEY, name="CreateTopics", min_version=2, max_version=7, flexible_from=5, handler=handle
    )


async def _create(
    topics: TopicAdmin, wanted: Sequence[CreateTopic]
) -> Sequence[TopicDescription | DisklessError]:
    try:
        return await topics.create_topics(wanted)
    except DisklessError as error:
        return [error] * len(wanted)


def _checked(topics: TopicAdmin, item: Any) -> CreateTopic:
    """What the coordinator shall create. Raises the Rejected that names what is wrong."""
    check_topic_name(item.name)
    known = topics.topics()
    if item.name in known:
        raise TopicExists(f"topic {item.name!r} exists already")
    check_collision(item.name, known)
    return CreateTopic(
        name=item.name,
        partition_count=_partition_count(topics, item),
        configs=check_topic_configs({config.name: config.value for config in item.configs}),
    )


def _partition_count(topics: TopicAdmin, item: Any) -> int:
    if item.assignments:
        if item.num_partitions != -1 or item.replication_factor != -1:
            raise InvalidRequest("give an assignment or counts, not both")
        given = sorted(assignment.partition_index for assignment in item.assignments)
        if given != list(range(len(given))):
            raise InvalidReplicaAssignment("it must name partitions 0, 1, 2 … once each")
        count = len(given)
    else:
        if item.replication_factor != -1 and item.replication_factor < 1:
            raise InvalidReplicationFactor("the replication factor must be positive, or -1")
        count = item.num_partitions
        if count == -1:
            count = topics.default_partition_count
    if not 1 <= count <= topics.max_partition_count:
        raise InvalidPartitions(
            f"{count} partitions: must be between 1 and {topics.max_partition_count}"
        )
    return int(count)


def _row(
    configs: TopicConfigs,
    name: str,
    outcome: CreateTopic | TopicDescription | DisklessError,
    hidden: DisklessError | None,
) -> Fields:
    """`hidden`: why its configs are not shown, if they are not."""
    if isinstance(outcome, DisklessError):
        return {
            "name": name,
            "topic_id": None,
            "error_code": kafka_code(outcome),
            "error_message": error_message(outcome),
            "configs": None,
        }
    created = {
        "name": name,
        "topic_id": outcome.topic_id if isinstance(outcome, TopicDescription) else None,
        "error_code": 0,
        "error_message": None,
    }
    if hidden is not None:
        return {**created, "topic_config_error_code": kafka_code(hidden), "configs": ()}
    return {
        **created,
        "num_partitions": outcome.partition_count,
        "replication_factor": _REPLICATION_FACTOR,
        "configs": [
            {
                "name": entry.config.name,
                "value": entry.value,
                "read_only": False,
                "config_source": entry.source,
                "is_sensitive": False,
            }
            for entry in configs.entries(outcome.configs)
        ],
    }
