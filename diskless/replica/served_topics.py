"""Finds the topic that a request names, at a coordinator or in the metadata logs.

Append, fetch and list-offsets look topics up here, so that all of them take the same names and ids
and refuse the same ones. The metadata topic is in no coordinator's list: it is added here.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from diskless.replica.metadata_topic import LogPartition, MetadataTopic
from metadata.clients.coordinator_client import Coordinator
from metadata.operations import TopicDescription
from wal.coordinates import TopicIdPartition
from wal.errors import UnknownPartition, UnknownTopicId

Target = TopicIdPartition | LogPartition
"""What a request names: a partition in the care of a coordinator, or one of the metadata topic."""


def nothing_new() -> None:
    """In place of a refresh where whatever changes is known at once."""


class ServedTopics:
    """The topics of the coordinator, and the metadata topic."""

    def __init__(
        self,
        coordinator: Coordinator,
        metadata_topic: MetadataTopic,
        refresh: Callable[[], None] = nothing_new,
    ) -> None:
        """`refresh` takes in what this process has been told and has not looked at yet."""
        self.refresh: Final = refresh
        self._coordinator = coordinator
        self._internal = metadata_topic.description

    def named(self, name: str, topic_id: UUID | None) -> TopicDescription | None:
        """By id if there is one. What is not known may have been made just now."""
        found = self._named(name, topic_id)
        if found is None:
            self.refresh()
            found = self._named(name, topic_id)
        return found

    def _named(self, name: str, topic_id: UUID | None) -> TopicDescription | None:
        if topic_id is not None:
            return self.by_id(topic_id)
        return self._coordinator.topics().get(name) or self._internal_named(name)

    def by_id(self, topic_id: UUID) -> TopicDescription | None:
        return self._coordinator.topic_by_id(topic_id) or self._internal_named(topic_id)

    def with_partition(self, name: str, topic_id: UUID | None, partition: int) -> TopicDescription:
        """The topic, which has this partition. Raises UnknownTopicId or UnknownPartition."""
        topic = self.named(name, topic_id)
        if topic is None and topic_id is not None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        if topic is None:
            raise UnknownPartition(f"no topic {name}")
        if not 0 <= partition < topic.partition_count:
            raise UnknownPartition(
                f"topic {topic.name} has {topic.partition_count} partitions, no {partition}"
            )
        return topic

    def is_internal(self, topic: TopicDescription) -> bool:
        """Whether it is the metadata topic."""
        return topic is self._internal

    def target(self, topic: TopicDescription, partition: int) -> Target:
        if topic is self._internal:
            return LogPartition(partition)
        return TopicIdPartition(topic.topic_id, partition)

    def _internal_named(self, wanted: str | UUID) -> TopicDescription | None:
        """The metadata topic, if this is its name or id."""
        topic = self._internal
        return topic if wanted in (topic.name, topic.topic_id) else None
