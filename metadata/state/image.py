"""The part of the committed state that is kept in memory.

All topics, partitions, outstanding plans of segments and rewrites, and the recently used producer
states: what deciding an operation needs. It equals SQLite as of the last committed transaction. The
coordinator task alone changes it, by merging the `Changes` of a transaction after it was committed;
the writer thread reads it while it applies, which is safe because nothing is merged meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from metadata import operations as ops
from metadata.access_tokens import AccessToken, AccessTokens
from metadata.acls import AclBinding
from metadata.records.stored_tables import StoredTable
from metadata.rewrites import NO_REWRITE
from metadata.scram.credentials import ScramCredential
from metadata.sink_operations import OpenBatch, Sink, StoredShare, open_batch
from metadata.state import schema
from metadata.state.producer_state import ProducerState
from metadata.state.transactions.transaction_image import ProducerKey as ProducerKey
from metadata.state.transactions.transaction_image import TransactionChanges, TransactionImage
from wal.coordinates import ObjectKey, TopicIdPartition

GONE_TABLES_MAX: Final = 10_000
"""How many tables are remembered behind the end of their topics."""


class PartitionState(NamedTuple):
    """One partition, in the order of its row's columns; offsets as in Kafka."""

    id: int
    """Offset of the metadata record that created it."""
    topic: int
    """Surrogate key of its topic."""
    partition: int
    log_start_offset: int = 0
    high_watermark: int = 0
    planned_end_offset: int = 0
    """Below it, everything is in a segment or in an outstanding plan for one."""
    unplanned_bytes: int = 0
    """Bytes of the live rows from `planned_end_offset` on."""
    live_bytes: int = 0
    """Bytes of the rows and segments that reach to the log start offset or above it."""
    first_open_offset: int = -1
    """The first offset of the open transactions that have data here; -1: there are none."""
    last_marker_offset: int = -1
    """Of the last marker; -1: there never was one, or all lie below what was rolled or deleted."""

    @property
    def last_stable_offset(self) -> int:
        """Below it, every transaction has ended; within the log, as Kafka's."""
        if self.first_open_offset < 0:
            return self.high_watermark
        return max(self.first_open_offset, self.log_start_offset)


class PlannedSegment(NamedTuple):
    """An outstanding plan."""

    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    object_key: ObjectKey
    planned_at_ms: int
    columns: bytes = b""


class RewriteState(NamedTuple):
    """What was planned last to rewrite of a partition, and how far it is compacted.

    In the order of its row's columns. While nothing is under way, only the first two mean anything.
    """

    generation: int = 0
    """Of the last rewrite that was planned."""
    cleaned_end_offset: int = 0
    """Below it no compaction has left anything to do; records from it on are dirty."""
    kind: int = NO_REWRITE
    """Of what is under way."""
    base_offset: int = -1
    last_offset: int = -1
    planned_at_ms: int = -1
    delete_horizon_ms: int = -1
    target_bytes: int = -1


class StoredTopic(NamedTuple):
    """A topic and its surrogate key."""

    id: int
    description: ops.TopicDescription
    columns: ops.TopicColumns = ops.TopicColumns()


@dataclass(slots=True, kw_only=True)
class Changes:
    """What one transaction changed; None stands for gone."""

    next_offset: int
    timestamp_ms: int
    state_hash: int
    next_producer_id: int
    forgotten_until_ms: int
    began_ms: int
    topics: dict[UUID, StoredTopic | None] = field(default_factory=dict)
    partitions: dict[TopicIdPartition, PartitionState | None] = field(default_factory=dict)
    plans: dict[ObjectKey, PlannedSegment | None] = field(default_factory=dict)
    rewrites: dict[TopicIdPartition, RewriteState | None] = field(default_factory=dict)
    producers: dict[ProducerKey, ProducerState | None] = field(default_factory=dict)
    leader: ops.Leader | None = None
    """Set when leadership changed."""
    brokers: dict[int, ops.RegisteredBroker | None] = field(default_factory=dict)
    quotas: dict[ops.QuotaEntity, Mapping[str, float] | None] = field(default_factory=dict)
    acls: dict[AclBinding, bool] = field(default_factory=dict)
    """Whether a rule is there now."""
    scram: dict[tuple[str, int], ScramCredential | None] = field(default_factory=dict)
    """By user and mechanism."""
    tokens: dict[str, AccessToken | None] = field(default_factory=dict)
    tables: dict[UUID, StoredTable | None] = field(default_factory=dict)
    sinks: dict[str, Sink | None] = field(default_factory=dict)
    open_batches: dict[str, OpenBatch | None] = field(default_factory=dict)
    transactions: TransactionChanges = field(default_factory=TransactionChanges)


