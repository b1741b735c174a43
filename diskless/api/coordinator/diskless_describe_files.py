"""DisklessDescribeFiles, key 100, version 0: whether files still have live batches.

- Of all coordinators that this broker leads, or of the one that CoordinatorId names.
- A file that none of them ever heard of, or that they have forgotten, is RESOURCE_NOT_FOUND.
"""

from collections.abc import Sequence

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    RunningOperations,
    coordinator_api,
    in_parts,
)
from diskless.loop.long_work import PORTION_ROWS
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.coordinator import DESCRIBE_FILES, DescribeFilesMessage
from metadata.operations import DescribedFile


def api(client: CoordinatorClient, running: RunningOperations, access: Access) -> Api:
    async def describe_files(
        message: DescribeFilesMessage, timeout_ms: int
    ) -> Sequence[DescribedFile]:
        return await in_parts(
            message.keys,
            lambda some: client.describe_files(
                some, coordinator=message.coordinator, timeout_ms=timeout_ms
            ),
            DESCRIBE_FILES.failed,
            PORTION_ROWS,
        )

    return coordinator_api(DESCRIBE_FILES, describe_files, running, access)
