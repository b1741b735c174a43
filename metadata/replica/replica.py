"""One metadata partition's committed state in this process, led here or elsewhere.

A replica is SQLite plus the part of it that is kept in memory, at one position of the metadata log.
A leader applies to it what it appended, a follower what it read; both through `apply`, so both end
up equal (their state hashes say so). Everybody reads from it.

Invariants:
- Memory and SQLite move together: `apply` commits the rows, then takes them over in memory, and
  nothing - no cancellation either - comes between the two.
- Batches are applied in log order, each once. Only one task applies at a time.
- Listeners hear of a change after it can be read.

Failure cases: a disk that refuses is waited out, because what is durable in the log has to be
applied sooner or later; CorruptState and CorruptLog are raised to the applier.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import UUID

from metadata import operations as ops
from metadata.access_tokens import AccessTokens
from metadata.acls import AclBinding
from metadata.log.log import MetadataLog, MetadataRecordBatch
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.groups import CommittedOffset
from metadata.records.stored_tables import StoredTable
from metadata.replica.read_ahead import read_ahead
from metadata.replica.snapshots import SnapshotStore
from metadata.replica.state_recovery import REPLAY_BYTES, apply_batches, open_state
from metadata.state.image import Changes, CommittedImage, PartitionState
from metadata.state.queries.batch_queries import FileNames, find_batches
from metadata.state.queries.group_queries import (
    AgedOffset,
    ExpiryCursor,
    StoredGroup,
    aged_offsets,
    group_offsets,
    stored_group,
    stored_groups,
)
from metadata.state.queries.offset_queries import list_offset
from metadata.state.queries.segment_queries import list_segments
from metadata.state.queries.transaction_queries import pending_partitions
from metadata.state.state import STATE_FILE, StateDatabase
from metadata.table_operations import ListedSegments, ListSegments
from metadata.transaction_operations import OpenTransaction
from wal.clock import Sleep
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, OutOfBounds, StorageFailed
from wal.failpoint import failpoint

APPLY_RETRY_S: Final = (0.05, 0.2, 1.0, 5.0)
"""Pauses while SQLite's disk refuses; the last one is repeated for ever."""

ROWS_PER_PARTITION_MAX: Final = 2**31 - 1
GROUPS_PER_READ: Final = 50
DELETED_TOPICS_MAX: Final = 10_000
"""Deleted topics that are remembered, the oldest forgotten first."""

_logger = logging.getLogger(__name__)

CommitListener = Callable[[Collection[TopicIdPartition]], None]


