"""What a worker knows of the state, as its head told it: topics, quotas, who leads, ends of logs.

It is to a worker what replicas are to a head, as far as a worker needs it, and changes only when
news arrive on the line. `refresh` takes those that have arrived; whoever is about to answer from
what is known calls it first, so that nobody is told less than the head has answered somebody else.

The logs of the metadata partitions are the head's too: their bytes are asked for (`MirroredLog`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from diskless.workers.news import (
    GONE,
    ClusterNews,
    LogNews,
    PartitionEnd,
    TopicNews,
)
from metadata import operations as ops
from metadata.log.log import MetadataRecordBatch
from metadata.log.log_batch import decode_batch
from metadata.rules.groups import group_coordinator
from metadata.rules.topics import coordinator_of_new
from wal.coordinates import TopicIdPartition
from wal.errors import OutOfBounds

_DELETED_TOPICS_MAX: Final = 1_000

ReadLog = Callable[[int, int, int], "asyncio.Future[Sequence[bytes]]"]
"""Asks the head for batches of a metadata log: its number, from which offset, how many bytes."""


class MirroredLog:
    """The log of one metadata partition, whose bytes the head has."""

    def __init__(self, index: int, read: ReadLog, synced: Callable[[], "asyncio.Future[None]"]):
        self._index = index
        self._read = read
        self._synced = synced
        self.news = LogNews()

    @property
    def start_offset(self) -> int:
        return self.news.start_offset

    @property
    def end_offset(self) -> int:
        return self.news.end_offset

    async def refresh(self) -> int:
        """Hear of all that the head has heard of."""
        await self._synced()
        return self.news.end_offset

    async def read_encoded(self, offset: int, max_bytes: int) -> Sequence[bytes]:
        """See `MetadataLog.read_encoded`."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OutOfBounds(f"offset {offset}: {self.start_offset} .. {self.end_offset}")
        return await self._read(self._index, offset, max_bytes)

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        """See `MetadataLog.read`."""
        return [*map(decode_batch, await self.read_encoded(offset, max_bytes))]


class MirroredPartition:
    """One metadata partition, and at the same time its replica, as a worker knows it."""

    def __init__(self, known: "Known", index: int, log: MirroredLog) -> None:
        self._known = known
        self._index = index
        self.log = log
        self._listeners: list[Callable[[], None]] = []

    @property
    def replica(self) -> "MirroredPartition":
        return self

    @property
    def leader(self) -> ops.Leader | None:
        return self._known.cluster.leaders[self._index]

    def brokers(self) -> Mapping[int, ops.RegisteredBroker]:
        return self._known.cluster.brokers

    @property
    def applied_offset(self) -> int:
        return self.log.news.applied_offset

    def subscribe_applied(self, listener: Callable[[], None]) -> None:
        """See `Replica.subscribe_applied`."""
        self._listeners.append(listener)

    def take(self, news: LogNews) -> None:
        is_ahead = news.applied_offset != self.log.news.applied_offset
        self.log.news = news
        if is_ahead:
            for listener in self._listeners:
                listener()


class Known:
    """The state, on the event loop of a worker."""

    def __init__(
        self,
        metadata_partitions: int,
        *,
        refresh: Callable[[], None],
        read_log: ReadLog,
        synced: Callable[[], "asyncio.Future[None]"],
    ) -> None:
        self.refresh: Final = refresh
        """Take the news that have arrived."""
        self.cluster = ClusterNews(metadata_partitions, [None] * metadata_partitions, {})
        self.partitions: Final = [
            MirroredPartition(self, index, MirroredLog(index, read_log, synced))
            for index in range(metadata_partitions)
        ]
        self._by_name: dict[str, ops.TopicDescription] = {}
        self._by_id: dict[UUID, ops.TopicDescription] = {}
        self._deleted: dict[UUID, ops.TopicDescription] = {}
        self._quotas: Mapping[ops.QuotaEntity, Mapping[str, float]] = {}
        self._ends: dict[TopicIdPartition, PartitionEnd] = {}
        self._listeners: list[Callable[[Collection[TopicIdPartition]], None]] = []
        self._deletion_listeners: list[Callable[[Collection[TopicIdPartition]], None]] = []

    # -- what is known ----------------------------------------------------------------------------

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        """All topics by name; do not modify."""
        return self._by_name

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None:
        return self._by_id.get(topic_id)

    def client_quotas(self) -> Mapping[ops.QuotaEntity, Mapping[str, float]]:
        """All of them; another mapping after every change."""
        return self._quotas

    def partition_state(self, partition: TopicIdPartition) -> PartitionEnd | None:
        """Returns where its log begins and ends, if that was told."""
        return self._ends.get(partition)

    def coordinator_of_name(self, name: str) -> int:
        """The metadata partition of a group or transactional id."""
        return group_coordinator(name, self.cluster.coordinators)

    def coordinator_of(self, partition: TopicIdPartition) -> int:
        """The coordinator of a partition; of one that is not there, who had it or would get it."""
        if len(self.partitions) == 1:
            return ops.CATALOGUE
        topic_id = partition.topic_id
        topic = self._by_id.get(topic_id) or self._deleted.get(topic_id)
        if topic is not None and partition.partition < topic.partition_count:
            return topic.coordinator_of(partition.partition)
        return coordinator_of_new(topic_id, partition.partition, len(self.partitions))

    # -- who hears of changes ---------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Collection[TopicIdPartition]], None]) -> None:
        """Call `listener` with the partitions that changed in any way."""
        self._listeners.append(listener)

    def subscribe_deletions(self, listener: Callable[[Collection[TopicIdPartition]], None]) -> None:
        """Call `listener` with the partitions of topics that are gone."""
        self._deletion_listeners.append(listener)

    # -- news -------------------------------------------------------------------------------------

    def take_topics(self, news: TopicNews) -> None:
        gone: list[TopicIdPartition] = []
        for topic_id in news.gone:
            topic = self._by_id.pop(topic_id, None)
            if topic is None:
                continue
            if self._by_name.get(topic.name) is topic:
                del self._by_name[topic.name]
            self._deleted[topic_id] = topic
            gone += [TopicIdPartition(topic_id, index) for index in range(topic.partition_count)]
        while len(self._deleted) > _DELETED_TOPICS_MAX:
            del self._deleted[next(iter(self._deleted))]
        for topic in news.changed:
            self._by_id[topic.topic_id] = self._by_name[topic.name] = topic
        for partition in gone:
            self._ends.pop(partition, None)
        if gone:
            for listener in self._deletion_listeners:
                listener(gone)

    def take_ends(self, ends: Mapping[TopicIdPartition, PartitionEnd]) -> None:
        self._ends.update(ends)
        for partition, end in ends.items():
            if end == GONE:
                del self._ends[partition]
        for listener in self._listeners:
            listener(ends.keys())

    def take_quotas(self, quotas: Mapping[ops.QuotaEntity, Mapping[str, float]]) -> None:
        self._quotas = quotas

    def take_cluster(self, news: ClusterNews) -> None:
        self.cluster = news

    def take_logs(self, logs: Sequence[LogNews]) -> None:
        for partition, news in zip(self.partitions, logs, strict=True):
            partition.take(news)
