"""Brings the typed columns of several segments under one schema, by field ids.

A topic's types evolve, so neighbouring segments may have different typed columns. What an id stands
for only grows: fields are added, numbers become wider, and whatever else changes gets a new id. So
of each column the newest segment that has it knows all its fields, and the older ones have some of
them in narrower types; a field that they lack is null there.

Failure cases: CorruptSegment naming the key of a segment whose column does not become that.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiering.segment_columns import FIELD_ID, SEGMENT_SCHEMA
from tiering.segment_format import SegmentFooter
from wal.errors import CorruptSegment


def union_of_typed(schemas: Sequence[pa.Schema]) -> Sequence[pa.Field]:
    """The typed columns of all these segments, given by ascending offsets, each in its newest form.

    In the order in which the newest segment has them, older ones behind.
    """
    found: dict[bytes, pa.Field] = {}
    for schema in reversed(schemas):
        for field in list(schema)[len(SEGMENT_SCHEMA) :]:
            found.setdefault(field_id(field), field)
    names: set[str] = set()
    fields = []
    for number, field in found.items():
        # Tables find columns by id. One whose name another has taken over keeps its values.
        name = f"{field.name}_{number.decode()}" if field.name in names else field.name
        fields.append(field.with_name(name))
        names.add(name)
    return fields


def made_by(footers: Sequence[SegmentFooter]) -> bytes:
    """What the typed columns of all these segments were made by, if it is the same for all."""
    found = {footer.typed_columns for footer in footers if footer.counts.records}
    return found.pop() if len(found) == 1 else b""


def typed_columns_of(
    key: str, rows: pa.Table, fields: Sequence[pa.Field]
) -> Sequence[pa.ChunkedArray]:
    """The typed columns of the rows of one segment as those of `fields`. Raises: CorruptSegment."""
    typed = {field_id(field): field.name for field in list(rows.schema)[len(SEGMENT_SCHEMA) :]}
    columns = []
    for field in fields:
        name = typed.get(field_id(field))
        if name is None:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
            continue
        column = rows.column(name)
        if column.type != field.type:
            try:
                chunks = [
                    as_field(chunk, rows.schema.field(name), field) for chunk in column.chunks
                ]
                column = pa.chunked_array(chunks, field.type)
            except (pa.ArrowException, ValueError) as error:
                raise CorruptSegment(f"{key}: column {name} does not fit: {error}") from error
        columns.append(column)
    return columns


def as_field(values: pa.Array, old: pa.Field, new: pa.Field) -> pa.Array:
    """`values` in the type of `new`, which has the id of `old`."""
    if values.type == new.type:
        return values
    if pa.types.is_struct(new.type) and pa.types.is_struct(values.type):
        known = {field_id(old.type.field(at)): at for at in range(old.type.num_fields)}
        flat = values.flatten()
        children = []
        for field in new.type:
            at = known.get(field_id(field))
            children.append(
                pa.nulls(len(values), field.type)
                if at is None
                else as_field(flat[at], old.type.field(at), field)
            )
        return pa.StructArray.from_arrays(
            children, fields=list(new.type), mask=pc.is_null(values) if values.null_count else None
        )
    if pa.types.is_list(new.type) and pa.types.is_list(values.type):
        lists, mask = _from_the_start(values)
        inner = as_field(lists.values, old.type.value_field, new.type.value_field)
        return pa.ListArray.from_arrays(lists.offsets, inner, type=new.type, mask=mask)
    if pa.types.is_map(new.type) and pa.types.is_map(values.type):
        maps, mask = _from_the_start(values)
        keys = as_field(maps.keys, old.type.key_field, new.type.key_field)
        items = as_field(maps.items, old.type.item_field, new.type.item_field)
        return pa.MapArray.from_arrays(maps.offsets, keys, items, type=new.type, mask=mask)
    return values.cast(new.type)


def _from_the_start(values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """The same lists whose offsets begin with 0, as no slice's do; and which of them are null."""
    copied = values.take(pa.array(np.arange(len(values))))
    return copied, pc.is_null(copied) if copied.null_count else None


def field_id(field: pa.Field) -> bytes:
    number: bytes = (field.metadata or {}).get(FIELD_ID, b"")
    return number