class CommittedImage:
    """Topics, partitions, plans and a capped cache of producers, as SQLite has them."""

    def __init__(self, *, producers_max: int, coordinator_id: int = 0) -> None:
        """`coordinator_id`: the metadata partition this is the state of."""
        self._producers_max = producers_max
        self.coordinator_id: Final = coordinator_id
        self.next_offset = 0
        self.timestamp_ms = 0
        self.state_hash = 0
        self.next_producer_id = 0
        self.forgotten_until_ms = -1
        """The latest time at which a key that was forgotten had been minted."""
        self.began_ms = -1
        """Time of the metadata log's first batch; -1 before that."""
        self.topics: dict[UUID, StoredTopic] = {}
        self.topics_by_name: dict[str, ops.TopicDescription] = {}
        self.partitions: dict[TopicIdPartition, PartitionState] = {}
        self.plans: dict[ObjectKey, PlannedSegment] = {}
        self.rewrites: dict[TopicIdPartition, RewriteState] = {}
        """Of the partitions that something was ever planned for."""
        self.producers: dict[ProducerKey, ProducerState] = {}
        self.leader: ops.Leader | None = None
        """Who leads; None before the first leader."""
        self.brokers: dict[int, ops.RegisteredBroker] = {}
        self.quotas: Mapping[ops.QuotaEntity, Mapping[str, float]] = {}
        """Another mapping after every change, so that who looks at it sees at once whether it did;
        quotas change seldom."""
        self.acls: frozenset[AclBinding] = frozenset()
        """Another set after every change, as with quotas."""
        self.tokens: AccessTokens = {}
        """Another mapping after every change."""
        self.scram: ops.ScramCredentials = {}
        """Likewise."""
        self.tables: Mapping[UUID, StoredTable] = {}
        """By topic id. Another mapping after every change: threads look at it."""
        self.gone_tables: dict[UUID, StoredTable] = {}
        """Those that went with their topics since this state was opened, with their last commit.
        For warnings: they are in no row, and of many the last GONE_TABLES_MAX are known."""
        self.sinks: dict[str, Sink] = {}
        """By sink id, or name of a share; rules/sinks bounds how many."""
        self.open_batches: dict[str, OpenBatch] = {}
        """By sink id, those of which other coordinators have shares to commit; bounded likewise."""
        self.transactions: Final = TransactionImage(closed_max=producers_max)

    def merge(self, changes: Changes) -> None:
        """Take over what a transaction changed, after it was committed."""
        self.next_offset = changes.next_offset
        self.timestamp_ms = changes.timestamp_ms
        self.state_hash = changes.state_hash
        self.next_producer_id = changes.next_producer_id
        self.forgotten_until_ms = changes.forgotten_until_ms
        self.began_ms = changes.began_ms
        for topic_id, topic in changes.topics.items():
            before = self.topics.pop(topic_id, None)
            # A name may have been deleted and created again within one transaction.
            if before is not None and self._owns_name(before.description):
                del self.topics_by_name[before.description.name]
            if topic is not None:
                self.topics[topic_id] = topic
                self.topics_by_name[topic.description.name] = topic.description
        # All at once, which takes the keys' hashes over: that of a UUID is Python code.
        gone = [partition for partition, state in changes.partitions.items() if state is None]
        self.partitions.update(changes.partitions)  # type: ignore[arg-type]
        for partition in gone:
            del self.partitions[partition]
        for key, plan in changes.plans.items():
            if plan is None:
                self.plans.pop(key, None)
            else:
                self.plans[key] = plan
        for partition, rewrite in changes.rewrites.items():
            if rewrite is None:
                self.rewrites.pop(partition, None)
            else:
                self.rewrites[partition] = rewrite
        if changes.leader is not None:
            self.leader = changes.leader
        for broker_id, broker in changes.brokers.items():
            if broker is None:
                self.brokers.pop(broker_id, None)
            else:
                self.brokers[broker_id] = broker
        if changes.quotas:
            self.quotas = {
                entity: quotas
                for entity, quotas in {**self.quotas, **changes.quotas}.items()
                if quotas is not None
            }
        if changes.acls:
            gone_rules = {rule for rule, is_there in changes.acls.items() if not is_there}
            self.acls = (self.acls | changes.acls.keys()) - gone_rules
        if changes.tokens:
            self.tokens = {
                token_id: token
                for token_id, token in {**self.tokens, **changes.tokens}.items()
                if token is not None
            }
        if changes.scram:
            self.scram = {
                key: credential
                for key, credential in {**self.scram, **changes.scram}.items()
                if credential is not None
            }
        if changes.tables:
            for topic_id, table in changes.tables.items():
                if table is None and topic_id in self.tables:
                    last = self.tables[topic_id]
                    self.gone_tables[topic_id] = last._replace(commits=last.commits[-1:])
            while len(self.gone_tables) > GONE_TABLES_MAX:
                del self.gone_tables[next(iter(self.gone_tables))]
            self.tables = {
                topic_id: table
                for topic_id, table in {**self.tables, **changes.tables}.items()
                if table is not None
            }
        for sink_id, sink in changes.sinks.items():
            if sink is None:
                self.sinks.pop(sink_id, None)
            else:
                self.sinks[sink_id] = sink
        for sink_id, opened in changes.open_batches.items():
            if opened is None:
                self.open_batches.pop(sink_id, None)
            else:
                self.open_batches[sink_id] = opened
        self._merge_producers(changes.producers)
        self.transactions.merge(changes.transactions)

    def _owns_name(self, description: ops.TopicDescription) -> bool:
        known = self.topics_by_name.get(description.name)
        return known is not None and known.topic_id == description.topic_id

    def _merge_producers(self, producers: dict[ProducerKey, ProducerState | None]) -> None:
        """The least recently written leave first; one that is needed again is read from SQLite."""
        cache = self.producers
        for key, producer in producers.items():
            cache.pop(key, None)
            if producer is not None:
                cache[key] = producer
        while len(cache) > self._producers_max:
            del cache[next(iter(cache))]


def load_sinks(
    rows: Callable[[schema.StateTable], Sequence[tuple[Any, ...]]], image: CommittedImage
) -> None:
    """Put sinks, and the batches of them that are open, into `image`; `rows`: those of a table."""
    for batch_id, committed_at_ms, sink_id, principal, digest, ranges, _ in rows(schema.SINKS):
        image.sinks[sink_id] = Sink(
            sink_id=sink_id,
            principal=principal,
            batch_id=batch_id,
            digest=digest,
            committed_at_ms=committed_at_ms,
            ranges=schema.unpack_ranges(ranges),
        )
    shares: dict[str, list[StoredShare]] = {}
    for coordinator, sink_id, keys, files, _ in rows(schema.SINK_SHARES):
        share = StoredShare(coordinator, schema.unpack_keys(keys), files)
        shares.setdefault(sink_id, []).append(share)
    image.open_batches = {
        sink_id: open_batch(image.sinks[sink_id], some) for sink_id, some in shares.items()
    }
