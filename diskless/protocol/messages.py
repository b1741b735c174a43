"""Control messages: every API but Produce and Fetch, whose hot paths are written by hand.

kio carries Kafka's message schemas as one dataclass per API and version, and reads them natively.
This module adds what a broker needs on top:

- Reading tolerates what clients of the future send. kio refuses tagged fields it does not know;
  here they are cut out of the body first, guided by the schema, and only when kio stumbled (no
  client in use today sends one in a control request). Bytes after the body are ignored: librdkafka
  leaves three of them behind an all-topics Metadata request.
- Whatever goes wrong while reading becomes one ProtocolError.
- Writing takes plain values: a response is a mapping of field names, nested ones are mappings in
  sequences. One mapping serves all versions, since fields that a version lacks are left out and
  missing ones get the schema's default. The bytes are those of kio's own writer (a test compares
  them for every version served), made by a writer compiled from the same schema: kio's takes only
  its own number types, and twice the time.

Modules of schemas are imported on first use: all of them together take a second.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from struct import Struct
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from diskless.protocol.wire import (
    EMPTY_TAGS,
    INT16,
    INT32,
    INT64,
    NO_UUID,
    ProtocolError,
    Reader,
    nullable_string,
    string,
    unsigned_varint,
)

Fields = Mapping[str, Any]
"""A message as values by field name; nested messages are `Fields` in a sequence."""

_INT8: Final = Struct(">b")
_FLOAT64: Final = Struct(">d")

_FIXED_BYTES: Final[Mapping[str, int]] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}


def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version uses compact lengths and tagged fields."""
    return load_request_schema(api_key, version).__flexible__


def decode_request(api_key: int, version: int, body: bytes) -> Any:
    """The request as kio's dataclass for this version; Any, for its shape changes with it.

    Raises ProtocolError.
    """
    schema = load_request_schema(api_key, version)
    read = entity_reader(schema)
    try:
        try:
            return read(body, 0)[0]
        except KeyError:
            return read(_without_unknown_tags(schema, body), 0)[0]
    except (SerialError, ValueError, KeyError, OverflowError) as error:
        raise ProtocolError(f"{schema.__name__} v{version}: {error}") from error


def encode_response(api_key: int, version: int, values: Fields) -> bytes:
    """The body of a response. A field that is neither given nor has a default is a KeyError."""
    out: list[bytes] = []
    _message_writer(load_response_schema(api_key, version))(out, values)
    return b"".join(out)


class _FieldShape(NamedTuple):
    """One field of a schema, as much of it as the bytes depend on."""

    name: str
    kafka_type: str | None
    """None for nested messages."""
    nested: Any
    """The schema of a nested message, else None."""
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


def _shapes(schema: type[Any]) -> list[_FieldShape]:
    shapes = []
    for item in fields(schema):
        is_array, is_nullable, inner = _taken_apart(item.type)
        nested: Any = inner if is_dataclass(inner) else None
        kafka_type = None if nested is not None else item.metadata["kafka_type"]
        default = item.default
        # A throttle time is the one field that every response has and no handler sets: quotas are
        # answered by not reading, and a stale value here would pause clients for nothing.
        if default is MISSING and item.name == "throttle_time":
            default = timedelta(0)
        shapes.append(
            _FieldShape(
                name=item.name,
                kafka_type=kafka_type,
                nested=nested,
                is_array=is_array,
                is_nullable=is_nullable,
                tag=item.metadata.get("tag"),
                default=default,
            )
        )
    return shapes


def _taken_apart(annotation: Any) -> tuple[bool, bool, Any]:
    """(is array, is nullable, item type) of a field's annotation."""
    if get_origin(annotation) in (UnionType, Union):
        (inner,) = (choice for choice in get_args(annotation) if choice is not NoneType)
        is_array, _, item = _taken_apart(inner)
        return is_array, True, item
    if get_origin(annotation) is tuple:
        item, _ = get_args(annotation)
        # kio marks the item of an array of uuids as optional (zero means none), not the array.
        if get_origin(item) in (UnionType, Union):
            _, _, item = _taken_apart(item)
        return True, False, item
    return False, False, annotation


# --- reading: cutting out unknown tagged fields


def _without_unknown_tags(schema: type[Any], body: bytes) -> bytes:
    reader = Reader([body])
    out: list[bytes] = []
    _copy_message(schema, reader, body, out)
    return b"".join(out)


def _copy_message(schema: type[Any], reader: Reader, body: bytes, out: list[bytes]) -> None:
    """Copy one message of a flexible version without the tags that `schema` does not have."""
    tagged = {}
    for shape in _shapes(schema):
        if shape.tag is None:
            _copy_field(shape, reader, body, out)
        else:
            tagged[shape.tag] = shape
    kept = 0
    sections: list[bytes] = []
    for _ in range(reader.unsigned_varint()):
        tag = reader.unsigned_varint()
        size = reader.unsigned_varint()
        start = reader.position
        if tag not in tagged:
            reader.skip(size)
            continue
        value: list[bytes] = []
        _copy_field(tagged[tag], reader, body, value)
        if reader.position != start + size:
            raise ProtocolError(f"tagged field {tag} is not {size} bytes long")
        content = b"".join(value)
        sections += (unsigned_varint(tag), unsigned_varint(len(content)), content)
        kept += 1
    out.append(unsigned_varint(kept))
    out += sections


