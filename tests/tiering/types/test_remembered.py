"""Columns read back from a segment: the same ids, and none of them a second time."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.schema_samples import AVRO_SCHEMAS, JSON_SCHEMAS
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
from tiering.types.shapes import Kind
from tiering.types.typed_rows import TypedRows


def _schema(columns: Columns) -> pa.Schema:
    return pa.schema([*SEGMENT_SCHEMA, *TypedRows(encode_columns(columns), None).fields])


@examples(0.5)
@given(st.lists(JSON_SCHEMAS, min_size=1, max_size=3), AVRO_SCHEMAS)
def test_columns_go_on_with_their_ids(values: list[Any], key: Any) -> None:
    next_id = FIRST_ID
    found: Any = ()
    for schema in values:
        found, next_id = follow(found, parse_schema(JSON, json.dumps(schema)).shape, next_id)
    of_key, next_id = follow((), parse_schema(AVRO, json.dumps(key)).shape, next_id)
    columns = Columns(
        key=Side(format=AVRO, columns=of_key),
        value=Side(format=JSON, columns=found),
        next_id=next_id,
    )
    greatest, encoded = remembered_columns(_schema(columns))
    again = decode_columns(encoded)
    assert greatest == max(column.id for column in walk((*found, *of_key)))
    assert again.next_id == greatest + 1 <= next_id
    before = [(one.id, one.name) for one in walk((*columns.key.columns, *columns.value.columns))]
    after = [(one.id, one.name) for one in walk((*again.key.columns, *again.value.columns))]
    assert before == after
    # Nothing that is not text of JSON is given another column for the schema that it came of.
    followed, _ = follow(
        again.value.columns, parse_schema(JSON, json.dumps(values[-1])).shape, again.next_id
    )
    ids = {one.id for one in walk(found)}
    new = [one for one in walk(followed) if one.id not in ids]
    has_text = any(one.kind is Kind.JSON for one in walk(found))
    assert has_text or new == []


def test_a_segment_without_typed_columns_remembers_nothing() -> None:
    assert remembered_columns(SEGMENT_SCHEMA) == (-1, b"")
