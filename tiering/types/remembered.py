"""Reads the typed columns of a topic back from the schema of one of its segments.

For a rebuild of the metadata, after which columns must go on with the ids that they have in
segments, and no id may be used again. A segment has all columns that its topic had when it was
planned, those that are null for ever included. What it does not tell are schemas, and so these
columns type nothing until a job has made them follow the topic's configs again.

A column of JSON text comes back as one of strings; when a schema asks for JSON text it is renamed
like one of another type.
"""

from collections.abc import Iterable

import pyarrow as pa

from tiering.segment_columns import FIELD_ID
from tiering.types.arrow_types import SIMPLE_TYPES
from tiering.types.columns import FIRST_ID, Column, Columns, Side, encode_columns, walk
from tiering.types.shapes import Kind

_KINDS = {kind: name for name, kind in reversed(SIMPLE_TYPES.items())}


def remembered_columns(schema: pa.Schema) -> tuple[int, bytes]:
    """(the greatest field id of a typed column, the columns as `encode_columns` has them).

    (-1, b"") for a segment without typed columns. What has no field id, or a type that no column
    has, is left out.
    """
    key = _inside(schema, "key_data")
    value = _inside(schema, "data")
    greatest = max((column.id for column in walk((*key, *value))), default=-1)
    if greatest < FIRST_ID:
        return -1, b""
    columns = Columns(
        key=Side(format="", columns=key),
        value=Side(format="", columns=value),
        next_id=greatest + 1,
    )
    return greatest, encode_columns(columns)


def _inside(schema: pa.Schema, name: str) -> tuple[Column, ...]:
    index = schema.get_field_index(name)
    if index < 0 or not pa.types.is_struct(schema.field(index).type):
        return ()
    return _columns(schema.field(index).type)


def _columns(fields: Iterable[pa.Field]) -> tuple[Column, ...]:
    found = (_column(field) for field in fields)
    return tuple(column for column in found if column is not None)


def _column(field: pa.Field) -> Column | None:
    number = int((field.metadata or {}).get(FIELD_ID, b"-1"))
    if number < FIRST_ID:
        return None
    kind = field.type
    if pa.types.is_struct(kind):
        return Column(name=field.name, id=number, kind=Kind.STRUCT, inside=_columns(kind))
    if pa.types.is_list(kind):
        element = _columns([kind.value_field.with_name("element")])
        if not element:
            return None
        return Column(name=field.name, id=number, kind=Kind.LIST, inside=element)
    if pa.types.is_map(kind):
        entry = _columns([kind.key_field, kind.item_field])
        if len(entry) < 2:
            return None
        return Column(name=field.name, id=number, kind=Kind.MAP, inside=entry)
    if pa.types.is_decimal(kind):
        return Column(
            name=field.name,
            id=number,
            kind=Kind.DECIMAL,
            precision=kind.precision,
            scale=kind.scale,
        )
    if kind not in _KINDS:
        return None
    return Column(name=field.name, id=number, kind=_KINDS[kind])
