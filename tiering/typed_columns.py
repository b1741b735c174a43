"""The columns that a topic's own types add to its segments, behind ours.

Who makes them gives a `TypedColumns` to the roll; this module says what such columns may be. Each
is nullable, because there are records that do not fit any type, and has a Parquet field id of
TYPED_ID_MIN or more, as each field inside it has: tables know columns by their ids.

Failure cases: ValueError naming the field that is none.
"""

import io
from collections.abc import Sequence
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tiering.segment_columns import FIELD_ID, SEGMENT_SCHEMA, TYPED_ID_MIN


class TypedColumns(Protocol):
    """The columns that a topic's own types add to its segments.

    The same rows give the same columns, or repeated rolls would not meet in one object.
    """

    @property
    def encoded(self) -> bytes:
        """What the columns are made by, for the footer; empty when there are none."""
        ...

    @property
    def fields(self) -> Sequence[pa.Field]:
        """Nullable, with Parquet field ids from TYPED_ID_MIN up; see `SegmentWriter`."""
        ...

    def columns(self, rows: pa.Table) -> Sequence[pa.Array | pa.ChunkedArray]:
        """A column for each field, with a value for each of `rows`, which are of SEGMENT_SCHEMA."""
        ...


class _NoTypedColumns:
    encoded = b""
    fields: Sequence[pa.Field] = ()

    def columns(self, rows: pa.Table) -> Sequence[pa.Array | pa.ChunkedArray]:
        return ()


NO_TYPED_COLUMNS: Final[TypedColumns] = _NoTypedColumns()
"""Of a topic without types."""


def with_typed(typed: Sequence[pa.Field]) -> pa.Schema:
    """The columns of a segment with these typed ones. Raises: ValueError."""
    for field in typed:
        if not field.nullable or field.name in SEGMENT_SCHEMA.names:
            raise ValueError(f"typed column {field.name!r} is not nullable, or has our name")
        _check_ids(field)
    return pa.schema([*SEGMENT_SCHEMA, *typed])


def _check_ids(field: pa.Field) -> None:
    number = int((field.metadata or {}).get(FIELD_ID, b"-1"))
    if number < TYPED_ID_MIN:
        raise ValueError(f"typed field {field.name!r} has field id {number}")
    kind = field.type
    # The struct around keys and items of a map is Parquet's own and has no id.
    inside = (kind.key_field, kind.item_field) if pa.types.is_map(kind) else ()
    for inner in inside or map(kind.field, range(kind.num_fields)):
        _check_ids(inner)


def leaf_paths(fields: Sequence[pa.Field]) -> Sequence[str]:
    """What Parquet calls the leaves of these columns."""
    if not fields:
        return ()
    buffer = io.BytesIO()
    pq.ParquetWriter(buffer, pa.schema(fields), store_schema=False).close()
    file = pq.ParquetFile(buffer)
    return [file.schema.column(index).path for index in range(len(file.schema))]
