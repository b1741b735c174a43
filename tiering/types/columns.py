"""Typed columns of a topic: their ids, which never change hands, and how they follow a schema.

A column is known by its id; names may move. Ids start at FIRST_ID, below are the fixed columns of a
segment. An id is given once per topic and path, from a counter that only goes up, and it keeps its
column for ever, also when the schema has no such field any more. So a file that was written a year
ago still says which of its columns is which one of today's table.

`follow` moves columns on to a new schema:

| the schema's field | the column |
|---|---|
| is new | is added behind the others |
| int → long, float → double, decimal of more digits and the same scale | gets the wider type |
| the other way round | stays as wide as it is |
| is gone | stays, and is null from there on |
| has another type | is renamed `x_v1`, or the first number that is free, and a new one is added |
| is nested | its parts follow by the same rules |

A column that was renamed is null from there on. The alternatives of a union are fields by the names
of their types: one more is a new field, and a type that becomes one of several is another type. A
list or a map whose element cannot follow in
place is renamed as a whole, for nobody can rename an element. Whether a field may be null does not
matter: every column may.

`Columns` is everything that typing the rows of a topic takes, for key and value. The coordinator
keeps it as bytes with the topic and in each plan; tasks and footers have the same bytes.

Failure cases: SchemaError when a topic would have more than COLUMNS_MAX columns; ValueError for
bytes that are none of ours.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tiering.types.shapes import Field, Kind, SchemaError, Shape

FIRST_ID: Final = 110
"""Ids from 100 on are for typed columns; the first ten are the four at the top of a segment."""

COLUMNS_MAX: Final = 10_000
"""Of a topic, those that are null for ever included: each costs every row group of every segment.
A schema that changes to and fro must come to an end."""

ENCODED_BYTES_MAX: Final = 1 << 20

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, and those inside it."""

    name: str
    id: int
    kind: Kind
    precision: int = 0
    scale: int = 0
    inside: tuple["Column", ...] = ()
    """Of a struct or union in the order of their ids; of a list `element`; of a map `key` and
    `value`."""
    was: str = ""
    """Of one that was renamed: the name of the field whose values it had."""

    @property
    def is_live(self) -> bool:
        """Whether the field of its name has its values here."""
        return not self.was


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How keys, or values, become columns."""

    format: str
    """`json` or `avro`; empty where there is no schema, or a bad one: segments have no columns."""
    is_framed: bool = False
    """Whether five bytes with the id of a registry's schema come first."""
    is_wrapped: bool = False
    """Whether the schema is of something else than an object, which is the column `value`."""
    writer: str = ""
    """The Avro schema of values that say none themselves."""
    columns: tuple[Column, ...] = ()
    registry_version: int = 0
    """The last version of a registry's subject that the columns follow; 0: none."""


