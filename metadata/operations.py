"""The coordinator's operations as values; metadata/messages has their bytes.

Requests are lists, answers are lists in the same order, and an error belongs to one entry: it is
returned as a value in that entry. What a call raises concerns it as a whole: NotCoordinator,
CommitFailed (nothing happened, try again), CommitOutcomeUnknown (repeat with the same object key).
Source: KIP-1164, "Diskless coordinator API"; the segment operations are ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from metadata.metadata_version import METADATA_VERSION
from metadata.scram.credentials import ScramCredential
from wal.coordinates import BatchExtent, ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import DisklessError
from wal.records.marker_batches import Marker
from wal.wire.layouts import CompactBytes, Int8, Int32, UInt32

WRITE_AHEAD_MULTI_SEGMENT: Final = 1
"""KIP-1164's ObjectFormat of a WAL object."""

PARQUET_SEGMENT: Final = 2
"""Our object format of a Parquet segment; segments share the life cycle of WAL objects."""

TOMBSTONE: Final = 0
"""Object format of a row that only says: this key is never committed."""

METADATA_TOPIC: Final = "__diskless_metadata"
"""The topic under which any Kafka client can read the metadata log, a partition per coordinator."""

METADATA_TOPIC_ID: Final = UUID("6469736b-6c65-8373-8000-6d6574616461")
"""The same in every cluster. Ids of topics are of version 4; this one is of version 8."""

