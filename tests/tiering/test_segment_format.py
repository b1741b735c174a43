"""Format 2 beyond what a roll alone makes: gaps, typed columns, batches without a record."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tiering_samples import (
    PARTITION,
    SampleBatch,
    SampleRecord,
    expected_batches,
    file_store,
    plan_of,
    put_wal_object,
    range_reader,
    read_batch,
)

from metadata.operations import SegmentExtent
from metadata.rebuild.facts import RolledBatch
from tiering import segment_writer
from tiering.roll import RollSettings, roll
from tiering.segment_columns import FIELD_ID, SEGMENT_SCHEMA, segment_table
from tiering.segment_footers import read_producers, read_segment_facts
from tiering.segment_format import EmptyBatch, SegmentCounts, SegmentIdentity
from tiering.segment_reader import SegmentReader
from tiering.segment_verification import verify_segment
from tiering.segment_writer import FileBody, SegmentWriter
from wal.clock import SystemClock
from wal.coordinates import CREATE_TIME, ObjectKey, Offset
from wal.crc import crc32c
from wal.errors import CorruptSegment
from wal.records.record_columns import LocatedBatch, decode_batches
from wal.stores.object_store import BytesBody
from wal.stores.store_url import open_store

KEY = ObjectKey("segments/sample")
BATCHES = [
    SampleBatch(
        [SampleRecord(b"k%d" % (at % 3), b"%d" % (10 * batch + at), 1000 + at) for at in range(10)],
        producer_id=7,
        producer_epoch=1,
        base_sequence=10 * batch,
    )
    for batch in range(6)
]


def rows_of(batches: Sequence[SampleBatch], base_offset: int = 0) -> pa.Table:
    located = []
    for batch in batches:
        located.append(LocatedBatch(batch.encoded(), base_offset, CREATE_TIME, -1))
        base_offset += len(batch.records)
    return segment_table(decode_batches(located))


def keeping(rows: pa.Table, offsets: Sequence[int]) -> pa.Table:
    return rows.filter(pc.is_in(rows.column("offset"), value_set=pa.array(offsets, pa.int64())))


def written(
    directory: Path,
    groups: Sequence[pa.Table],
    identity: SegmentIdentity,
    *,
    removed: int = 0,
    empty: Sequence[EmptyBatch] = (),
    typed: Sequence[pa.Field] = (),
    columns: Sequence[Sequence[pa.Array]] | None = None,
) -> SegmentExtent:
    with (directory / "file").open("w+b") as file, file_store(directory) as store:
        with SegmentWriter(file, identity, (), typed=typed) as writer:
            for number, group in enumerate(groups):
                writer.write_row_group(group, columns[number] if columns else ())
            segment = writer.finish(removed=removed, empty_batches=empty)
        store.put(KEY, FileBody(file, segment.object_bytes))
        assert segment.crc32c == crc32c(store.get(KEY))
    return SegmentExtent(
        KEY,
        segment.object_bytes,
        Offset(identity.base_offset),
        Offset(identity.last_offset),
        segment.max_timestamp_ms,
    )


def identity_of(last_offset: int, generation: int = 1) -> SegmentIdentity:
    return SegmentIdentity("flights", PARTITION, 0, last_offset, generation)


async def test_a_reader_goes_over_gaps_with_the_bounds_that_batches_had(tmp_path: Path) -> None:
    kept = [12, 15, 16, 29, 30, 31]
    rows = keeping(rows_of(BATCHES), kept)
    extent = written(
        tmp_path, [rows.slice(0, 3), rows.slice(3)], identity_of(59), removed=60 - len(kept)
    )
    all_of_them = expected_batches(BATCHES)
    expected = {
        batch.base_offset: batch._replace(
            records=[record for record in batch.records if record[0] in kept],
            max_timestamp_ms=max(r[1] for r in batch.records if r[0] in kept),
        )
        for batch in all_of_them
        if any(record[0] in kept for record in batch.records)
    }
    with file_store(tmp_path) as store:
        assert verify_segment(store, KEY).counts == SegmentCounts(6, 0, 54)
        async with SegmentReader(range_reader(store)) as reader:
            *found, hole = await reader.read(extent, 0, 1 << 20)
            assert [read_batch(batch.data) for batch in found] == [
                expected[base] for base in (10, 20, 30)
            ]
            assert hole[:2] == (40, 59)
            for offset in range(60):
                (taken,) = await reader.read(extent, offset, 1)
                ends = [(base, base + 9) for base in (10, 20, 30) if offset <= base + 9]
                assert taken[:2] == [*ends, (offset, 59)][0]
                assert reader.ahead(extent, offset, 1) is not None
            assert await reader.find_timestamp(extent, 1006) == (16, 1006)


async def test_a_segment_without_a_record_is_one_and_tells_its_producers(tmp_path: Path) -> None:
    empty = EmptyBatch(20, 29, 7, 1, 40, 5000)
    late = EmptyBatch(30, 39, 8, 0, 0, 9000)
    extent = written(tmp_path, (), identity_of(59), removed=60, empty=(empty, late))
    assert extent.max_timestamp_ms == -1
    with file_store(tmp_path) as store:
        assert verify_segment(store, KEY).empty_batches == (empty, late)
        async with SegmentReader(range_reader(store)) as reader:
            (hole,) = await reader.read(extent, 5, 1 << 20)
            assert hole[:2] == (5, 59)
            assert reader.ahead(extent, 5, 1) == 0
            assert await reader.max_timestamp(extent) is None
    async with open_store(f"file://{tmp_path}", clock=SystemClock(), rng=random.Random(0)) as store:
        stat = await store.head(KEY)
        facts = await read_segment_facts(store, stat, existing=())
        assert (facts.record_count, facts.producer_id_max) == (0, 8)
        found = await read_producers(store, stat, since_ms=0)
        assert found == [RolledBatch(20, 29, 7, 1, 40), RolledBatch(30, 39, 8, 0, 0)]
        assert found[0].last_sequence == 49
        assert await read_producers(store, stat, since_ms=9000) == found[1:]


def test_what_has_no_row_is_accounted_for_exactly(tmp_path: Path) -> None:
    rows = keeping(rows_of(BATCHES), range(59))
    with pytest.raises(AssertionError):
        written(tmp_path, [rows], identity_of(59))
    assert written(tmp_path, [rows], identity_of(59), removed=1).base_offset == 0


@pytest.mark.parametrize(
    ("field", "lie"),
    [
        ("records", lambda counts: counts._replace(records=58, removed=2)),
        ("offsets", lambda counts: counts._replace(removed=0)),
        ("control", lambda counts: counts._replace(controls=-1, removed=2)),
    ],
)
def test_counts_that_do_not_add_up_are_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, lie: Any
) -> None:
    honest = segment_writer.footer_metadata
    monkeypatch.setattr(
        segment_writer,
        "footer_metadata",
        lambda identity, counts, *rest, **more: honest(identity, lie(counts), *rest, **more),
    )
    rows = keeping(rows_of(BATCHES), range(59))
    written(tmp_path, [rows], identity_of(59), removed=1)
    with (
        file_store(tmp_path) as store,
        pytest.raises(CorruptSegment, match=r"do not (hold|account)"),
    ):
        verify_segment(store, KEY)


@pytest.mark.parametrize(
    "disorder",
    [
        lambda rows: rows.take([1, 0, *range(2, 60)]),
        lambda rows: rows.take([0, 0, *range(2, 60)]),
        lambda rows: rows.set_column(
            SEGMENT_SCHEMA.get_field_index("batch_last_offset"),
            SEGMENT_SCHEMA.field("batch_last_offset"),
            pa.array([10] * 10 + rows.column("batch_last_offset").to_pylist()[10:]),
        ),
    ],
)
def test_rows_out_of_order_or_of_overlapping_batches_are_corrupt(
    tmp_path: Path, disorder: Any
) -> None:
    written(tmp_path, [disorder(rows_of(BATCHES))], identity_of(59))
    with file_store(tmp_path) as store, pytest.raises(CorruptSegment, match="not in order or not"):
        verify_segment(store, KEY)


# --- typed columns -------------------------------------------------------------------------------


def field(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


DATA = field(
    100,
    "data",
    pa.struct(
        [
            field(101, "number", pa.int64()),
            field(102, "tags", pa.list_(field(103, "element", pa.string()))),
            field(
                104, "seen", pa.map_(pa.field("key", pa.string(), False, {FIELD_ID: "105"}),
                                     field(106, "value", pa.int32())),
            ),
        ]
    ),
)  # fmt: skip
ERROR = field(107, "data_error", pa.int8())


class Typed:
    """Numbers out of values, and many more bytes than those."""

    encoded = b""
    fields = (DATA, ERROR)

    def columns(self, rows: pa.Table) -> Sequence[pa.Array]:
        rng = random.Random(rows.column("offset")[0].as_py())
        data = [
            {"number": int(value), "tags": [rng.randbytes(200).hex()], "seen": {"x": 1}}
            for value in rows.column("value").to_pylist()
        ]
        return pa.array(data, DATA.type), pa.nulls(rows.num_rows, pa.int8())


@pytest.fixture
def typed_topic(tmp_path: Path) -> SegmentExtent:
    with file_store(tmp_path) as store:
        plan = plan_of(put_wal_object(store, "wal/00/object", [BATCHES]))
        small = RollSettings(row_group_bytes=1000)
        segment = roll(plan, store, typed=Typed(), settings=small).segment
        assert roll(plan, store, typed=Typed(), settings=small).segment == segment
    return SegmentExtent(
        segment.object_key,
        segment.object_bytes,
        segment.base_offset,
        segment.last_offset,
        segment.max_timestamp_ms,
    )


async def test_typed_columns_lie_behind_what_a_consumer_reads(
    tmp_path: Path, typed_topic: SegmentExtent
) -> None:
    key = typed_topic.object_key
    with file_store(tmp_path) as store:
        footer = verify_segment(store, key)
        assert footer.object_crc32c == crc32c(store.get(key))
        assert len(footer.row_groups) > 2
        read = range_reader(store)
        async with SegmentReader(read) as reader:
            found = [read_batch(b.data) for b in await reader.read(typed_topic, 0, 1 << 20)]
    assert found == expected_batches(BATCHES)
    assert read.calls[1:] == [
        (key, group.byte_offset, group.length_bytes) for group in footer.row_groups
    ]
    for group in footer.row_groups:
        assert group.typed_length_bytes > group.length_bytes > 0
    rows = pq.read_table(tmp_path / key, partitioning=None)
    assert rows.column_names == [*SEGMENT_SCHEMA.names, "data", "data_error"]
    assert pc.struct_field(rows.column("data"), "number").to_pylist() == list(range(60))


def test_every_column_has_its_field_id(tmp_path: Path, typed_topic: SegmentExtent) -> None:
    found: dict[str, int] = {}

    def collect(prefix: str, one: pa.Field) -> None:
        found[prefix + one.name] = int((one.metadata or {}).get(FIELD_ID, b"-1"))
        kind = one.type
        # Parquet's own struct around keys and items of a map has no id.
        inner = (kind.key_field, kind.item_field) if pa.types.is_map(kind) else ()
        for below in inner or map(kind.field, range(kind.num_fields)):
            collect(f"{prefix}{one.name}.", below)

    for one in pq.read_schema(tmp_path / typed_topic.object_key):
        collect("", one)
    assert len(set(found.values())) == len(found) == 20 + 8
    assert {name: found[name] for name in ("offset", "value", "raw_batch", "data.tags")} == {
        "offset": 1,
        "value": 7,
        "raw_batch": 20,
        "data.tags": 102,
    }


def test_damage_is_found_in_both_parts_and_a_consumer_is_served_past_the_typed_one(
    tmp_path: Path, typed_topic: SegmentExtent
) -> None:
    key = typed_topic.object_key
    with file_store(tmp_path) as store:
        group = verify_segment(store, key).row_groups[1]
        content = store.get(key)
        starts = {"ours": group.byte_offset, "typed": group.byte_offset + group.length_bytes}
        for start in starts.values():
            damaged = bytearray(content)
            damaged[start + 3] ^= 1
            store.delete([key])
            store.put(key, BytesBody(bytes(damaged)))
            with pytest.raises(CorruptSegment, match=f"row group at byte {start} "):
                verify_segment(store, key)


@pytest.mark.parametrize(
    "bad",
    [
        pa.field("data", pa.int64()),
        field(99, "data", pa.int64()),
        field(100, "value", pa.int64()),
        pa.field("data", pa.int64(), nullable=False, metadata={FIELD_ID: "100"}),
        field(100, "data", pa.struct([pa.field("inner", pa.int8())])),
        field(100, "data", pa.list_(pa.int8())),
    ],
)
def test_a_typed_column_without_an_id_of_its_own_is_refused(tmp_path: Path, bad: pa.Field) -> None:
    with (tmp_path / "file").open("w+b") as file, pytest.raises(ValueError, match="typed"):
        SegmentWriter(file, identity_of(59), (), typed=[bad])
