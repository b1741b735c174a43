"""Schemas of JSON and Avro, values of them, and the columns that should come out."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

NAMES = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=6
).filter(str.isprintable)
AVRO_NAMES = st.from_regex(r"\A[a-z_][a-z0-9_]{0,5}\Z")
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def _unique(names: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(names, min_size=1, max_size=4, unique_by=str.casefold)


def _fields(
    names: st.SearchStrategy[str], inner: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    return _unique(names).flatmap(lambda found: st.fixed_dictionaries(dict.fromkeys(found, inner)))


JSON_LEAVES = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "integer"},
        {"type": "integer", "format": "int32"},
        {"type": "integer", "maximum": 2**64},
        {"type": "number"},
        {"type": ["string", "null"]},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {},
    ]
)


def _json_object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _fields(NAMES, inner).map(lambda fields: {"type": "object", "properties": fields})


JSON_PARTS = st.recursive(
    JSON_LEAVES,
    lambda inner: st.one_of(
        _json_object(inner),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.filter(bool).map(lambda items: {"type": "object", "additionalProperties": items}),
    ),
    max_leaves=6,
)
JSON_SCHEMAS = st.one_of(_json_object(JSON_PARTS), JSON_PARTS)


def json_values(schema: Mapping[str, Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    """(a value of the schema, what its column holds)."""
    match schema.get("type"):
        case "object" if "properties" in schema:
            optional = {name: json_values(part) for name, part in schema["properties"].items()}
            return st.fixed_dictionaries({}, optional=optional).map(
                lambda found: (
                    {name: pair[0] for name, pair in found.items()},
                    {name: found[name][1] if name in found else None for name in optional},
                )
            )
        case "object":
            inner = json_values(schema["additionalProperties"])
            return st.dictionaries(TEXTS, inner, max_size=3).map(
                lambda found: (
                    {name: pair[0] for name, pair in found.items()},
                    [(name, pair[1]) for name, pair in found.items()],
                )
            )
        case "array":
            return st.lists(json_values(schema["items"]), max_size=3).map(
                lambda found: ([pair[0] for pair in found], [pair[1] for pair in found])
            )
        case "integer" if "maximum" in schema:
            return st.integers(0, 2**64 - 1).map(lambda value: (value, value))
        case "integer" if "format" in schema:
            return st.integers(-(2**31), 2**31 - 1).map(lambda value: (value, value))
        case "integer":
            return LONGS.map(lambda value: (value, value))
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False).map(lambda one: (one, one))
        case "boolean":
            return st.booleans().map(lambda value: (value, value))
        case "string" if schema.get("format") == "date":
            return st.dates().map(lambda day: (day.isoformat(), day))
        case "string" if "format" in schema:
            return MOMENTS.map(
                lambda moment: (moment.isoformat() + "Z", moment.replace(tzinfo=UTC))
            )
        case None:
            return st.sampled_from([("x", '"x"'), (7, "7"), ({"a": [1]}, '{"a":[1]}')])
    return st.one_of(TEXTS.map(lambda text: (text, text)), st.just((None, None)))


AVRO_LEAVES = st.sampled_from(
    [
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "bytes",
        "string",
        ["null", "string"],
        ["long", "null"],
        ["double"],
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        {"type": "array", "items": "null"},
        {"type": "array", "items": ["null"]},
        {"type": "map", "values": "null"},
    ]
)
CUT_LEVEL = 8


class _Names:
    """Avro wants another name for each type."""

    count = 0

    def take(self) -> str:
        self.count += 1
        return f"T{self.count}"


_NAMES = _Names()


def _avro_record(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _fields(AVRO_NAMES, inner).map(
        lambda fields: {
            "type": "record",
            "name": _NAMES.take(),
            "fields": [{"name": name, "type": part} for name, part in fields.items()],
        }
    )


def _named_leaf(kind: str) -> st.SearchStrategy[Any]:
    return st.just(None).map(
        lambda _: (
            {"type": "enum", "name": _NAMES.take(), "symbols": ["A", "B", "C"]}
            if kind == "enum"
            else {"type": "fixed", "name": _NAMES.take(), "size": 5}
        )
    )


def _named_unit() -> st.SearchStrategy[Any]:
    return st.just(None).map(lambda _: {"type": "record", "name": _NAMES.take(), "fields": []})


def kind_of(schema: Any) -> str:
    """What an alternative of this type is called."""
    if isinstance(schema, str):
        return schema
    return str(schema.get("name", schema["type"]))


def _several(parts: list[Any]) -> st.SearchStrategy[Any]:
    """A union of these, of which Avro allows one of each kind and no union."""
    kinds = {kind_of(part): part for part in parts if not isinstance(part, list)}
    alternatives = list(kinds.values())
    if len(alternatives) < 2:
        return st.just({"type": "array", "items": "null"})
    return st.one_of(
        st.just(alternatives),
        st.integers(0, len(alternatives)).map(lambda at: _nullable(alternatives, at)),
    )


def _nullable(alternatives: list[Any], at: int) -> list[Any]:
    return [*alternatives[:at], "null", *alternatives[at:]]


AVRO_PARTS = st.recursive(
    st.one_of(AVRO_LEAVES, _named_leaf("enum"), _named_leaf("fixed")),
    lambda inner: st.one_of(
        _avro_record(inner),
        _avro_record(inner).map(lambda record: ["null", record]),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda items: {"type": "map", "values": items}),
        inner.map(lambda items: ["null", {"type": "array", "items": items}]),
        st.lists(st.one_of(inner, _named_unit()), min_size=2, max_size=4).flatmap(_several),
        _named_unit().map(lambda unit: ["null", unit]),
    ),
    max_leaves=6,
)


def _containing_itself(leaf: Any) -> st.SearchStrategy[Any]:
    name = _NAMES.take()
    fields = [
        ["null", name],
        {"type": "array", "items": name},
        {"type": "map", "values": name},
        ["string", name, "null", {"type": "array", "items": name}],
    ]
    return st.lists(st.sampled_from(fields), min_size=1, max_size=2).map(
        lambda more: {
            "type": "record",
            "name": name,
            "fields": [
                {"name": f"f{index}", "type": part} for index, part in enumerate([leaf, *more])
            ],
        }
    )


AVRO_RECURSIVE = AVRO_LEAVES.filter(lambda leaf: leaf != "float").flatmap(_containing_itself)
"""Records that contain themselves. As text a float has fewer digits than as a double."""
AVRO_SCHEMAS = st.one_of(_avro_record(AVRO_PARTS), AVRO_PARTS.filter(lambda s: s != "null"))


class JsonText:
    """Equal to a text of JSON that says the same."""

    def __init__(self, wanted: Any) -> None:
        self._wanted = wanted

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and json.loads(other) == self._wanted

    def __hash__(self) -> int:
        raise TypeError

    def __repr__(self) -> str:
        return f"JsonText({self._wanted!r})"


def avro_values(schema: Any) -> st.SearchStrategy[tuple[Any, Any]]:
    """(a value of the schema, as fastavro takes it, what its column holds)."""
    return _Values({}, 12, is_text=False).of(schema, 0)


class _Values:
    """Values of a schema, and of the records in it that are named again within themselves."""

    def __init__(self, known: Mapping[str, Any], fuel: int, *, is_text: bool) -> None:
        self._known = known
        self._fuel = fuel
        """How often a record may still be within itself."""
        self._is_text = is_text

    def of(self, schema: Any, level: int) -> st.SearchStrategy[tuple[Any, Any]]:
        if isinstance(schema, list):
            return self._union(schema, level)
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "record":
                known = {**self._known, schema["name"]: schema}
                inside = _Values(known, self._fuel, is_text=self._is_text)
                return inside._record(schema, level)
            case "array" | "map" if self._fuel < 0:
                empty: Any = [] if kind == "array" else {}
                wanted = 0 if schema.get("items") in ("null", ["null"]) else []
                is_object = self._is_text and kind == "map" and schema["values"] != "null"
                return st.just((empty, {} if is_object else wanted))
            case "array":
                inner = self.of(schema["items"], level + 1)
                found = st.lists(inner, max_size=3)
                if schema["items"] in ("null", ["null"]):
                    return found.map(lambda pairs: ([None] * len(pairs), len(pairs)))
                return found.map(
                    lambda found: ([one for one, _ in found], [one for _, one in found])
                )
            case "map":
                inner = self.of(schema["values"], level + 1)
                return st.dictionaries(TEXTS, inner, max_size=3).map(
                    lambda found: (
                        {name: pair[0] for name, pair in found.items()},
                        self._map({name: pair[1] for name, pair in found.items()}, schema),
                    )
                )
            case _ if kind in self._known:
                return self._within_itself(kind, level)
        found = avro_leaves(schema)
        return found.map(lambda pair: (pair[0], as_json(pair[1]))) if self._is_text else found

    def _map(self, found: dict[str, Any], schema: Any) -> Any:
        if schema["values"] == "null":
            return list(found)
        return found if self._is_text else list(found.items())

    def _record(self, schema: Any, level: int) -> st.SearchStrategy[tuple[Any, Any]]:
        parts = {field["name"]: self.of(field["type"], level + 1) for field in schema["fields"]}
        if not parts:
            return st.just(({}, True))
        return st.fixed_dictionaries(parts).map(
            lambda found: (
                {name: pair[0] for name, pair in found.items()},
                {name: pair[1] for name, pair in found.items()},
            )
        )

    def _union(self, schema: Any, level: int) -> st.SearchStrategy[tuple[Any, Any]]:
        if schema in (["double"], ["null"]):
            return self.of(schema[0], level)
        several = [one for one in schema if one != "null"]
        null = st.just((None, None))
        if len(several) == 1:
            if self._fuel < 0:
                return null
            name = kind_of(several[0])
            there = self.of(several[0], level).map(lambda pair: ((name, pair[0]), pair[1]))
            return st.one_of(null, there)
        if self._fuel < 0:
            several = several[:1]
        found = [self._alternative(one, schema, level) for one in several]
        return st.one_of(*found, *([null] if "null" in schema else []))

    def _alternative(self, one: Any, schema: Any, level: int) -> st.SearchStrategy[tuple[Any, Any]]:
        names = [kind_of(other) for other in schema if other != "null"]
        name = kind_of(one)
        none = {} if self._is_text else dict.fromkeys(names)
        return self.of(one, level + 1).map(lambda pair: ((name, pair[0]), {**none, name: pair[1]}))

    def _within_itself(self, name: str, level: int) -> st.SearchStrategy[tuple[Any, Any]]:
        is_cut = level >= CUT_LEVEL and not self._is_text
        inside = _Values(self._known, self._fuel - 1, is_text=self._is_text or is_cut)
        # Made when it is drawn, for most values end before.
        found = st.deferred(lambda: inside._record(self._known[name], level))
        return found.map(lambda pair: (pair[0], JsonText(pair[1]))) if is_cut else found


def as_json(value: Any) -> Any:
    """A leaf as text of JSON has it."""
    match value:
        case bytes():
            return value.decode("latin-1")
        case Decimal():
            return float(value)
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return "Infinity" if value > 0 else "-Infinity"
    return value


def avro_leaves(schema: Any) -> st.SearchStrategy[tuple[Any, Any]]:
    """`avro_values` of a type that has no parts."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    match logical:
        case "date":
            return st.dates(date(1, 1, 1)).map(lambda day: (day, day))
        case "decimal":
            return st.decimals(-(10**17) + 1, 10**17 - 1, places=3).map(lambda one: (one, one))
        case "timestamp-millis":
            return MOMENTS.map(
                lambda one: one.replace(microsecond=one.microsecond // 1000 * 1000, tzinfo=UTC)
            ).map(lambda one: (one, one))
        case "timestamp-micros":
            return MOMENTS.map(lambda one: one.replace(tzinfo=UTC)).map(lambda one: (one, one))
        case "local-timestamp-micros":
            return MOMENTS.map(lambda one: (one, one))
    match schema["type"] if isinstance(schema, dict) else schema:
        case "null":
            return st.just((None, None))
        case "enum":
            return st.sampled_from(["A", "B", "C"]).map(lambda one: (one, one))
        case "fixed":
            return st.binary(min_size=5, max_size=5).map(lambda one: (one, one))
        case "boolean":
            return st.booleans().map(lambda one: (one, one))
        case "int":
            return st.integers(-(2**31), 2**31 - 1).map(lambda one: (one, one))
        case "long":
            return LONGS.map(lambda one: (one, one))
        case "float":
            return st.floats(width=32, allow_nan=False).map(lambda one: (one, one))
        case "double":
            return st.floats(allow_nan=False).map(lambda one: (one, one))
        case "bytes":
            return st.binary(max_size=6).map(lambda one: (one, one))
    return TEXTS.map(lambda one: (one, one))
