"""Gathers the facts of topics and partitions that WAL objects note, from this broker's replicas.

WAL objects carry them (wal/chunks/object_notes.py), and what deletes objects keeps them
(metadata/workers/note_keeper.py). Memory only, so that any thread may ask.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from metadata.operations import TopicDescription
from wal.chunks.object_notes import Floor, TopicFacts, noted_configs
from wal.coordinates import TopicIdPartition


class KnownEnds(Protocol):
    """What is known of a partition."""

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...


class KnownState(Protocol):
    """What a process knows of topics and partitions, at hand."""

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None: ...

    def partition_states(
        self, partitions: Sequence[TopicIdPartition]
    ) -> Sequence[KnownEnds | None]: ...


class NotedFacts:
    """Looks topics and partitions up; both are `None` for what does not exist."""

    def __init__(self, replicas: KnownState) -> None:
        self._replicas = replicas

    def topic(self, topic_id: UUID) -> TopicFacts | None:
        """Name, partitions and configuration of a topic."""
        topic = self._replicas.topic_by_id(topic_id)
        if topic is None:
            return None
        return TopicFacts(topic.name, topic.partition_count, noted_configs(topic.configs))

    def floor(self, partition: TopicIdPartition) -> Floor | None:
        """Returns how far the log of a partition is known to reach, and where it begins."""
        (floor,) = self.floors((partition,))
        return floor

    def floors(self, partitions: Sequence[TopicIdPartition]) -> Sequence[Floor | None]:
        """`floor` of many."""
        return [
            # A third of the time of a call of the NamedTuple.
            None
            if state is None
            else tuple.__new__(Floor, (state.high_watermark, state.log_start_offset))
            for state in self._replicas.partition_states(partitions)
        ]
