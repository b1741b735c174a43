"""What a topic config is: its type, default, bounds and meaning, and its name on a broker.

The table of them is diskless/topics/topic_configs.py.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ConfigKind(IntEnum):
    """Types as DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One key. `choices` bounds strings and list items, `minimum` and `maximum` numbers."""

    name: str
    kind: ConfigKind
    default: str
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    """Of a string, or of each item of a list; empty: anything goes."""
    bytes_max: int | None = None
    """Of a string, as UTF-8."""

    @property
    def broker_key(self) -> str:
        """The name of the default for all topics in a broker's configuration; may be empty.

        A broker shows the default under this name, as Kafka does, whether it can be set or not.
        """
        return _BROKER_KEYS.get(self.name, self.name)


_BROKER_KEYS: Final = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "log.index.interval.bytes",
    "key.schema": "",
    "key.schema.format": "",
    "key.schema.source": "",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.downconversion.enable": "log.message.downconversion.enable",
    "message.format.version": "log.message.format.version",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "remote.log.copy.disable": "",
    "remote.log.delete.on.disable": "",
    "remote.storage.enable": "",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "value.schema": "",
    "value.schema.format": "",
    "value.schema.source": "",
}
"""Where they differ; segments are Parquet files here, so segment.bytes and .ms keep their names."""


def int_config(
    name: str, default: int, text: str, *, low: int = 0, high: int = INT_MAX
) -> TopicConfig:
    return TopicConfig(
        name=name,
        kind=ConfigKind.INT,
        default=str(default),
        documentation=text,
        minimum=low,
        maximum=high,
    )


def long_config(name: str, default: int, text: str, *, low: int = 0) -> TopicConfig:
    return TopicConfig(
        name=name,
        kind=ConfigKind.LONG,
        default=str(default),
        documentation=text,
        minimum=low,
        maximum=LONG_MAX,
    )


def bool_config(name: str, default: bool, text: str) -> TopicConfig:
    return TopicConfig(
        name=name,
        kind=ConfigKind.BOOLEAN,
        default="true" if default else "false",
        documentation=text,
    )


def choice_config(name: str, default: str, choices: tuple[str, ...], text: str) -> TopicConfig:
    return TopicConfig(
        name=name, kind=ConfigKind.STRING, default=default, documentation=text, choices=choices
    )
