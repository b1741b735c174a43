"""The tables of a coordinator's SQLite state, and the SQL that its hot paths run.

A table lists its integer columns first, then its blobs and texts, then the row's checksum; that is
also the order of the tuples that go in and come out. Surrogate keys (`topics.id`, `partitions.id`,
`files.id`) are the offset of the metadata record that created the row, so every replica gives the
same ones and no counter has to be kept. `batches`, `segments` and the like are clustered by
(partition, last offset), so that finding an offset and reading on from it is one descent into the
tree and a walk along its leaves, however long the backlog.

| table           | one row per |
|-----------------|-------------|
| topics          | topic |
| topic_configs   | config set explicitly on a topic |
| topic_columns   | topic with typed columns, or that had them (catalogue only) |
| partitions      | partition: log start offset, high watermark, how far it is planned, bytes |
| files           | object (WAL object or segment) that is referenced, or waits for its end |
| file_answers    | file: digest of the request that committed it, and the answer it got |
| batches         | run of byte-contiguous batches of one file and partition (coalesced) |
| producer_states | (partition, producer id): epoch and last five batches, when it wrote last |
| producer_ids    | exactly one: the next producer id never given out |
| segment_plans   | segment that was planned and not yet committed |
| segments        | committed segment |
| rewrites        | partition that was ever to be merged or compacted: how far it is |
| assignments     | partition that lives at another coordinator (catalogue only) |
| leadership      | at most one: who leads this metadata partition |
| brokers         | registered broker (catalogue only) |
| client_quotas   | (entity, key): a quota of clients (catalogue only) |
| acls            | rule of access control (catalogue only) |
| scram_credentials | (mechanism, user): what is stored of a password (catalogue only) |
| access_tokens   | access token: its user, digest and time (catalogue only) |
| tables          | topic with an Iceberg table: its pointer and its commits (catalogue only) |
| sinks           | sink that stages objects: its owner and its last batch |
| sink_shares     | (coordinator, sink): what it has to commit of the sink's last batch |
| left_segments   | segment that left the live ones and is stored: at which metadata offset |
| swept           | partition that is gone with its topic, but has rows left to be deleted |
| consumer_groups | consumer group there is anything of: what its coordinator stored |
| group_offsets   | (consumer group, partition): the committed offset |
| …               | transactions: metadata/state/schema/transactions.py |
| applied         | exactly one: how far the metadata log was applied, the state hash |
"""

import struct
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Column, Index, Integer, LargeBinary, String, Table, UniqueConstraint

from metadata.access_tokens import AccessToken
from metadata.acls import AclBinding
from metadata.sink_operations import SinkRange
from metadata.state.schema.state_table import SCHEMA, StateTable
from metadata.state.schema.transactions import TRANSACTION_TABLES
from metadata.state.state_hash import RowChecksum
from wal.coordinates import ObjectKey, TopicIdPartition

STATE_VERSION: Final = 21
"""Changes with anything that changes tables or what `apply` makes of a record (also the coalescing
rule); a state of another version is set aside and rebuilt from the metadata log."""

NOT_DELETABLE: Final = -1
"""`files.deletable_since_ms` of a file with live batches."""

_OWNER: Final = struct.Struct("<i")
_RANGE: Final = struct.Struct("<16siqq")
_FLOAT: Final = struct.Struct("<d")
_FLOAT_BITS: Final = struct.Struct("<q")


def pack_owners(owner_ids: Sequence[int]) -> bytes:
    """`files.owner_ids`: coordinator ids in the order in which they own the file."""
    return b"".join(map(_OWNER.pack, owner_ids))


def unpack_owners(data: bytes) -> tuple[int, ...]:
    """The inverse of `pack_owners`; the row's checksum has been verified."""
    return tuple(owner for (owner,) in _OWNER.iter_unpack(data))


def float_bits(value: float) -> int:
    """A float as the integer column it is stored in: exactly, and under the row's checksum."""
    return int(_FLOAT_BITS.unpack(_FLOAT.pack(value))[0])


def float_of_bits(bits: int) -> float:
    """The inverse of `float_bits`."""
    return float(_FLOAT.unpack(_FLOAT_BITS.pack(bits))[0])


