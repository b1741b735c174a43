"""DisklessListOffsets, key 97, version 0: offsets for timestamps, strictly consistent.

- -1 latest, -2 earliest, -3 max timestamp, -4 earliest local, -5 latest tiered, or a timestamp.
- Exact to the record: where the coordinator knows only which extent a record must be in, this
  broker looks into it. No record at or after the timestamp: offset and timestamp -1.
"""

from collections.abc import Sequence

from diskless.api.coordinator.coordinator_operation import Call, in_parts
from diskless.loop.long_work import PORTION_ROWS
from diskless.replica.timestamp_search import TimestampSearch
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.coordinator import LIST_OFFSETS
from metadata.operations import ListedOffset, ListOffsets


def exact_listing(
    client: CoordinatorClient, search: TimestampSearch
) -> Call[Sequence[ListOffsets], ListedOffset]:
    async def list_offsets(
        requests: Sequence[ListOffsets], timeout_ms: int
    ) -> Sequence[ListedOffset]:
        async def listed(some: Sequence[ListOffsets]) -> Sequence[ListedOffset]:
            found = await client.list_offsets(some, timeout_ms=timeout_ms)
            return [
                answer if answer.extent is None else await exact(request.timestamp, answer)
                for request, answer in zip(some, found, strict=True)
            ]

        return await in_parts(LIST_OFFSETS, requests, listed, PORTION_ROWS)

    async def exact(timestamp: int, listed: ListedOffset) -> ListedOffset:
        found = await search.exact(timestamp, listed)
        return ListedOffset(
            found.offset,
            found.timestamp_ms,
            error=found.error,
            last_stable_offset=listed.last_stable_offset,
        )

    return list_offsets