def _copy_field(shape: _FieldShape, reader: Reader, body: bytes, out: list[bytes]) -> None:
    if not shape.is_array:
        _copy_item(shape, reader, body, out)
        return
    start = reader.position
    count = reader.array_count(flexible=True, item_bytes_min=1, nullable=True)
    out.append(body[start : reader.position])
    for _ in range(count):
        _copy_item(shape, reader, body, out)


def _copy_item(shape: _FieldShape, reader: Reader, body: bytes, out: list[bytes]) -> None:
    start = reader.position
    if shape.nested is not None:
        if shape.is_nullable and not shape.is_array:
            marker = reader.int8()
            out.append(body[start : reader.position])
            if marker < 0:
                return
        _copy_message(shape.nested, reader, body, out)
        return
    assert shape.kafka_type is not None
    if shape.kafka_type in _FIXED_BYTES:
        reader.skip(_FIXED_BYTES[shape.kafka_type])
    else:
        reader.skip(max(reader.nullable_bytes_length(flexible=True), 0))
    out.append(body[start : reader.position])


# --- writing

_Write = Callable[[list[bytes], Any], None]


@functools.cache
def _message_writer(schema: Any) -> _Write:
    """A function that appends the bytes of one message, given as `Fields`."""
    flexible = bool(schema.__flexible__)
    plain = []
    tagged = []
    for shape in _shapes(schema):
        writer = _field_writer(shape, flexible=flexible)
        if shape.tag is None:
            plain.append((shape.name, shape.default, writer))
        else:
            assert shape.default is not MISSING, "a tagged field that may not be left out"
            tagged.append((shape.tag, shape.name, shape.default, writer))
    tagged.sort()

    def write(out: list[bytes], values: Fields) -> None:
        for name, default, writer in plain:
            value = values.get(name, default)
            if value is MISSING:
                raise KeyError(f"{schema.__name__} v{schema.__version__} needs {name}")
            writer(out, value)
        if not flexible:
            return
        present = [item for item in tagged if values.get(item[1], item[2]) != item[2]]
        if not present:
            out.append(EMPTY_TAGS)
            return
        out.append(unsigned_varint(len(present)))
        for tag, name, _, writer in present:
            content: list[bytes] = []
            writer(content, values[name])
            size = sum(map(len, content))
            out += (unsigned_varint(tag), unsigned_varint(size), *content)

    return write


def _field_writer(shape: _FieldShape, *, flexible: bool) -> _Write:
    if shape.nested is not None:
        write_item = _message_writer(shape.nested)
    else:
        assert shape.kafka_type is not None
        write_item = _scalar_writer(
            shape.kafka_type, nullable=shape.is_nullable and not shape.is_array, flexible=flexible
        )
    if not shape.is_array:
        if shape.nested is not None and shape.is_nullable:
            return _nullable_message_writer(write_item)
        return write_item

    null = b"\x00" if flexible else b"\xff\xff\xff\xff"

    def write_array(out: list[bytes], items: Any) -> None:
        if items is None:
            if not shape.is_nullable:
                raise KeyError(f"{shape.name} may not be null")
            out.append(null)
            return
        out.append(unsigned_varint(len(items) + 1) if flexible else INT32.pack(len(items)))
        for item in items:
            write_item(out, item)

    return write_array


def _nullable_message_writer(write_item: _Write) -> _Write:
    """KIP-893: one byte -1 for null, else 1 and the message."""

    def write(out: list[bytes], value: Any) -> None:
        if value is None:
            out.append(b"\xff")
        else:
            out.append(b"\x01")
            write_item(out, value)

    return write


def _scalar_writer(kafka_type: str, *, nullable: bool, flexible: bool) -> _Write:
    pack: Callable[[Any], bytes]
    match kafka_type:
        case "bool":
            pack = _pack_bool
        case "int8":
            pack = _INT8.pack
        case "int16" | "error_code":
            pack = INT16.pack
        case "int32":
            pack = INT32.pack
        case "int64":
            pack = INT64.pack
        case "float64":
            pack = _FLOAT64.pack
        case "uint16":
            pack = Struct(">H").pack
        case "uuid":
            pack = _pack_uuid
        case "timedelta_i32":
            pack = _pack_milliseconds
        case "string" if nullable:
            pack = functools.partial(nullable_string, flexible=flexible)
        case "string":
            pack = functools.partial(string, flexible=flexible)
        case "bytes":
            pack = functools.partial(_pack_bytes, flexible=flexible, nullable=nullable)
        case _:
            raise NotImplementedError(f"no response we write has a field of type {kafka_type}")

    def write(out: list[bytes], value: Any) -> None:
        out.append(pack(value))

    return write


def _pack_bool(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _pack_uuid(value: UUID | None) -> bytes:
    return (value or NO_UUID).bytes


def _pack_milliseconds(value: timedelta) -> bytes:
    return INT32.pack(value // timedelta(milliseconds=1))


def _pack_bytes(value: bytes | None, *, flexible: bool, nullable: bool) -> bytes:
    if value is None:
        if not nullable:
            raise KeyError("bytes may not be null")
        return b"\x00" if flexible else b"\xff\xff\xff\xff"
    length = unsigned_varint(len(value) + 1) if flexible else INT32.pack(len(value))
    return length + value