TOPICS: Final = StateTable(
    1,
    "topics",
    ["id", "partition_count"],
    [("topic_id", LargeBinary), ("name", String)],
    key=["id"],
    constraints=[UniqueConstraint("topic_id")],
)
TOPIC_CONFIGS: Final = StateTable(
    2,
    "topic_configs",
    ["topic"],
    [("name", String), ("value", String)],
    key=["topic", "name"],
)
PARTITIONS: Final = StateTable(
    3,
    "partitions",
    [
        "id",
        "topic",
        "partition",
        "log_start_offset",
        "high_watermark",
        "planned_end_offset",
        "unplanned_bytes",
        "live_bytes",
        "first_open_offset",
        "last_marker_offset",
    ],
    key=["id"],
    constraints=[UniqueConstraint("topic", "partition")],
)
FILES: Final = StateTable(
    4,
    "files",
    [
        "id",
        "object_format",
        "object_bytes",
        "uploader_broker_id",
        "committed_at_ms",
        "live_rows",
        "live_bytes",
        "deletable_since_ms",
        "is_owner",
    ],
    [("object_key", String), ("owner_ids", LargeBinary)],
    key=["id"],
    constraints=[UniqueConstraint("object_key")],
)
Index(
    "files_deletable",
    FILES.table.c.is_owner,
    FILES.table.c.deletable_since_ms,
    sqlite_where=FILES.table.c.deletable_since_ms >= 0,
)
FILE_ANSWERS: Final = StateTable(
    5,
    "file_answers",
    ["file"],
    [("request_digest", LargeBinary), ("answer", LargeBinary)],
    key=["file"],
)
BATCHES: Final = StateTable(
    6,
    "batches",
    [
        "partition",
        "last_offset",
        "base_offset",
        "file",
        "byte_offset",
        "byte_size",
        "batch_count",
        "timestamp_type",
        "append_time_ms",
        "max_timestamp_ms",
    ],
    key=["partition", "last_offset"],
)
PRODUCER_STATES: Final = StateTable(
    7,
    "producer_states",
    ["partition", "producer_id", "append_period", "last_append_ms"],
    [("window", LargeBinary)],
    key=["partition", "producer_id"],
)
Index("producers_by_period", PRODUCER_STATES.table.c.append_period)
PRODUCER_IDS: Final = StateTable(8, "producer_ids", ["id", "next_producer_id"], key=["id"])
SEGMENT_PLANS: Final = StateTable(
    9,
    "segment_plans",
    ["partition", "last_offset", "base_offset", "planned_at_ms"],
    [("object_key", String), ("columns", LargeBinary)],
    key=["partition", "last_offset"],
)
SEGMENTS: Final = StateTable(
    10,
    "segments",
    [
        "partition",
        "last_offset",
        "base_offset",
        "file",
        "record_count",
        "crc32c",
        "max_timestamp_ms",
    ],
    key=["partition", "last_offset"],
)

ASSIGNMENTS: Final = StateTable(
    11,
    "assignments",
    ["topic", "partition", "coordinator"],
    key=["topic", "partition"],
)
LEADERSHIP: Final = StateTable(
    12,
    "leadership",
    ["id", "leader_epoch", "broker_id", "port", "successor_id"],
    [("host", String), ("incarnation", LargeBinary)],
    key=["id"],
)
BROKERS: Final = StateTable(
    13,
    "brokers",
    ["broker_id", "port", "may_lead", "metadata_version"],
    [
        ("host", String),
        ("rack", String),
        ("endpoints", String),
        ("incarnation", LargeBinary),
    ],
    key=["broker_id"],
)
SWEPT: Final = StateTable(14, "swept", ["partition"], key=["partition"])
CONSUMER_GROUPS: Final = StateTable(
    15,
    "consumer_groups",
    ["id", "kind", "updated_ms"],
    [("group_id", String), ("state", LargeBinary)],
    key=["id"],
    constraints=[UniqueConstraint("group_id")],
)
COMMIT_PERIOD_MS: Final = 10 * 60_000
"""How coarsely the commit time of an offset is indexed; part of STATE_VERSION."""

GROUP_OFFSETS: Final = StateTable(
    16,
    "group_offsets",
    [
        "group_key",
        "partition",
        "commit_period",
        "committed_offset",
        "leader_epoch",
        "commit_ms",
        "expire_ms",
    ],
    [("topic_id", LargeBinary), ("metadata", String)],
    key=["group_key", "partition", "topic_id"],
)
Index("offsets_by_period", GROUP_OFFSETS.table.c.commit_period)
Index(
    "offsets_by_expiry",
    GROUP_OFFSETS.table.c.expire_ms,
    sqlite_where=GROUP_OFFSETS.table.c.expire_ms >= 0,
)

CLIENT_QUOTAS: Final = StateTable(
    17,
    "client_quotas",
    ["value_bits"],
    [("entity", LargeBinary), ("key", String)],
    key=["entity", "key"],
)
REWRITES: Final = StateTable(
    25,
    "rewrites",
    [
        "partition",
        "generation",
        "cleaned_end_offset",
        "kind",
        "base_offset",
        "last_offset",
        "planned_at_ms",
        "delete_horizon_ms",
        "target_bytes",
    ],
    key=["partition"],
)

