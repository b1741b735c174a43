"""Reads an Avro schema: the shape of its columns, and how its values lie in bytes.

| Avro | column |
|---|---|
| boolean, int, long, float, double, string, bytes | the same; bytes are binary |
| fixed, duration | binary |
| enum, uuid | string |
| decimal of up to 38 digits | decimal |
| date, timestamp-millis, timestamp-micros, local-timestamp-… | date, timestamp, local timestamp |
| time-millis, time-micros, timestamp-nanos, what is not known | int or long as it is |
| record, array, map | struct, list, map |
| union of null and one type | that type |
| null, record without fields | no column |

Times of day have no column type of their own: Spark 4.0 refuses to read a file that has one.

There are no columns for unions of several types, for records that contain themselves, and for
arrays of what takes no bytes: three bytes could ask for as many elements as memory has none for.

Failure cases: SchemaError naming the place, by field names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tiering.types.shapes import (
    Budget,
    Field,
    Kind,
    SchemaError,
    Shape,
    check_names,
    list_of,
    map_of,
    read_document,
    simple,
    struct_of,
)

PRECISION_MAX: Final = 38
FIXED_BYTES_MAX: Final = 1 << 20

_PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_LOGICAL: Final = {
    ("int", "date"): Kind.DATE,
    ("long", "timestamp-millis"): Kind.TIMESTAMP,
    ("long", "timestamp-micros"): Kind.TIMESTAMP,
    ("long", "local-timestamp-millis"): Kind.LOCAL_TIMESTAMP,
    ("long", "local-timestamp-micros"): Kind.LOCAL_TIMESTAMP,
}
_KINDS: Final = {
    "boolean": Kind.BOOLEAN,
    "int": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "bytes": Kind.BINARY,
    "string": Kind.STRING,
    "fixed": Kind.BINARY,
    "enum": Kind.STRING,
}


class AvroField(NamedTuple):
    """A field of a record; of an array `element`, of a map `value`."""

    name: str
    type: "AvroType"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroType:
    """A type of a writer's schema, with all names resolved."""

    name: str
    """`int`, `record` and the like."""
    logical: str = ""
    """Of those that become columns of another kind; empty for all others."""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    null_index: int | None = None
    """Where null stands in the union of it and null; None when it is in no such union."""
    is_lone_union: bool = False
    """Whether it is the only type of a union, which takes a byte."""

    @property
    def is_empty(self) -> bool:
        """Whether its values take no bytes, and have no column."""
        if self.null_index is not None or self.is_lone_union:
            return False
        return self.name == "null" or (
            self.name == "record" and all(field.type.is_empty for field in self.fields)
        )

    @property
    def has_column(self) -> bool:
        if self.name == "record":
            return any(field.type.has_column for field in self.fields)
        return self.name != "null"

    @property
    def shape(self) -> Shape:
        match self.name:
            case "record":
                return struct_of(
                    Field(field.name, field.type.shape)
                    for field in self.fields
                    if field.type.has_column
                )
            case "array":
                return list_of(self.fields[0].type.shape)
            case "map":
                return map_of(self.fields[0].type.shape)
        if self.logical == "decimal":
            return Shape(kind=Kind.DECIMAL, precision=self.precision, scale=self.scale)
        return simple(_LOGICAL.get((self.name, self.logical), _KINDS[self.name]))


