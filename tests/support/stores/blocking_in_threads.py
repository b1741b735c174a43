"""A blocking store behind the broker's interface, so that one suite tests both.

    async with BlockingInThreads(s3_store(...), blocking_s3_store(...)) as store:
        await store.put(key, body)      # the blocking store, in a thread

The broker's store beside it is there for tests that ask more of a store.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest

from wal.coordinates import ObjectKey
from wal.stores.blocking_store import BlockingBucket
from wal.stores.object_store import ObjectBody, ObjectStat, ObjectStore, StoreStatistics


class BlockingInThreads:
    """`blocking` for what tasks do, `broker` for the rest; opens and closes both."""

    def __init__(self, broker: ObjectStore, blocking: BlockingBucket) -> None:
        self._broker = broker
        self._blocking = blocking

    @property
    def url(self) -> str:
        return self._blocking.url

    def statistics(self) -> StoreStatistics:
        pytest.skip("a blocking store counts nothing")

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        await asyncio.to_thread(self._blocking.put, key, body)

    async def get(self, key: ObjectKey) -> bytes:
        return await asyncio.to_thread(self._blocking.get, key)

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        return await asyncio.to_thread(self._blocking.get_range, key, start, length)

    async def head(self, key: ObjectKey) -> ObjectStat:
        return await asyncio.to_thread(self._blocking.head, key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        listing = self._blocking.list(prefix, start_after)
        while (stat := await asyncio.to_thread(next, listing, None)) is not None:
            yield stat

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        return await asyncio.to_thread(self._blocking.delete, keys)

    async def __aenter__(self) -> Self:
        await self._broker.__aenter__()
        await asyncio.to_thread(self._blocking.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._blocking.__exit__, *error)
        await self._broker.__aexit__(*error)
