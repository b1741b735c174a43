"""DisklessCreatePartitions, key 93, version 0: gives a topic a number of partitions.

- Served by the leader of the catalogue, which sees to the other coordinators.
- Repeating it changes nothing, so a creation that failed half-way is driven on by asking again. A
  topic that does not exist comes into being, without configs.
- A bad name or count refuses its topic alone.
"""

from collections.abc import Sequence

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    RunningOperations,
    checked,
    coordinator_api,
    in_parts,
)
from diskless.cluster.cluster import MAX_PARTITIONS_PER_TOPIC
from diskless.server.registry import Api
from diskless.topics.topic_names import check_topic_name
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.coordinator import CREATE_PARTITIONS
from metadata.operations import METADATA_TOPIC, CreatePartitions
from wal.errors import DisklessError, InvalidPartitions, TopicExists


def api(client: CoordinatorClient, running: RunningOperations, access: Access) -> Api:
    async def create_partitions(
        topics: Sequence[CreatePartitions], timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        async def created(some: Sequence[CreatePartitions]) -> Sequence[DisklessError | None]:
            return await checked(
                some, _checked, lambda good: client.create_partitions(good, timeout_ms=timeout_ms)
            )

        return await in_parts(topics, created, CREATE_PARTITIONS.failed)

    return coordinator_api(CREATE_PARTITIONS, create_partitions, running, access)


def _checked(topic: CreatePartitions) -> CreatePartitions:
    check_new_topic(topic.name, topic.partition_count)
    return topic


def check_new_topic(name: str, partition_count: int) -> None:
    """Raises InvalidTopic, TopicExists (the metadata topic), InvalidPartitions."""
    check_topic_name(name)
    if name == METADATA_TOPIC:
        raise TopicExists(f"{name} is the coordinators' own")
    if not 1 <= partition_count <= MAX_PARTITIONS_PER_TOPIC:
        raise InvalidPartitions(
            f"{partition_count} partitions: must be between 1 and {MAX_PARTITIONS_PER_TOPIC}"
        )
