"""Avro to typed columns: what fits is there, what does not has a code and nothing else."""

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.samples.avro_samples import avro_bytes, avro_decoder, record_of, with_values
from tests.support.samples.schema_samples import AVRO_RECURSIVE, AVRO_SCHEMAS
from tiering.types.arrow_types import MALFORMED, TYPE_MISMATCH, TypedValues
from tiering.types.avro.avro_schema import parse_avro_schema
from tiering.types.avro.avro_values import AvroDecoder
from tiering.types.avro.lockstep import NARROW
from tiering.types.columns import FIRST_ID, follow
from tiering.types.schema_configs import AVRO, parse_schema
from tiering.types.shapes import root_struct
from wal.wire.fields import zigzag


def _decoded(schema: Any, *values: bytes) -> TypedValues:
    return avro_decoder(schema).decode(pa.array(values, pa.binary()))


def _wrapped(schema: Any, wanted: Any) -> Any:
    """A record gives the columns itself, also one that may be null; another type gives `value`."""
    return {"value": wanted} if parse_schema(AVRO, json.dumps(schema)).is_wrapped else wanted


_SAMPLES = with_values(AVRO_SCHEMAS)
_NARROW = st.sampled_from([0, 3, NARROW])
"""All in lockstep, some, and as few as there are in a test."""


@examples(0.6)
@given(st.one_of(_SAMPLES, with_values(AVRO_RECURSIVE)), _NARROW)
def test_every_value_of_a_schema_comes_out_as_it_went_in(
    sample: tuple[Any, list[tuple[Any, Any]]], narrow: int
) -> None:
    schema, values = sample
    decoder = avro_decoder(schema, narrow=narrow)
    found = decoder.decode(
        pa.array([avro_bytes(schema, value) for value, _ in values], pa.binary())
    )
    assert found.errors.null_count == len(values)
    assert found.data.to_pylist() == [_wrapped(schema, wanted) for _, wanted in values]
    found.data.validate(full=True)


@examples(0.6)
@given(
    st.one_of(_SAMPLES, with_values(AVRO_RECURSIVE)),
    _NARROW,
    st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=20), st.integers(-3, 12)), max_size=4),
    st.randoms(use_true_random=False),
)
def test_poison_spoils_no_other_record(
    sample: tuple[Any, list[tuple[Any, Any]]],
    narrow: int,
    poison: list[tuple[int, bytes, int]],
    rng: Any,
) -> None:
    schema, values = sample
    rows: list[tuple[bytes, Any]] = [
        (avro_bytes(schema, value), wanted) for value, wanted in values
    ]
    written = [row[0] for row in rows]
    for index, more, cut in poison:
        # Too long, too short, or two good ones together: what would move all that follow.
        start = written[index % len(written)] if written else b""
        rows.append((start[: len(start) + min(cut, 0)] + more, ...))
        rows.append((start * 2, ...))
    rng.shuffle(rows)
    decoder = avro_decoder(schema, narrow=narrow)
    found = decoder.decode(pa.array([row[0] for row in rows], pa.binary()))
    data, errors = found.data.to_pylist(), found.errors.to_pylist()
    for (text, wanted), one, code in zip(rows, data, errors, strict=True):
        by_itself = decoder.decode(pa.array([text], pa.binary()))
        alone = by_itself.data[0].as_py()
        assert repr(one) == repr(alone)
        assert code == by_itself.errors[0].as_py()
        assert one is None or code is None
        if wanted is not ...:
            assert (one, code) == (_wrapped(schema, wanted), None)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("string", zigzag(1 << 50) + b"abc"),
        ("string", zigzag(1 << 62)),
        ("string", zigzag(-5) + b"abc"),
        ("string", zigzag(2) + b"\xff\xfe"),
        ("bytes", zigzag(4) + b"abc"),
        ("long", b"\xff" * 12),
        ("long", b""),
        ("long", zigzag(1) + b"\x00"),
        ({"type": "array", "items": "long"}, zigzag(1 << 50) + zigzag(1) + zigzag(0)),
        ({"type": "array", "items": "long"}, zigzag(-(1 << 60)) + zigzag(3) + zigzag(0)),
        ({"type": "map", "values": "long"}, zigzag(1) + zigzag(0)),
        ("boolean", b""),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            zigzag(20) + b"\x7f" * 20,
        ),
    ],
)
def test_bytes_that_are_not_of_the_schema_are_malformed_and_alone(type_: Any, value: bytes) -> None:
    schema = record_of(a=type_, b="string")
    good = avro_bytes(record_of(a="string"), {"a": "x"})
    first = _decoded(schema, value + good)
    assert first.errors.to_pylist() == [MALFORMED]
    with_others = avro_decoder(record_of(a=type_))
    assert with_others.decode(pa.array([value] * 3)).errors.to_pylist() == [MALFORMED] * 3


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("boolean", b"\x07"),
        ("int", zigzag(1 << 40)),
        ("int", zigzag(-(1 << 31) - 1)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(1)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(-1)),
        ({"type": "int", "logicalType": "date"}, zigzag(3_000_000)),
        ({"type": "long", "logicalType": "timestamp-millis"}, zigzag(1 << 60)),
        ({"type": "long", "logicalType": "timestamp-micros"}, zigzag(-(1 << 62))),
        (["int"], zigzag(1) + zigzag(7)),
        (
            ["null", {"type": "array", "items": "int"}],
            zigzag(1) + zigzag(1) + zigzag(1 << 33) + b"\0",
        ),
        ({"type": "map", "values": "int"}, zigzag(2) + (zigzag(1) + b"k" + b"\2") * 2 + b"\0"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
            zigzag(2) + (1000).to_bytes(2, "big"),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 1},
            zigzag(9) + (-(10**20)).to_bytes(9, "big", signed=True),
        ),
    ],
)
def test_what_a_column_cannot_hold_is_a_mismatch_of_the_whole_record(
    type_: Any, value: bytes
) -> None:
    good = avro_bytes(record_of(a="string"), {"a": "x"})
    found = _decoded(record_of(good="string", a=type_), good + value)
    assert found.errors.to_pylist() == [TYPE_MISMATCH]
    assert found.data.to_pylist() == [None]
    bare = _decoded(type_, value)
    assert bare.errors.to_pylist() == [TYPE_MISMATCH]


