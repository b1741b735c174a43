"""Computes a topic's effective configs, where each value comes from, and what a change makes of it.

The order of precedence is Kafka's: what was set on the topic, the broker's configuration, the
built-in default. A broker has keys of its own for some topic configs (`TopicConfig.broker_key`,
log.retention.ms for one); the others have their built-in default on every broker.

Changes are those of IncrementalAlterConfigs. Lists are appended to and subtracted from as they are
in effect: an item is there once, and what is left when the last one is gone must still be a value.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from diskless.ports import BrokerConfigEntry
from diskless.topics.topic_configs import (
    TOPIC_CONFIGS,
    ConfigKind,
    TopicConfig,
    check_topic_configs,
    known_config,
    list_items,
)
from wal.errors import InvalidConfig, InvalidRequest


class ConfigSource(IntEnum):
    """Where a value comes from, as CreateTopics and DescribeConfigs number it."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """A place where the value could come from; the first one that is there counts."""

    name: str
    value: str
    source: ConfigSource


class TopicConfigEntry(NamedTuple):
    """One config of one topic."""

    config: TopicConfig
    synonyms: Sequence[Synonym]
    """At least the built-in default."""

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


class ConfigOperation(IntEnum):
    """As IncrementalAlterConfigs numbers them."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One change of one key; `value` is of no account for DELETE."""

    name: str
    operation: int
    value: str | None


class TopicConfigs:
    """Topic configs as a broker with this configuration has them."""

    def __init__(self, broker_entries: Sequence[BrokerConfigEntry]) -> None:
        known = {entry.name: entry for entry in broker_entries}
        self._defaults: Final = {
            config.name: _defaults(config, known.get(config.broker_key))
            for config in TOPIC_CONFIGS.values()
        }

    def entries(self, configs: Mapping[str, str]) -> Iterator[TopicConfigEntry]:
        """All configs of a topic that set `configs`, by name."""
        for config in TOPIC_CONFIGS.values():
            synonyms = self._defaults[config.name]
            if config.name in configs:
                own = Synonym(config.name, configs[config.name], ConfigSource.DYNAMIC_TOPIC)
                synonyms = (own, *synonyms)
            yield TopicConfigEntry(config, synonyms)

    def value(self, configs: Mapping[str, str], name: str) -> str:
        """Returns the value in effect in a topic that set `configs`. Raises KeyError (no such)."""
        return configs[name] if name in configs else self._defaults[name][0].value

    def changed(
        self, configs: Mapping[str, str], changes: Sequence[ConfigChange]
    ) -> dict[str, str]:
        """Returns the configs of a topic that set `configs`, after `changes` in their order.

        Raises InvalidConfig or InvalidRequest, in Kafka's words.
        """
        changed = dict(configs)
        for change in changes:
            config = known_config(change.name)
            if change.operation == ConfigOperation.DELETE:
                changed.pop(config.name, None)
                continue
            if change.value is None:
                raise InvalidRequest(f"Null value not supported for : {config.name}")
            match change.operation:
                case ConfigOperation.SET:
                    changed[config.name] = change.value
                case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                    before = self.value(changed, config.name)
                    changed[config.name] = _changed_list(config, before, change)
                case _:
                    raise InvalidRequest(f"Unknown operation type {change.operation}")
        return check_topic_configs(changed)


def replaced_configs(values: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the configs of a topic after `values` replaced all of them, as AlterConfigs does.

    Raises InvalidConfig or InvalidRequest.
    """
    nulls = [name for name, value in values.items() if value is None]
    if nulls:
        raise InvalidRequest(f"Null value not supported for : {', '.join(nulls)}")
    return check_topic_configs(values)


def _defaults(config: TopicConfig, entry: BrokerConfigEntry | None) -> Sequence[Synonym]:
    name = config.broker_key or config.name
    if entry is None:
        return (Synonym(name, config.default, ConfigSource.DEFAULT),)
    default = Synonym(name, entry.default, ConfigSource.DEFAULT)
    if entry.value == entry.default:
        return (default,)
    return (Synonym(name, entry.value, ConfigSource.STATIC_BROKER), default)


def _changed_list(config: TopicConfig, before: str, change: ConfigChange) -> str:
    operation = ConfigOperation(change.operation)
    if config.kind is not ConfigKind.LIST:
        raise InvalidConfig(
            f"Can't {operation.name} to key {config.name} because its type is not LIST."
        )
    items, named = list_items(before), list_items(change.value or "")
    if operation is ConfigOperation.APPEND:
        items += [item for item in dict.fromkeys(named) if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)
