"""Schemas of JSON and Avro, values of them, and the columns that should come out."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
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
    ]
)


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


AVRO_PARTS = st.recursive(
    st.one_of(AVRO_LEAVES, _named_leaf("enum"), _named_leaf("fixed")),
    lambda inner: st.one_of(
        _avro_record(inner),
        _avro_record(inner).map(lambda record: ["null", record]),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda items: {"type": "map", "values": items}),
        inner.map(lambda items: ["null", {"type": "array", "items": items}]),
    ),
    max_leaves=6,
)
AVRO_SCHEMAS = st.one_of(_avro_record(AVRO_PARTS), AVRO_PARTS.filter(lambda s: s != "null"))


def avro_values(schema: Any) -> st.SearchStrategy[tuple[Any, Any]]:
    """(a value of the schema, what its column holds)."""
    if isinstance(schema, list):
        if schema == ["double"]:
            return avro_values("double")
        (part,) = (one for one in schema if one != "null")
        return st.one_of(st.just((None, None)), avro_values(part))
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
        case "record":
            parts = {field["name"]: avro_values(field["type"]) for field in schema["fields"]}
            return st.fixed_dictionaries(parts).map(
                lambda found: (
                    {name: pair[0] for name, pair in found.items()},
                    {name: pair[1] for name, pair in found.items()},
                )
            )
        case "array":
            return st.lists(avro_values(schema["items"]), max_size=3).map(
                lambda found: ([pair[0] for pair in found], [pair[1] for pair in found])
            )
        case "map":
            return st.dictionaries(TEXTS, avro_values(schema["values"]), max_size=3).map(
                lambda found: (
                    {name: pair[0] for name, pair in found.items()},
                    [(name, pair[1]) for name, pair in found.items()],
                )
            )
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
