"""Avro of schemas that Polars does not read: the same values, and poison that spoils no other."""

import json
import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.samples.avro_samples import avro_bytes, avro_decoder, record_of, with_values
from tests.support.samples.schema_samples import AVRO_RECURSIVE, AVRO_SCHEMAS
from tiering.types.arrow_types import MALFORMED, TYPE_MISMATCH, TypedValues
from tiering.types.avro.avro_schema import AvroType
from tiering.types.avro.lockstep import NARROW
from tiering.types.avro.one_value import LEVELS_MAX
from tiering.types.schema_configs import AVRO, parse_schema
from wal.wire.fields import zigzag

MANY = 3 * NARROW
LIST = record_of(v="int", next=["null", "R"])


def is_plain(schema: Any) -> bool:
    writer = parse_schema(AVRO, json.dumps(schema)).writer
    assert writer is not None
    return writer.is_plain


def decoded(schema: Any, values: Sequence[bytes], *, narrow: int = NARROW) -> TypedValues:
    return avro_decoder(schema, narrow=narrow).decode(pa.array(values, pa.binary()))


def chain(length: int) -> bytes:
    """A list of `length` records within each other, by LIST."""
    return (zigzag(7) + zigzag(1)) * (length - 1) + zigzag(7) + zigzag(0)


@examples(0.4)
@given(with_values(AVRO_SCHEMAS.filter(is_plain)), st.sampled_from([0, NARROW]))
def test_what_polars_reads_is_read_the_same(
    sample: tuple[Any, list[tuple[Any, Any]]], narrow: int
) -> None:
    schema, values = sample
    written = [avro_bytes(schema, value) for value, _ in values]
    by_polars = decoded(schema, written)
    with patch.object(AvroType, "is_plain", False):
        in_lockstep = decoded(schema, written, narrow=narrow)
    assert in_lockstep.data.equals(by_polars.data)
    assert in_lockstep.errors.equals(by_polars.errors)


@examples(0.4)
@given(with_values(st.one_of(AVRO_SCHEMAS, AVRO_RECURSIVE)), st.integers(0, 2**32))
def test_however_many_are_read_together_they_are_the_same(
    sample: tuple[Any, list[tuple[Any, Any]]], seed: int
) -> None:
    schema, values = sample
    rng = random.Random(seed)
    rows = [avro_bytes(schema, value) for value, _ in values] or [b""]
    rows += [bytes(rng.choices(row or b"\x02", k=len(row))) for row in rows]
    rows += [row[: rng.randrange(len(row) + 1)] for row in rows]
    with patch.object(AvroType, "is_plain", False):
        alone = decoded(schema, rows, narrow=len(rows) + 1)
        together = decoded(schema, rows, narrow=0)
    assert str(together.data) == str(alone.data)  # NaN too
    assert together.errors.equals(alone.errors)


@pytest.mark.parametrize("keys", [(b"\xff", b"b"), (b"a", b"\xff"), (b"\xff", b"\xfe")])
@pytest.mark.parametrize("is_within", [False, True])
def test_a_key_that_is_no_text_fails_its_record_alone(
    keys: tuple[bytes, bytes], is_within: bool
) -> None:
    map_of_int: dict[str, Any] = {"type": "map", "values": "int"}
    schema = {"type": "array", "items": map_of_int} if is_within else map_of_int

    def row(*keys: bytes) -> bytes:
        entries = b"".join(zigzag(len(key)) + key + zigzag(1) for key in keys)
        found = zigzag(len(keys)) + entries + zigzag(0)
        return zigzag(1) + found + zigzag(0) if is_within else found

    values = [row(b"a", b"b"), row(*keys), row(b"c")] * MANY
    with patch.object(AvroType, "is_plain", False):
        found = decoded(schema, values)
    assert found.errors.is_null().to_pylist() == [True, False, True] * MANY
    assert found.data.null_count == MANY


BLOCK = zigzag(-2) + zigzag(2)
UNIT = {"type": "record", "name": "U", "fields": []}
SEVERAL = ["int", "null", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, UNIT]


