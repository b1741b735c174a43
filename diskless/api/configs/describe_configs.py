"""DescribeConfigs, key 32, versions 1-4: every config of topics and of this broker.

- A topic shows Kafka's whole set of topic configs, set or not; Connect, for one, refuses to work
  without reading `cleanup.policy`. A value that was not set on the topic comes from this broker's
  configuration, or is the built-in default; the synonyms say from where, in order of precedence.
- A broker shows its own settings, read only, when its node id is asked for. The cluster-wide
  dynamic defaults (empty name) are empty: settings change by restart.
- A group, known or not, shows what this broker's configuration says of all groups, read only.
- A secret is marked as one and has no value, as in Kafka; its source tells whether it is set.
- Other resource types are INVALID_REQUEST.
- A resource that is asked for twice in the same way is answered once.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.configs.config_resources import (
    BROKER,
    GROUP,
    TOPIC,
    no_such_resource,
    refused_resources,
)
from diskless.api.errors import error_fields
from diskless.api.topics.named_topics import named_topic
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, collected
from diskless.ports import BrokerConfigEntry, BrokerConfigs, Cluster, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from diskless.topics.topic_config_entries import (
    ConfigSource,
    Synonym,
    TopicConfigEntry,
    TopicConfigs,
)
from diskless.topics.topic_configs import ConfigKind
from wal.errors import DisklessError, InvalidRequest
from wal.security.secret import Secret

KEY: Final = 32

_GROUP_CONFIGS: Final = {
    "group.consumer.heartbeat.interval.ms": "consumer.heartbeat.interval.ms",
    "group.consumer.session.timeout.ms": "consumer.session.timeout.ms",
}
"""A broker's names for what is a config of groups in Kafka, and its name there."""

_KINDS: Final[dict[type, ConfigKind]] = {
    bool: ConfigKind.BOOLEAN,
    int: ConfigKind.LONG,
    float: ConfigKind.DOUBLE,
    str: ConfigKind.STRING,
    Secret: ConfigKind.PASSWORD,
}


def api(
    cluster: Cluster,
    topics: TopicAdmin,
    configs: TopicConfigs,
    broker: BrokerConfigs,
    access: Access,
) -> Api:
    def configs_of(resource: Any) -> Iterator[Fields]:
        """Raises the Rejected that names what is wrong."""
        if resource.resource_type == TOPIC:
            topic = named_topic(topics, resource.resource_name)
            return map(_topic_row, configs.entries(topic.configs))
        if resource.resource_type == BROKER:
            return _broker_configs(cluster, broker, resource.resource_name)
        if resource.resource_type == GROUP:
            return _group_configs(broker, resource.resource_name)
        raise no_such_resource(resource.resource_type)

    def described(resource: Any, asked: Any, refused: Refused) -> Fields:
        error: DisklessError | None = None
        rows: list[Fields] = []
        try:
            if (resource.resource_type, resource.resource_name) in refused:
                raise refused[resource.resource_type, resource.resource_name]
            rows = [_shown(row, asked) for row in configs_of(resource)]
        except DisklessError as failure:
            error = failure
        # As in Kafka an empty list means all, like null.
        wanted = frozenset(resource.configuration_keys or ())
        return {
            **error_fields(error),
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": [row for row in rows if not wanted or row["name"] in wanted],
        }

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        describe = AclOperation.DESCRIBE_CONFIGS
        refused = refused_resources(access, request.client, describe, asked.resources)
        # Once each, for a name takes little in a request, and its configs much in an answer.
        unique = yield from collected(
            (
                (resource.resource_type, resource.resource_name, resource.configuration_keys),
                resource,
            )
            for resource in asked.resources
        )
        results = (described(resource, asked, refused) for resource in dict(unique).values())
        return (yield from encode_response(KEY, request.version, {"results": results}))

    return Api(
        key=KEY, name="DescribeConfigs", versions=range(1, 5), flexible_from=4, handler=handle
    )


def _topic_row(entry: TopicConfigEntry) -> Fields:
    return _row(
        name=entry.config.name,
        synonyms=entry.synonyms,
        kind=entry.config.kind,
        documentation=entry.config.documentation,
        read_only=False,
    )


def _broker_configs(cluster: Cluster, broker: BrokerConfigs, name: str) -> Iterator[Fields]:
    if not name:
        return iter(())
    if name != str(cluster.node_id):
        raise InvalidRequest(f"this is broker {cluster.node_id}, not {name!r}")
    return map(_broker_row, broker.entries())


def _group_configs(broker: BrokerConfigs, group: str) -> Iterator[Fields]:
    if not group:
        raise InvalidRequest("Group name must not be empty.")
    for entry in broker.entries():
        if entry.name in _GROUP_CONFIGS:
            yield {**_broker_row(entry), "name": _GROUP_CONFIGS[entry.name]}


def _broker_synonyms(entry: BrokerConfigEntry) -> list[Synonym]:
    """Of a listener's own: its value, and those of all listeners behind it."""
    set_here = Synonym(entry.name, entry.value, ConfigSource.STATIC_BROKER)
    if entry.of_all is not None:
        return [set_here, *_broker_synonyms(entry.of_all)]
    default = Synonym(entry.name, entry.default, ConfigSource.DEFAULT)
    return [default] if entry.value == entry.default else [set_here, default]


def _broker_row(entry: BrokerConfigEntry) -> Fields:
    return _row(
        name=entry.name,
        synonyms=_broker_synonyms(entry),
        kind=_KINDS[entry.kind],
        documentation=entry.documentation,
        read_only=True,
    )


def _row(
    *,
    name: str,
    synonyms: Sequence[Synonym],
    kind: ConfigKind,
    documentation: str,
    read_only: bool,
) -> Fields:
    """The first of `synonyms` is what is in effect."""
    is_secret = kind is ConfigKind.PASSWORD
    return {
        "name": name,
        "value": None if is_secret else synonyms[0].value,
        "read_only": read_only,
        "config_source": synonyms[0].source,
        "is_sensitive": is_secret,
        "synonyms": [
            {**synonym._asdict(), "value": None if is_secret else synonym.value}
            for synonym in synonyms
        ],
        "config_type": kind,
        "documentation": documentation,
    }


def _shown(row: Fields, asked: Any) -> Fields:
    """Without what the request did not ask for."""
    shown = dict(row)
    if not asked.include_synonyms:
        shown["synonyms"] = []
    if not getattr(asked, "include_documentation", False):
        shown["documentation"] = None
    return shown
