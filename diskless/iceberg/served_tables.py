"""Which tables the catalogue shows, and the bytes of their metadata files.

What is asked here is asked by the thread of the HTTP server. Tables and topics are looked up in the
broker's replica of the catalogue, in mappings that nobody changes in place or one key at a time, so
no lock is needed and the broker's event loop does nothing. Metadata files are read through the
broker's object store, which lives on that loop: a request there is a GET and no computing.

Budgets: READS_AT_ONCE files are read at a time, one GET for all who ask for the same file; a file
larger than FILE_BYTES_MAX is refused; the last files read are kept, KEPT_BYTES_MAX together. Files
never change, so what is kept is never stale.

Failure cases: CatalogueBusy (the store takes longer than READ_TIMEOUT_S), CorruptObject (too
large), and what the store raises.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from metadata.replica.replica import Replica
from metadata.rules.tables import has_table, namespace_of
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, Retriable
from wal.stores.object_store import ObjectStore

READS_AT_ONCE: Final = 4
READ_TIMEOUT_S: Final = 20.0
FILE_BYTES_MAX: Final = 32 << 20
"""A table of sixty snapshots has 50 KB; typed columns and their history may make it some MB."""
KEPT_BYTES_MAX: Final = 32 << 20


class CatalogueBusy(Retriable):
    """A metadata file did not come in time."""


class ServedTable(NamedTuple):
    """A table that was written at least once."""

    namespace: str
    name: str
    location: ObjectKey


class TableDirectory(Protocol):
    """What the routes ask. Called by the HTTP server's thread."""

    @property
    def store_url(self) -> str: ...

    def tables(self) -> Sequence[ServedTable]:
        """All tables, by namespace and name."""
        ...

    def table(self, namespace: str, name: str) -> ServedTable | None: ...

    async def metadata(self, table: ServedTable) -> bytes:
        """The table's metadata file, as it is."""
        ...


class ReplicaTables:
    """The tables that this broker knows of; a follower may be half a second behind."""

    def __init__(
        self, catalogue: Replica, store: ObjectStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        """`store` is used on `loop` alone."""
        self._catalogue = catalogue
        self._store = store
        self._loop = loop
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._reading: dict[ObjectKey, asyncio.Task[bytes]] = {}
        self._kept: OrderedDict[ObjectKey, bytes] = OrderedDict()
        self._kept_bytes = 0

    @property
    def store_url(self) -> str:
        return self._store.url

    def tables(self) -> Sequence[ServedTable]:
        found = []
        for topic_id, table in self._catalogue.image.tables.items():
            topic = self._catalogue.topic_by_id(topic_id)
            if topic is not None and has_table(topic.configs):
                found.append(ServedTable(namespace_of(topic.configs), topic.name, table.location))
        return sorted(found)

    def table(self, namespace: str, name: str) -> ServedTable | None:
        topic = self._catalogue.topics().get(name)
        if topic is None or not has_table(topic.configs):
            return None
        table = self._catalogue.table(topic.topic_id)
        if table is None or namespace_of(topic.configs) != namespace:
            return None
        return ServedTable(namespace, name, table.location)

    async def metadata(self, table: ServedTable) -> bytes:
        key = table.location
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.get_running_loop().create_task(self._read(key))
            self._reading[key] = reading
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
        # Whoever goes away does not end it for the others.
        return await asyncio.shield(reading)

    async def _read(self, key: ObjectKey) -> bytes:
        async with self._turns:
            getting = asyncio.run_coroutine_threadsafe(self._get(key), self._loop)
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    data = await asyncio.wrap_future(getting)
            except TimeoutError as error:
                raise CatalogueBusy(f"{key} did not come within {READ_TIMEOUT_S:.0f} s") from error
        self._kept[key] = data
        self._kept_bytes += len(data)
        while self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)
        return data

    async def _get(self, key: ObjectKey) -> bytes:
        """On the broker's loop."""
        stat = await self._store.head(key)
        if stat.length_bytes > FILE_BYTES_MAX:
            raise CorruptObject(f"{key} has {stat.length_bytes} bytes, at most {FILE_BYTES_MAX}")
        return await self._store.get(key)
