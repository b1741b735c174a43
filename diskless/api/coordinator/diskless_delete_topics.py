"""DisklessDeleteTopics, key 94, version 0: deletes topics with all their partitions.

- Served by the leader of the catalogue, which sees to the other coordinators.
- A topic that is not there is UNKNOWN_TOPIC_ID.
"""

from collections.abc import Sequence
from uuid import UUID

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    RunningOperations,
    coordinator_api,
    in_parts,
)
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.coordinator import DELETE_TOPICS
from wal.errors import DisklessError


def api(client: CoordinatorClient, running: RunningOperations, access: Access) -> Api:
    async def delete_topics(
        topic_ids: Sequence[UUID], timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        return await in_parts(
            topic_ids,
            lambda some: client.delete_topics(some, timeout_ms=timeout_ms),
            DELETE_TOPICS.failed,
        )

    return coordinator_api(DELETE_TOPICS, delete_topics, running, access)
