"""Metadata files of tables whose topic is gone."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.table_operations import table_prefix
from metadata.workers.sweeps.tables_sweep import TablesSweep
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody

KEPT, GONE = UUID(int=1), UUID(int=2)
SETTINGS = CoordinatorSettings()
DAY_S = (SETTINGS.orphan_scan_grace_ms + SETTINGS.clock_skew_max_ms) / 1000


class Bed:
    def __init__(self, store: MemoryStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.began_ms: int | None = clock.now_ms()
        self.sweep = TablesSweep(
            store,
            has_topic=lambda topic_id: topic_id == KEPT,
            log_began_ms=lambda: self.began_ms,
            settings=SETTINGS,
            clock=clock,
        )

    async def put(self, *keys: str) -> None:
        for key in keys:
            await self.store.put(ObjectKey(key), BytesBody(b"x"))

    async def left(self) -> list[str]:
        await self.sweep.sweep_once()
        return [stat.key async for stat in self.store.list("")]


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    clock = ManualClock()
    async with MemoryStore(clock=clock) as store:
        yield Bed(store, clock)


async def test_files_of_a_deleted_topic_go_when_they_are_old(bed: Bed) -> None:
    files = [f"{table_prefix(GONE)}{name}" for name in ("a.avro", "b.metadata.json")]
    kept = f"{table_prefix(KEPT)}a.avro"
    await bed.put(*files, kept)
    bed.clock.advance(DAY_S)
    assert await bed.left() == [kept, *files]
    bed.clock.advance(1)
    young = f"{table_prefix(GONE)}c.avro"
    await bed.put(young)
    assert await bed.left() == [kept, young]
    assert bed.sweep.objects_deleted == 2


async def test_what_is_older_than_the_metadata_log_stays(bed: Bed) -> None:
    file = f"{table_prefix(GONE)}a.avro"
    await bed.put(file)
    bed.clock.advance(2 * DAY_S)
    bed.began_ms = bed.clock.now_ms() - 1
    assert await bed.left() == [file]
    bed.began_ms = None
    assert await bed.left() == [file]


async def test_what_is_not_a_tables_file_is_left_alone(bed: Bed) -> None:
    foreign = ["tables/notes.txt", f"tables/{GONE}/data/x.parquet", f"tables/{GONE}x/metadata/y"]
    await bed.put(*foreign)
    bed.clock.advance(2 * DAY_S)
    assert await bed.left() == sorted(foreign)