class Replica:
    """The state of the metadata partition `coordinator_id` below `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: CoordinatorSettings,
        coordinator_id: int = 0,
        snapshots: SnapshotStore | None = None,
        catalogue: "Replica | None" = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`snapshots` are what a state that cannot be replayed any more starts from.

        `catalogue` is the replica that has the topics' configs, unless this one is it.
        """
        self.coordinator_id: Final = coordinator_id
        self.state: Final = StateDatabase(directory / STATE_FILE, readers=settings.state_readers)
        self.image = CommittedImage(
            producers_max=settings.producer_cache_max, coordinator_id=coordinator_id
        )
        self.names: Final = FileNames()
        self.snapshots: Final = snapshots
        self._catalogue = catalogue
        self._deleted_topics: dict[UUID, ops.TopicDescription] = {}
        self._settings = settings
        self._sleep = sleep
        self._listeners: list[CommitListener] = []
        self._applied_listeners: list[Callable[[], None]] = []
        self._topic_listeners: list[Callable[[], None]] = []
        self._offset_listeners: list[Callable[[Collection[str]], None]] = []
        self._is_closed = False
        self.applied_bytes = 0
        """Metadata records applied since the start, in bytes."""

    # -- life -----------------------------------------------------------------------------------

    async def open(self, log: MetadataLog) -> None:
        """Open the state, heal it if there is any doubt, and bring it to the end of `log`.

        Raises: CorruptLog, CorruptState (the log itself makes no sense), StorageFailed.
        """
        await self.state.__aenter__()
        try:
            await self._open(log)
        except BaseException:
            await self.close()
            raise

    async def _open(self, log: MetadataLog) -> None:
        self.image = await open_state(
            self.state,
            log,
            self._settings,
            self.snapshots,
            coordinator_id=self.coordinator_id,
        )

    async def close(self) -> None:
        """Close SQLite; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            await self.state.__aexit__(None, None, None)

    def subscribe(self, listener: CommitListener) -> None:
        """Call `listener` in the event loop with the partitions that changed in any way.

        It is called after the change can be read and before anybody gets an answer.
        """
        self._listeners.append(listener)

    def subscribe_applied(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the event loop each time `applied_offset` has moved."""
        self._applied_listeners.append(listener)

    def subscribe_topics(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the event loop when topics were created, deleted or altered."""
        self._topic_listeners.append(listener)

    def subscribe_offsets(self, listener: Callable[[Collection[str]], None]) -> None:
        """Call `listener` in the event loop with the groups for which the end of a transaction
        has committed offsets, before anybody gets an answer.
        """
        self._offset_listeners.append(listener)

    # -- applying -------------------------------------------------------------------------------

    async def apply(
        self,
        batches: Sequence[MetadataRecordBatch],
        *,
        on_merged: Callable[[], None] | None = None,
    ) -> None:
        """Apply durable batches; `on_merged` runs when memory has them, before listeners hear."""
        attempt = 0
        while True:
            writing = self.state.begin_write(partial(apply_batches, self.image, batches))
            try:
                changes = await writing.ended()
            except asyncio.CancelledError:
                # SQLite may commit all the same; memory must then follow it.
                with suppress(DisklessError):
                    self.applied(batches, await writing.to_the_end(), on_merged)
                raise
            except StorageFailed:
                await self._sleep(APPLY_RETRY_S[min(attempt, len(APPLY_RETRY_S) - 1)])
                attempt += 1
            else:
                return self.applied(batches, changes, on_merged)

    def applying(self, batches: Sequence[MetadataRecordBatch]) -> Callable[[], Changes]:
        """The rows of `apply`, for a thread of the caller's; `applied` must follow.

        Nobody may apply anything between the two.
        """
        return self.state.writing(partial(apply_batches, self.image, batches))

    def applied(
        self,
        batches: Sequence[MetadataRecordBatch],
        changes: Changes,
        on_merged: Callable[[], None] | None = None,
    ) -> None:
        """Take over in memory what `applying` has committed; `on_merged` as in `apply`."""
        failpoint("commit.after_apply")
        self.applied_bytes += sum(len(record) for batch in batches for record in batch.records)
        self._merge(changes, on_merged)

    def _merge(self, changes: Changes, on_merged: Callable[[], None] | None) -> None:
        for topic_id, topic in changes.topics.items():
            if topic is None and (gone := self.image.topics.get(topic_id)) is not None:
                self._deleted_topics[topic_id] = gone.description
        while len(self._deleted_topics) > DELETED_TOPICS_MAX:
            del self._deleted_topics[next(iter(self._deleted_topics))]
        self.image.merge(changes)
        if on_merged is not None:
            on_merged()
        if changes.topics:
            self._tell_topics()
        if changes.partitions:
            for listener in self._listeners:
                listener(changes.partitions.keys())
        if changes.transactions.groups:
            for told in self._offset_listeners:
                told(changes.transactions.groups)
        self._tell_applied()

    def _tell_topics(self) -> None:
        for listener in self._topic_listeners:
            listener()

    def _tell_applied(self) -> None:
        for listener in self._applied_listeners:
            listener()

    async def catch_up(self, log: MetadataLog) -> None:
        """Apply what `log` is known to have beyond this state.

        A follower that was away for long may find that the log was pruned meanwhile; it goes on
        from a snapshot. Raises: CorruptLog, CorruptState, StorageFailed, ObjectStoreUnavailable.
        """
        while self.image.next_offset < log.end_offset:
            ahead = read_ahead(log, self.image.next_offset, REPLAY_BYTES)
            try:
                async with aclosing(ahead) as followed:
                    async for batches in followed:
                        await self.apply(batches)
            except OutOfBounds as error:
                _logger.info("metadata partition %d: %s", self.coordinator_id, error)
                await self._open(log)
                self._tell_topics()
                for listener in self._listeners:
                    listener(self.image.partitions.keys())
                self._tell_applied()

    # -- reading --------------------------------------------------------------------------------

    @property
    def state_hash(self) -> int:
        """The rolling hash of the committed state."""
        return self.image.state_hash

    @property
    def applied_offset(self) -> int:
        """The first offset of the metadata log that is not in the committed state."""
        return self.image.next_offset

    @property
    def leader(self) -> ops.Leader | None:
        """The leader of the metadata partition as far as this replica has read; None: none yet."""
        return self.image.leader

    def brokers(self) -> Mapping[int, ops.RegisteredBroker]:
        """Registered brokers by id; only the catalogue has any."""
        return MappingProxyType(self.image.brokers)

    def client_quotas(self) -> Mapping[ops.QuotaEntity, Mapping[str, float]]:
        """All quotas by entity; only the catalogue has any. Another mapping after every change."""
        return self.image.quotas

    def acls(self) -> frozenset[AclBinding]:
        """All rules of access control; only the catalogue has any. Another set at every change."""
        return self.image.acls

    def access_tokens(self) -> AccessTokens:
        """All of them; another mapping after every change."""
        return self.image.tokens

    def scram_credentials(self) -> ops.ScramCredentials:
        """All of them; only the catalogue has any. Another mapping after every change."""
        return self.image.scram

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        """All topics by name; no I/O; do not modify."""
        return MappingProxyType(self.image.topics_by_name)

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None:
        topic = self.image.topics.get(topic_id)
        return None if topic is None else topic.description

    def deleted_topic(self, topic_id: UUID) -> ops.TopicDescription | None:
        """A topic that was deleted not long ago: where its partitions lived does not change.

        A commit that is sent again must go to the same coordinators, batch by batch, as the first
        time, or each of them would see other content under the key.
        """
        return self._deleted_topics.get(topic_id)

    @property
    def log_began_ms(self) -> int | None:
        """When the first record was written, by its writer's clock; None for an empty log."""
        return None if self.image.began_ms < 0 else self.image.began_ms

    def topic_ids(self) -> Collection[UUID]:
        """The topics that have partitions here; beside the catalogue, names may repeat."""
        return self.image.topics.keys()

    def topic_configs(self, topic_id: UUID) -> Mapping[str, str] | None:
        """Returns what was set on a topic, as this broker's catalogue knows it; None: no topic."""
        topic = (self._catalogue or self).topic_by_id(topic_id)
        return None if topic is None else topic.configs

    def table(self, topic_id: UUID) -> StoredTable | None:
        """Returns the pointer of a topic's table, as this broker's catalogue knows it."""
        return (self._catalogue or self).image.tables.get(topic_id)

    def gone_table(self, topic_id: UUID) -> StoredTable | None:
        """Returns the pointer that went with the topic while this broker ran."""
        return (self._catalogue or self).image.gone_tables.get(topic_id)

    async def list_segments(self, requests: Sequence[ListSegments]) -> Sequence[ListedSegments]:
        """Live segments, as of this replica's position; an entry may be UnknownPartition."""
        return await self.state.read(
            partial(
                list_segments,
                names=self.names,
                requests=[(asked, self.partition_id(asked.partition)) for asked in requests],
                coordinator_id=self.coordinator_id,
            )
        )

    def topic_columns(self, topic_id: UUID) -> ops.TopicColumns:
        """Returns a topic's typed columns, as this broker's catalogue knows them."""
        topic = (self._catalogue or self).image.topics.get(topic_id)
        return ops.TopicColumns() if topic is None else topic.columns

    def has_partition(self, partition: TopicIdPartition) -> bool:
        return partition in self.image.partitions

    def high_watermark(self, partition: TopicIdPartition) -> int | None:
        """Reads committed memory; None when there is no such partition."""
        state = self.image.partitions.get(partition)
        return None if state is None else state.high_watermark

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """Reads committed memory; None when there is no such partition."""
        state = self.image.partitions.get(partition)
        return None if state is None else state.log_start_offset

    def last_stable_offset(self, partition: TopicIdPartition) -> int | None:
        """Reads committed memory; None when there is no such partition."""
        state = self.image.partitions.get(partition)
        return None if state is None else state.last_stable_offset

    def open_transactions(self, partition: TopicIdPartition) -> Sequence[OpenTransaction]:
        """Those that have data in the partition, by their first offsets; from memory."""
        state = self.image.partitions.get(partition)
        return () if state is None else [*self.image.transactions.open_of(state.id).values()]

    def rolled_end(self, partition: TopicIdPartition) -> int | None:
        """The offset below which all is rolled or deleted; None: no such partition."""
        state = self.image.partitions.get(partition)
        if state is None:
            return None
        planned = [
            plan.base_offset for plan in self.image.plans.values() if plan.partition == partition
        ]
        return max(min(planned, default=state.planned_end_offset), state.log_start_offset)

    async def find_batches(
        self,
        requests: Sequence[ops.FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        rows_per_partition_max: int = ROWS_PER_PARTITION_MAX,
        isolation: int = ops.READ_UNCOMMITTED,
    ) -> Sequence[ops.FoundBatches]:
        """As `metadata.clients.coordinator_client`; a reader at the end is answered from memory."""
        caught_up = []
        for request in requests:
            state = self.image.partitions.get(request.partition)
            if state is None or not _visible_end(state, isolation) <= request.offset <= (
                state.high_watermark
            ):
                break
            caught_up.append(
                ops.FoundBatches(
                    state.log_start_offset,
                    state.high_watermark,
                    first_open_offset=state.first_open_offset,
                )
            )
        else:
            return caught_up
        located = [(request, self.partition_id(request.partition)) for request in requests]
        return await self.state.read(
            partial(
                find_batches,
                names=self.names,
                requests=located,
                max_bytes=max_bytes,
                at_least_one=at_least_one,
                rows_per_partition_max=rows_per_partition_max,
                isolation=isolation,
            )
        )

    async def list_offsets(self, requests: Sequence[ops.ListOffsets]) -> Sequence[ops.ListedOffset]:
        """As of this replica's position; being strictly consistent is the leader's business."""
        located = [(request, self.partition_id(request.partition)) for request in requests]
        return await self.state.read(
            lambda connection: [
                list_offset(connection, self.names, request, partition_id)
                for request, partition_id in located
            ]
        )

    def partition_id(self, partition: TopicIdPartition) -> int | None:
        """The partition's surrogate key in this state."""
        state = self.image.partitions.get(partition)
        return None if state is None else state.id

    # -- reading consumer groups ----------------------------------------------------------------

    async def group_offsets(
        self, group_id: str, partitions: Sequence[TopicIdPartition] | None = None
    ) -> Mapping[TopicIdPartition, CommittedOffset]:
        """Returns what the group has committed, of deleted topics too; None: of all partitions."""
        return await self.state.read(
            partial(group_offsets, group_id=group_id, partitions=partitions)
        )

    async def pending_partitions(self, group_id: str) -> Collection[TopicIdPartition]:
        """Those of which the group has offsets that wait for the end of a transaction."""
        return await self.state.read(partial(pending_partitions, group_id=group_id))

    async def stored_group(self, group_id: str) -> StoredGroup | None:
        """Returns what is stored of a group; None when there are not even offsets of it."""
        return await self.state.read(partial(stored_group, group_id=group_id))

    async def stored_groups(self) -> AsyncIterator[StoredGroup]:
        """All groups there is anything of, the oldest first, some at a time.

        A group that comes, goes or changes meanwhile is there as it was at some moment, or not.
        """
        after = -1
        while groups := await self.state.read(
            partial(stored_groups, after=after, limit=GROUPS_PER_READ)
        ):
            for group in groups:
                yield group
            after = groups[-1].id

    async def aged_offsets(
        self, *, before_ms: int, now_ms: int, limit: int, after: ExpiryCursor | None = None
    ) -> Sequence[AgedOffset]:
        """Up to `limit` offsets that may expire; the cursor of the last one leads to the next.

        Committed before `before_ms`, or by their client's wish due by `now_ms`.
        """
        return await self.state.read(
            partial(aged_offsets, before_ms=before_ms, now_ms=now_ms, after=after, limit=limit)
        )


def _visible_end(state: PartitionState, isolation: int) -> int:
    """Where a log ends for who reads it with this isolation level."""
    return state.last_stable_offset if isolation == ops.READ_COMMITTED else state.high_watermark