UNTYPED: Final = Side(format="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The typed columns of a topic."""

    key: Side = UNTYPED
    value: Side = UNTYPED
    next_id: int = FIRST_ID


def follow(columns: Sequence[Column], shape: Shape, next_id: int) -> tuple[tuple[Column, ...], int]:
    """Returns the columns that follow the struct `shape`, and the next free id.

    Raises: SchemaError.
    """
    assert shape.kind is Kind.STRUCT, "other schemas are wrapped"
    ids = _Ids(next_id)
    followed = _follow_fields(columns, shape.fields, ids)
    if sum(1 for _ in walk(followed)) > COLUMNS_MAX:
        raise SchemaError("the topic", f"more than {COLUMNS_MAX} columns, counting former ones")
    return followed, ids.next_id


def walk(columns: Iterable[Column]) -> Iterator[Column]:
    """All columns, also those inside others."""
    for column in columns:
        yield column
        yield from walk(column.inside)


class _Ids:
    def __init__(self, next_id: int) -> None:
        self.next_id = next_id

    def take(self) -> int:
        self.next_id += 1
        return self.next_id - 1


def _follow_fields(
    columns: Sequence[Column], fields: Sequence[Field], ids: _Ids
) -> tuple[Column, ...]:
    followed = list(columns)
    place = {column.name: index for index, column in enumerate(followed) if column.is_live}
    folded = {name.casefold(): name for name in place}
    taken = {column.name.casefold() for column in columns} | {
        field.name.casefold() for field in fields
    }
    added: list[Field] = []
    for field in fields:
        # Readers take names that differ in case only for one.
        index = place.get(folded.get(field.name.casefold(), field.name))
        if index is None:
            added.append(field)
            continue
        old = followed[index]
        wider = _followed(old, field.shape, ids) if old.name == field.name else None
        if wider is None:
            followed[index] = _renamed(old, taken)
            added.append(field)
        else:
            followed[index] = wider
    for field in added:
        for index, old in enumerate(followed):
            # A former column has the name that a field wants now.
            if old.name.casefold() == field.name.casefold():
                followed[index] = _renamed(old, taken)
        followed.append(_new(field, ids))
    return tuple(followed)


def _renamed(column: Column, taken: set[str]) -> Column:
    was = column.was or column.name
    number = 1
    while f"{was}_v{number}".casefold() in taken:
        number += 1
    name = f"{was}_v{number}"
    taken.add(name.casefold())
    return replace(column, name=name, was=was)


def _new(field: Field, ids: _Ids) -> Column:
    shape = field.shape
    own = ids.take()
    return Column(
        name=field.name,
        id=own,
        kind=shape.kind,
        precision=shape.precision,
        scale=shape.scale,
        inside=tuple(_new(inner, ids) for inner in shape.fields),
    )


_WIDER: Final = {Kind.INT: Kind.LONG, Kind.FLOAT: Kind.DOUBLE}


def accepts(column: Column, shape: Shape) -> bool:
    """Whether values of a simple `shape` go into `column` as it is."""
    if column.kind is Kind.DECIMAL and shape.kind is Kind.DECIMAL:
        return column.scale == shape.scale and column.precision >= shape.precision
    return column.kind in (shape.kind, _WIDER.get(shape.kind))


def _followed(column: Column, shape: Shape, ids: _Ids) -> Column | None:
    """`column` as wide as `shape` needs it; None when that cannot be in place."""
    if column.kind is shape.kind and column.kind in (Kind.STRUCT, Kind.UNION):
        return replace(column, inside=_follow_fields(column.inside, shape.fields, ids))
    if column.kind is shape.kind and column.kind in (Kind.LIST, Kind.MAP):
        inside = []
        for inner, field in zip(column.inside, shape.fields, strict=True):
            followed = _followed(inner, field.shape, ids)
            if followed is None:
                return None
            inside.append(followed)
        return replace(column, inside=tuple(inside))
    if accepts(column, shape):
        return column
    if column.kind is Kind.DECIMAL and shape.kind is Kind.DECIMAL and column.scale == shape.scale:
        return replace(column, precision=shape.precision)
    if _WIDER.get(column.kind) is shape.kind:
        return replace(column, kind=shape.kind)
    return None


# --- as bytes ------------------------------------------------------------------------------------


def encode_columns(columns: Columns) -> bytes:
    """Returns bytes that `decode_columns` reads."""
    content = {
        "version": _VERSION,
        "next_id": columns.next_id,
        "key": _side_to_json(columns.key),
        "value": _side_to_json(columns.value),
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return zlib.compress(text.encode(), 9)


def decode_columns(data: bytes) -> Columns:
    """Raises ValueError for anything but what `encode_columns` returned."""
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(data, ENCODED_BYTES_MAX * 16)
        if not stream.eof:
            raise ValueError("columns are cut off, or too many")
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError(f"columns of version {content['version']}")
        return Columns(
            key=_side_from_json(content["key"]),
            value=_side_from_json(content["value"]),
            next_id=int(content["next_id"]),
        )
    except (zlib.error, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ValueError(f"no columns: {error!r}") from error


def _side_to_json(side: Side) -> Any:
    return [
        side.format,
        side.is_framed,
        side.is_wrapped,
        side.writer,
        [_column_to_json(column) for column in side.columns],
        side.registry_version,
    ]


def _side_from_json(content: Any) -> Side:
    form, is_framed, is_wrapped, writer, columns, registry_version = content
    return Side(
        format=str(form),
        is_framed=bool(is_framed),
        is_wrapped=bool(is_wrapped),
        writer=str(writer),
        columns=tuple(_column_from_json(column) for column in columns),
        registry_version=int(registry_version),
    )


def _column_to_json(column: Column) -> Any:
    return [
        column.name,
        column.id,
        column.kind.value,
        column.precision,
        column.scale,
        column.was,
        [_column_to_json(inner) for inner in column.inside],
    ]


def _column_from_json(content: Any) -> Column:
    name, number, kind, precision, scale, was, inside = content
    return Column(
        name=str(name),
        id=int(number),
        kind=Kind(kind),
        precision=int(precision),
        scale=int(scale),
        was=str(was),
        inside=tuple(_column_from_json(inner) for inner in inside),
    )
