"""What schemas are read as, and which are refused, naming the place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.types.avro.avro_schema import parse_avro_schema
from tiering.types.json_schema import parse_json_schema
from tiering.types.schema_configs import AVRO, JSON, check_schema_configs, parse_schema
from tiering.types.shapes import (
    DEPTH_MAX,
    FIELDS_MAX,
    SCHEMA_BYTES_MAX,
    Field,
    Kind,
    SchemaError,
    Shape,
    list_of,
    map_of,
    simple,
    struct_of,
    union_of,
)
from wal.errors import InvalidConfig


def _json(schema: Any) -> Shape:
    return parse_json_schema(json.dumps(schema))


def _nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "shape"),
    [
        ({"type": "integer"}, simple(Kind.LONG)),
        ({"type": "integer", "format": "int32"}, simple(Kind.INT)),
        ({"type": "integer", "format": "uint64"}, Shape(kind=Kind.DECIMAL, precision=20)),
        ({"type": ["number", "integer"]}, simple(Kind.DOUBLE)),
        ({"type": "number", "format": "float"}, simple(Kind.FLOAT)),
        ({"type": ["null", "boolean"]}, simple(Kind.BOOLEAN)),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, simple(Kind.STRING)),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, simple(Kind.JSON)),
        ({"type": ["integer", "string"]}, simple(Kind.JSON)),
        ({"enum": ["a", "b"]}, simple(Kind.STRING)),
        ({"type": "string", "format": "date"}, simple(Kind.DATE)),
        ({"type": "string", "format": "uuid"}, simple(Kind.STRING)),
        ({"type": "array", "items": {"type": "string"}}, list_of(simple(Kind.STRING))),
        ({"type": "array"}, simple(Kind.JSON)),
        (
            {"additionalProperties": {"type": "number"}, "type": "object"},
            map_of(simple(Kind.DOUBLE)),
        ),
        ({"type": "object"}, simple(Kind.JSON)),
        (True, simple(Kind.JSON)),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, simple(Kind.STRING)),
    ],
)
def test_types_of_json_schema(schema: Any, shape: Shape) -> None:
    assert _json(schema) == shape


def test_all_of_has_the_fields_of_all() -> None:
    schema = {
        "allOf": [
            {"$ref": "#/definitions/base"},
            {"properties": {"b": {"type": "string"}}},
        ],
        "definitions": {"base": {"properties": {"a": {"type": "integer"}}}},
    }
    assert [field.name for field in _json(schema).fields] == ["a", "b"]


def test_a_schema_that_contains_itself_ends_as_text() -> None:
    shape = _json(
        {"type": "object", "properties": {"v": {"type": "string"}, "next": {"$ref": "#"}}}
    )
    levels = 0
    while shape.kind is Kind.STRUCT:
        shape = shape.fields[1].shape
        levels += 1
    assert shape.kind is Kind.JSON
    assert levels == 8


@pytest.mark.parametrize(
    ("schema", "where", "why"),
    [
        ({"type": "strng"}, "#/type", "no type of JSON"),
        (
            {"type": "object", "properties": {"a/b": {"type": 7}}},
            "#/properties/a~1b/type",
            "no type",
        ),
        ({"$ref": "https://example.org/x"}, "#", "leads out"),
        ({"$ref": "other.json#/a"}, "#", "leads out"),
        ({"$ref": "#/nowhere"}, "#", "leads nowhere"),
        ({"$ref": "#"}, "#", "leads to itself"),
        ({"properties": {"a": {}, "A": {}}}, "#/properties", "case only"),
        ({"properties": {"": {}}}, "#/properties", "characters"),
        (
            {"properties": {f"f{n}": {} for n in range(FIELDS_MAX + 1)}},
            "#/properties",
            "2000 fields",
        ),
        ({"oneOf": []}, "#/oneOf", "list of schemas"),
        (7, "#", "a schema is"),
        (_nested(DEPTH_MAX + 1), "#/items", "deeper"),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/0"}},
                "$defs": {
                    str(n): {"properties": {x: {"$ref": f"#/$defs/{n + 1}"} for x in "abcd"}}
                    for n in range(6)
                }
                | {"6": {}},
            },
            "#/$defs",
            "2000 fields",
        ),
    ],
)
def test_a_bad_json_schema_is_refused_at_its_place(schema: Any, where: str, why: str) -> None:
    with pytest.raises(SchemaError) as error:
        _json(schema)
    assert f"at {where}" in str(error.value)
    assert why in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 60_000, "1" * 60_000, '"' + "x" * SCHEMA_BYTES_MAX]
)
@pytest.mark.parametrize("form", [JSON, AVRO])
def test_text_that_is_no_schema_is_refused(form: str, text: str) -> None:
    with pytest.raises(SchemaError):
        parse_schema(form, text)


def _record(*fields: Any, name: str = "R") -> Any:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{n}", "type": field} for n, field in enumerate(fields)],
    }


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "int", "logicalType": "time-millis"}, Kind.INT),
        ({"type": "long", "logicalType": "timestamp-nanos"}, Kind.LONG),
        ({"type": "string", "logicalType": "uuid"}, Kind.STRING),
        ({"type": "string", "logicalType": "date"}, Kind.STRING),
        ({"type": "int", "logicalType": "date"}, Kind.DATE),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, Kind.LOCAL_TIMESTAMP),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, Kind.BINARY),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 4}, Kind.BINARY),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9}, Kind.DECIMAL),
        ({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}, Kind.BINARY),
        ({"type": {"type": "string"}}, Kind.STRING),
        (["string", "null"], Kind.STRING),
    ],
)
def test_types_of_avro(schema: Any, kind: Kind) -> None:
    assert parse_avro_schema(json.dumps(schema)).shape.kind is kind


def _avro(schema: Any) -> Shape:
    return parse_avro_schema(json.dumps(schema)).shape


BOOLEAN, INT, STRING = simple(Kind.BOOLEAN), simple(Kind.INT), simple(Kind.STRING)


@pytest.mark.parametrize(
    ("schema", "shape"),
    [
        (["int", "null", "string"], union_of([Field("int", INT), Field("string", STRING)])),
        (
            [{"type": "array", "items": "int"}, {"type": "map", "values": "string"}],
            union_of([Field("array", list_of(INT)), Field("map", map_of(STRING))]),
        ),
        (
            [_record("int", name="a.R"), _record("string", name="b.R"), _record(name="c.S")],
            union_of(
                [
                    Field("a_R", struct_of([Field("f0", INT)])),
                    Field("b_R", struct_of([Field("f0", STRING)])),
                    Field("S", BOOLEAN),
                ]
            ),
        ),
        (["null", _record()], BOOLEAN),
        ({"type": "array", "items": "null"}, simple(Kind.LONG)),
        ({"type": "array", "items": _record("null")}, simple(Kind.LONG)),
        ({"type": "array", "items": ["null", "int"]}, list_of(INT)),
        ({"type": "map", "values": "null"}, list_of(STRING)),
    ],
)
def test_several_types_and_what_takes_no_bytes_have_columns(schema: Any, shape: Shape) -> None:
    assert _avro(schema) == shape


def _levels(shape: Shape) -> int:
    """Of structs within each other, by their last fields, above text."""
    levels = 0
    while shape.kind is Kind.STRUCT:
        shape = shape.fields[-1].shape
        levels += 1
    assert shape.kind is Kind.JSON
    return levels


def test_a_record_that_contains_itself_ends_as_text() -> None:
    assert _levels(_avro(_record("int", ["null", "R"]))) == 8
    assert _levels(_avro(_record(["null", _record(["null", "R"], name="S")]))) == 8
    # One that is named again behind it is whole, and ends where it is.
    twice = _record(["null", _record(["null", "S"], name="S")], ["null", "S"])
    assert _levels(_avro(twice)) == 8


def test_a_schema_that_contains_itself_often_ends_earlier() -> None:
    tree = _avro(_record(*[["null", "R"]] * 5))
    assert _levels(tree) == 4  # 5⁵ columns would be too many
    properties = {name: {"$ref": "#"} for name in "abcde"}
    assert _levels(_json({"type": "object", "properties": properties})) == 4
    wide = _avro(_record(*["int"] * 1_200, ["null", "R"]))
    assert _levels(wide) == 1


def test_names_of_avro_are_found_in_their_namespace() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = _record(inner, "E", "org.x.E", {"type": "map", "values": "E"}, name="org.x.R")
    shape = parse_avro_schema(json.dumps(schema)).shape
    string = simple(Kind.STRING)
    assert [field.shape for field in shape.fields] == [string, string, string, map_of(string)]


@pytest.mark.parametrize(
    ("schema", "where", "why"),
    [
        (_record("strng"), "f0", "no type of Avro"),
        (_record("R"), "R", "without an end"),
        (_record(["R"]), "R", "without an end"),
        (_record(_record("int", ["R", "S"], name="S")), "R", "without an end"),
        (_record(["int", "string", "int"]), "f0", "names 'int' and 'int'"),
        (_record(["null", "int", "null"]), "f0", "null twice"),
        (_record([]), "f0", "no types"),
        (_record({"type": "array"}), "f0", "without items"),
        (_record(["null", ["int"]]), "f0", "within a union"),
        (_record({"type": "fixed", "name": "F", "size": 0}), "f0", "size"),
        (_record({"type": "enum", "name": "E"}), "f0", "symbols"),
        ({"type": "record", "fields": []}, "the schema", "without a name"),
        (_record(_record("int", name="S"), _record("int", name="S")), "f1", "defined twice"),
        (_record(), "the schema", "no field"),
        ("null", "the schema", "no field"),
        (_record(_record(*["int"] * 900, name="S"), "S", "S"), "f2", "2000 fields"),
        (_nested(DEPTH_MAX + 1), "items", "deeper"),
        ({"name": "x"}, "the schema", "a type is"),
    ],
)
def test_a_bad_avro_schema_is_refused_at_its_place(schema: Any, where: str, why: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse_avro_schema(json.dumps(schema))
    assert where in str(error.value)
    assert why in str(error.value)


_words = st.sampled_from(
    [
        *("type", "properties", "items", "allOf", "anyOf", "$ref", "enum", "const", "format"),
        *("record", "fields", "name", "array", "map", "union", "enum", "symbols", "size", "null"),
        *("string", "object", "#", "#/properties", "additionalProperties", "int", "values"),
    ]
)
_anything = st.recursive(
    st.one_of(_words, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(_words, inner, max_size=4)
    ),
)


@given(st.sampled_from([JSON, AVRO]), _anything)
def test_whatever_a_schema_says_is_a_shape_or_a_schema_error(form: str, document: Any) -> None:
    try:
        parsed = parse_schema(form, json.dumps(document))
    except SchemaError:
        return
    assert parsed.shape.kind is Kind.STRUCT


def test_a_topic_that_is_typed_inline_needs_a_schema() -> None:
    check_schema_configs({"value.schema.format": "none", "value.schema": "{"})
    check_schema_configs({"value.schema.format": "avro", "value.schema.source": "registry:id"})
    with pytest.raises(InvalidConfig, match=r"Missing configuration key\.schema"):
        check_schema_configs({"key.schema.format": "json"})
    with pytest.raises(InvalidConfig, match=r"configuration value.schema: at #/type: 'x'"):
        check_schema_configs({"value.schema.format": "json", "value.schema": '{"type":"x"}'})


def test_structs_are_not_wrapped_and_others_are() -> None:
    assert parse_schema(JSON, '{"properties":{"a":{}}}') == (
        struct_of([("a", simple(Kind.JSON))]),  # type: ignore[list-item]
        False,
        None,
    )
    assert parse_schema(AVRO, '"int"').is_wrapped