def test_a_value_that_holds_what_follows_it_misleads_nobody() -> None:
    """Two values whose lengths are wrong by as much as each other still end at the right place."""
    schema = record_of(a="long", b="string")
    short, long = zigzag(1) + zigzag(8) + b"abcd", zigzag(1) + zigzag(0) + b"abcdefgh" * 2
    good = avro_bytes(schema, {"a": 5, "b": "x"})
    found = _decoded(schema, good, short[:-3], good, long, good)
    assert found.errors.to_pylist() == [None, MALFORMED, None, MALFORMED, None]


def test_fields_without_bytes_have_no_columns() -> None:
    schema = record_of(
        n="null",
        a="int",
        e={"type": "record", "name": "E", "fields": [{"name": "x", "type": "null"}]},
    )
    found = _decoded(schema, avro_bytes(schema, {"n": None, "a": 7, "e": {"x": None}}))
    assert found.data.to_pylist() == [{"a": 7}]


def _follow(*schemas: Any) -> Any:
    columns: Any = ()
    next_id = FIRST_ID
    for schema in schemas:
        columns, next_id = follow(
            columns, root_struct(parse_avro_schema(json.dumps(schema)).shape), next_id
        )
    return columns


def test_values_of_an_older_schema_go_into_the_columns_of_a_newer_one() -> None:
    old = record_of(a="int", b="float", gone="string", x="string")
    new = record_of(a="long", b="double", more=["null", "string"], x="long")
    columns = _follow(old, new)
    older = AvroDecoder(parse_avro_schema(json.dumps(old)), columns)
    newer = AvroDecoder(parse_avro_schema(json.dumps(new)), columns)
    first = older.decode(pa.array([avro_bytes(old, {"a": 1, "b": 0.5, "gone": "g", "x": "text"})]))
    then = newer.decode(
        pa.array([avro_bytes(new, {"a": 1 << 40, "b": math.pi, "more": "m", "x": 3})])
    )
    assert first.data.type == then.data.type
    assert first.data.to_pylist() == [
        {"a": 1, "b": 0.5, "gone": "g", "x_v1": "text", "more": None, "x": None}
    ]
    assert then.data.to_pylist() == [
        {"a": 1 << 40, "b": math.pi, "gone": None, "x_v1": None, "more": "m", "x": 3}
    ]


def test_values_of_a_schema_that_the_columns_do_not_know_are_mismatches() -> None:
    columns = _follow(record_of(a="int"))
    other = record_of(a="string", b="int")
    decoder = AvroDecoder(parse_avro_schema(json.dumps(other)), columns)
    found = decoder.decode(pa.array([avro_bytes(other, {"a": "x", "b": 1})]))
    assert found.errors.to_pylist() == [TYPE_MISMATCH]


def test_slices_of_an_array_are_decoded() -> None:
    schema = record_of(a={"type": "array", "items": "int"})
    values = [avro_bytes(schema, {"a": list(range(count))}) for count in range(5)]
    found = avro_decoder(schema).decode(pa.array(values, pa.binary())[2:4])
    assert found.data.to_pylist() == [{"a": [0, 1]}, {"a": [0, 1, 2]}]
