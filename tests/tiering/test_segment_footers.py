"""What is read of a segment to rebuild metadata: little, and checked."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiering_samples import SampleBatch, SampleRecord, file_store, plan_of, put_wal_object

from metadata.operations import RolledSegment
from metadata.rebuild.facts import RolledBatch, RolledRange
from tiering.roll import RollSettings, roll
from tiering.segment_footers import read_producers, read_segment_facts
from wal.clock import SystemClock
from wal.errors import CorruptSegment
from wal.stores.store_url import open_store
from wal.ulid import ulid_at, wal_object_key

KEY = wal_object_key(ulid_at(1_700_000_000_000, random.Random(1)))
PLAIN_BATCHES = 10
BATCHES = [
    SampleBatch([SampleRecord(value=b"%d" % number, timestamp_ms=1_000 + number)] * 10)
    for number in range(PLAIN_BATCHES)
] + [
    SampleBatch(
        [
            SampleRecord(value=random.Random(number).randbytes(3_000), timestamp_ms=time_ms)
            for time_ms in (5_000 + number, 4_000)
        ],
        producer_id=number % 3,
        producer_epoch=1,
        base_sequence=number,
    )
    for number in range(30)
]


def rolled(directory: Path) -> RolledSegment:
    with file_store(directory) as store:
        extents = put_wal_object(store, KEY, [BATCHES], base_offset=100)
        return roll(plan_of(extents), store, settings=RollSettings(row_group_bytes=8_000)).segment


def expected() -> Sequence[RolledBatch]:
    """The batches of idempotent producers."""
    offset = 100
    found = []
    for batch in BATCHES:
        count = len(batch.records)
        if batch.producer_id >= 0:
            found.append(
                RolledBatch(
                    offset, offset + count - 1, batch.producer_id, batch.producer_epoch,
                    batch.base_sequence,
                )
            )  # fmt: skip
        offset += count
    return found


async def test_a_footer_tells_all_of_a_segment_but_its_batches(tmp_path: Path) -> None:
    segment = rolled(tmp_path)
    async with open_store(f"file://{tmp_path}", clock=SystemClock(), rng=random.Random(0)) as store:
        stat = await store.head(segment.object_key)
        facts = await read_segment_facts(store, stat, existing={KEY})
        assert (facts.object_bytes, facts.crc32c) == (segment.object_bytes, segment.crc32c)
        assert (facts.base_offset, facts.last_offset) == (segment.base_offset, segment.last_offset)
        assert facts.max_timestamp_ms == segment.max_timestamp_ms
        length = sum(len(batch.encoded()) for batch in BATCHES)
        assert facts.sources == [RolledRange(KEY, 20, length)]
        assert facts.last_source == KEY.rpartition("/")[2]
        assert facts.producer_id_max == 2
        elsewhere = await read_segment_facts(store, stat, existing=())
        assert elsewhere.sources == []
        assert elsewhere.last_source == facts.last_source


async def test_producers_are_read_from_a_fraction_of_the_bytes(tmp_path: Path) -> None:
    segment = rolled(tmp_path)
    async with open_store(f"file://{tmp_path}", clock=SystemClock(), rng=random.Random(0)) as store:
        stat = await store.head(segment.object_key)
        found = await read_producers(store, stat, since_ms=0)
        assert found == expected()
        assert store.statistics().get_bytes < segment.object_bytes
        late = await read_producers(store, stat, since_ms=5_029)
        assert 0 < len(late) < len(found)
        assert late == found[-len(late) :]


@pytest.mark.parametrize("at", [0.3, 0.5, 0.95, 0.9999])
async def test_damage_is_found_or_lies_where_nobody_looked(tmp_path: Path, at: float) -> None:
    segment = rolled(tmp_path)
    path = tmp_path / segment.object_key
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 0x10
    path.chmod(0o644)
    path.write_bytes(content)
    async with open_store(f"file://{tmp_path}", clock=SystemClock(), rng=random.Random(0)) as store:
        stat = await store.head(segment.object_key)
        try:
            assert await read_producers(store, stat, since_ms=0) == expected()
        except CorruptSegment as error:
            problem = str(error)
        else:
            problem = ""
    assert not problem or segment.object_key in problem
