"""Gathers the facts of topics and partitions that WAL objects note, from this broker's replicas.

WAL objects carry them (wal/chunks/object_notes.py), and what deletes objects keeps them
(metadata/workers/note_keeper.py). Memory only, so that any thread may ask.
"""

from uuid import UUID

from metadata.clients.routed_client import RoutedClient
from wal.chunks.object_notes import Floor, TopicFacts, noted_configs
from wal.coordinates import TopicIdPartition


class NotedFacts:
    """Looks topics and partitions up; both are `None` for what does not exist."""

    def __init__(self, replicas: RoutedClient) -> None:
        self._replicas = replicas

    def topic(self, topic_id: UUID) -> TopicFacts | None:
        """Name, partitions and configuration of a topic."""
        topic = self._replicas.topic_by_id(topic_id)
        if topic is None:
            return None
        return TopicFacts(topic.name, topic.partition_count, noted_configs(topic.configs))

    def floor(self, partition: TopicIdPartition) -> Floor | None:
        """Returns how far the log of a partition is known to reach, and where it begins."""
        state = self._replicas.partition_state(partition)
        return None if state is None else Floor(state.high_watermark, state.log_start_offset)
