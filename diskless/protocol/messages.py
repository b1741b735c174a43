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

- A hundred thousand rows are a long walk: whatever has arrays is read and written in steps
  (`diskless.loop.long_work`).
- A response may carry tagged fields of our own, on any level: EXTRA_TAGS in its mapping.

Modules of schemas are imported on first use: all of them together take a second.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from struct import Struct
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin

from kio.index import load_request_schema, load_response_schema

from diskless.loop.long_rows import as_tuple
from diskless.loop.long_work import Steps, batched, done_at_once
from diskless.ports import Buffer
from diskless.protocol.wire import ProtocolError, Reader, array_count, nullable_string, string
from wal.wire.fields import (
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_TAGS,
    NO_UUID,
    compact_bytes,
    uvarint,
)

Fields = Mapping[str, Any]
"""A message as values by field name; nested messages are `Fields` in a sequence."""

EXTRA_TAGS: Final = "extra_tags"
"""Key under which a mapping holds tagged fields that its schema lacks: tag -> bytes of the field.

Their tags are above the schema's own. Versions that are not flexible leave them out.
"""

_NO_EXTRA_TAGS: Final[Mapping[int, bytes]] = {}
_MS: Final = timedelta(milliseconds=1)
_LEAST_MS: Final = timedelta.min // _MS
_GREATEST_MS: Final = timedelta.max // _MS
"""Not the negative of the least: a timedelta reaches farther up than down."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC) - _EPOCH
_LATEST: Final = datetime.max.replace(tzinfo=UTC) - _EPOCH
_PIECES_JOINED: Final = 512

_UINT16: Final = Struct(">H")


def decode_request(api_key: int, version: int, body: bytes) -> Steps[Any]:
    """The request as kio's dataclass for this version; Any, for its shape changes with it.

    Raises ProtocolError.
    """
    part = _message_reader(load_request_schema(api_key, version))
    return (yield from part.steps(Reader([body])))


def encode_response(api_key: int, version: int, values: Fields) -> Steps[list[Buffer]]:
    """The body of a response, in pieces. A field that is neither given nor has a default: KeyError.

    An array may be given as an iterator, whose items are then made as they are written.
    """
    out: list[bytes] = []
    part = _message_writer(load_response_schema(api_key, version))
    yield from part.steps(out, values)
    return [b"".join(pieces) for pieces in batched(out, _PIECES_JOINED)]


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
        # A throttle time is the one field that every response has and no handler of these sets.
        # Who has to wait is told when the answer leaves (`diskless.protocol.throttle_time`).
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


class _Part(NamedTuple):
    """How one field, or a whole message, is read or written."""

    walk: Callable[..., Any]
    """Of a Reader: gives the value; of a list and a value: appends its bytes."""
    is_steps: bool
    """Whether `walk` makes steps; so it is with all that has arrays in it."""

    def steps(self, *arguments: Any) -> Steps[Any]:
        """`walk` as steps in any case."""
        return (yield from self.walk(*arguments)) if self.is_steps else self.walk(*arguments)

    def at_once(self) -> Callable[..., Any]:
        """`walk`, to its end in any case: for tagged fields, which are short."""

        def to_the_end(*arguments: Any) -> Any:
            return done_at_once(self.walk(*arguments))

        return to_the_end if self.is_steps else self.walk


_Read = Callable[[Reader], Any]
_Scalar = tuple[_Read, Callable[[Any], bytes]]


@cache
def _message_reader(schema: Any) -> _Part:
    """Reads one message as an instance of `schema`."""
    flexible = bool(schema.__flexible__)
    plain = []
    tagged: dict[int, tuple[str, _Read]] = {}
    for shape in _shapes(schema):
        part = _field_reader(shape, flexible=flexible)
        if shape.tag is None:
            plain.append((shape.name, part.walk, part.is_steps))
        else:
            tagged[shape.tag] = (shape.name, part.at_once())

    def read(reader: Reader) -> Any:
        values = {name: read_field(reader) for name, read_field, _ in plain}
        if flexible:
            values.update(_read_tags(reader, tagged))
        return schema(**values)

    def read_in_steps(reader: Reader) -> Steps[Any]:
        values = {}
        for name, read_field, is_steps in plain:
            values[name] = (yield from read_field(reader)) if is_steps else read_field(reader)
        if flexible:
            values.update(_read_tags(reader, tagged))
        return schema(**values)

    if any(is_steps for _, _, is_steps in plain):
        return _Part(read_in_steps, True)
    return _Part(read, False)


def _read_tags(reader: Reader, known: Mapping[int, tuple[str, _Read]]) -> dict[str, Any]:
    """The tagged fields that are there and known; the dataclass has defaults for the others."""
    values = {}
    for _ in range(reader.tag_count()):
        tag = reader.uvarint()
        size = reader.uvarint()
        if tag not in known:
            reader.pass_over(size)
            continue
        end = reader.consumed + size
        name, read_field = known[tag]
        values[name] = read_field(reader)
        if reader.consumed != end:
            raise ProtocolError(f"the tagged field {name} is not {size} bytes long")
    return values


def _field_reader(shape: _FieldShape, *, flexible: bool) -> _Part:
    if shape.nested is not None:
        item = _message_reader(shape.nested)
        if shape.is_nullable and not shape.is_array:
            item = _nullable_message_reader(item)
    else:
        item = _Part(_scalar(shape, flexible=flexible)[0], False)
    if not shape.is_array:
        return item
    read_item, is_steps = item

    def read_array(reader: Reader) -> Steps[Any]:
        count = reader.nullable_array_count(flexible=flexible, item_bytes_min=1)
        if count < 0:
            if shape.is_nullable:
                return None
            raise ProtocolError(f"null where {shape.name} must be")
        items = []
        for _ in range(count):
            items.append((yield from read_item(reader)) if is_steps else read_item(reader))
            yield
        return as_tuple(items)

    return _Part(read_array, True)


def _nullable_message_reader(item: _Part) -> _Part:
    """KIP-893: one byte -1 for null, else 1 and the message."""

    def read(reader: Reader) -> Steps[Any]:
        return None if reader.int8() < 0 else (yield from item.steps(reader))

    return _Part(read, True)


# --- writing

_Write = Callable[[list[bytes], Any], None]


@cache
def _message_writer(schema: Any) -> _Part:
    """Appends the bytes of one message, given as `Fields`."""
    flexible = bool(schema.__flexible__)
    plain = []
    tagged = []
    for shape in _shapes(schema):
        part = _field_writer(shape, flexible=flexible)
        if shape.tag is None:
            plain.append((shape.name, shape.default, part.walk, part.is_steps))
        else:
            assert shape.default is not MISSING, "a tagged field that may not be left out"
            tagged.append((shape.tag, shape.name, shape.default, part.at_once()))
    tagged.sort()

    def missing(name: str) -> KeyError:
        return KeyError(f"{schema.__name__} v{schema.__version__} needs {name}")

    def write(out: list[bytes], values: Fields) -> None:
        for name, default, write_field, _ in plain:
            value = values.get(name, default)
            if value is MISSING:
                raise missing(name)
            write_field(out, value)
        if flexible:
            _write_tags(out, values, tagged)

    def write_in_steps(out: list[bytes], values: Fields) -> Steps[None]:
        for name, default, write_field, is_steps in plain:
            value = values.get(name, default)
            if value is MISSING:
                raise missing(name)
            if is_steps:
                yield from write_field(out, value)
            else:
                write_field(out, value)
        if flexible:
            _write_tags(out, values, tagged)

    if any(is_steps for _, _, _, is_steps in plain):
        return _Part(write_in_steps, True)
    return _Part(write, False)


def _write_tags(
    out: list[bytes], values: Fields, known: Sequence[tuple[int, str, Any, _Write]]
) -> None:
    present = [item for item in known if _differs(values.get(item[1], item[2]), item[2])]
    extra: Mapping[int, bytes] = values.get(EXTRA_TAGS, _NO_EXTRA_TAGS)
    if not present and not extra:
        out.append(NO_TAGS)
        return
    out.append(uvarint(len(present) + len(extra)))
    for tag, name, _, write_field in present:
        content: list[bytes] = []
        write_field(content, values[name])
        size = sum(map(len, content))
        out += (uvarint(tag), uvarint(size), *content)
    for tag, field in sorted(extra.items()):
        assert not known or tag > known[-1][0], "tags are written in ascending order"
        out += (uvarint(tag), uvarint(len(field)), field)


def _differs(value: Any, default: Any) -> bool:
    """Whether a tagged field must be written; an empty list is an empty tuple."""
    return bool((tuple(value) if isinstance(value, list) else value) != default)


def _field_writer(shape: _FieldShape, *, flexible: bool) -> _Part:
    if shape.nested is not None:
        item = _message_writer(shape.nested)
        if shape.is_nullable and not shape.is_array:
            item = _nullable_message_writer(item)
    else:
        item = _Part(_appends(_scalar(shape, flexible=flexible)[1]), False)
    if not shape.is_array:
        return item
    write_item, is_steps = item

    null = b"\x00" if flexible else b"\xff\xff\xff\xff"

    def write_array(out: list[bytes], items: Any) -> Steps[None]:
        if items is None:
            if not shape.is_nullable:
                raise KeyError(f"{shape.name} may not be null")
            out.append(null)
            return
        # An iterator does not say how many items there are. The pieces of a long array are joined
        # on the way, so that nothing is left to be done with all of them at once.
        joined: list[bytes] = []
        pieces: list[bytes] = []
        count = 0
        for item in items:
            if is_steps:
                yield from write_item(pieces, item)
            else:
                write_item(pieces, item)
            count += 1
            if len(pieces) >= _PIECES_JOINED:
                joined.append(b"".join(pieces))
                pieces.clear()
            yield
        out.append(array_count(count, flexible=flexible))
        out += joined
        out += pieces

    return _Part(write_array, True)


def _appends(pack: Callable[[Any], bytes]) -> _Write:
    def write(out: list[bytes], value: Any) -> None:
        out.append(pack(value))

    return write


def _nullable_message_writer(item: _Part) -> _Part:
    """KIP-893: one byte -1 for null, else 1 and the message."""

    def write(out: list[bytes], value: Any) -> Steps[None]:
        out.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            yield from item.steps(out, value)

    return _Part(write, True)


# --- scalars


def _read_milliseconds(reader: Reader) -> timedelta:
    """Beyond what a timedelta holds, which is millions of years, as much as it holds."""
    return timedelta(milliseconds=min(max(reader.int64(), _LEAST_MS), _GREATEST_MS))


def _read_time(reader: Reader) -> datetime:
    """Beyond what a datetime holds, as far as it goes."""
    since = _read_milliseconds(reader)
    return _EPOCH + min(max(since, _EARLIEST), _LATEST)


_SCALARS: Final[Mapping[str, _Scalar]] = {
    "bool": (lambda reader: reader.uint8() != 0, lambda value: b"\x01" if value else b"\x00"),
    "int8": (Reader.int8, INT8.pack),
    "int16": (Reader.int16, INT16.pack),
    "error_code": (Reader.int16, INT16.pack),
    "uint16": (lambda reader: reader.unpack(_UINT16)[0], _UINT16.pack),
    "int32": (Reader.int32, INT32.pack),
    "int64": (Reader.int64, INT64.pack),
    "float64": (Reader.float64, FLOAT64.pack),
    "uuid": (Reader.topic_id, lambda value: (value or NO_UUID).bytes),
    "timedelta_i32": (
        lambda reader: timedelta(milliseconds=reader.int32()),
        lambda value: INT32.pack(value // _MS),
    ),
    "timedelta_i64": (_read_milliseconds, lambda value: INT64.pack(value // _MS)),
    "datetime_i64": (_read_time, lambda value: INT64.pack((value - _EPOCH) // _MS)),
}
"""How the types of kio's schemas that are always written alike are read and written."""


def _scalar(shape: _FieldShape, *, flexible: bool) -> _Scalar:
    nullable = shape.is_nullable and not shape.is_array
    match shape.kafka_type:
        case "string":
            read = Reader.nullable_string if nullable else Reader.string
            write = nullable_string if nullable else string
            return partial(read, flexible=flexible), partial(write, flexible=flexible)
        case "bytes":
            return (
                partial(_read_bytes, flexible=flexible, nullable=nullable),
                partial(_bytes, flexible=flexible, nullable=nullable),
            )
        case kafka_type:
            assert kafka_type is not None
            return _SCALARS[kafka_type]


def _read_bytes(reader: Reader, *, flexible: bool, nullable: bool) -> bytes | None:
    length = reader.nullable_bytes_length(flexible=flexible)
    if length >= 0:
        return reader.raw(length)
    if nullable:
        return None
    raise ProtocolError("null where bytes must be")


def _bytes(value: bytes | None, *, flexible: bool, nullable: bool) -> bytes:
    if value is None:
        if not nullable:
            raise KeyError("bytes may not be null")
        return b"\x00" if flexible else b"\xff\xff\xff\xff"
    return compact_bytes(value) if flexible else INT32.pack(len(value)) + value
