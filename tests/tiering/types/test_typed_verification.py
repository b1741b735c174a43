"""Segments that a faulty job wrote, whose checksums are right: `diskless verify` finds them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.tiering.tiering_samples import (
    SampleBatch,
    SampleRecord,
    file_store,
    plan_of,
    put_wal_object,
)
from tiering import roll as roll_module
from tiering.roll import RollSettings, roll
from tiering.segment_verification import verify_segment
from tiering.types.columns import Columns, Side, encode_columns, follow
from tiering.types.schema_configs import AVRO, JSON, parse_schema
from tiering.types.typed_rows import TypedRows
from tiering.types.typed_verification import check_typed_values, differing
from wal.coordinates import ObjectKey
from wal.errors import CorruptSegment
from wal.stores.file_store import BlockingFileStore
from wal.wire.fields import zigzag

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}
RECORDS = 300
SMALL_GROUPS = RollSettings(row_group_bytes=8_000)


def encoded() -> bytes:
    parsed = parse_schema(JSON, json.dumps(SCHEMA))
    columns, next_id = follow((), parsed.shape, 110)
    value = Side(format=JSON, columns=columns)
    return encode_columns(Columns(value=value, next_id=next_id))


def value(number: int) -> bytes:
    if number % 7 == 0:
        return b"poison"
    return json.dumps({"n": number, "tags": ["t"] * (number % 3), "sizes": {"a": 0.5}}).encode()


class Shifted(TypedRows):
    """A job with a fault: from row 40 of a row group on, each row has the columns of another."""

    def columns(self, rows: pa.Table) -> Sequence[pa.Array]:
        places = [*range(min(40, rows.num_rows)), *reversed(range(40, rows.num_rows))]
        return [column.take(pa.array(places)) for column in super().columns(rows)]


class Swapped(TypedRows):
    """A job with a fault: each row has the columns of the next one."""

    def columns(self, rows: pa.Table) -> Sequence[pa.Array]:
        places = pa.array([*range(1, rows.num_rows), 0])
        return [column.take(places) for column in super().columns(rows)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockingFileStore]:
    with file_store(tmp_path) as store:
        yield store


def rolled(store: BlockingFileStore, typed: TypedRows) -> ObjectKey:
    records = [SampleRecord(value=value(number)) for number in range(RECORDS)]
    batches = [SampleBatch(records[start : start + 10]) for start in range(0, RECORDS, 10)]
    plan = plan_of(put_wal_object(store, "wal/00/object", [batches]))
    return roll(plan, store, typed=typed, settings=SMALL_GROUPS).segment.object_key


def test_typed_columns_that_follow_from_the_bytes_are_found_right(store: BlockingFileStore) -> None:
    key = rolled(store, TypedRows(encoded(), None))
    footer = verify_segment(store, key)
    assert len(footer.row_groups) > 2
    assert check_typed_values(store, key, footer, range(len(footer.row_groups))) == RECORDS
    assert check_typed_values(store, key, footer, [1]) == footer.row_groups[1].record_count


def test_alternatives_of_other_rows_are_found(store: BlockingFileStore) -> None:
    text = json.dumps({"type": "array", "items": ["int", "string", "null"]})
    parsed = parse_schema(AVRO, text)
    columns, next_id = follow((), parsed.shape, 110)
    side = Side(format=AVRO, is_wrapped=parsed.is_wrapped, writer=text, columns=columns)
    made_by = encode_columns(Columns(value=side, next_id=next_id))
    # An array of one element: a number, or a text of it.
    values = [
        zigzag(1) + (zigzag(0) if n % 2 else zigzag(1) + zigzag(1)) + b"\x30" + zigzag(0)
        for n in range(RECORDS)
    ]
    plan = plan_of(
        put_wal_object(
            store, "wal/00/object", [[SampleBatch([SampleRecord(value=one) for one in values])]]
        )
    )
    typed = TypedRows(made_by, None)
    key = roll(plan, store, typed=typed).segment.object_key
    assert typed.error_count == 0
    assert check_typed_values(store, key, verify_segment(store, key), [0]) == RECORDS

    swapped = roll(
        replace(plan, object_key=ObjectKey(plan.object_key.replace(".parquet", "-1.parquet"))),
        store,
        typed=Swapped(made_by, None),
    ).segment.object_key
    footer = verify_segment(store, swapped)
    with pytest.raises(CorruptSegment, match="offset 0: data is not what the bytes say"):
        check_typed_values(store, swapped, footer, [0])


def test_rows_with_the_columns_of_others_are_found_by_offset(store: BlockingFileStore) -> None:
    key = rolled(store, Shifted(encoded(), None))
    footer = verify_segment(store, key)  # every checksum is right
    offset = footer.row_groups[1].base_offset + 40
    with pytest.raises(CorruptSegment, match=rf"{key}: row group 1, offset {offset}: data"):
        check_typed_values(store, key, footer, [1])


@pytest.mark.parametrize("dropped", [0, 9, 154, RECORDS - 1])
def test_a_record_that_a_roll_dropped_and_counted_as_another_kind_is_found(
    store: BlockingFileStore, monkeypatch: pytest.MonkeyPatch, dropped: int
) -> None:
    whole = roll_module.row_groups

    def without_one(plan: Any, store: Any, size: int, left_out: Any) -> Iterator[pa.Table]:
        for rows in whole(plan, store, size, left_out):
            offsets = rows.column("offset").to_numpy()
            left_out.controls += int(np.sum(offsets == dropped))
            yield rows.filter(pa.array(offsets != dropped))

    monkeypatch.setattr(roll_module, "row_groups", without_one)
    key = rolled(store, TypedRows(encoded(), None))
    with pytest.raises(CorruptSegment, match=rf"row group \d+ has no row of offset {dropped}$"):
        verify_segment(store, key)


VALUES = st.none() | st.fixed_dictionaries(
    {
        "a": st.none()
        | st.floats().map(lambda number: number + 0.0),  # no -0.0: equal, and another text
        "b": st.none() | st.lists(st.none() | st.integers(0, 2), max_size=3),
        "c": st.none() | st.lists(st.tuples(st.sampled_from("xy"), st.none() | st.booleans())),
    }
)
TYPE = pa.struct(
    [
        ("a", pa.float64()),
        ("b", pa.list_(pa.int64())),
        ("c", pa.map_(pa.string(), pa.bool_())),
    ]
)


@examples(0.5)
@given(st.lists(st.tuples(VALUES, VALUES, st.booleans()), max_size=6), st.integers(0, 3))
def test_differing_values_are_those_that_python_finds(rows: list[Any], start: int) -> None:
    one = [first for first, _, _ in rows]
    other = [first if is_same else second for first, second, is_same in rows]
    arrays = [pa.array(values, TYPE).slice(start) for values in (one, other)]
    # The text of NaN is that of NaN.
    expected = [str(a) != str(b) for a, b in zip(*map(pa.Array.to_pylist, arrays), strict=True)]
    assert differing(*arrays).tolist() == expected
