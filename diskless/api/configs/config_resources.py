"""Holds what the APIs for configs share: resources, who may see and alter them, checks, answers.

- A topic's configs can be altered. A broker's are read only (but a limit of replication, which none
  has, can be taken away), and so are groups', which are the same for all groups; there are no
  configs of loggers and clients: INVALID_REQUEST says which.
- A request says once what becomes of a resource, and of each of its keys: INVALID_REQUEST for
  both times where it does not.
- Configs of topics and groups are asked for by name (DESCRIBE_CONFIGS, ALTER_CONFIGS); a client
  that may do so to the cluster may do so to all brokers, loggers and clients.
- Each resource is altered on its own: one that is refused does not hinder the others.
- An alteration is in force on this broker when it is answered, on others as soon as they hear of it
  (diskless.metadata.follow.interval.ms at most).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.errors import error_fields
from diskless.api.topics.named_topics import changeable_topic, no_topic
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, gathered
from diskless.ports import ClientInfo, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Deferred, Handler, Outcome, ReplySteps, Request
from diskless.topics.topic_config_entries import ConfigOperation
from wal.errors import DisklessError, InvalidRequest, UnknownTopicId

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32

CONFIGS_MAX: Final = 1_000
"""Of one resource in one request; there are far fewer that mean anything."""

UNSERVED: Final = {8: "broker loggers", 16: "client metrics"}
"""What has configs in Kafka and none here."""

_THROTTLES: Final = {
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
"""What is set on a topic afterwards, of what is set on it now. Raises DisklessError."""


def no_such_resource(resource_type: int) -> InvalidRequest:
    """For resource types other than topics, brokers and groups."""
    what = UNSERVED.get(resource_type, f"resource type {resource_type}")
    return InvalidRequest(f"there are no configs of {what} here")


def refused_resources(
    access: Access, client: ClientInfo, operation: AclOperation, resources: Sequence[Any]
) -> Refused:
    """By type and name, as far as there are configs of that type in Kafka."""
    named: dict[int, list[str]] = {}
    for resource in resources:
        named.setdefault(resource.resource_type, []).append(resource.resource_name)
    errors: dict[Hashable, DisklessError] = {}
    for resource_type, names in named.items():
        refused: Refused = {}
        if resource_type == TOPIC:
            refused = access.refused_topics(client, operation, names)
        elif resource_type == GROUP:
            refused = access.refused_groups(client, operation, names)
        elif resource_type == BROKER or resource_type in UNSERVED:
            error = access.refused_cluster(client, operation)
            refused = {} if error is None else dict.fromkeys(names, error)
        errors.update({(resource_type, name): error for name, error in refused.items()})
    return errors


def altering(
    key: int, name: str, topics: TopicAdmin, access: Access, change_of: Callable[[Any], Change]
) -> Handler:
    """The handler of the API `name`; `change_of` says what a resource's configs become."""

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(key, request.version, request.body)
        alter = AclOperation.ALTER_CONFIGS
        refused = refused_resources(access, request.client, alter, asked.resources)

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            rows = _altered_rows(asked.resources, errors)
            if not asked.validate_only:
                rows = access.noted(request.client, name, rows, _resource_of_row)
            return encode_response(key, request.version, {"responses": rows})

        if not asked.validate_only:
            request.changes = len(asked.resources)
        altered = _alter_resources(
            topics, asked.resources, change_of, refused, validate_only=asked.validate_only
        )
        return Deferred(altered, encode, None)

    return handle


async def _alter_resources(
    topics: TopicAdmin,
    resources: Sequence[Any],
    change_of: Callable[[Any], Change],
    refused: Refused,
    *,
    validate_only: bool,
) -> Sequence[DisklessError | None]:
    """Change all resources, and say by position what went wrong.

    `refused` as of `refused_resources`.
    """
    named = Counter((resource.resource_type, resource.resource_name) for resource in resources)

    async def outcome(resource: Any) -> DisklessError | None:
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            if len(resource.configs) > CONFIGS_MAX:
                raise InvalidRequest(f"{len(resource.configs)} configs of one resource")
            if (resource.resource_type, resource.resource_name) in refused:
                raise refused[resource.resource_type, resource.resource_name]
            await _alter(topics, resource, change_of(resource), validate_only=validate_only)
        except UnknownTopicId:
            # It was there a moment ago, and the request named it.
            return no_topic(resource.resource_name)
        except DisklessError as error:
            return error
        return None

    return await gathered(outcome, resources)


def _resource_of_row(row: Fields) -> str:
    """How the audit log names it; only those of topics can be altered."""
    return f"topic:{row['resource_name']}"


def _altered_rows(
    resources: Sequence[Any], errors: Sequence[DisklessError | None]
) -> Iterator[Fields]:
    """What became of each."""
    for resource, error in zip(resources, errors, strict=True):
        yield {
            **error_fields(error),
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }


def _is_no_throttle(config: Any) -> bool:
    """Whether it takes away what no broker has: kafka-reassign-partitions --verify does."""
    return (
        config.name in _THROTTLES
        and getattr(config, "config_operation", None) == ConfigOperation.DELETE
    )


async def _alter(topics: TopicAdmin, resource: Any, change: Change, *, validate_only: bool) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise InvalidRequest("Error due to duplicate config keys")
    if resource.resource_type == BROKER:
        if names and all(map(_is_no_throttle, resource.configs)):
            return
        raise InvalidRequest(
            f"Cannot update these configs dynamically: {', '.join(names) or 'none'}; a broker's "
            "configuration is read when it starts"
        )
    if resource.resource_type == GROUP:
        raise InvalidRequest(
            f"Cannot update these configs of one group: {', '.join(names) or 'none'}; all groups "
            "have those of the broker's configuration"
        )
    if resource.resource_type != TOPIC:
        raise no_such_resource(resource.resource_type)
    topic = changeable_topic(topics, resource.resource_name)
    if validate_only:
        change(topic.configs)
    else:
        await topics.alter_configs(topic.topic_id, change)
