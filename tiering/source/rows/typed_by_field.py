"""Typed columns of a read: those that segments have, and the same made of rows of WAL objects.

A read has each column as one field, of the topic's columns when it was planned, or of some of their
fields. A segment has them by the schema of its time: what a field's id stands for is taken from it,
in a narrower type perhaps, and what it does not have is null, as in a table. Rows of WAL objects
are typed here, by what a roll would type them with (tiering/types), so that a record reads the same
before it is rolled and afterwards.

The libraries for that are an extra of this package, and are imported when the first such row comes.

Failure cases: InvalidSettings naming the library that is missing where tasks run, or telling that a
column has become wider since the read was planned; RegistryUnavailable.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tiering.merging.typed_union import as_field, field_id
from tiering.typed_columns import TypedColumns
from tiering.types.registry import HttpRegistry, registry_settings
from tiering.types.typed_roll import libraries_of_types
from wal.clock import SystemClock
from wal.errors import InvalidSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRead:
    """What a task needs to give typed columns; goes to it in the plan, and has no secrets."""

    fields: Sequence[pa.Field] = ()
    """Wanted, with their ids."""
    encoded: bytes = b""
    """The topic's columns (tiering/types/columns.py), of sides that are wanted."""
    registry_url: str | None = None
    registry_auth: str | None = None


NO_TYPES: Final = TypedRead()


class WalTypes:
    """Types rows of WAL objects for one task."""

    def __init__(self, read: TypedRead) -> None:
        self._read = read
        self._typed: TypedColumns | None = None

    @property
    def fields(self) -> Sequence[pa.Field]:
        return self._read.fields

    def with_types(self, key: str, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Those columns of `rows`, which have all of a segment, and the typed ones behind them."""
        if not self.fields:
            return rows.select(columns)
        if not rows.num_rows:
            return with_fields(key, rows, rows, columns, self.fields)
        if self._typed is None:
            self._typed = self._opened()
        made = pa.Table.from_arrays(
            [pa.chunked_array([array]) for array in self._typed.columns(rows)],
            schema=pa.schema(self._typed.fields),
        )
        return with_fields(key, rows, made, columns, self.fields)

    def _opened(self) -> TypedColumns:
        read = self._read
        with libraries_of_types():
            from tiering.types.typed_rows import TypedRows
        settings = registry_settings(read.registry_url, read.registry_auth, os.environ)
        registry = None if settings is None else HttpRegistry(settings, SystemClock())
        return TypedRows(read.encoded, registry)


def with_fields(
    key: str, rows: pa.Table, typed: pa.Table, columns: Sequence[str], fields: Sequence[pa.Field]
) -> pa.Table:
    """Columns of `rows`, and behind them those of `typed` that have the ids of `fields`, as these.

    Raises: InvalidSettings naming the object and the column.
    """
    found = {field_id(field): field for field in typed.schema}
    table = rows.select(list(columns))
    for field in fields:
        has = found.get(field_id(field))
        if has is None:
            table = table.append_column(field, pa.nulls(rows.num_rows, field.type))
            continue
        try:
            chunks = [as_field(chunk, has, field) for chunk in typed.column(has.name).chunks]
        except (pa.ArrowException, ValueError) as error:
            raise InvalidSettings(
                f"{key}: column {field.name} is {has.type}, which does not go into {field.type}:"
                f" its schema has changed, start the query again ({error})"
            ) from error
        table = table.append_column(field, pa.chunked_array(chunks, field.type))
    return table
