"""JSON to typed columns: what fits is there, what does not has a code and nothing else."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.samples.schema_samples import JSON_SCHEMAS, json_values
from tiering.types.arrow_types import MALFORMED, TYPE_MISMATCH, TypedValues
from tiering.types.avro.avro_schema import parse_avro_schema
from tiering.types.columns import FIRST_ID, Column, follow
from tiering.types.json_schema import parse_json_schema
from tiering.types.json_values import JsonDecoder
from tiering.types.shapes import root_struct


def _decoder(schema: Any) -> JsonDecoder:
    shape = parse_json_schema(json.dumps(schema))
    root = root_struct(shape)
    columns, _ = follow((), root, FIRST_ID)
    return JsonDecoder(columns, is_wrapped=root is not shape)


def _decoded(schema: Any, *texts: bytes | None) -> TypedValues:
    with _decoder(schema) as decoder:
        return decoder.decode(pa.array(texts, pa.binary()))


def _one(schema: Any, text: str) -> Any:
    """The data of a value, or its code."""
    found = _decoded(schema, text.encode())
    code = found.errors[0].as_py()
    assert (code is None) == found.data[0].is_valid
    return found.data[0].as_py() if code is None else code


def _flat(**properties: Any) -> Any:
    return {"type": "object", "properties": properties}


@examples(0.3)
@given(JSON_SCHEMAS.flatmap(lambda one: st.tuples(st.just(one), st.lists(json_values(one)))))
def test_every_value_of_a_schema_comes_out_as_it_went_in(
    sample: tuple[Any, list[tuple[Any, Any]]],
) -> None:
    schema, values = sample
    texts = [json.dumps(value, ensure_ascii=len(values) % 2 == 0).encode() for value, _ in values]
    is_object = "properties" in schema
    with _decoder(schema) as decoder:
        found = decoder.decode(pa.array(texts, pa.binary()))
    expected = [wanted if is_object else {"value": wanted} for _, wanted in values]
    assert found.errors.null_count == len(values)
    assert found.data.to_pylist() == expected
    found.data.validate(full=True)


@examples(0.3)
@given(
    JSON_SCHEMAS.flatmap(lambda one: st.tuples(st.just(one), st.lists(json_values(one)))),
    st.lists(
        st.one_of(
            st.none(),
            st.binary(max_size=12),
            st.sampled_from(
                [b"{", b"[1", b'{"a":1}{"a":1}', b"nul", b'"\xff"', b"", b'{"a":\x00}', b"{}}"]
            ),
        ),
        max_size=5,
    ),
    st.randoms(use_true_random=False),
)
def test_poison_spoils_no_other_record(
    sample: tuple[Any, list[tuple[Any, Any]]], poison: list[bytes | None], rng: Any
) -> None:
    schema, values = sample
    rows: list[tuple[bytes | None, Any]] = [
        (json.dumps(value).encode(), wanted) for value, wanted in values
    ] + [(bad, ...) for bad in poison]
    rng.shuffle(rows)
    is_object = "properties" in schema
    with _decoder(schema) as decoder:
        found = decoder.decode(pa.array([row[0] for row in rows], pa.binary()))
        # What comes of a value does not depend on those around it.
        alone = [decoder.decode(pa.array([row[0]], pa.binary())) for row in rows]
    data, errors = found.data.to_pylist(), found.errors.to_pylist()
    for (text, wanted), one, code, by_itself in zip(rows, data, errors, alone, strict=True):
        assert (one, code) == (by_itself.data[0].as_py(), by_itself.errors[0].as_py())
        if wanted is not ...:
            assert (one, code) == (wanted if is_object else {"value": wanted}, None)
        elif text is None:
            assert (one, code) == (None, None)
        else:
            assert (one is None) == (code is not None)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "integer"}, '"12"'),
        ({"type": "integer"}, "1.5"),
        ({"type": "integer"}, "true"),
        ({"type": "integer"}, "9223372036854775808"),
        ({"type": "integer"}, "99999999999999999999999"),
        ({"type": "integer", "format": "int32"}, "2147483648"),
        ({"type": "integer", "maximum": 2**64}, "1.5"),
        ({"type": "number"}, '"1"'),
        ({"type": "number"}, '"NaN"'),
        ({"type": "boolean"}, "1"),
        ({"type": "boolean"}, '"true"'),
        ({"type": "string"}, "12"),
        ({"type": "string"}, "{}"),
        ({"type": "string", "format": "date"}, '"2026-02-30"'),
        ({"type": "string", "format": "date"}, '"infinity"'),
        ({"type": "string", "format": "date-time"}, '"yesterday"'),
        ({"type": "string", "format": "date-time"}, '"infinity"'),
        (_flat(x={"type": "string"}), "[]"),
        (_flat(x={"type": "string"}), '"x"'),
        (_flat(x={"type": "string"}), '{"x":1}'),
        ({"type": "array", "items": {"type": "integer"}}, '[1,"2"]'),
        ({"type": "array", "items": {"type": "integer"}}, "[1,9223372036854775808]"),
        ({"type": "array", "items": {"type": "integer"}}, '{"0":1}'),
        ({"type": "array", "items": {"type": "string", "format": "date"}}, '["infinity"]'),
        ({"type": "array", "items": _flat(x={"type": "integer"})}, '[{"x":1},{"x":"1"}]'),
        ({"type": "array", "items": _flat(x={"type": "integer"})}, "[{},1]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "[[1],2]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, '[["1"]]'),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"k":"1"}'),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "[1]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"k":1,"k":2}'),
        (
            {
                "type": "array",
                "items": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
            '[{"k":1},{"k":1,"k":2}]',
        ),
    ],
)
def test_what_nearly_fits_is_a_mismatch_of_the_whole_record(part: Any, text: str) -> None:
    schema = _flat(good={"type": "integer"}, a=part)
    assert _one(schema, f'{{"good":1,"a":{text}}}') == TYPE_MISMATCH
    nested = _flat(good={"type": "integer"}, deep=_flat(a=part))
    assert _one(nested, f'{{"good":1,"deep":{{"a":{text}}}}}') == TYPE_MISMATCH
    assert _one(part, text) == TYPE_MISMATCH


@pytest.mark.parametrize("text", ["1", "[]", '"x"', "null", "true"])
def test_a_value_that_is_no_object_is_a_mismatch(text: str) -> None:
    assert _one(_flat(a={"type": "integer"}), text) == TYPE_MISMATCH


@pytest.mark.parametrize("text", ['1,"x":2', "1}", "1},{", ""])
def test_what_is_json_only_within_something_is_malformed(text: str) -> None:
    assert _one({"type": "integer"}, text) == MALFORMED


def test_null_and_missing_are_null_anywhere() -> None:
    schema = _flat(a={"type": "integer"}, b={"type": "array", "items": {"type": "string"}})
    assert _one(schema, '{"a":null,"b":[null,"x"],"c":7}') == {"a": None, "b": [None, "x"]}
    assert _one(schema, "{}") == {"a": None, "b": None}
    assert _one({"type": "integer"}, "null") == {"value": None}


def test_a_key_that_is_there_twice_in_a_map_is_a_mismatch() -> None:
    schema = _flat(m={"type": "object", "additionalProperties": {"type": "integer"}})
    found = _decoded(schema, b'{"m":{"k":1}}', b'{"m":{"k":1,"k":2}}', b'{"m":{}}')
    assert found.errors.to_pylist() == [None, TYPE_MISMATCH, None]
    assert found.data.to_pylist() == [{"m": [("k", 1)]}, None, {"m": []}]


def test_a_deep_value_is_a_value() -> None:
    deep = "[" * 5_000 + "]" * 5_000
    assert _one(_flat(a={"type": "integer"}, b={}), f'{{"a":1,"b":{deep}}}')["a"] == 1


def test_columns_without_a_field_are_null() -> None:
    first = root_struct(parse_json_schema(json.dumps(_flat(a={"type": "integer"}))))
    then = root_struct(parse_json_schema(json.dumps(_flat(a={"type": "string"}))))
    columns: tuple[Column, ...]
    columns, next_id = follow((), first, FIRST_ID)
    columns, _ = follow(columns, then, next_id)
    with JsonDecoder(columns) as decoder:
        found = decoder.decode(pa.array([b'{"a":"x"}', b'{"a":1}'], pa.binary()))
    assert found.data.to_pylist() == [{"a_v1": None, "a": "x"}, None]
    assert found.errors.to_pylist() == [None, TYPE_MISMATCH]


def test_slices_of_an_array_are_decoded() -> None:
    with _decoder(_flat(a={"type": "array", "items": {"type": "integer"}})) as decoder:
        values = pa.array([b'{"a":[1]}', b"x", b'{"a":[2,3]}', None], pa.binary())[1:]
        found = decoder.decode(values)
    assert found.data.to_pylist() == [None, {"a": [2, 3]}, None]
    assert found.errors.to_pylist() == [MALFORMED, None, None]


def test_columns_that_only_avro_has_are_null_for_json() -> None:
    """A topic that was Avro keeps them when its format changes."""
    fields: Any = {
        "gone": "bytes",
        "several": ["int", "string"],
        "many": {"type": "array", "items": "bytes"},
        "inside": _avro_record("Inside", both="bytes", n="int"),
        "only": _avro_record("Only", both="bytes"),
        "n": "long",
    }
    writer = parse_avro_schema(json.dumps(_avro_record("R", **fields)))
    columns, next_id = follow((), writer.shape, FIRST_ID)
    columns, _ = follow(
        columns, parse_json_schema(json.dumps(_flat(n={"type": "integer"}))), next_id
    )
    with JsonDecoder(columns) as decoder:
        rows = [b'{"n": 5, "gone": "x", "many": [1], "inside": {"n": 2, "both": 1}}', b"{"]
        found = decoder.decode(pa.array(rows, pa.binary()))
    assert found.errors.to_pylist() == [None, MALFORMED]
    none = {"gone": None, "several": None, "many": None, "only": None}
    assert found.data.to_pylist() == [{**none, "inside": {"both": None, "n": 2}, "n": 5}, None]


def _avro_record(name: str, **fields: Any) -> Any:
    parts = [{"name": field, "type": part} for field, part in fields.items()]
    return {"type": "record", "name": name, "fields": parts}
