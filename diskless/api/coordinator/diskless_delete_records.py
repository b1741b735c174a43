"""DisklessDeleteRecords, key 96, version 0: deletes everything below an offset.

- Offset -1 is the high watermark, as in Kafka's DeleteRecords.
- LowWatermark is the log start offset afterwards; it never goes back.
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
from metadata.messages.coordinator import DELETE_RECORDS
from metadata.operations import DeletedRecords, DeleteRecords


def api(client: CoordinatorClient, running: RunningOperations, access: Access) -> Api:
    async def delete_records(
        requests: Sequence[DeleteRecords], timeout_ms: int
    ) -> Sequence[DeletedRecords]:
        return await in_parts(
            requests,
            lambda some: client.delete_records(some, timeout_ms=timeout_ms),
            DELETE_RECORDS.failed,
            PORTION_ROWS,
        )

    return coordinator_api(DELETE_RECORDS, delete_records, running, access)
