"""Columns read back from a segment: the same ids, and none of them a second time."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.samples.schema_samples import AVRO_RECURSIVE, AVRO_SCHEMAS, JSON_SCHEMAS
from tiering.segment_columns import SEGMENT_SCHEMA
from tiering.types.columns import (
    FIRST_ID,
    Columns,
    Side,
    decode_columns,
    encode_columns,
    follow,
    walk,
)
from tiering.types.remembered import remembered_columns
from tiering.types.schema_configs import AVRO, JSON, parse_schema
from tiering.types.typed_rows import TypedRows


def _schema(columns: Columns) -> pa.Schema:
    return pa.schema([*SEGMENT_SCHEMA, *TypedRows(encode_columns(columns), None).fields])


@examples(0.5)
@given(st.lists(JSON_SCHEMAS, min_size=1, max_size=3), AVRO_SCHEMAS | AVRO_RECURSIVE)
def test_columns_go_on_with_their_ids(values: list[Any], key: Any) -> None:
    next_id = FIRST_ID
    found: Any = ()
    for schema in values:
        found, next_id = follow(found, parse_schema(JSON, json.dumps(schema)).shape, next_id)
    key_shape = parse_schema(AVRO, json.dumps(key)).shape
    of_key, next_id = follow((), key_shape, next_id)
    columns = Columns(
        key=Side(format=AVRO, columns=of_key),
        value=Side(format=JSON, columns=found),
        next_id=next_id,
    )
    greatest, encoded = remembered_columns(_schema(columns), encode_columns(columns))
    again = decode_columns(encoded)
    assert greatest == max(column.id for column in walk((*found, *of_key)))
    assert again.next_id == greatest + 1 <= next_id
    before = [(one.id, one.name) for one in walk((*columns.key.columns, *columns.value.columns))]
    after = [(one.id, one.name) for one in walk((*again.key.columns, *again.value.columns))]
    assert before == after
    # Nothing is given another column for the schema that it came of.
    value_shape = parse_schema(JSON, json.dumps(values[-1])).shape
    for side, known, shape in ((again.value, found, value_shape), (again.key, of_key, key_shape)):
        followed, _ = follow(side.columns, shape, again.next_id)
        assert {one.id for one in walk(followed)} == {one.id for one in walk(known)}


def test_a_segment_of_several_forgets_what_is_json_and_what_are_alternatives() -> None:
    schema = {"type": "array", "items": ["int", "string"]}
    shape = parse_schema(AVRO, json.dumps(schema)).shape
    columns, next_id = follow((), shape, FIRST_ID)
    encoded = Columns(value=Side(format=AVRO, columns=columns), next_id=next_id)
    _, remembered = remembered_columns(_schema(encoded), b"")
    again = decode_columns(remembered)
    followed, _ = follow(again.value.columns, shape, again.next_id)
    assert [(one.name, one.was) for one in followed] == [("value_v1", "value"), ("value", "")]


def test_a_segment_without_typed_columns_remembers_nothing() -> None:
    assert remembered_columns(SEGMENT_SCHEMA, b"") == (-1, b"")
