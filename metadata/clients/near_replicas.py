"""Finds batches in the replicas of another process of this host, without asking it.

That process has the replicas and writes their files (`metadata/replica/read_only_replica.py`). It
is asked about what is not in them: partitions that were created a moment ago, offsets beyond a high
watermark, and whatever else goes wrong here. So an answer is never worse than what it would say.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from metadata import operations as ops
from metadata.clients.finding import found_in_runs, with_what_is_newer
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.replica.read_only_replica import ReadOnlyReplica
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptState, DisklessError, NotCoordinator

Ask = Callable[[FindBatchesMessage], Awaitable[Sequence[ops.FoundBatches]]]


class NearReplicas:
    """Those of all metadata partitions. Async context manager."""

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        readers: int,
        coordinator_of: Callable[[TopicIdPartition], int],
    ) -> None:
        """`directories` by metadata partition; `readers`: threads of each."""
        self._replicas: Final = [
            ReadOnlyReplica(directory, readers=readers) for directory in directories
        ]
        self._coordinator_of = coordinator_of
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for replica in self._replicas:
            await self._stack.enter_async_context(replica)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def find(
        self, message: FindBatchesMessage, ask: Ask, *, timeout_ms: int
    ) -> Sequence[ops.FoundBatches]:
        """Answers as `metadata.clients.coordinator_client`; `ask` asks whoever has the replicas.

        Raises what the operation says of no answer when reading takes longer than `timeout_ms`.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found = await found_in_runs(message, self._coordinator_of, self._find_at)
        except TimeoutError as error:
            raise FIND_BATCHES.unanswered(f"no answer within {timeout_ms} ms") from error
        return await with_what_is_newer(message, found, ask)

    async def _find_at(
        self, coordinator: int, message: FindBatchesMessage
    ) -> Sequence[ops.FoundBatches]:
        requests, max_bytes, per_partition_max, at_least_one, isolation = message
        refusal: DisklessError
        if coordinator >= len(self._replicas):
            refusal = NotCoordinator(f"coordinator {coordinator} is not known here")
            return [ops.FoundBatches(error=refusal)] * len(requests)
        try:
            found = await self._replicas[coordinator].find_batches(
                requests,
                max_bytes=max_bytes,
                at_least_one=at_least_one,
                rows_per_partition_max=per_partition_max,
                isolation=isolation,
            )
        except DisklessError as error:
            refusal = NotCoordinator(str(error))
            return [ops.FoundBatches(error=refusal)] * len(requests)
        return [*map(_to_be_asked, found)]


def _to_be_asked(answer: ops.FoundBatches) -> ops.FoundBatches:
    """Damage is for whoever has the replica to judge, and to heal."""
    if isinstance(answer.error, CorruptState):
        return ops.FoundBatches(error=NotCoordinator(str(answer.error)))
    return answer
