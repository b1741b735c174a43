"""Control messages: every API but Produce and Fetch, whose hot paths are written by hand.

kio carries Kafka's message schemas, generated, as one dataclass per API and version. This module
compiles a reader and a writer from such a dataclass. kio has its own, and a test holds ours to them
for every version served; ours are needed because they face clients:

- kio's native reader reserves memory for as many items as an array claims to have. Five bytes from
  a client can thereby abort the process. Ours believes no count and no length.
- It refuses tagged fields it does not know. Ours skips them, on every level, and ignores bytes
  after the body: librdkafka leaves three of them behind an all-topics Metadata request.
- Whatever is wrong with the bytes is one ProtocolError.
- Writing takes plain values: a response is a mapping of field names, nested ones are mappings in
  sequences. One mapping serves all versions, since fields that a version lacks are left out and
  missing ones get the schema's default.

- A response may carry tagged fields of our own, on any level: EXTRA_TAGS in its mapping.

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

EXTRA_TAGS: Final = "extra_tags"
"""Key under which a mapping holds tagged fields that its schema lacks: tag -> bytes of the field.

Their tags are above the schema's own. Versions that are not flexible leave them out.
"""

_NO_EXTRA_TAGS: Final[Mapping[int, bytes]] = {}
_LONGEST_MS: Final = timedelta.max // timedelta(milliseconds=1)
_INT8: Final = Struct(">b")
_FLOAT64: Final = Struct(">d")


def decode_request(api_key: int, version: int, body: bytes) -> Any:
    """The request as kio's dataclass for this version; Any, for its shape changes with it.

    Raises ProtocolError.
    """
    return _message_reader(load_request_schema(api_key, version))(Reader([body]))


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
        # A throttle time is the one field that every response has and no handler of these sets:
        # only Produce and Fetch have quotas, and a stale value would pause clients for nothing.
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


# --- reading

_Read = Callable[[Reader], Any]


@functools.cache
def _message_reader(schema: Any) -> _Read:
    """A function that reads one message as an instance of `schema`."""
    flexible = bool(schema.__flexible__)
    plain = []
    tagged = {}
    for shape in _shapes(schema):
        reader_of_field = _field_reader(shape, flexible=flexible)
        if shape.tag is None:
            plain.append((shape.name, reader_of_field))
        else:
            tagged[shape.tag] = (shape.name, reader_of_field)

    def read(reader: Reader) -> Any:
        values = {name: read_field(reader) for name, read_field in plain}
        if flexible:
            values.update(_read_tags(reader, tagged))
        return schema(**values)

    return read


def _read_tags(reader: Reader, known: Mapping[int, tuple[str, _Read]]) -> dict[str, Any]:
    """The tagged fields that are there and known; the dataclass has defaults for the others."""
    values = {}
    for _ in range(reader.tag_count()):
        tag = reader.unsigned_varint()
        size = reader.unsigned_varint()
        if tag not in known:
            reader.skip(size)
            continue
        end = reader.position + size
        name, read_field = known[tag]
        values[name] = read_field(reader)
        if reader.position != end:
            raise ProtocolError(f"the tagged field {name} is not {size} bytes long")
    return values


def _field_reader(shape: _FieldShape, *, flexible: bool) -> _Read:
    nullable_item = shape.is_nullable and not shape.is_array
    if shape.nested is not None:
        read_item = _message_reader(shape.nested)
        if nullable_item:
            read_item = _nullable_message_reader(read_item)
    else:
        assert shape.kafka_type is not None
        read_item = _scalar_reader(shape.kafka_type, nullable=nullable_item, flexible=flexible)
    if not shape.is_array:
        return read_item

    def read_array(reader: Reader) -> Any:
        count = reader.nullable_array_count(flexible=flexible, item_bytes_min=1)
        if count >= 0:
            return tuple([read_item(reader) for _ in range(count)])
        if shape.is_nullable:
            return None
        raise ProtocolError(f"null where {shape.name} must be")

    return read_array


def _nullable_message_reader(read_item: _Read) -> _Read:
    """KIP-893: one byte -1 for null, else 1 and the message."""

    def read(reader: Reader) -> Any:
        return None if reader.int8() < 0 else read_item(reader)

    return read


def _scalar_reader(kafka_type: str, *, nullable: bool, flexible: bool) -> _Read:
    match kafka_type:
        case "bool":
            return _read_bool
        case "int8":
            return Reader.int8
        case "int16":
            return Reader.int16
        case "int32":
            return Reader.int32
        case "int64":
            return Reader.int64
        case "float64":
            return _read_float64
        case "uuid":
            return Reader.uuid
        case "timedelta_i32":
            return _read_milliseconds
        case "timedelta_i64":
            return _read_long_milliseconds
        case "string" if nullable:
            return functools.partial(Reader.nullable_string, flexible=flexible)
        case "string":
            return functools.partial(Reader.string, flexible=flexible)
        case "bytes":
            return functools.partial(_read_bytes, flexible=flexible, nullable=nullable)
        case _:
            raise NotImplementedError(f"no request we read has a field of type {kafka_type}")


def _read_bool(reader: Reader) -> bool:
    return reader.uint8() != 0


def _read_float64(reader: Reader) -> float:
    (value,) = reader.unpack(_FLOAT64)
    return float(value)


def _read_milliseconds(reader: Reader) -> timedelta:
    return timedelta(milliseconds=reader.int32())


def _read_long_milliseconds(reader: Reader) -> timedelta:
    """Beyond what a timedelta holds, which is millions of years, as much as it holds."""
    value = min(max(reader.int64(), -_LONGEST_MS), _LONGEST_MS)
    return timedelta(milliseconds=value)


def _read_bytes(reader: Reader, *, flexible: bool, nullable: bool) -> bytes | None:
    length = reader.nullable_bytes_length(flexible=flexible)
    if length >= 0:
        return bytes(reader.take(length))
    if nullable:
        return None
    raise ProtocolError("null where bytes must be")


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
        present = [item for item in tagged if _differs(values.get(item[1], item[2]), item[2])]
        extra: Mapping[int, bytes] = values.get(EXTRA_TAGS, _NO_EXTRA_TAGS)
        if not present and not extra:
            out.append(EMPTY_TAGS)
            return
        out.append(unsigned_varint(len(present) + len(extra)))
        for tag, name, _, writer in present:
            content: list[bytes] = []
            writer(content, values[name])
            size = sum(map(len, content))
            out += (unsigned_varint(tag), unsigned_varint(size), *content)
        for tag, field in sorted(extra.items()):
            assert not tagged or tag > tagged[-1][0], "tags are written in ascending order"
            out += (unsigned_varint(tag), unsigned_varint(len(field)), field)

    return write


def _differs(value: Any, default: Any) -> bool:
    """Whether a tagged field must be written; an empty list is an empty tuple."""
    return bool((tuple(value) if isinstance(value, list) else value) != default)


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
