"""One merge: every row of several segments in one object, whatever happens on the way."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiering_samples import (
    PARTITION,
    PreparedBatch,
    SampleBatch,
    SampleRecord,
    expected_batches,
    file_store,
    plan_of,
    put_wal_object,
    range_reader,
    read_batch,
)

from metadata.operations import RolledSegment, SegmentExtent
from metadata.records.segment_identity import segment_key
from metadata.rewrites import MERGE, RewriteInput, RewritePlan, RewrittenSegment
from tests.support.chunks.batch_builder import seal
from tiering.merging.merge import merge
from tiering.roll import RollSettings, roll
from tiering.segment_columns import FIELD_ID, SEGMENT_SCHEMA, segment_table
from tiering.segment_format import EmptyBatch, SegmentCounts, SegmentIdentity
from tiering.segment_reader import SegmentReader
from tiering.segment_sources import SourceRange, decode_sources
from tiering.segment_verification import read_footer_and_sources, verify_segment
from tiering.segment_writer import FileBody, SegmentWriter
from tiering.typed_columns import NO_TYPED_COLUMNS, TypedColumns
from wal import failpoint
from wal.coordinates import CREATE_TIME, ObjectKey, Offset
from wal.crc import crc32c
from wal.errors import CorruptSegment, ObjectNotFound
from wal.failpoint import FailpointError
from wal.records.record_columns import LocatedBatch, decode_batches
from wal.stores.object_store import BytesBody
from wal.ulid import ulid_at, wal_object_key

RNG = random.Random(4)
ROLLS = 12


def records_of(number: int) -> list[SampleBatch]:
    return [
        SampleBatch(
            [
                SampleRecord(b"%d" % at, RNG.randbytes(40), 1000 * number + at, [("h", b"%d" % at)])
                for at in range(5)
            ],
            codec=number % 5,
            producer_id=number % 3 - 1,
            producer_epoch=min(number % 3, 1) - 1,
            base_sequence=5 * number if number % 3 else -1,
        )
        for _ in range(4)
    ]


def wal_key(number: int) -> ObjectKey:
    return wal_object_key(ulid_at(1_700_000_000_000 + number, random.Random(number)))


def plan_to_merge(segments: Sequence[RewriteInput], generation: int = 1) -> RewritePlan:
    return RewritePlan(
        topic_name="flights",
        partition=PARTITION,
        kind=MERGE,
        generation=generation,
        planned_at_ms=0,
        delete_horizon_ms=0,
        producers_since_ms=0,
        target_bytes=512 << 20,
        inputs=segments,
    )


def input_of(segment: RolledSegment | RewrittenSegment) -> RewriteInput:
    return RewriteInput(
        segment.object_key,
        segment.object_bytes,
        segment.base_offset,
        segment.last_offset,
        segment.record_count,
        segment.max_timestamp_ms,
    )


def rolled(
    store: Any,
    batches: Sequence[SampleBatch | PreparedBatch],
    number: int,
    base_offset: int,
    typed: TypedColumns = NO_TYPED_COLUMNS,
) -> RewriteInput:
    extents = put_wal_object(store, wal_key(number), [batches], base_offset=base_offset)
    small = RollSettings(row_group_bytes=2000)
    return input_of(roll(plan_of(extents), store, typed=typed, settings=small).segment)


async def served(directory: Path, segment: RewrittenSegment) -> list[bytes]:
    extent = SegmentExtent(*segment[2:4], *segment[:2], segment.max_timestamp_ms)
    with file_store(directory) as store:
        async with SegmentReader(range_reader(store)) as reader:
            return [batch.data for batch in await reader.read(extent, extent.base_offset, 1 << 30)]


BATCHES = [records_of(number) for number in range(ROLLS)]


@pytest.fixture
def inputs(tmp_path: Path) -> Sequence[RewriteInput]:
    with file_store(tmp_path) as store:
        return [rolled(store, BATCHES[at], at, 100 + 20 * at) for at in range(ROLLS)]


async def test_a_merge_has_every_row_of_its_inputs_and_serves_every_batch(
    tmp_path: Path, inputs: Sequence[RewriteInput]
) -> None:
    with file_store(tmp_path) as store:
        segment = merge(plan_to_merge(inputs), store)
        assert segment.object_key == segment_key("flights", PARTITION, 100, 339, 1)
        assert segment.object_key.endswith("-00000000000000000339-1.parquet")
        assert (segment.record_count, segment.removed_count) == (240, 0)
        stored = store.get(segment.object_key)
        assert (segment.object_bytes, segment.crc32c) == (len(stored), crc32c(stored))
        footer = verify_segment(store, segment.object_key)
        assert footer.identity.generation == 1
        assert len(footer.row_groups) == 1
    before = pa.concat_tables(
        [pq.read_table(tmp_path / one.object_key, partitioning=None) for one in inputs]
    )
    assert pq.read_table(tmp_path / segment.object_key, partitioning=None) == before
    flat = [batch for batches in BATCHES for batch in batches]
    assert [read_batch(data) for data in await served(tmp_path, segment)] == (
        expected_batches(flat, 100)
    )


async def test_merged_segments_are_merged_again(
    tmp_path: Path, inputs: Sequence[RewriteInput]
) -> None:
    with file_store(tmp_path) as store:
        first = merge(plan_to_merge(inputs[:5], 1), store)
        rest = merge(plan_to_merge(inputs[5:9], 2), store)
        both = merge(plan_to_merge([input_of(first), input_of(rest), *inputs[9:]], 3), store)
        at_once = merge(plan_to_merge(inputs, 4), store)
    assert await served(tmp_path, both) == await served(tmp_path, at_once)


def test_sources_of_objects_that_are_gone_are_left_out_but_the_newest(
    tmp_path: Path, inputs: Sequence[RewriteInput]
) -> None:
    with file_store(tmp_path) as store:
        store.delete([wal_key(at) for at in (0, 1, 4, ROLLS - 1)])
        segment = merge(plan_to_merge(inputs), store)
        _, sources = read_footer_and_sources(store, segment.object_key, segment.object_bytes)
        expected = []
        for at, one in enumerate(inputs):
            if at not in (0, 1, 4):
                expected += _sources(store, one)
    assert decode_sources("key", sources) == expected


def _sources(store: Any, one: RewriteInput) -> Sequence[SourceRange]:
    return decode_sources(
        "key", read_footer_and_sources(store, one.object_key, one.object_bytes)[1]
    )


@pytest.mark.parametrize("point", ["merge.before_put", "merge.after_put"])
def test_a_merge_that_died_around_its_put_is_finished_by_the_next(
    tmp_path: Path, inputs: Sequence[RewriteInput], point: str
) -> None:
    with file_store(tmp_path) as store:
        plan = plan_to_merge(inputs)
        failpoint.arm(f"{point}=raise")
        try:
            with pytest.raises(FailpointError):
                merge(plan, store)
        finally:
            failpoint.arm("")
        segment = merge(plan, store)
        assert merge(plan, store) == segment
        assert verify_segment(store, segment.object_key).counts.records == 240
    assert len(list((tmp_path / "segments").rglob("*.parquet"))) == ROLLS + 1


def test_attempts_with_other_bytes_converge_on_the_first(
    tmp_path: Path, inputs: Sequence[RewriteInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    with file_store(tmp_path) as store:
        plan = plan_to_merge(inputs)
        put = type(store).put
        theirs: list[RewrittenSegment] = []

        def late(self: Any, key: ObjectKey, body: Any) -> None:
            """Somebody else's put arrives just before ours; meanwhile a WAL object has gone."""
            monkeypatch.setattr(type(store), "put", put)
            store.delete([wal_key(3)])
            theirs.append(merge(plan, store))
            put(self, key, body)

        monkeypatch.setattr(type(store), "put", late)
        assert [merge(plan, store)] == theirs


