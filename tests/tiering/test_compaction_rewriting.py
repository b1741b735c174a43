"""Outputs of compactions: what stays is as it was, counts are exact, a lost record is noticed."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compaction_samples import inputs_of, planned, some_batches
from tiering_samples import (
    SampleBatch,
    SampleRecord,
    file_store,
    plan_of,
    put_wal_object,
    range_reader,
    read_batch,
)

from metadata.operations import SegmentExtent
from metadata.rewrites import Rewrite, RewriteInput, RewritePlan, RewrittenSegment
from tests.support.tiers.compacted import compacted
from tiering.compaction.key_columns import key_rows
from tiering.roll import roll
from tiering.segment_columns import FIELD_ID
from tiering.segment_format import EmptyBatch
from tiering.segment_reader import SegmentReader
from tiering.segment_verification import read_footer, read_footer_and_sources, verify_segment
from tiering.typed_columns import NO_TYPED_COLUMNS
from wal.coordinates import Offset
from wal.errors import CorruptSegment
from wal.stores.blocking_store import BlockingStore, MeteredStore

TOMBSTONE = SampleRecord(b"gone", None, 5)


class Numbered:
    """A column `data`, whose field `a` is the record's offset."""

    encoded = b""

    def __init__(self, kind: pa.DataType) -> None:
        number = pa.field("a", kind, metadata={FIELD_ID: "110"})
        self.fields = [pa.field("data", pa.struct([number]), metadata={FIELD_ID: "100"})]

    def columns(self, rows: pa.Table) -> Sequence[pa.Array]:
        data = [{"a": offset} for offset in rows.column("offset").to_pylist()]
        return [pa.array(data, self.fields[0].type)]


def swapped(plan: RewritePlan, rewrite: Rewrite) -> list[RewriteInput]:
    """The segments that are live after the commit."""
    made = {segment.base_offset: _input(segment) for segment in rewrite.segments}
    covered = [range(one.base_offset, one.last_offset + 1) for one in rewrite.segments]
    rest = [one for one in plan.inputs if not any(one.base_offset in span for span in covered)]
    return sorted([*made.values(), *rest], key=lambda one: one.base_offset)


def _input(segment: RewrittenSegment) -> RewriteInput:
    return RewriteInput(
        segment.object_key,
        segment.object_bytes,
        segment.base_offset,
        segment.last_offset,
        segment.record_count,
        segment.max_timestamp_ms,
    )


async def served(store: BlockingStore, inputs: Sequence[RewriteInput]) -> list[object]:
    """All records as a consumer gets them, and the bounds of their batches."""
    found: list[object] = []
    async with SegmentReader(range_reader(store)) as reader:
        for one in inputs:
            extent = SegmentExtent(
                one.object_key, one.object_bytes, one.base_offset, one.last_offset, 0
            )
            offset = one.base_offset
            while offset <= one.last_offset:
                for batch in await reader.read(extent, offset, 1_000):
                    if batch.data[61:]:
                        seen = read_batch(batch.data)
                        found += [(record, seen[:6]) for record in seen.records]
                    offset = Offset(batch.last_offset + 1)
    return found