@pytest.mark.parametrize("narrow", [0, NARROW])
@pytest.mark.parametrize(
    ("type_", "value", "code"),
    [
        (SEVERAL, zigzag(4), MALFORMED),
        (SEVERAL, zigzag(-1), MALFORMED),
        (SEVERAL, b"", MALFORMED),
        (SEVERAL, zigzag(0) + b"\xff" * 12, MALFORMED),
        (SEVERAL, zigzag(0) + zigzag(1 << 40), TYPE_MISMATCH),
        (SEVERAL, zigzag(2) + zigzag(2), TYPE_MISMATCH),
        (["string", "int"], zigzag(0) + zigzag(2) + b"\xff\xfe", MALFORMED),
        (["string", "bytes"], zigzag(1) + zigzag(1 << 50), MALFORMED),
        (["null", UNIT], zigzag(2), MALFORMED),
        ({"type": "array", "items": "null"}, zigzag(1 << 62) + zigzag(0), MALFORMED),
        ({"type": "array", "items": "null"}, zigzag(1 << 60) * 3 + zigzag(0), MALFORMED),
        ({"type": "array", "items": "null"}, zigzag(-(1 << 63)) + zigzag(0) * 2, MALFORMED),
        ({"type": "array", "items": SEVERAL}, zigzag(1 << 40), MALFORMED),
        ({"type": "array", "items": SEVERAL}, zigzag(2) + zigzag(1), MALFORMED),
        ({"type": "map", "values": "null"}, zigzag(1) + zigzag(9), MALFORMED),
        (
            {"type": "map", "values": "null"},
            zigzag(2) + (zigzag(1) + b"k") * 2 + zigzag(0),
            TYPE_MISMATCH,
        ),
        (
            {"type": "array", "items": ["int", {"type": "map", "values": "null"}]},
            zigzag(1) + zigzag(1) + zigzag(2) + (zigzag(1) + b"k") * 2 + zigzag(0) * 2,
            TYPE_MISMATCH,
        ),
    ],
)
def test_poison_is_alone_among_many(type_: Any, value: bytes, code: int, narrow: int) -> None:
    schema = record_of(a="string", b=type_, c=["int", "string"])
    good = zigzag(1) + b"x", zigzag(0) + zigzag(5)
    of_type = zigzag(0) if isinstance(type_, dict) or type_[0] != "int" else zigzag(1)
    if type_ == ["string", "int"] or type_ == ["string", "bytes"]:
        of_type += zigzag(0)
    whole = good[0] + of_type + good[1]
    rows = [whole] * MANY
    poisoned = range(0, MANY, 7)
    for at in poisoned:
        rows[at] = good[0] + value + good[1]
    found = decoded(schema, rows, narrow=narrow)
    assert found.errors.to_pylist() == [code if at in poisoned else None for at in range(MANY)]
    expected = decoded(schema, [whole]).data[0].as_py()
    assert expected["a"] == "x"
    assert expected["c"] == {"int": 5, "string": None}
    assert found.data.to_pylist() == [None if at in poisoned else expected for at in range(MANY)]


@pytest.mark.parametrize("count", [1, MANY])
def test_what_takes_no_bytes_is_counted(count: int) -> None:
    """Three bytes ask for more elements than there is memory for."""
    schema = record_of(a={"type": "array", "items": "null"}, b="int")
    row = zigzag(1 << 60) + BLOCK + zigzag(0) + zigzag(9)
    found = decoded(schema, [row] * count)
    assert found.data.to_pylist() == [{"a": (1 << 60) + 2, "b": 9}] * count


def test_a_value_is_as_deep_as_it_may_be_and_no_process_ends_of_one_that_is_deeper() -> None:
    levels = 8 + LEVELS_MAX
    values = [chain(3), chain(levels), chain(levels + 1), chain(500_000), chain(9)[:-1]]
    found = decoded(LIST, values)
    codes = [None, None, TYPE_MISMATCH, TYPE_MISMATCH, MALFORMED]
    assert found.errors.to_pylist() == codes
    deepest = found.data[1].as_py()
    for _ in range(7):
        deepest = deepest["next"]
    assert str(deepest["next"]).count('{"v":7,"next":') == LEVELS_MAX
    assert json.loads(deepest["next"])["v"] == 7


def test_text_has_what_columns_have() -> None:
    number = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    fields: Any = {
        "f": "float",
        "d": ["double", "null"],
        "n": number,
        "b": "bytes",
        "u": ["int", {"type": "record", "name": "U", "fields": []}, "null"],
        "m": {"type": "map", "values": "null"},
        "next": ["null", "R"],
    }
    schema = record_of(**fields)
    float_ = np.float32(0.1).tobytes()
    nan = zigzag(0) + np.float64("nan").tobytes()
    one = b"".join(
        (
            *(float_, nan, zigzag(1) + b"\xfb", zigzag(2) + b"\xff\x00"),
            *(zigzag(1), zigzag(1) + zigzag(1) + b"k" + zigzag(0)),
        )
    )
    text = '{"f":0.1,"d":"NaN","n":-0.05,"b":"\xff\\u0000","u":{"U":true},"m":["k"],"next":null}'
    found = decoded(schema, [(one + zigzag(1)) * 8 + one + zigzag(0)])
    assert found.errors.to_pylist() == [None]
    within = found.data[0].as_py()
    for _ in range(7):
        within = within["next"]
    assert within["next"] == text


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int", zigzag(1 << 31)),
        ("boolean", b"\x02"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(1)),
        ({"type": "int", "logicalType": "date"}, zigzag(3_000_000)),
        ({"type": "long", "logicalType": "timestamp-millis"}, zigzag(1 << 60)),
        ({"type": "map", "values": "int"}, zigzag(2) + (zigzag(1) + b"k\x02") * 2 + zigzag(0)),
        (["int"], zigzag(1) + zigzag(0)),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1},
            zigzag(1) + b"\x64",
        ),
    ],
)
def test_what_no_column_holds_is_in_no_text_either(type_: Any, value: bytes) -> None:
    """In the ninth record of nine within each other, which is text."""
    schema = record_of(next=["null", "R"], v=["null", type_])
    row = zigzag(1) * 8 + zigzag(0) + zigzag(1) + value + zigzag(0) * 8
    if isinstance(type_, list):
        schema = record_of(next=["null", "R"], v={"type": "array", "items": type_})
        row = zigzag(1) * 8 + zigzag(0) + zigzag(1) + value + zigzag(0) + zigzag(0) * 8
    good = decoded(schema, [zigzag(1) * 8 + zigzag(0) * 10])
    assert good.errors.to_pylist() == [None]
    assert decoded(schema, [row]).errors.to_pylist() == [TYPE_MISMATCH]
