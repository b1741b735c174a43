"""Tells workers what the head's replicas know, as it changes.

A worker that joins is told all that there is; from then on every worker gets each change, in the
order in which the replicas applied it. What several workers are told is encoded once.

Invariant: the ends of partitions are told within the call in which the replica says that they
changed, which is before anybody is answered (`Replica.subscribe`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from diskless.workers import line
from diskless.workers.news import (
    GONE,
    ClusterNews,
    LogNews,
    PartitionEnd,
    TopicNews,
    encode_ends,
    encode_logs,
    encode_quotas,
)
from diskless.workers.security.rights_teller import RightsTeller
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.operations import CATALOGUE, QuotaEntity, TopicDescription
from wal.coordinates import TopicIdPartition

Send = Callable[[bytes], None]


class HeadNews:
    """The teller; on the event loop alone."""

    def __init__(
        self,
        partitions: Sequence[MetadataPartition],
        coordinators: Callable[[], int],
        rights: RightsTeller,
    ) -> None:
        """`coordinators`: over how many metadata partitions groups are spread."""
        self._partitions: Final = partitions
        self._catalogue: Final = partitions[CATALOGUE].replica
        self._coordinators: Final = coordinators
        self._rights: Final = rights
        self._workers: list[Send] = []
        self._topics: dict[UUID, TopicDescription] = {}
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._cluster: ClusterNews | None = None
        self._catalogue.subscribe_topics(self._topics_changed)
        for partition in partitions:
            partition.replica.subscribe(partial(self._ends_changed, partition))
            partition.replica.subscribe_applied(self._applied)

    async def prepare(self) -> None:
        """What takes long of telling everything; before `join`."""
        await self._rights.prepare()

    def join(self, send: Send) -> None:
        """Tell a worker everything, and whatever changes from now on."""
        self._tell_rights()
        for message in self._rights.everything():
            send(message)
        self._topics = self._known_topics()
        self._quotas = self._catalogue.client_quotas()
        self._cluster = self._cluster_now()
        send(line.frame(line.TOPICS, TopicNews([*self._topics.values()]).encode()))
        send(line.frame(line.QUOTAS, encode_quotas(self._quotas)))
        send(line.frame(line.CLUSTER, self._cluster.encode()))
        send(self._logs())
        self._workers.append(send)

    def secrets_changed(self) -> None:
        """There are other secrets of the cluster."""
        self._tell(self._rights.secrets())

    def leave(self, send: Send) -> None:
        if send in self._workers:
            self._workers.remove(send)

    def _tell(self, message: bytes) -> None:
        for send in [*self._workers]:
            send(message)

    def _tell_rights(self) -> None:
        for message in self._rights.changes():
            self._tell(message)

    def _known_topics(self) -> dict[UUID, TopicDescription]:
        return {topic.topic_id: topic for topic in self._catalogue.topics().values()}

    def _topics_changed(self) -> None:
        if not self._workers:
            return
        known, self._topics = self._topics, self._known_topics()
        changed = [
            topic for topic_id, topic in self._topics.items() if known.get(topic_id) is not topic
        ]
        gone = [topic_id for topic_id in known if topic_id not in self._topics]
        if changed or gone:
            self._tell(line.frame(line.TOPICS, TopicNews(changed, gone).encode()))

    def _ends_changed(
        self, partition: MetadataPartition, changed: Collection[TopicIdPartition]
    ) -> None:
        if not self._workers:
            return
        known = partition.replica.image.partitions
        ends = []
        for one in changed:
            state = known.get(one)
            ends.append(
                (one, GONE)
                if state is None
                else (one, PartitionEnd(state.high_watermark, state.log_start_offset))
            )
        self._tell(line.frame(line.ENDS, encode_ends(ends)))

    def _applied(self) -> None:
        if not self._workers:
            return
        self._tell_rights()
        quotas = self._catalogue.client_quotas()
        if quotas is not self._quotas:
            self._quotas = quotas
            self._tell(line.frame(line.QUOTAS, encode_quotas(quotas)))
        cluster = self._cluster_now()
        if cluster != self._cluster:
            self._cluster = cluster
            self._tell(line.frame(line.CLUSTER, cluster.encode()))
        self._tell(self._logs())

    def _cluster_now(self) -> ClusterNews:
        return ClusterNews(
            self._coordinators(),
            [partition.leader for partition in self._partitions],
            dict(self._catalogue.brokers()),
        )

    def _logs(self) -> bytes:
        return line.frame(
            line.LOGS,
            encode_logs(
                [
                    LogNews(
                        partition.log.start_offset,
                        partition.log.end_offset,
                        partition.replica.applied_offset,
                    )
                    for partition in self._partitions
                ]
            ),
        )
