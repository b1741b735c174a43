"""The view of the newest records of a compacted topic that docs/tables.md gives, in DuckDB."""

import re
from pathlib import Path

import duckdb
from tiered_topics import TieredTopics
from tiering_samples import SampleBatch, SampleRecord

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "tables.md"
BASE_MS = 1_704_067_200_000


def batch(*records: tuple[bytes, bytes | None]) -> SampleBatch:
    return SampleBatch([SampleRecord(key, value, BASE_MS) for key, value in records])


async def test_the_view_has_the_newest_record_of_each_key(tmp_path: Path) -> None:
    """Of compacted segments and such that no compaction has seen; deleted keys are not in it."""
    (view,) = re.findall(r"```sql\n(create temporary view.*?)```", PAGE.read_text(), re.S)
    async with TieredTopics(tmp_path, 1) as world:
        partition = await world.create("flights", cleanup_policy="compact", segment_bytes="1")
        for records in (
            batch((b"a", b"1"), (b"b", b"1")),
            batch((b"a", b"2"), (b"c", b"1")),
            batch((b"b", None)),
        ):
            await world.produce([(partition, records)])
            await world.roll()
        (plan,) = await world.plan_rewrites()
        await world.commit(world.written(plan))
        await world.produce([(partition, batch((b"a", b"3"), (b"d", b"1"), (b"d", b"2")))])
        await world.roll()
        live = [
            str(tmp_path / "objects" / one.object_key)
            for one in await world.live_segments(partition)
            if one.record_count
        ]
    with duckdb.connect() as lake:
        rows = lake.read_parquet(live, hive_partitioning=True)
        assert rows.aggregate("count(*)").fetchall() == [(6,)]
        rows.create_view("flights")
        lake.execute(view.replace("lake.topics.flights", "flights"))
        found = lake.execute('select key, value, "offset" from latest_flights order by 1')
        assert found.fetchall() == [(b"a", b"3", 5), (b"c", b"1", 3), (b"d", b"2", 7)]
