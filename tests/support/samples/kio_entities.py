"""Hypothesis strategies for kio's message classes, and classes as a later Kafka might have them."""

import functools
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, make_dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

CLASS_VARIABLES = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")


@functools.cache
def entities(schema: Any) -> st.SearchStrategy[Any]:
    """Instances of one of kio's message classes."""
    return st.builds(schema, **{item.name: _values(item) for item in fields(schema)})


def as_fields(entity: Any) -> dict[str, Any]:
    """The same message as a mapping of field names, which is what our writer takes."""
    return {item.name: _plain(getattr(entity, item.name)) for item in fields(entity)}


def smallest(schema: Any) -> Any:
    """An instance with every list empty and every number zero, but one item in each list."""
    return schema(**{item.name: _smallest_value(item) for item in fields(schema)})


@functools.cache
def of_the_future(schema: Any) -> Any:
    """The class with two more tagged fields in it and in every message inside of it."""
    new_fields: list[Any] = []
    for item in fields(schema):
        keywords = {"metadata": item.metadata, "kw_only": True}
        if item.default is not MISSING:
            keywords["default"] = item.default
        new_fields.append((item.name, _of_the_future_type(item.type), dataclass_field(**keywords)))
    for name, kafka_type, kind, tag in (
        ("invented_text", "string", str, 90),
        ("invented_number", "int64", int, 300),
    ):
        metadata = {"kafka_type": kafka_type, "tag": tag}
        default = "" if kind is str else 0
        new_fields.append(
            (name, kind, dataclass_field(metadata=metadata, default=default, kw_only=True))
        )
    variables = {name: getattr(schema, name) for name in CLASS_VARIABLES}
    return make_dataclass(
        schema.__name__, new_fields, namespace=variables, frozen=True, kw_only=True
    )


def promoted(entity: Any) -> Any:
    """The same message as an instance of the future class, its new fields filled."""
    values = {item.name: _promoted_value(getattr(entity, item.name)) for item in fields(entity)}
    return of_the_future(type(entity))(**values, invented_text="from tomorrow", invented_number=7)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return as_fields(value) if is_dataclass(value) else value


def _promoted_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_promoted_value(item) for item in value)
    return promoted(value) if is_dataclass(value) else value


def _of_the_future_type(annotation: Any) -> Any:
    if get_origin(annotation) is tuple:
        item, _ = get_args(annotation)
        return tuple[_of_the_future_type(item), ...]  # type: ignore[misc]
    if get_origin(annotation) in (UnionType, Union):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        return _of_the_future_type(kinds[0]) | None
    return of_the_future(annotation) if is_dataclass(annotation) else annotation


def _taken_apart(annotation: Any) -> tuple[bool, bool, Any]:
    """(is a tuple, may be None, item type)"""
    if get_origin(annotation) in (UnionType, Union):
        (inner,) = (kind for kind in get_args(annotation) if kind is not NoneType)
        is_tuple, _, item = _taken_apart(inner)
        return is_tuple, True, item
    if get_origin(annotation) is tuple:
        item, _ = get_args(annotation)
        return True, False, _taken_apart(item)[2]
    return False, False, annotation


def _values(item: Field[Any]) -> st.SearchStrategy[Any]:
    is_tuple, is_nullable, kind = _taken_apart(item.type)
    single = entities(kind) if is_dataclass(kind) else _scalars(item.metadata["kafka_type"])
    strategy: st.SearchStrategy[Any] = (
        st.lists(single, max_size=3).map(tuple) if is_tuple else single
    )
    return st.none() | strategy if is_nullable else strategy


def _scalars(kafka_type: str) -> st.SearchStrategy[Any]:
    match kafka_type:
        case "bool":
            return st.booleans()
        case "string":
            return st.text(max_size=200)
        case "bytes" | "records":
            return st.binary(max_size=300)
        case "uuid":
            return st.uuids()
        case "error_code":
            return st.sampled_from(ErrorCode)
        case "float64":
            return st.floats(allow_nan=False)
        case "timedelta_i32":
            return st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms))
        case "timedelta_i64":
            return st.integers(-(2**50), 2**50).map(lambda ms: timedelta(milliseconds=ms))
        case "datetime_i64":
            # kio knows none before 1970.
            since = st.integers(0, 2**47)
            return since.map(lambda ms: _EPOCH + timedelta(milliseconds=ms))
        case _:
            bits = _BITS[kafka_type]
            return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _smallest_value(item: Field[Any]) -> Any:
    is_tuple, is_nullable, kind = _taken_apart(item.type)
    if is_nullable and not is_tuple:
        return None
    single: Any
    if is_dataclass(kind):
        single = smallest(kind)
    else:
        zeros: dict[str, Any] = {
            "bool": False,
            "string": "",
            "bytes": b"",
            "uuid": UUID(int=1),
            "error_code": ErrorCode.none,
            "timedelta_i32": timedelta(0),
            "timedelta_i64": timedelta(0),
            "datetime_i64": _EPOCH,
        }
        single = zeros.get(item.metadata["kafka_type"], 0)
    return (single,) if is_tuple else single


def entity_of(schema: Any, values: Mapping[str, Any]) -> Any:
    """An instance with `values`, nested messages as mappings; the rest as small as can be.

    One mapping serves all versions: what a version lacks is left out.
    """
    fields_of = {}
    for item in fields(schema):
        if item.name in values:
            is_tuple, _, kind = _taken_apart(item.type)
            fields_of[item.name] = _entity_value(kind, is_tuple, values[item.name])
        else:
            fields_of[item.name] = _smallest_value(item)
    return schema(**fields_of)


def _entity_value(kind: Any, is_tuple: bool, value: Any) -> Any:
    if value is None or not is_dataclass(kind):
        return tuple(value) if is_tuple and value is not None else value
    return tuple(entity_of(kind, item) for item in value) if is_tuple else entity_of(kind, value)
