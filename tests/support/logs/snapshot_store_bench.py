"""What is stored of snapshots, and a sleep that ends a keeper's run."""

import asyncio

from metadata.replica.snapshots import SnapshotStatus, SnapshotStore
from wal.clock import ManualClock
from wal.stores.object_store import ObjectStore


async def names(snapshots: SnapshotStore) -> list[tuple[int, SnapshotStatus]]:
    """(next offset, status) of what is stored, newest first."""
    return [
        (found.stored.next_offset, found.status)
        for stored in await snapshots.stored()
        for found in [await snapshots.survey(stored)]
    ]


async def keys(store: ObjectStore) -> set[str]:
    return {stat.key async for stat in store.list("meta/")}


class Pauses:
    """A sleep that ends the test's run after so many, and does something at some of them."""

    def __init__(self, clock: ManualClock, limit: int) -> None:
        self.clock = clock
        self.limit = limit
        self.delays: list[float] = []
        self.at: dict[int, object] = {}

    async def __call__(self, delay: float, /) -> None:
        self.delays.append(delay)
        self.clock.advance(delay)
        action = self.at.get(len(self.delays))
        if callable(action):
            result = action()
            if asyncio.iscoroutine(result):
                await result
        if len(self.delays) >= self.limit:
            raise asyncio.CancelledError
        await asyncio.sleep(0)