def damaged(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.mark.parametrize("at", [10, -200])
def test_a_damaged_input_is_named_and_nothing_is_written(
    tmp_path: Path, inputs: Sequence[RewriteInput], at: int
) -> None:
    damaged(tmp_path / inputs[4].object_key, at)
    with file_store(tmp_path) as store, pytest.raises(CorruptSegment) as raised:
        merge(plan_to_merge(inputs), store)
    assert inputs[4].object_key in str(raised.value)
    assert len(list((tmp_path / "segments").rglob("*.parquet"))) == ROLLS


@pytest.mark.parametrize(
    "lie",
    [
        lambda one: one._replace(record_count=one.record_count - 1),
        lambda one: one._replace(last_offset=Offset(one.last_offset + 1)),
    ],
)
def test_an_input_that_is_not_what_was_planned_is_refused(
    tmp_path: Path, inputs: Sequence[RewriteInput], lie: Any
) -> None:
    with file_store(tmp_path) as store, pytest.raises(CorruptSegment, match="holds"):
        merge(plan_to_merge([*inputs[:3], lie(inputs[3])]), store)


def test_inputs_with_a_gap_between_them_or_gone_are_refused(
    tmp_path: Path, inputs: Sequence[RewriteInput]
) -> None:
    with file_store(tmp_path) as store:
        with pytest.raises(CorruptSegment, match="does not follow"):
            merge(plan_to_merge([inputs[0], inputs[2]]), store)
        store.delete([inputs[5].object_key])
        with pytest.raises(ObjectNotFound):
            merge(plan_to_merge(inputs), store)


def test_something_else_under_the_key_is_an_error_and_stays(
    tmp_path: Path, inputs: Sequence[RewriteInput]
) -> None:
    with file_store(tmp_path) as store:
        key = segment_key("flights", PARTITION, 100, 339, 1)
        store.put(key, BytesBody(store.get(inputs[0].object_key)))
        with pytest.raises(CorruptSegment, match="not what was planned"):
            merge(plan_to_merge(inputs), store)


async def test_gaps_empty_batches_and_batches_that_nobody_decodes_come_along(
    tmp_path: Path,
) -> None:
    poison = PreparedBatch([SampleRecord()] * 3, seal(b"\xff" * 50, record_count=3))
    empty = EmptyBatch(30, 34, 7, 0, 5, 2000)
    located = LocatedBatch(BATCHES[0][0].encoded(), 25, CREATE_TIME, -1)
    rows = segment_table(decode_batches([located])).slice(1, 2)
    with file_store(tmp_path) as store:
        first = rolled(store, [BATCHES[0][0], poison, BATCHES[1][0]], 0, 12)
        identity = SegmentIdentity("flights", PARTITION, 25, 44, 6)
        key = segment_key(*identity)
        with (tmp_path / "file").open("w+b") as file:
            with SegmentWriter(file, identity, ()) as writer:
                writer.write_row_group(rows)
                written = writer.finish(controls=8, removed=10, empty_batches=[empty])
            store.put(key, FileBody(file, written.object_bytes))
        second = RewriteInput(
            key, written.object_bytes, Offset(25), Offset(44), 2, written.max_timestamp_ms
        )
        segment = merge(plan_to_merge([first, second], 7), store)
        footer = verify_segment(store, segment.object_key)
    assert footer.counts == SegmentCounts(15, 8, 10)
    assert footer.raw_batch_count == 1
    assert footer.empty_batches == (empty,)
    batches = await served(tmp_path, segment)
    assert [parsed.base_offset for parsed in map(read_batch, batches[:1])] == [12]
    assert len(batches) == 5  # the last one leads over the hole at the end


# --- typed columns -------------------------------------------------------------------------------


def field(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


class Typed:
    encoded = b""

    def __init__(self, fields: Sequence[pa.Field], value: Any) -> None:
        self.fields = fields
        self._value = value

    def columns(self, rows: pa.Table) -> Sequence[pa.Array]:
        return [pa.array([self._value] * rows.num_rows, one.type) for one in self.fields]


OLD = field(100, "data", pa.struct([field(101, "a", pa.int32()), field(102, "b", pa.string())]))
NEW = field(
    100,
    "data",
    pa.struct(
        [
            field(102, "b", pa.string()),
            field(103, "c", pa.list_(field(104, "element", pa.int8()))),
            field(101, "a", pa.int64()),
        ]
    ),
)
OTHER = field(110, "data", pa.int64())


async def test_typed_columns_of_inputs_meet_by_field_id(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        inputs = [
            rolled(store, BATCHES[0][:1], 0, 0),
            rolled(store, BATCHES[1][:1], 1, 5, Typed([OLD], {"a": 1, "b": "x"})),
            rolled(store, BATCHES[2][:1], 2, 10, Typed([NEW], {"a": 2**40, "b": "y", "c": [1]})),
            rolled(store, BATCHES[3][:1], 3, 15, Typed([OTHER], 7)),
            rolled(store, BATCHES[4][:1], 4, 20),
        ]
        segment = merge(plan_to_merge(inputs), store)
        footer = verify_segment(store, segment.object_key)
        assert all(group.typed_length_bytes for group in footer.row_groups)
    rows = pq.read_table(tmp_path / segment.object_key, partitioning=None)
    assert rows.column_names == [*SEGMENT_SCHEMA.names, "data", "data_100"]
    assert rows.column("data").to_pylist() == [None] * 15 + [7] * 5 + [None] * 5
    assert rows.column("data_100").to_pylist() == (
        [None] * 5
        + [{"a": 1, "b": "x", "c": None}] * 5
        + [{"a": 2**40, "b": "y", "c": [1]}] * 5
        + [None] * 10
    )
    found = await served(tmp_path, segment)
    flat = [BATCHES[at][0] for at in range(5)]
    assert [read_batch(data) for data in found] == expected_batches(flat)
