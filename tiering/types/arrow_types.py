"""The Arrow type of typed columns, with Parquet field ids, and arrays brought into it.

Values that do not become data have a code that says why: the constants below. A value that has
neither data nor a code is null itself.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tiering.segment_columns import FIELD_ID
from tiering.types.columns import Column
from tiering.types.shapes import Kind

NO_SCHEMA_ID: Final = 1
"""Five bytes with the id of a schema should come first, and do not."""
UNKNOWN_SCHEMA_ID: Final = 2
"""The registry has no such schema, or one that has no columns."""
MALFORMED: Final = 3
"""The bytes are not of the format, or not of the schema they were written with."""
TYPE_MISMATCH: Final = 4
"""A field has a value that does not go into its column."""

SIMPLE_TYPES: Final = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.LOCAL_TIMESTAMP: pa.timestamp("us"),
    Kind.STRING: pa.string(),
    Kind.BINARY: pa.binary(),
    Kind.JSON: pa.string(),
}
"""Of kinds that have nothing inside and no digits."""


def with_id(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({FIELD_ID: str(number).encode()})


def arrow_field(column: Column, *, nullable: bool = True) -> pa.Field:
    return with_id(pa.field(column.name, arrow_type(column), nullable=nullable), column.id)


def arrow_type(column: Column) -> pa.DataType:
    match column.kind:
        case Kind.STRUCT | Kind.UNION:
            return struct_type(column.inside)
        case Kind.LIST:
            return pa.list_(arrow_field(column.inside[0]))
        case Kind.MAP:
            key, value = column.inside
            return pa.map_(arrow_field(key, nullable=False), arrow_field(value))
        case Kind.DECIMAL:
            return pa.decimal128(column.precision, column.scale)
    return SIMPLE_TYPES[column.kind]


def struct_type(columns: Sequence[Column]) -> pa.StructType:
    return pa.struct([arrow_field(column) for column in columns])


class Listed(NamedTuple):
    """A list or a map taken apart, whatever slice of another it is."""

    offsets: pa.Array
    """int32, from 0 on."""
    is_null: pa.Array
    items: pa.Array
    """The elements, or structs of keys and values."""


def listed(array: pa.Array) -> Listed:
    if pa.types.is_map(array.type):
        # Kernels for lists do not take maps, which have the same layout.
        entry = pa.struct([array.type.key_field, array.type.item_field])
        array = array.view(pa.list_(pa.field("entries", entry, nullable=False)))
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    sums = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), sums]).cast(pa.int32())
    return Listed(offsets, array.is_null(), array.flatten())


def as_list(taken: Listed, items: pa.Array, column: Column) -> pa.Array:
    """A list of the type of `column`, of other items."""
    return pa.ListArray.from_arrays(
        taken.offsets, items, type=arrow_type(column), mask=taken.is_null
    )


def as_map(taken: Listed, keys: pa.Array, values: pa.Array, column: Column) -> pa.Array:
    return pa.MapArray.from_arrays(
        taken.offsets, keys, values, type=arrow_type(column), mask=taken.is_null
    )


class TypedValues(NamedTuple):
    """Data and codes of some values, by position; of each value one of them is null, or both."""

    data: pa.Array
    errors: pa.Array


def failed(count: int, columns: Sequence[Column], code: int) -> TypedValues:
    return TypedValues(
        pa.nulls(count, struct_type(columns)),
        pa.repeat(pa.scalar(code, pa.int8()), count),
    )


def behind_each_other(parts: Iterable[TypedValues], columns: Sequence[Column]) -> TypedValues:
    found = list(parts)
    if not found:
        return failed(0, columns, 0)
    if len(found) == 1:
        return found[0]
    return TypedValues(
        pa.concat_arrays([part.data for part in found]),
        pa.concat_arrays([part.errors for part in found]),
    )
