"""The configuration of a topic: every key Kafka knows, its type, default, bounds and meaning here.

Clients and tools (Connect, admin UIs, `kafka-configs`) set and expect Kafka's whole set, so all of
it is accepted and shown. A key whose subject does not exist here, such as replica throttles, says
so in its documentation instead of being refused.

A topic stores only what was set explicitly; everything else comes, at the time of use, from the
broker's configuration where it has a key for it (`broker_key`), else from this table.

The set is that of Kafka 3.9 and 4.x together; what only one of them knows is here too.
"""

import re
from collections.abc import Mapping
from typing import Final

from diskless.topics.topic_config_kinds import (
    LONG_MAX,
    bool_config,
    choice_config,
    int_config,
    long_config,
)
from diskless.topics.topic_config_kinds import ConfigKind as ConfigKind
from diskless.topics.topic_config_kinds import TopicConfig as TopicConfig
from tiering.types import schema_configs
from tiering.types.shapes import SCHEMA_BYTES_MAX
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME
from wal.errors import InvalidConfig
from wal.records.batch_validation import UNBOUNDED_MS, TopicRules
from wal.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from wal.records.recompression import Compression

_WEEK_MS: Final = 7 * 24 * 3600 * 1000
_DAY_MS: Final = 24 * 3600 * 1000
_HOUR_MS: Final = 3600 * 1000

_NO_EFFECT: Final = " Accepted for compatibility; has no effect here."


_INTEGER: Final = r"[+-]?[0-9]{1,20}"
_DOUBLE: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_VERSION: Final = r"[0-9]+\.[0-9]+(\.[0-9]+)*(-IV[0-9]+)?"
_THROTTLED_REPLICA: Final = r"\*|none|[0-9]+:[0-9]+"


def _schema_configs(side: str) -> tuple[TopicConfig, ...]:
    column = "data" if side == "value" else f"{side}_data"
    return (
        TopicConfig(
            name=f"{side}.schema",
            kind=ConfigKind.STRING,
            default="",
            bytes_max=SCHEMA_BYTES_MAX,
            documentation=f"The schema of {side}s with {side}.schema.source=inline: a JSON Schema "
            f"or an Avro schema, as {side}.schema.format says. Not one of Kafka's keys.",
        ),
        choice_config(
            f"{side}.schema.format",
            schema_configs.NO_FORMAT,
            schema_configs.FORMATS,
            f"What {side}s are written in. With json or avro, segments have them as typed columns "
            f"too, in `{column}`; Protobuf is not read. Brokers refuse no record for it. Not one "
            "of Kafka's keys.",
        ),
        choice_config(
            f"{side}.schema.source",
            schema_configs.INLINE,
            schema_configs.SOURCES,
            f"Where the schema of {side}s is: 'inline' in {side}.schema; 'registry:id' in a "
            "registry, by the id in front of each; 'registry:latest' there too, the newest of "
            f"the subject <topic>-{side}. `diskless tier` knows the registry. Not one of Kafka's "
            "keys.",
        ),
    )


