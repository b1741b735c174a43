"""DisklessFindBatches, key 98, version 0: where committed records lie.

- Any replica of a partition's coordinator answers, so the answer may be stale; staleness alone is
  never OFFSET_OUT_OF_RANGE.
- Limits are shared over the request in its order; the batch that crosses one is included, and the
  first non-empty partition gives one batch whatever the limits say, unless AtLeastOne is 0.
- An answer holds at most EXTENTS_MAX batches: later partitions come without, as when the bytes had
  been used up.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from diskless.api.coordinator.coordinator_operation import Call
from diskless.loop.long_work import batched
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.clients.finding import taken_bytes
from metadata.messages.find_batches import FindBatchesMessage
from metadata.operations import FoundBatches

EXTENTS_MAX: Final = 50_000
"""About 6 MiB."""

_FOUND_AT_ONCE: Final = 1_000
"""Partitions, as many as a Fetch looks up at once."""


def bounded_search(client: CoordinatorClient) -> Call[FindBatchesMessage, FoundBatches]:
    async def find_batches(message: FindBatchesMessage, timeout_ms: int) -> Sequence[FoundBatches]:
        found: list[FoundBatches] = []
        bytes_left, extents_left = message.max_bytes, EXTENTS_MAX
        for some in batched(message.requests, _FOUND_AT_ONCE):
            if found:
                await asyncio.sleep(0)
            answers = await client.find_batches(
                some,
                max_bytes=bytes_left,
                at_least_one=message.at_least_one and extents_left == EXTENTS_MAX,
                batches_per_partition_max=message.batches_per_partition_max,
                isolation=message.isolation,
                timeout_ms=timeout_ms,
            )
            answers = _within_limit(answers, extents_left)
            bytes_left -= taken_bytes(some, answers)
            extents_left -= sum(len(answer.extents) for answer in answers)
            found += answers
        return found

    return find_batches


def _within_limit(found: Sequence[FoundBatches], left: int) -> Sequence[FoundBatches]:
    limited = []
    for answer in found:
        if len(answer.extents) > left:
            answer = answer._replace(extents=answer.extents[:left])
        left -= len(answer.extents)
        limited.append(answer)
    return limited
