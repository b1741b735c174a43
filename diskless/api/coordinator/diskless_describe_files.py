"""DisklessDescribeFiles, key 100, version 0: whether files still have live batches.

- Of all coordinators that this broker leads, or of the one that CoordinatorId names.
- A file that none of them ever heard of, or that they have forgotten, is RESOURCE_NOT_FOUND.
"""

from collections.abc import Sequence

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import RunningOperations, coordinator_api
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.coordinator import DESCRIBE_FILES, DescribeFilesMessage
from metadata.operations import DescribedFile


def api(client: CoordinatorClient, running: RunningOperations, access: Access) -> Api:
    async def describe_files(
        message: DescribeFilesMessage, timeout_ms: int
    ) -> Sequence[DescribedFile]:
        return await client.describe_files(
            message.keys, coordinator=message.coordinator, timeout_ms=timeout_ms
        )

    return coordinator_api(DESCRIBE_FILES, describe_files, running, access)
