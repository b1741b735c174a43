"""Prints docs/configuration.md from the code: `python -m diskless.config_reference`.

Every key of `diskless.config.Config` with default, bounds and reason, and every topic config with
what it does here. A test compares the page with what this prints.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Final

from diskless.config import Config
from diskless.config_sources import ENVIRONMENT_PREFIX
from diskless.topics.topic_configs import TOPIC_CONFIGS, TopicConfig
from wal.chunks.wal_settings import DIRECTORY_DEFAULTS
from wal.settings import Setting, settings_of

_BYTE_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SHOWN_MAX: Final = 1 << 60
"""A bound beyond this is no bound to a reader."""

_PREFACE: Final = f"""\
# Configuration

Printed by `python -m diskless.config_reference`; `diskless config` lists the broker's keys on a
terminal.

## Broker

Keys come from, the later wins: the defaults, `--config FILE` (lines of `key=value`, `#` comments),
the environment (`{ENVIRONMENT_PREFIX}` and the key in capitals with `_` for `.`, such as
`{ENVIRONMENT_PREFIX}WAL_COMMIT_INTERVAL_MS=100`), and `--set KEY=VALUE`; `--object-store URL` is
`object.store.url`. With an unknown key or a value out of bounds a broker does not start, and names
it. Values change by restart; DescribeConfigs shows them, except secrets.

A secret is written out in the environment only. Elsewhere its value is `file:PATH`, a file that
nobody else may read. `listener.name.<name>.` in front of a key that is marked *per listener* sets
it for the listener of that name alone, as in `listener.name.outside.ssl.client.auth=required`.

Bytes and milliseconds are plain numbers. When the object store is not S3, these are the defaults:
{", ".join(f"`{key}={value}`" for key, value in DIRECTORY_DEFAULTS.items())}.
"""

_TOPIC_PREFACE: Final = """\
## Topics

Set with `diskless topic create NAME --config KEY=VALUE`, altered with `diskless topic alter`, or
with any Kafka client's CreateTopics, IncrementalAlterConfigs and AlterConfigs. All keys of Kafka
3.9 and 4 are accepted and shown, so that tools work; many have no subject here. A change is in
force on the broker that took it when it is answered, and on the others when they have read it in
the metadata log, within `diskless.metadata.follow.interval.ms`; nothing is restarted.

`diskless tier` compacts what is in segments of topics whose `cleanup.policy` has `compact`:
[tables.md](tables.md#compacted-topics). `delete.retention.ms`, `min.cleanable.dirty.ratio`,
`min.compaction.lag.ms` and `max.compaction.lag.ms` mean what they mean in Kafka.

A topic that does not set `segment.bytes` or `segment.ms` follows the broker's keys of these names;
one that does not set `retention.ms`, `retention.bytes` or `cleanup.policy` follows the broker's
`log.retention.ms`, `log.retention.bytes` and `log.cleanup.policy`. DescribeConfigs shows what is in
effect, and from where it comes.
"""


def configuration_page() -> str:
    """The whole page."""
    return "\n".join((_PREFACE, *_broker_tables(), _TOPIC_PREFACE, *_topic_table())) + "\n"


def _broker_tables() -> Iterator[str]:
    defaults = Config()
    for section in fields(Config):
        settings = getattr(defaults, section.name)
        if not is_dataclass(settings):
            continue
        yield f"### {section.name.replace('_', ' ').capitalize()}\n"
        yield "| key | default | allowed | |"
        yield "|---|---|---|---|"
        for _, setting in settings_of(type(settings)):
            allowed = ", ".join(filter(None, (_allowed(setting), *_marks(setting))))
            yield f"| `{setting.key}` | {_default(setting)} | {allowed} | {setting.why} |"
        yield ""


def _marks(setting: Setting) -> Iterator[str]:
    if setting.is_secret:
        yield "a secret"
    if setting.is_per_listener:
        yield "*per listener*"


def _topic_table() -> Iterator[str]:
    yield "| key | default | allowed | |"
    yield "|---|---|---|---|"
    for config in TOPIC_CONFIGS.values():
        default = f"`{config.default}`" if config.default else "empty"
        yield f"| `{config.name}` | {default} | {_allowed(config)} | {config.documentation} |"


def _default(setting: Setting) -> str:
    if setting.default == "" or setting.is_secret:
        return "empty"
    if isinstance(setting.default, bool):
        return f"`{str(setting.default).lower()}`"
    return f"`{setting.default}`{_in_units(setting.key, setting.default)}"


def _in_units(key: str, value: object) -> str:
    if isinstance(value, int) and "bytes" in key:
        for size, unit in _BYTE_UNITS:
            if value and value % size == 0:
                return f" ({value // size} {unit})"
    return ""


def _allowed(described: Setting | TopicConfig) -> str:
    if described.choices:
        return ", ".join(f"`{choice}`" for choice in described.choices)
    low, high = described.minimum, described.maximum
    if isinstance(described, Setting) and isinstance(described.default, bool):
        return "`true`, `false`"
    if low is None and high is None:
        return "`true`, `false`" if described.default in ("true", "false") else ""
    if high is None or high > _SHOWN_MAX:
        return f"≥ {low}"
    return f"{low} … {high}"


if __name__ == "__main__":
    print(configuration_page(), end="")
