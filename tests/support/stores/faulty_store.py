"""An object store that fails on demand, around any real one, for brokers in the test's process.

faults = StoreFaults()
with LiveBroker(data, opener=faults.opener):
    faults.put_error = ObjectStoreUnavailable("away")
    ...
    faults.put_error = None
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, ObjectStoreUnavailable, UploadOutcomeUnknown
from wal.stores.file_store import FileStoreSettings
from wal.stores.object_store import ObjectBody, ObjectStat, ObjectStore, StoreStatistics
from wal.stores.s3_settings import S3Settings
from wal.stores.store_url import open_store


class StoreFaults:
    """What goes wrong, for all stores it opens; set from the test's thread."""

    def __init__(self) -> None:
        self.put_error: DisklessError | None = None
        """Every put fails with it; nothing is stored."""
        self.lost_responses = 0
        """How many of the next puts are stored and then end with UploadOutcomeUnknown."""
        self.put_delay_s = 0.0
        self.get_error: DisklessError | None = None
        """Everything but puts fails with it."""
        self.flip_bits = False
        """Every read has a bit of its last byte flipped."""
        self.puts_tried = 0

    def outage(self) -> None:
        """Nothing works any more."""
        self.put_error = self.get_error = ObjectStoreUnavailable("the store is away")

    def heal(self) -> None:
        self.put_error = self.get_error = None
        self.flip_bits = False
        self.put_delay_s = 0.0

    def opener(
        self,
        url: str,
        *,
        clock: Clock,
        rng: random.Random,
        file_settings: FileStoreSettings,
        s3_settings: S3Settings,
    ) -> ObjectStore:
        """The broker's `opener`."""
        store = open_store(
            url, clock=clock, rng=rng, file_settings=file_settings, s3_settings=s3_settings
        )
        return FaultyStore(store, self)


class StoreInFront:
    """What is in front of a store, whatever it does to requests: it opens and closes that one."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def statistics(self) -> StoreStatistics:
        return self._store.statistics()

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._store.__aexit__(*error)


class FaultyStore(StoreInFront):
    """An `ObjectStore`: the real one behind the faults."""

    def __init__(self, store: ObjectStore, faults: StoreFaults) -> None:
        super().__init__(store)
        self._faults = faults

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        faults = self._faults
        faults.puts_tried += 1
        if faults.put_error is not None:
            raise faults.put_error
        if faults.put_delay_s:
            await asyncio.sleep(faults.put_delay_s)
        await self._store.put(key, body)
        if faults.lost_responses:
            faults.lost_responses -= 1
            raise UploadOutcomeUnknown(f"{key}: the answer was lost")

    async def get(self, key: ObjectKey) -> bytes:
        return self._through(await self._store.get(key))

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        return self._through(await self._store.get_range(key, start, length))

    async def head(self, key: ObjectKey) -> ObjectStat:
        if self._faults.get_error is not None:
            raise self._faults.get_error
        return await self._store.head(key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        if self._faults.get_error is not None:
            raise self._faults.get_error
        async for stat in self._store.list(prefix, start_after):
            yield stat

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        if self._faults.get_error is not None:
            raise self._faults.get_error
        return await self._store.delete(keys)

    def _through(self, data: bytes) -> bytes:
        if self._faults.get_error is not None:
            raise self._faults.get_error
        if self._faults.flip_bits:
            return data[:-1] + bytes([data[-1] ^ 1])
        return data
