"""`diskless wal dump`: read one WAL object's header and footer, from a file or from a store."""

import asyncio
import random
from pathlib import Path

from wal.chunks.dump import Dump, dump_wal_index
from wal.chunks.wal_object import WalObjectIndex, WalObjectReader
from wal.clock import Clock, SystemClock
from wal.coordinates import ObjectKey
from wal.stores.store_url import open_store


def dump_wal_object(name: str, *, object_store_url: str | None) -> Dump:
    """`name` is a key in `object_store_url`, or without one the path of a file.

    Raises: ObjectNotFound, CorruptObject, InvalidSettings, ObjectStoreUnavailable.
    """
    if object_store_url is None:
        path = Path(name).resolve()
        object_store_url, name = f"file://{path.parent}", path.name
    index = asyncio.run(_read_index(object_store_url, ObjectKey(name), SystemClock()))
    return dump_wal_index(ObjectKey(name), index)


async def _read_index(url: str, key: ObjectKey, clock: Clock) -> WalObjectIndex:
    async with open_store(url, clock=clock, rng=random.Random(0)) as store:
        return await WalObjectReader(store).read_index(key)
