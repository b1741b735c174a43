"""The one frozen configuration, made of its sources, which nothing else reads.

Keys are dotted and Kafka-like; each is declared beside the code that uses it, in a settings section
(see `wal.settings`), with its default, bounds and what gets worse in either direction. Sources, the
later wins:

1. defaults,
2. a properties file (`diskless serve --config FILE`): `key=value` lines, `#` comments,
3. the environment: `DISKLESS_` + the key in capitals with `_` for `.`
   (`DISKLESS_WAL_COMMIT_INTERVAL_MS=100`),
4. the command line.

A secret is written in none of these but the environment: elsewhere the value is `file:PATH`, of a
file that nobody else may read (`diskless.config_sources`). `listener.name.<name>.` in front of a
key that a listener can have for itself sets it for the listener of that name alone.

An unknown key, a value out of bounds and a line that is not `key=value` fail at start, by name. So
do two values that do not go together: what one part may make, the next part must be able to take.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

from diskless.acls.acl_settings import AuthorizerSettings
from diskless.audit.audit_settings import AuditSettings
from diskless.config_sources import (
    from_environment,
    from_options,
    from_properties,
    take_per_listener,
)
from diskless.groups.settings import GroupSettings
from diskless.health.health_settings import HealthSettings
from diskless.listeners.listener_settings import ListenerSettings
from diskless.listeners.tls_settings import TlsSettings
from diskless.loop.loop_watch import LoopSettings
from diskless.quotas.quota_settings import QuotaSettings
from diskless.sasl.oauth.oauth_settings import OAuthSettings
from diskless.sasl.sasl_settings import SaslSettings
from diskless.server.request_budget import REQUEST_ALLOWANCE_BYTES
from diskless.server.server_settings import ServerSettings
from diskless.topics.topic_defaults import TopicDefaults
from diskless.transactions.settings import TransactionSettings
from diskless.web.http_settings import HttpSettings
from metadata.log.local_log import LocalLogSettings
from metadata.log.object_log_settings import ObjectLogSettings
from metadata.metadata_settings import CoordinatorSettings
from metadata.retention_settings import RetentionSettings
from metadata.workers.snapshot_keeper import SnapshotSettings
from tiering.segment_reader import SegmentReaderSettings
from wal.caches.object_cache import ObjectCacheSettings
from wal.chunks.sealed_chunk import BATCH_OVERHEAD_BYTES
from wal.chunks.wal_settings import WalSettings
from wal.errors import InvalidSettings
from wal.inflation_budget import InflationSettings
from wal.settings import (
    Setting,
    SettingValue,
    as_mapping,
    section_from,
    setting,
    settings_of,
    with_values,
)
from wal.stores.file_store import FileStoreSettings
from wal.stores.s3_settings import S3Settings

_Section = TypeVar("_Section")

_OBJECT_BYTES_MAX: Final = 2**31 - 1
"""A commit states the size of its object in an int32."""

_BATCH_DESCRIPTION_BYTES_MAX: Final = 128
"""What a batch takes in its object's footer (72), or in the record of its commit when it is the
only one of its topic there (61, its position, and topic and partition in front)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Who this broker is, and what it grants to clients that ask for nothing in particular."""

    node_id: int = setting(
        "node.id", 0, minimum=0, maximum=2**31 - 1, why="stable for the life of a data directory"
    )
    workers: int = setting(
        "broker.workers",
        1,
        minimum=0,
        maximum=256,
        why="processes that share the listeners, each with connections, chunks and uploads of its "
        "own; 1: one process does everything; 0: one for each core of the machine; more: more "
        "cores are used, and each process seals objects of its own",
    )
    workers_active_min: int = setting(
        "broker.workers.active.min",
        1,
        minimum=1,
        maximum=256,
        why="workers that are given connections however little there is to do; more: load is "
        "spread from the start, but a little of it is sealed into more objects",
    )
    workers_full_percent: int = setting(
        "broker.workers.full.percent",
        70,
        minimum=1,
        maximum=100,
        why="of a core: a worker that takes more is full, so that another one is used and heavy "
        "connections move there; more: fewer workers and objects, longer waits",
    )
    rack: str = setting("broker.rack", "", why="the availability zone clients are matched with")
    auto_create_topics: bool = setting(
        "auto.create.topics.enable",
        True,
        why="true: a typing error becomes a topic; false: topics must be created first",
    )
    default_partitions: int = setting(
        "num.partitions",
        1,
        minimum=1,
        maximum=10_000,
        why="fewer: less parallel reading; more: smaller runs in each object",
    )
    http_listen: str = setting(
        "http.listen",
        "127.0.0.1:9644",
        why="HOST:PORT of /livez, /readyz, /metrics and the catalogue of tables; when only this "
        "default is taken, a free port is used; port 0 takes a free one; empty: none",
    )
    log_format: str = setting(
        "log.format", "console", choices=("console", "json"), why="json is for machines"
    )
    log_level: str = setting(
        "log.level",
        "info",
        choices=("debug", "info", "warning", "error"),
        why="debug writes a line a request and slows the broker",
    )
    metadata_log: str = setting(
        "diskless.metadata.log",
        "local",
        choices=("local", "object"),
        why="local: in the data directory, one broker, a millisecond per commit; object: in the "
        "object store, any number of brokers, survives every disk, one PUT per commit",
    )
    object_store_url: str = setting(
        "object.store.url",
        "",
        why="file:///dir, s3://bucket/prefix or memory://name; empty: a directory in the data "
        "directory",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How committed bytes are read back."""

    fd_cache_capacity: int = setting(
        "fd.cache.capacity",
        256,
        minimum=8,
        maximum=100_000,
        why="smaller: more opens when many chunks are read; larger: more descriptors held",
    )
    cold_after_ms: int = setting(
        "fetch.cold.after.ms",
        600_000,
        minimum=0,
        maximum=2**62,
        why="age from which data is read around the memory cache, so that catch-up reads do not "
        "evict the tail",
    )
    memory_idle_max_bytes: int = setting(
        "fetch.memory.idle.max.bytes",
        64 << 20,
        minimum=0,
        maximum=16 << 30,
        why="memory of answers from chunks that is kept for the next ones; smaller: the system "
        "clears memory for every large answer; larger: more memory kept while nobody reads",
    )
    fetch_session_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        1_000,
        minimum=0,
        maximum=1_000_000,
        why="consumers whose idle partitions are kept here and not sent with each poll; fewer: "
        "some send full requests, which costs bandwidth; more: 100 bytes for each partition; "
        "0: no sessions",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that was configured, and which keys were set rather than defaulted."""

    broker: BrokerSettings = field(default_factory=BrokerSettings)
    listeners: ListenerSettings = field(default_factory=ListenerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    wal: WalSettings = field(default_factory=WalSettings)
    file_store: FileStoreSettings = field(default_factory=FileStoreSettings)
    s3: S3Settings = field(default_factory=S3Settings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    sasl: SaslSettings = field(default_factory=SaslSettings)
    tokens: OAuthSettings = field(default_factory=OAuthSettings)
    authorizer: AuthorizerSettings = field(default_factory=AuthorizerSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    read: ReadSettings = field(default_factory=ReadSettings)
    cache: ObjectCacheSettings = field(default_factory=ObjectCacheSettings)
    inflation: InflationSettings = field(default_factory=InflationSettings)
    segments: SegmentReaderSettings = field(default_factory=SegmentReaderSettings)
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    metadata_log: LocalLogSettings = field(default_factory=LocalLogSettings)
    object_log: ObjectLogSettings = field(default_factory=ObjectLogSettings)
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    per_listener: Mapping[str, Mapping[str, SettingValue]] = field(default_factory=dict)
    """What listeners have for themselves: by name in capitals, by key."""
    explicit: frozenset[str] = frozenset()

    def of_listener(self, name: str, section: _Section) -> _Section:
        """One of the sections, as it is for the listener of this name."""
        return with_values(section, self.per_listener.get(name, {}))

    def values(self) -> Mapping[str, SettingValue]:
        """Every key with its value, for DescribeConfigs."""
        merged: dict[str, SettingValue] = {}
        for name in _SECTIONS:
            merged.update(as_mapping(getattr(self, name)))
        return merged


_SECTIONS: Final[Mapping[str, type[Any]]] = {
    name: kind
    for name, kind in get_type_hints(Config).items()
    if name not in ("per_listener", "explicit")
}
_SETTINGS: Final[Mapping[str, Setting]] = {
    described.key: described
    for section in _SECTIONS.values()
    for _, described in settings_of(section)
}


def load_config(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Config:
    """Merge the sources into one Config. Raises InvalidSettings naming what does not fit."""
    values: dict[str, str] = {}
    if file is not None:
        values.update(from_properties(file, _SETTINGS))
    values.update(from_environment(environment or {}, _SETTINGS))
    values.update(from_options(overrides or {}, _SETTINGS))
    explicit = frozenset(values)
    per_listener = take_per_listener(values, _SETTINGS)
    sections = {name: section_from(section, values) for name, section in _SECTIONS.items()}
    if values:
        unknown = ", ".join(sorted(values))
        raise InvalidSettings(
            f"unknown configuration: {unknown}; `diskless config` lists what there is"
        )
    config = Config(**sections, per_listener=per_listener, explicit=explicit)
    for limit in _limits_across(config):
        if limit.needed > limit.allowed:
            raise InvalidSettings(
                f"{limit.needed_by} needs {limit.needed}, {limit.allowed_by} allows "
                f"{limit.allowed}: {limit.why}"
            )
    return config


class _Limit(NamedTuple):
    """What some keys make necessary, and what others make possible."""

    needed_by: str
    needed: int
    allowed_by: str
    allowed: int
    why: str


def _limits_across(config: Config) -> Iterator[_Limit]:
    """Where the value of one key must leave room for that of another."""
    wal, server, coordinator = config.wal, config.server, config.coordinator
    chunk_bytes = wal.chunk_max_bytes + wal.chunk_overflow_bytes
    yield _Limit(
        "wal.chunk.max.batches",
        wal.chunk_max_batches,
        "diskless.coordinator.commit.batches.max",
        coordinator.commit_batches_max,
        "a full chunk is one commit",
    )
    yield _Limit(
        "diskless.coordinator.commit.batches.max",
        coordinator.commit_batches_max * _BATCH_DESCRIPTION_BYTES_MAX,
        "metadata.log.segment.bytes",
        config.metadata_log.batch_max_bytes,
        f"a commit is one record, {_BATCH_DESCRIPTION_BYTES_MAX} bytes a batch, in half a segment",
    )
    yield _Limit(
        "wal.chunk.max.bytes + wal.chunk.overflow.bytes + wal.chunk.max.batches",
        chunk_bytes + wal.chunk_max_batches * _BATCH_DESCRIPTION_BYTES_MAX,
        "the WAL object format",
        _OBJECT_BYTES_MAX,
        "an object with its footer is smaller than 2 GiB",
    )
    yield _Limit(
        "socket.request.max.bytes",
        server.request_max_bytes,
        "wal.chunk.max.bytes + wal.chunk.overflow.bytes",
        chunk_bytes,
        "the batches of one request share a chunk",
    )
    # Were the queue full before connections stop reading, the first batch of a new idempotent
    # producer could be refused and a later one taken, which would start it at a wrong sequence.
    yield _Limit(
        "queued.max.request.bytes + socket.request.max.bytes + max.connections of 64 KiB + "
        "wal.chunk.max.batches",
        server.queued_max_request_bytes
        + server.request_max_bytes
        + server.max_connections * REQUEST_ALLOWANCE_BYTES
        + wal.chunk_max_batches * BATCH_OVERHEAD_BYTES,
        "wal.append.queue.max.bytes",
        wal.append_queue_max_bytes,
        "connections must stop reading before the write queue is full",
    )


def explain_all() -> Iterator[tuple[str, SettingValue, str]]:
    """(key, default, why) of every key there is, in the order of the sections."""
    for section in _SECTIONS.values():
        for _, described in settings_of(section):
            yield described.key, described.default, described.why
