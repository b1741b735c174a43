"""Reads the typed columns of a topic back from the schema of one of its segments.

For a rebuild of the metadata, after which columns must go on with the ids that they have in
segments, and no id may be used again. A segment has all columns that its topic had when it was
planned, those that are null for ever included. What it does not tell are schemas, and so these
columns type nothing until a job has made them follow the topic's configs again.

What the columns were made by tells which strings are JSON text and which structs are alternatives.
A segment that was merged of several with different columns has not kept that: such a column is a
string or a struct from then on, and renamed when a schema asks for JSON text or for alternatives.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from tiering.segment_columns import FIELD_ID
from tiering.types.arrow_types import SIMPLE_TYPES
from tiering.types.columns import (
    FIRST_ID,
    Column,
    Columns,
    Side,
    decode_columns,
    encode_columns,
    walk,
)
from tiering.types.shapes import Kind

_KINDS = {kind: name for name, kind in reversed(SIMPLE_TYPES.items())}


def remembered_columns(schema: pa.Schema, made_by: bytes) -> tuple[int, bytes]:
    """(the greatest field id of a typed column, the columns as `encode_columns` has them).

    `made_by` is what the footer has, of `encode_columns`, or empty. (-1, b"") for a segment without
    typed columns. What has no field id, or a type that no column
    has, is left out.
    """
    made = decode_columns(made_by) if made_by else Columns()
    kinds = {
        column.id: column.kind
        for column in walk((*made.key.columns, *made.value.columns))
        if column.kind in (Kind.JSON, Kind.UNION)
    }
    key = _inside(schema, "key_data", kinds)
    value = _inside(schema, "data", kinds)
    greatest = max((column.id for column in walk((*key, *value))), default=-1)
    if greatest < FIRST_ID:
        return -1, b""
    columns = Columns(
        key=Side(format="", columns=key),
        value=Side(format="", columns=value),
        next_id=greatest + 1,
    )
    return greatest, encode_columns(columns)


def _inside(schema: pa.Schema, name: str, kinds: Mapping[int, Kind]) -> tuple[Column, ...]:
    index = schema.get_field_index(name)
    if index < 0 or not pa.types.is_struct(schema.field(index).type):
        return ()
    return _columns(schema.field(index).type, kinds)


def _columns(fields: Iterable[pa.Field], kinds: Mapping[int, Kind]) -> tuple[Column, ...]:
    found = (_column(field, kinds) for field in fields)
    return tuple(column for column in found if column is not None)


def _column(field: pa.Field, kinds: Mapping[int, Kind]) -> Column | None:
    number = int((field.metadata or {}).get(FIELD_ID, b"-1"))
    if number < FIRST_ID:
        return None
    kind = field.type
    if pa.types.is_struct(kind):
        own = Kind.UNION if kinds.get(number) is Kind.UNION else Kind.STRUCT
        return Column(name=field.name, id=number, kind=own, inside=_columns(kind, kinds))
    if pa.types.is_list(kind):
        element = _columns([kind.value_field.with_name("element")], kinds)
        if not element:
            return None
        return Column(name=field.name, id=number, kind=Kind.LIST, inside=element)
    if pa.types.is_map(kind):
        entry = _columns([kind.key_field, kind.item_field], kinds)
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
    is_json = kinds.get(number) is Kind.JSON and kind == SIMPLE_TYPES[Kind.JSON]
    return Column(name=field.name, id=number, kind=Kind.JSON if is_json else _KINDS[kind])
