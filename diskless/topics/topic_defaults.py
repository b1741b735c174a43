"""The defaults of topic configs that a broker's configuration can set.

Names are Kafka's broker keys (`TopicConfig.broker_key`). Retention has a section of its own beside
the workers that need it (metadata/retention_settings.py); whatever has no key here has the default
of diskless/topics/topic_configs.py on every broker.

Each broker judges what it is sent by its own configuration, so all brokers of a cluster should have
the same values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from diskless.topics.topic_configs import TOPIC_CONFIGS
from wal.settings import SettingValue, setting

_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """Defaults of topic configs that act on produced batches."""

    max_message_bytes: int = setting(
        "message.max.bytes",
        int(TOPIC_CONFIGS["max.message.bytes"].default),
        minimum=0,
        maximum=2**31 - 1,
        why="largest batch in topics without max.message.bytes, compressed; larger: what one batch "
        "may take of memory when it must be opened grows 64-fold",
    )
    compression_type: str = setting(
        "compression.type",
        TOPIC_CONFIGS["compression.type"].default,
        choices=TOPIC_CONFIGS["compression.type"].choices,
        why="what batches are stored with in topics without compression.type; producer leaves them "
        "as they come, anything else costs the broker a recompression",
    )
    message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        TOPIC_CONFIGS["message.timestamp.type"].default,
        choices=TOPIC_CONFIGS["message.timestamp.type"].choices,
        why="whose clock records carry in topics without message.timestamp.type: the producer's, "
        "or the broker's at commit",
    )
    timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        int(TOPIC_CONFIGS["message.timestamp.before.max.ms"].default),
        minimum=0,
        maximum=_LONG_MAX,
        why="how old a record may be in topics without message.timestamp.before.max.ms; anything "
        "but the default makes the broker open every batch",
    )
    timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        int(TOPIC_CONFIGS["message.timestamp.after.max.ms"].default),
        minimum=0,
        maximum=_LONG_MAX,
        why="how far ahead of the broker's clock a record may be in topics without "
        "message.timestamp.after.max.ms; larger: retention by time keeps it for that much longer",
    )


def topic_defaults(values: Mapping[str, SettingValue]) -> Mapping[str, str]:
    """What a broker with this whole configuration has as topic configs, as far as it differs from
    the built-in defaults; by the names that topics have for it."""
    return {
        config.name: str(values[config.broker_key])
        for config in TOPIC_CONFIGS.values()
        if config.broker_key in values and str(values[config.broker_key]) != config.default
    }