def parse_avro_schema(text: str) -> AvroType:
    """Returns the type that `text` describes. Raises: SchemaError."""
    document = read_document(text, "the schema")
    root = _Reader().type(document, "the schema", 0, "")
    if not root.has_column:
        raise SchemaError("the schema", "has no field that could be a column")
    return root


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}
        """What a full name stands for: its type, or None while it is being read."""
        self._budget = Budget()

    def type(self, node: Any, where: str, depth: int, namespace: str) -> AvroType:
        self._budget.step(where, depth)
        if isinstance(node, list):
            return self._union(node, where, depth, namespace)
        if isinstance(node, str):
            return self._by_name(node, where, depth, namespace)
        if not isinstance(node, dict) or "type" not in node:
            raise SchemaError(where, "a type is a name, a list or an object with a type")
        name = node["type"]
        match name:
            case "record" | "error":
                return self._record(node, where, depth, namespace)
            case "enum":
                symbols = node.get("symbols")
                if (
                    not isinstance(symbols, list)
                    or not symbols
                    or not all(isinstance(symbol, str) for symbol in symbols)
                ):
                    raise SchemaError(where, "an enum has a list of symbols")
                return self._define(
                    node, where, namespace, AvroType(name="enum", symbols=tuple(symbols))
                )
            case "fixed":
                size = node.get("size")
                if not isinstance(size, int) or not 0 < size <= FIXED_BYTES_MAX:
                    raise SchemaError(where, f"a fixed has a size of 1 to {FIXED_BYTES_MAX}")
                return self._define(
                    node, where, namespace, _logical(node, AvroType(name="fixed", size=size))
                )
            case "array" | "map":
                part = "items" if name == "array" else "values"
                if part not in node:
                    raise SchemaError(where, f"{name} without {part}")
                inner = self.type(node[part], f"{where}.{part}", depth + 1, namespace)
                if inner.is_empty or not inner.has_column:
                    raise SchemaError(where, f"{name} of what takes no bytes")
                label = "element" if name == "array" else "value"
                return AvroType(name=name, fields=(AvroField(label, inner),))
        inner = self.type(name, where, depth + 1, namespace)
        return _logical(node, inner) if isinstance(name, str) and name in _PRIMITIVES else inner

    def _by_name(self, name: str, where: str, depth: int, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name=name)
        for full in (name,) if "." in name else (f"{namespace}.{name}", name):
            full = full.removeprefix(".")
            if full in self._named:
                known = self._named[full]
                if known is None:
                    raise SchemaError(where, f"{full} contains itself")
                self._count(known, where, depth)
                return known
        raise SchemaError(where, f"{name!r} is no type of Avro, and none that is defined before")

    def _count(self, known: AvroType, where: str, depth: int) -> None:
        """A type that is named again costs as much as the first time."""
        self._budget.step(where, depth)
        if known.name == "record":
            self._budget.fields(where, len(known.fields))
        for field in known.fields:
            self._count(field.type, where, depth + 1)

    def _define(
        self, node: Mapping[str, Any], where: str, namespace: str, made: AvroType
    ) -> AvroType:
        full = self._full_name(node, where, namespace)
        self._named[full] = made
        return made

    def _full_name(self, node: Mapping[str, Any], where: str, namespace: str) -> str:
        """Of a type that is defined here, for the first time."""
        name = node.get("name")
        if not isinstance(name, str) or not name:
            raise SchemaError(where, f"{node['type']} without a name")
        own = node.get("namespace", namespace)
        full = name if "." in name else f"{own}.{name}".removeprefix(".")
        if full in self._named:
            raise SchemaError(where, f"{full} is defined twice")
        return full

    def _record(self, node: Mapping[str, Any], where: str, depth: int, namespace: str) -> AvroType:
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(where, "a record has a list of fields")
        full = self._full_name(node, where, namespace)
        self._named[full] = None
        inner_namespace = full.rpartition(".")[0]
        names: list[str] = []
        for field in fields:
            name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(name, str):
                raise SchemaError(where, "a field is an object with a name")
            names.append(name)
        check_names(where, names)
        self._budget.fields(where, len(fields))
        made = AvroType(
            name="record",
            fields=tuple(
                AvroField(name, self._field_type(name, field, where, depth, inner_namespace))
                for name, field in zip(names, fields, strict=True)
            ),
        )
        self._named[full] = made
        return made

    def _field_type(
        self, name: str, field: Any, where: str, depth: int, namespace: str
    ) -> AvroType:
        place = f"{where}.{name}".removeprefix("the schema.")
        return self.type(field.get("type"), place, depth + 1, namespace)

    def _union(self, nodes: list[Any], where: str, depth: int, namespace: str) -> AvroType:
        types = [self.type(node, where, depth + 1, namespace) for node in nodes]
        if any(type_.null_index is not None or type_.is_lone_union for type_ in types):
            raise SchemaError(where, "a union directly within a union")
        nulls = [index for index, type_ in enumerate(types) if type_.name == "null"]
        if len(types) == 1 and not nulls:
            return replace(types[0], is_lone_union=True)
        if len(types) == 2 and len(nulls) == 1:
            inner = types[1 - nulls[0]]
            if not inner.has_column or inner.is_empty:
                raise SchemaError(where, "a union of null and what takes no bytes")
            return replace(inner, null_index=nulls[0])
        raise SchemaError(where, "a union of several types has no column")


def _logical(node: Mapping[str, Any], inner: AvroType) -> AvroType:
    """`inner` with its logical type, when that is valid and known; Avro says to ignore others."""
    logical = node.get("logicalType")
    if not isinstance(logical, str):
        return inner
    if logical == "decimal" and inner.name in ("bytes", "fixed"):
        precision, scale = node.get("precision"), node.get("scale", 0)
        if (
            isinstance(precision, int)
            and isinstance(scale, int)
            and 0 < precision <= PRECISION_MAX
            and 0 <= scale <= precision
            and inner.size <= 16
        ):
            return replace(inner, logical="decimal", precision=precision, scale=scale)
        return inner
    return replace(inner, logical=logical) if (inner.name, logical) in _LOGICAL else inner
