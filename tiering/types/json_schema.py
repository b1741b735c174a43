"""Reads a JSON Schema into a shape.

Only types are taken from a schema; `minimum`, `pattern`, `required` and the like say which records
are valid, and a column takes the others too. So a topic's columns do not depend on the draft.

| schema | column |
|---|---|
| `boolean`, `number`, `string` | boolean, double, string |
| `integer` | long; int with format `int32`; decimal(20, 0) with a maximum beyond a long's |
| `number`, format `float` | float |
| `string`, format `date`, `date-time` | date, timestamp |
| `object` with `properties` | struct |
| `object` with `additionalProperties` of one schema | map |
| `array` with `items` of one schema | list |
| type or alternative `null` beside one other | that other |
| several alternatives, anything else | JSON text |

`$ref` leads into the same document only. A schema that contains itself goes on down to
RECURSION_DEPTH levels at most, and is JSON text from there on.

Alternatives of several types are text, unlike those of Avro, which a value names: here one would
have to try which of them a value is of, and several may be.

Failure cases: SchemaError for text that is no JSON, what is no schema, what leads elsewhere, and
what is larger than tiering/types/shapes.py allows.
"""

from collections.abc import Mapping
from typing import Any, Final

from tiering.types.shapes import (
    RECURSION_DEPTH,
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
)

_LONG_MAX: Final = 2**63 - 1
_UNSIGNED_LONG: Final = Shape(kind=Kind.DECIMAL, precision=20, scale=0)
_TEXT: Final = simple(Kind.JSON)
_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "object", "array"})
_STRING_FORMATS: Final = {"date": Kind.DATE, "date-time": Kind.TIMESTAMP}


def parse_json_schema(text: str) -> Shape:
    """Returns the shape of the values that `text` describes. Raises: SchemaError."""
    document = read_document(text, "#")
    return as_deep_as_can_be(lambda depth: _Reader(document, depth).shape(document, "#", 0, ()))


class _Reader:
    def __init__(self, document: Any, recursion_depth: int) -> None:
        self._document = document
        self._recursion_depth = recursion_depth
        self._budget = Budget()

    def shape(self, node: Any, where: str, depth: int, path: tuple[str, ...]) -> Shape:
        """The shape of a part of the document; `path` has the references that led to it."""
        self._budget.step(where, depth)
        if isinstance(node, bool):
            return _TEXT
        if not isinstance(node, dict):
            raise SchemaError(where, "a schema is an object, true or false")
        if "$ref" in node:
            return self._referred(node["$ref"], where, depth, path)
        for word in ("oneOf", "anyOf"):
            if word in node:
                return self._alternatives(node[word], f"{where}/{word}", depth, path)
        if "allOf" in node:
            return self._all_of(node, where, depth, path)
        match _type_of(node, where):
            case "boolean":
                return simple(Kind.BOOLEAN)
            case "integer":
                return _integer(node)
            case "number":
                return simple(Kind.FLOAT if node.get("format") == "float" else Kind.DOUBLE)
            case "string":
                form = node.get("format")
                known = _STRING_FORMATS.get(form) if isinstance(form, str) else None
                return simple(known or Kind.STRING)
            case "object":
                return self._object(node, where, depth, path)
            case "array":
                if not isinstance(node.get("items"), dict) or "prefixItems" in node:
                    return _TEXT
                return list_of(self.shape(node["items"], f"{where}/items", depth + 1, path))
        return _TEXT

    def _object(
        self, node: Mapping[str, Any], where: str, depth: int, path: tuple[str, ...]
    ) -> Shape:
        properties = node.get("properties", {})
        if not isinstance(properties, dict):
            raise SchemaError(f"{where}/properties", "must be an object")
        if properties:
            inside = f"{where}/properties"
            check_names(inside, properties)
            self._budget.fields(inside, len(properties))
            return struct_of(
                Field(name, self.shape(part, f"{inside}/{_escaped(name)}", depth + 1, path))
                for name, part in properties.items()
            )
        others = node.get("additionalProperties")
        if isinstance(others, dict) and others and "patternProperties" not in node:
            return map_of(self.shape(others, f"{where}/additionalProperties", depth + 1, path))
        return _TEXT

    def _alternatives(self, nodes: Any, where: str, depth: int, path: tuple[str, ...]) -> Shape:
        if not isinstance(nodes, list) or not nodes:
            raise SchemaError(where, "must be a list of schemas")
        shapes = [
            self.shape(node, f"{where}/{index}", depth + 1, path)
            for index, node in enumerate(nodes)
            if not (isinstance(node, dict) and node.get("type") == "null")
        ]
        return shapes[0] if shapes and all(shape == shapes[0] for shape in shapes) else _TEXT

    def _all_of(
        self, node: Mapping[str, Any], where: str, depth: int, path: tuple[str, ...]
    ) -> Shape:
        """Objects have the fields of all parts; a later part wins over an earlier one."""
        parts = node["allOf"]
        if not isinstance(parts, list) or not parts:
            raise SchemaError(f"{where}/allOf", "must be a list of schemas")
        own = {word: value for word, value in node.items() if word != "allOf"}
        shapes = [
            self.shape(part, f"{where}/allOf/{index}", depth + 1, path)
            for index, part in enumerate(parts)
        ]
        shapes.append(self.shape(own, where, depth + 1, path))
        known = [shape for shape in shapes if shape.kind is not Kind.JSON]
        if known and all(shape.kind is Kind.STRUCT for shape in known):
            fields = {field.name: field for shape in known for field in shape.fields}
            check_names(f"{where}/allOf", fields)
            return struct_of(fields.values())
        return known[0] if known and all(shape == known[0] for shape in known) else _TEXT

    def _referred(self, reference: Any, where: str, depth: int, path: tuple[str, ...]) -> Shape:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaError(where, f"$ref {reference!r} leads out of the schema")
        if reference in path and depth >= self._recursion_depth:
            return _TEXT
        if path.count(reference) > RECURSION_DEPTH:
            raise SchemaError(where, f"$ref {reference!r} leads to itself")
        node = self._document
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
                node = node[int(step)]
            elif isinstance(node, dict) and step in node:
                node = node[step]
            else:
                raise SchemaError(where, f"$ref {reference!r} leads nowhere")
        if reference != "#" and not reference.startswith("#/"):
            raise SchemaError(where, f"$ref {reference!r} is no path within the schema")
        return self.shape(node, reference, depth, (*path, reference))


def _type_of(node: Mapping[str, Any], where: str) -> str:
    """The one type besides `null`; empty when there is none, or are several."""
    given = node.get("type")
    if given is None:
        return _implied_type(node)
    names = given if isinstance(given, list) else [given]
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise SchemaError(f"{where}/type", f"{name!r} is no type of JSON")
    rest = sorted(set(names) - {"null"})
    if rest == ["integer", "number"]:
        return "number"
    return rest[0] if len(rest) == 1 else ""


def _implied_type(node: Mapping[str, Any]) -> str:
    """What a schema without `type` means, by its other words."""
    if "properties" in node:
        return "object"
    if "items" in node:
        return "array"
    values = node["enum"] if isinstance(node.get("enum"), list) else [node.get("const")]
    if values and all(isinstance(value, str) for value in values):
        return "string"
    return ""


def _integer(node: Mapping[str, Any]) -> Shape:
    form, maximum = node.get("format"), node.get("maximum")
    if form == "int32":
        return simple(Kind.INT)
    if form == "uint64" or (isinstance(maximum, int | float) and maximum > _LONG_MAX):
        return _UNSIGNED_LONG
    return simple(Kind.LONG)


def _escaped(name: str) -> str:
    """A step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")