async def test_what_stays_is_served_as_it_was(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        inputs = inputs_of(store, some_batches(40, 1), per_segment=7)
        before = await served(store, inputs)
        plan = planned(inputs, target_bytes=5_000)
        rewrite = compacted(plan, store)
        after = await served(store, swapped(plan, rewrite))
        newest = {record[2]: record[0] for record, _ in before}
        assert after == [
            one for one in before if one[0][2] is None or newest[one[0][2]] == one[0][0]
        ]
        assert len(rewrite.segments) < len(inputs)
        for segment in rewrite.segments:
            footer = verify_segment(store, segment.object_key)
            assert footer.counts.records == segment.record_count
            assert footer.counts.removed == segment.removed_count
            assert footer.identity.generation == 1


async def test_typed_columns_stay_with_their_records(tmp_path: Path) -> None:
    """Of inputs that were rolled with a type, with a wider one, and without any."""
    field = {"i": pa.int32(), "l": pa.int64()}
    with file_store(tmp_path) as store:
        inputs = [
            one
            for number, kind in enumerate("-il")
            for one in inputs_of(
                store,
                some_batches(4, number, keys=3),
                per_segment=4,
                base_offset=20 * number,
                typed=Numbered(field[kind]) if kind in field else NO_TYPED_COLUMNS,
            )
        ]
        before = await served(store, inputs)
        plan = planned(inputs, target_bytes=10**6)
        (segment,) = compacted(plan, store).segments
        verify_segment(store, segment.object_key)
        after = await served(store, swapped(plan, compacted(plan, store)))
    rows = pq.read_table(tmp_path / segment.object_key, partitioning=None).to_pylist()
    newest = {record[2]: record[0] for record, _ in before}
    kept = [record for record, _ in before if record[2] is None or newest[record[2]] == record[0]]
    assert [record for record, _ in after] == kept
    assert len(kept) < len(before)
    assert [(row["offset"], row["data"]) for row in rows] == [
        (record[0], None if record[0] < 20 else {"a": record[0]}) for record in kept
    ]


async def test_a_second_compaction_counts_what_the_first_one_removed(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        inputs = inputs_of(store, some_batches(40, 2, keys=3), per_segment=5)
        first = planned(inputs[:6], target_bytes=3_000)
        between = [*swapped(first, compacted(first, store)), *inputs[6:]]
        second = planned(between, target_bytes=100_000, generation=2, planned_at_ms=10**7)
        (segment,) = compacted(second, store).segments
        footer = verify_segment(store, segment.object_key)
        assert footer.counts.offsets == 200
        assert segment.record_count + segment.removed_count == sum(
            one.record_count for one in between
        )
        rows = pq.read_table(tmp_path / segment.object_key, columns=["key"])
        keys = [key for key in rows.column("key").to_pylist() if key is not None]
        assert len(keys) == len(set(keys))


def test_a_tombstone_gets_its_horizon_once_and_goes_after_it(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        batches = [SampleBatch([SampleRecord(b"gone"), TOMBSTONE, SampleRecord(b"here")])]
        inputs = inputs_of(store, batches, per_segment=1)
        live = inputs
        for generation, now_ms in enumerate((1_000, 1_500), 1):
            plan = planned(
                live, generation=generation, planned_at_ms=now_ms, delete_horizon_ms=now_ms + 1_000
            )
            live = swapped(plan, compacted(plan, store))
            (segment,) = live
            rows = pq.read_table(tmp_path / segment.object_key).to_pylist()
            assert [(row["offset"], row["delete_horizon"]) for row in rows] == [
                (1, 2_000),
                (2, None),
            ]
            assert segment.object_key.endswith("-1.parquet")
        plan = planned(live, generation=3, planned_at_ms=2_000, delete_horizon_ms=3_000)
        (segment,) = swapped(plan, compacted(plan, store))
        rows = pq.read_table(tmp_path / segment.object_key).to_pylist()
        assert [row["offset"] for row in rows] == [2]


async def test_a_segment_may_lose_everything(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        record = SampleRecord(b"k", b"v", 7)
        batches = [
            SampleBatch([record] * 3, producer_id=4, producer_epoch=2, base_sequence=10),
            SampleBatch([record] * 2, producer_id=4, producer_epoch=2, base_sequence=13),
            SampleBatch([record]),
        ]
        inputs = inputs_of(store, batches, per_segment=2)
        plan = planned(inputs)
        (segment,) = compacted(plan, store).segments
        assert (segment.record_count, segment.removed_count) == (0, 5)
        assert segment.max_timestamp_ms == -1
        footer = read_footer(store, segment.object_key, segment.object_bytes)
        assert footer.empty_batches == (EmptyBatch(3, 4, 4, 2, 13, 7),)
        found = await served(store, swapped(plan, compacted(plan, store)))
        assert [record[0] for record, _ in found] == [5]
        again = planned(swapped(plan, compacted(plan, store)), generation=2, target_bytes=10**6)
        assert compacted(again, store).segments == [], "nothing is lost a second time"
        silent = replace(plan, generation=3, producers_since_ms=8)
        (segment,) = compacted(silent, store).segments
        footer = read_footer(store, segment.object_key, segment.object_bytes)
        assert footer.empty_batches == (), "its producer is forgotten"


def test_a_repeated_compaction_finds_what_it_wrote(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        plan = planned(inputs_of(store, some_batches(20, 3), per_segment=5))
        first = compacted(plan, store)
        files = {path: path.stat().st_ino for path in tmp_path.rglob("*.parquet")}
        assert compacted(plan, store) == first
        assert {path: path.stat().st_ino for path in tmp_path.rglob("*.parquet")} == files


def test_a_record_that_goes_and_should_not_is_noticed(tmp_path: Path) -> None:
    """An offset that is in no input, as an output would lose that is given another one's."""
    with file_store(tmp_path) as store:
        plan = planned(inputs_of(store, some_batches(20, 4), per_segment=5))
        with pytest.raises(CorruptSegment, match="stay and"):
            compacted(plan, store, meddle=lambda offsets: np.append(offsets, 10**6))


def test_an_input_that_is_not_what_was_committed_is_noticed(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        inputs = inputs_of(store, some_batches(20, 5), per_segment=5)
        wrong = [inputs[0]._replace(record_count=24), *inputs[1:]]
        with pytest.raises(CorruptSegment, match="were committed"):
            compacted(planned(wrong), store)


def test_the_sources_of_what_is_gone_are_left_out(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        inputs = inputs_of(store, some_batches(40, 6), per_segment=10)
        objects = sorted((tmp_path / "wal").rglob("*0*"))
        for path in objects[1:3]:
            if path.is_file():
                path.unlink()
        (segment,) = compacted(planned(inputs, target_bytes=10**6), store).segments
        _, sources = read_footer_and_sources(store, segment.object_key, segment.object_bytes)
        assert len(sources) < 4 * 20


def test_keys_are_read_without_values(tmp_path: Path) -> None:
    rng = random.Random(7)
    batches = [
        SampleBatch(
            [SampleRecord(b"key %06d" % (at * 50 + n), rng.randbytes(900)) for n in range(50)]
        )
        for at in range(40)
    ]
    with file_store(tmp_path) as store:
        key = "wal/00/01J00000000000000000000000"
        segment = roll(plan_of(put_wal_object(store, key, [batches])), store).segment
        one = RewriteInput(
            segment.object_key,
            segment.object_bytes,
            segment.base_offset,
            segment.last_offset,
            segment.record_count,
            0,
        )
        metered = MeteredStore(store)
        rows = sum(
            table.num_rows
            for table in key_rows(one, metered, plan_number=0, number=0, planned_at_ms=0)
        )
        assert rows == 2_000
        assert metered.get_bytes < segment.object_bytes // 10
