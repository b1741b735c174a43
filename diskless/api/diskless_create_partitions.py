"""DisklessCreatePartitions, key 93, version 0: a topic shall have so many partitions.

- Served by the leader of the catalogue, which sees to the other coordinators.
- Repeating it changes nothing, so a creation that failed half-way is driven on by asking again. A
  topic that does not exist comes into being, without configs.
- A bad name or count refuses its topic alone.
"""

from collections.abc import Sequence

from diskless.api.coordinator_operation import RunningOperations, checked, coordinator_api
from diskless.api.registry import Api
from diskless.cluster import MAX_PARTITIONS_PER_TOPIC
from diskless.topic_names import check_topic_name
from metadata.coordinator_client import CoordinatorClient
from metadata.coordinator_messages import CREATE_PARTITIONS
from metadata.operations import CreatePartitions
from wal.errors import DisklessError, InvalidPartitions


def api(client: CoordinatorClient, running: RunningOperations) -> Api:
    async def create_partitions(
        topics: Sequence[CreatePartitions], timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        return await checked(
            topics, _checked, lambda good: client.create_partitions(good, timeout_ms=timeout_ms)
        )

    return coordinator_api(CREATE_PARTITIONS, create_partitions, running)


def _checked(topic: CreatePartitions) -> CreatePartitions:
    check_topic_name(topic.name)
    check_partition_count(topic.partition_count)
    return topic


def check_partition_count(count: int) -> None:
    """Raises InvalidPartitions."""
    if not 1 <= count <= MAX_PARTITIONS_PER_TOPIC:
        raise InvalidPartitions(
            f"{count} partitions: must be between 1 and {MAX_PARTITIONS_PER_TOPIC}"
        )