ACLS: Final = StateTable(
    18,
    "acls",
    ["resource_type", "pattern_type", "operation", "permission"],
    [("resource_name", String), ("principal", String), ("host", String)],
    key=[
        "resource_type",
        "pattern_type",
        "operation",
        "permission",
        "resource_name",
        "principal",
        "host",
    ],
)
TABLES: Final = StateTable(
    30, "tables", ["topic"], [("commits", LargeBinary), ("location", String)], key=["topic"]
)
LEFT_SEGMENTS: Final = StateTable(
    31, "left_segments", ["file", "left_offset"], [("topic_id", LargeBinary)], key=["file"]
)
Index("left_by_topic", LEFT_SEGMENTS.table.c.topic_id, LEFT_SEGMENTS.table.c.left_offset)

SCRAM_CREDENTIALS: Final = StateTable(
    19,
    "scram_credentials",
    ["mechanism", "iterations"],
    [
        ("user", String),
        ("salt", LargeBinary),
        ("stored_key", LargeBinary),
        ("server_key", LargeBinary),
    ],
    key=["mechanism", "user"],
)
SINKS: Final = StateTable(
    34,
    "sinks",
    ["batch_id", "committed_at_ms"],
    [
        ("sink_id", String),
        ("principal", String),
        ("digest", LargeBinary),
        ("ranges", LargeBinary),
    ],
    key=["sink_id"],
)
SINK_SHARES: Final = StateTable(
    44,
    "sink_shares",
    ["coordinator"],
    [("sink_id", String), ("object_keys", String), ("files", LargeBinary)],
    key=["coordinator", "sink_id"],
)
ACCESS_TOKENS: Final = StateTable(
    35,
    "access_tokens",
    ["made_at_ms", "ends_at_ms"],
    [("token_id", String), ("user", String), ("digest", LargeBinary)],
    key=["token_id"],
)
_MADE: Final = [("basis", LargeBinary), ("columns", LargeBinary)]
TOPIC_COLUMNS: Final = StateTable(33, "topic_columns", ["topic", "version"], _MADE, key=["topic"])

STATE_TABLES: Final = (
    TOPICS,
    TOPIC_CONFIGS,
    PARTITIONS,
    FILES,
    FILE_ANSWERS,
    BATCHES,
    PRODUCER_STATES,
    PRODUCER_IDS,
    SEGMENT_PLANS,
    SEGMENTS,
    ASSIGNMENTS,
    LEADERSHIP,
    BROKERS,
    SWEPT,
    CONSUMER_GROUPS,
    GROUP_OFFSETS,
    CLIENT_QUOTAS,
    ACLS,
    SCRAM_CREDENTIALS,
    REWRITES,
    TABLES,
    LEFT_SEGMENTS,
    TOPIC_COLUMNS,
    SINKS,
    SINK_SHARES,
    ACCESS_TOKENS,
    *TRANSACTION_TABLES,
)

APPLIED: Final = Table(
    "applied",
    SCHEMA,
    Column("id", Integer, primary_key=True),
    Column("state_version", Integer, nullable=False),
    Column("next_offset", Integer, nullable=False),
    Column("last_record_crc", Integer, nullable=False),
    Column("timestamp_ms", Integer, nullable=False),
    Column("forgotten_until_ms", Integer, nullable=False),
    Column("began_ms", Integer, nullable=False),
    Column("state_hash", Integer, nullable=False),
    Column("checksum", Integer, nullable=False),
)
APPLIED_CHECKSUM: Final = RowChecksum(100, 8)


def acl_row(rule: AclBinding) -> tuple[Any, ...]:
    """The columns of `acls` in their order."""
    kind, name, pattern, principal, host, operation, permission = rule
    return (kind, pattern, operation, permission, name, principal, host)


def access_token_of(row: Sequence[Any]) -> AccessToken:
    """The token of a row of `access_tokens`."""
    made_at_ms, ends_at_ms, token_id, user, digest = row[:5]
    return AccessToken(token_id, user, digest, made_at_ms, ends_at_ms)


def acl_of(row: Sequence[Any]) -> AclBinding:
    """The rule of a row of `acls`."""
    kind, pattern, operation, permission, name, principal, host = row[:7]
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def pack_keys(keys: Sequence[ObjectKey]) -> str:
    """`sink_shares.object_keys`; no key of a staged object has a space."""
    return " ".join(keys)


def unpack_keys(text: str) -> tuple[ObjectKey, ...]:
    """The inverse of `pack_keys`."""
    return tuple(map(ObjectKey, text.split()))


def pack_ranges(ranges: Sequence[SinkRange]) -> bytes:
    """`sinks.ranges`: the offsets of the last batch, by partition."""
    return b"".join(
        _RANGE.pack(item.partition.topic_id.bytes, item.partition.partition, *item[1:])
        for item in ranges
    )


def unpack_ranges(data: bytes) -> tuple[SinkRange, ...]:
    """The inverse of `pack_ranges`; the row's checksum has been verified."""
    return tuple(
        SinkRange(TopicIdPartition(UUID(bytes=topic_id), index), base, last)
        for topic_id, index, base, last in _RANGE.iter_unpack(data)
    )
