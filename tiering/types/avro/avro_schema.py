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
| union of several types | struct of them, by the names of the types; one of them has a value |
| record that contains itself | struct, down to RECURSION_DEPTH levels, then JSON text |
| null, record without columns | no column |

What has no column has one where it tells something all the same: beside null, or as one of several
types, a boolean that is true; as elements of an array their number, a long; as values of a map the
list of its keys.

Times of day have no column type of their own: Spark 4.0 refuses to read a file that has one.

Two passes. The first reads the schema as it stands, and a type that is named within itself stays a
name (`named`). The second puts the types in the place of such names, level by level, until the last
names are those whose values become text; how these are read is in `definitions`.

Failure cases: SchemaError naming the place, by field names.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from typing import Any, Final, NamedTuple

from tiering.types.shapes import (
    Budget,
    Field,
    Kind,
    SchemaError,
    Shape,
    as_deep_as_can_be,
    check_names,
    list_of,
    map_of,
    read_document,
    simple,
    struct_of,
    union_of,
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
    "named": Kind.JSON,
}


class AvroField(NamedTuple):
    """A field of a record; of an array `element`, of a map `value`, of a union the type's name."""

    name: str
    type: "AvroType"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroType:
    """A type of a writer's schema."""

    name: str
    """`int`, `record` and the like; `named`: what `full_name` is defined as, as text."""
    logical: str = ""
    """Of those that become columns of another kind; empty for all others."""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    """Of a union the alternatives in their order, null included."""
    full_name: str = ""
    """Of a record, an enum, a fixed, and what is named."""
    definitions: Mapping[str, "AvroType"] = field_of(
        default_factory=dict, repr=False, compare=False
    )
    """Where to find what is named."""
    null_index: int | None = None
    """Where null stands in the union of it and null; None when it is in no such union."""
    is_lone_union: bool = False
    """Whether it is the only type of a union, which takes a byte."""

    @property
    def is_empty(self) -> bool:
        """Whether its values take no bytes."""
        if self.null_index is not None or self.is_lone_union:
            return False
        return self.name == "null" or (
            self.name == "record" and all(field.type.is_empty for field in self.fields)
        )

    @property
    def is_unit(self) -> bool:
        """Whether there is nothing that a value of the type could tell, but that it is there."""
        return self.name == "null" or (
            self.name == "record" and not any(field.type.has_column for field in self.fields)
        )

    @property
    def has_column(self) -> bool:
        return self.null_index is not None or not self.is_unit

    @property
    def is_plain(self) -> bool:
        """Whether readers of Avro that know no unions of several types can read it."""
        if self.name in ("union", "named") or (self.null_index is not None and self.is_unit):
            return False
        if self.name in ("array", "map") and not self.fields[0].type.has_column:
            return False
        return all(field.type.is_plain for field in self.fields)

    @property
    def shape(self) -> Shape:
        """Of the column that it has, or would have as one of several types."""
        if self.is_unit:
            return simple(Kind.BOOLEAN)
        match self.name:
            case "record":
                return struct_of(
                    Field(field.name, field.type.shape)
                    for field in self.fields
                    if field.type.has_column
                )
            case "union":
                return union_of(
                    Field(field.name, field.type.shape)
                    for field in self.fields
                    if field.type.name != "null"
                )
            case "array":
                inner = self.fields[0].type
                return list_of(inner.shape) if inner.has_column else simple(Kind.LONG)
            case "map":
                inner = self.fields[0].type
                return map_of(inner.shape) if inner.has_column else list_of(simple(Kind.STRING))
        if self.logical == "decimal":
            return Shape(kind=Kind.DECIMAL, precision=self.precision, scale=self.scale)
        return simple(_LOGICAL.get((self.name, self.logical), _KINDS[self.name]))


def parse_avro_schema(text: str) -> AvroType:
    """Returns the type that `text` describes. Raises: SchemaError."""
    document = read_document(text, "the schema")
    reader = _Reader()
    root = reader.type(document, "the schema", 0, "")
    reader.check_ends()
    if reader.has_names:
        root = as_deep_as_can_be(lambda depth: _Unfolding(depth).type(root, "the schema", 0))
    if not root.has_column:
        raise SchemaError("the schema", "has no field that could be a column")
    return root


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        """What a full name stands for. Of a record that is being read: that name."""
        self._budget = Budget()
        self.has_names = False
        """Whether there are types that contain themselves."""

    def check_ends(self) -> None:
        """Raises SchemaError when there is a record whose every value contains another of it."""
        ending: set[str] = set()
        while True:
            more = {
                name
                for name, made in self._named.items()
                if name not in ending and _ends(made, ending)
            }
            if not more:
                break
            ending |= more
        for name in (name for name in self._named if name not in ending):
            raise SchemaError(name, "contains itself in every value, without an end")

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
                self.has_names |= known.name == "named"
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
        self._named[full] = replace(made, full_name=full)
        return self._named[full]

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
        self._named[full] = AvroType(name="named", full_name=full, definitions=self._named)
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
            full_name=full,
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
        if any(
            type_.name == "union" or type_.null_index is not None or type_.is_lone_union
            for type_ in types
        ):
            raise SchemaError(where, "a union directly within a union")
        nulls = [index for index, type_ in enumerate(types) if type_.name == "null"]
        if len(types) == 1:
            return replace(types[0], is_lone_union=True)
        if len(types) == 2 and len(nulls) == 1:
            return replace(types[1 - nulls[0]], null_index=nulls[0])
        if len(types) < 2 or len(nulls) > 1:
            raise SchemaError(where, "a union of no types, or of null twice")
        names = _names_of_alternatives(types)
        check_names(where, names)
        self._budget.fields(where, len(names))
        return AvroType(name="union", fields=tuple(map(AvroField, names, types)))


def _names_of_alternatives(types: Sequence[AvroType]) -> Sequence[str]:
    """Their types' names; where two records, say, have the same one, with their namespaces.

    An array is `array`, a long of whatever logical type `long`: of these a union has one each.
    """
    short = [type_.full_name.rpartition(".")[2] or type_.name for type_ in types]
    count = Counter(name.casefold() for name in short)
    return [
        type_.full_name.replace(".", "_")
        if type_.full_name and count[name.casefold()] > 1
        else name
        for name, type_ in zip(short, types, strict=True)
    ]


def _ends(type_: AvroType, ending: Collection[str]) -> bool:
    """Whether there are values of the type, when there are of the records in `ending`."""
    if type_.null_index is not None:
        return True
    match type_.name:
        case "record":
            return all(_ends(field.type, ending) for field in type_.fields)
        case "union":
            return any(_ends(field.type, ending) for field in type_.fields)
        case "named":
            return type_.full_name in ending
    return True


class _Unfolding:
    """Puts types in the place of their names, above the level `recursion_depth`."""

    def __init__(self, recursion_depth: int) -> None:
        self._recursion_depth = recursion_depth
        self._budget = Budget()

    def type(self, type_: AvroType, where: str, level: int) -> AvroType:
        if type_.name == "named":
            if level >= self._recursion_depth:
                return type_
            type_ = replace(
                type_.definitions[type_.full_name],
                null_index=type_.null_index,
                is_lone_union=type_.is_lone_union,
            )
        self._budget.step(where, level)
        if type_.name in ("record", "union"):
            self._budget.fields(where, len(type_.fields))
        return replace(
            type_,
            fields=tuple(
                AvroField(name, self.type(inner, f"{where}.{name}", level + 1))
                for name, inner in type_.fields
            ),
        )


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
