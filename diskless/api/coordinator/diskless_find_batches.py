"""DisklessFindBatches, key 98, version 0: where committed records lie.

- Any replica of a partition's coordinator answers, so the answer may be stale; staleness alone is
  never OFFSET_OUT_OF_RANGE.
- Limits are shared over the request in its order; the batch that crosses one is included, and the
  first non-empty partition gives one batch whatever the limits say, unless AtLeastOne is 0.
- An answer holds at most EXTENTS_MAX batches: later partitions come without, as when the bytes had
  been used up.
"""

from collections.abc import Sequence
from typing import Final

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import RunningOperations, coordinator_api
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.operations import FoundBatches

EXTENTS_MAX: Final = 50_000
"""About 6 MiB."""


def api(client: CoordinatorClient, running: RunningOperations, access: Access) -> Api:
    async def find_batches(message: FindBatchesMessage, timeout_ms: int) -> Sequence[FoundBatches]:
        found = await client.find_batches(
            message.requests,
            max_bytes=message.max_bytes,
            at_least_one=message.at_least_one,
            batches_per_partition_max=message.batches_per_partition_max,
            timeout_ms=timeout_ms,
        )
        return _within_limit(found)

    return coordinator_api(FIND_BATCHES, find_batches, running, access)


def _within_limit(found: Sequence[FoundBatches]) -> Sequence[FoundBatches]:
    left = EXTENTS_MAX
    limited = []
    for answer in found:
        if len(answer.extents) > left:
            answer = answer._replace(extents=answer.extents[:left])
        left -= len(answer.extents)
        limited.append(answer)
    return limited