_TABLE: Final = (
    TopicConfig(
        name="cleanup.policy",
        kind=ConfigKind.LIST,
        default="delete",
        choices=("delete", "compact"),
        documentation="What happens to old records: 'delete' lets retention.ms and retention.bytes "
        "delete them. 'compact' makes a key mandatory, and `diskless tier` removes records that a "
        "later one of the same key has replaced. Both may be given.",
    ),
    int_config(
        "compression.gzip.level",
        -1,
        "What compression.type=gzip compresses with; -1: gzip's own default.",
        low=-1,
        high=9,
    ),
    int_config(
        "compression.lz4.level",
        9,
        "What compression.type=lz4 compresses with.",
        low=1,
        high=17,
    ),
    choice_config(
        "compression.type",
        "producer",
        ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "What batches are stored with; 'producer' leaves them as they come, and is the cheapest: a "
        "broker has to recompress what comes otherwise.",
    ),
    int_config(
        "compression.zstd.level",
        3,
        "What compression.type=zstd compresses with; above 9 a broker takes its time.",
        low=-131072,
        high=22,
    ),
    long_config(
        "delete.retention.ms",
        _DAY_MS,
        "How long deletes of a compacted topic are kept after they were first compacted.",
    ),
    long_config(
        "file.delete.delay.ms",
        60_000,
        "Objects are deleted after diskless.file.delete.grace.ms." + _NO_EFFECT,
    ),
    long_config(
        "flush.messages",
        LONG_MAX,
        "Every acknowledged record is in the object store already." + _NO_EFFECT,
        low=1,
    ),
    long_config(
        "flush.ms",
        LONG_MAX,
        "Every acknowledged record is in the object store already." + _NO_EFFECT,
    ),
    TopicConfig(
        name="follower.replication.throttled.replicas",
        kind=ConfigKind.LIST,
        default="",
        pattern=_THROTTLED_REPLICA,
        documentation="There are no followers." + _NO_EFFECT,
    ),
    int_config("index.interval.bytes", 4096, "There is no sparse offset index." + _NO_EFFECT),
    TopicConfig(
        name="leader.replication.throttled.replicas",
        kind=ConfigKind.LIST,
        default="",
        pattern=_THROTTLED_REPLICA,
        documentation="There are no followers." + _NO_EFFECT,
    ),
    long_config(
        "local.retention.bytes",
        -2,
        "Brokers keep no records of their own." + _NO_EFFECT,
        low=-2,
    ),
    long_config(
        "local.retention.ms", -2, "Brokers keep no records of their own." + _NO_EFFECT, low=-2
    ),
    long_config(
        "max.compaction.lag.ms",
        LONG_MAX,
        "How long a record of a compacted topic may stay uncompacted: then a pass of "
        "`diskless tier` compacts its partition, whatever the dirty ratio.",
        low=1,
    ),
    int_config(
        "max.message.bytes",
        1_048_588,
        "The largest record batch accepted, as it is sent, compressed.",
    ),
    bool_config(
        "message.downconversion.enable",
        True,
        "Old message formats are not served, so nothing is converted; gone in Kafka 4."
        + _NO_EFFECT,
    ),
    TopicConfig(
        name="message.format.version",
        kind=ConfigKind.STRING,
        default="3.0-IV1",
        pattern=_VERSION,
        documentation="Batches are always of format 2; gone in Kafka 4." + _NO_EFFECT,
    ),
    long_config(
        "message.timestamp.after.max.ms",
        _HOUR_MS,
        "How far a record's timestamp may lie ahead of the broker's clock (CreateTime only).",
    ),
    long_config(
        "message.timestamp.before.max.ms",
        UNBOUNDED_MS,
        "How far a record's timestamp may lie behind the broker's clock (CreateTime only).",
    ),
    long_config(
        "message.timestamp.difference.max.ms",
        UNBOUNDED_MS,
        "Stands in for message.timestamp.before.max.ms and message.timestamp.after.max.ms where "
        "these are not set; gone in Kafka 4.",
    ),
    choice_config(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "Whether records carry the producer's timestamp or the time of their commit.",
    ),
    TopicConfig(
        name="min.cleanable.dirty.ratio",
        kind=ConfigKind.DOUBLE,
        default="0.5",
        minimum=0,
        maximum=1,
        documentation="A partition of a compacted topic is compacted when a greater share of the "
        "bytes of its segments is uncompacted.",
    ),
    long_config(
        "min.compaction.lag.ms",
        0,
        "How long a record of a compacted topic stays uncompacted at least.",
    ),
    int_config(
        "min.insync.replicas",
        1,
        "The object store replicates; an acknowledged record is in it." + _NO_EFFECT,
        low=1,
    ),
    bool_config("preallocate", False, "Objects are written whole." + _NO_EFFECT),
    bool_config(
        "remote.log.copy.disable",
        False,
        "All records are in the object store from the start." + _NO_EFFECT,
    ),
    bool_config(
        "remote.log.delete.on.disable",
        False,
        "All records are in the object store from the start." + _NO_EFFECT,
    ),
    bool_config(
        "remote.storage.enable",
        False,
        "All records are in the object store from the start." + _NO_EFFECT,
    ),
    long_config(
        "retention.bytes",
        -1,
        "The oldest rows (stored runs of batches, segments) of a partition are deleted while at "
        "least this many bytes stay; -1: never. Where not set: the broker's log.retention.bytes.",
        low=-1,
    ),
    long_config(
        "retention.ms",
        _WEEK_MS,
        "Rows (stored runs of batches, segments) are deleted when their newest record is older "
        "than this; -1: never. Where not set: the broker's log.retention.ms.",
        low=-1,
    ),
    int_config(
        "segment.bytes",
        128 << 20,
        "A Parquet segment is planned when a partition has this much that is in none.",
        low=1,
    ),
    int_config(
        "segment.index.bytes", 10 << 20, "Segments carry their own index." + _NO_EFFECT, low=4
    ),
    long_config("segment.jitter.ms", 0, "Segments are planned centrally." + _NO_EFFECT),
    long_config(
        "segment.merge.bytes",
        512 << 20,
        "Small neighbouring Parquet segments are merged up to this size; 0: never. Not one of "
        "Kafka's keys.",
    ),
    long_config(
        "segment.ms",
        10 * 60_000,
        "A Parquet segment is planned when records are older than this, however few they are.",
        low=1,
    ),
    long_config(
        "table.commit.interval.ms",
        60_000,
        "How long the topic's table stays as it is at least, whatever is rolled meanwhile; each "
        "change is a snapshot. Not one of Kafka's keys.",
    ),
    bool_config(
        "table.enabled",
        False,
        "Whether `diskless tier` keeps an Iceberg table of the topic's segments, which is in the "
        "broker's catalogue. Not one of Kafka's keys.",
    ),
    bool_config(
        "table.hide.deleted",
        False,
        "Whether the topic's table leaves out records that were deleted while their segment is "
        "stored for later ones, as DeleteRecords may do. Not one of Kafka's keys.",
    ),
    TopicConfig(
        name="table.namespace",
        kind=ConfigKind.STRING,
        default="topics",
        pattern="[A-Za-z0-9_-]{1,100}",
        documentation="The namespace of the topic's table in the catalogue; it is named like the "
        "topic. Not one of Kafka's keys.",
    ),
    long_config(
        "table.snapshot.retention.ms",
        _HOUR_MS,
        "How long a snapshot of the topic's table can be read after a newer one took its place: "
        "objects of deleted segments are kept for it. Not one of Kafka's keys.",
        low=60_000,
    ),
    bool_config(
        "tiering.enable",
        True,
        "Whether `diskless tier` rolls the topic into Parquet segments. Not one of Kafka's keys. "
        "Without segments each run of batches stays a row of the metadata until it is deleted.",
    ),
    bool_config(
        "unclean.leader.election.enable",
        False,
        "Any broker can serve any partition; none is ever unclean." + _NO_EFFECT,
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {
    config.name: config
    for config in sorted(
        (*_TABLE, *(config for side in schema_configs.SIDES for config in _schema_configs(side))),
        key=lambda config: config.name,
    )
}
"""By name, ascending."""


def known_config(name: str) -> TopicConfig:
    """Raises InvalidConfig when there is none of that name."""
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        raise InvalidConfig(f"Unknown topic config name: {name}")
    return config


def check_topic_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Returns what is stored of the configs a client set: null means the default and is left out.

    Values are kept as given but for surrounding blanks. Raises InvalidConfig naming the key, in
    Kafka's words where tools are known to look for them.
    """
    checked = {}
    for name, value in configs.items():
        config = known_config(name)
        if value is not None:
            checked[name] = _checked(config, value.strip())
    low, high = (int(effective(checked, name)) for name in _COMPACTION_LAGS)
    if low > high:
        raise InvalidConfig(
            f"conflict topic config setting {_COMPACTION_LAGS[0]} ({low}) > "
            f"{_COMPACTION_LAGS[1]} ({high})"
        )
    schema_configs.check_schema_configs(checked)
    return checked


_COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def effective(configs: Mapping[str, str], name: str) -> str:
    """The value of `name` in a topic that set `configs`. Raises KeyError for an unknown name."""
    return configs.get(name, TOPIC_CONFIGS[name].default)


def topic_rules(configs: Mapping[str, str]) -> TopicRules:
    """Returns the rules for produced batches in a topic that set `configs`."""
    is_append_time = effective(configs, "message.timestamp.type") == "LogAppendTime"
    return TopicRules(
        max_message_bytes=int(effective(configs, "max.message.bytes")),
        timestamp_type=LOG_APPEND_TIME if is_append_time else CREATE_TIME,
        timestamp_before_max_ms=_timestamp_bound(configs, "message.timestamp.before.max.ms"),
        timestamp_after_max_ms=_timestamp_bound(configs, "message.timestamp.after.max.ms"),
        compacted="compact" in list_items(effective(configs, "cleanup.policy")),
    )


def compression_of(configs: Mapping[str, str]) -> Compression | None:
    """Returns the codec for batches of a topic that set `configs`, or None to keep theirs."""
    name = effective(configs, "compression.type")
    codec = _CODECS.get(name)
    if codec is None:
        return None
    level = f"compression.{name}.level"
    return Compression(codec, int(effective(configs, level)) if level in TOPIC_CONFIGS else None)


_CODECS: Final = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}


def list_items(value: str) -> list[str]:
    """The items of a config of kind LIST."""
    return [item.strip() for item in value.split(",") if item.strip()]


def _timestamp_bound(configs: Mapping[str, str], name: str) -> int:
    for key in (name, "message.timestamp.difference.max.ms"):
        if key in configs:
            return int(configs[key])
    return int(TOPIC_CONFIGS[name].default)


def _checked(config: TopicConfig, value: str) -> str:
    match config.kind:
        case ConfigKind.BOOLEAN:
            if value.lower() not in ("true", "false"):
                raise _invalid(config, value, "Expected value to be either true or false")
            return value.lower()
        case ConfigKind.STRING:
            _check_text(config, value)
        case ConfigKind.LIST:
            items = list_items(value)
            for item in items:
                _check_text(config, item)
            if config.choices and not items:
                raise _invalid(config, value, f"needs one of {', '.join(config.choices)}")
        case ConfigKind.INT | ConfigKind.LONG | ConfigKind.DOUBLE:
            _check_number(config, value)
    return value


def _check_text(config: TopicConfig, value: str) -> None:
    length = len(value.encode("utf-8", "surrogatepass"))
    if config.bytes_max is not None and length > config.bytes_max:
        # Without the value: it is longer than what belongs into an answer.
        raise InvalidConfig(
            f"Invalid value for configuration {config.name}: {length} bytes, no more than "
            f"{config.bytes_max} are allowed"
        )
    if config.choices and value not in config.choices:
        raise _invalid(config, value, f"String must be one of: {', '.join(config.choices)}")
    if config.pattern and re.fullmatch(config.pattern, value) is None:
        raise _invalid(config, value, f"must match {config.pattern}")


def _check_number(config: TopicConfig, value: str) -> None:
    # float() and int() take more than a number in plain digits, which other readers do not.
    is_double = config.kind is ConfigKind.DOUBLE
    if re.fullmatch(_DOUBLE if is_double else _INTEGER, value) is None:
        raise _invalid(config, value, f"Not a number of type {config.kind.name}")
    number = float(value) if is_double else int(value)
    assert config.minimum is not None
    assert config.maximum is not None
    if number < config.minimum:
        raise _invalid(config, value, f"Value must be at least {config.minimum}")
    if number > config.maximum:
        raise _invalid(config, value, f"Value must be no more than {config.maximum}")


def _invalid(config: TopicConfig, value: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"Invalid value {value} for configuration {config.name}: {why}")
