"""CreateTopics, key 19, versions 2-7: creates topics with their partitions and configs.

- Any replication factor is accepted and 1 is reported: the object store replicates. A manual
  assignment gives that number of partitions; its brokers are ignored, since any broker serves any
  partition.
- A topic can be used as soon as it is answered; the request's timeout is not needed.
- The metadata topic always exists: TOPIC_ALREADY_EXISTS.
- Asks for CREATE on each topic, or on the cluster. Who may not DESCRIBE_CONFIGS of a topic is not
  told how it was made.
- Refused entries do not hinder the others. A name that occurs twice is refused both times.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.answers import each_answered, with_answers
from diskless.api.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    error_fields,
    kafka_code,
)
from diskless.api.topics.named_topics import topic_of_row
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, collected, mapped
from diskless.ports import TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from diskless.topics.topic_config_entries import TopicConfigs
from diskless.topics.topic_configs import check_topic_configs
from diskless.topics.topic_names import TakenNames, check_topic_name
from metadata.operations import CreateTopic, TopicDescription
from wal.errors import DisklessError, InvalidPartitions, InvalidRequest, TopicExists

KEY: Final = 19

_REPLICATION_FACTOR: Final = 1

_Outcome = CreateTopic | TopicDescription | DisklessError
"""Of a topic: what is to be created or would be, what was created, or why it was not."""


def api(topics: TopicAdmin, configs: TopicConfigs, access: Access) -> Api:
    def checked(asked: Any, names: Sequence[str], refused: Refused) -> Steps[Sequence[_Outcome]]:
        """Returns, of each topic of a request, what to create or why not."""
        occurrences = Counter(names)
        taken = TakenNames(topics.topics())
        outcomes: list[_Outcome] = []
        for item in asked.topics:
            try:
                if occurrences[item.name] > 1:
                    raise InvalidRequest(f"{item.name!r} occurs more than once in the request")
                if item.name in refused:
                    raise refused[item.name]
                outcomes.append((yield from _checked(topics, item, taken)))
            except DisklessError as error:
                outcomes.append(error)
            yield
        return outcomes

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        client = request.client
        names = yield from mapped(attrgetter("name"), asked.topics)
        refused = access.refused_topics(
            client, AclOperation.CREATE, names, or_cluster=AclOperation.CREATE
        )
        hidden = access.hidden_topics(client, AclOperation.DESCRIBE_CONFIGS, names)
        outcomes = yield from checked(asked, names, refused)
        wanted = [outcome for outcome in outcomes if isinstance(outcome, CreateTopic)]

        def encode(created: Sequence[_Outcome]) -> ReplySteps:
            rows: Iterator[Fields] = (
                _row(configs, name, outcome, hidden.get(name))
                for name, outcome in zip(names, with_answers(outcomes, created), strict=True)
            )
            if not asked.validate_only:
                rows = access.noted(client, "CreateTopics", rows, topic_of_row)
            return encode_response(KEY, request.version, {"topics": rows})

        if asked.validate_only or not wanted:
            return (yield from encode(wanted))
        request.changes = len(wanted)
        request.changed_partitions = sum(topic.partition_count for topic in wanted)
        return Deferred(each_answered(topics.create_topics, wanted), encode, None)

    return Api(key=KEY, name="CreateTopics", versions=range(2, 8), flexible_from=5, handler=handle)


def _checked(topics: TopicAdmin, item: Any, taken: TakenNames) -> Steps[CreateTopic]:
    """What the coordinator is asked to create. Raises the Rejected that names what is wrong."""
    check_topic_name(item.name)
    if item.name in topics.topics():
        raise TopicExists(f"topic {item.name!r} exists already")
    taken.check_collision(item.name)
    partition_count = yield from _partition_count(topics, item)
    configs = yield from collected((config.name, config.value) for config in item.configs)
    return CreateTopic(
        name=item.name,
        partition_count=partition_count,
        configs=check_topic_configs(dict(configs)),
    )


def _partition_count(topics: TopicAdmin, item: Any) -> Steps[int]:
    if item.assignments:
        if item.num_partitions != -1 or item.replication_factor != -1:
            raise InvalidRequest("give an assignment or counts, not both")
        given = yield from mapped(attrgetter("partition_index"), item.assignments)
        given.sort()
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
    outcome: _Outcome,
    hidden: DisklessError | None,
) -> Fields:
    """`hidden`: why its configs are not shown, if they are not."""
    if isinstance(outcome, DisklessError):
        return {
            "name": name,
            "topic_id": None,
            **error_fields(outcome),
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
        "configs": _config_rows(configs, outcome.configs),
    }


def _config_rows(configs: TopicConfigs, values: Mapping[str, str]) -> Iterator[Fields]:
    """Made only for the versions that show them."""
    for entry in configs.entries(values):
        yield {
            "name": entry.config.name,
            "value": entry.value,
            "read_only": False,
            "config_source": entry.source,
            "is_sensitive": False,
        }
