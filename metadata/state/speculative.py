"""The state as it will be once everything pending is durable.

An operation is decided against the committed state *and* the effect of the operations decided
before it, so that the next one need not wait for their append. That effect lives here, as an
overlay over the committed image: each entry remembers the number of the group of operations that
wrote it and leaves when that group was applied, because then the image says the same. When an
append fails, everything pending fails with it, the overlay is dropped, and the image is the truth.

Surrogate keys are offsets of the metadata log, so the view also knows which offset the next record
will get (`next_offset`); the append insists on it.

Source: KIP-1164, "How operations are performed", step 3.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from metadata.access_tokens import AccessToken, AccessTokens
from metadata.acls import AclBinding
from metadata.operations import QuotaEntity, RegisteredBroker, TopicDescription
from metadata.records.stored_tables import StoredTable
from metadata.scram.credentials import ScramCredential
from metadata.sink_operations import OpenBatch, Sink
from metadata.state.image import (
    CommittedImage,
    PartitionState,
    PlannedSegment,
    ProducerKey,
    RewriteState,
    StoredTopic,
)
from metadata.state.producer_state import ProducerState
from metadata.state.transactions.overlay import Absent, Overlay
from metadata.state.transactions.transaction_view import TransactionView
from metadata.transaction_operations import ClosedKey, ClosedTransaction
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.ulid import ULID_CHARS, WAL_PREFIX, minted_ms_of_wal_key, wal_shard_prefix

_NOTHING_CLOSED: Final[Mapping[ClosedKey, ClosedTransaction | None]] = MappingProxyType({})
_WAL_KEY_CHARS: Final = len(wal_shard_prefix(0)) + ULID_CHARS


class FileStanding(Enum):
    """What a coordinator knows of a key; metadata/rules/files.py says what follows."""

    COMMITTED = auto()
    HANDED_OVER = auto()
    """Another coordinator made it ours; it was not committed here, and still may be."""
    SEALED = auto()
    """As HANDED_OVER, but it may not be committed any more."""
    TOMBSTONED = auto()
    """It was not committed here and never will be."""


class KnownFile(NamedTuple):
    """What is known under some key; of a committed file, what tells its request, and its answer."""

    request_digest: bytes
    answer: bytes
    standing: FileStanding = FileStanding.COMMITTED
    is_owner: bool = True


def _ulid_of(key: ObjectKey) -> str | None:
    """The ULID of what may be a WAL object; None for all other keys."""
    is_alike = len(key) == _WAL_KEY_CHARS and key.startswith(WAL_PREFIX)
    return key[-ULID_CHARS:] if is_alike else None


class SpeculativeView:
    """What the rules of deciding read and write.

    It belongs to the event loop: the deciding task writes it, the applying task retires from it.
    """

    def __init__(self, image: CommittedImage) -> None:
        self._image = image
        self._topics: Overlay[UUID, StoredTopic] = Overlay()
        self._topics_by_name: Overlay[str, TopicDescription] = Overlay()
        self._partitions: Overlay[TopicIdPartition, PartitionState] = Overlay()
        self._plans: Overlay[ObjectKey, PlannedSegment] = Overlay()
        self._rewrites: Overlay[TopicIdPartition, RewriteState] = Overlay()
        self._planned_ends: Overlay[TopicIdPartition, int] = Overlay()
        self._producers: Overlay[ProducerKey, ProducerState] = Overlay()
        self._brokers: Overlay[int, RegisteredBroker] = Overlay()
        self._quotas: Overlay[QuotaEntity, Mapping[str, float]] = Overlay()
        self._acls: Overlay[AclBinding, bool] = Overlay()
        self._scram: Overlay[tuple[str, int], ScramCredential] = Overlay()
        self._tokens: Overlay[str, AccessToken] = Overlay()
        self._tables: Overlay[UUID, StoredTable] = Overlay()
        self._sinks: Overlay[str, Sink] = Overlay()
        self._open_batches: Overlay[str, OpenBatch] = Overlay()
        self.transactions: Final = TransactionView(image.transactions)
        self._of_image: Final[Sequence[Overlay[Any, Any]]] = [
            *(overlay for overlay in vars(self).values() if isinstance(overlay, Overlay)),
            *self.transactions.overlays,
        ]
        self._files: Overlay[ObjectKey, KnownFile] = Overlay()
        # A file is not part of the image. One that is applied while a look-up in SQLite is under
        # way may be missed by both, so files stay here until the next look-up starts; so does the
        # fact that one was forgotten.
        self._applied_files: dict[ObjectKey, KnownFile | None] = {}
        self._looked_up_files: Mapping[ObjectKey, KnownFile] = {}
        # No WAL object in SQLite has a greater ULID than the newest that was there once, and than
        # those applied since. ULIDs ascend, so nearly every key that comes is beyond both.
        self._newest_stored_ulid: str | None = None
        self._newest_applied_ulid = ""
        self._looked_up_producers: Mapping[ProducerKey, ProducerState | None] = {}
        self._next_producer_id: int | None = None
        self._producer_ids_written_by = 0
        self._forgotten_until_ms = -1
        self._forgotten_by = 0
        self.coordinator_id: Final = image.coordinator_id
        """The metadata partition that is decided about."""
        self.group = 0
        """Number of the group that is being decided; every write is tagged with it."""
        self.next_offset = image.next_offset
        """Offset in the metadata log of the next record to be decided."""

    # -- topics and partitions ------------------------------------------------------------------

    def topic_by_name(self, name: str) -> TopicDescription | None:
        found = self._topics_by_name.get(name)
        return self._image.topics_by_name.get(name) if isinstance(found, Absent) else found

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        topic = self.stored_topic(topic_id)
        return None if topic is None else topic.description

    def stored_topic(self, topic_id: UUID) -> StoredTopic | None:
        found = self._topics.get(topic_id)
        return self._image.topics.get(topic_id) if isinstance(found, Absent) else found

    def stored_topic_by_name(self, name: str) -> StoredTopic | None:
        topic = self.topic_by_name(name)
        return None if topic is None else self.stored_topic(topic.topic_id)

    def put_topic(self, topic: StoredTopic) -> None:
        self._topics.put(topic.description.topic_id, topic, self.group)
        self._topics_by_name.put(topic.description.name, topic.description, self.group)

    def delete_topic(self, description: TopicDescription) -> None:
        """The topic, its partitions and its plans are gone."""
        self._topics.put(description.topic_id, None, self.group)
        self._topics_by_name.put(description.name, None, self.group)
        self._tables.put(description.topic_id, None, self.group)
        for index in range(description.partition_count):
            partition = TopicIdPartition(description.topic_id, index)
            self._partitions.put(partition, None, self.group)
            self._rewrites.put(partition, None, self.group)
        for plan in list(self.plans()):
            if plan.partition.topic_id == description.topic_id:
                self._plans.put(plan.object_key, None, self.group)

    def partition(self, partition: TopicIdPartition) -> PartitionState | None:
        """Log start offset and high watermark; how far it is planned says `planned_end`."""
        if self._partitions.groups:
            found = self._partitions.get(partition)
            if not isinstance(found, Absent):
                return found
        return self._image.partitions.get(partition)

    def partitions(self, partitions: Sequence[TopicIdPartition]) -> Sequence[PartitionState | None]:
        """`partition` for many."""
        if self._partitions.groups:
            return [*map(self.partition, partitions)]
        return [*map(self._image.partitions.get, partitions)]

    def put_partition(self, partition: TopicIdPartition, state: PartitionState) -> None:
        self._partitions.put(partition, state, self.group)

    def put_partitions(self, states: Mapping[TopicIdPartition, PartitionState]) -> None:
        self._partitions.of(self.group).update(states)

    # -- segment plans --------------------------------------------------------------------------

    def plans(self) -> Iterator[PlannedSegment]:
        """All outstanding plans, in no particular order."""
        pending = dict(self._plans.items())
        for key, plan in self._image.plans.items():
            if key not in pending:
                yield plan
        yield from (plan for plan in pending.values() if plan is not None)

    def plan(self, key: ObjectKey) -> PlannedSegment | None:
        found = self._plans.get(key)
        return self._image.plans.get(key) if isinstance(found, Absent) else found

    def put_plan(self, plan: PlannedSegment) -> None:
        self._plans.put(plan.object_key, plan, self.group)
        self.put_planned_end(plan.partition, plan.last_offset + 1)

    def delete_plan(self, key: ObjectKey) -> None:
        self._plans.put(key, None, self.group)

    def planned_end(self, partition: TopicIdPartition) -> int | None:
        """Where the next plan starts; None = no such partition, or not known until what is
        pending was applied. Kept apart from the partition, which every commit writes."""
        found = self._planned_ends.get(partition)
        if not isinstance(found, Absent):
            return found
        state = self._image.partitions.get(partition)
        if state is None or self.partition(partition) is None:
            return None
        return state.planned_end_offset

    def put_planned_end(self, partition: TopicIdPartition, planned_end: int | None) -> None:
        self._planned_ends.put(partition, planned_end, self.group)

    # -- rewrites -------------------------------------------------------------------------------

    def rewrite(self, partition: TopicIdPartition) -> RewriteState:
        """What was planned last for the partition, which exists."""
        found = self._rewrites.get(partition)
        state = self._image.rewrites.get(partition) if isinstance(found, Absent) else found
        return state or RewriteState()

    def put_rewrite(self, partition: TopicIdPartition, state: RewriteState) -> None:
        self._rewrites.put(partition, state, self.group)

    # -- producers ------------------------------------------------------------------------------

    def unknown_producers(self, keys: Collection[ProducerKey]) -> set[ProducerKey]:
        """Those of `keys` for which `knows_producer` does not hold."""
        cached = self._image.producers
        if all(map(cached.__contains__, keys)):
            return set()
        return {key for key in keys if not self.knows_producer(key)}

    def knows_producer(self, key: ProducerKey) -> bool:
        """Whether `producer` can answer without a look-up in SQLite."""
        return (
            key in self._looked_up_producers
            or key in self._image.producers
            or not isinstance(self._producers.get(key), Absent)
        )

    def producer(self, key: ProducerKey) -> ProducerState | None:
        """The producer's state; None = never seen there. `knows_producer(key)` must hold."""
        if self._producers.groups:
            found = self._producers.get(key)
            if not isinstance(found, Absent):
                return found
        state = self._image.producers.get(key)
        return self._looked_up_producers[key] if state is None else state

    def producers(self, keys: Sequence[ProducerKey]) -> Sequence[ProducerState | None]:
        """`producer` for many."""
        if self._producers.groups:
            return [*map(self.producer, keys)]
        cached, looked_up = self._image.producers, self._looked_up_producers
        states = [*map(cached.get, keys)]
        if None not in states:
            return states
        return [
            looked_up[key] if state is None else state
            for key, state in zip(keys, states, strict=True)
        ]

    def put_producers(self, states: Mapping[ProducerKey, ProducerState]) -> None:
        self._producers.of(self.group).update(states)

    # -- brokers ------------------------------------------------------------------------------

    def broker(self, broker_id: int) -> RegisteredBroker | None:
        found = self._brokers.get(broker_id)
        return self._image.brokers.get(broker_id) if isinstance(found, Absent) else found

    def put_broker(self, broker_id: int, broker: RegisteredBroker | None) -> None:
        self._brokers.put(broker_id, broker, self.group)

    # -- quotas ---------------------------------------------------------------------------------

    def quotas(self, entity: QuotaEntity) -> Mapping[str, float] | None:
        """The entity's quotas by key; None when it has none."""
        found = self._quotas.get(entity)
        return self._image.quotas.get(entity) if isinstance(found, Absent) else found

    def put_quotas(self, entity: QuotaEntity, quotas: Mapping[str, float] | None) -> None:
        self._quotas.put(entity, quotas, self.group)

    def quota_entity_count(self) -> int:
        """Returns how many entities have quotas."""
        image = self._image.quotas
        count = len(image)
        for entity, quotas in self._quotas.items():
            count += (quotas is not None) - (entity in image)
        return count

    # -- access control -------------------------------------------------------------------------

    def has_acl(self, rule: AclBinding) -> bool:
        found = self._acls.get(rule)
        return rule in self._image.acls if isinstance(found, Absent) else found is not None

    def put_acl(self, rule: AclBinding, *, is_there: bool) -> None:
        self._acls.put(rule, True if is_there else None, self.group)

    def acls(self) -> frozenset[AclBinding]:
        """All rules."""
        changed = dict(self._acls.items())
        gone = {rule for rule, is_there in changed.items() if not is_there}
        return (self._image.acls | changed.keys()) - gone if changed else self._image.acls

    # -- users ----------------------------------------------------------------------------------

    def scram(self, user: str, mechanism: int) -> ScramCredential | None:
        found = self._scram.get((user, mechanism))
        return self._image.scram.get((user, mechanism)) if isinstance(found, Absent) else found

    def put_scram(self, user: str, mechanism: int, credential: ScramCredential | None) -> None:
        self._scram.put((user, mechanism), credential, self.group)

    def scram_count(self) -> int:
        """Returns how many credentials there are."""
        image = self._image.scram
        count = len(image)
        for key, credential in self._scram.items():
            count += (credential is not None) - (key in image)
        return count

    def access_tokens(self) -> AccessTokens:
        merged = {**self._image.tokens, **dict(self._tokens.items())}
        return {token_id: token for token_id, token in merged.items() if token is not None}

    def put_access_token(self, token_id: str, token: AccessToken | None) -> None:
        self._tokens.put(token_id, token, self.group)

    # -- tables ---------------------------------------------------------------------------------

    def table(self, topic_id: UUID) -> StoredTable | None:
        """Returns the pointer of the topic's table; None when it was never written."""
        found = self._tables.get(topic_id)
        return self._image.tables.get(topic_id) if isinstance(found, Absent) else found

    def put_table(self, topic_id: UUID, table: StoredTable) -> None:
        self._tables.put(topic_id, table, self.group)

    # -- sinks ----------------------------------------------------------------------------------

    def sink(self, sink_id: str) -> Sink | None:
        """Returns the sink's owner and last batch; None when it never committed."""
        found = self._sinks.get(sink_id)
        return self._image.sinks.get(sink_id) if isinstance(found, Absent) else found

    def put_sink(self, sink_id: str, sink: Sink | None) -> None:
        self._sinks.put(sink_id, sink, self.group)

    def sinks(self) -> Mapping[str, Sink]:
        """All of them."""
        merged = {**self._image.sinks, **dict(self._sinks.items())}
        return {sink_id: sink for sink_id, sink in merged.items() if sink is not None}

    def open_batch(self, sink_id: str) -> OpenBatch | None:
        """Returns the sink's last batch if not all coordinators have committed their shares."""
        found = self._open_batches.get(sink_id)
        return self._image.open_batches.get(sink_id) if isinstance(found, Absent) else found

    def put_open_batch(self, sink_id: str, opened: OpenBatch | None) -> None:
        self._open_batches.put(sink_id, opened, self.group)

    def open_batch_count(self) -> int:
        pending = dict(self._open_batches.items())
        known = {*self._image.open_batches, *pending} - {
            sink_id for sink_id, opened in pending.items() if opened is None
        }
        return len(known)

    # -- producer ids ---------------------------------------------------------------------------

    @property
    def next_producer_id(self) -> int:
        pending = self._next_producer_id
        return self._image.next_producer_id if pending is None else pending

    def put_next_producer_id(self, next_producer_id: int) -> None:
        self._next_producer_id = next_producer_id
        self._producer_ids_written_by = self.group

    @property
    def forgotten_until_ms(self) -> int:
        """Keys minted up to then may have been committed, cleaned up and forgotten."""
        return max(self._image.forgotten_until_ms, self._forgotten_until_ms)

    @property
    def began_ms(self) -> int | None:
        """When the metadata log began; what was committed before is not in it. None: not yet."""
        began_ms = self._image.began_ms
        return None if began_ms < 0 else began_ms

    # -- files ----------------------------------------------------------------------------------

    def file(self, key: ObjectKey) -> KnownFile | None:
        """The file committed under `key`. The key must have been looked up for this group."""
        found = self._files.get(key)
        if not isinstance(found, Absent):
            return found
        if key in self._applied_files:
            return self._applied_files[key]
        return self._looked_up_files.get(key)

    @property
    def knows_newest_file(self) -> bool:
        """Whether a look-up has told the newest WAL object."""
        return self._newest_stored_ulid is not None

    def may_be_stored(self, key: ObjectKey) -> bool:
        """Whether `file` needs a look-up of `key` in SQLite to answer."""
        newest, ulid = self._newest_stored_ulid, _ulid_of(key)
        return newest is None or ulid is None or ulid <= newest or ulid <= self._newest_applied_ulid

    def put_file(self, key: ObjectKey, file: KnownFile) -> None:
        self._files.put(key, file, self.group)

    def forget_file(self, key: ObjectKey) -> None:
        """The file is unknown from now on, and its key too old to be committed."""
        self._files.put(key, None, self.group)
        minted = minted_ms_of_wal_key(key)
        if minted is not None and minted > self.forgotten_until_ms:
            self._forgotten_until_ms = minted
            self._forgotten_by = self.group

    # -- life of the view -----------------------------------------------------------------------

    def start_look_up(self) -> None:
        """A look-up in SQLite starts now; it sees everything that was applied before."""
        self._applied_files.clear()
        self._looked_up_files = {}
        self._looked_up_producers = {}
        self.transactions.start_look_up()

    def finish_look_up(
        self,
        files: Mapping[ObjectKey, KnownFile],
        producers: Mapping[ProducerKey, ProducerState | None],
        newest_ulid: str | None = None,
        closed: Mapping[ClosedKey, ClosedTransaction | None] = _NOTHING_CLOSED,
    ) -> None:
        """Takes in what the look-up found; valid until the next one starts.

        `newest_ulid`: of all WAL objects that were in SQLite, if it was asked for.
        """
        self._looked_up_files = files
        self._looked_up_producers = producers
        self.transactions.finish_look_up(closed)
        if newest_ulid is not None:
            self._newest_stored_ulid = newest_ulid

    def retire(self, applied_group: int) -> None:
        """Groups up to `applied_group` are in the image now."""
        for overlay in self._of_image:
            if overlay.groups:
                overlay.retire(applied_group)
        for written in self._files.retire(applied_group):
            self._applied_files.update(written)
            for key in written:
                self._newest_applied_ulid = max(self._newest_applied_ulid, _ulid_of(key) or "")
        if self._forgotten_by <= applied_group:
            self._forgotten_until_ms = -1
        if self._producer_ids_written_by <= applied_group:
            self._next_producer_id = None

    def reset(self) -> None:
        """Forget everything pending; all durable operations must have been applied before."""
        for overlay in (*self._of_image, self._files):
            overlay.clear()
        self._next_producer_id = None
        self._forgotten_until_ms = -1
        self.next_offset = self._image.next_offset
