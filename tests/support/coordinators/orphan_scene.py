"""A cluster, a store with troubles, and scanners that look for what nobody committed."""

import random
from collections.abc import AsyncIterator, Iterator, Sequence

from metadata.metadata_settings import CoordinatorSettings
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.orphan_scan import OrphanScan
from tests.support.coordinators.file_cluster import COMMIT_AGE_S, Cluster
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import ObjectStoreUnavailable
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody, ObjectStat

SETTINGS = CoordinatorSettings(orphan_scan_page_max=2)
OLD_S = COMMIT_AGE_S + (SETTINGS.clock_skew_max_ms + SETTINGS.orphan_scan_grace_ms) / 1000


class TroubledStore(MemoryStore):
    """A bucket whose LIST and DELETE fail when told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.lists_fail = 0
        self.lists_until_killed = -1
        self.deletes_fail = 0
        self.kept: set[ObjectKey] = set()
        """Keys that a DELETE does not confirm, and does not delete."""
        self.listed: list[str] = []

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        self.listed.append(prefix)
        if prefix.startswith("wal/") and self.lists_until_killed >= 0:
            if not self.lists_until_killed:
                raise ObjectStoreUnavailable("whoever lists is about to be killed")
            self.lists_until_killed -= 1
        if self.lists_fail:
            self.lists_fail -= 1
            raise ObjectStoreUnavailable("503 on LIST")
        async for stat in super().list(prefix, start_after):
            yield stat

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        if self.deletes_fail:
            self.deletes_fail -= 1
            raise ObjectStoreUnavailable("503 on DELETE")
        return await super().delete([key for key in keys if key not in self.kept])

    async def keys(self) -> Sequence[ObjectKey]:
        return [stat.key async for stat in MemoryStore.list(self, "")]


class Scene:
    """Two coordinators, a bucket whose clock is its own, and scanners."""

    def __init__(self, cluster: Cluster, store: TroubledStore, store_clock: ManualClock) -> None:
        self.cluster = cluster
        self.store = store
        self.store_clock = store_clock
        self.rng = random.Random(5)
        self.scan = self.scanner()

    def scanner(
        self, seed: int = 1, ids: Iterator[Sequence[int]] | None = None, **fields: object
    ) -> OrphanScan:
        """Another scanner, or the same after a restart; `ids`: the coordinators, each time."""

        async def coordinator_ids() -> Sequence[int]:
            return tuple(self.cluster.benches) if ids is None else next(ids)

        given: dict[str, object] = {
            "settings": SETTINGS,
            "clock": self.cluster.clock,
            "rng": random.Random(seed),
            "notes": NoteKeeper(
                self.store, clock=self.cluster.clock, rng=random.Random(seed + 1_000)
            ),
        }
        return OrphanScan(
            self.store,
            self.cluster,
            coordinator_ids,
            **(given | fields),  # type: ignore[arg-type]
        )

    def advance(self, seconds: float) -> None:
        self.cluster.clock.advance(seconds)
        self.store_clock.advance(seconds)

    async def upload(self, key: ObjectKey | None = None) -> ObjectKey:
        key = key or self.cluster.benches[0].key()
        await self.store.put(key, BytesBody(b"batches"))
        return key
