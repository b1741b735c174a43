"""A topic's log for tasks of the Spark source, without brokers: it asks a state in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from diskless.api.coordinator.reading import _extents
from metadata.messages.find_batches import FindBatchesMessage
from metadata.operations import READ_COMMITTED, FindBatches, FoundBatches
from tiering.source.topic_log import TopicLog
from wal.coordinates import TopicIdPartition

Find = Callable[[FindBatches, int, int], Awaitable[FoundBatches]]
"""(request, isolation level, how many extents at most)."""


class LocatedLog(TopicLog):
    """Asks a broker's API of extents, which asks `find`, on the loop that made this."""

    def __init__(self, name: str, find: Find, *, page: int = 100) -> None:
        super().__init__("localhost:1", name, sleep=lambda _: None)
        self._find = find
        self._loop = asyncio.get_running_loop()
        self.page = page

    def _found(self, partition: TopicIdPartition, offset: int, page: int) -> FoundBatches:
        asked = FindBatchesMessage(
            [FindBatches(partition, offset, 0)], 0, self.page, isolation=READ_COMMITTED
        )
        client: Any = self
        answers: Any = _extents(client)(asked, 1_000)
        (found,) = asyncio.run_coroutine_threadsafe(answers, self._loop).result()
        assert isinstance(found, FoundBatches)
        assert found.error is None, found.error
        assert found.extents
        return found

    async def find_batches(
        self, requests: Sequence[FindBatches], *, batches_per_partition_max: int, **options: Any
    ) -> Sequence[FoundBatches]:
        (request,) = requests
        return [await self._find(request, options["isolation"], batches_per_partition_max)]
