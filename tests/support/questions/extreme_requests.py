"""Request bodies of any API and version whose fields hold the extremes of their types.

The values come from a `Taste`, the shape from kio's schemas, and the bytes from a writer of our
own: kio's cannot write a time beyond what a `timedelta` holds, but a client can send one.
"""

import math
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema

BITS: Final[Mapping[str, int]] = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "error_code": 16,
    "timedelta_i32": 32,
    "timedelta_i64": 64,
    "datetime_i64": 64,
}
FORMATS: Final = {8: ">b", 16: ">h", 32: ">i", 64: ">q"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Taste:
    """Which value a field gets."""

    name: str
    integer: Callable[[int], int]
    """Of a number of bits."""
    text: Callable[[str], str]
    """Of the name of a field."""
    topic_id: Callable[[], UUID]
    items: Callable[[], int]
    """How long an array is; -1: null where it may be."""
    is_null: Callable[[], bool]
    fraction: Callable[[], float]


def least(bits: int) -> int:
    return -(1 << (bits - 1))


def greatest(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def plain_tastes(topic: str, topic_id: UUID, name: Callable[[str], str]) -> Iterator[Taste]:
    """One value for all fields of a kind; `name` gives groups, members and new topics theirs."""

    def taste(what: str, integer: Callable[[int], int], **other: Any) -> Taste:
        defaults: dict[str, Any] = {
            "text": lambda field: topic if field in ("name", "topic") else name(field),
            "topic_id": lambda: topic_id,
            "items": lambda: 1,
            "is_null": lambda: False,
            "fraction": lambda: math.nan,
        }
        return Taste(name=what, integer=integer, **{**defaults, **other})

    yield taste("least", least, fraction=lambda: -math.inf)
    yield taste("greatest", greatest, fraction=lambda: math.inf)
    yield taste("minus one", lambda bits: -1)
    yield taste("minus two", lambda bits: -2, text=lambda field: "")
    yield taste("zero", lambda bits: 0, topic_id=lambda: UUID(int=0), items=lambda: 2)
    yield taste("null", lambda bits: 1, is_null=lambda: True, items=lambda: -1)
    yield taste("empty", lambda bits: 1, text=lambda field: "", items=lambda: 0)


def mixed_taste(seed: int, topic: str, topic_id: UUID, name: Callable[[str], str]) -> Taste:
    """Every field by itself, and for a text also another topic, a number, or what is no name."""
    rng = random.Random(seed)

    def integer(bits: int) -> int:
        return rng.choice((least(bits), least(bits) + 1, -2, -1, 0, 1, 2, greatest(bits)))

    def text(field: str) -> str:
        other = ("", "\0", "-1", "9" * 30, "1e400", "nan", "[", "a/b..", "é\U0001f600", "x" * 300)
        return rng.choice((topic, topic, name(field), name(field), *other))

    return Taste(
        name=f"mixed {seed}",
        integer=integer,
        text=text,
        topic_id=lambda: rng.choice((topic_id, topic_id, UUID(int=0), UUID(int=7))),
        items=lambda: rng.choice((-1, 0, 1, 1, 2, 3)),
        is_null=lambda: rng.random() < 0.2,
        fraction=lambda: rng.choice((math.nan, math.inf, -math.inf, 0.0, -1.0, 5e-324, 1.8e308)),
    )


def body_of(key: int, version: int, taste: Taste) -> bytes:
    """What follows the header."""
    return _message(load_request_schema(key, version), taste)


def _message(schema: Any, taste: Taste) -> bytes:
    flexible = bool(schema.__flexible__)
    plain, tagged = [], []
    for item in fields(schema):
        content = _field(item.name, item.type, item.metadata.get("kafka_type"), flexible, taste)
        tag = item.metadata.get("tag")
        if tag is None:
            plain.append(content)
        else:
            tagged.append((tag, content))
    if flexible:
        plain.append(_varint(len(tagged)))
        for tag, content in sorted(tagged):
            plain += (_varint(tag), _varint(len(content)), content)
    return b"".join(plain)


def _field(name: str, annotation: Any, kind: str | None, flexible: bool, taste: Taste) -> bytes:
    is_array, is_nullable, inner = _taken_apart(annotation)

    def item() -> bytes:
        if is_dataclass(inner):
            return _message(inner, taste)
        assert kind is not None
        return _scalar(name, kind, is_nullable and not is_array, flexible, taste)

    if is_array:
        count = taste.items()
        if count < 0 and not is_nullable:
            count = 0
        start = _varint(count + 1) if flexible else struct.pack(">i", count)
        return start + b"".join(item() for _ in range(count))
    if is_dataclass(inner) and is_nullable:
        return b"\xff" if taste.is_null() else b"\x01" + item()
    return item()


def _scalar(name: str, kind: str, is_nullable: bool, flexible: bool, taste: Taste) -> bytes:
    if kind in BITS:
        return struct.pack(FORMATS[BITS[kind]], taste.integer(BITS[kind]))
    match kind:
        case "bool":
            return bytes([taste.integer(8) & 0xFF])
        case "float64":
            return struct.pack(">d", taste.fraction())
        case "uuid":
            return taste.topic_id().bytes
        case "string" | "bytes" | "records":
            length = 2 if kind == "string" else 4
            if is_nullable and taste.is_null():
                return b"\x00" if flexible else b"\xff" * length
            content = taste.text(name).encode()
            if flexible:
                return _varint(len(content) + 1) + content
            return len(content).to_bytes(length, "big") + content
    raise AssertionError(f"a kind of field that no value is known for: {kind}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _taken_apart(annotation: Any) -> tuple[bool, bool, Any]:
    """(is an array, may be null, type of an item)"""
    if get_origin(annotation) in (UnionType, Union):
        (inner,) = (choice for choice in get_args(annotation) if choice is not NoneType)
        is_array, _, item = _taken_apart(inner)
        return is_array, True, item
    if get_origin(annotation) is tuple:
        _, _, item = _taken_apart(get_args(annotation)[0])
        return True, False, item
    return False, False, annotation