CATALOGUE: Final = 0
"""The coordinator that also keeps topic names, configs, assignments and broker registrations."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
"""Isolation levels, as in Fetch."""

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """One topic as the coordinator knows it; `configs` holds only what was set explicitly."""

    topic_id: UUID
    name: str
    partition_count: int
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, int] = field(default_factory=dict)
    """Coordinators of the partitions that do not live at the catalogue's (CATALOGUE)."""

    def coordinator_of(self, partition: int) -> int:
        """Returns the coordinator that the partition was assigned to when it was created."""
        return self.assignments.get(partition, CATALOGUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """A topic to create. Its name, partition count and configs were validated by the caller."""

    name: str
    partition_count: Int32
    configs: Mapping[str, str] = field(default_factory=dict)
    topic_id: UUID | None = None
    """Given when somebody chose it already; else the coordinator mints one."""
    assignments: Mapping[int, int] = field(default_factory=dict)
    """Partitions that live at other coordinators, filled in by the catalogue's leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """Gives a topic `partition_count` partitions: creates those that are missing.

    Repeating it changes nothing, so a creation that failed half-way is driven on by asking again.
    """

    topic_id: UUID
    name: str
    partition_count: Int32
    assignments: Mapping[int, int] = field(default_factory=dict)
    """Partitions that live at other coordinators, filled in by the catalogue's leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsAt:
    """The partitions of one topic that go to one coordinator, by index."""

    topic_id: UUID
    name: str
    partitions: Sequence[Int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopicConfigs:
    """Gives a topic exactly `configs`, if it has exactly `before` now.

    Repeating it changes nothing. Names and values were validated by the caller, who made `configs`
    of `before`; somebody else's change in between is told, so that it is not undone.
    """

    topic_id: UUID
    before: Mapping[str, str]
    configs: Mapping[str, str]


class AlteredTopicConfigs(NamedTuple):
    """What is set on the topic now, altered as asked or not: somebody else was first."""

    is_altered: bool = False
    configs: Mapping[str, str] = MappingProxyType({})
    error: DisklessError | None = None


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Whom quotas are for: (type, name) by ascending type, each type once; no name: the default of all
that have no quotas of their own. Types are Kafka's: "user", "client-id", "ip"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotas:
    """Quotas to set for an entity, by key; None: to be removed. The others stay as they are.

    Repeating it changes nothing. Entity, keys and values were validated by the caller.
    """

    entity: QuotaEntity
    changes: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterScramCredential:
    """A user's SCRAM credential of one mechanism, to set or, where it is None, to remove.

    Setting it again changes nothing. Name, mechanism and iterations were validated by the caller.
    """

    user: str
    mechanism: Int8
    """A `ScramMechanism`."""
    credential: ScramCredential | None
    is_first: bool = False
    """Only where the cluster has no user yet."""


ScramCredentials = Mapping[tuple[str, int], ScramCredential]
"""By user and mechanism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFile:
    """One uploaded WAL object to commit; `batches` in the order of the object's footer."""

    object_key: ObjectKey
    file_size_bytes: int
    uploader_broker_id: int
    batches: Sequence[BatchExtent]
    object_format: int = WRITE_AHEAD_MULTI_SEGMENT
    owner_ids: Sequence[int] = (0,)


class BatchCommit(NamedTuple):
    """The answer for one batch: its offset, or why it was refused.

    A duplicate is a success: it carries the offset that the batch got the first time.
    """

    base_offset: int = -1
    log_append_time_ms: int = -1
    """The coordinator's time of the commit; applies to topics with LogAppendTime only."""
    log_start_offset: int = -1
    is_duplicate: bool = False
    error: DisklessError | None = None


class CommittedFile(NamedTuple):
    """The answer for one of several files: those for its batches, or why it was refused."""

    batches: Sequence[BatchCommit] = ()
    error: DisklessError | None = None
    """Rejected or ObjectExpired: nothing of the file was committed, nor ever will be."""


class DeleteRecords(NamedTuple):
    """Delete everything below `before_offset`; -1 means below the high watermark."""

    partition: TopicIdPartition
    before_offset: int


class DeletedRecords(NamedTuple):
    log_start_offset: int = -1
    error: DisklessError | None = None


class WalExtent(NamedTuple):
    """Committed batches that lie back to back in one WAL object: one coalesced row.

    `base_offset` .. `last_offset` is dense over the physical batches inside; each of those still
    carries base offset 0 in its bytes and is walked by its length field.
    """

    object_key: ObjectKey
    byte_offset: ByteOffset
    length_bytes: int
    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    max_timestamp_ms: int
    timestamp_type: Int8
    object_bytes: int = 0
    """Size of the whole WAL object; the object cache aligns its blocks with it."""

    def bytes_from(self, offset: int) -> int:
        """About how much of it holds `offset` and what follows: its batches as if of one size."""
        if offset <= self.base_offset:
            return self.length_bytes
        return self.bytes_between(offset, self.last_offset + 1)

    def bytes_between(self, first: int, end: int) -> int:
        """About how much of it holds [first, end): its batches as if of one size."""
        first, end = max(first, self.base_offset), min(end, self.last_offset + 1)
        return self.length_bytes * max(end - first, 0) // (self.last_offset + 1 - self.base_offset)


class SegmentExtent(NamedTuple):
    """A Parquet segment that holds the records `base_offset` .. `last_offset` of one partition."""

    object_key: ObjectKey
    object_bytes: int
    base_offset: Offset
    last_offset: Offset
    max_timestamp_ms: int

    def bytes_from(self, offset: int) -> int:
        """As `WalExtent.bytes_from`; how much a segment is as batches shows when it is decoded."""
        return self.object_bytes

    def bytes_between(self, first: int, end: int) -> int:
        """As `bytes_from`."""
        return self.object_bytes


StoredExtent = WalExtent | SegmentExtent
Extent = StoredExtent | Marker
"""A marker ends a transaction; it has an offset and no object."""


class AbortedTransaction(NamedTuple):
    """What a reader of committed records leaves out of one partition.

    Between the offsets it is every transactional batch of the producer, and nothing else is.
    """

    producer_id: int
    first_offset: int
    """Of its first batch."""
    marker_offset: int


class FindBatches(NamedTuple):
    """Where to read one partition from, and how much of it at most."""

    partition: TopicIdPartition
    offset: int
    max_bytes: int


class FoundBatches(NamedTuple):
    """What there is to read of one partition; empty `extents` without error = caught up."""

    log_start_offset: int = -1
    high_watermark: int = -1
    extents: Sequence[Extent] = ()
    """In offset order and gapless; the first one contains the asked offset."""
    error: DisklessError | None = None
    first_open_offset: int = -1
    """Where the first of the transactions began that are not ended; -1: there is none."""
    aborted: Sequence[AbortedTransaction] = ()
    """For a reader of committed records: those with batches in the extents, by marker."""

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is ended."""
        if self.first_open_offset < 0:
            return self.high_watermark
        return max(self.first_open_offset, self.log_start_offset)


class ListOffsets(NamedTuple):
    """A timestamp in milliseconds, or one of the negative constants above."""

    partition: TopicIdPartition
    timestamp: int


class ListedOffset(NamedTuple):
    """An offset, or the extent in which the reader has to look for the record.

    Special timestamps give `offset`. A real timestamp gives the first extent whose maximum
    timestamp is not smaller (the record is in there), MAX_TIMESTAMP the extent with the greatest
    one; the replica manager opens it to be exact to the record. Neither: offset -1, extent None.
    """

    offset: int = -1
    timestamp_ms: int = -1
    extent: StoredExtent | None = None
    log_start_offset: int = -1
    error: DisklessError | None = None
    last_stable_offset: int = -1
    """What a reader of committed records is told nothing beyond; -1 beside an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableTopic:
    """What a reader of tables must know of a topic; the URL holds no secrets."""

    topic_id: UUID
    partition_count: Int32
    configs: Mapping[str, str] = field(default_factory=dict)
    object_store_url: str = ""
    columns: CompactBytes = b""
    """The typed columns that segments planned now get; opaque here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    """A segment that is to be rolled: fixed offsets, fixed key, the batches it is made of.

    Durable once planned: asked again, the coordinator gives the same plan with the same key until
    it is committed, so that killed, repeated and speculative tasks converge on one object.
    """

    topic_name: str
    partition: TopicIdPartition
    object_key: ObjectKey
    base_offset: Offset
    last_offset: Offset
    extents: Sequence[WalExtent]
    columns: CompactBytes = b""
    """The typed columns that it gets, as the topic had them when it was planned; opaque here."""
    markers: Sequence[int] = ()
    """The offsets between the extents, ascending: each is the marker of a transaction."""
    aborted: Sequence[AbortedTransaction] = ()
    """What of the extents becomes no row, by marker; a transaction may reach beyond the plan."""


class PlanSegments(NamedTuple):
    """What a tiering job asks for, and a broker of another for its sake."""

    include_partial: bool = False
    """Plan the rest of every partition too, however small."""
    max_plans: Int32 = 2**31 - 1
    """The answer holds no more; the broker may give fewer still, but one if there is one."""
    topics: Sequence[str] = ()
    """Topics to plan, as names or patterns with `*`, `?` and `[…]`. An empty list means all."""
    excluded_topics: Sequence[str] = ()
    """Topics to leave out, written in the same way."""
    schemas_only: bool = False
    """Plan nothing, and answer with schemas alone."""

    def wants(self, topic_name: str) -> bool:
        """Whether segments of the topic are asked for."""
        return (
            not self.topics or any(fnmatchcase(topic_name, name) for name in self.topics)
        ) and not any(fnmatchcase(topic_name, name) for name in self.excluded_topics)


WHATEVER_IS_DUE: Final = PlanSegments()


class TopicColumns(NamedTuple):
    """The typed columns of a topic; both kinds of bytes are opaque here."""

    version: int = 0
    """Counted up with every change; 0: there never were any."""
    basis: bytes = b""
    """Which configs they were made of; empty for those that type nothing."""
    columns: bytes = b""


class SetTopicColumns(NamedTuple):
    """Gives a topic typed columns, if it still has those of the version before."""

    topic_id: UUID
    version: int
    basis: CompactBytes
    columns: CompactBytes


class TopicSchemas(NamedTuple):
    """What a topic sets of the schemas of its records, and the typed columns that it has."""

    topic_id: UUID
    name: str
    configs: Mapping[str, str]
    basis: CompactBytes
    """Of these configs. While the columns have another one, nothing of the topic is planned."""
    version: int
    columns_basis: CompactBytes
    columns: CompactBytes

    @property
    def has(self) -> TopicColumns:
        return TopicColumns(self.version, self.columns_basis, self.columns)


class PlannedSegments(NamedTuple):
    """What is due, and where its objects lie; the URL holds no secrets."""

    plans: Sequence[SegmentPlan]
    object_store_url: str = ""
    schemas: Sequence[TopicSchemas] = ()
    """Of topics whose typed columns the job should look after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledSegment:
    """What a roll task wrote, exactly; offered to the coordinator to replace the batches."""

    partition: TopicIdPartition
    object_key: ObjectKey
    base_offset: Offset
    last_offset: Offset
    object_bytes: int
    crc32c: UInt32
    """CRC32C over the whole object."""
    record_count: int
    """Rows."""
    control_count: int = 0
    """Control records and markers among the planned offsets, which never become rows."""
    aborted_count: int = 0
    """Records of aborted transactions, which do not either."""
    max_timestamp_ms: int


class SegmentCommit(NamedTuple):
    """`is_duplicate`: this very segment was committed before; nothing changed."""

    is_duplicate: bool = False
    error: DisklessError | None = None


class DescribedFile(NamedTuple):
    """What the asked coordinators know of one object; UnknownFile when none ever heard of it."""

    has_live_batches: bool = False
    error: DisklessError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedFile:
    """A WAL object whose ownership goes to the next coordinator of its owner list."""

    object_key: ObjectKey
    object_format: Int8
    file_size_bytes: int
    owner_ids: Sequence[Int32]


class Tombstone(NamedTuple):
    """`is_known`: the coordinator has committed (or owns) the file, so it was not tombstoned."""

    is_known: bool = False
    error: DisklessError | None = None


class Leader(NamedTuple):
    """Who leads a metadata partition, as its log says; or who has resigned, and to whom."""

    leader_epoch: int
    broker_id: int
    host: str
    port: int
    incarnation: UUID
    successor_id: int = -1


class RegisteredBroker(NamedTuple):
    """A broker of the cluster, as the catalogue knows it; `may_lead`: metadata partitions."""

    broker_id: Int32
    host: str
    port: Int32
    rack: str
    incarnation: UUID
    endpoints: str
    """Where clients reach it, by listener (diskless/listeners/endpoints.py); here a text."""
    may_lead: bool = True
    metadata_version: Int32 = METADATA_VERSION
