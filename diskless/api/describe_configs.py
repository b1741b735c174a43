"""DescribeConfigs, key 32, versions 1-4: every config of topics and of this broker.

- A topic shows Kafka's whole set of topic configs, set or not; Connect, for one, refuses to work
  without reading `cleanup.policy`. Values that were not set come from the table of defaults, not
  from broker-wide settings: those do not exist for topics here.
- A broker shows its own settings, read only, to whoever asks for its node id. The cluster-wide
  dynamic defaults (empty name) are empty: settings change by restart.
- Other resource types are INVALID_REQUEST.
"""

from collections.abc import Iterator
from typing import Any, Final

from diskless.api.errors import error_message, kafka_code
from diskless.api.registry import Api, Reply, Request
from diskless.ports import BrokerConfigs, Cluster, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.topic_configs import TOPIC_CONFIGS, ConfigKind
from diskless.topic_names import check_topic_name
from wal.errors import DisklessError, InvalidRequest, UnknownPartition

KEY: Final = 32

_TOPIC: Final = 2
_BROKER: Final = 4

_TOPIC_SOURCE: Final = 1
_STATIC_BROKER_SOURCE: Final = 4
_DEFAULT_SOURCE: Final = 5

_KINDS: Final[dict[type, ConfigKind]] = {
    bool: ConfigKind.BOOLEAN,
    int: ConfigKind.LONG,
    float: ConfigKind.DOUBLE,
    str: ConfigKind.STRING,
}


def api(cluster: Cluster, topics: TopicAdmin, broker: BrokerConfigs) -> Api:
    def configs_of(resource: Any) -> Iterator[Fields]:
        """Raises the Rejected that names what is wrong."""
        if resource.resource_type == _TOPIC:
            return _topic_configs(topics, resource.resource_name)
        if resource.resource_type == _BROKER:
            return _broker_configs(cluster, broker, resource.resource_name)
        raise InvalidRequest(f"no configs of resource type {resource.resource_type}")

    def handle(request: Request) -> Reply:
        asked = decode_request(KEY, request.version, request.body)
        results = []
        for resource in asked.resources:
            error: DisklessError | None = None
            rows: list[Fields] = []
            try:
                rows = [_shown(row, asked) for row in configs_of(resource)]
            except DisklessError as refused:
                error = refused
            # As in Kafka an empty list means all, like null.
            wanted = resource.configuration_keys
            results.append(
                {
                    "error_code": kafka_code(error),
                    "error_message": error_message(error),
                    "resource_type": resource.resource_type,
                    "resource_name": resource.resource_name,
                    "configs": [row for row in rows if not wanted or row["name"] in wanted],
                }
            )
        return [encode_response(KEY, request.version, {"results": results})]

    return Api(
        key=KEY,
        name="DescribeConfigs",
        min_version=1,
        max_version=4,
        flexible_from=4,
        handler=handle,
    )


def _topic_configs(topics: TopicAdmin, name: str) -> Iterator[Fields]:
    check_topic_name(name)
    topic = topics.topics().get(name)
    if topic is None:
        raise UnknownPartition(f"no topic {name!r}")
    return (
        _row(
            name=config.name,
            value=topic.configs.get(config.name, config.default),
            default=config.default,
            own_source=_TOPIC_SOURCE if config.name in topic.configs else None,
            kind=config.kind,
            documentation=config.documentation,
            read_only=False,
        )
        for config in TOPIC_CONFIGS.values()
    )


def _broker_configs(cluster: Cluster, broker: BrokerConfigs, name: str) -> Iterator[Fields]:
    if not name:
        return iter(())
    if name != str(cluster.node_id):
        raise InvalidRequest(f"this is broker {cluster.node_id}, not {name!r}")
    return (
        _row(
            name=entry.name,
            value=entry.value,
            default=entry.default,
            own_source=_STATIC_BROKER_SOURCE if entry.value != entry.default else None,
            kind=_KINDS[entry.kind],
            documentation=entry.documentation,
            read_only=True,
        )
        for entry in broker.entries()
    )


def _row(
    *,
    name: str,
    value: str,
    default: str,
    own_source: int | None,
    kind: ConfigKind,
    documentation: str,
    read_only: bool,
) -> Fields:
    """`own_source`: where the value was set; None when nobody set it."""
    synonyms = [{"name": name, "value": default, "source": _DEFAULT_SOURCE}]
    if own_source is not None:
        synonyms.insert(0, {"name": name, "value": value, "source": own_source})
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": _DEFAULT_SOURCE if own_source is None else own_source,
        "is_sensitive": False,
        "synonyms": synonyms,
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
