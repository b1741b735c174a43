"""The shape of a schema: what columns it asks for, without names of a format and without ids.

A JSON Schema or an Avro schema is read into a `Shape` (tiering/types/json_schema.py,
tiering/types/avro/avro_schema.py), and `tiering.types.columns` gives its fields ids that stay.
Every field may be null: a schema says what a value looks like, and a topic has older records too.

A schema is a client's, so reading one is bounded: its text, its depth, its fields, and the steps
that its references may take. This module and the two readers import nothing but the standard
library, because brokers check schemas with them.

A schema that contains itself has columns for the first RECURSION_DEPTH levels, and for fewer where
these would be too many; what lies below is text of JSON.

Failure cases: SchemaError, which names the place in the schema.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

SCHEMA_BYTES_MAX: Final = 64 << 10
DEPTH_MAX: Final = 32
FIELDS_MAX: Final = 2_000
NAME_LENGTH_MAX: Final = 255
STEPS_MAX: Final = 10_000
"""Parts of a schema that are looked at, each as often as something refers to it."""

ROOT_FIELD: Final = "value"
"""The one column of a schema that is not of an object or a record."""


RECURSION_DEPTH: Final = 8
"""Levels of columns that a schema which contains itself gets at most, before it is text of JSON."""

_T = TypeVar("_T")


class SchemaError(ValueError):
    """A schema that gives no columns, and where in it the reason is."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"at {where}: {why}")


class TooLarge(SchemaError):
    """More levels, fields or parts than there may be."""


class Kind(StrEnum):
    """Types of columns. Each has one Arrow type (tiering/types/arrow_types.py)."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    """A moment, in microseconds."""
    LOCAL_TIMESTAMP = "local_timestamp"
    STRING = "string"
    BINARY = "binary"
    JSON = "json"
    """Text of JSON, for what has no type of its own."""
    STRUCT = "struct"
    UNION = "union"
    """A struct of alternatives, of which one has a value."""
    LIST = "list"
    MAP = "map"


class Field(NamedTuple):
    """A part of a struct by its name; of a list `element`, of a map `key` and `value`."""

    name: str
    shape: "Shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A type; `precision` and `scale` of a decimal, `fields` of what is nested."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    fields: tuple[Field, ...] = ()


def simple(kind: Kind) -> Shape:
    return Shape(kind=kind)


def list_of(element: Shape) -> Shape:
    return Shape(kind=Kind.LIST, fields=(Field("element", element),))


def map_of(value: Shape) -> Shape:
    """A map with strings for keys."""
    return Shape(kind=Kind.MAP, fields=(Field("key", simple(Kind.STRING)), Field("value", value)))


def struct_of(fields: Iterable[Field]) -> Shape:
    return Shape(kind=Kind.STRUCT, fields=tuple(fields))


def union_of(fields: Iterable[Field]) -> Shape:
    return Shape(kind=Kind.UNION, fields=tuple(fields))


def root_struct(shape: Shape) -> Shape:
    """`shape` itself when it is a struct, else a struct with the one field `value`."""
    return shape if shape.kind is Kind.STRUCT else struct_of([Field(ROOT_FIELD, shape)])


def read_document(text: str, where: str) -> Any:
    """The JSON of a schema. Raises SchemaError when it is none, or too long."""
    length = len(text.encode("utf-8", "surrogatepass"))
    if length > SCHEMA_BYTES_MAX:
        raise SchemaError(where, f"{length} bytes; at most {SCHEMA_BYTES_MAX} are allowed")
    try:
        return json.loads(text)
    except RecursionError:
        raise SchemaError(where, "nested too deeply") from None
    except ValueError as error:
        raise SchemaError(where, f"is no JSON: {error}") from None


def check_names(where: str, names: Iterable[str]) -> None:
    """Raises SchemaError when names cannot be those of columns side by side.

    Spark and DuckDB do not tell upper from lower case in the names of columns.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not name or len(name) > NAME_LENGTH_MAX:
            raise SchemaError(where, f"a name must have 1 to {NAME_LENGTH_MAX} characters")
        if not name.isprintable():
            raise SchemaError(where, f"name {name!r} has characters that cannot be printed")
        if name.casefold() in seen:
            other = seen[name.casefold()]
            raise SchemaError(where, f"names {other!r} and {name!r} differ in case only")
        seen[name.casefold()] = name


class Budget:
    """Counts what reading a schema takes, and refuses what is too much."""

    def __init__(self) -> None:
        self._fields = 0
        self._steps = 0

    def step(self, where: str, depth: int) -> None:
        self._steps += 1
        if depth > DEPTH_MAX:
            raise TooLarge(where, f"nested deeper than {DEPTH_MAX} levels")
        if self._steps > STEPS_MAX:
            raise TooLarge(where, f"more than {STEPS_MAX} parts, counted with references")

    def fields(self, where: str, count: int) -> None:
        self._fields += count
        if self._fields > FIELDS_MAX:
            raise TooLarge(where, f"more than {FIELDS_MAX} fields")


def as_deep_as_can_be(read: Callable[[int], _T]) -> _T:
    """Returns `read(depth)` for the greatest depth of recursion that is within the limits.

    A schema that contains itself in several places has columns to the power of its levels.
    Raises: SchemaError when the schema is too large even without.
    """
    for depth in range(RECURSION_DEPTH, 1, -1):
        try:
            return read(depth)
        except TooLarge:
            pass  # with a level less there are fewer
    return read(1)
